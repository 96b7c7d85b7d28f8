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
/// machine that stalls now and then, trials fail below the limit too, and the result is too low.
/// But a device that forwards more than a rate in another trial did not lose at that rate because
/// of a limit.
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
    /// Enters a trial with this load on each stream, of which the stream that got the least through
    /// got `forwarded` ([`Trial::forwarded`](crate::Trial::forwarded)). A rate passes only where all
    /// streams pass, so that the higher limits of others are no contradiction.
    pub fn record(&mut self, load: Rate, forwarded: Rate, lossless: bool) {
        self.trials.push(Seen {
            load,
            // What begins within a trial counts whole, and may make it more than was asked.
            forwarded: forwarded.min(load),
            lossless,
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
