//! One `[[experiment]]`.

use super::node::{quoted, Fields, Node};
use super::selector::{exclusions, Cells};
use super::words::{written, Words};
use super::{claim, matrix, metric, Context, Size};
use crate::driver::{Driver, Drivers, Vocabulary};
use crate::experiment::{Claim, Experiment, Metric, Rounds, Standing};
use crate::value::Parameters;

const MAX_REFERENCES: usize = 64;
const MAX_CLAIMS: usize = 64;

pub(super) fn read(node: &Node<'_>, context: &Context<'_>) -> Option<Experiment> {
    let mut fields = Fields::open(node, "a table")?;
    let id = fields
        .need("id", "suite/name")
        .and_then(|node| node.id(true));
    let title = fields.line("title", "a title of one line");
    let source = fields.line("source", "the publication and the place in it");
    let driver = fields
        .need("driver", "the driver that runs a cell")
        .and_then(|node| named(&node, context.drivers));
    let vocabulary = driver.map(Driver::vocabulary);
    let mut words = Words::new(vocabulary.as_ref(), context.cpus);
    let matrix = matrix::read(&mut fields, &words);
    if let (Some(driver), true) = (
        driver,
        matrix.sound && words.vocabulary.is_some_and(|v| v.open),
    ) {
        let cells = Cells::new(&matrix, words, Vec::new());
        let speaks = |cell: &Parameters| {
            driver
                .parts(cell)
                .iter()
                .all(|part| part.invocation.speaks_protocol)
        };
        words.speaks = Size::ALL
            .iter()
            .all(|size| cells.parameters(*size).iter().all(speaks));
    }
    let beside = match fields.get("beside") {
        Some(node) => references(&node, &words),
        None => Vec::new(),
    };
    let (metrics, metrics_sound) = metric::read(&mut fields, &words);
    let parts = match fields.get("parts") {
        Some(node) if metrics_sound => metric::parts(&node, &metrics),
        _ => Vec::new(),
    };

    let mut cells = Cells::new(&matrix, words, beside.clone());
    let mut exclude = Vec::new();
    if let Some(node) = fields.get("exclude") {
        exclude = exclusions(&node, &cells);
        cells.exclude(&exclude);
        if cells.known() && Size::ALL.iter().any(|size| cells.count(*size) == 0) {
            node.reject("every cell excluded", "at least one cell left at each size");
        }
    }
    distinguish(&cells, &fields);
    if let Some(driver) = driver {
        examine(driver, &cells, &fields);
    }
    let baseline = fields
        .get("baseline")
        .and_then(|node| cells.one_cell(&node));
    let published = match fields.get("published") {
        Some(node) if metrics_sound => metric::published(&node, &cells, &metrics),
        _ => Vec::new(),
    };
    let mut all = Vec::new();
    for (key, standing) in [("claim", Standing::Claim), ("target", Standing::Target)] {
        if let Some(node) = fields.get(key).filter(|_| metrics_sound) {
            claims(&node, standing, &cells, &metrics, &mut all);
        }
    }
    fields.close();

    let shape = matrix.shape(context.size);
    // Where the baseline is a cell of another size or machine, the first cell stands in.
    let here = baseline.filter(|chosen| !cells.chosen(chosen)[context.size as usize].is_empty());
    Some(Experiment {
        id: id?,
        title: title?,
        source: source?,
        driver: vocabulary.as_ref()?.name.clone(),
        fixed: shape.fixed.clone(),
        axes: shape.lines.iter().map(|line| line.axis.clone()).collect(),
        exclude,
        beside,
        baseline: here.map(|chosen| chosen.selector),
        metrics,
        parts,
        published,
        rounds: shape
            .rounds
            .unwrap_or_else(|| rounds(vocabulary.as_ref(), &all, context.size)),
        exact: vocabulary.is_some_and(|driver| driver.deterministic),
        claims: all,
    })
}

/// The rounds of an experiment whose file does not say.
fn rounds(driver: Option<&Vocabulary>, claims: &[Claim], size: Size) -> Rounds {
    let (least, most) = if driver.is_some_and(|driver| driver.deterministic) {
        // Once, and once more to see that it is so.
        (2, 2)
    } else if claims.is_empty() {
        (10, 10)
    } else if claims.iter().all(|claim| claim.kind.is_count()) {
        // What a trial that failed would have counted stays unknown in a second round.
        (1, 1)
    } else {
        match size {
            Size::Quick => (10, 60),
            Size::Full => (10, 40),
        }
    };
    Rounds { least, most }
}

fn named<'d>(node: &Node<'_>, drivers: &'d Drivers) -> Option<&'d dyn Driver> {
    let text = node.text()?;
    let driver = drivers.get(text);
    if driver.is_none() {
        let known = drivers.vocabularies();
        let known: Vec<&str> = known.iter().map(|driver| driver.name.as_str()).collect();
        node.unknown(text, &known);
    }
    driver
}

/// Reports two cells of a size that have one name, as `a = "x b=y"` and `b = "z"` have with
/// `a = "x"` and `b = "y b=z"`.
fn distinguish(cells: &Cells<'_>, experiment: &Fields<'_>) {
    for size in Size::ALL {
        let Some([one, other]) = cells.namesakes(size) else {
            continue;
        };
        let own = experiment.field(size.name());
        let own = own.and_then(|node| node.field("matrix"));
        if let Some(node) = own.or_else(|| experiment.field("matrix")) {
            let [one, other] = [one, other].map(|point| {
                let values = point.0.iter();
                let values = values.map(|(name, value)| format!("{name} = {}", written(value)));
                values.collect::<Vec<_>>().join(", ")
            });
            node.reject(
                format!("two cells of the same name, {{ {one} }} and {{ {other} }}"),
                "cells that differ in \"axis=value axis=value …\"",
            );
        }
    }
}

/// Reports the first cell of each size whose parameters the driver cannot take.
fn examine(driver: &dyn Driver, cells: &Cells<'_>, experiment: &Fields<'_>) {
    for size in Size::ALL {
        let mistake = cells
            .parameters(size)
            .iter()
            .find_map(|cell| driver.examine(cell).err());
        let Some(mistake) = mistake else { continue };
        let name = mistake.parameter.as_str();
        let own = experiment.field(size.name());
        let own = own
            .iter()
            .flat_map(|own| ["fixed", "matrix"].map(|table| own.field(table)));
        let shared = ["fixed", "matrix"].map(|table| experiment.field(table));
        let place = own.chain(shared).flatten().find_map(|table| {
            let entry = || {
                table
                    .field(name.split_once('.')?.0)?
                    .field(name.split_once('.')?.1)
            };
            table.field(name).or_else(entry)
        });
        match place {
            Some(node) => node.reject(mistake.found, mistake.expected),
            None => experiment.lacks(&format!("fixed.{name}"), &mistake.expected),
        }
    }
}

fn references(node: &Node<'_>, words: &Words<'_>) -> Vec<String> {
    let items = node
        .list("names of references", MAX_REFERENCES)
        .unwrap_or_default();
    let mut references: Vec<String> = Vec::new();
    for item in items {
        let Some(reference) = words.reference(&item) else {
            continue;
        };
        if references.contains(&reference) {
            item.reject(
                format!("{} again", quoted(&reference)),
                "each reference once",
            );
            continue;
        }
        references.push(reference);
    }
    references
}

fn claims(
    node: &Node<'_>,
    standing: Standing,
    cells: &Cells<'_>,
    metrics: &[Metric],
    claims: &mut Vec<Claim>,
) {
    let tables = match standing {
        Standing::Claim => "[[experiment.claim]] tables",
        Standing::Target => "[[experiment.target]] tables",
    };
    for item in node.list(tables, MAX_CLAIMS).unwrap_or_default() {
        let Some(claim) = claim::read(&item, standing, cells, metrics) else {
            continue;
        };
        if claims.iter().any(|other| other.id == claim.id) {
            item.field("id").unwrap_or(item).reject(
                format!("a second {}", quoted(&claim.id)),
                "an id that is unique in the experiment",
            );
        }
        claims.push(claim);
    }
}
