//! Exits of virtual processors by reason, from the host's tracepoints `kvm_exit` and `kvm_entry`.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;

use serde::Serialize;

use super::tracefs::{threads, Tracefs};

/// The modelled cost of a world switch in cycles, which the published breakdown adds to each exit:
/// that of an ordinary VM and of a confidential one.
pub const SWITCH_CYCLES: [u64; 2] = [1400, 9500];

/// Reads the reasons' numbers by their names from the `format` of the tracepoint `kvm_exit`: pairs
/// such as `{ 0x078, "hlt" }` or `{ 0x040 + 6, "UD excp" }`. Those of Intel are in upper case.
pub fn numbers(format: &str) -> BTreeMap<String, u32> {
    let pairs = format.split('{').filter_map(|pair| {
        let (number, name) = pair.split_once('}')?.0.split_once(',')?;
        let parse = |part: &str| match part.trim().strip_prefix("0x") {
            Some(digits) => u32::from_str_radix(digits, 16).ok(),
            None => part.trim().parse().ok(),
        };
        let number: Option<u32> = number.split('+').map(parse).sum();
        Some((name.trim().trim_matches('"').to_owned(), number?))
    });
    pairs.collect()
}

/// The exits of one virtual processor for one reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Exit {
    /// The reason's number, if the kernel gives its name one.
    pub number: Option<u32>,
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
    /// Reads the text of `trace` or `trace_pipe`, whose clock must be `x86-tsc`, with the numbers
    /// of the reasons.
    ///
    /// Older kernels do not name the virtual processor: then they are numbered in the order in
    /// which their threads appear.
    pub fn parse(text: &str, numbers: &BTreeMap<String, u32>) -> Exits {
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
                    let of_vcpu = exits.vcpus.entry(vcpu).or_default();
                    of_vcpu.entry(reason).or_default().cycles += time.saturating_sub(began);
                }
                continue;
            }
            // Some names have two words; a line that is cut off has no address.
            let reason = body.split_once("reason ");
            let Some((name, _)) = reason.and_then(|(_, it)| it.split_once(" rip ")) else {
                exits.unread += 1;
                continue;
            };
            if !threads.contains(&thread) {
                threads.push(thread);
            }
            let named = body.strip_prefix("vcpu ").and_then(|it| it.split_once(' '));
            let named = named.and_then(|(vcpu, _)| vcpu.parse().ok());
            let place = threads.iter().position(|it| *it == thread);
            let vcpu: u32 = named.unwrap_or(place.unwrap_or(0) as u32);
            let reason = name.trim_start_matches("EXIT_REASON_");
            let reason = reason.trim_start_matches("EXIT_").to_ascii_lowercase();
            let of_vcpu = exits.vcpus.entry(vcpu).or_default();
            let exit = of_vcpu.entry(reason.clone()).or_default();
            exit.count += 1;
            exit.number = numbers.get(name).copied();
            open.insert(thread, (vcpu, reason, time));
        }
        exits
    }

    /// Reads what is below a folder of tracefs: `trace`, the tracepoint's `format`, and `stats` of
    /// each processor.
    ///
    /// # Errors
    /// There is no `trace`, or its clock is not `x86-tsc`.
    pub fn below(folder: &Path) -> io::Result<Exits> {
        let trace = Tracefs(folder.to_owned());
        let clock = trace.text("trace_clock")?;
        if !clock.contains("[x86-tsc]") {
            let found = format!("found \"{}\", expected [x86-tsc]", clock.trim());
            return Err(io::Error::other(format!("trace_clock: {found}")));
        }
        let format = trace.text("events/kvm/kvm_exit/format")?;
        let mut exits = Exits::parse(&trace.text("trace")?, &numbers(&format));
        // The text has marks for some of the same.
        exits.lost = exits.lost.max(trace.lost()?);
        Ok(exits)
    }

    /// Returns all exits.
    pub fn count(&self) -> u64 {
        let all = self.vcpus.values().flat_map(BTreeMap::values);
        all.map(|exit| exit.count).sum()
    }
}

/// Reads `COMMAND-THREAD [CPU] FLAGS TIME: EVENT: …`; a command may have spaces and hyphens.
fn head(line: &str) -> Option<(u32, u64, &str)> {
    let (head, rest) = line.split_once(": kvm_e")?;
    let (task, _) = head.split_once(" [")?;
    let (_, thread) = task.rsplit_once('-')?;
    let thread = thread.split_whitespace().next()?.parse().ok()?;
    let time = head.rsplit_once(' ')?.1.parse().ok()?;
    Some((thread, time, rest.split_once(": ")?.1))
}

/// The tracepoints of a guest on this machine, in an instance of tracefs of their own, which ends
/// with this value.
pub struct Watch(Tracefs);

/// The buffer of each of the host's processors.
const BUFFER_KIB: usize = 32 << 10;

impl Watch {
    /// Begins to watch the threads of a process, below this folder of tracefs.
    ///
    /// # Errors
    /// The kernel has no such tracepoints, or not for this user: in words.
    pub fn start(tracefs: &Path, process: u32) -> Result<Watch, String> {
        if !tracefs.join("events/kvm/kvm_exit").is_dir() {
            return Err(format!(
                "{} has no events/kvm/kvm_exit: mount tracefs there, as root, with KVM's module \
                 loaded",
                tracefs.display()
            ));
        }
        remove_stale(tracefs);
        let folder = tracefs
            .join("instances")
            .join(format!("tare-{}", std::process::id()));
        let made = fs::create_dir(&folder);
        made.map_err(|error| format!("{}: {error}", folder.display()))?;
        let watch = Watch(Tracefs(folder));
        let threads = threads(&process.to_string()).join(" ");
        for (name, text) in [
            ("trace_clock", "x86-tsc"),
            ("buffer_size_kb", &BUFFER_KIB.to_string()),
            ("set_event_pid", &threads),
            ("events/kvm/kvm_entry/enable", "1"),
            ("events/kvm/kvm_exit/enable", "1"),
        ] {
            let put = watch.0.put(name, text);
            put.map_err(|error| error.to_string())?;
        }
        Ok(watch)
    }

    /// Stops it; what it has seen is kept for [`Watch::finish`].
    ///
    /// # Errors
    /// The kernel refuses it: in words.
    pub fn stop(&self) -> Result<(), String> {
        let stopped = self.0.put("tracing_on", "0");
        stopped.map_err(|error| error.to_string())
    }

    /// Ends it and returns what it has seen.
    ///
    /// # Errors
    /// What was recorded cannot be read, or has no exit: in words.
    pub fn finish(self) -> Result<Exits, String> {
        self.stop()?;
        let exits = Exits::below(&self.0 .0).map_err(|error| error.to_string())?;
        // A guest without exits has not run, but KVM is not always a module that has the events.
        match exits.count() + exits.lost + exits.unread {
            0 => Err("the kernel has reported no exit: its KVM does not tell of them".into()),
            _ => Ok(exits),
        }
    }
}

/// Ends the watches whose process was killed, below this folder of tracefs: they would record on,
/// and cost every guest of this machine time.
pub fn remove_stale(tracefs: &Path) {
    let instances = fs::read_dir(tracefs.join("instances"));
    for entry in instances.into_iter().flatten().flatten() {
        let name = entry.file_name();
        let process = name.to_str().and_then(|name| name.strip_prefix("tare-"));
        let is_gone = |it: &str| it.parse::<u32>().is_ok() && !Path::new("/proc").join(it).exists();
        if process.is_some_and(is_gone) {
            let _ = fs::remove_dir(entry.path());
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0 .0);
    }
}

#[cfg(test)]
#[path = "exits_tests.rs"]
mod tests;
