//! A trial: the threads of the generator, from the first connection to the merged record.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tare_sim::Instant;

use crate::intervals::Intervals;
use crate::pace::{Pace, RATES};
use crate::protocol::{Protocol, Wire};
use crate::record::Record;
use crate::trace::Trace;
use crate::transport::Target;
use crate::worker::Worker;
use crate::workload::Workload;
use crate::Error;

/// The options of a trial.
#[derive(Clone, Debug)]
pub struct Options {
    /// Connections, at least one per thread; they are shared out evenly.
    pub connections: usize,
    /// Threads of the generator, at least 1.
    pub threads: usize,
    /// The processors that the threads are pinned to, in turn; empty to leave that to the system.
    pub cpus: Vec<usize>,
    /// The most requests in flight per connection, at least 1.
    pub pipeline: usize,
    /// The times at which requests are sent.
    pub pace: Pace,
    /// The requests.
    pub workload: Workload,
    /// Requests to replay once, instead of the workload's.
    pub trace: Option<Trace>,
    /// The part of the trial that is not measured, at its start.
    pub warm_up: Duration,
    /// The part that is measured.
    pub duration: Duration,
    /// The most requests, after which the trial ends; `None` for no limit.
    pub requests: Option<u64>,
    /// The time that a response may take, and that is waited for responses after the end.
    pub timeout: Duration,
    /// The seed of everything that is drawn.
    pub seed: u64,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            connections: 10,
            threads: 1,
            cpus: Vec::new(),
            pipeline: 1,
            pace: Pace::Closed,
            workload: Workload::default(),
            trace: None,
            warm_up: Duration::from_secs(1),
            duration: Duration::from_secs(10),
            requests: None,
            timeout: Duration::from_secs(5),
            seed: 1,
        }
    }
}

/// A trial, as all of its threads see it.
pub(crate) struct Trial<'a, P> {
    pub(crate) target: &'a Target,
    pub(crate) protocol: &'a P,
    pub(crate) options: &'a Options,
    pub(crate) intervals: Option<&'a Intervals>,
    pub(crate) start: Instant,
    /// The number of threads.
    pub(crate) threads: usize,
    stop: &'a AtomicBool,
    /// True if a thread has ended with an error.
    failed: AtomicBool,
}

/// Runs a trial until its end, or until `stop` is true.
///
/// # Errors
/// The rate is outside of [`RATES`], the server cannot be reached or does not
/// speak the protocol, the trace has changed since it was
/// checked, or the system refuses a thread.
pub fn run<P: Protocol + Clone + Sync>(
    target: &Target,
    protocol: &P,
    options: &Options,
    stop: &AtomicBool,
) -> Result<Record, Error> {
    run_with(target, protocol, options, stop, None)
}

/// Runs a trial as [`run`] does, and hands on the latencies of its intervals as it goes.
///
/// # Errors
/// As those of [`run`], or the receiver's.
pub fn run_with<P: Protocol + Clone + Sync>(
    target: &Target,
    protocol: &P,
    options: &Options,
    stop: &AtomicBool,
    intervals: Option<&Intervals>,
) -> Result<Record, Error> {
    if let Some(found) = options.pace.rate().filter(|rate| !RATES.contains(rate)) {
        return Err(Error::Rate { found });
    }
    let trial = Trial {
        target,
        protocol,
        options,
        intervals,
        // The threads need a moment to start.
        start: Instant::now() + Duration::from_millis(5),
        threads: options.threads.max(1),
        stop,
        failed: AtomicBool::new(false),
    };
    let record = trial.run()?;
    if let Some(intervals) = intervals {
        intervals.finish(record.duration).map_err(Error::System)?;
    }
    Ok(record)
}

impl<P: Protocol + Clone + Sync> Trial<'_, P> {
    fn run(&self) -> Result<Record, Error> {
        let record = self.work_all()?;
        // A server that refuses each connection is given up after some; on a busy machine the trial
        // may end before.
        let is_empty = record.issued == 0 && record.served_in_all == 0;
        let is_stopped = self.stop.load(Ordering::Relaxed);
        match &record.first_error {
            Some(error) if P::wire() == Wire::Stream && is_empty && !is_stopped => {
                Err(Error::connection(self.target, error))
            }
            _ => Ok(record),
        }
    }

    fn work_all(&self) -> Result<Record, Error> {
        if self.threads == 1 && self.options.cpus.is_empty() {
            return self.work(0);
        }
        std::thread::scope(|scope| {
            let spawn = |thread| scope.spawn(move || self.work(thread));
            let workers: Vec<_> = (0..self.threads).map(spawn).collect();
            let mut merged = Record::default();
            for worker in workers {
                let record = worker.join();
                merged.merge(record.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?);
            }
            Ok(merged)
        })
    }

    /// Does what one thread does.
    fn work(&self, thread: usize) -> Result<Record, Error> {
        let cpus = &self.options.cpus;
        let work = || {
            if let Some(&cpu) = cpus.get(thread % cpus.len().max(1)) {
                let mut set = rustix::thread::CpuSet::new();
                let refused = |error: rustix::io::Errno| {
                    Error::system(io::Error::other(format!(
                        "cannot bind to CPU {cpu}: {error}"
                    )))
                };
                if cpu >= rustix::thread::CpuSet::MAX_CPU {
                    return Err(refused(rustix::io::Errno::INVAL));
                }
                set.set(cpu);
                rustix::thread::sched_setaffinity(None, &set).map_err(refused)?;
            }
            Worker::new(self, thread)?.run()
        };
        let record = work();
        if record.is_err() {
            // The others need not run on for nothing.
            self.failed.store(true, Ordering::Relaxed);
        }
        record
    }
}

impl<P> Trial<'_, P> {
    /// Waits until all threads begin.
    pub(crate) fn wait_for_start(&self) {
        // A sleep ends late, and the first request of an open loop may be due at the start.
        let wait = self.start.since(Instant::now());
        std::thread::sleep(wait.saturating_sub(Duration::from_millis(1)));
        while Instant::now() < self.start {
            std::hint::spin_loop();
        }
    }

    /// True if the trial is to end before its time.
    pub(crate) fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed) || self.failed.load(Ordering::Relaxed)
    }
}
