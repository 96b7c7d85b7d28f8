//! The load of a trial: requests to a leg that another process has, counted on both ends.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::{bail, ensure};
use serde::{Deserialize, Serialize};
use tare_lab::parameters::ParameterSet as _;
use tare_lab::value::Parameters;
use tare_load::protocol::{Http, MemcachedText, Resp, RespVersion};
use tare_load::{run, KeyPattern, Options, Record, Target, ValueLen, Workload};

use super::driver::GuestParameters;
use super::legs::Leg;
use super::service::trusting;
use crate::systems::load::driver::{
    Generator, LoadParameters, Padded, Report, Served, Server, DOCUMENT,
};

/// An emulated guest takes seconds for a hundred connections at once.
const TIMEOUT: Duration = Duration::from_secs(60);
/// The longest time for writing the keys, and for a number of requests.
pub(super) const WORK_MAX: Duration = Duration::from_secs(600);
/// Requests in flight per connection while keys are written.
const FILL_PIPELINE: usize = 4;
/// Connections that write keys.
const FILL_CONNECTIONS: usize = 4;

/// All that the client knows of the server's role.
#[derive(Serialize, Deserialize)]
pub(super) struct Remote {
    /// The process in whose network namespace both are.
    pub(super) pid: u32,
    pub(super) address: SocketAddr,
    /// The address for questions about the server's counts.
    pub(super) counts: SocketAddr,
    /// The certificate of its TLS; `None` without.
    pub(super) certificate: Option<String>,
    /// From the start of QEMU until its agent was ready; `None` on the host.
    pub(super) boot_seconds: Option<f64>,
    /// Bytes of one response of the same server on the host, over loopback; `None` of that itself.
    pub(super) reference: Option<u64>,
}

impl Remote {
    /// Describes a leg of this process.
    pub(super) fn of(leg: &mut Leg) -> Remote {
        Remote {
            pid: std::process::id(),
            address: leg.address(),
            counts: leg.counts(),
            certificate: leg.certificate().map(str::to_owned),
            boot_seconds: leg.guest().map(|guest| guest.boot_time().as_secs_f64()),
            reference: None,
        }
    }
}

/// The result of a load.
pub(super) struct Load {
    pub(super) report: Report,
    /// Requests that the server counts.
    pub(super) operations: u64,
    /// The difference to those that the generator has responses to.
    pub(super) miscounted: u64,
    /// The difference between the bytes of the values, or documents, that came and those that the
    /// server's hits make.
    pub(super) unequal: u64,
    /// The difference between the bytes of one response and of the same one of the host.
    pub(super) unlike: u64,
}

/// Writes the keys of a store.
pub(super) fn fill(remote: &Remote, parameters: &GuestParameters) -> anyhow::Result<()> {
    if parameters.server == Server::Nginx {
        return Ok(());
    }
    let workload = Workload {
        set_share: 1.0,
        pattern: KeyPattern::Sequential,
        ..workload(parameters)
    };
    let options = Options {
        connections: FILL_CONNECTIONS,
        pipeline: FILL_PIPELINE,
        workload,
        duration: WORK_MAX,
        requests: Some(parameters.keys),
        ..options(parameters)
    };
    let record = trial(remote, parameters.server, &options)?;
    ensure!(
        record.served == parameters.keys,
        "found {} of {} keys written: {}",
        record.served,
        parameters.keys,
        record.first_error.as_deref().unwrap_or("no response")
    );
    Ok(())
}

/// Returns the bytes of one response: of the document, or of the value of the first key, which is
/// written before.
pub(super) fn one(remote: &Remote, parameters: &GuestParameters) -> anyhow::Result<u64> {
    let one = GuestParameters {
        keys: 1,
        sets: 0.0,
        hits: 1.0,
        requests: 1,
        connections: 1,
        ..parameters.clone()
    };
    fill(remote, &one)?;
    let record = trial(remote, one.server, &options(&one))?;
    check(&record, &one)?;
    Ok(record.received_bytes)
}

/// Loads the server, in its network namespace. `folder` is for files of other generators.
pub(super) fn load(
    remote: &Remote,
    folder: &Path,
    parameters: &GuestParameters,
) -> anyhow::Result<Load> {
    let (server, size) = (parameters.server, parameters.size.0);
    let unlike = match remote.reference {
        Some(reference) => one(remote, parameters)?.abs_diff(reference),
        None => 0,
    };
    let before = Served::ask(server, remote.counts)?;
    if parameters.generator != Generator::Load {
        let report = other(remote, folder, parameters)?;
        let served = Served::ask(server, remote.counts)?.since(server, &before)?;
        let counted = report.responses.unwrap_or(0);
        return Ok(Load {
            report,
            operations: served.requests,
            miscounted: beyond_flight(served.requests, counted, parameters.connections),
            unequal: 0,
            unlike,
        });
    }
    let record = trial(remote, server, &options(parameters))?;
    let served = Served::ask(server, remote.counts)?.since(server, &before)?;
    check(&record, parameters)?;
    let hits = served.hits.unwrap_or(served.requests);
    let latency = |level| Some(record.latency.quantile(level)?.as_secs_f64());
    Ok(Load {
        report: Report {
            rate: record.rate().unwrap_or_default(),
            p50: latency(0.5),
            p99: latency(0.99),
            p999: None,
            bytes_per_response: record.bytes_per_response(),
            responses: Some(record.answered()),
        },
        operations: served.requests,
        miscounted: record.answered().abs_diff(served.requests),
        unequal: record.body_bytes.abs_diff(hits * size),
        unlike,
    })
}

/// Returns the difference between the requests that a server counts and those that a generator has
/// responses to, which ends with a request in flight on each connection.
fn beyond_flight(served: u64, answered: u64, connections: usize) -> u64 {
    match served.checked_sub(answered) {
        Some(more) => more.saturating_sub(connections as u64),
        None => answered - served,
    }
}

/// Checks that all was as asked.
fn check(record: &Record, parameters: &GuestParameters) -> anyhow::Result<()> {
    let misses = if parameters.hits < 1.0 {
        0
    } else {
        record.misses
    };
    let lost = misses + record.refused + record.failed + record.timed_out;
    if lost > 0 {
        let error = record.first_error.as_deref().unwrap_or("no response");
        let issued = record.issued;
        bail!("{lost} of {issued} requests were not served: {error}");
    }
    ensure!(
        parameters.requests == 0 || record.answered() == parameters.requests,
        "found {} responses, expected {}",
        record.answered(),
        parameters.requests
    );
    if let (true, Some(reason)) = (parameters.timed, record.is_invalid()) {
        bail!("invalid: {reason}");
    }
    Ok(())
}

fn other(remote: &Remote, folder: &Path, parameters: &GuestParameters) -> anyhow::Result<Report> {
    let shared = LoadParameters {
        connections: parameters.connections,
        duration: parameters.duration,
        generator: parameters.generator,
        ..LoadParameters::read(&Parameters::default())
            .map_err(|mistake| anyhow::anyhow!("{mistake}"))?
    };
    let generator = parameters.generator;
    let (report, _) = generator.run(remote.address, folder, &shared, 0.0)?;
    Ok(report)
}

fn workload(parameters: &GuestParameters) -> Workload {
    let len = parameters.size.0 as u32;
    match parameters.server {
        Server::Nginx => Workload::default(),
        _ => Workload {
            set_share: parameters.sets,
            keys: parameters.keys,
            pattern: KeyPattern::Uniform,
            value_len: ValueLen::Range(len, len),
            hit_share: parameters.hits,
        },
    }
}

/// The options of a load. The seed is always the same: of a number of requests, all legs get the
/// same ones.
fn options(parameters: &GuestParameters) -> Options {
    let requests = Some(parameters.requests).filter(|&number| number > 0);
    Options {
        connections: parameters.connections,
        duration: requests.map_or(parameters.duration, |_| WORK_MAX),
        requests,
        workload: workload(parameters),
        warm_up: Duration::ZERO,
        timeout: TIMEOUT,
        ..Options::default()
    }
}

fn trial(remote: &Remote, server: Server, options: &Options) -> anyhow::Result<Record> {
    let address = remote.address;
    let tls = remote.certificate.as_deref().map(trusting).transpose()?;
    let target = Target { address, tls };
    let go_on = AtomicBool::new(false);
    let record = match server {
        Server::Nginx => {
            let http = Http::new(&address.to_string(), &[DOCUMENT.into()], &[])?;
            run(&target, &http, options, &go_on)?
        }
        Server::Memcached => run(&target, &Padded(MemcachedText::default()), options, &go_on)?,
        Server::Redis => run(
            &target,
            &Padded(Resp::new(RespVersion::Two)),
            options,
            &go_on,
        )?,
    };
    let handshakes = record.full_handshakes + record.resumed_handshakes;
    ensure!(
        remote.certificate.is_some() == (handshakes > 0),
        "found {handshakes} TLS handshakes, expected {}",
        if remote.certificate.is_some() {
            "some"
        } else {
            "none"
        }
    );
    Ok(record)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_in_flight_on_each_connection_is_no_miscount_and_anything_else_is() {
        for (served, answered, connections, expected) in [
            (100, 100, 4, 0),
            (104, 100, 4, 0),
            (105, 100, 4, 1),
            (99, 100, 4, 1),
            (0, 100, 4, 100),
        ] {
            let found = beyond_flight(served, answered, connections);
            assert_eq!(found, expected, "{served} {answered}");
        }
    }
}
