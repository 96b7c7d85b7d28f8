//! A run's life on disk: killed, cut short, resumed; failures do not stop it.

use std::fs;
use std::path::Path;
use std::time::Duration;

use tare_lab::driver::{Driver, Drivers, Invocation, Missing, Vocabulary};
use tare_lab::experiment::{Axis, Experiment, Metric, Statistic};
use tare_lab::fingerprint::Machine;
use tare_lab::plan::{Plan, Trial};
use tare_lab::runner::{self, Ended, Observer};
use tare_lab::sample::{Outcome, TrialRecord};
use tare_lab::store::{self, RunDirectory, StoreError};
use tare_lab::unit::{Better, Unit};
use tare_lab::value::{Parameters, Value};

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

    fn invocation(&self, parameters: &Parameters) -> Invocation {
        let body = match parameters["x"] {
            Value::Int(1) => "exit 9",
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
            limit: Duration::from_secs(10),
            ..Invocation::default()
        }
    }
}

fn plan(rounds: u32) -> Plan {
    Plan {
        schema: tare_lab::result::SCHEMA,
        run: "test".into(),
        tare: "0".into(),
        size: "quick".into(),
        seed: 3,
        rounds,
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
            published: vec![],
            claims: vec![],
            exact: false,
            rounds: Default::default(),
        }],
    }
}

#[derive(Default)]
struct Count(usize);

impl Observer for Count {
    fn begins(&mut self, _: usize, _: usize, _: &str, _: &Trial) {}
    fn progress(&mut self, _: f64) {}
    fn ended(&mut self, _: &TrialRecord) {
        self.0 += 1;
    }
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
    assert!(directory.remaining().is_empty());
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
fn a_file_that_cannot_be_written_leaves_nothing_and_is_said_once() {
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
    fs::write(
        &file,
        json.replace("\"rounds\": 1", "\"rounds\": 4294967295"),
    )
    .unwrap();
    let error = RunDirectory::read(folder.path()).unwrap_err().to_string();
    assert!(error.contains("found 4294967295 rounds"), "{error}");
}
