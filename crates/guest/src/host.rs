//! The state of a host for guests, read below a root folder: a recorded tree is examined like a
//! machine.

pub(crate) mod tree;

use std::io;
use std::path::Path;

use serde::Serialize;

use crate::arguments::{Flavour, FIRMWARE};
use crate::version::{Version, PACKAGE};
use crate::Error;
use tree::Tree;

/// Bytes of a slot of bounce buffers.
const SLOT: u64 = 2048;
/// The longest piece of bounce buffers that the kernel gives at once, in bytes: 128 slots.
const MAPPING_MAX: u64 = 128 * SLOT;
/// The memory of a guest unless another is asked for, in bytes.
const MEMORY: u64 = 512 << 20;
/// The bit of the capability to lock memory without limit (CAP_IPC_LOCK).
const IPC_LOCK: u64 = 1 << 14;
/// The words of a kernel that has no bounce buffers left.
const FULL: &str = "swiotlb buffer is full";

/// The answer to whether a host has something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// It has.
    Fine,
    /// It has not, or too little.
    Lacking,
    /// It cannot be told from what was found.
    Unknown,
}

/// Something that guests use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Check {
    /// Its name.
    pub name: &'static str,
    /// The answer to whether it is there.
    pub state: State,
    /// The finding.
    pub found: String,
    /// The things that depend on it.
    pub matters: &'static str,
    /// The command or change that would help; `None` if nothing is to be done.
    pub remedy: Option<String>,
}

/// A trouble that guests have, as people meet it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Trouble {
    /// The trouble.
    pub name: &'static str,
    /// Its usual causes.
    pub causes: Vec<Cause>,
}

/// A cause of a trouble.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Cause {
    /// True if it is found on this machine; `None` if that cannot be seen from here.
    pub is_here: Option<bool>,
    /// The cause.
    pub name: &'static str,
    /// The remedy.
    pub remedy: String,
}

/// The state of a host for guests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Host {
    /// The things that guests use.
    pub checks: Vec<Check>,
    /// The troubles that people run into.
    pub troubles: Vec<Trouble>,
}

/// The names of the checks in their order, and what depends on each.
const CHECKS: &str = "\
kvm: without it guests are emulated: counts are right, times mean nothing
qemu: each flavour of guests has a first version of QEMU: 7.2, SEV-SNP 9.1, TDX 10.1
firmware: a confidential guest starts in this firmware, whose hash is part of its report
sev-snp: flavour sev-snp runs where the processor, its firmware and the kernel have it
tdx: flavour tdx runs where the processor, its firmware and the kernel have Intel TDX
tun: a guest on a TAP device needs it
vhost_net: without it each frame of a guest passes through QEMU's process: a fraction of the rate
swiotlb: devices of a guest with bounce buffers reach them alone; when they are full, packets are lost
huge pages: a guest's memory in pages of 4 KiB costs it time at every miss of the TLB
memlock: memory of a guest that devices or the secure processor write must be locked";

impl Host {
    /// Examines the machine whose root is this folder, with this QEMU. `boots` is whether KVM boots
    /// a guest in time, if that was tried.
    pub fn examine(root: &Path, qemu: &Result<Version, Error>, boots: Option<bool>) -> Host {
        let tree = Tree(root);
        let [snp, tdx] = [Flavour::SevSnp, Flavour::Tdx].map(|it| technique(&tree, it));
        let wanted = match (snp.0, tdx.0) {
            (_, State::Fine) => Flavour::Tdx,
            (State::Fine, _) => Flavour::SevSnp,
            _ => Flavour::Plain,
        };
        let log = tree::kernel_log(&root.join("dev/kmsg"));
        let full = log.lines().rev().find(|line| line.contains(FULL));
        let slots = Slots::read(&tree);
        let findings = [
            kvm(&tree, boots),
            version(qemu, wanted),
            firmware(&tree),
            snp,
            tdx,
            device(tree.device("dev/net/tun"), "sudo modprobe tun"),
            device(tree.device("dev/vhost-net"), VHOST),
            swiotlb(&slots, full),
            huge_pages(&tree),
            memlock(&tree),
        ];
        let names = CHECKS.lines().filter_map(|line| line.split_once(": "));
        let named = names.zip(findings);
        let checks = named.map(|((name, matters), (state, found, remedy))| Check {
            name,
            state,
            found,
            matters,
            remedy: (state != State::Fine).then_some(remedy),
        });
        let checks: Vec<Check> = checks.collect();
        let lacks = |name| {
            let check = checks.iter().find(|check| check.name == name)?;
            Some(check.state == State::Lacking)
        };
        let troubles = vec![
            slow_network(lacks("vhost_net"), lacks("kvm"), &slots),
            full_buffer(full, &slots),
        ];
        Host { checks, troubles }
    }
}

/// Returns true if the machine whose root is this folder says that it can run guests of a
/// confidential flavour.
pub fn has_technique(root: &Path, flavour: Flavour) -> bool {
    flavour.is_confidential() && technique(&Tree(root), flavour).0 == State::Fine
}

/// The remedy for a machine without vhost_net.
const VHOST: &str = "sudo modprobe vhost_net, and vhost=on in QEMU's -netdev tap";

/// The answer of a check: the state, what was found, and what to do unless all is fine.
type Finding = (State, String, String);

fn fine(found: impl Into<String>) -> Finding {
    (State::Fine, found.into(), String::new())
}

fn lacking(found: impl Into<String>, remedy: impl Into<String>) -> Finding {
    (State::Lacking, found.into(), remedy.into())
}

fn unknown(found: impl Into<String>, remedy: impl Into<String>) -> Finding {
    (State::Unknown, found.into(), remedy.into())
}

fn device(opened: io::Result<()>, remedy: &str) -> Finding {
    const DENIED: &str = "run as root, or as a member of the group that it belongs to";
    match opened {
        Ok(()) => fine("there, and can be opened"),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            lacking(error.to_string(), DENIED)
        }
        Err(error) => lacking(error.to_string(), remedy),
    }
}

fn kvm(tree: &Tree<'_>, boots: Option<bool>) -> Finding {
    let cpuinfo = tree.text("proc/cpuinfo").unwrap_or_default();
    let has = |flag: &str| cpuinfo.split_whitespace().any(|word| word == flag);
    let remedy = match (has("vmx"), has("svm")) {
        (true, _) => "sudo modprobe kvm_intel",
        (_, true) => "sudo modprobe kvm_amd",
        _ => {
            "switch virtualization on in the firmware's setup; if this machine is a guest itself, \
             nested virtualization on its host"
        }
    };
    match (tree.device("dev/kvm"), boots) {
        (Ok(()), Some(false)) => lacking(
            "there, but boots no guest in time",
            "hardware, or a guest whose host has fast nested virtualization",
        ),
        (opened, _) => device(opened, remedy),
    }
}

/// Judges QEMU's version by the flavour that the processor and the kernel have.
fn version(qemu: &Result<Version, Error>, wanted: Flavour) -> Finding {
    let version = match qemu {
        Ok(version) => *version,
        Err(error) => return lacking(error.to_string(), format!("apt install {PACKAGE}")),
    };
    let has = Flavour::ALL.into_iter().filter(|it| version >= it.since());
    let names: Vec<&str> = has.map(Flavour::name).collect();
    let found = match names.is_empty() {
        true => format!("{version}, which has no flavour"),
        false => format!("{version}: {}", names.join(", ")),
    };
    let needed = wanted.since();
    match version >= needed {
        true => fine(found),
        false => lacking(
            found,
            format!(
                "QEMU {needed} or later for {wanted}: a newer release of the distribution, or its \
                 backports"
            ),
        ),
    }
}

fn firmware(tree: &Tree<'_>) -> Finding {
    // Where other distributions have it, with what is built for one technique alone.
    let others = [
        "usr/share/qemu/OVMF.fd",
        "usr/share/OVMF/OVMF_CODE.fd",
        "usr/share/edk2/ovmf/OVMF.amdsev.fd",
        "usr/share/edk2/ovmf/OVMF.inteltdx.fd",
    ];
    if tree.has(FIRMWARE.trim_start_matches('/')) {
        return fine(FIRMWARE);
    }
    let other = others.into_iter().find(|path| tree.has(path));
    let other = other.map_or(String::new(), |path| format!(", but /{path}"));
    lacking(format!("no {FIRMWARE}{other}"), "apt install ovmf")
}

/// Judges what the processor and the kernel's module say of a confidential flavour.
fn technique(tree: &Tree<'_>, flavour: Flavour) -> Finding {
    let is_tdx = flavour == Flavour::Tdx;
    let (vendor, maker, module, parameter, release) = match is_tdx {
        true => ("GenuineIntel", "Intel", "kvm_intel", "tdx", "6.16"),
        false => ("AuthenticAMD", "AMD", "kvm_amd", "sev_snp", "6.11"),
    };
    let setup = match is_tdx {
        true => "TDX and memory encryption on in the firmware's setup",
        false => "SEV-SNP with an RMP table, and the IOMMU, on in the firmware's setup",
    };
    let cpuinfo = tree.text("proc/cpuinfo").unwrap_or_default();
    let mut lines = cpuinfo.lines().filter_map(|line| line.split_once(':'));
    let found = lines.find(|(key, _)| key.trim() == "vendor_id");
    let found = found.map_or("", |(_, value)| value.trim());
    if found != vendor {
        let found = format!("a processor of \"{}\"", tree::shown(found));
        return lacking(found, format!("a processor of {maker} that has it"));
    }
    if !tree.has(&format!("sys/module/{module}")) {
        let found = format!("the module {module} is not loaded");
        return lacking(found, format!("sudo modprobe {module}"));
    }
    let name = format!("{module}.{parameter}");
    let path = format!("sys/module/{module}/parameters/{parameter}");
    match tree.text(&path).as_deref().map(str::trim) {
        None => lacking(
            format!("the module has no parameter {name}"),
            format!("Linux {release} or later, built with it"),
        ),
        Some("N" | "0") => lacking(
            format!("{name} is off"),
            format!(
                "{name}=1 on the kernel's command line; {setup}; then the kernel's log says why"
            ),
        ),
        Some("Y" | "1") if !is_tdx && !tree.has("dev/sev") => lacking(
            format!("{name} is on, but there is no /dev/sev"),
            "sudo modprobe ccp, the driver of the secure processor",
        ),
        Some("Y" | "1") => fine(format!("{name} is on")),
        Some(other) => unknown(
            format!("{name} is \"{}\", expected Y or N", tree::shown(other)),
            format!("cat /{path}"),
        ),
    }
}

/// The bounce buffers of a machine, in slots.
struct Slots {
    all: Option<u64>,
    used: Option<u64>,
    peak: Option<u64>,
    /// The value of `swiotlb=` on the kernel's command line.
    setting: Option<String>,
}

impl Slots {
    fn read(tree: &Tree<'_>) -> Slots {
        let line = tree.text("proc/cmdline").unwrap_or_default();
        let mut words = line.split_whitespace().rev();
        let setting = words.find_map(|word| word.strip_prefix("swiotlb="));
        let number = |name| tree.number(&format!("sys/kernel/debug/swiotlb/{name}"));
        Slots {
            all: number("io_tlb_nslabs"),
            used: number("io_tlb_used"),
            peak: number("io_tlb_used_hiwater"),
            setting: setting.map(tree::shown),
        }
    }

    /// Returns the command line that doubles them.
    fn doubled(&self, all: Option<u64>) -> String {
        let is_forced = |text: &str| text.split(',').any(|word| word == "force");
        let is_forced = self.setting.as_deref().is_some_and(is_forced);
        let force = if is_forced { ",force" } else { "" };
        // 64 MiB is what kernels have unless they are told.
        let slots = all.unwrap_or((64 << 20) / SLOT).saturating_mul(2);
        format!(
            "swiotlb={slots}{force} on the kernel's command line ({} MiB), or fewer queues, as each \
             holds buffers of its own: ethtool -L DEVICE combined 1",
            mib(slots)
        )
    }
}

fn mib(slots: u64) -> f64 {
    slots.saturating_mul(SLOT) as f64 / f64::from(1 << 20)
}

fn swiotlb(slots: &Slots, full: Option<&str>) -> Finding {
    let setting = slots.setting.as_ref();
    let setting = setting.map_or(String::new(), |it| format!(", swiotlb={it}"));
    let count = |slots: Option<u64>| slots.map_or("unknown".into(), |slots| slots.to_string());
    let found = match slots.all {
        None => format!("the kernel does not say how much there is{setting}"),
        Some(all) => format!(
            "{:.1} MiB: {all} slots, in use {}, most {}{setting}",
            mib(all),
            count(slots.used),
            count(slots.peak),
        ),
    };
    let peak = slots.peak.max(slots.used).unwrap_or(0);
    match (full, slots.all) {
        (Some(line), _) => lacking(found, remedy(line, slots)),
        (None, None) => unknown(
            found,
            "run as root, with debugfs mounted at /sys/kernel/debug",
        ),
        // Nine tenths: what is free is in pieces by then.
        (None, Some(all)) if all > 0 && peak >= all - all / 10 => {
            lacking(found, slots.doubled(Some(all)))
        }
        (None, Some(_)) => fine(found),
    }
}

/// Returns what helps against a line of the kernel's log: `…: swiotlb buffer is full (sz: 4096
/// bytes), total 32768 (slots), used 32700 (slots)`.
fn remedy(line: &str, slots: &Slots) -> String {
    let number = |key: &str| {
        let rest = line.split_once(FULL)?.1.split_once(key)?.1;
        let digits = rest.split(|c: char| !c.is_ascii_digit()).next()?;
        digits.parse::<u64>().ok()
    };
    match number("sz: ") {
        Some(size) if size > MAPPING_MAX => format!(
            "a request of {size} bytes never fits, {MAPPING_MAX} is the most: bound those of the \
             device, of a disk by /sys/block/DISK/queue/max_sectors_kb"
        ),
        _ => slots.doubled(number("total ").or(slots.all)),
    }
}

fn huge_pages(tree: &Tree<'_>) -> Finding {
    let own = tree.text("sys/kernel/mm/transparent_hugepage/enabled");
    let own = own.unwrap_or_default();
    let mode = own.split_once('[').and_then(|it| it.1.split_once(']'));
    let mode = mode.map(|(mode, _)| mode);
    let free = tree.after("proc/meminfo", "HugePages_Free:");
    let free: Option<u64> = free.and_then(|text| text.trim().parse().ok());
    let found = format!(
        "transparent: {}; set aside and free: {}",
        mode.map_or("unknown".into(), tree::shown),
        free.map_or("unknown".into(), |free| free.to_string())
    );
    let state = match (mode, free) {
        (Some("always" | "madvise"), _) | (_, Some(1..)) => State::Fine,
        (Some("never"), _) => State::Lacking,
        _ => State::Unknown,
    };
    let remedy = "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled";
    (state, found, remedy.into())
}

fn memlock(tree: &Tree<'_>) -> Finding {
    let own = tree.after("proc/self/status", "CapEff:");
    let own = own.and_then(|text| u64::from_str_radix(text.trim(), 16).ok());
    if own.is_some_and(|bits| bits & IPC_LOCK != 0) {
        return fine("no limit for this user (CAP_IPC_LOCK)");
    }
    let remedy = "ulimit -l unlimited as root, or memlock in /etc/security/limits.conf";
    let limits = tree.after("proc/self/limits", "Max locked memory");
    let limits = limits.unwrap_or_default();
    let limit = limits.split_whitespace().next().unwrap_or("no limit");
    match limit.parse::<u64>() {
        _ if limit == "unlimited" => fine(limit),
        Ok(bytes) if bytes >= MEMORY => fine(format!("{} MiB", bytes >> 20)),
        Ok(bytes) => lacking(format!("{} KiB, a guest has 512 MiB", bytes >> 10), remedy),
        Err(_) => unknown(tree::shown(limit), remedy),
    }
}

fn slow_network(no_vhost: Option<bool>, no_kvm: Option<bool>, slots: &Slots) -> Trouble {
    let causes = [
        (
            None,
            "responses of another size are compared",
            "compare the bytes per response first, as `tare run tdx/served` does",
        ),
        (
            no_kvm,
            "the guest is emulated",
            "a /dev/kvm that boots a guest; `tare guest boot` says why it does not",
        ),
        (
            no_vhost,
            "no vhost_net: each frame passes through QEMU's process",
            VHOST,
        ),
        (
            slots.used.map(|used| used > 0),
            "bounce buffers: each byte is copied once more",
            "it is the price of a confidential guest; of any other, take swiotlb=force and \
             iommu_platform=on away",
        ),
    ];
    let causes = causes.map(|(is_here, name, remedy)| Cause {
        is_here,
        name,
        remedy: remedy.into(),
    });
    Trouble {
        name: "the network of a guest is ten times slower than the host's",
        causes: causes.into(),
    }
}

fn full_buffer(full: Option<&str>, slots: &Slots) -> Trouble {
    let remedy = match full {
        Some(line) => remedy(line, slots),
        None => slots.doubled(slots.all),
    };
    Trouble {
        name: "the kernel's log of a guest says \"swiotlb buffer is full\"",
        causes: vec![Cause {
            is_here: Some(full.is_some()),
            name: "too few bounce buffers for its devices and their queues",
            remedy,
        }],
    }
}

#[cfg(test)]
#[path = "host_tests.rs"]
mod tests;
