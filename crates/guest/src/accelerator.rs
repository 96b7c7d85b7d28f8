//! The way in which a guest's instructions run: by the processor, or emulated.

use std::fmt;
use std::fs::OpenOptions;
use std::path::Path;
use std::time::Duration;

use crate::kernel::Kernel;
use crate::{Flavour, Guest, Hardware, Limits};

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

/// The accelerator of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// KVM if a guest boots with it in time.
    pub accelerator: Accelerator,
    /// The reason why it is not KVM.
    pub reason: Option<String>,
}

/// Boots a guest under KVM, if there is any, and returns it as the choice if that was ready in
/// time: a machine that is a guest itself may have a `/dev/kvm` that interprets every instruction.
pub fn choose(kernel: &Kernel, initramfs: &Path) -> Choice {
    let reason = match OpenOptions::new().read(true).write(true).open("/dev/kvm") {
        Err(error) => format!("/dev/kvm: {error}"),
        Ok(_) => {
            let hardware = Hardware::new(Flavour::Plain, Accelerator::Kvm);
            let limits = Limits { boot: PROBE };
            match Guest::boot(&hardware, kernel, initramfs, &limits) {
                Ok(_) => {
                    return Choice {
                        accelerator: Accelerator::Kvm,
                        reason: None,
                    }
                }
                Err(error) => {
                    let text = error.to_string();
                    let line = text.lines().next().unwrap_or_default();
                    format!(
                        "/dev/kvm does not boot a guest in {} s: {line}",
                        PROBE.as_secs()
                    )
                }
            }
        }
    };
    Choice {
        accelerator: Accelerator::Emulated,
        reason: Some(reason),
    }
}
