//! The Vita document's test: a load tester and two gateways on 1 GbE lines, in virtual time, exact
//! and with no root.

mod topology;
mod veth;

use std::time::Duration;

use anyhow::{anyhow, ensure};
use tare_lab::driver::{
    Driver, Expected, Invocation, Missing, Parameter, ParameterKind, Vocabulary,
};
use tare_lab::sample::OPERATIONS;
use tare_lab::unit::{Dimension, Quantity, Unit};
use tare_lab::value::{Parameters, Value};
use tare_loadtest::{pair, Bisection, Load, Options, Rate, Tester, Trial, Virtual};
use tare_packet::imix::PacketSize;
use tare_port::Pool;
use tare_sim::{LineConfig, Queue};

use super::gateway::driver::{size, size_parameter};
use super::{count, duration, number, own_trial, parameter, text, Workload};
use crate::trial::{Speaker, TrialError};
use topology::{Setup, Topology};
pub(super) use veth::VitaVeth;

/// Bytes of Ethernet, outer IPv4, ESP header, IV and ICV around what is encrypted.
const AROUND: usize = 14 + 20 + 8 + 8 + 16;

/// Trials more at a rate that fails: none, as it would fail again in virtual time.
const RETRIES: u32 = 0;

pub(crate) struct Vita;

impl Driver for Vita {
    fn vocabulary(&self) -> Vocabulary {
        let words = |words: &[&str]| {
            ParameterKind::Choice(words.iter().map(|word| (*word).to_owned()).collect())
        };
        let rate = || ParameterKind::Quantity(Dimension::DataRate);
        Vocabulary {
            name: "vita".into(),
            about: "A load tester and two gateways on three simulated cables, in virtual time"
                .into(),
            parameters: vec![
                parameter(
                    "measure",
                    words(&["find_limit", "load"]),
                    Some("find_limit".into()),
                    "the no-drop rate, or what becomes of one load",
                ),
                size_parameter(),
                routes_parameter(),
                parameter(
                    "line",
                    rate(),
                    Some("1 Gbit/s".into()),
                    "the rate of each cable",
                ),
                parameter(
                    "queue",
                    ParameterKind::Quantity(Dimension::Data),
                    Some("64 KiB".into()),
                    "bytes that wait in front of a cable",
                ),
                parameter(
                    "load",
                    ParameterKind::Number,
                    Some(Value::Float(0.5)),
                    "with measure = load: the part of the cable's rate that is offered",
                ),
                parameter(
                    "precision",
                    rate(),
                    Some("1 Mbit/s".into()),
                    "with measure = find_limit: the last step of the search",
                ),
                parameter(
                    "duration",
                    ParameterKind::Quantity(Dimension::Time),
                    Some("200 ms".into()),
                    "virtual time of one load",
                ),
                parameter(
                    "event",
                    words(&["none", "rekey", "reload"]),
                    Some("none".into()),
                    "meanwhile new keys again and again, or a configuration with one more route",
                ),
            ],
            peers: vec![],
            metrics: vec![
                ("ndr".into(), Dimension::DataRate),
                ("of_computed".into(), Dimension::Ratio),
                ("loss".into(), Dimension::Ratio),
                ("received".into(), Dimension::DataRate),
                ("of_offered".into(), Dimension::Ratio),
                ("events".into(), Dimension::Count),
            ],
            counters: [OPERATIONS, "lost", "duplicates", "reordered", "unaccounted"]
                .map(String::from)
                .to_vec(),
            open: false,
            deterministic: true,
        }
    }

    fn check(&self, _: &Parameters) -> Result<(), Missing> {
        Ok(())
    }

    fn invocation(&self, parameters: &Parameters) -> Invocation {
        // Virtual time says little about real time: a search sends some twenty loads, a million
        // packets a second each.
        let expected = duration(parameters, "duration").unwrap_or_default();
        Invocation {
            expected: expected_time(parameters).ok().map(|work| Expected {
                work,
                ..Expected::default()
            }),
            ..own_trial("vita", parameters, expected.mul_f64(100.0))
        }
    }
}

impl Workload for Vita {
    fn run(&self, parameters: &Parameters, speaker: &mut Speaker) -> Result<(), TrialError> {
        let size = size(parameters)?;
        let line = rate(parameters, "line")?;
        let event = text(parameters, "event")?;
        let duration = duration(parameters, "duration")?;
        let setup = Setup {
            size,
            routes: u32::try_from(count(parameters, "routes")?).map_err(|e| anyhow!(e))?,
            line: LineConfig {
                queue: Queue::Bytes(bytes(parameters, "queue")?),
                ..LineConfig::new(line.bits())
            },
            sa_ttl: (event == "rekey").then_some(SA_TTL),
        };
        let pool = Topology::pool()?;
        let mut topology = Topology::new(&setup, &pool)?;
        if event == "reload" {
            // The routes that are there stay as they are; one comes, and goes again.
            let more = Setup {
                routes: setup.routes + 1,
                ..setup.clone()
            };
            topology.reload_at(duration / 4, more.configs()?);
            topology.reload_at(duration / 2, setup.configs()?);
        }
        let updates_before = topology.outbound_updates();
        let mut bench = Bench::new(topology, &setup, pool)?;
        speaker.start()?;
        let computed = computed_share(size) * line.bits() as f64;
        match text(parameters, "measure")? {
            "find_limit" => {
                let precision = rate(parameters, "precision")?;
                let limit = bench.find_limit(line, precision, duration)?;
                let bits = limit.bits() as f64;
                speaker.sample("ndr", bits / 8.0, Unit::BytesPerSecond)?;
                speaker.sample("of_computed", bits / computed, Unit::Ratio)?;
            }
            _ => {
                let load = number(parameters, "load")?;
                let offered = Rate::from_bits((load * line.bits() as f64) as u64);
                let trial = bench.trial(offered, duration)?;
                speaker.sample("loss", trial.loss_ratio(), Unit::Ratio)?;
                let bits: f64 = trial
                    .streams
                    .iter()
                    .map(|s| (s.rx_bytes + 24 * s.rx_packets) as f64 * 8.0)
                    .sum();
                // Of one of the two streams, as rates are given here.
                let received = bits / trial.streams.len() as f64 / duration.as_secs_f64();
                speaker.sample("received", received / 8.0, Unit::BytesPerSecond)?;
                let of_offered = received / offered.bits() as f64;
                speaker.sample("of_offered", of_offered, Unit::Ratio)?;
                speaker.sample("of_computed", received / computed, Unit::Ratio)?;
                let topology = bench.tester.testbed().network();
                let events = match event {
                    "rekey" => topology.outbound_updates() - updates_before,
                    "reload" => 2 - topology.reloads_left() as u64,
                    _ => 0,
                };
                speaker.sample("events", events as f64, Unit::Count)?;
            }
        }
        bench.check()?;
        speaker.counters(&bench.counters())?;
        Ok(())
    }
}

/// The real time of a trial: that of its packets.
fn expected_time(parameters: &Parameters) -> anyhow::Result<Duration> {
    const PER_PACKET: f64 = 1.5e-6;
    const SET_UP: f64 = 0.03;
    let sizes = size(parameters)?;
    let sizes = sizes.period();
    let bits: f64 = sizes.iter().map(|&size| f64::from(size + 24) * 8.0).sum();
    let line = rate(parameters, "line")?.bits() as f64 * sizes.len() as f64 / bits;
    let loads = match text(parameters, "measure")? {
        // A search tries one rate for each bit of the answer, most of them near the answer.
        "find_limit" => {
            let steps = rate(parameters, "line")?.bits() / rate(parameters, "precision")?.bits();
            0.6 * f64::from(steps.max(2).ilog2())
        }
        _ => number(parameters, "load")?,
    };
    let packets = 2.0 * line * loads * duration(parameters, "duration")?.as_secs_f64();
    Ok(Duration::try_from_secs_f64(SET_UP + packets * PER_PACKET)?)
}

/// How long keys are used where new ones are asked for again and again: as short as the exchange
/// allows. They are replaced after half of it.
const SA_TTL: Duration = Duration::from_secs(4);

/// The tester in front of the set-up, and what its trials found in all.
struct Bench {
    tester: Tester<Virtual<Topology>>,
    sent: u64,
    lost: u64,
    duplicates: u64,
    reordered: u64,
    /// Packets of which neither a receiver nor a cable knows what became.
    unaccounted: u64,
}

impl Bench {
    fn new(topology: Topology, setup: &Setup, pool: Pool) -> anyhow::Result<Bench> {
        let streams = pair(&setup.streams()?)?;
        let testbed = Virtual::new(topology);
        let options = Options {
            frames: pool.slots() / 2,
            ..Options::default()
        };
        Ok(Bench {
            tester: Tester::with_pool(testbed, streams, options, pool)?,
            sent: 0,
            lost: 0,
            duplicates: 0,
            reordered: 0,
            unaccounted: 0,
        })
    }

    fn trial(&mut self, rate: Rate, duration: Duration) -> anyhow::Result<Trial> {
        let trial = self.tester.trial(&Load::new(rate, duration))?;
        for stream in &trial.streams {
            self.sent += stream.tx_packets;
            self.lost += stream.lost;
            self.duplicates += stream.duplicates;
            self.reordered += stream.reordered;
            let known = stream.rx_packets + stream.lost + stream.ingress_drop;
            self.unaccounted += stream.tx_packets.abs_diff(known);
        }
        Ok(trial)
    }

    fn find_limit(
        &mut self,
        max: Rate,
        precision: Rate,
        duration: Duration,
    ) -> anyhow::Result<Rate> {
        let mut search = Bisection::new(max, precision, RETRIES);
        while let Some(rate) = search.next_rate() {
            let trial = self.trial(rate, duration)?;
            search.record(trial.is_lossless());
        }
        Ok(search.limit().passed)
    }

    fn check(&self) -> anyhow::Result<()> {
        let topology = self.tester.testbed().network();
        ensure!(topology.adds_up(), "a gateway lost count of packets");
        let between = topology.between();
        ensure!(between.delivered > 0, "nothing went between the gateways");
        Ok(())
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        vec![
            (OPERATIONS, self.sent),
            ("lost", self.lost),
            ("duplicates", self.duplicates),
            ("reordered", self.reordered),
            ("unaccounted", self.unaccounted),
        ]
    }
}

/// How many routes a topology has.
fn routes_parameter() -> Parameter {
    parameter(
        "routes",
        ParameterKind::Int(1, 10_000),
        Some(1.into()),
        "routes between the gateways, which packets take in turn",
    )
}

/// The part of a cable's rate that packets of this mix can have at most, when they are longer on
/// the cable between.
fn computed_share(size: PacketSize) -> f64 {
    let wire = |bytes: usize| (bytes + 24) as f64;
    let outer = |bytes: usize| AROUND + (bytes - 14 + 2).next_multiple_of(4);
    let sizes = size.period();
    let short: f64 = sizes.iter().map(|&bytes| wire(bytes.into())).sum();
    let long: f64 = sizes.iter().map(|&bytes| wire(outer(bytes.into()))).sum();
    short / long
}

/// The parameter as an amount of data.
fn bytes(parameters: &Parameters, name: &str) -> anyhow::Result<usize> {
    let quantity: Quantity = text(parameters, name)?.parse()?;
    Ok(quantity.in_unit(Unit::Bytes)? as usize)
}

/// The parameter as a rate on a cable.
fn rate(parameters: &Parameters, name: &str) -> anyhow::Result<Rate> {
    let quantity: Quantity = text(parameters, name)?.parse()?;
    let bytes = quantity.in_unit(Unit::BytesPerSecond)?;
    ensure!(
        (1.0..1e12).contains(&bytes),
        "parameter {name}: expected a rate from 8 bit/s to 8e12 bit/s"
    );
    Ok(Rate::from_bits((bytes * 8.0).round() as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_computed_share_is_that_of_the_document() {
        let of = |text: &str| computed_share(text.parse().unwrap());
        assert!((of("60") - 84.0 / 138.0).abs() < 1e-12);
        assert!((of("1514") - 1538.0 / 1594.0).abs() < 1e-12);
    }
}
