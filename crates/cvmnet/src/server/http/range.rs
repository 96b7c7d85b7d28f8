//! Byte ranges (RFC 9110 section 14).

use std::ops::Range;

/// The part of a file that a request is for.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// All: no range, or one that is not understood, several among them.
    Whole,
    /// The bytes, at least one.
    Range(Range<u64>),
    /// None of the file's bytes: 416.
    Unsatisfiable,
}

/// Parses the value of a `Range` for a file of `len` bytes.
pub(super) fn parse(value: &[u8], len: u64) -> Part {
    let parsed = || {
        let (unit, range) = std::str::from_utf8(value).ok()?.split_once('=')?;
        let (first, last) = range.trim().split_once('-')?;
        let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        if !unit.eq_ignore_ascii_case("bytes") || !is_number(first) || !is_number(last) {
            return None;
        }
        // A number that is too large is past the end of any file.
        let number = |text: &str| text.parse().unwrap_or(u64::MAX);
        match (first, last) {
            ("", "") => None,
            ("", count) => Some(len.saturating_sub(number(count))..len),
            (first, "") => Some(number(first)..len.max(number(first))),
            (first, last) if number(first) > number(last) => None,
            (first, last) => Some(number(first)..number(last).saturating_add(1)),
        }
    };
    match parsed() {
        None => Part::Whole,
        Some(range) if range.start >= len => Part::Unsatisfiable,
        Some(range) => Part::Range(range.start..range.end.min(len)),
    }
}
