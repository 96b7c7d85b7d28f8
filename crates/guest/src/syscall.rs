//! The system calls of UnixBench's test "System Call Overhead", which are the same on a host and in
//! its guests.

use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::fs::Mode;
use serde::{Deserialize, Serialize};

/// Loops between two looks at the clock: a few hundred microseconds where a call takes longest.
const LOOPS: u64 = 256;

/// The score of the reference machine, a SPARCstation 20-61, whose index is 10: loops per second.
pub const REFERENCE: f64 = 15_000.0;

/// Returns UnixBench's index of a rate of loops per second.
pub fn index(rate: f64) -> f64 {
    rate / REFERENCE * 10.0
}

/// Returns UnixBench's score of several repeats: the geometric mean of the rates that remain when
/// the worst third, rounded down, is dropped. `None` without a repeat, or with a rate that is none.
pub fn score(rates: &[f64]) -> Option<f64> {
    let mut rates = rates.to_vec();
    if !rates.iter().all(|rate| rate.is_finite() && *rate > 0.0) {
        return None;
    }
    rates.sort_by(f64::total_cmp);
    let kept = rates.get(rates.len() / 3..).filter(|it| !it.is_empty())?;
    let sum: f64 = kept.iter().map(|rate| rate.ln()).sum();
    Some((sum / kept.len() as f64).exp())
}

/// The system calls of one loop.
trait Calls {
    /// Duplicates a descriptor and closes the copy.
    fn dup_and_close(&mut self) -> io::Result<()>;
    /// Asks for the process's number.
    fn getpid(&mut self);
    /// Asks for the user's number.
    fn getuid(&mut self);
    /// Sets the file mode creation mask to 022.
    fn umask(&mut self);
}

/// The kernel's.
struct Kernel {
    /// The read end of a pipe, as UnixBench has it.
    fd: OwnedFd,
}

impl Calls for Kernel {
    fn dup_and_close(&mut self) -> io::Result<()> {
        // A debug build asks for the descriptor's flags before it closes it: one call more.
        drop(rustix::io::dup(&self.fd)?);
        Ok(())
    }

    fn getpid(&mut self) {
        std::hint::black_box(rustix::process::getpid());
    }

    fn getuid(&mut self) {
        std::hint::black_box(rustix::process::getuid());
    }

    fn umask(&mut self) {
        rustix::process::umask(Mode::from_raw_mode(0o022));
    }
}

/// The work of one copy of the test.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Copy {
    /// Loops that were done: five system calls each.
    pub loops: u64,
    /// The time that they took.
    pub seconds: f64,
}

impl Copy {
    /// Returns the loops per second.
    pub fn rate(&self) -> f64 {
        self.loops as f64 / self.seconds
    }
}

/// Makes the system calls for this time, on this thread. The file mode creation mask of the process
/// is 022 afterwards.
///
/// # Errors
/// There is no descriptor left.
pub fn run(duration: Duration) -> io::Result<Copy> {
    let (fd, _other) = rustix::pipe::pipe()?;
    let began = Instant::now();
    let loops = repeat(&mut Kernel { fd }, || began.elapsed() >= duration)?;
    Ok(Copy {
        loops,
        seconds: began.elapsed().as_secs_f64(),
    })
}

fn repeat(calls: &mut impl Calls, mut is_over: impl FnMut() -> bool) -> io::Result<u64> {
    let mut loops = 0;
    while !is_over() {
        for _ in 0..LOOPS {
            calls.dup_and_close()?;
            calls.getpid();
            calls.getuid();
            calls.umask();
        }
        loops += LOOPS;
    }
    Ok(loops)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Counted(String);

    impl Calls for Counted {
        fn dup_and_close(&mut self) -> io::Result<()> {
            self.0.push('d');
            Ok(())
        }

        fn getpid(&mut self) {
            self.0.push('p');
        }

        fn getuid(&mut self) {
            self.0.push('u');
        }

        fn umask(&mut self) {
            self.0.push('m');
        }
    }

    #[test]
    fn a_loop_is_the_calls_of_unixbench_in_their_order_and_each_is_counted() {
        let (mut calls, mut looks) = (Counted::default(), 0);
        let loops = repeat(&mut calls, || {
            looks += 1;
            looks > 3
        });
        let loops = loops.unwrap();
        assert_eq!(
            (loops, calls.0),
            (3 * LOOPS, "dpum".repeat(3 * LOOPS as usize))
        );
    }

    #[test]
    fn the_kernel_is_asked_for_the_time_that_was_given_and_no_descriptor_stays_open() {
        let count = || std::fs::read_dir("/proc/self/fd").unwrap().count();
        let before = count();
        let takes_the_time = |_| {
            let began = Instant::now();
            let copy = run(Duration::from_millis(30)).unwrap();
            let outside = began.elapsed().as_secs_f64();
            assert!(
                copy.loops >= LOOPS && copy.loops.is_multiple_of(LOOPS),
                "{copy:?}"
            );
            assert!((0.03..=outside).contains(&copy.seconds), "{copy:?}");
            copy.seconds < 3.0
        };
        // A busy machine may keep some from their processor.
        assert!((0..5).any(takes_the_time));
        // Other tests of this process open some too.
        assert!(count() < before + 50);
    }

    #[test]
    fn the_index_is_that_of_the_published_scores() {
        for (rate, published) in [
            (18_750_490.3, 12_500.3),
            (18_801_524.5, 12_534.3),
            (19_818_118.3, 13_212.1),
        ] {
            assert!((index(rate) - published).abs() < 0.06, "{rate}");
        }
    }

    #[test]
    fn the_score_is_the_geometric_mean_without_the_worst_third() {
        let close = |rates: &[f64], expected: f64| {
            let found = score(rates).unwrap();
            assert!((found / expected - 1.0).abs() < 1e-12, "{rates:?}: {found}");
        };
        close(&[7.0], 7.0);
        close(&[8.0, 2.0], 4.0);
        // One of three is dropped, whatever its place.
        close(&[2.0, 1.0, 8.0], 4.0);
        // Three of ten.
        let ten = [9.0, 9.0, 1.0, 9.0, 9.0, 3.0, 9.0, 9.0, 2.0, 9.0];
        close(&ten, 9.0);
        let five = [4.0, 1.0, 4.0, 16.0, 16.0];
        close(&five, 8.0);
        for none in [&[][..], &[1.0, 0.0], &[f64::NAN], &[f64::INFINITY]] {
            assert_eq!(score(none), None, "{none:?}");
        }
    }
}
