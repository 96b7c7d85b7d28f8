//! Numbers as programs print them under any locale.

/// A number as it was read.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Number {
    /// The value.
    pub(crate) value: f64,
    /// The value of its last digit.
    pub(crate) resolution: f64,
}

/// Reads a number with a decimal point or comma and with or without separators of thousands.
/// `whole` says that it has no fraction, so that a comma separates thousands.
///
/// # Errors
/// It is not one number, or could be two: says what was expected.
pub(crate) fn number(text: &str, whole: bool) -> Result<Number, String> {
    let refused = |why: &str| Err(format!("a number{why}"));
    let (mantissa, exponent) = text.split_at(text.find(['e', 'E']).unwrap_or(text.len()));
    let digits = mantissa.trim_start_matches(['-', '+']);
    let is_group = |comma| !digits.starts_with("0,") && digits.len() - comma == 4;
    let (thousands, decimal) = match (digits.matches('.').count(), digits.matches(',').count()) {
        (0 | 1, 0) => (None, Some('.')),
        (0, 1) if whole => (Some(','), None),
        // 0,123 has no thousands; 1,234 may be either.
        (0, 1) if digits.find(',').is_some_and(is_group) => {
            return refused(" whose comma is a decimal or groups thousands; set LC_ALL=C");
        }
        (0, 1) => (None, Some(',')),
        (0, _) => (Some(','), None),
        (_, 0) => (Some('.'), None),
        _ if digits.rfind('.') > digits.rfind(',') => (Some(','), Some('.')),
        _ => (Some('.'), Some(',')),
    };
    let parts = decimal.and_then(|mark| mantissa.split_once(mark));
    let (integer, fraction) = parts.unwrap_or((mantissa, ""));
    if let Some(separator) = thousands {
        let mut groups = integer.trim_start_matches(['-', '+']).split(separator);
        let first = groups.next().map_or(0, str::len);
        if !(1..=3).contains(&first) || groups.any(|group| group.len() != 3) {
            return refused(" with its thousands in groups of three digits");
        }
    }
    let integer: String = integer.chars().filter(|c| Some(*c) != thousands).collect();
    match format!("{integer}.{fraction}0{exponent}").parse::<f64>() {
        Ok(value) if value.is_finite() && integer.ends_with(|c: char| c.is_ascii_digit()) => {
            let exponent: i32 = exponent.get(1..).and_then(|e| e.parse().ok()).unwrap_or(0);
            let digits = i32::try_from(fraction.len()).unwrap_or(i32::MAX);
            let resolution = 10f64.powi(exponent.saturating_sub(digits));
            Ok(Number { value, resolution })
        }
        _ => refused(""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locale_commas_are_read_where_they_have_one_meaning_and_refused_where_they_have_two() {
        let read = |text, whole| number(text, whole).map(|n| n.value);
        for (text, value) in [
            ("4.77", 4.77),
            ("4,77", 4.77),
            ("-0.314328", -0.314328),
            ("0,123", 0.123),
            ("1,234.5", 1234.5),
            ("1.234,5", 1234.5),
            ("1,234,567", 1_234_567.0),
            ("1.234.567", 1_234_567.0),
            ("10e6", 1e7),
            ("1.5e-3", 0.0015),
        ] {
            assert_eq!(read(text, false), Ok(value), "{text}");
        }
        assert_eq!(read("180,398", true), Ok(180_398.0));
        for text in [
            "180,398", "1,23,456", "1.2.3", "", "-", "1e999", "nan", "1,2.3,4",
        ] {
            assert!(read(text, false).is_err(), "{text}");
        }
        assert_eq!(number("26.45", false).unwrap().resolution, 0.01);
    }
}
