//! The resources that a trial's program used: the metrics that every program has, whatever it
//! prints.
//!
//! The figures are those of `wait4(2)`: the program itself and the descendants that it waited for,
//! from its start to its exit, warm-up included. What it left running is not in them. In a
//! trial of several roles they are those of the role that measures.

use std::io;
use std::process::{Child, ExitStatus};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use nix::sys::resource::{getrusage, Usage as Totals, UsageWho};
use rustix::process::{waitid, waitpid, Pid, WaitId, WaitIdOptions, WaitOptions};
use wait4::Wait4 as _;

use crate::unit::Unit;

/// Metrics that every trial has, of any driver, and the units in which they are counted. A sample
/// of the same name that the program gives itself takes precedence: it knows what it measures.
pub const METRICS: [(&str, Unit); 8] = [
    ("cpu_time", Unit::Seconds),
    ("user_time", Unit::Seconds),
    ("system_time", Unit::Seconds),
    (PEAK_MEMORY, Unit::Bytes),
    ("context_switches", Unit::Count),
    ("involuntary_context_switches", Unit::Count),
    ("major_faults", Unit::Count),
    ("minor_faults", Unit::Count),
];

/// The metric of the largest resident set.
pub(crate) const PEAK_MEMORY: &str = "peak_memory";

/// The resources that one program used, as the kernel counted them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Usage {
    user: Duration,
    system: Duration,
    /// `None` if it is no larger than what it inherited.
    peak_memory: Option<u64>,
    context_switches: i64,
    involuntary_context_switches: i64,
    major_faults: i64,
    minor_faults: i64,
}

impl Usage {
    /// The value of one of [`METRICS`], in the unit given there; `None` for any other name.
    ///
    /// # Errors
    /// There is no value: says why.
    pub fn value(&self, metric: &str) -> Option<Result<f64, String>> {
        let count = |n: i64| Some(Ok(n as f64));
        match metric {
            "cpu_time" => Some(Ok((self.user + self.system).as_secs_f64())),
            "user_time" => Some(Ok(self.user.as_secs_f64())),
            "system_time" => Some(Ok(self.system.as_secs_f64())),
            PEAK_MEMORY => Some(self.peak_memory.map(|bytes| bytes as f64).ok_or_else(|| {
                "peak_memory is no larger than what a program inherits from the process that \
                 starts it, below which the kernel does not tell them apart"
                    .to_owned()
            })),
            "context_switches" => count(self.context_switches),
            "involuntary_context_switches" => count(self.involuntary_context_switches),
            "major_faults" => count(self.major_faults),
            "minor_faults" => count(self.minor_faults),
            _ => None,
        }
    }
}

/// The peak memory that a program started now inherits, in bytes.
///
/// A new process has a memory before it executes its program, and the kernel keeps the peak of that
/// as its own: a child that was forked has a copy of what this process wrote, and one that
/// `posix_spawn(3)` started shares its whole memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Inherited {
    pub(crate) by_fork: u64,
    pub(crate) by_posix_spawn: u64,
}

impl Inherited {
    /// Returns what it is now; `None` where the kernel does not tell.
    pub(crate) fn now() -> Option<Inherited> {
        // The kernel is asked to forget the peak first; where it refuses, it is the old one.
        let _ = std::fs::write("/proc/self/clear_refs", "5");
        let status = std::fs::read_to_string("/proc/self/status").ok()?;
        let bytes = |name: &str| {
            let value = status.lines().find_map(|line| line.strip_prefix(name))?;
            let kib: u64 = value.trim().strip_suffix("kB")?.trim().parse().ok()?;
            Some(kib * 1024)
        };
        Some(Inherited {
            by_fork: bytes("RssAnon:")? + bytes("RssShmem:")? + UNTIL_EXEC,
            by_posix_spawn: bytes("VmHWM:")?,
        })
    }
}

/// More than what a forked child needs until it executes its program: of the code that it runs,
/// the kernel maps some pages around each (0.55 MiB were seen).
const UNTIL_EXEC: u64 = 768 * 1024;

/// The largest error of the kernel's counts of resident pages, which it sums per processor in
/// batches.
const PEAK_SLACK: u64 = 256 * 1024;

/// `wait4` gives processor time and memory, and the rest is the difference of two totals over all
/// children, so that only one child may be reaped in between.
static REAPING: Mutex<()> = Mutex::new(());

/// Waits for a child and returns how it ended and what it used. `inherited` is the peak memory that
/// it had before its program began, in bytes.
///
/// Context switches and faults are right as long as no other part of this process waits for
/// children of its own at the same moment.
///
/// # Errors
/// It is not a child of this process, or was waited for already.
pub(crate) fn reap(child: Child, inherited: Option<u64>) -> io::Result<(ExitStatus, Usage)> {
    let exited = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
    while let Err(rustix::io::Errno::INTR) = waitid(WaitId::Pid(Pid::from_child(&child)), exited) {}
    let _only = REAPING.lock().unwrap_or_else(PoisonError::into_inner);
    let before = getrusage(UsageWho::RUSAGE_CHILDREN)?;
    let done = child.wait4()?;
    let after = getrusage(UsageWho::RUSAGE_CHILDREN)?;
    let more = |total: fn(&Totals) -> i64| total(&after) - total(&before);
    let peak = done.rusage.maxrss;
    let usage = Usage {
        user: done.rusage.utime,
        system: done.rusage.stime,
        peak_memory: inherited
            .is_some_and(|inherited| peak > inherited + PEAK_SLACK)
            .then_some(peak),
        context_switches: more(Totals::voluntary_context_switches),
        involuntary_context_switches: more(Totals::involuntary_context_switches),
        major_faults: more(Totals::major_page_faults),
        minor_faults: more(Totals::minor_page_faults),
    };
    Ok((done.status, usage))
}

/// Reaps a child whose usage is of no interest, where it has exited.
pub(crate) fn discard(child: Pid) -> bool {
    let _only = REAPING.lock().unwrap_or_else(PoisonError::into_inner);
    !matches!(waitpid(Some(child), WaitOptions::NOHANG), Ok(None))
}
