//! Jobs that run beside each other: test programs wait for servers, timeouts and each other for
//! half of their time.

use std::collections::VecDeque;
use std::io::{self, Read};
use std::process::ExitStatus;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Instant;

use crate::shell;

/// The number of lines of a failure that are repeated at the end.
const REPEATED: usize = 40;

/// Something that takes a while and says itself what came of it. Its error is shown as it is.
pub(crate) struct Job {
    title: String,
    work: Box<dyn FnOnce() -> Result<(), String> + Send>,
}

impl Job {
    pub(crate) fn new(
        title: impl Into<String>,
        work: impl FnOnce() -> Result<(), String> + Send + 'static,
    ) -> Job {
        Job {
            title: title.into(),
            work: Box::new(work),
        }
    }

    /// A program whose output is shown only if it fails.
    pub(crate) fn step(title: &str, program: &'static str, line: &'static str) -> Job {
        let title = title.to_owned();
        Job::new(title.clone(), move || {
            let began = Instant::now();
            let (status, said) = output_of(program, line)
                .map_err(|error| format!("{program} could not be run: {error}"))?;
            let took = began.elapsed().as_secs_f64();
            if status.success() {
                eprintln!("xtask: {title}: {program} {line}: done in {took:.1} s");
                return Ok(());
            }
            Err(format!(
                "{title} failed after {took:.1} s: {program} {line}\n{said}"
            ))
        })
    }
}

/// Runs a program. Returns its status, and what it wrote to both outputs, in the order written.
fn output_of(program: &str, line: &str) -> io::Result<(ExitStatus, String)> {
    let (mut reader, writer) = io::pipe()?;
    let mut command = shell::command(program);
    command.args(line.split_whitespace());
    command.stdout(writer.try_clone()?).stderr(writer);
    let mut child = command.spawn()?;
    // It holds the pipe's other end, without whose close the output has no end.
    drop(command);
    let mut said = Vec::new();
    let read = reader.read_to_end(&mut said);
    let status = child.wait()?;
    read?;
    Ok((status, String::from_utf8_lossy(&said).into_owned()))
}

/// Runs all jobs, two more at a time than there are processors, and begins them in their order.
/// Every failure is shown at once, and the others go on: a run takes long. The error repeats the
/// end of each failure, which is far up by then, or cut off where only the last lines are kept.
pub(crate) fn run(jobs: Vec<Job>) -> Result<(), String> {
    let at_once = thread::available_parallelism().map_or(2, usize::from) + 2;
    let count = jobs.len();
    eprintln!("\nxtask: {count} test programs, {at_once} at a time");
    let began = Instant::now();
    let waiting = Mutex::new(VecDeque::from(jobs));
    let failed = Mutex::new(Vec::new());
    let next = || {
        let mut waiting = waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.pop_front()
    };
    thread::scope(|scope| {
        for _ in 0..at_once.min(count) {
            scope.spawn(|| {
                while let Some(job) = next() {
                    if let Err(error) = (job.work)() {
                        eprintln!("xtask: FAILED: {error}");
                        let mut failed = failed.lock().unwrap_or_else(PoisonError::into_inner);
                        failed.push((job.title, error));
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().unwrap_or_else(PoisonError::into_inner);
    if failed.is_empty() {
        let took = began.elapsed().as_secs_f64();
        eprintln!("xtask: {count} test programs passed in {took:.0} s");
        return Ok(());
    }
    let titles: Vec<&str> = failed.iter().map(|(title, _)| title.as_str()).collect();
    let mut error = format!("{} of {count} failed: {}", failed.len(), titles.join("; "));
    for (title, said) in &failed {
        let lines: Vec<&str> = said.lines().collect();
        let end = &lines[lines.len().saturating_sub(REPEATED)..];
        error += &format!("\nthe end of {title}:\n{}", end.join("\n"));
    }
    Err(error)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::sync::Arc;

    use super::{run, Job, REPEATED};

    #[test]
    fn a_failure_is_named_and_stops_no_other_job() {
        let ran = Arc::new(AtomicU32::new(0));
        let jobs = (0..40).map(|number| {
            let ran = Arc::clone(&ran);
            Job::new(format!("job {number}"), move || {
                ran.fetch_add(1, Ordering::Relaxed);
                match number {
                    7 => Err(format!("{}on purpose", "line\n".repeat(100))),
                    _ => Ok(()),
                }
            })
        });
        let error = run(jobs.collect()).unwrap_err();
        let end = "line\n".repeat(REPEATED - 1) + "on purpose";
        let expected = format!("1 of 40 failed: job 7\nthe end of job 7:\n{end}");
        assert_eq!(error, expected);
        assert_eq!(ran.load(Ordering::Relaxed), 40);
        run(Vec::new()).unwrap();
    }

    #[test]
    fn a_step_that_fails_shows_its_output() {
        let error = (Job::step("listing", "ls", "/absent-folder").work)().unwrap_err();
        assert!(error.contains("/absent-folder"), "{error}");
        let both = Job::step("both", "sh", "-c echo${IFS}a>&2;echo${IFS}b;false");
        let error = (both.work)().unwrap_err();
        assert!(error.ends_with("\na\nb\n"), "{error}");
        (Job::step("nothing", "true", "").work)().unwrap();
    }
}
