//! Runs that are interrupted, killed and resumed.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{kill_process, Pid, Signal};
use serde_json::Value;
use tempfile::TempDir;

use super::{commands, folder, output, samples, tare, text};

fn start_and_wait_for_samples(folder: &Path, n: usize) -> Child {
    let child = tare(
        folder,
        &[
            "run",
            "doors.toml",
            "--rounds",
            "12",
            "--seed",
            "5",
            "--out",
            "r",
        ],
    )
    .stdout(Stdio::null())
    .stderr(Stdio::null())
    .spawn()
    .unwrap();
    let until = Instant::now() + Duration::from_secs(300);
    while samples(&folder.join("r")) < n {
        assert!(Instant::now() < until, "the run did not get going");
        sleep(Duration::from_millis(5));
    }
    child
}

/// Waits until a run that goes on has so many samples, or has ended: a busy machine may let it.
fn wait_for_samples(child: &mut Child, folder: &Path, n: usize) {
    while samples(&folder.join("r")) < n && child.try_wait().unwrap().is_none() {
        sleep(Duration::from_millis(5));
    }
}

/// Signals a run once it has some samples, and returns its folder and its exit code. Another one is
/// started where a busy machine let it end before.
fn signalled(n: usize, signal: Signal) -> (TempDir, Option<i32>) {
    let mut runs = (0..5).map(|_| {
        let folder = folder();
        let mut child = start_and_wait_for_samples(folder.path(), n);
        kill_process(Pid::from_child(&child), signal).unwrap();
        (folder, child.wait().unwrap().code())
    });
    let run = runs.find(|(_, code)| *code != Some(0));
    run.expect("a run of five that does not end before")
}

/// The number of processes in `folder` with this word in their command line.
fn alive(folder: &Path, wanted: &[u8]) -> usize {
    fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .filter(|process| {
            let words = fs::read(process.path().join("cmdline")).unwrap_or_default();
            let here = fs::read_link(process.path().join("cwd")).unwrap_or_default();
            here == folder && words.split(|&byte| byte == 0).any(|word| word == wanted)
        })
        .count()
}

#[test]
fn ctrl_c_leaves_a_valid_run_and_no_child() {
    let (folder, code) = signalled(7, Signal::INT);
    assert_eq!(code, Some(130));
    assert_eq!(alive(folder.path(), b"trial"), 0);
    let report = output(folder.path(), &["report", "r", "--json"]);
    let result: Value = serde_json::from_slice(&report.stdout).unwrap();
    assert_eq!(result["complete"], false);
    finish(folder.path());
}

#[test]
fn sigkill_in_the_middle_and_resume_gives_every_cell_its_rounds() {
    let folder = folder();
    for more in [9, 11] {
        let had = samples(&folder.path().join("r"));
        let mut child = if had == 0 {
            start_and_wait_for_samples(folder.path(), more)
        } else {
            let mut child = tare(folder.path(), &["run", "--resume", "r"])
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .unwrap();
            wait_for_samples(&mut child, folder.path(), had + more);
            child
        };
        let _ = kill_process(Pid::from_child(&child), Signal::KILL);
        child.wait().unwrap();
        // By the kernel, with the next time that each runs.
        let until = Instant::now() + Duration::from_secs(60);
        // What was just started has the command line of the run, and a copy of its lock.
        while alive(folder.path(), b"trial") + alive(folder.path(), b"run") > 0 {
            assert!(Instant::now() < until, "a trial outlived the run");
            sleep(Duration::from_millis(5));
        }
    }
    finish(folder.path());
}

/// Resumes a run and checks that no trial is missing.
fn finish(folder: &Path) {
    let done = output(folder, &["run", "--resume", "r", "--json"]);
    assert_eq!(done.status.code(), Some(0), "{}", text(&done.stderr));
    let result: Value = serde_json::from_slice(&done.stdout).unwrap();
    assert_eq!(result["complete"], true);
    for cell in result["experiments"][0]["cells"].as_array().unwrap() {
        assert_eq!(cell["n"], 12, "{cell}");
    }
}

#[test]
fn a_closed_terminal_ends_a_run_as_ctrl_c_does_unless_hangups_are_ignored() {
    let (folder, code) = signalled(3, Signal::HUP);
    assert_eq!(code, Some(130));
    assert_eq!(alive(folder.path(), b"trial"), 0);
    let had = samples(&folder.path().join("r"));
    let mut child = Command::new("nohup")
        .arg(env!("CARGO_BIN_EXE_tare"))
        .args(["run", "--resume", "r"])
        .current_dir(folder.path())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    wait_for_samples(&mut child, folder.path(), had + 2);
    let _ = kill_process(Pid::from_child(&child), Signal::HUP);
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn a_trial_does_not_fail_because_its_run_was_stopped_and_continued() {
    // A busy machine may take longer than the shorter limit for the trial itself.
    let outlives = |seconds| {
        let cell = cell_of_a_run_that_was_stopped_for_longer_than(seconds);
        let is_done = (&cell["n"], &cell["failed"]) == (&1.into(), &0.into());
        if !is_done {
            eprintln!("limit of {seconds} s: {cell}");
        }
        is_done
    };
    assert!([3, 20].into_iter().any(outlives));
}

/// A trial with this limit, whose run is stopped for a second longer: the cell.
fn cell_of_a_run_that_was_stopped_for_longer_than(seconds: u64) -> Value {
    let folder = folder();
    commands(folder.path(), &format!("{seconds} s"), "[\"slow\"]");
    let slow = r#"echo '{"type":"version","protocol":1,"program":"sh"}'
        echo '{"type":"start"}'
        touch started
        sleep 0.5
        echo '{"type":"sample","metric":"time","value":1,"unit":"s"}'
        echo '{"type":"end"}'"#;
    fs::write(folder.path().join("slow"), slow).unwrap();
    let mut child = tare(
        folder.path(),
        &["run", "ways.toml", "--rounds", "1", "--out", "r", "--json"],
    )
    .stdout(Stdio::piped())
    .stderr(Stdio::piped())
    .spawn()
    .unwrap();
    while !folder.path().join("started").exists() {
        assert_eq!(child.try_wait().unwrap(), None, "the run has ended");
        sleep(Duration::from_millis(5));
    }
    kill_process(Pid::from_child(&child), Signal::STOP).unwrap();
    sleep(Duration::from_secs(seconds + 1));
    kill_process(Pid::from_child(&child), Signal::CONT).unwrap();
    let done = child.wait_with_output().unwrap();
    let result: Value = serde_json::from_slice(&done.stdout).unwrap();
    result["experiments"][0]["cells"][0].clone()
}

#[test]
fn a_run_with_a_record_of_endless_time_goes_on() {
    let folder = folder();
    let run = ["run", "doors.toml", "--rounds", "2", "--out", "r"];
    assert_eq!(output(folder.path(), &run).status.code(), Some(0));
    let file = folder.path().join("r/samples.jsonl");
    let whole = fs::read_to_string(&file).unwrap();
    let first: Vec<String> = whole
        .lines()
        .take(3)
        .map(|line| {
            let mut record: Value = serde_json::from_str(line).unwrap();
            record["run_ms"] = 1e300.into();
            record.to_string() + "\n"
        })
        .collect();
    fs::write(&file, first.concat()).unwrap();
    let done = output(folder.path(), &["run", "--resume", "r"]);
    let said = text(&done.stderr);
    assert!(!said.contains("panicked"), "{said}");
    assert_eq!(done.status.code(), Some(0), "{said}");
}

#[test]
fn a_plan_of_too_many_cells_is_refused_at_once() {
    let folder = folder();
    let run = ["run", "doors.toml", "--rounds", "1", "--out", "r"];
    assert_eq!(output(folder.path(), &run).status.code(), Some(0));
    let file = folder.path().join("r/run.json");
    let mut plan: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    let axes = &mut plan["experiments"][0]["axes"];
    let mut axis = axes[0].clone();
    axis["values"] = (0..100).collect::<Vec<u32>>().into();
    *axes = (0..8)
        .map(|place| {
            axis["name"] = format!("x{place}").into();
            axis.clone()
        })
        .collect();
    fs::write(&file, plan.to_string()).unwrap();
    for arguments in [
        &["report", "r"][..],
        &["export", "r", "--format", "csv"],
        &["diff", "r", "r"],
        &["run", "--resume", "r"],
    ] {
        let done = output(folder.path(), arguments);
        let said = text(&done.stderr);
        assert_eq!(done.status.code(), Some(2), "{arguments:?}: {said}");
        assert!(said.contains("expected at most 10000 cells"), "{said}");
    }
}
