//! The driver `guest-breakdown` and `tare guest breakdown`: the time of a server in a guest by what
//! it is spent on.

pub(super) mod command;

use std::io::{self, Read};
use std::path::Path;
use std::process::ExitCode;
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

use anyhow::{bail, ensure, Context as _};
use tare_guest::accelerator::Accelerator;
use tare_guest::probes::exits::{remove_stale, Exits, Watch};
use tare_guest::probes::{self, Category, Recording};
use tare_guest::{Guest, Stream};
use tare_lab::driver::{Expected, Invocation, Missing, Mistake, Role};
use tare_lab::figures;
use tare_lab::parameters::Choice as _;

use super::driver::{GuestParameters, GuestWorkload};
use super::generate::{self, Remote, WORK_MAX};
use super::legs::{Leg, Place};
use crate::agent::{Agent, TrialError};
use crate::machine::Machine;
use crate::systems::load::driver::Generator;
use crate::systems::namespace;
use crate::systems::workload::{mistake, Workload};
use crate::terminal;

/// The usual time until a guest serves, emulated.
const BOOT: Duration = Duration::from_secs(6);
/// The longest time until then, and for the recorder to begin and to end.
const BOOT_MAX: Duration = Duration::from_secs(400);
/// The kernel's trace of this machine.
const TRACEFS: &str = "/sys/kernel/tracing";

/// The parts of the time in which the guest had work, by their published names. Exits are inside of
/// these, of idling and of the recorder's time.
const PARTS: [(&str, &[Category]); 4] = [
    ("swiotlb", &BOUNCES),
    ("packet", &[Category::PacketIn, Category::PacketOut]),
    ("tls", &[Category::Tls]),
    ("application", &[Category::Application]),
];
/// The work of bounce buffers.
const BOUNCES: [Category; 3] = [
    Category::BounceCopy,
    Category::SlotFind,
    Category::SlotRelease,
];

figures! {
    /// The figures of a trial of `guest-breakdown`.
    pub(crate) struct BreakdownTrial {
        metrics {
            /// cycles per request in which the guest had work
            request_cycles: f64 [Count],
            /// the share of the bounce buffer in them: finding slots, copies, giving slots back
            swiotlb_share: Option<f64> [Ratio],
            /// the share of packets in and out
            packet_share: Option<f64> [Ratio],
            /// the share of TLS in the kernel; none if the kernel has not loaded it
            tls_share: Option<f64> [Ratio],
            /// the share of everything else
            application_share: Option<f64> [Ratio],
            /// the cycles of exits over those in which the guest had work: a share that is inside
            /// of the others; none without KVM's tracepoints, and if events of them are lost
            exit_share: Option<f64> [Ratio],
            /// the part of all time in which the guest was idle
            idle: f64 [Ratio],
            /// the sum of all categories over all time
            accounted: f64 [Ratio],
            /// the time per request with probes over that without, measured one after the other
            overhead: f64 [Ratio],
        }
        counters {
            /// requests that the server counts
            operations,
            /// calls that find slots of the bounce buffer
            found,
            /// calls that copy through it
            copied,
            /// calls that give slots back
            released,
            /// all three together
            bounces,
            /// rounds of receiving packets
            received,
            /// calls that send
            sent,
            /// 1 if the guest is emulated
            emulated,
            /// 3 if the guest has bounce buffers
            bouncing,
            /// of finding, copying and giving back, those that it did not do
            unbounced,
            /// events that the guest's kernel or the host's had no room for, or that could not be
            /// read
            lost,
            /// calls that are counted and whose time is that of another category, as an interrupt
            /// made them in the middle of a probe
            missed,
            /// kinds of calls of which the kernel counted another number than its trace has
            miscounted,
            /// 1 if the categories do not add up to the whole within 1 %
            unaccounted,
        }
    }
}

/// A load with probes, and the same without.
struct Round {
    recording: Recording,
    /// Requests during the recording, by the server's count.
    requests: u64,
    /// The exits; the reason why they are not known.
    exits: Result<Exits, String>,
    /// The time per request with probes over that without.
    overhead: f64,
}

impl Round {
    /// Measures one round at a place that serves.
    fn of(leg: &mut Leg, parameters: &GuestParameters) -> anyhow::Result<Round> {
        let remote = Remote::of(leg);
        let without = load(&remote, parameters)?;
        let guest = leg.guest().context("a guest")?;
        let (accelerator, process) = (guest.accelerator(), guest.pid());
        // Exits are held against the time of the recording, so none from before or after it counts.
        let (recording, (with, watch)) = record(guest, parameters, || {
            let watch = match accelerator {
                Accelerator::Kvm => Watch::start(Path::new(TRACEFS), process),
                Accelerator::Emulated => Err("the guest is emulated and has no exits".into()),
            };
            let with = load(&remote, parameters)?;
            let watch = watch.and_then(|watch| watch.stop().map(|()| watch));
            Ok((with, watch))
        })?;
        // It takes a while, in which the guest would be idle.
        let exits = watch.and_then(Watch::finish);
        ensure!(recording.busy() > 0, "the guest had nothing to do");
        Ok(Round {
            recording,
            requests: with.operations,
            exits,
            overhead: without.report.rate / with.report.rate,
        })
    }

    /// Returns true if the category's time is known: it needs no probe, or has one.
    fn is_known(&self, category: Category) -> bool {
        let is_rest = [Category::Recorder, Category::Application, Category::Idle];
        is_rest.contains(&category) || self.recording.hits(category).is_some()
    }

    /// Returns the share of some categories in the time with work; `None` if none of them is known.
    fn share(&self, categories: &[Category]) -> Option<f64> {
        let is_known = categories.iter().any(|it| self.is_known(*it));
        let share = self.recording.cycles(categories) as f64 / self.recording.busy() as f64;
        is_known.then_some(share)
    }

    /// Returns the exits, or the reason why they, or some of them, are not known.
    fn all_exits(&self) -> Result<&Exits, String> {
        let exits = self.exits.as_ref().map_err(String::clone)?;
        match lost(exits) {
            0 => Ok(exits),
            lost => Err(format!(
                "{lost} events of exits were lost or not readable, so that all figures of exits \
                 would be too low; a shorter --duration loses fewer"
            )),
        }
    }

    /// Returns the events that are in no figure.
    fn lost(&self) -> u64 {
        self.recording.lost + self.exits.as_ref().map_or(0, lost)
    }

    /// Returns the cycles of exits over those with work; `None` if they are not known. A guest that
    /// halts is idle.
    fn exit_share(&self) -> Option<f64> {
        let exits = self.all_exits().ok()?;
        let all = exits.vcpus.values().flatten();
        let all = all.filter(|(reason, _)| !["hlt", "idle-halt"].contains(&reason.as_str()));
        let cycles: u64 = all.map(|(_, exit)| exit.cycles).sum();
        Some(cycles as f64 / self.recording.busy() as f64)
    }

    fn idle(&self) -> f64 {
        self.of_whole(&[Category::Idle])
    }

    fn accounted(&self) -> f64 {
        self.of_whole(&Category::ALL)
    }

    fn of_whole(&self, categories: &[Category]) -> f64 {
        self.recording.cycles(categories) as f64 / self.recording.whole() as f64
    }

    /// Returns the number of categories whose calls the kernel counted and whose trace disagrees.
    fn miscounted(&self) -> u64 {
        let all = Category::ALL.into_iter();
        all.filter(|it| !self.recording.is_counted(*it)).count() as u64
    }

    fn figures(&self, parameters: &GuestParameters) -> BreakdownTrial {
        let [swiotlb_share, packet_share, tls_share, application_share] =
            PARTS.map(|(_, categories)| self.share(categories));
        let is_bouncing = u64::from(parameters.place != Place::Plain);
        let calls = |category| self.recording.calls(category).unwrap_or(0);
        let bounces = BOUNCES.map(calls);
        let [copied, found, released] = bounces;
        let undone = bounces.iter().filter(|calls| **calls == 0).count() as u64;
        BreakdownTrial {
            request_cycles: self.recording.busy() as f64 / self.requests as f64,
            swiotlb_share,
            packet_share,
            tls_share,
            application_share,
            exit_share: self.exit_share(),
            idle: self.idle(),
            accounted: self.accounted(),
            overhead: self.overhead,
            operations: self.requests,
            found,
            copied,
            released,
            bounces: bounces.iter().sum(),
            received: calls(Category::PacketIn),
            sent: calls(Category::PacketOut),
            emulated: (!parameters.timed).into(),
            bouncing: 3 * is_bouncing,
            unbounced: undone * is_bouncing,
            lost: self.lost(),
            missed: self.recording.missed,
            miscounted: self.miscounted(),
            unaccounted: ((self.accounted() - 1.0).abs() > 0.01).into(),
        }
    }
}

/// Returns the events of exits that are in no count.
fn lost(exits: &Exits) -> u64 {
    exits.lost + exits.unread
}

/// Ends the watches of commands that were killed.
pub(crate) fn clear() {
    remove_stale(Path::new(TRACEFS));
}

/// The driver `guest-breakdown`.
pub(crate) struct GuestBreakdown;

impl Workload for GuestBreakdown {
    const NAME: &'static str = "guest-breakdown";
    const ABOUT: &'static str = "the time of a server in a guest by what it is spent on";
    type Parameters = GuestParameters;
    type Figures = BreakdownTrial;

    fn examine(parameters: &GuestParameters) -> Result<(), Mistake> {
        let (place, generator) = (parameters.place, parameters.generator);
        if place.flavour().is_none() {
            let expected = "plain, swiotlb, sev-snp or tdx";
            return Err(mistake("place", place.name(), expected));
        }
        if generator != Generator::Load {
            return Err(mistake("generator", generator.name(), "load"));
        }
        if parameters.requests > 0 {
            let found = parameters.requests as i64;
            return Err(mistake(
                "requests",
                found,
                "0, which leaves it to the duration",
            ));
        }
        GuestWorkload::examine(parameters)
    }

    fn check(parameters: &GuestParameters, machine: &Machine) -> Result<(), Missing> {
        GuestWorkload::check(parameters, machine)
    }

    fn expected(parameters: &GuestParameters) -> Option<Expected> {
        Some(Expected {
            clock: parameters.duration * 2 + BOOT,
            work: Duration::from_nanos(parameters.store()),
        })
    }

    fn longest(parameters: &GuestParameters) -> Duration {
        BOOT_MAX + WORK_MAX + parameters.duration * 8
    }

    fn invocation(_: &Role, _: &GuestParameters, own_trial: Invocation) -> Invocation {
        namespace::apart(own_trial)
    }

    fn run(parameters: GuestParameters, agent: &mut Agent) -> Result<BreakdownTrial, TrialError> {
        let mut leg = start(&parameters)?;
        if let Some(guest) = leg.guest() {
            agent.note("guest", guest.evidence())?;
        }
        agent.start()?;
        Ok(Round::of(&mut leg, &parameters)?.figures(&parameters))
    }
}

/// Starts the server in its guest, with what the load asks for.
fn start(parameters: &GuestParameters) -> anyhow::Result<Leg> {
    let mut leg = parameters.leg(parameters.place, parameters.service()?)?;
    generate::fill(&Remote::of(&mut leg), parameters)?;
    Ok(leg)
}

/// Loads the server.
fn load(remote: &Remote, parameters: &GuestParameters) -> anyhow::Result<generate::Load> {
    // Probes make a server slow, and times are compared with those of the same load alone.
    let untimed = GuestParameters {
        timed: false,
        ..parameters.clone()
    };
    // No file is written: the generator is Tare's own.
    let load = generate::load(remote, Path::new(""), &untimed)?;
    let (name, counted) = (parameters.server.name(), load.operations);
    ensure!(counted > 0, "{name} served no request");
    ensure!(
        load.miscounted == 0,
        "{name} counts {counted} requests, {} more or fewer than have a response",
        load.miscounted
    );
    Ok(load)
}

/// The hidden subcommand that [`probes()`] is.
const PROBES: &str = "guest-probes";
/// The line that it prints first.
const BEGUN: &str = "begun\n";

/// Records what the probes of this guest's kernel see until standard input is at its end, and
/// prints it.
///
/// # Errors
/// As those of the recorder.
pub(crate) fn probes() -> anyhow::Result<ExitCode> {
    let recording = probes::record(io::stdin(), || terminal::print(BEGUN))?;
    terminal::print(&(serde_json::to_string(&recording)? + "\n"))?;
    Ok(ExitCode::SUCCESS)
}

/// Records in a guest while `load` runs here.
fn record<T: Send>(
    guest: &mut Guest,
    parameters: &GuestParameters,
    load: impl FnOnce() -> anyhow::Result<T> + Send,
) -> anyhow::Result<(Recording, T)> {
    let (begun, begins) = mpsc::channel();
    let (over, ends) = mpsc::channel::<()>();
    let limit = BOOT_MAX + parameters.duration * 4;
    std::thread::scope(|scope| {
        let load = scope.spawn(move || {
            // Dropped at the end, which is that of the recorder's input.
            let _over = over;
            begins.recv().context("the recorder has not begun")?;
            load()
        });
        let (mut printed, mut errors, mut begun) = (Vec::new(), Vec::new(), Some(begun));
        let output = |stream, bytes: &[u8]| match stream {
            Stream::Errors => errors.extend_from_slice(bytes),
            Stream::Output => {
                printed.extend_from_slice(bytes);
                if printed.starts_with(BEGUN.as_bytes()) {
                    begun.take().map(|begun| begun.send(()));
                }
            }
        };
        let exit = guest.run(&["/init", PROBES], Until(ends), Some(limit), output);
        drop(begun);
        let loaded = load
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        let text = String::from_utf8_lossy(&printed);
        if exit?.status != Some(0) {
            let errors = String::from_utf8_lossy(&errors);
            let errors = errors.trim().trim_start_matches("tare: ");
            bail!("the guest's probes: {errors}");
        }
        let json = text.strip_prefix(BEGUN).unwrap_or_default();
        let recording = serde_json::from_str(json).context("the guest's recording")?;
        Ok((recording, loaded?))
    })
}

/// An input that is empty and ends when the other side of the channel does.
struct Until(Receiver<()>);

impl Read for Until {
    fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
        let _ = self.0.recv();
        Ok(0)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use tare_guest::probes::exits::Exit;
    use tare_guest::probes::Times;

    use super::*;

    fn round(exits: Result<Exits, String>) -> Round {
        let mut times = Times::default();
        times.cycles[Category::Application as usize] = 1000;
        Round {
            recording: Recording {
                cpus: vec![times],
                probes: Vec::new(),
                lost: 5,
                missed: 0,
                unmatched: 0,
            },
            requests: 1,
            exits,
            overhead: 1.0,
        }
    }

    #[test]
    fn a_share_of_exits_is_not_stated_if_some_of_them_are_lost() {
        let exit = |cycles| Exit {
            cycles,
            ..Exit::default()
        };
        let reasons = [
            ("npf".to_owned(), exit(250)),
            ("hlt".to_owned(), exit(9999)),
        ];
        let whole = Exits {
            vcpus: BTreeMap::from([(0, BTreeMap::from(reasons))]),
            ..Exits::default()
        };
        let known = round(Ok(whole.clone()));
        assert_eq!((known.exit_share(), known.lost()), (Some(0.25), 5));
        for (lost, unread) in [(3, 0), (0, 3)] {
            let exits = Exits {
                lost,
                unread,
                ..whole.clone()
            };
            let round = round(Ok(exits));
            assert_eq!((round.exit_share(), round.lost()), (None, 8));
            let reason = round.all_exits().unwrap_err();
            assert!(reason.starts_with("3 events"), "{reason}");
        }
        let unknown = round(Err("no KVM".into()));
        assert_eq!((unknown.exit_share(), unknown.lost()), (None, 5));
    }
}
