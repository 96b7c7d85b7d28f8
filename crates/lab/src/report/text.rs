//! The run in a terminal: the tables of claims, targets and cells, at most as wide as it is.

use textwrap::core::display_width;
use textwrap::{Options, WordSeparator, WordSplitter};

use super::table::{self, About, Column, Kind, Row, Table};
use super::words::{symbol, words, DASH};
use crate::experiment::Standing;
use crate::result::{ExperimentResult, RunResult, Verdict};
use crate::text::clip;
pub use crate::text::{clean, json_for_terminals};

/// A text from outside is cut here: a longer one would push the rest of the table off the screen.
const LONGEST: usize = 600;

/// The narrowest table; a terminal that is narrower breaks its lines itself.
const NARROWEST: usize = 40;

/// A column of words that would be narrower than this makes the table a list.
const WORDS: usize = 18;

/// A column of words beside figures gets no wider than this while others need the room.
const ASIDE: usize = 26;

/// Between two columns.
const GAP: usize = 2;

/// The claims and the targets of the run in at most `width` columns, verdicts in colour where
/// `colour`, most urgent first; the last lines are the counts.
pub fn claims(result: &RunResult, width: usize, colour: bool) -> String {
    let mut out = Lines::new(width, colour);
    let mut summaries = Vec::new();
    for standing in [Standing::Claim, Standing::Target] {
        if let Some(summary) = table::summary(result, standing) {
            out.table(&table::claims(result, standing));
            summaries.push(summary);
        }
    }
    let failed = table::failed_trials(result);
    if !failed.rows.is_empty() {
        out.table(&failed);
    }
    let rates = [table::error_rate(result), table::independence(result)];
    for words in rates.iter().flatten() {
        out.line("", "2", words);
    }
    if !result.complete {
        out.line(
            "",
            "",
            "Incomplete: the run was stopped before its last trial.",
        );
    }
    if summaries.is_empty() {
        summaries.push("No claim was judged".to_owned());
    }
    summaries.extend(table::failed_summary(result));
    for summary in summaries {
        out.line("", "", &summary);
    }
    out.text
}

/// The cells of an experiment and its noise floor in at most `width` columns.
pub fn cells(experiment: &ExperimentResult, width: usize) -> String {
    let mut out = Lines::new(width, false);
    for metric in table::metrics(experiment) {
        out.table(&table::cells(experiment, metric));
    }
    if !experiment.noise.is_empty() {
        out.table(&table::noise(experiment));
    }
    out.text
}

/// Lines of bounded width.
struct Lines {
    text: String,
    width: usize,
    colour: bool,
}

impl Lines {
    fn new(width: usize, colour: bool) -> Lines {
        Lines {
            text: String::new(),
            width: width.max(NARROWEST),
            colour,
        }
    }

    /// `words` in as many lines as they need, each after `indent` and in the style `code`.
    fn line(&mut self, indent: &str, code: &str, words: &str) {
        let words = clean(&clip(words, LONGEST));
        for line in wrap(&words, self.width - display_width(indent)) {
            self.text += indent;
            self.text += &self.styled(code, &line.replace('\u{a0}', " "));
            self.text.push('\n');
        }
    }

    fn styled(&self, code: &str, text: &str) -> String {
        match self.colour && !code.is_empty() {
            true => format!("\u{1b}[{code}m{text}\u{1b}[0m"),
            false => text.to_owned(),
        }
    }

    /// The table with an empty line after it. Where the figures leave the words too little room,
    /// a list: one paragraph per row.
    fn table(&mut self, table: &Table) {
        self.line("", "1", &table.title);
        let widths = widths(table, self.width);
        if let Some(widths) = &widths {
            let heads: Vec<String> = table.columns.iter().map(|c| c.head.clone()).collect();
            self.row(&table.columns, widths, &heads, "2");
        }
        let mut group = None;
        for row in &table.rows {
            if row.verdict != group {
                group = row.verdict;
                self.group(table, row.verdict);
            }
            let cells = row
                .cells
                .iter()
                .map(|cell| clean(&clip(&cell.line(), LONGEST)));
            let cells: Vec<String> = cells.collect();
            match &widths {
                Some(widths) => self.row(&table.columns, widths, &cells, ""),
                None => self.paragraph(&table.columns, &cells),
            }
            self.notes(row);
        }
        for words in &table.below {
            self.line("  ", "2", words);
        }
        self.text.push('\n');
    }

    fn group(&mut self, table: &Table, verdict: Option<Verdict>) {
        let Some(verdict) = verdict else { return };
        let same = table.rows.iter().filter(|row| row.verdict == Some(verdict));
        let head = format!("{} {}: {}", symbol(verdict), words(verdict), same.count());
        self.line("", code(verdict), &head);
    }

    fn row(&mut self, columns: &[Column], widths: &[usize], cells: &[String], code: &str) {
        let broken: Vec<Vec<String>> = widths
            .iter()
            .zip(cells)
            .map(|(&width, cell)| wrap(cell, width))
            .collect();
        let height = broken.iter().map(Vec::len).max().unwrap_or(0);
        for number in 0..height {
            let mut line = String::new();
            for ((lines, &width), column) in broken.iter().zip(widths).zip(columns) {
                let words = lines.get(number).map_or("", String::as_str);
                let room = " ".repeat(width.saturating_sub(display_width(words)));
                line += &" ".repeat(GAP);
                match column.kind {
                    Kind::Words => line += &format!("{words}{room}"),
                    Kind::Figure => line += &format!("{room}{words}"),
                }
            }
            self.text += &self.styled(code, line.trim_end());
            self.text.push('\n');
        }
    }

    fn paragraph(&mut self, columns: &[Column], cells: &[String]) {
        if let Some(first) = cells.first() {
            self.line("  ", "", first);
        }
        let figures: Vec<String> = columns
            .iter()
            .zip(cells)
            .skip(1)
            .filter(|(_, cell)| *cell != DASH)
            .map(|(column, cell)| match column.kind {
                Kind::Words => format!("{} {cell}", column.head.to_lowercase()),
                // A figure is never broken.
                Kind::Figure => {
                    format!("{} {cell}", column.head.to_lowercase()).replace(' ', "\u{a0}")
                }
            })
            .collect();
        self.line("    ", "", &figures.join(" · "));
    }

    fn notes(&mut self, row: &Row) {
        for (about, words) in &row.notes {
            let code = match about {
                About::Source | About::Printed => "2",
                About::Reason | About::Failure => "",
            };
            let indent = if *about == About::Printed {
                "    | "
            } else {
                "    "
            };
            self.line(indent, code, words);
        }
    }
}

/// The columns' widths; `None` if the words would have too little room.
fn widths(table: &Table, width: usize) -> Option<Vec<usize>> {
    let natural = |(place, column): (usize, &Column)| {
        let cells = table.rows.iter().filter_map(|row| row.cells.get(place));
        let cells = cells.map(|cell| display_width(&clean(&clip(&cell.line(), LONGEST))));
        cells.max().unwrap_or(0).max(display_width(&column.head))
    };
    let mut widths: Vec<usize> = table.columns.iter().enumerate().map(natural).collect();
    let words: Vec<usize> = (0..widths.len())
        .filter(|&place| table.columns[place].kind == Kind::Words)
        .collect();
    let over = |widths: &[usize]| {
        let whole = widths.iter().map(|width| width + GAP).sum::<usize>();
        whole.saturating_sub(width)
    };
    // The words that stand aside give way first, then all alike.
    for &place in words.iter().skip(1) {
        let over = over(&widths);
        widths[place] = widths[place].min((widths[place] - over.min(widths[place])).max(ASIDE));
    }
    while over(&widths) > 0 {
        let widest = words.iter().copied().max_by_key(|&place| widths[place])?;
        if widths[widest] <= WORDS {
            return None;
        }
        widths[widest] -= 1;
    }
    Some(widths)
}

/// Lines of at most `width` columns, broken at spaces where there are any.
fn wrap(text: &str, width: usize) -> Vec<String> {
    let options = Options::new(width)
        .word_separator(WordSeparator::AsciiSpace)
        .word_splitter(WordSplitter::NoHyphenation);
    let lines = textwrap::wrap(text, options);
    lines.into_iter().map(|line| line.into_owned()).collect()
}

/// Returns the parameters of the control sequence (SGR) that sets a verdict's colour. Published
/// claims and targets have colours of their own; yellow is used for inconclusive alone.
pub fn code(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Reproduced => "32",
        Verdict::NotReproduced => "1;31",
        Verdict::Held => "36",
        Verdict::Missed => "1;35",
        Verdict::Inconclusive => "33",
        Verdict::NotTestable => "2",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrapped_lines_fit_and_lose_nothing() {
        let text = format!("two words 日本語 {} 日本語", "x".repeat(95));
        for width in 2..40 {
            let lines = wrap(&text, width);
            assert!(
                lines.iter().all(|line| display_width(line) <= width),
                "{lines:?}"
            );
            let joined: String = lines.concat().split_whitespace().collect();
            let whole: String = text.split_whitespace().collect();
            assert_eq!(joined, whole);
        }
        assert_eq!(wrap("", 20), [""]);
    }
}
