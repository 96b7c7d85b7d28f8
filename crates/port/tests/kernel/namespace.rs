//! A network namespace for one test. It belongs to the test's thread and goes away with it.

use std::io::Write as _;
use std::process::{Command, Stdio};
use std::{env, fs, io, panic, thread};

use tare_port::Interface;

/// Runs a test in a new network namespace, where that is possible; in CI it must be.
pub(crate) fn in_namespace(test: impl FnOnce() + Send + 'static) {
    if let Err(why) = possible() {
        assert!(
            env::var_os("CI").is_none(),
            "the tests of the kernel's ports cannot run: {why}"
        );
        // Past the capture of the test runner: what is not tested must be seen.
        let _ = writeln!(io::stderr(), "NOT TESTED: {why}");
        return;
    }
    let result = thread::spawn(|| {
        // SAFETY: takes a number; moves this thread only.
        assert_eq!(unsafe { libc::unshare(libc::CLONE_NEWNET) }, 0);
        // So that the kernel sends nothing of its own.
        for of in ["all", "default"] {
            let _ = fs::write(format!("/proc/sys/net/ipv6/conf/{of}/disable_ipv6"), "1");
        }
        test();
    })
    .join();
    if let Err(panicked) = result {
        panic::resume_unwind(panicked);
    }
}

fn possible() -> Result<(), String> {
    // SAFETY: takes nothing.
    if unsafe { libc::geteuid() } != 0 {
        return Err("only root may make network namespaces; run `sudo -E cargo test`".into());
    }
    let ip = Command::new("ip")
        .arg("-V")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    ip.map(drop)
        .map_err(|error| format!("`ip`: {error}; install iproute2"))
}

/// Runs `ip` in the test's namespace.
pub(crate) fn ip(arguments: &str) {
    let output = Command::new("ip")
        .args(arguments.split_whitespace())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "ip {arguments}: {said}");
}

/// A cable: two interfaces of these names, up.
pub(crate) fn veth(a: &str, b: &str) -> (Interface, Interface) {
    ip(&format!("link add dev {a} type veth peer name {b}"));
    let ends = [a, b].map(|name| {
        let end = Interface::by_name(name).unwrap();
        end.set_up(true).unwrap();
        end
    });
    let [a, b] = ends;
    (a, b)
}
