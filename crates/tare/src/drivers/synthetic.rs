//! An instrument with known readings, to test the lab itself: noise, stalls and misbehaviour as
//! ordered.

use std::io::Write as _;
use std::time::Duration;

use anyhow::anyhow;
use tare_lab::driver::{Driver, Invocation, Missing, ParameterKind, Role, Vocabulary};
use tare_lab::sample::OPERATIONS;
use tare_lab::unit::{Dimension, Unit};
use tare_lab::value::{Parameters, Value};

use super::{count, duration, number, own_trial, parameter, system_random, text, Workload};
use crate::trial::{Speaker, TrialError};

pub(super) struct Synthetic;

impl Driver for Synthetic {
    fn vocabulary(&self) -> Vocabulary {
        let choices = [
            "none", "crash", "hang", "rubbish", "version", "error", "missing",
        ];
        Vocabulary {
            name: "synthetic".into(),
            about: "known readings with known noise, to test the lab itself".into(),
            parameters: vec![
                parameter(
                    "reading",
                    ParameterKind::Number,
                    Some(Value::Float(1.0)),
                    "the reading without noise, in ms",
                ),
                parameter(
                    "noise",
                    ParameterKind::Number,
                    Some(Value::Float(0.0)),
                    "standard deviation of the reading's logarithm",
                ),
                parameter(
                    "work",
                    ParameterKind::Int(0, i64::MAX),
                    Some(Value::Int(1)),
                    "bytes an operation",
                ),
                parameter(
                    "duration",
                    ParameterKind::Quantity(Dimension::Time),
                    Some("0 ms".into()),
                    "how long a trial sleeps",
                ),
                parameter(
                    "fault",
                    ParameterKind::Choice(choices.map(String::from).to_vec()),
                    Some("none".into()),
                    "how a trial misbehaves",
                ),
                parameter(
                    "variant",
                    ParameterKind::Int(0, 1_000_000),
                    Some(Value::Int(0)),
                    "an axis without effect",
                ),
            ],
            references: vec![],
            metrics: vec![("time".into(), Dimension::Time)],
            counters: vec![OPERATIONS.into(), "bytes".into()],
            open: false,
            deterministic: false,
        }
    }

    fn check(&self, _: &Parameters) -> Result<(), Missing> {
        Ok(())
    }

    fn invocation(&self, _: &Role, parameters: &Parameters) -> Invocation {
        let hangs = parameters.get("fault").and_then(Value::as_str) == Some("hang");
        let mut invocation = own_trial(
            "synthetic",
            parameters,
            duration(parameters, "duration").unwrap_or_default(),
        );
        if hangs {
            invocation.limit = Duration::from_millis(200);
        }
        invocation
    }
}

impl Workload for Synthetic {
    fn run(&self, parameters: &Parameters, speaker: &mut Speaker) -> Result<(), TrialError> {
        let fault = parameters
            .get("fault")
            .map_or(Ok("none"), |_| text(parameters, "fault"))?;
        match fault {
            "crash" => std::process::abort(),
            "hang" => std::thread::sleep(Duration::from_secs(3600)),
            "rubbish" => std::io::stderr().write_all(b"rubbish ahead\n")?,
            "error" => return Err(anyhow!("a fault was ordered").into()),
            "missing" => {
                return Err(TrialError::Missing(Missing {
                    reason: "a lack was ordered".into(),
                    remedy: Some("order fault = \"none\"".into()),
                }))
            }
            _ => {}
        }
        speaker.start()?;
        std::thread::sleep(duration(parameters, "duration")?);
        let value =
            number(parameters, "reading")? * (number(parameters, "noise")? * normal()?).exp();
        speaker.sample("time", value, Unit::Milliseconds)?;
        speaker.counters(&[
            (OPERATIONS, 1),
            ("bytes", count(parameters, "work")? as u64),
        ])?;
        Ok(())
    }
}

/// One draw of the standard normal distribution (Box and Muller).
fn normal() -> anyhow::Result<f64> {
    // 53 bits in (0, 1], so that the logarithm is finite.
    let uniform = || anyhow::Ok(((system_random()? >> 11) + 1) as f64 / (1u64 << 53) as f64);
    Ok((-2.0 * uniform()?.ln()).sqrt() * (std::f64::consts::TAU * uniform()?).cos())
}
