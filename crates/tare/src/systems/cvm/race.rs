//! The driver `cvmnet-race`: a host that flips bits of received frames while the guest reads them.

use std::time::Duration;

use anyhow::anyhow;
use tare_cvmnet::hostile::{flip_bits, FlipPlan};
use tare_cvmnet::variant::BIFROST_UNPROTECTED;
use tare_lab::driver::{Expected, Missing, Mistake};
use tare_lab::{figures, parameters};

use super::driver::Path;
use crate::agent::{Agent, TrialError};
use crate::machine::Machine;
use crate::systems::workload::{by_the_clock, mistake, Workload};

parameters! {
    /// The parameters of the driver `cvmnet-race`.
    pub(crate) struct RaceParameters {
        /// the variant of the path
        variant: Path = "bifrost",
        /// the time for which a protected guest is attacked
        duration: Duration = "1 s",
        /// the time after which the attack on an unprotected guest has failed: it ends at the first
        /// wrong byte
        limit: Duration = "300 s",
    }
}

impl RaceParameters {
    fn is_protected(&self) -> bool {
        self.variant.0 != BIFROST_UNPROTECTED
    }
}

figures! {
    /// The figures of a trial of `cvmnet-race`.
    pub(crate) struct RaceFigures {
        metrics {
            /// bits flipped per second
            flip_rate: f64 [Hertz],
            /// the time from the first flip to the first byte that was not sent, or to the end of
            /// the attack
            attack_time: f64 [Seconds],
        }
        counters {
            /// bits that were flipped, and soon flipped back
            operations,
            /// connections that were opened: a new one for each that ended
            connections,
            /// records that the guest refused
            refused,
            /// bytes that the guest delivered, all of them compared with what was sent
            verified,
            /// connections with a byte that was not sent
            wrong,
            /// attacks on an unprotected guest
            unprotected,
            /// those of which no wrong byte was seen
            unnoticed,
        }
    }
}

/// The driver `cvmnet-race`.
pub(crate) struct CvmnetRace;

impl Workload for CvmnetRace {
    const NAME: &'static str = "cvmnet-race";
    const ABOUT: &'static str =
        "a host that flips bits of received frames while the guest reads them, by variant";
    type Parameters = RaceParameters;
    type Figures = RaceFigures;

    fn examine(parameters: &RaceParameters) -> Result<(), Mistake> {
        match parameters.duration.is_zero() || parameters.limit.is_zero() {
            true => Err(mistake("duration", "0 s", "more than 0 s, and so `limit`")),
            false => Ok(()),
        }
    }

    fn check(_: &RaceParameters, machine: &Machine) -> Result<(), Missing> {
        machine.need_cpus(2, "a guest and a host that races with it need")
    }

    fn expected(parameters: &RaceParameters) -> Option<Expected> {
        Some(by_the_clock(parameters.duration))
    }

    fn longest(parameters: &RaceParameters) -> Duration {
        match parameters.is_protected() {
            true => parameters.duration,
            false => parameters.limit,
        }
    }

    fn run(parameters: RaceParameters, agent: &mut Agent) -> Result<RaceFigures, TrialError> {
        let is_protected = parameters.is_protected();
        let time = Self::longest(&parameters);
        let plan = FlipPlan {
            at_least: time,
            refused: 0,
            at_most: time,
        };
        agent.start()?;
        let flipped = flip_bits(parameters.variant.0, &plan);
        let flipped = flipped.map_err(|broken| anyhow!("{broken}"))?;
        let seconds = flipped.time.as_secs_f64();
        let has_wrong = flipped.wrong > 0;
        Ok(RaceFigures {
            flip_rate: flipped.flips as f64 / seconds,
            attack_time: seconds,
            operations: flipped.flips,
            connections: flipped.connections,
            refused: flipped.refused,
            verified: flipped.verified,
            wrong: flipped.wrong,
            unprotected: u64::from(!is_protected),
            unnoticed: u64::from(!is_protected && !has_wrong),
        })
    }
}
