//! The contents of a figure, decided from the form of the data before anything is drawn.

use std::collections::{BTreeMap, HashMap, HashSet};

use crate::experiment::{Axis, Published};
use crate::result::{CellResult, ExperimentResult};
use crate::unit::{Better, Quantity, Unit};
use crate::value::{Point, Value};

/// Up to this many series share a panel while another axis can be split off instead.
const SERIES: usize = 6;

/// Up to this many rows share a panel of a dot plot.
const ROWS: usize = 48;

/// One drawing: one metric, or the part of it at one value of the axes that were split off.
pub(crate) struct Panel<'a> {
    /// The experiment's id.
    pub(crate) experiment: &'a str,
    /// The metric's name, unit and direction.
    pub(crate) metric: &'a str,
    pub(crate) unit: Unit,
    pub(crate) better: Better,
    /// The values of the axes that were split off, in words; empty if there are none.
    pub(crate) part: String,
    pub(crate) form: Form<'a>,
    /// At least one.
    pub(crate) series: Vec<Series<'a>>,
    /// Cells that ran beside the matrix, with what was published of them.
    pub(crate) references: Vec<Reference<'a>>,
    /// Published values of the metric that name no place on the axis; only the table has them.
    pub(crate) adrift: usize,
}

/// The layout of the matrix.
pub(crate) enum Form<'a> {
    /// A numeric axis from left to right, the metric upwards.
    Lines {
        /// The axis.
        axis: &'a Axis,
        /// The unit of its values, where they are quantities.
        unit: Option<Unit>,
    },
    /// One row per combination, from top to bottom; the metric from left to right.
    Rows {
        /// Their labels.
        labels: Vec<String>,
    },
}

/// Cells that differ only in their position.
pub(crate) struct Series<'a> {
    /// The values of the axes that make it a series; empty if there is only one.
    pub(crate) label: String,
    pub(crate) marks: Vec<Mark<'a>>,
    /// Position and publication.
    pub(crate) published: Vec<(f64, &'a Published)>,
}

/// A cell and where it stands: the axis' value, or the number of the row.
pub(crate) struct Mark<'a> {
    pub(crate) position: f64,
    pub(crate) cell: &'a CellResult,
}

/// A cell beside the matrix.
pub(crate) struct Reference<'a> {
    pub(crate) name: &'a str,
    pub(crate) cell: &'a CellResult,
    pub(crate) published: Vec<&'a Published>,
}

impl Panel<'_> {
    /// Every value that must fit into the drawing.
    pub(crate) fn values(&self) -> Vec<f64> {
        let cells = self.series.iter().flat_map(|s| s.marks.iter());
        let cells = cells
            .map(|m| m.cell)
            .chain(self.references.iter().map(|p| p.cell));
        let mut values: Vec<f64> = cells
            .filter_map(|cell| cell.median.map(|median| (median, cell.ci95)))
            .flat_map(|(median, ci95)| [median].into_iter().chain(ci95.into_iter().flatten()))
            .collect();
        values.extend(self.published().map(|p| p.value));
        values.retain(|value| value.is_finite());
        values
    }

    fn published(&self) -> impl Iterator<Item = &Published> {
        self.series
            .iter()
            .flat_map(|s| s.published.iter().map(|(_, p)| *p))
            .chain(
                self.references
                    .iter()
                    .flat_map(|p| p.published.iter().copied()),
            )
    }

    /// Returns the number of published values that it shows.
    pub(crate) fn published_count(&self) -> usize {
        self.published().count()
    }

    /// Every cell of it, references last.
    pub(crate) fn cells(&self) -> impl Iterator<Item = &CellResult> {
        self.series
            .iter()
            .flat_map(|s| s.marks.iter().map(|m| m.cell))
            .chain(self.references.iter().map(|p| p.cell))
    }
}

/// Returns the panels of one metric; empty if the experiment has no cell of it.
pub(crate) fn panels<'a>(experiment: &'a ExperimentResult, metric: &str) -> Vec<Panel<'a>> {
    let cells = experiment.cells_of(metric);
    let Some(first) = cells.first() else {
        return Vec::new();
    };
    let mut published = experiment.published_of(metric);
    published.retain(|published| published.value.is_finite());
    let matrix: Vec<&CellResult> = cells
        .iter()
        .copied()
        .filter(|cell| cell.at.beside().is_none())
        .collect();
    let counts: BTreeMap<&str, usize> = experiment
        .axes
        .iter()
        .map(|axis| (axis.name.as_str(), values(axis, &matrix, &published)))
        .collect();
    let count = |axis: &Axis| counts.get(axis.name.as_str()).copied().unwrap_or(0);
    let varying: Vec<&Axis> = experiment
        .axes
        .iter()
        .filter(|axis| count(axis) > 1)
        .collect();
    let roles = Roles::choose(&varying, &count);
    let (axis_unit, numeric) = match roles.numeric {
        Some(axis) => (unit_of(axis), true),
        None => (None, false),
    };

    let mut parts: Vec<Part<'a>> = Vec::new();
    let mut rows: Vec<(Vec<usize>, String)> = Vec::new();
    if !numeric {
        let points = matrix.iter().map(|cell| &cell.at);
        let points = points.chain(published.iter().map(|p| &p.at));
        let mut known = HashSet::new();
        rows = points
            .filter(|point| point.beside().is_none())
            .map(|point| key(&roles.rows, point))
            .filter(|row| known.insert(row.clone()))
            .collect();
        rows.sort_by(|a, b| a.0.cmp(&b.0)); // Stable: values the matrix lacks come last.
    }
    let row_numbers: HashMap<&(Vec<usize>, String), usize> =
        rows.iter().enumerate().map(|(i, row)| (row, i)).collect();
    let position = |point: &Point| -> Option<f64> {
        if let Some(axis) = roles.numeric {
            return number(point.0.get(&axis.name)?, axis_unit);
        }
        let number = row_numbers.get(&key(&roles.rows, point))?;
        Some(*number as f64)
    };
    for cell in &matrix {
        if let Some(position) = position(&cell.at) {
            part(&mut parts, &roles, &cell.at)
                .marks
                .push(Mark { position, cell });
        }
    }
    let mut adrift = 0;
    for &published in published.iter().filter(|p| p.at.beside().is_none()) {
        match position(&published.at) {
            Some(position) => part(&mut parts, &roles, &published.at)
                .published
                .push((position, published)),
            None => adrift += 1,
        }
    }
    if parts.is_empty() {
        part(&mut parts, &roles, &first.at);
    }
    parts.sort_by(|a, b| a.key.0.cmp(&b.key.0));
    parts
        .into_iter()
        .map(|mut part| {
            part.series.sort_by(|a, b| a.0 .0.cmp(&b.0 .0));
            let series = part.series.into_iter().map(|(_, mut series)| {
                series
                    .marks
                    .sort_by(|a, b| a.position.total_cmp(&b.position));
                series
            });
            Panel {
                experiment: &experiment.id,
                metric: &first.metric,
                unit: first.unit,
                better: first.better,
                part: part.key.1,
                form: match roles.numeric {
                    Some(axis) => Form::Lines {
                        axis,
                        unit: axis_unit,
                    },
                    None => Form::Rows {
                        labels: rows.iter().map(|row| row.1.clone()).collect(),
                    },
                },
                series: series.collect(),
                references: references(&cells, &published),
                adrift,
            }
        })
        .collect()
}

fn references<'a>(cells: &[&'a CellResult], published: &[&'a Published]) -> Vec<Reference<'a>> {
    cells
        .iter()
        .filter_map(|cell| {
            let name = cell.at.beside()?;
            Some(Reference {
                name,
                cell,
                published: published
                    .iter()
                    .copied()
                    .filter(|p| p.at.beside() == Some(name))
                    .collect(),
            })
        })
        .collect()
}

/// The use of each axis.
struct Roles<'a> {
    numeric: Option<&'a Axis>,
    rows: Vec<&'a Axis>,
    series: Vec<&'a Axis>,
    split: Vec<&'a Axis>,
}

impl<'a> Roles<'a> {
    fn choose(varying: &[&'a Axis], count: &dyn Fn(&Axis) -> usize) -> Self {
        let numeric = varying
            .iter()
            .copied()
            .filter(|axis| {
                numeric(axis) && (axis.values.len() > 2 || axis.log || varying.len() == 1)
            })
            .max_by_key(|axis| (axis.log, count(axis)));
        let mut rest: Vec<&Axis> = varying
            .iter()
            .copied()
            .filter(|axis| numeric.is_none_or(|numeric| numeric.name != axis.name))
            .collect();
        let (mut rows, mut split) = (Vec::new(), Vec::new());
        if numeric.is_none() {
            // The axis with the fewest values tells series apart; the others make the rows.
            let apart = (rest.len() > 1)
                .then(|| (0..rest.len()).rev().min_by_key(|&i| count(rest[i])))
                .flatten()
                .filter(|&i| count(rest[i]) <= SERIES);
            let series: Vec<&Axis> = apart.map(|i| rest.remove(i)).into_iter().collect();
            rows = rest;
            while rows.len() > 1 && rows.iter().map(|a| count(a)).product::<usize>() > ROWS {
                split.push(rows.remove(0));
            }
            rest = series;
        }
        while rest.len() > 1 && rest.iter().map(|a| count(a)).product::<usize>() > SERIES {
            split.push(rest.remove(0));
        }
        Roles {
            numeric,
            rows,
            series: rest,
            split,
        }
    }
}

/// A panel in the making.
struct Part<'a> {
    key: (Vec<usize>, String),
    series: Vec<((Vec<usize>, String), Series<'a>)>,
}

/// The series that `point` belongs to; made where it is the first of it.
fn part<'p, 'a>(
    parts: &'p mut Vec<Part<'a>>,
    roles: &Roles<'_>,
    point: &Point,
) -> &'p mut Series<'a> {
    let wanted = key(&roles.split, point);
    let index = parts.iter().position(|part| part.key == wanted);
    let index = index.unwrap_or_else(|| {
        parts.push(Part {
            key: wanted,
            series: Vec::new(),
        });
        parts.len() - 1
    });
    let series = &mut parts[index].series;
    let wanted = key(&roles.series, point);
    let index = series.iter().position(|(key, _)| *key == wanted);
    let index = index.unwrap_or_else(|| {
        let label = wanted.1.clone();
        series.push((
            wanted,
            Series {
                label,
                marks: Vec::new(),
                published: Vec::new(),
            },
        ));
        series.len() - 1
    });
    &mut series[index].1
}

/// Returns the place of `point` in the order of the file, and its label.
pub(super) fn key(axes: &[&Axis], point: &Point) -> (Vec<usize>, String) {
    let mut order = Vec::new();
    let mut words: Vec<String> = Vec::new();
    for axis in axes {
        let Some(value) = point.0.get(&axis.name) else {
            order.push(usize::MAX);
            words.push(format!("any {}", axis.name));
            continue;
        };
        let index = axis.values.iter().position(|known| known == value);
        order.push(index.unwrap_or(usize::MAX));
        words.push(match value {
            Value::Text(text) => text.clone(),
            other => format!("{} {other}", axis.name),
        });
    }
    (order, words.join(" · "))
}

/// Returns the number of values of the axis, with those that only the publication has.
pub(super) fn values(axis: &Axis, cells: &[&CellResult], published: &[&Published]) -> usize {
    let points = cells.iter().map(|cell| &cell.at);
    let points = points.chain(published.iter().map(|p| &p.at));
    let met = points.filter_map(|point| point.0.get(&axis.name));
    let all: HashSet<String> = axis
        .values
        .iter()
        .chain(met)
        .map(Value::to_string)
        .collect();
    all.len()
}

/// Returns true if every value of the axis is a number or a quantity of one dimension.
fn numeric(axis: &Axis) -> bool {
    let unit = unit_of(axis);
    axis.values
        .iter()
        .all(|value| number(value, unit).is_some_and(f64::is_finite))
}

/// The unit of the axis' first value, where that is a quantity such as `16 B`.
fn unit_of(axis: &Axis) -> Option<Unit> {
    let text = axis.values.first()?.as_str()?;
    text.parse::<Quantity>().ok().map(|quantity| quantity.unit)
}

/// The value as a number, in `unit` where it is a quantity.
fn number(value: &Value, unit: Option<Unit>) -> Option<f64> {
    match unit {
        Some(unit) => value.as_str()?.parse::<Quantity>().ok()?.in_unit(unit).ok(),
        None => value.as_f64(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn axis(name: &str, values: &[Value], log: bool) -> Axis {
        Axis {
            name: name.into(),
            values: values.to_vec(),
            log,
        }
    }

    fn roles(axes: &[Axis]) -> [Vec<&str>; 4] {
        let varying: Vec<&Axis> = axes.iter().collect();
        let roles = Roles::choose(&varying, &|axis| axis.values.len());
        let names =
            |axes: Vec<&Axis>| -> Vec<String> { axes.iter().map(|a| a.name.clone()).collect() };
        let numeric = names(roles.numeric.into_iter().collect());
        let find = |name: &String| {
            axes.iter()
                .find(|a| a.name == *name)
                .map(|a| a.name.as_str())
        };
        [
            numeric,
            names(roles.rows),
            names(roles.series),
            names(roles.split),
        ]
        .map(|names| names.iter().filter_map(find).collect())
    }

    fn ints(n: i64) -> Vec<Value> {
        (1..=n).map(Value::Int).collect()
    }

    fn texts(n: usize) -> Vec<Value> {
        (0..n).map(|i| Value::Text(format!("v{i}"))).collect()
    }

    #[test]
    fn a_numeric_axis_runs_from_left_to_right_and_the_rest_are_series() {
        let axes = [
            axis("op", &texts(2), false),
            axis("sessions", &ints(6), false),
        ];
        assert_eq!(roles(&axes), [vec!["sessions"], vec![], vec!["op"], vec![]]);
    }

    #[test]
    fn a_logarithmic_axis_is_preferred_and_too_many_series_are_split_into_panels() {
        let axes = [
            axis("variant", &texts(4), false),
            axis("threads", &ints(8), false),
            axis("size", &ints(4), true),
        ];
        assert_eq!(
            roles(&axes),
            [vec!["size"], vec![], vec!["threads"], vec!["variant"]]
        );
    }

    #[test]
    fn words_and_pairs_of_numbers_become_rows() {
        let axes = [
            axis("variant", &texts(6), false),
            axis("vcpus", &ints(2), false),
        ];
        assert_eq!(
            roles(&axes),
            [vec![], vec!["variant"], vec!["vcpus"], vec![]]
        );
        let one = [axis("method", &texts(5), false)];
        assert_eq!(roles(&one), [vec![], vec!["method"], vec![], vec![]]);
    }

    #[test]
    fn quantities_in_words_are_numbers_with_a_unit() {
        let sizes = ["16 B", "4 KiB", "1 MiB"].map(Value::from);
        let size = axis("size", &sizes, true);
        assert!(numeric(&size));
        assert_eq!(number(&sizes[1], unit_of(&size)), Some(4096.0));
        let mixed = ["16 B", "4 ns"].map(Value::from);
        assert!(!numeric(&axis("x", &mixed, false)));
    }
}
