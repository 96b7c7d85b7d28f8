//! A run as people read it: one HTML file, a terminal table, CSV and Markdown.
//!
//! [`html`] writes a page that needs nothing but itself: figures are SVG drawn here, the style
//! is inline, the raw data is a link that holds it, and a content security policy in the page
//! forbids every request and every script. What comes from outside (ids, titles, reasons) is
//! escaped where it is written, and nowhere else.
//!
//! Every measured mark of a figure carries `data-experiment`, `data-metric`, `data-at` and
//! `data-value`, so that a drawing can be checked against the data it was drawn from.

mod base64;
mod claims;
mod csv;
mod escape;
mod figure;
mod markdown;
mod page;
mod section;
pub mod text;

use crate::result::{RunResult, Verdict};

pub use self::csv::csv;
pub use self::markdown::markdown;

/// The whole report as one HTML file.
pub fn html(result: &RunResult) -> String {
    page::page(result)
}

/// The run in one line: `9 reproduced, 1 not reproduced, 2 inconclusive, 3 not testable here`.
pub fn summary(result: &RunResult) -> String {
    let mut parts = Vec::new();
    for verdict in VERDICTS {
        let count = count(result, verdict);
        if count > 0 {
            parts.push(format!("{count} {}", words(verdict)));
        }
    }
    if parts.is_empty() {
        "No claim was judged".to_owned()
    } else {
        parts.join(", ")
    }
}

/// The verdicts in the order in which a summary counts them.
const VERDICTS: [Verdict; 4] = [
    Verdict::Reproduced,
    Verdict::NotReproduced,
    Verdict::Inconclusive,
    Verdict::NotTestable,
];

fn count(result: &RunResult, verdict: Verdict) -> usize {
    result
        .experiments
        .iter()
        .flat_map(|experiment| &experiment.claims)
        .filter(|claim| claim.verdict == verdict)
        .count()
}

/// A verdict in words.
fn words(verdict: Verdict) -> &'static str {
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
fn symbol(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Reproduced | Verdict::Held => "✓",
        Verdict::NotReproduced | Verdict::Missed => "✗",
        Verdict::Inconclusive => "?",
        Verdict::NotTestable => "–",
    }
}

/// A p as people read it: two significant digits, and no more zeros than mean something.
fn p_value(p: f64) -> String {
    if p < 1e-4 {
        return "< 0.0001".to_owned();
    }
    let decimals = (1.0 - p.log10().floor()).clamp(2.0, 5.0) as usize;
    format!("{p:.decimals$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_p_keeps_two_significant_digits() {
        assert_eq!(p_value(1.0), "1.00");
        assert_eq!(p_value(1.0 / 256.0), "0.0039");
        assert_eq!(p_value(0.05), "0.050");
        assert_eq!(p_value(0.0), "< 0.0001");
    }
}
