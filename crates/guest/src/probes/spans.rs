//! The arithmetic of spans: each moment of a processor belongs to one category.

use std::collections::{HashMap, VecDeque};

use serde::{Deserialize, Serialize};

use super::Category;

const CATEGORIES: usize = Category::ALL.len();

/// The most spans inside each other. A task with more has lost returns.
const DEPTH_MAX: usize = 32;

/// An event of one processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Event {
    /// The time stamp counter.
    pub(super) time: u64,
    /// The task that the processor had; 0 is idle.
    pub(super) task: i32,
    pub(super) kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Enter(Category),
    Leave(Category),
    /// The processor goes on to another task.
    Switch,
    /// Time is counted from here.
    Begin,
    /// Time is counted up to here.
    End,
    /// The number of events that were lost before this time.
    Lost(u64),
}

/// The time of one processor.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Times {
    /// Cycles of the time stamp counter from the first mark to the last.
    pub whole: u64,
    /// Cycles of which nothing is known, as events were lost: they are in no category.
    pub unknown: u64,
    /// Cycles of each category, in the order of [`Category::ALL`], without those of spans inside.
    pub cycles: [u64; CATEGORIES],
    /// Entries of each category, also before the first mark and after the last.
    pub spans: [u64; CATEGORIES],
    /// Those between the marks.
    pub inside: [u64; CATEGORIES],
}

/// The state of one processor.
#[derive(Default)]
struct Cpu {
    times: Times,
    /// Events that wait for those of other processors.
    queue: VecDeque<Event>,
    begun: Option<u64>,
    last: u64,
}

/// The times of all processors.
pub(super) struct Accounts {
    cpus: Vec<Cpu>,
    /// The open spans of a task, which another processor may go on with. Those of an idle task are
    /// its processor's: interrupts open some.
    open: HashMap<(i32, usize), Vec<Category>>,
    /// Tasks of the measurement itself.
    recorders: Vec<i32>,
    /// The latest time in the events of all rounds so far.
    seen: u64,
    pub(super) unmatched: u64,
}

impl Accounts {
    pub(super) fn new(cpus: usize, recorders: Vec<i32>) -> Accounts {
        Accounts {
            cpus: (0..cpus).map(|_| Cpu::default()).collect(),
            open: HashMap::new(),
            recorders,
            seen: 0,
            unmatched: 0,
        }
    }

    /// Returns the place of a processor's next events, in their order.
    pub(super) fn queue(&mut self, cpu: usize) -> &mut VecDeque<Event> {
        &mut self.cpus[cpu].queue
    }

    /// Counts the events in the order of their times, after a round in which every processor was
    /// read once.
    ///
    /// A processor that was read early in this round may have events before the latest of another:
    /// only what is not later than all of the round before is complete on every processor. The rest
    /// waits for the next round, or for the last one.
    pub(super) fn count(&mut self, is_last: bool) {
        let until = if is_last { u64::MAX } else { self.seen };
        let latest = self.cpus.iter().filter_map(|cpu| cpu.queue.back());
        self.seen = latest.map(|event| event.time).fold(self.seen, u64::max);
        loop {
            let fronts = self.cpus.iter().enumerate();
            let fronts = fronts.filter_map(|(n, cpu)| Some((cpu.queue.front()?.time, n)));
            match fronts.min() {
                Some((time, cpu)) if time <= until => {
                    if let Some(event) = self.cpus[cpu].queue.pop_front() {
                        self.apply(cpu, event);
                    }
                }
                _ => return,
            }
        }
    }

    fn apply(&mut self, at: usize, event: Event) {
        let key = (event.task, if event.task == 0 { at } else { 0 });
        let innermost = self.open.get(&key).and_then(|open| open.last());
        let category = match innermost {
            Some(category) => *category,
            None if event.task == 0 => Category::Idle,
            None if self.recorders.contains(&event.task) => Category::Recorder,
            None => Category::Application,
        };
        let cpu = &mut self.cpus[at];
        // Until this event the processor had its task: another one begins with a switch.
        if cpu.begun.is_some() {
            let elapsed = event.time.saturating_sub(cpu.last);
            match event.kind {
                Kind::Lost(_) => cpu.times.unknown += elapsed,
                _ => cpu.times.cycles[category as usize] += elapsed,
            }
        }
        cpu.last = cpu.last.max(event.time);
        match event.kind {
            Kind::Begin => cpu.begun = Some(event.time),
            Kind::End => {
                if let Some(begun) = cpu.begun.take() {
                    cpu.times.whole += event.time.saturating_sub(begun);
                }
            }
            Kind::Switch => {}
            Kind::Lost(_) => {
                // Any task may have returned on this processor meanwhile.
                let open = self.open.values().map(|open| open.len() as u64);
                self.unmatched += open.sum::<u64>();
                self.open.clear();
            }
            Kind::Enter(category) => {
                cpu.times.spans[category as usize] += 1;
                cpu.times.inside[category as usize] += u64::from(cpu.begun.is_some());
                let open = self.open.entry(key).or_default();
                if open.len() == DEPTH_MAX {
                    self.unmatched += open.len() as u64;
                    open.clear();
                }
                open.push(category);
            }
            Kind::Leave(category) => {
                let open = self.open.entry(key).or_default();
                // Spans inside have ended, too.
                let Some(place) = open.iter().rposition(|it| *it == category) else {
                    self.unmatched += 1;
                    return;
                };
                self.unmatched += (open.len() - place - 1) as u64;
                open.truncate(place);
                if open.is_empty() {
                    self.open.remove(&key);
                }
            }
        }
    }

    /// Returns the times.
    pub(super) fn times(self) -> Vec<Times> {
        self.cpus.into_iter().map(|cpu| cpu.times).collect()
    }
}

#[cfg(test)]
#[path = "spans_tests.rs"]
mod tests;
