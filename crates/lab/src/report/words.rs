//! Verdicts and figures in words: the same in every format.

use std::fmt::Write;

use maud::{Escaper, Render};

use crate::experiment::Standing;
use crate::result::{ClaimResult, ExperimentResult, Verdict};
use crate::unit::{significant, Unit};

/// The sign for a missing value.
pub(super) const DASH: &str = "–";

/// The verdicts of a standing, most urgent first.
pub(super) fn verdicts(standing: Standing) -> [Verdict; 4] {
    let (no, yes) = match standing {
        Standing::Claim => (Verdict::NotReproduced, Verdict::Reproduced),
        Standing::Target => (Verdict::Missed, Verdict::Held),
    };
    [no, Verdict::Inconclusive, yes, Verdict::NotTestable]
}

/// A verdict in words.
pub(super) fn words(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Reproduced => "reproduced",
        Verdict::NotReproduced => "not reproduced",
        Verdict::Held => "held",
        Verdict::Missed => "missed",
        Verdict::Inconclusive => "inconclusive",
        Verdict::NotTestable => "not testable here",
    }
}

/// A verdict's sign, so that it never rests on a colour alone.
pub(super) fn symbol(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Reproduced | Verdict::Held => "✓",
        Verdict::NotReproduced | Verdict::Missed => "✗",
        Verdict::Inconclusive => "?",
        Verdict::NotTestable => DASH,
    }
}

/// The evidence behind a claim's verdict; an experiment that is judged exactly needs none.
pub(super) fn evidence(experiment: &ExperimentResult, claim: &ClaimResult) -> String {
    match claim.evidence.in_words() {
        Some(words) => words,
        None if experiment.exact && claim.measured.is_some() => "exact".to_owned(),
        None => DASH.to_owned(),
    }
}

/// The ends of an interval; `None` for an end that is unbounded.
pub(super) fn ends(ci95: Option<[f64; 2]>) -> [Option<f64>; 2] {
    let bounded = |end: f64| end.is_finite().then_some(end);
    ci95.map_or([None, None], |ends| ends.map(bounded))
}

/// An interval: `[0.98, 1.02]`, `[0.98, ∞)`, with numbers divided by `per`.
pub(super) fn interval(ci95: [f64; 2], per: f64) -> String {
    let [low, high] = ends(Some(ci95)).map(|end| end.map(|end| significant(end / per)));
    let low = low.map_or("(−∞".to_owned(), |low| format!("[{low}"));
    let high = high.map_or("∞)".to_owned(), |high| format!("{high}]"));
    format!("{low}, {high}")
}

/// A claim's figure and its interval, both in one unit.
pub(super) fn figure(experiment: &ExperimentResult, claim: &ClaimResult) -> (String, String) {
    let Some(measured) = claim.measured else {
        return (DASH.to_owned(), String::new());
    };
    let short = claim.unit.short(&[measured]);
    let number = significant(measured / short.per);
    let figure = match short.unit {
        Unit::Ratio | Unit::Count => number,
        unit => format!("{number} {unit}"),
    };
    let interval = match claim.ci95 {
        // Where every trial gave the same, an interval of no width would claim a precision.
        Some([low, high]) if experiment.exact && low == high => String::new(),
        Some(ci95) => interval(ci95, short.per),
        // A count has none, nor has a trial that is deterministic.
        None if claim.failures.is_empty() || claim.evidence.p.is_none() => String::new(),
        None => "unbounded".to_owned(),
    };
    (figure, interval)
}

/// A published figure in the claim's unit.
pub(super) fn published(claim: &ClaimResult) -> String {
    claim
        .published
        .map_or(DASH.to_owned(), |value| claim.unit.show_exact(value))
}

/// Text that programs read back from an attribute, in which no character is replaced.
pub(super) struct Exact<'a>(pub(super) &'a str);

impl Render for Exact<'_> {
    fn render_to(&self, out: &mut String) {
        for c in self.0.chars() {
            // Neither can fail: the writer is a string.
            let _ = match c {
                '\0' => out.write_char(char::REPLACEMENT_CHARACTER), // HTML cannot write it.
                c if c.is_control() => write!(out, "&#{};", u32::from(c)),
                c => Escaper::new(out).write_char(c),
            };
        }
    }
}

/// A name for an anchor or a file: ASCII letters, digits and dashes, at most 48 of them.
pub(super) fn slug(text: &str) -> String {
    let mut name = String::new();
    for c in text.chars() {
        if c.is_ascii_alphanumeric() {
            name.push(c.to_ascii_lowercase());
        } else if !name.is_empty() && !name.ends_with('-') {
            name.push('-');
        }
        if name.len() >= 48 {
            break;
        }
    }
    name.truncate(name.trim_end_matches('-').len());
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_that_is_missing_is_unbounded() {
        assert_eq!(interval([0.98, 1.02], 1.0), "[0.98, 1.02]");
        assert_eq!(interval([980.0, f64::INFINITY], 1e3), "[0.98, ∞)");
        assert_eq!(interval([f64::NEG_INFINITY, f64::NAN], 1.0), "(−∞, ∞)");
    }

    #[test]
    fn an_anchor_holds_only_letters_digits_and_dashes() {
        assert_eq!(slug("rdrand/threads"), "rdrand-threads");
        assert_eq!(slug("../<x>\"' é"), "x");
        assert_eq!(slug("\u{202e}"), "");
        assert_eq!(slug(&"ab/".repeat(5000)).len(), 47);
    }
}
