//! A program that reads a stream: its input, its limits and its output.

use std::io::{self, Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{anyhow, Context as _};

/// The most output that is kept, in bytes: a battery that never stops printing must not fill the
/// memory.
const OUTPUT_MAX: u64 = 4 << 20;
const CHUNK: usize = 64 * 1024;
/// The time for which a program may go on after its stream was ended with its time.
const GRACE: Duration = Duration::from_secs(3);

/// The limits of a program.
#[derive(Clone, Copy)]
pub(super) struct Limits {
    pub(super) bytes: u64,
    pub(super) until: Instant,
}

/// The result of a program.
pub(super) struct Ran {
    /// Standard output and standard error, one after the other.
    pub(super) output: String,
    /// Bytes it was fed.
    pub(super) bytes: u64,
    /// It ended before its time did.
    pub(super) complete: bool,
}

/// Runs `program` on the stream.
///
/// # Errors
/// It could not be started, or the stream could not be read.
pub(super) fn drive(
    program: &Path,
    arguments: &[&str],
    stream: Box<dyn Read + Send>,
    limits: Limits,
) -> anyhow::Result<Ran> {
    let mut child = Command::new(program)
        .args(arguments)
        .env("LC_ALL", "C")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot run {}", program.display()))?;
    let (Some(stdin), Some(stdout), Some(stderr)) =
        (child.stdin.take(), child.stdout.take(), child.stderr.take())
    else {
        return Err(anyhow!("{} has no pipes", program.display()));
    };
    let fed = AtomicU64::new(0);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let feeder = scope.spawn(|| feed(stream, stdin, limits, &fed, &stop));
        let out = scope.spawn(|| listen(stdout));
        let err = scope.spawn(|| listen(stderr));
        let exit = loop {
            match child.try_wait() {
                Ok(None) if Instant::now() >= limits.until + GRACE => {
                    // This also ends a feeder that waits for a full pipe.
                    let killed = child.kill().and_then(|()| child.wait());
                    break killed.map(drop);
                }
                Ok(None) => thread::sleep(Duration::from_millis(5)),
                Ok(Some(_)) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        let complete = Instant::now() < limits.until;
        stop.store(true, Ordering::Relaxed);
        let panicked = |_| anyhow!("a thread panicked");
        let mut output = out.join().map_err(panicked)?;
        output.push_str(&err.join().map_err(panicked)?);
        feeder
            .join()
            .map_err(panicked)?
            .context("cannot read the stream to be tested")?;
        exit.with_context(|| format!("cannot wait for {}", program.display()))?;
        Ok(Ran {
            output,
            bytes: fed.load(Ordering::Relaxed),
            complete,
        })
    })
}

/// Writes the stream to the program until that has enough; fails only if reading does.
fn feed(
    stream: Box<dyn Read + Send>,
    mut stdin: impl Write,
    limits: Limits,
    fed: &AtomicU64,
    stop: &AtomicBool,
) -> io::Result<()> {
    let mut stream = stream.take(limits.bytes);
    let mut buffer = vec![0; CHUNK];
    while !stop.load(Ordering::Relaxed) && Instant::now() < limits.until {
        let n = match stream.read(&mut buffer) {
            Ok(0) => break,
            Ok(n) => n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        if stdin.write_all(&buffer[..n]).is_err() {
            break; // It has enough.
        }
        fed.fetch_add(n as u64, Ordering::Relaxed);
    }
    Ok(())
}

fn listen(pipe: impl Read) -> String {
    let mut text = Vec::new();
    let mut pipe = pipe.take(OUTPUT_MAX);
    let _ = pipe.read_to_end(&mut text);
    // Output past the limit is read and discarded, so that the program does not block.
    let _ = io::copy(&mut pipe.into_inner(), &mut io::sink());
    String::from_utf8_lossy(&text).into_owned()
}
