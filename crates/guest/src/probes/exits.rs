//! Exits of virtual processors by reason, from the host's tracepoints `kvm_exit` and `kvm_entry`.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::recorder::lost_events;

/// The modelled cost of a world switch in cycles, which the published breakdown adds to each exit:
/// that of an ordinary VM and of a confidential one.
pub const SWITCH_CYCLES: [u64; 2] = [1400, 9500];

/// The maker of the processor, which numbers the reasons.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Vendor {
    /// SVM.
    Amd,
    /// VMX.
    Intel,
}

/// Names of tracepoints, and numbers: AMD64 Architecture Programmer's Manual, volume 2, appendix C.
const AMD: &[(&str, u32)] = &[
    ("excp_base", 0x40),
    ("interrupt", 0x60),
    ("nmi", 0x61),
    ("smi", 0x62),
    ("init", 0x63),
    ("vintr", 0x64),
    ("cr0_sel_write", 0x65),
    ("rdpmc", 0x6f),
    ("cpuid", 0x72),
    ("iret", 0x74),
    ("invd", 0x76),
    ("pause", 0x77),
    ("hlt", 0x78),
    ("invlpg", 0x79),
    ("io", 0x7b),
    ("msr", 0x7c),
    ("shutdown", 0x7f),
    ("vmmcall", 0x81),
    ("wbinvd", 0x89),
    ("monitor", 0x8a),
    ("mwait", 0x8b),
    ("xsetbv", 0x8d),
    ("npf", 0x400),
    ("avic_incomplete_ipi", 0x401),
    ("avic_unaccelerated_access", 0x402),
    ("vmgexit", 0x403),
];

/// The same: Intel's Software Developer's Manual, volume 3, appendix C.
const INTEL: &[(&str, u32)] = &[
    ("exception_nmi", 0),
    ("external_interrupt", 1),
    ("triple_fault", 2),
    ("interrupt_window", 7),
    ("pending_interrupt", 7),
    ("nmi_window", 8),
    ("cpuid", 10),
    ("hlt", 12),
    ("invlpg", 14),
    ("rdpmc", 15),
    ("vmcall", 18),
    ("cr_access", 28),
    ("dr_access", 29),
    ("io_instruction", 30),
    ("msr_read", 31),
    ("msr_write", 32),
    ("pause_instruction", 40),
    ("apic_access", 44),
    ("eoi_induced", 45),
    ("ept_violation", 48),
    ("ept_misconfig", 49),
    ("preemption_timer", 52),
    ("wbinvd", 54),
    ("xsetbv", 55),
    ("apic_write", 56),
    ("tdcall", 77),
];

impl Vendor {
    /// Returns the vendor in the text of `/proc/cpuinfo`; `None` if it is another one.
    pub fn of(cpuinfo: &str) -> Option<Vendor> {
        let line = cpuinfo.lines().find(|line| line.starts_with("vendor_id"))?;
        match line.rsplit_once(' ')?.1 {
            "AuthenticAMD" | "HygonGenuine" => Some(Vendor::Amd),
            "GenuineIntel" => Some(Vendor::Intel),
            _ => None,
        }
    }

    /// Returns the number of a reason, by a name of a tracepoint or the number itself.
    pub fn number(self, reason: &str) -> Option<u32> {
        if let Some(digits) = reason.strip_prefix("0x") {
            return u32::from_str_radix(digits, 16).ok();
        }
        let table = match self {
            Vendor::Amd => AMD,
            Vendor::Intel => INTEL,
        };
        table
            .iter()
            .find(|(name, _)| *name == reason)
            .map(|(_, number)| *number)
    }
}

/// The exits of one virtual processor for one reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Exit {
    /// Exits.
    pub count: u64,
    /// Cycles from the exits to the next entries, without the world switch; of those exits that an
    /// entry follows.
    pub cycles: u64,
}

/// The exits of a guest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Exits {
    /// By virtual processor and reason, in lower case without `EXIT_`.
    pub vcpus: BTreeMap<u32, BTreeMap<String, Exit>>,
    /// Events that the kernel had no room for.
    pub lost: u64,
    /// Lines of the tracepoints that could not be read.
    pub unread: u64,
}

impl Exits {
    /// Reads the text of `trace` or `trace_pipe`, whose clock must be `x86-tsc`.
    ///
    /// Older kernels do not name the virtual processor: then they are numbered in the order in
    /// which their threads appear.
    pub fn parse(text: &str) -> Exits {
        let mut exits = Exits::default();
        let mut threads: Vec<u32> = Vec::new();
        // The exit of a thread that has no entry yet.
        let mut open: BTreeMap<u32, (u32, String, u64)> = BTreeMap::new();
        for line in text.lines() {
            if line.starts_with("CPU:") && line.ends_with(']') {
                // "CPU:1 [LOST 12 EVENTS]"; older kernels do not say how many.
                let mut words = line.split([' ', '[', ']']);
                exits.lost += words.find_map(|word| word.parse::<u64>().ok()).unwrap_or(1);
                open.clear();
                continue;
            }
            let is_exit = line.contains(": kvm_exit: ");
            if line.starts_with('#') || !(is_exit || line.contains(": kvm_entry: ")) {
                continue;
            }
            let Some((thread, time, body)) = head(line) else {
                exits.unread += 1;
                continue;
            };
            if !is_exit {
                if let Some((vcpu, reason, began)) = open.remove(&thread) {
                    let exit = exits
                        .vcpus
                        .entry(vcpu)
                        .or_default()
                        .entry(reason)
                        .or_default();
                    exit.cycles += time.saturating_sub(began);
                }
                continue;
            }
            let Some(reason) = after(body, "reason ") else {
                exits.unread += 1;
                continue;
            };
            let named =
                after(body, "vcpu ").and_then(|text| text.trim_end_matches(',').parse().ok());
            let vcpu = named.unwrap_or_else(|| {
                let place = threads.iter().position(|it| *it == thread);
                place.unwrap_or_else(|| {
                    threads.push(thread);
                    threads.len() - 1
                }) as u32
            });
            let reason = reason
                .trim_start_matches("EXIT_REASON_")
                .trim_start_matches("EXIT_");
            let reason = reason.to_ascii_lowercase();
            let of_vcpu = exits.vcpus.entry(vcpu).or_default();
            of_vcpu.entry(reason.clone()).or_default().count += 1;
            open.insert(thread, (vcpu, reason, time));
        }
        exits
    }

    /// Reads what is below a folder of tracefs: `trace`, and `stats` of each processor.
    ///
    /// # Errors
    /// There is no `trace`, or its clock is not `x86-tsc`.
    pub fn below(folder: &Path) -> io::Result<Exits> {
        let clock = fs::read_to_string(folder.join("trace_clock"))?;
        if !clock.contains("[x86-tsc]") {
            let found = clock.trim();
            return Err(io::Error::other(format!(
                "trace_clock: found \"{found}\", expected [x86-tsc]"
            )));
        }
        let mut exits = Exits::parse(&fs::read_to_string(folder.join("trace"))?);
        let mut lost = 0;
        for cpu in fs::read_dir(folder.join("per_cpu"))?.flatten() {
            lost += lost_events(&fs::read_to_string(cpu.path().join("stats"))?);
        }
        // The text has marks for some of the same.
        exits.lost = exits.lost.max(lost);
        Ok(exits)
    }

    /// Returns all exits.
    pub fn count(&self) -> u64 {
        let all = self.vcpus.values().flat_map(BTreeMap::values);
        all.map(|exit| exit.count).sum()
    }

    /// Returns all cycles, with a cost of a world switch for each exit.
    pub fn cycles(&self, switch: u64) -> u64 {
        let all = self.vcpus.values().flat_map(BTreeMap::values);
        all.map(|exit| exit.cycles + exit.count * switch).sum()
    }
}

/// Reads `COMMAND-THREAD [CPU] FLAGS TIME: EVENT: …`; a command may have spaces and hyphens.
fn head(line: &str) -> Option<(u32, u64, &str)> {
    let (head, rest) = line.split_once(": kvm_e")?;
    let (task, _) = head.split_once(" [")?;
    let thread = task
        .rsplit_once('-')?
        .1
        .split_whitespace()
        .next()?
        .parse()
        .ok()?;
    let time = head.rsplit_once(' ')?.1.parse().ok()?;
    Some((thread, time, rest.split_once(": ")?.1))
}

/// Returns the word behind a name.
fn after<'a>(body: &'a str, name: &str) -> Option<&'a str> {
    body.split_once(name)?.1.split_whitespace().next()
}

/// The tracepoints of a guest on this machine, in an instance of tracefs of their own, which ends
/// with this value.
pub struct Watch {
    folder: PathBuf,
}

/// The buffer of each of the host's processors.
const BUFFER_KIB: usize = 32 << 10;

impl Watch {
    /// Begins to watch the threads of a process, below this folder of tracefs.
    ///
    /// # Errors
    /// The kernel has no such tracepoints, or not for this user: in words.
    pub fn start(tracefs: &Path, process: u32) -> Result<Watch, String> {
        let shown = tracefs.display();
        let instances = tracefs.join("instances");
        if !tracefs.join("events/kvm/kvm_exit").is_dir() {
            return Err(format!(
                "{shown} has no events/kvm/kvm_exit: mount tracefs there, as root, with KVM's \
                 module loaded"
            ));
        }
        remove_stale(&instances);
        let folder = instances.join(format!("tare-{}", std::process::id()));
        let made = fs::create_dir(&folder);
        made.map_err(|error| format!("{}: {error}", folder.display()))?;
        let watch = Watch { folder };
        let threads = fs::read_dir(format!("/proc/{process}/task"))
            .into_iter()
            .flatten();
        let threads = threads
            .flatten()
            .filter_map(|it| it.file_name().into_string().ok());
        let threads: Vec<String> = threads.collect();
        for (name, text) in [
            ("trace_clock", "x86-tsc"),
            ("buffer_size_kb", &BUFFER_KIB.to_string()),
            ("set_event_pid", &threads.join(" ")),
            ("events/kvm/kvm_entry/enable", "1"),
            ("events/kvm/kvm_exit/enable", "1"),
        ] {
            let path = watch.folder.join(name);
            fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))?;
        }
        Ok(watch)
    }

    /// Ends it.
    ///
    /// # Errors
    /// What was recorded cannot be read: in words.
    pub fn finish(self) -> Result<Exits, String> {
        let stopped = fs::write(self.folder.join("tracing_on"), "0");
        let read = stopped.and_then(|()| Exits::below(&self.folder));
        read.map_err(|error| format!("{}: {error}", self.folder.display()))
    }
}

/// Removes instances whose process was killed.
fn remove_stale(instances: &Path) {
    for entry in fs::read_dir(instances).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let process = name.to_str().and_then(|name| name.strip_prefix("tare-"));
        let is_stale = process
            .is_some_and(|it| it.parse::<u32>().is_ok() && !Path::new("/proc").join(it).exists());
        if is_stale {
            let _ = fs::remove_dir(entry.path());
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.folder);
    }
}

#[cfg(test)]
#[path = "exits_tests.rs"]
mod tests;
