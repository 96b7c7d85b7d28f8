//! A worker: the loop of one thread over its sources.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::time::{clock_gettime, ClockId};
use tare_sim::Instant;

use super::source::{Source, Turn};
use super::FairMutex;
use crate::protocol::{Execute, Node};
use crate::transport::{share_processor, Waiting};

/// The longest sleep, and with that about the longest time until a worker sees that it is to stop.
const SLEEP: Duration = Duration::from_millis(50);

/// The longest sleep if there is a source without a descriptor.
const SLEEP_BLIND: Duration = Duration::from_millis(1);

/// The time of a busy worker between two looks at the clock and the flag.
const STEP: Duration = Duration::from_micros(100);

/// The least time between two reports of processor time and two calls of [`Node::tick`].
const PERIOD: Duration = Duration::from_millis(20);

/// The longest time for which a worker that is to stop goes on to answer what has come.
const DRAIN: Duration = Duration::from_millis(50);

/// The work of a worker so far, for another thread to read.
#[derive(Debug, Default)]
pub struct Work {
    received: AtomicU64,
    received_bytes: AtomicU64,
    sent: AtomicU64,
    sent_bytes: AtomicU64,
    refused: AtomicU64,
    turns: AtomicU64,
    idle_turns: AtomicU64,
    cpu_ns: AtomicU64,
}

/// The work of a worker, counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkCounters {
    /// Traffic in both directions.
    pub traffic: Turn,
    /// Turns over all sources.
    pub turns: u64,
    /// Those in which nothing came; in a turn a busy worker asks many times.
    pub idle_turns: u64,
    /// Processor time of the thread, idle turns included, as of at most 20 ms ago unless it slept
    /// since.
    pub cpu: Duration,
}

impl Work {
    /// Returns what was counted.
    pub fn counters(&self) -> WorkCounters {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        WorkCounters {
            traffic: Turn {
                received: load(&self.received),
                received_bytes: load(&self.received_bytes),
                sent: load(&self.sent),
                sent_bytes: load(&self.sent_bytes),
                refused: load(&self.refused),
            },
            turns: load(&self.turns),
            idle_turns: load(&self.idle_turns),
            cpu: Duration::from_nanos(load(&self.cpu_ns)),
        }
    }

    /// Adds a turn. Only the worker writes, so that no counter needs an atomic addition.
    fn add(&self, turn: Turn) {
        let add = |counter: &AtomicU64, more: u64| {
            if more > 0 {
                counter.store(counter.load(Ordering::Relaxed) + more, Ordering::Relaxed);
            }
        };
        add(&self.received, turn.received);
        add(&self.received_bytes, turn.received_bytes);
        add(&self.sent, turn.sent);
        add(&self.sent_bytes, turn.sent_bytes);
        add(&self.refused, turn.refused);
        add(&self.turns, 1);
        add(&self.idle_turns, u64::from(turn.received == 0));
    }
}

pub(super) struct Worker<S> {
    pub(super) node: Arc<FairMutex<Node<S>>>,
    pub(super) sources: Vec<Box<dyn Source<S>>>,
    pub(super) waiting: Waiting,
    pub(super) stop: Arc<AtomicBool>,
    pub(super) work: Arc<Work>,
}

impl<S: Execute> Worker<S> {
    pub(super) fn run(mut self) -> io::Result<()> {
        let mut next_report = Instant::ZERO;
        let mut turns = 0u32;
        // There is something to do when nothing comes.
        let mut has_more = false;
        while !self.stop.load(Ordering::Relaxed) {
            let turn = self.turn(!has_more)?;
            self.work.add(turn);
            turns = turns.wrapping_add(1);
            let is_idle = turn.received == 0;
            // The clock is not for every round trip.
            if is_idle || turns.is_multiple_of(64) {
                let now = Instant::now();
                if now >= next_report {
                    next_report = now + PERIOD;
                    self.report();
                    self.tick();
                    has_more = true;
                }
            }
            if is_idle && has_more {
                has_more = self.node.lock().store_mut().idle();
            }
        }
        let end = Instant::now() + DRAIN;
        loop {
            // As before a sleep: a source then looks at what it has been notified of too.
            self.sources.iter().for_each(|source| {
                source.descriptor();
            });
            if self.turn(false)?.received == 0 || Instant::now() >= end {
                break;
            }
        }
        self.report();
        Ok(())
    }

    /// One turn over all sources. If nothing came it waits, if it may, in the way of the worker.
    fn turn(&mut self, may_wait: bool) -> io::Result<Turn> {
        let wait = match (may_wait, self.waiting) {
            (false, _) => Duration::ZERO,
            (true, Waiting::Busy) => STEP,
            (true, _) => SLEEP,
        };
        if let [source] = &mut self.sources[..] {
            return source.turn(&self.node, wait, self.waiting);
        }
        let busy = self.waiting.busy().min(wait);
        let mut start = None;
        loop {
            let turn = self.ask()?;
            if turn.received > 0 || wait.is_zero() {
                return Ok(turn);
            }
            if busy.is_zero() {
                break;
            }
            let now = Instant::now();
            let waited = now.since(*start.get_or_insert(now));
            if waited >= busy {
                break;
            }
            share_processor(waited);
        }
        if self.waiting != Waiting::Busy {
            self.sleep()?;
        }
        self.ask()
    }

    /// Asks every source once, without waiting.
    fn ask(&mut self) -> io::Result<Turn> {
        let mut turn = Turn::default();
        for source in &mut self.sources {
            let more = source.turn(&self.node, Duration::ZERO, Waiting::Busy)?;
            turn.received += more.received;
            turn.received_bytes += more.received_bytes;
            turn.sent += more.sent;
            turn.sent_bytes += more.sent_bytes;
            turn.refused += more.refused;
        }
        Ok(turn)
    }

    /// Sleeps until something has come at one of the sources.
    fn sleep(&self) -> io::Result<()> {
        let descriptors = self.sources.iter().map(|source| source.descriptor());
        let is_blind = descriptors.clone().any(|descriptor| descriptor.is_none());
        let ready = descriptors.flatten();
        let mut ready: Vec<_> = ready
            .map(|descriptor| PollFd::from_borrowed_fd(descriptor, PollFlags::IN))
            .collect();
        let wait = if is_blind { SLEEP_BLIND } else { SLEEP };
        let wait = Timespec::try_from(wait).ok();
        match poll(&mut ready, wait.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn tick(&self) {
        let mut node = self.node.lock();
        let now = Instant::now();
        if now >= node.next_deadline() {
            node.tick(now);
        }
    }

    fn report(&self) {
        let time = clock_gettime(ClockId::ThreadCPUTime);
        let cpu_ns = time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64;
        self.work.cpu_ns.store(cpu_ns, Ordering::Relaxed);
        self.sources.iter().for_each(|source| source.report());
    }
}
