//! A whole gateway on one thread: control side and data planes, with frames and the time going in
//! and frames coming out.
//!
//! Simulations run it in virtual time. On real interfaces, with a thread for each worker,
//! [`crate::daemon`] does the same.

#[cfg(test)]
mod handover;

use std::convert::Infallible;
use std::sync::Arc;

use tare_packet::ethernet::HEADER as ETHERNET;
use tare_port::{Burst, Frame, Pool, HEADROOM};
use tare_sim::Instant;

use crate::config::Config;
use crate::control::{Actions, Control, Error};
use crate::dataplane::Dataplane;
use crate::exchange::Entropy;
use crate::forwarder::{Forwarder, Sink};
use crate::interface::{InterfaceId, InterfaceState};
use tare_daemon::Record;

/// A gateway.
pub struct Node {
    control: Control,
    /// One for each worker.
    forwarders: Vec<Forwarder>,
    /// The worker that the next burst of each side goes to.
    next: [usize; 2],
    pool: Pool,
    out: Actions,
    private: Burst,
    public: Burst,
    /// Frames for the tunnel.
    tunnel: Burst,
    log: Vec<Record>,
    starved: u64,
}

/// Returns the longest packet, in bytes, that a frame of this pool holds.
fn longest(pool: &Pool) -> usize {
    pool.capacity().saturating_sub(HEADROOM + ETHERNET)
}

/// The most records that wait to be taken.
const LOG_MAX: usize = 10_000;

impl Node {
    /// A gateway of this configuration between these interfaces, with one worker and frames of its
    /// own from `pool`.
    ///
    /// # Errors
    /// See [`Control::new`].
    pub fn new(
        config: Config,
        private: InterfaceState,
        public: InterfaceState,
        entropy: Entropy,
        pool: Pool,
        now: Instant,
    ) -> Result<Node, Error> {
        Node::with_workers(1, config, private, public, entropy, pool, now)
    }

    /// The same with several workers, at least one, to which the bursts of each side go in turn.
    ///
    /// # Errors
    /// See [`Control::new`].
    pub fn with_workers(
        workers: usize,
        config: Config,
        private: InterfaceState,
        public: InterfaceState,
        entropy: Entropy,
        pool: Pool,
        now: Instant,
    ) -> Result<Node, Error> {
        let mut node = Node::make(workers, config, private, public, entropy, pool, now)?;
        node.tick(now);
        Ok(node)
    }

    /// Makes a node that has not begun yet.
    fn make(
        workers: usize,
        config: Config,
        private: InterfaceState,
        public: InterfaceState,
        entropy: Entropy,
        pool: Pool,
        now: Instant,
    ) -> Result<Node, Error> {
        let workers = workers.max(1);
        let most = longest(&pool);
        let (private, public) = (private.limited_to(most), public.limited_to(most));
        let (control, ids) = Control::new(config, private, public, workers, entropy, now)?;
        let forwarder = |id| {
            let tables = Arc::clone(control.tables());
            Forwarder::new(Dataplane::new(tables, pool.clone(), id))
        };
        Ok(Node {
            forwarders: ids.into_iter().map(forwarder).collect(),
            control,
            next: [0; 2],
            pool,
            out: Actions::default(),
            private: Burst::new(),
            public: Burst::new(),
            tunnel: Burst::new(),
            log: Vec::new(),
            starved: 0,
        })
    }

    /// Takes frames that came in on an interface, all of them; [`InterfaceId::Tunnel`] is none.
    pub fn receive(&mut self, now: Instant, from: InterfaceId, burst: &mut Burst) {
        let next = &mut self.next[usize::from(from == InterfaceId::Public)];
        let worker = *next;
        *next = (worker + 1) % self.forwarders.len();
        match from {
            InterfaceId::Private | InterfaceId::Public => self.forward(now, worker, from, burst),
            InterfaceId::Tunnel => burst.clear(),
        }
        if now >= self.control.next_deadline() {
            self.tick(now);
        }
    }

    /// Does what is due; to be called at [`Node::next_deadline`].
    pub fn tick(&mut self, now: Instant) {
        self.control.tick(now, &mut self.out);
        if let Some(tables) = self.out.tables.take() {
            for forwarder in &mut self.forwarders {
                forwarder.dataplane.replace(Arc::clone(&tables));
            }
        }
        for (place, bytes) in self.out.frames.drain(..) {
            let to = match place {
                InterfaceId::Private => &mut self.private,
                InterfaceId::Public => &mut self.public,
                InterfaceId::Tunnel => &mut self.tunnel,
            };
            match self.pool.copy(&bytes) {
                Some(frame) => to.push(frame),
                None => self.starved += 1,
            }
        }
        let room = LOG_MAX.saturating_sub(self.log.len());
        self.log.extend(self.out.log.drain(..).take(room));
        if !self.tunnel.is_empty() {
            let mut tunnel = std::mem::take(&mut self.tunnel);
            self.forward(now, 0, InterfaceId::Tunnel, &mut tunnel);
            self.tunnel = tunnel;
        }
    }

    /// Returns the time of the next [`Node::tick`]; calling it earlier does no harm.
    pub fn next_deadline(&self) -> Instant {
        self.control.next_deadline()
    }

    /// The frames that are to leave by an interface, for the caller to take.
    /// [`InterfaceId::Tunnel`] stands for the private one.
    pub fn leaving(&mut self, by: InterfaceId) -> &mut Burst {
        match by {
            InterfaceId::Public => &mut self.public,
            InterfaceId::Private | InterfaceId::Tunnel => &mut self.private,
        }
    }

    /// Takes over another configuration.
    ///
    /// # Errors
    /// See [`Control::reconfigure`].
    pub fn reconfigure(&mut self, now: Instant, config: Config) -> Result<(), Error> {
        self.control.reconfigure(now, config)?;
        self.tick(now);
        Ok(())
    }

    /// Takes over another state of an interface.
    pub fn interface_changed(&mut self, now: Instant, id: InterfaceId, state: InterfaceState) {
        let state = state.limited_to(longest(&self.pool));
        self.control.interface_changed(now, id, state);
        self.tick(now);
    }

    /// Returns its control side.
    pub fn control(&self) -> &Control {
        &self.control
    }

    /// Returns its data plane; of several workers the first one's.
    pub fn dataplane(&self) -> &Dataplane {
        &self.forwarders[0].dataplane
    }

    /// Returns the data planes of all workers.
    pub fn dataplanes(&self) -> impl ExactSizeIterator<Item = &Dataplane> {
        self.forwarders.iter().map(|forwarder| &forwarder.dataplane)
    }

    /// Frames of the control side that were not sent because the pool had none free.
    pub fn starved(&self) -> u64 {
        self.starved
    }

    /// Takes the records of the log.
    pub fn take_log(&mut self) -> Vec<Record> {
        std::mem::take(&mut self.log)
    }

    fn forward(&mut self, now: Instant, worker: usize, from: InterfaceId, burst: &mut Burst) {
        let mut sink = NodeSink {
            now,
            control: &mut self.control,
            private: &mut self.private,
            public: &mut self.public,
        };
        let Ok(()) = self.forwarders[worker].forward(now, from, burst, &mut sink);
    }
}

/// Bursts that leave, and the control side on the same thread.
struct NodeSink<'a> {
    now: Instant,
    control: &'a mut Control,
    private: &'a mut Burst,
    public: &'a mut Burst,
}

impl Sink for NodeSink<'_> {
    type Error = Infallible;

    fn send(&mut self, to: InterfaceId, frames: &mut Burst) -> Result<(), Infallible> {
        match to {
            InterfaceId::Public => self.public.append(frames),
            InterfaceId::Private | InterfaceId::Tunnel => self.private.append(frames),
        }
        Ok(())
    }

    fn control(&mut self, from: InterfaceId, frame: &Frame) {
        self.control.receive(self.now, from, frame);
    }
}
