//! The guest: driver, TCP, TLS and a server on one core, in one loop.

use std::cell::Cell;
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use tare_sim::Instant;

use crate::breakdown::{Category, Off, Probe};
use crate::endpoint::{Counters, Endpoint, Next, Part, RecordBuffer, Turn};
use crate::pool::GuestBuffer;
use crate::ring::{Driver, Fault, Received};
use crate::server::{Application, Service, Time};
use crate::tcp::{self, Id, Stack};
use crate::tls::{self, Room, Session};

/// Frames that are taken off the ring in one pass.
const FRAMES: usize = 64;
/// The part of the buffers for records that one connection may have is one of these: 64 of the
/// usual 512, which is 1 MiB that is not acknowledged.
const SHARES: usize = 8;
/// Of them, those that are kept for connections that have none.
const RESERVED: usize = 2;
/// The time that a handshake may take.
const HANDSHAKE: Duration = Duration::from_secs(30);
/// Handshakes at a time: with the bytes that each may keep, 80 MiB.
const HANDSHAKES: usize = 4096;
/// Between two looks at the connections whose handshake is not done.
const SWEEP: Duration = Duration::from_secs(1);

/// A guest with one queue pair, on one thread. One of several processors is several of these, each
/// with a pair of the same region.
pub struct Guest<P: Probe = Off> {
    driver: Driver<P>,
    stack: Stack<GuestBuffer>,
    tls: tls::Server,
    services: Vec<(u16, Box<dyn Service>)>,
    endpoints: HashMap<Id, Endpoint<Box<dyn Application>, GuestBuffer>>,
    received: Vec<Received>,
    /// Connections that had no buffer to seal into, each once: its endpoint knows of it.
    starved: Vec<Id>,
    /// Connections that were accepted, the oldest first, and those whose handshake is done since.
    handshakes: VecDeque<Id>,
    /// Connections whose handshake is not done, and the most of them.
    handshaking: usize,
    handshakes_max: usize,
    /// Buffers for records that are kept for connections without any.
    reserve: usize,
    /// Records are opened into it.
    plaintext: Box<[u8]>,
    next_sweep: Instant,
    probe: P,
    counters: Counters,
}

impl<P: Probe> Guest<P> {
    /// Returns a guest that serves each of these ports.
    ///
    /// # Errors
    /// The settings of TCP are not possible together.
    pub fn new(
        driver: Driver<P>,
        mut tcp: tcp::Config,
        secret: tcp::Secret,
        tls: tls::Server,
        services: Vec<(u16, Box<dyn Service>)>,
        probe: P,
    ) -> Result<Guest<P>, tcp::Invalid> {
        let layout = driver.layout();
        tcp.headers = layout.parsing;
        // Payloads that wait for the rest of their record leave the buffers that are to be on the
        // ring: with none there, nothing would arrive that could end the wait.
        let spare = layout.frames.count.saturating_sub(layout.receive_posted);
        tcp.pool_max = tcp.pool_max.min(spare * layout.frames.bytes);
        // A record keeps its buffer until it is acknowledged, however short it is.
        let records = layout.records;
        let each = (records.count / SHARES).max(1);
        let reserve = RESERVED * records.count / SHARES;
        tcp.send_references = tcp.send_references.min(each);
        tcp.send_buffer = tcp.send_buffer.min(each * records.bytes);
        tcp.check_piece(records.bytes.min(tls::DATA_MAX + tls::OVERHEAD))?;
        let mut stack = Stack::new(tcp, secret)?;
        for (port, _) in &services {
            stack.listen(*port);
        }
        Ok(Guest {
            driver,
            stack,
            tls,
            services,
            endpoints: HashMap::new(),
            received: Vec::with_capacity(FRAMES),
            starved: Vec::new(),
            handshakes: VecDeque::new(),
            handshaking: 0,
            handshakes_max: HANDSHAKES,
            reserve,
            plaintext: vec![0; tls::BODY_MAX].into(),
            next_sweep: Instant::ZERO,
            probe,
            counters: Counters::default(),
        })
    }

    /// Does what can be done now. Returns true if anything was: call it again at once.
    ///
    /// # Errors
    /// The host broke the rules of the ring, and the device was given up: [`Guest::reset`] starts
    /// again, with the connections that there are.
    pub fn turn(&mut self, time: Time) -> Result<bool, Fault> {
        let now = time.now;
        let region = Rc::clone(self.driver.region());
        let _open = region.open_window();
        if !self.driver.start()? {
            return Ok(false);
        }
        let mut is_busy = self.driver.receive(&mut self.received, FRAMES)? > 0;
        {
            let _span = self.probe.enter(Category::PacketIn);
            for received in self.received.drain(..) {
                self.stack.receive(now, received.into());
            }
        }
        is_busy |= self.accept(now);
        // Buffers came back since they had none.
        for id in std::mem::take(&mut self.starved) {
            if let Some(endpoint) = self.endpoints.get_mut(&id) {
                endpoint.is_starved = false;
                self.serve(time, id);
            }
        }
        while let Some((id, _)) = self.stack.event() {
            is_busy = true;
            self.serve(time, id);
        }
        self.sweep(time);
        {
            let _span = self.probe.enter(Category::PacketOut);
            is_busy |= self.stack.poll(now, &mut self.driver);
        }
        self.driver.flush()?;
        Ok(is_busy)
    }

    /// Waits until the host has something or a timer is due, at most for a time; polls again at
    /// once if the guest does not use interrupts.
    ///
    /// # Errors
    /// As [`Guest::turn`].
    pub fn wait(&mut self, now: Instant, at_most: Duration) -> Result<bool, Fault> {
        let timer = self.stack.next_timer().since(now);
        let region = Rc::clone(self.driver.region());
        let _open = region.open_window();
        self.driver.wait(timer.min(at_most))
    }

    /// Asks the device for a reset after a fault; connections outlive it.
    pub fn reset(&mut self) {
        let region = Rc::clone(self.driver.region());
        let _open = region.open_window();
        self.driver.reset();
    }

    /// Returns what was served.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Returns the driver, for its counters.
    pub fn driver(&self) -> &Driver<P> {
        &self.driver
    }

    /// Returns the number of connections that are served.
    pub fn connections(&self) -> usize {
        self.endpoints.len()
    }

    /// Returns the entries of the longest list of connections that wait for something.
    pub(crate) fn waiting(&self) -> usize {
        self.stack.waiting().max(self.starved.len())
    }

    fn accept(&mut self, now: Instant) -> bool {
        let region = Rc::clone(self.driver.region());
        let _closed = region.closed_window();
        let mut is_busy = false;
        for at in 0..self.services.len() {
            while let Some(id) = self.stack.accept(self.services[at].0) {
                is_busy = true;
                self.counters.opened += 1;
                match Session::server(&self.tls) {
                    Ok(session) => {
                        self.make_room(now);
                        let application = self.services[at].1.accept();
                        let endpoint = Endpoint::new(session, application, now + HANDSHAKE);
                        self.endpoints.insert(id, endpoint);
                        self.handshakes.push_back(id);
                        self.handshaking += 1;
                    }
                    Err(_) => self.stack.abort(now, id),
                }
            }
        }
        is_busy
    }

    /// Makes room for a handshake at the cost of the oldest: silent clients keep no other one out,
    /// which is done in a few turns.
    fn make_room(&mut self, now: Instant) {
        while self.handshaking >= self.handshakes_max {
            let Some(oldest) = self.handshakes.pop_front() else {
                break;
            };
            self.give_up(now, oldest);
        }
        if self.handshakes.len() >= 2 * self.handshakes_max {
            let endpoints = &self.endpoints;
            self.handshakes
                .retain(|id| endpoints.get(id).is_some_and(Endpoint::is_handshaking));
        }
    }

    /// Ends a connection whose handshake is not done.
    fn give_up(&mut self, now: Instant, id: Id) {
        let endpoint = self.endpoints.get(&id);
        if endpoint.is_some_and(Endpoint::is_handshaking) {
            self.endpoints.remove(&id);
            self.handshaking -= 1;
            self.counters.tls_failures += 1;
            self.stack.abort(now, id);
        }
    }

    fn serve(&mut self, time: Time, id: Id) {
        let Some(endpoint) = self.endpoints.get_mut(&id) else {
            return;
        };
        // The last buffers are for connections that have none, so that those which acknowledge
        // nothing leave a handshake and an answer to others.
        let held = Cell::new(self.stack.references(id) + endpoint.references());
        let take = || {
            if held.get() > 0 && self.driver.records_free() <= self.reserve {
                return None;
            }
            held.set(held.get() + 1);
            self.driver.record()
        };
        let mut turn = Turn {
            time,
            id,
            stack: &mut self.stack,
            region: Some(self.driver.region()),
            take,
            plaintext: &mut self.plaintext,
            cipher: self.driver.layout().cipher,
            probe: &self.probe,
            counters: &mut self.counters,
        };
        let was_handshaking = endpoint.is_handshaking();
        let next = endpoint.serve(&mut turn);
        if was_handshaking && (next == Next::Over || !endpoint.is_handshaking()) {
            self.handshaking -= 1;
        }
        match next {
            Next::Waiting => {}
            Next::Starved => {
                if !std::mem::replace(&mut endpoint.is_starved, true) {
                    self.starved.push(id);
                }
            }
            Next::Over => {
                self.endpoints.remove(&id);
                self.stack.close(time.now, id);
            }
        }
    }

    /// Ends connections whose handshake takes too long, and those whose clients do not do what
    /// their servers wait for.
    fn sweep(&mut self, time: Time) {
        let now = time.now;
        if now < self.next_sweep {
            return;
        }
        self.next_sweep = now + SWEEP;
        let late = self.endpoints.iter().filter(|(_, it)| it.is_late(now));
        let late: Vec<Id> = late.map(|(id, _)| *id).collect();
        for id in late {
            self.give_up(now, id);
        }
        let region = Rc::clone(self.driver.region());
        let expired: Vec<Id> = {
            let _closed = region.closed_window();
            let stack = &self.stack;
            let expired = |(id, it): (&Id, &mut Endpoint<_, _>)| {
                it.expire(now, stack.references(*id)).then_some(*id)
            };
            self.endpoints.iter_mut().filter_map(expired).collect()
        };
        for id in expired {
            self.serve(time, id);
        }
    }
}

impl<P: Probe> fmt::Debug for Guest<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Guest({:?})", self.counters)
    }
}

impl RecordBuffer for GuestBuffer {
    fn fill(&mut self, bytes: &[u8]) -> Option<()> {
        self.write(0, bytes)
    }

    fn seal<R>(&mut self, seal: impl FnOnce(Room<'_>) -> R) -> Option<R> {
        let whole = 0..GuestBuffer::capacity(self);
        match self.view(whole.clone()) {
            Some(view) => Some(seal(Room::Shared(view))),
            None => Some(seal(Room::Private(&mut self.private_mut(whole)?))),
        }
    }

    fn part(&self, range: Range<usize>) -> Option<Part<'_>> {
        match self.view(range.clone()) {
            Some(view) => Some(Part::Shared(view)),
            None => self.private(range).map(Part::Guarded),
        }
    }
}

#[cfg(test)]
#[path = "guest_tests.rs"]
mod tests;
