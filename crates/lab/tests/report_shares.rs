//! The figure of stacked shares, checked against the cells it was drawn from.

mod report_fixture;

use tare_lab::experiment::Experiment;
use tare_lab::report;
use tare_lab::result::{ExperimentResult, RunResult};
use tare_lab::unit::Unit;

use report_fixture as fixture;

/// The only figure of shares in the report of `experiment` alone.
fn figure(experiment: ExperimentResult) -> String {
    let mut run = fixture::run();
    run.experiments = vec![experiment];
    let html = report::html(&run);
    let figures: Vec<&str> = html.split("<figure class=\"shares\"").collect();
    assert_eq!(figures.len(), 2);
    figures[1].split("</figure>").next().unwrap().to_owned()
}

fn breakdown() -> ExperimentResult {
    let mut experiments = fixture::run().experiments;
    let place = experiments.iter().position(|it| !it.parts.is_empty());
    experiments.swap_remove(place.unwrap())
}

fn attribute<'a>(text: &'a str, name: &str) -> &'a str {
    let value = text.split(&format!(" {name}=\"")).nth(1);
    let value = value.unwrap_or_else(|| panic!("{name} in {text}"));
    value.split('"').next().unwrap()
}

/// A segment of a bar: its class, its part, its place and width in per cent of the axis.
#[derive(Debug)]
struct Segment {
    class: String,
    part: String,
    from: f64,
    width: f64,
    text: String,
}

/// The bars of the figure with the labels of their rows, from top to bottom.
fn bars(figure: &str) -> Vec<(String, Vec<Segment>)> {
    let ticks: Vec<(f64, f64)> = figure
        .split("<i class=\"tick\"")
        .skip(1)
        .map(|tick| ["data-tick", "data-pixel"].map(|name| attribute(tick, name).parse().unwrap()))
        .map(|[value, at]| (value, at))
        .collect();
    let ((low, from), (high, to)) = (ticks[0], ticks[ticks.len() - 1]);
    let scale = (high - low) / (to - from);
    let length = |text: &str| text.trim_end_matches('%').parse::<f64>().unwrap();
    let rows = figure.split("<div class=\"row").skip(1);
    let rows = rows.filter(|row| !row.starts_with(" scale"));
    rows.map(|row| {
        let label = row.split("</span>").next().unwrap();
        let label = label.rsplit_once("\">").unwrap().1;
        let label = label.replace("<bdi>", "").replace("</bdi>", "");
        let segments = row.split("<g class=\"").skip(1).map(|group| Segment {
            class: group.split('"').next().unwrap().to_owned(),
            part: match group.contains("data-part") {
                true => attribute(group, "data-part").to_owned(),
                false => String::new(),
            },
            from: low + (length(attribute(group, "x")) - from) * scale,
            width: length(attribute(group, "width")) * scale,
            text: group.split("</g>").next().unwrap().to_owned(),
        });
        (label, segments.collect())
    })
    .collect()
}

#[test]
fn the_segments_of_a_bar_are_the_medians_in_the_order_of_the_file_and_fill_the_whole() {
    let bars = bars(&figure(breakdown()));
    let labels: Vec<&str> = bars.iter().map(|(label, _)| label.as_str()).collect();
    let expected = [
        "plain",
        "published",
        "cvm",
        "published",
        "zero copy",
        "published",
        "bifrost",
        "no encryption",
    ];
    assert_eq!(labels, expected);
    for (label, shares) in [
        ("plain", [13.25, 0.0, 28.5, 50.25]),
        ("cvm", [21.5, 13.0, 27.0, 38.5]),
        ("bifrost", [13.0, 1.0, 21.0, 71.0]),
    ] {
        let (_, segments) = bars.iter().find(|(name, _)| name == label).unwrap();
        let mut end = 0.0;
        for ((segment, share), number) in segments.iter().zip(shares).zip(0..) {
            assert_eq!(segment.class, format!("share s{number}"));
            assert_eq!(segment.part, breakdown().parts[number]);
            assert!((segment.from - end).abs() < 0.01, "{label}: {segment:?}");
            assert!((segment.width - share).abs() < 0.01, "{label}: {segment:?}");
            end += share;
        }
        let rest: Vec<&Segment> = segments.iter().skip(4).collect();
        match rest[..] {
            [] => assert!(end >= 100.0, "{label}"),
            [rest] => {
                assert_eq!(rest.class, "rest");
                assert!((end + rest.width - 100.0).abs() < 0.01, "{rest:?}");
                assert!(rest.text.contains("<title>other: 8.0 %"), "{rest:?}");
            }
            _ => panic!("{rest:?}"),
        }
    }
    let first = &bars[0].1[0].text;
    assert!(
        first.contains("exits, variant=plain: 13.25 %, 95 % interval ["),
        "{first}"
    );
    // The percentage where there is room for it, its letter alone where there is less.
    for text in [
        "class=\"w2\"",
        ">A 13.2 %</text>",
        "class=\"w0 w1\"",
        ">A</text>",
    ] {
        assert!(first.contains(text), "{first}");
    }
}

#[test]
fn a_part_without_a_value_is_shown_as_missing_and_not_as_zero() {
    let figure = figure(breakdown());
    let bars = bars(&figure);
    let (_, segments) = &bars[4];
    let parts: Vec<&str> = segments.iter().map(|it| it.part.as_str()).collect();
    assert_eq!(parts, ["exits", "packets", "application", ""]);
    let absent = &segments[3];
    assert_eq!(absent.class, "rest absent");
    assert!((absent.width - 3.0).abs() < 0.01, "{absent:?}");
    let title = "no value: bounce buffer (the kernel has no probe); 3.0 % are left";
    assert!(absent.text.contains(title), "{absent:?}");
    assert!(absent.text.contains(">×</text>"), "{absent:?}");
    assert!(
        figure.contains("No value: variant=zero copy: bounce buffer"),
        "{figure}"
    );
    // Of a reference with one part alone, the others are missing too.
    assert_eq!(bars[7].1.len(), 2);
    assert!(bars[7].1[1].text.contains("× no value</text>"));
    // Nothing is left of the whole: it is shown all the same.
    let mut full = breakdown();
    full.cells[11].median = Some(60.0);
    let full = &self::bars(&self::figure(full))[4].1;
    assert!(full[3].text.contains(">×</text>"), "{full:?}");
    assert!(full[3].width < 0.01, "{full:?}");
}

#[test]
fn a_sum_above_the_whole_widens_the_axis_and_is_said() {
    let figure = figure(breakdown());
    assert!(
        figure.contains("parts add up to more than 100 %."),
        "{figure}"
    );
    let last = &bars(&figure)[6].1[3];
    assert!((last.from + last.width - 106.0).abs() < 0.01, "{last:?}");
    let length = |name| {
        attribute(&last.text, name)
            .trim_end_matches('%')
            .parse::<f64>()
            .unwrap()
    };
    assert!(
        (length("x") + length("width") - 97.0).abs() < 0.01,
        "{last:?}"
    );
}

#[test]
fn published_shares_are_a_second_bar_and_those_that_are_not_are_hollow() {
    let bars = bars(&figure(breakdown()));
    let of = |row: usize| -> Vec<(&str, &str)> {
        let segments = bars[row].1.iter();
        segments
            .map(|it| (it.class.as_str(), it.part.as_str()))
            .collect()
    };
    // All of the whole is published although one part is not.
    let plain = [("share hollow s0", "exits"), ("share hollow s2", "packets")];
    assert_eq!(
        of(1),
        [&plain[..], &[("share hollow s3", "application")]].concat()
    );
    assert_eq!(of(3).len(), 4);
    let shares = [
        ("share hollow s2", "packets"),
        ("share hollow s3", "application"),
    ];
    assert_eq!(of(5), [&shares[..], &[("rest", "")]].concat());
    let rest = &bars[5].1[2];
    assert!(
        rest.text.contains("not published: exits, bounce buffer"),
        "{rest:?}"
    );
    assert!((rest.width - 15.28).abs() < 0.01, "{rest:?}");
}

#[test]
fn ratios_are_drawn_as_percentages() {
    let mut ratios = breakdown();
    for cell in &mut ratios.cells {
        cell.unit = Unit::Ratio;
        cell.median = cell.median.map(|median| median / 100.0);
    }
    for published in &mut ratios.published {
        published.value /= 100.0;
    }
    let widths = |experiment| -> Vec<String> {
        let bars = bars(&figure(experiment)).into_iter();
        let widths = bars.flat_map(|(_, segments)| segments).map(|it| it.width);
        widths.map(|width| format!("{width:.2}")).collect()
    };
    assert_eq!(widths(ratios), widths(breakdown()));
}

#[test]
fn what_is_no_share_is_said_to_be_none() {
    let mut wrong = breakdown();
    wrong.cells[0].median = Some(-3.0);
    wrong.cells[2].median = Some(f64::INFINITY);
    let figure = figure(wrong);
    assert!(figure.contains("exits (-3 % is not a share)"), "{figure}");
    assert!(
        !figure.contains("NaN") && !figure.contains("inf%"),
        "{figure}"
    );
}

#[test]
fn the_names_of_the_parts_are_in_the_order_of_the_file_with_the_letters_of_their_segments() {
    let figure = figure(breakdown());
    let names = figure.split("<ul class=\"names\">").nth(1).unwrap();
    let names: Vec<&str> = names
        .split("</ul>")
        .next()
        .unwrap()
        .split("<li")
        .skip(1)
        .collect();
    assert_eq!(names.len(), 5);
    for ((name, part), letter) in names
        .iter()
        .zip(breakdown().parts)
        .zip(["A", "B", "C", "D"])
    {
        assert!(name.contains(&format!(">{letter}</text>")), "{name}");
        assert!(name.contains(&format!("<bdi>{part}</bdi>")), "{name}");
    }
    assert!(names[4].contains("other"));
    assert!(bars(&figure)[0].1[3].text.contains(">D 50.2 %</text>"));
}

#[test]
fn a_result_keeps_its_parts_and_one_without_them_is_read_and_has_no_such_figure() {
    let mut run = fixture::run();
    run.experiments = vec![breakdown()];
    let mut json = serde_json::to_value(&run).unwrap();
    let back: RunResult = serde_json::from_value(json.clone()).unwrap();
    assert_eq!(back, run);
    let mut with = 0;
    for experiment in json["experiments"].as_array_mut().unwrap() {
        with += usize::from(
            experiment
                .as_object_mut()
                .unwrap()
                .remove("parts")
                .is_some(),
        );
    }
    assert_eq!(with, 1);
    let old: RunResult = serde_json::from_value(json).unwrap();
    assert!(old.experiments.iter().all(|it| it.parts.is_empty()));
    assert!(!report::html(&old).contains("class=\"shares\""));
}

/// The plan of a run is read again when it is resumed or reported.
#[test]
fn an_experiment_that_was_stored_without_parts_is_read() {
    let stored = r#"{"id":"a/b","title":"t","source":"s","driver":"synthetic","fixed":{},
        "axes":[],"exclude":[],"beside":[],"baseline":null,"metrics":[],"published":[],
        "claims":[]}"#;
    let old: Experiment = serde_json::from_str(stored).unwrap();
    assert!(old.parts.is_empty());
    assert!(!serde_json::to_string(&old).unwrap().contains("parts"));
    let new = Experiment {
        parts: vec!["a".into(), "b".into()],
        ..old
    };
    let text = serde_json::to_string(&new).unwrap();
    assert_eq!(serde_json::from_str::<Experiment>(&text).unwrap(), new);
}
