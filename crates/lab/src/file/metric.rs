//! `metric`, `metrics` and `published`.

use super::node::{quoted, Fields, Node, Scalar};
use super::selector::Cells;
use super::words::{units_of, Words};
use crate::experiment::{Metric, Published, Statistic};
use crate::extract::{Extract, Place, Stream};
use crate::unit::{Better, Dimension, Quantity, Unit, UnitError};
use crate::value::{Parameters, Point, Value, BESIDE};

const MAX_METRICS: usize = 16;
const MAX_PUBLISHED: usize = 1000;

const STATISTICS: [(&str, Statistic); 8] = [
    ("median", Statistic::Median),
    ("mean", Statistic::Mean),
    ("min", Statistic::Min),
    ("max", Statistic::Max),
    ("p50", Statistic::P50),
    ("p90", Statistic::P90),
    ("p99", Statistic::P99),
    ("p999", Statistic::P999),
];

/// Statistics across rounds. A minimum or maximum would grow with the number of rounds.
const ACROSS: [(&str, Statistic); 4] = [
    ("median", Statistic::Median),
    ("mean", Statistic::Mean),
    ("p90", Statistic::P90),
    ("p99", Statistic::P99),
];

const STREAMS: [(&str, Stream); 2] = [("stdout", Stream::Stdout), ("stderr", Stream::Stderr)];

const DIRECTIONS: [(&str, Better); 2] = [("higher", Better::Higher), ("lower", Better::Lower)];

/// Reads `metric` or `metrics`; the second value is whether all of them were right.
pub(super) fn read(experiment: &mut Fields<'_>, words: &Words<'_>) -> (Vec<Metric>, bool) {
    let errors_before = experiment.report().count();
    let nodes = match (experiment.get("metric"), experiment.get("metrics")) {
        (Some(_), Some(many)) => {
            many.reject("metrics together with metric", "one of the two");
            Vec::new()
        }
        (Some(one), None) => vec![one],
        (None, Some(many)) => many.list("metrics", MAX_METRICS).unwrap_or_default(),
        (None, None) => {
            experiment.need_one("metric", &["metrics"], "a table of name, unit and better");
            Vec::new()
        }
    };
    let mut metrics: Vec<Metric> = Vec::new();
    for node in nodes {
        let Some(metric) = one(&node, words) else {
            continue;
        };
        if metrics.iter().any(|other| other.name == metric.name) {
            node.reject(
                format!("a second metric {}", quoted(&metric.name)),
                "each of them once",
            );
            continue;
        }
        metrics.push(metric);
    }
    (metrics, experiment.report().count() == errors_before)
}

fn one(node: &Node<'_>, words: &Words<'_>) -> Option<Metric> {
    let mut fields = Fields::open(node, "a table of name, unit and better")?;
    let name = fields.need("name", "the name of one of the driver's metrics");
    let statistic = fields.get("statistic");
    let across = fields.get("across");
    let from = fields.get("from");
    let unit = fields.need("unit", "a unit such as \"MiB/s\"");
    let better = fields.need("better", "\"higher\" or \"lower\"");
    let work = fields.get("work");
    fields.close();

    // Both are read, so that what is wrong with either is reported.
    let from = match from {
        Some(node) => extract(&node, words).map(Some),
        None => Some(None),
    };
    let name = name.and_then(|node| {
        let text = node.text()?;
        // What is taken from a program's output may have any name.
        if !matches!(from, Some(None)) {
            return Some((text.to_owned(), None));
        }
        match words.metric(text) {
            Ok(dimension) => Some((text.to_owned(), dimension)),
            Err(known) => {
                node.unknown(text, &known);
                None
            }
        }
    });
    let unit = unit.and_then(|node| {
        let dimension = name.as_ref().and_then(|(_, dimension)| *dimension);
        read_unit(&node, dimension)
    });
    let statistic = match statistic {
        Some(node) => node.word(&STATISTICS),
        None => Some(Statistic::default()),
    };
    let across = match across {
        Some(node) => node.word(&ACROSS),
        None => Some(Statistic::default()),
    };
    let better = better.and_then(|node| node.word(&DIRECTIONS));
    let work = match work {
        Some(node) => Some(Some(words.counter(&node)?)),
        None => Some(None),
    };
    Some(Metric {
        name: name?.0,
        statistic: statistic?,
        across: across?,
        from: from?,
        unit: unit?,
        better: better?,
        work: work?,
    })
}

/// Reads the place of a metric in a program's output.
fn extract(node: &Node<'_>, words: &Words<'_>) -> Option<Extract> {
    let mut fields = Fields::open(node, "{ json = \"/pointer\" } or { regex = '(number)' }")?;
    let stream = fields.get("stream");
    let place = match (fields.get("json"), fields.get("regex")) {
        (Some(_), Some(regex)) => {
            regex.reject("regex together with json", "one of the two");
            None
        }
        (Some(json), None) => Some((Place::Json(json.string()?.to_owned()), json)),
        (None, Some(regex)) => Some((Place::Regex(regex.text()?.to_owned()), regex)),
        (None, None) => {
            fields.need_one("json", &["regex"], "json or regex");
            None
        }
    };
    fields.close();
    let stream_is = match &stream {
        Some(node) => node.word(&STREAMS)?,
        None => Stream::default(),
    };
    let (place, at) = place?;
    if let Err(expected) = place.check() {
        at.wrong(expected);
        return None;
    }
    if words.speaks && stream_is == Stream::Stdout {
        let node = stream.as_ref().unwrap_or(node);
        node.reject(
            "the standard output of a program that speaks the protocol",
            "stream = \"stderr\", or a sample of that name in the protocol",
        );
        return None;
    }
    Some(Extract {
        stream: stream_is,
        place,
    })
}

/// A unit of that dimension, or of any where there is none.
fn read_unit(node: &Node<'_>, dimension: Option<Dimension>) -> Option<Unit> {
    let text = node.text()?;
    let right = |unit: &Unit| dimension.is_none_or(|dimension| unit.dimension() == dimension);
    let unit = text.parse().ok().filter(right);
    if unit.is_none() {
        let known = Unit::ALL.iter().filter(|unit| right(unit));
        let known: Vec<&str> = known.map(|unit| unit.spelling()).collect();
        // Only the case may be a slip: between units, one letter is a factor of a thousand.
        let meant = known.iter().find(|unit| unit.eq_ignore_ascii_case(text));
        node.unlisted(&known, meant.copied());
    }
    unit
}

/// A number in the metric's unit, or a quantity that converts to it.
pub(super) fn amount(node: &Node<'_>, metric: &Metric) -> Option<f64> {
    let unit = metric.unit;
    let expected = format!("a number of {unit}, or a quantity that converts to {unit}");
    match node.scalar(&expected)? {
        Scalar::Int(n) => Some(n as f64),
        Scalar::Float(x) => Some(x),
        Scalar::Bool(_) => {
            node.wrong(expected);
            None
        }
        Scalar::Text(text) => {
            let converted = text.parse::<Quantity>().and_then(|q| q.in_unit(unit));
            match converted {
                Ok(value) if value.is_finite() => Some(value),
                Err(UnitError::Dimension { from, to }) => {
                    let why = UnitError::Dimension { from, to };
                    node.reject(
                        format!("{} ({why})", node.quote()),
                        units_of(to.dimension()),
                    );
                    None
                }
                Ok(_) | Err(_) => {
                    node.wrong(expected);
                    None
                }
            }
        }
    }
}

/// The metric that `node` names; without a node, the first.
pub(super) fn named<'m>(node: Option<&Node<'_>>, metrics: &'m [Metric]) -> Option<&'m Metric> {
    let Some(node) = node else {
        return metrics.first();
    };
    let text = node.text()?;
    let metric = metrics.iter().find(|metric| metric.name == text);
    if metric.is_none() {
        let known: Vec<&str> = metrics.iter().map(|metric| metric.name.as_str()).collect();
        node.unknown(text, &known);
    }
    metric
}

/// Reads `parts`, the names of metrics that are parts of one whole.
pub(super) fn parts(node: &Node<'_>, metrics: &[Metric]) -> Vec<String> {
    let mut parts: Vec<&Metric> = Vec::new();
    let items = node.list("names of metrics", MAX_METRICS);
    let items = items.unwrap_or_default();
    if items.len() == 1 {
        node.wrong("at least two metrics that are parts of a whole");
    }
    for item in items {
        let Some(metric) = named(Some(&item), metrics) else {
            continue;
        };
        let name = quoted(&metric.name);
        let found = format!("{name} in {}", metric.unit);
        if parts.iter().any(|part| part.name == metric.name) {
            item.reject(format!("{name} again"), "each metric once");
        } else if !matches!(metric.unit, Unit::Percent | Unit::Ratio) {
            item.reject(found, "a metric in % or ratio");
        } else if let Some(first) = parts.first().filter(|first| first.unit != metric.unit) {
            let expected = format!("{}, the unit of {}", first.unit, quoted(&first.name));
            item.reject(found, expected);
        } else {
            parts.push(metric);
        }
    }
    parts.iter().map(|part| part.name.clone()).collect()
}

/// Reads the list of published values.
pub(super) fn published(node: &Node<'_>, cells: &Cells<'_>, metrics: &[Metric]) -> Vec<Published> {
    let items = node
        .list("published values", MAX_PUBLISHED)
        .unwrap_or_default();
    items
        .iter()
        .filter_map(|item| published_one(item, cells, metrics))
        .collect()
}

fn published_one(node: &Node<'_>, cells: &Cells<'_>, metrics: &[Metric]) -> Option<Published> {
    let mut fields = Fields::open(node, "a table of the cell and its value")?;
    let value = fields.need("value", "the published value");
    let metric = fields.get("metric");
    let source = fields.get("source");
    let mut at = Parameters::new();
    let mut right = true;
    for (name, node) in fields.entries() {
        let read = match name {
            "value" | "metric" | "source" => continue,
            BESIDE => cells.reference(&node).map(Value::Text),
            _ if cells.matrix.names.iter().any(|axis| axis == name) => {
                cells.published_value(name, &node)
            }
            _ => None,
        };
        match read {
            Some(value) => {
                at.insert(name.to_owned(), value);
            }
            None => right = false,
        }
    }
    if right && !at.contains_key(BESIDE) {
        right = cells.complete(&mut at, &fields);
    }
    fields.close_with(&cells.keys());
    let metric = named(metric.as_ref(), metrics);
    let source = match source {
        Some(node) => Some(Some(node.text()?.to_owned())),
        None => Some(None),
    };
    let metric = metric?;
    let value = amount(&value?, metric)?;
    right.then_some(Published {
        at: Point(at),
        metric: metric.name.clone(),
        value,
        source: source?,
    })
}

impl Cells<'_> {
    /// A value that the publication had on an axis. Its numbers may lie beside ours (it had
    /// another machine); its words may not.
    fn published_value(&self, name: &str, node: &Node<'_>) -> Option<Value> {
        let resolved = self.words.value(name, node)?;
        let values = self.matrix.values(name);
        let same = |value: &&Value| self.words.same(name, value, &resolved.value);
        if let Some(value) = values.iter().find(same) {
            return Some(value.clone());
        }
        let words: Vec<&str> = match self.words.is_quantity(name) {
            true => Vec::new(),
            false => values.iter().filter_map(|value| value.as_str()).collect(),
        };
        if !words.is_empty() && self.matrix.sound {
            node.unknown(&resolved.value.to_string(), &words);
            return None;
        }
        Some(resolved.value)
    }

    /// Adds the axes that have one value only, so that the point is a cell's whole point;
    /// reports the others that are missing.
    fn complete(&self, at: &mut Parameters, fields: &Fields<'_>) -> bool {
        let mut right = true;
        for name in &self.matrix.names {
            if at.contains_key(name) {
                continue;
            }
            match self.matrix.values(name) {
                [only] => {
                    at.insert(name.clone(), only.clone());
                }
                _ if self.matrix.sound => {
                    fields.lacks(name, "a value for that axis");
                    right = false;
                }
                _ => {}
            }
        }
        right
    }
}
