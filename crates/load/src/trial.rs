//! A trial: the threads of the generator, from the first connection to the merged record.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tare_sim::Instant;

use crate::intervals::Intervals;
use crate::pace::{Pace, Schedule};
use crate::protocol::{Protocol, Wire};
use crate::record::Record;
use crate::trace::Trace;
use crate::transport::Target;
use crate::worker::{Share, Times, Worker};
use crate::workload::{Requests, Workload};
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

/// Runs a trial until its end, or until `stop` is true.
///
/// # Errors
/// The server cannot be reached or does not speak the protocol, the trace has changed since it was
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
    let record = run_threads(target, protocol, options, stop, intervals)?;
    if let Some(intervals) = intervals {
        intervals.finish(record.duration).map_err(Error::System)?;
    }
    Ok(record)
}

fn run_threads<P: Protocol + Clone + Sync>(
    target: &Target,
    protocol: &P,
    options: &Options,
    stop: &AtomicBool,
    intervals: Option<&Intervals>,
) -> Result<Record, Error> {
    let (threads, connections) = (options.threads.max(1), options.connections.max(1));
    // The threads need a moment to start.
    let start = Instant::now() + Duration::from_millis(5);
    let measured = start + options.warm_up;
    let times = Times {
        measured,
        end: measured + options.duration,
        timeout: options.timeout,
    };
    let failed = AtomicBool::new(false);
    let work = |thread: usize| -> Result<Record, Error> {
        if let Some(&cpu) = options.cpus.get(thread % options.cpus.len().max(1)) {
            let mut set = rustix::thread::CpuSet::new();
            set.set(cpu);
            rustix::thread::sched_setaffinity(None, &set)
                .map_err(|error| Error::System(error.into()))?;
        }
        let (n, of) = (thread as u64, threads as u64);
        let trace = options.trace.as_ref();
        let lines = || trace.map(|trace| trace.lines(n, of)).transpose();
        let share = Share {
            target,
            times,
            connections: connections / threads + usize::from(thread < connections % threads),
            pipeline: match P::wire() {
                Wire::Stream => options.pipeline.max(1),
                Wire::Datagrams | Wire::Handshakes => 1,
            },
            requests: match lines()? {
                Some(lines) => Requests::of_trace(lines),
                None => Requests::new(&options.workload, options.seed, n, of),
            },
            quota: quota(options.requests, n, of).min(quota(trace.map(Trace::requests), n, of)),
            schedule: match lines()?.filter(|_| options.pace == Pace::Trace) {
                Some(lines) => Some(Schedule::of_trace(lines, start)),
                None => options.pace.schedule(thread, threads, start, options.seed),
            },
            intervals: intervals.map(|intervals| (intervals, threads)),
            stops: [stop, &failed],
        };
        let worker = Worker::new(share, protocol);
        let worker = worker.map_err(Error::System)?;
        // All threads begin at once, and nothing is sent before the trial.
        std::thread::sleep(start.since(Instant::now()));
        worker.run()
    };
    if threads == 1 && options.cpus.is_empty() {
        return work(0);
    }
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|thread| {
                let work = &work;
                let failed = &failed;
                let work = move || {
                    let record = work(thread);
                    // The others need not run on for nothing.
                    if record.is_err() {
                        failed.store(true, Ordering::Relaxed);
                    }
                    record
                };
                scope.spawn(work)
            })
            .collect();
        let mut merged = Record::default();
        for worker in workers {
            let record = worker
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            merged.merge(record?);
        }
        Ok(merged)
    })
}

/// The part of a limit that thread `thread` of `threads` may use.
fn quota(limit: Option<u64>, thread: u64, threads: u64) -> u64 {
    limit.map_or(u64::MAX, |limit| {
        limit / threads + u64::from(thread < limit % threads)
    })
}
