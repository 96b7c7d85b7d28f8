//! Recording, inside the guest, through the files of tracefs.

use std::collections::HashMap;
use std::ffi::CStr;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use rustix::fs::OFlags;
use rustix::mount::{mount, MountFlags};
use rustix::thread::{sched_setaffinity, CpuSet};

use super::pages::{self, Meaning, BEGIN, END, PAGE};
use super::spans::Accounts;
use super::tracefs::{threads, Tracefs};
use super::{Probe, Recording, FUNCTIONS};

const FOLDER: &str = "/sys/kernel/tracing";
/// The group of the probes.
const GROUP: &str = "tare";
/// The buffer of each processor.
const BUFFER_KIB: usize = 8 << 10;
/// Returns that a probe waits for at a time; the kernel's own number is 10 for a small guest.
const RETURNS_MAX: usize = 1024;
/// The time between two rounds of reading.
const ROUND: Duration = Duration::from_millis(10);
/// The most pages of a processor that are read in one round.
const ROUND_PAGES: usize = BUFFER_KIB / 4;
const SWITCH: &str = "sched/sched_switch";
/// The histogram of a probe.
const HISTOGRAM: &str = "hist:keys=common_cpu";

/// Records from now on, tells `begun` so, and goes on until `input` is at its end. This process
/// must be alone in using the guest's tracefs.
///
/// # Errors
/// The kernel has no tracefs, or refuses what is written there.
pub fn record(
    input: impl Read + Send + 'static,
    begun: impl FnOnce() -> io::Result<()>,
) -> io::Result<Recording> {
    if !fs::exists(format!("{FOLDER}/trace_clock"))? {
        let kind = c"tracefs";
        mount(kind, FOLDER, kind, MountFlags::empty(), None::<&CStr>)
            .map_err(|error| io::Error::other(format!("mounting tracefs: {error}")))?;
    }
    let trace = Tracefs(FOLDER.into());
    let cpus = thread::available_parallelism()?.get();
    trace.clear()?;
    let probes = trace.set_up(cpus)?;
    let is_over = Arc::new(AtomicBool::new(false));
    let over = Arc::clone(&is_over);
    thread::spawn(move || {
        let _ = io::copy(&mut { input }, &mut io::sink());
        over.store(true, Ordering::Release);
    });
    let mut accounts = Accounts::new(cpus, recorders());
    let mut pipes = Vec::new();
    for cpu in 0..cpus {
        let mut options = OpenOptions::new();
        options.custom_flags(OFlags::NONBLOCK.bits() as i32);
        let path = trace.path(&format!("per_cpu/cpu{cpu}/trace_pipe_raw"));
        pipes.push(options.read(true).open(path)?);
    }
    let meanings = trace.meanings(&probes)?;
    let mut drain = |accounts: &mut Accounts, is_last| -> io::Result<()> {
        for (cpu, pipe) in pipes.iter_mut().enumerate() {
            read(pipe, &meanings, accounts, cpu)?;
        }
        accounts.count(is_last);
        Ok(())
    };
    trace.put("tracing_on", "1")?;
    trace.put(&format!("events/{SWITCH}/enable"), "1")?;
    trace.put(&format!("events/{GROUP}/enable"), "1")?;
    trace.histograms(&probes, HISTOGRAM)?;
    trace.mark(cpus, BEGIN)?;
    // The marks are safe, whatever is overwritten under load.
    drain(&mut accounts, false)?;
    begun()?;
    while !is_over.load(Ordering::Acquire) {
        thread::sleep(ROUND);
        drain(&mut accounts, false)?;
    }
    // What the kernel counts is between what is between the marks and what is in the trace.
    trace.mark(cpus, END)?;
    trace.histograms(&probes, &format!("{HISTOGRAM}:pause"))?;
    trace.put(&format!("events/{GROUP}/enable"), "0")?;
    trace.put("tracing_on", "0")?;
    drain(&mut accounts, true)?;
    let recording = trace.finish(probes, accounts)?;
    trace.clear()?;
    Ok(recording)
}

/// The threads of this process and of the agent, which is the first process.
fn recorders() -> Vec<i32> {
    let of = |process| {
        threads(process)
            .into_iter()
            .filter_map(|it| it.parse().ok())
    };
    ["self", "1"].into_iter().flat_map(of).collect()
}

fn read(
    pipe: &mut File,
    meanings: &HashMap<u16, Meaning>,
    accounts: &mut Accounts,
    cpu: usize,
) -> io::Result<()> {
    let mut page = [0; PAGE];
    for _ in 0..ROUND_PAGES {
        match pipe.read(&mut page) {
            Ok(0) => break,
            Ok(len) => pages::parse(&page[..len], meanings, accounts.queue(cpu))
                .map_err(io::Error::other)?,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

impl Tracefs {
    /// Removes all probes.
    fn clear(&self) -> io::Result<()> {
        self.put("tracing_on", "0")?;
        self.put("events/enable", "0")?;
        for n in 0..FUNCTIONS.len() {
            let trigger = format!("events/{GROUP}/in{n}/trigger");
            if fs::exists(self.path(&trigger))? {
                self.empty(&trigger)?;
            }
        }
        self.empty("kprobe_events")?;
        self.empty("trace")
    }

    /// Makes the probes; the place of each is that in [`FUNCTIONS`].
    fn set_up(&self, cpus: usize) -> io::Result<Vec<Probe>> {
        self.put("trace_clock", "x86-tsc")?;
        self.put("buffer_size_kb", &BUFFER_KIB.to_string())?;
        let probes = FUNCTIONS.into_iter().enumerate();
        let probes = probes.map(|(n, (category, names))| {
            let mut probe = Probe {
                category: category.name().into(),
                function: names.join(" or "),
                hits: None,
                missed: 0,
                reason: None,
            };
            for name in names {
                match self.add(n, name) {
                    Ok(()) => {
                        probe.function = (*name).into();
                        probe.hits = Some(vec![0; cpus]);
                        probe.reason = None;
                        break;
                    }
                    Err(error) if is_absent(&error) => probe.reason = Some(ABSENT.into()),
                    Err(error) => probe.reason = Some(error.to_string()),
                }
            }
            probe
        });
        Ok(probes.collect())
    }

    /// Adds a probe at the entry of a function and one at its return.
    fn add(&self, n: usize, function: &str) -> io::Result<()> {
        self.append("kprobe_events", &format!("p:{GROUP}/in{n} {function}\n"))?;
        let at_return = format!("r{RETURNS_MAX}:{GROUP}/out{n} {function}\n");
        self.append("kprobe_events", &at_return)
    }

    fn histograms(&self, probes: &[Probe], text: &str) -> io::Result<()> {
        for (n, probe) in probes.iter().enumerate() {
            if probe.hits.is_some() {
                self.put(&format!("events/{GROUP}/in{n}/trigger"), text)?;
            }
        }
        Ok(())
    }

    /// Writes a mark on every processor, which is woken for that.
    fn mark(&self, cpus: usize, text: &str) -> io::Result<()> {
        let mut all = CpuSet::new();
        for cpu in 0..cpus {
            let mut one = CpuSet::new();
            one.set(cpu);
            all.set(cpu);
            sched_setaffinity(None, &one)?;
            self.put("trace_marker", text)?;
        }
        Ok(sched_setaffinity(None, &all)?)
    }

    fn meanings(&self, probes: &[Probe]) -> io::Result<HashMap<u16, Meaning>> {
        let mut meanings = HashMap::new();
        meanings.insert(self.number(SWITCH)?, Meaning::Switch);
        meanings.insert(self.number("ftrace/print")?, Meaning::Mark(MARK_AT));
        let probed = FUNCTIONS.into_iter().zip(probes).enumerate();
        for (n, ((category, _), _)) in probed.filter(|(_, (_, probe))| probe.hits.is_some()) {
            let enter = self.number(&format!("{GROUP}/in{n}"))?;
            let leave = self.number(&format!("{GROUP}/out{n}"))?;
            meanings.insert(enter, Meaning::Enter(category));
            meanings.insert(leave, Meaning::Leave(category));
        }
        Ok(meanings)
    }

    /// Returns the number of an event's type.
    fn number(&self, event: &str) -> io::Result<u16> {
        let name = format!("events/{event}/format");
        let text = self.text(&name)?;
        let mut lines = text.lines();
        let number = lines.find_map(|line| line.strip_prefix("ID:")?.trim().parse().ok());
        number.ok_or_else(|| io::Error::other(format!("{name}: found no line \"ID: number\"")))
    }

    /// Reads what the kernel counted.
    fn finish(&self, mut probes: Vec<Probe>, accounts: Accounts) -> io::Result<Recording> {
        let unmatched = accounts.unmatched;
        let cpus = accounts.times();
        let profile = self.text("kprobe_profile")?;
        for (n, probe) in probes.iter_mut().enumerate() {
            probe.missed = missed(&profile, &format!("in{n}"));
            if probe.hits.is_some() {
                let name = format!("events/{GROUP}/in{n}/hist");
                let hits = hits(&self.text(&name)?, cpus.len());
                probe.hits = Some(self.named(&name, hits.map_err(io::Error::other))?);
            }
        }
        Ok(Recording {
            probes,
            lost: self.lost()?,
            missed: missed(&profile, "out"),
            unmatched,
            cpus,
        })
    }
}

/// The reason why a function has no probe.
const ABSENT: &str =
    "the guest's kernel has no such function: it is not loaded, has another name, \
                      or is inlined";

/// Returns true if a probe was refused as there is no such function: ENOENT of Linux 6.1, EINVAL of
/// 6.12.
fn is_absent(error: &io::Error) -> bool {
    use io::ErrorKind::{InvalidInput, NotFound};
    [InvalidInput, NotFound].contains(&error.kind())
}

/// The place of the text in an event of `trace_marker`: behind the head and an address.
const MARK_AT: usize = 16;

/// Reads a histogram over processors.
fn hits(text: &str, cpus: usize) -> Result<Vec<u64>, String> {
    let mut hits = vec![0; cpus];
    for line in text.lines().filter(|line| line.starts_with('{')) {
        let mut read = || {
            let (key, rest) = line.split_once('}')?;
            let cpu: usize = key.split_once(':')?.1.trim().parse().ok()?;
            let count = rest.split_once("hitcount:")?.1.trim().parse().ok()?;
            *hits.get_mut(cpu)? = count;
            Some(())
        };
        let is_read = read();
        is_read.ok_or(format!(
            "found \"{line}\", expected \"{{ common_cpu: N }} hitcount: N\" with a CPU below {cpus}"
        ))?;
    }
    match text.contains("Totals:") {
        true => Ok(hits),
        false => Err("found no histogram, expected one with \"Totals:\"".into()),
    }
}

/// Returns the misses of probes whose names begin so, from `kprobe_profile`: name, hits, misses.
/// The two probes of a call are missed together where an interrupt hits them in the middle of
/// another, and the one at its return alone where too many calls wait for theirs.
fn missed(profile: &str, name: &str) -> u64 {
    let misses = profile.lines().filter_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let is_named = words.first()?.starts_with(name);
        is_named.then(|| words.get(2)?.parse::<u64>().ok())?
    });
    misses.sum()
}

#[cfg(test)]
mod tests {
    use super::super::tracefs::lost_events;
    use super::*;
    use crate::probes::Category;

    #[test]
    fn what_the_kernel_counts_is_read_and_anything_else_is_shown() {
        let text = "# event histogram\n#\n# trigger info: hist:keys=common_cpu:vals=hitcount \
                    [active]\n#\n\n{ common_cpu:          2 } hitcount:          8\n\
                    { common_cpu:          0 } hitcount:    1234567\n\nTotals:\n    Hits: 8\n";
        assert_eq!(hits(text, 3), Ok(vec![1_234_567, 0, 8]));
        assert_eq!(hits("Totals:\n", 1), Ok(vec![0]));
        for (text, cpus) in [
            ("", 1),
            (text, 2),
            ("{ cpu } hitcount: 1", 1),
            ("{ common_cpu: 0 } hit", 1),
        ] {
            assert!(hits(text, cpus).unwrap_err().contains("expected"), "{text}");
        }
        let stats = "entries: 1\noverrun: 20\ncommit overrun: 3\nbytes: 32\n\
                     oldest event ts: 5\ndropped events: 100\nread events: 0\n";
        assert_eq!(lost_events(stats), 123);
        assert_eq!(lost_events(""), 0);
        let profile = "  in0    9    4\n  out0   9    4\n  out1   1    2\n  cut\n";
        assert_eq!(
            ["out", "in0", "in1"].map(|it| missed(profile, it)),
            [6, 4, 0]
        );
    }

    #[test]
    fn a_function_that_the_kernel_does_not_have_has_a_reason_and_no_count() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["trace_clock", "buffer_size_kb"] {
            fs::write(folder.path().join(name), "").unwrap();
        }
        // Without this file every probe is refused as an absent function is.
        let trace = Tracefs(folder.path().to_owned());
        let probes = trace.set_up(2).unwrap();
        assert_eq!(probes.len(), FUNCTIONS.len());
        for probe in &probes {
            assert_eq!(probe.hits, None);
            assert!(
                probe.reason.as_ref().unwrap().contains("no such function"),
                "{probe:?}"
            );
        }
        let names = "swiotlb_tbl_unmap_single or __swiotlb_tbl_unmap_single";
        assert_eq!(probes[Category::SlotRelease as usize].function, names);
        let refused = [2, 22, 13].map(|it| is_absent(&io::Error::from_raw_os_error(it)));
        assert_eq!(refused, [true, true, false]);
        fs::write(folder.path().join("kprobe_events"), "").unwrap();
        let probes = trace.set_up(2).unwrap();
        assert_eq!(probes[0].hits, Some(vec![0, 0]));
        let written = fs::read_to_string(folder.path().join("kprobe_events")).unwrap();
        assert!(written.starts_with("p:tare/in0 swiotlb_tbl_map_single\nr1024:tare/out0 "));
        assert_eq!(written.lines().count(), 2 * FUNCTIONS.len(), "{written}");
    }
}
