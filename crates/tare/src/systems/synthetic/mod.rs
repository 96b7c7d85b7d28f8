//! An instrument with known readings, noise and faults, to test the lab itself.

use std::io::Write as _;
use std::time::Duration;

use anyhow::anyhow;
use tare_lab::driver::{Expected, Invocation, Missing, Role};
use tare_lab::{choices, figures, parameters};

use super::system_random;
use super::workload::{by_the_clock, Workload};
use crate::agent::{Agent, TrialError};

choices! {
    /// The fault of a trial.
    #[derive(Clone, Copy, PartialEq, Eq)]
    pub(crate) enum Fault {
        /// No fault.
        None = "none",
        /// It aborts.
        Crash = "crash",
        /// It never ends.
        Hang = "hang",
        /// It writes to standard error.
        Rubbish = "rubbish",
        /// Kept for experiments that name it; it does nothing.
        Version = "version",
        /// It reports an error.
        Error = "error",
        /// It reports that the machine lacks something.
        Missing = "missing",
    }
}

parameters! {
    /// The parameters of the driver `synthetic`.
    pub(crate) struct SyntheticParameters {
        /// the reading without noise, in ms
        reading: f64 = 1.0,
        /// standard deviation of the reading's logarithm
        noise: f64 = 0.0,
        /// bytes per operation
        work: u64 = 1,
        /// how long a trial sleeps
        duration: Duration = "0 ms",
        /// how a trial misbehaves
        fault: Fault = "none",
        /// an axis without effect
        variant: u64 [0..=1_000_000] = 0,
    }
}

figures! {
    /// The figures of a trial of `synthetic`.
    pub(crate) struct SyntheticFigures {
        metrics {
            /// the reading
            time: f64 [Milliseconds],
        }
        counters {
            /// readings
            operations,
            /// the ordered work
            bytes,
        }
    }
}

/// The driver `synthetic`.
pub(crate) struct Synthetic;

impl Workload for Synthetic {
    const NAME: &'static str = "synthetic";
    const ABOUT: &'static str = "known readings with known noise, to test the lab itself";
    type Parameters = SyntheticParameters;
    type Figures = SyntheticFigures;

    fn expected(parameters: &SyntheticParameters) -> Option<Expected> {
        Some(by_the_clock(parameters.duration))
    }

    fn invocation(_: &Role, parameters: &SyntheticParameters, own_trial: Invocation) -> Invocation {
        match parameters.fault {
            Fault::Hang => Invocation {
                limit: Duration::from_millis(200),
                ..own_trial
            },
            _ => own_trial,
        }
    }

    fn run(
        parameters: SyntheticParameters,
        agent: &mut Agent,
    ) -> Result<SyntheticFigures, TrialError> {
        match parameters.fault {
            Fault::None | Fault::Version => {}
            Fault::Crash => std::process::abort(),
            Fault::Hang => std::thread::sleep(Duration::from_secs(3600)),
            Fault::Rubbish => std::io::stderr().write_all(b"rubbish ahead\n")?,
            Fault::Error => return Err(anyhow!("a fault was ordered").into()),
            Fault::Missing => {
                return Err(TrialError::Missing(Missing {
                    reason: "a missing feature was ordered".into(),
                    remedy: Some("order fault = \"none\"".into()),
                }))
            }
        }
        agent.start()?;
        std::thread::sleep(parameters.duration);
        Ok(SyntheticFigures {
            time: parameters.reading * (parameters.noise * normal()?).exp(),
            operations: 1,
            bytes: parameters.work,
        })
    }
}

/// One draw of the standard normal distribution (Box and Muller).
fn normal() -> anyhow::Result<f64> {
    // 53 bits in (0, 1], so that the logarithm is finite.
    let uniform = || anyhow::Ok(((system_random()? >> 11) + 1) as f64 / (1u64 << 53) as f64);
    Ok((-2.0 * uniform()?.ln()).sqrt() * (std::f64::consts::TAU * uniform()?).cos())
}
