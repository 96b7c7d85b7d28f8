//! Parameter values against a driver's vocabulary, and the word `cpus`.

use std::collections::HashSet;

use super::node::{one_of, quoted, Node, Scalar};
use crate::driver::{Parameter, ParameterKind, Vocabulary};
use crate::unit::{Dimension, Quantity, Unit};
use crate::usage::METRICS;
use crate::value::Value;

/// The most processors a machine is assumed to have, and the most times `cpus` is multiplied.
const MAX_CPUS: i64 = 4096;

/// The words that an experiment may use, on a machine with so many processors.
#[derive(Clone, Copy)]
pub(super) struct Words<'a> {
    /// `None` if the file names no driver that is known: then every word passes, because the
    /// driver's name is the error.
    pub(super) vocabulary: Option<&'a Vocabulary>,
    pub(super) cpus: i64,
    /// True if every cell's program speaks the protocol, and so has metrics and counters of its
    /// own.
    pub(super) speaks: bool,
}

/// A value that a parameter may take.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Resolved {
    pub(super) value: Value,
    /// True if the file wrote it in terms of the machine's processors.
    pub(super) from_cpus: bool,
}

impl<'a> Words<'a> {
    pub(super) fn new(vocabulary: Option<&'a Vocabulary>, cpus: usize) -> Self {
        let cpus = i64::try_from(cpus).unwrap_or(MAX_CPUS).clamp(1, MAX_CPUS);
        Words {
            vocabulary,
            cpus,
            speaks: true,
        }
    }

    /// Returns true if words beyond the vocabulary are accepted.
    fn open(&self) -> bool {
        self.vocabulary.is_none_or(|vocabulary| vocabulary.open)
    }

    pub(super) fn parameter(&self, name: &str) -> Option<&'a Parameter> {
        self.vocabulary?.parameters.iter().find(|p| p.name == name)
    }

    /// Returns true if the driver takes the parameter `name`.
    pub(super) fn knows_parameter(&self, name: &str) -> bool {
        self.open() || self.parameter(name).is_some()
    }

    pub(super) fn parameter_names(&self) -> Vec<&'a str> {
        self.vocabulary
            .iter()
            .flat_map(|vocabulary| vocabulary.parameters.iter().map(|p| p.name.as_str()))
            .collect()
    }

    /// Returns the dimension of the driver's metric `name`; `Ok(None)` if it may have any.
    pub(super) fn metric(&self, name: &str) -> Result<Option<Dimension>, Vec<&'a str>> {
        let metrics = self.vocabulary.map_or(&[][..], |v| &v.metrics);
        let own = metrics.iter().map(|(known, dim)| (known.as_str(), *dim));
        let every_programs = METRICS
            .iter()
            .map(|(known, unit)| (*known, unit.dimension()));
        let known: Vec<(&str, Dimension)> = own.chain(every_programs).collect();
        match known.iter().find(|(known, _)| *known == name) {
            Some((_, dimension)) => Ok(Some(*dimension)),
            None if self.open() && self.speaks => Ok(None),
            None => Err(known.into_iter().map(|(known, _)| known).collect()),
        }
    }

    /// The text of `node` as the name of a counter.
    pub(super) fn counter(&self, node: &Node<'_>) -> Option<String> {
        self.known(node, |vocabulary| &vocabulary.counters, self.speaks)
    }

    /// The text of `node` as the name of a reference.
    pub(super) fn reference(&self, node: &Node<'_>) -> Option<String> {
        self.known(node, |vocabulary| &vocabulary.references, true)
    }

    fn known(
        &self,
        node: &Node<'_>,
        list: fn(&Vocabulary) -> &Vec<String>,
        may_be_own: bool,
    ) -> Option<String> {
        let text = node.text()?;
        let known = self.vocabulary.map_or(&[][..], |v| list(v).as_slice());
        let is_known = known.iter().any(|word| word == text);
        let passes = may_be_own && self.open();
        if !(is_known || passes) {
            let known: Vec<&str> = known.iter().map(String::as_str).collect();
            node.unknown(text, &known);
            return None;
        }
        Some(text.to_owned())
    }

    /// The number that `"cpus"`, `"2 x cpus"` or `"cpus + 1"` stands for; `None` for any other
    /// text.
    pub(super) fn cpus_of(&self, text: &str) -> Option<i64> {
        let words: Vec<&str> = text.split_whitespace().collect();
        match words.as_slice() {
            ["cpus"] => Some(self.cpus),
            [times, "x", "cpus"] => times
                .parse()
                .ok()
                .filter(|times| (1..=MAX_CPUS).contains(times))
                .map(|times: i64| times * self.cpus),
            ["cpus", "+", more] => more
                .parse()
                .ok()
                .filter(|more| (1..=MAX_CPUS).contains(more))
                .map(|more: i64| self.cpus + more),
            _ => None,
        }
    }

    /// The value of `node` as a value of the parameter `name`; reports what is wrong with it.
    pub(super) fn value(&self, name: &str, node: &Node<'_>) -> Option<Resolved> {
        let kind = self.parameter(name).map(|parameter| &parameter.kind);
        let expected = match kind {
            Some(kind) => kind_in_words(kind),
            None => "a number, a text, true or false".to_owned(),
        };
        let scalar = node.scalar(&expected)?;
        let numeric = matches!(
            kind,
            None | Some(ParameterKind::Int(..) | ParameterKind::Number)
        );
        let from_cpus = match scalar {
            Scalar::Text(text) if numeric => self.cpus_of(text),
            _ => None,
        };
        if let Some(number) = from_cpus {
            let value = match kind {
                // A machine may have more processors than a driver takes threads.
                Some(ParameterKind::Int(_, max)) => Value::Int(number.min(*max)),
                Some(ParameterKind::Number) => Value::Float(number as f64),
                _ => Value::Int(number),
            };
            return Some(Resolved {
                value,
                from_cpus: true,
            });
        }
        let value = match (kind, scalar) {
            (None, Scalar::Bool(b)) | (Some(ParameterKind::Bool), Scalar::Bool(b)) => {
                Value::Bool(b)
            }
            (None, Scalar::Int(n)) => Value::Int(n),
            (None, Scalar::Float(x)) => Value::Float(x),
            (None | Some(ParameterKind::Text), Scalar::Text(_)) => Value::from(node.text()?),
            (Some(ParameterKind::Int(min, max)), Scalar::Int(n)) if (*min..=*max).contains(&n) => {
                Value::Int(n)
            }
            (Some(ParameterKind::Number), Scalar::Int(n)) => Value::Float(n as f64),
            (Some(ParameterKind::Number), Scalar::Float(x)) => Value::Float(x),
            (Some(ParameterKind::Choice(words)), Scalar::Text(text)) => {
                if !words.iter().any(|word| word == text) {
                    let words: Vec<&str> = words.iter().map(String::as_str).collect();
                    node.unknown(text, &words);
                    return None;
                }
                Value::from(text)
            }
            (Some(ParameterKind::Quantity(dimension)), Scalar::Text(text)) => {
                let right = |q: &Quantity| q.unit.dimension() == *dimension && q.value >= 0.0;
                if !text.parse::<Quantity>().is_ok_and(|q| right(&q)) {
                    node.wrong(expected);
                    return None;
                }
                Value::from(text)
            }
            _ => {
                node.wrong(expected);
                return None;
            }
        };
        Some(Resolved {
            value,
            from_cpus: false,
        })
    }

    pub(super) fn is_quantity(&self, name: &str) -> bool {
        let kind = self.parameter(name).map(|parameter| &parameter.kind);
        matches!(kind, Some(ParameterKind::Quantity(_)))
    }

    pub(super) fn is_table(&self, name: &str) -> bool {
        let kind = self.parameter(name).map(|parameter| &parameter.kind);
        matches!(kind, Some(ParameterKind::Table))
    }

    /// Returns true if two values of the parameter `name` are the same, however they are spelt.
    pub(super) fn same(&self, name: &str, a: &Value, b: &Value) -> bool {
        if !self.is_quantity(name) {
            return a == b;
        }
        match (quantity(a), quantity(b)) {
            (Some(a), Some(b)) => b.in_unit(a.unit) == Ok(a.value),
            _ => false,
        }
    }

    /// Returns the first of each of the values of the parameter `name` that are the same. 1, 1.0
    /// and "1" reach a trial as the same word, and are the same too.
    pub(super) fn without_repeats(&self, name: &str, mut values: Vec<Value>) -> Vec<Value> {
        let mut words = HashSet::new();
        let mut quantities: Vec<Quantity> = Vec::new();
        values.retain(|value| {
            let is_new = words.insert(match value {
                // Without the sign of 0.
                Value::Float(x) => (x + 0.0).to_string(),
                other => other.to_string(),
            });
            let Some(b) = quantity(value).filter(|_| self.is_quantity(name)) else {
                return is_new;
            };
            let mut before = quantities.iter();
            let is_new = is_new && !before.any(|a| b.in_unit(a.unit) == Ok(a.value));
            quantities.push(b);
            is_new
        });
        values
    }
}

/// The quantity that a text is.
fn quantity(value: &Value) -> Option<Quantity> {
    value.as_str().and_then(|text| text.parse().ok())
}

/// A value as a file would write it.
pub(super) fn written(value: &Value) -> String {
    match value {
        Value::Text(text) => quoted(text),
        other => other.to_string(),
    }
}

fn kind_in_words(kind: &ParameterKind) -> String {
    match kind {
        // A file writes the names in quotes.
        ParameterKind::Choice(names) => {
            one_of(&names.iter().map(String::as_str).collect::<Vec<_>>())
        }
        other => other.to_string(),
    }
}

/// The units of one dimension, in words.
pub(super) fn units_of(dimension: Dimension) -> String {
    let units: Vec<&str> = Unit::ALL
        .iter()
        .filter(|unit| unit.dimension() == dimension)
        .map(|unit| unit.spelling())
        .collect();
    one_of(&units)
}
