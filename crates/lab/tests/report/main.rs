//! The report in all its forms, checked against the run it was written from.

mod formats;
#[path = "../report_fixture/mod.rs"]
mod report_fixture;

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use rustix::time::{clock_gettime, ClockId};
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
        let mut drawn: Vec<_> = elements(&html, "<g class=\"mark ")
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
    assert_eq!(elements(&html, "<g class=\"published ").len(), published);
    let missing = run.experiments.iter().flat_map(|e| &e.cells);
    let missing = missing.filter(|cell| cell.median.is_none()).count();
    let crosses = elements(&html, "<g class=\"missing");
    assert_eq!(crosses.len(), missing);
    assert!(crosses
        .iter()
        .all(|cross| !cross.contains_key("data-value")));
}

#[test]
fn each_source_of_published_values_is_named_once_below_their_table() {
    let run = fixture::run();
    let text = report::text::cells(&run.experiments[0], 160);
    for report in [text, report::markdown(&run), report::html(&run)] {
        let line = "Published 61, 170, 172: figure 3";
        assert_eq!(report.matches(line).count(), 1, "{report}");
    }
}

/// Each mark's place follows from the ticks of its own plot: the scale is what it says it is.
#[test]
fn a_mark_stands_where_the_ticks_of_its_axis_say() {
    let html = report::html(&fixture::run());
    let mut checked = 0;
    for plot in html.split("<div class=\"plot ").skip(1) {
        let plot = format!(
            "<div class=\"plot {}",
            plot.split("<ul class=\"key\"").next().unwrap()
        );
        let head = &elements(&plot, "<div class=\"plot ")[0];
        let log = head["data-scale"] == "log";
        let place = |value: f64| if log { value.ln() } else { value };
        let tick = |tick: &BTreeMap<String, String>| -> (f64, f64) {
            (
                tick["data-tick"].parse().unwrap(),
                tick["data-pixel"].parse().unwrap(),
            )
        };
        let all = [
            elements(&plot, "<g class=\"tick"),
            elements(&plot, "<i class=\"tick"),
        ]
        .concat();
        let ticks: Vec<(f64, f64)> = all
            .iter()
            .map(tick)
            .filter(|(value, _)| !log || *value > 0.0)
            .collect();
        assert!(ticks.len() >= 2, "{ticks:?}");
        let ((low, from), (high, to)) = (ticks[0], ticks[ticks.len() - 1]);
        for (begin, _) in plot.match_indices("data-pixel=") {
            let tag = plot[..begin].rfind('<').unwrap();
            let mark = &elements(&plot[tag..], &plot[tag..tag + 8])[0];
            let value = ["data-value", "data-forest-value", "data-forest-published"]
                .iter()
                .find_map(|name| mark.get(*name));
            let Some(value) = value else { continue };
            let value: f64 = value.parse().unwrap();
            let pixel: f64 = mark["data-pixel"].parse().unwrap();
            // What is drawn is what is said.
            let drawn = &plot[tag..];
            let drawn = &drawn[..drawn.find("</g>").unwrap()];
            let drawn = &elements(&drawn[drawn.rfind("<svg class=\"at\"").unwrap()..], "<svg")[0];
            let drawn = match head["data-way"].as_str() {
                "up" => &drawn["y"],
                _ => drawn["x"].trim_end_matches('%'),
            };
            assert!(
                (drawn.parse::<f64>().unwrap() - pixel).abs() < 0.01,
                "{drawn} {mark:?}"
            );
            if log && value == 0.0 {
                let zero = all
                    .iter()
                    .map(tick)
                    .find(|(value, _)| *value == 0.0)
                    .unwrap();
                assert_eq!(pixel, zero.1);
                assert!((pixel - from).abs() > 5.0, "zero stands apart from {low}");
            } else {
                let share = (place(value) - place(low)) / (place(high) - place(low));
                let mut wanted = from + share * (to - from);
                if plot.contains("data-forest=") {
                    wanted = wanted.clamp(3.0, 97.0); // An arrow at the end of the axis.
                }
                assert!(
                    (pixel - wanted).abs() < 0.1,
                    "{value}: {pixel} for {wanted}"
                );
            }
            checked += 1;
        }
    }
    assert!(checked > 80, "{checked}");
}

/// Parts of a text that begin at each of `starts`.
fn parts<'a>(text: &'a str, starts: &[&str]) -> Vec<&'a str> {
    let mut rest = text;
    let mut parts = Vec::new();
    for start in starts.iter().rev() {
        let at = rest
            .find(start)
            .unwrap_or_else(|| panic!("{start:?} in {text}"));
        parts.push(&rest[at..]);
        rest = &rest[..at];
    }
    parts.reverse();
    parts
}

const OF_CLAIMS: [&str; 2] = ["not reproduced", "✓ reproduced"];
const OF_TARGETS: [&str; 2] = ["missed", "✓ held"];

#[test]
fn published_claims_and_targets_share_no_table_no_count_and_no_colour() {
    let run = fixture::run();
    let claims =
        "Published claims: 3 reproduced, 1 not reproduced, 1 inconclusive, 1 not testable here";
    let targets = "Targets: 1 held, 1 missed";
    let text = report::text::claims(&run, 160, false);
    assert!(text.contains(&format!("{claims}\n{targets}\n")), "{text}");
    let markdown = report::markdown(&run);
    assert!(
        markdown.contains(&format!("- {claims}\n- {targets}\n")),
        "{markdown}"
    );
    let html = report::html(&run).replace("<span aria-hidden=\"true\">✓</span>", "✓");
    let html = &html[html.find("</style>").unwrap()..];
    for blocks in [
        parts(
            &text,
            &["Published claims\n", "Targets\n", "Failed trials\n"],
        ),
        parts(
            &markdown,
            &["## Published claims", "## Targets", "## Failed trials"],
        ),
        parts(
            html,
            &[
                "data-standing=\"claim\"",
                "data-standing=\"target\"",
                "<h2>Published claims",
            ],
        ),
        parts(
            html,
            &["<h2>Published claims", "<h2>Targets", "<h2>Failed trials"],
        ),
    ] {
        let has = |block: &str, words: [&str; 2]| words.map(|word| block.contains(word));
        assert_eq!(has(blocks[0], OF_CLAIMS), [true; 2], "{}", blocks[0]);
        assert_eq!(has(blocks[0], OF_TARGETS), [false; 2], "{}", blocks[0]);
        assert_eq!(has(blocks[1], OF_CLAIMS), [false; 2], "{}", blocks[1]);
        assert_eq!(has(blocks[1], OF_TARGETS), [true; 2], "{}", blocks[1]);
    }
    let csv = report::claims_csv(&run);
    for line in csv.lines().skip(1) {
        let target = line.contains(",held,") || line.contains(",missed,");
        assert_eq!(line.starts_with("target,"), target, "{line}");
        assert_ne!(line.starts_with("claim,"), target, "{line}");
    }
    let coloured = report::text::claims(&run, 120, true);
    for line in [
        "\u{1b}[1;31m✗ not reproduced: 1\u{1b}[0m",
        "\u{1b}[32m✓ reproduced: 3\u{1b}[0m",
        "\u{1b}[1;35m✗ missed: 1\u{1b}[0m",
        "\u{1b}[36m✓ held: 1\u{1b}[0m",
        "\u{1b}[33m? inconclusive: 1\u{1b}[0m",
    ] {
        assert!(coloured.contains(line), "{line}");
    }
}

/// The style in which doubt is shown, and nothing else is.
#[test]
fn amber_is_for_doubt_alone() {
    let html = report::html(&fixture::run());
    let style = &html[..html.find("</style>").unwrap()];
    let amber: Vec<&str> = style
        .lines()
        .filter(|line| line.contains("var(--open"))
        .collect();
    assert_eq!(amber.len(), 3, "{amber:?}");
    for (line, doubt) in
        amber
            .iter()
            .zip([".warning", ".v-inconclusive", "[data-verdict=inconclusive]"])
    {
        assert!(line.starts_with(doubt), "{line}");
    }
}

#[test]
fn what_needs_attention_comes_first() {
    let run = fixture::run();
    let order = [
        "not reproduced: 1",
        "inconclusive: 1",
        "✓ reproduced: 3",
        "not testable here: 1",
    ];
    parts(&report::text::claims(&run, 100, false), &order);
    let html = report::html(&run);
    let rows = elements(&html, "<tr id=\"claim-");
    let verdicts: Vec<&str> = rows
        .iter()
        .map(|row| row["data-verdict"].as_str())
        .collect();
    let reproduced = ["reproduced"; 3];
    assert_eq!(verdicts[..2], ["not-reproduced", "inconclusive"]);
    assert_eq!(
        (&verdicts[2..5], verdicts[5]),
        (&reproduced[..], "not-testable")
    );
    assert!(html.contains("about 20 rounds would decide it"));
}

#[test]
fn the_page_begins_with_suites_machine_and_warnings_and_then_the_forest_plot() {
    let html = report::html(&fixture::run());
    let title = "rdrand, cvm and guest on Intel(R) Xeon(R) Processor @ 2.90GHz, 2 processors";
    assert!(html.contains(&format!("<title>{title} · Tare</title>")));
    parts(
        &html[html.find("<body>").unwrap()..],
        &[
            &format!("<h1><bdi>{title}"),
            "Conditions that may distort these results",
            "<div class=\"plot forest\"",
            "<table",
            "<figure",
        ],
    );
    // Every statement with a figure has a row, with its threshold, and its published figure.
    let run = fixture::run();
    let all = run
        .experiments
        .iter()
        .flat_map(|e| e.claims.iter().chain(&e.targets));
    let measured = all.clone().filter(|claim| claim.measured.is_some()).count();
    assert_eq!(elements(&html, "<div class=\"row v-").len(), measured);
    assert_eq!(
        elements(&html, "<g class=\"mark\"").len(),
        measured - 1,
        "a count has no ratio"
    );
    assert_eq!(
        elements(&html, "<line class=\"threshold\"").len(),
        measured - 1 + 2
    );
    let published = all.filter(|c| c.published.is_some() && c.threshold.at_most != Some(0.0));
    assert_eq!(
        elements(&html, "<g class=\"published\"").len(),
        published.count()
    );
    // The noise floor around each threshold of the one experiment that has it, and in both keys.
    assert_eq!(elements(&html, "<rect class=\"noise\"").len(), 5 + 2);
}

/// Asserts that text, page and Markdown have these parts, and the reason, the last lines and the
/// log of the fixture's failed trials.
#[test]
fn an_interval_without_an_end_is_unbounded() {
    let mut run = fixture::run();
    assert!(report::text::claims(&run, 100, false).contains("0.988 [0.962, ∞)"));
    run.experiments[0].claims[1].ci95 = None;
    for report in [
        report::text::claims(&run, 100, false),
        report::html(&run),
        report::markdown(&run),
    ] {
        assert!(report.contains("unbounded"), "{report}");
    }
    let csv = report::claims_csv(&run);
    assert!(csv.contains(",0.988,,,"), "{csv}");
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
        elements(&html, "<g class=\"mark ").len(),
        expected(&fixture::hostile()).len()
    );
}

/// The processor time of this thread, which other programs do not stretch.
fn processor_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap()
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
    let begin = processor_time();
    let html = report::html(&run);
    let took = processor_time() - begin;
    eprintln!("{} bytes in {took:?}", html.len());
    assert!(html.len() < 4_500_000, "{}", html.len());
    // Loose, and looser without optimisation: a processor may be slow, or emulated.
    let limit = if cfg!(debug_assertions) { 5000 } else { 300 };
    assert!(took < Duration::from_millis(limit), "{took:?}");
}

#[test]
fn an_empty_run_still_makes_a_page() {
    let mut run = fixture::run();
    run.experiments.clear();
    run.complete = false;
    let html = report::html(&run);
    assert!(html.contains("No claim was judged") && html.contains("Incomplete:"));
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
        references in 0..3usize,
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
            let at = match i < references {
                true => fixture::point(&[("beside", format!("reference {i}").as_str().into())]),
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
        prop_assert_eq!(elements(&html, "<g class=\"mark ").len(), drawn);
        prop_assert!(!html.contains("NaN") && !html.contains("inf%") && !html.contains("\"inf"));
        for svg in html.split("<svg class=\"marks\"").skip(1) {
            let height = &elements(&format!("<svg{svg}"), "<svg")[0]["height"];
            let height: f64 = height.parse().unwrap();
            for at in elements(svg, "<svg class=\"at\"") {
                let (x, y) = (at["x"].trim_end_matches('%').parse::<f64>(), at["y"].parse::<f64>());
                let (x, y) = (x.unwrap(), y.unwrap());
                prop_assert!((0.0..=100.0).contains(&x) && y > 0.0 && y < height, "{:?}", at);
            }
        }
        for at in elements(&html, "<svg class=\"at\"") {
            let x: f64 = at["x"].trim_end_matches('%').parse().unwrap();
            prop_assert!((0.0..=100.0).contains(&x), "{:?}", at);
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
