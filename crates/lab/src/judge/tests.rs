use std::collections::BTreeMap;

use super::*;
use crate::experiment::{Axis, Metric, Statistic, IMPORTED};
use crate::sample::{Outcome, OPERATIONS};
use crate::unit::{Better, Unit};
use crate::value::{Parameters, Point, Selector, Value, BESIDE};

const AT_LEAST_1: Bound = Bound {
    at_least: Some(1.0),
    at_most: None,
};
const AT_MOST_1: Bound = Bound {
    at_least: None,
    at_most: Some(1.0),
};

fn selector(keys: &[(&str, i64)]) -> Selector {
    Selector(
        keys.iter()
            .map(|(key, value)| ((*key).to_owned(), Value::Int(*value)))
            .collect(),
    )
}

fn axis(name: &str, values: &[i64]) -> Axis {
    Axis {
        name: name.into(),
        values: values.iter().map(|value| Value::Int(*value)).collect(),
        log: false,
    }
}

fn claim(id: &str, kind: ClaimKind) -> Claim {
    Claim {
        id: id.into(),
        standing: Standing::Claim,
        text: "It holds".into(),
        source: None,
        metric: "time".into(),
        kind,
        published: None,
    }
}

fn ratio(of: &[(&str, i64)], to: &[(&str, i64)], bound: Bound) -> ClaimKind {
    ClaimKind::Ratio {
        of: selector(of),
        to: selector(to),
        bound,
    }
}

fn experiment(axes: Vec<Axis>, kinds: Vec<ClaimKind>) -> Experiment {
    Experiment {
        id: "suite/one".into(),
        title: "One".into(),
        source: "A paper".into(),
        driver: "synthetic".into(),
        fixed: Parameters::new(),
        axes,
        exclude: vec![],
        beside: vec![],
        baseline: None,
        metrics: vec![Metric {
            name: "time".into(),
            statistic: Statistic::Median,
            across: Statistic::Median,
            from: None,
            unit: Unit::Nanoseconds,
            better: Better::Lower,
            work: Some("bytes".into()),
        }],
        parts: vec![],
        published: vec![],
        claims: kinds
            .into_iter()
            .enumerate()
            .map(|(place, kind)| claim(&format!("c{place}"), kind))
            .collect(),
        exact: false,
        rounds: Default::default(),
    }
}

fn done(value: f64, bytes: u64) -> Outcome {
    Outcome::Done {
        values: BTreeMap::from([("time".to_owned(), value)]),
        samples: BTreeMap::new(),
        counters: BTreeMap::from([(OPERATIONS.to_owned(), 10), ("bytes".to_owned(), bytes)]),
    }
}

fn record(at: &Point, round: u32, outcome: Outcome) -> TrialRecord {
    TrialRecord {
        experiment: "suite/one".into(),
        round,
        at: at.clone(),
        again: false,
        outcome,
        elapsed_ms: 1.0,
        overhead_ms: None,
        run_ms: 0.0,
        last_lines: Vec::new(),
        notes: BTreeMap::new(),
        log: None,
    }
}

/// A record of every cell in every round.
fn records(
    experiment: &Experiment,
    rounds: u32,
    outcome: impl Fn(&Point, u32) -> Outcome,
) -> Vec<TrialRecord> {
    let points = experiment.points();
    (0..rounds)
        .flat_map(|round| points.iter().map(move |at| (round, at)))
        .map(|(round, at)| record(at, round, outcome(at, round)))
        .collect()
}

fn on(at: &Point, axis: &str) -> f64 {
    at.0.get(axis).and_then(Value::as_f64).unwrap_or(1.0)
}

/// A little deterministic noise, so that intervals have a width.
fn wobble(round: u32) -> f64 {
    1.0 + 0.001 * f64::from((round * 7) % 5)
}

/// Judges a run of that experiment alone.
fn run_of(experiment: &Experiment, records: &[TrialRecord]) -> ExperimentResult {
    let experiments = std::slice::from_ref(experiment);
    judge(experiments, records, &Judging::default())
        .experiments
        .remove(0)
}

/// The claims of an experiment whose cells read `value` and did `bytes` of work.
fn judged(
    experiment: &Experiment,
    rounds: u32,
    outcome: impl Fn(&Point, u32) -> Outcome,
) -> Vec<ClaimResult> {
    let records = records(experiment, rounds, outcome);
    run_of(experiment, &records).claims
}

fn reason(claim: &ClaimResult) -> &str {
    claim.reason.as_deref().unwrap_or("")
}

fn zero() -> ClaimKind {
    ClaimKind::Zero {
        counter: "lost".into(),
        within: Selector::default(),
        out_of: "draws".into(),
        where_testable: false,
    }
}

mod anything;
mod decisions;
mod kinds;

#[test]
fn cells_that_did_not_do_the_same_work_get_no_ratio() {
    let one = experiment(
        vec![axis("way", &[0, 1])],
        vec![ratio(&[("way", 1)], &[("way", 0)], AT_LEAST_1)],
    );
    let with = |work: u64| {
        judged(&one, 16, move |at, round| {
            done(
                (1.0 + on(at, "way")) * wobble(round),
                if on(at, "way") == 1.0 { work } else { 109_000 },
            )
        })
    };
    let refused = &with(8_600)[0];
    assert_eq!(refused.verdict, Verdict::NotTestable);
    assert_eq!(
        (refused.measured, refused.ci95, refused.evidence.p),
        (None, None, None)
    );
    assert_eq!(
        reason(refused),
        "not the same work: way=0 did 10.9 kB per operation, way=1 0.86 kB"
    );
    assert_eq!(with(110_000)[0].verdict, Verdict::Reproduced, "0.9 % apart");
    assert_eq!(
        with(110_200)[0].verdict,
        Verdict::NotTestable,
        "1.1 % apart"
    );
    assert_eq!(reason(&with(0)[0]), "way=1 did no work: bytes stayed 0");
}

#[test]
fn less_work_in_a_single_round_is_not_the_same_work() {
    let one = experiment(
        vec![axis("way", &[0, 1])],
        vec![ratio(&[("way", 1)], &[("way", 0)], AT_LEAST_1)],
    );
    let claims = judged(&one, 16, |at, round| {
        let lazy = round == 5 && on(at, "way") == 1.0;
        done(
            (1.0 + on(at, "way")) * wobble(round),
            if lazy { 500 } else { 1_000 },
        )
    });
    assert_eq!(claims[0].verdict, Verdict::NotTestable, "{:?}", claims[0]);
    assert!(reason(&claims[0]).starts_with("not the same work"));
}

#[test]
fn cells_that_did_not_count_their_work_get_no_ratio() {
    let mut one = experiment(
        vec![axis("way", &[0, 1])],
        vec![ratio(&[("way", 1)], &[("way", 0)], AT_LEAST_1)],
    );
    one.metrics[0].work = Some("packets".into());
    let outcome = |at: &Point, round: u32| done((1.0 + on(at, "way")) * wobble(round), 10);
    let claims = judged(&one, 16, outcome);
    assert_eq!(claims[0].verdict, Verdict::NotTestable);
    assert!(reason(&claims[0]).contains("did not count its work (packets and operations)"));
    one.metrics[0].work = None;
    assert_eq!(
        judged(&one, 16, outcome)[0].verdict,
        Verdict::Reproduced,
        "a metric of events"
    );
}

#[test]
fn rounds_exactly_on_the_threshold_speak_for_neither_side() {
    let one = experiment(
        vec![axis("way", &[0, 1])],
        vec![
            ratio(&[("way", 1)], &[("way", 0)], AT_LEAST_1),
            ratio(&[("way", 1)], &[("way", 0)], AT_MOST_1),
        ],
    );
    for claim in judged(&one, 16, |_, round| done(0.3 * wobble(round), 10)) {
        assert_eq!(claim.verdict, Verdict::Inconclusive);
        assert_eq!((claim.measured, claim.ci95), (Some(1.0), Some([1.0, 1.0])));
        assert!(reason(&claim).starts_with("16 of 16 rounds lie exactly on the threshold"));
    }
}

#[test]
fn an_interval_on_both_sides_of_the_threshold_is_inconclusive() {
    let one = experiment(
        vec![axis("way", &[0, 1])],
        vec![ratio(&[("way", 1)], &[("way", 0)], AT_LEAST_1)],
    );
    let claim = judged(&one, 16, |at, round| {
        done(
            1.0 + on(at, "way") * 0.01 * (f64::from(round * 7 % 16) - 7.4),
            10,
        )
    })
    .remove(0);
    assert_eq!(claim.verdict, Verdict::Inconclusive);
    assert!(
        reason(&claim).contains("contains the threshold 1; "),
        "{}",
        reason(&claim)
    );
}

#[test]
fn what_the_machine_lacks_makes_a_claim_not_testable_with_the_remedy() {
    let one = experiment(
        vec![axis("way", &[0, 1])],
        vec![
            ratio(&[("way", 1)], &[("way", 0)], AT_LEAST_1),
            zero(),
            ClaimKind::Value {
                of: selector(&[("way", 0)]),
                bound: AT_LEAST_1,
            },
        ],
    );
    let made = records(&one, 16, |at, round| match on(at, "way") {
        0.0 => done(2.0 * wobble(round), 10),
        _ => Outcome::NotTestable {
            reason: "needs nginx".into(),
            remedy: Some("apt install nginx-light".into()),
        },
    });
    let result = run_of(&one, &made);
    for claim in &result.claims[..2] {
        assert_eq!(claim.verdict, Verdict::NotTestable);
        assert_eq!(reason(claim), "needs nginx; apt install nginx-light");
    }
    assert_eq!(
        result.claims[2].verdict,
        Verdict::Reproduced,
        "it needs only the other cell"
    );
    assert_eq!(
        result.claims[2].evidence.p_holm, result.claims[2].evidence.p,
        "only one claim was tested"
    );
    assert_eq!(
        result.cells[1].reason.as_deref(),
        Some("needs nginx; apt install nginx-light")
    );
    assert_eq!((result.cells[1].n, result.cells[1].median), (0, None));
}

#[test]
fn values_that_are_no_numbers_or_have_no_logarithm_are_never_taken_for_small_ones() {
    let one = experiment(
        vec![axis("way", &[0, 1])],
        vec![ratio(&[("way", 1)], &[("way", 0)], AT_LEAST_1)],
    );
    let with = |odd: f64| {
        judged(&one, 16, move |at, round| {
            done(
                if round == 3 && on(at, "way") == 1.0 {
                    odd
                } else {
                    (1.0 + on(at, "way")) * wobble(round)
                },
                10,
            )
        })
        .remove(0)
    };
    for odd in [f64::NAN, f64::INFINITY] {
        let claim = with(odd);
        assert_eq!(claim.n, 15, "a missing number is missing");
        assert_eq!(claim.failures[0].reason, "no value for time");
    }
    for odd in [0.0, -1.0] {
        let claim = with(odd);
        assert_eq!(
            (claim.verdict, claim.measured),
            (Verdict::Inconclusive, None)
        );
        assert_eq!(
            reason(&claim),
            "no ratio: time of way=1 or way=0 was zero or negative in round 4"
        );
    }
}

#[test]
fn an_empty_run_judges_without_a_figure() {
    let one = experiment(
        vec![axis("way", &[0, 1])],
        vec![ratio(&[("way", 1)], &[("way", 0)], AT_LEAST_1), zero()],
    );
    let result = run_of(&one, &[]);
    assert_eq!(reason(&result.claims[0]), "no trial of way=1 has run");
    assert_eq!(reason(&result.claims[1]), "no trial of way=0 has run");
    assert!(!result.decided());
    assert_eq!(result.cells[0].samples, vec![None::<f64>; 0]);
    assert!(result.noise.is_empty());
}

#[test]
fn the_baseline_against_itself_is_the_noise_floor() {
    let one = experiment(vec![axis("way", &[0, 1])], vec![]);
    let mut made = records(&one, 16, |_, round| done(2.0 * wobble(round), 10));
    for round in 0..16 {
        let mut again = record(&one.points()[0], round, done(2.02 * wobble(round), 10));
        again.again = true;
        made.push(again);
    }
    let result = run_of(&one, &made);
    let [noise] = &result.noise[..] else {
        panic!("{:?}", result.noise)
    };
    assert!((noise.ratio - 1.01).abs() < 1e-9);
    assert_eq!(noise.n, 16);
    assert!(noise.p < 0.001, "{}", noise.p);
    assert_eq!(
        result.cells[0].n, 16,
        "second trials are no trials of the cell"
    );
}

#[test]
fn the_interval_of_the_noise_floor_contains_its_ratio_where_the_machine_changes_half_way() {
    let one = experiment(vec![axis("way", &[0])], vec![]);
    let mut made = records(&one, 40, |_, _| done(2.0, 10));
    for round in 0..40 {
        let reading = if round < 12 { 4.0 } else { 1.0 };
        let mut again = record(&one.points()[0], round, done(reading, 10));
        again.again = true;
        made.push(again);
    }
    let noise = run_of(&one, &made).noise.remove(0);
    assert_eq!(noise.ratio, 0.5);
    let [low, high] = noise.ci95;
    assert!(low <= 0.5 && high >= 2.0, "{low} to {high}");
}

#[test]
fn the_later_record_of_a_trial_counts() {
    let one = experiment(vec![axis("way", &[0])], vec![]);
    let mut made = records(&one, 2, |_, _| Outcome::Failed {
        reason: "killed".into(),
    });
    made.extend(records(&one, 2, |_, _| done(3.0, 10)));
    let result = run_of(&one, &made);
    assert_eq!((result.cells[0].n, result.cells[0].failed), (2, 0));
    assert_eq!(result.cells[0].work_per_operation, Some(1.0));
}
