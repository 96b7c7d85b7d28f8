//! Errors in a configuration: the place, what was found and what was expected.

use std::fmt;
use std::io;
use std::path::PathBuf;

/// Mistakes that are told of one file; what follows is mostly their consequence.
const MISTAKES_MAX: usize = 20;

/// The reason why a file is not a valid configuration.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// It could not be read.
    Read {
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// It is longer than [`BYTES_MAX`](super::BYTES_MAX).
    TooLong {
        /// The file.
        file: String,
    },
    /// It says something wrong; at least one mistake.
    Invalid(Mistakes),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Read { path, source } => write!(f, "cannot read {}: {source}", path.display()),
            Error::TooLong { file } => write!(
                f,
                "{file}: found more than {} MiB, expected a configuration",
                super::BYTES_MAX >> 20
            ),
            Error::Invalid(mistakes) => mistakes.fmt(f),
        }
    }
}

impl std::error::Error for Error {}

/// The mistakes of one file, in the order in which they were found. Displays as one line each.
#[derive(Debug)]
pub struct Mistakes {
    file: String,
    told: Vec<Mistake>,
    more: usize,
}

impl Mistakes {
    pub(crate) fn of(file: &str) -> Mistakes {
        Mistakes {
            file: file.into(),
            told: Vec::new(),
            more: 0,
        }
    }

    pub(crate) fn push(&mut self, mistake: Mistake) {
        self.push_with(|| mistake);
    }

    /// Adds a mistake, which is made only if it will be told: a file can have a million of them,
    /// and the suggestion of each takes long to find.
    pub(crate) fn push_with(&mut self, make: impl FnOnce() -> Mistake) {
        if self.told.len() < MISTAKES_MAX {
            self.told.push(make());
        } else {
            self.more += 1;
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.told.is_empty()
    }

    /// `value` where there is no mistake.
    pub(crate) fn or<T>(mut self, value: Option<T>) -> Result<T, Error> {
        match value {
            Some(value) if self.told.is_empty() => Ok(value),
            _ => {
                self.told.sort_by_key(|mistake| mistake.line);
                Err(Error::Invalid(self))
            }
        }
    }

    /// The file's name, as it was given.
    pub fn file(&self) -> &str {
        &self.file
    }

    /// The first twenty.
    pub fn iter(&self) -> impl Iterator<Item = &Mistake> {
        self.told.iter()
    }
}

impl fmt::Display for Mistakes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, mistake) in self.told.iter().enumerate() {
            if i > 0 {
                f.write_str("\n")?;
            }
            write!(f, "{}:{mistake}", self.file)?;
        }
        if self.more > 0 {
            write!(f, "\n{}: {} more mistakes", self.file, self.more)?;
        }
        Ok(())
    }
}

/// One thing that is wrong. Displays as
/// `7: route test1: leaf "spi": found "abc", expected a number from 256 to 4294967295`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mistake {
    /// The line, from 1.
    pub line: u32,
    /// The block: `route test1`, `private-interface`; empty at the top.
    pub place: Box<str>,
    /// The leaf; empty where the mistake is not about one.
    pub leaf: Box<str>,
    /// The text that was found; of keys only the length.
    pub found: Box<str>,
    /// The description of what was expected.
    pub expected: Box<str>,
    /// The nearest thing that would be right, where something is near.
    pub suggestion: Option<Box<str>>,
}

impl Mistake {
    pub(crate) fn at(line: u32) -> Mistake {
        Mistake {
            line,
            ..Mistake::default()
        }
    }

    pub(crate) fn within(mut self, place: &str) -> Mistake {
        self.place = place.into();
        self
    }

    pub(crate) fn leaf(mut self, leaf: &str) -> Mistake {
        self.leaf = leaf.into();
        self
    }

    pub(crate) fn found(mut self, found: impl Into<String>) -> Mistake {
        self.found = found.into().into();
        self
    }

    pub(crate) fn expected(mut self, expected: impl Into<String>) -> Mistake {
        self.expected = expected.into().into();
        self
    }
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.line)?;
        if !self.place.is_empty() {
            write!(f, "{}: ", self.place)?;
        }
        if !self.leaf.is_empty() {
            write!(f, "leaf {}: ", name(&self.leaf))?;
        }
        write!(f, "found {}, expected {}", self.found, self.expected)?;
        if let Some(suggestion) = &self.suggestion {
            write!(f, "; did you mean \"{suggestion}\"?")?;
        }
        Ok(())
    }
}

/// Something in a configuration that is allowed and probably not meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    /// The file's name, as it was given.
    pub file: String,
    /// The line, from 1, where it is about one.
    pub line: Option<u32>,
    /// The problem and what to do about it.
    pub text: String,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Some(line) => write!(f, "{}:{line}: {}", self.file, self.text),
            None => write!(f, "{}: {}", self.file, self.text),
        }
    }
}

/// Describes a value that was found: quoted, or by its length if it is long or could be a key
/// that slipped.
pub(crate) fn shown(text: &str) -> String {
    shown_up_to(text, 48)
}

/// As [`shown`], for a name.
pub(crate) fn name(text: &str) -> String {
    shown_up_to(text, 24)
}

/// The digits from which on something could be a key.
const KEY_DIGITS_MIN: usize = 16;

/// Returns true if `text` has so many hexadecimal or base64 digits without a separator between that
/// it could be a key, or a key with a slip in it. `/` is a digit of base64, but not of a path.
pub(crate) fn could_be_key(text: &str) -> bool {
    let is_path = text.starts_with('/');
    let is_digit = |byte: &u8| {
        byte.is_ascii_alphanumeric() || b"+=".contains(byte) || (*byte == b'/' && !is_path)
    };
    let mut runs = text.as_bytes().split(|byte| !is_digit(byte));
    runs.any(|run| run.len() >= KEY_DIGITS_MIN)
}

fn shown_up_to(text: &str, chars_max: usize) -> String {
    let digits = text.chars().filter(|char| !char.is_whitespace());
    let hexadecimal = digits.clone().all(|char| char.is_ascii_hexdigit());
    match (digits.count(), text.chars().count()) {
        (digits @ KEY_DIGITS_MIN.., _) if hexadecimal => format!("{digits} hexadecimal digits"),
        (_, chars) if chars > chars_max || could_be_key(text) => format!("{chars} characters"),
        _ => format!("{text:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_mistake_is_made_that_is_not_told() {
        let (mut mistakes, mut made) = (Mistakes::of("a"), 0);
        for line in 1..1000 {
            mistakes.push_with(|| {
                made += 1;
                Mistake::at(line)
            });
        }
        assert_eq!((made, mistakes.more), (MISTAKES_MAX, 999 - MISTAKES_MAX));
    }

    #[test]
    fn what_could_be_a_key_is_told_by_its_length() {
        let cases = [
            ("abc", "\"abc\""),
            ("a\x1b[2J", "\"a\\u{1b}[2J\""),
            ("00112233445566778899AABBCCDDEEFF", "32 hexadecimal digits"),
            ("0011 2233 4455 6677", "16 hexadecimal digits"),
            (
                "00112233445566778899aabbccddeefx00112233445566778899",
                "52 characters",
            ),
            ("0x23456789abcdef01", "18 characters"),
            ("23456789abcdefg1", "16 characters"),
            ("I0VniavN7wEjRWeJq83vAQ==", "24 characters"),
            ("I0VniavN7w/jRWeJq83vAQ==", "24 characters"),
            (
                "/run/tare/gateway-node1.sock",
                "\"/run/tare/gateway-node1.sock\"",
            ),
            ("enp130s0f1np1v1", "\"enp130s0f1np1v1\""),
            ("2001:db8:1:2:3:4:5:6/48", "\"2001:db8:1:2:3:4:5:6/48\""),
            ("00:11:22:33:44:55", "\"00:11:22:33:44:55\""),
        ];
        for (text, expected) in cases {
            assert_eq!(shown(text), expected);
        }
        assert_eq!(name("private-interface4"), "\"private-interface4\"");
        assert_eq!(name("00112233445566778899aabbz"), "25 characters");
    }
}
