//! The arguments of QEMU, by flavour and version.

use std::path::Path;
use std::{fmt, str};

use crate::accelerator::Accelerator;
use crate::version::Version;
use crate::Error;

/// The kind of isolation of a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flavour {
    /// A virtual machine.
    Plain,
    /// A virtual machine whose devices reach bounce buffers alone, as in a confidential one.
    Swiotlb,
    /// A confidential virtual machine of AMD SEV-SNP.
    SevSnp,
    /// A confidential virtual machine of Intel TDX.
    Tdx,
}

impl Flavour {
    /// All.
    pub const ALL: [Flavour; 4] = [
        Flavour::Plain,
        Flavour::Swiotlb,
        Flavour::SevSnp,
        Flavour::Tdx,
    ];

    /// The names, and the first versions of QEMU that have them.
    const TABLE: [(&str, Version); 4] = [
        ("plain", Version(7, 2)),
        ("swiotlb", Version(7, 2)),
        ("sev-snp", Version(9, 1)),
        ("tdx", Version(10, 1)),
    ];

    /// Returns its name.
    pub fn name(self) -> &'static str {
        Flavour::TABLE[self as usize].0
    }

    /// Returns true if the guest's memory is hidden from its host.
    pub fn is_confidential(self) -> bool {
        matches!(self, Flavour::SevSnp | Flavour::Tdx)
    }

    /// Returns the first version of QEMU that has it.
    pub fn since(self) -> Version {
        Flavour::TABLE[self as usize].1
    }
}

impl fmt::Display for Flavour {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl str::FromStr for Flavour {
    type Err = String;

    fn from_str(text: &str) -> Result<Flavour, String> {
        let found = Flavour::ALL.into_iter().find(|it| it.name() == text);
        let expected = "plain, swiotlb, sev-snp or tdx";
        found.ok_or(format!("found \"{text}\", expected {expected}"))
    }
}

/// The network of a guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Network {
    /// None but the guest's own loopback.
    None,
    /// QEMU's own, behind which the guest reaches the host's network: 10.0.2.15, router 10.0.2.2.
    User,
    /// A TAP device of this name, which is there, in the namespace that the guest is booted from.
    Tap(String),
}

/// A guest's machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hardware {
    /// The kind of isolation.
    pub flavour: Flavour,
    /// Processors.
    pub vcpus: u16,
    /// Memory in MiB.
    pub memory_mib: u32,
    /// The network.
    pub network: Network,
    /// The way in which its instructions run.
    pub accelerator: Accelerator,
}

impl Hardware {
    /// Returns the machine with one processor, 512 MiB and no network.
    pub fn new(flavour: Flavour, accelerator: Accelerator) -> Hardware {
        Hardware {
            flavour,
            vcpus: 1,
            memory_mib: 512,
            network: Network::None,
            accelerator,
        }
    }
}

/// The descriptors that QEMU inherits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Descriptors {
    /// The socket of the monitor.
    pub(crate) monitor: i32,
    /// The socket of the agent.
    pub(crate) agent: i32,
}

/// The name of the port that the agent serves.
pub const PORT: &str = "org.tare.agent.0";

/// The firmware of confidential guests, which Debian's package `ovmf` has.
pub const FIRMWARE: &str = "/usr/share/ovmf/OVMF.fd";

/// Returns the arguments. `tsc_khz` is the rate of an emulated guest's time stamp counters, if it
/// is known.
///
/// # Errors
/// [`Error::Version`] if this QEMU does not have the flavour; [`Error::Flavour`] if the machine is
/// not possible.
pub(crate) fn arguments(
    hardware: &Hardware,
    version: Version,
    kernel: &Path,
    initramfs: &Path,
    tsc_khz: Option<u64>,
    descriptors: Descriptors,
) -> Result<Vec<String>, Error> {
    check(hardware, version)?;
    let flavour = hardware.flavour;
    let (machine, object) = match flavour {
        Flavour::Plain | Flavour::Swiotlb => ("q35", None),
        // 0x30000: the policy that SNP requires, SMT allowed, no debugging.
        Flavour::SevSnp => (
            "q35,confidential-guest-support=cc,vmport=off",
            Some("sev-snp-guest,id=cc,cbitpos=51,reduced-phys-bits=1,policy=0x30000"),
        ),
        Flavour::Tdx => (
            "q35,kernel-irqchip=split,confidential-guest-support=cc",
            Some("tdx-guest,id=cc"),
        ),
    };
    let (accelerator, cpu) = match (hardware.accelerator, flavour) {
        // One thread for all processors. With one each, a guest of two stood still on a busy host
        // in one of some dozen runs (QEMU 7.2), at boot or while probes were recorded; on such a
        // host it takes as long with one thread.
        (Accelerator::Emulated, _) => ("tcg,thread=single", "max,-erms,-fsrm"),
        (Accelerator::Kvm, Flavour::SevSnp) => ("kvm", "EPYC-v4"),
        (Accelerator::Kvm, _) => ("kvm", "host"),
    };
    // Without them a driver does not ask the kernel for addresses, and `swiotlb=force` does
    // nothing.
    let options = match flavour {
        Flavour::Plain => "",
        _ => ",iommu_platform=on,disable-legacy=on",
    };
    let mut list = Vec::new();
    let mut add = |name: &str, value: String| list.extend([name.to_owned(), value]);
    add("-machine", machine.into());
    add("-accel", accelerator.into());
    add("-cpu", cpu.into());
    add("-smp", hardware.vcpus.to_string());
    add("-m", format!("{}M", hardware.memory_mib));
    if let Some(object) = object {
        add("-object", object.into());
    }
    if flavour.is_confidential() {
        add("-bios", FIRMWARE.into());
    }
    add("-kernel", kernel.display().to_string());
    add("-initrd", initramfs.display().to_string());
    add("-append", command_line(hardware, tsc_khz));
    add("-chardev", "stdio,id=console,signal=off".into());
    add("-serial", "chardev:console".into());
    let Descriptors { monitor, agent } = descriptors;
    add("-chardev", format!("socket,id=monitor,fd={monitor}"));
    add("-mon", "chardev=monitor,mode=control".into());
    let serial = format!("virtio-serial-pci,max_ports=2{options}");
    add("-device", serial);
    add("-chardev", format!("socket,id=agent,fd={agent}"));
    let port = format!("virtserialport,chardev=agent,name={PORT}");
    add("-device", port);
    let network = match &hardware.network {
        Network::None => None,
        Network::User => Some("user,id=net".to_owned()),
        Network::Tap(name) => Some(format!("tap,id=net,ifname={name},script=no,downscript=no")),
    };
    if let Some(network) = network {
        let card = format!("virtio-net-pci,netdev=net,romfile={options}");
        add("-netdev", network);
        add("-device", card);
    }
    let rest = "-nodefaults -no-reboot -no-user-config -display none";
    list.extend(rest.split(' ').map(str::to_owned));
    Ok(list)
}

/// The kernel's command line. What is behind `--` is for the agent, which is the first process.
fn command_line(hardware: &Hardware, tsc_khz: Option<u64>) -> String {
    let swiotlb = match hardware.flavour {
        Flavour::Swiotlb => " swiotlb=force",
        _ => "",
    };
    // An emulated timer may be late on a busy host, by which the kernel takes it for broken and
    // panics. And the self-tests of its ciphers were seen not to end in one boot of hundreds.
    let mut emulated = match hardware.accelerator {
        Accelerator::Emulated => " no_timer_check cryptomgr.notests",
        Accelerator::Kvm => "",
    }
    .to_owned();
    if let Some(rate) = tsc_khz {
        emulated += &format!(" tsc=reliable tsc_early_khz={rate}");
    }
    // A guest that lacks memory ends: one that goes on without some of its processes would be
    // measured.
    format!(
        "console=ttyS0 quiet panic=-1 sysctl.vm.panic_on_oom=1{swiotlb}{emulated} rdinit=/init -- guest-agent"
    )
}

fn check(hardware: &Hardware, version: Version) -> Result<(), Error> {
    let flavour = hardware.flavour;
    let since = flavour.since();
    if version < since {
        let reason = format!("found QEMU {version}, expected {since} or later");
        return Err(Error::Version(format!("flavour {flavour}: {reason}")));
    }
    if flavour.is_confidential() && hardware.accelerator == Accelerator::Emulated {
        let reason = "needs KVM, and a processor and a kernel that have it";
        return Err(Error::Flavour(format!("flavour {flavour}: {reason}")));
    }
    for (what, found, expected) in [
        ("processors", hardware.vcpus.into(), 1..=255),
        ("memory in MiB", hardware.memory_mib, 128..=1 << 20),
    ] {
        if !expected.contains(&found) {
            let (least, most) = (expected.start(), expected.end());
            let reason = format!("{what}: found {found}, expected {least} to {most}");
            return Err(Error::Flavour(reason));
        }
    }
    if let Network::Tap(name) = &hardware.network {
        // A comma would begin another option.
        let is_name = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        if name.is_empty() || name.len() > 15 || !name.chars().all(is_name) {
            let (found, expected) = (name.escape_default(), "letters, digits, '.', '_' or '-'");
            let reason = format!("TAP device: found \"{found}\", expected 1 to 15 {expected}");
            return Err(Error::Flavour(reason));
        }
    }
    Ok(())
}

#[cfg(test)]
#[path = "arguments_tests.rs"]
mod tests;
