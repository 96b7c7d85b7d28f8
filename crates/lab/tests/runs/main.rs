//! A run's life on disk: killed, cut short, resumed; failures do not stop it.

mod links;

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
use tare_lab::schedule::Schedule;
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
            limit: Duration::from_secs(10),
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

/// A cell gives the value of its parameter `x`, or 1 and 3 in turn where that is 0, by a count in
/// the folder. The cell `x = 4` cannot run where the folder has a file of the name `closed`.
struct Turns(std::path::PathBuf);

impl Driver for Turns {
    fn vocabulary(&self) -> Vocabulary {
        Vocabulary {
            name: "turns".into(),
            open: true,
            ..Vocabulary::default()
        }
    }

    fn check(&self, parameters: &Parameters) -> Result<(), Missing> {
        if parameters["x"] == Value::Int(4) && self.0.join("closed").exists() {
            return Err(Missing {
                reason: "no fourth door".into(),
                remedy: None,
            });
        }
        Ok(())
    }

    fn invocation(&self, _: &Role, parameters: &Parameters) -> Invocation {
        let script = r#"echo '{"type":"version","protocol":1,"program":"sh"}'
            echo '{"type":"start"}'
            v=$1
            if [ "$v" = 0 ]; then
                n=$(cat "$0" 2>/dev/null || echo 0); echo $((n + 1)) > "$0"; v=$((n % 2 * 2 + 1))
            fi
            sleep "$2"
            echo '{"type":"sample","metric":"time","value":'$v',"unit":"s"}'
            echo '{"type":"counters","counters":{"operations":1}}'
            echo '{"type":"end"}'"#;
        let sleep = parameters.get("sleep").map_or("0".into(), Value::to_string);
        Invocation {
            program: "/bin/sh".into(),
            arguments: vec![
                "-c".into(),
                script.into(),
                self.0.join("count").into(),
                parameters["x"].to_string().into(),
                sleep.into(),
            ],
            speaks_protocol: true,
            limit: Duration::from_secs(10),
            ..Invocation::default()
        }
    }
}

/// Two experiments that compare with 2: one takes 4, the other 1 and 3 in turn, which decides
/// nothing. The baseline, whose second trial would take a turn too, is the constant one.
fn two_experiments(rounds: Rounds) -> Plan {
    let mut plan = plan(1);
    let mut first = plan.experiments.remove(0);
    first.driver = "turns".into();
    first.rounds = rounds;
    for (id, x) in [("turns/clear", 4), ("turns/open", 0)] {
        let cell = |x| Selector(Parameters::from([("x".to_owned(), Value::Int(x))]));
        let mut experiment = first.clone();
        experiment.id = id.into();
        experiment.axes[0].values = vec![Value::Int(2), Value::Int(x)];
        experiment.claims = vec![Claim {
            id: "longer".into(),
            standing: Standing::Claim,
            text: "It takes longer".into(),
            source: None,
            metric: "time".into(),
            kind: ClaimKind::Ratio {
                of: cell(x),
                to: cell(2),
                bound: Bound {
                    at_least: Some(1.0),
                    at_most: None,
                },
            },
            published: None,
        }];
        plan.experiments.push(experiment);
    }
    plan
}

fn go_turns(directory: &mut RunDirectory, stop_after: usize) -> Ended {
    let path = directory.path().to_owned();
    let drivers = Drivers::new(vec![Box::new(Turns(path.clone()))]);
    let interrupted = || lines(&path) >= stop_after;
    runner::run(directory, &drivers, &interrupted, &mut Count::default()).unwrap()
}

/// The rounds that an experiment has run, all of them in full.
fn rounds_of(records: &[TrialRecord], id: &str) -> usize {
    let of = records.iter().filter(|record| record.experiment == id);
    assert_eq!(
        of.clone().count() % 3,
        0,
        "two cells and the second baseline"
    );
    of.count() / 3
}

fn order(records: &[TrialRecord]) -> Vec<(String, u32, Point, bool)> {
    let of = |r: &TrialRecord| (r.experiment.clone(), r.round, r.at.clone(), r.again);
    records.iter().map(of).collect()
}

const UP_TO_40: Rounds = Rounds { least: 3, most: 40 };

#[test]
fn an_experiment_stops_when_its_claims_are_decided_and_the_others_go_on() {
    let folder = tempfile::tempdir().unwrap();
    let mut directory = RunDirectory::create(folder.path(), two_experiments(UP_TO_40)).unwrap();
    assert_eq!(go_turns(&mut directory, usize::MAX), Ended::Complete);
    let clear = rounds_of(directory.records(), "turns/clear");
    assert!((4..25).contains(&clear), "{clear}");
    // It goes on while the rounds left could decide, had they all spoken for one side.
    let open = rounds_of(directory.records(), "turns/open");
    assert!((clear + 4..40).contains(&open), "{clear}, {open}");
    // Without the last round the claim was not decided yet.
    let last = clear as u32 - 1;
    let before: Vec<TrialRecord> = directory.records().to_vec();
    let before: Vec<TrialRecord> = before.into_iter().filter(|r| r.round < last).collect();
    let judged = directory.plan().judge(&before);
    assert_eq!(
        judged.experiments[0].claims[0].verdict,
        Verdict::Inconclusive
    );
}

#[test]
fn a_resumed_run_is_the_run_that_it_would_have_been() {
    let whole = tempfile::tempdir().unwrap();
    let plan = two_experiments(UP_TO_40);
    let mut directory = RunDirectory::create(whole.path(), plan.clone()).unwrap();
    assert_eq!(go_turns(&mut directory, usize::MAX), Ended::Complete);
    let expected = order(directory.records());
    for part in [1, 7, 12] {
        let folder = tempfile::tempdir().unwrap();
        let mut directory = RunDirectory::create(folder.path(), plan.clone()).unwrap();
        let mut stop = part;
        while go_turns(&mut directory, stop) == Ended::Interrupted {
            let (plan, records) = RunDirectory::read(folder.path()).unwrap();
            assert!(!Schedule::new(&plan, &records).is_complete());
            drop(directory);
            directory = RunDirectory::open(folder.path()).unwrap();
            stop = directory.records().len() + part;
        }
        assert_eq!(order(directory.records()), expected, "in parts of {part}");
        let times: Vec<f64> = directory.records().iter().map(|r| r.run_ms).collect();
        assert!(times.is_sorted(), "the time of earlier parts counts");
    }
}

#[test]
fn a_decided_experiment_keeps_its_verdict_when_its_cells_can_run_no_more() {
    let folder = tempfile::tempdir().unwrap();
    let mut directory = RunDirectory::create(folder.path(), two_experiments(UP_TO_40)).unwrap();
    assert_eq!(go_turns(&mut directory, usize::MAX), Ended::Complete);
    let whole = directory.records().to_vec();
    let verdict =
        |records: &[TrialRecord], plan: &Plan| plan.judge(records).experiments[0].claims[0].verdict;
    assert_eq!(verdict(&whole, directory.plan()), Verdict::Reproduced);
    fs::write(folder.path().join("closed"), "").unwrap();
    assert_eq!(go_turns(&mut directory, usize::MAX), Ended::Complete);
    assert_eq!(order(directory.records()), order(&whole));

    // Without its last round the other experiment goes on, and the decided one stays as it is.
    let folder = tempfile::tempdir().unwrap();
    let mut directory = RunDirectory::create(folder.path(), two_experiments(UP_TO_40)).unwrap();
    let part = whole.len() - 3;
    assert_eq!(go_turns(&mut directory, part), Ended::Interrupted);
    fs::write(folder.path().join("closed"), "").unwrap();
    let drivers = Drivers::new(vec![Box::new(Turns(folder.path().to_owned()))]);
    assert_eq!(runner::lost(&directory, &drivers), None);
    assert_eq!(go_turns(&mut directory, usize::MAX), Ended::Complete);
    assert_eq!(order(directory.records()), order(&whole));
    let clear = verdict(directory.records(), directory.plan());
    assert_eq!(clear, Verdict::Reproduced);
}

#[test]
fn a_run_that_was_stopped_before_its_first_trial_finds_out_anew_what_cannot_run() {
    let folder = tempfile::tempdir().unwrap();
    let mut directory = RunDirectory::create(folder.path(), two_experiments(UP_TO_40)).unwrap();
    let closed = folder.path().join("closed");
    fs::write(&closed, "").unwrap();
    assert_eq!(go_turns(&mut directory, 1), Ended::Interrupted);
    assert!(matches!(
        directory.records()[0].outcome,
        Outcome::NotTestable { .. }
    ));
    fs::remove_file(&closed).unwrap();
    let drivers = Drivers::new(vec![Box::new(Turns(folder.path().to_owned()))]);
    assert_eq!(runner::lost(&directory, &drivers), None);
    assert_eq!(go_turns(&mut directory, 4), Ended::Interrupted);
    let untestable = |record: &&TrialRecord| matches!(record.outcome, Outcome::NotTestable { .. });
    assert_eq!(directory.records().iter().filter(untestable).count(), 0);
    assert_eq!(lines(folder.path()), 4);
}

#[test]
fn a_cell_that_can_run_no_more_before_its_first_trial_is_lost_as_one_that_was_measured() {
    for stop in 1..=6 {
        let folder = tempfile::tempdir().unwrap();
        let plan = two_experiments(Rounds::exactly(2));
        let mut directory = RunDirectory::create(folder.path(), plan).unwrap();
        assert_eq!(go_turns(&mut directory, stop), Ended::Interrupted);
        fs::write(folder.path().join("closed"), "").unwrap();
        let drivers = Drivers::new(vec![Box::new(Turns(folder.path().to_owned()))]);
        let lost = runner::lost(&directory, &drivers).unwrap();
        let is_lost = |record: &TrialRecord| {
            record.experiment == "turns/clear" && record.at.0["x"] == Value::Int(4)
        };
        assert_eq!(lost.is_tried, directory.records().iter().any(is_lost));
        assert_eq!(
            (&*lost.experiment, &lost.at.0["x"]),
            ("turns/clear", &Value::Int(4))
        );
        assert_eq!(lost.missing.reason, "no fourth door");
    }
}

#[test]
fn no_round_begins_that_would_not_end_within_the_budget() {
    let folder = tempfile::tempdir().unwrap();
    let mut plan = two_experiments(Rounds::exactly(100));
    for experiment in &mut plan.experiments {
        experiment.fixed.insert("sleep".into(), Value::Float(0.05));
    }
    plan.budget_s = Some(1.0);
    let mut directory = RunDirectory::create(folder.path(), plan).unwrap();
    let began = std::time::Instant::now();
    assert_eq!(go_turns(&mut directory, usize::MAX), Ended::Complete);
    let taken = began.elapsed();
    for id in ["turns/clear", "turns/open"] {
        let rounds = rounds_of(directory.records(), id);
        // A round sleeps for 150 ms.
        assert!((1..=6).contains(&rounds), "{id}: {rounds} rounds");
    }
    let last = directory.records().last().unwrap();
    assert!(last.run_ms <= 1e3 * taken.as_secs_f64());
    // A budget that is used up is the end, also of a run that is resumed.
    let (plan, records) = RunDirectory::read(folder.path()).unwrap();
    assert!(Schedule::new(&plan, &records).is_complete());
    let before = directory.records().len();
    assert_eq!(go_turns(&mut directory, usize::MAX), Ended::Complete);
    assert_eq!(directory.records().len(), before);
}

/// A run with the first round of two experiments behind it, of which the first took 20 s, and 20 s
/// left. In the second round the other experiment comes first.
fn run_short_of_time(folder: &Path) -> RunDirectory {
    let mut plan = two_experiments(Rounds::exactly(6));
    plan.budget_s = Some(100.0);
    while plan.order(1) != [1, 0] {
        plan.seed += 1;
    }
    let mut directory = RunDirectory::create(folder, plan.clone()).unwrap();
    for (place, times) in [(0, [5e3, 5e3, 1e4]), (1, [1.0; 3])] {
        for (trial, elapsed_ms) in plan.trials(place, 0).into_iter().zip(times) {
            let value = trial.at.0["x"].as_f64().unwrap().max(1.0);
            let record = TrialRecord {
                experiment: plan.experiments[place].id.clone(),
                round: 0,
                at: trial.at,
                again: trial.again,
                outcome: Outcome::Done {
                    values: BTreeMap::from([("time".to_owned(), value)]),
                    samples: BTreeMap::new(),
                    counters: BTreeMap::from([("operations".to_owned(), 1)]),
                },
                elapsed_ms,
                overhead_ms: None,
                run_ms: 8e4,
                last_lines: vec![],
                notes: BTreeMap::new(),
                log: None,
            };
            directory.append(record, &[]).unwrap();
        }
    }
    directory
}

#[test]
fn an_experiment_that_left_out_a_round_for_lack_of_time_never_comes_back() {
    let folder = tempfile::tempdir().unwrap();
    let mut directory = run_short_of_time(folder.path());
    assert_eq!(go_turns(&mut directory, usize::MAX), Ended::Complete);
    let whole = order(directory.records());
    assert_eq!(rounds_of(directory.records(), "turns/clear"), 1);
    assert_eq!(rounds_of(directory.records(), "turns/open"), 6);
    for part in [1, 4] {
        let folder = tempfile::tempdir().unwrap();
        let mut directory = run_short_of_time(folder.path());
        while go_turns(&mut directory, lines(folder.path()) + part) == Ended::Interrupted {
            drop(directory);
            directory = RunDirectory::open(folder.path()).unwrap();
        }
        assert_eq!(order(directory.records()), whole, "in parts of {part}");
    }
}

#[test]
fn a_budget_of_nothing_still_gives_every_cell_a_figure() {
    let folder = tempfile::tempdir().unwrap();
    let mut plan = two_experiments(UP_TO_40);
    plan.budget_s = Some(0.0);
    let mut directory = RunDirectory::create(folder.path(), plan).unwrap();
    assert_eq!(go_turns(&mut directory, usize::MAX), Ended::Complete);
    assert_eq!(rounds_of(directory.records(), "turns/clear"), 1);
    assert_eq!(rounds_of(directory.records(), "turns/open"), 1);
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
