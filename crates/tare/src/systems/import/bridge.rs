//! From an import to a run of the lab: its machine is "imported", its cells are the parameters in
//! the logs, and logs with the same parameters are rounds of one cell.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::SystemTime;

use anyhow::{bail, Context as _};
use tare_import::{Finding, Format, Input, Record, Run, Statistic};
use tare_lab::experiment::{
    Axis, Experiment, Metric, Rounds, Statistic as Of, IMPORTED, ROUNDS_MAX,
};
use tare_lab::fingerprint::Machine;
use tare_lab::plan::Plan;
use tare_lab::result::SCHEMA;
use tare_lab::sample::{Outcome, TrialRecord, OPERATIONS};
use tare_lab::store::{RunDirectory, AXES_MAX};
use tare_lab::unit::{Better, Dimension, Unit};
use tare_lab::value::{Parameters, Point, Selector, Value};

use super::Args;
use crate::terminal;

/// The most cells of the product of all parameters of an experiment.
const CELLS_MAX: f64 = 10_000.0;

/// The figures of one experiment.
#[derive(Default)]
struct Figures {
    metrics: Vec<Metric>,
    /// The cells in the order of the logs, and the values of each of their rounds.
    cells: Vec<(Point, Vec<Trial>)>,
    places: BTreeMap<String, usize>,
}

/// The values of one round of a cell.
struct Trial {
    /// The place of its run among those of all logs.
    run: usize,
    /// By metric: the parameters that the log has.
    printed: BTreeMap<String, tare_import::Parameters>,
    values: BTreeMap<String, f64>,
    counters: BTreeMap<String, u64>,
}

/// The id of an experiment on the command line.
pub(super) fn id(text: &str) -> Result<String, String> {
    let wrong = |c: char| !(c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'));
    let is_word = |word: &str| !word.is_empty() && !word.contains(wrong);
    let is_id = text
        .split_once('/')
        .filter(|(suite, name)| is_word(suite) && is_word(name));
    let id = is_id.map(|_| text.to_owned());
    id.ok_or_else(|| "expected an experiment's id, such as vita/software".to_owned())
}

/// Writes the figures as a run into the directory `out`.
pub(super) fn write(
    out: &Path,
    inputs: &[Input],
    findings: &[Finding],
    args: &Args,
) -> anyhow::Result<()> {
    let mut experiments: BTreeMap<String, Figures> = BTreeMap::new();
    let (mut printed, mut left_out) = (BTreeSet::new(), BTreeSet::new());
    for run in inputs.iter().flat_map(|input| &input.runs).enumerate() {
        take(run, args, &mut experiments, &mut printed, &mut left_out)?;
    }
    let mut wanted = args.metric.iter().map(|(figure, _)| figure);
    if let Some(absent) = wanted.find(|figure| !printed.contains(*figure)) {
        bail!(
            "--metric: found {absent}, expected a figure of the logs: {}",
            joined(printed)
        );
    }
    if experiments.is_empty() {
        let (out, left_out) = (out.display(), joined(left_out));
        bail!("{out}: the lab does not support the unit of any figure: {left_out}");
    }
    let files: Vec<&str> = inputs.iter().map(|input| input.file.as_str()).collect();
    let files = files.join(", ");
    let mut warnings = vec![format!(
        "The figures were imported from {files}: Tare did not measure them."
    )];
    warnings.extend(findings.iter().map(|finding| format!("{finding}.")));
    let name = out.file_name().unwrap_or("run".as_ref());
    let as_experiments = experiments
        .iter()
        .map(|(id, figures)| figures.experiment(id, &files));
    let plan = Plan {
        schema: SCHEMA,
        run: name.to_string_lossy().into_owned(),
        tare: env!("CARGO_PKG_VERSION").into(),
        size: IMPORTED.into(),
        started: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
        machine: Machine::imported(),
        warnings,
        experiments: as_experiments.collect::<anyhow::Result<_>>()?,
        ..Plan::default()
    };
    let mut directory = RunDirectory::create(out, plan).context("the run's directory")?;
    for (id, figures) in experiments {
        for (at, trials) in figures.cells {
            for (round, trial) in (0..).zip(trials) {
                let record = TrialRecord {
                    experiment: id.clone(),
                    round,
                    at: at.clone(),
                    again: false,
                    outcome: Outcome::Done {
                        values: trial.values,
                        samples: BTreeMap::new(),
                        counters: trial.counters,
                    },
                    elapsed_ms: 0.0,
                    overhead_ms: None,
                    run_ms: 0.0,
                    last_lines: Vec::new(),
                    notes: BTreeMap::new(),
                    log: None,
                };
                directory.append(record, &[])?;
            }
        }
    }
    if !left_out.is_empty() {
        let left_out = joined(left_out);
        let why = "not in the run, because the lab does not support their unit";
        terminal::say(&format!("tare: {why}: {left_out}"));
    }
    let out = out.display();
    terminal::say(&format!(
        "tare: run written; to show it: tare report {out} --cells"
    ));
    Ok(())
}

/// Checks that `--metric` names each figure and each metric once.
pub(super) fn check_metrics(metrics: &[(String, String)]) -> anyhow::Result<()> {
    for (place, (figure, metric)) in metrics.iter().enumerate() {
        for (other_figure, other_metric) in &metrics[..place] {
            if figure == other_figure || metric == other_metric {
                bail!(
                    "--metric: found {other_figure}={other_metric} and {figure}={metric}, expected \
                     each figure and each metric once"
                );
            }
        }
    }
    Ok(())
}

fn joined(names: BTreeSet<String>) -> String {
    names.into_iter().collect::<Vec<_>>().join(", ")
}

/// Sorts the figures of a run into experiments, cells and rounds; `all` gets their names.
fn take(
    (place, run): (usize, &Run),
    args: &Args,
    experiments: &mut BTreeMap<String, Figures>,
    all: &mut BTreeSet<String>,
    left_out: &mut BTreeSet<String>,
) -> anyhow::Result<()> {
    let is_sample = |record: &Record| record.statistic == Statistic::Sample;
    let repeats = Format::named(run.format).is_some_and(|format| format.repeats);
    let has_samples = repeats && run.records.iter().any(is_sample);
    for record in &run.records {
        let printed = match record.statistic {
            Statistic::Progress => continue,
            // The repetitions that a program made are rounds; the parts of one run are not.
            Statistic::Sample if repeats => record.figure.to_owned(),
            Statistic::Sample => continue,
            _ if has_samples => continue,
            _ => record.name(),
        };
        all.insert(printed.clone());
        let wanted = args.metric.iter().find(|(figure, _)| *figure == printed);
        let name = match wanted {
            Some((_, metric)) => metric.clone(),
            None if args.metric.is_empty() => printed,
            None => continue,
        };
        let Some(figure) = of_lab(record) else {
            left_out.insert(name);
            continue;
        };
        let at = point(record, &args.at);
        let id = args.id.clone().unwrap_or_else(|| {
            let axes: Vec<&str> = at.0.keys().map(String::as_str).collect();
            match axes.len() {
                0 => format!("imported/{}", run.format),
                _ => format!("imported/{}-by-{}", run.format, axes.join("-")),
            }
        });
        let counters = run.work().map(|(bytes, operations)| {
            BTreeMap::from([
                ("bytes".to_owned(), bytes),
                (OPERATIONS.to_owned(), operations),
            ])
        });
        let figures = experiments.entry(id).or_default();
        let counters = counters.unwrap_or_default();
        figures.add(&name, figure, at, (place, record), counters)?;
    }
    Ok(())
}

/// A value and unit of the lab; `None` if it has none for it.
fn of_lab(record: &Record) -> Option<(f64, Unit)> {
    let (factor, name) = match record.unit.name {
        "ps" => (1e-3, "ns"),
        "TiB" => (1024.0, "GiB"),
        "TiB/s" => (1024.0, "GiB/s"),
        "Mibit/s" => (1_048_576.0, "bit/s"),
        "cycles" => (1.0, "count"),
        name => (1.0, name),
    };
    Some((record.value * factor, name.parse().ok()?))
}

/// Parameters in words.
fn words(parameters: &tare_import::Parameters) -> String {
    let pairs = parameters.iter();
    let pairs = pairs.map(|(name, value)| format!("{name}={value}"));
    pairs.collect::<Vec<_>>().join(" ")
}

/// The cell of a figure.
fn point(record: &Record, at: &[(String, String)]) -> Point {
    let value = |text: &str| match (text.parse::<i64>(), text.parse::<f64>()) {
        (Ok(n), _) => Value::Int(n),
        (_, Ok(x)) if x.is_finite() => Value::Float(x),
        _ => Value::Text(text.to_owned()),
    };
    let printed = record.parameters.iter();
    let printed = printed.map(|(name, text)| ((*name).to_owned(), value(text)));
    let given = at.iter().map(|(name, text)| (name.clone(), value(text)));
    Point(if at.is_empty() {
        printed.collect()
    } else {
        given.collect()
    })
}

impl Figures {
    fn add(
        &mut self,
        name: &str,
        (value, unit): (f64, Unit),
        at: Point,
        (run, record): (usize, &Record),
        counters: BTreeMap<String, u64>,
    ) -> anyhow::Result<()> {
        let value = match self.metrics.iter().find(|metric| metric.name == name) {
            Some(metric) => unit
                .convert(value, metric.unit)
                .with_context(|| format!("the metric {name}"))?,
            None => {
                let names = [&record.name(), name];
                self.metrics.push(metric(names, unit, !counters.is_empty()));
                value
            }
        };
        if !value.is_finite() {
            bail!(
                "line {}: found {} {} of {name}, expected a number that is finite in units of the lab",
                record.line,
                record.value,
                record.unit
            );
        }
        let place = *self.places.entry(at.to_string()).or_insert_with(|| {
            self.cells.push((at, Vec::new()));
            self.cells.len() - 1
        });
        let trials = &mut self.cells[place].1;
        let first = trials.first().and_then(|trial| trial.printed.get(name));
        if let Some(first) = first.filter(|first| **first != record.parameters) {
            bail!(
                "found {name} of {} and of {} in one cell, expected the same: import the logs one by one",
                words(first),
                words(&record.parameters)
            );
        }
        let free = trials.iter().position(|trial| {
            // A program may print one percentile twice; anything else twice is two repetitions.
            let is_again = matches!(record.statistic, Statistic::Percentile(_));
            trial.run == run && (is_again || !trial.values.contains_key(name))
        });
        let round = free.unwrap_or(trials.len());
        if round == trials.len() {
            trials.push(Trial {
                run,
                printed: BTreeMap::new(),
                values: BTreeMap::new(),
                counters,
            });
        }
        if trials.len() > ROUNDS_MAX as usize {
            bail!("found more than {ROUNDS_MAX} values of {name} in one cell, expected at most that many rounds");
        }
        trials[round].values.insert(name.to_owned(), value);
        let printed = &mut trials[round].printed;
        printed.insert(name.to_owned(), record.parameters.clone());
        Ok(())
    }

    /// The experiment of these figures.
    fn experiment(&self, id: &str, files: &str) -> anyhow::Result<Experiment> {
        let mut axes: Vec<Axis> = Vec::new();
        for (name, value) in self.cells.iter().flat_map(|(point, _)| &point.0) {
            let known = axes.iter().position(|axis| axis.name == *name);
            let place = known.unwrap_or(axes.len());
            if known.is_none() {
                let (name, values) = (name.clone(), Vec::new());
                axes.push(Axis {
                    name,
                    values,
                    log: false,
                });
            }
            if !axes[place].values.contains(value) {
                axes[place].values.push(value.clone());
            }
        }
        let product: f64 = axes.iter().map(|axis| axis.values.len() as f64).product();
        if product > CELLS_MAX || axes.len() > AXES_MAX {
            bail!("{id}: the parameters of its figures span more than {CELLS_MAX} cells or {AXES_MAX} axes; import fewer logs, or give --at");
        }
        let rounds = self.cells.iter().map(|(_, trials)| trials.len()).max();
        let rounds = rounds.unwrap_or(1);
        let mut experiment = Experiment {
            id: id.to_owned(),
            title: format!("Imported: {}", id.rsplit('/').next().unwrap_or(id)),
            source: files.to_owned(),
            driver: IMPORTED.into(),
            fixed: Parameters::new(),
            axes,
            exclude: Vec::new(),
            beside: Vec::new(),
            baseline: None,
            metrics: self.metrics.clone(),
            parts: Vec::new(),
            published: Vec::new(),
            claims: Vec::new(),
            exact: false,
            rounds: Rounds::exactly(rounds as u32),
        };
        let absent = experiment.points().into_iter();
        let absent = absent.filter(|point| !self.places.contains_key(&point.to_string()));
        experiment.exclude = absent.map(|point| Selector(point.0)).collect();
        Ok(experiment)
    }
}

/// The metric of a figure, by the name that the log has and the one that it is given here.
fn metric(names: [&str; 2], unit: Unit, has_work: bool) -> Metric {
    // Less time, cost, spread and loss are better, more of the rest, of which is a rate without
    // losses.
    const LESS: &str = "lost loss error drop retransmits cycle exits miss alloc processor_time \
                        duplicated reordered";
    let is_less = |name: &str| {
        let is_spread = name.ends_with("_stdev") || name.ends_with("_spread");
        let has = || LESS.split(' ').any(|word| name.contains(word));
        is_spread && !name.ends_with("_within_stdev") || !name.starts_with("no_") && has()
    };
    let lower = unit.dimension() == Dimension::Time || names.into_iter().any(is_less);
    let name = names[1];
    Metric {
        name: name.to_owned(),
        statistic: Of::Median,
        across: Of::Median,
        from: None,
        unit,
        better: if lower { Better::Lower } else { Better::Higher },
        work: has_work.then(|| "bytes".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_is_better_unless_it_is_time_cost_spread_or_loss() {
        let better = |names, unit| metric(names, unit, false).better;
        let gigabits = Unit::GigabitsPerSecond;
        for name in ["no_drop_rate", "throughput", "request_rate_within_stdev"] {
            assert_eq!(better([name; 2], gigabits), Better::Higher, "{name}");
        }
        for name in [
            "drop_rate",
            "lost_packets",
            "get_misses",
            "retransmits",
            "allocations_mean",
            "remote_processor_time",
            "duplicated_messages",
            "reordered_messages",
            "request_rate_stdev",
            "request_rate_spread",
        ] {
            assert_eq!(better([name; 2], gigabits), Better::Lower, "{name}");
            assert_eq!(better([name, "x"], gigabits), Better::Lower, "{name} as x");
        }
    }
}
