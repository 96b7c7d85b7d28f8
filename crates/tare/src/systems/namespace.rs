//! Network namespaces of the roles of a trial: each begins and ends with its role's process.

use std::fs::File;
use std::os::fd::AsFd as _;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{bail, Context as _};
use rustix::thread::{move_into_link_name_space, LinkNameSpaceType};
use tare_lab::driver::Invocation;

/// The longest time until both ends of a cable are up.
const LINK_MAX: Duration = Duration::from_secs(10);

/// Starts a role in a network namespace of its own.
pub(super) fn apart(own_trial: Invocation) -> Invocation {
    // For `unshare`, /proc/self/exe would be `unshare` itself.
    let program = format!("/proc/{}/exe", std::process::id());
    let unshare = ["--net".into(), "--".into(), program.into()];
    Invocation {
        program: "unshare".into(),
        arguments: unshare.into_iter().chain(own_trial.arguments).collect(),
        ..own_trial
    }
}

/// Runs `ip` and returns what it prints.
pub(super) fn ip(arguments: &[&str]) -> anyhow::Result<String> {
    let mut command = Command::new("ip");
    let output = command.args(arguments).stdin(Stdio::null()).output();
    let output = output.with_context(|| format!("{command:?}"))?;
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr);
        bail!("{command:?}: {}", errors.trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Runs something in the network namespace of a process, on a thread of its own.
pub(super) fn within<R: Send>(
    pid: u32,
    run: impl FnOnce() -> anyhow::Result<R> + Send,
) -> anyhow::Result<R> {
    let path = format!("/proc/{pid}/ns/net");
    std::thread::scope(|scope| {
        let there = scope.spawn(|| {
            let space = File::open(&path).with_context(|| path.clone())?;
            move_into_link_name_space(space.as_fd(), Some(LinkNameSpaceType::Network))?;
            run()
        });
        there
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Waits until the interface is there, sets it up, and waits for the other end of its cable.
pub(super) fn await_link(interface: &str) -> anyhow::Result<()> {
    let deadline = Instant::now() + LINK_MAX;
    loop {
        let up = ip(&["link", "set", interface, "up"]);
        let shown = up.and_then(|_| ip(&["-o", "link", "show", "dev", interface]));
        match shown {
            Ok(flags) if flags.contains("LOWER_UP") => return Ok(()),
            Ok(_) if Instant::now() > deadline => {
                bail!("the other end of {interface} is not up after {LINK_MAX:?}")
            }
            Err(error) if Instant::now() > deadline => return Err(error),
            _ => std::thread::sleep(Duration::from_millis(10)),
        }
    }
}
