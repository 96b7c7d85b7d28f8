//! A gateway like the one that [`run`](super::run) runs, with one worker, whose ports are in memory
//! and whose two threads are the caller's: for the benchmark.

use std::sync::mpsc::{sync_channel, SyncSender};
use std::sync::Arc;

use tare_port::{Burst, Pool, Port, BURST};
use tare_sim::Instant;

use super::interfaces::Plan;
use super::shared::{control_queues, Counts, Inbox, Order, Published, Shared, WorkerEvent};
use super::worker::takeover::Takeover;
use super::worker::{Loop, Ports, Station, Worker};
use super::QUEUE;
use crate::config::Config;
use crate::control::{Actions, Control};
use crate::dataplane::{BoundTables, Dataplane};
use crate::exchange::system_entropy;
use crate::forwarder::{Forwarder, Task};
use crate::interface::InterfaceState;

pub(crate) struct InMemory {
    control: Control,
    actions: Actions,
    worker: Worker,
    station: Station,
    state: Loop,
    plan: Arc<Plan>,
    base: Counts,
    inbox: Inbox,
    tasks: SyncSender<Task>,
}

impl InMemory {
    /// Creates a gateway between a private and a public port, with frames of its own from `pool`.
    pub(crate) fn new(
        config: Config,
        [private, public]: [(InterfaceState, Box<dyn Port>); 2],
        pool: Pool,
        now: Instant,
    ) -> Result<InMemory, String> {
        let entropy = system_entropy().map_err(|e| e.to_string())?;
        let control = Control::new(config, private.0, public.0, 1, entropy, now);
        let (control, mut ids) = control.map_err(|e| e.to_string())?;
        let plan = Arc::new(Plan::in_memory());
        let published = Published {
            tables: Arc::clone(control.tables()),
            plan: Arc::clone(&plan),
        };
        let shared = Shared::new(published, 1, true, Order::Forward).map_err(|e| e.to_string())?;
        let (to_control, inbox) = control_queues();
        let (tasks, worker_tasks) = sync_channel(QUEUE);
        let id = ids.pop().ok_or("a gateway without a worker")?;
        let tables = Arc::clone(control.tables());
        Ok(InMemory {
            control,
            actions: Actions::default(),
            worker: Worker {
                number: 0,
                id: None,
                shared: Arc::new(shared),
                to_control,
                tasks: worker_tasks,
                inherited: None,
            },
            station: Station {
                ports: Ports {
                    private: private.1,
                    public: public.1,
                },
                forwarder: Forwarder::new(Dataplane::new(tables, pool.clone(), id)),
                pool,
                burst: Burst::with_capacity(BURST),
                takeover: Takeover::default(),
            },
            state: Loop::default(),
            plan,
            base: Counts::default(),
            inbox,
            tasks,
        })
    }

    /// Does one round of the worker's loop.
    ///
    /// # Errors
    /// The worker would end.
    pub(crate) fn work(&mut self, now: Instant) -> Result<(), String> {
        let InMemory {
            worker,
            station,
            state,
            plan,
            base,
            ..
        } = self;
        match station.turn(now, worker, plan, base, state) {
            None => Ok(()),
            Some(_) => Err("the worker has ended".into()),
        }
    }

    /// Does what the control thread has to do.
    pub(crate) fn control(&mut self, now: Instant) {
        for (from, frame) in self.inbox.neighbor_frames() {
            self.control.receive(now, from, &frame);
        }
        for event in self.inbox.events.try_iter() {
            if let WorkerEvent::Frame(from, frame) = event {
                self.control.receive(now, from, &frame);
            }
        }
        self.control.tick(now, &mut self.actions);
        if self.actions.tables.take().is_some() {
            self.worker.shared.publish(Published {
                tables: Arc::clone(self.control.tables()),
                plan: Arc::clone(&self.plan),
            });
        }
        for task in self.actions.frames.drain(..) {
            let _ = self.tasks.try_send(task);
        }
        self.actions.log.clear();
    }

    /// Returns true if there was nothing to do for the worker in its last round.
    pub(crate) fn is_idle(&self) -> bool {
        self.state.idle > 0
    }

    /// Returns the worker's data plane.
    pub(crate) fn dataplane(&self) -> &Dataplane {
        &self.station.forwarder.dataplane
    }

    /// Returns the tables that were published last.
    pub(crate) fn tables(&self) -> &BoundTables {
        self.control.tables()
    }
}
