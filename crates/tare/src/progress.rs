//! The progress of a run on standard error: on a terminal a table of the claims that is redrawn, in
//! a log lines.

use std::collections::HashSet;
use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::time::{Duration, Instant};

use console::{measure_text_width, pad_str, truncate_str, Alignment};
use tare_lab::plan::{Plan, Trial};
use tare_lab::report::text::{clean, code};
use tare_lab::result::{ClaimResult, ExperimentResult, Verdict};
use tare_lab::runner::Observer;
use tare_lab::sample::{Outcome, TrialRecord};
use tare_lab::schedule::Schedule;
use tare_lab::unit::significant;

use crate::{forecast, terminal};

/// The time between two lines in a log while nothing is decided.
const LOG_EVERY: Duration = Duration::from_secs(15);

/// The time between two redraws of the line below the table.
const DRAW_EVERY: Duration = Duration::from_millis(100);

/// The number of failed trials that are reported one by one: the first few show what is wrong, more
/// of them would only fill the screen.
const FAILURES_TOLD: usize = 5;

/// Shows the progress of a run.
pub(crate) struct Watch<'a> {
    /// Makes the name of a trial, and the reason for which it failed, safe to show.
    in_words: &'a dyn Fn(&str) -> String,
    terminal: bool,
    colour: bool,
    /// The rows of the table, in the order of the plan.
    claims: Vec<Row>,
    /// Claims whose verdict was reported.
    told: HashSet<String>,
    /// The text of the bottom line about the running trial.
    trial: String,
    round: u32,
    open: usize,
    experiments: usize,
    failed: usize,
    /// The run's time when this part of it began, and the moment at which it did.
    before: Duration,
    began: Instant,
    expected: Option<Duration>,
    drawn: Instant,
    /// The widths of the lines on the screen.
    on_screen: Vec<usize>,
}

/// The content of a row of the table.
#[derive(Clone)]
struct Row {
    id: String,
    verdict: Verdict,
    figure: String,
    rounds: usize,
    /// True if more rounds come.
    open: bool,
}

impl<'a> Watch<'a> {
    /// Prints what will run and how long that takes. Texts about trials are shown as `in_words`
    /// returns them, which must be without control characters.
    pub(crate) fn new(
        plan: &Plan,
        expected: Option<Duration>,
        in_words: &'a dyn Fn(&str) -> String,
    ) -> Watch<'a> {
        let claims = plan.experiments.iter().map(|e| e.claims.len()).sum();
        let mut head = format!(
            "tare: {} and {}",
            counted(plan.experiments.len(), "experiment"),
            counted(claims, "claim or target")
        );
        match (expected, plan.budget()) {
            (Some(time), Some(budget)) if time >= budget => {
                let _ = write!(head, ", at most {}", forecast::budget_in_words(budget));
            }
            (Some(time), _) => {
                let _ = write!(head, ", about {}", forecast::in_words(time));
            }
            (None, _) => {}
        }
        terminal::say(&head);
        let now = Instant::now();
        Watch {
            in_words,
            terminal: terminal::is_drawable(),
            colour: terminal::colour_of(&io::stderr()),
            claims: Vec::new(),
            told: HashSet::new(),
            trial: String::new(),
            round: 0,
            open: plan.experiments.len(),
            experiments: plan.experiments.len(),
            failed: 0,
            before: Duration::ZERO,
            began: now,
            expected,
            drawn: now,
            on_screen: Vec::new(),
        }
    }

    /// Clears the table: the result of the run follows.
    pub(crate) fn finish(&mut self) {
        self.replace(&[]);
    }

    fn elapsed(&self) -> Duration {
        self.before.saturating_add(self.began.elapsed())
    }

    /// Prints a line, above the table where there is one.
    fn say(&mut self, line: &str) {
        if self.terminal {
            self.replace(&[]);
        }
        terminal::say(line);
        self.draw();
    }

    fn draw(&mut self) {
        if !self.terminal {
            return;
        }
        let (width, height) = terminal::size_of(&io::stderr());
        let bottom = self.bottom(width);
        let mut lines = table(&self.claims, width, height.saturating_sub(2), self.colour);
        lines.push(bottom);
        self.replace(&lines);
        self.drawn = Instant::now();
    }

    /// Draws `lines` over those that were drawn last: in one write, each line over its predecessor,
    /// so that nothing flickers.
    fn replace(&mut self, lines: &[String]) {
        let mut out = String::new();
        let (width, _) = terminal::size_of(&io::stderr());
        // In a terminal that was made narrower meanwhile, a line takes several.
        let rows: usize = self
            .on_screen
            .iter()
            .map(|w| w.div_ceil(width).max(1))
            .sum();
        if rows > 0 {
            let _ = write!(out, "\x1b[{rows}A\r");
        }
        for line in lines {
            let _ = writeln!(out, "{line}\x1b[K");
        }
        if rows > 0 {
            out.push_str("\x1b[J");
        }
        let _ = io::stderr().write_all(out.as_bytes());
        self.on_screen = lines.iter().map(|line| measure_text_width(line)).collect();
    }

    /// The line below the table: time, rounds, what runs.
    fn bottom(&self, width: usize) -> String {
        let elapsed = self.elapsed();
        let mut line = format!("  {}", clock(elapsed));
        if let Some(expected) = self.expected {
            let _ = write!(line, " of about {}", clock(expected));
            const BAR: usize = 16;
            if width >= 80 {
                let part = elapsed.as_secs_f64() / expected.as_secs_f64().max(1.0);
                let full = ((part * BAR as f64) as usize).min(BAR);
                let _ = write!(line, "  {}{}", "━".repeat(full), "─".repeat(BAR - full));
            }
        }
        let _ = write!(line, "  round {}", self.round + 1);
        if self.experiments > 1 {
            let _ = write!(line, ", {} of {} open", self.open, self.experiments);
        }
        if self.failed > 0 {
            let _ = write!(line, ", {} failed", counted(self.failed, "trial"));
        }
        let _ = write!(line, "  {}", self.trial);
        truncate_str(&line, width - 1, "…").into_owned()
    }
}

impl Observer for Watch<'_> {
    fn begins(&mut self, experiment: &str, trial: &Trial) {
        self.trial = (self.in_words)(&format!("{experiment} {}", trial.at));
        if self.terminal {
            if self.drawn.elapsed() > DRAW_EVERY {
                self.draw();
            }
        } else if self.drawn.elapsed() > LOG_EVERY {
            self.drawn = Instant::now();
            terminal::say(&format!(
                "tare: {}: round {}, {} of {} open, {} failed",
                clock(self.elapsed()),
                self.round + 1,
                self.open,
                counted(self.experiments, "experiment"),
                counted(self.failed, "trial")
            ));
        }
    }

    fn progress(&mut self, _done: f64) {
        if self.terminal && self.drawn.elapsed() > DRAW_EVERY {
            self.draw();
        }
    }

    fn ended(&mut self, record: &TrialRecord) {
        if let Outcome::Failed { reason } = &record.outcome {
            self.failed += 1;
            if self.failed <= FAILURES_TOLD {
                let mut what = format!(
                    "tare: trial failed: {} {}: {reason}",
                    record.experiment, record.at
                );
                if let Some(last) = record.last_lines.last() {
                    let _ = write!(what, ": {last}");
                }
                self.say(&(self.in_words)(&what));
            }
        }
    }

    fn judged(&mut self, results: &[ExperimentResult], next: &Schedule, elapsed: Duration) {
        (self.before, self.began) = (elapsed, Instant::now());
        self.round = next.round;
        self.open = next.open.iter().filter(|open| **open).count();
        self.claims.clear();
        for (result, open) in results.iter().zip(&next.open) {
            let all = result.claims.iter().chain(&result.targets);
            self.claims.extend(all.map(|claim| row(claim, *open)));
        }
        let (_, height) = terminal::size_of(&io::stderr());
        if !self.terminal || self.claims.len() + 2 > height {
            self.tell_decided();
        }
        self.draw();
    }
}

impl Watch<'_> {
    /// Prints each verdict once, one per line, where there is no table that holds them all.
    fn tell_decided(&mut self) {
        for row in self.claims.clone() {
            let decided = row.verdict != Verdict::Inconclusive || !row.open;
            if !decided || !self.told.insert(row.id.clone()) {
                continue;
            }
            let mut line = format!(
                "tare: {}: {} {}",
                clock(self.elapsed()),
                words(&row),
                row.id
            );
            if !row.figure.is_empty() {
                let _ = write!(line, ": {}, {}", row.figure, counted(row.rounds, "round"));
            }
            self.say(&line);
        }
        if self.terminal {
            // They were printed above.
            let told = &self.told;
            self.claims.retain(|row| !told.contains(&row.id));
        }
    }
}

fn row(claim: &ClaimResult, open: bool) -> Row {
    let figure = match (claim.measured, claim.ci95) {
        (Some(value), Some(ends)) => {
            let per = claim.unit.short(&[value]).per;
            let [low, high] = ends.map(|end| significant(end / per));
            format!("{} [{low}, {high}]", claim.unit.show(value))
        }
        (Some(value), None) => claim.unit.show(value),
        (None, _) => String::new(),
    };
    Row {
        id: clean(&claim.id),
        verdict: claim.verdict,
        figure,
        rounds: claim.n,
        open,
    }
}

/// The claims with the state of each: at most `height` lines of at most `width - 1` columns.
fn table(rows: &[Row], width: usize, height: usize, colour: bool) -> Vec<String> {
    const ROUNDS: usize = 10;
    let width = width - 1;
    let verdict = if width < 80 { 2 } else { 19 };
    let figure = (width / 3).clamp(18, 40);
    let ids = rows.iter().map(|row| measure_text_width(&row.id)).max();
    let id = ids.unwrap_or(0).min(width - verdict - figure - ROUNDS - 5);
    let mut lines = Vec::new();
    let shown = if rows.len() > height {
        height.saturating_sub(1)
    } else {
        rows.len()
    };
    for row in &rows[..shown] {
        let words = if verdict > 2 {
            words(row)
        } else {
            symbol(row).to_owned()
        };
        let words = pad_str(&words, verdict, Alignment::Left, Some("…"));
        let words = match colour_of(row).filter(|_| colour) {
            Some(code) => format!("\x1b[{code}m{words}\x1b[0m"),
            None => words.into_owned(),
        };
        let rounds = match row.rounds {
            0 => String::new(),
            n => counted(n, "round"),
        };
        let line = format!(
            "  {words} {} {} {}",
            pad_str(&row.id, id, Alignment::Left, Some("…")),
            pad_str(&row.figure, figure, Alignment::Right, Some("…")),
            pad_str(&rounds, ROUNDS, Alignment::Right, None),
        );
        lines.push(line);
    }
    if shown < rows.len() {
        let more = format!("  … and {} more", rows.len() - shown);
        lines.push(truncate_str(&more, width, "…").into_owned());
    }
    lines
}

fn symbol(row: &Row) -> &'static str {
    match row.verdict {
        Verdict::Reproduced | Verdict::Held => "✓",
        Verdict::NotReproduced | Verdict::Missed => "✗",
        Verdict::NotTestable => "–",
        Verdict::Inconclusive if row.open => "…",
        Verdict::Inconclusive => "?",
    }
}

fn words(row: &Row) -> String {
    let words = match row.verdict {
        Verdict::Reproduced => "reproduced",
        Verdict::NotReproduced => "not reproduced",
        Verdict::Held => "held",
        Verdict::Missed => "missed",
        Verdict::NotTestable => "not testable here",
        Verdict::Inconclusive if row.open => "",
        Verdict::Inconclusive => "inconclusive",
    };
    format!("{} {words}", symbol(row)).trim_end().to_owned()
}

/// The colours of the report that follows; none for what has no verdict yet.
fn colour_of(row: &Row) -> Option<&'static str> {
    let open = row.verdict == Verdict::Inconclusive && row.open;
    (!open).then(|| code(row.verdict))
}

/// `0:07`, `12:34`.
fn clock(time: Duration) -> String {
    let seconds = time.as_secs();
    format!("{}:{:02}", seconds / 60, seconds % 60)
}

fn counted(n: usize, thing: &str) -> String {
    match (n, thing) {
        (1, _) => format!("1 {thing}"),
        (_, "claim or target") => format!("{n} claims and targets"),
        _ => format!("{n} {thing}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(n: usize) -> Vec<Row> {
        let verdicts = [Verdict::Inconclusive, Verdict::NotReproduced, Verdict::Held];
        (0..n)
            .map(|i| Row {
                id: format!("suite/experiment/claim-{i}{}", "-long".repeat(i % 9)),
                verdict: verdicts[i % 3],
                figure: "123.4 MiB/s [120.1, 129.9]".into(),
                rounds: i,
                open: true,
            })
            .collect()
    }

    #[test]
    fn the_table_fits_every_width_and_height() {
        for width in 40..=220 {
            for (n, height) in [(0, 5), (5, 20), (40, 20), (40, 0)] {
                for colour in [false, true] {
                    let lines = table(&rows(n), width, height, colour);
                    assert!(lines.len() <= height.max(1), "{lines:?}");
                    for line in lines {
                        assert!(measure_text_width(&line) < width, "{width}: {line}");
                    }
                }
            }
        }
    }

    #[test]
    fn claims_and_targets_have_the_colours_of_the_report_in_the_live_table() {
        let coloured = |verdict, open| {
            let mut row = rows(1).remove(0);
            (row.verdict, row.open) = (verdict, open);
            table(&[row], 120, 5, true).remove(0)
        };
        let verdicts = [
            Verdict::Reproduced,
            Verdict::NotReproduced,
            Verdict::Held,
            Verdict::Missed,
            Verdict::NotTestable,
            Verdict::Inconclusive,
        ];
        let mut seen = HashSet::new();
        for verdict in verdicts {
            let line = coloured(verdict, false);
            let start = format!("\x1b[{}m", code(verdict));
            assert!(line.contains(&start), "{line:?}");
            assert!(seen.insert(start), "{verdict} has the colour of another");
        }
        assert!(!coloured(Verdict::Inconclusive, true).contains('\x1b'));
    }

    #[test]
    fn a_figure_and_its_interval_have_one_unit() {
        let claim = serde_json::json!({
            "id": "a/b/c", "text": "", "source": "", "criterion": "", "metric": "rate",
            "threshold": { "at_least": 1.0, "at_most": null }, "unit": "MB/s", "published": null,
            "measured": 0.09076, "ci95": [0.08963, 0.09197], "p": null, "p_holm": null, "n": 12,
            "failures": [], "decided_after": null, "open": true, "verdict": "inconclusive",
            "reason": null,
        });
        let claim: ClaimResult = serde_json::from_value(claim).unwrap();
        assert_eq!(row(&claim, true).figure, "90.76 kB/s [89.63, 91.97]");
    }

    #[test]
    fn what_is_open_has_no_verdict_yet() {
        let mut row = rows(1).remove(0);
        assert_eq!(words(&row), "…");
        row.open = false;
        assert_eq!(words(&row), "? inconclusive");
    }
}
