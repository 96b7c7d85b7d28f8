//! The way in which a guest's instructions run: by the processor, or emulated.

use std::fmt;
use std::fs::OpenOptions;
use std::path::Path;
use std::time::Duration;

use crate::kernel::Kernel;
use crate::{Flavour, Guest, Hardware};

/// The time in which a guest under KVM is ready, if that is fast enough to be timed.
const PROBE: Duration = Duration::from_secs(6);

/// The way in which a guest's instructions run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accelerator {
    /// By the processor (KVM): times mean something.
    Kvm,
    /// Emulated (TCG): counts mean something, times do not.
    Emulated,
}

impl Accelerator {
    /// Returns that of a guest whose times are judged, which is not emulated, or of another.
    pub fn for_times(are_judged: bool) -> Accelerator {
        match are_judged {
            true => Accelerator::Kvm,
            false => Accelerator::Emulated,
        }
    }

    /// Returns its name.
    pub fn name(self) -> &'static str {
        match self {
            Accelerator::Kvm => "kvm",
            Accelerator::Emulated => "tcg",
        }
    }
}

impl fmt::Display for Accelerator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Boots a guest under KVM: a machine that is a guest itself may have a `/dev/kvm` that interprets
/// every instruction.
///
/// # Errors
/// There is no KVM, or no guest that was ready in time: in words.
pub fn try_kvm(kernel: &Kernel, initramfs: &Path) -> Result<(), String> {
    let opened = OpenOptions::new().read(true).write(true).open("/dev/kvm");
    opened.map_err(|error| format!("/dev/kvm: {error}"))?;
    let hardware = Hardware::new(Flavour::Plain, Accelerator::Kvm);
    let booted = Guest::boot(&hardware, kernel, initramfs, PROBE);
    booted.map(drop).map_err(|error| {
        let (limit, text) = (PROBE.as_secs(), error.to_string());
        let line = text.lines().next().unwrap_or_default();
        format!("/dev/kvm does not boot a guest in {limit} s: {line}")
    })
}
