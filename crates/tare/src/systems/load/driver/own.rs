//! Tare's own generator in a trial: the keys beforehand, the closed loop that a rate is a share of,
//! and the trial itself.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::{bail, ensure};
use tare_load::protocol::{Http, MemcachedText, Progress, Protocol, Resp, RespVersion, Response};
use tare_load::{
    run, Key, KeyPattern, Options, Pace, Record, Request, Target, Unexpected, ValueLen, Workload,
};

use super::server::{Running, Server};
use super::tool::Report;
use super::LoadParameters;

/// The first key: "tare:" and eleven digits are the 16 bytes that redis-benchmark's and memaslap's
/// keys have, so that responses are as long.
pub(super) const FIRST_KEY: u64 = 10_000_000_000;

/// Requests in flight per connection while keys are written.
const FILL_PIPELINE: usize = 16;

/// A protocol with keys of equal length.
#[derive(Clone)]
struct Padded<P>(P);

impl<P: Protocol> Protocol for Padded<P> {
    fn greet(&mut self, out: &mut Vec<u8>) -> usize {
        self.0.greet(out)
    }

    #[inline]
    fn write(&mut self, request: &Request, out: &mut Vec<u8>) {
        let key = match &request.key {
            Key::Number(number) => Key::Number(FIRST_KEY + number),
            Key::Name(name) => Key::Name(name.clone()),
        };
        self.0.write(&Request { key, ..*request }, out);
    }

    #[inline]
    fn read(&mut self, bytes: &[u8]) -> Result<Progress, Unexpected> {
        self.0.read(bytes)
    }

    fn end(&mut self) -> Option<Response> {
        self.0.end()
    }
}

/// Writes every key once; nothing for nginx. The other requests of these options are as given.
///
/// # Errors
/// A key could not be written.
pub(in crate::systems) fn fill(
    server: Server,
    target: &Target,
    options: Options,
) -> anyhow::Result<()> {
    if server == Server::Nginx {
        return Ok(());
    }
    let keys = options.workload.keys;
    let fill = Options {
        workload: Workload {
            set_share: 1.0,
            pattern: KeyPattern::Sequential,
            ..options.workload
        },
        requests: Some(keys),
        ..options
    };
    let record = trial(server, target, &fill)?;
    ensure!(
        record.served == keys,
        "found {} of {keys} keys written: {}",
        record.served,
        record.first_error.as_deref().unwrap_or("no response")
    );
    Ok(())
}

/// Writes every key of a trial's server.
///
/// # Errors
/// As [`fill`].
pub(super) fn prepare(server: &Running, parameters: &LoadParameters) -> anyhow::Result<()> {
    let options = Options {
        pipeline: FILL_PIPELINE,
        duration: super::FILL_MAX,
        ..options(parameters)
    };
    fill(parameters.server, &target(server), options)
}

fn target(server: &Running) -> Target {
    Target {
        address: server.address(),
        tls: None,
    }
}

/// Runs one load for `duration`; every response must serve its request.
///
/// # Errors
/// A request was not served, or the generator fell behind, so that the latencies are not the
/// server's.
pub(super) fn load(
    server: &Running,
    parameters: &LoadParameters,
    pace: Pace,
    duration: Duration,
) -> anyhow::Result<Record> {
    let options = Options {
        pace,
        duration,
        ..options(parameters)
    };
    let record = trial(parameters.server, &target(server), &options)?;
    complete(&record, false)?;
    match record.is_invalid() {
        Some(reason) => bail!("invalid: {reason}"),
        None => Ok(record),
    }
}

/// Checks that every request was served; misses are no faults if some are wanted.
///
/// # Errors
/// The number of those that were not, with the first reason.
pub(in crate::systems) fn complete(record: &Record, has_misses: bool) -> anyhow::Result<()> {
    let misses = if has_misses { 0 } else { record.misses };
    let lost = misses + record.refused + record.failed + record.timed_out;
    let error = record.first_error.as_deref();
    ensure!(
        lost == 0,
        "{lost} of {} requests were not served: {}",
        record.issued,
        error.unwrap_or("a key is missing, or there is no response")
    );
    Ok(())
}

impl Report {
    /// Returns the report of a load by Tare's own generator.
    pub(in crate::systems) fn of(record: &Record) -> Report {
        let latency = |level| Some(record.latency.quantile(level)?.as_secs_f64());
        Report {
            rate: record.rate().unwrap_or_default(),
            p50: latency(0.5),
            p99: latency(0.99),
            p999: latency(0.999),
            bytes_per_response: record.bytes_per_response(),
            responses: Some(record.answered()),
        }
    }
}

/// The options that trials of these parameters share. One thread, which is this one, pinned
/// beforehand.
fn options(parameters: &LoadParameters) -> Options {
    let workload = workload(parameters.server, parameters.value.0, parameters.keys);
    Options {
        connections: parameters.connections,
        pipeline: parameters.pipeline,
        workload: Workload {
            set_share: parameters.sets,
            ..workload
        },
        warm_up: Duration::ZERO,
        timeout: super::TIMEOUT,
        ..Options::default()
    }
}

/// Reads of keys that a server has, with values of this length; of nginx, its document.
pub(in crate::systems) fn workload(server: Server, value_len: u64, keys: u64) -> Workload {
    let value_len = value_len as u32;
    match server {
        Server::Nginx => Workload::default(),
        _ => Workload {
            set_share: 0.0,
            keys,
            pattern: KeyPattern::Uniform,
            value_len: ValueLen::Range(value_len, value_len),
            hit_share: 1.0,
        },
    }
}

/// Runs a load on a server.
///
/// # Errors
/// It cannot be reached.
pub(in crate::systems) fn trial(
    server: Server,
    target: &Target,
    options: &Options,
) -> anyhow::Result<Record> {
    let go_on = AtomicBool::new(false);
    Ok(match server {
        Server::Nginx => {
            let http = Http::new(&target.address.to_string(), &[super::DOCUMENT.into()], &[])?;
            run(target, &http, options, &go_on)?
        }
        Server::Memcached => run(target, &Padded(MemcachedText::default()), options, &go_on)?,
        Server::Redis => run(
            target,
            &Padded(Resp::new(RespVersion::Two)),
            options,
            &go_on,
        )?,
    })
}
