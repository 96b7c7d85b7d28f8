//! The workload of the generators: free-running threads, with their wall and processor time.
//!
//! Threads meet once, before the measured part, and never again: with a barrier at each chunk, the
//! barrier would be measured. With `in_step` that is the purpose.

use std::convert::Infallible;
use std::hint::black_box;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{anyhow, bail, Context as _};
use tare_rdrand::instruction::{self, RdrandInstruction};
use tare_rdrand::{AesCtr, Counts, Seeder};

use super::in_step::{InStep, Member};
use super::method::Method;
use super::retry::Retry;
use super::stream::uncounted;
use crate::pace;
use crate::references::random::{self, RandChacha, RdrandCrate};
use crate::systems::system_random;

/// Bytes to which buffers are aligned before `offset` is added: a cache line.
const ALIGNMENT: usize = 64;

/// A workload and its duration.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Workload {
    /// The method.
    pub(crate) method: Method,
    /// The retries for a number.
    pub(crate) retry: Retry,
    /// Bytes per call.
    pub(crate) chunk: usize,
    /// Bytes past a cache line's start at which byte methods write; 0 for arrays.
    pub(crate) offset: usize,
    /// Threads.
    pub(crate) threads: usize,
    /// The wall time of the measured part.
    pub(crate) duration: Duration,
    /// Calls after which a thread ends, even if there is time left.
    pub(crate) calls_max: Option<u64>,
    /// The unmeasured part before it.
    pub(crate) warm_up: Duration,
    /// The threads wait for each other after every call, as those of a parallel loop do that
    /// fills one buffer after another.
    pub(crate) in_step: bool,
}

/// The work of the measured part, all threads together.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Work {
    /// Bytes generated.
    pub(crate) bytes: u64,
    /// Calls.
    pub(crate) operations: u64,
    /// Executions of the instruction, where the method counts them.
    pub(crate) draws: u64,
    /// Executions that had no data, where the method counts them.
    pub(crate) underflows: u64,
    /// From the first thread's start to the last one's end.
    pub(crate) wall: Duration,
    /// Processor time, summed over the threads.
    pub(crate) cpu: Duration,
}

impl Work {
    /// Bytes per second of wall time.
    pub(crate) fn throughput(&self) -> f64 {
        self.bytes as f64 / self.wall.as_secs_f64()
    }

    /// Bytes per second of processor time.
    pub(crate) fn cpu_throughput(&self) -> f64 {
        self.bytes as f64 / self.cpu.as_secs_f64()
    }
}

/// Runs a workload; `started` is called when the warm-up is over.
///
/// # Errors
/// The processor lacks the instruction, or a generator failed, in words.
pub(crate) fn run(
    workload: &Workload,
    started: impl FnOnce() -> anyhow::Result<()>,
) -> anyhow::Result<Work> {
    let step = workload.in_step.then(|| InStep::of(workload.threads));
    thread::scope(|scope| {
        let (ready, readies) = mpsc::channel();
        let mut threads = Vec::new();
        let mut starters = Vec::new();
        for _ in 0..workload.threads {
            let ready = ready.clone();
            let (start, go) = mpsc::channel::<()>();
            starters.push(start);
            let member = step.as_ref().map(InStep::member);
            let thread = thread::Builder::new()
                .spawn_scoped(scope, move || {
                    let part = of_method(workload, member, || {
                        let _ = ready.send(());
                        go.recv().is_ok()
                    });
                    // Also if it failed before it was ready: the others wait for this.
                    let _ = ready.send(());
                    part
                })
                .context("a thread could not be started; ask for fewer")?;
            threads.push(thread);
        }
        for _ in 0..workload.threads {
            readies.recv()?;
        }
        started()?;
        for start in &starters {
            // A thread that failed does not receive; its error is in its result.
            let _ = start.send(());
        }
        let mut parts = Vec::new();
        for thread in threads {
            parts.push(thread.join().map_err(|_| anyhow!("a thread panicked"))??);
        }
        Ok(together(&parts, workload.chunk))
    })
}

fn together(parts: &[Part], chunk: usize) -> Work {
    let mut all = Work::default();
    for part in parts {
        all.operations += part.operations;
        all.bytes += part.operations * chunk as u64;
        all.draws += part.counts.draws;
        all.underflows += part.counts.underflows;
        all.cpu += part.cpu;
    }
    let from = parts.iter().map(|part| part.from).min();
    let until = parts.iter().map(|part| part.until).max();
    if let (Some(from), Some(until)) = (from, until) {
        all.wall = until - from;
    }
    all
}

/// One thread's part.
struct Part {
    operations: u64,
    counts: Counts,
    from: Instant,
    until: Instant,
    cpu: Duration,
}

fn of_method(
    workload: &Workload,
    member: Option<Member<'_>>,
    meet: impl FnOnce() -> bool,
) -> anyhow::Result<Part> {
    let chunk = workload.chunk;
    macro_rules! library {
        ($generator:expr, $element:ty, $fill:ident) => {
            measure(
                workload,
                member,
                meet,
                (
                    $generator,
                    vec![<$element>::default(); chunk / size_of::<$element>()],
                ),
                |(generator, buffer)| generator.$fill(black_box(buffer)).map_err(uncounted),
                |(generator, _)| generator.counts(),
            )
        };
    }
    macro_rules! stateless {
        ($element:ty, $state:expr, $fill:expr) => {
            measure(
                workload,
                member,
                meet,
                (
                    $state,
                    vec![<$element>::default(); chunk / size_of::<$element>()],
                ),
                |(state, buffer)| $fill(state, &mut black_box(buffer)[..]),
                |_| Counts::default(),
            )
        };
    }
    match workload.method {
        Method::GetBytes => measure(
            workload,
            member,
            meet,
            (
                workload.retry.rdrand()?,
                Placed::new(chunk, workload.offset),
            ),
            |(generator, buffer)| {
                let filled = generator.fill_bytes(black_box(buffer.bytes()));
                filled.map_err(uncounted)
            },
            |(generator, _)| generator.counts(),
        ),
        Method::GetBytesOf32 => library!(workload.retry.rdrand_of_32()?, u8, fill_bytes),
        Method::Uint8Array => library!(workload.retry.rdrand()?, u8, fill_bytes),
        Method::Uint16Array => library!(workload.retry.rdrand()?, u16, fill_u16),
        Method::Uint32Array => library!(workload.retry.rdrand()?, u32, fill_u32),
        Method::Uint64Array => library!(workload.retry.rdrand()?, u64, fill_u64),
        Method::ReseedDelay => library!(workload.retry.rdrand()?, u64, fill_u64_reseed_delay),
        Method::ReseedSkip => library!(workload.retry.rdrand()?, u64, fill_u64_reseed_skip),
        Method::Rdseed => library!(workload.retry.rdseed()?, u64, fill_u64),
        Method::AesCtr => measure(
            workload,
            member,
            meet,
            (
                AesCtr::with_random_key()?,
                workload.retry.rdrand()?,
                vec![0u8; chunk],
            ),
            |(aes, generator, buffer)| {
                let filled = aes.fill_bytes(generator, black_box(buffer));
                filled.map_err(uncounted)
            },
            |(_, generator, _)| generator.counts(),
        ),
        Method::Seed => stateless!(
            u8,
            workload.retry.seeder()?,
            |seeder: &mut Seeder, buffer| seeder.fill_bytes(buffer).map(drop)
        ),
        Method::Bare16 => stateless!(
            u16,
            RdrandInstruction::detect()?,
            |source: &mut _, buffer| {
                instruction::fill_u16(*source, buffer);
                Ok::<_, Infallible>(())
            }
        ),
        Method::Bare32 => stateless!(
            u32,
            RdrandInstruction::detect()?,
            |source: &mut _, buffer| {
                instruction::fill_u32(*source, buffer);
                Ok::<_, Infallible>(())
            }
        ),
        Method::Bare64 => stateless!(
            u64,
            RdrandInstruction::detect()?,
            |source: &mut _, buffer| {
                instruction::fill_u64(*source, buffer);
                Ok::<_, Infallible>(())
            }
        ),
        Method::GetrandomSyscall => {
            stateless!(u8, (), |_: &mut (), buffer| random::fill_by_system_call(
                buffer
            ))
        }
        Method::GetrandomLibc => {
            stateless!(u8, (), |_: &mut (), buffer| random::fill_by_libc(buffer))
        }
        Method::RandChacha => {
            stateless!(
                u8,
                RandChacha::new(system_random()?),
                |random: &mut RandChacha, buffer| {
                    random.fill(buffer);
                    Ok::<_, Infallible>(())
                }
            )
        }
        Method::AwsLcRs => {
            stateless!(u8, (), |_: &mut (), buffer| random::fill_by_aws_lc_rs(
                buffer
            ))
        }
        Method::RdrandCrate => stateless!(
            u8,
            RdrandCrate::new()?,
            |random: &mut RdrandCrate, buffer| random.fill(buffer)
        ),
    }
}

/// Warms up, meets the others, then fills until the time is over.
fn measure<S, E: Into<anyhow::Error>>(
    workload: &Workload,
    member: Option<Member<'_>>,
    meet: impl FnOnce() -> bool,
    mut state: S,
    mut fill: impl FnMut(&mut S) -> Result<(), E>,
    counts: impl Fn(&S) -> Counts,
) -> anyhow::Result<Part> {
    let batch = pace::warm_up(workload.warm_up, || fill(&mut state))?;
    let before = counts(&state);
    if !meet() {
        bail!("another thread could not be started");
    }
    let call = || fill(&mut state);
    let timed = match member {
        Some(member) => {
            let is_over = |elapsed| member.meet(elapsed >= workload.duration);
            pace::run_until(1, workload.calls_max, is_over, call)?
        }
        None => pace::run(batch, workload.duration, workload.calls_max, call)?,
    };
    let after = counts(&state);
    Ok(Part {
        operations: timed.operations,
        counts: Counts {
            draws: after.draws - before.draws,
            underflows: after.underflows - before.underflows,
        },
        from: timed.from,
        until: timed.until,
        cpu: timed.cpu,
    })
}

/// A buffer whose first byte lies `offset` bytes past a cache line's start.
struct Placed {
    memory: Vec<u8>,
    from: usize,
    length: usize,
}

impl Placed {
    fn new(length: usize, offset: usize) -> Placed {
        let memory = vec![0; length + ALIGNMENT + offset];
        let from = memory.as_ptr().align_offset(ALIGNMENT) + offset;
        Placed {
            memory,
            from,
            length,
        }
    }

    fn bytes(&mut self) -> &mut [u8] {
        &mut self.memory[self.from..self.from + self.length]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn workload(method: Method, threads: usize) -> Workload {
        Workload {
            method,
            retry: Retry::PATIENT,
            chunk: 64,
            offset: 3,
            threads,
            duration: Duration::from_millis(5),
            calls_max: None,
            warm_up: Duration::from_millis(1),
            in_step: false,
        }
    }

    #[test]
    fn the_work_adds_up_for_every_method() {
        for method in super::super::method::testable() {
            let work = run(&workload(method, 2), || Ok(())).unwrap();
            assert_eq!(work.bytes, work.operations * 64, "{method}");
            assert!(work.operations >= 2, "{method}");
            assert!(work.wall >= Duration::from_millis(5), "{method}");
            assert!(
                work.throughput() > 0.0 && work.cpu > Duration::ZERO,
                "{method}"
            );
            let draws_a_call = match method {
                // Narrow arrays too: the library takes as many elements from a draw as fit.
                Method::GetBytes
                | Method::Uint16Array
                | Method::Uint32Array
                | Method::Uint64Array
                | Method::ReseedDelay => Some(8),
                Method::ReseedSkip => Some(8 * 1025),
                _ => None,
            };
            if let Some(draws) = draws_a_call {
                assert_eq!(work.draws, work.operations * draws, "{method}");
            }
        }
    }

    #[test]
    fn a_number_of_calls_is_kept_exactly() {
        for calls in [1, 7, 100_000] {
            let workload = Workload {
                calls_max: Some(calls),
                duration: Duration::MAX,
                ..workload(Method::RandChacha, 3)
            };
            assert_eq!(run(&workload, || Ok(())).unwrap().operations, 3 * calls);
        }
    }

    #[test]
    fn threads_in_step_make_the_same_number_of_calls() {
        for threads in [1, 2, 5] {
            let workload = Workload {
                in_step: true,
                ..workload(Method::RandChacha, threads)
            };
            let work = run(&workload, || Ok(())).unwrap();
            assert!(work.operations >= threads as u64);
            assert_eq!(work.operations % threads as u64, 0);
            assert!(work.wall >= Duration::from_millis(5));
        }
    }

    #[test]
    fn an_error_before_the_start_ends_every_thread() {
        let error = run(&workload(Method::GetBytes, 3), || {
            bail!("the pipe is closed")
        });
        assert_eq!(error.unwrap_err().to_string(), "the pipe is closed");
    }

    #[test]
    fn a_buffer_lies_where_it_was_asked_to() {
        for offset in 0..64 {
            let mut placed = Placed::new(16, offset);
            assert_eq!(placed.bytes().as_ptr() as usize % 64, offset);
            assert_eq!(placed.bytes().len(), 16);
        }
    }
}
