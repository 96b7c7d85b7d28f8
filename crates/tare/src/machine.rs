//! The features of a machine that drivers check: a value, so that a test can describe any machine.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use tare_gcm::Path;
use tare_lab::driver::Missing;
use tare_rdrand::processor;

use crate::program;

/// Something that a workload needs and a machine may lack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Feature {
    /// The instruction RDRAND.
    Rdrand,
    /// The instruction RDSEED.
    Rdseed,
    /// A C library whose getrandom goes through the vDSO.
    VdsoGetrandom,
    /// The instructions of one of tare-gcm's backends.
    GcmPath(Path),
    /// The libraries that Tare is compared with, which are a feature of the build.
    References,
    /// The rights of root.
    Root,
    /// A program of iproute2 or util-linux.
    NetworkTool(&'static str),
    /// A server, or a load generator that Tare is compared with.
    Load(&'static str),
}

/// The programs that make network namespaces, and an argument with which each does nothing.
const NETWORK_TOOLS: [(&str, &str); 2] = [("ip", "-V"), ("unshare", "--version")];

/// The programs of [`Feature::Load`], with the package of each.
const LOAD_PROGRAMS: [(&str, &str); 9] = [
    ("nginx", "apt install nginx-light"),
    ("memcached", "apt install memcached"),
    ("redis-server", "apt install redis-server"),
    ("wrk", "apt install wrk"),
    ("redis-benchmark", "apt install redis-tools"),
    ("memaslap", "apt install libmemcached-tools"),
    ("memcslap", "apt install libmemcached-tools"),
    ("ucx_perftest", "apt install ucx-utils"),
    (
        "memtier_benchmark",
        "the package memtier-benchmark, which Debian 12 lacks and Redis's own repository has",
    ),
];

/// The file of a program of [`Feature::Load`]. Debian calls memaslap memcaslap.
pub(crate) fn load_program(name: &str) -> Option<PathBuf> {
    let other = (name == "memaslap").then_some("memcaslap");
    program::find_system(name).or_else(|| program::find_system(other?))
}

impl Feature {
    /// Every feature.
    #[cfg(test)]
    pub(crate) fn all() -> Vec<Feature> {
        let mut all = vec![
            Feature::Rdrand,
            Feature::Rdseed,
            Feature::VdsoGetrandom,
            Feature::References,
            Feature::Root,
        ];
        all.extend(Path::ALL.map(Feature::GcmPath));
        all.extend(Feature::network_tools());
        all.extend(LOAD_PROGRAMS.map(|(name, _)| Feature::Load(name)));
        all
    }

    /// Every program of [`Feature::NetworkTool`].
    pub(crate) fn network_tools() -> impl Iterator<Item = Feature> {
        NETWORK_TOOLS
            .iter()
            .map(|&(name, _)| Feature::NetworkTool(name))
    }

    /// The reason and the remedy that are reported where it is missing.
    pub(crate) fn missing(self) -> Missing {
        let (reason, remedy) = match self {
            Feature::Rdrand => (
                "the processor has no RDRAND".into(),
                "run on Intel Ivy Bridge or AMD Excavator and later, or let the hypervisor pass RDRAND on",
            ),
            Feature::Rdseed => (
                "the processor has no RDSEED".into(),
                "run on Intel Broadwell or AMD Zen and later, or let the hypervisor pass RDSEED on",
            ),
            Feature::VdsoGetrandom => (
                "this C library's getrandom is the system call (glibc uses the vDSO from 2.41 on)".into(),
                "a distribution with glibc 2.41 or later and Linux 6.11 or later",
            ),
            Feature::GcmPath(path) => (
                format!("this processor lacks the instructions of the path {path}"),
                "a processor with VAES and VPCLMULQDQ (Intel Ice Lake, AMD Zen 3 or later), or a hypervisor that passes them on",
            ),
            Feature::References => (
                "this build of tare has no other libraries to compare with".into(),
                "build with them: cargo build --release --features references",
            ),
            Feature::Root => (
                "network namespaces and packet sockets need root".into(),
                "sudo tare run vita",
            ),
            Feature::NetworkTool(program) => (
                format!("`{program}` does not run"),
                "apt install iproute2 util-linux",
            ),
            Feature::Load(program) => {
                let remedy = LOAD_PROGRAMS.iter().find(|(name, _)| *name == program);
                (
                    format!("`{program}` is not installed"),
                    remedy.map_or("", |(_, remedy)| remedy),
                )
            }
        };
        Missing {
            reason,
            remedy: Some(remedy.into()),
        }
    }

    fn is_here(self) -> bool {
        match self {
            Feature::Rdrand => processor::has_rdrand(),
            Feature::Rdseed => processor::has_rdseed(),
            Feature::VdsoGetrandom => libc_uses_vdso(),
            Feature::GcmPath(path) => path.is_available(),
            Feature::References => cfg!(feature = "references"),
            Feature::Root => rustix::process::geteuid().is_root(),
            Feature::NetworkTool(program) => runs(program),
            Feature::Load(program) => load_program(program).is_some(),
        }
    }
}

/// The machine on which a workload is to run.
#[derive(Clone, Debug)]
pub(crate) enum Machine {
    /// This one. A feature is looked for when it is first asked for.
    This,
    /// One that a test describes.
    #[cfg(test)]
    Described {
        /// Its processors.
        cpus: usize,
        /// The features that it lacks.
        without: Vec<Feature>,
    },
}

impl Machine {
    /// The number of processors that a process may use.
    pub(crate) fn cpus(&self) -> usize {
        match self {
            Machine::This => std::thread::available_parallelism().map_or(1, usize::from),
            #[cfg(test)]
            Machine::Described { cpus, .. } => *cpus,
        }
    }

    /// Returns an error if the machine lacks the feature.
    pub(crate) fn need(&self, feature: Feature) -> Result<(), Missing> {
        let has = match self {
            Machine::This => feature.is_here(),
            #[cfg(test)]
            Machine::Described { without, .. } => !without.contains(&feature),
        };
        if has {
            Ok(())
        } else {
            Err(feature.missing())
        }
    }

    /// Returns an error if the machine has fewer processors; `what` needs them.
    pub(crate) fn need_cpus(&self, cpus: usize, what: &str) -> Result<(), Missing> {
        let here = self.cpus();
        if here >= cpus {
            return Ok(());
        }
        Err(Missing {
            reason: format!("{what} {cpus} CPUs, this machine has {here}"),
            remedy: Some(format!(
                "run on a machine, or in a container, with {cpus} CPUs or more"
            )),
        })
    }
}

/// Returns true if the C library is a glibc that calls the vDSO's getrandom: 2.41 was the first.
fn libc_uses_vdso() -> bool {
    static ANSWER: OnceLock<bool> = OnceLock::new();
    *ANSWER.get_or_init(|| {
        let Ok(output) = Command::new("getconf").arg("GNU_LIBC_VERSION").output() else {
            return false;
        };
        let version = String::from_utf8_lossy(&output.stdout);
        let mut parts = version.trim().trim_start_matches("glibc ").split('.');
        let mut number = || parts.next().and_then(|part| part.parse::<u32>().ok());
        matches!((number(), number()), (Some(major), Some(minor)) if (major, minor) >= (2, 41))
    })
}

/// Returns true if a network tool can be started: a file of that name may be for another processor.
fn runs(program: &str) -> bool {
    let argument = NETWORK_TOOLS.iter().find(|(name, _)| *name == program);
    let status = Command::new(program)
        .args(argument.map(|(_, argument)| argument))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    status.is_ok_and(|status| status.success())
}
