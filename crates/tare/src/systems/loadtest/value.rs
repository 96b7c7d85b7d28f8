//! Rates and times on the command line.

use std::time::Duration;

use tare_loadtest::Rate;

/// A rate above zero: bits per second, such as 1e9, 609000000, 10G, 0.5M.
pub(super) fn rate(text: &str) -> Result<Rate, String> {
    let (number, unit) = match text.char_indices().last() {
        Some((at, 'k' | 'K')) => (&text[..at], 1e3),
        Some((at, 'M')) => (&text[..at], 1e6),
        Some((at, 'G')) => (&text[..at], 1e9),
        _ => (text, 1.0),
    };
    number
        .parse()
        .ok()
        .map(|number: f64| number * unit)
        .filter(|rate| (1.0..=1e12).contains(rate))
        .map(Rate::from_f64)
        .ok_or_else(|| {
            format!("found \"{text}\", expected bits per second from 1 to 1e12, such as 1e9 or 10G")
        })
}

/// A number of seconds above zero, at most an hour.
pub(super) fn seconds(text: &str) -> Result<Duration, String> {
    text.parse()
        .ok()
        .filter(|seconds: &f64| (1e-6..=3600.0).contains(seconds))
        .map(Duration::from_secs_f64)
        .ok_or_else(|| format!("found \"{text}\", expected seconds from 1e-6 to 3600"))
}

/// As [`seconds`], or none.
pub(super) fn seconds_or_none(text: &str) -> Result<Duration, String> {
    if text.parse() == Ok(0.0) {
        return Ok(Duration::ZERO);
    }
    seconds(text)
}

/// The size of a frame, Ethernet checksum included: 64 to 9018, as a number or as reports print it,
/// `64 bytes:`.
pub(super) fn frame_size(text: &str) -> Result<u16, String> {
    let number = text.trim().trim_end_matches(':');
    let number = number.strip_suffix(" bytes").unwrap_or(number);
    number
        .parse()
        .ok()
        .filter(|size| (64..=9018).contains(size) && number.bytes().all(|c| c.is_ascii_digit()))
        .ok_or_else(|| format!("found \"{number}\", expected 64 to 9018 bytes"))
}

/// A share between 0 and 1, without either.
pub(super) fn share(text: &str) -> Result<f64, String> {
    text.parse()
        .ok()
        .filter(|&share: &f64| share > 0.0 && share < 1.0)
        .ok_or_else(|| {
            format!("found \"{text}\", expected a share above 0 and below 1, such as 0.005")
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_read_as_numbers_or_with_a_unit() {
        for (text, bits) in [
            ("1e9", 1_000_000_000),
            ("10G", 10_000_000_000),
            ("0.5M", 500_000),
            ("7k", 7_000),
            ("1", 1),
        ] {
            assert_eq!(rate(text).map(Rate::bits), Ok(bits), "{text}");
        }
        for text in [
            "", "0", "-1", "G", "fast", "nan", "inf", "1e13", "1 G", "1é",
        ] {
            assert!(rate(text).is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_are_read_as_reports_print_them() {
        for text in ["64", "64 bytes", "64 bytes:", " 64 bytes:\n"] {
            assert_eq!(frame_size(text), Ok(64), "{text}");
        }
        for text in ["", "63", "9019", "+64", "64bytes", "bytes", "64 bits"] {
            assert!(frame_size(text).is_err(), "{text}");
        }
    }

    #[test]
    fn times_are_seconds() {
        assert_eq!(seconds("0.25"), Ok(Duration::from_millis(250)));
        assert_eq!(seconds_or_none("0"), Ok(Duration::ZERO));
        for text in ["0", "-1", "nan", "1e9", "1s"] {
            assert!(seconds(text).is_err(), "{text}");
        }
    }
}
