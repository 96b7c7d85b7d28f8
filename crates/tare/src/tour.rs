//! The tour, which `tare run` takes if no experiment is named.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{anyhow, Context as _};
use tare_lab::driver::Drivers;
use tare_lab::experiment::{Experiment, Rounds};
use tare_lab::file::Size;
use toml::de::{DeTable, DeValue};

use crate::{catalog, forecast, terminal};

/// The longest time of the tour.
pub(crate) const BUDGET: Duration = Duration::from_secs(60);

/// The least rounds of an experiment in the tour that compares figures: the fewest that give an
/// interval.
const LEAST_ROUNDS: u32 = 9;

const FILE: &str = "experiments/tour.toml";
const TEXT: &str = include_str!("../../../experiments/tour.toml");

/// The experiments of the tour, with its claims and the cells that they need.
pub(crate) fn experiments(drivers: &Drivers) -> anyhow::Result<Vec<Experiment>> {
    let mut claims: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for id in claim_ids()? {
        let (experiment, claim) = id.rsplit_once('/').context(FILE)?;
        let of = claims.entry(experiment.to_owned()).or_default();
        of.push(claim.to_owned());
    }
    let embedded = catalog::embedded(Size::Quick, drivers)?;
    let mut tour = Vec::new();
    for experiment in embedded {
        let Some(wanted) = claims.remove(&experiment.id) else {
            continue;
        };
        let id = experiment.id.clone();
        let wanted: Vec<&str> = wanted.iter().map(String::as_str).collect();
        let narrowed = experiment.narrowed(&wanted);
        let narrowed = narrowed.filter(|e| e.claims.len() == wanted.len());
        let mut narrowed =
            narrowed.with_context(|| format!("{FILE}: {id} lacks a claim of the tour"))?;
        match narrowed.claims.iter().all(|claim| claim.kind.is_count()) {
            // Its first round decides what is counted.
            true => narrowed.rounds = Rounds::exactly(1),
            false => narrowed.rounds.least = narrowed.rounds.least.min(LEAST_ROUNDS),
        }
        tour.push(narrowed);
    }
    match claims.keys().next() {
        Some(id) => Err(anyhow!("{FILE}: there is no experiment {id}")),
        None => Ok(tour),
    }
}

fn claim_ids() -> anyhow::Result<Vec<String>> {
    let table = DeTable::parse(TEXT).map_err(|error| anyhow!("{FILE}: {error}"))?;
    let claims = table.get_ref().get("claims").map(|claims| claims.get_ref());
    let Some(DeValue::Array(claims)) = claims else {
        return Err(anyhow!(
            "{FILE}: expected claims = [\"experiment/claim\", …]"
        ));
    };
    claims
        .iter()
        .map(|id| id.get_ref().as_str().map(str::to_owned).context(FILE))
        .collect()
}

/// Prints what there is beside the tour: every suite with its time, and what this machine lacks for
/// the rest, with the command that would change that.
pub(crate) fn what_else(drivers: &Drivers) -> anyhow::Result<()> {
    let all = catalog::embedded(Size::Quick, drivers)?;
    let mut suites: Vec<&str> = all.iter().map(Experiment::suite).collect();
    suites.dedup();
    let time = |experiments: &[Experiment]| {
        forecast::of(experiments, drivers).map_or_else(String::new, |time| {
            format!("about {}", forecast::in_words(time))
        })
    };
    let mut lines = vec![
        "\nThat was the tour. What else there is:".to_owned(),
        format!(
            "  {:24} {:19} every experiment: {}",
            "tare run all",
            time(&all),
            all.len(),
        ),
    ];
    for suite in suites {
        let of: Vec<Experiment> = all.iter().filter(|e| e.suite() == suite).cloned().collect();
        lines.push(format!(
            "  {:24} {:19} {} experiments",
            format!("tare run {suite}"),
            time(&of),
            of.len()
        ));
    }
    lines.push(format!(
        "  {:24} one of them; `tare list` lists them",
        "tare run ID"
    ));
    let lacks = lacks(&all, drivers);
    if !lacks.is_empty() {
        lines.push("Not testable here:".to_owned());
    }
    for ((reason, remedy), ids) in lacks {
        lines.push(format!("  {}: {reason}", ids.join(", ")));
        if let Some(remedy) = remedy {
            lines.push(format!("    to change that: {remedy}"));
        }
    }
    for line in lines {
        terminal::say_wrapped(&line);
    }
    Ok(())
}

type Lacks = BTreeMap<(String, Option<String>), Vec<String>>;

/// The features that this machine lacks, with the experiments that need them.
fn lacks(experiments: &[Experiment], drivers: &Drivers) -> Lacks {
    let mut lacks = Lacks::new();
    for experiment in experiments {
        for lack in catalog::lacks(experiment, drivers).into_keys() {
            lacks.entry(lack).or_default().push(experiment.id.clone());
        }
    }
    lacks
}
