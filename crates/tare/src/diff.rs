//! `tare diff`: two runs side by side.

use std::fmt::Write as _;
use std::path::Path;
use std::process::ExitCode;

use tare_lab::diff::{self, CellChange, CellWithoutValue, Condition, RunDiff, VerdictChange};
use tare_lab::plan::Plan;
use tare_lab::report::text::clean;
use tare_lab::result::RunResult;
use tare_lab::store::RunDirectory;
use tare_lab::unit::{significant, Unit};

use crate::{cli, report, terminal};

/// The longest value of a condition that is printed whole, in characters.
const CONDITION_MAX: usize = 60;

/// Compares two runs and prints what changed.
pub(crate) fn diff(arguments: &cli::Diff) -> anyhow::Result<ExitCode> {
    let (before, after) = (read(&arguments.before)?, read(&arguments.after)?);
    let changes = diff::diff(
        (&before.0, &before.1.experiments),
        (&after.0, &after.1.experiments),
    );
    if arguments.json {
        terminal::print_last(&terminal::json(&changes)?)?;
    } else {
        terminal::print_last(&terminal::fitted(&text(&changes, arguments.all)))?;
    }
    let cells = changes.cells.len() + changes.without_value.len();
    if changes.verdicts.is_empty() && cells == 0 {
        terminal::say("tare: the two runs have no claim and no cell in common");
        return Ok(ExitCode::from(2));
    }
    Ok(ExitCode::SUCCESS)
}

fn read(path: &Path) -> anyhow::Result<(RunResult, Plan)> {
    let (plan, records) = RunDirectory::read(path)?;
    Ok((report::judged(&plan, &records), plan))
}

fn text(changes: &RunDiff, all: bool) -> String {
    let mut out = String::new();
    let _ = writeln!(
        out,
        "before: {}\nafter:  {}",
        clean(&changes.before),
        clean(&changes.after)
    );
    out.push_str(
        "Two runs at two times: their rounds are not paired, so a difference is shown, not judged.\n\
         For a verdict, measure both variants in the rounds of one run (tare compare).\n",
    );
    if !changes.conditions.is_empty() {
        out.push_str("\nConditions that differ\n");
        for condition in &changes.conditions {
            let _ = writeln!(out, "  {}", of_condition(condition));
        }
    }
    let changed = |verdict: &&VerdictChange| verdict.before != verdict.after;
    let verdicts: Vec<&VerdictChange> = changes.verdicts.iter().filter(changed).collect();
    let _ = writeln!(
        out,
        "\nVerdicts: {} changed of {}",
        verdicts.len(),
        changes.verdicts.len()
    );
    for verdict in verdicts {
        let _ = writeln!(out, "  {}", of_verdict(verdict));
    }
    let mut cells: Vec<&CellChange> = changes
        .cells
        .iter()
        .filter(|cell| all || cell.apart == Some(true) || cell.other_work.is_some())
        .collect();
    cells.sort_by(|a, b| size(b).total_cmp(&size(a)));
    let of_kind = |exact: bool| {
        let cells = || changes.cells.iter().filter(move |cell| cell.exact == exact);
        let apart = cells().filter(|cell| cell.apart == Some(true));
        (apart.count(), cells().count())
    };
    let mut counts = Vec::new();
    if let (apart, of @ 1..) = of_kind(false) {
        counts.push(format!(
            "{apart} of {of} with 95 % intervals that do not overlap"
        ));
    }
    if let (apart, of @ 1..) = of_kind(true) {
        counts.push(format!("{apart} of {of} of deterministic trials changed"));
    }
    if counts.is_empty() {
        counts.push("none in common".to_owned());
    }
    let _ = writeln!(
        out,
        "\nMedians: {}{}",
        counts.join(", "),
        if all { "" } else { " (--all shows every cell)" }
    );
    for cell in cells {
        let _ = writeln!(out, "  {}", of_cell(cell));
    }
    if !changes.without_value.is_empty() {
        out.push_str("\nA value in one run only\n");
        for cell in &changes.without_value {
            let _ = writeln!(out, "  {}", of_cell_without_value(cell));
        }
    }
    for (run, names) in [
        ("before", &changes.only_before),
        ("after", &changes.only_after),
    ] {
        if !names.is_empty() {
            let _ = writeln!(out, "\nOnly in the run {run}");
            for name in names {
                let _ = writeln!(out, "  {}", clean(name));
            }
        }
    }
    out
}

fn of_condition(condition: &Condition) -> String {
    let shown = |value: &Option<String>| match value {
        None => Some("unknown".to_owned()),
        Some(value) if value.chars().count() <= CONDITION_MAX => Some(clean(value)),
        Some(_) => None,
    };
    let what = clean(&condition.what);
    match (shown(&condition.before), shown(&condition.after)) {
        (Some(before), Some(after)) => format!("{what}: {before} → {after}"),
        _ => format!("{what} (--json has both)"),
    }
}

fn of_verdict(verdict: &VerdictChange) -> String {
    let measured = [verdict.measured_before, verdict.measured_after];
    format!(
        "{}: {} → {} ({}){}",
        clean(&verdict.id),
        verdict.before,
        verdict.after,
        in_one_unit(verdict.unit, measured),
        if verdict.same_criterion {
            ""
        } else {
            "; the criterion changed"
        }
    )
}

fn of_cell(cell: &CellChange) -> String {
    let ratio = cell.ratio.map_or("–".to_owned(), significant);
    if let Some([before, after]) = cell.other_work {
        return format!(
            "{} {} {}: not the same work: {} and {} per operation",
            clean(&cell.experiment),
            clean(&cell.at.in_words()),
            clean(&cell.metric),
            significant(before),
            significant(after),
        );
    }
    let direction = match (cell.apart, cell.improved()) {
        (Some(true), Some(true)) => "better",
        (Some(true), Some(false)) => "worse",
        (Some(false), _) if cell.exact => "the same",
        (Some(false), _) => "intervals overlap",
        _ => "no interval",
    };
    format!(
        "{} {} {}: {}, × {ratio}, {direction}",
        clean(&cell.experiment),
        clean(&cell.at.in_words()),
        clean(&cell.metric),
        in_one_unit(cell.unit, [Some(cell.before), Some(cell.after)]),
    )
}

fn of_cell_without_value(cell: &CellWithoutValue) -> String {
    let value = |value: Option<f64>| value.map_or("no value".to_owned(), |v| cell.unit.show(v));
    let reason = cell.reason.as_ref();
    let reason = reason.map_or(String::new(), |reason| format!(": {}", clean(reason)));
    format!(
        "{} {} {}: {} → {}{reason}",
        clean(&cell.experiment),
        clean(&cell.at.in_words()),
        clean(&cell.metric),
        value(cell.before),
        value(cell.after),
    )
}

/// Two values, one after the other, in one unit in which both are short.
fn in_one_unit(unit: Unit, values: [Option<f64>; 2]) -> String {
    let known: Vec<f64> = values.into_iter().flatten().collect();
    let short = unit.short(&known);
    let [before, after] =
        values.map(|value| value.map_or("–".to_owned(), |value| significant(value / short.per)));
    match short.unit {
        Unit::Ratio | Unit::Count => format!("{before} → {after}"),
        unit => format!("{before} → {after} {unit}"),
    }
}

/// The size of a cell's change, for sorting; cells without a ratio come last.
fn size(cell: &CellChange) -> f64 {
    cell.ratio.map_or(0.0, |ratio| ratio.ln().abs())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tare_lab::unit::Better;
    use tare_lab::value::Point;

    #[test]
    fn a_change_of_deterministic_trials_is_listed_without_an_interval() {
        let cell = |metric: &str, after: f64| CellChange {
            experiment: "vita/limit".into(),
            at: Point::default(),
            metric: metric.into(),
            unit: Unit::Nanoseconds,
            better: Better::Lower,
            before: 10.0,
            after,
            ratio: Some(after / 10.0),
            other_work: None,
            apart: Some(after != 10.0),
            exact: true,
        };
        let changes = RunDiff {
            before: "one".into(),
            after: "two".into(),
            conditions: vec![],
            verdicts: vec![],
            cells: vec![cell("changed", 12.0), cell("equal", 10.0)],
            without_value: vec![CellWithoutValue {
                experiment: "my/x".into(),
                at: Point::default(),
                metric: "time".into(),
                unit: Unit::Milliseconds,
                before: Some(3.309),
                after: None,
                reason: Some("every trial failed".into()),
            }],
            only_before: vec![],
            only_after: vec![],
        };
        let shown = text(&changes, false);
        assert!(
            shown.contains("Medians: 1 of 2 of deterministic trials changed (--all"),
            "{shown}"
        );
        assert!(
            shown.contains("vita/limit the only cell changed: 10 → 12 ns, × 1.2, worse"),
            "{shown}"
        );
        assert!(!shown.contains("equal: "), "{shown}");
        assert!(
            shown.contains("my/x the only cell time: 3.309 ms → no value: every trial failed"),
            "{shown}"
        );
        let shown = text(&changes, true);
        assert!(
            shown.contains("equal: 10 → 10 ns, × 1, the same"),
            "{shown}"
        );
    }

    #[test]
    fn two_values_are_shown_in_one_unit() {
        for (unit, values, expected) in [
            (
                Unit::MegabytesPerSecond,
                [Some(0.08381), Some(0.1302)],
                "0.08381 → 0.1302 MB/s",
            ),
            (
                Unit::Nanoseconds,
                [Some(950.0), Some(12_340.0)],
                "0.95 → 12.34 µs",
            ),
            (Unit::Ratio, [Some(1.25), None], "1.25 → –"),
            (Unit::Count, [None, None], "– → –"),
        ] {
            assert_eq!(in_one_unit(unit, values), expected);
        }
    }
}
