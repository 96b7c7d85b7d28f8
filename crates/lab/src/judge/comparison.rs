//! One comparison against one threshold: the piece that five of the six kinds of claim are made of.

use super::evidence::Side;
use crate::experiment::Bound;
use crate::stats::{median, Bets, Round};

/// On which side of the threshold the claim wants the figure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Wanted {
    /// At or above it.
    Above,
    /// At or below it.
    Below,
}

/// The scale of a round's figure while it is tested.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Scale {
    /// As its logarithm: ratios, and quantities that are always positive.
    Log,
    /// As it is: slopes, counts, shares.
    Linear,
}

impl Scale {
    /// The figure on this scale.
    pub(super) fn keep(self, figure: f64) -> f64 {
        match self {
            Scale::Log => figure.ln(),
            Scale::Linear => figure,
        }
    }

    /// Back from this scale; finite, as JSON has no infinity.
    pub(super) fn show(self, kept: f64) -> f64 {
        match self {
            Scale::Log => kept.exp().min(f64::MAX),
            Scale::Linear => kept,
        }
    }

    /// An interval back from this scale; `None` if an end is infinite.
    pub(super) fn show_interval(self, ends: [f64; 2]) -> Option<[f64; 2]> {
        let finite = ends.iter().all(|end| end.is_finite());
        finite.then(|| ends.map(|end| self.show(end)))
    }
}

/// A figure by round, and the threshold it must be on one side of.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Comparison {
    /// The cells that are compared, in words.
    pub(super) name: String,
    /// The figure of each round, kept on `scale`.
    pub(super) rounds: Vec<Round>,
    /// The scale of `rounds`.
    pub(super) scale: Scale,
    /// The bets that are fair for the rounds.
    pub(super) bets: Bets,
    /// The threshold, in the claim's own terms.
    pub(super) threshold: f64,
    /// The side that the claim is on.
    pub(super) wanted: Wanted,
}

/// The figures of a comparison over its rounds.
#[derive(Clone, Debug)]
pub(super) struct Measured {
    /// The median over rounds, in the claim's own terms; `None` if every round failed.
    pub(super) effect: Option<f64>,
    /// The distance of the effect on the claim's side, on the scale of the rounds; negative beyond,
    /// and infinitely so without an effect.
    pub(super) margin: f64,
    /// Rounds with a figure.
    pub(super) n: usize,
    /// Rounds of them exactly on the threshold.
    pub(super) ties: usize,
}

impl Comparison {
    /// One comparison for each limit of `bound`, of the same figures.
    pub(super) fn of_bound(
        name: &str,
        rounds: &[Round],
        (scale, bets): (Scale, Bets),
        bound: Bound,
    ) -> Vec<Comparison> {
        let limits = [
            (bound.at_least, Wanted::Above),
            (bound.at_most, Wanted::Below),
        ];
        limits
            .into_iter()
            .filter_map(|(threshold, wanted)| {
                Some(Comparison {
                    name: name.to_owned(),
                    rounds: rounds.to_vec(),
                    scale,
                    bets,
                    threshold: threshold?,
                    wanted,
                })
            })
            .collect()
    }

    /// The signed distance of a figure from the threshold; positive is the claim's side.
    pub(super) fn distance(&self, figure: f64) -> f64 {
        let threshold = self.scale.keep(self.threshold);
        let distance = match self.wanted {
            Wanted::Above => figure - threshold,
            Wanted::Below => threshold - figure,
        };
        // The same division in two roundings is still a tie. Logarithms and slopes have errors of
        // about the same size whatever they are; a figure on its own has those of its unit alone.
        let size = match (self.scale, self.bets) {
            (Scale::Linear, Bets::Signs) => threshold.abs(),
            _ => threshold.abs().max(1.0),
        };
        if distance.abs() <= 1e-12 * size {
            0.0
        } else {
            distance
        }
    }

    /// The signed distance of every round that gave a figure.
    pub(super) fn distances(&self) -> impl Iterator<Item = f64> + '_ {
        self.rounds.iter().filter_map(|round| match round {
            Round::Figure(figure) => Some(self.distance(*figure)),
            Round::Missing | Round::Failed => None,
        })
    }

    /// Measures it.
    pub(super) fn measure(&self) -> Measured {
        let distances: Vec<f64> = self.distances().collect();
        let margin = median(&distances);
        Measured {
            effect: margin.map(|margin| self.figure(margin)),
            margin: margin.unwrap_or(f64::NEG_INFINITY),
            n: distances.len(),
            ties: distances
                .iter()
                .filter(|distance| **distance == 0.0)
                .count(),
        }
    }

    /// Returns true if the median over all rounds is on this side, with each failed round counted
    /// against it.
    ///
    /// A decision is made after some round; rounds that came later may contradict it, where a
    /// program begins to fail, or the machine has changed. The chance of a false verdict only
    /// becomes less by asking for this, too.
    pub(super) fn stands(&self, side: Side) -> bool {
        let distances = self.rounds.iter().filter_map(|round| match (round, side) {
            (Round::Missing, _) => None,
            (Round::Figure(figure), _) => Some(self.distance(*figure)),
            (Round::Failed, Side::Claim) => Some(f64::NEG_INFINITY),
            (Round::Failed, Side::Other) => Some(f64::INFINITY),
        });
        let distances: Vec<f64> = distances.collect();
        median(&distances).is_some_and(|median| match side {
            Side::Claim => median >= 0.0,
            Side::Other => median < 0.0,
        })
    }

    /// The figure at that signed distance from the threshold, in the claim's own terms.
    fn figure(&self, distance: f64) -> f64 {
        let threshold = self.scale.keep(self.threshold);
        self.scale.show(match self.wanted {
            Wanted::Above => threshold + distance,
            Wanted::Below => threshold - distance,
        })
    }
}
