//! Histograms of a trial's parts in time.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tare_histogram::Histogram;

/// A receiver of intervals: when one began, from the start of the measured part, its length, and
/// the latencies of the responses that arrived in it.
type Sink = dyn FnMut(Duration, Duration, &Histogram) -> io::Result<()> + Send;

/// Hands on the latencies of all threads, interval by interval, while a trial runs.
pub struct Intervals {
    pub(crate) length: Duration,
    state: Mutex<State>,
}

struct State {
    sink: Box<Sink>,
    error: Option<io::Error>,
    /// Intervals that not all threads have passed, and how many have not.
    open: VecDeque<(Histogram, usize)>,
    /// Intervals that were handed on.
    done: u32,
}

impl Intervals {
    /// Intervals of `length`, which is not zero. The last one may be shorter.
    pub fn new(
        length: Duration,
        sink: impl FnMut(Duration, Duration, &Histogram) -> io::Result<()> + Send + 'static,
    ) -> Intervals {
        let state = State {
            sink: Box::new(sink),
            error: None,
            open: VecDeque::new(),
            done: 0,
        };
        Intervals {
            length,
            state: Mutex::new(state),
        }
    }

    /// Adds what one thread of `threads` has recorded in interval `n`. Each thread does so for each
    /// interval in turn; the last of them completes all but the last interval.
    pub(crate) fn add(&self, n: u32, latencies: &Histogram, threads: usize, is_last: bool) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let place = (n - state.done) as usize;
        if place == state.open.len() {
            state.open.push_back((Histogram::new(), threads));
        }
        let (sum, waited_for) = &mut state.open[place];
        sum.merge(latencies);
        *waited_for -= usize::from(!is_last);
        while state.open.front().is_some_and(|front| front.1 == 0) {
            state.hand_on(self.length, self.length);
        }
    }

    /// Hands on what is left at the end of a trial of this duration.
    pub(crate) fn finish(&self, duration: Duration) -> io::Result<()> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        while !state.open.is_empty() {
            let left = duration.saturating_sub(self.length * state.done);
            state.hand_on(self.length, left.min(self.length));
        }
        state.error.take().map_or(Ok(()), Err)
    }
}

impl State {
    fn hand_on(&mut self, spacing: Duration, length: Duration) {
        if let Some((sum, _)) = self.open.pop_front() {
            let start = spacing * self.done;
            self.done += 1;
            if self.error.is_none() {
                self.error = (self.sink)(start, length, &sum).err();
            }
        }
    }
}

impl fmt::Debug for Intervals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Intervals { length, .. } = self;
        f.debug_struct("Intervals")
            .field("length", length)
            .finish_non_exhaustive()
    }
}
