//! One comparison against one threshold: the piece that five of the six kinds of claim are made of.

use crate::experiment::Bound;
use crate::stats::{interval, interval_limits, median, sign_flip, SignFlip};

/// On which side of the threshold the claim wants the figure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Wanted {
    /// At or above it.
    Above,
    /// At or below it.
    Below,
}

/// How a round's figure is kept while it is tested.
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
}

/// A figure by round, and the threshold it must be on one side of.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Comparison {
    /// What is compared, in words.
    pub(super) name: String,
    /// The figure of each round, kept on `scale`.
    pub(super) rounds: Vec<Option<f64>>,
    /// The scale of `rounds`.
    pub(super) scale: Scale,
    /// The threshold, in the claim's own terms.
    pub(super) threshold: f64,
    /// The side that the claim is on.
    pub(super) wanted: Wanted,
}

/// A comparison, measured and tested.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Measured {
    /// The median over rounds, in the claim's own terms.
    pub(super) effect: f64,
    /// How far the effect is on the claim's side, on the scale of the rounds; negative beyond.
    pub(super) margin: f64,
    /// The signed distance of each round from the threshold; positive is the claim's side.
    pub(super) distances: Vec<Option<f64>>,
    /// The p of both directions; `above` is the claim's.
    pub(super) p: SignFlip,
    /// Rounds with a figure.
    pub(super) n: usize,
}

/// The 95 % interval of a comparison's effect.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Interval {
    /// Its ends, in the claim's own terms.
    pub(super) ci95: [f64; 2],
    /// Where it lies.
    pub(super) side: Side,
}

/// Where an interval lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    /// Wholly on the claim's side; the threshold itself belongs to it.
    Claim,
    /// Wholly on the other side.
    Other,
    /// On both.
    Both,
}

impl Comparison {
    /// One comparison for each limit of `bound`, of the same figures.
    pub(super) fn of_bound(
        name: &str,
        rounds: &[Option<f64>],
        scale: Scale,
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
                    threshold: threshold?,
                    wanted,
                })
            })
            .collect()
    }

    /// Measures and tests it; `None` without a round.
    pub(super) fn measure(&self) -> Option<Measured> {
        let threshold = self.scale.keep(self.threshold);
        // The same division in two roundings is still a tie.
        let tie = 1e-12 * threshold.abs().max(1.0);
        let distance = |figure: f64| {
            let distance = match self.wanted {
                Wanted::Above => figure - threshold,
                Wanted::Below => threshold - figure,
            };
            if distance.abs() <= tie {
                0.0
            } else {
                distance
            }
        };
        let distances: Vec<Option<f64>> = self
            .rounds
            .iter()
            .map(|figure| figure.map(distance))
            .collect();
        let present: Vec<f64> = distances.iter().flatten().copied().collect();
        let margin = median(&present)?;
        Some(Measured {
            effect: self.figure(margin),
            margin,
            p: sign_flip(&present),
            n: present.len(),
            distances,
        })
    }

    /// The interval of what was `measured`; `None` below two rounds.
    pub(super) fn interval(&self, measured: &Measured, seed: u64) -> Option<Interval> {
        let present: Vec<f64> = measured.distances.iter().flatten().copied().collect();
        let [low, high] = interval(&present, seed)?;
        Some(Interval {
            ci95: match self.wanted {
                Wanted::Above => [self.figure(low), self.figure(high)],
                Wanted::Below => [self.figure(high), self.figure(low)],
            },
            side: if low >= 0.0 {
                Side::Claim
            } else if high < 0.0 {
                Side::Other
            } else {
                Side::Both
            },
        })
    }

    /// Whether the interval must be on the claim's side, whatever resampling says.
    pub(super) fn plainly_holds(measured: &Measured) -> bool {
        let present: Vec<f64> = measured.distances.iter().flatten().copied().collect();
        interval_limits(&present).is_some_and(|[lowest, _]| lowest >= 0.0)
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
