//! `tare memory bench` as users run it: its formats and counts, and its ends.

use std::cell::Cell;
use std::io::{BufRead as _, BufReader, Read as _};
use std::net::UdpSocket;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{kill_process, Pid, Signal};
use tempfile::TempDir;

mod memory_common;
#[expect(dead_code, reason = "no test here is a client of the node")]
#[path = "memory_common/node.rs"]
mod node;

use memory_common::{answered, is_too_slow, is_unanswered};
use node::{run, text, Node};

/// The time within which a benchmark has opened a space, on a busy machine too.
const OPENED_WITHIN: Duration = Duration::from_secs(120);

#[test]
fn the_lines_of_the_documents_tests_are_a_format() {
    let folder = TempDir::new().unwrap();
    let node = Node::start(folder.path(), &[]);
    let url = node.url();
    let common = [
        "bench", &url, "-d", "0.02", "--format", "clio", "--wait", "blocking",
    ];
    let failed = Cell::new(0);
    let run = |arguments: &[&str]| {
        let done = run(arguments);
        failed.set(failed.get() + u64::from(!done.status.success()));
        done
    };
    let sessions = [&common[..], &["--sessions", "1,8", "--order", "3"]].concat();
    let sessions = answered(|| run(&sessions));
    let sessions = text(&sessions.stdout);
    let lines: Vec<&str> = sessions.lines().collect();
    assert_eq!(lines.len(), 5, "{sessions}");
    assert!(
        lines[0].starts_with("nr_sessions:    1 avg_Write: "),
        "{sessions}"
    );
    assert!(
        lines[3].starts_with("nr_sessions:    8 avg_Read: "),
        "{sessions}"
    );
    assert!(lines[3].ends_with(" Mbps"), "{sessions}");
    assert_eq!(lines[4], "All tests are done.");
    let form = |more: &[&str]| {
        let done = answered(|| run(&[&common[..], more].concat()));
        // Of figures the number of digits is the machine's.
        let lines = text(&done.stdout);
        let digits = |c: char| c.is_ascii_digit() || c == '.' || c == ' ';
        lines
            .lines()
            .map(|line| line.split(digits).collect::<String>())
            .collect::<Vec<_>>()
    };
    let ended = "Alltestsaredone";
    assert_eq!(
        form(&["--order", "0,7"]),
        [
            "nr_pte_order:avg_WRITE:ns",
            "nr_pte_order:avg_WRITE:ns",
            "nr_pte_order:avg_READ:ns",
            "nr_pte_order:avg_READ:ns",
            ended,
        ]
    );
    assert_eq!(
        form(&["--op", "write", "--size", "4,64"]),
        [
            "size:avg_WRITE:nsThroughput:Mbps",
            "size:avg_WRITE:nsThroughput:Mbps",
            ended,
        ]
    );
    let threads = "#nr_theads=Latencyread=write=nsThroughputread=write=Mbps";
    assert_eq!(form(&["--threads", "1,2"]), [threads, threads, ended]);
    assert_eq!(
        form(&["--op", "read", "--threads", "1,2"]).first().unwrap(),
        "#nr_theads=Latencyread=nsThroughputread=Mbps"
    );
    let two = run(&[&common[..], &["--order", "0,1", "--size", "4,64"]].concat());
    assert_eq!(two.status.code(), Some(2));
    let said = text(&two.stderr);
    assert!(
        said.contains("the lines of the document have one axis"),
        "{said}"
    );
    // Each closed its spaces, except those that a busy machine gave up; the last was refused.
    let most = 8 * (failed.get() - 1);
    let spaces = node.status()["memory"]["spaces"].as_u64().unwrap();
    assert!(spaces <= most, "{spaces} spaces of at most {most}");
}

#[test]
fn a_benchmark_allows_itself_the_descriptors_of_its_sessions_or_says_how_many_it_needs() {
    let folder = TempDir::new().unwrap();
    let node = Node::start(folder.path(), &["--timeout", "60"]);
    let bench = |limit: &str| {
        let program = env!("CARGO_BIN_EXE_tare");
        let (url, script) = (node.url(), format!("ulimit {limit}; exec \"$@\""));
        let mut command = Command::new("sh");
        command.args(["-c", &script, "sh", program, "memory", "bench", &url]);
        command.args(["--sessions", "60", "--threads", "2", "--order", "0"]);
        command.args(["-d", "0.02", "--op", "read", "--wait", "blocking"]);
        command.stdin(Stdio::null()).output().expect("a shell")
    };
    let done = answered(|| bench("-S -n 64"));
    assert!(done.status.success(), "{}", text(&done.stderr));
    let refused = bench("-n 64");
    let said = text(&refused.stderr);
    assert_eq!(refused.status.code(), Some(2), "{said}");
    assert!(
        said.contains("found a limit of 64 open files, expected "),
        "{said}"
    );
    let needed = said.trim_end().rsplit("120 sockets: ulimit -n ").next();
    let needed: u64 = needed.unwrap().parse().expect(&said);
    let done = answered(|| bench(&format!("-n {needed}")));
    assert!(done.status.success(), "{}", text(&done.stderr));
}

#[test]
fn a_benchmark_that_fails_closes_its_spaces() {
    let folder = TempDir::new().unwrap();
    let node = Node::start(folder.path(), &["--quota", "1Mi", "--timeout", "60"]);
    let url = node.url();
    // Over the quota.
    let bench = ["bench", &url, "--order", "10", "--sessions", "2"];
    let bench = [&bench[..], &["-d", "0.02", "--wait", "blocking"]].concat();
    // Of an attempt that was given up on a busy machine some may be left.
    let before = Cell::new(0);
    for threads in ["1", "2"] {
        let failed = answered(|| {
            before.set(spaces(&node));
            run(&[&bench[..], &["--threads", threads]].concat())
        });
        assert_eq!(failed.status.code(), Some(2), "{}", text(&failed.stdout));
        assert!(
            text(&failed.stderr).contains("quota"),
            "{}",
            text(&failed.stderr)
        );
        assert!(spaces(&node) <= before.get(), "{threads} threads");
    }
}

/// Returns the number of a node's spaces.
fn spaces(node: &Node) -> u64 {
    node.status()["memory"]["spaces"].as_u64().unwrap()
}

/// Returns the number of operations that a node has executed.
fn executed(node: &Node) -> u64 {
    node.status()["node"]["executed"].as_u64().unwrap()
}

/// Starts a benchmark that takes an hour, and waits until a count of the node's has grown by this
/// much; returns it with the count before. One that ends because the node is too slow is started
/// again.
fn begun(node: &Node, arguments: &[&str], count: fn(&Node) -> u64, growth: u64) -> (Child, u64) {
    let start = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tare"));
        command.args(["memory", "bench", &node.url(), "--wait", "blocking"]);
        command.args(["-d", "3600"]).args(arguments);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let before = count(node);
        (command.spawn().expect("tare runs"), before)
    };
    let from = Instant::now();
    let (mut bench, mut before) = start();
    while count(node) < before + growth {
        if bench.try_wait().unwrap().is_some() {
            let output = bench.wait_with_output().unwrap();
            assert!(is_unanswered(&output), "{}", text(&output.stderr));
            (bench, before) = start();
        }
        assert!(from.elapsed() < OPENED_WITHIN, "nothing is measured");
        std::thread::sleep(Duration::from_millis(20));
    }
    (bench, before)
}

/// Interrupts a program, and returns its output.
fn interrupted(program: Child) -> Output {
    kill_process(Pid::from_child(&program), Signal::INT).unwrap();
    program.wait_with_output().unwrap()
}

#[test]
fn a_measurement_that_is_interrupted_leaves_no_space_behind() {
    let folder = TempDir::new().unwrap();
    let node = Node::start(folder.path(), &[]);
    let (bench, before) = begun(&node, &[], spaces, 1);
    let output = interrupted(bench);
    // A slow node may not answer the last requests in time: then it keeps the space.
    if output.status.code() == Some(130) {
        assert!(spaces(&node) <= before);
    } else {
        let said = text(&output.stderr);
        assert!(is_too_slow(&said), "{}: {said}", output.status);
    }
}

/// Measures writes at a node that stops and goes on, after which the measurement is interrupted;
/// returns what it printed, and its standard error.
fn bench_of_a_node_that_stops(node: &Node, arguments: &[&str]) -> (String, String) {
    let arguments = [&["--op", "write"], arguments].concat();
    // An open, an allocation, every page, and some.
    let (mut bench, _) = begun(node, &arguments, executed, 200);
    let pid = Pid::from_child(&node.child);
    kill_process(pid, Signal::STOP).unwrap();
    // Several times the limit after which operations are given up.
    std::thread::sleep(Duration::from_millis(500));
    kill_process(pid, Signal::CONT).unwrap();
    let (from, before) = (Instant::now(), executed(node));
    while executed(node) < before + 100 && bench.try_wait().unwrap().is_none() {
        assert!(
            from.elapsed() < OPENED_WITHIN,
            "nothing is measured any more"
        );
        std::thread::sleep(Duration::from_millis(20));
    }
    let output = interrupted(bench);
    (text(&output.stdout), text(&output.stderr))
}

#[test]
fn operations_that_failed_are_counted_beside_the_documents_lines() {
    let folder = TempDir::new().unwrap();
    let node = Node::start(folder.path(), &["--timeout", "0.1"]);
    let clio = ["--format", "clio", "--order", "3"];
    let mut runs = (0..5).map(|_| bench_of_a_node_that_stops(&node, &clio));
    // A busy machine may let it end before its first line, or miss that the node has stopped.
    let has_failed = |(printed, said): &(String, String)| {
        let mut counts = said.lines().filter(|line| line.ends_with(" failed"));
        !printed.is_empty() && counts.any(|line| !line.contains(" 0 failed"))
    };
    let (printed, said) = runs
        .find(has_failed)
        .expect("a measurement of five that prints a line and counts failures");
    assert!(
        printed.starts_with("nr_sessions:    1 avg_Write: "),
        "{printed}"
    );
    let counted = said.lines().find(|line| line.ends_with(" failed"));
    let counted = counted.unwrap_or_else(|| panic!("{said}"));
    assert!(counted.starts_with("tare: write: 0 wrong, "), "{said}");
    assert!(!counted.contains(" 0 failed"), "{said}");
    assert!(said.contains("tare memory serve --timeout 2"), "{said}");
}

#[test]
fn a_measurement_says_which_spaces_stay_at_a_node_that_does_not_answer() {
    let folder = TempDir::new().unwrap();
    let node = Node::start(folder.path(), &["--timeout", "0.1"]);
    let node_pid = Pid::from_child(&node.child);
    let mut outputs = (0..5).map(|_| {
        let (bench, before) = begun(&node, &["--op", "read"], spaces, 1);
        kill_process(node_pid, Signal::STOP).unwrap();
        let output = interrupted(bench);
        kill_process(node_pid, Signal::CONT).unwrap();
        (output.status.code(), text(&output.stderr), before)
    });
    // A busy machine may let it give up and close its space before the node stops.
    let may_stay = "1 address space may stay";
    let (code, said, before) = outputs
        .find(|(_, said, _)| said.contains(may_stay))
        .expect("a measurement of five whose space may stay");
    assert!(matches!(code, Some(1 | 2)), "{said}");
    let kept = said.lines().find(|line| line.contains(may_stay));
    let kept = kept.unwrap_or_else(|| panic!("{said}"));
    let close = kept.split("tare memory ").nth(1).unwrap();
    let close: Vec<&str> = close.split(' ').collect();
    let closed = answered(|| run(&close));
    // The node may have executed one of those that were given up.
    assert!(matches!(closed.status.code(), Some(0 | 1)), "{kept}");
    assert!(spaces(&node) <= before, "{kept}");
}

#[test]
fn a_measurement_waits_for_a_node_that_is_starting() {
    let folder = TempDir::new().unwrap();
    // Below the ports that the kernel gives to the sockets of other tests meanwhile.
    let first = std::process::id() as u16 % 1000;
    let mut ports = (0..1000).map(|n| 20_000 + (first + n) % 1000);
    let unused = ports.find(|port| UdpSocket::bind(("127.0.0.1", *port)).is_ok());
    let listen = format!("127.0.0.1:{}", unused.expect("a free port"));
    let shm = folder.path().join("node.shm");
    let shm = shm.to_str().unwrap();
    let urls = [format!("udp://{listen}"), format!("shm:{shm}")];
    let mut benches = urls.map(|url| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tare"));
        command.args(["memory", "bench", &url, "--wait", "blocking"]);
        command.args(["-d", "0.02", "--connect-timeout", "300", "--json"]);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().expect("tare runs")
    });
    let mut said = benches.each_mut().map(|bench| {
        let mut lines = BufReader::new(bench.stderr.take().unwrap());
        let mut line = String::new();
        lines.read_line(&mut line).unwrap();
        assert!(line.contains("does not answer yet; waiting"), "{line}");
        lines
    });
    let _node = Node::start_at(&listen, folder.path(), &["--shm", shm]);
    for (bench, rest) in benches.into_iter().zip(&mut said) {
        let mut error = String::new();
        rest.read_to_string(&mut error).unwrap();
        let output = bench.wait_with_output().unwrap();
        // It may give up an operation, but not the wait for the node.
        let is_done = output.status.success() || is_unanswered(&output) || is_too_slow(&error);
        assert!(is_done, "{}: {error}", output.status);
    }
}
