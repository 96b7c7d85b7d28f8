//! What a run will do: every trial of every round, decided before the first one starts.

use std::collections::HashSet;
use std::path::PathBuf;

use rand_chacha::ChaCha8Rng;
use rand_core::{Rng, SeedableRng};
use serde::{Deserialize, Serialize};

use crate::experiment::Experiment;
use crate::fingerprint::Machine;
use crate::sample::{Outcome, TrialRecord};
use crate::value::Point;

/// The most rounds of a run.
pub const ROUNDS_MAX: u32 = 10_000;

/// A run's plan, as `run.json` keeps it: enough to repeat the run, or to go on with it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// [`crate::result::SCHEMA`].
    pub schema: u32,
    /// The run's name: its directory's name.
    pub run: String,
    /// The version of the program that runs it.
    pub tare: String,
    /// `quick` or `full`.
    pub size: String,
    /// The seed of every shuffle and bootstrap.
    pub seed: u64,
    /// Rounds.
    pub rounds: u32,
    /// When the plan was made, RFC 3339 in UTC.
    pub started: String,
    /// The folder in which the run began, from which relative paths go out; `None` where its name is
    /// not UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub directory: Option<PathBuf>,
    /// What it runs on.
    pub machine: Machine,
    /// What may hurt the result, one sentence each.
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
    /// Whether this is the baseline's second run in the round.
    pub again: bool,
}

impl Plan {
    /// The trials of one round: every cell of every experiment once and every baseline twice. The
    /// experiments come in a shuffled order, and so do the cells of each: what is compared runs
    /// close together, in the same mood of the machine, and a drift falls on all of it alike.
    ///
    /// The same seed gives the same order in every version of Tare.
    pub fn round(&self, round: u32) -> Vec<Trial> {
        let mut random = ChaCha8Rng::seed_from_u64(self.seed);
        random.set_stream(u64::from(round));
        let mut order: Vec<usize> = (0..self.experiments.len()).collect();
        shuffle(&mut order, &mut random);
        let mut trials = Vec::new();
        for experiment in order {
            let of = &self.experiments[experiment];
            let trial = |at: Point, again| Trial {
                experiment,
                round,
                at,
                again,
            };
            let points = of.points();
            let baseline = of.baseline_of(&points);
            let mut cells: Vec<Trial> = baseline.map(|at| trial(at, true)).into_iter().collect();
            cells.extend(points.into_iter().map(|at| trial(at, false)));
            shuffle(&mut cells, &mut random);
            trials.append(&mut cells);
        }
        trials
    }

    /// The trials that `records` lack, in the plan's order. A cell that this machine cannot run is
    /// not tried again.
    pub fn remaining(&self, records: &[TrialRecord]) -> Vec<Trial> {
        let mut done = HashSet::new();
        let mut untestable = HashSet::new();
        for record in records {
            let at = record.at.to_string();
            if matches!(record.outcome, Outcome::NotTestable { .. }) {
                untestable.insert((record.experiment.as_str(), at.clone()));
            }
            done.insert((record.experiment.as_str(), record.round, at, record.again));
        }
        (0..self.rounds)
            .flat_map(|round| self.round(round))
            .filter(|trial| {
                let id = self.experiments[trial.experiment].id.as_str();
                let at = trial.at.to_string();
                !untestable.contains(&(id, at.clone()))
                    && !done.contains(&(id, trial.round, at, trial.again))
            })
            .collect()
    }

    /// How many trials the whole run has.
    pub fn trials(&self) -> usize {
        self.round(0).len() * self.rounds as usize
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

    pub(crate) fn plan(rounds: u32) -> Plan {
        Plan {
            schema: crate::result::SCHEMA,
            run: "r".into(),
            tare: "0".into(),
            size: "quick".into(),
            seed: 7,
            rounds,
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
                beside: vec!["peer".into()],
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
                published: vec![],
                claims: vec![],
                exact: false,
                rounds: Rounds::default(),
            }],
        }
    }

    #[test]
    fn a_round_holds_every_cell_once_and_the_baseline_twice_in_the_seeds_order() {
        let plan = plan(2);
        let round = plan.round(0);
        assert_eq!(round.len(), 22);
        assert_eq!(round.iter().filter(|trial| trial.again).count(), 1);
        for point in plan.experiments[0].points() {
            assert_eq!(
                round.iter().filter(|t| t.at == point && !t.again).count(),
                1
            );
        }
        assert_eq!(round, plan.round(0));
        let other: Vec<_> = plan.round(1).into_iter().map(|t| t.at).collect();
        assert_ne!(
            round.iter().map(|t| t.at.clone()).collect::<Vec<_>>(),
            other
        );
        assert_eq!(plan.trials(), 44);
    }

    #[test]
    fn the_cells_of_an_experiment_run_close_together() {
        let mut plan = plan(1);
        let mut other = plan.experiments[0].clone();
        other.id = "a/c".into();
        plan.experiments.push(other);
        let mut firsts = std::collections::HashSet::new();
        for seed in 0..20 {
            plan.seed = seed;
            let order: Vec<usize> = plan.round(0).iter().map(|t| t.experiment).collect();
            let changes = order.windows(2).filter(|two| two[0] != two[1]).count();
            assert_eq!(changes, 1, "{order:?}");
            firsts.insert(order[0]);
        }
        assert_eq!(firsts.len(), 2, "either may come first");
    }

    #[test]
    fn every_place_in_the_order_is_equally_likely() {
        let mut plan = plan(1);
        let mut first = [0u32; 20];
        for seed in 0..4000 {
            plan.seed = seed;
            let round = plan.round(0);
            let at = round
                .iter()
                .position(|t| t.at.0.get("x") == Some(&Value::Int(3)) && !t.again);
            first[at.unwrap().min(19)] += 1;
        }
        // 4000 / 22 = 182 a place, ± 5 standard deviations.
        assert!(
            first[..19].iter().all(|&n| (115..250).contains(&n)),
            "{first:?}"
        );
    }
}
