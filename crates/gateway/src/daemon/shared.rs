//! The state that the threads share: the tables, and a way to wake each other.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicU8, Ordering};
use std::sync::mpsc::{SyncSender, TrySendError};
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

/// Passes a frame to the control side, or counts it as lost.
pub(super) fn pass(shared: &Shared, to: &SyncSender<WorkerEvent>, from: InterfaceId, frame: &[u8]) {
    match to.try_send(WorkerEvent::Frame(from, frame.to_vec())) {
        Ok(()) => {}
        Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => {
            shared.control_lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}
