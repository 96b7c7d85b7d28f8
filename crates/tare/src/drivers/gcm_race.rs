//! The cipher against a hostile thread that writes to the same memory meanwhile.

use std::time::Duration;

use anyhow::anyhow;
use tare_gcm::testing::{race, Op, Race, Subject};
use tare_gcm::Path;
use tare_lab::driver::{Driver, Invocation, Missing, ParameterKind, Role, Vocabulary};
use tare_lab::sample::OPERATIONS;
use tare_lab::unit::{Dimension, Unit};
use tare_lab::value::Parameters;

use super::gcm::{check_path, key_length, key_parameter, operation, operation_parameter};
use super::{count, duration, own_trial, parameter, text, Workload};
use crate::trial::{Speaker, TrialError};

/// The implementation that reads twice, which the race must catch.
const TWO_READS: &str = "two_reads";

pub(super) struct GcmRace;

impl Driver for GcmRace {
    fn vocabulary(&self) -> Vocabulary {
        let mut subjects: Vec<String> = Path::ALL.iter().map(ToString::to_string).collect();
        subjects.push(TWO_READS.into());
        Vocabulary {
            name: "gcm-race".into(),
            about: "AES-GCM on memory that a hostile thread writes to".into(),
            parameters: vec![
                parameter(
                    "subject",
                    ParameterKind::Choice(subjects),
                    None,
                    "a path of the cipher, or the implementation that reads twice",
                ),
                operation_parameter(),
                key_parameter(),
                parameter(
                    "size",
                    ParameterKind::Int(1, 1 << 20),
                    Some(1440.into()),
                    "bytes of payload a record",
                ),
                parameter(
                    "duration",
                    ParameterKind::Quantity(Dimension::Time),
                    Some("40 ms".into()),
                    "how long the race takes",
                ),
            ],
            references: vec![],
            metrics: vec![
                ("wrong".into(), Dimension::Count),
                ("record_rate".into(), Dimension::OperationRate),
            ],
            counters: [
                OPERATIONS,
                "accepted",
                "refused",
                "wrong",
                "unwiped",
                "exposed",
                "violations",
                "hostile_writes",
            ]
            .map(String::from)
            .to_vec(),
            open: false,
            deterministic: false,
        }
    }

    fn check(&self, parameters: &Parameters) -> Result<(), Missing> {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        if cpus < 2 {
            return Err(Missing {
                reason: "a race takes two processors, this machine lends one".into(),
                remedy: None,
            });
        }
        match subject(parameters) {
            Ok(Subject::Path(path)) => check_path(path),
            _ => Ok(()),
        }
    }

    fn invocation(&self, _: &Role, parameters: &Parameters) -> Invocation {
        let expected = duration(parameters, "duration").unwrap_or(Duration::ZERO);
        own_trial("gcm-race", parameters, expected)
    }
}

impl Workload for GcmRace {
    fn run(&self, parameters: &Parameters, speaker: &mut Speaker) -> Result<(), TrialError> {
        let of = Race {
            subject: subject(parameters)?,
            op: match operation(parameters)? {
                super::gcm::Operation::Seal => Op::Seal,
                super::gcm::Operation::Open => Op::Open,
            },
            key_len: key_length(parameters)?,
            record_len: count(parameters, "size")?,
            duration: duration(parameters, "duration")?,
        };
        speaker.start()?;
        let report = race(&of)?;
        if report.hostile_writes == 0 {
            return Err(anyhow!("the hostile thread did not get to run").into());
        }
        let seconds = of.duration.as_secs_f64();
        speaker.sample("wrong", report.wrong as f64, Unit::Count)?;
        speaker.sample(
            "record_rate",
            report.attempts as f64 / seconds,
            Unit::OperationsPerSecond,
        )?;
        speaker.counters(&[
            (OPERATIONS, report.attempts),
            ("accepted", report.accepted),
            ("refused", report.refused),
            ("wrong", report.wrong),
            ("unwiped", report.unwiped),
            ("exposed", report.exposed),
            ("violations", report.wrong + report.unwiped + report.exposed),
            ("hostile_writes", report.hostile_writes),
        ])?;
        Ok(())
    }
}

fn subject(parameters: &Parameters) -> anyhow::Result<Subject> {
    match text(parameters, "subject")? {
        TWO_READS => Ok(Subject::TwoReads),
        name => Path::by_name(name)
            .map(Subject::Path)
            .ok_or_else(|| anyhow!("parameter subject: found \"{name}\", expected a path")),
    }
}
