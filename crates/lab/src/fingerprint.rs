//! What a run ran on, and what about it may hurt the result.

use serde::{Deserialize, Serialize};

/// A machine's fingerprint: what two runs must share before their figures may be compared.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// Processors this process may use.
    pub cpus: usize,
    /// The processor's model name; absent where the kernel gives none.
    pub cpu_model: Option<String>,
    /// Its feature flags, in the kernel's spelling.
    pub cpu_flags: Vec<String>,
    /// Threads a core; above 1 means SMT is on.
    pub threads_per_core: Option<u32>,
    /// The hypervisor's vendor; absent on bare metal.
    pub hypervisor: Option<String>,
    /// The frequency governor; absent where the kernel controls none.
    pub governor: Option<String>,
    /// Whether turbo is on; absent where it cannot be read.
    pub turbo: Option<bool>,
    /// Vulnerability name to the kernel's mitigation.
    pub mitigations: std::collections::BTreeMap<String, String>,
    /// The kernel's name, release and version.
    pub kernel: String,
    /// The kernel's command line.
    pub kernel_command_line: Option<String>,
    /// Memory in bytes.
    pub memory: u64,
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
