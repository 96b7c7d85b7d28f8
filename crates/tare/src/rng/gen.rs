//! `tare rng gen`: exactly as many random bytes as were asked for, or an error.

use std::io::{self, IsTerminal as _};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{anyhow, bail, Context as _};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use signal_hook::consts::{SIGINT, SIGTERM};

use super::method::Method;
use super::output::Output;
use super::size::parse_bytes;
use super::stream;
use crate::terminal;

/// The conventional status of a program that SIGINT ended.
const INTERRUPTED: u8 = 130;
/// Chunks that a thread may be ahead of the writer.
const CHUNKS_AHEAD: usize = 2;
/// How long the writer waits before it looks at signals again.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// A bar for less than this would only flicker.
const BAR_AFTER: Duration = Duration::from_secs(2);

#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    tare rng gen -n 32 | xxd -p -c 32      a key in hexadecimal\n  \
    tare rng gen -n 10M -o random.bin      ten million bytes\n  \
    tare rng gen | dieharder -a -g 200     until the reader has enough\n\n\
    Exit status: 0 every byte was written (or the reader of standard output had enough); \
    2 otherwise; 130 interrupted. \
    FILE appears when it is complete and never before; until then it is FILE.part.")]
pub(crate) struct Args {
    /// How many bytes: 16, 10k, 10M, 64Ki, 1Gi (M is 10^6, Mi is 2^20) [default: until the reader closes the pipe]
    #[arg(short = 'n', long, value_name = "BYTES", value_parser = parse_bytes)]
    bytes: Option<u64>,
    /// How the numbers are got
    #[arg(short, long, default_value = "get_bytes", value_parser = super::own_method())]
    method: Method,
    /// Threads, each with a generator of its own
    #[arg(short, long, value_name = "COUNT", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: u16,
    /// The file; `-` is standard output, also when it is a terminal
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// Generates.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let file = args
        .output
        .as_deref()
        .filter(|path| path.as_os_str() != "-");
    if args.output.is_none() && io::stdout().is_terminal() {
        bail!("standard output is a terminal; name a file with -o FILE, or -o - to write to it all the same");
    }
    if file.is_some() && args.bytes.is_none() {
        bail!("a file needs a length: -n BYTES");
    }
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&stop))?;
    }
    // Before the file is touched: without the instruction there is nothing to write.
    drop(stream::open(args.method)?);
    let mut output = match file {
        Some(path) => Output::create(path)?,
        None => Output::standard()?,
    };
    let bytes = args.bytes.unwrap_or(u64::MAX);
    let bar = Bar::new(args.bytes);
    let chunks = Chunks {
        bytes,
        chunk: stream::chunk_bytes(args.method) as u64,
    };
    let written = generate(args.method, args.threads.into(), chunks, |data, before| {
        if stop.load(Ordering::Relaxed) {
            return Ok(false);
        }
        if let Some(data) = data {
            output.write(data, before)?;
            bar.at(before + data.len() as u64);
        }
        Ok(true)
    })?;
    bar.finish();
    if written < bytes {
        terminal::say(&format!(
            "tare: interrupted; incomplete after {written} bytes"
        ));
        return Ok(ExitCode::from(INTERRUPTED));
    }
    output.complete()?;
    Ok(ExitCode::SUCCESS)
}

/// A length cut into chunks.
#[derive(Clone, Copy)]
struct Chunks {
    bytes: u64,
    chunk: u64,
}

impl Chunks {
    fn count(self) -> u64 {
        self.bytes.div_ceil(self.chunk)
    }

    fn length(self, index: u64) -> usize {
        self.chunk.min(self.bytes - index * self.chunk) as usize
    }
}

/// Generates chunks on `threads` threads and hands them to `sink` in order, with the number of
/// bytes before each; without a chunk while it waits for one. Stops when `sink` says false.
/// Returns how many bytes `sink` took.
fn generate(
    method: Method,
    threads: u64,
    chunks: Chunks,
    mut sink: impl FnMut(Option<&[u8]>, u64) -> anyhow::Result<bool>,
) -> anyhow::Result<u64> {
    thread::scope(|scope| {
        let mut receivers: Vec<Receiver<anyhow::Result<Vec<u8>>>> = Vec::new();
        for first in 0..threads.min(chunks.count()) {
            let (sender, receiver) = mpsc::sync_channel(CHUNKS_AHEAD);
            receivers.push(receiver);
            thread::Builder::new()
                .spawn_scoped(scope, move || {
                    let every = usize::try_from(threads).unwrap_or(usize::MAX);
                    if let Err(error) = work(
                        method,
                        chunks,
                        (first..chunks.count()).step_by(every),
                        &sender,
                    ) {
                        let _ = sender.send(Err(error));
                    }
                })
                .with_context(|| {
                    format!("thread {} could not be started; ask for fewer", first + 1)
                })?;
        }
        let mut written = 0;
        // Dropping the receivers ends the threads: their next chunk finds nobody.
        for index in 0..chunks.count() {
            let receiver = &receivers[(index % threads) as usize];
            let data = loop {
                match receiver.recv_timeout(LOOK_EVERY) {
                    Ok(data) => break data?,
                    Err(RecvTimeoutError::Timeout) if sink(None, written)? => {}
                    Err(RecvTimeoutError::Timeout) => return Ok(written),
                    Err(RecvTimeoutError::Disconnected) => {
                        return Err(anyhow!("a thread panicked"))
                    }
                }
            };
            if !sink(Some(&data), written)? {
                return Ok(written);
            }
            written += data.len() as u64;
        }
        Ok(written)
    })
}

/// One thread's chunks.
fn work(
    method: Method,
    chunks: Chunks,
    indices: impl Iterator<Item = u64>,
    sender: &SyncSender<anyhow::Result<Vec<u8>>>,
) -> anyhow::Result<()> {
    let mut fill = stream::open(method)?;
    for index in indices {
        let mut data = vec![0; chunks.length(index)];
        fill(&mut data)?;
        if sender.send(Ok(data)).is_err() {
            break;
        }
    }
    Ok(())
}

/// A bar on a terminal's standard error, once the work has taken a while.
struct Bar {
    bar: ProgressBar,
    since: Instant,
    hidden: std::cell::Cell<bool>,
}

impl Bar {
    fn new(bytes: Option<u64>) -> Bar {
        let bar = ProgressBar::with_draw_target(bytes, ProgressDrawTarget::hidden());
        let template = match bytes {
            Some(_) => "{elapsed_precise} [{wide_bar:.cyan/blue}] {decimal_bytes}/{decimal_total_bytes}, {decimal_bytes_per_sec}, {eta} left",
            None => "{elapsed_precise} {decimal_bytes}, {decimal_bytes_per_sec}",
        };
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style.progress_chars("━╸─"));
        }
        let hidden = std::cell::Cell::new(true);
        Bar {
            bar,
            since: Instant::now(),
            hidden,
        }
    }

    fn at(&self, bytes: u64) {
        self.bar.set_position(bytes);
        if self.hidden.get() && self.since.elapsed() > BAR_AFTER && io::stderr().is_terminal() {
            self.hidden.set(false);
            self.bar
                .set_draw_target(ProgressDrawTarget::stderr_with_hz(10));
        }
    }

    fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.finish();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_add_up_to_the_length() {
        for bytes in [0, 1, 2047, 2048, 2049, 10_000] {
            let chunks = Chunks { bytes, chunk: 2048 };
            let sum: u64 = (0..chunks.count()).map(|i| chunks.length(i) as u64).sum();
            assert_eq!(sum, bytes);
        }
    }

    #[test]
    fn every_method_and_thread_count_gives_exactly_the_length() {
        for method in [
            Method::GetBytes,
            Method::Uint64Array,
            Method::Rdseed,
            Method::AesCtr,
        ] {
            for threads in [1, 3, 40] {
                let chunks = Chunks {
                    bytes: 10_007,
                    chunk: 1000,
                };
                let mut expected = 0;
                let written = generate(method, threads, chunks, |data, before| {
                    assert_eq!(before, expected);
                    expected += data.map_or(0, |data| data.len() as u64);
                    Ok(true)
                });
                assert_eq!(written.unwrap(), 10_007, "{method}, {threads} threads");
                assert_eq!(expected, 10_007);
            }
        }
    }

    #[test]
    fn a_sink_that_has_enough_stops_the_threads() {
        let chunks = Chunks {
            bytes: u64::MAX,
            chunk: 1000,
        };
        let written = generate(Method::GetBytes, 3, chunks, |_, before| Ok(before < 5000));
        assert_eq!(written.unwrap(), 5000);
        let error = generate(Method::GetBytes, 3, chunks, |_, _| {
            bail!("the disk is full")
        });
        assert_eq!(error.unwrap_err().to_string(), "the disk is full");
    }
}
