//! Threads that send beside the tester's own.
//!
//! The tester's thread receives all and enters it into ledgers, which no other has to know. What is
//! to be sent, and when, is one [`Plan`] for each stream: a thread takes as many of its next frames
//! as are due. So the threads together keep the schedule, whichever of them is held up. A thread
//! numbers the frames of a stream for itself, or frames of two threads that overtake each other
//! would count as reordered by the network.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, Sender, TryRecvError};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

use tare_port::{Pool, Port};
use tare_sim::Instant;

use crate::options::{fits, make_pool};
use crate::source::{Moment, Plan, Source};
use crate::stream::Stream;
use crate::Error;

/// Opens the ports of a sending thread, on that thread: a pool, and a port for each of the
/// tester's.
pub type OpenPorts = Box<dyn FnOnce() -> Result<(Pool, Vec<Box<dyn Port>>), Error> + Send>;

/// The frames of a stream that a thread has sent in a trial.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    /// Stamped frames made, which is before they are sent.
    made: AtomicU64,
    packets: AtomicU64,
    bytes: AtomicU64,
    stamped: AtomicU64,
}

/// A trial, for a thread.
#[derive(Clone)]
pub(crate) struct Job {
    pub(crate) streams: Arc<[Stream]>,
    pub(crate) plans: Vec<Arc<Mutex<Plan>>>,
    pub(crate) trial: u16,
    pub(crate) start: Instant,
    pub(crate) end: Instant,
    pub(crate) give_up: Instant,
}

/// The sending threads.
#[derive(Default)]
pub(crate) struct Senders {
    threads: Vec<Thread>,
    /// Threads that have not ended the trial yet.
    running: usize,
    stop: Arc<AtomicBool>,
}

struct Thread {
    jobs: Option<Sender<Job>>,
    done: Receiver<Result<(), Error>>,
    is_running: bool,
    /// By stream.
    counts: Arc<[Counts]>,
    /// By port: the frames that it took and did not send, since it was opened.
    dropped: Arc<[AtomicU64]>,
    handle: Option<JoinHandle<()>>,
}

impl Senders {
    /// Starts a thread and waits until its ports are open.
    pub(crate) fn add(
        &mut self,
        streams: usize,
        ports: usize,
        open: OpenPorts,
    ) -> Result<(), Error> {
        let (jobs, to_do) = mpsc::channel();
        let (finished, done) = mpsc::channel();
        let counts: Arc<[Counts]> = (0..streams).map(|_| Counts::default()).collect();
        let dropped: Arc<[AtomicU64]> = (0..ports).map(|_| AtomicU64::new(0)).collect();
        let worker = Worker {
            number: self.threads.len() + 1,
            counts: Arc::clone(&counts),
            dropped: Arc::clone(&dropped),
            stop: Arc::clone(&self.stop),
        };
        let work = move || {
            let (mut pool, mut ports) = match open() {
                Ok(ports) => ports,
                Err(error) => return drop(finished.send(Err(error))),
            };
            let mut sources: Vec<Source> = (0..streams).map(|_| Source::new()).collect();
            let mut answer = Ok(());
            while finished.send(answer).is_ok() {
                let Ok(job) = to_do.recv() else {
                    return;
                };
                answer = worker.send(&job, &mut pool, &mut ports, &mut sources);
                worker.publish_drops(&ports);
            }
        };
        let handle = thread::Builder::new().name(format!("sender {}", self.threads.len() + 1));
        let handle = handle.spawn(work).map_err(Error::Thread)?;
        done.recv().unwrap_or_else(|_| Err(gone()))?;
        self.threads.push(Thread {
            jobs: Some(jobs),
            done,
            is_running: false,
            counts,
            dropped,
            handle: Some(handle),
        });
        Ok(())
    }

    pub(crate) fn len(&self) -> usize {
        self.threads.len()
    }

    /// Starts a trial on all threads.
    pub(crate) fn start(&mut self, job: &Job) {
        self.stop.store(false, Ordering::Relaxed);
        for thread in &mut self.threads {
            for counts in thread.counts.iter() {
                counts.set(&Source::new(), 0);
            }
            // A thread that has ended says so when it is asked for its answer.
            if let Some(jobs) = &thread.jobs {
                let _ = jobs.send(job.clone());
            }
            thread.is_running = true;
        }
        self.running = self.threads.len();
    }

    /// True when all threads have ended the trial.
    #[inline]
    pub(crate) fn are_done(&mut self) -> Result<bool, Error> {
        if self.running > 0 {
            self.look()?;
        }
        Ok(self.running == 0)
    }

    fn look(&mut self) -> Result<(), Error> {
        for thread in self.threads.iter_mut().filter(|thread| thread.is_running) {
            let answer = match thread.done.try_recv() {
                Err(TryRecvError::Empty) => continue,
                Err(TryRecvError::Disconnected) => Err(gone()),
                Ok(answer) => answer,
            };
            thread.is_running = false;
            self.running -= 1;
            answer?;
        }
        Ok(())
    }

    /// Ends the trial on all threads.
    pub(crate) fn stop(&mut self) -> Result<(), Error> {
        self.stop.store(true, Ordering::Relaxed);
        let mut all = Ok(());
        for thread in self.threads.iter_mut().filter(|thread| thread.is_running) {
            let answer = thread.done.recv().unwrap_or_else(|_| Err(gone()));
            thread.is_running = false;
            all = all.and(answer);
        }
        self.running = 0;
        all
    }

    /// The counts of a stream, by thread.
    pub(crate) fn counts(&self, stream: usize) -> impl Iterator<Item = &Counts> {
        self.threads
            .iter()
            .map(move |thread| &thread.counts[stream])
    }

    /// Frames that the threads' ports of this number took and did not send, since they were opened:
    /// as of the end of the last trial.
    pub(crate) fn dropped(&self, port: usize) -> u64 {
        let threads = self.threads.iter();
        threads
            .map(|thread| thread.dropped[port].load(Ordering::Acquire))
            .sum()
    }

    /// Stamped frames of a stream that the thread of this number, from 0, has made.
    #[inline]
    pub(crate) fn made(&self, thread: usize, stream: usize) -> u64 {
        self.threads[thread].counts[stream]
            .made
            .load(Ordering::Acquire)
    }
}

impl Drop for Senders {
    fn drop(&mut self) {
        let _ = self.stop();
        for thread in &mut self.threads {
            thread.jobs = None;
            if let Some(handle) = thread.handle.take() {
                let _ = handle.join();
            }
        }
    }
}

fn gone() -> Error {
    Error::Thread(std::io::Error::other("a sending thread has ended"))
}

impl Counts {
    pub(crate) fn packets(&self) -> u64 {
        self.packets.load(Ordering::Relaxed)
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn stamped(&self) -> u64 {
        self.stamped.load(Ordering::Relaxed)
    }

    /// They are the thread's to write; others only read.
    #[inline]
    fn set(&self, source: &Source, made: u64) {
        self.made.store(made, Ordering::Release);
        self.packets.store(source.packets, Ordering::Relaxed);
        self.bytes.store(source.bytes, Ordering::Relaxed);
        self.stamped.store(source.stamped, Ordering::Relaxed);
    }
}

struct Worker {
    number: usize,
    counts: Arc<[Counts]>,
    dropped: Arc<[AtomicU64]>,
    stop: Arc<AtomicBool>,
}

impl Worker {
    /// Sends this thread's part of a trial.
    fn send(
        &self,
        job: &Job,
        pool: &mut Pool,
        ports: &mut [Box<dyn Port>],
        sources: &mut [Source],
    ) -> Result<(), Error> {
        if !fits(pool, &job.streams) {
            *pool = make_pool(&job.streams, pool.slots())?;
        }
        for (source, plan) in sources.iter_mut().zip(&job.plans) {
            source.begin(Arc::clone(plan));
        }
        loop {
            let now = Instant::now();
            let mut all_sent = true;
            for (n, source) in sources.iter_mut().enumerate() {
                let stream = &job.streams[n];
                let moment = Moment {
                    trial: job.trial,
                    start: job.start,
                    now,
                    end: job.end,
                };
                source.fill(stream, pool, self.number * job.streams.len() + n, &moment);
                if !source.pending.is_empty() {
                    let port = stream.tx_port;
                    self.counts[n].set(source, source.made());
                    let sent = ports[port].send(&mut source.pending);
                    let taken = sent.map_err(|error| Error::port(port, error))?;
                    source.took(stream, taken);
                    self.counts[n].set(source, source.made());
                }
                all_sent &= source.is_done();
            }
            let is_over = (all_sent && now >= job.end) || now >= job.give_up;
            if is_over || self.stop.load(Ordering::Relaxed) {
                return Ok(());
            }
            std::hint::spin_loop();
        }
    }

    /// Once a trial, as asking a packet socket is a system call.
    fn publish_drops(&self, ports: &[Box<dyn Port>]) {
        for (dropped, port) in self.dropped.iter().zip(ports) {
            dropped.store(port.counters().tx_dropped, Ordering::Release);
        }
    }
}
