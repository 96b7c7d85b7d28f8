//! The studies: what is run, and what must come of it.

use std::sync::{LazyLock, OnceLock};

use tare_lab::experiment::{Bound, ClaimKind};
use tare_lab::result::Verdict;
use tare_lab::synthetic::Noise;
use tare_lab::value::{Point, Selector};

use crate::bench::Limit::{AtLeast, AtMost, Never, Stated};
use crate::bench::{axis, cells, on, Bench, Fails, Figure, Limit, Of, Run, Study};
use crate::fixed;

/// 3 % noise, and nothing else.
pub(crate) const QUIET: Noise = Noise {
    sigma: 0.03,
    ..Noise::NONE
};

/// A machine that also slows down by a fifth over the run, where one trial in a hundred takes
/// twice as long.
const ROUGH: Noise = Noise {
    drift: 0.2,
    stall_probability: 0.01,
    stall_factor: 2.0,
    ..QUIET
};

/// Noise that lasts for a trial or two.
const SHORT_MEMORY: Noise = Noise {
    correlation: 0.5,
    ..QUIET
};

/// Noise that lasts for some twenty trials, which is seven rounds of three.
const LONG_MEMORY: Noise = Noise {
    correlation: 0.95,
    ..QUIET
};

/// A neighbour that takes half of the machine for ten rounds of three trials, three times per run.
const BURSTS: Noise = Noise {
    burst_probability: 0.017,
    burst_length: 30,
    burst_factor: 2.0,
    ..SHORT_MEMORY
};

const NOISES: [(&str, Noise); 5] = [
    ("3 % noise", QUIET),
    ("drift and stalls", ROUGH),
    ("correlation 0.5", SHORT_MEMORY),
    ("correlation 0.95", LONG_MEMORY),
    ("bursts over ten rounds", BURSTS),
];

/// Runs of a study.
const RUNS: u32 = 4_000;

/// Claims of a suite: about as many as those that come with Tare have.
const SUITE: usize = 12;

/// Claims of all suites together.
const MANY: usize = 36;

const AT_MOST_1: Bound = at_most(1.0);

const fn at_most(limit: f64) -> Bound {
    Bound {
        at_least: None,
        at_most: Some(limit),
    }
}

fn share(what: &str, limit: Limit, counts: fn(&Run) -> bool) -> Figure {
    Figure {
        what: what.to_owned(),
        of: Of::Share(counts),
        limit,
    }
}

fn share_at_end(what: &str, limit: Limit, counts: fn(&Run) -> bool) -> Figure {
    Figure {
        of: Of::ShareAtEnd(counts),
        ..share(what, limit, counts)
    }
}

fn rounds(what: &str, share: f64, limit: Limit) -> Figure {
    Figure {
        what: what.to_owned(),
        of: Of::Rounds(share),
        limit,
    }
}

/// Way 1 against way 0: "at most 1".
pub(crate) fn two_ways(truth: fn(&Point) -> f64, noise: Noise) -> Bench {
    Bench {
        axes: vec![axis("way", &[0, 1])],
        claims: vec![ClaimKind::Ratio {
            of: cells(&[("way", 1)]),
            to: cells(&[("way", 0)]),
            bound: AT_MOST_1,
        }],
        beside: 0,
        truth,
        work: |_| 64_000,
        noise,
        fails: Fails::Never,
    }
}

pub(crate) fn same(_: &Point) -> f64 {
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

fn faster_by_20(at: &Point) -> f64 {
    100.0 / (1.0 + 0.20 * on(at, "way"))
}

fn called_different(run: &Run) -> bool {
    reproduced(run) || refuted(run)
}

fn reproduced(run: &Run) -> bool {
    run.only().verdict == Verdict::Reproduced
}

fn refuted(run: &Run) -> bool {
    run.only().verdict == Verdict::NotReproduced
}

fn baseline_differs(run: &Run) -> bool {
    run.end.noise[0].p <= 0.05
}

fn contains(interval: Option<[f64; 2]>, truth: f64) -> bool {
    // Without an interval nothing false is said.
    interval.is_none_or(|[low, high]| low <= truth && truth <= high)
}

fn ratio_covered<const PER_CENT: i32>(run: &Run) -> bool {
    contains(run.only().ci95, 1.0 + f64::from(PER_CENT) / 100.0)
}

fn cell_covered(run: &Run) -> bool {
    contains(run.stop.cells[0].ci95, 100.0)
}

const SAME: &str = "the_same_is_not_called_different";
const FOUND: &str = "a_slow_down_is_found_and_not_called_a_speed_up";
const HOLE: &str = "failed_trials_give_no_false_verdict";
const TEN: &str = "ten_claims_on_their_thresholds_are_not_judged_falsely";
const EDGE: &str = "a_claim_on_its_threshold_is_not_judged_falsely";
const ROOM: &str = "a_claim_that_holds_with_room_is_reproduced";
const WORK: &str = "different_work_is_refused";

pub(crate) static STUDIES: LazyLock<Vec<Study>> = LazyLock::new(|| {
    let mut all = Vec::new();
    the_same(&mut all);
    slow_downs(&mut all);
    failures(&mut all);
    thresholds(&mut all);
    all
});

fn study(all: &mut Vec<Study>, test: &'static str, bench: Bench, figures: Vec<Figure>) {
    all.push(Study {
        test,
        runs: RUNS,
        bench,
        figures,
        measured: OnceLock::new(),
    });
}

/// Two ways that are the same.
fn the_same(all: &mut Vec<Study>) {
    for (name, noise) in NOISES {
        let mut figures = vec![
            share(
                &format!("A/A called different, {name}"),
                AtMost(0.05),
                called_different,
            ),
            share(
                &format!("interval of the ratio at the stop contains the truth, {name}"),
                AtLeast(0.95),
                ratio_covered::<0>,
            ),
        ];
        // Only independent rounds carry the interval of a cell on its own.
        let limit = if noise == QUIET {
            AtLeast(0.95)
        } else {
            Stated
        };
        figures.push(share(
            &format!("interval of a cell at the stop contains the truth, {name}"),
            limit,
            cell_covered,
        ));
        if noise == QUIET {
            figures.push(share_at_end(
                "baseline against itself has p ≤ 0.05 after 60 rounds",
                AtMost(0.05),
                baseline_differs,
            ));
        }
        study(all, SAME, two_ways(same, noise), figures);
    }
    let mut lone = two_ways(same, LONG_MEMORY);
    lone.claims = vec![ClaimKind::Value {
        of: cells(&[("way", 0)]),
        bound: at_most(100.0),
    }];
    let called = share(
        "a `value` on its threshold judged either way, correlation 0.95",
        Stated,
        called_different,
    );
    study(all, SAME, lone, vec![called]);
}

/// Way 1 is slower; the claim says that it is not.
fn slow_downs(all: &mut Vec<Study>) {
    let mut slow_down = |per_cent, truth: fn(&Point) -> f64, covered: fn(&Run) -> bool| {
        for (name, noise) in NOISES {
            let bench = Bench {
                beside: SUITE - 1,
                ..two_ways(truth, noise)
            };
            let what = format!("slow-down of {per_cent} % among {SUITE} claims, {name}");
            let mut figures = vec![
                share(&format!("{what}: found"), Stated, refuted),
                // 1 % in 3 % noise has the wrong sign in four rounds of ten.
                share(&format!("{what}: called a speed-up"), Never, reproduced),
            ];
            if per_cent == 5 {
                let what = format!("{what}: interval at the stop contains the truth");
                figures.push(share(&what, AtLeast(0.95), covered));
            }
            if noise == QUIET && per_cent > 1 {
                figures.extend(time_to_verdict(&what, per_cent, fixed::finds::<SUITE>));
            }
            study(all, FOUND, bench, figures);
        }
    };
    slow_down(1, slower_by_1, ratio_covered::<1>);
    slow_down(5, slower_by_5, ratio_covered::<5>);
    slow_down(20, slower_by_20, ratio_covered::<20>);
    let figures = vec![
        share("slow-down of 1 %, one claim: found", Stated, refuted),
        share(
            "slow-down of 1 %, one claim: called a speed-up",
            Never,
            reproduced,
        ),
    ];
    study(all, FOUND, two_ways(slower_by_1, QUIET), figures);
    for (name, noise) in NOISES {
        let bench = Bench {
            beside: MANY - 1,
            ..two_ways(slower_by_1, noise)
        };
        let what = format!("slow-down of 1 % among {MANY} claims, {name}: called a speed-up");
        study(all, FOUND, bench, vec![share(&what, Never, reproduced)]);
    }
    for (claims, fixed_finds) in [
        (1, fixed::finds::<1> as fn(&Run) -> bool),
        (MANY, fixed::finds::<MANY>),
    ] {
        for (per_cent, truth) in [(5, slower_by_5 as fn(&Point) -> f64), (20, slower_by_20)] {
            let bench = Bench {
                beside: claims - 1,
                ..two_ways(truth, QUIET)
            };
            let what = match claims {
                1 => format!("slow-down of {per_cent} %, one claim"),
                _ => format!("slow-down of {per_cent} % among {claims} claims"),
            };
            let figures = time_to_verdict(&what, per_cent, fixed_finds);
            study(all, FOUND, bench, figures);
        }
    }
}

/// The rounds that a slow-down takes to be found, and how often the plan before this one found it.
fn time_to_verdict(what: &str, per_cent: u32, fixed_finds: fn(&Run) -> bool) -> Vec<Figure> {
    let (half, most) = match per_cent {
        20 => (AtMost(15.0), AtMost(16.0)),
        _ => (AtMost(24.0), AtMost(40.0)),
    };
    vec![
        rounds(&format!("{what}: decided in half of the runs"), 0.5, half),
        rounds(&format!("{what}: decided in nine of ten"), 0.9, most),
        share(&format!("{what}: called a speed-up"), Never, reproduced),
        share(
            &format!("{what}: found by the plan before this one, always 24 rounds"),
            Stated,
            fixed_finds,
        ),
    ]
}

/// Way 1 does not always come back. The claim says that it takes no longer.
fn failures(all: &mut Vec<Study>) {
    let verdicts = |what: String, reproduced_limit, refuted_limit| {
        vec![
            share(&format!("{what}: reproduced"), reproduced_limit, reproduced),
            share(&format!("{what}: not reproduced"), refuted_limit, refuted),
        ]
    };
    for per_cent in [5, 10, 20, 45, 55, 65] {
        for (rest, truth) in [
            ("as fast", same as fn(&Point) -> f64),
            ("20 % faster", faster_by_20),
        ] {
            let bench = Bench {
                fails: Fails::Sometimes(f64::from(per_cent) / 100.0),
                ..two_ways(truth, QUIET)
            };
            let what = format!("\"takes no longer\", {per_cent} % of calls stall, the rest {rest}");
            // A program that is faster in most rounds takes no longer; one that stalls in most
            // does.
            let limit = match (per_cent, rest) {
                (5 | 10, "20 % faster") => AtLeast(0.99),
                (20 | 45, "20 % faster") => Stated,
                (_, "20 % faster") => Never,
                _ => AtMost(0.025),
            };
            let refuted = if rest == "as fast" {
                AtMost(0.025)
            } else {
                Never
            };
            study(all, HOLE, bench, verdicts(what, limit, refuted));
        }
    }
    for per_cent in [55, 65] {
        let bench = Bench {
            beside: SUITE - 1,
            fails: Fails::Sometimes(f64::from(per_cent) / 100.0),
            ..two_ways(faster_by_20, QUIET)
        };
        let what = format!(
            "\"takes no longer\" among {SUITE} claims, {per_cent} % of calls stall, the rest 20 % \
             faster"
        );
        study(all, HOLE, bench, verdicts(what, Never, Never));
    }
    for (what, fails) in [
        ("its slower half is killed", Fails::Longer(100.0)),
        ("its slowest fifth is killed", Fails::Longer(102.56)),
        ("its faster half is lost", Fails::Shorter(100.0)),
        ("its fastest fifth is lost", Fails::Shorter(97.51)),
    ] {
        for (name, noise) in [("3 % noise", QUIET), ("correlation 0.95", LONG_MEMORY)] {
            let bench = Bench {
                fails,
                ..two_ways(same, noise)
            };
            let what = format!("\"takes no longer\", the same but {what}, {name}");
            study(all, HOLE, bench, verdicts(what, AtMost(0.05), AtMost(0.05)));
        }
    }
}

/// Claims of every kind, on their thresholds and well away from them.
fn thresholds(all: &mut Vec<Study>) {
    let falsely = |run: &Run| {
        let (hold, fail) = run.stop.claims.split_at(5);
        let refuted =
            |claim: &tare_lab::result::ClaimResult| claim.verdict == Verdict::NotReproduced;
        let reproduced =
            |claim: &tare_lab::result::ClaimResult| claim.verdict == Verdict::Reproduced;
        hold.iter().any(refuted) || fail.iter().any(reproduced)
    };
    let at_all = |run: &Run| {
        let mut claims = run.stop.claims.iter();
        claims.any(|claim| claim.verdict != Verdict::Inconclusive)
    };
    let ten = "ten claims a hair from their thresholds";
    let figures = vec![
        share(&format!("{ten}: any false verdict"), AtMost(0.05), falsely),
        share(&format!("{ten}: any verdict at all"), AtMost(0.10), at_all),
    ];
    study(all, TEN, ten_claims(), figures);

    let edge = |what: &str| {
        vec![
            share(&format!("{what}: reproduced"), AtMost(0.05), reproduced),
            share(&format!("{what}: not reproduced"), AtMost(0.05), refuted),
        ]
    };
    let one_of_four = four_pairs(|at| match on(at, "size") {
        3.0 => 100.0,
        _ => 100.0 * (1.0 - 0.5 * on(at, "way")),
    });
    study(
        all,
        EDGE,
        one_of_four,
        edge("ratio, one of four pairs on the threshold"),
    );
    study(
        all,
        EDGE,
        four_pairs(same),
        edge("ratio, four of four pairs on the threshold"),
    );
    let bump = flat(|at| if on(at, "x") == 2.0 { 110.0 } else { 100.0 });
    study(
        all,
        EDGE,
        bump,
        edge("flat, largest over smallest on the threshold"),
    );
    let slope = scales(|at| 100.0 * on(at, "threads").powf(0.9));
    study(all, EDGE, slope, edge("scales, slope on the threshold"));
    let two_of_three = order(|at| if on(at, "way") == 1.0 { 50.0 } else { 100.0 });
    study(
        all,
        EDGE,
        two_of_three,
        edge("order, two of three the same"),
    );

    let room = |what: &str| {
        vec![
            share(&format!("{what}: reproduced"), AtLeast(0.99), reproduced),
            share(&format!("{what}: not reproduced"), Never, refuted),
            rounds(&format!("{what}: in nine of ten runs"), 0.9, AtMost(24.0)),
        ]
    };
    let pairs = four_pairs(|at| 100.0 - 10.0 * on(at, "way"));
    study(
        all,
        ROOM,
        pairs,
        room("ratio, four pairs 10 % within the threshold"),
    );
    study(all, ROOM, flat(same), room("flat to 1.10, truth 1.00"));
    let line = scales(|at| 100.0 * on(at, "threads"));
    study(all, ROOM, line, room("scales at least 0.9, truth 1.0"));
    let ahead = order(|at| 100.0 * 1.1f64.powf(on(at, "way")));
    study(all, ROOM, ahead, room("order, each 10 % ahead of the next"));
    let unequal = Bench {
        work: |at| 64_000 + 1_280 * on(at, "way") as u64,
        ..two_ways(slower_by_20, QUIET)
    };
    let refused = |run: &Run| {
        let claim = run.only();
        let reason = claim.reason.as_deref().unwrap_or("");
        claim.verdict == Verdict::NotTestable
            && claim.measured.is_none()
            && reason.starts_with("not the same work: way=1 did ")
    };
    let what = "work per operation differs by 2 %: refused, no ratio";
    study(all, WORK, unequal, vec![share(what, AtLeast(1.0), refused)]);
}

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
        ..two_ways(
            |at| match on(at, "pair") {
                pair if pair < 5.0 => 100.0,
                _ => 100.0 + 1e-4 * on(at, "way"),
            },
            QUIET,
        )
    }
}

/// Way 1 against way 0 at four sizes: "at most 1" for each.
fn four_pairs(truth: fn(&Point) -> f64) -> Bench {
    Bench {
        axes: vec![axis("size", &[1, 2, 3, 4]), axis("way", &[0, 1])],
        ..two_ways(truth, QUIET)
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
        ..two_ways(truth, QUIET)
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
        ..two_ways(truth, QUIET)
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
        ..two_ways(truth, QUIET)
    }
}
