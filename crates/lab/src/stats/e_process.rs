//! Evidence that stays valid however often it is looked at: a betting e-process, and the
//! confidence sequence that it carries.
//!
//! A player starts with 1 and bets in every round that the effect lies above a threshold. The
//! round's distance d from the threshold wins or loses a stake by its sign. Where the effect is
//! not above the threshold the game is fair or worse, so the wealth E is a nonnegative
//! supermartingale and the chance that it *ever* reaches 1/α is at most α (Ville, *Étude critique
//! de la notion de collectif*, 1939). So 1 / (the highest E so far) is a p that holds after every
//! round and at whatever round one stops (Shafer, "Testing by betting", Journal of the Royal
//! Statistical Society A, 2021).
//!
//! The stake is unknown, so the wealth is spread over [`STAKES`] of them, between 0 and all of it,
//! in two games at once, of which E is the mean:
//!
//! - *signs*: the round multiplies a stake λ's wealth by 1 + λ·sign(d);
//! - *signed ranks*: by 1 + λ·sign(d)·w. The weight w is twice the rank of |d| among the rounds so
//!   far, as a share, and at most 1: a round close to the threshold weighs little.
//!
//! The second is fair only where d is as likely to be so far above the threshold as so far below.
//! A comparison of two cells of a shuffled round has that symmetry, a figure on its own has not,
//! and plays the first game only. `docs/src/instrument.md` has the whole argument.

/// The number of stakes that share the wealth of a game. 64 decide no earlier.
const STAKES: usize = 16;

/// Wealth from which on a game is over: p is then below any that could matter, and the next round
/// could not be multiplied in for ever.
const ENOUGH: f64 = 1e100;

/// The result of a round for a figure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Round {
    /// It has not run.
    Missing,
    /// It ran and gave no figure, which counts against every hypothesis that is tested.
    Failed,
    /// A figure, not NaN.
    Figure(f64),
}

/// The games that are played.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bets {
    /// Signs only: no symmetry is assumed.
    Signs,
    /// Signs and signed ranks: distances are symmetric where the effect is on the threshold.
    SignsAndRanks,
}

/// The evidence that a figure lies above a threshold.
#[derive(Clone, Debug)]
pub struct EProcess {
    /// The wealth of each stake in the game of signs.
    signs: [f64; STAKES],
    /// The wealth of each stake in the game of signed ranks, where it is played.
    ranks: Option<[f64; STAKES]>,
    /// The sizes of the distances so far, sorted.
    sizes: Vec<f64>,
    now: f64,
    highest: f64,
}

/// A stake: the middle of one of equal parts of (0, 1).
fn stake(index: usize) -> f64 {
    (index as f64 + 0.5) / STAKES as f64
}

impl EProcess {
    /// No evidence yet.
    pub fn new(bets: Bets) -> Self {
        EProcess {
            signs: [1.0; STAKES],
            ranks: (bets == Bets::SignsAndRanks).then_some([1.0; STAKES]),
            sizes: Vec::new(),
            now: 1.0,
            highest: 1.0,
        }
    }

    /// Takes a round in: its distance above the threshold, negative below it and 0 on it, not NaN.
    /// A failed round is infinitely far below.
    pub fn add(&mut self, distance: f64) {
        if self.highest >= ENOUGH {
            return;
        }
        let size = distance.abs();
        let sign = match distance {
            d if d > 0.0 => 1.0,
            d if d < 0.0 => -1.0,
            _ => 0.0,
        };
        for (index, wealth) in self.signs.iter_mut().enumerate() {
            *wealth *= 1.0 + stake(index) * sign;
        }
        let mut now = mean(&self.signs);
        if let Some(ranks) = &mut self.ranks {
            // Rank among the rounds up to this one only: what comes later must not change a bet.
            let place = self.sizes.partition_point(|other| *other <= size);
            self.sizes.insert(place, size);
            let share = (place as f64 + 0.5) / self.sizes.len() as f64;
            let weighed = sign * (2.0 * share).min(1.0);
            for (index, wealth) in ranks.iter_mut().enumerate() {
                *wealth *= 1.0 + stake(index) * weighed;
            }
            now = (now + mean(ranks)) / 2.0;
        }
        self.now = now;
        self.highest = self.highest.max(now);
    }

    /// The evidence after the last round.
    pub fn now(&self) -> f64 {
        self.now
    }

    /// The most evidence that there was after any round.
    pub fn highest(&self) -> f64 {
        self.highest
    }

    /// The p of "not above the threshold", valid after every round.
    pub fn p(&self) -> f64 {
        1.0 / self.highest
    }

    /// About how many rounds like the `rounds` so far it takes to reach `target`; `None` if the
    /// evidence has not grown by more than chance makes it grow.
    pub fn rounds_to(&self, target: f64, rounds: usize) -> Option<f64> {
        // Once enough rounds are in, one stake holds most of the wealth and E grows as it does.
        let best = self.all().fold(0.0, f64::max);
        let growth = best.ln() / rounds as f64;
        // Of fair rounds, the best stake in hindsight reaches e in about one run of six.
        (best.ln() > 1.0).then(|| (target.ln() + (best / self.now).ln()) / growth)
    }

    /// Returns the evidence after `rounds` more rounds if all of them supported it.
    pub fn at_best_after(&self, rounds: u32) -> f64 {
        // After some hundred undecided rounds a large stake has lost all. It wins nothing back, and
        // nothing times a gain beyond every number would be NaN.
        let left = self.all().enumerate().filter(|(_, wealth)| *wealth > 0.0);
        let most = left.map(|(index, wealth)| {
            let rounds = i32::try_from(rounds).unwrap_or(i32::MAX);
            wealth * (1.0 + stake(index % STAKES)).powi(rounds)
        });
        let games = if self.ranks.is_some() { 2 } else { 1 };
        most.sum::<f64>() / (games * STAKES) as f64
    }

    fn all(&self) -> impl Iterator<Item = f64> + '_ {
        self.signs
            .iter()
            .chain(self.ranks.iter().flatten())
            .copied()
    }
}

fn mean(wealth: &[f64; STAKES]) -> f64 {
    // Four sums, so that an addition need not wait for the one before: a study of the judge spent
    // 30 % of its time in `add`.
    let sums = wealth.chunks_exact(4).fold([0.0; 4], |sums, part| {
        std::array::from_fn(|lane| sums[lane] + part[lane])
    });
    sums.iter().sum::<f64>() / STAKES as f64
}

/// The confidence sequence of the figure in `rounds` after the last of them: with a chance of at
/// least `level`, every one of these intervals, round after round, contains the truth. An end may
/// be infinite: too few rounds, or too many that failed.
///
/// A threshold is in the interval unless there has ever been evidence of 2 / (1 − level) that the
/// figure lies above it, or below it. An interval therefore never grows from a round to the next. A
/// failed round is lower than any figure for the lower end, and higher for the upper.
pub fn confidence_sequence(rounds: &[Round], bets: Bets, level: f64) -> [f64; 2] {
    let target = 2.0 / (1.0 - level);
    let ends = |rounds: &[Round]| {
        let end = |sign: f64| {
            let figures = rounds.iter().filter_map(|round| match round {
                Round::Missing => None,
                Round::Failed => Some(None),
                Round::Figure(figure) => Some(Some(sign * figure)),
            });
            sign * lower_end(&figures.collect::<Vec<_>>(), bets, target)
        };
        [end(1.0), end(-1.0)]
    };
    let [low, high] = ends(rounds);
    if low <= high {
        return [low, high];
    }
    // The rounds contradict one another, as they do where the machine changes half-way, and rule
    // out every threshold. What they said before they did is kept.
    let lengths: Vec<usize> = (1..=rounds.len()).collect();
    let sound = lengths.partition_point(|length| {
        let [low, high] = ends(&rounds[..*length]);
        low <= high
    });
    ends(&rounds[..sound])
}

/// The highest threshold that `figures` have been shown to lie above; `None` is a failed round.
///
/// The evidence falls as the threshold rises, round by round, and changes only where the threshold
/// passes a figure or the middle of two. So the end is one of those, found by bisection.
fn lower_end(figures: &[Option<f64>], bets: Bets, target: f64) -> f64 {
    let shown = |threshold: f64| {
        let mut evidence = EProcess::new(bets);
        figures.iter().any(|figure| {
            evidence.add(figure.map_or(f64::NEG_INFINITY, |figure| figure - threshold));
            evidence.highest() >= target
        })
    };
    let mut sorted: Vec<f64> = figures.iter().flatten().copied().collect();
    sorted.sort_unstable_by(f64::total_cmp);
    sorted.dedup();
    // The end lies at or above the last figure that is shown, and not above the next.
    let next = sorted.partition_point(|figure| shown(*figure));
    let Some(&above) = sorted.get(next) else {
        return sorted.last().copied().unwrap_or(f64::NEG_INFINITY);
    };
    let below = next.checked_sub(1).map(|last| sorted[last]);
    let mut ends = vec![above];
    if let (Bets::SignsAndRanks, Some(below)) = (bets, below) {
        let mut upper = sorted.len();
        for &low in &sorted[..next] {
            while upper > next && (low + sorted[upper - 1]) / 2.0 >= above {
                upper -= 1;
            }
            let middles = sorted[next..upper].iter().map(|high| (low + high) / 2.0);
            ends.extend(middles.filter(|middle| *middle > below));
        }
        ends.sort_unstable_by(f64::total_cmp);
        ends.dedup();
    }
    let before = below.unwrap_or(f64::NEG_INFINITY);
    let count = ends.len();
    let at = |index: usize| {
        let left = match index.checked_sub(1) {
            Some(index) => ends[index],
            None if before.is_finite() => before,
            // Below every figure the threshold makes no difference but by its own size.
            None => ends[index] - ends[index].abs().max(1.0),
        };
        left + (ends[index] - left) / 2.0
    };
    let places: Vec<usize> = (0..count).collect();
    match places.partition_point(|index| shown(at(*index))) {
        0 => before,
        shown => ends[shown - 1],
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn evidence(distances: &[f64], bets: Bets) -> EProcess {
        let mut evidence = EProcess::new(bets);
        distances.iter().for_each(|d| evidence.add(*d));
        evidence
    }

    fn figures(values: &[f64]) -> Vec<Round> {
        values.iter().copied().map(Round::Figure).collect()
    }

    #[test]
    fn the_wealth_of_a_few_rounds_is_the_worked_example() {
        // Two rounds above: the mean of (1 + λ)² over stakes from 0 to 1 is 7/3, and of
        // (1 + λ)(1 − λ) after one above and one below 2/3, but for the steps between the stakes.
        assert!((evidence(&[1.0, 2.0], Bets::Signs).now() - 7.0 / 3.0).abs() < 1e-3);
        assert!((evidence(&[1.0, -2.0], Bets::Signs).now() - 2.0 / 3.0).abs() < 1e-3);
        assert_eq!(evidence(&[0.0, 0.0], Bets::SignsAndRanks).now(), 1.0);
        // The smaller of two rounds comes second: its rank is 1 of 2, its weight one half, and
        // the mean of (1 + λ)(1 + λ/2) is 1 + 3/4 + 1/6.
        let ranked = evidence(&[2.0, 1.0], Bets::SignsAndRanks).now();
        assert!(
            (ranked - (7.0 / 3.0 + 23.0 / 12.0) / 2.0).abs() < 1e-3,
            "{ranked}"
        );
    }

    #[test]
    fn unanimous_rounds_decide_after_seven_alone_and_thirteen_among_thirty_six() {
        let reached = |target: f64| {
            let mut evidence = EProcess::new(Bets::Signs);
            (1..).find(|_| {
                evidence.add(1.0);
                evidence.highest() >= target
            })
        };
        assert_eq!(reached(20.0), Some(7));
        assert_eq!(reached(36.0 * 20.0), Some(13));
    }

    #[test]
    fn what_was_reached_is_kept_and_more_than_enough_stays_a_number() {
        let mut distances = vec![1.0; 10];
        distances.extend([-1.0; 20]);
        let evidence = evidence(&distances, Bets::SignsAndRanks);
        assert!(evidence.p() < 0.02 && evidence.now() < 1.0);
        let mut endless = EProcess::new(Bets::SignsAndRanks);
        (0..5_000).for_each(|_| endless.add(1.0));
        assert!(endless.p() > 0.0 && endless.p() <= 1e-100);
    }

    #[test]
    fn a_stake_that_has_lost_all_does_not_end_the_games_of_the_others() {
        for bets in [Bets::Signs, Bets::SignsAndRanks] {
            let mut evidence = EProcess::new(bets);
            (0..300).for_each(|_| [1.0, -1.0].iter().for_each(|d| evidence.add(*d)));
            assert!(evidence.all().any(|wealth| wealth == 0.0));
            assert!(evidence.at_best_after(9_400) > 1e100, "{bets:?}");
            assert!(evidence.at_best_after(10) < 1.0, "{bets:?}");
        }
    }

    #[test]
    fn values_without_variance_give_an_interval_without_width_from_nine_on() {
        let interval = |n: usize| confidence_sequence(&figures(&vec![3.5; n]), Bets::Signs, 0.95);
        assert_eq!(interval(7), [f64::NEG_INFINITY, f64::INFINITY]);
        assert_eq!(interval(9), [3.5, 3.5]);
    }

    #[test]
    fn one_stall_does_not_reach_the_interval_and_many_failures_leave_it_open() {
        let mut values: Vec<f64> = (0..24).map(|i| 1.0 + 0.01 * f64::from(i * 7 % 5)).collect();
        values[3] = 40.0;
        let mut rounds = figures(&values);
        let [_, upper] = confidence_sequence(&rounds, Bets::SignsAndRanks, 0.95);
        assert!(upper < 1.05, "{upper}");
        rounds[3] = Round::Failed;
        let [_, upper] = confidence_sequence(&rounds, Bets::SignsAndRanks, 0.95);
        assert!(
            upper < 1.05,
            "a failure counts no more than a stall: {upper}"
        );
        for round in rounds.iter_mut().step_by(2) {
            *round = Round::Failed;
        }
        let open = [f64::NEG_INFINITY, f64::INFINITY];
        assert_eq!(
            confidence_sequence(&rounds, Bets::SignsAndRanks, 0.95),
            open
        );
    }

    fn any_rounds() -> impl Strategy<Value = Vec<Round>> {
        let round = prop_oneof![
            1 => Just(Round::Missing),
            1 => Just(Round::Failed),
            10 => (-1e3..1e3f64).prop_map(Round::Figure),
            4 => (-3..3i32).prop_map(|whole| Round::Figure(f64::from(whole))),
        ];
        prop::collection::vec(round, 0..50)
    }

    proptest! {
        #[test]
        fn a_threshold_is_in_the_interval_unless_there_was_evidence_against_it(
            rounds in any_rounds(),
            ranked: bool,
            place in 0.0..1.0f64,
        ) {
            let bets = if ranked { Bets::SignsAndRanks } else { Bets::Signs };
            let [low, high] = confidence_sequence(&rounds, bets, 0.95);
            let at = |place: f64| {
                let spread = low.max(-2e3)..high.min(2e3);
                spread.start + place * (spread.end - spread.start)
            };
            let against = |threshold: f64, sign: f64| {
                let mut evidence = EProcess::new(bets);
                for round in &rounds {
                    match round {
                        Round::Missing => {}
                        Round::Failed => evidence.add(f64::NEG_INFINITY),
                        Round::Figure(figure) => evidence.add(sign * (figure - threshold)),
                    }
                }
                evidence.p() <= 0.025
            };
            let inside = at(0.001 + 0.998 * place);
            prop_assert!(high <= low || !against(inside, 1.0) && !against(inside, -1.0));
            prop_assert!(low == f64::NEG_INFINITY || against(low - 0.001, 1.0));
            prop_assert!(high == f64::INFINITY || against(high + 0.001, -1.0));
        }

        #[test]
        fn the_interval_never_grows_and_moves_with_the_values(
            rounds in any_rounds(),
            scale in 0.01..100.0f64,
            shift in -1e3..1e3f64,
        ) {
            let whole = confidence_sequence(&rounds, Bets::SignsAndRanks, 0.95);
            let part = confidence_sequence(&rounds[..rounds.len() / 2], Bets::SignsAndRanks, 0.95);
            prop_assert!(part[0] <= whole[0] && whole[1] <= part[1]);
            let moved: Vec<Round> = rounds
                .iter()
                .map(|round| match round {
                    Round::Figure(figure) => Round::Figure(figure * scale + shift),
                    other => *other,
                })
                .collect();
            let moved = confidence_sequence(&moved, Bets::SignsAndRanks, 0.95);
            for (moved, end) in moved.into_iter().zip(whole) {
                let expected = end * scale + shift;
                prop_assert!(moved == expected || (moved - expected).abs() < 1e-6);
            }
        }

        #[test]
        fn a_failed_round_never_helps(
            distances in prop::collection::vec(-1.0..1.0f64, 1..40),
            at in 0..40usize,
        ) {
            let mut failed = distances.clone();
            failed[at % distances.len()] = f64::NEG_INFINITY;
            let [whole, failed] = [&distances, &failed].map(|d| evidence(d, Bets::Signs).highest());
            prop_assert!(failed <= whole);
        }
    }
}
