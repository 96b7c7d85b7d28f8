//! Each kind of claim.

use super::*;

#[test]
fn a_ratio_pairs_cells_that_agree_on_the_free_axes_and_must_hold_for_every_pair() {
    let one = experiment(
        vec![axis("size", &[1, 2]), axis("way", &[0, 1])],
        vec![
            ratio(&[("way", 1)], &[("way", 0)], AT_LEAST_1),
            ratio(
                &[("way", 1)],
                &[("way", 0)],
                Bound {
                    at_least: Some(1.2),
                    at_most: None,
                },
            ),
        ],
    );
    // Way 1 is 1.5 times way 0 at size 1 and 1.1 times at size 2; sizes differ by a factor 100.
    let claims = judged(&one, 20, |at, round| {
        let slow = match (on(at, "way"), on(at, "size")) {
            (1.0, 1.0) => 1.5,
            (1.0, _) => 1.1,
            _ => 1.0,
        };
        done(100f64.powf(on(at, "size")) * slow * wobble(round), 640)
    });
    assert_eq!(claims[0].verdict, Verdict::Reproduced);
    assert!(
        (claims[0].measured.unwrap() - 1.1).abs() < 1e-9,
        "the pair closest to failing"
    );
    assert_eq!(
        claims[0].evidence.p_holm,
        Some(2.0 * claims[0].evidence.p.unwrap())
    );
    assert_eq!(claims[0].n, 20);
    assert_eq!(claims[1].verdict, Verdict::NotReproduced);
    assert_eq!(
        reason(&claims[1]),
        "furthest from the criterion: size=2 way=1 against size=2 way=0"
    );
    assert_eq!(claims[1].criterion, "at least 1.2");
}

#[test]
fn the_parts_of_an_experiment_are_in_its_result() {
    let mut one = experiment(vec![axis("size", &[1])], vec![]);
    one.parts = vec!["time".into(), "rest".into()];
    assert_eq!(run_of(&one, &[]).parts, one.parts);
}

#[test]
fn a_reference_pairs_with_every_cell() {
    let mut one = experiment(vec![axis("size", &[1, 2])], vec![]);
    one.beside = vec!["bare".into()];
    let bare = Selector(Parameters::from([(BESIDE.to_owned(), "bare".into())]));
    one.claims = vec![claim(
        "c",
        ClaimKind::Ratio {
            of: Selector::default(),
            to: bare,
            bound: AT_LEAST_1,
        },
    )];
    let claims = judged(&one, 20, |at, round| {
        done(
            if at.beside().is_some() {
                1.0
            } else {
                2.0 * on(at, "size")
            } * wobble(round),
            10,
        )
    });
    assert_eq!(claims[0].verdict, Verdict::Reproduced);
    assert!((claims[0].measured.unwrap() - 2.0).abs() < 1e-9);
}

#[test]
fn between_is_two_one_sided_tests() {
    let between = Bound {
        at_least: Some(1.5),
        at_most: Some(2.5),
    };
    let one = experiment(
        vec![axis("way", &[0, 1, 2, 3])],
        (1..=3)
            .map(|way| ratio(&[("way", way)], &[("way", 0)], between))
            .collect(),
    );
    let claims = judged(&one, 20, |at, round| {
        done(
            [1.0, 2.0, 3.0, 1.2][on(at, "way") as usize] * wobble(round + on(at, "way") as u32),
            10,
        )
    });
    let verdicts: Vec<_> = claims.iter().map(|claim| claim.verdict).collect();
    use Verdict::{NotReproduced, Reproduced};
    assert_eq!(verdicts, [Reproduced, NotReproduced, NotReproduced]);
    assert_eq!(claims[0].criterion, "between 1.5 and 2.5");
}

#[test]
fn flat_is_the_largest_over_the_smallest_of_the_worst_line() {
    let flat = |at_most| ClaimKind::Flat {
        over: "sessions".into(),
        within: Selector::default(),
        at_most,
    };
    let one = experiment(
        vec![axis("op", &[0, 1]), axis("sessions", &[1, 10, 100])],
        vec![flat(1.10), flat(1.04)],
    );
    let claims = judged(&one, 20, |at, round| {
        let bump = on(at, "op")
            * if on(at, "sessions") == 10.0 {
                0.06
            } else {
                0.0
            };
        done(
            5.0 * (1.0 + bump) * wobble(round + on(at, "sessions") as u32),
            10,
        )
    });
    assert_eq!(claims[0].verdict, Verdict::Reproduced);
    assert!((claims[0].measured.unwrap() - 1.06).abs() < 0.004);
    assert_eq!(claims[1].verdict, Verdict::NotReproduced);
    assert!(reason(&claims[1])
        .starts_with("furthest from the criterion: op=1 sessions=10 against op=1"));
}

#[test]
fn scales_is_the_slope_up_to_a_limit_on_the_axis() {
    let scales = |up_to| ClaimKind::Scales {
        over: "threads".into(),
        within: Selector::default(),
        up_to,
        bound: Bound {
            at_least: Some(0.9),
            at_most: Some(1.1),
        },
    };
    let one = experiment(
        vec![axis("threads", &[1, 2, 4, 8])],
        vec![scales(Some(4.0)), scales(None)],
    );
    let claims = judged(&one, 20, |at, round| {
        done(
            on(at, "threads").min(4.0) * wobble(round + on(at, "threads") as u32),
            10,
        )
    });
    assert_eq!(claims[0].verdict, Verdict::Reproduced);
    assert!((claims[0].measured.unwrap() - 1.0).abs() < 0.01);
    assert_eq!(
        claims[0].criterion,
        "slope along threads between 0.9 and 1.1, up to 4"
    );
    assert_eq!(claims[1].verdict, Verdict::NotReproduced);
    assert!(claims[1].measured.unwrap() < 0.8);
}

#[test]
fn an_order_holds_in_the_metrics_own_direction() {
    let order = |ways: [i64; 3], margin| ClaimKind::Order {
        ranked: ways.iter().map(|way| selector(&[("way", *way)])).collect(),
        margin,
    };
    let mut one = experiment(
        vec![axis("way", &[1, 2, 3])],
        vec![
            order([1, 2, 3], 1.0),
            order([3, 2, 1], 1.0),
            order([1, 2, 3], 1.6),
        ],
    );
    let outcome = |at: &Point, round: u32| done(on(at, "way") * wobble(round), 10);
    let verdicts =
        |claims: Vec<ClaimResult>| claims.into_iter().map(|c| c.verdict).collect::<Vec<_>>();
    use Verdict::{NotReproduced, Reproduced};
    let lower = judged(&one, 16, outcome);
    assert_eq!(lower[0].criterion, "way=1 < way=2 < way=3");
    assert!(
        (lower[0].measured.unwrap() - 1.5).abs() < 1e-9,
        "3 / 2 is closer than 2 / 1"
    );
    assert_eq!(verdicts(lower), [Reproduced, NotReproduced, NotReproduced]);
    one.metrics[0].better = Better::Higher;
    assert_eq!(
        verdicts(judged(&one, 16, outcome)),
        [NotReproduced, Reproduced, NotReproduced]
    );
}

#[test]
fn a_tested_value_is_among_the_claims_that_assume_independent_rounds() {
    let value = ClaimKind::Value {
        of: selector(&[("way", 0)]),
        bound: AT_LEAST_1,
    };
    let pair = ratio(&[("way", 1)], &[("way", 0)], AT_LEAST_1);
    let mut one = experiment(vec![axis("way", &[0, 1])], vec![pair, value]);
    let assuming = |one: &Experiment, rounds| {
        let records = records(one, rounds, |_, round| done(2.0 * wobble(round), 10));
        let experiments = std::slice::from_ref(one);
        judge(experiments, &records, &Judging::default()).assuming_independent_rounds
    };
    assert_eq!(assuming(&one, 16), ["suite/one/c1"]);
    assert!(assuming(&one, 0).is_empty());
    one.exact = true;
    assert!(assuming(&one, 16).is_empty());
}

#[test]
fn a_value_is_judged_in_the_metrics_unit_and_may_be_zero_or_negative() {
    let value = |low: f64| ClaimKind::Value {
        of: selector(&[("way", 0)]),
        bound: Bound {
            at_least: Some(low),
            at_most: None,
        },
    };
    let one = experiment(
        vec![axis("way", &[0, 1])],
        vec![value(100.0), value(-200.0)],
    );
    let claims = judged(&one, 16, |_, round| done(-102.0 * wobble(round), 10));
    assert_eq!(claims[0].criterion, "at least 100 ns");
    assert_eq!(claims[0].verdict, Verdict::NotReproduced);
    assert_eq!(claims[1].verdict, Verdict::Reproduced);
    let claims = judged(&one, 16, |_, round| done(102.0 * wobble(round), 10));
    assert_eq!(claims[0].verdict, Verdict::Reproduced);
}

fn counts(lost: Option<u64>, draws: u64) -> Outcome {
    let mut counters = BTreeMap::from([("draws".to_owned(), draws)]);
    counters.extend(lost.map(|lost| ("lost".to_owned(), lost)));
    Outcome::Done {
        values: BTreeMap::new(),
        samples: BTreeMap::new(),
        counters,
    }
}

#[test]
fn a_zero_is_exact_and_needs_something_counted_in_every_trial() {
    let one = experiment(vec![axis("way", &[0, 1])], vec![zero()]);
    let failed = || Outcome::Failed {
        reason: "it crashed".into(),
    };
    let with = |last: Outcome| {
        judged(&one, 3, move |at, round| {
            if round == 2 && on(at, "way") == 1.0 {
                last.clone()
            } else {
                counts(Some(0), 1_000)
            }
        })
        .remove(0)
    };
    let clean = with(counts(Some(0), 1_000));
    assert_eq!(clean.verdict, Verdict::Reproduced);
    assert_eq!(
        (clean.measured, clean.evidence.p, clean.n),
        (Some(0.0), None, 3)
    );
    assert_eq!(reason(&clean), "0 of 6000 draws");
    assert_eq!(clean.criterion, "lost 0 of draws");
    let hit = with(counts(Some(3), 1_000));
    assert_eq!(
        (hit.verdict, hit.measured),
        (Verdict::NotReproduced, Some(3.0))
    );
    assert_eq!(reason(&hit), "lost was 3 of 6000 draws");
    let crashed = with(failed());
    assert_eq!(crashed.verdict, Verdict::Inconclusive);
    assert!(reason(&crashed).starts_with("0 of 5000 draws, but 1 trial failed"));
    let silent = with(counts(None, 1_000));
    assert_eq!(
        (silent.verdict, silent.measured),
        (Verdict::Inconclusive, None)
    );
    assert_eq!(reason(&silent), "1 trial did not report lost and draws");
    let nothing = judged(&one, 3, |_, _| counts(Some(0), 0)).remove(0);
    assert_eq!(nothing.verdict, Verdict::Inconclusive);
    assert_eq!(reason(&nothing), "nothing was counted: draws is 0");
    let all_failed = judged(&one, 3, |_, _| failed()).remove(0);
    assert_eq!(
        (all_failed.verdict, reason(&all_failed)),
        (Verdict::Inconclusive, "every trial failed")
    );
}

#[test]
fn an_event_beside_a_failed_trial_still_refutes_a_zero() {
    let one = experiment(vec![axis("way", &[0, 1])], vec![zero()]);
    let claim = judged(&one, 3, |at, _| match on(at, "way") {
        0.0 => counts(Some(1), 10),
        _ => Outcome::Failed {
            reason: "it crashed".into(),
        },
    })
    .remove(0);
    assert_eq!(claim.verdict, Verdict::NotReproduced);
}

#[test]
fn an_event_refutes_a_zero_whatever_this_machine_cannot_run() {
    let one = experiment(vec![axis("way", &[0, 1])], vec![zero()]);
    let missing = || Outcome::NotTestable {
        reason: "no second way".into(),
        remedy: None,
    };
    for (events, verdict) in [(0, Verdict::NotTestable), (3, Verdict::NotReproduced)] {
        let claims = judged(&one, 2, |at, _| match on(at, "way") {
            0.0 => counts(Some(events), 10),
            _ => missing(),
        });
        assert_eq!(claims[0].verdict, verdict, "{:?}", claims[0]);
    }
}

#[test]
fn a_zero_where_testable_leaves_out_what_this_machine_cannot_run_and_says_so() {
    let mut kind = zero();
    if let ClaimKind::Zero { where_testable, .. } = &mut kind {
        *where_testable = true;
    }
    let one = experiment(vec![axis("way", &[0, 1])], vec![kind]);
    let missing = || Outcome::NotTestable {
        reason: "no such way".into(),
        remedy: None,
    };
    let with = |there: Outcome| {
        judged(&one, 2, move |at, _| match on(at, "way") {
            0.0 => there.clone(),
            _ => missing(),
        })
        .remove(0)
    };
    let clean = with(counts(Some(0), 10));
    assert_eq!(clean.verdict, Verdict::Reproduced);
    assert_eq!(
        reason(&clean),
        "0 of 20 draws; 1 cell cannot run here: no such way"
    );
    assert_eq!(
        with(counts(Some(1), 10)).verdict,
        Verdict::NotReproduced,
        "it counts what can run"
    );
    let none = with(missing());
    assert_eq!(none.verdict, Verdict::NotTestable);
    assert_eq!(reason(&none), "no such way");
    let empty = run_of(&one, &[]);
    assert_eq!(reason(&empty.claims[0]), "no trial of way=0 has run");
}

#[test]
fn an_order_with_a_cell_that_the_matrix_lacks_is_no_order_of_the_others() {
    let ranked = [1, 2, 9].map(|x| selector(&[("x", x)])).to_vec();
    let kind = ClaimKind::Order {
        ranked,
        margin: 1.0,
    };
    let one = experiment(vec![axis("x", &[1, 2])], vec![kind]);
    let claims = judged(&one, 16, |at, round| done(on(at, "x") * wobble(round), 80));
    assert_eq!(claims[0].verdict, Verdict::NotTestable, "{:?}", claims[0]);
}

#[test]
fn a_cell_says_its_statistic_across_trials_and_a_shape_that_a_median_hides() {
    let mut one = experiment(vec![axis("way", &[0, 1])], vec![]);
    one.metrics[0].across = Statistic::P99;
    // Way 1 stalls in every tenth round.
    let records = records(&one, 20, |at, round| {
        let stalls = on(at, "way") == 1.0 && round % 10 == 9;
        done(if stalls { 50.0 } else { 1.0 } * wobble(round), 10)
    });
    let cells = run_of(&one, &records).cells;
    assert_eq!(cells[0].notes.len(), 1, "{:?}", cells[0].notes);
    assert_eq!(
        cells[1].notes[0],
        "99th percentile over 20 trials: 50.15 ns; described, not judged"
    );
    assert!(
        cells[1].notes[1].starts_with("heavy-tailed: 2 of 20 values"),
        "{:?}",
        cells[1].notes
    );
    assert!(
        cells[1].remark().contains("judged; heavy-tailed"),
        "{}",
        cells[1].remark()
    );
    one.metrics[0].across = Statistic::Median;
    assert!(run_of(&one, &records).cells[0].notes.is_empty());
}

#[test]
fn a_value_far_below_one_is_not_on_its_threshold_by_rounding() {
    let value = |limit| ClaimKind::Value {
        of: Selector::default(),
        bound: Bound {
            at_least: None,
            at_most: Some(limit),
        },
    };
    // An error rate of 5e-13 is above 0, and above 1e-13.
    for limit in [0.0, 1e-13] {
        let mut one = experiment(vec![axis("way", &[0])], vec![value(limit)]);
        one.metrics[0].unit = Unit::Ratio;
        for exact in [true, false] {
            one.exact = exact;
            let claim = judged(&one, 20, |_, round| match round {
                0 => done(0.0, 10),
                _ => done(5e-13, 10),
            });
            let claim = &claim[0];
            assert_ne!(claim.verdict, Verdict::Reproduced, "{limit} {exact}");
            assert_eq!(claim.measured, Some(5e-13), "{limit} {exact}");
        }
        one.exact = true;
        let claim = judged(&one, 3, |_, _| done(5e-13, 10)).remove(0);
        assert_eq!(claim.verdict, Verdict::NotReproduced, "{limit}");
    }
}
