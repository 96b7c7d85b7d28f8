//! Errors of experiment files, each with its place.

use std::fmt;

/// An error of an experiment file.
///
/// Displays as one line:
/// `threads.toml:14: experiment[1].metric.better: found "hihger", expected "higher" or "lower";
/// did you mean "higher"?`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileError {
    /// The file's name, as it was given.
    pub file: String,
    /// The line, from 1.
    pub line: usize,
    /// The character in the line, from 1.
    pub column: usize,
    /// The place in the document: `experiment[2].claim[0].ratio.of`, counted from 0. Empty for
    /// errors of the file itself.
    pub key: String,
    /// The text or value that was found.
    pub found: String,
    /// The values that were expected; empty if the finding says it all.
    pub expected: String,
    /// The nearest thing that would be right, where something is near.
    pub suggestion: Option<String>,
}

impl fmt::Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: ", self.file, self.line)?;
        if !self.key.is_empty() {
            write!(f, "{}: ", self.key)?;
        }
        write!(f, "found {}", self.found)?;
        if !self.expected.is_empty() {
            write!(f, ", expected {}", self.expected)?;
        }
        if let Some(suggestion) = &self.suggestion {
            write!(f, "; did you mean {suggestion}?")?;
        }
        Ok(())
    }
}

impl std::error::Error for FileError {}
