//! The threads of a process, one for each queue pair.

use std::io;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use super::Error;

/// Runs the work of the first queue pair on this thread, and that of the others on theirs. When one
/// of them ends, however it does, `stop` is set; the others are to look at it and end too. Returns
/// the first error.
///
/// # Errors
/// One of the works ended with an error, or there are no threads left.
pub(super) fn run_all<F>(
    stop: &AtomicBool,
    first: impl FnOnce() -> Result<(), Error>,
    others: Vec<F>,
) -> Result<(), Error>
where
    F: FnOnce() -> Result<(), Error> + Send,
{
    thread::scope(|scope| {
        let _stop = Stop(stop);
        let spawn = |(n, work): (usize, F)| {
            let work = move || {
                let _stop = Stop(stop);
                work()
            };
            let name = format!("pair {}", n + 1);
            thread::Builder::new().name(name).spawn_scoped(scope, work)
        };
        let threads: io::Result<Vec<_>> = others.into_iter().enumerate().map(spawn).collect();
        let threads = threads.map_err(Error::Launch)?;
        let done = first();
        stop.store(true, Ordering::Relaxed);
        let others = threads.into_iter().map(|thread| match thread.join() {
            Ok(done) => done,
            Err(panic) => resume_unwind(panic),
        });
        // All of them are waited for, and the first error counts.
        others.fold(done, Result::and)
    })
}

/// Sets the flag when it is dropped, in a panic too.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Work<'a> = Box<dyn FnOnce() -> Result<(), Error> + Send + 'a>;

    #[test]
    fn the_end_of_one_thread_is_that_of_all_and_its_error_is_told() {
        for (failing, expected) in [(0, "zero"), (2, "two")] {
            let stop = AtomicBool::new(false);
            let work = |n: usize, name: &'static str| -> Work<'_> {
                let stop = &stop;
                Box::new(move || {
                    while n != failing && !stop.load(Ordering::Relaxed) {
                        thread::yield_now();
                    }
                    match n == failing {
                        true => Err(Error::Server(name.into())),
                        false => Ok(()),
                    }
                })
            };
            let others = vec![work(1, "one"), work(2, "two")];
            let error = run_all(&stop, work(0, "zero"), others).unwrap_err();
            assert_eq!(error.to_string(), expected);
        }
    }

    #[test]
    fn a_panic_of_one_thread_ends_the_others_and_is_passed_on() {
        let ended = std::panic::catch_unwind(|| {
            let stop = AtomicBool::new(false);
            let first = || {
                while !stop.load(Ordering::Relaxed) {
                    thread::yield_now();
                }
                Ok(())
            };
            run_all(&stop, first, vec![|| panic!("on purpose")])
        });
        assert!(ended.is_err());
    }
}
