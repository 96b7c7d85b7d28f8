//! The plan of a run: its experiments, and the order of the trials of every round.

use std::collections::HashSet;
use std::path::PathBuf;
use std::time::Duration;

use rand_chacha::ChaCha8Rng;
use rand_core::{Rng, SeedableRng};
use serde::{Deserialize, Serialize};

use crate::experiment::Experiment;
use crate::fingerprint::Machine;
use crate::judge::{self, Judged, Judging};
use crate::sample::{Outcome, TrialRecord};
use crate::value::Point;

/// A run's plan, as `run.json` keeps it: enough to repeat the run, or to go on with it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// [`crate::result::SCHEMA`].
    pub schema: u32,
    /// The run's name: its directory's name.
    pub run: String,
    /// The version of the program that runs it.
    pub tare: String,
    /// `tour`, `quick` or `full`.
    pub size: String,
    /// The seed of every shuffle.
    pub seed: u64,
    /// The time that the run may take, in s; `None` if only its rounds limit it.
    pub budget_s: Option<f64>,
    /// The number of trials of a cell after which its experiment ends if all of them failed; `None`
    /// if it goes on for as long as its claims could be decided.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub give_up_after: Option<u32>,
    /// The time at which the plan was made, RFC 3339 in UTC.
    pub started: String,
    /// The folder in which the run began, from which relative paths go out; `None` if its name
    /// is not UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub directory: Option<PathBuf>,
    /// The machine that it runs on.
    pub machine: Machine,
    /// Conditions that may distort the results, one sentence each.
    pub warnings: Vec<String>,
    /// The experiments, resolved for this machine and size.
    pub experiments: Vec<Experiment>,
}

/// One trial of a round.
#[derive(Clone, Debug, PartialEq)]
pub struct Trial {
    /// The experiment's place in the plan.
    pub experiment: usize,
    /// The round, from 0.
    pub round: u32,
    /// The cell.
    pub at: Point,
    /// The cell's place among the experiment's [points](Experiment::points).
    pub cell: usize,
    /// True if this is the baseline's second run in the round.
    pub again: bool,
}

impl Plan {
    /// The experiments in the shuffled order of this round. An experiment whose rounds are over is
    /// passed by, which leaves the order of the others as it is.
    pub fn order(&self, round: u32) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.experiments.len()).collect();
        shuffle(&mut order, &mut self.random("", round));
        order
    }

    /// Returns the trials of one round of an experiment in shuffled order: every cell once, and the
    /// baseline twice unless the trials are deterministic.
    ///
    /// The trials of one experiment run one after the other, not mixed with those of others, so
    /// that what is compared runs under the same machine conditions. Within them the order is
    /// shuffled afresh in every round: this is what makes the sign of a difference a fair coin if
    /// two cells are the same, and the tests of the judge rest on it.
    ///
    /// The order follows from the seed, the experiment's id and the round alone, so that an
    /// experiment added to a run, or closed early, does not change the order of the others.
    pub fn trials(&self, experiment: usize, round: u32) -> Vec<Trial> {
        let mut trials = self.unshuffled(experiment, round);
        self.shuffle_trials(experiment, round, &mut trials);
        trials
    }

    /// Returns the trials of one round of an experiment before they are shuffled: but for the
    /// round's number, the same ones in every round.
    pub(crate) fn unshuffled(&self, experiment: usize, round: u32) -> Vec<Trial> {
        let of = &self.experiments[experiment];
        let trial = |cell, at: Point, again| Trial {
            experiment,
            round,
            at,
            cell,
            again,
        };
        let points = of.points();
        // Deterministic trials have no noise that a second run could show.
        let baseline = of.baseline_of(&points).filter(|_| !of.exact);
        let again = baseline.and_then(|at| {
            let cell = points.iter().position(|other| *other == at)?;
            Some(trial(cell, at, true))
        });
        let mut trials: Vec<Trial> = again.into_iter().collect();
        let each = points.into_iter().enumerate();
        trials.extend(each.map(|(cell, at)| trial(cell, at, false)));
        trials
    }

    /// Puts one item for each of the [trials before they are shuffled](Self::unshuffled) into the
    /// order of the round.
    pub(crate) fn shuffle_trials<T>(&self, experiment: usize, round: u32, items: &mut [T]) {
        let id = &self.experiments[experiment].id;
        shuffle(items, &mut self.random(id, round));
    }

    /// Judges the records of this run.
    pub fn judge(&self, records: &[TrialRecord]) -> Judged {
        judge::judge(&self.experiments, records, &Judging::default())
    }

    /// A generator for one shuffle: the seed, a name and a round.
    fn random(&self, name: &str, round: u32) -> ChaCha8Rng {
        // FNV-1a: the same in every version of Tare.
        let named = name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        let mut random = ChaCha8Rng::seed_from_u64(self.seed ^ named);
        random.set_stream(u64::from(round));
        random
    }

    /// The budget as a time.
    pub fn budget(&self) -> Option<Duration> {
        // A plan may come from outside; what is no time is no budget.
        self.budget_s
            .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
    }
}

/// The trials that are in.
#[derive(Debug, Default)]
pub(crate) struct Done<'a> {
    trials: HashSet<(&'a str, u32, String, bool)>,
    untestable: HashSet<(&'a str, String)>,
}

impl<'a> Done<'a> {
    /// Of these records.
    pub(crate) fn new(records: &'a [TrialRecord]) -> Self {
        let mut done = Done::default();
        for record in records {
            done.add(record);
        }
        done
    }

    fn add(&mut self, record: &'a TrialRecord) {
        let at = record.at.to_string();
        if matches!(record.outcome, Outcome::NotTestable { .. }) {
            self.untestable.insert((&record.experiment, at.clone()));
        }
        self.trials
            .insert((&record.experiment, record.round, at, record.again));
    }

    /// Returns true if a trial must still run. A cell that this machine cannot run is not tried
    /// again.
    pub(crate) fn lacks(&self, plan: &'a Plan, trial: &Trial) -> bool {
        let id = plan.experiments[trial.experiment].id.as_str();
        let at = trial.at.to_string();
        !self.untestable.contains(&(id, at.clone()))
            && !self.trials.contains(&(id, trial.round, at, trial.again))
    }

    /// Returns true if this machine cannot run the cell.
    pub(crate) fn is_untestable(&self, plan: &'a Plan, trial: &Trial) -> bool {
        let id = plan.experiments[trial.experiment].id.as_str();
        self.untestable.contains(&(id, trial.at.to_string()))
    }
}

impl Experiment {
    /// The baseline among this experiment's points; the first of them where the file names none.
    pub fn baseline_of(&self, points: &[Point]) -> Option<Point> {
        match &self.baseline {
            Some(selector) => points.iter().find(|point| selector.matches(point)),
            None => points.first(),
        }
        .cloned()
    }
}

/// Every order equally likely (Fisher and Yates).
fn shuffle<T>(items: &mut [T], random: &mut ChaCha8Rng) {
    for last in (1..items.len()).rev() {
        items.swap(last, below(random, last as u64 + 1) as usize);
    }
}

/// A number below `limit` without bias: draws from the incomplete last stretch are thrown away.
fn below(random: &mut ChaCha8Rng, limit: u64) -> u64 {
    let usable = u64::MAX - u64::MAX % limit;
    loop {
        let draw = random.next_u64();
        if draw < usable {
            return draw % limit;
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::experiment::{Axis, Metric, Rounds, Statistic};
    use crate::unit::{Better, Unit};
    use crate::value::{Parameters, Value};

    pub(crate) fn plan() -> Plan {
        Plan {
            schema: crate::result::SCHEMA,
            run: "r".into(),
            tare: "0".into(),
            size: "quick".into(),
            seed: 7,
            budget_s: None,
            give_up_after: None,
            started: "2026-01-01T00:00:00Z".into(),
            directory: None,
            machine: Machine::default(),
            warnings: vec![],
            experiments: vec![Experiment {
                id: "a/b".into(),
                title: "t".into(),
                source: "s".into(),
                driver: "d".into(),
                fixed: Parameters::new(),
                axes: vec![Axis {
                    name: "x".into(),
                    values: (0..20).map(Value::Int).collect(),
                    log: false,
                }],
                exclude: vec![],
                beside: vec!["reference".into()],
                baseline: None,
                metrics: vec![Metric {
                    name: "time".into(),
                    statistic: Statistic::Median,
                    across: Statistic::Median,
                    from: None,
                    unit: Unit::Seconds,
                    better: Better::Lower,
                    work: None,
                }],
                parts: vec![],
                published: vec![],
                claims: vec![],
                exact: false,
                rounds: Rounds::default(),
            }],
        }
    }

    #[test]
    fn a_round_holds_every_cell_once_and_the_baseline_twice_in_the_seeds_order() {
        let plan = plan();
        let round = plan.trials(0, 0);
        assert_eq!(round.len(), 22);
        assert_eq!(round.iter().filter(|trial| trial.again).count(), 1);
        for point in plan.experiments[0].points() {
            let once = round.iter().filter(|t| t.at == point && !t.again);
            assert_eq!(once.count(), 1);
        }
        assert_eq!(round, plan.trials(0, 0));
        let cells = |trials: Vec<Trial>| trials.into_iter().map(|t| t.at).collect::<Vec<_>>();
        assert_ne!(cells(round), cells(plan.trials(0, 1)));
        let mut exact = plan;
        exact.experiments[0].exact = true;
        assert_eq!(exact.trials(0, 0).len(), 21, "no noise to be shown");
    }

    #[test]
    fn the_order_of_an_experiment_does_not_depend_on_the_others() {
        let alone = plan();
        let mut plan = plan();
        let mut other = plan.experiments[0].clone();
        other.id = "a/c".into();
        plan.experiments.insert(0, other);
        let cells = |trials: Vec<Trial>| -> Vec<(Point, bool)> {
            trials.into_iter().map(|t| (t.at, t.again)).collect()
        };
        for round in 0..3 {
            assert_eq!(cells(plan.trials(1, round)), cells(alone.trials(0, round)));
            assert_ne!(cells(plan.trials(0, round)), cells(plan.trials(1, round)));
        }
        let mut firsts = std::collections::HashSet::new();
        for seed in 0..20 {
            plan.seed = seed;
            firsts.insert(plan.order(0)[0]);
        }
        assert_eq!(firsts.len(), 2, "either may come first");
    }

    #[test]
    fn every_place_in_the_order_is_equally_likely() {
        let mut plan = plan();
        let mut first = [0u32; 22];
        for seed in 0..4000 {
            plan.seed = seed;
            let round = plan.trials(0, 0);
            let at = round
                .iter()
                .position(|t| t.at.0.get("x") == Some(&Value::Int(3)) && !t.again);
            first[at.unwrap()] += 1;
        }
        // 4000 / 22 = 182 a place, ± 5 standard deviations.
        assert!(first.iter().all(|&n| (115..250).contains(&n)), "{first:?}");
    }
}
