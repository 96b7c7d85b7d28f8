//! `tare memory` over the frames of an interface (root): both ends of a cable in one network
//! namespace, whose kernel never sees what they say.

use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::os::fd::AsFd as _;
use std::process::{Child, Command, Output, Stdio};
use std::thread;

use rustix::process::{kill_process, Pid, Signal};
use rustix::thread::{move_into_link_name_space, LinkNameSpaceType};
use serde_json::Value;

mod memory_common;

use memory_common::{answered, until};

const TARE: &str = env!("CARGO_BIN_EXE_tare");
const NODE: &str = "10.81.0.1:7311";

/// Makes the cable, and becomes the node.
const SCRIPT: &str = "ip link add node type veth peer name client && ip link set node up \
                      && ip link set client up && exec \"$@\"";

/// A process that ends with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn possible() -> Result<(), String> {
    if !rustix::process::geteuid().is_root() {
        return Err("only root may make network namespaces; run `sudo -E cargo test`".into());
    }
    for tool in ["ip", "unshare"] {
        let done = Command::new(tool).arg("-V").stdout(Stdio::null()).status();
        done.map_err(|error| format!("`{tool}`: {error}; install iproute2 and util-linux"))?;
    }
    Ok(())
}

/// Runs `tare memory` in the namespace of a process.
fn run_beside(pid: u32, arguments: &[&str]) -> Output {
    let space = File::open(format!("/proc/{pid}/ns/net")).unwrap();
    let there = || {
        move_into_link_name_space(space.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
        let mut command = Command::new(TARE);
        command.arg("memory").args(arguments).stdin(Stdio::null());
        command.output().unwrap()
    };
    thread::scope(|scope| scope.spawn(there).join().unwrap())
}

#[test]
fn a_node_at_an_interface_is_pinged_measured_asked_and_stopped() {
    if let Err(why) = possible() {
        assert!(std::env::var_os("CI").is_none(), "cannot be tested: {why}");
        // Past the capture of the test runner: what is not tested must be seen.
        let _ = writeln!(io::stderr(), "NOT TESTED: {why}");
        return;
    }
    let folder = tempfile::TempDir::new().unwrap();
    let socket = folder.path().join("status.sock");
    let socket = socket.to_str().unwrap();
    let listen = format!("xdp:node,{NODE}");
    let mut command = Command::new("unshare");
    command.args([
        "--net", "--", "sh", "-c", SCRIPT, "sh", TARE, "memory", "serve",
    ]);
    command.args(["--listen", &listen, "--status-socket", socket]);
    command.args(["--insecure", "--memory", "16Mi"]);
    command.stdin(Stdio::null()).stderr(Stdio::piped());
    let mut node = Running(command.spawn().unwrap());
    let mut log = BufReader::new(node.0.stderr.take().unwrap());
    let mut said = String::new();
    while !said.contains("event=port_opened") {
        let len = log.read_line(&mut said).unwrap();
        assert!(len > 0, "the node ended: {said}");
    }
    assert!(said.contains(&format!("address={listen}")), "{said}");

    let pid = node.0.id();
    let place = format!("xdp:client,10.81.0.2,{NODE}");
    let pinged = answered(|| run_beside(pid, &["ping", &place, "-c", "3", "-i", "0"]));
    let said = String::from_utf8_lossy(&pinged.stdout);
    assert!(said.contains("3 of 3 answered"), "{pinged:?}");
    let bench = [
        "bench", &place, "-d", "0.05", "--wait", "blocking", "--json",
    ];
    let bench = [&bench[..], &["--sessions", "20"]].concat();
    let done = answered(|| run_beside(pid, &bench));
    assert!(done.status.success(), "{done:?}");

    let status: Value = until("the status of the node", || {
        let said = run_beside(pid, &["status", "--json", socket]);
        let is_there = said.status.success() || node.0.try_wait().unwrap().is_none();
        assert!(is_there, "{said:?}");
        serde_json::from_slice(&said.stdout).ok()
    });
    assert_eq!(status["listen"], listen);
    assert!(status["workers"][0]["received"].as_u64().unwrap() > 40);
    kill_process(Pid::from_child(&node.0), Signal::TERM).unwrap();
    assert_eq!(node.0.wait().unwrap().code(), Some(0));
}

#[test]
fn what_cannot_be_listened_at_is_refused_with_what_is_expected() {
    let serve = |options: &[&str]| {
        let mut command = Command::new(TARE);
        let done = command
            .args(["memory", "serve", "--memory", "16Mi"])
            .args(options)
            .output();
        let done = done.unwrap();
        assert_eq!(done.status.code(), Some(2));
        String::from_utf8_lossy(&done.stderr).into_owned()
    };
    let open = serve(&["--listen", "xdp:absent,127.0.0.1:7311"]);
    assert!(
        open.contains("is not loopback") && open.contains("--insecure"),
        "{open}"
    );
    let absent = serve(&["--listen", "xdp:absent,10.81.0.1:7311", "--insecure"]);
    assert!(absent.contains("no interface \"absent\""), "{absent}");
    let wrong = serve(&["--listen", "xdp:absent"]);
    assert!(
        wrong.contains("expected ADDRESS:PORT, or xdp:IFACE,ADDRESS:PORT"),
        "{wrong}"
    );
}
