//! The progress of a command: a bar on a terminal's standard error, once the work takes a while.

use std::collections::VecDeque;
use std::fmt;
use std::io::{self, IsTerminal as _};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use indicatif::style::ProgressTracker;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};
use tare_lab::unit::Unit;

/// The shortest work that has a bar: for less it would only flicker.
const BAR_AFTER: Duration = Duration::from_secs(2);
/// The time between two updates of the bar of a time.
const DRAW_EVERY: Duration = Duration::from_millis(200);
/// The time left follows from the rate over this time: long enough for the bursts of a disk's
/// cache, short enough to notice that the disk has become slow.
const RATE_OVER: Duration = Duration::from_secs(10);
/// Distance between the positions that the rate is taken from.
const SAMPLE_EVERY: Duration = Duration::from_millis(250);

/// A progress bar; hidden if standard error is no terminal.
#[derive(Clone)]
pub(super) struct Bar {
    bar: ProgressBar,
    since: Instant,
    is_terminal: bool,
    is_shown: Arc<AtomicBool>,
}

impl Bar {
    /// A bar of bytes; `total` is `None` if unknown.
    pub(super) fn of_bytes(total: Option<u64>) -> Bar {
        let template = match total {
            Some(_) => {
                "{msg}[{wide_bar:.cyan/blue}] {decimal_bytes} of {decimal_total_bytes}{pace}"
            }
            None => "{msg}{decimal_bytes}{pace}",
        };
        Bar::new(total, template, Pace::new())
    }

    /// A bar of work that takes a known time, or at most that; `None` if unknown.
    pub(super) fn of_time(total: Option<Duration>) -> Bar {
        let template = match total {
            Some(_) => "{msg}[{wide_bar:.cyan/blue}]{pace}",
            None => "{msg}{elapsed}",
        };
        let left = |state: &ProgressState, text: &mut dyn fmt::Write| {
            let left = state.len().unwrap_or(0).saturating_sub(state.pos());
            let left = Duration::from_millis(left).as_secs_f64();
            let _ = write!(text, " {} left", in_words(left));
        };
        Bar::new(total.map(millis), template, left)
    }

    fn new(total: Option<u64>, template: &str, pace: impl ProgressTracker + 'static) -> Bar {
        let bar = ProgressBar::with_draw_target(total, ProgressDrawTarget::hidden());
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style.progress_chars("━╸─").with_key("pace", pace));
        }
        Bar {
            bar,
            since: Instant::now(),
            is_terminal: io::stderr().is_terminal(),
            is_shown: Arc::default(),
        }
    }

    /// Moves to a position: bytes, or milliseconds of a time.
    pub(super) fn at(&self, position: u64) {
        self.bar.set_position(position);
        if self.is_terminal
            && self.since.elapsed() > BAR_AFTER
            && !self.is_shown.swap(true, Ordering::Relaxed)
        {
            self.bar
                .set_draw_target(ProgressDrawTarget::stderr_with_hz(10));
        }
    }

    /// Sets the text before the bar.
    pub(super) fn message(&self, text: &str) {
        self.bar.set_message(format!("{text} "));
    }

    /// Replaces the bar by a text, for a wait of unknown length.
    pub(super) fn waits_for(&self, what: &str) {
        if let Ok(style) = ProgressStyle::with_template("{decimal_bytes} {msg}") {
            self.bar.set_style(style);
        }
        self.bar.set_message(what.to_owned());
        self.bar.tick();
    }

    /// Does `work`, expected to take `length` from `from` on, while the bar of a time moves.
    pub(super) fn during<T>(
        &self,
        from: Duration,
        length: Duration,
        work: impl FnOnce() -> T,
    ) -> T {
        if !self.is_terminal {
            return work();
        }
        thread::scope(|scope| {
            let (working, done) = mpsc::channel::<()>();
            scope.spawn(move || {
                let began = Instant::now();
                while done.recv_timeout(DRAW_EVERY) == Err(RecvTimeoutError::Timeout) {
                    self.at(millis(from + began.elapsed().min(length)));
                }
            });
            let result = work();
            drop(working);
            result
        })
    }

    /// Removes the bar.
    pub(super) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// The recent rate, and the time left at it.
#[derive(Clone)]
struct Pace {
    /// Positions and when they were reached, oldest first.
    seen: VecDeque<(Instant, u64)>,
}

impl Pace {
    fn new() -> Pace {
        Pace {
            seen: VecDeque::from([(Instant::now(), 0)]),
        }
    }

    fn saw(&mut self, now: Instant, position: u64) {
        if self
            .seen
            .back()
            .is_some_and(|&(last, _)| now - last < SAMPLE_EVERY)
        {
            return;
        }
        self.seen.push_back((now, position));
        while self.seen.len() > 2 && now - self.seen[1].0 >= RATE_OVER {
            self.seen.pop_front();
        }
    }

    /// Positions per second; `None` while nothing moves.
    fn rate(&self, now: Instant, position: u64) -> Option<f64> {
        let &(from, first) = self.seen.front()?;
        let took = now.saturating_duration_since(from).as_secs_f64();
        (took > 0.0 && position > first).then(|| (position - first) as f64 / took)
    }

    fn seconds_left(&self, now: Instant, position: u64, total: u64) -> Option<f64> {
        Some(total.saturating_sub(position) as f64 / self.rate(now, position)?)
    }
}

impl ProgressTracker for Pace {
    fn clone_box(&self) -> Box<dyn ProgressTracker> {
        Box::new(self.clone())
    }

    fn tick(&mut self, state: &ProgressState, now: Instant) {
        self.saw(now, state.pos());
    }

    fn reset(&mut self, _state: &ProgressState, now: Instant) {
        self.seen = VecDeque::from([(now, 0)]);
    }

    fn write(&self, state: &ProgressState, text: &mut dyn fmt::Write) {
        let (now, position) = (Instant::now(), state.pos());
        let Some(rate) = self.rate(now, position) else {
            return;
        };
        let unit = Unit::MegabytesPerSecond;
        let _ = write!(text, ", {}", unit.show(rate / unit.scale()));
        let left = state
            .len()
            .and_then(|total| self.seconds_left(now, position, total));
        if let Some(left) = left {
            let _ = write!(text, ", {} left", in_words(left));
        }
    }
}

/// A time left, in at most two units, rounded up: unfinished work takes some time.
fn in_words(seconds: f64) -> String {
    let seconds = seconds.ceil() as u64;
    match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
        (0, 0, seconds) => format!("{seconds} s"),
        (0, minutes, seconds) => format!("{minutes} min {seconds:02} s"),
        (hours, minutes, _) if hours < 100 => format!("{hours} h {minutes:02} min"),
        (hours, ..) => format!("{} days", hours / 24),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Moves at `rates` (bytes per millisecond), one second each; the estimates of the time left
    /// at the end of each second, and the truth.
    fn estimates(rates: &[u64]) -> Vec<(f64, f64)> {
        let total = rates.iter().sum::<u64>() * 1000;
        let mut pace = Pace::new();
        let began = pace.seen[0].0;
        let mut position = 0;
        let mut all = Vec::new();
        for (second, rate) in rates.iter().enumerate() {
            for tick in 1..=1000 {
                position += rate;
                let now = began + Duration::from_millis(1000 * second as u64 + tick);
                pace.saw(now, position);
            }
            let now = began + Duration::from_secs(second as u64 + 1);
            let truth = (rates.len() - second - 1) as f64;
            all.push((pace.seconds_left(now, position, total).unwrap(), truth));
        }
        all
    }

    #[test]
    fn the_time_left_is_right_at_a_steady_rate() {
        for (estimate, truth) in estimates(&[200; 30]) {
            assert!((estimate - truth).abs() < 0.1, "{estimate} of {truth}");
        }
    }

    #[test]
    fn the_time_left_is_right_near_the_end_though_the_rate_has_fallen() {
        // The first half goes into the disk's cache.
        let rates = [vec![1000; 20], vec![100; 20]].concat();
        for (estimate, truth) in &estimates(&rates)[30..] {
            assert!((estimate - truth).abs() < 0.5, "{estimate} of {truth}");
        }
    }

    #[test]
    fn a_time_left_is_never_none_before_the_end() {
        let cases = [
            (0.0, "0 s"),
            (0.01, "1 s"),
            (59.0, "59 s"),
            (60.5, "1 min 01 s"),
            (3600.0, "1 h 00 min"),
            (1e6, "11 days"),
        ];
        for (seconds, words) in cases {
            assert_eq!(in_words(seconds), words);
        }
    }
}
