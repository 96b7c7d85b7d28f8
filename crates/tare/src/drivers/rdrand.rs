//! Generators' throughput: the workload of `tare rng bench`, one cell at a time.

use std::process::Command;
use std::sync::OnceLock;

use anyhow::{anyhow, Context as _};
use tare_lab::driver::{Driver, Invocation, Missing, ParameterKind, Role, Vocabulary};
use tare_lab::sample::OPERATIONS;
use tare_lab::unit::{Dimension, Unit};
use tare_lab::value::{Parameters, Value, BESIDE};
use tare_rdrand::processor;

use super::{count, duration, own_trial, parameter, text, Workload};
use crate::references;
use crate::rng::method::{Method, Origin};
use crate::rng::retry::Retry;
use crate::rng::workload;
use crate::rng::written::{self, Destination};
use crate::trial::{Speaker, TrialError};

/// The part of a trial's duration that its warm-up takes on top.
const WARM_UP: f64 = 0.15;

/// Where the numbers of a call go after it.
const OUTPUTS: [(&str, Option<Destination>); 3] = [
    ("none", None),
    ("pipe", Some(Destination::Pipe)),
    ("file", Some(Destination::File)),
];

pub(super) struct Rdrand;

impl Driver for Rdrand {
    fn vocabulary(&self) -> Vocabulary {
        let names = |of: &dyn Fn(Method) -> bool| -> Vec<String> {
            Method::ALL
                .iter()
                .filter(|&&method| of(method))
                .map(ToString::to_string)
                .collect()
        };
        Vocabulary {
            name: "rdrand".into(),
            about: "random numbers by every method, and peers beside them".into(),
            parameters: vec![
                parameter(
                    "method",
                    ParameterKind::Choice(names(&|_| true)),
                    Some("uint64_array".into()),
                    "how the numbers are got",
                ),
                parameter(
                    "size",
                    ParameterKind::Int(1, 1 << 20),
                    Some(2048.into()),
                    "64-bit words a call",
                ),
                parameter(
                    "threads",
                    ParameterKind::Int(1, 1024),
                    Some(1.into()),
                    "threads",
                ),
                parameter(
                    "offset",
                    ParameterKind::Int(0, 63),
                    Some(0.into()),
                    "bytes past a cache line's start at which get_bytes writes",
                ),
                parameter(
                    "in_step",
                    ParameterKind::Bool,
                    Some(Value::Bool(false)),
                    "whether the threads wait for each other after every call",
                ),
                parameter(
                    "output",
                    ParameterKind::Choice(OUTPUTS.map(|(name, _)| name.into()).to_vec()),
                    Some("none".into()),
                    "where the numbers are written: nowhere, to a program that reads a pipe, or to a temporary file",
                ),
                parameter(
                    "duration",
                    ParameterKind::Quantity(Dimension::Time),
                    Some("40 ms".into()),
                    "the measured part of a trial",
                ),
            ],
            references: names(&|method| method.origin() != Origin::Library || method == Method::Rdseed),
            metrics: vec![
                ("throughput".into(), Dimension::DataRate),
                ("cpu_throughput".into(), Dimension::DataRate),
            ],
            counters: [OPERATIONS, "bytes", "draws", "underflows"]
                .map(String::from)
                .to_vec(),
            open: false,
            deterministic: false,
        }
    }

    fn check(&self, parameters: &Parameters) -> Result<(), Missing> {
        let method = method(parameters).map_err(|error| Missing {
            reason: error.to_string(),
            remedy: None,
        })?;
        check_method(method)
    }

    fn invocation(&self, _: &Role, parameters: &Parameters) -> Invocation {
        let expected = duration(parameters, "duration").unwrap_or_default();
        own_trial("rdrand", parameters, expected.mul_f64(1.0 + WARM_UP))
    }
}

impl Workload for Rdrand {
    fn run(&self, parameters: &Parameters, speaker: &mut Speaker) -> Result<(), TrialError> {
        let duration = duration(parameters, "duration")?;
        let workload = workload::Workload {
            method: method(parameters)?,
            retry: Retry::PATIENT,
            chunk: count(parameters, "size")? * 8,
            offset: count(parameters, "offset")?,
            threads: count(parameters, "threads")?,
            duration,
            calls_max: None,
            warm_up: duration.mul_f64(WARM_UP),
            in_step: parameters.get("in_step") == Some(&Value::Bool(true)),
        };
        let destination = output(parameters)?;
        if workload.in_step && destination.is_some() {
            return Err(anyhow!(
                "parameters in_step and output: found both, expected one; a writer takes the chunks as they come"
            )
            .into());
        }
        let started = || Ok(speaker.start()?);
        let work = match destination {
            Some(destination) => written::run(&workload, destination, started)?,
            None => workload::run(&workload, started)?,
        };
        speaker.sample("throughput", work.throughput(), Unit::BytesPerSecond)?;
        speaker.sample(
            "cpu_throughput",
            work.cpu_throughput(),
            Unit::BytesPerSecond,
        )?;
        speaker.counters(&[
            (OPERATIONS, work.operations),
            ("bytes", work.bytes),
            ("draws", work.draws),
            ("underflows", work.underflows),
        ])?;
        Ok(())
    }
}

fn method(parameters: &Parameters) -> anyhow::Result<Method> {
    let name = if parameters.contains_key(BESIDE) {
        BESIDE
    } else {
        "method"
    };
    text(parameters, name)?
        .parse()
        .map_err(anyhow::Error::msg)
        .context("parameter method")
}

fn output(parameters: &Parameters) -> anyhow::Result<Option<Destination>> {
    // Peers have no parameters of their own.
    let name = parameters
        .get("output")
        .map_or(Ok("none"), |_| text(parameters, "output"))?;
    OUTPUTS
        .into_iter()
        .find(|(known, _)| *known == name)
        .map(|(_, destination)| destination)
        .with_context(|| format!("parameter output: found \"{name}\""))
}

/// Whether this machine has what a method needs.
pub(crate) fn check_method(method: Method) -> Result<(), Missing> {
    let lacks = |reason: &str, remedy: &str| {
        Err(Missing {
            reason: reason.into(),
            remedy: Some(remedy.into()),
        })
    };
    match method {
        Method::Rdseed if !processor::has_rdseed() => lacks(
            "the processor has no RDSEED",
            "run on Intel Broadwell or AMD Zen and later, or let the hypervisor pass RDSEED on",
        ),
        Method::GetrandomLibc if !libc_uses_vdso() => lacks(
            "this C library's getrandom is the system call (glibc uses the vDSO from 2.41 on)",
            "a distribution with glibc 2.41 or later and Linux 6.11 or later",
        ),
        Method::AwsLcRs => references::check(),
        Method::GetrandomSyscall
        | Method::GetrandomLibc
        | Method::RandChacha
        | Method::Rdseed => Ok(()),
        _ if !processor::has_rdrand() => lacks(
            "the processor has no RDRAND",
            "run on Intel Ivy Bridge or AMD Excavator and later, or let the hypervisor pass RDRAND on",
        ),
        _ => Ok(()),
    }
}

/// Whether the C library is a glibc that calls the vDSO's getrandom: 2.41 was the first.
fn libc_uses_vdso() -> bool {
    static ANSWER: OnceLock<bool> = OnceLock::new();
    *ANSWER.get_or_init(|| {
        let Ok(said) = Command::new("getconf").arg("GNU_LIBC_VERSION").output() else {
            return false;
        };
        let said = String::from_utf8_lossy(&said.stdout);
        let mut parts = said.trim().trim_start_matches("glibc ").split('.');
        let mut number = || parts.next().and_then(|part| part.parse::<u32>().ok());
        matches!((number(), number()), (Some(major), Some(minor)) if (major, minor) >= (2, 41))
    })
}
