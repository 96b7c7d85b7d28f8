//! A trial of several roles as `tare run` runs it: two gateway daemons and a load tester, in
//! network namespaces of their own.

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{kill_process, Pid, Signal};
use serde_json::Value;
use tempfile::TempDir;

const EXPERIMENT: &str = r#"
[[experiment]]
id     = "test/veth"
title  = "Two gateways and a load tester"
source = "the test"
driver = "vita-veth"
matrix = { size = ["IMIX"] }
metric = { name = "ndr", unit = "Mbit/s", better = "higher" }
"#;

/// Returns true if the roles can run here; prints a notice if not, and fails under CI.
fn is_testable() -> bool {
    let runs = |program: &str, argument: &str| {
        let mut command = Command::new(program);
        let status = command.arg(argument).stdout(Stdio::null()).status();
        status.is_ok_and(|status| status.success())
    };
    if rustix::process::geteuid().is_root() && runs("ip", "-V") && runs("unshare", "--version") {
        return true;
    }
    let notice = "NOT TESTED roles: network namespaces need root, iproute2 and util-linux";
    assert!(std::env::var("CI").as_deref() != Ok("true"), "{notice}");
    // Past the capture of the test runner: what is not tested must be seen.
    let _ = writeln!(std::io::stderr(), "{notice}");
    false
}

/// Starts a run of one round, whose search takes about twice this time.
fn start(folder: &Path, seconds: &str) -> Child {
    let fixed = format!(
        "fixed = {{ top = \"4 Mbit/s\", precision = \"4 Mbit/s\", duration = \"{seconds} s\" }}\n"
    );
    fs::write(folder.join("veth.toml"), EXPERIMENT.to_owned() + &fixed).unwrap();
    Command::new(env!("CARGO_BIN_EXE_tare"))
        .args(["run", "veth.toml", "--rounds", "1", "--out", "run"])
        .current_dir(folder)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// The records of the trials: the cell and its second run.
fn records(folder: &Path) -> Vec<Value> {
    let samples = fs::read_to_string(folder.join("run/samples.jsonl")).unwrap();
    let lines = samples.lines();
    lines
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// The gateways that the roles of a run have started.
fn gateways(run: u32) -> Vec<u32> {
    let stat = |pid: u32| fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let parent = |pid: u32| -> Option<u32> {
        let stat = stat(pid);
        stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()
    };
    let all = fs::read_dir("/proc").unwrap().flatten();
    let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|pid| {
        let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let is_gateway = String::from_utf8_lossy(&words).contains("gateway\0run\0");
        is_gateway && parent(*pid).and_then(parent) == Some(run)
    })
    .collect()
}

#[test]
fn the_roles_of_a_trial_find_each_other_and_the_tester_measures() {
    if !is_testable() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    assert!(start(folder.path(), "0.1").wait().unwrap().success());
    let records = records(folder.path());
    assert_eq!(records.len(), 2);
    for record in records {
        let outcome = &record["outcome"];
        assert_eq!(outcome["status"], "done", "{record}");
        assert_eq!(outcome["values"]["ndr"], 4.0, "{record}");
        assert_eq!(outcome["counters"]["searches_in_vain"], 0, "{record}");
        assert!(
            outcome["counters"]["operations"].as_u64() > Some(100),
            "{record}"
        );
    }
}

/// Starts a run, kills one of its gateways, and returns its folder, its number and the record of
/// the trial that failed; `None` if the gateway had ended before, as on a busy machine.
fn killed() -> Option<(TempDir, u32, Value)> {
    let folder = tempfile::tempdir().unwrap();
    let mut run = start(folder.path(), "3");
    let deadline = Instant::now() + Duration::from_secs(60);
    let gateway = loop {
        if let [one, _] = gateways(run.id())[..] {
            break one;
        }
        if run.try_wait().unwrap().is_some() {
            return None;
        }
        assert!(Instant::now() < deadline, "no gateways after 60 s");
        sleep(Duration::from_millis(20));
    };
    let _ = kill_process(Pid::from_raw(gateway as i32).unwrap(), Signal::KILL);
    run.wait().unwrap();
    // Not always the first: a busy machine may let a trial end before its gateways are seen.
    let mut records = records(folder.path()).into_iter();
    let failed = records.find(|record| record["outcome"]["status"] == "failed")?;
    Some((folder, run.id(), failed))
}

#[test]
fn a_gateway_that_dies_fails_its_trial_with_the_name_of_its_role() {
    if !is_testable() {
        return;
    }
    let found = (0..5).find_map(|_| killed());
    let (folder, run, failed) = found.expect("a trial of five runs whose gateway was killed");
    let reason = failed["outcome"]["reason"].as_str().unwrap();
    let roles = ["left", "right"];
    let expected = roles.map(|role| format!("{role}: the gateway ended by itself: signal: 9"));
    assert!(expected.iter().any(|it| reason.starts_with(it)), "{failed}");
    let log = folder
        .path()
        .join("run")
        .join(failed["log"].as_str().unwrap());
    let log = fs::read_to_string(log).unwrap();
    for role in ["tester", "left", "right"] {
        assert!(log.contains(&format!("-- role {role} --")), "{log}");
    }
    assert!(gateways(run).is_empty());
}
