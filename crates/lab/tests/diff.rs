//! The changes from one run to another.

mod report_fixture;

use report_fixture as fixture;
use tare_lab::diff::{diff, CellChange};
use tare_lab::result::RunResult;
use tare_lab::unit::Unit;

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
    diff(before, after).cells.remove(0)
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
