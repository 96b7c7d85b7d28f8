//! Studies, and how they are run.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use rand_chacha::ChaCha8Rng;
use rand_core::{Rng, SeedableRng};
use tare_lab::experiment::{Axis, Claim, ClaimKind, Experiment, Metric, Rounds, Statistic};
use tare_lab::fingerprint::Machine;
use tare_lab::judge::{judge, Judging};
use tare_lab::plan::Plan;
use tare_lab::result::{ClaimResult, ExperimentResult, SCHEMA};
use tare_lab::sample::{Outcome, TrialRecord, OPERATIONS};
use tare_lab::synthetic::{Noise, Runs, Truth};
use tare_lab::unit::{Better, Unit};
use tare_lab::value::{Parameters, Point, Selector, Value};

/// Rounds of every run: it is looked at after each of them, up to the last.
pub(crate) const ROUNDS: u32 = 60;

/// Rounds before which no run stops, as in [`Rounds::default`].
const LEAST: u32 = 10;

/// The rounds that are judged first in a study whose runs are decided in them. All rounds of the
/// plan before this one are among them.
const FIRST: u32 = 24;

/// Runs of one set-up, and what is counted in them.
pub(crate) struct Study {
    /// The test that holds it to its limits.
    pub(crate) test: &'static str,
    /// The number of runs, each with another seed.
    pub(crate) runs: u32,
    /// The experiment that is run.
    pub(crate) bench: Bench,
    /// The event that is counted.
    pub(crate) figures: Vec<Figure>,
    /// The figures, once measured.
    pub(crate) measured: OnceLock<Vec<f64>>,
}

/// A figure of a study.
pub(crate) struct Figure {
    /// In words.
    pub(crate) what: String,
    /// The figure that is taken from the runs.
    pub(crate) of: Of,
    /// The range in which it must be.
    pub(crate) limit: Limit,
}

/// The figure that is taken from the runs.
#[derive(Clone, Copy)]
pub(crate) enum Of {
    /// The share of them that count.
    Share(fn(&Run) -> bool),
    /// The same, of runs that are judged after all rounds, decided before or not.
    ShareAtEnd(fn(&Run) -> bool),
    /// This quantile of the rounds after which the first claim was decided; one that never was
    /// took more than all.
    Rounds(f64),
}

/// The range in which a figure must be; shares are of 1.
pub(crate) enum Limit {
    AtLeast(f64),
    AtMost(f64),
    Never,
    /// Stated, so that the reader does not expect more.
    Stated,
}

impl Limit {
    pub(crate) fn holds(&self, figure: f64) -> bool {
        match *self {
            Limit::AtLeast(least) => figure >= least,
            Limit::AtMost(most) => figure <= most,
            Limit::Never => figure == 0.0,
            Limit::Stated => true,
        }
    }
}

impl Figure {
    /// A value of this figure, as the guide prints it.
    pub(crate) fn show(&self, value: f64) -> String {
        match self.of {
            Of::Rounds(_) if value > f64::from(ROUNDS) => format!("> {ROUNDS} rounds"),
            Of::Rounds(_) => format!("{value} rounds"),
            _ if value > 0.0 && value < 0.0005 => format!("{:.3} %", value * 100.0),
            _ => format!("{:.1} %", value * 100.0),
        }
    }

    /// The limit, as the guide prints it.
    pub(crate) fn limit(&self) -> String {
        let whole = |value: f64| match self.of {
            Of::Rounds(_) => format!("{value} rounds"),
            _ => format!("{} %", (value * 1_000.0).round() / 10.0),
        };
        match self.limit {
            Limit::AtLeast(least) => format!("≥ {}", whole(least)),
            Limit::AtMost(most) => format!("≤ {}", whole(most)),
            Limit::Never => "none".into(),
            Limit::Stated => "stated".into(),
        }
    }
}

/// One run of a study.
pub(crate) struct Run {
    /// After all rounds, or after the first [`FIRST`] if every claim was decided in them and no
    /// figure of the study is [of the end](Of::ShareAtEnd).
    pub(crate) end: ExperimentResult,
    /// The round at which it stopped: when every claim was decided, but not before [`LEAST`]
    /// rounds.
    pub(crate) stop: ExperimentResult,
}

impl Run {
    /// The only claim, at the stop.
    pub(crate) fn only(&self) -> &ClaimResult {
        let [claim] = &self.stop.claims[..] else {
            panic!("{} claims", self.stop.claims.len());
        };
        claim
    }
}

/// The condition under which a trial fails in place of giving its reading.
#[derive(Clone, Copy)]
pub(crate) enum Fails {
    Never,
    /// With this chance, in way 1.
    Sometimes(f64),
    /// If the reading is longer than this, in way 1: killed at a limit.
    Longer(f64),
    /// If the reading is shorter than this, in way 1.
    Shorter(f64),
}

/// A synthetic experiment with its truth.
pub(crate) struct Bench {
    pub(crate) axes: Vec<Axis>,
    pub(crate) claims: Vec<ClaimKind>,
    /// Claims of the same suite that have not begun, and share the correction.
    pub(crate) beside: usize,
    /// The time that a cell takes on a perfect machine, in ns.
    pub(crate) truth: fn(&Point) -> f64,
    /// Bytes of work in a trial.
    pub(crate) work: fn(&Point) -> u64,
    pub(crate) noise: Noise,
    pub(crate) fails: Fails,
}

impl Study {
    /// The figures over all runs.
    pub(crate) fn figures(&self) -> &[f64] {
        self.measured.get_or_init(|| {
            let bench = &self.bench;
            let mut plan = bench.plan();
            let mut hits = vec![0u32; self.figures.len()];
            let mut rounds = Vec::new();
            let mut runs = Runs::new(&plan, |_, at| bench.truth(at));
            let at_end = |figure: &Figure| matches!(figure.of, Of::ShareAtEnd(_));
            let least = match self.figures.iter().any(at_end) {
                true => ROUNDS,
                false => FIRST,
            };
            let mut first = least;
            for seed in 0..self.runs {
                plan.seed = u64::from(seed);
                let run = bench.run_from(&plan, runs.run(&plan, bench.noise), first);
                // As the last one, so the next one, mostly; the run is the same either way.
                first = match run.stop.rounds {
                    ..=FIRST => least,
                    _ => ROUNDS,
                };
                for (hits, figure) in hits.iter_mut().zip(&self.figures) {
                    if let Of::Share(counts) | Of::ShareAtEnd(counts) = figure.of {
                        *hits += u32::from(counts(&run));
                    }
                }
                let decided = run.end.claims[0].decided_after;
                rounds.push(f64::from(decided.unwrap_or(ROUNDS + 1)));
            }
            rounds.sort_unstable_by(f64::total_cmp);
            let figure = |(figure, hits): (&Figure, &u32)| match figure.of {
                Of::Rounds(share) => rounds[(share * (rounds.len() - 1) as f64) as usize],
                _ => f64::from(*hits) / f64::from(self.runs),
            };
            self.figures.iter().zip(&hits).map(figure).collect()
        })
    }
}

impl Bench {
    /// The reading and the work of a cell on a perfect machine.
    pub(crate) fn truth(&self, at: &Point) -> Truth {
        Truth {
            values: BTreeMap::from([("time".to_owned(), (self.truth)(at))]),
            counters: BTreeMap::from([
                (OPERATIONS.to_owned(), 1_000),
                ("bytes".to_owned(), (self.work)(at)),
            ]),
        }
    }

    /// Judges the `records` of a run in which some trials fail, and leaves them as they were.
    pub(crate) fn run(&self, plan: &Plan, records: &mut [TrialRecord]) -> Run {
        self.run_from(plan, records, ROUNDS)
    }

    /// The same, but if the `first` rounds decide every claim, the later ones are not judged.
    fn run_from(&self, plan: &Plan, records: &mut [TrialRecord], first: u32) -> Run {
        let mut random = ChaCha8Rng::seed_from_u64(!plan.seed);
        let mut failed: Vec<(usize, Outcome)> = Vec::new();
        for (place, record) in records.iter_mut().enumerate() {
            if self.fails(record, &mut random) {
                let outcome = Outcome::Failed {
                    reason: "killed at its limit".into(),
                };
                failed.push((place, std::mem::replace(&mut record.outcome, outcome)));
            }
        }
        let judged = |rounds: u32| {
            let ran = records.partition_point(|record| record.round < rounds);
            judge(&plan.experiments, &records[..ran], &Judging::default())
                .experiments
                .remove(0)
        };
        // What is decided stays decided, so a look knows when an earlier one would have stopped,
        // and a later one would find the same.
        let stopped = |looked: &ExperimentResult| {
            let mut decided = looked.claims.iter().map(|claim| claim.decided_after);
            decided.try_fold(LEAST, |last: u32, one| Some(last.max(one?)))
        };
        let (mut end, mut looked) = (judged(first), first);
        if looked < ROUNDS && stopped(&end).is_none() {
            (end, looked) = (judged(ROUNDS), ROUNDS);
        }
        let stop = match stopped(&end) {
            Some(rounds) if rounds < looked => judged(rounds),
            _ => end.clone(),
        };
        for (place, outcome) in failed {
            records[place].outcome = outcome;
        }
        Run { end, stop }
    }

    fn fails(&self, record: &TrialRecord, random: &mut ChaCha8Rng) -> bool {
        let Outcome::Done { values, .. } = &record.outcome else {
            return false;
        };
        let time = values["time"];
        let fails = match self.fails {
            Fails::Never => false,
            Fails::Sometimes(chance) => (random.next_u64() as f64 / u64::MAX as f64) < chance,
            Fails::Longer(limit) => time > limit,
            Fails::Shorter(limit) => time < limit,
        };
        fails && on(&record.at, "way") == 1.0
    }

    pub(crate) fn plan(&self) -> Plan {
        let claim = |(place, kind): (usize, &ClaimKind)| Claim {
            standing: Default::default(),
            id: place.to_string(),
            text: String::new(),
            source: None,
            metric: "time".into(),
            kind: kind.clone(),
            published: None,
        };
        let experiment = Experiment {
            id: "synthetic/study".into(),
            title: String::new(),
            source: String::new(),
            driver: "synthetic".into(),
            fixed: Parameters::new(),
            axes: self.axes.clone(),
            exclude: vec![],
            beside: vec![],
            baseline: None,
            metrics: vec![Metric {
                name: "time".into(),
                statistic: Statistic::Median,
                across: Statistic::Median,
                from: None,
                unit: Unit::Nanoseconds,
                better: Better::Lower,
                work: Some("bytes".into()),
            }],
            parts: vec![],
            published: vec![],
            claims: self.claims.iter().enumerate().map(claim).collect(),
            exact: false,
            rounds: Rounds {
                least: LEAST,
                most: ROUNDS,
            },
        };
        let mut beside = experiment.clone();
        beside.id = "synthetic/beside".into();
        beside.claims = vec![experiment.claims[0].clone(); self.beside];
        beside.rounds.most = 0;
        Plan {
            schema: SCHEMA,
            run: String::new(),
            tare: String::new(),
            size: "quick".into(),
            seed: 0,
            budget_s: None,
            give_up_after: None,
            started: String::new(),
            directory: None,
            machine: Machine::default(),
            warnings: vec![],
            experiments: vec![experiment, beside],
        }
    }
}

/// An axis of whole numbers.
pub(crate) fn axis(name: &str, values: &[i64]) -> Axis {
    Axis {
        name: name.into(),
        values: values.iter().copied().map(Value::Int).collect(),
        log: false,
    }
}

/// The cells with these values.
pub(crate) fn cells(keys: &[(&str, i64)]) -> Selector {
    let key = |(name, value): &(&str, i64)| ((*name).to_owned(), Value::Int(*value));
    Selector(keys.iter().map(key).collect())
}

/// The point's value on an axis.
pub(crate) fn on(at: &Point, axis: &str) -> f64 {
    at.0[axis].as_f64().unwrap()
}
