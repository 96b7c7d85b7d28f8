//! How often the instruction has no data: the carry flag of every draw, without a retry.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{anyhow, bail};
use tare_lab::driver::{Driver, Invocation, Missing, ParameterKind, Role, Vocabulary};
use tare_lab::sample::OPERATIONS;
use tare_lab::unit::{Dimension, Unit};
use tare_lab::value::Parameters;
use tare_rdrand::instruction::{count_underflows, RdrandInstruction, RdseedInstruction};
use tare_rdrand::source::Source;

use super::rdrand::check_method;
use super::{count, duration, own_trial, parameter, text, Workload};
use crate::rng::method::Method;
use crate::trial::{Speaker, TrialError};

/// Draws between two readings of the clock.
const BATCH: u64 = 1000;

pub(super) struct Underflow;

impl Driver for Underflow {
    fn vocabulary(&self) -> Vocabulary {
        Vocabulary {
            name: "rdrand-underflow".into(),
            about: "how often RDRAND and RDSEED have no data".into(),
            parameters: vec![
                parameter(
                    "instruction",
                    ParameterKind::Choice(vec!["rdrand".into(), "rdseed".into()]),
                    Some("rdrand".into()),
                    "the instruction, in its 64-bit form",
                ),
                parameter(
                    "threads",
                    ParameterKind::Int(1, 1024),
                    Some(1.into()),
                    "threads",
                ),
                parameter(
                    "duration",
                    ParameterKind::Quantity(Dimension::Time),
                    Some("20 ms".into()),
                    "the measured part of a trial",
                ),
            ],
            references: vec![],
            metrics: vec![("underflow_rate".into(), Dimension::Ratio)],
            counters: [OPERATIONS, "draws", "underflows"]
                .map(String::from)
                .to_vec(),
            open: false,
            deterministic: false,
        }
    }

    fn check(&self, parameters: &Parameters) -> Result<(), Missing> {
        check_method(match text(parameters, "instruction") {
            Ok("rdseed") => Method::Rdseed,
            _ => Method::Bare64,
        })
    }

    fn invocation(&self, _: &Role, parameters: &Parameters) -> Invocation {
        let expected = duration(parameters, "duration").unwrap_or_default();
        own_trial("rdrand-underflow", parameters, expected)
    }
}

impl Workload for Underflow {
    fn run(&self, parameters: &Parameters, speaker: &mut Speaker) -> Result<(), TrialError> {
        let threads = count(parameters, "threads")?;
        let duration = duration(parameters, "duration")?;
        let instruction = text(parameters, "instruction")?;
        speaker.start()?;
        let (draws, underflows) = match instruction {
            "rdrand" => on_threads(threads, duration, RdrandInstruction::detect()?)?,
            "rdseed" => on_threads(threads, duration, RdseedInstruction::detect()?)?,
            other => return Err(anyhow!("found instruction \"{other}\"").into()),
        };
        speaker.sample(
            "underflow_rate",
            underflows as f64 / draws as f64,
            Unit::Ratio,
        )?;
        speaker.counters(&[
            (OPERATIONS, draws),
            ("draws", draws),
            ("underflows", underflows),
        ])?;
        Ok(())
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
