//! Tests of when a claim is decided, what failed trials do to it, and which claims share a
//! correction.

use proptest::prelude::*;

use super::*;
use crate::experiment::Rounds;
use crate::result::Failures;

fn two_ways() -> Experiment {
    experiment(
        vec![axis("way", &[0, 1])],
        vec![ratio(&[("way", 1)], &[("way", 0)], AT_LEAST_1)],
    )
}

fn doubled(at: &Point, round: u32) -> Outcome {
    done((1.0 + on(at, "way")) * wobble(round), 10)
}

fn failed(reason: &str) -> Outcome {
    Outcome::Failed {
        reason: reason.into(),
    }
}

#[test]
fn an_unanimous_claim_is_decided_in_fourteen_rounds_alone_or_among_a_hundred() {
    let with = |claims: usize, rounds: u32| {
        let kind = || ratio(&[("way", 1)], &[("way", 0)], AT_LEAST_1);
        let one = experiment(
            vec![axis("way", &[0, 1])],
            (0..claims).map(|_| kind()).collect(),
        );
        judged(&one, rounds, doubled).remove(0)
    };
    for (claims, rounds) in [(1, 14), (100, 14), (1000, 18)] {
        let early = with(claims, rounds - 2);
        assert_eq!(early.verdict, Verdict::Inconclusive, "{claims} claims");
        assert!(early.open && early.decided_after.is_none());
        let decided = with(claims, rounds);
        assert_eq!(decided.verdict, Verdict::Reproduced, "{decided:?}");
        assert!(!decided.open);
        assert_eq!(with(claims, 30).decided_after, decided.decided_after);
    }
    let guide = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/src/compare.md");
    let guide = std::fs::read_to_string(guide).unwrap();
    assert!(guide.contains("a verdict needs at least 14 of them"));
}

#[test]
fn an_open_claim_says_about_how_many_more_rounds_would_decide() {
    let one = two_ways();
    // Way 1 is the slower in three rounds of four.
    let outcome = |at: &Point, round: u32| {
        let slower = if round.is_multiple_of(4) { -0.02 } else { 0.02 };
        done(1.0 + on(at, "way") * slower * wobble(round), 10)
    };
    let open = judged(&one, 20, outcome).remove(0);
    assert!(open.open);
    let reason = reason(&open).to_owned();
    let (_, advice) = reason.split_once("; at this rate about ").expect(&reason);
    let more: u32 = advice.split(' ').next().unwrap().parse().unwrap();
    assert!(reason.ends_with(" more rounds would decide"), "{reason}");
    let decided = judged(&one, 200, outcome).remove(0).decided_after.unwrap();
    assert!(
        (20 + more / 2..20 + more * 2).contains(&decided),
        "{more}: {decided}"
    );
}

#[test]
fn a_claim_with_too_few_rounds_says_how_many_more_could_decide_at_least() {
    let one = two_ways();
    let claim = judged(&one, 1, doubled).remove(0);
    let reason = reason(&claim);
    let start = "1 round is too few for an interval; a verdict needs at least ";
    let more = reason.strip_prefix(start).expect(reason);
    let more: u32 = more.strip_suffix(" more rounds").unwrap().parse().unwrap();
    let verdict = |rounds| judged(&one, rounds, doubled).remove(0).verdict;
    assert_eq!(verdict(more), Verdict::Inconclusive);
    assert_eq!(verdict(1 + more), Verdict::Reproduced);
}

#[test]
fn a_figure_on_its_threshold_gets_no_advice() {
    let one = two_ways();
    let claim = judged(&one, 20, |at, round| {
        let slower = [0.02, -0.02][round as usize % 2];
        done(1.0 + on(at, "way") * slower * wobble(round), 10)
    })
    .remove(0);
    assert!(
        reason(&claim).contains("too close to the threshold to say"),
        "{}",
        reason(&claim)
    );
}

#[test]
fn failed_rounds_count_against_either_verdict() {
    let one = two_ways();
    let with = |failing: u32, rounds: u32| {
        let made = records(&one, rounds, |at, round| {
            // Spread over the run, as stalls are.
            if on(at, "way") == 1.0 && round * failing % rounds < failing {
                failed("it hung")
            } else {
                doubled(at, round)
            }
        });
        run_of(&one, &made)
    };
    let some = with(3, 30);
    let claim = &some.claims[0];
    assert_eq!((claim.verdict, claim.n), (Verdict::Reproduced, 27));
    assert!(claim.decided_after.unwrap() > 10);
    assert_eq!(
        reason(claim),
        "3 of 30 trials of way=1 failed (it hung); the verdict stands with each of them counted \
         against it"
    );
    assert_eq!((some.cells[1].n, some.cells[1].failed), (27, 3));
    let half = with(15, 30);
    let claim = &half.claims[0];
    assert_eq!((claim.verdict, claim.n), (Verdict::Inconclusive, 15));
    assert!(
        reason(claim).ends_with("failed (it hung); each counts against either verdict"),
        "{}",
        reason(claim)
    );
    assert_eq!(claim.failures[0].failed, 15);
    assert_eq!(claim.failures[0].of, 30);
}

#[test]
fn later_rounds_that_contradict_a_verdict_take_it_back() {
    let one = two_ways();
    // Way 1 is twice as fast in the first 15 rounds; then `later` comes.
    let with = |rounds: u32, later: &dyn Fn(u32) -> Outcome| {
        let made = records(&one, rounds, |at, round| match on(at, "way") {
            1.0 if round >= 15 => later(round),
            _ => doubled(at, round),
        });
        run_of(&one, &made).claims.remove(0)
    };
    for (later, why) in [
        (
            &(|_| failed("it hung")) as &dyn Fn(u32) -> Outcome,
            "failed (it hung)",
        ),
        (&|round| done(0.5 * wobble(round), 10), ""),
    ] {
        let early = with(15, later);
        assert_eq!(early.verdict, Verdict::Reproduced, "{early:?}");
        // As many against it as for it, which leaves the median of figures where it was.
        let claim = with(29, later);
        assert_eq!(claim.verdict, Verdict::Reproduced, "{claim:?}");
        let claim = with(40, later);
        assert_eq!(claim.verdict, Verdict::Inconclusive, "{claim:?}");
        assert_eq!(claim.decided_after, early.decided_after);
        assert!(!claim.open);
        let reason = reason(&claim);
        assert!(
            reason.starts_with("contradicted: decided after 14 rounds, "),
            "{reason}"
        );
        assert!(
            reason.contains(why) && !reason.contains("stands"),
            "{reason}"
        );
        let ([low, high], figure) = (claim.ci95.unwrap(), claim.measured.unwrap());
        assert!((low..=high).contains(&figure), "{claim:?}");
    }
}

#[test]
fn later_rounds_take_back_a_verdict_against_a_claim_too() {
    let one = two_ways();
    let with = |rounds: u32| {
        let made = records(&one, rounds, |at, round| match (on(at, "way"), round) {
            (1.0, 0..15) => done(0.5 * wobble(round), 10),
            (1.0, _) => failed("it hung"),
            _ => done(wobble(round), 10),
        });
        run_of(&one, &made).claims.remove(0)
    };
    assert_eq!(with(20).verdict, Verdict::NotReproduced);
    let claim = with(40);
    assert_eq!(claim.verdict, Verdict::Inconclusive, "{claim:?}");
    assert!(
        reason(&claim).starts_with("contradicted: "),
        "{}",
        reason(&claim)
    );
}

#[test]
fn a_program_that_always_fails_is_given_up_when_no_round_could_decide_any_more() {
    let mut one = two_ways();
    one.rounds = Rounds {
        least: 10,
        most: 40,
    };
    let with = |rounds: u32| {
        let made = records(&one, rounds, |at, round| match on(at, "way") {
            1.0 => failed("it hung"),
            _ => doubled(at, round),
        });
        run_of(&one, &made)
    };
    let early = with(5);
    assert!(!early.decided(), "35 good rounds would decide");
    let late = with(30);
    assert!(late.decided());
    let claim = &late.claims[0];
    assert_eq!(claim.verdict, Verdict::Inconclusive);
    assert_eq!((claim.measured, claim.ci95), (None, None));
    assert_eq!(reason(claim), "every trial of way=1 failed: it hung");
    assert_eq!(
        late.cells[1].reason.as_deref(),
        Some("every trial of way=1 failed: it hung")
    );
}

#[test]
fn a_program_whose_value_is_missing_is_not_said_to_have_failed() {
    let one = two_ways();
    let made = records(&one, 20, |at, round| match on(at, "way") {
        1.0 => Outcome::Done {
            values: BTreeMap::new(),
            samples: BTreeMap::new(),
            counters: BTreeMap::new(),
        },
        _ => doubled(at, round),
    });
    let run = run_of(&one, &made);
    let said = "no trial of way=1 gave a value for time";
    assert_eq!(reason(&run.claims[0]), said);
    assert_eq!(run.cells[1].reason.as_deref(), Some(said));
}

#[test]
fn failures_name_the_most_frequent_reason_and_the_last_trials_words() {
    let one = two_ways();
    let mut made = records(&one, 20, |at, round| match (on(at, "way"), round) {
        (1.0, 3 | 9) => failed("killed at its limit"),
        (1.0, 12) => failed("exit status 1"),
        _ => doubled(at, round),
    });
    for record in &mut made {
        if matches!(record.outcome, Outcome::Failed { .. }) {
            record.last_lines = vec![format!("line of round {}", record.round)];
            record.log = Some(format!("logs/{}", record.round));
        }
    }
    let claim = run_of(&one, &made).claims.remove(0);
    let [failures] = &claim.failures[..] else {
        panic!("{:?}", claim.failures)
    };
    assert_eq!(failures.at, one.points()[1]);
    assert_eq!((failures.failed, failures.of), (3, 20));
    assert_eq!(failures.reason, "killed at its limit");
    assert_eq!(failures.last_lines, ["line of round 12"]);
    assert_eq!(failures.log.as_deref(), Some("logs/12"));
}

#[test]
fn every_failed_trial_is_counted_in_its_cell_with_or_without_a_claim() {
    let one = two_ways();
    let mut made = records(&one, 6, |at, round| match (on(at, "way"), round % 2) {
        (0.0, 1) => failed("exit status 1"),
        _ => doubled(at, round),
    });
    let mut again: Vec<TrialRecord> = made[..12]
        .iter()
        .filter(|record| on(&record.at, "way") == 0.0)
        .cloned()
        .collect();
    for record in &mut again {
        record.again = true;
    }
    made.extend(again);
    // It ran and gave no number for the claim's metric.
    made[1].outcome = Outcome::Done {
        values: BTreeMap::new(),
        samples: BTreeMap::new(),
        counters: BTreeMap::new(),
    };
    for record in &mut made {
        if matches!(record.outcome, Outcome::Failed { .. }) {
            record.last_lines = vec!["second call".to_owned()];
            record.log = Some(format!("logs/{}", record.round));
        }
    }
    let claimed = run_of(&one, &made);
    // The claim compares the first trials.
    let compared: Vec<_> = claimed.claims[0].failures.iter().map(counts).collect();
    assert_eq!(
        compared,
        [(1, 6, "no value for time"), (3, 6, "exit status 1")]
    );
    let told: Vec<_> = claimed.failures.iter().map(counts).collect();
    assert_eq!(
        told,
        [(6, 12, "exit status 1"), (1, 6, "no value for time")]
    );
    assert_eq!(claimed.cells[0].failed, 6);

    let unclaimed = Experiment {
        claims: vec![],
        ..one
    };
    let result = run_of(&unclaimed, &made);
    let [failures] = &result.failures[..] else {
        panic!("{:?}", result.failures)
    };
    assert_eq!(counts(failures), (6, 12, "exit status 1"));
    assert_eq!(failures.last_lines, ["second call"]);
    assert_eq!(failures.log.as_deref(), Some("logs/5"));
}

fn counts(failures: &Failures) -> (usize, usize, &str) {
    (failures.failed, failures.of, &failures.reason)
}

#[test]
fn rounds_that_did_not_run_are_no_failures() {
    let one = two_ways();
    let mut made = records(&one, 20, doubled);
    made.retain(|record| record.round < 19 || on(&record.at, "way") == 0.0);
    let claim = run_of(&one, &made).claims.remove(0);
    assert_eq!((claim.n, claim.failures.len()), (19, 0));
    assert_eq!((claim.verdict, claim.reason), (Verdict::Reproduced, None));
}

#[test]
fn a_log_that_lacks_a_figure_is_no_failed_round_of_it() {
    let mut one = experiment(vec![axis("way", &[0])], vec![]);
    let made = records(&one, 20, |_, round| match round % 2 {
        0 => done(wobble(round), 10),
        _ => Outcome::Done {
            values: BTreeMap::new(),
            samples: BTreeMap::new(),
            counters: BTreeMap::new(),
        },
    });
    let cell = |one: &Experiment| run_of(one, &made).cells.remove(0);
    let measured = cell(&one);
    assert_eq!((measured.n, measured.ci95), (10, None), "half have failed");
    one.driver = IMPORTED.into();
    let imported = cell(&one);
    assert_eq!((imported.n, imported.median), (10, measured.median));
    assert!(imported.ci95.is_some());
}

#[test]
fn the_claims_and_the_targets_of_a_suite_are_families_of_their_own() {
    let kind = || ratio(&[("way", 1)], &[("way", 0)], AT_LEAST_1);
    let mut experiments = Vec::new();
    let mut all = Vec::new();
    for (id, claims, targets) in [("a/1", 3, 2), ("a/2", 4, 0), ("b/1", 1, 1)] {
        let mut one = experiment(
            vec![axis("way", &[0, 1])],
            (0..claims + targets)
                .map(|_| kind())
                .chain([zero()])
                .collect(),
        );
        one.id = id.into();
        for claim in &mut one.claims[claims..claims + targets] {
            claim.standing = Standing::Target;
        }
        // The last experiment of suite `a` has not begun.
        let made = records(&one, 20, doubled);
        let begun = made.into_iter().filter(|_| id != "a/2");
        all.extend(begun.map(|record| TrialRecord {
            experiment: id.into(),
            ..record
        }));
        experiments.push(one);
    }
    let judged = judge(&experiments, &all, &Judging::default());
    let families: Vec<_> = judged
        .families
        .iter()
        .map(|family| (family.suite.as_str(), family.standing, family.tests))
        .collect();
    use Standing::{Claim, Target};
    assert_eq!(
        families,
        [
            ("a", Claim, 7),
            ("a", Target, 2),
            ("b", Claim, 1),
            ("b", Target, 1)
        ],
        "counts have no p, and what has not begun is counted from the start"
    );
    let factor = |result: &ClaimResult| {
        (result.evidence.p_holm.unwrap() / result.evidence.p.unwrap()).round()
    };
    let [a, _, b] = &judged.experiments[..] else {
        panic!("three experiments")
    };
    assert_eq!((factor(&a.claims[0]), factor(&a.targets[0])), (7.0, 2.0));
    assert_eq!((factor(&b.claims[0]), factor(&b.targets[0])), (1.0, 1.0));
    assert_eq!(a.targets[0].verdict, Verdict::Held);
    assert!(a.decided() && !judged.experiments[1].decided());
}

#[test]
fn a_claim_stays_open_while_the_comparison_that_is_left_can_still_decide_it() {
    // Of two pairs the first is shown in 16 rounds, and half of those that follow speak against it.
    // The second, which is undecided at first, still gains.
    let kind = ratio(&[("way", 1)], &[("way", 0)], AT_LEAST_1);
    let mut one = experiment(
        vec![axis("way", &[0, 1]), axis("size", &[1, 2])],
        vec![kind],
    );
    one.rounds = Rounds {
        least: 10,
        most: 40,
    };
    let outcome = |at: &Point, round: u32| {
        let first = match round {
            0..16 => 2.0,
            _ if round.is_multiple_of(2) => 0.4,
            _ => 2.5,
        };
        let second = match round {
            0..12 => [2.0, 0.5][(round % 2) as usize],
            _ => 2.0,
        };
        match (on(at, "way") as u32, on(at, "size") as u32) {
            (0, _) => done(1.0, 10),
            (_, 1) => done(first, 10),
            _ => done(second, 10),
        }
    };
    let made = records(&one, 40, outcome);
    let after = |rounds: u32| {
        let so_far = made.iter().filter(|record| record.round < rounds);
        run_of(&one, &so_far.cloned().collect::<Vec<_>>())
            .claims
            .remove(0)
    };
    let decided = after(40);
    assert_eq!(decided.verdict, Verdict::Reproduced);
    for rounds in 1..decided.decided_after.unwrap() {
        let claim = after(rounds);
        assert!(claim.open, "{rounds}: {:?}", claim.reason);
    }
}

#[test]
fn deterministic_trials_are_judged_exactly() {
    let mut one = two_ways();
    one.claims
        .push(claim("no", ratio(&[("way", 0)], &[("way", 1)], AT_LEAST_1)));
    one.exact = true;
    let exact = |at: &Point, _: u32| done(1.0 + on(at, "way"), 10);
    for rounds in [1, 24] {
        let result = run_of(&one, &records(&one, rounds, exact));
        assert!(result.exact && result.decided());
        let verdicts = [&result.claims[0], &result.claims[1]].map(|claim| claim.verdict);
        assert_eq!(verdicts, [Verdict::Reproduced, Verdict::NotReproduced]);
        for claim in &result.claims {
            assert_eq!(
                (claim.evidence, claim.ci95),
                (result::Evidence::default(), None)
            );
            assert_eq!((claim.n, &claim.reason), (rounds as usize, &None));
        }
        assert_eq!(result.claims[0].measured, Some(2.0));
        assert!(result.cells.iter().all(|cell| cell.ci95.is_none()));
    }
    let words = |outcome: &dyn Fn(&Point, u32) -> Outcome| {
        let claim = run_of(&one, &records(&one, 3, outcome)).claims.remove(0);
        (claim.verdict, reason(&claim).to_owned())
    };
    let (verdict, reason) = words(&|at, round| match round {
        1 => done(1.0, 10),
        _ => exact(at, round),
    });
    assert_eq!(
        (verdict, reason),
        (
            Verdict::Reproduced,
            "declared deterministic, but the rounds differ: 1 to 2".into()
        )
    );
    let (verdict, reason) = words(&|at, round| match round {
        1 => done(2.0 - on(at, "way"), 10),
        _ => exact(at, round),
    });
    assert_eq!(
        (verdict, reason),
        (
            Verdict::Inconclusive,
            "declared deterministic, but it holds in 2 of 3 rounds".into()
        )
    );
    let (verdict, reason) = words(&|at, round| match (round, on(at, "way")) {
        (1, 1.0) => failed("it hung"),
        _ => exact(at, round),
    });
    assert_eq!(
        (verdict, reason),
        (
            Verdict::Inconclusive,
            "declared deterministic, but 1 of 3 trials of way=1 failed (it hung)".into()
        )
    );
}

/// The readings of a round of two cells: an effect that may change half-way, noise, failures.
fn readings() -> impl Strategy<Value = Vec<Option<f64>>> {
    (-0.1..0.1f64, -0.1..0.1f64, 0.0..0.2f64).prop_flat_map(|(first, second, failing)| {
        let noise = prop::collection::vec((-0.1..0.1f64, prop::bool::weighted(failing)), 60);
        noise.prop_map(move |noise| {
            let effect = |round: usize| if round < 25 { first } else { second };
            noise
                .iter()
                .enumerate()
                .map(|(round, (noise, failed))| (!failed).then(|| (effect(round) + noise).exp()))
                .collect()
        })
    })
}

proptest! {
    #[test]
    fn what_is_decided_is_kept_or_taken_back_and_never_turned_round(pairs in prop::collection::vec(readings(), 1..5)) {
        let pairs_count = pairs.len() as i64;
        let numbers: Vec<i64> = (0..pairs_count).collect();
        let one = experiment(
            vec![axis("pair", &numbers), axis("way", &[0, 1])],
            numbers
                .iter()
                .map(|pair| {
                    let cell = |way| [("pair", *pair), ("way", way)];
                    ratio(&cell(1), &cell(0), AT_LEAST_1)
                })
                .collect(),
        );
        let all = records(&one, 60, |at, round| {
            let reading = pairs[on(at, "pair") as usize][round as usize];
            match (on(at, "way"), reading) {
                (1.0, Some(reading)) => done(reading, 10),
                (1.0, None) => failed("it hung"),
                _ => done(1.0, 10),
            }
        });
        let mut before: Vec<ClaimResult> = Vec::new();
        for rounds in 1..=60 {
            let seen: Vec<_> = all.iter().filter(|r| r.round < rounds).cloned().collect();
            let claims = run_of(&one, &seen).claims;
            for (then, now) in before.iter().zip(&claims) {
                if then.decided_after.is_some() {
                    // Later rounds may contradict a verdict, and never turn it round.
                    let kept = now.verdict == then.verdict;
                    let taken_back = [then, now].map(|claim| claim.verdict).contains(&Verdict::Inconclusive);
                    prop_assert!(kept || taken_back, "{then:?} {now:?}");
                    prop_assert_eq!(then.decided_after, now.decided_after);
                    prop_assert!(!now.open);
                }
                if let (Some(then), Some([low, high])) = (then.ci95, now.ci95) {
                    // It grows for nothing but its own figure.
                    let figure = now.measured.unwrap();
                    let (from, to) = (then[0].min(figure), then[1].max(figure));
                    prop_assert!(from <= low && high <= to, "{then:?} {now:?}");
                    prop_assert!((low..=high).contains(&figure), "{now:?}");
                }
                if let Some([low, high]) = now.ci95 {
                    prop_assert!(now.verdict != Verdict::Reproduced || low >= 1.0, "{now:?}");
                    prop_assert!(now.verdict != Verdict::NotReproduced || high <= 1.0, "{now:?}");
                }
            }
            before = claims;
        }
    }
}
