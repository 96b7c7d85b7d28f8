//! Other systems: the round trip of a message of UCX, and of a key of memcached and Redis.

use std::process::{Child, Command, Stdio};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure, Context as _};
use tare_load::protocol::{MemcachedText, Protocol, Resp, RespVersion, Udp};
use tare_load::{run, KeyPattern, Options, Record, Target, ValueLen, Workload};
use wait4::Wait4 as _;

use super::super::layout::Direction;
use super::{FarmemFigures, FarmemParameters, System, Transport};
use crate::agent::Agent;
use crate::machine::load_program;
use crate::systems::load::driver::{pin, processor_time_of, processors, Running, Server};

/// Keys in use, as many as pages at order 7.
const KEYS: u64 = 128;

/// The longest time for writing the keys.
const FILL_MAX: Duration = Duration::from_secs(20);

/// The program of UCX that measures.
const UCX: &str = "ucx_perftest";

/// Bytes of a message of UCX that asks for data or confirms it: fewer than a request of Tare's has.
const UCX_REQUEST: u64 = 16;

/// Messages of UCX that are not measured.
const UCX_WARM_UP: u64 = 1000;

/// Messages of UCX per second of a trial, so that it takes about as long.
const UCX_RATE: f64 = 150_000.0;

/// Times that a client of UCX tries to find its server, with a pause between.
const UCX_TRIES: u32 = 100;
const UCX_PAUSE: Duration = Duration::from_millis(20);

/// Measures one of them.
///
/// # Errors
/// It could not be started, or an operation was not served.
pub(super) fn measure(
    parameters: &FarmemParameters,
    agent: &mut Agent,
) -> anyhow::Result<FarmemFigures> {
    match parameters.system {
        System::Ucx => ucx(parameters, agent),
        System::Memcached => {
            let protocol = Udp::new(MemcachedText::default());
            server(parameters, Server::Memcached, &protocol, agent)
        }
        _ => {
            let protocol = Resp::new(RespVersion::Two);
            server(parameters, Server::Redis, &protocol, agent)
        }
    }
}

fn server<P: Protocol + Clone + Sync>(
    parameters: &FarmemParameters,
    kind: Server,
    protocol: &P,
    agent: &mut Agent,
) -> anyhow::Result<FarmemFigures> {
    let (server_cpu, own_cpu) = processors()?;
    pin(server_cpu)?;
    let server = Running::start(kind, 0)?;
    pin(own_cpu)?;
    let target = Target {
        address: server.address(),
        tls: None,
    };
    let len = parameters.size.0 as u32;
    let trial = |set_share, pattern, duration, requests| -> anyhow::Result<Record> {
        let options = Options {
            connections: 1,
            pipeline: 1,
            workload: Workload {
                set_share,
                keys: KEYS,
                pattern,
                value_len: ValueLen::Range(len, len),
                hit_share: 1.0,
            },
            warm_up: Duration::ZERO,
            duration,
            requests,
            ..Options::default()
        };
        let record = run(&target, protocol, &options, &AtomicBool::new(false))?;
        let lost = record.misses + record.refused + record.failed + record.timed_out;
        ensure!(
            lost == 0,
            "{lost} of {} requests were not served",
            record.issued
        );
        Ok(record)
    };
    trial(1.0, KeyPattern::Sequential, FILL_MAX, Some(KEYS))?;
    agent.start()?;
    let before = server.processor_time()?;
    let set_share = match parameters.op {
        Direction::Read => 0.0,
        Direction::Write => 1.0,
    };
    let from = Instant::now();
    let record = trial(set_share, KeyPattern::Uniform, parameters.duration, None)?;
    let elapsed = from.elapsed();
    let processor_time = server.processor_time()?.saturating_sub(before);
    let latency = |share| Some(record.latency.quantile(share)?.as_secs_f64());
    let operations = record.served;
    Ok(FarmemFigures {
        latency_p50: latency(0.5),
        latency_p99: latency(0.99),
        latency_p999: latency(0.999),
        time: Some(elapsed.as_secs_f64() / operations as f64),
        cpu_node_time: Some(processor_time.as_secs_f64() / operations as f64),
        operations,
        bytes: operations * parameters.size.0,
        sessions: 1,
        ..FarmemFigures::default()
    })
}

/// A program that ends with this value.
struct Ended(Option<Child>);

impl Ended {
    /// Returns its processor time so far.
    fn processor_time(&self) -> anyhow::Result<Duration> {
        processor_time_of(self.0.as_ref().context("it has ended")?)
    }

    /// Ends it, and returns its processor time.
    fn end(mut self) -> anyhow::Result<Duration> {
        let mut program = self.0.take().context("it has ended")?;
        let _ = program.kill();
        let usage = program.wait4()?.rusage;
        Ok(usage.utime + usage.stime)
    }
}

impl Drop for Ended {
    fn drop(&mut self) {
        if let Some(program) = &mut self.0 {
            let _ = program.kill();
            let _ = program.wait();
        }
    }
}

/// Half of a round trip of UCX.
#[derive(Clone, Copy)]
struct Half {
    /// Its median, in seconds.
    latency: f64,
    /// Its mean, in seconds.
    mean: f64,
    /// The server's processor time, in seconds.
    processor_time: f64,
}

/// UCX's own test of latency: messages of the same length there and back, of which it prints half
/// of the round trip. Nothing is looked up or verified. A read is half a round trip of a request
/// and half of one of the data, a write likewise. The server's processor time counts from when a
/// client is started, so that the setup of its connection is a part of it.
fn ucx(parameters: &FarmemParameters, agent: &mut Agent) -> anyhow::Result<FarmemFigures> {
    let (server_cpu, own_cpu) = processors()?;
    let transports = match parameters.transport {
        Transport::Shm => "posix,sysv,self",
        _ => "tcp,self",
    };
    let program = load_program(UCX).context("no ucx_perftest")?;
    let port = std::net::TcpListener::bind(("127.0.0.1", 0))?
        .local_addr()?
        .port();
    let command = |cpu: usize| {
        let mut command = Command::new(&program);
        command
            .env("UCX_TLS", transports)
            .env("UCX_NET_DEVICES", "lo")
            .env("UCX_WARN_UNUSED_ENV_VARS", "n")
            .args(["-p", &port.to_string(), "-c", &cpu.to_string()])
            .stdin(Stdio::null())
            .stderr(Stdio::null());
        command
    };
    let messages = (parameters.duration.as_secs_f64() / 2.0 * UCX_RATE).max(1000.0) as u64;
    let server = || -> anyhow::Result<Ended> {
        let server = command(server_cpu).stdout(Stdio::null()).spawn();
        Ok(Ended(Some(server.context(UCX)?)))
    };
    let half = |size: u64| -> anyhow::Result<Half> {
        // It serves one client.
        let server = server()?;
        for _ in 0..UCX_TRIES {
            let before = server.processor_time()?;
            let output = command(own_cpu)
                .args(["127.0.0.1", "-t", "tag_lat", "-f"])
                .args(["-w", &UCX_WARM_UP.to_string()])
                .args(["-s", &size.to_string(), "-n", &messages.to_string()])
                .output()
                .context(UCX)?;
            if let Some((latency, mean)) = half_round_trip(&String::from_utf8_lossy(&output.stdout))
            {
                let time = server.end()?.saturating_sub(before).as_secs_f64();
                return Ok(Half {
                    latency,
                    mean,
                    processor_time: time / 2.0 / (messages + UCX_WARM_UP) as f64,
                });
            }
            // Its server listens a moment after it was started.
            std::thread::sleep(UCX_PAUSE);
        }
        bail!("{UCX} gave no figures");
    };
    agent.start()?;
    let (request, data) = (half(UCX_REQUEST)?, half(parameters.size.0)?);
    Ok(FarmemFigures {
        latency_p50: Some(request.latency + data.latency),
        time: Some(request.mean + data.mean),
        cpu_node_time: Some(request.processor_time + data.processor_time),
        operations: messages,
        ..FarmemFigures::default()
    })
}

/// Reads the median and the overall mean of the last line of figures, in seconds: after the number
/// of messages, with the mean of the last messages between them.
fn half_round_trip(output: &str) -> Option<(f64, f64)> {
    let line = output.lines().rev().find(|line| {
        let is_figure = |field: &str| field.parse::<f64>().is_ok();
        line.split_whitespace()
            .filter(|field| is_figure(field))
            .count()
            >= 6
    })?;
    let mut figures = line
        .split_whitespace()
        .filter_map(|field| field.parse::<f64>().ok());
    figures.next()?;
    let (median, _, mean) = (figures.next()?, figures.next()?, figures.next()?);
    (median > 0.0 && mean > 0.0).then_some((median * 1e-6, mean * 1e-6))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_and_the_mean_of_ucx_are_in_its_last_line() {
        let output =
            "+--------------+\n|    Stage     |\nFinal:  100000  0.322  0.331  0.330 47.4 \
                      47.3 3100000 3090000\n";
        assert_eq!(half_round_trip(output), Some((0.322e-6, 0.330e-6)));
        assert_eq!(
            half_round_trip("100000 0.5 0.6 0.7 1 2 3 4"),
            Some((0.5e-6, 0.7e-6))
        );
        for none in [
            "",
            "Final: 3",
            "a b c d e f g h",
            "1 0.000 1 1 1 1 1 1",
            "1 1 1 0.000 1 1 1 1",
        ] {
            assert_eq!(half_round_trip(none), None, "{none}");
        }
    }
}
