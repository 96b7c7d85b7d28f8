//! The report in all its forms, checked against the run it was written from.

mod report_fixture;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use tare_lab::experiment::Published;
use tare_lab::report;
use tare_lab::result::RunResult;
use tare_lab::unit::Unit;

use report_fixture as fixture;

/// Attributes of every element whose opening tag begins with `start`, in order.
fn elements(html: &str, start: &str) -> Vec<BTreeMap<String, String>> {
    html.match_indices(start)
        .map(|(begin, _)| {
            let tag = &html[begin..begin + html[begin..].find('>').unwrap()];
            let mut attributes = BTreeMap::new();
            let mut rest = tag;
            while let Some(equals) = rest.find("=\"") {
                let name = rest[..equals].rsplit(' ').next().unwrap().to_owned();
                let value = &rest[equals + 2..];
                let end = value.find('"').unwrap();
                attributes.insert(name, unescaped(&value[..end]));
                rest = &value[end + 1..];
            }
            attributes
        })
        .collect()
}

fn unescaped(text: &str) -> String {
    [
        ("&quot;", "\""),
        ("&#39;", "'"),
        ("&lt;", "<"),
        ("&gt;", ">"),
        ("&#27;", "\u{1b}"),
        ("&amp;", "&"),
    ]
    .iter()
    .fold(text.to_owned(), |text, (coded, plain)| {
        text.replace(coded, plain)
    })
}

/// Experiment, metric, point and value of every cell that has a value.
fn expected(run: &RunResult) -> Vec<(String, String, String, String)> {
    let mut all = Vec::new();
    for experiment in &run.experiments {
        for cell in &experiment.cells {
            if let Some(median) = cell.median {
                let at = serde_json::to_string(&cell.at).unwrap();
                all.push((
                    experiment.id.clone(),
                    cell.metric.clone(),
                    at,
                    median.to_string(),
                ));
            }
        }
    }
    all.sort();
    all
}

#[test]
fn every_measured_cell_is_drawn_once_with_its_own_value() {
    for run in [fixture::run(), fixture::large()] {
        let html = report::html(&run);
        let mut drawn: Vec<_> = elements(&html, "<g class=\"mark")
            .into_iter()
            .map(|mark| {
                let field = |name: &str| mark[name].clone();
                (
                    field("data-experiment"),
                    field("data-metric"),
                    field("data-at"),
                    field("data-value"),
                )
            })
            .collect();
        drawn.sort();
        assert_eq!(drawn, expected(&run));
    }
}

#[test]
fn every_published_value_is_drawn_where_anything_is_and_missing_ones_are_crosses() {
    let run = fixture::run();
    let html = report::html(&run);
    let published: usize = run
        .experiments
        .iter()
        .map(|experiment| experiment.published.len())
        .sum();
    assert_eq!(elements(&html, "<g class=\"published").len(), published);
    let missing = run.experiments.iter().flat_map(|e| &e.cells);
    let missing = missing.filter(|cell| cell.median.is_none()).count();
    let crosses = elements(&html, "<g class=\"missing");
    assert_eq!(crosses.len(), missing);
    assert!(crosses
        .iter()
        .all(|cross| !cross.contains_key("data-value")));
}

/// Each mark's pixel follows from the ticks of its own figure: the scale is what it says it is.
#[test]
fn a_mark_stands_where_the_ticks_of_its_axis_say() {
    let html = report::html(&fixture::run());
    let mut checked = 0;
    for svg in html.split("<svg ").skip(1) {
        let svg = format!("<svg {}", svg.split("</svg>").next().unwrap());
        let head = &elements(&svg, "<svg ")[0];
        let log = head["data-scale"] == "log";
        let place = |value: f64| if log { value.ln() } else { value };
        let ticks: Vec<(f64, f64)> = elements(&svg, "<g class=\"tick")
            .iter()
            .map(|tick| {
                (
                    tick["data-tick"].parse().unwrap(),
                    tick["data-pixel"].parse().unwrap(),
                )
            })
            .filter(|(value, _): &(f64, f64)| !log || *value > 0.0)
            .collect();
        assert!(ticks.len() >= 2, "{ticks:?}");
        let ((low, from), (high, to)) = (ticks[0], ticks[ticks.len() - 1]);
        let axis = if head["data-way"] == "up" { 1 } else { 0 };
        for mark in [
            elements(&svg, "<g class=\"mark"),
            elements(&svg, "<g class=\"published"),
        ]
        .concat()
        {
            let value: f64 = mark["data-value"].parse().unwrap();
            let pixel: f64 = mark["transform"]
                .trim_start_matches("translate(")
                .trim_end_matches(')')
                .split(' ')
                .nth(axis)
                .unwrap()
                .parse()
                .unwrap();
            if log && value == 0.0 {
                let zero = elements(&svg, "<g class=\"tick")
                    .into_iter()
                    .find(|t| t["data-tick"] == "0")
                    .unwrap();
                assert_eq!(pixel, zero["data-pixel"].parse::<f64>().unwrap());
                assert!((pixel - from).abs() > 5.0, "zero stands apart from {low}");
            } else {
                let share = (place(value) - place(low)) / (place(high) - place(low));
                let wanted = from + share * (to - from);
                assert!(
                    (pixel - wanted).abs() < 0.1,
                    "{value}: {pixel} for {wanted}"
                );
            }
            checked += 1;
        }
    }
    assert!(checked > 70, "{checked}");
}

#[test]
fn the_claims_table_comes_first_and_says_each_verdict_in_words() {
    let html = report::html(&fixture::run());
    assert_eq!(
        report::summary(&fixture::run()),
        "3 reproduced, 1 not reproduced, 1 inconclusive, 1 not testable here"
    );
    let table = html.find("<table class=\"claims\"").unwrap();
    assert!(table < html.find("<svg").unwrap());
    assert!(table < html.find("id=\"x-rdrand-size\"").unwrap());
    let rows = elements(&html, "<tr data-claim");
    assert_eq!(rows.len(), 6);
    let verdicts: Vec<&str> = rows
        .iter()
        .map(|row| row["data-verdict"].as_str())
        .collect();
    assert_eq!(verdicts[2], "not-reproduced");
    assert!(html.contains("<span aria-hidden=\"true\">✗</span> not reproduced"));
    assert!(html.contains("href=\"#x-rdrand-size\""));
}

#[test]
fn nothing_that_comes_from_outside_becomes_markup() {
    let html = report::html(&fixture::hostile());
    for tag in [
        "<script",
        "<img",
        "]]>",
        "\u{202e}gnp[31m",
        "\u{1b}",
        "\u{0}",
    ] {
        assert!(!html.contains(tag), "{tag:?}");
    }
    for attribute in ["onerror=alert(2)>]", "src=\"http", "href=\"http", "url("] {
        assert!(!html.contains(attribute), "{attribute}");
    }
    // What is read by people has no invisible direction change; what programs read is exact.
    for (at, _) in html.match_indices('\u{202e}') {
        let before = &html[..at];
        let tag = before.rfind('<').unwrap();
        assert!(
            before[tag..].contains("data-"),
            "override outside a data attribute"
        );
    }
    assert_eq!(
        elements(&html, "<g class=\"mark").len(),
        expected(&fixture::hostile()).len()
    );
}

#[test]
fn ten_thousand_samples_make_a_small_page_quickly() {
    let run = fixture::large();
    let samples: usize = run
        .experiments
        .iter()
        .flat_map(|e| &e.cells)
        .map(|c| c.samples.len())
        .sum();
    assert_eq!(samples, 10_000);
    let begin = Instant::now();
    let html = report::html(&run);
    let took = begin.elapsed();
    eprintln!("{} bytes in {took:?}", html.len());
    assert!(html.len() < 3_000_000, "{}", html.len());
    // Loose, and looser without optimisation: the machine is shared.
    let limit = if cfg!(debug_assertions) { 5000 } else { 300 };
    assert!(took < Duration::from_millis(limit), "{took:?}");
}

#[test]
fn the_csv_has_a_line_for_each_round_and_none_for_a_missing_value_says_zero() {
    let run = fixture::run();
    let csv = report::csv(&run);
    let lines: Vec<&str> = csv.split("\r\n").filter(|line| !line.is_empty()).collect();
    let cells = run.experiments.iter().flat_map(|e| &e.cells);
    let wanted: usize = cells.map(|cell| cell.samples.len().max(1)).sum();
    assert_eq!(lines.len(), wanted + 1);
    assert_eq!(lines[0], "experiment,at,metric,unit,better,round,value");
    let first = "rdrand/size,\"{\"\"function\"\":\"\"get_bytes\"\",\"\"quadwords\"\":1}\",throughput,MiB/s,higher,0,";
    let value = run.experiments[0].cells[0].samples[0].unwrap();
    assert_eq!(lines[1], format!("{first}{value}"));
    let gone = lines
        .iter()
        .filter(|line| line.contains(":64}") && line.contains("get_bytes"));
    assert!(gone.clone().count() == 8 && gone.clone().all(|line| line.ends_with(',')));
}

#[test]
fn a_terminal_table_fits_its_width_and_cannot_drive_the_terminal() {
    for run in [fixture::run(), fixture::hostile()] {
        for width in [40, 80, 100, 160] {
            let text = report::text::claims(&run, width, false);
            for line in text.lines() {
                assert!(line.chars().count() <= width, "{width}: {line}");
            }
            let summary = "3 reproduced, 1 not reproduced, 1 inconclusive, 1 not testable here\n";
            assert!(width < 80 || text.ends_with(summary), "{text}");
            assert!(!text.contains('\u{1b}') && !text.contains('\u{202e}'));
            for experiment in &run.experiments {
                let cells = report::text::cells(experiment, width);
                assert!(
                    cells.lines().all(|line| line.chars().count() <= width),
                    "{cells}"
                );
            }
        }
    }
    let coloured = report::text::claims(&fixture::run(), 120, true);
    assert!(coloured.contains("\u{1b}[1;31m✗ not reproduced\u{1b}[0m"));
    assert!(coloured.contains("\u{1b}[32m✓ reproduced\u{1b}[0m"));
}

#[test]
fn markdown_has_a_row_a_claim_and_no_foreign_markup() {
    let text = report::markdown(&fixture::run());
    assert_eq!(
        text.lines()
            .filter(|line| line.contains("reproduced |") || line.contains("✗"))
            .count(),
        4
    );
    assert!(text.contains("## Throughput while the buffer grows"));
    let hostile = report::markdown(&fixture::hostile());
    assert!(!hostile.contains("<script") && !hostile.contains("<img"));
}

#[test]
fn an_empty_run_still_makes_a_page() {
    let mut run = fixture::run();
    run.experiments.clear();
    run.complete = false;
    let html = report::html(&run);
    assert!(html.contains("No claim was judged") && html.contains("Incomplete."));
    assert!(report::text::claims(&run, 80, false).ends_with("No claim was judged\n"));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Whatever the numbers are, everything is drawn, inside its sheet, at a finite place.
    #[test]
    fn any_values_are_drawn_inside_the_sheet(
        values in vec(option::weighted(0.85, value()), 1..24),
        published in vec(value(), 0..4),
        spread in 0.0..2.0f64,
        text_axis in any::<bool>(),
        log in any::<bool>(),
        peers in 0..3usize,
    ) {
        let mut it = fixture::empty("any/values", "Any values", "nowhere");
        let place = |i: usize| match text_axis {
            true => format!("place {i}").as_str().into(),
            false => (i as i64).into(),
        };
        it.axes = vec![fixture::axis_int("place", &[], log), fixture::axis_text("kind", &["a", "b"])];
        it.axes[0].values = (0..values.len().div_ceil(2)).map(place).collect();
        for (i, value) in values.iter().enumerate() {
            let kind = if i % 2 == 0 { "a" } else { "b" };
            let at = match i < peers {
                true => fixture::point(&[("beside", format!("peer {i}").as_str().into())]),
                false => fixture::point(&[("place", place(i / 2)), ("kind", kind.into())]),
            };
            let mut cell = fixture::cell(at, "latency", Unit::Nanoseconds, value.unwrap_or(1.0));
            cell.ci95 = value.map(|v| [v - v.abs() * spread, v + v.abs() * spread]);
            cell.median = *value;
            it.cells.push(cell);
        }
        for (i, value) in published.into_iter().enumerate() {
            it.published.push(Published {
                at: fixture::point(&[("place", place(i * 3)), ("kind", "a".into())]),
                metric: "latency".into(),
                value,
                source: None,
            });
        }
        let mut run = fixture::run();
        run.experiments = vec![it];
        let html = report::html(&run);
        let drawn = values.iter().flatten().count();
        prop_assert_eq!(elements(&html, "<g class=\"mark").len(), drawn);
        for svg in html.split("<svg ").skip(1) {
            let svg = format!("<svg {}", svg.split("</svg>").next().unwrap());
            prop_assert!(!svg.contains("NaN") && !svg.contains("inf"), "{}", svg);
            let size: Vec<f64> = elements(&svg, "<svg ")[0]["viewBox"]
                .split(' ')
                .map(|n| n.parse().unwrap())
                .collect();
            for mark in ["<g class=\"mark", "<g class=\"published", "<g class=\"missing"] {
                for mark in elements(&svg, mark) {
                    let place = mark["transform"].trim_start_matches("translate(").trim_end_matches(')');
                    let (x, y) = place.split_once(' ').unwrap();
                    let (x, y): (f64, f64) = (x.parse().unwrap(), y.parse().unwrap());
                    prop_assert!(x > 0.0 && x < size[2] && y > 0.0 && y < size[3], "{:?}", mark);
                }
            }
        }
        report::text::cells(&run.experiments[0], 80);
        report::markdown(&run);
    }
}

/// Ordinary numbers, and those that break arithmetic.
fn value() -> impl Strategy<Value = f64> {
    prop_oneof![
        4 => 1.0..1e4f64,
        2 => (-12.0..12.0f64).prop_map(|exponent| 10f64.powf(exponent)),
        1 => -1e3..1e3f64,
        1 => proptest::sample::select(vec![0.0, -0.0, 1e300, -1e300, 1e-300, f64::MIN_POSITIVE, 5e-324]),
    ]
}
