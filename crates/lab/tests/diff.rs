//! The changes from one run to another.

mod report_fixture;

use report_fixture as fixture;
use tare_lab::diff::{diff, CellChange, RunDiff};
use tare_lab::experiment::{
    Bound, Claim, ClaimKind, Experiment, Metric, Rounds, Standing, Statistic,
};
use tare_lab::extract::{Extract, Place, Stream};
use tare_lab::result::RunResult;
use tare_lab::unit::{Better, Unit};
use tare_lab::value::{Parameters, Selector, Value};

/// A run of one experiment with one cell.
fn run(exact: bool, median: f64, ci95: Option<[f64; 2]>) -> RunResult {
    let mut run = fixture::run();
    let mut one = fixture::empty("vita/limit", "A limit", "Vita");
    let at = fixture::point(&[("size", 60.into())]);
    let mut cell = fixture::cell(at, "rate", Unit::MegabitsPerSecond, 1.0);
    (cell.median, cell.ci95) = (Some(median), ci95);
    one.exact = exact;
    one.cells = vec![cell];
    run.experiments = vec![one];
    run
}

fn change(before: &RunResult, after: &RunResult) -> CellChange {
    changes(before, after).cells.remove(0)
}

/// The changes from one run to another, without their experiments.
fn changes(before: &RunResult, after: &RunResult) -> RunDiff {
    diff((before, &[]), (after, &[]))
}

#[test]
fn any_difference_of_deterministic_trials_is_a_change() {
    let of = |before, after| change(&run(true, before, None), &run(true, after, None));
    assert_eq!(of(941.0, 941.0).apart, Some(false));
    let changed = of(941.0, 940.9);
    assert_eq!((changed.apart, changed.exact), (Some(true), true));
    assert_eq!(of(0.0, 3.0).apart, Some(true));

    // The same figure in another unit.
    let mut in_gigabits = run(true, 0.941, None);
    in_gigabits.experiments[0].cells[0].unit = Unit::GigabitsPerSecond;
    let same = change(&run(true, 941.0, None), &in_gigabits);
    assert_eq!(same.apart, Some(false), "{same:?}");

    let mut more_work = run(true, 12.0, None);
    more_work.experiments[0].cells[0].work_per_operation = Some(2.0);
    let mut less_work = run(true, 10.0, None);
    less_work.experiments[0].cells[0].work_per_operation = Some(1.0);
    assert_eq!(change(&less_work, &more_work).apart, None);
}

#[test]
fn measured_medians_differ_where_their_intervals_do_not_overlap() {
    let before = run(false, 10.0, Some([9.0, 11.0]));
    let of = |exact, ci95| change(&before, &run(exact, 12.0, ci95));
    assert_eq!(of(false, Some([11.5, 13.0])).apart, Some(true));
    assert_eq!(of(false, Some([10.5, 13.0])).apart, Some(false));
    assert_eq!(of(false, None).apart, None);
    assert_eq!(of(true, None).apart, None);
}

#[test]
fn a_cell_with_a_median_in_one_run_only_is_listed_with_the_reason() {
    let whole = run(false, 10.0, Some([9.0, 11.0]));
    let mut failed = whole.clone();
    let cell = &mut failed.experiments[0].cells[0];
    (cell.median, cell.ci95) = (None, None);
    cell.reason = Some("every trial failed".into());
    let lost = changes(&whole, &failed);
    assert_eq!(lost.cells, []);
    let cell = &lost.without_value[0];
    assert_eq!((cell.before, cell.after), (Some(10.0), None));
    assert_eq!(cell.reason.as_deref(), Some("every trial failed"));
    let found = changes(&failed, &whole).without_value.remove(0);
    assert_eq!((found.before, found.after), (None, Some(10.0)));
    assert_eq!(found.reason, cell.reason);
    assert_eq!(changes(&failed, &failed).without_value, []);
    assert_eq!(changes(&whole, &whole).without_value, []);
}

#[test]
fn a_claim_about_another_metric_or_other_cells_is_another_question() {
    let judged = fixture::run();
    let all = || judged.experiments.iter().enumerate();
    let (place, _) = all().find(|(_, one)| !one.claims.is_empty()).unwrap();
    let result = &judged.experiments[place];
    let id = &result.claims[0].id;
    let is_same = |before: (&RunResult, &[Experiment]), after: (&RunResult, &[Experiment])| {
        let verdicts = diff(before, after).verdicts;
        verdicts
            .iter()
            .find(|v| v.id == *id)
            .unwrap()
            .same_criterion
    };
    let mut other_metric = judged.clone();
    other_metric.experiments[place].claims[0].metric = "another".into();
    assert!(is_same((&judged, &[]), (&judged, &[])));
    assert!(!is_same((&judged, &[]), (&other_metric, &[])));
    // The same words about other cells.
    let about = |size: i64| {
        let at = |size| Selector(Parameters::from([("size".to_owned(), Value::Int(size))]));
        let metric = Metric {
            name: "time".into(),
            statistic: Statistic::Median,
            across: Statistic::Median,
            from: None,
            unit: Unit::Nanoseconds,
            better: Better::Lower,
            work: None,
        };
        let mut one = experiment("sleep", &[], metric);
        one.id.clone_from(&result.id);
        one.claims = vec![Claim {
            id: id.rsplit('/').next().unwrap().into(),
            standing: Standing::Claim,
            text: "It holds".into(),
            source: None,
            metric: "time".into(),
            kind: ClaimKind::Ratio {
                of: at(size),
                to: at(1),
                bound: Bound {
                    at_least: Some(1.0),
                    at_most: None,
                },
            },
            published: None,
        }];
        vec![one]
    };
    let (two, three) = (about(2), about(3));
    assert!(is_same((&judged, &two), (&judged, &two)));
    assert!(!is_same((&judged, &two), (&judged, &three)));
}

fn experiment(driver: &str, fixed: &[(&str, Value)], metric: Metric) -> Experiment {
    Experiment {
        id: "my/x".into(),
        title: "X".into(),
        source: "mine".into(),
        driver: driver.into(),
        fixed: Parameters::from_iter(fixed.iter().map(|(k, v)| ((*k).to_owned(), v.clone()))),
        axes: vec![],
        exclude: vec![],
        beside: vec![],
        baseline: None,
        metrics: vec![metric],
        parts: vec![],
        published: vec![],
        claims: vec![],
        exact: false,
        rounds: Rounds::default(),
    }
}

#[test]
fn what_changed_in_an_experiment_is_a_condition() {
    let metric = |statistic, unit, better| Metric {
        name: "time".into(),
        statistic,
        across: Statistic::Median,
        from: None,
        unit,
        better,
        work: None,
    };
    let time = metric(Statistic::Median, Unit::Nanoseconds, Better::Lower);
    let before = experiment(
        "sleep",
        &[("n", 1.into()), ("s", 0.01.into())],
        time.clone(),
    );
    let conditions = |before: &Experiment, after: &Experiment| -> Vec<String> {
        let run = run(false, 10.0, None);
        let of = |one: &Experiment| vec![one.clone()];
        let changes = diff((&run, &of(before)), (&run, &of(after))).conditions;
        let shown = |value: Option<String>| value.unwrap_or_default();
        let each = changes.into_iter();
        each.map(|one| format!("{}: {} → {}", one.what, shown(one.before), shown(one.after)))
            .collect()
    };
    assert_eq!(conditions(&before, &before), [""; 0]);
    let after = experiment(
        "nap",
        &[("s", 0.05.into())],
        metric(Statistic::P99, Unit::Microseconds, Better::Higher),
    );
    assert_eq!(
        conditions(&before, &after),
        [
            "my/x: driver: sleep → nap",
            "my/x: fixed.n: 1 → not given",
            "my/x: fixed.s: 0.01 → 0.05",
            "my/x: time.better: lower → higher",
            "my/x: time.statistic: median → 99th percentile",
        ]
    );
    let from = |place| Metric {
        across: Statistic::Mean,
        from: Some(Extract {
            stream: Stream::Stderr,
            place,
        }),
        ..time.clone()
    };
    let of = |metric| experiment("nap", &[], metric);
    let (json, regex) = (Place::Json("/t".into()), Place::Regex("t=(.*)".into()));
    assert_eq!(
        conditions(&of(time.clone()), &of(from(json.clone()))),
        [
            "my/x: time.across: median → mean",
            "my/x: time.from: not given → standard error, JSON Pointer /t",
        ]
    );
    assert_eq!(
        conditions(&of(from(json)), &of(from(regex.clone()))),
        ["my/x: time.from: standard error, JSON Pointer /t → standard error, regular expression t=(.*)"]
    );
    let imported = experiment("imported", &[], from(regex));
    assert_eq!(
        conditions(&imported, &of(from(Place::Json("/t".into())))),
        ["my/x: driver: imported → nap"]
    );
    let bytes = metric(Statistic::Median, Unit::Bytes, Better::Lower);
    let other_unit = experiment("imported", &[], bytes);
    assert_eq!(
        conditions(&before, &other_unit),
        ["my/x: driver: sleep → imported", "my/x: time.unit: ns → B"]
    );
    let other = Experiment {
        id: "my/y".into(),
        ..after
    };
    assert_eq!(conditions(&before, &other), [""; 0]);
}
