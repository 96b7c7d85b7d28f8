//! What CPUID says: which instructions there are, and whether the processor is one of
//! those with a published random number defect.

use core::fmt;

use crate::error::{HealthFailure, Instruction};

/// A published defect of a processor's random number instructions.
///
/// Recognised by vendor, family and model only. Microcode may have repaired it, so it
/// never decides alone: the self-test does, and this explains its verdict.
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

impl KnownIssue {
    /// Whether this defect looks like that failure.
    pub(crate) fn explains(self, instruction: Instruction, failure: &HealthFailure) -> bool {
        let stuck_at = |stuck: u64| matches!(failure, HealthFailure::Repetition { value, .. } if *value == stuck);
        match self {
            KnownIssue::AmdAllOnesAfterSuspend | KnownIssue::AmdZen2AllOnes => stuck_at(u64::MAX),
            KnownIssue::AmdZen5NarrowRdseed => instruction == Instruction::Rdseed && stuck_at(0),
        }
    }
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

/// Vendor, family and model as CPUID gives them.
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
    /// The processor this runs on; `None` where there is no CPUID.
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

    /// The published defect of this model, if there is one.
    #[must_use]
    pub fn known_issue(&self) -> Option<KnownIssue> {
        if &self.vendor != b"AuthenticAMD" {
            return None;
        }
        match (self.family, self.model) {
            (0x15 | 0x16, _) => Some(KnownIssue::AmdAllOnesAfterSuspend),
            // Rome and Castle Peak, Renoir, Matisse: the models of Zen 2.
            (0x17, 0x31 | 0x60 | 0x68 | 0x71) => Some(KnownIssue::AmdZen2AllOnes),
            (0x1a, _) => Some(KnownIssue::AmdZen5NarrowRdseed),
            _ => None,
        }
    }
}

/// Whether CPUID reports RDRAND (leaf 1, ECX bit 30).
#[must_use]
pub fn has_rdrand() -> bool {
    cpuid::features() & cpuid::RDRAND != 0
}

/// Whether CPUID reports RDSEED (leaf 7, EBX bit 18).
#[must_use]
pub fn has_rdseed() -> bool {
    cpuid::features() & cpuid::RDSEED != 0
}

#[cfg(target_arch = "x86_64")]
mod cpuid {
    use core::arch::x86_64::{__cpuid, __cpuid_count};
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
    fn leaf(leaf: u32, sub_leaf: u32) -> core::arch::x86_64::CpuidResult {
        if sub_leaf == 0 && leaf == 0 {
            // SAFETY: every x86-64 processor has CPUID and it touches only registers.
            return unsafe { __cpuid(0) };
        }
        // SAFETY: as above; callers ask only for leaves that leaf 0 reports.
        unsafe { __cpuid_count(leaf, sub_leaf) }
    }
}

#[cfg(not(target_arch = "x86_64"))]
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
            (0x0080_0f11, 0x17, 0x01, None),                             // Zen
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

    #[test]
    fn other_vendors_have_no_known_issue() {
        let processor = Processor::from_cpuid(*b"GenuineIntel", 0x0008_06f8);
        assert_eq!((processor.family, processor.model), (6, 0x8f));
        assert_eq!(processor.known_issue(), None);
    }
}
