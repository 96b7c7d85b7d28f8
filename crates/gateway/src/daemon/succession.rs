//! The control thread's part of a handover, on either side.

use std::process::Command;
use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

use tare_daemon::{Endpoints, Level, Record};
use tare_sim::Instant;

use super::handover::{self, Listener, Predecessor, Wire, HOLD_MAX};
use super::shared::{Order, Shared, WorkerEvent};
use super::Daemon;

/// The time for a worker to hold: it may be in the middle of opening ports, or wait for a processor
/// that others use. 100 ms were too few once, at a load of 18 on two processors.
const HOLDING_MAX: Duration = HOLD_MAX;
/// The time for making and reading the state, per route.
const PER_ROUTE: Duration = Duration::from_micros(50);

impl Daemon {
    /// Listens for a process that takes over, beside the status socket.
    pub(super) fn listen(&mut self, endpoints: &Endpoints) {
        let path = endpoints.socket.as_deref().map(handover::socket_beside);
        let is_same = |listener: &Listener| Some(listener.path()) == path.as_deref();
        if self.listener.as_ref().is_some_and(is_same) {
            return;
        }
        self.listener = None;
        let Some(path) = path else { return };
        let shared = std::sync::Arc::clone(&self.shared);
        match Listener::start(path.clone(), shared, self.to_control.events.clone()) {
            Ok(listener) => self.listener = Some(listener),
            Err(error) => {
                let record = Record::new(Level::Warn, "service");
                let text = format!("handover at {}: {error}", path.display());
                self.host.log().write(&record.with("error", text));
            }
        }
    }

    /// Takes over from the process before. If this succeeds, that one does not forward any more,
    /// and the workers do.
    pub(super) fn succeed(&mut self, predecessor: Predecessor) -> Result<(), String> {
        let state = predecessor.receive_state()?;
        let begun = Instant::now();
        let (gone, before) = self.control.import(begun, &state);
        let mut actions = crate::control::Actions::default();
        // The tables; frames wait until the workers forward.
        self.control.tick(begun, &mut actions);
        self.publish();
        predecessor.take()?;
        self.shared.give_order(Order::Forward);
        let took = Instant::now().since(begun);
        self.before = before.unwrap_or_default();
        self.apply(&mut actions);
        let log = self.host.log();
        for id in &gone {
            let record = Record::new(Level::Warn, "route_not_taken_over");
            log.write(&record.with("route", id.as_str()));
        }
        log.write(
            &Record::new(Level::Info, "taken_over")
                .with("routes", state.routes.len() - gone.len())
                .with("import_us", took.as_micros() as u64),
        );
        predecessor.wait_for_its_end();
        self.lock();
        Ok(())
    }

    /// Hands over to a process that is ready. Returns true if it has taken over; its connection is
    /// kept then. Else everything goes on as before.
    pub(super) fn hand_over(&mut self, wire: Wire) -> bool {
        let begun = Instant::now();
        let mut late = Vec::new();
        // A worker that still says that it holds, from an attempt before, may forward already.
        let free = self.wait_until(&mut late, |shared| !shared.any_holds());
        let held = free.and_then(|()| {
            self.shared.give_order(Order::Hold);
            self.wait_until(&mut late, Shared::all_hold)
        });
        let given = held.and_then(|()| {
            let state = self.control.export(&self.counts()).to_bytes();
            let routes = self.control.config().routes.len();
            let timeout = HOLD_MAX + PER_ROUTE * u32::try_from(routes).unwrap_or(u32::MAX);
            handover::give(&wire, &state, timeout)
        });
        let held = Instant::now().since(begun);
        let record = match &given {
            Ok(()) => Record::new(Level::Info, "handed_over"),
            Err(error) => Record::new(Level::Warn, "handover_failed").with("error", error.as_str()),
        };
        let has_taken = given.is_ok();
        match given {
            Ok(()) => {
                self.shared.give_order(Order::Leave);
                self.tell_service_manager(&wire);
                self.successor = Some((wire, begun));
            }
            Err(error) => {
                self.shared.give_order(Order::Forward);
                handover::refuse(&wire, &error);
                let now = Instant::now();
                late.into_iter().for_each(|event| self.handle(now, event));
            }
        }
        let record = record.with("held_us", held.as_micros() as u64);
        self.host.log().write(&record);
        has_taken
    }

    /// A service manager that did not know the new process would end it with this one.
    fn tell_service_manager(&self, wire: &Wire) {
        let told = wire.pid().and_then(tare_daemon::notify_main_pid);
        if let Err(error) = told {
            let record = Record::new(Level::Warn, "service");
            let text = format!("the service manager was not told of the new process: {error}");
            self.host.log().write(&record.with("error", text));
        }
    }

    /// Starts the process that is to take over. Whether it does is up to it: if it fails, it says
    /// why, and nothing changes here.
    pub(super) fn start_successor(&mut self) {
        // One that failed is a zombie until it is waited for.
        if let Some(before) = &mut self.started {
            if matches!(before.try_wait(), Ok(None)) {
                return;
            }
        }
        let [program, arguments @ ..] = &self.options.successor[..] else {
            return;
        };
        let started = Command::new(program).args(arguments).spawn();
        let log = self.host.log();
        match started {
            Ok(child) => {
                let record = Record::new(Level::Info, "successor_started");
                log.write(&record.with("pid", child.id()));
                self.started = Some(child);
            }
            Err(error) => {
                let record = Record::new(Level::Error, "handover_failed");
                let text = format!("{}: {error}", program.display());
                log.write(&record.with("error", text));
            }
        }
    }

    /// Waits for all workers; `late` gets what they tell meanwhile.
    fn wait_until(
        &self,
        late: &mut Vec<WorkerEvent>,
        is_reached: fn(&Shared) -> bool,
    ) -> Result<(), String> {
        let end = Instant::now() + HOLDING_MAX;
        while !is_reached(&self.shared) {
            if Instant::now() >= end {
                return Err("a worker of the gateway that runs did not stop in time".into());
            }
            match self.inbox.events.recv_timeout(Duration::from_millis(1)) {
                Ok(event) => late.push(event),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {}
            }
        }
        Ok(())
    }
}
