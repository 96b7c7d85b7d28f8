//! The processes of one trial, and the barriers between them.

use std::collections::BTreeMap;
use std::process::ExitStatus;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::listen::{end_of, Captured, Event, Events};
use super::watch::{Listening, Watch, DRAIN_MAX};
use crate::driver::Part;
use crate::placement::{Needs, Placement};
use crate::protocol::{Command, Position};
use crate::usage::Usage;

/// The interval at which a wait checks whether the run was interrupted.
const TICK: Duration = Duration::from_millis(20);

/// The step at which a trial is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// Its only process runs.
    Alone,
    /// Until every role is ready.
    Ready,
    /// Until the role that measures is done.
    Measure,
    /// Until every other role is done too.
    Stop,
    /// Until every role has ended.
    Drain,
}

impl Step {
    /// Says what a process that is late at this step did not do.
    pub(super) fn late(self) -> &'static str {
        match self {
            Step::Alone => "it did not end",
            Step::Ready => "it was not ready",
            Step::Measure => "it was not done",
            Step::Stop => "after the stop command it was not done",
            Step::Drain => "after the drain command it did not end",
        }
    }

    /// Says when a process failed that failed at this step.
    pub(super) fn when(self) -> &'static str {
        match self {
            Step::Alone => "",
            Step::Ready => ", before every role was ready",
            Step::Measure => ", during the measurement",
            Step::Stop => ", after the stop command",
            Step::Drain => ", after the drain command",
        }
    }
}

/// The processes of one trial, that of the role that measures first.
pub(super) struct Processes {
    pub(super) watches: Vec<Watch>,
    pub(super) step: Step,
    /// The place of the role that failed first, because of which the others were ended.
    pub(super) failed: Option<usize>,
    pub(super) interrupted: bool,
    events: Receiver<(usize, Event)>,
}

impl Processes {
    /// Starts a process for each part.
    ///
    /// # Errors
    /// One could not be started: says which, and why.
    pub(super) fn start(
        placement: &mut dyn Placement,
        parts: &[Part],
        listening: Listening,
    ) -> Result<Processes, String> {
        let several = parts.len() > 1;
        let events = Events::new();
        let mut watches = Vec::new();
        for (place, part) in parts.iter().enumerate() {
            let invocation = &part.invocation;
            // Metrics are taken from what the measuring role prints.
            let listening = match place {
                0 => listening,
                _ => Listening::default(),
            };
            let stdout = Arc::new(Captured::new(listening.keep_output));
            let position = match (several, place) {
                (false, _) => Position::Alone,
                (true, 0) => Position::Measures,
                (true, _) => Position::Serves,
            };
            let needs = Needs {
                commands: several,
                peak_memory: listening.peak_memory,
            };
            let agent = placement
                .spawn(&part.role, invocation, needs)
                .map_err(|error| {
                    let program = invocation.program.display();
                    let of_role = match several {
                        true => format!("{}: ", part.role.name),
                        false => String::new(),
                    };
                    format!("{of_role}{program} could not be started: {error}")
                })?;
            let heard = events.listen(place, agent, invocation.speaks_protocol, &stdout);
            watches.push(Watch::new(part, position, heard, stdout, listening));
        }
        Ok(Processes {
            watches,
            step: match several {
                true => Step::Ready,
                false => Step::Alone,
            },
            failed: None,
            interrupted: false,
            events: events.receiver(),
        })
    }

    /// Listens until the processes and their outputs are gone, or are waited for no longer.
    ///
    /// All processes report to one channel, so that this loop sees their events in one order: the
    /// barriers need no lock, and it is known which process failed first.
    pub(super) fn follow(&mut self, interrupted: &dyn Fn() -> bool, progress: &mut dyn FnMut(f64)) {
        loop {
            let running = self.watches.iter().any(|watch| watch.exited.is_none());
            if running && interrupted() {
                self.interrupted = true;
                return;
            }
            let Some(left) = self.left() else { return };
            match self.events.recv_timeout(left.min(TICK)) {
                Ok((place, event)) => self.watches[place].take(event, progress),
                Err(RecvTimeoutError::Timeout) if self.watches.iter().all(Watch::is_settled) => {
                    return
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            self.fail_together();
            if self.failed.is_none() {
                self.pass_barriers();
            }
        }
    }

    /// Returns the time for which the next event is waited for; `None` if nothing is waited for any
    /// longer.
    fn left(&mut self) -> Option<Duration> {
        let mut least = None;
        for place in 0..self.watches.len() {
            // A process that has done its part waits for the others; its limit must not run out
            // meanwhile.
            if self.watches[place].is_gone() || !self.is_awaited(place) {
                continue;
            }
            let left = self.watches[place].patience.left();
            if !left.is_zero() {
                least = Some(least.map_or(left, |least: Duration| least.min(left)));
            } else if !self.watches[place].give_up() {
                self.failed.get_or_insert(place);
                return None;
            }
        }
        least
    }

    /// Returns true if the trial waits for something from the process at `place`.
    fn is_awaited(&self, place: usize) -> bool {
        let watch = &self.watches[place];
        if self.failed.is_some() || watch.exited.is_some() {
            return true;
        }
        match self.step {
            Step::Alone | Step::Drain => true,
            Step::Ready => !watch.conversation.waits(),
            Step::Measure => place == 0,
            Step::Stop => place > 0 && !watch.conversation.waits(),
        }
    }

    /// Ends the other processes as soon as one has failed: what they would measure is worthless,
    /// and they may wait for the one that is gone.
    fn fail_together(&mut self) {
        if self.failed.is_some() {
            return;
        }
        self.failed = self.watches.iter().position(Watch::has_failed);
        let Some(failed) = self.failed else { return };
        for (place, watch) in self.watches.iter_mut().enumerate() {
            if place != failed && watch.exited.is_none() {
                watch.end();
            }
        }
    }

    /// Gives the commands that are due.
    fn pass_barriers(&mut self) {
        let waits = |watch: &Watch| watch.conversation.waits();
        if self.step == Step::Ready && self.watches.iter().all(waits) {
            let of_role =
                |watch: &Watch| (watch.role.clone(), watch.conversation.ready_data().clone());
            let roles: BTreeMap<_, _> = self.watches.iter().map(of_role).collect();
            self.tell_from(0, &Command::Start { roles });
            self.step = Step::Measure;
        } else if self.step == Step::Measure && waits(&self.watches[0]) {
            self.tell_from(1, &Command::Stop {});
            self.step = Step::Stop;
        } else if self.step == Step::Stop && self.watches.iter().all(waits) {
            self.tell_from(0, &Command::Drain {});
            self.step = Step::Drain;
        }
    }

    fn tell_from(&mut self, first: usize, command: &Command) {
        for watch in &mut self.watches[first..] {
            watch.tell(command);
        }
    }

    /// Ends every process with all that it started, and reaps it. Its status is its own where it
    /// had exited before.
    ///
    /// # Errors
    /// The error of the system, in words.
    pub(super) fn stop(&mut self) -> Result<Vec<(ExitStatus, Usage)>, String> {
        for watch in &self.watches {
            watch.process.kill();
        }
        self.reap()
    }

    /// Reaps every process, and leaves what it started running.
    ///
    /// # Errors
    /// The error of the system, in words.
    pub(super) fn reap(&mut self) -> Result<Vec<(ExitStatus, Usage)>, String> {
        let watches = self.watches.iter_mut();
        let ended = watches.map(|watch| {
            let ended = watch.process.reap();
            ended.map_err(|error| format!("it could not be waited for: {error}"))
        });
        ended.collect()
    }

    /// Takes what the processes of a failed trial still say on standard error, until it is closed:
    /// the reason is in there, and a busy machine may bring it long after the exit.
    pub(super) fn take_last_errors(&mut self) {
        let until = Instant::now() + DRAIN_MAX;
        let left = || until.saturating_duration_since(Instant::now());
        while let Ok((place, event)) = self.events.recv_timeout(left()) {
            if matches!(event, Event::ErrorOutput(_)) {
                self.watches[place].take(event, &mut |_| {});
            }
        }
    }

    /// Returns the notes of the processes; of those that do not measure under `role.name`.
    pub(super) fn notes(&self) -> BTreeMap<String, serde_json::Value> {
        let mut all = BTreeMap::new();
        for (place, watch) in self.watches.iter().enumerate() {
            for (name, value) in watch.conversation.notes() {
                let name = match place {
                    0 => name.clone(),
                    _ => format!("{}.{name}", watch.role),
                };
                all.insert(name, value.clone());
            }
        }
        all
    }

    /// The end of what the processes printed: with several roles, under the name of each.
    pub(super) fn log(&self) -> Vec<u8> {
        if let [alone] = &self.watches[..] {
            return alone.log();
        }
        let mut log = Vec::new();
        for watch in &self.watches {
            log.extend_from_slice(format!("-- role {} --\n", watch.role).as_bytes());
            log.extend_from_slice(&watch.log());
        }
        log
    }

    /// The end of the standard error of the role that failed, or else of the one that measures.
    pub(super) fn errors(&self) -> Vec<u8> {
        end_of(&self.watches[self.failed.unwrap_or(0)].errors).to_vec()
    }
}
