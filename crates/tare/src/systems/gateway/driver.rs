//! The gateway's software benchmark: packets through two gateways in one process, and the cipher
//! alone beside it.

use std::sync::Barrier;
use std::time::{Duration, Instant};

use anyhow::{anyhow, Context as _};
use rustix::time::{clock_gettime, ClockId};
use tare_gateway::dataplane::SequenceMode;
use tare_gateway::tools::bench::{Bench, Done, Setup, Subject, ROUTES_MAX};
use tare_lab::driver::{Expected, Missing, ParameterKind};
use tare_lab::parameters::{Choice, ParameterType};
use tare_lab::value::Value;
use tare_lab::{choices, figures, parameters};
use tare_packet::imix::{self, PacketSize};

use crate::agent::{Agent, TrialError};
use crate::machine::Machine;
use crate::pace;
use crate::systems::workload::{by_the_clock, Workload};

/// The part of a trial's duration that its warm-up takes on top.
const WARM_UP: f64 = 0.15;

/// Packets in one timed call: eight bursts.
const STEP: u64 = 512;

/// The part of the gateways that the benchmark times.
#[derive(Clone, Copy)]
pub(crate) struct Timing(Subject);

impl Choice for Timing {
    fn all() -> Vec<Timing> {
        Subject::ALL.map(Timing).to_vec()
    }

    fn name(&self) -> &'static str {
        self.0.name()
    }
}

/// The size of the packets of a test.
#[derive(Clone, Copy)]
pub(crate) struct Size(pub(crate) PacketSize);

impl ParameterType for Size {
    fn kind() -> ParameterKind {
        ParameterKind::Text
    }

    fn from_value(value: &Value) -> Option<Size> {
        value.as_str()?.parse().ok().map(Size)
    }

    fn expected(_: &ParameterKind) -> String {
        format!(
            "\"{}\" to \"{}\" bytes, or \"IMIX\"",
            imix::SIZE_MIN,
            imix::SIZE_MAX
        )
    }
}

choices! {
    /// The cipher and the length of its key.
    #[derive(Clone, Copy)]
    pub(crate) enum Cipher {
        /// AES-128-GCM.
        Aes128 = "aes128",
        /// AES-256-GCM.
        Aes256 = "aes256",
    }
}

choices! {
    /// The length of sequence numbers.
    #[derive(Clone, Copy)]
    pub(crate) enum Esn {
        /// 64 bits.
        On = "on",
        /// 32 bits.
        Off = "off",
    }
}

parameters! {
    /// The parameters of the driver `gateway`.
    pub(crate) struct GatewayParameters {
        /// the data planes of both gateways; only the sealing and opening of the same packets;
        /// only making and comparing them; or whole gateways, each with a worker's loop, its
        /// clock, ports in memory and keys that were negotiated
        subject: Timing = "gateway",
        /// bytes of a packet with its Ethernet header, or IMIX
        size: Size = "60",
        /// routes that the packets take in turn, each with keys of its own
        routes: usize [1..=ROUTES_MAX as i64] = 1,
        /// threads, each with outbound SAs of its own
        workers: usize [1..=64] = 1,
        /// the cipher's key
        key: Cipher = "aes128",
        /// sequence numbers of 64 bits, or of 32
        esn: Esn = "on",
        /// the measured part of a trial
        duration: Duration = "50 ms",
    }
}

figures! {
    /// The figures of a trial of `gateway`.
    pub(crate) struct GatewayFigures {
        metrics {
            /// packets per second of wall time
            packet_rate: f64 [PacketsPerSecond],
            /// bytes per second of wall time
            throughput: f64 [BytesPerSecond],
            /// packets per second of processor time, summed over the workers
            cpu_packet_rate: f64 [PacketsPerSecond],
            /// bytes per second of processor time, summed over the workers
            cpu_throughput: f64 [BytesPerSecond],
        }
        counters {
            /// packets that arrived unchanged
            operations,
            /// bytes of them
            bytes,
            /// packets that were lost or changed
            wrong,
        }
    }
}

/// The driver `gateway`.
pub(crate) struct Gateway;

impl Workload for Gateway {
    const NAME: &'static str = "gateway";
    const ABOUT: &'static str =
        "packets made, sealed, opened, compared and counted by two gateways in one process";
    type Parameters = GatewayParameters;
    type Figures = GatewayFigures;

    fn check(parameters: &GatewayParameters, machine: &Machine) -> Result<(), Missing> {
        let workers = parameters.workers;
        let Timing(subject) = parameters.subject;
        if subject == Subject::Worker && workers > 1 {
            return Err(Missing {
                reason: format!("the subject \"worker\" has one worker, found {workers}"),
                remedy: None,
            });
        }
        machine.need_cpus(workers, &format!("{workers} workers need"))
    }

    fn expected(parameters: &GatewayParameters) -> Option<Expected> {
        Some(by_the_clock(parameters.duration.mul_f64(1.0 + WARM_UP)))
    }

    fn run(parameters: GatewayParameters, agent: &mut Agent) -> Result<GatewayFigures, TrialError> {
        let (workers, duration) = (parameters.workers, parameters.duration);
        let setup = Setup {
            sizes: parameters.size.0.period().to_vec(),
            routes: parameters.routes,
            key_bytes: match parameters.key {
                Cipher::Aes128 => 16,
                Cipher::Aes256 => 32,
            },
            sequence_mode: match parameters.esn {
                Esn::On => SequenceMode::Extended,
                Esn::Off => SequenceMode::Plain,
            },
            workers,
        };
        let bench = Bench::new(&setup).map_err(|e| anyhow!(e))?;
        let Timing(subject) = parameters.subject;
        let timed = if workers == 1 {
            let mut step = bench.step(subject).map_err(|e| anyhow!(e))?;
            let mut step = move |n| step(n).map_err(|e| anyhow!(e));
            let calls = pace::warm_up(duration.mul_f64(WARM_UP), || step(STEP).map(|_| ()))?;
            agent.start()?;
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
            agent.start()?;
            together(&bench, subject, workers, duration)?
        };
        let (packets, bytes) = (timed.done.packets as f64, timed.done.bytes as f64);
        Ok(GatewayFigures {
            packet_rate: packets / timed.wall,
            throughput: bytes / timed.wall,
            cpu_packet_rate: packets / timed.cpu,
            cpu_throughput: bytes / timed.cpu,
            operations: timed.done.packets,
            bytes: timed.done.bytes,
            wrong: timed.wrong,
        })
    }
}

/// The work of the measured time.
struct Timed {
    done: Done,
    wrong: u64,
    /// Wall time in seconds, of the worker that took longest.
    wall: f64,
    /// Processor time in seconds, of all workers together.
    cpu: f64,
}

fn add(all: &mut Done, done: Done) {
    all.packets += done.packets;
    all.bytes += done.bytes;
}

/// Runs several workers from the same moment until the time is over.
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
            // Some milliseconds between two readings of the clock.
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
