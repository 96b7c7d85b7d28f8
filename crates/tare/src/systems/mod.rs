//! The systems: one folder each, with its subcommand, its drivers and their workloads. The only
//! place where the lab and the systems meet.

mod command;
pub(crate) mod gateway;
pub(crate) mod gcm;
pub(crate) mod loadtest;
pub(crate) mod rng;
mod synthetic;
mod vita;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{anyhow, Context as _};
use tare_lab::driver::{Driver, Drivers, Expected, Invocation, Parameter, ParameterKind};
use tare_lab::unit::{Quantity, Unit};
use tare_lab::value::{Parameters, Value};

use crate::trial::{Speaker, TrialError};

/// Time that a trial may take beyond what its parameters ask for: a slow machine's start-up.
const SLACK: Duration = Duration::from_secs(30);

/// What a trial takes to start and to end, about.
const START: Duration = Duration::from_millis(10);

/// A driver whose trials this program runs itself, in a child process.
trait Workload: Driver {
    /// Runs one trial.
    fn run(&self, parameters: &Parameters, speaker: &mut Speaker) -> Result<(), TrialError>;
}

fn workloads() -> Vec<Box<dyn Workload>> {
    vec![
        Box::new(rng::drivers::rdrand::Rdrand),
        Box::new(rng::drivers::underflow::Underflow),
        Box::new(rng::drivers::battery::Battery),
        Box::new(gcm::driver::Gcm),
        Box::new(gcm::race::GcmRace),
        Box::new(gateway::driver::Gateway),
        Box::new(vita::Vita),
        Box::new(vita::VitaVeth),
        Box::new(synthetic::Synthetic),
    ]
}

/// Every driver of this program.
pub(crate) fn all() -> Drivers {
    let mut all: Vec<Box<dyn Driver>> = vec![Box::new(command::Command)];
    for workload in workloads() {
        all.push(workload);
    }
    Drivers::new(all)
}

/// Runs one trial of the driver of that name.
pub(crate) fn run_trial(
    name: &str,
    parameters: &Parameters,
    speaker: &mut Speaker,
) -> Result<(), TrialError> {
    let workload = workloads()
        .into_iter()
        .find(|workload| workload.vocabulary().name == name)
        .ok_or_else(|| anyhow!("found driver \"{name}\", expected one with trials of its own"))?;
    workload.run(parameters, speaker)
}

/// This program as a trial of `driver`, which may take `expected` and some slack.
fn own_trial(driver: &str, parameters: &Parameters, expected: Duration) -> Invocation {
    Invocation {
        // The file that is running, even when another has taken its place meanwhile.
        program: PathBuf::from("/proc/self/exe"),
        arguments: vec![
            "trial".into(),
            driver.into(),
            serde_json::to_string(parameters)
                .expect("parameters are plain data")
                .into(),
        ],
        speaks_protocol: true,
        limit: expected + SLACK,
        expected: Some(Expected {
            clock: expected,
            work: START,
        }),
        ..Invocation::default()
    }
}

/// 64 bits from the operating system, for seeds.
pub(crate) fn system_random() -> anyhow::Result<u64> {
    let mut bytes = [0; 8];
    let n = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    anyhow::ensure!(
        n == bytes.len(),
        "the operating system gave {n} random bytes of 8"
    );
    Ok(u64::from_ne_bytes(bytes))
}

/// A parameter of a vocabulary.
fn parameter(name: &str, kind: ParameterKind, default: Option<Value>, about: &str) -> Parameter {
    Parameter {
        name: name.into(),
        kind,
        default,
        about: about.into(),
    }
}

/// The parameter as a time.
fn duration(parameters: &Parameters, name: &str) -> anyhow::Result<Duration> {
    let text = text(parameters, name)?;
    let seconds = text
        .parse::<Quantity>()
        .and_then(|quantity| quantity.in_unit(Unit::Seconds))
        .with_context(|| format!("parameter {name}"))?;
    Duration::try_from_secs_f64(seconds)
        .with_context(|| format!("parameter {name}: found \"{text}\", expected a positive time"))
}

/// The parameter as text.
fn text<'a>(parameters: &'a Parameters, name: &str) -> anyhow::Result<&'a str> {
    parameters
        .get(name)
        .and_then(Value::as_str)
        .ok_or_else(|| anyhow!("parameter {name}: expected text"))
}

/// The parameter as a number.
fn number(parameters: &Parameters, name: &str) -> anyhow::Result<f64> {
    parameters
        .get(name)
        .and_then(Value::as_f64)
        .ok_or_else(|| anyhow!("parameter {name}: expected a number"))
}

/// The parameter as a whole number.
fn count(parameters: &Parameters, name: &str) -> anyhow::Result<usize> {
    match parameters.get(name) {
        Some(&Value::Int(n)) => usize::try_from(n)
            .with_context(|| format!("parameter {name}: found {n}, expected 0 or more")),
        _ => Err(anyhow!("parameter {name}: expected a whole number")),
    }
}
