//! The check whether trials of a bisection contradict each other.

use std::fmt;

use serde::Serialize;

use crate::{Limit, Rate};

/// The factor by which more has to be forwarded than a rate that failed before that is a
/// contradiction: a queue that fills lets a device forward more than its rate for a while.
const MARGIN: f64 = 1.01;

/// The trials of a bisection, to find out if its result can be trusted.
///
/// Bisection takes a rate that fails for above the limit, and never tests a higher one again. On a
/// machine that stalls now and then, trials fail below the limit too, and the result is too low. A
/// device with a limit forwards that much at any load above it; so, if a trial forwards more than a
/// rate that failed, that rate did not fail because of a limit.
#[derive(Clone, Debug, Default)]
pub struct Consistency {
    trials: Vec<Seen>,
}

#[derive(Clone, Copy, Debug)]
struct Seen {
    load: Rate,
    forwarded: Rate,
    lossless: bool,
}

/// The reason why a bisection cannot be trusted.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Doubt {
    /// A rate that failed.
    #[serde(rename = "failed_bits_per_second")]
    pub failed: Rate,
    /// The rate that another trial forwarded, which is not less.
    #[serde(rename = "forwarded_bits_per_second")]
    pub forwarded: Rate,
    /// The load of that trial.
    #[serde(rename = "load_bits_per_second")]
    pub load: Rate,
}

impl fmt::Display for Doubt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:.6} Gbps failed, but a trial at {:.6} Gbps forwarded {:.6} Gbps",
            self.failed.gbps(),
            self.load.gbps(),
            self.forwarded.gbps()
        )
    }
}

impl Consistency {
    /// Enters a trial.
    pub fn record(&mut self, load: Rate, loss_ratio: f64) {
        self.trials.push(Seen {
            load,
            forwarded: Rate::from_f64(load.bits() as f64 * (1.0 - loss_ratio)),
            lossless: loss_ratio == 0.0,
        });
    }

    /// The trial that contradicts most what a bisection has found so far; `None` if none does.
    pub fn doubt(&self, limit: Limit) -> Option<Doubt> {
        let failed = limit.failed?;
        let contradicts = |seen: &&Seen| {
            let more = seen.forwarded.bits() as f64 > failed.bits() as f64 * MARGIN;
            more || (seen.lossless && seen.load >= failed)
        };
        let trials = self.trials.iter().filter(contradicts);
        let most = trials.max_by_key(|seen| seen.forwarded)?;
        Some(Doubt {
            failed,
            forwarded: most.forwarded,
            load: most.load,
        })
    }

    /// A rate up to `max` to be tested once more, where no trial so far could contradict the result
    /// of a bisection: none had a higher load than the lowest rate that failed.
    pub fn probe(&self, limit: Limit, max: Rate) -> Option<Rate> {
        let failed = limit.failed?;
        let probe = Rate::from_bits(failed.bits().saturating_mul(5) / 4).min(max);
        let is_known = self.trials.iter().any(|seen| seen.load > failed);
        (!is_known && probe > failed).then_some(probe)
    }
}
