//! The state that the threads share: the tables, and a way to wake each other.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicU8, Ordering};
use std::sync::mpsc::{sync_channel, Receiver, SyncSender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::event::{eventfd, EventfdFlags};
use serde::{Deserialize, Serialize};

use super::handover::{Offered, Wire};
use super::interfaces::Plan;
use super::report::{PortCounters, PortReport, WorkerReport};
use crate::dataplane::BoundTables;
use crate::dataplane::TrafficCounters;
use crate::interface::InterfaceId;

/// The tables and queues that workers use.
pub(super) struct Published {
    pub(super) tables: Arc<BoundTables>,
    pub(super) plan: Arc<Plan>,
}

/// An order to all workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Order {
    Forward,
    /// Forward what only this process can receive, and then use no SA and no port until there is
    /// another order.
    Hold,
    /// Forward what has arrived, and end.
    Stop,
    /// End, and leave everything to another process.
    Leave,
}

/// The newest of that, with a number by which a worker sees without a lock that there is another.
pub(super) struct Shared {
    generation: AtomicU64,
    published: Mutex<Arc<Published>>,
    order: AtomicU8,
    pub(super) workers: Vec<WorkerState>,
    pub(super) busy_poll: bool,
    /// Frames for the control side that it had no room for.
    pub(super) control_lost: AtomicU64,
}

/// The state of one worker.
pub(super) struct WorkerState {
    pub(super) counts: Mutex<Counts>,
    /// The ports as another process would take them over; `None` while they are not open.
    pub(super) offered: Mutex<Option<[Offered; 2]>>,
    /// True while it obeys [`Order::Hold`].
    pub(super) holds: AtomicBool,
    wake: OwnedFd,
}

/// The counters of a worker.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Counts {
    pub(super) sent: TrafficCounters,
    pub(super) received: TrafficCounters,
    pub(super) private: PortCounters,
    pub(super) public: PortCounters,
    /// Frames of its own, errors and those of the control side, that a port did not take.
    pub(super) own_lost: u64,
    /// Descriptions of the opened ports.
    pub(super) private_kind: String,
    pub(super) public_kind: String,
}

impl Counts {
    /// Adds the counters of the worker of another process that had these ports before.
    pub(super) fn add(&mut self, before: &Counts) {
        self.sent.add(&before.sent);
        self.received.add(&before.received);
        self.private.add(&before.private);
        self.public.add(&before.public);
        self.own_lost += before.own_lost;
    }

    /// The report of a worker that is pinned to `cpu`, if to one.
    pub(super) fn report(&self, cpu: Option<usize>) -> WorkerReport {
        WorkerReport {
            cpu,
            private: PortReport {
                kind: self.private_kind.clone(),
                counters: self.private,
            },
            public: PortReport {
                kind: self.public_kind.clone(),
                counters: self.public,
            },
            own_lost: self.own_lost,
        }
    }
}

impl Shared {
    pub(super) fn new(
        published: Published,
        workers: usize,
        busy_poll: bool,
        order: Order,
    ) -> std::io::Result<Shared> {
        let worker = |_| {
            Ok(WorkerState {
                counts: Mutex::default(),
                offered: Mutex::default(),
                holds: AtomicBool::new(false),
                wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            })
        };
        Ok(Shared {
            generation: AtomicU64::new(1),
            published: Mutex::new(Arc::new(published)),
            order: AtomicU8::new(order as u8),
            workers: (0..workers).map(worker).collect::<std::io::Result<_>>()?,
            busy_poll,
            control_lost: AtomicU64::new(0),
        })
    }

    /// The number of what is published now.
    #[inline]
    pub(super) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    pub(super) fn published(&self) -> Arc<Published> {
        Arc::clone(&unpoisoned(&self.published))
    }

    pub(super) fn publish(&self, published: Published) {
        *unpoisoned(&self.published) = Arc::new(published);
        self.generation.fetch_add(1, Ordering::Release);
        self.wake_all();
    }

    pub(super) fn wake_all(&self) {
        self.workers.iter().for_each(WorkerState::wake);
    }

    #[inline]
    pub(super) fn order(&self) -> Order {
        const ORDERS: [Order; 4] = [Order::Forward, Order::Hold, Order::Stop, Order::Leave];
        ORDERS[usize::from(self.order.load(Ordering::Relaxed)) & 3]
    }

    /// Gives another order. [`Order::Leave`] is final.
    pub(super) fn give_order(&self, order: Order) {
        if self.order() != Order::Leave {
            // Release: what was written before, such as counters, is seen by who obeys.
            self.order.store(order as u8, Ordering::Release);
        }
        self.wake_all();
    }

    /// Returns true if all workers obey [`Order::Hold`].
    pub(super) fn all_hold(&self) -> bool {
        let mut workers = self.workers.iter();
        workers.all(|worker| worker.holds.load(Ordering::Acquire))
    }

    /// Returns true if a worker obeys [`Order::Hold`].
    pub(super) fn any_holds(&self) -> bool {
        let mut workers = self.workers.iter();
        workers.any(|worker| worker.holds.load(Ordering::Acquire))
    }

    pub(super) fn stopped(&self) -> bool {
        matches!(self.order(), Order::Stop | Order::Leave)
    }
}

impl WorkerState {
    /// Wakes the worker if it sleeps.
    pub(super) fn wake(&self) {
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    pub(super) fn wake_fd(&self) -> &OwnedFd {
        &self.wake
    }

    /// Goes on sleeping the next time.
    pub(super) fn awake(&self) {
        let _ = rustix::io::read(&self.wake, &mut [0; 8]);
    }

    pub(super) fn counts(&self) -> MutexGuard<'_, Counts> {
        unpoisoned(&self.counts)
    }
}

/// A lock whose holder panicked; what it guards is replaced whole.
pub(super) fn unpoisoned<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An event for the control thread.
pub(super) enum WorkerEvent {
    /// A frame for the control side.
    Frame(InterfaceId, Vec<u8>),
    /// Ports were opened, or could not be.
    Opened(usize, Result<[String; 2], String>),
    /// Ports do not work any more.
    Lost(usize, String),
    /// Another process is ready to take over.
    Successor(Wire),
    /// There is something else to look at.
    Wake,
}

/// Events that may wait for the control thread, frames among them.
const EVENTS_MAX: usize = 4096;
/// Frames of ARP and neighbor discovery that may wait for it. More than that at once is a flood.
const NEIGHBOR_FRAMES_MAX: usize = 256;

/// The way to the control thread.
#[derive(Clone)]
pub(super) struct ToControl {
    pub(super) events: SyncSender<WorkerEvent>,
    neighbor_frames: SyncSender<(InterfaceId, Vec<u8>)>,
}

/// The control thread's end of its queues.
///
/// ARP and neighbor discovery have a queue of their own, because anyone can fill the other one, by
/// datagrams to the port of the key exchange or by pings: a next hop whose answers were lost there
/// would be forgotten, and no packet sent any more. This queue is within reach of the link alone.
pub(super) struct Inbox {
    pub(super) events: Receiver<WorkerEvent>,
    neighbor_frames: Receiver<(InterfaceId, Vec<u8>)>,
}

/// Creates the queues to the control thread.
pub(super) fn control_queues() -> (ToControl, Inbox) {
    let (to_events, events) = sync_channel(EVENTS_MAX);
    let (to_neighbor_frames, neighbor_frames) = sync_channel(NEIGHBOR_FRAMES_MAX);
    let to_control = ToControl {
        events: to_events,
        neighbor_frames: to_neighbor_frames,
    };
    let inbox = Inbox {
        events,
        neighbor_frames,
    };
    (to_control, inbox)
}

impl ToControl {
    /// Wakes the control thread if it sleeps.
    pub(super) fn wake(&self) {
        // If there is no room, it has something to do already.
        let _ = self.events.try_send(WorkerEvent::Wake);
    }
}

impl Inbox {
    /// Returns the frames of ARP and neighbor discovery that wait, which come before all events,
    /// but no more than the queue holds: a flood of them must not stop everything else.
    pub(super) fn neighbor_frames(&self) -> impl Iterator<Item = (InterfaceId, Vec<u8>)> + '_ {
        self.neighbor_frames.try_iter().take(NEIGHBOR_FRAMES_MAX)
    }
}

/// Passes a frame to the control side, or counts it as lost.
pub(super) fn pass(shared: &Shared, to: &ToControl, from: InterfaceId, frame: &[u8]) {
    // What comes out of the tunnel has no Ethernet header of its own.
    let is_taken = if from != InterfaceId::Tunnel && tare_neighbor::is_neighbor_frame(frame) {
        let sent = to.neighbor_frames.try_send((from, frame.to_vec()));
        sent.map(|()| to.wake()).is_ok()
    } else {
        let event = WorkerEvent::Frame(from, frame.to_vec());
        to.events.try_send(event).is_ok()
    };
    if !is_taken {
        shared.control_lost.fetch_add(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use tare_packet::ethernet::{self, HEADER};
    use tare_packet::{frame, ipv6};

    use super::*;

    const OWN: [u8; 6] = [2, 0, 0, 0, 0, 1];
    const OTHER: [u8; 6] = [2, 0, 0, 0, 0, 2];
    const OWN6: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);
    const OTHER6: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 2);

    pub(in crate::daemon) fn shared() -> Shared {
        let (group, _) = crate::dataplane::WorkerGroup::sole();
        let tables = group.bind(crate::dataplane::Tables {
            prefixes: Arc::new(crate::dataplane::Prefixes::new([])),
            routes: Vec::new(),
            inbound: Default::default(),
            private: Default::default(),
            public: Default::default(),
            exchange_port: 303,
        });
        let plan = Arc::new(Plan::in_memory());
        Shared::new(Published { tables, plan }, 1, true, Order::Forward).unwrap()
    }

    fn arp() -> Vec<u8> {
        let mut arp = ethernet::header(OWN, OTHER, ethernet::ARP).to_vec();
        arp.extend([0, 1, 8, 0, 6, 4, 0, 2]);
        arp.resize(60, 0);
        arp
    }

    /// Neighbor discovery, or something like it, of this type and hop limit.
    fn icmp6(kind: u8, hop_limit: u8) -> Vec<u8> {
        let mut message = vec![0; 24];
        message[0] = kind;
        frame::icmpv6(OWN, OTHER, OTHER6, OWN6, hop_limit, message)
    }

    #[test]
    fn no_flood_of_other_frames_keeps_arp_or_neighbor_discovery_out() {
        let (shared, (to_control, inbox)) = (shared(), control_queues());
        let lost = || shared.control_lost.load(Ordering::Relaxed);
        let pass = |frame: &[u8]| pass(&shared, &to_control, InterfaceId::Public, frame);
        // Knocks of strangers, pings, and what only looks like neighbor discovery: beyond the link
        // everyone can send it.
        let (stranger, own) = (Ipv4Addr::new(203, 0, 113, 9), Ipv4Addr::new(192, 0, 2, 16));
        let knock = frame::udp(OWN, OTHER, stranger.into(), own.into(), 303, &[7; 100]).unwrap();
        let flood = [knock, icmp6(128, 64), icmp6(136, 254)];
        for n in 0..9000 {
            pass(&flood[n % 3]);
        }
        assert_eq!(lost(), 9000 - EVENTS_MAX as u64);
        for frame in [arp(), icmp6(135, 255), icmp6(136, 255)] {
            pass(&frame);
            let waiting: Vec<_> = inbox.neighbor_frames().collect();
            assert_eq!(waiting, [(InterfaceId::Public, frame)]);
        }
        assert_eq!(lost(), 9000 - EVENTS_MAX as u64);
        // A flood of them costs no event, and does not last for ever.
        while inbox.events.try_recv().is_ok() {}
        (0..1000).for_each(|_| pass(&arp()));
        assert_eq!(inbox.neighbor_frames().count(), NEIGHBOR_FRAMES_MAX);
        pass(&flood[0]);
        let frames = inbox.events.try_iter();
        let frames = frames.filter(|event| matches!(event, WorkerEvent::Frame(..)));
        assert_eq!(frames.count(), 1);
    }

    #[test]
    fn a_frame_of_a_neighbor_wakes_the_control_thread_and_one_out_of_the_tunnel_is_none() {
        let (shared, (to_control, inbox)) = (shared(), control_queues());
        pass(&shared, &to_control, InterfaceId::Private, &arp());
        assert!(matches!(inbox.events.try_recv(), Ok(WorkerEvent::Wake)));
        assert_eq!(inbox.neighbor_frames().count(), 1);
        pass(&shared, &to_control, InterfaceId::Tunnel, &arp());
        assert_eq!(inbox.neighbor_frames().count(), 0);
        let event = inbox.events.try_recv();
        assert!(matches!(
            event,
            Ok(WorkerEvent::Frame(InterfaceId::Tunnel, _))
        ));
        // Truncated ones are nothing's frames.
        for len in 0..HEADER + ipv6::HEADER + 1 {
            pass(
                &shared,
                &to_control,
                InterfaceId::Public,
                &icmp6(136, 255)[..len],
            );
        }
        assert_eq!(inbox.neighbor_frames().count(), 0);
    }
}
