//! The rounds that each experiment of a run gets: until its claims are decided, and within the
//! budget.

use super::*;

/// A cell gives the value of its parameter `x`, or 1 and 3 in turn where that is 0, by a count in
/// the folder; it fails if `x` is negative. The cell `x = 4` cannot run where the folder has a file
/// of the name `closed`.
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
            [ "$v" -ge 0 ] || exit 1
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
            limit: Duration::from_secs(90),
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
            let record = record(&plan, trial, value, [elapsed_ms, 8e4]);
            directory.append(record, &[]).unwrap();
        }
    }
    directory
}

/// The record of a trial that gave a value, took so many milliseconds, and ended so many after the
/// run had begun.
fn record(plan: &Plan, trial: Trial, value: f64, [elapsed_ms, run_ms]: [f64; 2]) -> TrialRecord {
    TrialRecord {
        experiment: plan.experiments[trial.experiment].id.clone(),
        round: trial.round,
        at: trial.at,
        again: trial.again,
        outcome: Outcome::Done {
            values: BTreeMap::from([("time".to_owned(), value)]),
            samples: BTreeMap::new(),
            counters: BTreeMap::from([("operations".to_owned(), 1)]),
        },
        elapsed_ms,
        overhead_ms: None,
        run_ms,
        last_lines: vec![],
        notes: BTreeMap::new(),
        log: None,
    }
}

/// Two experiments whose rounds take 30 s and 3 s.
#[test]
fn an_experiment_of_long_rounds_makes_room_for_the_verdicts_of_others() {
    let state = |budget, rounds, experiments| {
        let mut plan = two_experiments(Rounds {
            least: 10,
            most: 60,
        });
        plan.experiments.truncate(experiments);
        plan.budget_s = Some(budget);
        let (mut records, mut elapsed) = (Vec::new(), 0.0);
        for round in 0..rounds {
            for place in 0..experiments {
                for trial in plan.trials(place, round) {
                    let taken = [1e4, 1e3][place];
                    elapsed += taken;
                    records.push(record(&plan, trial, 2.0, [taken, elapsed]));
                }
            }
        }
        let schedule = Schedule::new(&plan, &records);
        assert_eq!(schedule.round, rounds);
        // As long as a part of the round has run, too.
        let place = schedule.open.iter().position(|open| *open).unwrap();
        let trial = plan.trials(place, rounds).remove(0);
        records.push(record(&plan, trial, 2.0, [1.0, elapsed + 1.0]));
        assert_eq!(Schedule::new(&plan, &records), schedule);
        schedule.open
    };
    // Seventeen rounds more of the second take 51 s, after 99 s.
    assert_eq!(state(181.0, 3, 2), [true, true]);
    assert_eq!(state(179.0, 3, 2), [false, true]);
    // Too little for either: the one that needs least has it.
    assert_eq!(state(131.0, 3, 2), [false, true]);
    // There is no need to before there are three rounds, and no one to make room for.
    assert_eq!(state(120.0, 2, 2), [true, true]);
    assert_eq!(state(130.0, 3, 1), [true]);
    // Those that are wanted have run.
    assert_eq!(state(732.0, 20, 2), [true, true]);
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
fn an_experiment_is_given_up_when_the_first_trials_of_a_cell_all_failed_if_the_plan_says_so() {
    let run = |give_up_after, part: usize| {
        let folder = tempfile::tempdir().unwrap();
        let mut plan = two_experiments(Rounds::exactly(9));
        plan.give_up_after = give_up_after;
        plan.experiments[0].axes[0].values = vec![Value::Int(2), Value::Int(-1)];
        let mut directory = RunDirectory::create(folder.path(), plan).unwrap();
        while go_turns(&mut directory, lines(folder.path()) + part) == Ended::Interrupted {
            drop(directory);
            directory = RunDirectory::open(folder.path()).unwrap();
        }
        let (plan, records) = RunDirectory::read(folder.path()).unwrap();
        assert!(Schedule::new(&plan, &records).is_complete());
        (plan, records)
    };
    let rounds =
        |records: &[TrialRecord]| ["turns/clear", "turns/open"].map(|id| rounds_of(records, id));
    for part in [1, 4, usize::MAX / 2] {
        assert_eq!(rounds(&run(Some(5), part).1), [5, 9], "in parts of {part}");
    }
    let (mut plan, mut records) = run(None, usize::MAX / 2);
    assert_eq!(rounds(&records), [9, 9]);
    assert_eq!(schedule::given_up(&plan, &records, 0), None);
    plan.give_up_after = Some(5);
    let fails = plan.experiments[0].points().remove(1);
    assert_eq!(schedule::given_up(&plan, &records, 0), Some(fails.clone()));
    assert_eq!(schedule::given_up(&plan, &records, 1), None);
    let good = records.iter().find(|record| record.at != fails).unwrap();
    let good = good.outcome.clone();
    let fifth = records
        .iter_mut()
        .filter(|record| record.at == fails)
        .nth(4);
    fifth.unwrap().outcome = good;
    assert_eq!(schedule::given_up(&plan, &records, 0), None);
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
