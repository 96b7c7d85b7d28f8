//! How far a run is, on standard error: a bar for a terminal, a line now and then for a log.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use tare_lab::plan::Trial;
use tare_lab::report::text::clean;
use tare_lab::runner::Observer;
use tare_lab::sample::{Outcome, TrialRecord};

use crate::terminal;

/// How often a log hears of a run.
const LOG_EVERY: Duration = Duration::from_secs(15);

/// A run's bar.
pub(crate) struct Bar {
    bar: ProgressBar,
    logged: Option<Instant>,
    failed: usize,
}

impl Bar {
    pub(crate) fn new() -> Bar {
        let terminal = std::io::stderr().is_terminal();
        let bar = ProgressBar::with_draw_target(
            Some(0),
            if terminal {
                ProgressDrawTarget::stderr_with_hz(10)
            } else {
                ProgressDrawTarget::hidden()
            },
        );
        if let Ok(style) = ProgressStyle::with_template(
            "{elapsed_precise} [{wide_bar:.cyan/blue}] {pos}/{len} trials, {eta} left  {msg:30!}",
        ) {
            bar.set_style(style.progress_chars("━╸─"));
        }
        let hidden = bar.is_hidden();
        Bar {
            bar,
            // A terminal that cannot draw (TERM=dumb) is a log too.
            logged: hidden.then(Instant::now),
            failed: 0,
        }
    }

    pub(crate) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

impl Observer for Bar {
    fn begins(&mut self, done: usize, total: usize, experiment: &str, trial: &Trial) {
        self.bar.set_length(total as u64);
        self.bar.set_position(done as u64);
        self.bar
            .set_message(clean(&format!("{experiment} {}", trial.at)));
        if self.logged.is_some_and(|last| last.elapsed() > LOG_EVERY) {
            self.logged = Some(Instant::now());
            terminal::say(&format!(
                "tare: {done} of {total} trials done, {} failed",
                self.failed
            ));
        }
    }

    fn progress(&mut self, _done: f64) {
        self.bar.tick();
    }

    fn ended(&mut self, record: &TrialRecord) {
        if let Outcome::Failed { reason } = &record.outcome {
            self.failed += 1;
            // The first few say what is wrong; a flood of them says nothing more.
            if self.failed <= 5 {
                let what = format!("{} {}: {reason}", record.experiment, record.at);
                self.bar
                    .suspend(|| terminal::say(&format!("tare: trial failed: {what}")));
            }
        }
    }
}
