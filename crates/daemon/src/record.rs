//! Records of the log: an event and fields with names. No secret is ever in one.

use std::fmt;

/// The importance of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Details for finding a fault.
    Debug,
    /// A change that was expected.
    Info,
    /// Something that should be looked at.
    Warn,
    /// Something does not work.
    Error,
}

impl Level {
    /// Returns its name in logs.
    pub fn name(self) -> &'static str {
        match self {
            Level::Debug => "debug",
            Level::Info => "info",
            Level::Warn => "warn",
            Level::Error => "error",
        }
    }
}

/// A value of a field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// A number.
    Number(u64),
    /// Anything else.
    Text(String),
}

impl From<u64> for Value {
    fn from(number: u64) -> Value {
        Value::Number(number)
    }
}

impl From<u32> for Value {
    fn from(number: u32) -> Value {
        Value::Number(number.into())
    }
}

impl From<u16> for Value {
    fn from(number: u16) -> Value {
        Value::Number(number.into())
    }
}

impl From<usize> for Value {
    fn from(number: usize) -> Value {
        Value::Number(number as u64)
    }
}

impl From<String> for Value {
    fn from(text: String) -> Value {
        Value::Text(text)
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Value {
        Value::Text(text.to_owned())
    }
}

/// One event of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Its importance.
    pub level: Level,
    /// The name of the event, which does not change between versions.
    pub event: &'static str,
    /// The fields.
    pub fields: Vec<(&'static str, Value)>,
}

impl Record {
    /// Creates a record without fields.
    pub fn new(level: Level, event: &'static str) -> Record {
        Record {
            level,
            event,
            fields: Vec::new(),
        }
    }

    /// Returns the record with one more field.
    #[must_use]
    pub fn with(mut self, name: &'static str, value: impl Into<Value>) -> Record {
        self.fields.push((name, value.into()));
        self
    }
}

/// Writes `level=info event=link route="a b" spi=1001`: text that is more than a word is quoted.
impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "level={} event={}", self.level.name(), self.event)?;
        for (name, value) in &self.fields {
            match value {
                Value::Number(number) => write!(f, " {name}={number}")?,
                Value::Text(text) if is_word(text) => write!(f, " {name}={text}")?,
                Value::Text(text) => write!(f, " {name}={text:?}")?,
            }
        }
        Ok(())
    }
}

fn is_word(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_graphic() && !matches!(c, '"' | '=' | '\\');
    !text.is_empty() && text.chars().all(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_one_line_whatever_its_fields_hold() {
        let record = Record::new(Level::Warn, "refused")
            .with("file", "a b.conf")
            .with("line", 7u32)
            .with("why", "no \"route\"\nlevel=info")
            .with("id", "site2")
            .with("empty", "");
        assert_eq!(
            record.to_string(),
            r#"level=warn event=refused file="a b.conf" line=7 why="no \"route\"\nlevel=info" id=site2 empty="""#
        );
    }
}
