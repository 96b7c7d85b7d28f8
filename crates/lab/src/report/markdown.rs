//! The run as Markdown: the tables as GitHub and mdBook show them.

use std::fmt::Write;

use super::table::{self, About, Kind, Table};
use super::words::{symbol, words};
use crate::experiment::Standing;
use crate::result::RunResult;
use crate::text::visible;

/// The run as Markdown; text from outside stays text.
pub fn markdown(result: &RunResult) -> String {
    let mut out = String::new();
    let _ = writeln!(
        out,
        "# {}\n\nRun {}.",
        plain(&table::title(result)),
        plain(&result.run)
    );
    if !result.complete {
        out.push_str("\n**Incomplete**: the run was stopped before its last trial.\n");
    }
    let standings = [Standing::Claim, Standing::Target];
    let summaries = standings
        .iter()
        .filter_map(|&it| table::summary(result, it));
    let mut summaries: Vec<String> = summaries.chain(table::failed_summary(result)).collect();
    if summaries.is_empty() {
        summaries.push("No claim was judged".to_owned());
    }
    out.push('\n');
    summaries.extend(table::error_rate(result));
    summaries.extend(table::independence(result));
    for line in summaries.iter().chain(&result.warnings) {
        let _ = writeln!(out, "- {}", plain(line));
    }
    let tables = standings.map(|standing| table::claims(result, standing));
    for table in tables.iter().chain([&table::failed_trials(result)]) {
        if !table.rows.is_empty() {
            let _ = writeln!(out, "\n## {}", plain(&table.title));
            render(&mut out, table);
        }
    }
    for experiment in &result.experiments {
        let _ = writeln!(
            out,
            "\n## {}\n\n{} ({})",
            plain(&experiment.title),
            plain(&experiment.source),
            plain(&experiment.id)
        );
        let metrics = table::metrics(experiment);
        let mut tables: Vec<Table> = metrics
            .iter()
            .map(|metric| table::cells(experiment, metric))
            .collect();
        tables.push(table::noise(experiment));
        for table in tables.iter().filter(|table| !table.rows.is_empty()) {
            let _ = writeln!(out, "\n{}:", plain(&table.title));
            render(&mut out, table);
        }
    }
    out
}

fn render(out: &mut String, table: &Table) {
    let verdicts = table.rows.iter().any(|row| row.verdict.is_some());
    let notes = table.rows.iter().any(|row| !row.notes.is_empty());
    let (mut heads, mut rule) = (String::new(), String::new());
    if verdicts {
        heads += "| Verdict ";
        rule += "|---";
    }
    for column in &table.columns {
        let _ = write!(heads, "| {} ", plain(&column.head));
        rule += match column.kind {
            Kind::Words => "|---",
            Kind::Figure => "|--:",
        };
    }
    if notes {
        heads += "| Notes ";
        rule += "|---";
    }
    let _ = writeln!(out, "\n{heads}|\n{rule}|");
    for row in &table.rows {
        if let Some(verdict) = row.verdict {
            let _ = write!(out, "| {} {} ", symbol(verdict), words(verdict));
        }
        for cell in &row.cells {
            let _ = write!(out, "| {} ", plain(&cell.line()));
        }
        if notes {
            let note = |(about, words): &(About, String)| match about {
                About::Printed => format!("printed: {}", plain(words)),
                _ => plain(words),
            };
            let notes: Vec<String> = row.notes.iter().map(note).collect();
            let _ = write!(out, "| {} ", notes.join("<br>"));
        }
        out.push_str("|\n");
    }
    for line in &table.below {
        let _ = writeln!(out, "\n{}", plain(line));
    }
}

/// Text in which nothing is markup: no list item at its start, no link, mention, emoji or formula
/// within.
fn plain(text: &str) -> String {
    let text: String = text.chars().map(visible).collect();
    let text = text.trim_start();
    let mut out = String::with_capacity(text.len());
    let marker = list_marker(text);
    for (at, c) in text.char_indices() {
        let rest = &text[at + c.len_utf8()..];
        let is_last = rest.is_empty() || rest.starts_with(char::is_whitespace);
        match c {
            _ if Some(at) == marker => {
                out.push('\\');
                out.push(c);
            }
            '$' => out.push_str("&#36;"),
            ':' | '@' if !is_last => {
                let _ = write!(out, "&#{};", u32::from(c));
            }
            '.' if ends_with_www(&text[..at]) => out.push_str("&#46;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '&' => out.push_str("&amp;"),
            '\\' | '`' | '*' | '_' | '[' | ']' | '|' | '#' | '~' | '!' => {
                out.push('\\');
                out.push(c);
            }
            c => out.push(c),
        }
    }
    out
}

/// Returns where the character is that makes the text a list item or a rule.
fn list_marker(text: &str) -> Option<usize> {
    let at = text.find(|c: char| !c.is_ascii_digit())?;
    let c = text[at..].chars().next()?;
    let is_alone = text[at + c.len_utf8()..]
        .chars()
        .next()
        .is_none_or(|next| next.is_whitespace() || (c == '-' && next == '-'));
    let is_marker = match at {
        0 => matches!(c, '-' | '+'),
        _ => matches!(c, '.' | ')'),
    };
    (is_marker && is_alone).then_some(at)
}

fn ends_with_www(text: &str) -> bool {
    let mut last = text.bytes().rev().take(3);
    text.len() >= 3 && last.all(|byte| byte.eq_ignore_ascii_case(&b'w'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_text_begins_a_list_or_holds_a_link_and_ordinary_text_stays_as_it_is() {
        for (text, expected) in [
            (
                "- [x] see www.example.com",
                "\\- \\[x\\] see www&#46;example.com",
            ),
            ("+ a", "\\+ a"),
            ("1. a", "1\\. a"),
            ("  23) a", "23\\) a"),
            ("---", "\\---"),
            ("https://a.b", "https&#58;//a.b"),
            ("a@b.c :tada:", "a&#64;b.c &#58;tada:"),
            ("$x$", "&#36;x&#36;"),
            ("-3.5", "-3.5"),
            ("1.5 to 2.5", "1.5 to 2.5"),
            ("Xeon @ 2.5 GHz: 3 cells (2)", "Xeon @ 2.5 GHz: 3 cells (2)"),
        ] {
            assert_eq!(plain(text), expected);
        }
    }
}
