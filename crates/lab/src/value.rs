//! Parameter values and the points of a matrix they span.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

/// One parameter's value, as an experiment file writes it.
#[derive(Clone, Debug, PartialEq, PartialOrd, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Value {
    /// `true` or `false`.
    Bool(bool),
    /// A whole number.
    Int(i64),
    /// A finite number with a fraction.
    Float(f64),
    /// Text; a driver may read a quantity such as `"16 B"` out of it.
    Text(String),
}

impl Value {
    /// The value as a number, if it is one; `None` for text and booleans.
    pub fn as_f64(&self) -> Option<f64> {
        match self {
            Value::Int(n) => Some(*n as f64),
            Value::Float(x) => Some(*x),
            Value::Bool(_) | Value::Text(_) => None,
        }
    }

    /// The value as text, where it is text.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Value::Text(s) => Some(s),
            _ => None,
        }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Bool(b) => write!(f, "{b}"),
            Value::Int(n) => write!(f, "{n}"),
            Value::Float(x) => write!(f, "{x}"),
            Value::Text(s) => f.write_str(s),
        }
    }
}

impl From<i64> for Value {
    fn from(n: i64) -> Self {
        Value::Int(n)
    }
}

impl From<bool> for Value {
    fn from(b: bool) -> Self {
        Value::Bool(b)
    }
}

impl From<f64> for Value {
    fn from(x: f64) -> Self {
        Value::Float(x)
    }
}

impl From<&str> for Value {
    fn from(s: &str) -> Self {
        Value::Text(s.to_owned())
    }
}

/// Parameters by name: a trial's whole input, or a part of it.
pub type Parameters = BTreeMap<String, Value>;

/// The key under which a cell that runs `beside` the matrix carries its reference's name.
pub const BESIDE: &str = "beside";

/// The position of a cell: its value on every axis, or `{ beside = "NAME" }` for a reference.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Point(pub Parameters);

impl Point {
    /// The reference's name, where this is a cell that runs beside the matrix.
    pub fn beside(&self) -> Option<&str> {
        self.0.get(BESIDE).and_then(Value::as_str)
    }

    /// The cell in words, never empty: the reference's name, or its place on every axis.
    pub fn in_words(&self) -> String {
        match self.beside() {
            Some(reference) => reference.to_owned(),
            None if self.0.is_empty() => "the only cell".to_owned(),
            None => self.to_string(),
        }
    }
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut first = true;
        for (name, value) in &self.0 {
            if !first {
                f.write_str(" ")?;
            }
            first = false;
            write!(f, "{name}={value}")?;
        }
        Ok(())
    }
}

/// A part of a point: chooses the cells that agree with it on every key it names.
///
/// The empty selector chooses the whole matrix, but no reference: a reference is chosen by naming
/// it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Selector(pub Parameters);

impl Selector {
    /// Returns true if `point` agrees with every key of this selector.
    pub fn matches(&self, point: &Point) -> bool {
        if point.beside().is_some() && !self.0.contains_key(BESIDE) {
            return false;
        }
        self.0
            .iter()
            .all(|(name, value)| point.0.get(name) == Some(value))
    }
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Point(self.0.clone()).fmt(f)
    }
}
