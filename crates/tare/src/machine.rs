//! The features of a machine that drivers check: a value, so that a test can describe any machine.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use tare_gcm::Path;
use tare_guest::accelerator::try_kvm;
use tare_guest::host::has_technique;
use tare_guest::initramfs::Initramfs;
use tare_guest::kernel::Kernel;
use tare_guest::version::Version;
use tare_guest::Flavour;
use tare_lab::driver::Missing;
use tare_memory::Meminfo;
use tare_rdrand::processor::{self, RDSEED_SWITCH};
use tare_rdrand::Instruction;

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
    /// TLS in a server of `Load`.
    ServerTls(&'static str),
    /// QEMU, busybox, and a kernel for guests.
    Guests,
    /// Guests that are not emulated, so that their times mean something.
    Kvm,
    /// A confidential flavour of guests.
    Confidential(&'static str),
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

/// The servers that may have TLS, with the arguments after which each shows whether it does.
const TLS_SERVERS: [(&str, &[&str]); 3] = [
    ("nginx", &["-V"]),
    ("memcached", &["-h"]),
    // It reads its settings in this order, and does not start for want of the folder.
    (
        "redis-server",
        &["--tls-port", "0", "--dir", "/dev/null/none"],
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
            Feature::Guests,
            Feature::Kvm,
            Feature::Confidential("sev-snp"),
            Feature::Confidential("tdx"),
        ];
        // No experiment has a cell of its own for AArch64.
        let paths = Path::ALL.into_iter().filter(|path| *path != Path::Neon);
        all.extend(paths.map(Feature::GcmPath));
        all.extend(Feature::network_tools());
        all.extend(LOAD_PROGRAMS.map(|(name, _)| Feature::Load(name)));
        all.extend(TLS_SERVERS.map(|(name, _)| Feature::ServerTls(name)));
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
            Feature::Guests => (
                "guests need QEMU, busybox and a kernel with its modules".into(),
                "apt install qemu-system-x86 busybox linux-image-amd64",
            ),
            Feature::Confidential("tdx") => (
                "this machine, or its QEMU, has no Intel TDX".into(),
                "a processor and a kernel with TDX (kvm_intel.tdx=1), QEMU 10.1 or later, apt install ovmf",
            ),
            Feature::Confidential(flavour) => (
                format!("this machine, or its QEMU, has no {flavour}"),
                "a processor and a kernel with AMD SEV-SNP (kvm_amd.sev_snp=1), QEMU 9.1 or later, apt install ovmf",
            ),
            Feature::Kvm => (
                "guests are emulated here, so times mean nothing: KVM boots none in 6 s".into(),
                "run on a machine whose /dev/kvm works: hardware, or a guest with nested virtualization",
            ),
            Feature::Rdrand => (
                "the processor has no RDRAND".into(),
                "run on Intel Ivy Bridge or AMD Excavator and later, or let the hypervisor pass RDRAND on",
            ),
            // The kernel may hide it, but does not take it away.
            Feature::Rdseed if rdseed_is_switched_off() => (
                format!("RDSEED is switched off by {RDSEED_SWITCH} in the environment"),
                "unset TARE_RDSEED",
            ),
            Feature::Rdseed => (
                "the processor has no RDSEED".into(),
                "run on Intel Broadwell or AMD Zen and later, or let the hypervisor pass RDSEED on",
            ),
            Feature::VdsoGetrandom => (
                "this C library's getrandom is the system call (glibc uses the vDSO from 2.41 on)".into(),
                "a distribution with glibc 2.41 or later and Linux 6.11 or later",
            ),
            Feature::GcmPath(Path::Neon) => (
                "this processor is no AArch64 with AES and PMULL".into(),
                "an AArch64 processor with the cryptographic extension",
            ),
            Feature::GcmPath(path) => (
                format!("this processor lacks the instructions of the path {path}"),
                match path {
                    Path::Vaes512 => "a processor with AVX-512, VAES and VPCLMULQDQ (Intel Ice Lake, AMD Zen 4 or later), or a hypervisor that passes them on",
                    Path::Vaes256 => "a processor with VAES and VPCLMULQDQ (Intel Ice Lake, AMD Zen 3 or later), or a hypervisor that passes them on",
                    _ => "a processor with AES-NI and PCLMULQDQ (Intel Westmere, AMD Bulldozer or later), or a hypervisor that passes them on",
                },
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
            Feature::ServerTls(program) => (
                format!("this `{program}` was built without TLS"),
                "the distribution's package, which has TLS in Debian 12, or a build with it",
            ),
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
            Feature::ServerTls(program) => has_tls(program),
            Feature::Guests => {
                let has_kernel = Kernel::installed().is_ok();
                has_kernel && Version::installed().is_ok() && program::find("busybox").is_some()
            }
            Feature::Kvm => has_kvm(),
            Feature::Confidential(flavour) => has_confidential(flavour),
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

    /// Returns an error if the machine cannot boot a guest of this flavour, or cannot time it.
    pub(crate) fn need_guest(&self, flavour: Flavour, timed: bool) -> Result<(), Missing> {
        self.need(Feature::Guests)?;
        if flavour.is_confidential() {
            self.need(Feature::Confidential(flavour.name()))?;
        }
        if timed || flavour.is_confidential() {
            self.need(Feature::Kvm)?;
        }
        Ok(())
    }

    /// Returns an error if the machine has less memory that is free; `what` needs these bytes.
    pub(crate) fn need_memory(&self, bytes: u64, what: &str) -> Result<(), Missing> {
        let free = match self {
            Machine::This => free_memory(),
            #[cfg(test)]
            Machine::Described { .. } => None,
        };
        let gib = |bytes: u64| bytes as f64 / f64::from(1 << 30);
        match free {
            Some(free) if free < bytes => Err(Missing {
                reason: format!(
                    "{what} {:.1} GiB of memory, {:.1} GiB are free",
                    gib(bytes),
                    gib(free)
                ),
                remedy: Some("run on a machine with more memory".into()),
            }),
            _ => Ok(()),
        }
    }

    /// Returns an error if no file can be made in the folder for temporary files.
    pub(crate) fn need_temporary_folder(&self) -> Result<(), Missing> {
        let folder = match self {
            Machine::This => std::env::temp_dir(),
            #[cfg(test)]
            Machine::Described { .. } => return Ok(()),
        };
        match tempfile::tempfile_in(&folder) {
            Ok(_) => Ok(()),
            // The error itself has the name of the file, which is another one each time.
            Err(error) => Err(Missing {
                reason: format!(
                    "no file can be made in {}: {}",
                    folder.display(),
                    error.kind()
                ),
                remedy: Some("set TMPDIR to a folder that can be written".into()),
            }),
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

/// Returns true if the processor has RDSEED, and the user does without it.
fn rdseed_is_switched_off() -> bool {
    processor::in_cpuid(Instruction::Rdseed) && processor::switched_off(Instruction::Rdseed)
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

/// Returns true if the kernel's module says that it can run guests of a confidential flavour, and
/// QEMU has it.
fn has_confidential(flavour: &str) -> bool {
    let Ok(flavour) = flavour.parse::<Flavour>() else {
        return false;
    };
    let is_on = has_technique(std::path::Path::new("/"), flavour);
    is_on && Version::installed().is_ok_and(|version| version >= flavour.since())
}

/// Returns true if a guest boots under KVM in time, which is tried once.
fn has_kvm() -> bool {
    static ANSWER: OnceLock<bool> = OnceLock::new();
    *ANSWER.get_or_init(|| {
        let boots = || -> anyhow::Result<bool> {
            let kernel = Kernel::installed()?;
            let image = Initramfs::new(&std::env::current_exe()?, &kernel)?.in_memory()?;
            Ok(try_kvm(&kernel, image.path()).is_ok())
        };
        std::path::Path::new("/dev/kvm").exists() && boots().unwrap_or(false)
    })
}

/// Returns the bytes of memory that programs can still take; `None` if the kernel does not say.
fn free_memory() -> Option<u64> {
    Meminfo::read().bytes("MemAvailable")
}

/// Returns true if a server says that it has TLS.
fn has_tls(name: &str) -> bool {
    let server = TLS_SERVERS.iter().find(|(server, _)| *server == name);
    let (Some((_, arguments)), Some(program)) = (server, load_program(name)) else {
        return false;
    };
    let output = Command::new(program)
        .args(*arguments)
        .stdin(Stdio::null())
        .output();
    output.is_ok_and(|output| {
        let said = [output.stdout, output.stderr].concat();
        says_tls(name, &String::from_utf8_lossy(&said))
    })
}

/// Returns true if that is what a server with TLS says.
fn says_tls(name: &str, said: &str) -> bool {
    match name {
        "nginx" => said.contains("--with-http_ssl_module"),
        "memcached" => said.contains("--enable-ssl"),
        // Without TLS it stops at the setting before.
        _ => said.contains("'dir \"/dev/null/none\"'"),
    }
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

#[cfg(test)]
mod tests {
    use tare_gcm::Path;

    use super::{says_tls, Feature};

    /// The remedy for a missing AVX-512 is not a processor like this one.
    #[test]
    fn each_path_of_the_cipher_names_the_instructions_that_it_needs() {
        for (path, needs) in [
            (Path::Vaes512, "AVX-512, VAES and VPCLMULQDQ"),
            (Path::Vaes256, "a processor with VAES and VPCLMULQDQ"),
            (Path::AesNi, "AES-NI and PCLMULQDQ"),
            (Path::Neon, "AArch64"),
        ] {
            let remedy = Feature::GcmPath(path).missing().remedy;
            let remedy = remedy.unwrap_or_default();
            assert!(remedy.contains(needs), "{path}: {remedy}");
        }
    }

    #[test]
    fn a_server_without_tls_is_told_by_what_it_says() {
        for (name, with, without) in [
            (
                "nginx",
                "configure arguments: --with-http_ssl_module --with-http_v2_module",
                "configure arguments: --with-http_v2_module",
            ),
            (
                "memcached",
                "-u, --user=<user>\n-Z, --enable-ssl          enable TLS/SSL",
                "-u, --user=<user>",
            ),
            (
                "redis-server",
                "at line 3\n>>> 'dir \"/dev/null/none\"'\nNot a directory",
                "at line 2\n>>> 'tls-port \"0\"'\nBad directive or wrong number of arguments",
            ),
        ] {
            assert!(says_tls(name, with) && !says_tls(name, without), "{name}");
            assert!(!says_tls(name, ""), "{name}");
        }
    }
}
