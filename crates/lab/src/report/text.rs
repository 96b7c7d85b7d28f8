//! The run in a terminal: the claims and the cells as tables of a given width.

use std::fmt::Write;

use super::escape::{clip, visible};
use super::{p_value, section, summary, symbol, words};
use crate::result::{CellResult, ClaimResult, ExperimentResult, RunResult, Verdict};
use crate::unit::{significant, Better};

/// Below this width a claim is a paragraph instead of a row.
const NARROW: usize = 84;

/// A text from outside is cut here: a terminal is no place for a book.
const LONGEST: usize = 600;

/// The claims of the run, `width` columns wide (at least 40), verdicts in colour where `colour`;
/// the last line is the summary.
pub fn claims(result: &RunResult, width: usize, colour: bool) -> String {
    let width = width.max(40);
    let mut out = String::new();
    for experiment in &result.experiments {
        if experiment.claims.is_empty() {
            continue;
        }
        let title = clip(&experiment.title, LONGEST);
        for line in wrap(
            &clean(&format!("{title} ({})", clip(&experiment.id, 80))),
            width,
        ) {
            let _ = writeln!(out, "{}", styled(&line, "1", colour));
        }
        for claim in &experiment.claims {
            if width < NARROW {
                paragraph(&mut out, claim, width, colour);
            } else {
                row(&mut out, claim, width, colour);
            }
        }
        out.push('\n');
    }
    if !result.complete {
        out.push_str("Incomplete: the run was stopped before its last trial.\n");
    }
    for line in wrap(&summary(result), width) {
        let _ = writeln!(out, "{line}");
    }
    out
}

/// The columns of a wide row: verdict, claim (what is left), measured and interval, published, p.
const VERDICT: usize = 20;
const MEASURED: usize = 26;
const PUBLISHED: usize = 11;
const P: usize = 9;

fn row(out: &mut String, claim: &ClaimResult, width: usize, colour: bool) {
    let room = width - VERDICT - MEASURED - PUBLISHED - P - 2 - 3;
    let mut lines = wrap(&clean(&clip(&claim.text, LONGEST)), room);
    lines.extend(wrap(&clean(&clip(&claim.criterion, 200)), room));
    let verdict = format!("{} {}", symbol(claim.verdict), words(claim.verdict));
    let p = claim
        .p_holm
        .map(|p| format!("p {}", p_value(p)))
        .unwrap_or_default();
    for (number, line) in lines.iter().enumerate() {
        let _ = write!(out, "  ");
        if number == 0 {
            let _ = writeln!(
                out,
                "{}{}{} {} {} {}",
                styled(&verdict, code(claim.verdict), colour),
                " ".repeat(VERDICT - columns(&verdict)),
                padded(line, room),
                ahead(&measured(claim), MEASURED),
                ahead(&published(claim), PUBLISHED),
                ahead(&p, P),
            );
        } else {
            let _ = writeln!(out, "{}{line}", " ".repeat(VERDICT));
        }
    }
    if let Some(reason) = &claim.reason {
        for line in wrap(&clean(&clip(reason, LONGEST)), width - VERDICT - 4) {
            let _ = writeln!(
                out,
                "  {}{}",
                " ".repeat(VERDICT),
                styled(&line, "2", colour)
            );
        }
    }
}

fn paragraph(out: &mut String, claim: &ClaimResult, width: usize, colour: bool) {
    let verdict = format!("{} {}", symbol(claim.verdict), words(claim.verdict));
    let _ = writeln!(out, "  {}", styled(&verdict, code(claim.verdict), colour));
    let mut figures = vec![claim.criterion.clone()];
    if claim.measured.is_some() {
        figures.push(format!("measured {}", measured(claim)));
    }
    if let Some(published) = claim.published {
        figures.push(format!("published {}", claim.unit.show(published)));
    }
    if let Some(p) = claim.p_holm {
        figures.push(format!("p {}", p_value(p)));
    }
    let mut lines = wrap(&clean(&clip(&claim.text, LONGEST)), width - 4);
    lines.extend(wrap(&clean(&clip(&figures.join(", "), LONGEST)), width - 4));
    if let Some(reason) = &claim.reason {
        lines.extend(wrap(&clean(&clip(reason, LONGEST)), width - 4));
    }
    for line in lines {
        let _ = writeln!(out, "    {line}");
    }
}

fn measured(claim: &ClaimResult) -> String {
    match (claim.measured, claim.ci95) {
        (Some(value), Some([low, high])) => format!(
            "{} [{}, {}]",
            claim.unit.show(value),
            significant(low),
            significant(high)
        ),
        (Some(value), None) => claim.unit.show(value),
        (None, _) => "–".to_owned(),
    }
}

fn published(claim: &ClaimResult) -> String {
    match claim.published {
        Some(published) => format!("pub. {}", claim.unit.show(published)),
        None => String::new(),
    }
}

/// The cells of an experiment and its noise floor: one table a metric, columns as wide as their text, at most `width`
/// columns (at least 40); what does not fit is cut with an ellipsis.
pub fn cells(experiment: &ExperimentResult, width: usize) -> String {
    let width = width.max(40);
    let mut out = String::new();
    for metric in section::metrics(experiment) {
        let cells: Vec<&CellResult> = experiment
            .cells
            .iter()
            .filter(|c| c.metric == metric)
            .collect();
        let Some(first) = cells.first() else { continue };
        let direction = match first.better {
            Better::Higher => "higher is better",
            Better::Lower => "lower is better",
        };
        let head = clean(&format!(
            "{} in {}, {direction}",
            clip(metric, 80),
            first.unit
        ));
        let _ = writeln!(out, "{}", cut(&head, width));
        let mut rows =
            vec![["cell", "median", "95 % interval", "n", "published", "note"].map(str::to_owned)];
        rows.extend(cells.iter().map(|cell| cell_row(experiment, cell)));
        let wide = |column: usize| {
            rows.iter()
                .map(|row| columns(&row[column]))
                .max()
                .unwrap_or(0)
        };
        let numbers: [usize; 4] = [wide(1), wide(2), wide(3), wide(4)];
        let taken: usize = numbers.iter().map(|wide| wide + 2).sum::<usize>() + 2;
        let place = wide(0).min(width.saturating_sub(taken).max(12));
        for row in &rows {
            let mut line = format!("  {}", padded(&cut(&row[0], place), place));
            for (wide, words) in numbers.iter().zip(&row[1..5]) {
                let _ = write!(line, "  {}", ahead(words, *wide));
            }
            let _ = write!(line, "  {}", row[5]);
            let _ = writeln!(out, "{}", cut(line.trim_end(), width));
        }
        for noise in experiment.noise.iter().filter(|n| n.metric == metric) {
            let [low, high] = noise.ci95.map(significant);
            let line = clean(&format!(
                "  noise floor: {} measured twice a round, second / first {} [{low}, {high}] of {} rounds",
                clip(&noise.at.to_string(), 80),
                significant(noise.ratio),
                noise.n
            ));
            let _ = writeln!(out, "{}", cut(line.trim_end(), width));
        }
    }
    out
}

fn cell_row(experiment: &ExperimentResult, cell: &CellResult) -> [String; 6] {
    let dash = || "–".to_owned();
    let published = experiment
        .published
        .iter()
        .find(|p| p.metric == cell.metric && p.at == cell.at)
        .map_or_else(dash, |p| significant(p.value));
    let interval = cell.ci95.map_or_else(dash, |[low, high]| {
        format!("{} … {}", significant(low), significant(high))
    });
    let mut note = cell.remark();
    if cell.failed > 0 {
        note = format!("{} failed {note}", cell.failed);
    }
    [
        clean(&clip(&cell.at.to_string(), 200)),
        cell.median.map_or_else(dash, significant),
        interval,
        cell.n.to_string(),
        published,
        clean(&clip(note.trim_end(), LONGEST)),
    ]
}

/// Text on one line that cannot drive the terminal.
pub fn clean(text: &str) -> String {
    text.chars().map(visible).collect()
}

fn code(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Reproduced | Verdict::Held => "32",
        Verdict::NotReproduced | Verdict::Missed => "1;31",
        Verdict::Inconclusive => "33",
        Verdict::NotTestable => "2",
    }
}

fn styled(text: &str, code: &str, colour: bool) -> String {
    if colour {
        format!("\u{1b}[{code}m{text}\u{1b}[0m")
    } else {
        text.to_owned()
    }
}

/// How many columns a terminal gives `text`.
fn columns(text: &str) -> usize {
    text.chars().map(column).sum()
}

fn column(c: char) -> usize {
    match c {
        '\u{300}'..='\u{36f}' | '\u{200b}'..='\u{200d}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' => 0,
        '\u{1100}'..='\u{115f}' | '\u{2e80}'..='\u{a4cf}' | '\u{ac00}'..='\u{d7a3}' => 2,
        '\u{f900}'..='\u{faff}' | '\u{fe30}'..='\u{fe6f}' | '\u{ff00}'..='\u{ff60}' => 2,
        '\u{ffe0}'..='\u{ffe6}' | '\u{1f300}'..='\u{1faff}' | '\u{20000}'..='\u{3fffd}' => 2,
        _ => 1,
    }
}

fn padded(text: &str, width: usize) -> String {
    format!("{text}{}", " ".repeat(width.saturating_sub(columns(text))))
}

fn ahead(text: &str, width: usize) -> String {
    format!("{}{text}", " ".repeat(width.saturating_sub(columns(text))))
}

/// `text` in at most `width` columns, with an ellipsis where it was cut.
fn cut(text: &str, width: usize) -> String {
    if columns(text) <= width {
        return text.to_owned();
    }
    let mut used = 1;
    let mut short: String = text
        .chars()
        .take_while(|&c| {
            used += column(c);
            used <= width
        })
        .collect();
    short.push('…');
    short
}

/// Lines of at most `width` columns, broken at spaces where there are any.
fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines = Vec::new();
    let mut line = String::new();
    let mut used = 0;
    for word in text.split_whitespace() {
        let wide = columns(word);
        if used > 0 && used + 1 + wide > width {
            lines.push(std::mem::take(&mut line));
            used = 0;
        }
        if used > 0 {
            line.push(' ');
            used += 1;
        }
        for c in word.chars() {
            if used + column(c) > width {
                lines.push(std::mem::take(&mut line));
                used = 0;
            }
            line.push(c);
            used += column(c);
        }
    }
    if !line.is_empty() || lines.is_empty() {
        lines.push(line);
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrapped_lines_fit_and_lose_nothing() {
        let text = format!("two words 日本語 {}", "x".repeat(95));
        let lines = wrap(&text, 20);
        assert!(lines.iter().all(|line| columns(line) <= 20), "{lines:?}");
        let joined: String = lines.concat().split_whitespace().collect();
        let whole: String = text.split_whitespace().collect();
        assert_eq!(joined, whole);
        assert_eq!(wrap("", 20), [""]);
    }

    #[test]
    fn wide_characters_take_two_columns() {
        assert_eq!(columns("日本"), 4);
        assert_eq!(cut("日本語", 5), "日本…");
        assert_eq!(padded("é", 3), "é  ");
    }
}
