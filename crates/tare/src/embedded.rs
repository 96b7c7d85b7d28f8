//! The embedded experiments against the real drivers, on machines of every kind.

use std::time::Duration;

use tare_lab::driver::{Driver, Drivers, Vocabulary};
use tare_lab::experiment::{ClaimKind, Experiment};
use tare_lab::file::{self, Context, Size};
use tare_lab::sample::OPERATIONS;
use tare_lab::unit::Dimension;
use tare_lab::usage;
use tare_lab::value::{Parameters, Point, Selector};

use crate::catalog::EMBEDDED;
use crate::machine::{Feature, Machine};
use crate::{systems, tour};

/// No trial of an embedded experiment is expected to take longer.
const TRIAL_MAX: Duration = Duration::from_secs(600);

/// Targets whose cells the full size alone has: at the quick one they are not testable.
const FULL_ALONE: [&str; 2] = ["clio/pages/order-22", "clio/misses/order-22"];

/// A machine with so many processors, and everything else but this.
fn machine(cpus: usize, without: &[Feature]) -> Machine {
    Machine::Described {
        cpus,
        without: without.to_vec(),
    }
}

fn drivers(machine: &Machine) -> Drivers {
    let own = systems::on(machine).into_iter();
    Drivers::new(own.map(|driver| driver as Box<dyn Driver>).collect())
}

/// The experiments of a file, or everything that is wrong with it.
fn read(
    file: &str,
    text: &str,
    cpus: usize,
    size: Size,
    drivers: &Drivers,
) -> Result<Vec<Experiment>, String> {
    let context = Context {
        cpus,
        size,
        drivers,
    };
    file::parse(text, file, &context).map_err(|errors| {
        let errors: Vec<String> = errors.iter().map(ToString::to_string).collect();
        errors.join("\n")
    })
}

/// Every reason why a driver would not accept an experiment of this size.
fn refusals(experiment: &Experiment, size: Size, drivers: &Drivers) -> Vec<String> {
    let Some(driver) = drivers.get(&experiment.driver) else {
        return vec![format!("there is no driver {}", experiment.driver)];
    };
    let words = driver.vocabulary();
    let mut refusals = undeclared(experiment, size, &words);
    for point in experiment.points() {
        let parameters = words.complete(experiment.parameters(&point));
        if let Err(reason) = refusal(driver, &parameters) {
            refusals.push(format!("the cell {}: {reason}", name_of(&point)));
        }
    }
    refusals
}

fn name_of(point: &Point) -> String {
    match point.to_string() {
        name if name.is_empty() => "without axes".into(),
        name => name,
    }
}

/// Metrics, counters and references that the driver does not declare, and claims without cells.
fn undeclared(experiment: &Experiment, size: Size, words: &Vocabulary) -> Vec<String> {
    let mut unknown = Vec::new();
    for metric in &experiment.metrics {
        let own = words.metrics.iter().map(|(name, of)| (name.as_str(), *of));
        let every = usage::METRICS
            .iter()
            .map(|(name, unit)| (*name, unit.dimension()));
        let known = own.chain(every).find(|(name, _)| *name == metric.name);
        if known.map(|(_, dimension)| dimension) != Some(metric.unit.dimension()) {
            unknown.push(format!("no metric {} in {}", metric.name, metric.unit));
        }
    }
    let points = experiment.points();
    let mut counters: Vec<&str> = vec![OPERATIONS];
    counters.extend(
        experiment
            .metrics
            .iter()
            .filter_map(|metric| metric.work.as_deref()),
    );
    for claim in &experiment.claims {
        if let ClaimKind::Zero {
            counter, out_of, ..
        } = &claim.kind
        {
            counters.extend([counter.as_str(), out_of.as_str()]);
        } else if experiment.metric(&claim.metric).is_none() {
            unknown.push(format!("no metric {} for claim {}", claim.metric, claim.id));
        }
        let id = format!("{}/{}", experiment.id, claim.id);
        let is_elsewhere = size == Size::Quick && FULL_ALONE.contains(&id.as_str());
        for selector in selectors(&claim.kind) {
            if !is_elsewhere && !points.iter().any(|point| selector.matches(point)) {
                unknown.push(format!("no cell {selector} for claim {}", claim.id));
            }
        }
    }
    let is_unknown = |counter: &&str| !words.counters.iter().any(|known| known == counter);
    unknown.extend(
        counters
            .into_iter()
            .filter(is_unknown)
            .map(|name| format!("no counter {name}")),
    );
    let beside = experiment
        .beside
        .iter()
        .filter(|name| !words.references.contains(name));
    unknown.extend(beside.map(|name| format!("no reference {name}")));
    unknown
}

fn selectors(kind: &ClaimKind) -> Vec<&Selector> {
    match kind {
        ClaimKind::Ratio { of, to, .. } => vec![of, to],
        ClaimKind::Flat { within, .. }
        | ClaimKind::Scales { within, .. }
        | ClaimKind::Zero { within, .. } => vec![within],
        ClaimKind::Order { ranked, .. } => ranked.iter().collect(),
        ClaimKind::Value { of, .. } => vec![of],
    }
}

/// Returns an error if the driver does not accept a cell, or does not say what its machine lacks.
fn refusal(driver: &dyn Driver, parameters: &Parameters) -> Result<(), String> {
    driver
        .examine(parameters)
        .map_err(|mistake| mistake.to_string())?;
    if let Err(missing) = driver.check(parameters) {
        let remedy = missing.remedy.unwrap_or_default();
        if missing.reason.is_empty() || remedy.is_empty() {
            return Err(format!("missing \"{}\", without a remedy", missing.reason));
        }
    }
    let roles = driver.roles(parameters);
    let parts = driver.parts(parameters);
    if roles.is_empty() || parts.len() != roles.len() {
        return Err(format!(
            "{} processes for {} roles",
            parts.len(),
            roles.len()
        ));
    }
    for part in parts {
        let expected = part.invocation.expected.ok_or("no expected time")?;
        let time = expected.clock.checked_add(expected.work);
        let time = time.filter(|time| *time <= TRIAL_MAX && *time <= part.invocation.limit);
        if time.is_none() {
            return Err(format!(
                "{expected:?} with a limit of {:?}",
                part.invocation.limit
            ));
        }
    }
    Ok(())
}

#[test]
fn every_embedded_experiment_is_accepted_by_its_driver() {
    let features = Feature::all();
    let mut lacks: Vec<&[Feature]> = vec![&[], &features];
    lacks.extend(features.chunks(1));
    let mut refused = Vec::new();
    for cpus in [1, 2, 64] {
        for size in Size::ALL {
            for (file, text) in EMBEDDED {
                let experiments = match read(file, text, cpus, size, &drivers(&machine(cpus, &[])))
                {
                    Ok(experiments) => experiments,
                    Err(errors) => {
                        refused.push(errors);
                        continue;
                    }
                };
                for without in &lacks {
                    let drivers = drivers(&machine(cpus, without));
                    for experiment in &experiments {
                        let refusals = refusals(experiment, size, &drivers).into_iter();
                        let id = &experiment.id;
                        refused.extend(refusals.map(|reason| format!("{file}: {id}: {reason}")));
                    }
                }
            }
        }
    }
    refused.sort();
    refused.dedup();
    assert!(refused.is_empty(), "{}", refused.join("\n"));
}

#[test]
fn every_feature_is_missed_by_a_cell_that_needs_it() {
    // A feature whose check was dropped would fail in the middle of a run, on another machine.
    for feature in Feature::all() {
        let drivers = drivers(&machine(64, &[feature]));
        let missing = feature.missing();
        let needed = EMBEDDED.iter().any(|(file, text)| {
            let experiments = read(file, text, 64, Size::Full, &drivers).unwrap();
            experiments.iter().any(|experiment| {
                let driver = drivers.get(&experiment.driver).unwrap();
                experiment.points().iter().any(|point| {
                    let parameters = driver.vocabulary().complete(experiment.parameters(point));
                    driver.check(&parameters) == Err(missing.clone())
                })
            })
        });
        assert!(needed, "{missing:?}");
    }
}

#[test]
fn every_published_amount_names_its_source() {
    // An amount depends on the machine that it was measured on.
    let drivers = drivers(&machine(2, &[]));
    let mut amounts = 0;
    for (file, text) in EMBEDDED {
        for experiment in read(file, text, 2, Size::Quick, &drivers).unwrap() {
            // What was measured here is no publication's.
            let is_own = experiment.source.contains("Tare") && !experiment.published.is_empty();
            assert!(!is_own, "{}", experiment.id);
            for published in &experiment.published {
                let source = published.source.as_deref().unwrap_or_default();
                let is_own = source.contains("Tare") || source.contains("measured on");
                assert!(!is_own, "{}: {source}", experiment.id);
                let metric = experiment.metric(&published.metric).unwrap();
                let dimension = metric.unit.dimension();
                if !matches!(dimension, Dimension::Ratio | Dimension::Count) {
                    amounts += 1;
                    let (id, at) = (&experiment.id, &published.at);
                    assert!(published.source.is_some(), "{id} at {at}");
                }
            }
        }
    }
    assert!(amounts > 50, "{amounts}");
}

#[test]
fn the_tour_has_its_claims_on_any_machine() {
    for cpus in [1, 2, 64] {
        let drivers = drivers(&machine(cpus, &[]));
        tour::experiments(&drivers).unwrap();
    }
}

#[test]
fn an_experiment_that_no_driver_accepts_is_named_with_its_cell_and_the_reason() {
    let drivers = drivers(&machine(2, &[]));
    let (file, text) = EMBEDDED[2];
    let broken = |from: &str, to: &str| {
        assert!(text.contains(from), "{from}");
        read(file, &text.replacen(from, to, 1), 2, Size::Quick, &drivers)
    };
    for (from, to, expected) in [
        (
            "size = [\"60\", \"IMIX\", \"590\"",
            "size = [\"59\", \"IMIX\", \"590\"",
            "\"59\"",
        ),
        (
            "driver = \"vita-veth\"",
            "driver = \"vita-vet\"",
            "vita-veth",
        ),
        (
            "subject = [\"gateway\", \"cipher\"",
            "subject = [\"gateway\", \"cypher\"",
            "cipher",
        ),
        (
            "counter = \"searches_in_vain\"",
            "counter = \"in_vain\"",
            "in_vain",
        ),
        ("name = \"of_computed\"", "name = \"computed\"", "computed"),
    ] {
        let errors = broken(from, to).unwrap_err();
        assert!(
            errors.starts_with(file) && errors.contains(expected),
            "{errors}"
        );
    }
    // What a file cannot show, the cells do.
    let experiments = read(EMBEDDED[0].0, EMBEDDED[0].1, 2, Size::Quick, &drivers).unwrap();
    let mut beside = experiments
        .into_iter()
        .find(|one| !one.beside.is_empty())
        .unwrap();
    beside.beside.push("rand".into());
    beside.fixed.insert("sizes".into(), 3.into());
    let refusals = refusals(&beside, Size::Quick, &drivers).join("\n");
    for expected in [
        "no reference rand",
        "the cell beside=rand: parameter beside: found rand, expected one of rdseed",
        "the cell method=aes_ctr: parameter sizes: found 3, expected one of the parameters",
    ] {
        assert!(refusals.contains(expected), "{refusals}");
    }
}
