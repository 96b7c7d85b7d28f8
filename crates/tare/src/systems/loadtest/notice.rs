//! The progress of a test on standard error: on a terminal a bar, once it takes a while, in a log a
//! line now and then.

use std::cell::RefCell;
use std::io::IsTerminal as _;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use signal_hook::consts::{SIGINT, SIGTERM};
use tare_loadtest::Pulse;

use crate::terminal;

/// A bar for less than this would only flicker.
const BAR_AFTER: Duration = Duration::from_secs(2);
/// The time between two updates of the bar: short enough that it moves, long enough not to slow the
/// generator down.
const DRAW_EVERY: Duration = Duration::from_millis(200);
/// The time between two lines in a log.
const LOG_EVERY: Duration = Duration::from_secs(15);
/// Positions of the bar within a trial.
const TICKS: u64 = 100;

/// The progress that is shown.
#[derive(Clone)]
pub(super) struct Notice(Rc<RefCell<State>>);

struct State {
    bar: Option<ProgressBar>,
    /// A terminal that can draw.
    draws: bool,
    /// No output until the end.
    is_silent: bool,
    began: Instant,
    drawn: Instant,
    logged: Instant,
    trials: u64,
    expected: u64,
}

impl Notice {
    /// Progress of about `trials` trials. With `is_silent` they are not reported one by one.
    pub(super) fn new(expected: u64, is_silent: bool) -> Notice {
        let now = Instant::now();
        Notice(Rc::new(RefCell::new(State {
            bar: None,
            draws: std::io::stderr().is_terminal(),
            is_silent,
            began: now,
            drawn: now,
            logged: now,
            trials: 0,
            expected,
        })))
    }

    /// Updates the progress during a trial; returns false when a signal has come.
    pub(super) fn watch(&self) -> anyhow::Result<impl FnMut(&Pulse) -> bool + 'static> {
        let stopped = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM] {
            // A second signal ends the program as it would without this.
            signal_hook::flag::register_conditional_default(signal, Arc::clone(&stopped))
                .context("signals")?;
            signal_hook::flag::register(signal, Arc::clone(&stopped)).context("signals")?;
        }
        let state = Rc::clone(&self.0);
        Ok(move |pulse: &Pulse| {
            state.borrow_mut().pulse(pulse);
            !stopped.load(Ordering::Relaxed)
        })
    }

    /// A trial has ended.
    pub(super) fn trial_done(&self) {
        self.0.borrow_mut().trials += 1;
    }

    /// Prints to standard output, around the bar.
    pub(super) fn print(&self, text: &str) -> std::io::Result<()> {
        match &self.0.borrow().bar {
            Some(bar) => bar.suspend(|| terminal::print(text)),
            None => terminal::print(text),
        }
    }

    /// Removes the bar.
    pub(super) fn finish(&self) {
        if let Some(bar) = self.0.borrow_mut().bar.take() {
            bar.finish_and_clear();
        }
    }
}

impl State {
    fn pulse(&mut self, pulse: &Pulse) {
        let now = Instant::now();
        if self.draws {
            if now - self.began < BAR_AFTER || now - self.drawn < DRAW_EVERY {
                return;
            }
            self.drawn = now;
            let done = self.trials * TICKS + (pulse.done * TICKS as f64) as u64;
            let expected = self.expected.max(self.trials + 1) * TICKS;
            let what = if pulse.warm_up { "warming up, " } else { "" };
            let message = format!("{what}{:.6} Gb/s", pulse.load.rate.gbps());
            let bar = self.bar.get_or_insert_with(bar);
            bar.set_length(expected);
            bar.set_position(done.min(expected));
            bar.set_message(message);
        } else if self.is_silent && now - self.logged > LOG_EVERY {
            self.logged = now;
            terminal::say(&format!(
                "tare: {} of about {} trials done",
                self.trials, self.expected
            ));
        }
    }
}

fn bar() -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr_with_hz(10));
    if let Ok(style) =
        ProgressStyle::with_template("{elapsed_precise} [{wide_bar:.cyan/blue}] {percent}%, {msg}")
    {
        bar.set_style(style.progress_chars("━╸─"));
    }
    bar
}
