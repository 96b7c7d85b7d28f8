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
#[path = "instrument/studies.rs"]
mod studies;

use std::path::Path;

use studies::STUDIES;

/// Measures every study of that test and holds it to its limits.
fn check(test: &str) {
    let mut found = false;
    for study in STUDIES.iter().filter(|study| study.test == test) {
        found = true;
        for (rate, figure) in study.rates().iter().zip(study.figures) {
            assert!(
                figure.limit.holds(*rate),
                "{}: found {:.1} %, required {}",
                figure.what,
                rate * 100.0,
                figure.limit
            );
        }
    }
    assert!(found, "no study names the test {test}");
}

macro_rules! tests {
    ($($test:ident)*) => {
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
    the_same_is_not_called_different
    a_slow_down_is_found
    a_slow_down_is_found_through_drift_and_stalls
    ten_claims_on_their_thresholds_are_not_judged_falsely
    a_claim_on_its_threshold_is_not_judged_falsely
    a_claim_that_holds_with_room_is_reproduced
    different_work_is_refused
    too_few_rounds_give_no_verdict_and_say_how_many_would_do
}

#[test]
fn the_guide_states_the_measured_rates() {
    const BEGIN: &str = "<!-- measured: written by crates/lab/tests/instrument.rs -->\n";
    const END: &str = "<!-- end of measured -->\n";
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/src/instrument.md");
    let guide = std::fs::read_to_string(&path).unwrap();
    let (before, rest) = guide
        .split_once(BEGIN)
        .expect("a mark where the table begins");
    let (stated, after) = rest.split_once(END).expect("a mark where the table ends");
    let measured = table();
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
    for study in &STUDIES {
        for (rate, figure) in study.rates().iter().zip(study.figures) {
            table += &format!(
                "| {} | {} | {:.1} % | {} | `{}` |\n",
                figure.what,
                study.runs,
                rate * 100.0,
                figure.limit,
                study.test
            );
        }
    }
    table.push('\n');
    table
}
