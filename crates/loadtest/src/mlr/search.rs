//! The choice of the next load, and of its duration.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use super::goal::{Bound, Goal, Outcome};
use crate::Rate;

/// A trial that the search asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrialInput {
    /// Trial Load.
    pub load: Rate,
    /// Trial Duration.
    pub duration: Duration,
}

/// The result for a goal (RFC 9971, "Goal Result").
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct GoalResult {
    /// The goal, with all its attributes.
    pub goal: Goal,
    /// Relevant Lower Bound: the highest load below the upper bound that upholds the goal. Where
    /// there is no upper bound, the highest load that does.
    #[serde(rename = "lower_bits_per_second")]
    pub lower: Option<Rate>,
    /// Relevant Upper Bound: the lowest load that does not uphold it.
    #[serde(rename = "upper_bits_per_second")]
    pub upper: Option<Rate>,
    /// The rate that is forwarded at the lower bound.
    #[serde(rename = "conditional_throughput_bits_per_second")]
    pub conditional_throughput: Option<Rate>,
    /// Both bounds exist and are as close as the goal asks. An irregular result has to be shown as
    /// such.
    pub regular: bool,
}

/// A search for several goals.
///
/// It begins with one short trial at the maximum and one at what was forwarded then, which is near
/// the answer for a device with a hard limit. Then it takes the goals in turn, that with the least
/// loss first, because its loads are the lower ones. Each goal is reached in phases: the trials of
/// the first are as short as the goal allows and its bounds eight times as far apart, and both
/// double and halve with each phase until they are what the goal says. A phase first tries the
/// bounds that the phase before found, then widens the interval until it has a bound on either
/// side, then halves it.
#[derive(Clone, Debug)]
pub struct Search {
    goals: Vec<Goal>,
    /// Indices of goals, by loss ratio.
    order: Vec<usize>,
    min: u64,
    max: u64,
    trials: BTreeMap<u64, Vec<Outcome>>,
    /// Place in `order`, and the phase of that goal, counted down to 0.
    at: (usize, u32),
    /// The bounds that the phase before found.
    hints: Vec<u64>,
    /// By what power of two the next widening is wider than the width.
    widenings: u32,
    started: u32,
    count: u32,
    trials_max: u32,
    current: Option<TrialInput>,
}

impl Search {
    /// A search from `min` to `max` that ends after `trials_max` trials at the latest, with what it
    /// has then.
    ///
    /// # Panics
    /// On no goals, a goal whose ratios or width are not within 0 to 1 (width above 0) or whose
    /// durations are zero, and a minimum that is zero or not below the maximum.
    pub fn new(goals: Vec<Goal>, min: Rate, max: Rate, trials_max: u32) -> Search {
        assert!(!goals.is_empty(), "no goals");
        assert!(
            0 < min.bits() && min < max,
            "a minimum above zero and below the maximum"
        );
        for goal in &goals {
            let ratios = [goal.loss_ratio, goal.exceed_ratio];
            assert!(
                ratios.iter().all(|ratio| (0.0..1.0).contains(ratio)),
                "the ratios of {}",
                goal.name
            );
            assert!(
                goal.width > 0.0 && goal.width < 1.0,
                "the width of {}",
                goal.name
            );
            let durations = [
                goal.final_duration,
                goal.duration_sum,
                goal.initial_duration,
            ];
            assert!(
                durations.iter().all(|duration| !duration.is_zero()),
                "the durations of {}",
                goal.name
            );
        }
        let mut order: Vec<usize> = (0..goals.len()).collect();
        order.sort_by(|&a, &b| goals[a].loss_ratio.total_cmp(&goals[b].loss_ratio));
        let mut search = Search {
            at: (0, phases(&goals[order[0]])),
            goals,
            order,
            min: min.bits(),
            max: max.bits(),
            trials: BTreeMap::new(),
            hints: Vec::new(),
            widenings: 0,
            started: 0,
            count: 0,
            trials_max,
            current: None,
        };
        search.choose();
        search
    }

    /// The next trial; none when the search is over.
    pub fn next_trial(&self) -> Option<TrialInput> {
        self.current
    }

    /// Enters the loss ratio of the trial that [`Search::next_trial`] asked for.
    pub fn record(&mut self, loss_ratio: f64) {
        let Some(trial) = self.current else {
            return;
        };
        let outcome = Outcome {
            duration: trial.duration,
            loss_ratio: loss_ratio.clamp(0.0, 1.0),
        };
        self.trials
            .entry(trial.load.bits())
            .or_default()
            .push(outcome);
        self.count += 1;
        self.choose();
    }

    /// Trials so far.
    pub fn trials(&self) -> u32 {
        self.count
    }

    /// The results, in the order of the goals.
    pub fn results(&self) -> Vec<GoalResult> {
        self.goals.iter().map(|goal| self.result(goal)).collect()
    }

    fn result(&self, goal: &Goal) -> GoalResult {
        let bounds = self.bounds(goal);
        let throughput = bounds
            .lower
            .map(|load| goal.conditional_throughput(Rate::from_bits(load), &self.trials[&load]));
        GoalResult {
            goal: goal.clone(),
            lower: bounds.lower.map(Rate::from_bits),
            upper: bounds.upper.map(Rate::from_bits),
            conditional_throughput: throughput,
            regular: bounds.are_within(goal.width),
        }
    }

    fn bounds(&self, goal: &Goal) -> Bounds {
        let is = |bound: Bound| {
            move |&(_, trials): &(&u64, &Vec<Outcome>)| goal.classify(trials) == bound
        };
        let upper = self
            .trials
            .iter()
            .find(is(Bound::Upper))
            .map(|(&load, _)| load);
        let below = self.trials.range(..upper.unwrap_or(u64::MAX));
        let lower = below.rev().find(is(Bound::Lower)).map(|(&load, _)| load);
        Bounds { lower, upper }
    }

    fn choose(&mut self) {
        self.current = None;
        if self.count >= self.trials_max {
            return;
        }
        self.current = self.first_look().or_else(|| loop {
            let &goal = self.order.get(self.at.0)?;
            let phase = phase(&self.goals[goal], self.at.1);
            if let Some(load) = self.next_load(&phase) {
                break Some(TrialInput {
                    load: Rate::from_bits(load),
                    duration: phase.final_duration,
                });
            }
            self.next_phase(&phase);
        });
    }

    /// The maximum, then what it forwarded.
    fn first_look(&mut self) -> Option<TrialInput> {
        let load = match self.started {
            0 => self.max,
            1 => {
                let loss_ratio = self.trials.get(&self.max)?.first()?.loss_ratio;
                let forwarded = (self.max as f64 * (1.0 - loss_ratio)) as u64;
                self.hints = vec![forwarded.clamp(self.min, self.max)];
                self.hints[0]
            }
            _ => return None,
        };
        self.started += 1;
        if self.started == 2 && load == self.max {
            return None;
        }
        let goal = &self.goals[self.order[0]];
        Some(TrialInput {
            load: Rate::from_bits(load),
            duration: phase(goal, phases(goal)).final_duration,
        })
    }

    fn next_phase(&mut self, done: &Goal) {
        let bounds = self.bounds(done);
        self.hints = bounds.lower.into_iter().chain(bounds.upper).collect();
        self.widenings = 0;
        self.at = match self.at {
            (goal, 0) => {
                let next = self.order.get(goal + 1);
                (goal + 1, next.map_or(0, |&next| phases(&self.goals[next])))
            }
            (goal, phase) => (goal, phase - 1),
        };
    }

    /// The load that tells most about a goal; none when its bounds are close enough or cannot come
    /// closer.
    fn next_load(&mut self, goal: &Goal) -> Option<u64> {
        let bounds = self.bounds(goal);
        if bounds.are_within(goal.width) {
            return None;
        }
        let above = bounds.lower.unwrap_or(0);
        let below = bounds.upper.unwrap_or(u64::MAX);
        let undecided = |load: u64| {
            let inside = above < load && load < below;
            let trials = self.trials.get(&load).map_or(&[][..], Vec::as_slice);
            inside && goal.classify(trials) == Bound::Undecided
        };
        // A load that was begun is brought to an end, the lowest first, before another is begun.
        let begun = self.trials.iter().find(|(&load, trials)| {
            undecided(load)
                && trials
                    .last()
                    .is_some_and(|last| last.duration >= goal.final_duration)
        });
        if let Some((&load, _)) = begun {
            return Some(load);
        }
        if let Some(&load) = self.hints.iter().find(|&&load| undecided(load)) {
            return Some(load);
        }
        let step = (1.0 - goal.width).powi(1 << self.widenings.min(10));
        match (bounds.lower, bounds.upper) {
            (None, None) => Some(self.max),
            (None, Some(upper)) => {
                self.widenings += 1;
                let load = ((upper as f64 * step) as u64).max(self.min);
                (load < upper).then_some(load)
            }
            (Some(lower), None) => {
                self.widenings += 1;
                let load = ((lower as f64 / step) as u64).min(self.max);
                (load > lower).then_some(load)
            }
            (Some(lower), Some(upper)) => {
                let middle = lower + (upper - lower) / 2;
                (lower < middle && middle < upper).then_some(middle)
            }
        }
    }
}

/// The relevant bounds of a goal; where there is no upper one, the lower is the highest.
#[derive(Clone, Copy, Debug)]
struct Bounds {
    lower: Option<u64>,
    upper: Option<u64>,
}

impl Bounds {
    fn are_within(self, width: f64) -> bool {
        match (self.lower, self.upper) {
            (Some(lower), Some(upper)) => (upper - lower) as f64 <= width * upper as f64,
            _ => false,
        }
    }
}

/// The number of phases before that of the goal itself.
fn phases(goal: &Goal) -> u32 {
    let ratio = goal.final_duration.as_secs_f64() / goal.initial_duration.as_secs_f64();
    (ratio.max(1.0).log2().ceil() as u32).min(10)
}

/// A goal as it is in a phase: shorter trials, and coarser.
fn phase(goal: &Goal, phase: u32) -> Goal {
    let shorter = 1 << phase;
    Goal {
        final_duration: (goal.final_duration / shorter)
            .max(goal.initial_duration.min(goal.final_duration)),
        duration_sum: goal.duration_sum / shorter,
        width: (goal.width * f64::from(shorter)).min(0.5),
        ..goal.clone()
    }
}
