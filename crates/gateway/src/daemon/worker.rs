//! A worker: its own queue of each interface, its own pool, its own half of the gateway.

use std::sync::mpsc::{Receiver, SyncSender};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{poll, PollFd, PollFlags, Timespec};
use tare_port::{open, Burst, Counters, Interface, Layout, Opened, Pool, Port, BURST};
use tare_sim::Instant;

use super::interfaces::{InterfaceQueues, Plan};
use super::shared::{pass, Counts, News, Shared, WorkerState};
use crate::dataplane::{Dataplane, Output, TrafficCounters, WorkerId};
use crate::interface::InterfaceId;

/// Frames that a worker has, about: half of them wait in its ports for what arrives.
const SLOTS: usize = 4096;

/// Rounds without a frame before a worker sleeps.
const IDLE_ROUNDS: u32 = 128;

/// The longest sleep.
const NAP: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 100_000_000,
};

/// How often counters are told, at least.
const TELL: Duration = Duration::from_millis(50);

/// Pause before ports that cannot be opened are tried again.
const RETRY: Duration = Duration::from_secs(1);

/// Rounds at most in which what has arrived is still forwarded, once the gateway is to stop.
const LAST_ROUNDS: u32 = 64;

pub(super) struct Worker {
    pub(super) number: usize,
    /// `None` while a data plane has it.
    pub(super) id: Option<WorkerId>,
    pub(super) shared: Arc<Shared>,
    pub(super) news: SyncSender<News>,
    pub(super) frames: Receiver<(InterfaceId, Vec<u8>)>,
}

/// Why a worker leaves its ports.
enum Left {
    Stopped,
    /// There is another plan.
    Replanned,
    Lost(std::io::Error),
}

impl Worker {
    /// Forwards until the gateway is to stop.
    pub(super) fn run(mut self) {
        let mut base = Counts::default();
        while !self.shared.stopped() {
            let plan = Arc::clone(&self.shared.published().plan);
            let mut station = match Station::open(&mut self, &plan) {
                Ok((station, kinds)) => {
                    [base.private_kind, base.public_kind] = kinds.clone();
                    let _ = self.news.send(News::Opened(self.number, Ok(kinds)));
                    station
                }
                Err(error) => {
                    let error = error.to_string();
                    let _ = self.news.send(News::Opened(self.number, Err(error)));
                    self.nap(RETRY);
                    continue;
                }
            };
            let left = station.forward(&self, &plan, &base);
            base = station.counts(&base);
            *self.state().counts() = base.clone();
            self.id = Some(station.close());
            match left {
                Left::Stopped => break,
                Left::Replanned => {}
                Left::Lost(error) => {
                    let _ = self.news.send(News::Lost(self.number, error.to_string()));
                    self.nap(RETRY);
                }
            }
        }
    }

    fn state(&self) -> &WorkerState {
        &self.shared.workers[self.number]
    }

    /// Waits, but not longer than until somebody wakes it.
    fn nap(&self, at_most: Duration) {
        let timeout = Timespec::try_from(at_most).unwrap_or(NAP);
        let mut fds = [PollFd::new(self.state().wake_fd(), PollFlags::IN)];
        let _ = poll(&mut fds, Some(&timeout));
        self.state().awake();
    }
}

/// Everything that a worker has while its ports are open.
struct Station {
    private: Box<dyn Port>,
    public: Box<dyn Port>,
    dataplane: Dataplane,
    pool: Pool,
    output: Output,
    burst: Burst,
    own_lost: u64,
}

impl Station {
    fn open(worker: &mut Worker, plan: &Plan) -> Result<(Station, [String; 2]), tare_port::Error> {
        let slots = SLOTS * 2048 / plan.capacity;
        let pool = Pool::new(slots.max(1024), plan.capacity, Layout::PowerOfTwo);
        let pool = pool.map_err(|source| tare_port::Error::Os {
            doing: "memory for frames".into(),
            source,
        })?;
        let open = |device: &InterfaceQueues| {
            let interface = Interface::find(&device.name)?;
            let queue = device.queue + worker.number as u32;
            let (port, opened) = open(&interface, queue, &pool, plan.kind)?;
            let end = device.queue + worker.shared.workers.len() as u32;
            Ok((port, told(&interface, queue, end, &opened)))
        };
        let (private, private_kind) = open(&plan.private)?;
        let (public, public_kind) = open(&plan.public)?;
        let tables = Arc::clone(&worker.shared.published().tables);
        let id = worker.id.take().ok_or_else(|| tare_port::Error::Os {
            doing: "the identity of a worker".into(),
            source: std::io::ErrorKind::ResourceBusy.into(),
        })?;
        let station = Station {
            private,
            public,
            dataplane: Dataplane::new(tables, pool.clone(), id),
            pool,
            output: Output::default(),
            burst: Burst::with_capacity(BURST),
            own_lost: 0,
        };
        Ok((station, [private_kind, public_kind]))
    }

    /// Closes the ports and returns the identity of the worker.
    fn close(self) -> WorkerId {
        self.dataplane.into_worker()
    }

    fn forward(&mut self, worker: &Worker, plan: &Arc<Plan>, base: &Counts) -> Left {
        // Tables that came while the ports were opened are taken in the first round.
        let mut seen = 0;
        let mut idle = 0;
        let mut told = Instant::ZERO;
        let mut last = LAST_ROUNDS;
        loop {
            let generation = worker.shared.generation();
            if generation != seen {
                seen = generation;
                let published = worker.shared.published();
                if *published.plan != **plan {
                    return Left::Replanned;
                }
                self.dataplane.replace(Arc::clone(&published.tables));
            }
            let now = Instant::now();
            let moved = match self.round(worker, now) {
                Ok(moved) => moved,
                Err(error) => return Left::Lost(error),
            };
            if worker.shared.stopped() {
                last -= 1;
                if !moved || last == 0 {
                    return Left::Stopped;
                }
            }
            if now.since(told) >= TELL {
                told = now;
                *worker.state().counts() = self.counts(base);
            }
            idle = if moved { 0 } else { idle + 1 };
            if idle >= IDLE_ROUNDS && !worker.shared.busy_poll {
                *worker.state().counts() = self.counts(base);
                self.sleep(worker);
                // A frame that woke it is found at once; without one it goes back to sleep soon.
                idle = IDLE_ROUNDS / 2;
            }
        }
    }

    /// One burst of each direction; whether there was something to do.
    fn round(&mut self, worker: &Worker, now: Instant) -> std::io::Result<bool> {
        let mut moved = false;
        if self.private.receive(&mut self.burst, BURST)? > 0 {
            moved = true;
            self.dataplane
                .outbound(now, &mut self.burst, &mut self.output);
            self.dispatch(worker, InterfaceId::Private)?;
        }
        if self.public.receive(&mut self.burst, BURST)? > 0 {
            moved = true;
            self.dataplane
                .inbound(now, &mut self.burst, &mut self.output);
            self.dispatch(worker, InterfaceId::Public)?;
            if !self.output.tunnel.is_empty() {
                std::mem::swap(&mut self.burst, &mut self.output.tunnel);
                self.dataplane
                    .outbound(now, &mut self.burst, &mut self.output);
                self.dispatch(worker, InterfaceId::Private)?;
            }
        }
        while let Ok((place, bytes)) = worker.frames.try_recv() {
            moved = true;
            let Some(frame) = self.pool.copy(&bytes) else {
                self.own_lost += 1;
                continue;
            };
            self.burst.push(frame);
            match place {
                InterfaceId::Private => self.send_own(InterfaceId::Private)?,
                InterfaceId::Public => self.send_own(InterfaceId::Public)?,
                InterfaceId::Tunnel => {
                    self.dataplane
                        .outbound(now, &mut self.burst, &mut self.output);
                    self.dispatch(worker, InterfaceId::Private)?;
                }
            }
        }
        Ok(moved)
    }

    /// Brings what the data plane made of packets from one side to where it goes.
    fn dispatch(&mut self, worker: &Worker, from: InterfaceId) -> std::io::Result<()> {
        let output = &mut self.output;
        let (there, here) = match from {
            InterfaceId::Public => (&mut self.private, &mut self.public),
            _ => (&mut self.public, &mut self.private),
        };
        send(there, &mut output.forward)?;
        if !output.forward.is_empty() {
            match from {
                InterfaceId::Public => self.dataplane.not_delivered(&mut output.forward),
                _ => self.dataplane.not_sent(&mut output.forward),
            }
        }
        if !output.back.is_empty() {
            send(here, &mut output.back)?;
            self.own_lost += output.back.drain(..).count() as u64;
        }
        for frame in output.control.drain(..) {
            pass(&worker.shared, &worker.news, from, &frame);
        }
        for frame in output.inner.drain(..) {
            pass(&worker.shared, &worker.news, InterfaceId::Tunnel, &frame);
        }
        Ok(())
    }

    fn send_own(&mut self, to: InterfaceId) -> std::io::Result<()> {
        let port = match to {
            InterfaceId::Public => &mut self.public,
            _ => &mut self.private,
        };
        send(port, &mut self.burst)?;
        self.own_lost += self.burst.drain(..).count() as u64;
        Ok(())
    }

    /// Waits for a frame, for tables or for a while.
    fn sleep(&mut self, worker: &Worker) {
        let state = worker.state();
        let (Some(private), Some(public)) = (self.private.wait_on(), self.public.wait_on()) else {
            return std::thread::sleep(Duration::from_micros(50));
        };
        let mut fds = [
            PollFd::from_borrowed_fd(private, PollFlags::IN),
            PollFd::from_borrowed_fd(public, PollFlags::IN),
            PollFd::new(state.wake_fd(), PollFlags::IN),
        ];
        let _ = poll(&mut fds, Some(&NAP));
        let [private, public, wake] = fds.map(|fd| fd.revents());
        if !wake.is_empty() {
            state.awake();
        }
        // An interface that is down may be an error for poll(2) at any time: no reason to turn in
        // circles.
        let error = PollFlags::ERR | PollFlags::HUP | PollFlags::NVAL;
        if (private | public).intersects(error) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn counts(&self, base: &Counts) -> Counts {
        let plus = |base: &TrafficCounters, more: &TrafficCounters| {
            let mut sum = *base;
            sum.add(more);
            sum
        };
        Counts {
            sent: plus(&base.sent, self.dataplane.sent()),
            received: plus(&base.received, self.dataplane.received()),
            private: sum(&base.private, &self.private.counters()),
            public: sum(&base.public, &self.public.counters()),
            own_lost: base.own_lost + self.own_lost,
            private_kind: base.private_kind.clone(),
            public_kind: base.public_kind.clone(),
        }
    }
}

/// Sends what the port takes; asks it a second time, for it may have made room meanwhile.
fn send(port: &mut Box<dyn Port>, burst: &mut Burst) -> std::io::Result<()> {
    for _ in 0..2 {
        if burst.is_empty() {
            break;
        }
        port.send(burst)?;
    }
    Ok(())
}

fn sum(a: &Counters, b: &Counters) -> Counters {
    Counters {
        rx_packets: a.rx_packets + b.rx_packets,
        rx_bytes: a.rx_bytes + b.rx_bytes,
        rx_dropped: a.rx_dropped + b.rx_dropped,
        tx_packets: a.tx_packets + b.tx_packets,
        tx_bytes: a.tx_bytes + b.tx_bytes,
        tx_dropped: a.tx_dropped + b.tx_dropped,
    }
}

/// What was opened, for people. Queues from `end` on are nobody's: what the card puts there never
/// gets to a worker.
fn told(interface: &Interface, queue: u32, end: u32, opened: &Opened) -> String {
    let kind = match opened.kind {
        tare_port::Kind::Xdp(mode) if interface.queues() > end => format!(
            "{mode} queue {queue}; nobody serves its queues from {end} on: `ethtool -L {} combined {end}`",
            interface.name()
        ),
        tare_port::Kind::Xdp(mode) => format!("{mode} queue {queue}"),
        _ => "packet socket".to_owned(),
    };
    let refused = opened
        .refused
        .iter()
        .map(|refused| format!("; not {refused}"));
    let refused: String = refused.collect();
    format!("{}: {kind}{refused}", interface.name())
}
