//! Workloads whose numbers are written to a pipe or to a file, as `tare rng gen` writes them.

use std::fmt;
use std::io::{self, Seek as _, Write};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{anyhow, Context as _};
use rustix::time::{clock_gettime, ClockId};

use super::gen::{generate, Chunks};
use super::stream;
use super::workload::{Work, Workload};

/// A file that is written for a while begins anew at this length, so as not to fill a disk.
const FILE_MAX: u64 = 256 << 20;

/// The destination of the numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Destination {
    /// A pipe to a program that discards what it reads.
    Pipe,
    /// A file in the folder for temporary files; the disk is not waited for.
    File,
}

/// Runs a workload whose numbers are written out; `started` is called when the warm-up is over.
/// The processor time is that of this process, without the program that reads the pipe.
///
/// # Errors
/// As [`workload::run`](super::workload::run); or the numbers could not be written.
pub(crate) fn run(
    workload: &Workload,
    destination: Destination,
    started: impl FnOnce() -> anyhow::Result<()>,
) -> anyhow::Result<Work> {
    match destination {
        Destination::File => {
            let folder = std::env::temp_dir();
            let mut file = tempfile::tempfile_in(&folder)
                .with_context(|| format!("cannot write a file in {}", folder.display()))?;
            let mut room = FILE_MAX;
            measure(workload, started, |data| {
                if room < data.len() as u64 {
                    file.rewind()?;
                    file.set_len(0)?;
                    room = FILE_MAX;
                }
                room -= data.len() as u64;
                file.write_all(data)
            })
        }
        Destination::Pipe => {
            let mut reader = Command::new("cat")
                .stdin(Stdio::piped())
                .stdout(Stdio::null())
                .spawn()
                .context("cannot run cat, which reads the pipe")?;
            let mut pipe = reader.stdin.take().context("cat has no pipe")?;
            let work = measure(workload, started, |data| pipe.write_all(data));
            // It ends with its input.
            drop(pipe);
            reader.wait().context("cannot wait for cat")?;
            work
        }
    }
}

/// The measured time is over.
#[derive(Debug)]
struct Enough;

impl fmt::Display for Enough {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("enough")
    }
}

impl std::error::Error for Enough {}

fn measure(
    workload: &Workload,
    started: impl FnOnce() -> anyhow::Result<()>,
    mut write: impl FnMut(&[u8]) -> io::Result<()>,
) -> anyhow::Result<Work> {
    let open = || stream::open(workload.method, workload.retry);
    let chunks = Chunks::endless(workload.chunk as u64);
    let cpu_now = || clock_gettime(ClockId::ProcessCPUTime);
    let began = Instant::now();
    let mut started = Some(started);
    let mut from = None;
    let mut work = Work::default();
    // The chunks that are ready when the time begins and those that are when it ends cancel out.
    let ended = generate(open, workload.threads as u64, chunks, |data| {
        write(data).context("the numbers cannot be written")?;
        let Some((wall_from, cpu_from)) = from else {
            if began.elapsed() >= workload.warm_up {
                if let Some(started) = started.take() {
                    started()?;
                }
                from = Some((Instant::now(), cpu_now()));
            }
            return Ok(());
        };
        work.bytes += data.len() as u64;
        work.operations += 1;
        work.wall = wall_from.elapsed();
        if work.wall < workload.duration {
            return Ok(());
        }
        work.cpu = Duration::try_from(cpu_now() - cpu_from).context("the process's clock")?;
        Err(Enough.into())
    });
    match ended {
        Err(error) if error.is::<Enough>() => Ok(work),
        Err(error) => Err(error),
        Ok(()) => Err(anyhow!("the numbers came to an end")),
    }
}

#[cfg(test)]
mod tests {
    use super::super::method::Method;
    use super::super::retry::Retry;
    use super::*;

    #[test]
    fn what_is_written_in_the_time_is_counted() {
        for destination in [Destination::Pipe, Destination::File] {
            let workload = Workload {
                method: Method::RandChacha,
                retry: Retry::default(),
                chunk: 4096,
                offset: 0,
                threads: 2,
                duration: Duration::from_millis(20),
                calls_max: None,
                warm_up: Duration::from_millis(5),
                in_step: false,
            };
            let mut was_started = false;
            let work = run(&workload, destination, || {
                was_started = true;
                Ok(())
            });
            let work = work.unwrap();
            assert!(was_started && work.operations > 0, "{destination:?}");
            assert_eq!(work.bytes, work.operations * 4096);
            assert!(work.wall >= workload.duration && work.cpu > Duration::ZERO);
        }
    }
}
