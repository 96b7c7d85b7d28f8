//! The driver `guest-syscalls`: UnixBench's system calls on the host and in guests.

use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use anyhow::{ensure, Context as _};
use tare_guest::accelerator::Accelerator;
use tare_guest::initramfs::Initramfs;
use tare_guest::kernel::Kernel;
use tare_guest::syscall::{self, Copy};
use tare_guest::{Flavour, Guest, Hardware};
use tare_lab::driver::{Expected, Missing};
use tare_lab::parameters::Choice as _;
use tare_lab::{choices, figures, parameters};

use crate::agent::{Agent, TrialError};
use crate::machine::Machine;
use crate::systems::workload::Workload;
use crate::terminal;

/// The usual time until a guest is ready.
const BOOT: Duration = Duration::from_secs(4);
/// The longest time until then.
const BOOT_MAX: Duration = Duration::from_secs(400);

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
    /// Returns the flavour of the guest, which has the same name; `None` for the host.
    fn flavour(self) -> Option<Flavour> {
        self.name().parse().ok()
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
        machine.need_cpus(parameters.copies, "this number of copies needs")?;
        match parameters.place.flavour() {
            Some(flavour) => machine.need_guest(flavour, parameters.timed),
            None => Ok(()),
        }
    }

    fn expected(parameters: &SyscallParameters) -> Option<Expected> {
        let guest = parameters.place.flavour();
        let start = guest.map_or(Duration::from_millis(20), |_| BOOT);
        Some(Expected {
            clock: parameters.duration * parameters.repeats as u32 + start,
            work: Duration::ZERO,
        })
    }

    fn longest(parameters: &SyscallParameters) -> Duration {
        BOOT_MAX + parameters.duration * 4 * parameters.repeats as u32
    }

    fn run(parameters: SyscallParameters, agent: &mut Agent) -> Result<SyscallTrial, TrialError> {
        let own = std::env::current_exe().map_err(anyhow::Error::from)?;
        let flavour = parameters.place.flavour();
        let guest = flavour.map(|flavour| boot(&own, flavour, &parameters));
        let mut guest = guest.transpose()?;
        if let Some(guest) = &guest {
            agent.note("guest", guest.evidence())?;
        }
        agent.start()?;
        let mut all = Vec::new();
        for _ in 0..parameters.repeats {
            all.push(repeat(&own, guest.as_mut(), &parameters)?);
        }
        let is_emulated = flavour.is_some() && !parameters.timed;
        let worked = |copies: &Vec<Copy>| copies.iter().filter(|it| it.loops > 0).count();
        let rate = |copies: &Vec<Copy>| copies.iter().map(Copy::rate).sum();
        let rates: Vec<f64> = all.iter().map(rate).collect();
        let score = syscall::score(&rates).context("a repeat without a loop")?;
        Ok(SyscallTrial {
            loop_rate: score,
            index: syscall::index(score),
            operations: all.iter().flatten().map(|copy| copy.loops).sum(),
            copies: all.iter().map(worked).min().unwrap_or(0) as u64,
            repeats: all.len() as u64,
            emulated: is_emulated.into(),
        })
    }
}

/// The hidden subcommand that [`copy`] is.
pub(crate) const COPY: &str = "guest-syscalls";

/// Makes the system calls in this process, and prints how many.
///
/// # Errors
/// As those of the system calls.
pub(crate) fn copy(milliseconds: u64) -> anyhow::Result<ExitCode> {
    let done = syscall::run(Duration::from_millis(milliseconds))?;
    terminal::print(&(serde_json::to_string(&done)? + "\n"))?;
    Ok(ExitCode::SUCCESS)
}

/// Boots a guest, in which this program is the first process.
fn boot(own: &Path, flavour: Flavour, parameters: &SyscallParameters) -> anyhow::Result<Guest> {
    let kernel = Kernel::installed()?;
    let image = Initramfs::new(own, &kernel)?.in_memory()?;
    let hardware = Hardware {
        vcpus: parameters.copies as u16,
        ..Hardware::new(flavour, Accelerator::for_times(parameters.timed))
    };
    let guest = Guest::boot(&hardware, &kernel, image.path(), Guest::BOOT_MAX);
    Ok(guest?)
}

/// Runs the copies once, in the guest if there is one, where this program is `/init`.
fn repeat(
    own: &Path,
    guest: Option<&mut Guest>,
    parameters: &SyscallParameters,
) -> anyhow::Result<Vec<Copy>> {
    let milliseconds = parameters.duration.as_millis();
    let copy = format!("\"$0\" {COPY} {milliseconds} & ");
    let script = copy.repeat(parameters.copies) + "wait";
    let limit = BOOT_MAX + parameters.duration * 4;
    let printed = match guest {
        Some(guest) => guest.output(&["sh", "-c", &script, "/init"], limit)?,
        None => {
            let mut shell = Command::new("sh");
            shell.args(["-c", &script]).arg(own).stdin(Stdio::null());
            String::from_utf8_lossy(&shell.output()?.stdout).into_owned()
        }
    };
    let one = |line: &str| {
        let copy: Copy = serde_json::from_str(line)
            .with_context(|| format!("found \"{}\", expected a copy's report", line.trim()))?;
        ensure!(copy.seconds > 0.0, "a copy took {} s", copy.seconds);
        Ok(copy)
    };
    let copies = printed.lines().map(one);
    let copies = copies.collect::<anyhow::Result<Vec<Copy>>>()?;
    let (found, all) = (copies.len(), parameters.copies);
    ensure!(found == all, "found {found} reports of {all} copies");
    Ok(copies)
}
