//! The throughput of generators: the workload of `tare rng bench`, one cell at a time.

use std::time::Duration;

use tare_lab::driver::{Expected, Missing, Mistake};
use tare_lab::{choices, figures, parameters};

use crate::agent::{Agent, TrialError};
use crate::machine::Machine;
use crate::systems::rng::method::{Method, Origin};
use crate::systems::rng::retry::Retry;
use crate::systems::rng::workload;
use crate::systems::rng::written::{self, Destination};
use crate::systems::workload::{by_the_clock, mistake, References, Workload};

/// The part of a trial's duration that its warm-up takes on top.
const WARM_UP: f64 = 0.15;

choices! {
    /// The destination of the numbers.
    #[derive(Clone, Copy, PartialEq, Eq)]
    pub(crate) enum Output {
        /// They are not written.
        None = "none",
        /// To a program that reads a pipe.
        Pipe = "pipe",
        /// To a temporary file.
        File = "file",
    }
}

parameters! {
    /// The parameters of the driver `rdrand`.
    pub(crate) struct RdrandParameters {
        /// the method or, in `beside`, the reference that generates the numbers
        method: Method = "uint64_array",
        /// 64-bit words per call
        size: usize [1..=1 << 20] = 2048,
        /// threads
        threads: usize [1..=1024] = 1,
        /// bytes past the start of a cache line at which get_bytes writes
        offset: usize [0..=63] = 0,
        /// whether the threads wait for each other after every call
        in_step: bool = false,
        /// where the numbers are written: nowhere, to a program that reads a pipe, or to a
        /// temporary file
        output: Output = "none",
        /// the measured part of a trial
        duration: Duration = "40 ms",
    }
}

figures! {
    /// The figures of a trial of `rdrand`.
    pub(crate) struct RdrandFigures {
        metrics {
            /// bytes per second of wall time
            throughput: f64 [BytesPerSecond],
            /// bytes per second of processor time, summed over the threads
            cpu_throughput: f64 [BytesPerSecond],
        }
        counters {
            /// calls
            operations,
            /// bytes generated
            bytes,
            /// executions of the instruction, where the method counts them
            draws,
            /// executions that had no data, where the method counts them
            underflows,
        }
    }
}

/// The driver `rdrand`.
pub(crate) struct Rdrand;

impl Workload for Rdrand {
    const NAME: &'static str = "rdrand";
    const ABOUT: &'static str = "random numbers by every method, and references beside them";
    type Parameters = RdrandParameters;
    type Figures = RdrandFigures;

    fn references() -> Option<References> {
        let is_reference =
            |method: &&Method| method.origin() != Origin::Library || **method == Method::Rdseed;
        let references = Method::ALL.iter().filter(is_reference);
        Some(References {
            parameter: "method",
            names: references.map(|method| method.name()).collect(),
        })
    }

    fn examine(parameters: &RdrandParameters) -> Result<(), Mistake> {
        if parameters.in_step && parameters.output != Output::None {
            // A writer takes the chunks as they come.
            return Err(mistake(
                "in_step",
                true,
                "false where output is pipe or file",
            ));
        }
        if parameters.offset > 0 && parameters.output != Output::None {
            let found = parameters.offset as i64;
            let expected = "0 where output is pipe or file";
            return Err(mistake("offset", found, expected));
        }
        Ok(())
    }

    fn check(parameters: &RdrandParameters, machine: &Machine) -> Result<(), Missing> {
        parameters.method.check(machine)?;
        match parameters.output {
            Output::File => machine.need_temporary_folder(),
            Output::None | Output::Pipe => Ok(()),
        }
    }

    fn expected(parameters: &RdrandParameters) -> Option<Expected> {
        Some(by_the_clock(parameters.duration.mul_f64(1.0 + WARM_UP)))
    }

    fn run(parameters: RdrandParameters, agent: &mut Agent) -> Result<RdrandFigures, TrialError> {
        let workload = workload::Workload {
            method: parameters.method,
            retry: Retry::PATIENT,
            chunk: parameters.size * 8,
            offset: parameters.offset,
            threads: parameters.threads,
            duration: parameters.duration,
            calls_max: None,
            warm_up: parameters.duration.mul_f64(WARM_UP),
            in_step: parameters.in_step,
        };
        let started = || Ok(agent.start()?);
        let work = match parameters.output {
            Output::None => workload::run(&workload, started)?,
            Output::Pipe => written::run(&workload, Destination::Pipe, started)?,
            Output::File => written::run(&workload, Destination::File, started)?,
        };
        Ok(RdrandFigures {
            throughput: work.throughput(),
            cpu_throughput: work.cpu_throughput(),
            operations: work.operations,
            bytes: work.bytes,
            draws: work.draws,
            underflows: work.underflows,
        })
    }
}
