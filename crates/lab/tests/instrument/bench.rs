//! What a study is, and how it is run.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::OnceLock;

use tare_lab::experiment::{Axis, Claim, ClaimKind, Experiment, Metric, Statistic};
use tare_lab::fingerprint::Machine;
use tare_lab::judge::{judge, Judging};
use tare_lab::plan::Plan;
use tare_lab::result::{ClaimResult, ExperimentResult, SCHEMA};
use tare_lab::sample::OPERATIONS;
use tare_lab::synthetic::{records, Noise, Truth};
use tare_lab::unit::{Better, Unit};
use tare_lab::value::{Parameters, Point, Selector, Value};

/// Runs of one set-up, and what is counted in them.
pub(crate) struct Study {
    /// The test that holds it to its limits.
    pub(crate) test: &'static str,
    /// How often it is run, each time with another seed.
    pub(crate) runs: u32,
    /// What is run.
    pub(crate) bench: fn() -> Bench,
    /// What is counted.
    pub(crate) figures: &'static [Figure],
    /// The rates, once measured.
    pub(crate) measured: OnceLock<Vec<f64>>,
}

/// A rate of a study.
pub(crate) struct Figure {
    /// In words.
    pub(crate) what: &'static str,
    /// Whether a run counts.
    pub(crate) counts: fn(&ExperimentResult) -> bool,
    /// What the rate must be.
    pub(crate) limit: Limit,
}

/// What a rate must be, as a share.
pub(crate) enum Limit {
    AtLeast(f64),
    AtMost(f64),
    /// Stated, so that nobody expects more.
    Stated,
}

impl Limit {
    pub(crate) fn holds(&self, rate: f64) -> bool {
        match *self {
            Limit::AtLeast(least) => rate >= least,
            Limit::AtMost(most) => rate <= most,
            Limit::Stated => true,
        }
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Limit::AtLeast(least) => write!(f, "≥ {} %", (least * 100.0).round()),
            Limit::AtMost(most) => write!(f, "≤ {} %", (most * 100.0).round()),
            Limit::Stated => f.write_str("stated"),
        }
    }
}

/// A synthetic experiment with its truth.
pub(crate) struct Bench {
    pub(crate) axes: Vec<Axis>,
    pub(crate) claims: Vec<ClaimKind>,
    /// The time that a cell takes on a perfect machine, in ns.
    pub(crate) truth: fn(&Point) -> f64,
    /// Bytes of work in a trial.
    pub(crate) work: fn(&Point) -> u64,
    pub(crate) noise: Noise,
    pub(crate) rounds: u32,
}

impl Study {
    /// The share of runs that each figure counts.
    pub(crate) fn rates(&self) -> &[f64] {
        self.measured.get_or_init(|| {
            let bench = (self.bench)();
            let mut plan = bench.plan();
            let mut hits = vec![0u32; self.figures.len()];
            for seed in 0..self.runs {
                plan.seed = u64::from(seed);
                let result = bench.run(&plan);
                for (hits, figure) in hits.iter_mut().zip(self.figures) {
                    *hits += u32::from((figure.counts)(&result));
                }
            }
            let share = |hits: &u32| f64::from(*hits) / f64::from(self.runs);
            hits.iter().map(share).collect()
        })
    }
}

impl Bench {
    fn run(&self, plan: &Plan) -> ExperimentResult {
        let records = records(plan, self.noise, |_, at| Truth {
            values: BTreeMap::from([("time".to_owned(), (self.truth)(at))]),
            counters: BTreeMap::from([
                (OPERATIONS.to_owned(), 1_000),
                ("bytes".to_owned(), (self.work)(at)),
            ]),
        });
        judge(&plan.experiments, &records, &Judging::default())
            .experiments
            .remove(0)
    }

    fn plan(&self) -> Plan {
        let claims = self.claims.iter().enumerate().map(|(place, kind)| Claim {
            standing: Default::default(),
            id: place.to_string(),
            text: String::new(),
            source: None,
            metric: "time".into(),
            kind: kind.clone(),
            published: None,
        });
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
            published: vec![],
            claims: claims.collect(),
            exact: false,
            rounds: Default::default(),
        };
        Plan {
            schema: SCHEMA,
            run: String::new(),
            tare: String::new(),
            size: "quick".into(),
            seed: 0,
            rounds: self.rounds,
            started: String::new(),
            directory: None,
            machine: Machine::default(),
            warnings: vec![],
            experiments: vec![experiment],
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

/// The only claim of a run.
pub(crate) fn only(result: &ExperimentResult) -> &ClaimResult {
    let [claim] = &result.claims[..] else {
        panic!("{} claims", result.claims.len());
    };
    claim
}
