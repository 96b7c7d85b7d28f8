//! The driver `guest`: a server on the host and in guests, under load from the host.
//!
//! The role `server` has the place, in a network namespace of its own, which the role `client`
//! joins: the bridge and the client's end of it are there. So both must be on the same machine, and
//! may know each other's process ids and files.

use std::fs;
use std::net::Ipv4Addr;
use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use serde_json::{json, Value as Json};
use tare_guest::accelerator::Accelerator;
use tare_lab::driver::{Expected, Invocation, Missing, Mistake, Role};
use tare_lab::parameters::{Bytes, Choice as _};
use tare_lab::protocol::Ready;
use tare_lab::{figures, parameters};

use super::generate::{self, Remote, WORK_MAX};
use super::legs::{Leg, Place};
use crate::agent::{Agent, TrialError};
use crate::machine::{Feature, Machine};
use crate::systems::load::driver::{examine_size, Generator, Identity, Server, Service};
use crate::systems::namespace;
use crate::systems::workload::{mistake, Workload};

/// The port of a server, wherever it runs.
const PORT: u16 = 8080;
/// The usual time until a guest serves, emulated.
const BOOT: Duration = Duration::from_secs(4);
/// The longest time until then.
const BOOT_MAX: Duration = Duration::from_secs(400);

parameters! {
    /// The parameters of the driver `guest`.
    #[derive(Clone)]
    pub(crate) struct GuestParameters {
        /// where the server runs
        place: Place = "plain",
        /// the server
        server: Server = "nginx",
        /// true for TLS 1.3, with a certificate that is made for the trial
        tls: bool = false,
        /// Tare's own load generator, or wrk
        generator: Generator = "load",
        /// true if times are judged: an emulated guest is then not testable
        timed: bool = true,
        /// processors of the guest, and threads or processes of the server wherever it runs
        vcpus: usize [1..=64] = 1,
        /// connections
        connections: usize [1..=4096] = 100,
        /// bytes of nginx's document, or of a value
        size: Bytes = "615 B",
        /// keys in use
        keys: u64 [1..=1_000_000] = 1000,
        /// the part of the requests that write a key
        sets: f64 = 0.0,
        /// the part of the reads that ask for a key that there is
        hits: f64 = 1.0,
        /// requests of the trial, the same ones at each place; 0 for as many as the duration allows
        requests: u64 [0..=100_000_000] = 0,
        /// the trial; whole seconds for wrk
        duration: Duration = "1 s",
    }
}

figures! {
    /// The figures of a trial of `guest`.
    pub(crate) struct GuestTrial {
        metrics {
            /// requests per second
            request_rate: f64 [OperationsPerSecond],
            /// median latency
            latency_p50: Option<f64> [Seconds],
            /// 99th percentile of the latency
            latency_p99: Option<f64> [Seconds],
            /// bytes of a response, headers included, TLS not
            response_bytes: Option<f64> [Bytes],
            /// time from the start of QEMU until the guest's agent is ready
            boot_time: Option<f64> [Seconds],
        }
        counters {
            /// requests that the server counts
            operations,
            /// bytes of the responses
            bytes,
            /// the difference between the requests that the server counts and those that the
            /// generator has responses to; of wrk, beyond the one in flight on each connection
            miscounted,
            /// the difference between the bytes of documents and values that came, and the hits
            /// that the server counts times the size; of Tare's own generator
            unequal,
            /// the difference between the bytes of one response and those of the same one from the
            /// same server on the host, over loopback, headers included
            unlike,
            /// 1 if the guest is emulated
            emulated,
            /// 1 if the server is in a guest with bounce buffers
            bouncing,
            /// 1 if it is, and no slot was in use under load
            unbounced,
        }
    }
}

/// The role that loads the server and measures.
const CLIENT: &str = "client";
/// The role that has the server.
const SERVER: &str = "server";
/// The name under which the client tells its folder.
const FOLDER: &str = "folder";
/// The file in it where the server's role writes how many bounce slots were in use under load.
const SLOTS: &str = "bounce_slots";

impl GuestParameters {
    /// Bytes of all values.
    pub(super) fn store(&self) -> u64 {
        match self.server {
            Server::Nginx => 0,
            _ => self.keys * self.size.0,
        }
    }

    pub(super) fn service(&self) -> anyhow::Result<Service> {
        Ok(Service {
            kind: self.server,
            address: (Ipv4Addr::UNSPECIFIED, PORT).into(),
            document: self.size.0 as usize,
            threads: self.vcpus,
            store: self.store(),
            identity: self.tls.then(Identity::new).transpose()?,
        })
    }

    /// Starts the server at a place. A guest whose times are judged is not emulated, which the
    /// check has seen.
    pub(super) fn leg(&self, place: Place, service: Service) -> anyhow::Result<Leg> {
        let accelerator = Accelerator::for_times(self.timed);
        Leg::start(place, service, self.vcpus as u16, accelerator)
    }
}

/// The driver `guest`.
pub(crate) struct GuestWorkload;

impl Workload for GuestWorkload {
    const NAME: &'static str = "guest";
    const ABOUT: &'static str =
        "nginx, memcached or redis-server on the host and in guests, under load from the host";
    type Parameters = GuestParameters;
    type Figures = GuestTrial;

    fn examine(parameters: &GuestParameters) -> Result<(), Mistake> {
        let (generator, server) = (parameters.generator, parameters.server);
        let (expected, others) = match (server, parameters.tls || parameters.requests > 0) {
            (Server::Nginx, false) => ("load or wrk", Some(Generator::Wrk)),
            (Server::Nginx, true) => ("load with tls or a number of requests", None),
            (Server::Memcached | Server::Redis, _) => ("load for a store", None),
        };
        if generator != Generator::Load && others != Some(generator) {
            return Err(mistake("generator", generator.name(), expected));
        }
        let (sets, hits) = (parameters.sets, parameters.hits);
        for (name, value, of_nginx) in [("sets", sets, 0.0), ("hits", hits, 1.0)] {
            if server == Server::Nginx && value != of_nginx {
                return Err(mistake(name, value, &format!("{of_nginx} for nginx")));
            }
            if !(0.0..=1.0).contains(&value) {
                return Err(mistake(name, value, "0 to 1"));
            }
        }
        generator.examine_duration(parameters.duration)?;
        examine_size("size", parameters.size)
    }

    fn check(parameters: &GuestParameters, machine: &Machine) -> Result<(), Missing> {
        let (server, generator) = (parameters.server.name(), parameters.generator);
        let mut needs = vec![Feature::Root];
        needs.extend(Feature::network_tools());
        needs.push(Feature::Load(server));
        needs.extend(parameters.tls.then_some(Feature::ServerTls(server)));
        let is_other = generator != Generator::Load;
        needs.extend(is_other.then(|| Feature::Load(generator.name())));
        for feature in needs {
            machine.need(feature)?;
        }
        if let Some(flavour) = parameters.place.flavour() {
            machine.need_guest(flavour, parameters.timed)?;
        }
        if parameters.timed {
            let what = "this number of virtual processors, or of server threads, needs";
            machine.need_cpus(parameters.vcpus, what)?;
        }
        // Of a server, and QEMU beside it.
        let memory = 2 * parameters.store() + (1 << 30);
        machine.need_memory(memory, "the server and its values need")
    }

    fn expected(parameters: &GuestParameters) -> Option<Expected> {
        let guest = parameters.place.flavour();
        let start = guest.map_or(Duration::from_millis(100), |_| BOOT);
        let load = match parameters.requests {
            0 => parameters.duration,
            requests => Duration::from_micros(100) * requests.try_into().unwrap_or(u32::MAX),
        };
        Some(Expected {
            clock: load + start,
            work: Duration::from_nanos(parameters.store()),
        })
    }

    fn longest(parameters: &GuestParameters) -> Duration {
        let has_work = parameters.requests > 0 || parameters.store() > 0;
        let work = if has_work { WORK_MAX } else { Duration::ZERO };
        BOOT_MAX + work + parameters.duration * 4
    }

    fn roles() -> Vec<Role> {
        let role = |name: &str| Role {
            name: name.into(),
            same_host: true,
        };
        [CLIENT, SERVER].map(role).into()
    }

    fn invocation(role: &Role, _: &GuestParameters, own_trial: Invocation) -> Invocation {
        match role.name.as_str() {
            SERVER => namespace::apart(own_trial),
            _ => own_trial,
        }
    }

    fn run(parameters: GuestParameters, agent: &mut Agent) -> Result<GuestTrial, TrialError> {
        let folder = tempfile::tempdir()?;
        let mut own = Ready::new();
        own.insert(FOLDER.into(), json!(folder.path()));
        let mut roles = agent.ready(own)?;
        let data = roles.remove(SERVER).context("no role server")?;
        let remote = serde_json::from_value(Json::Object(data));
        let remote: Remote = remote.context("the role server")?;
        namespace::within(remote.pid, || generate::fill(&remote, &parameters))?;
        agent.start()?;
        let load = namespace::within(remote.pid, || {
            generate::load(&remote, folder.path(), &parameters)
        })?;
        // When it is done too, the server's role has written its file.
        agent.done()?;
        let is_bouncing = parameters.place == Place::Swiotlb;
        let slots = fs::read_to_string(folder.path().join(SLOTS))?;
        let slots: Option<u64> = serde_json::from_str(&slots).context(SLOTS)?;
        let per_response = load.report.bytes_per_response;
        let bytes = per_response.unwrap_or(0.0) * load.operations as f64;
        Ok(GuestTrial {
            request_rate: load.report.rate,
            latency_p50: load.report.p50,
            latency_p99: load.report.p99,
            response_bytes: per_response,
            boot_time: remote.boot_seconds,
            operations: load.operations,
            bytes: bytes.round() as u64,
            miscounted: load.miscounted,
            unequal: load.unequal,
            unlike: load.unlike,
            emulated: (remote.boot_seconds.is_some() && !parameters.timed).into(),
            bouncing: is_bouncing.into(),
            unbounced: (is_bouncing && slots.unwrap_or(0) == 0).into(),
        })
    }

    fn serve(_: &str, parameters: GuestParameters, agent: &mut Agent) -> Result<(), TrialError> {
        let service = parameters.service()?;
        let mut reference = None;
        if parameters.place != Place::Loopback {
            let mut leg = parameters.leg(Place::Loopback, service.clone())?;
            reference = Some(generate::one(&Remote::of(&mut leg), &parameters)?);
        }
        let mut leg = parameters.leg(parameters.place, service)?;
        if let Some(guest) = leg.guest() {
            agent.note("guest", guest.evidence())?;
        }
        let mut remote = Remote::of(&mut leg);
        remote.reference = reference;
        let data = serde_json::from_value(json!(remote))?;
        let roles = agent.ready(data)?;
        let folder = roles.get(CLIENT).and_then(|it| it.get(FOLDER)?.as_str());
        let file = Path::new(folder.context("the role client names no folder")?).join(SLOTS);
        agent.until_stopped(|| leg.check())?;
        fs::write(file, json!(leg.bounce_slots()?).to_string())?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tare_lab::parameters::ParameterSet as _;
    use tare_lab::value::{Parameters, Value};

    fn read(given: &[(&str, Value)]) -> GuestParameters {
        let given = given
            .iter()
            .map(|(name, value)| ((*name).into(), value.clone()));
        GuestParameters::read(&given.collect::<Parameters>()).unwrap()
    }

    #[test]
    fn parameters_that_no_server_or_generator_has_are_refused() {
        for (given, expected) in [
            (&[("server", "memcached".into()), ("sets", 0.5.into())][..], None),
            (&[("generator", "wrk".into())], None),
            (
                &[("generator", "wrk".into()), ("tls", Value::Bool(true))],
                Some("parameter generator: found \"wrk\", expected load with tls or a number of requests"),
            ),
            (
                &[("generator", "wrk".into()), ("requests", Value::Int(9))],
                Some("parameter generator: found \"wrk\", expected load with tls or a number of requests"),
            ),
            (
                &[("generator", "wrk".into()), ("server", "redis-server".into())],
                Some("parameter generator: found \"wrk\", expected load for a store"),
            ),
            (
                &[("generator", "memaslap".into()), ("server", "memcached".into())],
                Some("parameter generator: found \"memaslap\", expected load for a store"),
            ),
            (
                &[("generator", "wrk".into()), ("duration", "1500 ms".into())],
                Some("parameter duration: found \"1.5 s\", expected whole seconds for wrk"),
            ),
            (
                &[("sets", 0.5.into())],
                Some("parameter sets: found 0.5, expected 0 for nginx"),
            ),
            (
                &[("hits", 0.5.into())],
                Some("parameter hits: found 0.5, expected 1 for nginx"),
            ),
            (
                &[("hits", 1.5.into()), ("server", "redis-server".into())],
                Some("parameter hits: found 1.5, expected 0 to 1"),
            ),
            (
                &[("size", "2 MiB".into())],
                Some("parameter size: found \"2097152 B\", expected \"1 B\" to \"1 MiB\""),
            ),
        ] {
            let found = GuestWorkload::examine(&read(given)).err();
            let found = found.map(|mistake| mistake.to_string());
            assert_eq!(found.as_deref(), expected, "{given:?}");
        }
    }

    #[test]
    fn a_cell_that_this_machine_cannot_run_or_time_says_what_is_missing() {
        let all = |without: &[Feature]| Machine::Described {
            cpus: 2,
            without: without.to_vec(),
        };
        let tls = Feature::ServerTls("memcached");
        let tdx = Feature::Confidential("tdx");
        let store = ("server", Value::from("memcached"));
        let (plain, with_tls) = (
            &[store.clone()][..],
            &[store, ("tls", Value::Bool(true))][..],
        );
        let of = |place: &str, timed: bool| {
            [("place", Value::from(place)), ("timed", Value::Bool(timed))]
        };
        let many = [("vcpus", Value::Int(4))];
        for (given, lacks, expected) in [
            (plain, tls, None),
            (with_tls, tls, Some(tls.missing().reason)),
            (
                &of("plain", true),
                Feature::Kvm,
                Some(Feature::Kvm.missing().reason),
            ),
            (&of("plain", false), Feature::Kvm, None),
            (&of("bridge", true), Feature::Kvm, None),
            (&of("tdx", true), tdx, Some(tdx.missing().reason)),
            (
                &many,
                tdx,
                Some(
                    "this number of virtual processors, or of server threads, needs 4 CPUs, this \
                     machine has 2"
                        .into(),
                ),
            ),
        ] {
            let found = GuestWorkload::check(&read(given), &all(&[lacks]));
            assert_eq!(found.err().map(|it| it.reason), expected, "{given:?}");
        }
        // What no other kernel would help comes first.
        let found = GuestWorkload::check(&read(&of("tdx", true)), &all(&[Feature::Kvm, tdx]));
        assert_eq!(found, Err(tdx.missing()));
    }
}
