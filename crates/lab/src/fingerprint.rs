//! The machine of a run, and its properties that may distort the results.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::experiment::IMPORTED;

/// A machine's fingerprint: what two runs must share before their figures may be compared.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// Processors this process may use; 0, and not written, if that is unknown.
    #[serde(default, skip_serializing_if = "is_unknown")]
    pub cpus: usize,
    /// The processor's model name; absent where the kernel gives none.
    pub cpu_model: Option<String>,
    /// Its feature flags, in the kernel's spelling.
    pub cpu_flags: Vec<String>,
    /// Threads per core; above 1 means SMT is on.
    pub threads_per_core: Option<u32>,
    /// The hypervisor's vendor; absent on bare metal.
    pub hypervisor: Option<String>,
    /// The frequency governor; absent where the kernel controls none.
    pub governor: Option<String>,
    /// True if turbo is on; `None` if that cannot be read.
    pub turbo: Option<bool>,
    /// Vulnerability name to the kernel's mitigation.
    pub mitigations: BTreeMap<String, String>,
    /// The kernel's name, release and version.
    pub kernel: String,
    /// The kernel's command line.
    pub kernel_command_line: Option<String>,
    /// Memory in bytes.
    pub memory: Option<u64>,
    /// Network interfaces: name and driver (or kind).
    pub interfaces: Vec<Interface>,
    /// One-minute load average when the run began.
    pub load: Option<f64>,
}

/// A network interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// Its driver, where it has one.
    pub driver: Option<String>,
    /// Its speed in Mbit/s, where it says so.
    pub speed_mbit: Option<u64>,
}

fn is_unknown(cpus: &usize) -> bool {
    *cpus == 0
}

impl Machine {
    /// The fingerprint of figures that were imported: no property of their machine is known.
    pub fn imported() -> Self {
        Machine {
            cpu_model: Some(IMPORTED.to_owned()),
            kernel: IMPORTED.to_owned(),
            ..Machine::default()
        }
    }

    /// Returns whether the figures were imported.
    pub fn is_imported(&self) -> bool {
        *self == Machine::imported()
    }

    /// Reads this machine's fingerprint. Properties that the kernel does not report stay `None`.
    pub fn read() -> Self {
        Machine::read_from(Path::new("/"))
    }

    /// Reads the fingerprint of the machine whose `proc` and `sys` are under `root`; the
    /// processors are always those that this process may use (its affinity and the quota of its
    /// control group).
    pub fn read_from(root: &Path) -> Self {
        let kernel = Kernel(root);
        let cpuinfo = kernel.cpuinfo();
        let cpu_flags: Vec<String> = ["flags", "Features"]
            .iter()
            .find_map(|name| cpuinfo.get(*name))
            .map(|flags| flags.split_whitespace().map(str::to_owned).collect())
            .unwrap_or_default();
        Machine {
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            cpu_model: cpuinfo.get("model name").cloned(),
            threads_per_core: kernel.threads_per_core(),
            hypervisor: kernel.hypervisor(cpu_flags.iter().any(|flag| flag == "hypervisor")),
            cpu_flags,
            governor: kernel.governor(),
            turbo: kernel.turbo(),
            mitigations: kernel.mitigations(),
            kernel: kernel.name(),
            kernel_command_line: kernel.text("proc/cmdline"),
            memory: kernel.memory(),
            interfaces: kernel.interfaces(),
            load: kernel.load(),
        }
    }

    /// Returns the properties of this machine that may distort a result: one sentence each, with
    /// the command that changes it where there is one.
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        if let Some(governor) = self.governor.as_deref().filter(|g| *g != "performance") {
            warnings.push(format!(
                "The frequency governor is {governor:?}, so the clock is still rising while a \
                 short trial runs; `sudo cpupower frequency-set -g performance` fixes it."
            ));
        }
        if self.turbo == Some(true) {
            warnings.push(
                "Turbo is on, so the clock falls as more cores are busy or the processor warms up, \
                 which looks like bad scaling; `sudo cpupower set --turbo-boost 0` turns it off."
                    .to_owned(),
            );
        }
        let cpus = self.cpus.max(1);
        if let Some(load) = self.load.filter(|load| *load > BUSY * cpus as f64) {
            warnings.push(format!(
                "The load average is {load:.2} on {cpus} {}, so other programs take processor time \
                 from the trials, and wall-clock figures suffer most; `top` shows which.",
                if cpus == 1 { "processor" } else { "processors" }
            ));
        }
        if let Some(threads) = self.threads_per_core.filter(|threads| *threads > 1) {
            // A guest cannot change what its host's cores do.
            let remedy = match self.hypervisor {
                Some(_) => "only the host can turn it off",
                None => "`echo off | sudo tee /sys/devices/system/cpu/smt/control` turns it off",
            };
            warnings.push(format!(
                "SMT is on ({threads} threads per core), so two threads of a trial may share one \
                 core and each be slower; {remedy}."
            ));
        }
        if let Some(hypervisor) = &self.hypervisor {
            warnings.push(format!(
                "This is a virtual machine ({hypervisor}), so other guests may take processor \
                 time unnoticed and exits to the host cost time; ratios can be trusted more than \
                 absolute figures."
            ));
        }
        warnings
    }
}

/// The part of the processors that other programs may keep busy before a warning says so.
const BUSY: f64 = 0.5;

/// No file of the kernel that is read here needs more, on a machine with thousands of processors.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// The kernel's own files under a root.
struct Kernel<'a>(&'a Path);

impl Kernel<'_> {
    /// The trimmed text of a file; `None` if it cannot be read or is empty.
    fn text(&self, path: impl AsRef<Path>) -> Option<String> {
        let mut bytes = Vec::new();
        File::open(self.0.join(path))
            .ok()?
            .take(MAX_FILE_BYTES)
            .read_to_end(&mut bytes)
            .ok()?;
        let text = String::from_utf8_lossy(&bytes);
        let text = text.trim_matches(|c: char| c.is_whitespace() || c == '\0');
        (!text.is_empty()).then(|| text.to_owned())
    }

    /// Returns the names in a directory, sorted; empty if it cannot be read.
    fn names(&self, path: &str) -> BTreeSet<String> {
        let entries = std::fs::read_dir(self.0.join(path));
        entries
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|entry| entry.file_name().into_string().ok())
            .collect()
    }

    /// The fields of `proc/cpuinfo` about the first processor.
    fn cpuinfo(&self) -> BTreeMap<String, String> {
        let text = self.text("proc/cpuinfo").unwrap_or_default();
        let first = text.lines().take_while(|line| !line.trim().is_empty());
        first
            .filter_map(|line| line.split_once(':'))
            .map(|(name, value)| (name.trim().to_owned(), value.trim().to_owned()))
            .filter(|(_, value)| !value.is_empty())
            .collect()
    }

    /// A file of every processor's directory, for those that have it.
    fn of_each_cpu(&self, file: &str) -> BTreeSet<String> {
        let is_cpu = |name: &&String| {
            let number = name.strip_prefix("cpu").unwrap_or("");
            !number.is_empty() && number.chars().all(|c| c.is_ascii_digit())
        };
        self.names(CPUS)
            .iter()
            .filter(is_cpu)
            .filter_map(|name| self.text([CPUS, name, file].iter().collect::<PathBuf>()))
            .collect()
    }

    /// The most threads that share a core: not every core of a hybrid processor has as many.
    fn threads_per_core(&self) -> Option<u32> {
        self.of_each_cpu("topology/thread_siblings_list")
            .iter()
            .filter_map(|list| count_of_list(list))
            .max()
    }

    fn governor(&self) -> Option<String> {
        let governors = self.of_each_cpu("cpufreq/scaling_governor");
        let governors: Vec<String> = governors.into_iter().collect();
        (!governors.is_empty()).then(|| governors.join(", "))
    }

    fn turbo(&self) -> Option<bool> {
        let flag = |file: &str| match self.text(Path::new(CPUS).join(file))?.as_str() {
            "0" => Some(false),
            "1" => Some(true),
            _ => None,
        };
        flag("intel_pstate/no_turbo")
            .map(|off| !off)
            .or_else(|| flag("cpufreq/boost"))
    }

    /// The hypervisor by its own name, or by the vendor of the board that it shows its guests.
    fn hypervisor(&self, flagged: bool) -> Option<String> {
        let named = [
            "sys/hypervisor/type",
            "proc/device-tree/hypervisor/compatible",
        ]
        .iter()
        .find_map(|path| self.text(path));
        let board = || self.text("sys/class/dmi/id/sys_vendor");
        match (named, flagged) {
            (Some(name), _) => Some(name),
            (None, true) => Some(board().unwrap_or_else(|| "unnamed hypervisor".to_owned())),
            (None, false) => None,
        }
    }

    fn mitigations(&self) -> BTreeMap<String, String> {
        let directory = Path::new(CPUS).join("vulnerabilities");
        self.names("sys/devices/system/cpu/vulnerabilities")
            .into_iter()
            .filter_map(|name| {
                let text = self.text(directory.join(&name))?;
                Some((name, text))
            })
            .collect()
    }

    fn name(&self) -> String {
        let parts = ["ostype", "osrelease", "version"];
        let parts = parts
            .iter()
            .filter_map(|part| self.text(Path::new("proc/sys/kernel").join(part)));
        parts.collect::<Vec<_>>().join(" ")
    }

    fn memory(&self) -> Option<u64> {
        let text = self.text("proc/meminfo").unwrap_or_default();
        let total = text.lines().find_map(|line| line.strip_prefix("MemTotal:"));
        total
            .and_then(|total| total.trim().strip_suffix("kB"))
            .and_then(|kibibytes| kibibytes.trim().parse::<u64>().ok())
            .map(|kibibytes| kibibytes.saturating_mul(1024))
    }

    fn interfaces(&self) -> Vec<Interface> {
        let names = self.names("sys/class/net");
        let interface = |name: String| {
            let directory = Path::new("sys/class/net").join(&name);
            let driver = std::fs::read_link(self.0.join(&directory).join("device/driver"));
            let driver = driver.ok().and_then(|path| {
                let name = path.file_name()?.to_str()?;
                Some(name.to_owned())
            });
            // A software interface has no driver; bridges, tunnels and the like say their kind.
            let kind = || {
                let text = self.text(directory.join("uevent"))?;
                let kind = text
                    .lines()
                    .find_map(|line| line.strip_prefix("DEVTYPE="))?;
                Some(kind.to_owned())
            };
            Interface {
                driver: driver.or_else(kind),
                // The kernel reports an unknown speed as -1.
                speed_mbit: self
                    .text(directory.join("speed"))
                    .and_then(|speed| speed.parse().ok()),
                name,
            }
        };
        names.into_iter().map(interface).collect()
    }

    fn load(&self) -> Option<f64> {
        let text = self.text("proc/loadavg")?;
        let load: f64 = text.split_whitespace().next()?.parse().ok()?;
        (load.is_finite() && load >= 0.0).then_some(load)
    }
}

const CPUS: &str = "sys/devices/system/cpu";

/// Returns how many numbers a list such as `0-3,8` has.
fn count_of_list(list: &str) -> Option<u32> {
    list.split(',')
        .map(|range| {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            let (first, last): (u32, u32) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
            last.checked_sub(first)?.checked_add(1)
        })
        .try_fold(0u32, |sum, count| sum.checked_add(count?))
}
