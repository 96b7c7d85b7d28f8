//! The driver of one queue pair.

mod transmit;

use std::ops::Range;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tare_memory::View;

use super::header::{HeaderError, NetHeader, NET_HEADER};
use super::notify::{switch, ExitCounts, Notification};
use super::queue::{Direction, Part, Queue};
use super::Fault;
use crate::bounce::{Bounce, Run};
use crate::breakdown::{Category, Field, Off, Probe, State};
use crate::pool::{GuestBuffer, Pool};
use crate::region::{Error, PairLayout, Region};
use crate::variant::Exits;
use transmit::Packet;
pub use transmit::{SendError, PIECES_MAX};

/// The settings of a driver that are not in the layout.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The kind of exits.
    pub exits: Exits,
    /// The simulated cost of a world switch, in cycles of the time stamp counter.
    pub switch_cycles: u64,
    /// The way to notify.
    pub notification: Notification,
}

impl Default for Settings {
    /// Polling, with exits that cost nothing.
    fn default() -> Settings {
        Settings {
            exits: Exits::Each,
            switch_cycles: 0,
            notification: Notification::Polling,
        }
    }
}

/// A received frame.
#[derive(Debug)]
pub struct Received {
    /// The memory that it is in: where it arrived, or the private copy if frames are bounced.
    pub buffer: GuestBuffer,
    /// The bytes of the Ethernet frame.
    pub range: Range<usize>,
    /// The device's header, checked.
    pub header: NetHeader,
}

/// Counters since the driver was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Frames received.
    pub received: u64,
    /// Frames with a header or a length that no frame has, dropped.
    pub malformed: u64,
    /// Packets given to the device.
    pub sent: u64,
    /// Packets that there was no room for.
    pub full: u64,
    /// Bytes copied through the bounce buffer.
    pub bounced: u64,
    /// Times that the device was given up.
    pub faults: u64,
}

/// The driver of a queue pair, on one thread. It takes received frames off the ring, gives fresh
/// buffers back, and sends packets; after a [`Fault`] it does nothing until [`Driver::reset`].
pub struct Driver<P: Probe = Off> {
    region: Rc<Region>,
    layout: PairLayout,
    settings: Settings,
    probe: P,
    receive: Queue<P>,
    transmit: Queue<P>,
    /// By the first descriptor of its chain.
    posted: Box<[Option<Posted>]>,
    /// By the first descriptor of its chain.
    sent: Box<[Packet]>,
    frames: Rc<Pool>,
    records: Rc<Pool>,
    headers: Rc<Pool>,
    bounce: Bounce,
    status: Status,
    generation: u32,
    interrupts: u32,
    /// There was none when the caller last asked.
    is_room_wanted: bool,
    exits: ExitCounts,
    counters: Counters,
}

#[derive(Clone, Copy)]
enum Status {
    Resetting,
    Running,
    Broken(Fault),
}

/// A buffer that the device has to receive into.
struct Posted {
    buffer: GuestBuffer,
    /// The slots that stand for a private buffer.
    run: Option<Run>,
}

impl<P: Probe> Driver<P> {
    /// Returns the driver of a queue pair, and asks the device for a reset: call [`Driver::start`]
    /// until it is done.
    ///
    /// # Errors
    /// The region has no such queue pair.
    pub fn new(
        region: Region,
        pair: usize,
        settings: Settings,
        probe: P,
    ) -> Result<Driver<P>, Error> {
        let region = Rc::new(region);
        let opened = Rc::clone(&region);
        let _open = opened.open_window();
        let Some(&layout) = region.layout().pair(pair) else {
            return Err(Error::Number {
                what: "queue pair",
                found: pair as u32,
                expected: 0..region.layout().pairs() as u32,
            });
        };
        let queue = |at, direction| {
            let region = Rc::clone(&region);
            Queue::new(region, at, direction, layout.event_index, probe.clone())
        };
        let pool = |at| match layout.bounced {
            true => Pool::private(layout.frames.count, layout.frames.bytes),
            false => Pool::shared(Rc::clone(&region), at),
        };
        let records = match layout.bounced {
            true => Pool::private(layout.records.count, layout.records.bytes),
            false => Pool::shared(Rc::clone(&region), layout.records),
        };
        let mut driver = Driver {
            receive: queue(layout.receive, Direction::Receive),
            transmit: queue(layout.transmit, Direction::Transmit),
            posted: (0..layout.receive.size).map(|_| None).collect(),
            sent: (0..layout.transmit.size)
                .map(|_| Packet::default())
                .collect(),
            frames: pool(layout.frames),
            records,
            headers: Pool::shared(Rc::clone(&region), layout.headers),
            bounce: Bounce::new(Rc::clone(&region), layout.bounce, layout.bounce_slots),
            status: Status::Resetting,
            // Another one than the last driver's, or the device would not notice the new one. If
            // the host lies, it does not.
            generation: region.load::<u32>(layout.device_status, Ordering::Relaxed) >> 1,
            interrupts: 0,
            is_room_wanted: false,
            exits: ExitCounts::default(),
            counters: Counters::default(),
            region,
            layout,
            settings,
            probe,
        };
        driver.reset();
        Ok(driver)
    }

    /// Takes everything back that the device has, and asks it for a reset: call [`Driver::start`]
    /// until it is done. Frames that were received, and buffers in other hands, stay as they are.
    pub fn reset(&mut self) {
        self.receive.forget();
        self.transmit.forget();
        let posted = self.posted.iter_mut().filter_map(Option::take);
        posted
            .filter_map(|posted| posted.run)
            .for_each(|run| self.bounce.release(run));
        for held in self.sent.iter_mut() {
            held.release(&self.bounce, &self.probe);
        }
        self.generation = self.generation.wrapping_add(1) & (u32::MAX >> 1);
        self.status = Status::Resetting;
        let status = self.generation << 1;
        self.region
            .store(self.layout.driver_status, status, Ordering::Release);
        self.ring();
    }

    /// Starts the device if it has acknowledged the reset; returns true if it runs.
    ///
    /// # Errors
    /// The device was given up: only [`Driver::reset`] helps.
    pub fn start(&mut self) -> Result<bool, Fault> {
        match self.status {
            Status::Running => return Ok(true),
            Status::Broken(fault) => return Err(fault),
            Status::Resetting => {}
        }
        let found: u32 = self
            .region
            .load(self.layout.device_status, Ordering::Acquire);
        self.note(Field::DeviceStatus, found.into());
        if found != self.generation << 1 {
            return Ok(false);
        }
        self.receive.reset();
        self.transmit.reset();
        self.interrupts = self.load_interrupts();
        self.status = Status::Running;
        self.refill();
        let status = self.generation << 1 | 1;
        self.region
            .store(self.layout.driver_status, status, Ordering::Release);
        self.ring();
        Ok(true)
    }

    /// Returns the reason why the device was given up, if it was.
    pub fn fault(&self) -> Option<Fault> {
        match self.status {
            Status::Broken(fault) => Some(fault),
            _ => None,
        }
    }

    /// Adds up to `max` received frames to `frames` and gives the device buffers for as many;
    /// returns how many frames were added. It looks at no more than `max` elements of the ring.
    ///
    /// # Errors
    /// The device was given up, now or before.
    pub fn receive(&mut self, frames: &mut Vec<Received>, max: usize) -> Result<usize, Fault> {
        if !self.is_running()? {
            return Ok(0);
        }
        let _ring = self.probe.enter(Category::Ring);
        self.take_interrupts();
        let before = frames.len();
        let taken = self.take_received(frames, max);
        taken.map_err(|fault| self.give_up(fault))?;
        // Also if none was taken: there may have been no free buffer the last time.
        self.refill();
        Ok(frames.len() - before)
    }

    fn take_received(&mut self, frames: &mut Vec<Received>, max: usize) -> Result<(), Fault> {
        let count = usize::from(self.receive.completed()?).min(max);
        for _ in 0..count {
            let completion = self.receive.take()?;
            let posted = self.posted[usize::from(completion.head)].take();
            let posted = posted.expect("each chain in flight has a buffer");
            let len = completion.len;
            if let Some(run) = posted.run {
                let mut to = posted.buffer.private_mut(0..len);
                let to = to.as_mut().expect("a chain is no longer than its buffer");
                self.copy_out(&run, to);
                let _span = self.probe.enter(Category::SlotRelease);
                self.bounce.release(run);
            }
            // One read, into private memory; a header that is not there counts as all zeros.
            let mut header = [0; NET_HEADER];
            if len >= NET_HEADER {
                let read = posted.buffer.read(0, &mut header);
                read.expect("a buffer has a header");
            }
            self.note(
                Field::Header,
                u64::from_le_bytes(*header.first_chunk().expect("12")),
            );
            match NetHeader::parse(&header, len.saturating_sub(NET_HEADER)) {
                Ok(header) => {
                    self.counters.received += 1;
                    // The lines of all headers at once, before TCP waits for one after the other.
                    let headers = posted.buffer.view(64..len.clamp(64, 256));
                    headers.into_iter().for_each(View::prefetch);
                    frames.push(Received {
                        buffer: posted.buffer,
                        range: NET_HEADER..len,
                        header,
                    });
                }
                Err(HeaderError::BufferCount(found)) => {
                    return Err(Fault::BufferCount { found });
                }
                Err(_) => self.counters.malformed += 1,
            }
        }
        Ok(())
    }

    fn copy_out(&mut self, run: &Run, to: &mut [u8]) {
        let _span = self.probe.enter(Category::BounceCopy);
        let from = self.bounce.view(run, 0..to.len());
        from.and_then(|from| from.copy_to(to))
            .expect("a run is as long as its buffer");
        self.counters.bounced += to.len() as u64;
    }

    /// Gives the device buffers to receive into, as many as it should have.
    fn refill(&mut self) {
        let mut added = false;
        while self.receive.in_flight() < self.layout.receive_posted {
            let Some(buffer) = self.frames.take() else {
                break;
            };
            let len = buffer.capacity();
            let (address, run) = match buffer.address() {
                Some(address) => (address, None),
                None => match self.find(len) {
                    Some(run) => (self.bounce.address(&run), Some(run)),
                    None => break,
                },
            };
            let head = self.receive.add(&[Part { address, len }]);
            let head = head.expect("a queue has a descriptor for each posted buffer");
            self.posted[usize::from(head)] = Some(Posted { buffer, run });
            added = true;
        }
        if added && self.receive.publish() {
            self.kick();
        }
    }

    fn find(&self, bytes: usize) -> Option<Run> {
        let _span = self.probe.enter(Category::SlotFind);
        self.bounce.find(bytes)
    }

    /// Waits until the device has something, at most for a time; returns false if that has passed.
    /// Without eventfds it returns at once, and once if there is room again since [`Driver::room`]
    /// was 0.
    ///
    /// # Errors
    /// The device was given up, now or before.
    pub fn wait(&mut self, at_most: Duration) -> Result<bool, Fault> {
        let Notification::Events { interrupt, .. } = &self.settings.notification else {
            std::hint::spin_loop();
            return Ok(true);
        };
        let interrupt = interrupt.clone();
        if self.is_running()? {
            self.flush()?;
            // Without room the caller may wait for completions alone, and there may be no 16. Those
            // that made room since it asked may have been the last.
            let was_full = self.is_room_wanted;
            let most = match self.room() {
                0 => self.transmit.in_flight() as u16,
                _ if was_full => return Ok(true),
                _ => u16::MAX,
            };
            // To look for room may have been to find a fault.
            self.is_running()?;
            let armed = self.receive.arm(1).and_then(|more| {
                let reaped = self.arm_transmit(most)?;
                Ok(more || reaped)
            });
            if armed.map_err(|fault| self.give_up(fault))? {
                self.receive.disarm();
                return Ok(true);
            }
        }
        self.exits.halts += 1;
        self.exit(1);
        let woken = {
            let _idle = self.probe.enter(Category::Idle);
            let woken = interrupt.wait(at_most);
            interrupt.clear();
            woken
        };
        if self.is_running()? {
            self.receive.disarm();
            self.take_interrupts();
        }
        Ok(woken)
    }

    /// Returns the region.
    pub(crate) fn region(&self) -> &Rc<Region> {
        &self.region
    }

    /// Returns the queue pair's layout.
    pub(crate) fn layout(&self) -> &PairLayout {
        &self.layout
    }

    /// Returns the counters since the driver was made.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Returns the exits since the driver was made.
    pub fn exits(&self) -> ExitCounts {
        self.exits
    }

    /// Returns the free buffers for frames, for records and for headers, and the free slots.
    pub fn free(&self) -> [usize; 4] {
        let pools = [&self.frames, &self.records, &self.headers];
        let [frames, records, headers] = pools.map(|pool| pool.free());
        [frames, records, headers, self.bounce.free()]
    }

    /// Returns the chains that the device has: to receive into, and to send.
    pub fn in_flight(&self) -> [usize; 2] {
        [self.receive.in_flight(), self.transmit.in_flight()]
    }

    fn is_running(&self) -> Result<bool, Fault> {
        match self.status {
            Status::Running => Ok(true),
            Status::Resetting => Ok(false),
            Status::Broken(fault) => Err(fault),
        }
    }

    #[cold]
    fn give_up(&mut self, fault: Fault) -> Fault {
        if let Status::Running = self.status {
            self.status = Status::Broken(fault);
            self.counters.faults += 1;
        }
        fault
    }

    fn note(&self, field: Field, value: u64) {
        let state = match self.status {
            Status::Resetting => State::Resetting,
            _ if self.receive.in_flight() == 0 => State::Empty,
            _ if self.receive.free_count() == 0 => State::Full,
            _ => State::Partial,
        };
        self.probe.consumed(0, field, state, value);
    }

    fn has_interrupts(&self) -> bool {
        matches!(self.settings.notification, Notification::Events { .. })
    }

    fn load_interrupts(&self) -> u32 {
        let found: u32 = self.region.load(self.layout.interrupts, Ordering::Relaxed);
        self.note(Field::Interrupts, found.into());
        found
    }

    /// Pays for interrupts since the last time. A host that lies about their number makes its guest
    /// slower, which it can do anyway.
    fn take_interrupts(&mut self) {
        if !self.has_interrupts() {
            return;
        }
        let found = self.load_interrupts();
        let new = u64::from(found.wrapping_sub(self.interrupts));
        self.interrupts = found;
        self.exits.interrupts += new;
        if self.settings.exits != Exits::Posted {
            self.exit(new);
        }
    }

    fn kick(&mut self) {
        self.exits.kicks += 1;
        self.exit(1);
        self.ring();
    }

    fn ring(&self) {
        if let Notification::Events { kick, .. } = &self.settings.notification {
            kick.ring();
        }
    }

    fn exit(&mut self, count: u64) {
        if count > 0 && self.settings.switch_cycles > 0 {
            let _span = self.probe.enter(Category::Exit);
            self.exits.cycles += switch(count, self.settings.switch_cycles);
        }
    }
}

impl<P: Probe> std::fmt::Debug for Driver<P> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Driver({:?}, {:?})", self.counters, self.fault())
    }
}
