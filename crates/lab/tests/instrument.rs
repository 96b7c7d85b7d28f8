//! The lab tested as an instrument: thousands of runs of a known truth through the judge.
//!
//! Every study is seeded, so it measures the same rate every time. The rates are published in
//! `docs/src/instrument.md`, and a test compares the two. After a change that moves them:
//!
//! ```text
//! TARE_BLESS=1 cargo test -p tare-lab --test instrument
//! ```

#[path = "instrument/bench.rs"]
mod bench;
#[path = "instrument/fixed.rs"]
mod fixed;
#[path = "instrument/pairs.rs"]
mod pairs;
#[path = "instrument/studies.rs"]
mod studies;

use std::path::Path;

use bench::Bench;
use studies::{same, two_ways, QUIET, STUDIES};
use tare_lab::plan::Plan;
use tare_lab::synthetic::Runs;

/// Measures every study of that test and holds it to its limits.
fn check(test: &str) {
    let mut found = false;
    for study in STUDIES.iter().filter(|study| study.test == test) {
        found = true;
        for (value, figure) in study.figures().iter().zip(&study.figures) {
            assert!(
                figure.limit.holds(*value),
                "{}: found {}, required {}",
                figure.what,
                figure.show(*value),
                figure.limit()
            );
        }
    }
    assert!(found, "no study names the test {test}");
}

macro_rules! tests {
    ($(fn $test:ident();)*) => {
        $(
            #[test]
            fn $test() {
                check(stringify!($test));
            }
        )*

        #[test]
        fn every_study_belongs_to_a_test() {
            let tests = [$(stringify!($test)),*];
            assert!(STUDIES.iter().all(|study| tests.contains(&study.test)));
        }
    };
}

tests! {
    fn the_same_is_not_called_different();
    fn a_slow_down_is_found_and_not_called_a_speed_up();
    fn failed_trials_give_no_false_verdict();
    fn ten_claims_on_their_thresholds_are_not_judged_falsely();
    fn a_claim_on_its_threshold_is_not_judged_falsely();
    fn a_claim_that_holds_with_room_is_reproduced();
    fn different_work_is_refused();
}

/// Real pairs of the same program, and of one that does 7 % more. Prints rates, asserts nothing:
/// they are this machine's.
#[test]
#[ignore = "takes minutes; the guide has its figures"]
fn real_pairs() {
    let bench = two_ways(same, QUIET);
    pairs::measure(&bench, 100, 0);
    pairs::measure(&bench, 20, (1 << 20) * 7 / 100);
}

/// The time that the judge takes for a run of all experiments. Asserts nothing.
#[test]
#[ignore = "a measurement of time; the guide has its figures"]
fn the_judge_of_a_whole_run() {
    use tare_lab::judge::{judge, Judging};
    let bench = Bench {
        axes: vec![
            bench::axis("pair", &(0..10).collect::<Vec<_>>()),
            bench::axis("way", &[0, 1]),
        ],
        ..two_ways(same, QUIET)
    };
    let mut plan = bench.plan();
    for place in 0..30 {
        let mut one = plan.experiments[0].clone();
        one.id = format!("suite/{place}");
        plan.experiments.push(one);
    }
    let truth = |_: &_, at: &_| tare_lab::synthetic::Truth {
        values: [("time".to_owned(), same(at))].into(),
        counters: [("operations".to_owned(), 1), ("bytes".to_owned(), 1)].into(),
    };
    let mut runs = Runs::new(&plan, truth);
    let records = runs.run(&plan, QUIET);
    let best = (0..10).map(|_| {
        let began = std::time::Instant::now();
        let judged = judge(&plan.experiments, records, &Judging::default());
        assert_eq!(judged.experiments.len(), plan.experiments.len());
        began.elapsed()
    });
    println!(
        "{} experiments of 21 trials per round, {} records: {:?} at best",
        plan.experiments.len(),
        records.len(),
        best.min().unwrap()
    );
}

/// The studies make their runs in one place.
#[test]
fn a_run_does_not_depend_on_the_run_before_it() {
    let bench = two_ways(same, QUIET);
    let mut plan = bench.plan();
    let new = |plan: &Plan| Runs::new(plan, |_, at| bench.truth(at));
    let mut runs = new(&plan);
    let first = runs.run(&plan, QUIET).to_vec();
    plan.seed = 1;
    let second = runs.run(&plan, QUIET).to_vec();
    assert_ne!(first, second);
    assert_eq!(second, new(&plan).run(&plan, QUIET));
    // Trials that fail in a study do so in that run alone.
    let fails = Bench {
        fails: bench::Fails::Longer(0.0),
        ..two_ways(same, QUIET)
    };
    let run = fails.run(&plan, runs.run(&plan, QUIET));
    assert_eq!(run.end.failures[0].failed, bench::ROUNDS as usize);
    plan.seed = 0;
    assert_eq!(first, runs.run(&plan, QUIET));
}

#[test]
fn the_guide_states_the_measured_rates() {
    const BEGIN: &str = "<!-- measured: written by crates/lab/tests/instrument.rs -->\n";
    const END: &str = "<!-- end of measured -->\n";
    // Measured before the guide is read: it takes a minute, in which the guide may be edited.
    let measured = table();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/src/instrument.md");
    let guide = std::fs::read_to_string(&path).unwrap();
    let (before, rest) = guide
        .split_once(BEGIN)
        .expect("a mark where the table begins");
    let (stated, after) = rest.split_once(END).expect("a mark where the table ends");
    if std::env::var_os("TARE_BLESS").is_some() {
        let blessed = format!("{before}{BEGIN}{measured}{END}{after}");
        std::fs::write(&path, blessed).unwrap();
        return;
    }
    assert_eq!(
        stated, measured,
        "docs/src/instrument.md states other rates than were measured"
    );
}

/// The table of the guide.
fn table() -> String {
    let mut table =
        String::from("\n| what | runs | measured | required | test |\n|---|---:|---:|---:|---|\n");
    for study in STUDIES.iter() {
        for (value, figure) in study.figures().iter().zip(&study.figures) {
            table += &format!(
                "| {} | {} | {} | {} | `{}` |\n",
                figure.what,
                study.runs,
                figure.show(*value),
                figure.limit(),
                study.test
            );
        }
    }
    table.push('\n');
    table
}
