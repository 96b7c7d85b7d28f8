//! The driver `guest`: nginx on the host and in guests, under load from the host.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::{bail, Context as _};
use tare_guest::accelerator::Accelerator;
use tare_lab::driver::{Expected, Invocation, Missing, Mistake, Role};
use tare_lab::parameters::{Bytes, Choice as _, ParameterSet as _};
use tare_lab::value::Parameters;
use tare_lab::{figures, parameters};
use tare_load::protocol::Http;
use tare_load::{run, Options, Target};

use super::legs::{Leg, Place};
use crate::agent::{Agent, TrialError};
use crate::machine::{Feature, Machine};
use crate::systems::load::driver::{Generator, LoadParameters, Report, Server, DOCUMENT};
use crate::systems::namespace;
use crate::systems::workload::{mistake, Workload};

/// The usual time until a guest serves, emulated.
const BOOT: Duration = Duration::from_secs(4);
/// The longest time until then.
const BOOT_MAX: Duration = Duration::from_secs(180);

parameters! {
    /// The parameters of the driver `guest`.
    pub(crate) struct GuestParameters {
        /// where nginx runs
        place: Place = "bridge",
        /// Tare's own load generator, or wrk
        generator: Generator = "load",
        /// true if times are judged: an emulated guest is then not testable
        timed: bool = true,
        /// processors of the guest
        vcpus: usize [1..=64] = 1,
        /// connections
        connections: usize [1..=4096] = 100,
        /// bytes of the document
        document: Bytes = "615 B",
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
            /// bytes of a response, headers included
            response_bytes: Option<f64> [Bytes],
            /// time from the start of QEMU until the guest's agent is ready
            boot_time: Option<f64> [Seconds],
        }
        counters {
            /// requests that nginx counts
            operations,
            /// bytes of the responses
            bytes,
            /// the difference between the requests that nginx counts and those that the generator
            /// has responses to; the generator must be Tare's own
            miscounted,
            /// 1 if the guest is emulated
            emulated,
            /// 1 if the server is in a guest with bounce buffers
            bouncing,
            /// 1 if it is, and no slot was in use under load
            unbounced,
        }
    }
}

/// The driver `guest`.
pub(crate) struct GuestWorkload;

impl Workload for GuestWorkload {
    const NAME: &'static str = "guest";
    const ABOUT: &'static str = "nginx on the host and in guests, under load from the host";
    type Parameters = GuestParameters;
    type Figures = GuestTrial;

    fn examine(parameters: &GuestParameters) -> Result<(), Mistake> {
        let generator = parameters.generator;
        if !generator.servers().contains(&Server::Nginx) {
            return Err(mistake("generator", generator.name(), "load or wrk"));
        }
        let duration = parameters.duration;
        if generator.takes_whole_seconds() && (duration.subsec_nanos() > 0 || duration.is_zero()) {
            let found = format!("{} s", duration.as_secs_f64());
            return Err(mistake("duration", found.as_str(), "whole seconds for wrk"));
        }
        if parameters.document.0 == 0 || parameters.document.0 > 1 << 20 {
            let found = format!("{} B", parameters.document.0);
            return Err(mistake("document", found.as_str(), "\"1 B\" to \"1 MiB\""));
        }
        Ok(())
    }

    fn check(parameters: &GuestParameters, machine: &Machine) -> Result<(), Missing> {
        machine.need(Feature::Root)?;
        for tool in Feature::network_tools() {
            machine.need(tool)?;
        }
        machine.need(Feature::Load("nginx"))?;
        if parameters.generator != Generator::Load {
            machine.need(Feature::Load(parameters.generator.name()))?;
        }
        match parameters.place.flavour() {
            Some(flavour) => machine.need_guest(flavour, parameters.timed),
            None => Ok(()),
        }
    }

    fn expected(parameters: &GuestParameters) -> Option<Expected> {
        let start = match parameters.place.flavour() {
            Some(_) => BOOT,
            None => Duration::from_millis(100),
        };
        Some(Expected {
            clock: parameters.duration + start,
            work: Duration::ZERO,
        })
    }

    fn longest(parameters: &GuestParameters) -> Duration {
        BOOT_MAX + parameters.duration * 4
    }

    fn invocation(_: &Role, _: &GuestParameters, own_trial: Invocation) -> Invocation {
        namespace::apart(own_trial)
    }

    fn run(parameters: GuestParameters, agent: &mut Agent) -> Result<GuestTrial, TrialError> {
        // A guest whose times are judged is not emulated, which the check has seen.
        let accelerator = match parameters.timed {
            true => Accelerator::Kvm,
            false => Accelerator::Emulated,
        };
        let document = parameters.document.0 as usize;
        let (place, vcpus) = (parameters.place, parameters.vcpus as u16);
        let mut leg = Leg::start(place, document, vcpus, accelerator)?;
        let boot_time = leg.guest().map(|guest| guest.boot_time().as_secs_f64());
        if let Some(guest) = leg.guest() {
            agent.note("guest", guest.evidence())?;
        }
        agent.start()?;
        let before = leg.served()?;
        let load = generate(&leg, &parameters)?;
        let operations = leg.served()?.since(Server::Nginx, &before)?.requests;
        let is_bouncing = place == Place::Swiotlb;
        let slots = match leg.guest() {
            Some(guest) if is_bouncing => {
                let name = "/sys/kernel/debug/swiotlb/io_tlb_used";
                let text = guest.output(&["cat", name], Duration::from_secs(60))?;
                text.trim()
                    .parse::<u64>()
                    .with_context(|| format!("{name}: {text:?}"))?
            }
            _ => 0,
        };
        let per_response = load.report.bytes_per_response;
        let bytes = per_response.map_or(0.0, |bytes| bytes * operations as f64);
        Ok(GuestTrial {
            request_rate: load.report.rate,
            latency_p50: load.report.p50,
            latency_p99: load.report.p99,
            response_bytes: per_response,
            boot_time,
            operations,
            bytes: bytes.round() as u64,
            miscounted: load.answered.map_or(0, |n| n.abs_diff(operations)),
            emulated: (leg.guest().is_some() && !parameters.timed).into(),
            bouncing: is_bouncing.into(),
            unbounced: (is_bouncing && slots == 0).into(),
        })
    }
}

/// The result of a generator.
struct Load {
    report: Report,
    /// Responses, if they are counted apart from the server.
    answered: Option<u64>,
}

fn generate(leg: &Leg, parameters: &GuestParameters) -> anyhow::Result<Load> {
    if parameters.generator != Generator::Load {
        let given = Parameters::default();
        let shared = LoadParameters {
            connections: parameters.connections,
            duration: parameters.duration,
            generator: parameters.generator,
            ..LoadParameters::read(&given).map_err(|mistake| anyhow::anyhow!("{mistake}"))?
        };
        let (address, folder) = (leg.address(), leg.folder());
        let (report, _) = parameters.generator.run(address, folder, &shared, 0.0)?;
        return Ok(Load {
            report,
            answered: None,
        });
    }
    let address = leg.address();
    let options = Options {
        connections: parameters.connections,
        duration: parameters.duration,
        warm_up: Duration::ZERO,
        // An emulated guest takes seconds for a hundred connections at once.
        timeout: Duration::from_secs(60),
        ..Options::default()
    };
    let http = Http::new(&address.to_string(), &[DOCUMENT.into()], &[])?;
    let target = Target { address, tls: None };
    let record = run(&target, &http, &options, &AtomicBool::new(false))?;
    let lost = record.misses + record.refused + record.failed + record.timed_out;
    if lost > 0 {
        let error = record.first_error.as_deref().unwrap_or("no response");
        bail!(
            "{lost} of {} requests were not served: {error}",
            record.issued
        );
    }
    if let (true, Some(reason)) = (parameters.timed, record.is_invalid()) {
        bail!("invalid: {reason}");
    }
    let latency = |level| Some(record.latency.quantile(level)?.as_secs_f64());
    Ok(Load {
        report: Report {
            rate: record.rate().unwrap_or_default(),
            p50: latency(0.5),
            p99: latency(0.99),
            p999: None,
            bytes_per_response: record.bytes_per_response(),
        },
        answered: Some(record.answered()),
    })
}
