//! The claims table: what was published, what this machine says, and the verdict.

use std::fmt::Write;

use super::escape::Shown;
use super::page::prose;
use super::{p_value, symbol, words};
use crate::result::{ClaimResult, RunResult, Verdict};
use crate::unit::significant;

/// Writes the table; `anchors` are the ids of the experiments' sections.
pub(super) fn table(out: &mut String, result: &RunResult, anchors: &[String]) {
    if result.experiments.iter().all(|it| it.claims.is_empty()) {
        out.push_str("<p class=\"empty\">No claim was judged in this run.</p>");
        return;
    }
    out.push_str(
        "<div class=\"scroll\" tabindex=\"0\" role=\"group\" aria-label=\"Table of claims\">\
         <table class=\"claims\"><caption>Claims, by experiment</caption><thead><tr>\
         <th scope=\"col\">Verdict</th><th scope=\"col\">Claim</th>\
         <th scope=\"col\" class=\"n\">Published</th>\
         <th scope=\"col\" class=\"n\">Measured <span class=\"sub\">95&nbsp;% interval</span></th>\
         <th scope=\"col\">Criterion</th><th scope=\"col\" class=\"n\">p <span class=\"sub\">Holm</span></th>\
         <th scope=\"col\" class=\"n\">Rounds</th></tr></thead>",
    );
    for (experiment, anchor) in result.experiments.iter().zip(anchors) {
        if experiment.claims.is_empty() {
            continue;
        }
        let _ = write!(
            out,
            "<tbody><tr class=\"group\"><th scope=\"rowgroup\" colspan=\"7\">\
             <a href=\"#{anchor}\"><bdi>{}</bdi></a> <bdi class=\"id\">{}</bdi></th></tr>",
            Shown(&super::escape::clip(&experiment.title, 160)),
            Shown(&super::escape::clip(&experiment.id, 80)),
        );
        for claim in &experiment.claims {
            row(out, claim);
        }
        out.push_str("</tbody>");
    }
    out.push_str("</table></div>");
}

fn row(out: &mut String, claim: &ClaimResult) {
    let _ = write!(
        out,
        "<tr data-claim=\"{}\" data-verdict=\"{}\"><td>{}</td><th scope=\"row\">",
        super::escape::Exact(&claim.id),
        claim.verdict,
        badge(claim.verdict),
    );
    prose(out, "claim", &claim.text);
    prose(out, "source", &claim.source);
    if let Some(reason) = &claim.reason {
        prose(out, "reason", reason);
    }
    let _ = write!(
        out,
        "</th><td class=\"n\">{}</td><td class=\"n\">{}{}</td><td class=\"criterion\">",
        figure(claim, claim.published),
        figure(claim, claim.measured),
        match claim.ci95 {
            Some([low, high]) => format!(
                "<span class=\"sub\">{} … {}</span>",
                significant(low),
                significant(high)
            ),
            None => String::new(),
        },
    );
    prose(out, "", &claim.criterion);
    let p = match claim.p_holm.or(claim.p) {
        Some(p) => p_value(p),
        None => "–".to_owned(),
    };
    let note = match (claim.p_holm, claim.p) {
        (None, Some(_)) => "<span class=\"sub\">uncorrected</span>",
        _ => "",
    };
    let _ = write!(
        out,
        "</td><td class=\"n\">{}{note}</td><td class=\"n\">{}</td></tr>",
        Shown(&p),
        claim.n
    );
}

/// A figure of the claim with its unit, or a dash.
pub(super) fn figure(claim: &ClaimResult, value: Option<f64>) -> String {
    value.map_or_else(|| "–".to_owned(), |value| claim.unit.show(value))
}

/// A verdict with sign, word and colour.
pub(super) fn badge(verdict: Verdict) -> String {
    format!(
        "<span class=\"verdict v-{verdict}\"><span aria-hidden=\"true\">{}</span> {}</span>",
        symbol(verdict),
        words(verdict)
    )
}

/// A number, or a dash that says so.
pub(super) fn number(value: Option<f64>) -> String {
    match value {
        Some(value) => significant(value),
        None => "<span title=\"no value\">–</span>".to_owned(),
    }
}
