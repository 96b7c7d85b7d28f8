//! Ports at the ends of simulated lines.

use std::cell::RefCell;
use std::fmt;
use std::io;
use std::rc::Rc;

use crate::{Burst, Counters, Frame, Port};
use tare_sim::{Instant, Line, LineConfig, LineCounters};

type Shared = Rc<RefCell<Line<Frame>>>;

/// One end of a cable made of two lines; made by [`joined`]. Stays on one thread, as its frames do.
///
/// It takes all frames that are sent; those that find the line's queue full are counted as
/// `tx_dropped`.
pub struct LinePort<C> {
    rx: Shared,
    tx: Shared,
    clock: C,
    counters: Counters,
}

/// Two ports joined by a line in each direction: `out` carries what the first sends, `back` what
/// the second sends. `clock` says what time it is: a number that a simulation sets, or
/// [`Instant::now`].
pub fn joined<C: Fn() -> Instant + Clone>(
    out: &LineConfig,
    back: &LineConfig,
    clock: C,
) -> (LinePort<C>, LinePort<C>) {
    let [out, back] = [out, back].map(|config| Rc::new(RefCell::new(Line::new(config))));
    let end = |rx: &Shared, tx: &Shared| LinePort {
        rx: Rc::clone(rx),
        tx: Rc::clone(tx),
        clock: clock.clone(),
        counters: Counters::default(),
    };
    (end(&back, &out), end(&out, &back))
}

impl<C> LinePort<C> {
    /// The time when the next frame can be received, if the other end sends no more.
    pub fn next_arrival(&self) -> Option<Instant> {
        self.rx.borrow().next_arrival()
    }

    /// The counters of the line that this end sends on.
    pub fn line(&self) -> LineCounters {
        self.tx.borrow().counters()
    }
}

impl<C: Fn() -> Instant> Port for LinePort<C> {
    fn receive(&mut self, burst: &mut Burst, max: usize) -> io::Result<usize> {
        let (mut line, now) = (self.rx.borrow_mut(), (self.clock)());
        let mut n = 0;
        while n < max {
            let Some((_, frame)) = line.pop(now) else {
                break;
            };
            self.counters.rx_bytes += frame.len() as u64;
            burst.push(frame);
            n += 1;
        }
        self.counters.rx_packets += n as u64;
        Ok(n)
    }

    fn send(&mut self, burst: &mut Burst) -> io::Result<usize> {
        let (mut line, now) = (self.tx.borrow_mut(), (self.clock)());
        let n = burst.len();
        for frame in burst.drain(..) {
            self.counters.tx_bytes += frame.len() as u64;
            self.counters.tx_dropped += u64::from(!line.offer(now, frame));
        }
        self.counters.tx_packets += n as u64;
        Ok(n)
    }

    fn counters(&self) -> Counters {
        self.counters
    }
}

impl<C> fmt::Debug for LinePort<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LinePort({:?})", self.counters)
    }
}
