//! Generators under the built-in statistical battery: good ones must pass, bad ones must fail.

use clap::ValueEnum as _;
use tare_lab::driver::{Driver, Expected, Invocation, Missing, ParameterKind, Role, Vocabulary};
use tare_lab::sample::OPERATIONS;
use tare_lab::unit::{Dimension, Quantity, Unit};
use tare_lab::value::Parameters;
use tare_rdrand::battery::{self, Verdict};

use super::rdrand::check_method;
use super::{own_trial, parameter, text, Workload};
use crate::rng::known_bad::KnownBad;
use crate::rng::method::Method;
use crate::rng::retry::Retry;
use crate::rng::stream::{self, Fill};
use crate::trial::{Speaker, TrialError};

/// The slowest method that the battery is fed from, in bytes a second, with room to spare.
const SLOWEST: f64 = 50e3;

/// Bytes a second that the battery takes on a usual machine.
const USUAL: f64 = 2e6;

/// Bytes between two turns of the battery.
const CHUNK: usize = 64 * 1024;

pub(super) struct Battery;

/// What the battery should say of a generator, and the generator.
enum Generator {
    Good(Method),
    Bad(KnownBad),
}

impl Generator {
    fn of(parameters: &Parameters) -> anyhow::Result<Generator> {
        let name = text(parameters, "generator")?;
        if let Ok(bad) = KnownBad::from_str(name, false) {
            return Ok(Generator::Bad(bad));
        }
        let method = name.parse().map_err(anyhow::Error::msg)?;
        Ok(Generator::Good(method))
    }

    fn names() -> Vec<String> {
        let good = Method::ALL.iter().map(ToString::to_string);
        let bad = KnownBad::value_variants()
            .iter()
            .filter_map(|bad| bad.to_possible_value())
            .map(|value| value.get_name().to_owned());
        good.chain(bad).collect()
    }
}

impl Driver for Battery {
    fn vocabulary(&self) -> Vocabulary {
        Vocabulary {
            name: "rng-battery".into(),
            about: "generators, good and bad on purpose, under the statistical battery".into(),
            parameters: vec![
                parameter(
                    "generator",
                    ParameterKind::Choice(Generator::names()),
                    Some("get_bytes".into()),
                    "where the bytes come from",
                ),
                parameter(
                    "amount",
                    ParameterKind::Quantity(Dimension::Data),
                    Some("1 MiB".into()),
                    "bytes tested in a trial",
                ),
            ],
            references: vec![],
            metrics: vec![("failed_tests".into(), Dimension::Count)],
            counters: [OPERATIONS, "bytes", "judged", "wrong_verdicts"]
                .map(String::from)
                .to_vec(),
            open: false,
            deterministic: false,
        }
    }

    fn check(&self, parameters: &Parameters) -> Result<(), Missing> {
        match Generator::of(parameters) {
            Ok(Generator::Good(method)) => check_method(method),
            _ => Ok(()),
        }
    }

    fn invocation(&self, _: &Role, parameters: &Parameters) -> Invocation {
        let amount = amount(parameters).unwrap_or_default();
        let expected = std::time::Duration::from_secs_f64(amount as f64 / SLOWEST);
        Invocation {
            expected: Some(Expected {
                work: std::time::Duration::from_secs_f64(amount as f64 / USUAL),
                ..Expected::default()
            }),
            ..own_trial("rng-battery", parameters, expected)
        }
    }
}

impl Workload for Battery {
    fn run(&self, parameters: &Parameters, speaker: &mut Speaker) -> Result<(), TrialError> {
        let amount = amount(parameters)?;
        let (mut fill, expected): (Fill, Verdict) = match Generator::of(parameters)? {
            Generator::Good(method) => (stream::open(method, Retry::PATIENT)?, Verdict::Pass),
            Generator::Bad(bad) => (bad.open(), Verdict::Fail),
        };
        speaker.start()?;
        let mut battery = battery::Battery::new(battery::Config::default());
        let mut buffer = vec![0; CHUNK];
        while battery.bytes() < amount {
            let left = usize::try_from(amount - battery.bytes()).unwrap_or(CHUNK);
            let chunk = &mut buffer[..left.min(CHUNK)];
            fill(chunk)?;
            battery.update(chunk);
        }
        let report = battery.finish();
        let failed = report.failures().count();
        speaker.sample("failed_tests", failed as f64, Unit::Count)?;
        speaker.counters(&[
            (OPERATIONS, 1),
            ("bytes", amount),
            ("judged", 1),
            ("wrong_verdicts", u64::from(report.verdict != expected)),
        ])?;
        Ok(())
    }
}

/// The amount in whole bytes.
fn amount(parameters: &Parameters) -> anyhow::Result<u64> {
    let bytes = text(parameters, "amount")?
        .parse::<Quantity>()
        .and_then(|quantity| quantity.in_unit(Unit::Bytes))?;
    anyhow::ensure!(
        (1.0..1e15).contains(&bytes),
        "parameter amount: found {bytes} bytes, expected 1 to 1e15"
    );
    Ok(bytes as u64)
}
