//! AES-GCM's speed: tare-gcm's backends, and references beside them.

use std::time::Duration;

use tare_gcm::{Key, Path};
use tare_lab::driver::{Expected, Missing, Mistake};
use tare_lab::parameters::Choice;
use tare_lab::{choices, figures, parameters};

use super::messages::{nonce, open_copy, Keys, Messages, Placed, AAD, PAGE};
use super::{KeyBits, Operation};
use crate::agent::{Agent, TrialError};
use crate::machine::{Feature, Machine};
use crate::pace::{self, Timed};
use crate::references::aead::{self, Aead};
use crate::systems::workload::{by_the_clock, mistake, References, Workload};

/// The part of a trial's duration that its warm-up takes on top.
const WARM_UP: f64 = 0.15;

/// Bytes of source that no processor's private cache holds.
const COLD_BYTES: usize = 64 << 20;

/// Messages that the cache holds, at least: single calls then work on as many as batches do.
const CACHED_MESSAGES: usize = 32;

/// An implementation of AES-GCM.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Implementation {
    /// tare-gcm's fastest backend on this processor.
    Best,
    /// One of its backends.
    Path(Path),
    /// The fastest, with each message copied to private memory before it is opened.
    CopyBest,
    /// A library that Tare is compared with.
    Reference(Aead),
}

impl Choice for Implementation {
    fn all() -> Vec<Implementation> {
        let mut all = vec![Implementation::Best];
        all.extend(Path::ALL.map(Implementation::Path));
        all.push(Implementation::CopyBest);
        all.extend(Aead::all().into_iter().map(Implementation::Reference));
        all
    }

    fn name(&self) -> &'static str {
        match self {
            Implementation::Best => "best",
            Implementation::Path(path) => path.name(),
            Implementation::CopyBest => "copy_best",
            Implementation::Reference(aead) => aead.name(),
        }
    }
}

choices! {
    /// The number of keys.
    #[derive(Clone, Copy, PartialEq, Eq)]
    pub(crate) enum KeyCount {
        /// One for all messages.
        One = "one",
        /// One for each message.
        Each = "each",
    }
}

choices! {
    /// The place of a message's source.
    #[derive(Clone, Copy, PartialEq, Eq)]
    pub(crate) enum Source {
        /// In the private caches.
        Cached = "cached",
        /// In memory, or in a cache that is shared.
        Cold = "cold",
    }
}

parameters! {
    /// The parameters of the driver `gcm`.
    pub(crate) struct GcmParameters {
        /// best, a path of tare-gcm, or a reference; copy_… copies to private memory first
        implementation: Implementation = "best",
        /// private to shared memory, or shared to private
        operation: Operation = "seal",
        /// bits of the key: 128 or 256
        key: KeyBits = 128,
        /// bytes of payload per message
        size: usize [1..=1 << 20] = 1440,
        /// messages per call; references take them one by one
        batch: usize [1..=1024] = 1,
        /// one key for all messages, or a key for each, which tare-gcm takes with cached sources
        keys: KeyCount = "one",
        /// whether the private caches hold the source
        source: Source = "cached",
        /// the measured part of a trial
        duration: Duration = "30 ms",
    }
}

figures! {
    /// The figures of a trial of `gcm`.
    pub(crate) struct GcmFigures {
        metrics {
            /// messages per second of processor time
            cpu_message_rate: f64 [OperationsPerSecond],
            /// bytes of payload per second of processor time
            cpu_throughput: f64 [BytesPerSecond],
            /// processor time per message
            cpu_time: f64 [Seconds],
        }
        counters {
            /// messages
            operations,
            /// bytes of payload
            bytes,
        }
    }
}

/// The driver `gcm`.
pub(crate) struct Gcm;

impl Workload for Gcm {
    const NAME: &'static str = "gcm";
    const ABOUT: &'static str =
        "AES-GCM sealed and opened, by tare-gcm's backends and by references";
    type Parameters = GcmParameters;
    type Figures = GcmFigures;

    fn references() -> Option<References> {
        let references = Aead::all();
        Some(References {
            parameter: "implementation",
            names: references.iter().map(Aead::name).collect(),
        })
    }

    fn examine(parameters: &GcmParameters) -> Result<(), Mistake> {
        let name = parameters.implementation.name();
        match parameters.implementation {
            Implementation::CopyBest if parameters.operation == Operation::Seal => {
                return Err(mistake("operation", "seal", "open for copy_best"))
            }
            _ => {}
        }
        if parameters.keys == KeyCount::Each {
            if parameters.source == Source::Cold {
                return Err(mistake("keys", "each", "one where source is cold"));
            }
            if !matches!(
                parameters.implementation,
                Implementation::Best | Implementation::Path(_)
            ) {
                return Err(mistake("keys", "each", &format!("one for {name}")));
            }
        }
        Ok(())
    }

    fn check(parameters: &GcmParameters, machine: &Machine) -> Result<(), Missing> {
        match parameters.implementation {
            Implementation::Best | Implementation::CopyBest => Ok(()),
            Implementation::Path(path) => machine.need(Feature::GcmPath(path)),
            Implementation::Reference(_) => machine.need(Feature::References),
        }
    }

    fn expected(parameters: &GcmParameters) -> Option<Expected> {
        let trial = by_the_clock(parameters.duration.mul_f64(1.0 + WARM_UP));
        // Sealed beforehand, in memory that is new to the process.
        let sources = match parameters.source {
            Source::Cached => Duration::ZERO,
            Source::Cold => Duration::from_millis(80),
        };
        Some(Expected {
            work: trial.work + sources,
            ..trial
        })
    }

    fn run(parameters: GcmParameters, agent: &mut Agent) -> Result<GcmFigures, TrialError> {
        let (size, batch) = (parameters.size, parameters.batch);
        let (operation, duration) = (parameters.operation, parameters.duration);
        let messages = match parameters.source {
            // Each message begins on a line of the cache.
            Source::Cold => (COLD_BYTES / size.next_multiple_of(64)).max(batch),
            Source::Cached => CACHED_MESSAGES.max(batch),
        };
        let keys = match parameters.keys {
            KeyCount::One => 1,
            KeyCount::Each => messages,
        };
        let keys: Vec<Vec<u8>> = (0..keys)
            .map(|number| {
                let mut key = vec![9; parameters.key.bytes()];
                key[..4].copy_from_slice(&(number as u32).to_le_bytes());
                key
            })
            .collect();
        // Whole cache lines from one message to the next, as packet buffers have.
        let stride = size.next_multiple_of(64);
        let mut sources = Placed::new(stride * messages, 0);
        let mut outputs = Placed::new(stride * batch, PAGE / 2);
        let (sources, outputs) = (sources.bytes_mut(), outputs.bytes_mut());
        let messages = &mut Messages::new(&keys, operation, size, sources, outputs)?;
        // Chosen here, outside the loop, which else would pay for the choice in each of its calls
        // of 15 ns.
        let timed = match (Cipher::new(parameters.implementation, &keys)?, operation) {
            (Cipher::Own(keys), Operation::Seal) if batch == 1 => {
                timed(duration, agent, || keys.seal_one(messages))?
            }
            (Cipher::Own(keys), Operation::Open) if batch == 1 => {
                timed(duration, agent, || keys.open_one(messages))?
            }
            (Cipher::Own(keys), Operation::Seal) => {
                timed(duration, agent, || keys.seal_batch(messages))?
            }
            (Cipher::Own(keys), Operation::Open) => {
                timed(duration, agent, || keys.open_batch(messages))?
            }
            (Cipher::CopyOwn(key, mut private), _) => {
                timed(duration, agent, || open_copy(&key, &mut private, messages))?
            }
            (Cipher::Reference(mut reference), Operation::Seal) => timed(duration, agent, || {
                let call = messages.next();
                reference.seal(|at| (*nonce(call.first + at).as_bytes(), AAD), call.outputs)
            })?,
            (Cipher::Reference(mut reference), Operation::Open) => timed(duration, agent, || {
                let call = messages.next();
                let message = |at| (*nonce(call.first + at).as_bytes(), AAD);
                reference.open(message, call.sources, call.tags, call.outputs)
            })?,
        };
        let done = timed.operations * batch as u64;
        let rate = done as f64 / timed.cpu.as_secs_f64();
        Ok(GcmFigures {
            cpu_message_rate: rate,
            cpu_throughput: rate * size as f64,
            cpu_time: 1.0 / rate,
            operations: done,
            bytes: done * size as u64,
        })
    }
}

/// Warms up, starts the trial and times it.
fn timed(
    duration: Duration,
    agent: &mut Agent,
    mut turn: impl FnMut() -> anyhow::Result<()>,
) -> anyhow::Result<Timed> {
    let calls = pace::warm_up(duration.mul_f64(WARM_UP), &mut turn)?;
    agent.start()?;
    pace::run(calls, duration, None, turn)
}

/// An implementation with its key.
enum Cipher {
    Own(Keys),
    /// Copies each message to private memory first: what makes an ordinary library safe here.
    CopyOwn(Key, Vec<u8>),
    Reference(aead::Reference),
}

impl Cipher {
    fn new(implementation: Implementation, keys: &[Vec<u8>]) -> anyhow::Result<Cipher> {
        let first = &keys[0];
        Ok(match implementation {
            Implementation::Best => Cipher::Own(Keys::new(keys, Path::best())?),
            Implementation::Path(path) => Cipher::Own(Keys::new(keys, path)?),
            Implementation::CopyBest => {
                Cipher::CopyOwn(Key::with_path(first, Path::best())?, Vec::new())
            }
            Implementation::Reference(aead) => {
                Cipher::Reference(aead::Reference::new(aead, first)?)
            }
        })
    }
}
