//! The evidence, from inside a guest, of what it is.

use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::host::tree::{kernel_log, Tree};
use crate::Flavour;

/// Lines of the kernel's log that are kept.
const LINES_MAX: usize = 16;
/// Characters of a line that are kept.
const WIDTH_MAX: usize = 200;

/// The state of a guest as seen from inside when it was ready. It goes into the record of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Evidence {
    /// The kernel's release.
    pub kernel: String,
    /// Processors.
    pub vcpus: u32,
    /// Memory in KiB, as the kernel counts it.
    pub memory_kib: Option<u64>,
    /// Slots of bounce buffers that are in use; `None` if the kernel does not say.
    pub bounce_slots_used: Option<u64>,
    /// Slots of bounce buffers that there are.
    pub bounce_slots: Option<u64>,
    /// The kernel's own lines about memory encryption.
    pub encryption: Vec<String>,
    /// Devices of which a report can be had that the hardware signs.
    pub attestation: Vec<String>,
}

impl Evidence {
    /// Reads the evidence, inside a guest.
    pub(crate) fn gather() -> Evidence {
        let cpus = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let cpus = cpus.lines().filter(|it| it.starts_with("processor"));
        let memory = Tree(Path::new("/")).after("proc/meminfo", "MemTotal:");
        let devices = ["/dev/sev-guest", "/dev/tdx_guest"].into_iter();
        let devices = devices.filter(|it| fs::exists(it).unwrap_or(false));
        let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        Evidence {
            kernel: release.trim().to_owned(),
            vcpus: cpus.count() as u32,
            memory_kib: memory.and_then(|it| it.split_whitespace().next()?.parse().ok()),
            bounce_slots_used: slots("io_tlb_used"),
            bounce_slots: slots("io_tlb_nslabs"),
            encryption: encryption(&kernel_log(Path::new("/dev/kmsg"))),
            attestation: devices.map(str::to_owned).collect(),
        }
    }

    /// Returns as much of it as a guest that tells the truth has: it goes into records and errors.
    pub(crate) fn bounded(mut self) -> Evidence {
        let cut = |text: &String| text.chars().take(WIDTH_MAX).collect();
        let lines = |all: Vec<String>| all.iter().take(LINES_MAX).map(cut).collect();
        self.kernel = cut(&self.kernel);
        self.encryption = lines(self.encryption);
        self.attestation = lines(self.attestation);
        self
    }

    /// Checks that the guest is what its flavour says.
    ///
    /// # Errors
    /// What was found and expected.
    pub fn check(&self, flavour: Flavour) -> Result<(), String> {
        let has = |name: &str| self.encryption.iter().any(|line| line.contains(name));
        let found = match flavour {
            Flavour::Plain => match self.bounce_slots_used {
                None | Some(0) => return Ok(()),
                Some(used) => format!("{used} bounce slots in use, expected none"),
            },
            Flavour::Swiotlb => match self.bounce_slots_used {
                Some(1..) => return Ok(()),
                Some(0) => "found no bounce slot in use, expected some".to_owned(),
                None => "found no /sys/kernel/debug/swiotlb/io_tlb_used".to_owned(),
            },
            Flavour::SevSnp if has("SEV-SNP") => return Ok(()),
            Flavour::Tdx if has("TDX") => return Ok(()),
            Flavour::SevSnp | Flavour::Tdx => format!(
                "found {:?} in the kernel's log, expected \"Memory Encryption Features active\" \
                 with the name of the technique",
                self.encryption
            ),
        };
        Err(format!("flavour {flavour}: {found}"))
    }
}

/// Returns the most slots that were in use at a time since the guest was booted, where the kernel
/// keeps that (since 6.4), or those that are in use.
pub(crate) fn slots_peak() -> Option<u64> {
    slots("io_tlb_used_hiwater").or_else(|| slots("io_tlb_used"))
}

fn slots(name: &str) -> Option<u64> {
    Tree(Path::new("/")).number(&format!("sys/kernel/debug/swiotlb/{name}"))
}

/// Returns the lines of a kernel's log that say that memory is encrypted. The first number of a
/// record is 8 or more if a process wrote it, which may say what it likes.
fn encryption(log: &str) -> Vec<String> {
    let is_of_kernel = |line: &&str| {
        let number = line.split(',').next().and_then(|it| it.parse().ok());
        number.is_some_and(|number: u32| number < 8)
    };
    let lines = log.lines().filter(is_of_kernel).filter(|line| {
        line.contains("Memory Encryption Features active") || line.contains("tdx: Guest detected")
    });
    let lines = lines.map(|line| line.chars().take(WIDTH_MAX).collect());
    lines.take(LINES_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guest_is_called_confidential_only_with_evidence_from_inside() {
        let of = |log: &str, used| Evidence {
            encryption: encryption(log),
            bounce_slots_used: used,
            ..Evidence::default()
        };
        let none = of(
            "6,1,0,-;Linux version 6.12\n6,2,0,-;software IO TLB: mapped",
            Some(0),
        );
        let snp = of(
            "6,9,0,-;Memory Encryption Features active: AMD SEV SEV-ES SEV-SNP",
            Some(9),
        );
        let sev = of(
            "6,9,0,-;Memory Encryption Features active: AMD SEV SEV-ES",
            Some(9),
        );
        let tdx = of(
            "6,9,0,-;Memory Encryption Features active: Intel TDX",
            Some(9),
        );
        // A process can write the same words into the log.
        let forged = of(
            "12,9,0,-;Memory Encryption Features active: AMD SEV-SNP, Intel TDX\n \
             6,SUBSYSTEM=Memory Encryption Features active: Intel TDX",
            Some(9),
        );
        let bounced = of("", Some(3));
        for (evidence, right) in [
            (&none, &[Flavour::Plain][..]),
            (&snp, &[Flavour::SevSnp, Flavour::Swiotlb]),
            (&sev, &[Flavour::Swiotlb]),
            (&tdx, &[Flavour::Tdx, Flavour::Swiotlb]),
            (&bounced, &[Flavour::Swiotlb]),
            (&forged, &[Flavour::Swiotlb]),
            (&of("", None), &[Flavour::Plain]),
        ] {
            for flavour in Flavour::ALL {
                let checked = evidence.check(flavour);
                assert_eq!(
                    checked.is_ok(),
                    right.contains(&flavour),
                    "{flavour} {checked:?}"
                );
            }
        }
    }

    #[test]
    fn the_evidence_of_a_guest_that_floods_is_bounded() {
        let long = "é".repeat(1 << 16);
        let flood = Evidence {
            kernel: long.clone(),
            encryption: vec![long.clone(); 100],
            attestation: vec![long; 100],
            ..Evidence::default()
        };
        let text = flood.bounded().check(Flavour::Tdx).unwrap_err();
        assert!(text.len() < 10_000, "{}", text.len());
        let small = Evidence {
            kernel: "6.12".into(),
            encryption: vec!["Intel TDX".into()],
            attestation: vec!["/dev/tdx_guest".into()],
            ..Evidence::default()
        };
        assert_eq!(small.clone().bounded(), small);
    }
}
