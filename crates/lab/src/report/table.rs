//! The tables of a report, as text: what every format renders, so that all of them say the same.

use std::collections::HashMap;

use super::words::{evidence, figure, interval, published, verdicts, words, DASH};
use crate::experiment::{Published, Standing};
use crate::result::{
    p_in_words, ClaimResult, Evidence, ExperimentResult, Failures, RunResult, Verdict,
};
use crate::text::{count, json_for_terminals};
use crate::unit::{exact, significant, Better};
use crate::value::Point;

/// A table; all of its text is from outside until a renderer has escaped it.
pub(super) struct Table {
    /// Its title.
    pub(super) title: String,
    pub(super) columns: Vec<Column>,
    pub(super) rows: Vec<Row>,
    /// Lines below all rows.
    pub(super) below: Vec<String>,
}

/// The head of a column and the kind of its cells.
pub(super) struct Column {
    pub(super) head: String,
    pub(super) kind: Kind,
}

/// The alignment and line breaking of a column's cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Words; broken into lines where there is too little room.
    Words,
    /// A figure; right-aligned, never broken.
    Figure,
}

/// One row.
#[derive(Default)]
pub(super) struct Row {
    /// The verdict, in tables of claims; rows of one verdict stand together.
    pub(super) verdict: Option<Verdict>,
    /// The claim's id, in tables of claims.
    pub(super) id: String,
    /// One entry per column.
    pub(super) cells: Vec<Cell>,
    /// Lines below the row, across all columns.
    pub(super) notes: Vec<Note>,
}

/// A cell: its text and a second, less prominent one.
#[derive(Default)]
pub(super) struct Cell {
    pub(super) text: String,
    pub(super) under: String,
}

/// A line below a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum About {
    /// The publication of a claim, and its id.
    Source,
    /// The reason for the verdict, what would decide it, or why there is no figure.
    Reason,
    /// Trials that failed.
    Failure,
    /// A line that a failed trial printed.
    Printed,
}

/// The subject of a note, and its text.
pub(super) type Note = (About, String);

impl<T: Into<String>> From<T> for Cell {
    fn from(text: T) -> Cell {
        Cell {
            text: text.into(),
            under: String::new(),
        }
    }
}

impl Cell {
    /// Both texts on one line.
    pub(super) fn line(&self) -> String {
        match self.under.as_str() {
            "" => self.text.clone(),
            under => format!("{} {under}", self.text),
        }
    }
}

impl Table {
    pub(super) fn new(title: impl Into<String>, columns: &[(&str, Kind)]) -> Table {
        let column = |&(head, kind): &(&str, Kind)| Column {
            head: head.to_owned(),
            kind,
        };
        Table {
            title: title.into(),
            columns: columns.iter().map(column).collect(),
            rows: Vec::new(),
            below: Vec::new(),
        }
    }
}

/// The statements of one standing, with the experiment of each, most urgent verdict first.
pub(super) fn statements(
    run: &RunResult,
    standing: Standing,
) -> Vec<(&ExperimentResult, &ClaimResult)> {
    let mut all: Vec<_> = run
        .experiments
        .iter()
        .flat_map(|experiment| {
            of(experiment, standing)
                .iter()
                .map(move |it| (experiment, it))
        })
        .collect();
    let order = verdicts(standing);
    all.sort_by_key(|(_, it)| order.iter().position(|&verdict| verdict == it.verdict));
    all
}

fn of(experiment: &ExperimentResult, standing: Standing) -> &[ClaimResult] {
    match standing {
        Standing::Claim => &experiment.claims,
        Standing::Target => &experiment.targets,
    }
}

/// Returns the name of the statements of a standing.
pub(super) fn name(standing: Standing) -> &'static str {
    match standing {
        Standing::Claim => "Published claims",
        Standing::Target => "Targets",
    }
}

/// `Published claims: 9 reproduced, 1 not reproduced`; `None` if the run has none.
pub(super) fn summary(run: &RunResult, standing: Standing) -> Option<String> {
    let [no, open, yes, untestable] = verdicts(standing);
    let counts: Vec<String> = [yes, no, open, untestable]
        .into_iter()
        .map(|verdict| (counted(run, standing, verdict), verdict))
        .filter(|(count, _)| *count > 0)
        .map(|(count, verdict)| format!("{count} {}", words(verdict)))
        .collect();
    (!counts.is_empty()).then(|| format!("{}: {}", name(standing), counts.join(", ")))
}

/// Returns the number of statements of a standing with that verdict.
pub(super) fn counted(run: &RunResult, standing: Standing, verdict: Verdict) -> usize {
    let experiments = run.experiments.iter();
    let all = experiments.flat_map(|experiment| of(experiment, standing));
    all.filter(|it| it.verdict == verdict).count()
}

/// The table of one standing.
pub(super) fn claims(run: &RunResult, standing: Standing) -> Table {
    let what = match standing {
        Standing::Claim => "Claim",
        Standing::Target => "Target",
    };
    let mut columns = vec![
        (what, Kind::Words),
        ("Measured [95 %]", Kind::Figure),
        ("Criterion", Kind::Words),
        (Evidence::NAME, Kind::Figure),
        ("Rounds", Kind::Figure),
    ];
    if standing == Standing::Claim {
        columns.insert(3, ("Published", Kind::Figure));
    }
    let mut table = Table::new(name(standing), &columns);
    for (experiment, claim) in statements(run, standing) {
        let (text, under) = figure(experiment, claim);
        let mut cells = vec![
            claim.text.as_str().into(),
            Cell { text, under },
            claim.criterion.as_str().into(),
            evidence(experiment, claim).into(),
            claim.n.to_string().into(),
        ];
        // A target has no publication: neither a published figure nor a source.
        let mut source = claim.id.clone();
        if standing == Standing::Claim {
            cells.insert(3, published(claim).into());
            source = format!("{} · {source}", claim.source);
        }
        let mut notes = vec![(About::Source, source)];
        notes.extend(claim.reason.clone().map(|reason| (About::Reason, reason)));
        notes.extend(claim.failures.iter().map(|f| (About::Failure, failed(f))));
        table.rows.push(Row {
            verdict: Some(claim.verdict),
            id: claim.id.clone(),
            cells,
            notes,
        });
    }
    table
}

/// The failed trials of a cell in one sentence.
pub(super) fn failed(failures: &Failures) -> String {
    let Failures { failed, of, at, .. } = failures;
    let (of, cell) = (count(*of, "trial"), at.in_words());
    let mut text = format!("{failed} of {of} of {cell} failed");
    if !failures.reason.is_empty() {
        text += &format!(": {}", failures.reason);
    }
    text
}

/// Every cell of the run that has failed trials: how many, why, what the last one printed.
pub(super) fn failed_trials(run: &RunResult) -> Table {
    let columns = [
        ("Experiment", Kind::Words),
        ("Cell", Kind::Words),
        ("Failed", Kind::Figure),
        ("Reason", Kind::Words),
    ];
    let mut table = Table::new("Failed trials", &columns);
    for experiment in &run.experiments {
        for failures in &experiment.failures {
            let mut notes: Vec<Note> = Vec::new();
            let lines = failures.last_lines.iter().cloned();
            notes.extend(lines.map(|line| (About::Printed, line)));
            let log = failures.log.as_ref();
            notes.extend(log.map(|log| (About::Source, format!("log: {log}"))));
            let failed = format!("{} of {}", failures.failed, failures.of);
            let reason = match failures.reason.as_str() {
                "" => DASH,
                reason => reason,
            };
            table.rows.push(Row {
                cells: vec![
                    experiment.id.as_str().into(),
                    failures.at.in_words().into(),
                    failed.into(),
                    reason.into(),
                ],
                notes,
                ..Row::default()
            });
        }
    }
    table
}

/// `Failed trials: 12 of 3 cells`; `None` if none failed.
pub(super) fn failed_summary(run: &RunResult) -> Option<String> {
    let all = run.experiments.iter();
    let all: Vec<&Failures> = all.flat_map(|experiment| &experiment.failures).collect();
    let failed: usize = all.iter().map(|failures| failures.failed).sum();
    let cells = count(all.len(), "cell");
    (failed > 0).then(|| format!("Failed trials: {failed} of {cells}"))
}

/// The metrics of the cells, in order, each once.
pub(super) fn metrics(experiment: &ExperimentResult) -> Vec<&str> {
    let mut metrics: Vec<&str> = Vec::new();
    for cell in &experiment.cells {
        if !metrics.contains(&cell.metric.as_str()) {
            metrics.push(&cell.metric);
        }
    }
    metrics
}

/// The good direction in words.
pub(super) fn direction(better: Better) -> &'static str {
    match better {
        Better::Higher => "higher is better",
        Better::Lower => "lower is better",
    }
}

/// The cells of one metric, all in one unit.
pub(super) fn cells(experiment: &ExperimentResult, metric: &str) -> Table {
    let cells = experiment.cells_of(metric);
    let all_published = experiment.published_of(metric);
    let Some(first) = cells.first() else {
        return Table::new(metric, &[]);
    };
    let medians: Vec<f64> = cells.iter().filter_map(|cell| cell.median).collect();
    let short = first.unit.short(&medians);
    let shown = |value: f64| significant(value / short.per);
    let printed = |value: f64| exact(value / short.per);
    let works = cells.iter().any(|cell| cell.work_per_operation.is_some());
    let title = format!("{metric} in {}, {}", short.unit, direction(first.better));
    let mut columns: Vec<(&str, Kind)> = vec![
        ("Cell", Kind::Words),
        ("Median [95 %]", Kind::Figure),
        ("Rounds", Kind::Figure),
        ("Published", Kind::Figure),
    ];
    if works {
        columns.push(("Work per operation", Kind::Figure));
    }
    let mut table = Table::new(title, &columns);
    let mut published: HashMap<String, Vec<&Published>> = HashMap::new();
    for value in &all_published {
        published.entry(json(&value.at)).or_default().push(value);
    }
    let listed = |values: &[&Published]| match values {
        [] => DASH.to_owned(),
        values => values
            .iter()
            .map(|p| printed(p.value))
            .collect::<Vec<_>>()
            .join(", "),
    };
    for cell in &cells {
        let mine = published.remove(&json(&cell.at)).unwrap_or_default();
        let mut row = vec![
            cell.at.to_string().into(),
            Cell {
                text: cell.median.map_or(DASH.to_owned(), shown),
                under: match cell.ci95 {
                    Some([low, high]) if experiment.exact && low == high => String::new(),
                    Some(ci95) => interval(ci95, short.per),
                    None => String::new(),
                },
            },
            cell.n.to_string().into(),
            listed(&mine).into(),
        ];
        if works {
            row.push(
                cell.work_per_operation
                    .map_or(DASH.to_owned(), significant)
                    .into(),
            );
        }
        let mut notes: Vec<Note> = Vec::new();
        if cell.failed > 0 {
            notes.push((
                About::Failure,
                format!("{} failed", count(cell.failed, "trial")),
            ));
        }
        let remarks = cell.reason.iter().chain(&cell.notes);
        notes.extend(remarks.map(|remark| (About::Reason, remark.clone())));
        table.rows.push(Row {
            cells: row,
            notes,
            ..Row::default()
        });
    }
    for value in &all_published {
        if let Some(values) = published.remove(&json(&value.at)) {
            let mut row: Vec<Cell> = vec![
                value.at.to_string().into(),
                DASH.into(),
                "0".into(),
                listed(&values).into(),
            ];
            row.extend(works.then(|| DASH.into()));
            table.rows.push(Row {
                cells: row,
                notes: vec![(About::Reason, "not in this machine’s matrix".to_owned())],
                ..Row::default()
            });
        }
    }
    table.below = sources(&all_published, printed);
    table
}

/// The sources of published values: each once, with its values.
fn sources(published: &[&Published], shown: impl Fn(f64) -> String) -> Vec<String> {
    let mut sources: Vec<(&str, Vec<String>)> = Vec::new();
    for value in published {
        let Some(source) = value.source.as_deref() else {
            continue;
        };
        let shown = shown(value.value);
        match sources.iter_mut().find(|(known, _)| *known == source) {
            Some((_, values)) => values.push(shown),
            None => sources.push((source, vec![shown])),
        }
    }
    let sources = sources.into_iter();
    let sources = sources.map(|(source, of)| format!("Published {}: {source}", of.join(", ")));
    sources.collect()
}

/// The A/A cells: how far the machine is from agreeing with itself.
pub(super) fn noise(experiment: &ExperimentResult) -> Table {
    let columns = [
        ("Metric", Kind::Words),
        ("Baseline", Kind::Words),
        ("Second / first [95 %]", Kind::Figure),
        ("p", Kind::Figure),
        ("Rounds", Kind::Figure),
    ];
    let mut table = Table::new("Noise floor: the baseline against itself", &columns);
    table.rows = experiment
        .noise
        .iter()
        .map(|noise| Row {
            cells: vec![
                noise.metric.as_str().into(),
                noise.at.to_string().into(),
                Cell {
                    text: significant(noise.ratio),
                    under: interval(noise.ci95, 1.0),
                },
                p_in_words(noise.p).into(),
                noise.n.to_string().into(),
            ],
            ..Row::default()
        })
        .collect();
    table
}

/// Returns the title: what was measured and on what, `rdrand and vita on Xeon, 2 processors`.
pub(super) fn title(run: &RunResult) -> String {
    let mut suites: Vec<&str> = Vec::new();
    for experiment in &run.experiments {
        let suite = experiment.id.split('/').next().unwrap_or(&experiment.id);
        if !suites.contains(&suite) {
            suites.push(suite);
        }
    }
    let suites = match suites.as_slice() {
        [] => "No experiment".to_owned(),
        [one] => (*one).to_owned(),
        [first @ .., last] if first.len() < 6 => format!("{} and {last}", first.join(", ")),
        many => format!(
            "{} and {} more suites",
            many[..5].join(", "),
            many.len() - 5
        ),
    };
    let machine = run
        .machine
        .cpu_model
        .as_deref()
        .unwrap_or("unknown processor");
    let machine: Vec<&str> = machine.split_whitespace().collect();
    let machine = machine.join(" ");
    match run.machine.cpus {
        0 => format!("{suites}, {machine}"),
        cpus => format!("{suites} on {machine}, {}", count(cpus, "processor")),
    }
}

/// Returns a sentence on the tests that the correction covers; `None` if there are none.
pub(super) fn correction(run: &RunResult, standing: Standing) -> Option<String> {
    let families = run
        .families
        .iter()
        .filter(|family| family.standing == standing);
    let families: Vec<String> = families
        .filter(|family| family.tests > 0)
        .map(|family| {
            let alpha = significant(100.0 * family.alpha);
            format!(
                "{} of {} (at most {alpha} %)",
                count(family.tests, "test"),
                family.suite
            )
        })
        .collect();
    (!families.is_empty()).then(|| {
        format!(
            "Corrected for multiple tests, with the chance of any false verdict in one direction: {}.",
            families.join(", ")
        )
    })
}

/// Returns a sentence on the error rate of the whole run; `None` if nothing was tested.
pub(super) fn error_rate(run: &RunResult) -> Option<String> {
    let families = match run.families.len() {
        0 => return None,
        1 => "one family".to_owned(),
        n => format!("{n} families"),
    };
    let rate = significant(100.0 * run.error_rate);
    Some(format!(
        "The chance of any false verdict of one direction in this run is at most {rate} % \
         ({families} of claims or targets)."
    ))
}

/// Returns a sentence on what [`error_rate`] assumes; `None` if it assumes nothing of the rounds.
pub(super) fn independence(run: &RunResult) -> Option<String> {
    let alone = match run.assuming_independent_rounds.len() {
        0 => return None,
        1 => "the claim or target".to_owned(),
        n => format!("the {n} claims and targets"),
    };
    Some(format!(
        "For {alone} on a figure alone, without a ratio to another cell of the same round, this assumes \
         independent rounds: false verdicts are more frequent where a disturbance lasts for several."
    ))
}

/// A point as JSON, as data attributes and the CSV have it.
pub(super) fn json(point: &Point) -> String {
    // A map of names to plain values always has a JSON form.
    json_for_terminals(&serde_json::to_string(point).unwrap_or_default())
}
