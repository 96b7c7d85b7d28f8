//! The meaning of right files.

use tare_lab::experiment::{Bound, ClaimKind, Experiment, Rounds, Statistic};
use tare_lab::file::{parse, Context, Size};
use tare_lab::unit::{Better, Unit};
use tare_lab::value::{Parameters, Selector, Value};

use super::{right, BASE};

/// The only experiment of the base document with `changes` made to its text.
fn base(changes: &[(&str, &str)], cpus: usize, size: Size) -> Experiment {
    let mut text = BASE.to_owned();
    for (from, to) in changes {
        assert!(text.contains(from), "{from}");
        text = text.replacen(from, to, 1);
    }
    right(&text, cpus, size).remove(0)
}

const SESSIONS: &str = "[1, 8, 100, 400, 700, 1000]";
const FLAT: &str = "flat      = { over = \"sessions\", at_most = 1.10 }";

fn axis(sessions: &str, cpus: usize) -> (Vec<i64>, bool) {
    let experiment = base(&[(SESSIONS, sessions)], cpus, Size::Quick);
    let axis = experiment
        .axes
        .iter()
        .find(|axis| axis.name == "sessions")
        .unwrap();
    let number = |value: &Value| match value {
        Value::Int(n) => *n,
        other => panic!("{other:?}"),
    };
    (axis.values.iter().map(number).collect(), axis.log)
}

fn selector(pairs: &[(&str, Value)]) -> Selector {
    let pairs = pairs
        .iter()
        .map(|(name, value)| ((*name).to_owned(), value.clone()));
    Selector(pairs.collect::<Parameters>())
}

#[test]
fn the_design_s_example_means_what_it_says() {
    let experiment = base(&[], 2, Size::Quick);
    assert_eq!(experiment.id, "clio/processes");
    assert_eq!(experiment.source, "Clio, ASPLOS'22, figure 4");
    assert_eq!(experiment.fixed["size"], Value::from("16 B"));
    let axes: Vec<&str> = experiment
        .axes
        .iter()
        .map(|axis| axis.name.as_str())
        .collect();
    assert_eq!(axes, ["op", "sessions"]);
    assert_eq!(experiment.points().len(), 13);
    assert_eq!(experiment.beside, ["ping-pong/udp"]);
    let metric = &experiment.metrics[0];
    assert_eq!(
        (metric.unit, metric.better, metric.statistic),
        (Unit::Nanoseconds, Better::Lower, Statistic::P50)
    );
    assert_eq!(metric.work.as_deref(), Some("bytes verified"));
    assert_eq!(experiment.published[1].value, 1884.9);
    assert_eq!(
        experiment.published[1].at.to_string(),
        "op=write sessions=1000"
    );
    let claim = &experiment.claims[0];
    assert_eq!(
        (claim.metric.as_str(), claim.published),
        ("latency", Some(1.06))
    );
    let flat = ClaimKind::Flat {
        over: "sessions".into(),
        within: Selector::default(),
        at_most: 1.10,
    };
    assert_eq!(claim.kind, flat);
}

#[test]
fn parts_keep_the_order_of_the_file() {
    let part = |name: &str| {
        let from = format!("{{ stream = \"stderr\", json = \"/{name}\" }}");
        format!("{{ name = \"{name}\", unit = \"%\", better = \"lower\", from = {from} }}")
    };
    let metrics = ["exits", "copies", "packets"].map(part).join(", ");
    let metric = "metric    = { name = \"latency\", statistic = \"p50\", unit = \"ns\", \
                  better = \"lower\", work = \"bytes verified\" }";
    let parts = format!("metrics = [ {metrics} ]\nparts = [\"packets\", \"exits\"]");
    let with = base(&[(metric, &parts)], 2, Size::Quick);
    assert_eq!(with.parts, ["packets", "exits"]);
    assert!(base(&[], 2, Size::Quick).parts.is_empty());
}

#[test]
fn axes_are_lists_steps_and_multiples_and_know_the_processors() {
    for (written, cpus, values, log) in [
        ("[8, 1, 8]", 2, &[8, 1][..], false),
        ("{ values = [1, 10], log = true }", 2, &[1, 10], true),
        ("{ from = 1, to = 7, step = 3 }", 2, &[1, 4, 7], false),
        ("{ from = 1, to = 4 }", 2, &[1, 2, 3, 4], false),
        ("{ from = 1, to = 9, times = 2 }", 2, &[1, 2, 4, 8], true),
        (
            "{ from = 1, to = 9, times = 2, log = false }",
            2,
            &[1, 2, 4, 8],
            false,
        ),
        ("{ from = 1, to = \"2 x cpus\" }", 2, &[1, 2, 3, 4], false),
        ("{ from = 2, to = \"cpus\" }", 1, &[2], false),
        ("[1, 2, \"cpus\", \"2 x cpus\"]", 1, &[1, 2], false),
        ("[1, 2, \"cpus\", \"2 x cpus\"]", 2, &[1, 2, 4], false),
        ("[\"cpus + 1\", \"cpus\"]", 8, &[8, 9], false),
        ("{ from = 1, to = \"cpus + 2\" }", 1, &[1, 2, 3], false),
        ("[1, 8, \"cpus\"]", 3, &[1, 3, 8], false),
        ("[\"cpus\"]", 0, &[1], false),
        ("[1, \"2000 x cpus\"]", 90, &[1, 100_000], false),
    ] {
        assert_eq!(
            axis(written, cpus),
            (values.to_vec(), log),
            "{written} on {cpus}"
        );
    }
}

#[test]
fn a_size_changes_fixed_values_and_axes_and_nothing_else() {
    let tables = "\n[experiment.quick]\nmatrix = { sessions = [1, 8] }\n\
                  [experiment.full]\nfixed = { size = \"4 KiB\", encrypt = true }\n\n[[experiment.claim]]";
    let change = [("\n[[experiment.claim]]", tables)];
    let quick = base(&change, 2, Size::Quick);
    let full = base(&change, 2, Size::Full);
    assert_eq!(quick.fixed["size"], Value::from("16 B"));
    assert_eq!(quick.axes[1].values, [Value::Int(1), Value::Int(8)]);
    assert_eq!(full.fixed["size"], Value::from("4 KiB"));
    assert_eq!(full.fixed["encrypt"], Value::Bool(true));
    assert_eq!(full.axes[1].values.len(), 6);
    assert_eq!((quick.claims, quick.metrics), (full.claims, full.metrics));
}

#[test]
fn an_axis_is_logarithmic_at_both_sizes_unless_one_says_otherwise() {
    let list = "sessions = [1, 8, 100, 400, 700, 1000]";
    let log = "sessions = { values = [1, 8, 100], log = true }";
    for (quick, is_log) in [
        ("[1, 8]", true),
        ("{ from = 1, to = 3 }", true),
        ("{ values = [1, 8], log = false }", false),
    ] {
        let tables = format!(
            "\n[experiment.quick]\nmatrix = {{ sessions = {quick} }}\n\n[[experiment.claim]]"
        );
        let change = [(list, log), ("\n[[experiment.claim]]", tables.as_str())];
        assert_eq!(base(&change, 2, Size::Quick).axes[1].log, is_log, "{quick}");
        assert!(base(&change, 2, Size::Full).axes[1].log);
    }
}

#[test]
fn a_claim_about_another_size_or_machine_is_kept_and_chooses_nothing_here() {
    let ratio = |sessions: &str| {
        format!(
            "ratio = {{ of = {{ op = \"read\", sessions = {sessions} }}, \
             to = {{ op = \"write\", sessions = {sessions} }}, at_least = 1 }}"
        )
    };
    let quick = "\n[experiment.quick]\nmatrix = { sessions = [1, 8] }\n\n[[experiment.claim]]";
    let at_full = ratio("1000");
    let changes = [("\n[[experiment.claim]]", quick), (FLAT, &at_full)];
    for (size, here) in [(Size::Quick, 0), (Size::Full, 1)] {
        let experiment = base(&changes, 2, size);
        let ClaimKind::Ratio { of, .. } = &experiment.claims[0].kind else {
            panic!("{:?}", experiment.claims[0]);
        };
        let points = experiment.points();
        assert_eq!(
            points.iter().filter(|point| of.matches(point)).count(),
            here
        );
    }

    let on_four = ratio("4");
    let changes = [(SESSIONS, "[1, 1000, \"cpus\"]"), (FLAT, &on_four)];
    for (cpus, here) in [(2, 0), (4, 1)] {
        let experiment = base(&changes, cpus, Size::Quick);
        let read = selector(&[("op", Value::from("read")), ("sessions", Value::Int(4))]);
        let points = experiment.points();
        assert_eq!(
            points.iter().filter(|point| read.matches(point)).count(),
            here
        );
    }
}

#[test]
fn each_kind_of_claim_is_read() {
    let read = selector(&[("op", Value::from("read"))]);
    let write = selector(&[("op", Value::from("write"))]);
    let one = |op: &str| selector(&[("op", Value::from(op)), ("sessions", Value::Int(1))]);
    let bound = |at_least, at_most| Bound { at_least, at_most };
    let cases = [
        (
            r#"ratio = { of = { op = "read" }, to = { op = "write" }, between = [0.9, 1.1] }"#,
            ClaimKind::Ratio {
                of: read.clone(),
                to: write.clone(),
                bound: bound(Some(0.9), Some(1.1)),
            },
        ),
        (
            r#"ratio = { of = { op = "read" }, to = { beside = "ping-pong/udp" }, at_most = 2 }"#,
            ClaimKind::Ratio {
                of: read.clone(),
                to: selector(&[("beside", Value::from("ping-pong/udp"))]),
                bound: bound(None, Some(2.0)),
            },
        ),
        (
            r#"scales = { over = "sessions", within = { op = "read" }, up_to = "50 x cpus", at_least = -0.1, at_most = 0.1 }"#,
            ClaimKind::Scales {
                over: "sessions".into(),
                within: read.clone(),
                up_to: Some(100.0),
                bound: bound(Some(-0.1), Some(0.1)),
            },
        ),
        (
            r#"order = { ranked = [ { op = "write", sessions = 1 }, { op = "read", sessions = 1 } ], margin = 1.2 }"#,
            ClaimKind::Order {
                ranked: vec![one("write"), one("read")],
                margin: 1.2,
            },
        ),
        (
            r#"value = { of = { op = "read" }, at_most = "3 us", at_least = 2000 }"#,
            ClaimKind::Value {
                of: read,
                bound: bound(Some(2000.0), Some(3000.0)),
            },
        ),
        (
            r#"zero = { counter = "operations", within = { op = "write" }, out_of = "bytes verified" }"#,
            ClaimKind::Zero {
                counter: "operations".into(),
                within: write,
                out_of: "bytes verified".into(),
                where_testable: false,
            },
        ),
        (
            r#"zero = { counter = "operations", out_of = "bytes verified", where_testable = true }"#,
            ClaimKind::Zero {
                counter: "operations".into(),
                within: Selector::default(),
                out_of: "bytes verified".into(),
                where_testable: true,
            },
        ),
    ];
    for (text, expected) in cases {
        let experiment = base(&[(FLAT, text)], 2, Size::Quick);
        let kind = &experiment.claims[0].kind;
        match (kind, &expected) {
            // 3 µs is 3000 ns but for the last bit.
            (
                ClaimKind::Value { of, bound },
                ClaimKind::Value {
                    of: expected,
                    bound: limits,
                },
            ) => {
                assert_eq!(of, expected);
                assert_eq!(bound.at_least, limits.at_least);
                assert!((bound.at_most.unwrap() - limits.at_most.unwrap()).abs() < 1e-9);
            }
            _ => assert_eq!(*kind, expected, "{text}"),
        }
    }
}

#[test]
fn a_quantity_is_the_same_however_it_is_spelt() {
    let changes = [
        (", size = \"16 B\" }", " }"),
        (
            SESSIONS,
            "[1, 8], size = [\"1 KiB\", \"2 KiB\", \"1024 B\"]",
        ),
        ("sessions = 1,", "sessions = 1, size = \"1024B\","),
        ("sessions = 1000,", "sessions = 1000, size = \"4 KiB\","),
        (
            FLAT,
            r#"flat = { over = "sessions", within = { size = "2048 B" }, at_most = 1.1 }"#,
        ),
    ];
    let experiment = base(&changes, 2, Size::Quick);
    let sizes = [Value::from("1 KiB"), Value::from("2 KiB")];
    assert_eq!(experiment.axes[2].values, sizes);
    assert_eq!(experiment.published[0].at.0["size"], sizes[0]);
    // The publication may have points that our matrix lacks.
    assert_eq!(
        experiment.published[1].at.to_string(),
        "op=write sessions=1000 size=4 KiB"
    );
    let ClaimKind::Flat { within, .. } = &experiment.claims[0].kind else {
        panic!("{:?}", experiment.claims[0]);
    };
    assert_eq!(within.0["size"], sizes[1]);
}

#[test]
fn published_values_are_converted_and_completed() {
    let changes = [
        ("op = [\"read\", \"write\"]", "op = [\"write\"]"),
        (
            "{ op = \"write\", sessions = 1, value = 1993.5 }",
            "{ sessions = 1, value = \"2.5 us\", source = \"table 2\" }, \
             { beside = \"ping-pong/udp\", value = \"1 ms\" }",
        ),
    ];
    let published = base(&changes, 2, Size::Quick).published;
    assert!((published[0].value - 2500.0).abs() < 1e-9);
    assert_eq!(published[0].source.as_deref(), Some("table 2"));
    assert_eq!(published[0].at.to_string(), "op=write sessions=1");
    assert_eq!(published[1].at.beside(), Some("ping-pong/udp"));
}

#[test]
fn exclusions_baselines_and_several_metrics_are_read() {
    let metric = r#"{ name = "latency", unit = "ns", better = "lower" }"#;
    let changes = [(
        "beside    =",
        "exclude = [ { op = \"read\", sessions = 8 } ]\n\
         baseline = { op = \"read\", sessions = 100 }\nbeside =",
    )];
    let experiment = base(&changes, 2, Size::Quick);
    assert_eq!(experiment.points().len(), 12);
    let baseline = selector(&[("op", Value::from("read")), ("sessions", Value::Int(100))]);
    assert_eq!(experiment.baseline, Some(baseline));

    let text = format!(
        "[[experiment]]\nid = \"own/program\"\ntitle = \"t\"\nsource = \"s\"\ndriver = \"program\"\n\
         matrix = {{ anything = [\"a\", 1, 1.5, true] }}\nfixed = {{ level = \"cpus\" }}\n\
         metrics = [ {metric}, {} ]\n",
        metric.replace("latency", "other").replace("ns", "MB/s")
    );
    let program = right(&text, 3, Size::Quick).remove(0);
    assert_eq!(program.metrics[1].unit, Unit::MegabytesPerSecond);
    assert_eq!(program.metrics[1].statistic, Statistic::Median);
    assert_eq!(program.fixed["level"], Value::Int(3));
    assert_eq!(program.points().len(), 4);
}

#[test]
fn rounds_are_what_the_file_says_or_what_the_claims_need() {
    let rounds = |changes: &[(&str, &str)], size| {
        let Rounds { least, most } = base(changes, 2, size).rounds;
        (least, most)
    };
    assert_eq!(rounds(&[], Size::Quick), (10, 60));
    assert_eq!(rounds(&[], Size::Full), (10, 40));
    let zero = "zero = { counter = \"operations\", out_of = \"bytes verified\" }";
    let zero = [(FLAT, zero), ("published = 1.06", "")];
    assert_eq!(rounds(&zero, Size::Quick), (1, 1));
    let from = BASE.find("[[experiment.claim]]").unwrap();
    let none = [(&BASE[from..], "")];
    assert_eq!(rounds(&none, Size::Quick), (10, 10));
    let drivers = crate::words::drivers_that(|words| words.deterministic = true);
    let context = Context {
        cpus: 2,
        size: Size::Quick,
        drivers: &drivers,
    };
    let exact = &parse(BASE, "test.toml", &context).unwrap()[0];
    assert_eq!(exact.rounds, Rounds::exactly(2));
    assert!(exact.exact && !base(&[], 2, Size::Quick).exact);
    let given = [(
        "[[experiment.claim]]",
        "rounds = { least = 3, most = 10_000 }\n\
         [experiment.full]\nrounds = { least = 5, most = 5 }\n[[experiment.claim]]",
    )];
    assert_eq!(rounds(&given, Size::Quick), (3, 10_000));
    assert_eq!(rounds(&given, Size::Full), (5, 5));
}

#[test]
fn an_experiment_is_narrowed_to_the_cells_that_its_claims_speak_of() {
    let claims = "\n[[experiment.claim]]\nid = \"few\"\ntext = \"t\"\n\
        ratio = { of = { op = \"read\", sessions = 8 }, to = { op = \"write\", sessions = 1 }, at_least = 1 }\n\
        [[experiment.claim]]\nid = \"reference\"\ntext = \"t\"\n\
        ratio = { of = { op = \"read\", sessions = 8 }, to = { beside = \"ping-pong/udp\" }, at_least = 1 }\n";
    let published = "published = 1.06";
    let with_baseline = format!("\n{published}{claims}");
    let whole = base(
        &[
            (published, &with_baseline),
            (
                "beside ",
                "baseline = { op = \"read\", sessions = 1000 }\nbeside ",
            ),
        ],
        2,
        Size::Quick,
    );
    let names = |claims: &[&str]| -> Option<Vec<String>> {
        let narrow = whole.clone().narrowed(claims)?;
        assert_eq!(narrow.claims.len(), claims.len());
        assert_eq!(narrow.id, whole.id);
        assert!(narrow.baseline_of(&narrow.points()).is_some());
        Some(narrow.points().iter().map(ToString::to_string).collect())
    };
    let few = ["op=read sessions=8", "op=write sessions=1"];
    assert_eq!(names(&["few"]).unwrap(), few);
    let reference = ["op=read sessions=8", "beside=ping-pong/udp"];
    assert_eq!(names(&["reference"]).unwrap(), reference);
    assert_eq!(names(&["few", "reference"]).unwrap().len(), 3);
    assert_eq!(names(&["flat"]).unwrap().len(), 12, "all but the reference");
    assert_eq!(names(&["other"]), None);
}
