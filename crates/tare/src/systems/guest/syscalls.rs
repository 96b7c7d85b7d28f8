//! The driver `guest-syscalls`: UnixBench's system calls on the host and in guests.

use std::io::Read as _;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;

use anyhow::{bail, ensure, Context as _};
use serde::{Deserialize, Serialize};
use tare_guest::accelerator::Accelerator;
use tare_guest::initramfs::Initramfs;
use tare_guest::kernel::Kernel;
use tare_guest::{syscall, Flavour, Guest, Hardware, Limits};
use tare_lab::driver::{Expected, Missing};
use tare_lab::{choices, figures, parameters};

use crate::agent::{Agent, TrialError};
use crate::machine::Machine;
use crate::systems::workload::Workload;
use crate::terminal;

/// The usual time until a guest is ready.
const BOOT: Duration = Duration::from_secs(4);
/// The longest time until then.
const BOOT_MAX: Duration = Duration::from_secs(180);

choices! {
    /// The place of the system calls.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) enum Where {
        /// This machine.
        Host = "host",
        /// A virtual machine.
        Plain = "plain",
        /// A virtual machine with forced bounce buffers.
        Swiotlb = "swiotlb",
        /// A confidential virtual machine of AMD.
        SevSnp = "sev-snp",
        /// A confidential virtual machine of Intel.
        Tdx = "tdx",
    }
}

impl Where {
    fn flavour(self) -> Option<Flavour> {
        match self {
            Where::Host => None,
            Where::Plain => Some(Flavour::Plain),
            Where::Swiotlb => Some(Flavour::Swiotlb),
            Where::SevSnp => Some(Flavour::SevSnp),
            Where::Tdx => Some(Flavour::Tdx),
        }
    }
}

parameters! {
    /// The parameters of the driver `guest-syscalls`.
    pub(crate) struct SyscallParameters {
        /// where the calls are made
        place: Where = "host",
        /// processes at the same time; a guest has as many processors
        copies: usize [1..=255] = 1,
        /// true if times are judged: an emulated guest is then not testable
        timed: bool = true,
        /// repeats, of which the worst third is dropped; UnixBench makes 10
        repeats: usize [1..=100] = 1,
        /// each of them; UnixBench takes 10 s
        duration: Duration = "1 s",
    }
}

figures! {
    /// The figures of a trial of `guest-syscalls`.
    pub(crate) struct SyscallTrial {
        metrics {
            /// loops of five system calls per second, of all copies together: the geometric mean
            /// of the repeats that are kept
            loop_rate: f64 [OperationsPerSecond],
            /// UnixBench's index of it: 10 is a SPARCstation 20-61
            index: f64 [Count],
        }
        counters {
            /// loops
            operations,
            /// copies that have done some in every repeat
            copies,
            /// repeats
            repeats,
            /// 1 if the guest is emulated
            emulated,
        }
    }
}

/// The driver `guest-syscalls`.
pub(crate) struct Syscalls;

impl Workload for Syscalls {
    const NAME: &'static str = "guest-syscalls";
    const ABOUT: &'static str = "UnixBench's system calls on the host and in guests";
    type Parameters = SyscallParameters;
    type Figures = SyscallTrial;

    fn check(parameters: &SyscallParameters, machine: &Machine) -> Result<(), Missing> {
        machine.need_cpus(parameters.copies, "so many copies need")?;
        match parameters.place.flavour() {
            Some(flavour) => machine.need_guest(flavour, parameters.timed),
            None => Ok(()),
        }
    }

    fn expected(parameters: &SyscallParameters) -> Option<Expected> {
        let start = match parameters.place.flavour() {
            Some(_) => BOOT,
            None => Duration::from_millis(20),
        };
        Some(Expected {
            clock: parameters.duration * parameters.repeats as u32 + start,
            work: Duration::ZERO,
        })
    }

    fn longest(parameters: &SyscallParameters) -> Duration {
        BOOT_MAX + parameters.duration * 4 * parameters.repeats as u32
    }

    fn run(parameters: SyscallParameters, agent: &mut Agent) -> Result<SyscallTrial, TrialError> {
        let SyscallParameters {
            copies,
            repeats,
            duration,
            ..
        } = parameters;
        let own = std::env::current_exe().map_err(anyhow::Error::from)?;
        let is_emulated = parameters.place.flavour().is_some() && !parameters.timed;
        let mut all = Vec::new();
        match parameters.place.flavour() {
            None => {
                agent.start()?;
                for _ in 0..repeats {
                    all.push(here(&own, copies, duration)?);
                }
            }
            Some(flavour) => {
                let kernel = Kernel::installed().map_err(anyhow::Error::from)?;
                let image = Initramfs::new(&own, &kernel).map_err(anyhow::Error::from)?;
                let image = image.in_memory().map_err(anyhow::Error::from)?;
                let hardware = Hardware {
                    vcpus: copies as u16,
                    ..Hardware::new(
                        flavour,
                        match parameters.timed {
                            true => Accelerator::Kvm,
                            false => Accelerator::Emulated,
                        },
                    )
                };
                let limits = Limits::default();
                let guest = Guest::boot(&hardware, &kernel, image.path(), &limits);
                let mut guest = guest.map_err(anyhow::Error::from)?;
                agent.note("guest", guest.evidence())?;
                agent.start()?;
                for _ in 0..repeats {
                    all.push(inside(&mut guest, copies, duration)?);
                }
            }
        }
        let worked = |reports: &Vec<Report>| reports.iter().filter(|it| it.loops > 0).count();
        let rates: Vec<f64> = all.iter().map(|reports| rate(reports)).collect();
        let score = syscall::score(&rates).context("a repeat without a loop")?;
        Ok(SyscallTrial {
            loop_rate: score,
            index: syscall::index(score),
            operations: all.iter().flatten().map(|report| report.loops).sum(),
            copies: all.iter().map(worked).min().unwrap_or(0) as u64,
            repeats: all.len() as u64,
            emulated: is_emulated.into(),
        })
    }
}

/// The line that a copy prints.
#[derive(Serialize, Deserialize)]
struct Report {
    loops: u64,
    seconds: f64,
}

impl Report {
    fn rate(&self) -> f64 {
        self.loops as f64 / self.seconds
    }

    fn read(line: &str) -> anyhow::Result<Report> {
        let report: Report = serde_json::from_str(line)
            .with_context(|| format!("found \"{}\", expected a copy's report", line.trim()))?;
        ensure!(report.seconds > 0.0, "a copy took {} s", report.seconds);
        Ok(report)
    }
}

/// The rate of all copies together.
fn rate(reports: &[Report]) -> f64 {
    reports.iter().map(Report::rate).sum()
}

/// Makes the system calls in this process, and prints how many.
///
/// # Errors
/// As those of the system calls.
pub(crate) fn copy(milliseconds: u64) -> anyhow::Result<ExitCode> {
    let done = syscall::run(Duration::from_millis(milliseconds))?;
    let report = Report {
        loops: done.loops,
        seconds: done.time.as_secs_f64(),
    };
    terminal::print(&(serde_json::to_string(&report)? + "\n"))?;
    Ok(ExitCode::SUCCESS)
}

/// The hidden subcommand that [`copy`] is.
pub(crate) const COPY: &str = "guest-syscalls";

/// Runs the copies on this machine.
fn here(own: &std::path::Path, copies: usize, duration: Duration) -> anyhow::Result<Vec<Report>> {
    let milliseconds = duration.as_millis().to_string();
    let start = |_| {
        let mut command = Command::new(own);
        command.args([COPY, &milliseconds]);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()
    };
    let children = (0..copies).map(start);
    let mut children = children.collect::<Result<Vec<Child>, _>>()?;
    let mut reports = Vec::new();
    for child in &mut children {
        let mut text = String::new();
        let output = child.stdout.take().context("no output")?;
        output.take(4096).read_to_string(&mut text)?;
        let status = child.wait()?;
        if !status.success() {
            bail!("a copy ended early: {status}");
        }
        reports.push(Report::read(&text)?);
    }
    Ok(reports)
}

/// Runs the copies in a guest, where this program is the first process.
fn inside(guest: &mut Guest, copies: usize, duration: Duration) -> anyhow::Result<Vec<Report>> {
    let one = format!("/init {COPY} {} & ", duration.as_millis());
    let script = one.repeat(copies) + "wait";
    let limit = BOOT_MAX + duration * 4;
    let printed = guest.output(&["sh", "-c", &script], limit)?;
    let reports: Result<Vec<Report>, _> = printed.lines().map(Report::read).collect();
    let reports = reports?;
    let found = reports.len();
    ensure!(found == copies, "found {found} reports of {copies} copies");
    Ok(reports)
}
