//! Memory between the two processes of a trial: what the node's side is to do, what it has done,
//! and the lines and slots of the references. The client's side alone gives commands.

use std::os::fd::AsRawFd as _;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{ensure, Context as _};
use tare_lab::protocol::Ready;
use tare_memory::{Atomic, SharedMemory, View};

/// Bytes of the memory: some pages, and the slots of the copy from process to process.
const BYTES: usize = SLOTS_AT + SLOTS * SLOT;

/// The slots of the copy.
pub(super) const SLOTS: usize = 16;
pub(super) const SLOT: usize = 64 << 10;
const SLOTS_AT: usize = 16 << 10;

/// The places of the command, and of what the node's side counts. Processors fetch lines in pairs,
/// so what each side writes has pairs of its own.
const COMMAND: usize = 0;
const WORKERS: usize = 128;
const COUNT: usize = 256;
const PING: usize = 1024;
const PONG: usize = 2048;

/// The place of the first worker's acknowledgement, and bytes from one to the next: the number of
/// the command, and the processor time.
const DONE: usize = 4096;
const DONE_STEP: usize = 128;
const PROCESSOR_TIME: usize = 8;

/// The longest time until the node's side has begun something else.
const BEGIN_MAX: Duration = Duration::from_secs(20);

/// The work of the node's side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Asleep.
    Idle = 0,
    /// The memory node.
    Node = 1,
    /// The other end of a round trip without a protocol.
    Echo = 2,
    /// The other end of a one-way stream.
    Sink = 3,
    /// The other end of a round trip, with two dependent cache misses in each.
    EchoAndMiss = 4,
}

/// The bits of a command that are its phase.
const PHASE: u64 = 7;

/// One side's end of the memory.
pub(super) struct Control(SharedMemory);

impl Control {
    /// Makes the memory, on the node's side, for so many workers.
    ///
    /// # Errors
    /// Those of the system.
    pub(super) fn create(workers: usize) -> anyhow::Result<Control> {
        let most = (SLOTS_AT - DONE) / DONE_STEP;
        ensure!(
            workers <= most,
            "{workers} workers, expected {most} or less"
        );
        let control = Control(SharedMemory::create("tare-trial", BYTES)?);
        let count = workers as u64;
        control.word(WORKERS).store(count, Ordering::Release);
        Ok(control)
    }

    /// Maps the same memory again, for another thread.
    ///
    /// # Errors
    /// Those of the system.
    pub(super) fn try_clone(&self) -> anyhow::Result<Control> {
        Ok(Control(self.0.try_clone()?))
    }

    /// Adds what the client's side must know to open it.
    pub(super) fn describe(&self, ready: &mut Ready) {
        ready.insert("pid".into(), std::process::id().into());
        ready.insert("control".into(), self.0.fd().as_raw_fd().into());
    }

    /// Opens it on the client's side, from what the node's side said.
    ///
    /// # Errors
    /// It is not there, or on another machine.
    pub(super) fn open(ready: &Ready) -> anyhow::Result<Control> {
        let number = |name: &str| {
            let value = ready.get(name).and_then(|value| value.as_u64());
            value.with_context(|| format!("the node's side did not report its {name}"))
        };
        let path = format!("/proc/{}/fd/{}", number("pid")?, number("control")?);
        let file = std::fs::File::options()
            .read(true)
            .write(true)
            .open(&path)?;
        let memory = SharedMemory::open(file.into())?;
        ensure!(
            memory.len() >= BYTES,
            "the memory has {} bytes",
            memory.len()
        );
        Ok(Control(memory))
    }

    /// One of the slots of the copy.
    pub(super) fn slot(&self, number: u64) -> View<'_> {
        let start = SLOTS_AT + (number % SLOTS as u64) as usize * SLOT;
        self.0.view().range(start, SLOT).expect("within the memory")
    }

    /// The line that the client's side writes.
    pub(super) fn ping(&self) -> Atomic<'_, u64> {
        self.word(PING)
    }

    /// The line that the node's side writes.
    pub(super) fn pong(&self) -> Atomic<'_, u64> {
        self.word(PONG)
    }

    /// Bytes that the node's side has received.
    pub(super) fn count(&self) -> Atomic<'_, u64> {
        self.word(COUNT)
    }

    fn word(&self, place: usize) -> Atomic<'_, u64> {
        self.0.view().atomic(place).expect("within the memory")
    }

    /// The number of the last command, and the work that the node's side is to do.
    #[inline]
    pub(super) fn command(&self) -> (u64, Phase) {
        let command = self.word(COMMAND).load(Ordering::Acquire);
        let phase = match command & PHASE {
            1 => Phase::Node,
            2 => Phase::Echo,
            3 => Phase::Sink,
            4 => Phase::EchoAndMiss,
            _ => Phase::Idle,
        };
        (command, phase)
    }

    /// Tells the client's side that a worker obeys a command, with its processor time so far.
    pub(super) fn done(&self, worker: usize, command: u64, processor_time: Duration) {
        let (time, place) = (processor_time.as_nanos() as u64, acknowledgement(worker));
        self.word(place + PROCESSOR_TIME)
            .store(time, Ordering::Relaxed);
        self.word(place).store(command, Ordering::Release);
    }

    /// Lets the node's side do something else; returns the processor time of all workers so far
    /// when they have begun.
    ///
    /// # Errors
    /// One does not begin.
    pub(super) fn begin(&self, phase: Phase) -> anyhow::Result<Duration> {
        // Each command is another number, so that an old acknowledgement is none of this one.
        let last = self.word(COMMAND).load(Ordering::Relaxed);
        let command = (last & !PHASE) + PHASE + 1 + phase as u64;
        self.word(COMMAND).store(command, Ordering::Release);
        let (from, mut time) = (Instant::now(), 0);
        let workers = self.word(WORKERS).load(Ordering::Acquire);
        for worker in 0..workers as usize {
            let place = acknowledgement(worker);
            while self.word(place).load(Ordering::Acquire) != command {
                ensure!(
                    from.elapsed() < BEGIN_MAX,
                    "the node's side does not answer"
                );
                std::thread::yield_now();
            }
            time += self.word(place + PROCESSOR_TIME).load(Ordering::Relaxed);
        }
        Ok(Duration::from_nanos(time))
    }
}

fn acknowledgement(worker: usize) -> usize {
    DONE + worker * DONE_STEP
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_phase_has_begun_when_every_worker_has_and_their_times_are_added_up() {
        let control = Control::create(3).unwrap();
        let phases = [Phase::Sink, Phase::EchoAndMiss, Phase::Node, Phase::Idle];
        std::thread::scope(|scope| {
            let work = |number: usize| {
                let control = control.try_clone().unwrap();
                move || {
                    // The number of commands that this worker has seen, as its processor time.
                    let mut seen = Vec::new();
                    while seen.len() < phases.len() {
                        let (command, phase) = control.command();
                        if command > 7 && seen.last() != Some(&(command, phase)) {
                            seen.push((command, phase));
                            let time = 100u64.pow(number as u32) * seen.len() as u64;
                            control.done(number, command, Duration::from_nanos(time));
                        }
                    }
                    seen.into_iter().map(|(_, phase)| phase).collect::<Vec<_>>()
                }
            };
            let workers = [0, 1, 2].map(|number| scope.spawn(work(number)));
            // All of them before the first comparison: the workers wait for the last one.
            let times = phases.map(|phase| control.begin(phase).unwrap());
            let seen = workers.map(|worker| worker.join().unwrap());
            assert_eq!(seen, [(); 3].map(|()| phases.to_vec()));
            let expected = [1, 2, 3, 4].map(|n| Duration::from_nanos(10_101 * n));
            assert_eq!(times, expected);
        });
    }
}
