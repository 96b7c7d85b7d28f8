//! CPUID: the random number instructions of this processor, and the published defects of its
//! model.

use core::fmt;

/// A random number instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Instruction {
    /// RDRAND: the output of the processor's deterministic generator.
    Rdrand,
    /// RDSEED: the conditioned output of the processor's entropy source.
    Rdseed,
}

impl fmt::Display for Instruction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Instruction::Rdrand => "RDRAND",
            Instruction::Rdseed => "RDSEED",
        })
    }
}

/// A published defect of a processor's random number instructions.
///
/// Recognised by vendor, family and model only. Microcode may have repaired it, so the self-test
/// decides, and this explains its failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum KnownIssue {
    /// AMD families 15h and 16h: RDRAND returns all-ones with CF = 1 after suspend and resume.
    AmdAllOnesAfterSuspend,
    /// AMD Zen 2 with early firmware: RDRAND and RDSEED always return all-ones with CF = 1.
    AmdZen2AllOnes,
    /// AMD Zen 5 (AMD-SB-7055, CVE-2025-62626): the 16- and 32-bit forms of RDSEED return
    /// zero with CF = 1 too often. The 64-bit form is sound, and is the only one that
    /// [`Rdseed`](crate::Rdseed) uses.
    AmdZen5NarrowRdseed,
}

impl fmt::Display for KnownIssue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            KnownIssue::AmdAllOnesAfterSuspend => {
                "AMD family 15h/16h: RDRAND is stuck at all-ones after suspend; reboot, or boot \
                 with it disabled"
            }
            KnownIssue::AmdZen2AllOnes => {
                "early AMD Zen 2 firmware: stuck at all-ones; update the firmware"
            }
            KnownIssue::AmdZen5NarrowRdseed => {
                "AMD Zen 5: 16- and 32-bit RDSEED return zeros too often, AMD-SB-7055; update the \
                 microcode"
            }
        })
    }
}

/// The vendor, family and model that CPUID reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Processor {
    /// The twelve letters of CPUID leaf 0, such as `GenuineIntel`.
    pub vendor: [u8; 12],
    /// Display family: base plus extended.
    pub family: u32,
    /// Display model: base plus extended.
    pub model: u32,
}

impl Processor {
    /// Returns the processor this runs on; `None` without CPUID.
    #[must_use]
    pub fn current() -> Option<Self> {
        cpuid::processor()
    }

    /// Decodes CPUID leaf 1 EAX (Intel SDM, table 3-8; the same on AMD).
    #[must_use]
    pub fn from_cpuid(vendor: [u8; 12], signature: u32) -> Self {
        let base_family = (signature >> 8) & 0xf;
        let base_model = (signature >> 4) & 0xf;
        let extended_family = (signature >> 20) & 0xff;
        let extended_model = (signature >> 16) & 0xf;
        let family = if base_family == 0xf {
            base_family + extended_family
        } else {
            base_family
        };
        let model = if base_family == 0x6 || base_family == 0xf {
            base_model | (extended_model << 4)
        } else {
            base_model
        };
        Processor {
            vendor,
            family,
            model,
        }
    }

    /// Returns the published defect of this model, if there is one.
    #[must_use]
    pub fn known_issue(&self) -> Option<KnownIssue> {
        if &self.vendor != b"AuthenticAMD" {
            return None;
        }
        match (self.family, self.model) {
            (0x15 | 0x16, _) => Some(KnownIssue::AmdAllOnesAfterSuspend),
            // The models of Zen 2: Rome and Castle Peak 0x31, 4700S 0x47, Renoir 0x60, Lucienne
            // 0x68, Matisse 0x71, Van Gogh 0x90, Mendocino 0xa0.
            (0x17, 0x30..=0x4f | 0x60..=0x7f | 0x90..=0x91 | 0xa0..=0xaf) => {
                Some(KnownIssue::AmdZen2AllOnes)
            }
            (0x1a, _) => Some(KnownIssue::AmdZen5NarrowRdseed),
            _ => None,
        }
    }
}

/// Returns true if RDRAND may be executed: CPUID reports it (leaf 1, ECX bit 30).
#[must_use]
pub fn has_rdrand() -> bool {
    in_cpuid(Instruction::Rdrand)
}

/// Returns true if RDSEED may be executed: CPUID reports it (leaf 7, EBX bit 18), and it is not
/// [switched off](switched_off).
#[must_use]
pub fn has_rdseed() -> bool {
    in_cpuid(Instruction::Rdseed) && !switched_off(Instruction::Rdseed)
}

/// Returns true if CPUID reports an instruction.
#[must_use]
pub fn in_cpuid(instruction: Instruction) -> bool {
    let bit = match instruction {
        Instruction::Rdrand => cpuid::RDRAND,
        Instruction::Rdseed => cpuid::RDSEED,
    };
    cpuid::features() & bit != 0
}

/// The environment variable that switches RDSEED off: `off`, `no`, `false` or `0`. It is read
/// once, when the instruction is first asked for.
pub const RDSEED_SWITCH: &str = "TARE_RDSEED";

/// Returns true if the user has switched an instruction off: by [`RDSEED_SWITCH`], for processors
/// whose RDSEED the kernel hides but CPUID still reports. Never without `std`, and never for
/// RDRAND.
#[must_use]
pub fn switched_off(instruction: Instruction) -> bool {
    match instruction {
        Instruction::Rdrand => false,
        Instruction::Rdseed => switch::rdseed_off(),
    }
}

#[cfg(feature = "std")]
mod switch {
    use std::sync::OnceLock;

    pub(super) fn rdseed_off() -> bool {
        static OFF: OnceLock<bool> = OnceLock::new();
        *OFF.get_or_init(|| std::env::var(super::RDSEED_SWITCH).is_ok_and(|value| says_off(&value)))
    }

    pub(super) fn says_off(value: &str) -> bool {
        ["off", "no", "false", "0"]
            .iter()
            .any(|word| value.trim().eq_ignore_ascii_case(word))
    }
}

#[cfg(not(feature = "std"))]
mod switch {
    pub(super) fn rdseed_off() -> bool {
        false
    }
}

/// Returns true if the kernel hides an instruction that CPUID reports, by leaving it out of the
/// flags of `/proc/cpuinfo`; `None` without such a file.
///
/// Linux hides RDSEED on AMD Zen 5 without the microcode that repairs its 16- and 32-bit forms
/// (AMD-SB-7055), and a virtual machine's CPUID may report it all the same. The 64-bit form, the
/// only one that [`Rdseed`](crate::Rdseed) executes on x86-64, is sound. Setting
/// [`RDSEED_SWITCH`] does without it.
#[cfg(feature = "std")]
#[must_use]
pub fn hidden_by_kernel(instruction: Instruction) -> Option<bool> {
    let listed = lists(&std::fs::read_to_string("/proc/cpuinfo").ok()?, instruction)?;
    Some(in_cpuid(instruction) && !listed)
}

/// Returns true if the first `flags` line of `/proc/cpuinfo` names an instruction; `None` without
/// such a line.
#[cfg(feature = "std")]
fn lists(cpuinfo: &str, instruction: Instruction) -> Option<bool> {
    let name = match instruction {
        Instruction::Rdrand => "rdrand",
        Instruction::Rdseed => "rdseed",
    };
    let flags = cpuinfo.lines().find_map(|line| {
        let (key, flags) = line.split_once(':')?;
        (key.trim() == "flags").then_some(flags)
    })?;
    Some(flags.split_whitespace().any(|flag| flag == name))
}

#[cfg(any(target_arch = "x86_64", target_arch = "x86"))]
mod cpuid {
    #[cfg(target_arch = "x86")]
    use core::arch::x86::{__cpuid_count, CpuidResult};
    #[cfg(target_arch = "x86_64")]
    use core::arch::x86_64::{__cpuid_count, CpuidResult};
    use core::sync::atomic::{AtomicU8, Ordering};

    use super::Processor;

    pub(super) const RDRAND: u8 = 1;
    pub(super) const RDSEED: u8 = 2;
    const ASKED: u8 = 4;

    /// CPUID traps in a virtual machine and costs microseconds there: ask once.
    static FEATURES: AtomicU8 = AtomicU8::new(0);

    pub(super) fn features() -> u8 {
        let cached = FEATURES.load(Ordering::Relaxed);
        if cached & ASKED != 0 {
            return cached;
        }
        let mut found = ASKED;
        let leaves = leaf(0, 0).eax;
        if leaves >= 1 && leaf(1, 0).ecx & (1 << 30) != 0 {
            found |= RDRAND;
        }
        if leaves >= 7 && leaf(7, 0).ebx & (1 << 18) != 0 {
            found |= RDSEED;
        }
        FEATURES.store(found, Ordering::Relaxed);
        found
    }

    pub(super) fn processor() -> Option<Processor> {
        let zero = leaf(0, 0);
        if zero.eax < 1 {
            return None;
        }
        let mut vendor = [0; 12];
        vendor[0..4].copy_from_slice(&zero.ebx.to_le_bytes());
        vendor[4..8].copy_from_slice(&zero.edx.to_le_bytes());
        vendor[8..12].copy_from_slice(&zero.ecx.to_le_bytes());
        Some(Processor::from_cpuid(vendor, leaf(1, 0).eax))
    }

    #[allow(
        unused_unsafe,
        reason = "CPUID became a safe function in a newer toolchain"
    )]
    fn leaf(leaf: u32, sub_leaf: u32) -> CpuidResult {
        // SAFETY: every processor with SSE2, which the targets of Rust require, has CPUID; it
        // touches only registers, and callers ask only for leaves that leaf 0 reports.
        unsafe { __cpuid_count(leaf, sub_leaf) }
    }
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "x86")))]
mod cpuid {
    pub(super) const RDRAND: u8 = 1;
    pub(super) const RDSEED: u8 = 2;

    pub(super) fn features() -> u8 {
        0
    }

    pub(super) fn processor() -> Option<super::Processor> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_broken_processors_are_recognised_by_their_signature() {
        // (CPUID leaf 1 EAX, family, model, what is known)
        let amd = [
            (
                0x0066_0f51,
                0x15,
                0x65,
                Some(KnownIssue::AmdAllOnesAfterSuspend),
            ), // Stoney/Carrizo
            (
                0x0073_0f01,
                0x16,
                0x30,
                Some(KnownIssue::AmdAllOnesAfterSuspend),
            ), // Puma
            (0x0087_0f10, 0x17, 0x71, Some(KnownIssue::AmdZen2AllOnes)), // Matisse
            (0x0084_0f70, 0x17, 0x47, Some(KnownIssue::AmdZen2AllOnes)), // 4700S
            (0x0089_0f00, 0x17, 0x90, Some(KnownIssue::AmdZen2AllOnes)), // Van Gogh
            (0x008a_0f00, 0x17, 0xa0, Some(KnownIssue::AmdZen2AllOnes)), // Mendocino
            (0x0080_0f11, 0x17, 0x01, None),                             // Zen
            (0x0081_0f81, 0x17, 0x18, None),                             // Zen+
            (0x00a2_0f10, 0x19, 0x21, None),                             // Zen 3
            (
                0x00b4_0f40,
                0x1a,
                0x44,
                Some(KnownIssue::AmdZen5NarrowRdseed),
            ), // Granite Ridge
        ];
        for (signature, family, model, known) in amd {
            let processor = Processor::from_cpuid(*b"AuthenticAMD", signature);
            assert_eq!(
                (processor.family, processor.model),
                (family, model),
                "{signature:#x}"
            );
            assert_eq!(processor.known_issue(), known, "{signature:#x}");
        }
    }

    #[cfg(feature = "std")]
    #[test]
    fn the_flags_of_the_kernel_are_read_as_whole_words() {
        let zen5 = "processor\t: 0\nflags\t\t: fpu rdrand rdseed_x hypervisor\nbugs\t: x\n";
        assert_eq!(lists(zen5, Instruction::Rdrand), Some(true));
        assert_eq!(lists(zen5, Instruction::Rdseed), Some(false));
        let other = "flags\t: rdseed\n\nprocessor : 1\nflags : rdrand\n";
        assert_eq!(lists(other, Instruction::Rdseed), Some(true));
        assert_eq!(lists(other, Instruction::Rdrand), Some(false));
        assert_eq!(
            lists("processor\t: 0\nFeatures : aes\n", Instruction::Rdseed),
            None
        );
        // What CPUID does not report is absent and not hidden.
        for instruction in [Instruction::Rdrand, Instruction::Rdseed] {
            assert!(in_cpuid(instruction) || hidden_by_kernel(instruction) != Some(true));
        }
    }

    #[cfg(feature = "std")]
    #[test]
    fn the_switch_takes_the_usual_words() {
        assert!(["off", "OFF", " no", "false", "0"]
            .map(switch::says_off)
            .iter()
            .all(|&off| off));
        assert!(!["", "on", "1", "yes", "offline"]
            .map(switch::says_off)
            .iter()
            .any(|&off| off));
    }

    #[test]
    fn other_vendors_have_no_known_issue() {
        let processor = Processor::from_cpuid(*b"GenuineIntel", 0x0008_06f8);
        assert_eq!((processor.family, processor.model), (6, 0x8f));
        assert_eq!(processor.known_issue(), None);
    }
}
