//! The processor time of a guest's loop, without the turns in which there was nothing to do.

use std::time::Duration;

use rustix::time::{clock_gettime, ClockId};
use tare_sim::Instant;

/// The longest time of a turn without work that was not interrupted.
const TURN_MAX: Duration = Duration::from_micros(20);

/// Returns the processor time of the calling thread. Reading it is a system call.
pub fn thread_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
}

/// The processor time of a loop that looks for work, of the thread that it was made on. A turn
/// costs no system call: the clock that all programs read measures those without work, which are
/// short, and the thread's clock is read only when [`BusyTime::busy`] is called.
#[derive(Debug)]
pub struct BusyTime {
    /// The thread's time when the loop began.
    start: Duration,
    /// The time of the turns without work.
    idle: Duration,
    turn_at: Instant,
    was_idle: bool,
    busy: Duration,
}

impl BusyTime {
    /// Begins to count, on this thread.
    pub fn start() -> BusyTime {
        BusyTime {
            start: thread_time(),
            idle: Duration::ZERO,
            turn_at: Instant::ZERO,
            was_idle: false,
            busy: Duration::ZERO,
        }
    }

    /// Begins a turn of the loop.
    #[inline]
    pub fn begin_turn(&mut self, now: Instant) {
        if std::mem::take(&mut self.was_idle) {
            let turn = now.since(self.turn_at);
            // The other ones were interrupted, and the time was another program's.
            if turn < TURN_MAX {
                self.idle += turn;
            }
        }
        self.turn_at = now;
    }

    /// Says that there was nothing to do in the turn, and that the thread did not sleep.
    #[inline]
    pub fn turn_was_idle(&mut self) {
        self.was_idle = true;
    }

    /// Returns the time of the turns without work up to the last that began.
    pub fn idle(&self) -> Duration {
        self.idle
    }

    /// Returns the thread's time without that of these turns; it never decreases. Reads the
    /// thread's clock.
    pub fn busy(&mut self) -> Duration {
        let spent = thread_time().saturating_sub(self.start);
        // A turn without work may be added after the clock was read in its midst.
        self.busy = self.busy.max(spent.saturating_sub(self.idle));
        self.busy
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_off_the_processor_is_neither_work_nor_a_turn_without() {
        const WORK: Duration = Duration::from_millis(5);
        let before = thread_time();
        let mut time = BusyTime::start();
        for is_idle in [false, true] {
            time.begin_turn(Instant::now());
            let until = thread_time() + WORK;
            while thread_time() < until {}
            std::thread::sleep(20 * WORK);
            if is_idle {
                time.turn_was_idle();
            }
        }
        time.begin_turn(Instant::now());
        let busy = time.busy();
        assert!(2 * WORK <= busy, "{busy:?}");
        assert!(busy <= thread_time() - before, "{busy:?}");
        assert_eq!(time.idle(), Duration::ZERO);
    }

    #[test]
    fn turns_without_work_are_taken_off_the_threads_time() {
        let before = thread_time();
        let mut time = BusyTime::start();
        while time.idle() < Duration::from_millis(10) {
            time.begin_turn(Instant::now());
            std::hint::spin_loop();
            time.turn_was_idle();
        }
        let (busy, spent) = (time.busy(), thread_time() - before);
        assert!(busy <= spent.saturating_sub(time.idle()), "{busy:?}");
        // It does not decrease when a turn is added that the clock was read in.
        time.idle += Duration::from_secs(3600);
        assert_eq!(time.busy(), busy);
    }
}
