//! `experiments/rdrand.toml`, the chapter as data, read against the drivers of this program.

use tare_lab::experiment::{ClaimKind, Experiment};
use tare_lab::file::{parse, Context, FileError, Size};
use tare_lab::value::Value;

use crate::systems;

const CHAPTER: &str = include_str!("../../../experiments/rdrand.toml");

/// Reads a text that must be right, as on a machine with `cpus` processors.
fn right(text: &str, cpus: usize, size: Size) -> Vec<Experiment> {
    let drivers = systems::all();
    let context = Context {
        cpus,
        size,
        drivers: &drivers,
    };
    parse(text, "rdrand.toml", &context).unwrap_or_else(|errors| {
        let errors: Vec<String> = errors.iter().map(FileError::to_string).collect();
        panic!("{}", errors.join("\n"))
    })
}

/// The time of a trial beside its measured part.
const OVERHEAD_MS: f64 = 15.0;
const QUICK_ROUNDS: f64 = 8.0;

#[test]
fn the_chapter_is_right_on_machines_of_any_size() {
    for cpus in [0, 1, 2, 3, 8, 64, 600, 5000] {
        for size in Size::ALL {
            let experiments = right(CHAPTER, cpus, size);
            let ids: Vec<&str> = experiments.iter().map(|e| e.id.as_str()).collect();
            assert_eq!(
                ids,
                [
                    "rdrand/threads",
                    "rdrand/drop",
                    "rdrand/size",
                    "rdrand/references",
                    "rdrand/secure",
                    "rdrand/written",
                    "rdrand/width",
                    "rdrand/alignment",
                    "rdrand/underflow",
                    "rdrand/batteries"
                ]
            );
        }
    }
}

#[test]
fn every_claim_of_the_chapter_has_its_cells_at_both_sizes_on_any_machine() {
    for (cpus, size) in [1, 2, 3, 6, 64, 600]
        .into_iter()
        .flat_map(|n| Size::ALL.map(|s| (n, s)))
    {
        for experiment in right(CHAPTER, cpus, size) {
            let points = experiment.points();
            let here = |selector: &tare_lab::value::Selector| {
                assert!(
                    points.iter().any(|point| selector.matches(point)),
                    "{}: {selector} at {}, {cpus} processors",
                    experiment.id,
                    size.name()
                );
            };
            for claim in &experiment.claims {
                match &claim.kind {
                    ClaimKind::Ratio { of, to, .. } => {
                        here(of);
                        here(to);
                    }
                    ClaimKind::Flat { within, .. }
                    | ClaimKind::Scales { within, .. }
                    | ClaimKind::Zero { within, .. } => here(within),
                    ClaimKind::Order { ranked, .. } => ranked.iter().for_each(here),
                    ClaimKind::Value { of, .. } => here(of),
                }
            }
        }
    }
}

#[test]
fn the_quick_chapter_takes_less_than_a_minute_on_two_processors() {
    let mut cells = 0;
    let mut round_ms = 0.0;
    for experiment in right(CHAPTER, 2, Size::Quick) {
        let trials = experiment.points().len() + 1;
        cells += trials - 1;
        round_ms += trials as f64 * (OVERHEAD_MS + measured_ms(&experiment));
    }
    let run_s = round_ms * QUICK_ROUNDS / 1000.0;
    println!("{cells} cells, {run_s:.0} s");
    assert!(cells <= 80, "{cells} cells");
    assert!(run_s < 50.0, "{run_s} s");
}

/// The measured part of a trial; for the batteries, a generous guess at 10 MB/s.
fn measured_ms(experiment: &Experiment) -> f64 {
    let quantity = |name: &str, unit: &str| {
        let value = experiment.fixed.get(name).and_then(Value::as_str)?;
        let quantity: tare_lab::unit::Quantity = value.parse().unwrap();
        Some(quantity.in_unit(unit.parse().unwrap()).unwrap())
    };
    quantity("duration", "ms")
        .or_else(|| Some(quantity("amount", "MB")? / 10.0 * 1000.0))
        .unwrap()
}

#[test]
fn published_figures_arrive_in_the_unit_of_their_metric() {
    let experiments = right(CHAPTER, 2, Size::Quick);
    let secure = experiments
        .iter()
        .find(|e| e.id == "rdrand/secure")
        .unwrap();
    let values: Vec<f64> = secure.published.iter().map(|p| p.value).collect();
    assert_eq!(values, [212.806, 0.116, 0.224]);
    let fast_over_skip = values[0] / values[2];
    assert!((949.0..951.0).contains(&fast_over_skip));
}
