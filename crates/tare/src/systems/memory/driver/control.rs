//! Memory between the two processes of a trial: what the node's side is to do, what it has done,
//! and the lines and slots of the references. The client's side alone gives commands.

use std::os::fd::AsRawFd as _;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{ensure, Context as _};
use tare_lab::protocol::Ready;
use tare_memory::{Atomic, SharedMemory, View};

/// Bytes of the memory: a page, and the slots of the copy from process to process.
const BYTES: usize = SLOTS_AT + SLOTS * SLOT;

/// The slots of the copy.
pub(super) const SLOTS: usize = 16;
pub(super) const SLOT: usize = 64 << 10;
const SLOTS_AT: usize = 4096;

/// The places of the command, of its acknowledgement, and of what the node's side counts.
/// Processors fetch lines in pairs, so what each side writes has pairs of its own.
const COMMAND: usize = 0;
const DONE: usize = 128;
const PROCESSOR_TIME: usize = 256;
const COUNT: usize = 264;
const PING: usize = 1024;
const PONG: usize = 2048;

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
}

/// One side's end of the memory.
pub(super) struct Control(SharedMemory);

impl Control {
    /// Makes the memory, on the node's side.
    pub(super) fn create() -> anyhow::Result<Control> {
        Ok(Control(SharedMemory::create("tare-trial", BYTES)?))
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
            value.with_context(|| format!("the node's side did not say its {name}"))
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
        let phase = match command & 3 {
            1 => Phase::Node,
            2 => Phase::Echo,
            3 => Phase::Sink,
            _ => Phase::Idle,
        };
        (command, phase)
    }

    /// Tells the client's side that a command is obeyed, with this side's processor time so far.
    pub(super) fn done(&self, command: u64, processor_time: Duration) {
        let time = processor_time.as_nanos() as u64;
        self.word(PROCESSOR_TIME).store(time, Ordering::Relaxed);
        self.word(DONE).store(command, Ordering::Release);
    }

    /// Lets the node's side do something else; returns its processor time so far when it has begun.
    ///
    /// # Errors
    /// It does not begin.
    pub(super) fn begin(&self, phase: Phase) -> anyhow::Result<Duration> {
        // Each command is another number, so that an old acknowledgement is none of this one.
        let command = (self.word(COMMAND).load(Ordering::Relaxed) & !3) + 4 + phase as u64;
        self.word(COMMAND).store(command, Ordering::Release);
        let from = Instant::now();
        while self.word(DONE).load(Ordering::Acquire) != command {
            ensure!(
                from.elapsed() < BEGIN_MAX,
                "the node's side does not answer"
            );
            std::thread::yield_now();
        }
        let time = self.word(PROCESSOR_TIME).load(Ordering::Relaxed);
        Ok(Duration::from_nanos(time))
    }
}
