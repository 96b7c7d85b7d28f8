//! Ends what a trial started and left running, wherever it has gone.
//!
//! A process group does not hold a program that makes a session of its own (`setsid`, a daemon).
//! So the process that runs trials is a *subreaper*: what a trial leaves behind becomes its child
//! instead of init's, and can be found, killed and reaped.
//!
//! Not every child of this process belongs to the trial: another thread may run another trial, or
//! a program that has nothing to do with any. A child belongs to a trial if it carries the trial's
//! mark in its environment or descends from a process that does. One without a mark may have
//! cleared its environment; it belongs to the only trial that is running, if it has left this
//! process's group and started after the trial did. A program that runs trials must therefore not
//! start programs of its own, in groups of their own, during a trial.

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::process::{
    getpgrp, getpid, kill_process, pidfd_open, pidfd_send_signal, set_child_subreaper, Pid,
    PidfdFlags, Signal,
};

use crate::usage;

/// The variable in a trial's environment that marks its processes.
pub(crate) const MARK: &str = "TARE_TRIAL";

/// The time for which the processes that a trial left running are killed, if they start new ones:
/// only those that never stop to do so take it all.
const PERSISTENCE: Duration = Duration::from_secs(30);

/// The scans in a row that must find no process of the trial. The kernel's list of children
/// may skip one while another exits.
const SCANS: u32 = 3;

/// The time for which a process without an environment may be one that is about to execute a
/// program.
const EXECUTING_MAX: Duration = Duration::from_millis(200);

/// The trials that are running, by mark: the processes that were started for each, which lead the
/// groups of those that those started.
static RUNNING: Mutex<BTreeMap<u64, Vec<Identity>>> = Mutex::new(BTreeMap::new());

/// A process, told apart from a later one with the same number by when it started.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Identity {
    pid: i32,
    /// In clock ticks since the system started.
    started: u64,
}

/// The processes of one trial.
pub(crate) struct Descendants {
    mark: u64,
    /// Those that were seen to descend from a marked one.
    known: HashSet<Identity>,
}

impl Descendants {
    /// To be called before the trial's first process is started.
    ///
    /// # Errors
    /// This process cannot be a subreaper.
    pub(crate) fn expected() -> io::Result<Descendants> {
        static MARKS: AtomicU64 = AtomicU64::new(0);
        set_child_subreaper(Some(getpid()))?;
        let mark = MARKS.fetch_add(1, Ordering::Relaxed);
        running(|trials| trials.insert(mark, Vec::new()));
        Ok(Descendants {
            mark,
            known: HashSet::new(),
        })
    }

    /// The value of [`MARK`] for the trial's processes.
    pub(crate) fn mark(&self) -> String {
        format!("{}-{}", getpid(), self.mark)
    }

    /// Records a process that was started for the trial, in a group of its own.
    pub(crate) fn led_by(&self, leader: Pid) {
        let leader = Process::read(leader.as_raw_nonzero().get());
        let leader = leader.map(|process| process.identity);
        running(|trials| trials.entry(self.mark).or_default().extend(leader));
    }

    /// Kills and reaps every process of the trial. Those that were started for it are reaped
    /// already. Only children of this process are killed, whose numbers cannot pass to others
    /// before they are reaped; their own children become ours by that, and are next.
    fn end(&mut self) {
        let began = Instant::now();
        let mut empty_scans = 0;
        while empty_scans < SCANS && began.elapsed() < PERSISTENCE {
            let children: Vec<Process> = children_of(getpid().as_raw_nonzero().get())
                .into_iter()
                .filter_map(Process::read)
                .collect();
            let (mine, others): (Vec<&Process>, Vec<&Process>) =
                children.iter().partition(|child| self.owns(child));
            // A process that is about to execute a program shows no environment for a moment.
            let unclear =
                began.elapsed() < EXECUTING_MAX && others.iter().any(|child| child.shows_nothing());
            if mine.is_empty() && !unclear {
                empty_scans += 1;
                continue;
            }
            empty_scans = 0;
            for child in &mine {
                self.learn(child.identity.pid);
            }
            let mut left = unclear;
            for child in mine.iter().filter_map(|child| child.pid()) {
                let _ = kill_process(child, Signal::KILL);
                left |= !usage::discard(child);
            }
            if left {
                thread::sleep(Duration::from_millis(1));
            }
        }
    }

    fn owns(&self, child: &Process) -> bool {
        if self.known.contains(&child.identity) || child.is_marked(&self.mark()) {
            return true;
        }
        let (alone, leaders) = running(|trials| {
            let leaders = trials.get(&self.mark).cloned().unwrap_or_default();
            (trials.len() == 1, leaders)
        });
        let left_group = child.group != getpgrp().as_raw_nonzero().get();
        // A process that has exited shows no environment.
        leaders.iter().any(|leader| {
            let later = child.identity.started >= leader.started;
            later && (child.group == leader.pid || (alone && left_group))
        })
    }

    /// Records all that descends from `pid`.
    fn learn(&mut self, pid: i32) {
        for child in children_of(pid).into_iter().filter_map(Process::read) {
            if self.known.insert(child.identity) {
                self.learn(child.identity.pid);
            }
        }
    }
}

impl Drop for Descendants {
    fn drop(&mut self) {
        self.end();
        running(|trials| trials.remove(&self.mark));
    }
}

/// Kills the processes of trials whose run was killed itself: their mark names a process that is
/// gone. Other users' are left alone, and those of another PID namespace (a container), where the
/// mark means another process.
pub(crate) fn end_orphans() {
    let space = |pid: i32| fs::read_link(format!("/proc/{pid}/ns/pid")).ok();
    let own = getpid().as_raw_nonzero().get();
    let here = space(own);
    let orphans = numbers("/proc").into_iter().filter(|&pid| {
        let process = Process::read(pid);
        let is_orphan = |process: Process| process.is_orphan();
        pid != own && process.is_some_and(is_orphan) && space(pid) == here
    });
    for pid in orphans {
        let Some(handle) = Pid::from_raw(pid) else {
            continue;
        };
        let Ok(handle) = pidfd_open(handle, PidfdFlags::empty()) else {
            continue;
        };
        // Its number may have passed to another process before it was opened.
        if !Process::read(pid).is_some_and(|process| process.is_orphan()) {
            continue;
        }
        if pidfd_send_signal(&handle, Signal::KILL).is_ok() {
            let limit = Timespec::try_from(PERSISTENCE).ok();
            let _ = poll(&mut [PollFd::new(&handle, PollFlags::IN)], limit.as_ref());
        }
    }
}

fn running<T>(look: impl FnOnce(&mut BTreeMap<u64, Vec<Identity>>) -> T) -> T {
    look(&mut RUNNING.lock().unwrap_or_else(PoisonError::into_inner))
}

/// A process as `/proc/PID/stat` has it.
struct Process {
    identity: Identity,
    parent: i32,
    group: i32,
    exited: bool,
}

impl Process {
    /// `None` if there is no such process any more.
    fn read(pid: i32) -> Option<Process> {
        let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
        let stat = String::from_utf8_lossy(&stat);
        // The program's name, in parentheses, may hold anything.
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
        Some(Process {
            identity: Identity {
                pid,
                started: fields.get(19)?.parse().ok()?,
            },
            parent: fields.get(1)?.parse().ok()?,
            group: fields.get(2)?.parse().ok()?,
            exited: *fields.first()? == "Z",
        })
    }

    fn pid(&self) -> Option<Pid> {
        Pid::from_raw(self.identity.pid)
    }

    fn environment(&self) -> Vec<u8> {
        fs::read(format!("/proc/{}/environ", self.identity.pid)).unwrap_or_default()
    }

    /// Returns true if it was started for a trial of a run that is gone.
    fn is_orphan(&self) -> bool {
        let environment = self.environment();
        let start = format!("{MARK}=");
        let mut variables = environment.split(|&byte| byte == 0);
        let mark = variables.find_map(|one| one.strip_prefix(start.as_bytes()));
        let run = mark.and_then(|mark| {
            let (run, _) = std::str::from_utf8(mark).ok()?.split_once('-')?;
            run.parse::<i32>().ok()
        });
        // A process that started later has the number of one that is gone.
        let lives = |run: Process| !run.exited && run.identity.started <= self.identity.started;
        !self.exited && run.is_some_and(|run| !Process::read(run).is_some_and(lives))
    }

    /// Returns true if it was started with the mark `mark`.
    fn is_marked(&self, mark: &str) -> bool {
        let variable = format!("{MARK}={mark}");
        let environment = self.environment();
        let mut variables = environment.split(|&byte| byte == 0);
        variables.any(|one| one == variable.as_bytes())
    }

    /// Returns true if it runs, in a group of its own, without an environment.
    fn shows_nothing(&self) -> bool {
        let here = getpgrp().as_raw_nonzero().get();
        !self.exited && self.group != here && self.environment().is_empty()
    }
}

/// The numbers among the names in a folder.
fn numbers(folder: &str) -> Vec<i32> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    names.filter_map(|name| name.parse().ok()).collect()
}

/// The children of a process. A kernel without lists of children (`CONFIG_PROC_CHILDREN`) is asked
/// for every process there is.
fn children_of(pid: i32) -> Vec<i32> {
    let threads = format!("/proc/{pid}/task");
    if fs::exists("/proc/thread-self/children").unwrap_or(false) {
        let lists = numbers(&threads)
            .into_iter()
            .filter_map(|thread| fs::read_to_string(format!("{threads}/{thread}/children")).ok());
        return lists
            .flat_map(|list| {
                let children = list.split_whitespace().map(str::parse).collect::<Vec<_>>();
                children.into_iter().flatten()
            })
            .collect();
    }
    numbers("/proc")
        .into_iter()
        .filter(|&child| Process::read(child).is_some_and(|process| process.parent == pid))
        .collect()
}
