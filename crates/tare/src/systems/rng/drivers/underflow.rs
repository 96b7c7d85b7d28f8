//! The rate of underflows: the carry flag of every draw, without a retry.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::bail;
use tare_lab::driver::{Expected, Missing};
use tare_lab::{choices, figures, parameters};
use tare_rdrand::instruction::{count_underflows, RdrandInstruction, RdseedInstruction};
use tare_rdrand::source::Source;

use crate::agent::{Agent, TrialError};
use crate::machine::{Feature, Machine};
use crate::systems::workload::{by_the_clock, Workload};

/// Draws between two readings of the clock.
const BATCH: u64 = 1000;

choices! {
    /// An instruction that draws random numbers.
    pub(crate) enum Instruction {
        /// RDRAND.
        Rdrand = "rdrand",
        /// RDSEED.
        Rdseed = "rdseed",
    }
}

parameters! {
    /// The parameters of the driver `rdrand-underflow`.
    pub(crate) struct UnderflowParameters {
        /// the instruction, in its 64-bit form
        instruction: Instruction = "rdrand",
        /// threads
        threads: usize [1..=1024] = 1,
        /// the measured part of a trial
        duration: Duration = "20 ms",
    }
}

figures! {
    /// The figures of a trial of `rdrand-underflow`.
    pub(crate) struct UnderflowFigures {
        metrics {
            /// underflows per draw
            underflow_rate: f64 [Ratio],
        }
        counters {
            /// draws
            operations,
            /// executions of the instruction
            draws,
            /// executions that had no data
            underflows,
        }
    }
}

/// The driver `rdrand-underflow`.
pub(crate) struct Underflow;

impl Workload for Underflow {
    const NAME: &'static str = "rdrand-underflow";
    const ABOUT: &'static str = "how often RDRAND and RDSEED have no data";
    type Parameters = UnderflowParameters;
    type Figures = UnderflowFigures;

    fn check(parameters: &UnderflowParameters, machine: &Machine) -> Result<(), Missing> {
        machine.need(match parameters.instruction {
            Instruction::Rdrand => Feature::Rdrand,
            Instruction::Rdseed => Feature::Rdseed,
        })
    }

    fn expected(parameters: &UnderflowParameters) -> Option<Expected> {
        Some(by_the_clock(parameters.duration))
    }

    fn run(
        parameters: UnderflowParameters,
        agent: &mut Agent,
    ) -> Result<UnderflowFigures, TrialError> {
        let (threads, duration) = (parameters.threads, parameters.duration);
        agent.start()?;
        let (draws, underflows) = match parameters.instruction {
            Instruction::Rdrand => on_threads(threads, duration, RdrandInstruction::detect()?)?,
            Instruction::Rdseed => on_threads(threads, duration, RdseedInstruction::detect()?)?,
        };
        Ok(UnderflowFigures {
            underflow_rate: underflows as f64 / draws as f64,
            operations: draws,
            draws,
            underflows,
        })
    }
}

/// Draws and underflows of `threads` threads that run until the time is over.
fn on_threads<S: Source + Copy + Send>(
    threads: usize,
    duration: Duration,
    source: S,
) -> anyhow::Result<(u64, u64)> {
    let until = Instant::now() + duration;
    thread::scope(|scope| {
        let mut running = Vec::new();
        for _ in 0..threads {
            running.push(thread::Builder::new().spawn_scoped(scope, move || {
                let mut draws = 0;
                let mut underflows = 0;
                loop {
                    underflows += count_underflows(source, BATCH);
                    draws += BATCH;
                    if Instant::now() >= until {
                        return (draws, underflows);
                    }
                }
            })?);
        }
        let mut all = (0, 0);
        for thread in running {
            let Ok((draws, underflows)) = thread.join() else {
                bail!("a thread panicked");
            };
            all = (all.0 + draws, all.1 + underflows);
        }
        Ok(all)
    })
}
