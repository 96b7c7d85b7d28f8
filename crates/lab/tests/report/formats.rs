//! The formats of a report: what each of them has to contain, then CSV, Markdown and the terminal.

use tare_lab::report;
use tare_lab::result::{Evidence, RunResult};
use tare_lab::value::Point;

use crate::report_fixture as fixture;

fn all_tell_of_the_failures(run: &RunResult, parts: &[&str]) {
    let why = [
        "the child ended with signal 9",
        "stuck: no progress for 2 s",
        "logs/rdrand-size-0012.log",
    ];
    for report in [
        report::text::claims(run, 60, false),
        report::text::claims(run, 160, false),
        report::html(run),
        report::markdown(run).replace('\\', ""),
    ] {
        // A narrow table wraps within a column.
        let report = report.split_whitespace().collect::<Vec<_>>().join(" ");
        for part in parts.iter().chain(&why) {
            assert!(report.contains(part), "{part}: {report}");
        }
    }
}

#[test]
fn the_evidence_is_among_the_fields_of_a_claim_in_json_and_csv() {
    let run = fixture::run();
    let json = serde_json::to_value(&run).unwrap();
    let csv = report::claims_csv(&run);
    let mut with_evidence = 0;
    for (experiment, written) in run
        .experiments
        .iter()
        .zip(json["experiments"].as_array().unwrap())
    {
        for (claim, written) in experiment
            .claims
            .iter()
            .zip(written["claims"].as_array().unwrap())
        {
            assert_eq!(written["p"], serde_json::json!(claim.evidence.p));
            assert_eq!(written["p_holm"], serde_json::json!(claim.evidence.p_holm));
            let back: Evidence = serde_json::from_value(written.clone()).unwrap();
            assert_eq!(back, claim.evidence);
            if let Evidence {
                p: Some(p),
                p_holm: Some(corrected),
            } = back
            {
                assert!(csv.contains(&format!(",{p},{corrected},")), "{csv}");
                with_evidence += 1;
            }
        }
    }
    assert!(with_evidence > 0);
}

#[test]
fn every_format_says_how_many_trials_failed_and_why() {
    let run = fixture::run();
    all_tell_of_the_failures(&run, &["Failed trials: 8 of 1 cell", "8 of 8"]);
    let csv = report::claims_csv(&run);
    assert!(csv.contains(",8,8 of 8 trials of function=get_bytes quadwords=64 failed: the child ended with signal 9,"), "{csv}");
    let samples = report::csv(&run);
    assert!(
        samples.contains(",8,every trial failed: the child ended with signal 9\r\n"),
        "{samples}"
    );
}

#[test]
fn a_cell_without_a_name_or_claim_that_failed_in_part_is_told_with_its_reason_and_log() {
    let mut run = fixture::run();
    run.experiments.truncate(1);
    let it = &mut run.experiments[0];
    (it.claims, it.targets) = (vec![], vec![]);
    it.cells.truncate(1);
    it.cells[0].at = Point::default();
    it.cells[0].failed = 3;
    it.failures[0].at = Point::default();
    (it.failures[0].failed, it.failures[0].of) = (3, 6);
    all_tell_of_the_failures(
        &run,
        &["Failed trials: 3 of 1 cell", "the only cell", "3 of 6"],
    );
    let csv = report::csv(&run);
    let why = "3 of 6 trials of the only cell failed: the child ended with signal 9";
    assert!(csv.contains(&format!(",3,{why}\r\n")), "{csv}");
    run.experiments[0].claims = fixture::run().experiments[0].claims[1..2].to_vec();
    run.experiments[0].claims[0].failures = run.experiments[0].failures.clone();
    let text = report::text::claims(&run, 160, false);
    assert!(text.contains(why), "{text}");
}

#[test]
fn every_report_states_the_error_rate_of_the_whole_run_once() {
    let mut run = fixture::run();
    let sentence = "The chance of any false verdict of one direction in this run is at most 10 % \
                    (2 families of claims or targets).";
    let reports = |run: &RunResult| {
        [
            report::text::claims(run, 160, false),
            report::html(run),
            report::markdown(run),
        ]
    };
    for report in reports(&run) {
        assert_eq!(report.matches(sentence).count(), 1, "{report}");
    }
    let json: serde_json::Value = serde_json::to_value(&run).unwrap();
    assert_eq!(json["error_rate"], 0.1);
    (run.families, run.error_rate) = (vec![], 0.0);
    for report in reports(&run) {
        assert!(!report.contains("The chance of any"), "{report}");
    }
}

#[test]
fn every_report_says_which_verdicts_assume_independent_rounds() {
    let mut run = fixture::run();
    let sentence =
        "For the 2 claims and targets on a figure alone, without a ratio to another cell \
                    of the same round, this assumes independent rounds: false verdicts are more \
                    frequent where a disturbance lasts for several.";
    for (ids, times) in [(vec![], 0), (vec!["a/b/c".into(), "a/b/d".into()], 1)] {
        run.assuming_independent_rounds = ids;
        for report in [
            report::text::claims(&run, 400, false),
            report::html(&run),
            report::markdown(&run),
        ] {
            assert_eq!(report.matches(sentence).count(), times, "{report}");
        }
    }
    let json: serde_json::Value = serde_json::to_value(&run).unwrap();
    assert_eq!(json["assuming_independent_rounds"][1], "a/b/d");
}

#[test]
fn every_report_has_published_figures_with_all_their_digits() {
    let mut run = fixture::run();
    let experiment = &mut run.experiments[0];
    experiment.claims[0].published = Some(1.0005);
    experiment.published[0].value = 1727.5625;
    for report in [
        report::text::claims(&run, 160, false) + &report::text::cells(&run.experiments[0], 160),
        report::html(&run),
        report::markdown(&run),
    ] {
        assert!(report.contains("1.0005"), "{report}");
        assert!(report.contains("Published 1727.5625"), "{report}");
    }
    let html = report::html(&run);
    assert!(html.contains("published 1727.5625 MiB/s"), "{html}");
}

#[test]
fn the_csv_has_a_line_for_each_round_and_an_empty_field_for_a_missing_value() {
    let run = fixture::run();
    let csv = report::csv(&run);
    let lines: Vec<&str> = csv.split("\r\n").filter(|line| !line.is_empty()).collect();
    let cells = run.experiments.iter().flat_map(|e| &e.cells);
    let wanted: usize = cells.map(|cell| cell.samples.len().max(1)).sum();
    assert_eq!(lines.len(), wanted + 1);
    assert_eq!(
        lines[0],
        "experiment,at,metric,unit,better,round,value,failed,reason"
    );
    let first = "rdrand/size,\"{\"\"function\"\":\"\"get_bytes\"\",\"\"quadwords\"\":1}\",throughput,MiB/s,higher,0,";
    let value = run.experiments[0].cells[0].samples[0].unwrap();
    assert_eq!(lines[1], format!("{first}{value},0,"));
    let gone = lines
        .iter()
        .filter(|line| line.contains(":64}") && line.contains("get_bytes"));
    assert!(gone.clone().count() == 8 && gone.clone().all(|line| line.contains(",,8,every")));
}

#[test]
fn a_terminal_table_fits_every_width_and_cannot_drive_the_terminal() {
    for run in [fixture::run(), fixture::hostile(), fixture::large()] {
        for width in 60..=200 {
            let mut text = report::text::claims(&run, width, false);
            let sized = run.experiments[0].cells.len() < 50 || width % 20 == 0;
            for experiment in run.experiments.iter().filter(|_| sized) {
                text += &report::text::cells(experiment, width);
            }
            for line in text.lines() {
                let columns = unicode_width::UnicodeWidthStr::width(line);
                assert!(columns <= width, "{columns} columns in {width}: {line}");
            }
            assert!(text.contains("< 0.0001"), "p is broken at {width}: {text}");
            assert!(!text.contains('\u{1b}') && !text.contains('\u{202e}'));
        }
    }
    // A terminal that is wide enough has a table, and one with room to spare is not wasted.
    let table = report::text::claims(&fixture::run(), 100, false);
    assert!(table.contains("Measured [95 %]  Criterion"), "{table}");
    let wide = report::text::claims(&fixture::run(), 160, false);
    assert!(wide.lines().count() < table.lines().count());
}

#[test]
fn markdown_has_one_row_per_claim_and_no_markup_from_outside() {
    let text = report::markdown(&fixture::run());
    let rows = |verdict: &str| text.matches(&format!("| {verdict} |")).count();
    let found = [
        "✓ reproduced",
        "✗ not reproduced",
        "? inconclusive",
        "✓ held",
        "✗ missed",
    ]
    .map(rows);
    assert_eq!(found, [3, 1, 1, 1, 1]);
    assert!(text.contains("## Throughput while the buffer grows"));
    let hostile = report::markdown(&fixture::hostile());
    assert!(!hostile.contains("<script") && !hostile.contains("<img"));
}
