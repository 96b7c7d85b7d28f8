//! `tare rng gen`: exactly as many random bytes as were asked for, or an error.

use std::io::{self, IsTerminal as _};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::thread;

use anyhow::{anyhow, bail, Context as _};

use super::method::Method;
use super::output::{Output, Unfinished};
use super::progress::Bar;
use super::retry::Retry;
use super::stream::{self, Fill};
use crate::size::parse_bytes;

/// The number of chunks that a thread may be ahead of the writer.
const CHUNKS_AHEAD: usize = 2;
/// Chunks begin at multiples of this many bytes, so that no number is drawn for a part of it.
const CHUNK_MULTIPLE: u64 = 64;

#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    tare rng gen -n 32 | xxd -p -c 32      a key in hexadecimal\n  \
    tare rng gen -n 10M -o random.bin      ten million bytes\n  \
    tare rng gen | dieharder -a -g 200     until the reader closes the pipe\n\n\
    Exit status: 0 every byte was written, or the reader of standard output closed it; 2 \
    otherwise; 130 interrupted. FILE appears only when it is complete; until then, the bytes are \
    in FILE.part.")]
pub(crate) struct Args {
    /// Number of bytes, such as 16, 10k, 10M, 64Ki or 1Gi (M is 10^6, Mi is 2^20) [default: until
    /// the reader closes the pipe]
    #[arg(short = 'n', long, value_name = "BYTES", value_parser = parse_bytes)]
    bytes: Option<u64>,
    /// Method of generation
    #[arg(short, long, default_value = "get_bytes", value_parser = super::own_method())]
    method: Method,
    /// Number of threads, each with its own generator
    #[arg(short, long, value_name = "COUNT", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: u16,
    /// Output file; `-` is standard output, even if it is a terminal
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    #[command(flatten)]
    retry: Retry,
}

/// Generates the bytes.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let file = args
        .output
        .as_deref()
        .filter(|path| path.as_os_str() != "-");
    if args.output.is_none() && io::stdout().is_terminal() {
        bail!("standard output is a terminal; name a file with -o FILE, or use -o - to write to it anyway");
    }
    if file.is_some() && args.bytes.is_none() {
        bail!("a file needs a length: -n BYTES");
    }
    let bar = Bar::of_bytes(args.bytes);
    let unfinished = Unfinished::watched(&bar)?;
    // Before the file is opened: without the instruction there is nothing to write.
    let open = || stream::open(args.method, args.retry);
    drop(open()?);
    let mut output = match file {
        Some(path) => Output::create(path, unfinished)?,
        None => Output::standard(unfinished)?,
    };
    let threads = u64::from(args.threads);
    let chunks = Chunks::of(args.bytes.unwrap_or(u64::MAX), args.method, threads);
    let mut written = 0;
    let generated = generate(open, threads, chunks, |data| {
        output.write(data)?;
        written += data.len() as u64;
        bar.at(written);
        Ok(())
    });
    if output.is_on_disk() && generated.is_ok() {
        bar.waits_for("written, waiting for the disk");
    }
    let completed = generated.and_then(|()| output.complete());
    bar.finish();
    completed.map(|()| ExitCode::SUCCESS)
}

/// A length cut into chunks.
#[derive(Clone, Copy)]
pub(super) struct Chunks {
    bytes: u64,
    chunk: u64,
}

impl Chunks {
    /// Cuts a length such that every thread has work.
    pub(super) fn of(bytes: u64, method: Method, threads: u64) -> Chunks {
        let share = bytes.div_ceil(threads).max(1);
        let most = stream::chunk_bytes(method) as u64;
        Chunks {
            bytes,
            chunk: share.min(most).next_multiple_of(CHUNK_MULTIPLE),
        }
    }

    /// An endless sequence of chunks of this many bytes.
    pub(super) fn endless(chunk: u64) -> Chunks {
        Chunks {
            bytes: u64::MAX,
            chunk,
        }
    }

    fn count(self) -> u64 {
        self.bytes.div_ceil(self.chunk)
    }

    fn length(self, index: u64) -> usize {
        self.chunk.min(self.bytes - index * self.chunk) as usize
    }
}

/// Generates chunks on `threads` threads, each with a generator that it opens, and hands them to
/// `sink` in order, until `sink` fails.
///
/// # Errors
/// The error of `sink`; or a generator's, with the number of bytes that `sink` took before.
pub(super) fn generate(
    open: impl Fn() -> anyhow::Result<Fill> + Sync,
    threads: u64,
    chunks: Chunks,
    mut sink: impl FnMut(&[u8]) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let open = &open;
    thread::scope(|scope| {
        let mut receivers: Vec<Receiver<anyhow::Result<Vec<u8>>>> = Vec::new();
        for first in 0..threads.min(chunks.count()) {
            let (sender, receiver) = mpsc::sync_channel(CHUNKS_AHEAD);
            receivers.push(receiver);
            thread::Builder::new()
                .spawn_scoped(scope, move || {
                    let every = usize::try_from(threads).unwrap_or(usize::MAX);
                    if let Err(error) = work(
                        open,
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
        let mut taken = 0;
        // Dropping the receivers ends the threads: their next chunk has no receiver.
        for index in 0..chunks.count() {
            let data = receivers[(index % threads) as usize]
                .recv()
                .map_err(|_| anyhow!("a thread panicked"))?
                .map_err(|error| anyhow!("{error:#}; incomplete after {taken} bytes"))?;
            sink(&data)?;
            taken += data.len() as u64;
        }
        Ok(())
    })
}

/// One thread's chunks.
fn work(
    open: impl Fn() -> anyhow::Result<Fill>,
    chunks: Chunks,
    indices: impl Iterator<Item = u64>,
    sender: &SyncSender<anyhow::Result<Vec<u8>>>,
) -> anyhow::Result<()> {
    let mut fill = open()?;
    for index in indices {
        let mut data = vec![0; chunks.length(index)];
        fill(&mut data)?;
        if sender.send(Ok(data)).is_err() {
            break;
        }
    }
    Ok(())
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
    fn every_thread_has_a_part_of_a_short_output() {
        for method in [Method::GetBytes, Method::Rdseed, Method::ReseedSkip] {
            for (bytes, threads) in [(1, 1), (100_000, 8), (10_000_000, 200), (640, 10)] {
                let chunks = Chunks::of(bytes, method, threads);
                assert!(chunks.count() >= threads, "{method}: {bytes} bytes");
                assert_eq!(chunks.chunk % CHUNK_MULTIPLE, 0);
            }
        }
        assert_eq!(Chunks::of(0, Method::GetBytes, 3).count(), 0);
        let endless = Chunks::of(u64::MAX, Method::GetBytes, 1);
        assert_eq!(endless.length(0), stream::chunk_bytes(Method::GetBytes));
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
                let mut taken = 0;
                let generated = generate(
                    || stream::open(method, Retry::PATIENT),
                    threads,
                    chunks,
                    |data| {
                        taken += data.len();
                        Ok(())
                    },
                );
                generated.unwrap();
                assert_eq!(taken, 10_007, "{method}, {threads} threads");
            }
        }
    }

    #[test]
    fn a_sink_that_fails_stops_the_threads() {
        let chunks = Chunks {
            bytes: u64::MAX,
            chunk: 1000,
        };
        let open = || stream::open(Method::RandChacha, Retry::default());
        let error = generate(open, 3, chunks, |_| bail!("the disk is full"));
        assert_eq!(error.unwrap_err().to_string(), "the disk is full");
    }

    #[test]
    fn a_generator_that_fails_is_reported_with_the_bytes_of_the_whole_output() {
        for threads in [1, 4] {
            let chunks = Chunks {
                bytes: 100_000,
                chunk: 1000,
            };
            // Each thread's generator stops after three of its chunks.
            let open = || -> anyhow::Result<Fill> {
                let mut left = 3;
                Ok(Box::new(move |buffer: &mut [u8]| {
                    left -= 1;
                    anyhow::ensure!(left >= 0, "dry");
                    buffer.fill(1);
                    Ok(())
                }))
            };
            let mut taken = 0;
            let error = generate(open, threads, chunks, |data| {
                taken += data.len();
                Ok(())
            });
            assert_eq!(taken as u64, threads * 3000);
            assert_eq!(
                error.unwrap_err().to_string(),
                format!("dry; incomplete after {taken} bytes")
            );
        }
    }
}
