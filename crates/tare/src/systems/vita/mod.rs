//! The Vita document's test: a load tester and two gateways on 1 GbE lines, in virtual time, exact
//! and with no root.

mod topology;
mod veth;

use std::time::Duration;

use anyhow::ensure;
use tare_lab::driver::Expected;
use tare_lab::parameters::{BitsPerSecond, Bytes};
use tare_lab::{choices, figures, parameters};
use tare_loadtest::{pair, Bisection, Load, Options, Rate, Tester, Trial, Virtual};
use tare_packet::imix::PacketSize;
use tare_packet::{esp, ethernet, ipv4};
use tare_port::Pool;
use tare_sim::{LineConfig, Queue};

use super::gateway::driver::Size;
use super::workload::Workload;
use crate::agent::{Agent, TrialError};
use topology::{Setup, Topology};
pub(super) use veth::VitaVeth;

/// The retries of a rate that fails: none, as it would fail again in virtual time.
const RETRIES: u32 = 0;

choices! {
    /// The measurement of a trial.
    #[derive(Clone, Copy, PartialEq, Eq)]
    pub(crate) enum Measure {
        /// The no-drop rate.
        FindLimit = "find_limit",
        /// The packets of one load that arrive.
        Load = "load",
    }
}

choices! {
    /// An event during the measurement.
    #[derive(Clone, Copy, PartialEq, Eq)]
    pub(crate) enum Event {
        /// No event.
        None = "none",
        /// They agree on new keys again and again.
        Rekey = "rekey",
        /// They reload a configuration with one more route.
        Reload = "reload",
    }
}

parameters! {
    /// The parameters of the driver `vita`.
    pub(crate) struct VitaParameters {
        /// the no-drop rate, or the loss of one load
        measure: Measure = "find_limit",
        /// bytes of a packet with its Ethernet header, or IMIX
        size: Size = "60",
        /// routes between the gateways, which packets take in turn
        routes: u32 [1..=10_000] = 1,
        /// the rate of each cable
        line: BitsPerSecond = "1 Gbit/s",
        /// bytes that wait in front of a cable
        queue: Bytes = "64 KiB",
        /// with measure = load: the part of the cable's rate that is offered
        load: f64 = 0.5,
        /// with measure = find_limit: the last step of the search
        precision: BitsPerSecond = "1 Mbit/s",
        /// virtual time of one load
        duration: Duration = "200 ms",
        /// an event during the measurement: none, new keys again and again, or a configuration with
        /// one more route
        event: Event = "none",
    }
}

figures! {
    /// The figures of a trial of `vita`.
    #[derive(Default)]
    pub(crate) struct VitaFigures {
        metrics {
            /// with measure = find_limit: the no-drop rate
            ndr: Option<f64> [BitsPerSecond],
            /// the no-drop rate, or the rate received, over what the packets' overhead allows
            of_computed: Option<f64> [Ratio],
            /// with measure = load: packets lost over packets sent
            loss: Option<f64> [Ratio],
            /// with measure = load: the rate received, per stream
            received: Option<f64> [BitsPerSecond],
            /// with measure = load: the rate received over the rate offered
            of_offered: Option<f64> [Ratio],
            /// with measure = load: keys replaced or configurations reloaded
            events: Option<f64> [Count],
        }
        counters {
            /// packets sent
            operations,
            /// packets lost
            lost,
            /// packets received twice
            duplicates,
            /// packets received after a later one
            reordered,
            /// packets that neither a receiver nor a cable accounts for
            unaccounted,
        }
    }
}

/// The driver `vita`.
pub(crate) struct Vita;

impl Workload for Vita {
    const NAME: &'static str = "vita";
    const ABOUT: &'static str =
        "a load tester and two gateways on three simulated cables, in virtual time";
    const DETERMINISTIC: bool = true;
    type Parameters = VitaParameters;
    type Figures = VitaFigures;

    fn expected(parameters: &VitaParameters) -> Option<Expected> {
        Some(Expected {
            clock: Duration::ZERO,
            work: Duration::try_from_secs_f64(expected_seconds(parameters)).ok()?,
        })
    }

    fn longest(parameters: &VitaParameters) -> Duration {
        // Virtual time hardly limits wall time: a search sends some twenty loads, on a 1 GbE line
        // each of a million packets per second.
        let usual = Duration::try_from_secs_f64(expected_seconds(parameters) * 20.0);
        parameters
            .duration
            .mul_f64(100.0)
            .max(usual.unwrap_or(Duration::MAX))
    }

    fn run(parameters: VitaParameters, agent: &mut Agent) -> Result<VitaFigures, TrialError> {
        let Size(size) = parameters.size;
        let line = Rate::from_bits(parameters.line.0);
        let (event, duration) = (parameters.event, parameters.duration);
        let setup = Setup {
            size,
            routes: parameters.routes,
            line: LineConfig {
                queue: Queue::Bytes(parameters.queue.0 as usize),
                ..LineConfig::new(line.bits())
            },
            sa_ttl: (event == Event::Rekey).then_some(SA_TTL),
        };
        let pool = Topology::pool()?;
        let mut topology = Topology::new(&setup, &pool)?;
        if event == Event::Reload {
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
        agent.start()?;
        let computed = computed_share(size) * line.bits() as f64;
        let mut figures = VitaFigures::default();
        match parameters.measure {
            Measure::FindLimit => {
                let precision = Rate::from_bits(parameters.precision.0);
                let limit = bench.find_limit(line, precision, duration)?;
                let bits = limit.bits() as f64;
                figures.ndr = Some(bits);
                figures.of_computed = Some(bits / computed);
            }
            Measure::Load => {
                let offered = Rate::from_bits((parameters.load * line.bits() as f64) as u64);
                let trial = bench.trial(offered, duration)?;
                let bits: f64 = trial
                    .streams
                    .iter()
                    .map(|s| (s.rx_bytes + ethernet::OVERHEAD as u64 * s.rx_packets) as f64 * 8.0)
                    .sum();
                // Of one of the two streams, as rates are given here.
                let received = bits / trial.streams.len() as f64 / duration.as_secs_f64();
                let topology = bench.tester.testbed().network();
                let events = match event {
                    Event::None => 0,
                    Event::Rekey => topology.outbound_updates() - updates_before,
                    Event::Reload => 2 - topology.reloads_left() as u64,
                };
                figures.loss = Some(trial.loss_ratio());
                figures.received = Some(received);
                figures.of_offered = Some(received / offered.bits() as f64);
                figures.of_computed = Some(received / computed);
                figures.events = Some(events as f64);
            }
        }
        bench.check()?;
        Ok(VitaFigures {
            operations: bench.sent,
            lost: bench.lost,
            duplicates: bench.duplicates,
            reordered: bench.reordered,
            unaccounted: bench.unaccounted,
            ..figures
        })
    }
}

/// The wall time of a trial in seconds, which its packets take.
fn expected_seconds(parameters: &VitaParameters) -> f64 {
    const PER_PACKET: f64 = 1.5e-6;
    const SET_UP: f64 = 0.03;
    let sizes = parameters.size.0.period();
    let bits: f64 = sizes.iter().map(|&size| f64::from(size + 24) * 8.0).sum();
    let line = parameters.line.0 as f64 * sizes.len() as f64 / bits;
    let loads = match parameters.measure {
        // A search tries one rate for each bit of the answer, most of them near the answer.
        Measure::FindLimit => {
            let steps = parameters.line.0 / parameters.precision.0;
            0.6 * f64::from(steps.max(2).ilog2())
        }
        Measure::Load => parameters.load,
    };
    let packets = 2.0 * line * loads * parameters.duration.as_secs_f64();
    SET_UP + packets * PER_PACKET
}

/// The lifetime of keys with the event `rekey`: the shortest that the exchange allows. Keys are
/// replaced after half of it.
const SA_TTL: Duration = Duration::from_secs(4);

/// The tester in front of the set-up, and the totals of its trials.
struct Bench {
    tester: Tester<Virtual<Topology>>,
    sent: u64,
    lost: u64,
    duplicates: u64,
    reordered: u64,
    /// Packets that neither a receiver nor a cable accounts for.
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
            let known = stream.rx_packets + stream.lost;
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
        ensure!(
            topology.adds_up(),
            "the counters of a gateway do not add up"
        );
        let between = topology.between();
        ensure!(between.delivered > 0, "nothing went between the gateways");
        Ok(())
    }
}

/// The largest part of a cable's rate that packets of this mix can use, given that they are longer
/// on the cable between the gateways.
fn computed_share(size: PacketSize) -> f64 {
    let wire = |bytes: usize| ethernet::on_wire(bytes) as f64;
    let outer = |bytes: usize| bytes + ipv4::HEADER + esp::overhead(bytes - ethernet::HEADER);
    let sizes = size.period();
    let short: f64 = sizes.iter().map(|&bytes| wire(bytes.into())).sum();
    let long: f64 = sizes.iter().map(|&bytes| wire(outer(bytes.into()))).sum();
    short / long
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
