//! The cipher against a hostile thread that writes to the same memory meanwhile.

use std::time::Duration;

use anyhow::anyhow;
use tare_gcm::testing::{race, Op, Race, Subject};
use tare_gcm::Path;
use tare_lab::driver::{Expected, Missing};
use tare_lab::parameters::Choice;
use tare_lab::{figures, parameters};

use super::{KeyBits, Operation};
use crate::agent::{Agent, TrialError};
use crate::machine::{Feature, Machine};
use crate::systems::workload::{by_the_clock, Workload};

/// The implementation that races against the hostile thread.
#[derive(Clone, Copy)]
pub(crate) struct Racer(Subject);

impl Choice for Racer {
    fn all() -> Vec<Racer> {
        let paths = Path::ALL.into_iter().map(Subject::Path);
        paths.chain([Subject::TwoReads]).map(Racer).collect()
    }

    fn name(&self) -> &'static str {
        match self.0 {
            Subject::Path(path) => path.name(),
            // The implementation that the race must catch.
            Subject::TwoReads => "two_reads",
        }
    }
}

parameters! {
    /// The parameters of the driver `gcm-race`.
    pub(crate) struct RaceParameters {
        /// a path of the cipher, or the implementation that reads twice
        subject: Racer,
        /// private to shared memory, or shared to private
        operation: Operation = "seal",
        /// bits of the key: 128 or 256
        key: KeyBits = 128,
        /// bytes of payload per record
        size: usize [1..=1 << 20] = 1440,
        /// how long the race takes
        duration: Duration = "40 ms",
        /// the time after which the race has failed to catch the implementation that reads twice:
        /// it ends at the first wrong record
        limit: Duration = "60 s",
    }
}

figures! {
    /// The figures of a trial of `gcm-race`.
    pub(crate) struct RaceFigures {
        metrics {
            /// records accepted or tagged with content that was never sealed
            wrong: f64 [Count],
            /// records per second of wall time
            record_rate: f64 [OperationsPerSecond],
            /// the time until the first wrong record of the implementation that reads twice, or the
            /// end
            race_time: f64 [Seconds],
        }
        counters {
            /// records
            operations,
            /// records that opened
            accepted,
            /// records that were refused as forged
            refused,
            /// records accepted or tagged with content that was never sealed
            wrong_records as "wrong",
            /// refused records whose plaintext was left in the output
            unwiped,
            /// records whose plaintext was in shared memory
            exposed,
            /// wrong, unwiped and exposed together
            violations,
            /// writes of the hostile thread
            hostile_writes,
            /// races against the implementation that reads twice
            two_reads,
            /// those that ended without a wrong record
            undetected,
        }
    }
}

/// The driver `gcm-race`.
pub(crate) struct GcmRace;

impl Workload for GcmRace {
    const NAME: &'static str = "gcm-race";
    const ABOUT: &'static str = "AES-GCM on memory that a hostile thread writes to";
    type Parameters = RaceParameters;
    type Figures = RaceFigures;

    fn check(parameters: &RaceParameters, machine: &Machine) -> Result<(), Missing> {
        machine.need_cpus(2, "a race needs")?;
        match parameters.subject.0 {
            Subject::Path(path) => machine.need(Feature::GcmPath(path)),
            Subject::TwoReads => Ok(()),
        }
    }

    fn expected(parameters: &RaceParameters) -> Option<Expected> {
        Some(by_the_clock(parameters.duration))
    }

    fn longest(parameters: &RaceParameters) -> Duration {
        match parameters.subject.0 {
            Subject::Path(_) => parameters.duration,
            Subject::TwoReads => parameters.limit,
        }
    }

    fn run(parameters: RaceParameters, agent: &mut Agent) -> Result<RaceFigures, TrialError> {
        let of = Race {
            subject: parameters.subject.0,
            op: match parameters.operation {
                Operation::Seal => Op::Seal,
                Operation::Open => Op::Open,
            },
            key_len: parameters.key.bytes(),
            record_len: parameters.size,
            duration: Self::longest(&parameters),
        };
        let reads_twice = of.subject == Subject::TwoReads;
        agent.start()?;
        let report = race(&of)?;
        if report.hostile_writes == 0 {
            return Err(anyhow!("the hostile thread did not get to run").into());
        }
        Ok(RaceFigures {
            wrong: report.wrong as f64,
            record_rate: report.attempts as f64 / report.time.as_secs_f64(),
            race_time: report.time.as_secs_f64(),
            operations: report.attempts,
            accepted: report.accepted,
            refused: report.refused,
            wrong_records: report.wrong,
            unwiped: report.unwiped,
            exposed: report.exposed,
            violations: report.wrong + report.unwiped + report.exposed,
            hostile_writes: report.hostile_writes,
            two_reads: u64::from(reads_twice),
            undetected: u64::from(reads_twice && report.wrong == 0),
        })
    }
}
