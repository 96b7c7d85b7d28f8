//! The load of a trial: requests to a leg that another process has, counted on both ends.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::{bail, ensure};
use serde::{Deserialize, Serialize};
use tare_lab::parameters::ParameterSet as _;
use tare_lab::value::Parameters;
use tare_load::{Options, Record, Target, Workload};

use super::driver::GuestParameters;
use super::legs::Leg;
use crate::systems::load::driver::service::trusting;
use crate::systems::load::driver::{own, Generator, LoadParameters, Report, Served, Server};

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
        let identity = leg.service.identity.as_ref();
        Remote {
            pid: std::process::id(),
            address: leg.address,
            counts: leg.counts,
            certificate: identity.map(|identity| identity.certificate.clone()),
            boot_seconds: leg.guest().map(|guest| guest.boot_time().as_secs_f64()),
            reference: None,
        }
    }

    fn target(&self) -> anyhow::Result<Target> {
        let tls = self.certificate.as_deref().map(trusting).transpose()?;
        let address = self.address;
        Ok(Target { address, tls })
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
    let options = Options {
        connections: FILL_CONNECTIONS,
        pipeline: FILL_PIPELINE,
        duration: WORK_MAX,
        ..options(parameters)
    };
    own::fill(parameters.server, &remote.target()?, options)
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
    let served = || Served::ask(server, remote.counts)?.since(server, &before);
    if parameters.generator != Generator::Load {
        let report = other(remote, folder, parameters)?;
        let (served, answered) = (served()?.requests, report.responses.unwrap_or(0));
        return Ok(Load {
            report,
            operations: served,
            miscounted: beyond_flight(served, answered, parameters.connections),
            unequal: 0,
            unlike,
        });
    }
    let record = trial(remote, server, &options(parameters))?;
    let served = served()?;
    check(&record, parameters)?;
    let hits = served.hits.unwrap_or(served.requests);
    Ok(Load {
        report: Report::of(&record),
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
    own::complete(record, parameters.hits < 1.0)?;
    let (found, expected) = (record.answered(), parameters.requests);
    ensure!(
        expected == 0 || found == expected,
        "found {found} responses, expected {expected}"
    );
    if let (true, Some(reason)) = (parameters.timed, record.is_invalid()) {
        bail!("invalid: {reason}");
    }
    Ok(())
}

fn other(remote: &Remote, folder: &Path, parameters: &GuestParameters) -> anyhow::Result<Report> {
    let defaults = LoadParameters::read(&Parameters::default());
    let shared = LoadParameters {
        connections: parameters.connections,
        duration: parameters.duration,
        generator: parameters.generator,
        ..defaults.map_err(|mistake| anyhow::anyhow!("{mistake}"))?
    };
    let run = parameters
        .generator
        .run(remote.address, folder, &shared, 0.0);
    run.map(|(report, _)| report)
}

/// The options of a load. The seed is always the same: of a number of requests, all legs get the
/// same ones.
fn options(parameters: &GuestParameters) -> Options {
    let requests = Some(parameters.requests).filter(|&number| number > 0);
    let workload = own::workload(parameters.server, parameters.size.0, parameters.keys);
    Options {
        connections: parameters.connections,
        duration: requests.map_or(parameters.duration, |_| WORK_MAX),
        requests,
        workload: Workload {
            set_share: parameters.sets,
            hit_share: parameters.hits,
            ..workload
        },
        warm_up: Duration::ZERO,
        timeout: TIMEOUT,
        ..Options::default()
    }
}

fn trial(remote: &Remote, server: Server, options: &Options) -> anyhow::Result<Record> {
    let record = own::trial(server, &remote.target()?, options)?;
    let handshakes = record.full_handshakes + record.resumed_handshakes;
    let has_tls = remote.certificate.is_some();
    let expected = if has_tls { "some" } else { "none" };
    ensure!(
        has_tls == (handshakes > 0),
        "found {handshakes} TLS handshakes, expected {expected}"
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
