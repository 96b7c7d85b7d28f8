//! `[[experiment.claim]]`: the six kinds of claim.

use std::collections::{BTreeMap, HashMap};

use super::metric::{amount, named};
use super::node::{one_of, quoted, Fields, Node, Scalar};
use super::selector::{Cells, Chosen};
use super::Size;
use crate::experiment::{Bound, Claim, ClaimKind, Metric, Standing, Statistic};
use crate::unit::Dimension;
use crate::value::{Point, Selector, BESIDE};

const KINDS: [&str; 6] = ["ratio", "flat", "scales", "order", "value", "zero"];
const MAX_RANKED: usize = 32;
/// The most comparisons of a `flat` claim: those of a line of 100 values are 9,900.
const MAX_COMPARISONS: usize = 10_000;

/// Reads one claim or target about `metrics`, which is not empty.
pub(super) fn read(
    node: &Node<'_>,
    standing: Standing,
    cells: &Cells<'_>,
    metrics: &[Metric],
) -> Option<Claim> {
    let mut fields = Fields::open(node, "a table")?;
    let id = fields
        .need("id", "an id that is unique in the experiment")
        .and_then(|node| node.id(false));
    let text = fields.line("text", "the claim in words");
    let source = fields
        .get("source")
        .map(|node| node.text().map(str::to_owned));
    let metric = fields.get("metric");
    let metric = named(metric.as_ref(), metrics);
    let published = fields.get("published");

    let given: Vec<(&str, Node<'_>)> = KINDS
        .iter()
        .filter_map(|kind| Some((*kind, fields.get(kind)?)))
        .collect();
    let kind = match given.as_slice() {
        [] => {
            fields.need_one("kind", &KINDS, &one_of(&KINDS));
            None
        }
        [("value", node)] if standing == Standing::Target && metric.is_some_and(depends) => {
            node.reject(
                "a target for a figure that depends on the machine",
                "a ratio to something measured in the same round, or a metric without a unit",
            );
            None
        }
        [(kind, node)] => metric.and_then(|metric| {
            if metric.across != Statistic::Median && *kind != "zero" {
                node.reject(
                    format!("a claim about {}, which has another statistic across trials than the median", quoted(&metric.name)),
                    "a metric without across: a figure with another statistic is shown, but not judged",
                );
                return None;
            }
            Reader { cells, metric }.kind(kind, node)
        }),
        [(first, _), rest @ ..] => {
            for (kind, node) in rest {
                node.reject(format!("{kind} together with {first}"), "one kind of claim");
            }
            None
        }
    };
    fields.close();

    let is_value = matches!(given.as_slice(), [("value", _)]);
    let published = match (published, metric) {
        (None, _) => Some(None),
        (Some(node), Some(metric)) if is_value => amount(&node, metric).map(Some),
        (Some(node), _) => node
            .number("a number in the claim's own terms: a ratio, a slope")
            .map(Some),
    };
    Some(Claim {
        id: id?,
        standing,
        text: text?,
        source: match source {
            Some(source) => Some(source?),
            None => None,
        },
        metric: metric?.name.clone(),
        kind: kind?,
        published: published?,
    })
}

/// Returns true if a metric's figures depend on how fast the machine is: all that have a dimension
/// do.
fn depends(metric: &Metric) -> bool {
    !matches!(metric.unit.dimension(), Dimension::Ratio | Dimension::Count)
}

struct Reader<'r> {
    cells: &'r Cells<'r>,
    metric: &'r Metric,
}

impl Reader<'_> {
    fn kind(&self, kind: &str, node: &Node<'_>) -> Option<ClaimKind> {
        let mut fields = Fields::open(node, &format!("a table with the fields of {kind}"))?;
        // Each kind asks for all its keys first, so that one wrong value does not make the
        // others look unknown.
        let read = match kind {
            "ratio" => self.ratio(&mut fields),
            "flat" => self.flat(&mut fields),
            "scales" => self.scales(&mut fields),
            "order" => self.order(&mut fields),
            "value" => self.value(&mut fields),
            _ => self.zero(&mut fields),
        };
        fields.close();
        read
    }

    fn ratio(&self, fields: &mut Fields<'_>) -> Option<ClaimKind> {
        let of = fields.need("of", "a selector: the numerator");
        let to = fields.need("to", "a selector: the denominator");
        let bound = self.bound(fields, "a ratio above 0", |node| {
            node.number("a ratio above 0").filter(|ratio| *ratio > 0.0)
        });
        let numerator = of.as_ref().and_then(|node| self.cells.selector(node));
        let denominator = to.as_ref().and_then(|node| self.cells.selector(node));
        let (of, to_node, to) = (numerator?, to, denominator?);
        self.pair(&of, &to, &to_node?, fields)?;
        Some(ClaimKind::Ratio {
            of: of.selector,
            to: to.selector,
            bound: bound?,
        })
    }

    /// Checks that the cells of both selectors pair up by their values on the free axes. A
    /// reference has no axes, so it pairs with every cell.
    fn pair(
        &self,
        of: &Chosen,
        to: &Chosen,
        to_node: &Node<'_>,
        fields: &Fields<'_>,
    ) -> Option<()> {
        let from_cpus = of.from_cpus || to.from_cpus;
        if of.selector == to.selector && !from_cpus {
            to_node.reject("the cells of \"of\" again", "other cells");
            return None;
        }
        if [of, to]
            .iter()
            .any(|side| side.selector.0.contains_key(BESIDE))
        {
            return Some(());
        }
        let [left, right] = [of, to].map(|chosen| self.cells.chosen(chosen));
        let mut paired = false;
        for (left, right) in left.iter().zip(&right) {
            let mut pairs: BTreeMap<String, [usize; 2]> = BTreeMap::new();
            for (side, points) in [left, right].into_iter().enumerate() {
                for point in points {
                    pairs.entry(free_values(point, of, to)).or_default()[side] += 1;
                }
            }
            let pairs = pairs.values().filter(|sides| !sides.contains(&0));
            for sides in pairs {
                if *sides != [1, 1] {
                    self.loose(of, to, fields);
                    return None;
                }
                paired = true;
            }
        }
        if !paired && !from_cpus && self.cells.known() {
            to_node.reject(
                format!("{}, which pairs with no cell of \"of\"", to_node.quote()),
                "cells with the same values on the axes that neither side names",
            );
            return None;
        }
        Some(())
    }

    /// Reports the axes that only one of the two selectors fixes.
    fn loose(&self, of: &Chosen, to: &Chosen, fields: &Fields<'_>) {
        let names = |chosen: &Chosen, name: &str| chosen.selector.0.contains_key(name);
        for name in &self.cells.matrix.names {
            let free = match (names(of, name), names(to, name)) {
                (true, false) => "to",
                (false, true) => "of",
                _ => continue,
            };
            fields.lacks(
                &format!("{free}.{name}"),
                "a value on that axis, as the other side has one",
            );
            return;
        }
    }

    fn flat(&self, fields: &mut Fields<'_>) -> Option<ClaimKind> {
        let over = fields.need("over", "the axis");
        let within = fields.get("within");
        let at_most = fields.need("at_most", ABOVE_ONE);
        let axis = over.as_ref();
        let over = axis.and_then(|node| self.over(node, within.as_ref(), None, false));
        let within = self.within(within);
        if let (Some(node), Some(over), Some(within)) = (axis, &over, &within) {
            self.limit_comparisons(node, over, within);
        }
        let at_most = at_most.and_then(|node| {
            let limit = node.number(ABOVE_ONE)?;
            if limit <= 1.0 {
                node.wrong(ABOVE_ONE);
            }
            (limit > 1.0).then_some(limit)
        });
        Some(ClaimKind::Flat {
            over: over?,
            within: within?,
            at_most: at_most?,
        })
    }

    /// Reports an axis on which so many cells are compared with each other that it would take too
    /// much time and memory.
    fn limit_comparisons(&self, node: &Node<'_>, over: &str, within: &Selector) {
        for size in Size::ALL {
            let mut lines: HashMap<String, usize> = HashMap::new();
            for point in self.cells.within(size, within) {
                let mut at = point.clone();
                if at.0.remove(over).is_some() {
                    *lines.entry(at.to_string()).or_default() += 1;
                }
            }
            let comparisons = lines.values().map(|n| n * (n - 1)).sum::<usize>();
            let longest = lines.values().max().unwrap_or(&0);
            if comparisons > MAX_COMPARISONS {
                node.reject(
                    format!("{comparisons} comparisons on lines of {longest} values"),
                    format!(
                        "at most {MAX_COMPARISONS}: n (n - 1) on each line of n values along {}",
                        node.quote()
                    ),
                );
                return;
            }
        }
    }

    fn scales(&self, fields: &mut Fields<'_>) -> Option<ClaimKind> {
        let over = fields.need("over", "the axis");
        let within = fields.get("within");
        let up_to = fields.get("up_to");
        let bound = self.bound(fields, "a slope", |node| node.number("a slope"));
        let up_to = match up_to {
            Some(node) => Some(Some(self.up_to(&node)?)),
            None => Some(None),
        };
        let limit = up_to.flatten();
        let over = over.and_then(|node| self.over(&node, within.as_ref(), limit, true));
        let within = self.within(within);
        Some(ClaimKind::Scales {
            over: over?,
            within: within?,
            up_to: up_to?.map(|(limit, _)| limit),
            bound: bound?,
        })
    }

    fn order(&self, fields: &mut Fields<'_>) -> Option<ClaimKind> {
        const MARGIN: &str = "a ratio of 1 or more";
        let ranked = fields.need("ranked", "a list of selectors, the best first");
        let margin = fields.get("margin");
        let margin = match margin {
            None => Some(1.0),
            Some(node) => {
                let margin = node.number(MARGIN)?;
                if margin < 1.0 {
                    node.wrong(MARGIN);
                }
                (margin >= 1.0).then_some(margin)
            }
        };
        let ranked = ranked?;
        let mut cells: Vec<Chosen> = Vec::new();
        for node in ranked.list("selectors", MAX_RANKED)? {
            let Some(chosen) = self.cells.one_cell(&node) else {
                continue;
            };
            let again = cells.iter().any(|other| other.selector == chosen.selector);
            if again && !chosen.from_cpus {
                node.reject(format!("{} again", node.quote()), "each cell once");
            }
            cells.push(chosen);
        }
        if let [_] = cells.as_slice() {
            ranked.wrong("at least two selectors");
            return None;
        }
        Some(ClaimKind::Order {
            ranked: cells.into_iter().map(|chosen| chosen.selector).collect(),
            margin: margin?,
        })
    }

    fn value(&self, fields: &mut Fields<'_>) -> Option<ClaimKind> {
        let of = fields.need("of", "a selector: the cells");
        let bound = self.bound(fields, "a value", |node| amount(node, self.metric));
        let of = of.and_then(|node| self.cells.selector(&node));
        Some(ClaimKind::Value {
            of: of?.selector,
            bound: bound?,
        })
    }

    fn zero(&self, fields: &mut Fields<'_>) -> Option<ClaimKind> {
        let counter = fields.need("counter", "the counter that must be 0");
        let within = fields.get("within");
        let out_of = fields.need(
            "out_of",
            "the counter that proves there was something to count",
        );
        let where_testable = fields.get("where_testable");
        let within = self.within(within);
        let where_testable = match where_testable {
            Some(node) => node.boolean(),
            None => Some(false),
        };
        let counter = counter.and_then(|node| self.cells.words.counter(&node));
        let out_of = out_of.and_then(|node| {
            let name = self.cells.words.counter(&node)?;
            if Some(&name) == counter.as_ref() {
                node.wrong("another counter than the one that must be 0");
                return None;
            }
            Some(name)
        });
        Some(ClaimKind::Zero {
            counter: counter?,
            within: within?,
            out_of: out_of?,
            where_testable: where_testable?,
        })
    }

    /// The cells that a claim keeps to: the whole matrix where it does not say.
    fn within(&self, node: Option<Node<'_>>) -> Option<Selector> {
        match node {
            Some(node) => self.cells.selector(&node).map(|chosen| chosen.selector),
            None => Some(Selector::default()),
        }
    }

    /// The axis that a claim runs along: it must have two values left, and numbers where a
    /// slope is taken.
    fn over(
        &self,
        node: &Node<'_>,
        within: Option<&Node<'_>>,
        up_to: Option<(f64, bool)>,
        numbers: bool,
    ) -> Option<String> {
        let name = self.cells.axis(node)?;
        if let Some(fixed) = within.and_then(|within| within.field(&name)) {
            fixed.reject(
                format!("a value of {}, the axis of the claim", quoted(&name)),
                "other axes only",
            );
            return None;
        }
        if !self.cells.matrix.sound {
            return Some(name);
        }
        let values = self.cells.matrix.values(&name);
        let positive = |value: f64| value > 0.0;
        if numbers && !values.iter().all(|v| v.as_f64().is_some_and(positive)) {
            node.reject(
                format!(
                    "{}, an axis without numbers or with some that are not above 0",
                    node.quote()
                ),
                "an axis of positive numbers, for a slope",
            );
            return None;
        }
        let (limit, limit_from_cpus) = up_to.unwrap_or((f64::INFINITY, false));
        let from_cpus = limit_from_cpus || self.cells.matrix.depends_on_cpus(&name);
        let lines = self.cells.matrix.lines(&name);
        let within_limit = |line: &super::matrix::Line| {
            let values = line.axis.values.iter();
            values
                .filter(|v| v.as_f64().is_none_or(|v| v <= limit))
                .count()
        };
        let longest = lines.into_iter().map(within_limit).max();
        if !from_cpus && longest.unwrap_or(0) < 2 {
            node.reject(
                format!(
                    "{}, an axis with {} value here",
                    node.quote(),
                    longest.unwrap_or(0)
                ),
                "an axis with at least two values",
            );
            return None;
        }
        Some(name)
    }

    /// The end of the part of an axis that a slope is taken of.
    fn up_to(&self, node: &Node<'_>) -> Option<(f64, bool)> {
        const EXPECTED: &str = "a number above 0, \"cpus\" or \"2 x cpus\"";
        let limit = match node.scalar(EXPECTED)? {
            Scalar::Int(n) => Some((n as f64, false)),
            Scalar::Float(x) => Some((x, false)),
            Scalar::Text(text) => self.cells.words.cpus_of(text).map(|n| (n as f64, true)),
            Scalar::Bool(_) => None,
        };
        let limit = limit.filter(|(limit, _)| *limit > 0.0);
        if limit.is_none() {
            node.wrong(EXPECTED);
        }
        limit
    }

    /// `at_least`, `at_most`, both, or `between`.
    fn bound(
        &self,
        fields: &mut Fields<'_>,
        expected: &str,
        limit: impl Fn(&Node<'_>) -> Option<f64>,
    ) -> Option<Bound> {
        let at_least = fields.get("at_least");
        let at_most = fields.get("at_most");
        let between = fields.get("between");
        // `limit` reports values that are no numbers; numbers out of its range are told apart
        // by the count of errors.
        let checked = |node: &Node<'_>| {
            let before = node.report().count();
            let value = limit(node);
            if value.is_none() && node.report().count() == before {
                node.wrong(expected);
            }
            value
        };
        let (low, high, last) = match (at_least, at_most, between) {
            (None, None, None) => {
                let others = &["at_most", "between"];
                fields.need_one("at_least", others, "at_least, at_most or between");
                return None;
            }
            (None, None, Some(node)) => {
                let items = node.list("limits: the lower and the upper", 2)?;
                let [low, high] = items.as_slice() else {
                    node.wrong("two limits: the lower and the upper");
                    return None;
                };
                let (low, high) = (checked(low), checked(high));
                (Some(low?), Some(high?), node)
            }
            (_, _, Some(node)) => {
                node.reject(
                    "between together with at_least or at_most",
                    "one of the two forms",
                );
                return None;
            }
            (Some(low), Some(high), None) => {
                let limits = (checked(&low), checked(&high));
                (Some(limits.0?), Some(limits.1?), high)
            }
            (Some(low), None, None) => (Some(checked(&low)?), None, low),
            (None, Some(high), None) => (None, Some(checked(&high)?), high),
        };
        if let (Some(low), Some(high)) = (low, high) {
            if low > high {
                last.wrong(format!("an upper limit of {low} or more"));
                return None;
            }
        }
        Some(Bound {
            at_least: low,
            at_most: high,
        })
    }
}

const ABOVE_ONE: &str = "a ratio above 1: the largest over the smallest";

/// A cell's values on the axes that neither selector fixes: cells with the same ones pair up.
fn free_values(point: &Point, of: &Chosen, to: &Chosen) -> String {
    let fixed = |name: &str| of.selector.0.contains_key(name) || to.selector.0.contains_key(name);
    let free = point.0.iter().filter(|(name, _)| !fixed(name));
    let free: Vec<String> = free
        .map(|(name, value)| format!("{name}={value:?}"))
        .collect();
    free.join(" ")
}
