//! A worker: its own queue of each interface, its own pool, its own half of the gateway.

pub(super) mod takeover;

use std::sync::mpsc::Receiver;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{poll, PollFd, PollFlags, Timespec};
use tare_port::{open, Burst, Descriptors, Frame, Interface, Layout, Opened, Pool, Port, BURST};
use tare_sim::Instant;

use super::interfaces::{InterfaceQueues, Plan};
use super::shared::{pass, unpoisoned, Counts, Order, Shared, ToControl, WorkerEvent, WorkerState};
use crate::dataplane::{Dataplane, WorkerId};
use crate::forwarder::{Forwarder, Sink, Task};
use crate::interface::InterfaceId;
use takeover::Takeover;

/// Frames that a worker has, about: half of them wait in its ports for what arrives. 2048 in each
/// are 40 ms of 50,000 frames per second; on a busy machine, threads are off their processors for
/// more than 20 ms.
const SLOTS: usize = 8192;

/// Rounds without a frame before a worker sleeps.
const IDLE_ROUNDS: u32 = 128;

/// The longest sleep.
const NAP: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 100_000_000,
};

/// The longest interval at which counters are published.
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
    pub(super) to_control: ToControl,
    pub(super) tasks: Receiver<Task>,
    /// The ports of another process, private and public, until they are opened.
    pub(super) inherited: Option<[Descriptors; 2]>,
}

/// The reason why a worker closes its ports.
pub(super) enum Left {
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
                    let _ = self
                        .to_control
                        .events
                        .send(WorkerEvent::Opened(self.number, Ok(kinds)));
                    station
                }
                Err(error) => {
                    let error = error.to_string();
                    let _ = self
                        .to_control
                        .events
                        .send(WorkerEvent::Opened(self.number, Err(error)));
                    self.nap(RETRY);
                    continue;
                }
            };
            self.offer(&mut station);
            let left = station.forward(&self, &plan, &mut base);
            *unpoisoned(&self.state().offered) = None;
            base = station.counts(&base);
            *self.state().counts() = base.clone();
            self.id = Some(station.close());
            match left {
                Left::Stopped => break,
                Left::Replanned => {}
                Left::Lost(error) => {
                    let _ = self
                        .to_control
                        .events
                        .send(WorkerEvent::Lost(self.number, error.to_string()));
                    self.nap(RETRY);
                }
            }
        }
    }

    fn state(&self) -> &WorkerState {
        &self.shared.workers[self.number]
    }

    /// Waits until the time is over or another thread wakes it.
    fn nap(&self, at_most: Duration) {
        let timeout = Timespec::try_from(at_most).unwrap_or(NAP);
        let mut fds = [PollFd::new(self.state().wake_fd(), PollFlags::IN)];
        let _ = poll(&mut fds, Some(&timeout));
        self.state().awake();
    }
}

/// The state of a worker while its ports are open.
pub(super) struct Station {
    pub(super) ports: Ports,
    pub(super) forwarder: Forwarder,
    pub(super) pool: Pool,
    pub(super) burst: Burst,
    pub(super) takeover: Takeover,
}

const SIDES: [InterfaceId; 2] = [InterfaceId::Private, InterfaceId::Public];

pub(super) struct Ports {
    pub(super) private: Box<dyn Port>,
    pub(super) public: Box<dyn Port>,
}

/// The state of a worker's loop between two rounds.
pub(super) struct Loop {
    /// The generation of the tables in use.
    seen: u64,
    /// Rounds without a frame.
    pub(super) idle: u32,
    /// The time at which counters were published.
    told: Instant,
    /// Rounds that are left, once the gateway is to stop.
    last: u32,
    /// True if the ports are what they are to stay.
    is_settled: bool,
}

impl Default for Loop {
    fn default() -> Loop {
        Loop {
            // Tables that came while the ports were opened are taken in the first round.
            seen: 0,
            idle: 0,
            told: Instant::ZERO,
            last: LAST_ROUNDS,
            is_settled: true,
        }
    }
}

impl Ports {
    fn port_mut(&mut self, id: InterfaceId) -> &mut dyn Port {
        &mut **self.slot(id)
    }

    #[inline]
    fn slot(&mut self, id: InterfaceId) -> &mut Box<dyn Port> {
        match id {
            InterfaceId::Public => &mut self.public,
            InterfaceId::Private | InterfaceId::Tunnel => &mut self.private,
        }
    }
}

/// The ports of a worker, and the queue to the control thread.
struct PortSink<'a> {
    ports: &'a mut Ports,
    worker: &'a Worker,
}

impl Sink for PortSink<'_> {
    type Error = std::io::Error;

    /// Sends what the port takes; a second attempt, because it may have made room meanwhile.
    fn send(&mut self, to: InterfaceId, frames: &mut Burst) -> std::io::Result<()> {
        let port = self.ports.port_mut(to);
        for _ in 0..2 {
            if frames.is_empty() {
                break;
            }
            port.send(frames)?;
        }
        Ok(())
    }

    fn control(&mut self, from: InterfaceId, frame: &Frame) {
        pass(&self.worker.shared, &self.worker.to_control, from, frame);
    }
}

impl Station {
    fn open(worker: &mut Worker, plan: &Plan) -> Result<(Station, [String; 2]), tare_port::Error> {
        let slots = SLOTS * 2048 / plan.capacity;
        let pool = Pool::new(slots.max(1024), plan.capacity, Layout::PowerOfTwo);
        let pool = pool.map_err(|source| tare_port::Error::Os {
            doing: "memory for frames".into(),
            source,
        })?;
        let open = |device: &InterfaceQueues, inherited: Option<Descriptors>| {
            let interface = Interface::find(&device.name)?;
            let queue = device.queue + worker.number as u32;
            if let Some(inherited) = inherited {
                return takeover::open(interface, queue, &pool, plan.kind, inherited);
            }
            let (port, opened) = open(&interface, queue, &pool, plan.kind)?;
            let end = device.queue + worker.shared.workers.len() as u32;
            Ok((port, told(&interface, queue, end, &opened), None))
        };
        let inherited = worker.inherited.take();
        let [for_private, for_public] = inherited.map_or([None, None], |both| both.map(Some));
        let (private, private_kind, private_pending) = open(&plan.private, for_private)?;
        let (public, public_kind, public_pending) = open(&plan.public, for_public)?;
        let at = |device: &InterfaceQueues| {
            let queue = device.queue + worker.number as u32;
            Interface::find(&device.name).map(|interface| (interface, queue))
        };
        let at = [at(&plan.private)?, at(&plan.public)?];
        let tables = Arc::clone(&worker.shared.published().tables);
        let id = worker.id.take().ok_or_else(|| tare_port::Error::Os {
            doing: "the identity of a worker".into(),
            source: std::io::ErrorKind::ResourceBusy.into(),
        })?;
        let station = Station {
            ports: Ports { private, public },
            forwarder: Forwarder::new(Dataplane::new(tables, pool.clone(), id)),
            pool,
            burst: Burst::with_capacity(BURST),
            takeover: Takeover::new(at, [private_pending, public_pending]),
        };
        Ok((station, [private_kind, public_kind]))
    }

    /// Closes the ports and returns the identity of the worker.
    fn close(self) -> WorkerId {
        self.forwarder.dataplane.into_worker()
    }

    fn forward(&mut self, worker: &Worker, plan: &Arc<Plan>, base: &mut Counts) -> Left {
        let mut state = Loop {
            is_settled: self.takeover.is_settled(),
            ..Loop::default()
        };
        loop {
            let now = Instant::now();
            if let Some(left) = self.turn(now, worker, plan, base, &mut state) {
                return left;
            }
        }
    }

    /// Does one round of the loop. Returns the reason to end it, if there is one.
    #[inline]
    pub(super) fn turn(
        &mut self,
        now: Instant,
        worker: &Worker,
        plan: &Arc<Plan>,
        base: &mut Counts,
        state: &mut Loop,
    ) -> Option<Left> {
        let order = worker.shared.order();
        if matches!(order, Order::Hold | Order::Leave) {
            let next = match self.hold(worker, base) {
                Ok(next) => next,
                Err(error) => return Some(Left::Lost(error)),
            };
            state.is_settled = self.takeover.is_settled();
            return (next != Order::Forward).then_some(Left::Stopped);
        }
        let generation = worker.shared.generation();
        if generation != state.seen {
            state.seen = generation;
            let published = worker.shared.published();
            if *published.plan != **plan {
                return Some(Left::Replanned);
            }
            self.forwarder
                .dataplane
                .replace(Arc::clone(&published.tables));
        }
        let moved = match self.round(worker, now) {
            Ok(moved) => moved,
            Err(error) => return Some(Left::Lost(error)),
        };
        if order == Order::Stop {
            state.last -= 1;
            if !moved || state.last == 0 {
                return Some(Left::Stopped);
            }
        }
        if !state.is_settled {
            if let Err(error) = self.settle(worker, base, now) {
                return Some(Left::Lost(error));
            }
            state.is_settled = self.takeover.is_settled();
        }
        if now.since(state.told) >= TELL {
            state.told = now;
            *worker.state().counts() = self.counts(base);
        }
        state.idle = if moved { 0 } else { state.idle + 1 };
        if state.idle >= IDLE_ROUNDS && !worker.shared.busy_poll {
            *worker.state().counts() = self.counts(base);
            self.sleep(worker);
            // A frame that woke it is found at once; without one it goes back to sleep soon.
            state.idle = IDLE_ROUNDS / 2;
        }
        None
    }

    /// Forwards a burst of each interface, and sends what waits in the queue of the control thread.
    /// Returns false if there was nothing to do.
    fn round(&mut self, worker: &Worker, now: Instant) -> std::io::Result<bool> {
        let mut moved = false;
        for from in SIDES {
            moved |= self.receive(worker, now, from)?;
        }
        Ok(self.send_own(worker, now)? || moved)
    }

    /// Forwards a burst of an interface; returns false if there was none.
    #[inline]
    fn receive(
        &mut self,
        worker: &Worker,
        now: Instant,
        from: InterfaceId,
    ) -> std::io::Result<bool> {
        let Station {
            ports,
            forwarder,
            burst,
            ..
        } = self;
        let any = ports.port_mut(from).receive(burst, BURST)? > 0;
        if any {
            let mut sink = PortSink { ports, worker };
            forwarder.forward(now, from, burst, &mut sink)?;
        }
        Ok(any)
    }

    /// Sends what waits in the queue of the control thread; returns false if there was nothing.
    fn send_own(&mut self, worker: &Worker, now: Instant) -> std::io::Result<bool> {
        let Station {
            ports,
            forwarder,
            pool,
            burst,
            ..
        } = self;
        let mut moved = false;
        while let Ok((to, bytes)) = worker.tasks.try_recv() {
            moved = true;
            let Some(frame) = pool.copy(&bytes) else {
                forwarder.own_lost += 1;
                continue;
            };
            burst.push(frame);
            let mut sink = PortSink { ports, worker };
            match to {
                InterfaceId::Tunnel => forwarder.forward(now, to, burst, &mut sink)?,
                _ => forwarder.send_own(to, burst, &mut sink)?,
            }
        }
        Ok(moved)
    }

    /// Waits for a frame, for tables or for a while.
    fn sleep(&mut self, worker: &Worker) {
        let state = worker.state();
        let (Some(private), Some(public)) =
            (self.ports.private.wait_on(), self.ports.public.wait_on())
        else {
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
        let mut counts = base.clone();
        counts.sent.add(self.forwarder.dataplane.sent());
        counts.received.add(self.forwarder.dataplane.received());
        let (private, public) = (self.ports.private.counters(), self.ports.public.counters());
        counts.private.add(&private.into());
        counts.public.add(&public.into());
        counts.own_lost += self.forwarder.own_lost;
        counts
    }
}

/// Returns a description of an opened port. No worker has the queues from `end` on: frames that the
/// card puts there are never received.
fn told(interface: &Interface, queue: u32, end: u32, opened: &Opened) -> String {
    let kind = match opened.kind {
        tare_port::Kind::Xdp(mode) if interface.queues() > end => format!(
            "{mode} queue {queue}; no worker serves its queues from {end} on: `ethtool -L {} combined {end}`",
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
