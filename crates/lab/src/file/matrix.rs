//! `fixed`, `matrix` and what `[experiment.quick]` and `[experiment.full]` change of them.

use std::collections::{HashMap, HashSet};

use super::node::{Fields, Node, Scalar};
use super::words::{Resolved, Words};
use super::{Size, MAX_CELLS};
use crate::driver::{Parameter, ParameterKind};
use crate::experiment::{Axis, Rounds, ROUNDS_MAX};
use crate::value::{Parameters, Value, BESIDE};

/// Keys that a `published` entry uses for itself, and the key of references.
const RESERVED: [&str; 4] = [BESIDE, "value", "metric", "source"];

/// An axis and how it came about.
#[derive(Clone)]
pub(super) struct Line {
    pub(super) axis: Axis,
    /// True if its values depend on the number of processors.
    pub(super) from_cpus: bool,
}

/// The parameters of an experiment at one size.
#[derive(Clone, Default)]
pub(super) struct Shape {
    pub(super) fixed: Parameters,
    pub(super) lines: Vec<Line>,
    /// The rounds that the file asks for.
    pub(super) rounds: Option<Rounds>,
}

/// The parameters of an experiment at both sizes.
pub(super) struct Matrix {
    /// The names of the axes, those included whose values are wrong.
    pub(super) names: Vec<String>,
    /// One for each of [`Size::ALL`].
    pub(super) shapes: [Shape; 2],
    /// The values of each axis at either size, without repeats.
    values: HashMap<String, Vec<Value>>,
    /// True if all of it could be read; otherwise what depends on it is not judged.
    pub(super) sound: bool,
}

impl Matrix {
    pub(super) fn shape(&self, size: Size) -> &Shape {
        &self.shapes[size as usize]
    }

    /// The axis of that name at each size.
    pub(super) fn lines(&self, name: &str) -> Vec<&Line> {
        let lines = self.shapes.iter().flat_map(|shape| &shape.lines);
        lines.filter(|line| line.axis.name == name).collect()
    }

    /// The values of an axis at either size, without repeats.
    pub(super) fn values(&self, name: &str) -> &[Value] {
        self.values.get(name).map_or(&[], Vec::as_slice)
    }

    pub(super) fn depends_on_cpus(&self, name: &str) -> bool {
        self.lines(name).iter().any(|line| line.from_cpus)
    }
}

/// Reads the keys `fixed`, `matrix`, `quick` and `full` of an experiment.
pub(super) fn read(experiment: &mut Fields<'_>, words: &Words<'_>) -> Matrix {
    let errors_before = experiment.report().count();
    let mut base = Shape::default();
    let mut names = Vec::new();
    if let Some(node) = experiment.get("matrix") {
        names = change_axes(&node, words, &mut base, None);
    }
    if let Some(node) = experiment.get("fixed") {
        change_fixed(&node, words, &mut base, &names);
    }
    base.rounds = experiment.get("rounds").and_then(|node| rounds(&node));
    let shapes = Size::ALL.map(|size| {
        let mut shape = base.clone();
        if let Some(node) = experiment.get(size.name()) {
            if let Some(mut fields) = Fields::open(&node, "a table of fixed, matrix and rounds") {
                if let Some(node) = fields.get("matrix") {
                    change_axes(&node, words, &mut shape, Some(&names));
                }
                if let Some(node) = fields.get("fixed") {
                    change_fixed(&node, words, &mut shape, &names);
                }
                if let Some(node) = fields.get("rounds") {
                    shape.rounds = rounds(&node);
                }
                fields.close();
            }
        }
        shape
    });
    for (size, shape) in Size::ALL.iter().zip(&shapes) {
        limit_cells(experiment, *size, shape);
    }
    need_parameters(experiment, words, &names);
    Matrix {
        names,
        values: values(&shapes),
        shapes,
        sound: experiment.report().count() == errors_before,
    }
}

/// The values of each axis at any of these sizes, without repeats.
fn values(shapes: &[Shape]) -> HashMap<String, Vec<Value>> {
    let mut values: HashMap<String, Vec<Value>> = HashMap::new();
    let mut seen = HashSet::new();
    for axis in shapes.iter().flat_map(|shape| &shape.lines) {
        let axis = &axis.axis;
        let new = axis.values.iter();
        let new = new.filter(|value| seen.insert((axis.name.as_str(), format!("{value:?}"))));
        let known = values.entry(axis.name.clone()).or_default();
        known.extend(new.cloned());
    }
    values
}

/// Reads `rounds = { least = 10, most = 60 }`.
fn rounds(node: &Node<'_>) -> Option<Rounds> {
    const EXPECTED: &str = "a table: { least = 10, most = 60 }";
    let limit = |node: &Node<'_>, least: u32| {
        let expected = format!("a whole number from {least} to {ROUNDS_MAX}");
        let Scalar::Int(n) = node.scalar(&expected)? else {
            node.wrong(expected);
            return None;
        };
        let rounds = u32::try_from(n).ok();
        let rounds = rounds.filter(|n| (least..=ROUNDS_MAX).contains(n));
        if rounds.is_none() {
            node.wrong(expected);
        }
        rounds
    };
    let mut fields = Fields::open(node, EXPECTED)?;
    let least = fields.need("least", "the minimum number of rounds");
    let most = fields.need("most", "the maximum number of rounds");
    let least = least.and_then(|node| limit(&node, 1));
    let most = most.and_then(|node| limit(&node, least.unwrap_or(1)));
    fields.close();
    Some(Rounds {
        least: least?,
        most: most?,
    })
}

const MAX_AXES: usize = 16;
const AXES: &str = "a table of axes";

fn change_fixed(node: &Node<'_>, words: &Words<'_>, shape: &mut Shape, axes: &[String]) {
    let Some(fields) = Fields::open(node, "a table of parameters") else {
        return;
    };
    for (name, node) in fields.entries() {
        if !words.knows_parameter(name) || name == BESIDE {
            let _ = fields.unknown_key(name, &words.parameter_names());
        } else if axes.iter().any(|axis| axis == name) {
            node.reject(
                "an axis of the matrix",
                "a parameter that is the same in every cell",
            );
        } else if words.is_table(name) {
            change_table(name, &node, shape, axes);
        } else if let Some(resolved) = words.value(name, &node) {
            shape.fixed.insert(name.to_owned(), resolved.value);
        }
    }
}

/// The entries of a table, each a parameter `table.entry`.
fn change_table(table: &str, node: &Node<'_>, shape: &mut Shape, axes: &[String]) {
    let Some(fields) = Fields::open(node, "a table of texts") else {
        return;
    };
    for (name, node) in fields.entries() {
        let name = format!("{table}.{name}");
        if axes.contains(&name) {
            node.reject(
                "an axis of the matrix",
                "a parameter that is the same in every cell",
            );
        } else if let Some(text) = node.string() {
            shape.fixed.insert(name, Value::from(text));
        }
    }
}

/// Adds the axes of `node` to the shape, or, where it may change only some, replaces those.
/// Returns the names of the axes.
fn change_axes(
    node: &Node<'_>,
    words: &Words<'_>,
    shape: &mut Shape,
    only: Option<&[String]>,
) -> Vec<String> {
    let mut names = Vec::new();
    let Some(fields) = Fields::open(node, AXES) else {
        return names;
    };
    let entries = fields.entries();
    let all = || entries.iter().map(|(name, _)| (*name).to_owned()).collect();
    if entries.len() > MAX_AXES {
        let found = format!("{} axes", entries.len());
        node.reject(found, format!("at most {MAX_AXES} axes"));
        return all();
    }
    let mut values = 0;
    for (name, axis) in &entries {
        let known: Vec<&str> = match only {
            Some(axes) => axes.iter().map(String::as_str).collect(),
            None => {
                let mut names = words.parameter_names();
                names.retain(|name| !RESERVED.contains(name));
                names
            }
        };
        let may_be = match only {
            Some(_) => known.contains(name),
            None => words.knows_parameter(name) && !RESERVED.contains(name),
        };
        if !may_be {
            // Selectors that name the axis that was meant are right.
            names.extend(fields.unknown_key(name, &known).map(str::to_owned));
            continue;
        }
        names.push((*name).to_owned());
        // An axis that one size changes stays logarithmic, unless it says otherwise there.
        let old = shape.lines.iter_mut().find(|l| l.axis.name == *name);
        let log = old.as_ref().is_some_and(|old| old.axis.log);
        if let Some(line) = line(name, axis, words, log) {
            values += line.axis.values.len();
            match old {
                Some(old) => *old = line,
                None => shape.lines.push(line),
            }
        }
        // So many values have more cells than may be, and to read the other axes takes memory.
        // Without any lines, the cells are not found to be too many again.
        if values > MAX_CELLS + MAX_AXES {
            node.reject(
                format!("more than {MAX_CELLS} values on its axes"),
                format!("at most {MAX_CELLS} cells on at most {MAX_AXES} axes"),
            );
            shape.lines.clear();
            return all();
        }
    }
    names
}

fn line(name: &str, node: &Node<'_>, words: &Words<'_>, log_before: bool) -> Option<Line> {
    let (resolved, log) = if node.is_list() {
        (listed(name, node, words)?, log_before)
    } else {
        let mut fields = Fields::open(node, "a list of values or { from = 1, to = 8, step = 1 }")?;
        let log = fields.get("log");
        let (resolved, geometric) = match fields.get("values") {
            Some(values) => (listed(name, &values, words), false),
            None => range(name, &mut fields, words),
        };
        fields.close();
        let log = match log {
            Some(node) => node.boolean()?,
            None => geometric || log_before,
        };
        (resolved?, log)
    };
    let from_cpus = resolved.iter().any(|r| r.from_cpus);
    let values = resolved.into_iter().map(|resolved| resolved.value);
    let mut values = words.without_repeats(name, values.collect());
    // What the list's order was on the author's machine is not what it is on this one.
    if from_cpus && values.iter().all(|value| value.as_f64().is_some()) {
        values.sort_by(|a, b| {
            a.as_f64()
                .partial_cmp(&b.as_f64())
                .unwrap_or(std::cmp::Ordering::Equal)
        });
    }
    Some(Line {
        axis: Axis {
            name: name.to_owned(),
            values,
            log,
        },
        from_cpus,
    })
}

fn listed(name: &str, node: &Node<'_>, words: &Words<'_>) -> Option<Vec<Resolved>> {
    let items = node.list("values", MAX_LISTED_VALUES)?;
    // All of them are looked at, so that every wrong one is reported.
    let values: Vec<Option<Resolved>> = items.iter().map(|item| words.value(name, item)).collect();
    values.into_iter().collect()
}

/// Longer axes are ranges.
const MAX_LISTED_VALUES: usize = 1000;

/// `{ from, to, step }` or `{ from, to, times }`, and whether it is the latter.
fn range(name: &str, fields: &mut Fields<'_>, words: &Words<'_>) -> (Option<Vec<Resolved>>, bool) {
    let from = fields.need("from", "the first value");
    let to = fields.need("to", "the last value");
    let step = fields.get("step").map(|node| (whole(&node, 1), node));
    let times = fields.get("times").map(|node| (whole(&node, 2), node));
    let geometric = times.is_some();
    if let (Some(_), Some((_, node))) = (&step, &times) {
        node.reject("times together with step", "one of the two");
        return (None, geometric);
    }
    let (Some(from), Some(to)) = (from, to) else {
        return (None, geometric);
    };
    let (first, last) = (end(name, &from, words), end(name, &to, words));
    let (Some(first), Some(last)) = (first, last) else {
        return (None, geometric);
    };
    let from_cpus = first.1 || last.1;
    let (first, last) = (first.0, last.0);
    if first > last && !from_cpus {
        to.wrong(format!("{first} or more"));
        return (None, geometric);
    }
    if geometric && first < 1 {
        from.wrong("1 or more, to be multiplied");
        return (None, geometric);
    }
    let next: Box<dyn Fn(i64) -> Option<i64>> = match (step, times) {
        (Some((None, _)), _) | (_, Some((None, _))) => return (None, geometric),
        (_, Some((Some(times), _))) => Box::new(move |n| n.checked_mul(times)),
        (Some((Some(step), _)), _) => Box::new(move |n| n.checked_add(step)),
        (None, None) => Box::new(|n| n.checked_add(1)),
    };
    // The first value stays even where "cpus" ends below it: an axis is never empty.
    let mut values = vec![first];
    while let Some(n) = values.last().and_then(|n| next(*n)).filter(|n| *n <= last) {
        values.push(n);
        if values.len() > MAX_CELLS {
            to.reject(
                format!("an axis of more than {MAX_CELLS} values"),
                "a larger step",
            );
            return (None, geometric);
        }
    }
    let float = matches!(
        words.parameter(name).map(|p| &p.kind),
        Some(ParameterKind::Number)
    );
    let resolved = values.into_iter().map(|n| Resolved {
        value: if float {
            Value::Float(n as f64)
        } else {
            Value::Int(n)
        },
        from_cpus,
    });
    (Some(resolved.collect()), geometric)
}

/// An end of a range and whether it depends on the processors.
fn end(name: &str, node: &Node<'_>, words: &Words<'_>) -> Option<(i64, bool)> {
    let resolved = words.value(name, node)?;
    match resolved.value {
        Value::Int(n) => Some((n, resolved.from_cpus)),
        Value::Float(x) if x.fract() == 0.0 && x.abs() < 1e15 => {
            Some((x as i64, resolved.from_cpus))
        }
        _ => {
            node.wrong("a whole number, or a list of values in place of the range");
            None
        }
    }
}

fn whole(node: &Node<'_>, min: i64) -> Option<i64> {
    let expected = format!("a whole number of {min} or more");
    match node.scalar(&expected)? {
        Scalar::Int(n) if n >= min => Some(n),
        _ => {
            node.wrong(expected);
            None
        }
    }
}

fn limit_cells(experiment: &Fields<'_>, size: Size, shape: &Shape) {
    let cells = shape
        .lines
        .iter()
        .fold(1usize, |n, line| n.saturating_mul(line.axis.values.len()));
    if cells > MAX_CELLS {
        let own = experiment.field(size.name());
        let own = own.and_then(|node| node.field("matrix"));
        if let Some(node) = own.or_else(|| experiment.field("matrix")) {
            node.reject(
                format!("{cells} cells on {} axes", shape.lines.len()),
                format!("at most {MAX_CELLS} cells on at most {MAX_AXES} axes"),
            );
        }
    }
}

/// Reports the parameters that the driver must be given and is not.
fn need_parameters(experiment: &Fields<'_>, words: &Words<'_>, axes: &[String]) {
    let sizes = Size::ALL.map(|size| {
        let own = experiment.field(size.name());
        let own = own.and_then(|node| node.field("fixed"));
        let tables = [experiment.field("fixed"), own].into_iter().flatten();
        let mut given: Vec<String> = tables.flat_map(|node| node.keys()).collect();
        given.extend(axes.iter().cloned());
        given
    });
    let mut given = sizes.iter().flatten();
    if !given.all(|name| words.knows_parameter(name)) {
        // A misspelt one is reported already, and is most likely the one that is missing.
        return;
    }
    let parameters = words.vocabulary.map_or(&[][..], |v| &v.parameters);
    let needed = |p: &&Parameter| p.default.is_none() && p.kind != ParameterKind::Table;
    for parameter in parameters.iter().filter(needed) {
        if !sizes.iter().all(|given| given.contains(&parameter.name)) {
            experiment.lacks(
                &format!("fixed.{}", parameter.name),
                "a value at both sizes: the driver has none of its own",
            );
        }
    }
}
