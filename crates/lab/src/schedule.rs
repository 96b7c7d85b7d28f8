//! The schedule: which experiments run another round. It follows from the plan and the records
//! alone, so that a run that is resumed goes on as it would have gone, and a report can tell
//! whether it is over.

use std::time::Duration;

use crate::experiment::Experiment;
use crate::plan::{Done, Plan};
use crate::result::ExperimentResult;
use crate::sample::{Outcome, TrialRecord};
use crate::value::Point;

/// Rounds after which most claims are decided: a verdict in a suite takes 14 rounds that agree, and
/// of the claims that 16 to 18 rounds left open in a run of all, a quarter lacked up to six.
const WANTED: u32 = 20;

/// The rounds that an experiment has before it can make room for others.
const FEWEST: u32 = 3;

/// The state of a run between rounds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// The round that runs, or runs next, from 0.
    pub round: u32,
    /// By the experiment's place in the plan: whether it takes part in that round.
    pub open: Vec<bool>,
}

impl Schedule {
    /// Derives the state from the records so far. An experiment takes part in a round if it ran
    /// all rounds before, was not closed by their results, and there is time for it.
    ///
    /// The records alone decide, and no decision is stored. A run that was killed and
    /// resumed therefore stops each experiment after the same round as a run that was not.
    ///
    /// An experiment that left out a round never comes back, even if there would be time for a
    /// later one, or later rounds of others reopen its claims through the correction of their
    /// suite. Its rounds would no longer be interleaved with those that its suite had meanwhile,
    /// and the rounds that it has would have a gap.
    pub fn new(plan: &Plan, records: &[TrialRecord]) -> Schedule {
        let done = Done::new(records);
        let round = records.iter().filter(|r| ran(r)).map(|r| r.round).max();
        let round = round.unwrap_or(0);
        // No trial can be added to figures that were imported.
        if plan.machine.is_imported() {
            let open = vec![false; plan.experiments.len()];
            return Schedule { round, open };
        }
        // Which experiments take part in this round was decided by the rounds before it. Its own
        // records must not count: a part of a round could close an experiment that an uninterrupted
        // run would have gone on with.
        let before = records.iter().filter(|record| record.round < round);
        let before: Vec<TrialRecord> = before.cloned().collect();
        let results = (round > 0).then(|| plan.judge(&before));
        let mut incomplete = false;
        let mut open = Vec::new();
        for place in 0..plan.experiments.len() {
            let experiment = &plan.experiments[place];
            let lacks = |round| {
                let mut trials = plan.trials(place, round).into_iter();
                trials.any(|trial| done.lacks(plan, &trial))
            };
            let mut trials = plan.trials(place, 0).into_iter();
            let mut takes_part = trials.any(|trial| !done.is_untestable(plan, &trial))
                && (0..round).all(|before| !lacks(before));
            if let Some(results) = &results {
                takes_part = takes_part
                    && !is_over(experiment, round, &results.experiments[place])
                    && given_up(plan, &before, place).is_none();
            }
            open.push(takes_part);
        }
        make_room(plan, &before, round, &mut open);
        for (place, open) in open.iter_mut().enumerate() {
            let mut trials = plan.trials(place, round).into_iter();
            if *open && trials.any(|trial| done.lacks(plan, &trial)) {
                let mut begun = of(records, &plan.experiments[place]);
                *open = begun.any(|record| record.round == round)
                    || has_time(plan, records, place, round);
                incomplete |= *open;
            }
        }
        let mut schedule = Schedule { round, open };
        if !incomplete {
            schedule.advance(plan, &plan.judge(records).experiments);
            schedule.pass_by(plan, records);
        }
        schedule
    }

    /// Returns true if no experiment runs another round.
    pub fn is_complete(&self) -> bool {
        !self.open.contains(&true)
    }

    /// Goes on to the next round, after a round with these `results`.
    pub(crate) fn advance(&mut self, plan: &Plan, results: &[ExperimentResult]) {
        self.round += 1;
        let rest = plan.experiments.iter().zip(results);
        for (open, (experiment, result)) in self.open.iter_mut().zip(rest) {
            *open = *open && !is_over(experiment, self.round, result);
        }
    }

    /// Closes the experiments that are given up, that make room for others, or whose round would
    /// not end in time.
    pub(crate) fn pass_by(&mut self, plan: &Plan, records: &[TrialRecord]) {
        for (place, open) in self.open.iter_mut().enumerate() {
            *open = *open && given_up(plan, records, place).is_none();
        }
        make_room(plan, records, self.round, &mut self.open);
        for (place, open) in self.open.iter_mut().enumerate() {
            *open = *open && has_time(plan, records, place, self.round);
        }
    }
}

/// Closes open experiments that ran all `round` rounds before and whose next round would take time
/// that others need which need less. Otherwise none would come to a verdict, as where a few
/// experiments take most of every round.
fn make_room(plan: &Plan, records: &[TrialRecord], round: u32, open: &mut [bool]) {
    let Some(budget) = plan.budget().filter(|_| round >= FEWEST) else {
        return;
    };
    let mut left = budget.saturating_sub(elapsed(records)).as_secs_f64() * 1e3;
    let places = (0..open.len()).filter(|place| open[*place]);
    // The time that each needs in all, and for one round.
    let mut needs: Vec<(usize, f64, f64)> = places
        .map(|place| {
            let experiment = &plan.experiments[place];
            let rounds = experiment.rounds;
            let wanted = match experiment.claims.is_empty() {
                true => rounds.least,
                false => WANTED.clamp(rounds.least, rounds.most.max(rounds.least)),
            };
            let more = wanted.saturating_sub(round).max(1);
            let one = per_round(records, experiment, round);
            (place, one * f64::from(more), one)
        })
        .collect();
    needs.sort_by(|one, other| one.1.total_cmp(&other.1));
    for (place, all, one) in needs {
        open[place] = one <= left;
        if open[place] {
            left = (left - all).max(0.0);
        }
    }
}

/// Returns true if an experiment that ran that many rounds needs no more.
fn is_over(experiment: &Experiment, rounds: u32, result: &ExperimentResult) -> bool {
    rounds >= experiment.rounds.most || rounds >= experiment.rounds.least && result.decided()
}

/// Returns the first cell of an experiment for which it is given up: of which the first trials all
/// failed, as many as [`Plan::give_up_after`].
pub fn given_up(plan: &Plan, records: &[TrialRecord], place: usize) -> Option<Point> {
    let limit = plan.give_up_after? as usize;
    let experiment = &plan.experiments[place];
    experiment.points().into_iter().find(|at| {
        let trials = of(records, experiment).filter(|record| record.at == *at && ran(record));
        let first: Vec<&TrialRecord> = trials.take(limit).collect();
        let failed = |record: &&TrialRecord| matches!(record.outcome, Outcome::Failed { .. });
        first.len() == limit && first.iter().all(failed)
    })
}

/// Returns whether the next round of an experiment that ran all `round` rounds before, if it takes
/// as long as those, ends within the budget. The first round is always run: without it there would
/// be no figure at all.
pub(crate) fn has_time(plan: &Plan, records: &[TrialRecord], place: usize, round: u32) -> bool {
    let Some(budget) = plan.budget().filter(|_| round > 0) else {
        return true;
    };
    let taken = per_round(records, &plan.experiments[place], round);
    elapsed(records).as_secs_f64() * 1e3 + taken <= budget.as_secs_f64() * 1e3
}

/// The time that an experiment took for each of its `rounds` rounds, in milliseconds.
fn per_round(records: &[TrialRecord], experiment: &Experiment, rounds: u32) -> f64 {
    let taken = of(records, experiment).map(|record| record.elapsed_ms);
    taken.sum::<f64>() / f64::from(rounds)
}

/// The time that a run has taken so far, without what passed between its parts.
pub(crate) fn elapsed(records: &[TrialRecord]) -> Duration {
    let times = records.iter().map(|record| record.run_ms / 1e3);
    Duration::try_from_secs_f64(times.fold(0.0, f64::max)).unwrap_or(Duration::MAX)
}

fn of<'r>(
    records: &'r [TrialRecord],
    experiment: &'r Experiment,
) -> impl Iterator<Item = &'r TrialRecord> {
    records
        .iter()
        .filter(|record| record.experiment == experiment.id)
}

/// Returns true for a trial that ran, and not for the record of what this machine cannot run.
pub(crate) fn ran(record: &TrialRecord) -> bool {
    !matches!(record.outcome, Outcome::NotTestable { .. })
}
