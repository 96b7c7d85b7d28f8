//! The takeover of a worker's ports from another process, and by another one; see
//! [`crate::daemon::handover`].

use std::sync::atomic::Ordering;
use std::time::Duration;

use tare_port::{
    Descriptors, Error, Handover, Interface, Kind, PacketPort, Pool, Port, XdpMode, XdpPort,
    XdpProgram,
};
use tare_sim::Instant;

use super::{Order, Station, Worker, SIDES};
use crate::daemon::handover::Offered;
use crate::daemon::shared::{unpoisoned, Counts, WorkerEvent};
use crate::interface::InterfaceId;

/// The time without a frame after which none is taken to arrive any more: a frame that was on its
/// way when it was sent elsewhere has arrived by then.
const QUIET: Duration = Duration::from_micros(500);
/// The longest time for frames that were sent to leave.
const SENDING: Duration = Duration::from_millis(5);
/// The longest time for which a port that takes the place of another one, or goes on because no
/// process took it over, waits for the backlog of a packet socket.
const BACKLOG: Duration = Duration::from_secs(1);
/// The interval of attempts to open an AF_XDP port whose queue another process has.
const ATTEMPT: Duration = Duration::from_millis(1);
/// The time after which packet sockets are kept.
const GIVE_UP: Duration = Duration::from_secs(5);

/// An AF_XDP port that is to take the place of a packet socket.
pub(super) struct Pending {
    interface: Interface,
    queue: u32,
    mode: XdpMode,
    /// Paused, until the other one is open, too.
    opened: Option<XdpPort>,
    /// Keeps the program on the interface until then.
    _program: Option<XdpProgram>,
    next: Instant,
    end: Instant,
}

/// A port in whose place there is another one.
pub(super) struct Replaced {
    port: Box<dyn Port>,
    /// The time at which a frame arrived there last.
    last: Instant,
}

/// The part of a station that is there for takeovers: the private side, the public one.
#[derive(Default)]
pub(in crate::daemon) struct Takeover {
    /// The interfaces and queues of the ports; `None` if these are in memory.
    at: Option<[(Interface, u32); 2]>,
    /// AF_XDP ports that are to take the place of packet sockets.
    pending: [Option<Pending>; 2],
    /// The packet sockets whose place they have taken, for frames that still arrive there.
    replaced: [Option<Replaced>; 2],
}

impl Takeover {
    pub(super) fn new(at: [(Interface, u32); 2], pending: [Option<Pending>; 2]) -> Takeover {
        Takeover {
            at: Some(at),
            pending,
            replaced: [None, None],
        }
    }

    /// Returns true if the ports are what they are to stay.
    pub(super) fn is_settled(&self) -> bool {
        self.pending.iter().all(Option::is_none) && self.replaced.iter().all(Option::is_none)
    }
}

/// An opened port, its description, and what is to take its place.
type Taken = (Box<dyn Port>, String, Option<Pending>);

/// Opens a port in place of one of another process that still forwards: with its packet socket or,
/// where that is AF_XDP, with another one in which frames wait as soon as they do not go to AF_XDP.
pub(super) fn open(
    interface: Interface,
    queue: u32,
    pool: &Pool,
    kind: Kind,
    inherited: Descriptors,
) -> Result<Taken, Error> {
    let fits = inherited.fit(pool);
    let (port, found, fds) = match inherited {
        Descriptors::Packet(socket) => {
            let port = PacketPort::take_over(&interface, pool, socket)?;
            (port, None, None)
        }
        Descriptors::Xdp { mode, fds, .. } => (
            PacketPort::open_share(&interface, pool)?,
            Some(mode),
            Some(fds),
        ),
    };
    let wanted = match kind {
        Kind::Auto => found,
        Kind::Xdp(mode) => Some(mode),
        Kind::Packet => None,
    };
    let text = match wanted {
        Some(mode) => format!(
            "{}: packet socket until {mode} can be had",
            interface.name()
        ),
        None => format!("{}: packet socket", interface.name()),
    };
    // A program in another mode, or for slots of another length, is let go of, and leaves the
    // interface with the other process.
    let fds = fds.filter(|_| wanted == found && fits);
    let pending = wanted.map(|mode| {
        let program = fds.map(|fds| XdpProgram::take_over(&interface, pool, mode, fds));
        Ok(Pending {
            _program: program.transpose()?,
            interface,
            queue,
            mode,
            opened: None,
            next: Instant::ZERO,
            end: Instant::NEVER,
        })
    });
    Ok((Box::new(port), text, pending.transpose()?))
}

impl Worker {
    /// Offers the ports to another process, once they are what they are to stay.
    pub(super) fn offer(&self, station: &mut Station) {
        let Station {
            ports, takeover, ..
        } = station;
        let Some(at) = &takeover.at else { return };
        let mut offer = |side, (interface, queue): &(Interface, u32)| {
            let port = ports.port_mut(side).handover()?;
            Some(Offered {
                interface: interface.index(),
                queue: *queue,
                descriptors: port.descriptors().ok()?,
            })
        };
        let private = offer(InterfaceId::Private, &at[0]);
        let offered = private.zip(offer(InterfaceId::Public, &at[1]));
        let offered = offered.filter(|_| takeover.is_settled());
        *unpoisoned(&self.state().offered) = offered.map(|(private, public)| [private, public]);
    }
}

impl Station {
    /// Forwards what only this process can receive, uses no SA and no port until there is another
    /// order, and returns that. Where it is [`Order::Forward`], no other process took over.
    pub(super) fn hold(&mut self, worker: &Worker, base: &Counts) -> std::io::Result<Order> {
        let mut own = Vec::new();
        // In case that no process takes over: frames that wait for one are kept here, too.
        let mut spare = [None, None];
        for (n, side) in SIDES.into_iter().enumerate() {
            if let Some(port) = self.ports.port_mut(side).handover() {
                if port.pause()? {
                    own.push(side);
                    let at = self.takeover.at.as_ref();
                    spare[n] = at.and_then(|at| {
                        let (interface, _) = &at[n];
                        PacketPort::open_share(interface, &self.pool).ok()
                    });
                }
            }
        }
        let mut last = Instant::now();
        loop {
            let now = Instant::now();
            let mut moved = self.send_own(worker, now)?;
            for &side in &own {
                moved |= self.receive(worker, now, side)?;
            }
            if moved {
                last = now;
            } else if own.is_empty() || now.since(last) >= QUIET {
                break;
            }
        }
        let end = Instant::now() + SENDING;
        while !self.has_sent_all()? && Instant::now() < end {
            std::thread::sleep(Duration::from_micros(50));
        }
        let state = worker.state();
        *state.counts() = self.counts(base);
        state.holds.store(true, Ordering::Release);
        worker.to_control.wake();
        let order = loop {
            match worker.shared.order() {
                Order::Hold => worker.nap(QUIET * 200),
                order => break order,
            }
        };
        state.holds.store(false, Ordering::Release);
        match order {
            Order::Forward => self.resume(worker, spare)?,
            Order::Leave => {
                for side in SIDES {
                    if let Some(port) = self.ports.port_mut(side).handover() {
                        port.leave();
                    }
                }
            }
            Order::Hold | Order::Stop => {}
        }
        Ok(order)
    }

    /// Lets frames arrive again, behind those that `spare` has kept.
    fn resume(&mut self, worker: &Worker, spare: [Option<PacketPort>; 2]) -> std::io::Result<()> {
        let mut paused = [None, None];
        for ((side, spare), paused) in SIDES.into_iter().zip(spare).zip(&mut paused) {
            *paused = spare.map(|spare| {
                let place = self.ports.slot(side);
                std::mem::replace(place, Box::new(spare) as Box<dyn Port>)
            });
        }
        let end = Instant::now() + BACKLOG;
        loop {
            let now = Instant::now();
            let mut moved = false;
            for (side, _) in SIDES.into_iter().zip(&paused).filter(|(_, p)| p.is_some()) {
                moved |= self.receive(worker, now, side)?;
            }
            if !moved || now >= end {
                break;
            }
        }
        let last = Instant::now();
        for (n, (side, paused)) in SIDES.into_iter().zip(paused).enumerate() {
            if let Some(paused) = paused {
                let port = std::mem::replace(self.ports.slot(side), paused);
                self.takeover.replaced[n] = Some(Replaced { port, last });
            }
            if let Some(port) = self.ports.port_mut(side).handover() {
                port.resume()?;
            }
        }
        Ok(())
    }

    fn has_sent_all(&mut self) -> std::io::Result<bool> {
        for side in SIDES {
            if let Some(port) = self.ports.port_mut(side).handover() {
                if !port.has_sent_all()? {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// Tries to open the AF_XDP ports that are to take the place of packet sockets.
    #[cold]
    pub(super) fn settle(
        &mut self,
        worker: &Worker,
        base: &mut Counts,
        now: Instant,
    ) -> std::io::Result<()> {
        for n in 0..SIDES.len() {
            if let Some(text) = self.try_pending(now, n) {
                kind(base, n).clone_from(&text);
                self.takeover.pending[n] = None;
            }
        }
        let is_open = |p: &Option<Pending>| p.as_ref().is_none_or(|p| p.opened.is_some());
        if self.takeover.pending.iter().all(is_open) {
            // All of them first: the backlog of one takes time, in which the ring of another would
            // overflow or its packets come out of order.
            let mut opened = [None, None];
            for (n, opened) in opened.iter_mut().enumerate() {
                let Some(Pending {
                    opened: Some(mut port),
                    interface,
                    queue,
                    mode,
                    ..
                }) = self.takeover.pending[n].take()
                else {
                    continue;
                };
                Handover::resume(&mut port)?;
                *kind(base, n) = format!("{}: {mode} queue {queue}", interface.name());
                *opened = Some(port);
            }
            for (n, port) in opened.into_iter().enumerate() {
                if let Some(port) = port {
                    self.replace(worker, n, SIDES[n], Box::new(port))?;
                }
            }
        }
        for (n, side) in SIDES.into_iter().enumerate() {
            self.receive_late(worker, base, now, n, side)?;
        }
        if self.takeover.is_settled() {
            let kinds = [base.private_kind.clone(), base.public_kind.clone()];
            worker.offer(self);
            let opened = WorkerEvent::Opened(worker.number, Ok(kinds));
            let _ = worker.to_control.events.try_send(opened);
        }
        Ok(())
    }

    /// Tries to open an AF_XDP port. Returns the description of the packet socket if that is kept.
    fn try_pending(&mut self, now: Instant, n: usize) -> Option<String> {
        let pending = self.takeover.pending[n].as_mut()?;
        if pending.opened.is_some() || now < pending.next {
            return None;
        }
        pending.next = now + ATTEMPT;
        pending.end = pending.end.min(now + GIVE_UP);
        let is_late = pending.end <= now;
        let (name, mode) = (pending.interface.name(), pending.mode);
        match XdpPort::open_after(&pending.interface, pending.queue, &self.pool, mode) {
            Ok(Some(port)) => {
                pending.opened = Some(port);
                None
            }
            Ok(None) if !is_late => None,
            Ok(None) => Some(format!(
                "{name}: packet socket; not {mode}: another process has the queue or the interface"
            )),
            Err(error) => Some(format!("{name}: packet socket; not {error}")),
        }
    }

    /// Puts a port in the place of another one, behind what has arrived there.
    fn replace(
        &mut self,
        worker: &Worker,
        n: usize,
        side: InterfaceId,
        port: Box<dyn Port>,
    ) -> std::io::Result<()> {
        // All of it, however long this thread did not run: packets that come behind newer ones may
        // be behind the anti-replay window. The other side is served meanwhile.
        let end = Instant::now() + BACKLOG;
        loop {
            let now = Instant::now();
            let mut moved = false;
            for each in SIDES {
                moved |= self.receive(worker, now, each)? && each == side;
            }
            if !moved || now >= end {
                break;
            }
        }
        let port = std::mem::replace(self.ports.slot(side), port);
        let last = Instant::now();
        self.takeover.replaced[n] = Some(Replaced { port, last });
        Ok(())
    }

    /// Forwards what still arrives at a port that was replaced, and closes it once nothing does.
    fn receive_late(
        &mut self,
        worker: &Worker,
        base: &mut Counts,
        now: Instant,
        n: usize,
        side: InterfaceId,
    ) -> std::io::Result<()> {
        let Some(Replaced { mut port, mut last }) = self.takeover.replaced[n].take() else {
            return Ok(());
        };
        std::mem::swap(self.ports.slot(side), &mut port);
        let received = self.receive(worker, now, side);
        std::mem::swap(self.ports.slot(side), &mut port);
        if received? {
            last = now;
        }
        if now.since(last) < QUIET {
            self.takeover.replaced[n] = Some(Replaced { port, last });
            return Ok(());
        }
        let counters = match side {
            InterfaceId::Public => &mut base.public,
            _ => &mut base.private,
        };
        counters.add(&port.counters().into());
        // To close a packet socket takes tens of milliseconds (it waits for RCU), in which the ring
        // of the new port would overflow: another thread has the last descriptors.
        let fds = port.handover().and_then(|port| port.duplicates().ok());
        drop(port);
        std::thread::spawn(move || drop(fds));
        Ok(())
    }
}

/// The description of the port of a side.
fn kind(base: &mut Counts, n: usize) -> &mut String {
    match SIDES[n] {
        InterfaceId::Public => &mut base.public_kind,
        _ => &mut base.private_kind,
    }
}
