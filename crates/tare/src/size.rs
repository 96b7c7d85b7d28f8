//! Numbers of bytes on the command line.

/// Reads a number of bytes: digits, then `k`, `M`, `G` or `T` for powers of 1000 or `Ki`, `Mi`,
/// `Gi` or `Ti` for powers of 1024, then `B` or not.
///
/// # Errors
/// The text is no such number: found, expected.
pub(crate) fn parse_bytes(text: &str) -> Result<u64, String> {
    let wrong = || {
        format!("found \"{text}\", expected bytes such as 16, 10k, 10M, 64Ki, 1Gi (M is 10^6, Mi is 2^20)")
    };
    let end = text
        .find(|c: char| !c.is_ascii_digit() && c != '_')
        .unwrap_or(text.len());
    let (digits, unit) = text.split_at(end);
    let number: u64 = digits.replace('_', "").parse().map_err(|_| wrong())?;
    let unit = unit.strip_suffix('B').unwrap_or(unit);
    let (prefix, base): (&str, u64) = match unit.strip_suffix('i') {
        Some(prefix) => (prefix, 1024),
        None => (unit, 1000),
    };
    let power = match prefix {
        "" if base == 1000 => 0,
        "k" | "K" => 1,
        "M" => 2,
        "G" => 3,
        "T" => 4,
        _ => return Err(wrong()),
    };
    number
        .checked_mul(base.pow(power))
        .ok_or_else(|| format!("found \"{text}\", expected less than 2^64 bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimal_and_binary_prefixes_are_told_apart() {
        let cases = [
            ("0", 0),
            ("16", 16),
            ("16B", 16),
            ("1_000", 1000),
            ("10k", 10_000),
            ("10K", 10_000),
            ("10kB", 10_000),
            ("10M", 10_000_000),
            ("10MiB", 10 << 20),
            ("64Ki", 64 << 10),
            ("3G", 3_000_000_000),
            ("3Gi", 3 << 30),
            ("2Ti", 2 << 40),
        ];
        for (text, bytes) in cases {
            assert_eq!(parse_bytes(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn what_is_no_size_is_refused() {
        for text in [
            "",
            "M",
            "-1",
            "1.5M",
            "10X",
            "10i",
            "10iB",
            "10 M",
            "99999999999T",
            "1MM",
        ] {
            assert!(parse_bytes(text).is_err(), "{text}");
        }
    }
}
