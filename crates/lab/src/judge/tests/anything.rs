//! Records that no sane run has: the judge and the reports say something of each, and never panic.

use proptest::prelude::*;

use super::*;
use crate::fingerprint::Machine;
use crate::report;
use crate::result::{RunResult, SCHEMA};

/// Values at the edges of what a number holds, and ordinary ones, often equal.
fn value() -> impl Strategy<Value = f64> {
    prop_oneof![
        4 => prop::sample::select(vec![1.0, 1.0, 2.0, 2.0, 3.0]),
        4 => 0.5..2.0f64,
        1 => prop::sample::select(vec![
            0.0, -0.0, -1.0, 5e-324, 1e-300, 1.7e308, -1.7e308, f64::MAX, f64::MIN_POSITIVE,
            f64::INFINITY, f64::NEG_INFINITY, f64::NAN,
        ]),
    ]
}

fn outcome() -> impl Strategy<Value = Outcome> {
    prop_oneof![
        20 => (value(), prop::sample::select(vec![0u64, 1, 80, 80, 80, 80, u64::MAX]), 0..3u64)
            .prop_map(|(time, bytes, lost)| {
                let mut counters = BTreeMap::from([
                    (OPERATIONS.to_owned(), if bytes == 1 { 0 } else { 10 }),
                    ("bytes".to_owned(), bytes),
                    ("draws".to_owned(), bytes),
                ]);
                if lost < 2 {
                    counters.insert("lost".to_owned(), lost * u64::MAX);
                }
                Outcome::Done {
                    values: BTreeMap::from([("time".to_owned(), time)]),
                    samples: BTreeMap::new(),
                    counters,
                }
            }),
        1 => Just(Outcome::Failed { reason: "\u{1b}[2J<hostile>".into() }),
        1 => Just(Outcome::NotTestable { reason: "no".into(), remedy: None }),
        1 => Just(Outcome::Done {
            values: BTreeMap::new(),
            samples: BTreeMap::new(),
            counters: BTreeMap::new(),
        }),
    ]
}

fn any_record() -> impl Strategy<Value = TrialRecord> {
    let round = prop_oneof![20 => 0..12u32, 1 => Just(u32::MAX)];
    (0..5i64, round, any::<bool>(), outcome()).prop_map(|(x, round, again, outcome)| {
        let at = match x {
            4 => Point(BTreeMap::from([(BESIDE.to_owned(), "reference".into())])),
            x => Point(BTreeMap::from([("x".to_owned(), Value::Int(x))])),
        };
        TrialRecord {
            again: again && x == 0,
            ..record(&at, round, outcome)
        }
    })
}

/// One claim of each kind, over cells 0 to 2 and a reference; records may also be of a cell 3.
fn every_kind() -> Experiment {
    let bound = Bound {
        at_least: Some(0.5),
        at_most: Some(1.5),
    };
    let all = Selector::default;
    let mut one = experiment(
        vec![axis("x", &[0, 1, 2])],
        vec![
            ratio(&[("x", 1)], &[("x", 0)], bound),
            ratio(&[], &[("x", 0)], AT_MOST_1),
            ClaimKind::Flat {
                over: "x".into(),
                within: all(),
                at_most: 1.1,
            },
            ClaimKind::Scales {
                over: "x".into(),
                within: all(),
                up_to: None,
                bound,
            },
            ClaimKind::Order {
                ranked: [0, 1, 2].map(|x| selector(&[("x", x)])).to_vec(),
                margin: 1.0,
            },
            ClaimKind::Value {
                of: selector(&[("x", 2)]),
                bound,
            },
            ClaimKind::Value {
                of: selector(&[("x", 2)]),
                bound: Bound {
                    at_least: Some(-1.0),
                    at_most: None,
                },
            },
            zero(),
        ],
    );
    one.beside = vec!["reference".into()];
    one
}

proptest! {
    #[test]
    fn any_records_are_judged_and_shown(
        records in prop::collection::vec(any_record(), 0..80),
        exact: bool,
        counts_work: bool,
    ) {
        let mut one = every_kind();
        if !counts_work {
            one.metrics[0].work = None;
        }
        one.exact = exact;
        let judged = run_of(&one, &records);
        for claim in &judged.claims {
            prop_assert!(claim.verdict == Verdict::Reproduced || claim.reason.is_some()
                || claim.verdict == Verdict::NotReproduced, "{claim:?}");
            let decided = matches!(claim.verdict, Verdict::Reproduced | Verdict::NotReproduced);
            prop_assert!(!decided || claim.measured.is_some(), "{claim:?}");
            let figures = claim.measured.into_iter().chain(claim.ci95.into_iter().flatten());
            for figure in figures.chain(claim.evidence.fields().into_iter().flatten()) {
                prop_assert!(figure.is_finite(), "{claim:?}");
            }
            if let Some([low, high]) = claim.ci95 {
                prop_assert!(low <= high, "{claim:?}");
            }
            for p in claim.evidence.fields().iter().flatten() {
                prop_assert!((0.0..=1.0).contains(p), "{claim:?}");
            }
        }
        for cell in &judged.cells {
            let figures = cell.median.into_iter().chain(cell.ci95.into_iter().flatten());
            for figure in figures {
                prop_assert!(figure.is_finite(), "{cell:?}");
            }
            if let (Some(median), Some([low, high])) = (cell.median, cell.ci95) {
                prop_assert!(low <= median && median <= high, "{cell:?}");
            }
        }
        let result = RunResult {
            schema: SCHEMA,
            run: "r".into(),
            tare: "0".into(),
            size: "quick".into(),
            seed: 7,
            started: "2026-01-01T00:00:00Z".into(),
            rounds: 12,
            complete: true,
            machine: Machine::default(),
            families: vec![],
            error_rate: 0.0,
            assuming_independent_rounds: vec![],
            warnings: vec![],
            experiments: vec![judged],
        };
        let page = report::html(&result);
        prop_assert!(!page.contains("<hostile>") && !page.contains("NaN") && !page.contains("inf,"), "{page}");
        report::csv(&result);
        report::markdown(&result);
        for width in [40, 80, 200] {
            let text = report::text::claims(&result, width, false)
                + &report::text::cells(&result.experiments[0], width);
            let steers = text.contains('\u{1b}');
            prop_assert!(!steers, "{}", text);
        }
        let json = serde_json::to_string(&result).unwrap();
        let back: Result<RunResult, _> = serde_json::from_str(&json);
        prop_assert!(back.is_ok_and(|back| back == result), "{json}");
    }
}
