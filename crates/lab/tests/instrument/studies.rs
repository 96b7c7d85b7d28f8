//! The studies: what is run, and what must come of it.

use std::sync::OnceLock;

use tare_lab::experiment::{Bound, ClaimKind};
use tare_lab::result::{ExperimentResult, Verdict};
use tare_lab::synthetic::Noise;
use tare_lab::value::{Point, Selector};

use crate::bench::Limit::{AtLeast, AtMost, Stated};
use crate::bench::{axis, cells, on, only, Bench, Figure, Study};

/// 3 % noise, and nothing else.
const QUIET: Noise = Noise {
    sigma: 0.03,
    drift: 0.0,
    stall_probability: 0.0,
    stall_factor: 1.0,
};

/// 3 % noise on a machine that slows down by a fifth over the run, where one trial in a hundred
/// takes twice as long.
const ROUGH: Noise = Noise {
    sigma: 0.03,
    drift: 0.2,
    stall_probability: 0.01,
    stall_factor: 2.0,
};

const AT_MOST_1: Bound = at_most(1.0);

const fn at_most(limit: f64) -> Bound {
    Bound {
        at_least: None,
        at_most: Some(limit),
    }
}

const fn study(
    test: &'static str,
    runs: u32,
    bench: fn() -> Bench,
    figures: &'static [Figure],
) -> Study {
    Study {
        test,
        runs,
        bench,
        figures,
        measured: OnceLock::new(),
    }
}

const fn figure(
    what: &'static str,
    limit: crate::bench::Limit,
    counts: fn(&ExperimentResult) -> bool,
) -> Figure {
    Figure {
        what,
        counts,
        limit,
    }
}

/// Way 1 against way 0: "at most 1".
fn two_ways(truth: fn(&Point) -> f64, noise: Noise, rounds: u32) -> Bench {
    Bench {
        axes: vec![axis("way", &[0, 1])],
        claims: vec![ClaimKind::Ratio {
            of: cells(&[("way", 1)]),
            to: cells(&[("way", 0)]),
            bound: AT_MOST_1,
        }],
        truth,
        work: |_| 64_000,
        noise,
        rounds,
    }
}

fn same(_: &Point) -> f64 {
    100.0
}

fn slower_by_1(at: &Point) -> f64 {
    100.0 * (1.0 + 0.01 * on(at, "way"))
}

fn slower_by_5(at: &Point) -> f64 {
    100.0 * (1.0 + 0.05 * on(at, "way"))
}

fn slower_by_20(at: &Point) -> f64 {
    100.0 * (1.0 + 0.20 * on(at, "way"))
}

fn called_different(result: &ExperimentResult) -> bool {
    reproduced(result) || refuted(result)
}

fn reproduced(result: &ExperimentResult) -> bool {
    only(result).verdict == Verdict::Reproduced
}

fn refuted(result: &ExperimentResult) -> bool {
    only(result).verdict == Verdict::NotReproduced
}

fn baseline_differs(result: &ExperimentResult) -> bool {
    result.noise[0].p <= 0.05
}

fn contains(interval: Option<[f64; 2]>, truth: f64) -> bool {
    interval.is_some_and(|[low, high]| low <= truth && truth <= high)
}

fn ratio_covered(result: &ExperimentResult) -> bool {
    contains(only(result).ci95, 1.0)
}

fn cell_covered(result: &ExperimentResult) -> bool {
    contains(result.cells[0].ci95, 100.0)
}

const SAME: &str = "the_same_is_not_called_different";
const FOUND: &str = "a_slow_down_is_found";
const ROUGHLY: &str = "a_slow_down_is_found_through_drift_and_stalls";
const TEN: &str = "ten_claims_on_their_thresholds_are_not_judged_falsely";
const EDGE: &str = "a_claim_on_its_threshold_is_not_judged_falsely";
const ROOM: &str = "a_claim_that_holds_with_room_is_reproduced";

pub(crate) static STUDIES: [Study; 22] = [
    study(
        SAME,
        4000,
        || two_ways(same, QUIET, 10),
        &[
            figure(
                "A/A called different, 10 rounds",
                AtMost(0.05),
                called_different,
            ),
            figure(
                "baseline against itself has p ≤ 0.05, 10 rounds",
                AtMost(0.05),
                baseline_differs,
            ),
            figure(
                "interval of the ratio contains the truth, 10 rounds",
                AtLeast(0.94),
                ratio_covered,
            ),
            figure(
                "interval of a cell contains the truth, 10 rounds",
                AtLeast(0.94),
                cell_covered,
            ),
        ],
    ),
    study(
        SAME,
        1000,
        || two_ways(same, QUIET, 8),
        &[
            figure(
                "A/A called different, 8 rounds",
                AtMost(0.05),
                called_different,
            ),
            figure(
                "interval of the ratio contains the truth, 8 rounds",
                AtLeast(0.94),
                ratio_covered,
            ),
        ],
    ),
    study(
        SAME,
        1000,
        || two_ways(same, ROUGH, 10),
        &[
            figure(
                "A/A called different, drift and stalls, 10 rounds",
                AtMost(0.05),
                called_different,
            ),
            figure(
                "interval of the ratio contains the truth, drift and stalls, 10 rounds",
                AtLeast(0.94),
                ratio_covered,
            ),
        ],
    ),
    study(
        FOUND,
        1000,
        || two_ways(slower_by_1, QUIET, 10),
        &[
            figure("slow-down of 1 % found, 10 rounds", Stated, refuted),
            figure(
                "slow-down of 1 % called a speed-up, 10 rounds",
                AtMost(0.05),
                reproduced,
            ),
        ],
    ),
    study(
        FOUND,
        1000,
        || two_ways(slower_by_5, QUIET, 10),
        &[figure(
            "slow-down of 5 % found, 10 rounds",
            AtLeast(0.80),
            refuted,
        )],
    ),
    study(
        FOUND,
        1000,
        || two_ways(slower_by_5, QUIET, 8),
        &[figure("slow-down of 5 % found, 8 rounds", Stated, refuted)],
    ),
    study(
        FOUND,
        1000,
        || two_ways(slower_by_20, QUIET, 10),
        &[figure(
            "slow-down of 20 % found, 10 rounds",
            AtLeast(0.99),
            refuted,
        )],
    ),
    study(
        ROUGHLY,
        1000,
        || two_ways(slower_by_5, ROUGH, 10),
        &[figure(
            "slow-down of 5 % found, drift and stalls, 10 rounds",
            Stated,
            refuted,
        )],
    ),
    study(
        ROUGHLY,
        1000,
        || two_ways(slower_by_5, ROUGH, 12),
        &[figure(
            "slow-down of 5 % found, drift and stalls, 12 rounds",
            AtLeast(0.80),
            refuted,
        )],
    ),
    study(
        ROUGHLY,
        1000,
        || two_ways(slower_by_20, ROUGH, 10),
        &[figure(
            "slow-down of 20 % found, drift and stalls, 10 rounds",
            AtLeast(0.99),
            refuted,
        )],
    ),
    study(
        TEN,
        1000,
        ten_claims,
        &[
            figure(
                "ten claims a hair from their thresholds: any false verdict",
                AtMost(0.05),
                |result| {
                    let (hold, fail) = result.claims.split_at(5);
                    hold.iter()
                        .any(|claim| claim.verdict == Verdict::NotReproduced)
                        || fail
                            .iter()
                            .any(|claim| claim.verdict == Verdict::Reproduced)
                },
            ),
            figure("the same: any verdict at all", AtMost(0.10), |result| {
                result
                    .claims
                    .iter()
                    .any(|claim| claim.verdict != Verdict::Inconclusive)
            }),
        ],
    ),
    study(
        EDGE,
        500,
        || {
            four_pairs(|at| match on(at, "size") {
                3.0 => 100.0,
                _ => 100.0 * (1.0 - 0.5 * on(at, "way")),
            })
        },
        &[figure(
            "ratio, one of four pairs on the threshold: reproduced",
            AtMost(0.05),
            reproduced,
        )],
    ),
    study(
        EDGE,
        1000,
        || four_pairs(same),
        &[
            figure(
                "ratio, four of four pairs on the threshold: reproduced",
                AtMost(0.05),
                reproduced,
            ),
            figure("the same: not reproduced", AtMost(0.05), refuted),
        ],
    ),
    study(
        EDGE,
        500,
        || flat(|at| if on(at, "x") == 2.0 { 110.0 } else { 100.0 }),
        &[
            figure(
                "flat, largest over smallest on the threshold: reproduced",
                AtMost(0.05),
                reproduced,
            ),
            figure("the same: not reproduced", AtMost(0.05), refuted),
        ],
    ),
    study(
        EDGE,
        500,
        || scales(|at| 100.0 * on(at, "threads").powf(0.9)),
        &[
            figure(
                "scales, slope on the threshold: reproduced",
                AtMost(0.05),
                reproduced,
            ),
            figure("the same: not reproduced", AtMost(0.05), refuted),
        ],
    ),
    study(
        EDGE,
        500,
        || order(|at| if on(at, "way") == 1.0 { 50.0 } else { 100.0 }),
        &[
            figure(
                "order, two of three the same: reproduced",
                AtMost(0.05),
                reproduced,
            ),
            figure("the same: not reproduced", AtMost(0.05), refuted),
        ],
    ),
    study(
        ROOM,
        200,
        || four_pairs(|at| 100.0 - 10.0 * on(at, "way")),
        &[figure(
            "ratio, four pairs 10 % within the threshold: reproduced",
            AtLeast(0.95),
            reproduced,
        )],
    ),
    study(
        ROOM,
        200,
        || flat(same),
        &[figure(
            "flat to 1.10, truth 1.00: reproduced",
            AtLeast(0.90),
            reproduced,
        )],
    ),
    study(
        ROOM,
        200,
        || scales(|at| 100.0 * on(at, "threads")),
        &[figure(
            "scales at least 0.9, truth 1.0: reproduced",
            AtLeast(0.95),
            reproduced,
        )],
    ),
    study(
        ROOM,
        200,
        || order(|at| 100.0 * 1.1f64.powf(on(at, "way"))),
        &[figure(
            "order, each 10 % ahead of the next: reproduced",
            AtLeast(0.95),
            reproduced,
        )],
    ),
    study(
        "different_work_is_refused",
        100,
        unequal_work,
        &[figure(
            "work an operation differs by 2 %: refused, no ratio",
            AtLeast(1.0),
            |result| {
                let claim = only(result);
                let reason = claim.reason.as_deref().unwrap_or("");
                claim.verdict == Verdict::NotTestable
                    && claim.measured.is_none()
                    && reason.starts_with("not the same work: way=1 did ")
            },
        )],
    ),
    study(
        "too_few_rounds_give_no_verdict_and_say_how_many_would_do",
        100,
        twenty_claims,
        &[figure(
            "slow-down of 20 %, 20 claims, 8 rounds: inconclusive, names 9 rounds",
            AtLeast(1.0),
            |result| {
                result.claims.iter().all(|claim| {
                    claim.verdict == Verdict::Inconclusive
                        && claim
                            .reason
                            .as_deref()
                            .is_some_and(|reason| reason.ends_with("9 rounds would do: --rounds 9"))
                })
            },
        )],
    ),
];

/// Ten independent claims of "at most 1": five hold, their truth being 1; five do not, by one
/// part in a million.
fn ten_claims() -> Bench {
    let pair = |pair| ClaimKind::Ratio {
        of: cells(&[("pair", pair), ("way", 1)]),
        to: cells(&[("pair", pair), ("way", 0)]),
        bound: AT_MOST_1,
    };
    Bench {
        axes: vec![
            axis("pair", &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]),
            axis("way", &[0, 1]),
        ],
        claims: (0..10).map(pair).collect(),
        truth: |at| match on(at, "pair") {
            pair if pair < 5.0 => 100.0,
            _ => 100.0 + 1e-4 * on(at, "way"),
        },
        work: |_| 64_000,
        noise: QUIET,
        rounds: 10,
    }
}

/// Way 1 against way 0 at four sizes: "at most 1" for each.
fn four_pairs(truth: fn(&Point) -> f64) -> Bench {
    Bench {
        axes: vec![axis("size", &[1, 2, 3, 4]), axis("way", &[0, 1])],
        ..two_ways(truth, QUIET, 10)
    }
}

/// Four cells along `x`: "largest over smallest at most 1.10".
fn flat(truth: fn(&Point) -> f64) -> Bench {
    Bench {
        axes: vec![axis("x", &[1, 2, 3, 4])],
        claims: vec![ClaimKind::Flat {
            over: "x".into(),
            within: Selector::default(),
            at_most: 1.10,
        }],
        ..two_ways(truth, QUIET, 10)
    }
}

/// Four cells along `threads`: "slope at least 0.9".
fn scales(truth: fn(&Point) -> f64) -> Bench {
    Bench {
        axes: vec![axis("threads", &[1, 2, 4, 8])],
        claims: vec![ClaimKind::Scales {
            over: "threads".into(),
            within: Selector::default(),
            up_to: None,
            bound: Bound {
                at_least: Some(0.9),
                at_most: None,
            },
        }],
        ..two_ways(truth, QUIET, 10)
    }
}

/// Three ways from best to worst.
fn order(truth: fn(&Point) -> f64) -> Bench {
    Bench {
        axes: vec![axis("way", &[1, 2, 3])],
        claims: vec![ClaimKind::Order {
            ranked: [1, 2, 3].map(|way| cells(&[("way", way)])).to_vec(),
            margin: 1.0,
        }],
        ..two_ways(truth, QUIET, 10)
    }
}

fn unequal_work() -> Bench {
    Bench {
        work: |at| 64_000 + 1_280 * on(at, "way") as u64,
        ..two_ways(slower_by_20, QUIET, 10)
    }
}

fn twenty_claims() -> Bench {
    let bench = two_ways(slower_by_20, QUIET, 8);
    Bench {
        claims: vec![bench.claims[0].clone(); 20],
        ..bench
    }
}
