//! Generators under the built-in statistical battery: good ones must pass, bad ones must fail.

use std::time::Duration;

use clap::ValueEnum as _;
use tare_battery::Verdict;
use tare_lab::driver::{Expected, Missing};
use tare_lab::parameters::{Bytes, Choice};
use tare_lab::{figures, parameters};

use crate::agent::{Agent, TrialError};
use crate::machine::Machine;
use crate::systems::rng::known_bad::KnownBad;
use crate::systems::rng::method::Method;
use crate::systems::rng::retry::Retry;
use crate::systems::rng::stream::{self, Fill};
use crate::systems::workload::Workload;

/// The slowest method that the battery is fed from, in bytes per second, with room to spare.
const SLOWEST: f64 = 50e3;

/// Bytes per second that the battery takes on a usual machine.
const USUAL: f64 = 2e6;

/// Bytes that the battery is fed at once.
const CHUNK: usize = 64 * 1024;

/// A generator, and with it the verdict that the battery should come to.
#[derive(Clone, Copy)]
pub(crate) enum Generator {
    Good(Method),
    Bad(KnownBad),
}

impl Choice for Generator {
    fn all() -> Vec<Generator> {
        let good = Method::ALL.iter().map(|&method| Generator::Good(method));
        let bad = KnownBad::value_variants().iter();
        good.chain(bad.map(|&bad| Generator::Bad(bad))).collect()
    }

    fn name(&self) -> &'static str {
        match self {
            Generator::Good(method) => method.name(),
            Generator::Bad(bad) => bad.name(),
        }
    }
}

parameters! {
    /// The parameters of the driver `rng-battery`.
    pub(crate) struct BatteryParameters {
        /// where the bytes come from
        generator: Generator = "get_bytes",
        /// bytes tested in a trial
        amount: Bytes = "1 MiB",
    }
}

figures! {
    /// The figures of a trial of `rng-battery`.
    pub(crate) struct BatteryFigures {
        metrics {
            /// tests that the generator failed
            failed_tests: f64 [Count],
        }
        counters {
            /// runs of the battery
            operations,
            /// bytes tested
            bytes,
            /// generators judged
            judged,
            /// good generators that failed and bad ones that passed
            wrong_verdicts,
        }
    }
}

/// The driver `rng-battery`.
pub(crate) struct Battery;

impl Workload for Battery {
    const NAME: &'static str = "rng-battery";
    const ABOUT: &'static str =
        "generators, good and bad on purpose, under the statistical battery";
    type Parameters = BatteryParameters;
    type Figures = BatteryFigures;

    fn check(parameters: &BatteryParameters, machine: &Machine) -> Result<(), Missing> {
        match parameters.generator {
            Generator::Good(method) => method.check(machine),
            Generator::Bad(_) => Ok(()),
        }
    }

    fn expected(parameters: &BatteryParameters) -> Option<Expected> {
        Some(Expected {
            clock: Duration::ZERO,
            work: Duration::from_secs_f64(parameters.amount.0 as f64 / USUAL),
        })
    }

    fn longest(parameters: &BatteryParameters) -> Duration {
        Duration::from_secs_f64(parameters.amount.0 as f64 / SLOWEST)
    }

    fn run(parameters: BatteryParameters, agent: &mut Agent) -> Result<BatteryFigures, TrialError> {
        let amount = parameters.amount.0;
        let (mut fill, expected): (Fill, Verdict) = match parameters.generator {
            Generator::Good(method) => (stream::open(method, Retry::PATIENT)?, Verdict::Pass),
            Generator::Bad(bad) => (bad.open(), Verdict::Fail),
        };
        agent.start()?;
        let mut battery = tare_battery::Battery::new(tare_battery::Config::default());
        let mut buffer = vec![0; CHUNK];
        while battery.bytes() < amount {
            let left = usize::try_from(amount - battery.bytes()).unwrap_or(CHUNK);
            let chunk = &mut buffer[..left.min(CHUNK)];
            fill(chunk)?;
            battery.update(chunk);
        }
        let report = battery.finish();
        Ok(BatteryFigures {
            failed_tests: report.failures().count() as f64,
            operations: 1,
            bytes: amount,
            judged: 1,
            wrong_verdicts: u64::from(report.verdict != expected),
        })
    }
}
