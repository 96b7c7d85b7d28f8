//! An instrument whose truth is known: readings with ordered noise, so that the lab itself can be
//! tested.
//!
//! A reading is the truth times a factor of four parts: log-normal noise, which may be correlated
//! from trial to trial, a slow drift across the run, now and then a stall, and bursts of slow
//! trials. `tests/instrument.rs` runs thousands of such runs through the judge.

use std::collections::BTreeMap;

use rand_chacha::ChaCha8Rng;
use rand_core::{Rng, SeedableRng};

use crate::experiment::Experiment;
use crate::plan::Plan;
use crate::sample::{Outcome, TrialRecord};
use crate::unit::Better;
use crate::value::Point;

/// The disturbances of a reading. The default is a perfect instrument.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Noise {
    /// Standard deviation of a reading's logarithm: 0.03 is 3 % noise.
    pub sigma: f64,
    /// By how much the machine slows down from the first trial to the last, as a logarithm; a
    /// negative drift speeds it up.
    pub drift: f64,
    /// The chance that a trial stalls, 0 to 1.
    pub stall_probability: f64,
    /// The factor by which a stalled trial takes longer.
    pub stall_factor: f64,
    /// The correlation of the noise of a trial with that of the next, 0 to 1, in the order in which
    /// they run.
    pub correlation: f64,
    /// The chance that a burst begins with a trial, 0 to 1.
    pub burst_probability: f64,
    /// The number of trials that it lasts.
    pub burst_length: u32,
    /// The factor by which a trial in a burst takes longer.
    pub burst_factor: f64,
}

impl Noise {
    /// A perfect instrument.
    pub const NONE: Noise = Noise {
        sigma: 0.0,
        drift: 0.0,
        stall_probability: 0.0,
        stall_factor: 1.0,
        correlation: 0.0,
        burst_probability: 0.0,
        burst_length: 0,
        burst_factor: 1.0,
    };
}

impl Default for Noise {
    fn default() -> Self {
        Noise::NONE
    }
}

/// A noisy instrument; the same noise and seed give the same readings.
#[derive(Clone, Debug)]
pub struct Instrument {
    noise: Noise,
    random: ChaCha8Rng,
    /// The noise of the last trial, in standard deviations; `None` before the first.
    last: Option<f64>,
    /// Trials that are left of a burst.
    burst: u32,
}

impl Instrument {
    /// An instrument with that noise.
    pub fn new(noise: Noise, seed: u64) -> Self {
        Instrument {
            noise,
            random: ChaCha8Rng::seed_from_u64(seed),
            last: None,
            burst: 0,
        }
    }

    /// One reading of a quantity of this `truth`, above 0, at a `position` in the run from 0 (its
    /// start) to 1 (its end). Noise that slows the machine down makes a time longer and a
    /// throughput smaller.
    pub fn sample(&mut self, truth: f64, better: Better, position: f64) -> f64 {
        let slower = self.slower(position);
        match better {
            Better::Lower => truth * slower,
            Better::Higher => truth / slower,
        }
    }

    /// Returns the factor by which the next trial takes longer than an undisturbed one.
    fn slower(&mut self, position: f64) -> f64 {
        let fresh = self.normal();
        let kept = self.noise.correlation;
        // An autoregression of first order, whose deviation stays 1.
        let now = match self.last {
            Some(last) => kept * last + (1.0 - kept * kept).sqrt() * fresh,
            None => fresh,
        };
        self.last = Some(now);
        // Drawn even where no stall or burst can come, so that noise alone decides what follows.
        let stalls = self.uniform() < self.noise.stall_probability;
        if self.uniform() < self.noise.burst_probability {
            self.burst = self.noise.burst_length;
        }
        let mut log = self.noise.sigma * now + self.noise.drift * position;
        if stalls {
            log += self.noise.stall_factor.ln();
        }
        if self.burst > 0 {
            self.burst -= 1;
            log += self.noise.burst_factor.ln();
        }
        log.exp()
    }

    /// A draw of the standard normal distribution (Box and Muller, "A note on the generation of
    /// random normal deviates", 1958).
    fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.uniform()).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.uniform()).cos()
    }

    /// A draw from [0, 1).
    fn uniform(&mut self) -> f64 {
        (self.random.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// Returns the reading of a cell on a perfect machine.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Truth {
    /// Metric name to value, in the metric's unit.
    pub values: BTreeMap<String, f64>,
    /// Work done in a trial, by counter; counted without noise.
    pub counters: BTreeMap<String, u64>,
}

/// The experiment and the cell of a trial, by their places, and whether it is the second trial of
/// the baseline.
type Key = (usize, usize, bool);

/// Runs of one plan with one seed after the other, in which every experiment runs all its rounds.
/// Their records and trials are made once: for thousands of runs that would be a third of the time.
#[derive(Clone, Debug)]
pub struct Runs {
    experiments: Vec<Experiment>,
    /// The trials of a round before they are shuffled, by the place of the experiment.
    trials: Vec<Vec<Key>>,
    records: Vec<TrialRecord>,
    /// The trial of each record.
    keys: Vec<Key>,
    /// The cells on a perfect machine, by the places of the experiment and of the cell.
    truths: Vec<Vec<Truth>>,
}

impl Runs {
    /// The runs of `plan`, whose cells have these figures on a perfect machine.
    pub fn new(plan: &Plan, truth: impl Fn(&Experiment, &Point) -> Truth) -> Runs {
        let points: Vec<Vec<Point>> = plan.experiments.iter().map(Experiment::points).collect();
        let of = |(experiment, points): (&Experiment, &Vec<Point>)| -> Vec<Truth> {
            points.iter().map(|at| truth(experiment, at)).collect()
        };
        let truths: Vec<Vec<Truth>> = plan.experiments.iter().zip(&points).map(of).collect();
        let of = |place: usize| -> Vec<Key> {
            let trials = plan.unshuffled(place, 0).into_iter();
            trials
                .map(|it| (it.experiment, it.cell, it.again))
                .collect()
        };
        let trials: Vec<Vec<Key>> = (0..plan.experiments.len()).map(of).collect();
        let (mut records, mut keys) = (Vec::new(), Vec::new());
        each_trial(plan, &trials, |key, round, _, _| {
            let (experiment, cell, again) = key;
            let Truth { values, counters } = &truths[experiment][cell];
            let samples = values
                .iter()
                .map(|(name, value)| (name.clone(), vec![*value]));
            keys.push(key);
            records.push(TrialRecord {
                experiment: plan.experiments[experiment].id.clone(),
                round,
                outcome: Outcome::Done {
                    samples: samples.collect(),
                    values: values.clone(),
                    counters: counters.clone(),
                },
                at: points[experiment][cell].clone(),
                again,
                elapsed_ms: 0.0,
                overhead_ms: None,
                run_ms: 0.0,
                last_lines: Vec::new(),
                notes: BTreeMap::new(),
                log: None,
            });
        });
        Runs {
            experiments: plan.experiments.clone(),
            trials,
            records,
            keys,
            truths,
        }
    }

    /// The records of the run with the seed of `plan`, in its order, as an instrument with this
    /// noise would leave them. A caller that changes an outcome restores it before the next run.
    ///
    /// # Panics
    /// The plan is not the one that these are runs of, or a record has lost its values.
    pub fn run(&mut self, plan: &Plan, noise: Noise) -> &mut [TrialRecord] {
        assert!(
            plan.experiments == self.experiments,
            "found other experiments, expected those of the plan that these are runs of"
        );
        let mut instrument = Instrument::new(noise, plan.seed);
        each_trial(plan, &self.trials, |key, _, place, position| {
            let (experiment, cell, _) = key;
            // The trials of a round are the same ones with every seed, in another order.
            let found = self.keys[place..].iter().position(|other| *other == key);
            let found = place + found.expect("a plan of the same trials");
            self.keys.swap(place, found);
            self.records.swap(place, found);
            let Outcome::Done {
                samples, values, ..
            } = &mut self.records[place].outcome
            else {
                panic!("found a record without values, expected those that were made");
            };
            let truth = &self.truths[experiment][cell];
            let experiment = &plan.experiments[experiment];
            let kept = values.values_mut().zip(samples.values_mut());
            for ((name, truth), (value, sample)) in truth.values.iter().zip(kept) {
                let better = experiment.metric(name).map_or(Better::Lower, |m| m.better);
                *value = instrument.sample(*truth, better, position);
                sample.fill(*value);
            }
        });
        &mut self.records
    }
}

/// Calls `each` for every trial of a run in which every experiment runs all its rounds, in the
/// plan's order, with the round, the trial's place in the run and its position there from 0 to 1.
/// `trials` are those of a round of each experiment before they are shuffled.
fn each_trial(plan: &Plan, trials: &[Vec<Key>], mut each: impl FnMut(Key, u32, usize, f64)) {
    let most = |place: &usize| plan.experiments[*place].rounds.most;
    let rounds = (0..plan.experiments.len()).map(|place| most(&place));
    let rounds = rounds.max().unwrap_or(0);
    let mut before = 0;
    let mut shuffled: Vec<Key> = Vec::new();
    for round in 0..rounds {
        let runs = |place: &usize| round < most(place);
        let mut order: Vec<usize> = (0..plan.experiments.len()).filter(runs).collect();
        // One alone has no order, and a generator for it would be half of all.
        if order.len() > 1 {
            order = plan.order(round);
            order.retain(runs);
        }
        shuffled.clear();
        for place in order {
            let start = shuffled.len();
            shuffled.extend(&trials[place]);
            plan.shuffle_trials(place, round, &mut shuffled[start..]);
        }
        let count = shuffled.len();
        for (place, key) in shuffled.iter().enumerate() {
            let position = (f64::from(round) + place as f64 / count as f64) / f64::from(rounds);
            each(*key, round, before + place, position);
        }
        before += count;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::median;

    fn logs(noise: Noise, better: Better) -> Vec<f64> {
        let mut instrument = Instrument::new(noise, 1);
        let mut sample = |i: u32| instrument.sample(2.0, better, f64::from(i) / 1e4);
        (0..10_000).map(|i| (sample(i) / 2.0).ln()).collect()
    }

    #[test]
    fn a_perfect_instrument_reads_the_truth() {
        assert!(logs(Noise::default(), Better::Lower)
            .iter()
            .all(|log| *log == 0.0));
    }

    #[test]
    fn the_noise_is_log_normal_with_the_ordered_deviation() {
        let sigma = 0.03;
        let logs = logs(
            Noise {
                sigma,
                ..Noise::default()
            },
            Better::Lower,
        );
        let variance = logs.iter().map(|log| log * log).sum::<f64>() / logs.len() as f64;
        assert!((variance.sqrt() / sigma - 1.0).abs() < 0.03);
        assert!(median(&logs).unwrap().abs() < 0.002);
        let within = logs.iter().filter(|log| log.abs() < 1.96 * sigma).count();
        assert!((9_430..9_570).contains(&within), "{within}");
    }

    #[test]
    fn correlated_noise_keeps_its_deviation_and_forgets_at_the_ordered_rate() {
        let noise = Noise {
            sigma: 1.0,
            correlation: 0.8,
            ..Noise::default()
        };
        let logs = logs(noise, Better::Lower);
        let mean_of = |products: &mut dyn Iterator<Item = f64>| products.sum::<f64>() / 1e4;
        let variance = mean_of(&mut logs.iter().map(|log| log * log));
        let next = mean_of(&mut logs.windows(2).map(|two| two[0] * two[1]));
        assert!((variance - 1.0).abs() < 0.1, "{variance}");
        assert!((next / variance - 0.8).abs() < 0.02, "{next}");
    }

    #[test]
    fn a_burst_slows_the_ordered_number_of_trials_one_after_the_other() {
        let noise = Noise {
            burst_probability: 0.001,
            burst_length: 40,
            burst_factor: 2.0,
            ..Noise::default()
        };
        let slow: Vec<bool> = logs(noise, Better::Lower)
            .iter()
            .map(|l| *l > 0.5)
            .collect();
        let starts = slow.windows(2).filter(|two| !two[0] && two[1]).count();
        let all = slow.iter().filter(|slow| **slow).count();
        assert!((4..30).contains(&starts), "{starts}");
        assert!(all >= starts * 39, "{all} in {starts}");
    }

    #[test]
    fn drift_and_stalls_lengthen_times_and_lower_throughputs() {
        let noise = Noise {
            drift: 0.2,
            stall_probability: 0.1,
            stall_factor: 3.0,
            ..Noise::default()
        };
        let times = logs(noise, Better::Lower);
        assert!(times[9_000..].iter().all(|log| *log > 0.17));
        let stalls = times.iter().filter(|log| **log > 1.0).count();
        assert!((900..1_100).contains(&stalls), "{stalls}");
        let rates = logs(noise, Better::Higher);
        assert!(times
            .iter()
            .zip(&rates)
            .all(|(time, rate)| (time + rate).abs() < 1e-12));
    }
}
