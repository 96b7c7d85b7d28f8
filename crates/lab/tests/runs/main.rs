//! A run's life on disk: killed, cut short, resumed; failures do not stop it.

mod links;
mod rounds;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::mpsc;
use std::time::Duration;

use tare_lab::driver::{Driver, Drivers, Invocation, Missing, Role, Vocabulary};
use tare_lab::experiment::{
    Axis, Bound, Claim, ClaimKind, Experiment, Metric, Rounds, Standing, Statistic,
};
use tare_lab::fingerprint::Machine;
use tare_lab::plan::{Plan, Trial};
use tare_lab::result::{ExperimentResult, Verdict, SCHEMA};
use tare_lab::runner::{self, Ended, Observer};
use tare_lab::sample::{Outcome, TrialRecord};
use tare_lab::schedule::{self, Schedule};
use tare_lab::store::{self, RunDirectory, StoreError};
use tare_lab::unit::{Better, Unit};
use tare_lab::value::{Parameters, Point, Selector, Value};

/// `x = 1` fails, `x = 2` cannot run here, `x = 3` says so itself, the others succeed.
struct Shell;

impl Driver for Shell {
    fn vocabulary(&self) -> Vocabulary {
        Vocabulary {
            name: "shell".into(),
            open: true,
            ..Vocabulary::default()
        }
    }

    fn check(&self, parameters: &Parameters) -> Result<(), Missing> {
        if parameters["x"] == Value::Int(2) {
            return Err(Missing {
                reason: "no second door".into(),
                remedy: Some("install-door 2".into()),
            });
        }
        Ok(())
    }

    fn invocation(&self, _: &Role, parameters: &Parameters) -> Invocation {
        let body = match parameters["x"] {
            Value::Int(1) => "printf 'jammed\\nfor good\\n' >&2; exit 9",
            Value::Int(3) => r#"echo '{"type":"error","message":"no third door","missing":true}'"#,
            _ => {
                r#"echo '{"type":"start"}'
                 echo '{"type":"sample","metric":"time","value":1,"unit":"s"}'
                 echo '{"type":"counters","counters":{"operations":1}}'
                 echo '{"type":"end"}'"#
            }
        };
        let version = r#"echo '{"type":"version","protocol":1,"program":"sh"}'"#;
        Invocation {
            program: "/bin/sh".into(),
            arguments: vec!["-c".into(), format!("{version}; {body}").into()],
            speaks_protocol: true,
            limit: Duration::from_secs(90),
            ..Invocation::default()
        }
    }
}

fn plan(rounds: u32) -> Plan {
    Plan {
        schema: SCHEMA,
        run: "test".into(),
        tare: "0".into(),
        size: "quick".into(),
        seed: 3,
        budget_s: None,
        give_up_after: None,
        started: "2026-01-01T00:00:00Z".into(),
        directory: None,
        machine: Machine::default(),
        warnings: vec![],
        experiments: vec![Experiment {
            id: "doors/all".into(),
            title: "Doors".into(),
            source: "none".into(),
            driver: "shell".into(),
            fixed: Parameters::new(),
            axes: vec![Axis {
                name: "x".into(),
                values: (0..6).map(Value::Int).collect(),
                log: false,
            }],
            exclude: vec![],
            beside: vec![],
            baseline: None,
            metrics: vec![Metric {
                name: "time".into(),
                statistic: Statistic::Median,
                across: Statistic::Median,
                from: None,
                unit: Unit::Seconds,
                better: Better::Lower,
                work: None,
            }],
            parts: vec![],
            published: vec![],
            claims: vec![],
            exact: false,
            rounds: Rounds::exactly(rounds),
        }],
    }
}

#[derive(Default)]
struct Count(usize);

impl Observer for Count {
    fn begins(&mut self, _: &str, _: &Trial) {}
    fn progress(&mut self, _: f64) {}
    fn ended(&mut self, _: &TrialRecord) {
        self.0 += 1;
    }
    fn judged(&mut self, _: &[ExperimentResult], _: &Schedule, _: Duration) {}
}

fn go(directory: &mut RunDirectory, stop_after: usize) -> Ended {
    let drivers = Drivers::new(vec![Box::new(Shell)]);
    let path = directory.path().to_owned();
    let interrupted = || lines(&path) >= stop_after;
    runner::run(directory, &drivers, &interrupted, &mut Count::default()).unwrap()
}

fn lines(path: &Path) -> usize {
    fs::read_to_string(path.join("samples.jsonl"))
        .unwrap()
        .lines()
        .count()
}

/// By `x`: rounds done, rounds failed, records that it cannot run; the baseline's second run apart.
fn tally(records: &[TrialRecord]) -> Vec<(usize, usize, usize)> {
    (0..6)
        .map(|x| {
            let of = |pick: fn(&Outcome) -> bool| {
                records
                    .iter()
                    .filter(|r| r.at.0["x"] == Value::Int(x) && !r.again && pick(&r.outcome))
                    .count()
            };
            (
                of(|o| matches!(o, Outcome::Done { .. })),
                of(|o| matches!(o, Outcome::Failed { .. })),
                of(|o| matches!(o, Outcome::NotTestable { .. })),
            )
        })
        .collect()
}

const WHOLE: [(usize, usize, usize); 6] = [
    (4, 0, 0),
    (0, 4, 0),
    (0, 0, 1),
    (0, 0, 1),
    (4, 0, 0),
    (4, 0, 0),
];

#[test]
fn failures_and_missing_things_are_recorded_and_the_run_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let mut directory = RunDirectory::create(folder.path(), plan(4)).unwrap();
    assert_eq!(go(&mut directory, usize::MAX), Ended::Complete);
    assert_eq!(tally(directory.records()), WHOLE);
    let failed = directory
        .records()
        .iter()
        .find(|r| r.log.is_some())
        .unwrap();
    let log = fs::read_to_string(folder.path().join(failed.log.as_ref().unwrap())).unwrap();
    assert!(log.contains("version"), "{log}");
    assert!(Schedule::new(directory.plan(), directory.records()).is_complete());
}

#[test]
fn a_run_interrupted_anywhere_and_resumed_gives_every_cell_its_rounds() {
    let folder = tempfile::tempdir().unwrap();
    let mut directory = RunDirectory::create(folder.path(), plan(4)).unwrap();
    let mut stop = 3;
    while go(&mut directory, stop) == Ended::Interrupted {
        drop(directory);
        // As if the process had been killed in the middle of a write.
        let file = folder.path().join("samples.jsonl");
        let mut text = fs::read(&file).unwrap();
        text.extend_from_slice(b"{\"experiment\":\"doors/al");
        fs::write(&file, text).unwrap();
        directory = RunDirectory::open(folder.path()).unwrap();
        stop = directory.records().len() + 4;
    }
    assert_eq!(tally(directory.records()), WHOLE);
    let (_, read) = RunDirectory::read(folder.path()).unwrap();
    assert_eq!(read, directory.records());
}

#[test]
fn a_run_is_not_overwritten_nor_run_twice_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let directory = RunDirectory::create(folder.path(), plan(1)).unwrap();
    assert!(matches!(
        RunDirectory::create(folder.path(), plan(1)),
        Err(StoreError::Exists(_))
    ));
    assert!(matches!(
        RunDirectory::open(folder.path()),
        Err(StoreError::Busy(_))
    ));
    drop(directory);
    assert!(RunDirectory::open(folder.path()).is_ok());
}

#[test]
fn a_damaged_file_is_named_with_its_line() {
    let folder = tempfile::tempdir().unwrap();
    drop(RunDirectory::create(folder.path(), plan(1)).unwrap());
    fs::write(folder.path().join("samples.jsonl"), "\n{}\n").unwrap();
    let error = RunDirectory::open(folder.path()).unwrap_err().to_string();
    assert!(
        error.contains("samples.jsonl:1: expected a trial's record"),
        "{error}"
    );
    fs::write(folder.path().join("run.json"), "{\n\"schema\": 1\n}").unwrap();
    let error = RunDirectory::open(folder.path()).unwrap_err().to_string();
    assert!(
        error.contains("run.json:3: expected a run's plan"),
        "{error}"
    );
}

#[test]
fn a_file_of_a_run_that_is_a_fifo_is_an_error_and_does_not_block() {
    for name in ["run.json", "samples.jsonl"] {
        let folder = tempfile::tempdir().unwrap();
        drop(RunDirectory::create(folder.path(), plan(1)).unwrap());
        let file = folder.path().join(name);
        fs::remove_file(&file).unwrap();
        let made = Command::new("mkfifo").arg(&file).status().unwrap();
        assert!(made.success());
        let path = folder.path().to_owned();
        let (sender, receiver) = mpsc::channel();
        std::thread::spawn(move || {
            let read = RunDirectory::read(&path).map(drop);
            sender.send(read.unwrap_err().to_string()).unwrap();
            let opened = RunDirectory::open(&path).map(drop);
            sender.send(opened.unwrap_err().to_string()).unwrap();
        });
        for _ in 0..2 {
            let error = receiver.recv_timeout(Duration::from_secs(60)).unwrap();
            let expected = format!("{name}: found no regular file, expected a file of a run");
            assert!(error.ends_with(&expected), "{error}");
        }
    }
}

#[test]
fn a_folder_without_a_run_and_a_missing_one_are_named_with_what_was_expected() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("file"), "").unwrap();
    for name in ["", "nosuch", "file"] {
        let path = folder.path().join(name);
        for error in [
            RunDirectory::read(&path).unwrap_err(),
            RunDirectory::open(&path).unwrap_err(),
        ] {
            assert_eq!(
                error.to_string(),
                format!(
                    "{}: found no run.json, expected the directory of a run, such as \
                     tare-runs/20260101T120000Z",
                    path.display()
                )
            );
        }
    }
}

#[test]
fn a_folder_in_which_no_plan_could_be_written_can_be_used_again() {
    let folder = tempfile::tempdir().unwrap();
    // What a full disk or a SIGKILL leaves between the two files.
    fs::write(folder.path().join("samples.jsonl"), "").unwrap();
    drop(RunDirectory::create(folder.path(), plan(1)).unwrap());
    assert!(matches!(
        RunDirectory::create(folder.path(), plan(1)),
        Err(StoreError::Exists(_))
    ));
}

#[test]
fn a_file_that_cannot_be_written_leaves_nothing_and_is_reported_once() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("page")).unwrap();
    fs::write(folder.path().join("page/x"), "").unwrap();
    let error = store::write_whole(&folder.path().join("page"), b"x").unwrap_err();
    let said: Vec<String> =
        std::iter::successors(Some(&error as &dyn std::error::Error), |error| {
            error.source()
        })
        .map(ToString::to_string)
        .collect();
    assert_eq!(said.concat().matches("os error").count(), 1, "{said:?}");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn a_line_that_was_cut_short_is_removed_by_the_first_trial_and_not_before() {
    let folder = tempfile::tempdir().unwrap();
    drop(RunDirectory::create(folder.path(), plan(1)).unwrap());
    let file = folder.path().join("samples.jsonl");
    fs::write(&file, "{\"experiment\":").unwrap();
    let mut directory = RunDirectory::open(folder.path()).unwrap();
    assert_eq!(fs::read_to_string(&file).unwrap(), "{\"experiment\":");
    assert_eq!(go(&mut directory, usize::MAX), Ended::Complete);
    let (_, read) = RunDirectory::read(folder.path()).unwrap();
    assert_eq!(read, directory.records());
}

#[test]
fn a_plan_of_more_cells_or_axes_than_an_experiment_may_have_is_refused() {
    for (axes, values) in [(8, 100), (2, 101), (65, 1)] {
        let folder = tempfile::tempdir().unwrap();
        let mut plan = plan(1);
        plan.experiments[0].axes = (0..axes)
            .map(|place| Axis {
                name: format!("x{place}"),
                values: (0..values).map(Value::Int).collect(),
                log: false,
            })
            .collect();
        drop(RunDirectory::create(folder.path(), plan).unwrap());
        for refused in [
            RunDirectory::open(folder.path()).map(drop),
            RunDirectory::read(folder.path()).map(drop),
        ] {
            let error = refused.unwrap_err();
            assert!(matches!(error, StoreError::Damaged { .. }), "{error}");
            let said = format!("on {axes} axes, expected at most 10000 cells on at most 64 axes");
            assert!(error.to_string().ends_with(&said), "{error}");
        }
    }
}

#[test]
fn samples_too_large_to_read_are_refused_and_not_cut_off() {
    let folder = tempfile::tempdir().unwrap();
    drop(RunDirectory::create(folder.path(), plan(1)).unwrap());
    let length = (1 << 30) + 1;
    let samples = fs::OpenOptions::new()
        .write(true)
        .open(folder.path().join("samples.jsonl"))
        .unwrap();
    samples.set_len(length).unwrap();
    let error = RunDirectory::open(folder.path()).unwrap_err().to_string();
    assert!(error.contains("expected at most"), "{error}");
    assert_eq!(samples.metadata().unwrap().len(), length);
}

#[test]
fn rounds_that_no_plan_has_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let mut directory = RunDirectory::create(folder.path(), plan(1)).unwrap();
    assert_eq!(go(&mut directory, usize::MAX), Ended::Complete);
    drop(directory);
    let file = folder.path().join("samples.jsonl");
    let whole = fs::read_to_string(&file).unwrap();
    fs::write(&file, whole.replace("\"round\":0", "\"round\":4294967295")).unwrap();
    let error = RunDirectory::read(folder.path()).unwrap_err().to_string();
    assert!(
        error.contains("samples.jsonl:1: found round 4294967295"),
        "{error}"
    );
    fs::write(&file, "").unwrap();
    let file = folder.path().join("run.json");
    let json = fs::read_to_string(&file).unwrap();
    fs::write(&file, json.replace("\"most\": 1", "\"most\": 4294967295")).unwrap();
    let error = RunDirectory::read(folder.path()).unwrap_err().to_string();
    assert!(
        error.contains("doors/all: found 1 to 4294967295 rounds"),
        "{error}"
    );
}

#[test]
fn a_failed_trial_keeps_the_last_lines_of_its_standard_error() {
    let folder = tempfile::tempdir().unwrap();
    let mut directory = RunDirectory::create(folder.path(), plan(1)).unwrap();
    assert_eq!(go(&mut directory, usize::MAX), Ended::Complete);
    for record in directory.records() {
        let failed = matches!(record.outcome, Outcome::Failed { .. });
        let expected: &[&str] = if failed { &["jammed", "for good"] } else { &[] };
        assert_eq!(record.last_lines, expected, "{record:?}");
    }
}
