//! A page of memory between the two processes of a trial: what the node's side is to do, and what
//! it has done. The client's side alone gives commands.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{ensure, Context as _};
use tare_lab::protocol::Ready;
use tare_memory::{Atomic, SharedMemory, View};

/// Bytes of the memory.
const BYTES: usize = 4096;

/// The places of the command, of its acknowledgement, and of the processor time.
const COMMAND: usize = 0;
const DONE: usize = 128;
const PROCESSOR_TIME: usize = 256;
const BYTES_RECEIVED: usize = 264;

/// The longest time until the node's side has begun something else.
const BEGIN_MAX: Duration = Duration::from_secs(20);

/// The work of the node's side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Nothing, asleep.
    Idle = 0,
    /// The memory node.
    Node = 1,
    /// The reference: echo, raw line, or what takes the raw stream.
    Reference = 2,
}

/// One side's end of the page.
pub(super) struct Control(SharedMemory);

impl Control {
    /// Makes the page, on the node's side.
    pub(super) fn create() -> anyhow::Result<Control> {
        Ok(Control(SharedMemory::create("tare-trial", BYTES)?))
    }

    /// What the client's side must know to open it.
    pub(super) fn describe(&self, ready: &mut Ready) {
        use std::os::fd::AsRawFd as _;
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
        let file = std::fs::File::options().read(true).write(true).open(&path)?;
        let memory = SharedMemory::open(file.into())?;
        ensure!(memory.len() == BYTES, "the page has {} bytes", memory.len());
        Ok(Control(memory))
    }

    /// The whole page, for the raw line.
    pub(super) fn page(&self) -> View<'_> {
        self.0.view()
    }

    fn word(&self, place: usize) -> Atomic<'_, u64> {
        // The length was checked.
        self.0.view().atomic(place).expect("within the page")
    }

    /// The work that the node's side is to do.
    pub(super) fn phase(&self) -> Phase {
        match self.word(COMMAND).load(Ordering::Acquire) & 3 {
            1 => Phase::Node,
            2 => Phase::Reference,
            _ => Phase::Idle,
        }
    }

    /// Tells the client's side that a phase has begun, with the processor time so far.
    pub(super) fn begun(&self, processor_time: Duration, bytes_received: u64) {
        let time = processor_time.as_nanos() as u64;
        self.word(PROCESSOR_TIME).store(time, Ordering::Relaxed);
        self.word(BYTES_RECEIVED).store(bytes_received, Ordering::Relaxed);
        let command = self.word(COMMAND).load(Ordering::Acquire);
        self.word(DONE).store(command, Ordering::Release);
    }

    /// Lets the node's side do something else; returns its processor time so far, and the bytes
    /// that its reference has received, when it has begun. `nudge` wakes it if it waits for
    /// something.
    ///
    /// # Errors
    /// It does not begin.
    pub(super) fn begin(
        &self,
        phase: Phase,
        mut nudge: impl FnMut(),
    ) -> anyhow::Result<(Duration, u64)> {
        // Each command is another number, so that an old acknowledgement is none of this one.
        let command = (self.word(COMMAND).load(Ordering::Relaxed) & !3) + 4 + phase as u64;
        self.word(COMMAND).store(command, Ordering::Release);
        let from = Instant::now();
        while self.word(DONE).load(Ordering::Acquire) != command {
            ensure!(from.elapsed() < BEGIN_MAX, "the node's side does not answer");
            nudge();
            std::thread::yield_now();
        }
        let time = self.word(PROCESSOR_TIME).load(Ordering::Relaxed);
        let bytes = self.word(BYTES_RECEIVED).load(Ordering::Relaxed);
        Ok((Duration::from_nanos(time), bytes))
    }
}
