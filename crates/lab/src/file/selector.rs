//! Selectors against the cells of both sizes.

use std::collections::HashMap;

use super::matrix::Matrix;
use super::node::{alternatives, Fields, Node};
use super::words::{written, Words};
use super::Size;
use crate::experiment::{Axis, Experiment};
use crate::value::{Parameters, Point, Selector, Value, BESIDE};

/// The number of an axis's values that an error lists.
const MAX_LISTED_VALUES: usize = 12;

/// The cells of an experiment at both sizes, from which selectors choose.
pub(super) struct Cells<'a> {
    pub(super) matrix: &'a Matrix,
    pub(super) words: Words<'a>,
    pub(super) references: Vec<String>,
    /// One list for each of [`Size::ALL`]; empty if the matrix could not be read.
    points: [Vec<Point>; 2],
}

/// A selector that was read, and whether it depends on the number of processors: such a selector
/// may choose nothing here, or the same as another, without being wrong.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Chosen {
    pub(super) selector: Selector,
    pub(super) from_cpus: bool,
}

impl<'a> Cells<'a> {
    pub(super) fn new(matrix: &'a Matrix, words: Words<'a>, references: Vec<String>) -> Self {
        let mut cells = Cells {
            matrix,
            words,
            references,
            points: [Vec::new(), Vec::new()],
        };
        if matrix.sound {
            cells.lay_out(&[]);
        }
        cells
    }

    /// Returns true if there are cells to check selectors against.
    pub(super) fn known(&self) -> bool {
        self.points.iter().any(|points| !points.is_empty())
    }

    /// Leaves points out.
    pub(super) fn exclude(&mut self, exclude: &[Selector]) {
        if self.known() && !exclude.is_empty() {
            self.lay_out(exclude);
        }
    }

    fn lay_out(&mut self, exclude: &[Selector]) {
        self.points = Size::ALL.map(|size| {
            let axes = self.matrix.shape(size).lines.iter();
            let axes: Vec<Axis> = axes.map(|line| line.axis.clone()).collect();
            points(axes, exclude.to_vec(), self.references.clone())
        });
    }

    /// The cells that a selector chooses, at each size.
    pub(super) fn chosen(&self, chosen: &Chosen) -> [Vec<&Point>; 2] {
        Size::ALL.map(|size| self.within(size, &chosen.selector))
    }

    /// The cells that a selector chooses at a size.
    pub(super) fn within(&self, size: Size, selector: &Selector) -> Vec<&Point> {
        let points = self.points[size as usize].iter();
        points.filter(|point| selector.matches(point)).collect()
    }

    /// All parameters of each cell at a size, its references not among them, as the driver gets
    /// them.
    pub(super) fn parameters(&self, size: Size) -> Vec<Parameters> {
        let Some(vocabulary) = self.words.vocabulary else {
            return Vec::new();
        };
        let points = self.points[size as usize].iter();
        points
            .filter(|point| point.beside().is_none())
            .map(|point| {
                let mut all = self.matrix.shape(size).fixed.clone();
                all.extend(point.0.clone());
                vocabulary.complete(all)
            })
            .collect()
    }

    /// Returns the number of cells of a size, its references not counted.
    pub(super) fn count(&self, size: Size) -> usize {
        self.points[size as usize].len() - self.references.len()
    }

    /// Returns two cells of a size that have one name. Records and reports know a cell by its name.
    pub(super) fn namesakes(&self, size: Size) -> Option<[&Point; 2]> {
        let mut named: HashMap<String, &Point> = HashMap::new();
        let mut points = self.points[size as usize].iter();
        points.find_map(|point| {
            let before = named.insert(point.to_string(), point)?;
            Some([before, point])
        })
    }

    /// Reads a selector that chooses at least one cell.
    pub(super) fn selector(&self, node: &Node<'_>) -> Option<Chosen> {
        let chosen = self.read(node, true)?;
        if self.known() && !chosen.from_cpus && self.chosen(&chosen).iter().all(Vec::is_empty) {
            node.reject(
                format!("{}, which chooses no cell", node.quote()),
                "a cell that is not excluded, at either size",
            );
            return None;
        }
        Some(chosen)
    }

    /// Reads a selector that chooses exactly one cell.
    pub(super) fn one_cell(&self, node: &Node<'_>) -> Option<Chosen> {
        let chosen = self.selector(node)?;
        let most = self.chosen(&chosen).iter().map(Vec::len).max();
        match most {
            Some(n) if n > 1 => {
                node.reject(
                    format!("{}, which chooses {n} cells", node.quote()),
                    "exactly one cell",
                );
                None
            }
            _ => Some(chosen),
        }
    }

    /// Reads a selector, without asking whether there is a cell in which all its values meet.
    pub(super) fn read(&self, node: &Node<'_>, may_name_reference: bool) -> Option<Chosen> {
        let fields = Fields::open(node, "a selector such as { method = \"fast\" }")?;
        let entries = fields.entries();
        let mut parameters = Parameters::new();
        let mut from_cpus = false;
        let mut right = true;
        for (name, node) in &entries {
            let read = if *name == BESIDE && may_name_reference {
                if entries.len() > 1 {
                    node.reject(
                        "a reference with axes",
                        "a reference without axes: it is one cell",
                    );
                    None
                } else {
                    self.reference(node)
                        .map(|reference| (Value::Text(reference), false))
                }
            } else if self.matrix.names.iter().any(|axis| axis == name) {
                self.on_axis(name, node)
            } else {
                let mut known = self.keys();
                known.retain(|key| may_name_reference || *key != BESIDE);
                let _ = fields.unknown_key(name, &known);
                None
            };
            match read {
                Some((value, cpus)) => {
                    from_cpus |= cpus;
                    parameters.insert((*name).to_owned(), value);
                }
                None => right = false,
            }
        }
        right.then_some(Chosen {
            selector: Selector(parameters),
            from_cpus,
        })
    }

    /// The keys that name a cell: the axes, and the key of references where there are any.
    pub(super) fn keys(&self) -> Vec<&str> {
        let axes = self.matrix.names.iter().map(String::as_str);
        let beside = (!self.references.is_empty()).then_some(BESIDE);
        axes.chain(beside).collect()
    }

    /// A reference of this experiment.
    pub(super) fn reference(&self, node: &Node<'_>) -> Option<String> {
        let text = node.text()?;
        if !self.references.iter().any(|reference| reference == text) {
            let known: Vec<&str> = self.references.iter().map(String::as_str).collect();
            node.unknown(text, &known);
            return None;
        }
        Some(text.to_owned())
    }

    /// A value on an axis, spelt as the axis spells it, and whether it depends on the machine.
    fn on_axis(&self, name: &str, node: &Node<'_>) -> Option<(Value, bool)> {
        let resolved = self.words.value(name, node)?;
        let values = self.matrix.values(name);
        let same = |value: &&Value| self.words.same(name, value, &resolved.value);
        if let Some(value) = values.iter().find(same) {
            return Some((value.clone(), resolved.from_cpus));
        }
        // Another machine's axis may have it, and nothing is known of an axis that is wrong.
        if self.matrix.depends_on_cpus(name) || !self.matrix.sound {
            return Some((resolved.value, true));
        }
        let texts: Vec<&str> = values.iter().filter_map(|value| value.as_str()).collect();
        if texts.len() == values.len() {
            node.unknown(&resolved.value.to_string(), &texts);
        } else {
            let mut listed: Vec<String> = values.iter().map(written).collect();
            if listed.len() > MAX_LISTED_VALUES {
                listed.truncate(MAX_LISTED_VALUES);
                listed.push("…".to_owned());
            }
            node.wrong(alternatives(&listed));
        }
        None
    }

    /// Reads the name of an axis.
    pub(super) fn axis(&self, node: &Node<'_>) -> Option<String> {
        let text = node.text()?;
        if !self.matrix.names.iter().any(|name| name == text) {
            let known: Vec<&str> = self.matrix.names.iter().map(String::as_str).collect();
            node.unknown(text, &known);
            return None;
        }
        Some(text.to_owned())
    }
}

/// Reads a list of selectors of the matrix that leaves at least one cell at each size.
pub(super) fn exclusions(node: &Node<'_>, cells: &Cells<'_>) -> Vec<Selector> {
    let items = node.list("selectors", 1000).unwrap_or_default();
    let mut exclude = Vec::new();
    for item in items {
        let Some(chosen) = cells.read(&item, false) else {
            continue;
        };
        let nothing = cells.chosen(&chosen).iter().all(Vec::is_empty);
        if cells.known() && !chosen.from_cpus && nothing {
            item.reject(
                format!("{}, which chooses no cell", item.quote()),
                "a cell of the matrix",
            );
        }
        exclude.push(chosen.selector);
    }
    exclude
}

fn points(axes: Vec<Axis>, exclude: Vec<Selector>, beside: Vec<String>) -> Vec<Point> {
    Experiment {
        id: String::new(),
        title: String::new(),
        source: String::new(),
        driver: String::new(),
        fixed: Parameters::new(),
        axes,
        exclude,
        beside,
        baseline: None,
        metrics: Vec::new(),
        parts: Vec::new(),
        published: Vec::new(),
        claims: Vec::new(),
        exact: false,
        rounds: Default::default(),
    }
    .points()
}
