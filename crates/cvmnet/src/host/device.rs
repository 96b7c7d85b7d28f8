//! The device of one queue pair, on the virtqueues and the memory of the rust-vmm project.

use std::fmt;
use std::fs::File;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rustix::event::{poll, PollFd, PollFlags, Timespec};
use tare_sim::Instant;
use virtio_queue::{Queue, QueueOwnedT, QueueT};
use vm_memory::{Bytes, FileOffset, GuestAddress, GuestMemoryMmap};

use super::merge::{Merger, Output};
use super::{Frames, FRAME_MAX};
use crate::region::{PairLayout, QueueLayout, Region};
use crate::ring::{NetHeader, Notification, NET_HEADER};

/// Frames of one direction in one pass.
const BUDGET: usize = 256;

/// The settings of a device that are not in the layout.
#[derive(Clone, Debug, Default)]
pub struct DeviceSettings {
    /// The way to notify.
    pub notification: Notification,
    /// Segments are merged before the ring; `None` to pass all on as they are.
    pub merge: Option<super::merge::Limits>,
    /// Bytes of the longest frame that the network may have for the guest; `None` for any that its
    /// buffers have room for, which for merged frames is more than any MTU.
    pub frame_max: Option<usize>,
}

/// Counters since the device was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceCounters {
    /// Packets that came from the network: each is a frame for the guest, or a part of one.
    pub packets: u64,
    /// Frames that the guest has received.
    pub to_guest: u64,
    /// Frames that the guest has sent.
    pub from_guest: u64,
    /// Frames for the guest that were longer than its buffer, or than they may be.
    pub too_long: u64,
    /// Chains of the guest that are no frame.
    pub malformed: u64,
    /// Interrupts.
    pub interrupts: u64,
    /// Passes in which the guest had no buffer for a frame.
    pub no_buffer: u64,
    /// Resets by the guest, without the one before the first start.
    pub resets: u64,
}

/// The reason why a device cannot go on.
#[derive(Debug)]
#[non_exhaustive]
pub enum DeviceError {
    /// The region cannot be mapped.
    Map(String),
    /// A queue is not where the layout says, or its memory is not the region's.
    Queue(String),
    /// The region has no such queue pair.
    Pair(usize),
}

impl fmt::Display for DeviceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DeviceError::Map(error) => write!(f, "mapping the region: {error}"),
            DeviceError::Queue(error) => write!(f, "a queue of the region: {error}"),
            DeviceError::Pair(pair) => write!(f, "found no queue pair {pair} in the region"),
        }
    }
}

impl std::error::Error for DeviceError {}

/// The device of a queue pair, with the network behind it.
pub struct Device<F> {
    memory: GuestMemoryMmap,
    layout: PairLayout,
    settings: DeviceSettings,
    receive: Queue,
    transmit: Queue,
    frames: F,
    /// The status of the driver that was acknowledged.
    status: u32,
    running: bool,
    has_run: bool,
    merger: Option<Merger>,
    /// Frames that the guest had no buffer for yet.
    pending: Output,
    /// Frames passed on since those that are due were added to them.
    passed: usize,
    /// The frame that comes from the network.
    frame: Vec<u8>,
    /// The frame that comes from the guest.
    outgoing: Vec<u8>,
    /// Its header and its chain, if the network had no room for it.
    unsent: Option<(NetHeader, u16)>,
    interrupts: u32,
    counters: DeviceCounters,
}

impl<F: Frames> Device<F> {
    /// Maps a region and returns the device of one of its queue pairs.
    ///
    /// # Errors
    /// The region has no such queue pair, or cannot be mapped.
    pub fn new(
        region: &Region,
        pair: usize,
        settings: DeviceSettings,
        frames: F,
    ) -> Result<Device<F>, DeviceError> {
        let layout = *region.layout().pair(pair).ok_or(DeviceError::Pair(pair))?;
        let fd = region.fd().try_clone_to_owned();
        let file = File::from(fd.map_err(|error| DeviceError::Map(error.to_string()))?);
        let range = (
            GuestAddress(0),
            region.layout().len(),
            Some(FileOffset::new(file, 0)),
        );
        let memory = GuestMemoryMmap::from_ranges_with_files([range]);
        let memory = memory.map_err(|error| DeviceError::Map(error.to_string()))?;
        let queue = |size| Queue::new(size).map_err(queue_error);
        Ok(Device {
            receive: queue(layout.receive.size)?,
            transmit: queue(layout.transmit.size)?,
            merger: settings.merge.map(Merger::new),
            memory,
            layout,
            settings,
            frames,
            status: 0,
            running: false,
            has_run: false,
            pending: Output::default(),
            passed: 0,
            frame: Vec::new(),
            outgoing: Vec::new(),
            unsent: None,
            interrupts: 0,
            counters: DeviceCounters::default(),
        })
    }

    /// Returns the network behind the device.
    pub fn frames(&mut self) -> &mut F {
        &mut self.frames
    }

    /// Returns the counters.
    pub fn counters(&self) -> DeviceCounters {
        self.counters
    }

    /// Moves frames both ways, a bounded number of them; returns true if any was moved.
    ///
    /// # Errors
    /// The guest has made its queues unusable: it can ask for a reset.
    pub fn poll(&mut self, now: Instant) -> Result<bool, DeviceError> {
        self.poll_at_most(BUDGET, now)
    }

    /// Moves at most this number of frames each way, as [`Device::poll`].
    ///
    /// # Errors
    /// As [`Device::poll`].
    pub fn poll_at_most(&mut self, budget: usize, now: Instant) -> Result<bool, DeviceError> {
        self.look_at_status()?;
        if !self.running {
            return Ok(false);
        }
        let sent = self.serve_transmit(budget)?;
        let received = self.serve_receive(budget, now)?;
        Ok(sent | received)
    }

    /// Obeys the status that the driver has written: a reset, or the start.
    fn look_at_status(&mut self) -> Result<(), DeviceError> {
        let at = GuestAddress(self.layout.driver_status as u64);
        let status: u32 = self
            .memory
            .load(at, Ordering::Acquire)
            .map_err(queue_error)?;
        if status == self.status {
            return Ok(());
        }
        self.running = status & 1 == 1;
        if self.running {
            self.has_run = true;
            for (queue, layout) in [
                (&mut self.receive, self.layout.receive),
                (&mut self.transmit, self.layout.transmit),
            ] {
                start(queue, layout, self.layout.event_index)?;
                if !queue.is_valid(&self.memory) {
                    return Err(DeviceError::Queue("it is not within the region".into()));
                }
                queue
                    .disable_notification(&self.memory)
                    .map_err(queue_error)?;
            }
        } else {
            self.receive.reset();
            self.transmit.reset();
            self.unsent = None;
            self.counters.resets += u64::from(self.has_run);
        }
        self.status = status;
        let at = GuestAddress(self.layout.device_status as u64);
        self.memory
            .store(status, at, Ordering::Release)
            .map_err(queue_error)?;
        // The driver may be waiting for this.
        self.interrupt()
    }

    fn serve_transmit(&mut self, budget: usize) -> Result<bool, DeviceError> {
        let mut moved = 0;
        while moved < budget {
            let (header, head) = match self.unsent.take() {
                Some(unsent) => unsent,
                None => match self.next_from_guest()? {
                    Some((Some(header), head)) => (header, head),
                    Some((None, head)) => {
                        self.counters.malformed += 1;
                        self.use_transmit(head)?;
                        moved += 1;
                        continue;
                    }
                    None => break,
                },
            };
            if !self.frames.send(&self.outgoing, header) {
                self.unsent = Some((header, head));
                break;
            }
            self.counters.from_guest += 1;
            self.use_transmit(head)?;
            moved += 1;
        }
        if moved > 0
            && self
                .transmit
                .needs_notification(&self.memory)
                .map_err(queue_error)?
        {
            self.interrupt()?;
        }
        Ok(moved > 0)
    }

    fn use_transmit(&mut self, head: u16) -> Result<(), DeviceError> {
        self.transmit
            .add_used(&self.memory, head, 0)
            .map_err(queue_error)
    }

    /// Copies the next frame of the guest to `self.outgoing`; returns its header if it has a valid
    /// one, and its first descriptor.
    fn next_from_guest(&mut self) -> Result<Option<(Option<NetHeader>, u16)>, DeviceError> {
        let mut chains = self.transmit.iter(&self.memory).map_err(queue_error)?;
        let Some(chain) = chains.next() else {
            return Ok(None);
        };
        let head = chain.head_index();
        self.outgoing.clear();
        for part in chain {
            let (at, len) = (self.outgoing.len(), part.len() as usize);
            if part.is_write_only() || at + len > NET_HEADER + FRAME_MAX {
                return Ok(Some((None, head)));
            }
            self.outgoing.resize(at + len, 0);
            let read = self
                .memory
                .read_slice(&mut self.outgoing[at..], part.addr());
            if read.is_err() {
                return Ok(Some((None, head)));
            }
        }
        let Some(header) = self.outgoing.first_chunk().copied() else {
            return Ok(Some((None, head)));
        };
        self.outgoing.drain(..NET_HEADER);
        Ok(Some((
            NetHeader::parse(&header, self.outgoing.len()).ok(),
            head,
        )))
    }

    fn serve_receive(&mut self, budget: usize, now: Instant) -> Result<bool, DeviceError> {
        let mut moved = 0;
        while moved < budget {
            if let Some((header, frame)) = self.pending.front() {
                match to_guest(&mut self.receive, &self.memory, header, frame)? {
                    ToGuest::Done => self.counters.to_guest += 1,
                    ToGuest::TooLong => self.counters.too_long += 1,
                    ToGuest::NoBuffer => {
                        self.counters.no_buffer += 1;
                        break;
                    }
                }
                self.pending.pop();
                moved += 1;
                continue;
            }
            self.frame.clear();
            let Some(header) = self.frames.receive(&mut self.frame) else {
                // All that has come was looked at.
                self.passed = 0;
                let merger = self.merger.as_mut();
                if merger.is_some_and(|merger| merger.flush_due(now, &mut self.pending)) {
                    continue;
                }
                break;
            };
            self.counters.packets += 1;
            // Large frames with segments are the device's own merging.
            let is_whole = header.segments.is_none();
            let frame_max = self.settings.frame_max;
            if is_whole && frame_max.is_some_and(|most| self.frame.len() > most) {
                self.counters.too_long += 1;
                moved += 1;
                continue;
            }
            match &mut self.merger {
                Some(merger) => merger.push(&self.frame, header, now, &mut self.pending),
                None => self.pending.push(header, &self.frame),
            }
        }
        // Where frames never cease to come, what is held is due all the same. By their number: with
        // each pass, a guest that is short of buffers would get frames of few segments.
        self.passed += moved;
        if self.passed >= BUDGET {
            self.passed = 0;
            if let Some(merger) = &mut self.merger {
                merger.flush_due(now, &mut self.pending);
            }
        }
        if moved > 0
            && self
                .receive
                .needs_notification(&self.memory)
                .map_err(queue_error)?
        {
            self.interrupt()?;
        }
        Ok(moved > 0)
    }

    fn interrupt(&mut self) -> Result<(), DeviceError> {
        self.interrupts = self.interrupts.wrapping_add(1);
        self.counters.interrupts += 1;
        let at = GuestAddress(self.layout.interrupts as u64);
        self.memory
            .store(self.interrupts, at, Ordering::Release)
            .map_err(queue_error)?;
        if let Notification::Events { interrupt, .. } = &self.settings.notification {
            interrupt.ring();
        }
        Ok(())
    }

    /// Returns the time at which a frame is due that is held to be merged; `None` if none is held.
    pub fn next_due(&self) -> Option<Instant> {
        self.merger.as_ref().and_then(Merger::next_due)
    }

    /// Waits until the guest or the network has something, at most for a time; for the guest alone
    /// while it does not run or has no buffer for the frame that is next. Without eventfds it
    /// returns at once.
    ///
    /// # Errors
    /// As [`Device::poll`].
    pub fn wait(&mut self, at_most: Duration) -> Result<(), DeviceError> {
        let Notification::Events { kick, .. } = &self.settings.notification else {
            std::hint::spin_loop();
            return Ok(());
        };
        if self.running {
            let enable = |queue: &mut Queue| queue.enable_notification(&self.memory);
            let packets = enable(&mut self.transmit).map_err(queue_error)?;
            // Fresh buffers are of interest only if there is a frame for them.
            let waiting = !self.pending.is_empty();
            let buffers = waiting && enable(&mut self.receive).map_err(queue_error)?;
            if packets || buffers {
                return Ok(());
            }
        }
        let mut fds = vec![PollFd::new(kick, PollFlags::IN)];
        // A frame that cannot be passed on is no reason to go on.
        let takes_frames = self.running && self.pending.is_empty();
        if let Some(fd) = self.frames.wait_on().filter(|_| takes_frames) {
            fds.push(PollFd::from_borrowed_fd(fd, PollFlags::IN));
        }
        let timeout = Timespec::try_from(at_most).ok();
        let _ = poll(&mut fds, timeout.as_ref());
        kick.clear();
        if self.running {
            for queue in [&mut self.transmit, &mut self.receive] {
                queue
                    .disable_notification(&self.memory)
                    .map_err(queue_error)?;
            }
        }
        Ok(())
    }
}

/// The result of passing a frame on.
enum ToGuest {
    Done,
    TooLong,
    NoBuffer,
}

/// Puts a frame into the guest's next buffer.
fn to_guest(
    queue: &mut Queue,
    memory: &GuestMemoryMmap,
    header: NetHeader,
    frame: &[u8],
) -> Result<ToGuest, DeviceError> {
    let Some(chain) = queue.iter(memory).map_err(queue_error)?.next() else {
        return Ok(ToGuest::NoBuffer);
    };
    let head = chain.head_index();
    let len = NET_HEADER + frame.len();
    let writable = chain.clone().writable();
    let room: u64 = writable.map(|part| u64::from(part.len())).sum();
    if room < len as u64 {
        // The buffer is there for the next frame.
        queue.go_to_previous_position();
        return Ok(ToGuest::TooLong);
    }
    let header = header.to_bytes();
    let mut rest = [&header[..], frame];
    for part in chain.writable() {
        let (mut at, mut left) = (part.addr(), part.len() as usize);
        for bytes in &mut rest {
            let (now, later) = bytes.split_at(left.min(bytes.len()));
            memory.write_slice(now, at).map_err(queue_error)?;
            (*bytes, left) = (later, left - now.len());
            at = GuestAddress(at.0.saturating_add(now.len() as u64));
        }
    }
    queue
        .add_used(memory, head, len as u32)
        .map_err(queue_error)?;
    Ok(ToGuest::Done)
}

fn start(queue: &mut Queue, layout: QueueLayout, event_index: bool) -> Result<(), DeviceError> {
    let address = |at: usize| GuestAddress(at as u64);
    queue.reset();
    queue.try_set_size(layout.size).map_err(queue_error)?;
    let set = queue
        .try_set_desc_table_address(address(layout.descriptors))
        .and(queue.try_set_avail_ring_address(address(layout.available)))
        .and(queue.try_set_used_ring_address(address(layout.used)));
    set.map_err(queue_error)?;
    queue.set_event_idx(event_index);
    queue.set_ready(true);
    Ok(())
}

fn queue_error(error: impl fmt::Display) -> DeviceError {
    DeviceError::Queue(error.to_string())
}

impl<F> fmt::Debug for Device<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Device({:?})", self.counters)
    }
}
