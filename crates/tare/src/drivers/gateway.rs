//! The gateway's software benchmark: packets through two gateways in one process, and the cipher
//! alone beside it.

use std::sync::Barrier;
use std::time::{Duration, Instant};

use anyhow::{anyhow, Context as _};
use rustix::time::{clock_gettime, ClockId};
use tare_gateway::bench::{Bench, Done, Setup, Subject};
use tare_gateway::sa::Counting;
use tare_lab::driver::{Driver, Invocation, Missing, Parameter, ParameterKind, Role, Vocabulary};
use tare_lab::sample::OPERATIONS;
use tare_lab::unit::{Dimension, Unit};
use tare_lab::value::Parameters;
use tare_packet::imix::PacketSize;

use super::{count, duration, own_trial, parameter, text, Workload};
use crate::pace;
use crate::trial::{Speaker, TrialError};

/// The part of a trial's duration that its warm-up takes on top.
const WARM_UP: f64 = 0.15;

/// Packets in one timed call: eight bursts.
const STEP: u64 = 512;

pub(super) struct Gateway;

impl Driver for Gateway {
    fn vocabulary(&self) -> Vocabulary {
        let choice = |values: &[&str]| {
            ParameterKind::Choice(values.iter().map(|value| (*value).to_owned()).collect())
        };
        Vocabulary {
            name: "gateway".into(),
            about:
                "Packets made, sealed, opened, compared and counted by two gateways in one process"
                    .into(),
            parameters: vec![
                parameter(
                    "subject",
                    choice(&Subject::ALL.map(Subject::name)),
                    Some("gateway".into()),
                    "both gateways; only the sealing and opening of the same packets; or only making and comparing them",
                ),
                size_parameter(),
                parameter(
                    "routes",
                    ParameterKind::Int(1, 10_000),
                    Some(1.into()),
                    "routes that the packets take in turn, each with keys of its own",
                ),
                parameter(
                    "workers",
                    ParameterKind::Int(1, 64),
                    Some(1.into()),
                    "threads, each with outbound SAs of its own",
                ),
                parameter(
                    "key",
                    choice(&["aes128", "aes256"]),
                    Some("aes128".into()),
                    "the cipher's key",
                ),
                parameter(
                    "esn",
                    choice(&["on", "off"]),
                    Some("on".into()),
                    "sequence numbers of 64 bits, or of 32",
                ),
                parameter(
                    "duration",
                    ParameterKind::Quantity(Dimension::Time),
                    Some("50 ms".into()),
                    "the measured part of a trial",
                ),
            ],
            references: vec![],
            metrics: vec![
                ("packet_rate".into(), Dimension::PacketRate),
                ("throughput".into(), Dimension::DataRate),
                ("cpu_packet_rate".into(), Dimension::PacketRate),
                ("cpu_throughput".into(), Dimension::DataRate),
            ],
            counters: [OPERATIONS, "bytes", "wrong"].map(String::from).to_vec(),
            open: false,
            deterministic: false,
        }
    }

    fn check(&self, parameters: &Parameters) -> Result<(), Missing> {
        let workers = count(parameters, "workers").unwrap_or(1);
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        if workers <= cpus {
            return Ok(());
        }
        Err(Missing {
            reason: format!("{workers} workers need as many CPUs, this machine has {cpus}"),
            remedy: None,
        })
    }

    fn invocation(&self, _: &Role, parameters: &Parameters) -> Invocation {
        let expected = duration(parameters, "duration").unwrap_or_default();
        own_trial("gateway", parameters, expected.mul_f64(1.0 + WARM_UP))
    }
}

/// What a benchmark of packets takes as their size.
pub(super) fn size_parameter() -> Parameter {
    parameter(
        "size",
        ParameterKind::Text,
        Some("60".into()),
        "bytes of a packet with its Ethernet header, or IMIX",
    )
}

/// The parameter as a size.
pub(super) fn size(parameters: &Parameters) -> anyhow::Result<PacketSize> {
    text(parameters, "size")?.parse().context("parameter size")
}

/// What was done in the measured time.
struct Timed {
    done: Done,
    wrong: u64,
    /// Seconds on the clock, of the worker that took longest.
    wall: f64,
    /// Seconds of processor time, of all workers together.
    cpu: f64,
}

impl Workload for Gateway {
    fn run(&self, parameters: &Parameters, speaker: &mut Speaker) -> Result<(), TrialError> {
        let workers = count(parameters, "workers")?;
        let setup = Setup {
            sizes: size(parameters)?.period().to_vec(),
            routes: count(parameters, "routes")?,
            key_bytes: if text(parameters, "key")? == "aes256" {
                32
            } else {
                16
            },
            counting: if text(parameters, "esn")? == "off" {
                Counting::Plain
            } else {
                Counting::Extended
            },
            workers,
        };
        let bench = Bench::new(&setup).map_err(|e| anyhow!(e))?;
        let duration = duration(parameters, "duration")?;
        let subject = text(parameters, "subject")?;
        let subject =
            Subject::by_name(subject).ok_or_else(|| anyhow!("found subject {subject}"))?;
        let timed = if workers == 1 {
            let mut step = bench.step(subject).map_err(|e| anyhow!(e))?;
            let mut step = move |n| step(n).map_err(|e| anyhow!(e));
            let calls = pace::warm_up(duration.mul_f64(WARM_UP), || step(STEP).map(|_| ()))?;
            speaker.start()?;
            let mut done = Done::default();
            let timed = pace::run(calls, duration, None, || {
                step(STEP).map(|d| add(&mut done, d))
            })?;
            Timed {
                done,
                wrong: timed.operations * STEP - done.packets,
                wall: (timed.until - timed.from).as_secs_f64(),
                cpu: timed.cpu.as_secs_f64(),
            }
        } else {
            speaker.start()?;
            together(&bench, subject, workers, duration)?
        };
        let (packets, bytes) = (timed.done.packets as f64, timed.done.bytes as f64);
        for (rate, throughput, seconds) in [
            ("packet_rate", "throughput", timed.wall),
            ("cpu_packet_rate", "cpu_throughput", timed.cpu),
        ] {
            speaker.sample(rate, packets / seconds, Unit::PacketsPerSecond)?;
            speaker.sample(throughput, bytes / seconds, Unit::BytesPerSecond)?;
        }
        speaker.counters(&[
            (OPERATIONS, timed.done.packets),
            ("bytes", timed.done.bytes),
            ("wrong", timed.wrong),
        ])?;
        Ok(())
    }
}

fn add(all: &mut Done, done: Done) {
    all.packets += done.packets;
    all.bytes += done.bytes;
}

/// Several workers from the same moment until the time is over.
fn together(
    bench: &Bench,
    subject: Subject,
    workers: usize,
    time: Duration,
) -> anyhow::Result<Timed> {
    let ready = &Barrier::new(workers);
    let work = move || -> anyhow::Result<Timed> {
        let step = bench.step(subject);
        ready.wait();
        let mut step = step.map_err(|e| anyhow!(e))?;
        let (mut done, mut asked) = (Done::default(), 0);
        let cpu = clock_gettime(ClockId::ThreadCPUTime);
        let start = Instant::now();
        while start.elapsed() < time {
            // Some milliseconds between two looks at the clock.
            add(&mut done, step(16 * STEP).map_err(|e| anyhow!(e))?);
            asked += 16 * STEP;
        }
        let cpu = Duration::try_from(clock_gettime(ClockId::ThreadCPUTime) - cpu);
        Ok(Timed {
            wrong: asked - done.packets,
            done,
            wall: start.elapsed().as_secs_f64(),
            cpu: cpu.context("the thread's clock")?.as_secs_f64(),
        })
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
        let mut all = Timed {
            done: Done::default(),
            wrong: 0,
            wall: 0.0,
            cpu: 0.0,
        };
        for thread in threads {
            let one = thread.join().map_err(|_| anyhow!("a worker panicked"))??;
            add(&mut all.done, one.done);
            all.wrong += one.wrong;
            all.wall = all.wall.max(one.wall);
            all.cpu += one.cpu;
        }
        Ok(all)
    })
}
