//! The cost of guests for nginx, as a table for people, out of the result of a run of `tdx`.

use tare_lab::parameters::Choice as _;
use tare_lab::result::{CellResult, RunResult};
use tare_lab::stats::{confidence_sequence, log_ratios, median, Bets, Round};
use tare_lab::unit::significant;
use tare_lab::value::Value;

use super::legs::Place;

/// The experiment with rates that mean something, and the one with those of emulated guests.
const TIMED: &str = "tdx/nginx";
const COUNTED: &str = "tdx/served";
/// The generators, in the order of the columns.
const GENERATORS: [&str; 2] = ["wrk", "load"];
/// The largest difference of the bytes per response of two rates that are compared, as in the lab.
const SAME_BYTES: f64 = 0.01;
const DASH: &str = "–";

/// Returns the table in at most `width` columns, of which it needs 40: a list where the columns do
/// not fit. `None` if the run has nothing of it.
pub(crate) fn table(run: &RunResult, width: usize) -> Option<String> {
    run.experiments.iter().find(|it| it.id == TIMED)?;
    let [first, second] = GENERATORS;
    let of = "of the bridge's";
    let heads = ["nginx runs", first, of, second, of, "emulated"];
    let mut rows = vec![heads.map(str::to_owned)];
    let mut reasons: Vec<(String, Vec<&str>)> = Vec::new();
    for place in Place::all() {
        let mut row = vec![words(place).to_owned()];
        for generator in GENERATORS {
            let cell = find(run, TIMED, place, Some(generator));
            row.push(cell.map_or(DASH.into(), rate));
            let reference = find(run, TIMED, Place::Bridge, Some(generator));
            let share = cell.zip(reference).and_then(|(of, to)| share(of, to));
            row.push(share.unwrap_or(DASH.into()));
            if let Some(reason) = cell.and_then(|cell| cell.reason.as_ref()) {
                note(&mut reasons, reason, words(place));
            }
        }
        // On the host nothing is emulated, and the column is of guests alone.
        let guest = place.flavour();
        let cell = guest.and_then(|_| find(run, COUNTED, place, None));
        row.push(cell.map_or(DASH.into(), rate));
        rows.push(row.try_into().ok()?);
    }
    let width = width.max(40);
    let title = "What a guest costs nginx here, in requests per second";
    let mut lines = vec![textwrap::fill(title, width)];
    let table = aligned(&rows);
    let fits = |line: &String| console::measure_text_width(line) <= width;
    lines.extend(match table.iter().all(fits) {
        true => table,
        false => listed(&rows, width),
    });
    let mut notes = vec![
        "Of the bridge's: the part of the requests that nginx serves on the host over the bridge by \
         which guests are reached, with its 95 % interval. Loopback is no reference."
            .to_owned(),
    ];
    if rows[1..].iter().any(|row| row[5] != DASH) {
        notes.push(
            "Emulated: guests whose instructions a program interprets. It says that they serve, and \
             nothing of what a guest costs."
                .into(),
        );
    }
    let untested = |(reason, places): (String, Vec<&str>)| {
        format!("Not tested {}: {reason}", places.join(", "))
    };
    notes.extend(reasons.into_iter().map(untested));
    let options = textwrap::Options::new(width);
    let options = options.initial_indent("  ").subsequent_indent("    ");
    lines.extend(notes.iter().map(|note| textwrap::fill(note, &options)));
    Some(lines.join("\n") + "\n\n")
}

/// Returns the request rate of an experiment at a place, of one generator or of the only one.
fn find<'a>(
    run: &'a RunResult,
    id: &str,
    place: Place,
    generator: Option<&str>,
) -> Option<&'a CellResult> {
    let experiment = run.experiments.iter().find(|it| it.id == id)?;
    experiment.cells.iter().find(|cell| {
        let at = |axis| cell.at.0.get(axis).and_then(Value::as_str);
        let is_there = cell.metric == "request_rate" && at("place") == Some(place.name());
        is_there && (generator.is_none() || at("generator") == generator)
    })
}

fn words(place: Place) -> &'static str {
    match place {
        Place::Loopback => "on the host, over loopback",
        Place::Bridge => "on the host, over the bridge",
        Place::Plain => "in a guest",
        Place::Swiotlb => "in a guest with bounce buffers",
        Place::SevSnp => "in a guest with SEV-SNP",
        Place::Tdx => "in a guest with TDX",
    }
}

fn rate(cell: &CellResult) -> String {
    cell.median.map_or(DASH.into(), significant)
}

/// Returns the ratio of two cells round by round, its median with its interval; `None` if there is
/// none, or the responses differ.
fn share(of: &CellResult, to: &CellResult) -> Option<String> {
    if of.at == to.at {
        return of.median.map(|_| "1".into());
    }
    let (bytes, reference) = (of.work_per_operation?, to.work_per_operation?);
    if (bytes / reference - 1.0).abs() > SAME_BYTES {
        return None;
    }
    let round = |value: &Option<f64>| value.map_or(Round::Missing, Round::Figure);
    let rounds = |cell: &CellResult| cell.samples.iter().map(round).collect::<Vec<_>>();
    let ratios = log_ratios(&rounds(of), &rounds(to)).ok()?;
    let figures = ratios.iter().filter_map(|round| match round {
        Round::Figure(value) => Some(*value),
        _ => None,
    });
    let middle = median(&figures.collect::<Vec<f64>>())?.exp();
    let ends = confidence_sequence(&ratios, Bets::SignsAndRanks, 0.95).map(f64::exp);
    let [low, high] = ends.map(|end| format!("{end:.2}"));
    Some(match ends.iter().all(|end| end.is_finite() && *end > 0.0) {
        true => format!("{middle:.2} [{low}, {high}]"),
        false => format!("{middle:.2}"),
    })
}

fn note<'a>(reasons: &mut Vec<(String, Vec<&'a str>)>, reason: &str, place: &'a str) {
    match reasons.iter_mut().find(|(known, _)| known == reason) {
        Some((_, places)) if places.contains(&place) => {}
        Some((_, places)) => places.push(place),
        None => reasons.push((reason.to_owned(), vec![place])),
    }
}

/// The rows as a list: each place, and its figures below it.
fn listed(rows: &[[String; 6]], width: usize) -> Vec<String> {
    let options = textwrap::Options::new(width);
    let options = options.initial_indent("    ").subsequent_indent("    ");
    let [heads, rows @ ..] = rows else {
        return Vec::new();
    };
    let figures = |row: &[String; 6]| {
        let figures = (1..6).filter(|&column| row[column] != DASH);
        let known = figures.map(|column| match column {
            2 | 4 => format!("{} {}", row[column], heads[column]),
            _ => format!("{} {}", heads[column], row[column]),
        });
        // A figure and its name are never parted.
        let known: Vec<String> = known.map(|text| text.replace(' ', "\u{a0}")).collect();
        match known.is_empty() {
            true => DASH.to_owned(),
            false => known.join(" · "),
        }
    };
    let paragraph = |row: &[String; 6]| {
        let text = textwrap::fill(&figures(row), &options);
        [format!("  {}", row[0]), text.replace('\u{a0}', " ")]
    };
    rows.iter().flat_map(paragraph).collect()
}

/// The rows with columns of equal width: the first one to the left, the others to the right.
fn aligned(rows: &[[String; 6]]) -> Vec<String> {
    let len = |text: &String| console::measure_text_width(text);
    let width = |column: usize| rows.iter().map(|row| len(&row[column])).max().unwrap_or(0);
    let line = |row: &[String; 6]| {
        let mut line = String::new();
        for (column, text) in row.iter().enumerate() {
            let room = " ".repeat(width(column) - len(text));
            line += &match column {
                0 => format!("  {text}{room}"),
                _ => format!("  {room}{text}"),
            };
        }
        line
    };
    rows.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn cell(
        place: &str,
        generator: Option<&str>,
        samples: &[f64],
        bytes: f64,
    ) -> serde_json::Value {
        let mut at = json!({ "place": place });
        if let Some(generator) = generator {
            at["generator"] = generator.into();
        }
        let reason = samples.is_empty().then_some("no such processor; buy one");
        json!({
            "at": at, "metric": "request_rate", "unit": "ops/s", "better": "higher",
            "n": samples.len(), "median": median(samples), "ci95": null, "samples": samples,
            "work_per_operation": bytes, "failed": 0, "reason": reason,
        })
    }

    fn run(experiments: &[(&str, Vec<serde_json::Value>)]) -> RunResult {
        let experiments: Vec<serde_json::Value> = experiments
            .iter()
            .map(|(id, cells)| {
                json!({
                    "id": id, "title": "", "source": "", "axes": [], "published": [], "noise": [],
                    "cells": cells, "rounds": 1, "exact": false, "claims": [], "targets": [],
                })
            })
            .collect();
        let machine = serde_json::to_value(tare_lab::fingerprint::Machine::read()).unwrap();
        let run = json!({
            "schema": 2, "run": "r", "tare": "0", "size": "quick", "seed": 1, "started": "",
            "rounds": 1, "complete": true, "machine": machine, "warnings": [], "families": [],
            "experiments": experiments,
        });
        serde_json::from_value(run).unwrap()
    }

    fn row<'a>(table: &'a str, place: &str) -> Vec<&'a str> {
        let line = table.lines().find_map(|it| it.trim().strip_prefix(place));
        line.unwrap_or_else(|| panic!("{place}: {table}"))
            .split("  ")
            .map(str::trim)
            .filter(|it| !it.is_empty())
            .collect()
    }

    #[test]
    fn the_table_has_shares_of_the_bridge_and_marks_what_is_emulated_or_not_tested() {
        let timed = vec![
            cell("loopback", Some("wrk"), &[3000.0; 12], 800.0),
            cell("bridge", Some("wrk"), &[2000.0; 12], 800.0),
            cell("plain", Some("wrk"), &[1000.0; 12], 800.0),
            cell("swiotlb", Some("wrk"), &[500.0; 12], 900.0),
            cell("tdx", Some("wrk"), &[], 0.0),
        ];
        let counted = vec![
            cell("bridge", None, &[77.0], 800.0),
            cell("plain", None, &[55.0], 800.0),
        ];
        let run = run(&[(TIMED, timed), (COUNTED, counted)]);
        let table = table(&run, 100).unwrap();
        assert_eq!(
            row(&table, "on the host, over loopback")[..2],
            ["3000", "1.50 [1.50, 1.50]"],
            "{table}"
        );
        assert_eq!(
            row(&table, "on the host, over the bridge"),
            ["2000", "1", DASH, DASH, DASH]
        );
        assert_eq!(
            row(&table, "in a guest  "),
            ["1000", "0.50 [0.50, 0.50]", DASH, DASH, "55"]
        );
        // Other bytes per response are never compared.
        assert_eq!(
            row(&table, "in a guest with bounce buffers")[..2],
            ["500", DASH]
        );
        assert_eq!(row(&table, "in a guest with TDX"), [DASH; 5]);
        let flat = table.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(
            flat.contains("Not tested in a guest with TDX: no such processor; buy one"),
            "{table}"
        );
        assert!(!table.contains("77"), "{table}");
        assert!(
            table.lines().all(|line| line.chars().count() <= 100),
            "{table}"
        );
    }

    #[test]
    fn the_table_fits_every_width_and_is_a_list_where_its_columns_do_not() {
        let both = |place: &str, rate: f64| {
            ["wrk", "load"].map(|generator| cell(place, Some(generator), &[rate; 12], 800.0))
        };
        let mut timed = [both("bridge", 20_000.0), both("swiotlb", 5000.0)].concat();
        timed.push(cell("tdx", Some("wrk"), &[], 0.0));
        let run = run(&[
            (TIMED, timed),
            (COUNTED, vec![cell("swiotlb", None, &[55.0], 800.0)]),
        ]);
        let words = |text: &str| {
            text.split_whitespace()
                .map(str::to_owned)
                .collect::<Vec<_>>()
        };
        let mut lists = 0;
        for width in 40..=200 {
            let table = table(&run, width).unwrap();
            for line in table.lines() {
                let columns = console::measure_text_width(line);
                assert!(columns <= width, "{width}: {columns}: {line}");
            }
            let as_list = "in a guest with bounce buffers wrk 5000 · 0.25 [0.25, 0.25] of the bridge's · \
                           load 5000 · 0.25 [0.25, 0.25] of the bridge's · emulated 55 in a guest with SEV-SNP –";
            let is_list = words(&table).join(" ").contains(as_list);
            let has_columns = table.contains("nginx runs");
            assert!(is_list != has_columns, "{width}: {table}");
            lists += usize::from(is_list);
        }
        assert!((40..100).contains(&lists), "{lists}");
    }

    #[test]
    fn a_run_without_guests_has_no_table() {
        let counted = vec![cell("plain", None, &[55.0], 800.0)];
        assert_eq!(table(&run(&[(COUNTED, counted)]), 80), None);
        assert_eq!(table(&run(&[]), 80), None);
    }
}
