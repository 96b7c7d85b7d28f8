//! AES-GCM's speed: this house's paths, and other libraries beside them.

mod others;

use std::time::Duration;

use anyhow::anyhow;
use tare_gcm::{
    open_each, seal_each, Key, Nonce, OpenPacket, Path, SealPacket, SharedRead, SharedWrite, Tag,
};
use tare_lab::driver::{
    Driver, Expected, Invocation, Missing, Parameter, ParameterKind, Role, Vocabulary,
};
use tare_lab::sample::OPERATIONS;
use tare_lab::unit::{Dimension, Unit};
use tare_lab::value::Parameters;

use self::others::Other;
use super::{count, duration, own_trial, parameter, text, Workload};
use crate::pace::{self, Timed};
use crate::references;
use crate::trial::{Speaker, TrialError};

/// The part of a trial's duration that its warm-up takes on top.
const WARM_UP: f64 = 0.15;

/// Bytes of source that no processor's private cache holds.
const COLD_BYTES: usize = 64 << 20;

/// Messages that the cache holds, at least: single calls then work on as many as batches do.
const CACHED_MESSAGES: usize = 32;

/// Additional data of a message: those of ESP with extended sequence numbers.
const AAD: [u8; 12] = [7; 12];

/// The implementations of other libraries, which only a build with the feature `references` has.
const REFERENCES: [&str; 3] = ["aws_lc_rs", "copy_aws_lc_rs", "ring"];

pub(super) struct Gcm;

/// Which way a message goes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Operation {
    /// From private to shared memory.
    Seal,
    /// From shared to private memory.
    Open,
}

impl Driver for Gcm {
    fn vocabulary(&self) -> Vocabulary {
        let mut implementations = vec!["best".to_owned()];
        implementations.extend(Path::ALL.iter().map(ToString::to_string));
        implementations.push("copy_best".into());
        implementations.extend(REFERENCES.map(String::from));
        Vocabulary {
            name: "gcm".into(),
            about: "AES-GCM sealed and opened, by this house's paths and by other libraries".into(),
            parameters: vec![
                parameter(
                    "implementation",
                    ParameterKind::Choice(implementations),
                    Some("best".into()),
                    "best, a path, or another library; copy_… copies to private memory first",
                ),
                operation_parameter(),
                key_parameter(),
                parameter(
                    "size",
                    ParameterKind::Int(1, 1 << 20),
                    Some(1440.into()),
                    "bytes of payload a message",
                ),
                parameter(
                    "batch",
                    ParameterKind::Int(1, 1024),
                    Some(1.into()),
                    "messages a call; other libraries take them one by one",
                ),
                parameter(
                    "keys",
                    ParameterKind::Choice(vec!["one".into(), "each".into()]),
                    Some("one".into()),
                    "one key for all messages, or a key each; a key each is for this house's paths and cached sources",
                ),
                parameter(
                    "source",
                    ParameterKind::Choice(vec!["cached".into(), "cold".into()]),
                    Some("cached".into()),
                    "whether the private caches hold the source",
                ),
                parameter(
                    "duration",
                    ParameterKind::Quantity(Dimension::Time),
                    Some("30 ms".into()),
                    "the measured part of a trial",
                ),
            ],
            references: vec![],
            metrics: vec![
                ("cpu_message_rate".into(), Dimension::OperationRate),
                ("cpu_throughput".into(), Dimension::DataRate),
                ("cpu_time".into(), Dimension::Time),
            ],
            counters: [OPERATIONS, "bytes"].map(String::from).to_vec(),
            open: false,
            deterministic: false,
        }
    }

    fn check(&self, parameters: &Parameters) -> Result<(), Missing> {
        let Ok(implementation) = text(parameters, "implementation") else {
            return Ok(());
        };
        match Path::by_name(implementation) {
            Some(path) => check_path(path),
            None if REFERENCES.contains(&implementation) => references::check(),
            None => Ok(()),
        }
    }

    fn invocation(&self, _: &Role, parameters: &Parameters) -> Invocation {
        let expected = duration(parameters, "duration").unwrap_or_default();
        let trial = own_trial("gcm", parameters, expected.mul_f64(1.0 + WARM_UP));
        let is_cold = text(parameters, "source").is_ok_and(|source| source == "cold");
        // Sealed beforehand, in memory that is new to the process.
        let sources = Duration::from_millis(if is_cold { 80 } else { 0 });
        Invocation {
            expected: trial.expected.map(|expected| Expected {
                work: expected.work + sources,
                ..expected
            }),
            ..trial
        }
    }
}

impl Workload for Gcm {
    fn run(&self, parameters: &Parameters, speaker: &mut Speaker) -> Result<(), TrialError> {
        let operation = operation(parameters)?;
        let size = count(parameters, "size")?;
        let batch = count(parameters, "batch")?;
        let duration = duration(parameters, "duration")?;
        let implementation = text(parameters, "implementation")?;
        let cold = text(parameters, "source")? == "cold";
        let messages = if cold {
            (COLD_BYTES / size).max(batch)
        } else {
            CACHED_MESSAGES.max(batch)
        };
        let keys = match text(parameters, "keys")? {
            "each" if cold => return Err(anyhow!("keys: a key each is for cached sources").into()),
            "each" => messages,
            _ => 1,
        };
        let keys: Vec<Vec<u8>> = (0..keys)
            .map(|number| {
                let mut key = vec![9; key_length(parameters)?];
                key[..4].copy_from_slice(&(number as u32).to_le_bytes());
                Ok(key)
            })
            .collect::<anyhow::Result<_>>()?;
        // Whole cache lines from one message to the next, as packet buffers have.
        let stride = size.next_multiple_of(64);
        let mut sources = Placed::new(stride * messages, 0);
        let mut outputs = Placed::new(stride * batch, PAGE / 2);
        let (sources, outputs) = (sources.bytes_mut(), outputs.bytes_mut());
        let messages = &mut Messages::new(&keys, operation, size, sources, outputs)?;
        // Chosen here, outside the loop, which else would pay for the choice in each of its calls
        // of 15 ns.
        let timed = match (Cipher::new(implementation, &keys)?, operation) {
            (Cipher::Ours(keys), Operation::Seal) if batch == 1 => {
                timed(duration, speaker, || keys.seal_one(messages))?
            }
            (Cipher::Ours(keys), Operation::Open) if batch == 1 => {
                timed(duration, speaker, || keys.open_one(messages))?
            }
            (Cipher::Ours(keys), Operation::Seal) => {
                timed(duration, speaker, || keys.seal_batch(messages))?
            }
            (Cipher::Ours(keys), Operation::Open) => {
                timed(duration, speaker, || keys.open_batch(messages))?
            }
            (Cipher::CopyOurs(..), Operation::Seal) => {
                return Err(anyhow!("operation: found seal, expected open for copy_best").into())
            }
            (Cipher::CopyOurs(key, mut private), Operation::Open) => {
                timed(duration, speaker, || {
                    open_copy(&key, &mut private, messages)
                })?
            }
            (Cipher::Other(mut other), Operation::Seal) => {
                timed(duration, speaker, || other.seal(messages))?
            }
            (Cipher::Other(mut other), Operation::Open) => {
                timed(duration, speaker, || other.open(messages))?
            }
        };
        let done = timed.operations * batch as u64;
        let seconds = timed.cpu.as_secs_f64();
        let rate = done as f64 / seconds;
        speaker.sample("cpu_message_rate", rate, Unit::OperationsPerSecond)?;
        speaker.sample("cpu_throughput", rate * size as f64, Unit::BytesPerSecond)?;
        speaker.sample("cpu_time", 1.0 / rate, Unit::Seconds)?;
        speaker.counters(&[(OPERATIONS, done), ("bytes", done * size as u64)])?;
        Ok(())
    }
}

/// Warms up, starts the trial and times it.
fn timed(
    duration: Duration,
    speaker: &mut Speaker,
    mut turn: impl FnMut() -> anyhow::Result<()>,
) -> anyhow::Result<Timed> {
    let calls = pace::warm_up(duration.mul_f64(WARM_UP), &mut turn)?;
    speaker.start()?;
    pace::run(calls, duration, None, turn)
}

/// Messages, taken as many at a time as there are outputs, and over again.
struct Messages<'a> {
    at: usize,
    sources: Vec<&'a [u8]>,
    tags: Vec<Tag>,
    outputs: Vec<&'a mut [u8]>,
}

/// Bytes at a chosen offset in a page. Where messages lie decides how often an access takes two
/// cache lines, and how often a load waits for a store to the same place of another page; the
/// allocator would choose anew in every trial.
struct Placed {
    room: Vec<u8>,
    start: usize,
    len: usize,
}

/// The smallest page.
const PAGE: usize = 4096;

impl Placed {
    fn new(len: usize, offset: usize) -> Placed {
        let room = vec![0; len + 2 * PAGE];
        Placed {
            start: room.as_ptr().align_offset(PAGE) + offset,
            room,
            len,
        }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.room[self.start..][..self.len]
    }
}

impl<'a> Messages<'a> {
    /// Messages of `size` bytes, each at the start of a whole number of cache lines.
    fn new(
        keys: &[Vec<u8>],
        operation: Operation,
        size: usize,
        sources: &'a mut [u8],
        outputs: &'a mut [u8],
    ) -> anyhow::Result<Messages<'a>> {
        for (at, byte) in sources.iter_mut().enumerate() {
            *byte = at as u8;
        }
        let keys = Keys::new(keys, Path::best())?;
        let stride = size.next_multiple_of(64);
        let mut messages = Messages {
            at: 0,
            sources: Vec::new(),
            tags: Vec::new(),
            outputs: Vec::new(),
        };
        for (at, source) in sources.chunks_exact_mut(stride).enumerate() {
            let source = &mut source[..size];
            messages.tags.push(match operation {
                Operation::Seal => Tag::from([0; 16]),
                Operation::Open => keys.of(at).seal_in_place(nonce(at), &AAD, source)?,
            });
            messages.sources.push(source);
        }
        for output in outputs.chunks_exact_mut(stride) {
            messages.outputs.push(&mut output[..size]);
        }
        Ok(messages)
    }

    /// The next call's messages.
    #[inline(always)]
    fn next(&mut self) -> Call<'_, 'a> {
        let (first, batch) = (self.at, self.outputs.len());
        self.at += batch;
        if self.at + batch > self.tags.len() {
            self.at = 0;
        }
        Call {
            first,
            sources: &self.sources[first..][..batch],
            tags: &mut self.tags[first..][..batch],
            outputs: &mut self.outputs,
        }
    }
}

/// The messages of one call.
struct Call<'c, 'a> {
    /// The number of the first.
    first: usize,
    sources: &'c [&'a [u8]],
    tags: &'c mut [Tag],
    outputs: &'c mut [&'a mut [u8]],
}

fn nonce(message: usize) -> Nonce {
    Nonce::from_parts([0x5c; 4], message as u64)
}

/// An implementation with its key.
enum Cipher {
    Ours(Keys),
    /// Copies each message to private memory first: what makes an ordinary library safe here.
    CopyOurs(Key, Vec<u8>),
    Other(Other),
}

/// One key for all messages, or a key each.
struct Keys {
    keys: Vec<Key>,
    /// Of a message's number: which key it has.
    mask: usize,
}

impl Cipher {
    fn new(name: &str, keys: &[Vec<u8>]) -> anyhow::Result<Cipher> {
        let path = match name {
            "best" => Some(Path::best()),
            name => Path::by_name(name),
        };
        if let Some(path) = path {
            return Ok(Cipher::Ours(Keys::new(keys, path)?));
        }
        let [key] = keys else {
            return Err(anyhow!("keys: found each, expected one for {name}"));
        };
        if name == "copy_best" {
            return Ok(Cipher::CopyOurs(
                Key::with_path(key, Path::best())?,
                Vec::new(),
            ));
        }
        Ok(Cipher::Other(Other::new(name, key)?))
    }
}

impl Keys {
    fn new(keys: &[Vec<u8>], path: Path) -> anyhow::Result<Keys> {
        let keys = keys
            .iter()
            .map(|key| Key::with_path(key, path))
            .collect::<Result<Vec<_>, _>>()?;
        let mask = if keys.len() == 1 { 0 } else { usize::MAX };
        Ok(Keys { keys, mask })
    }

    #[inline(always)]
    fn of(&self, message: usize) -> &Key {
        &self.keys[message & self.mask]
    }

    fn seal_one(&self, messages: &mut Messages<'_>) -> anyhow::Result<()> {
        let call = messages.next();
        call.tags[0] = self.of(call.first).seal(
            nonce(call.first),
            &AAD,
            call.sources[0],
            SharedWrite::from(&mut *call.outputs[0]),
        )?;
        Ok(())
    }

    fn open_one(&self, messages: &mut Messages<'_>) -> anyhow::Result<()> {
        let call = messages.next();
        self.of(call.first).open(
            &nonce(call.first),
            &AAD,
            SharedRead::from(call.sources[0]),
            &call.tags[0],
            call.outputs[0],
        )?;
        Ok(())
    }

    fn seal_batch(&self, messages: &mut Messages<'_>) -> anyhow::Result<()> {
        let call = messages.next();
        let buffers = call.sources.iter().zip(call.outputs.iter_mut());
        let packets = buffers.enumerate().map_while(|(at, (source, output))| {
            let number = call.first + at;
            let output = SharedWrite::from(&mut **output);
            SealPacket::new(self.of(number), nonce(number), &AAD, source, output).ok()
        });
        let (batch, mut sealed) = (call.tags.len(), 0);
        seal_each(packets, |number, tag| {
            call.tags[number] = tag;
            sealed += 1;
        });
        anyhow::ensure!(sealed == batch, "{sealed} of {batch} messages were sealed");
        Ok(())
    }

    fn open_batch(&self, messages: &mut Messages<'_>) -> anyhow::Result<()> {
        let call = messages.next();
        let buffers = call.sources.iter().zip(call.outputs.iter_mut());
        let packets = buffers.zip(call.tags.iter()).enumerate();
        let packets = packets.map_while(|(at, ((source, output), tag))| {
            let number = call.first + at;
            let source = SharedRead::from(*source);
            OpenPacket::new(self.of(number), nonce(number), &AAD, source, *tag, output).ok()
        });
        let (batch, opened) = (call.tags.len(), open_each(packets, |_, _| {}));
        anyhow::ensure!(opened == batch, "{opened} of {batch} messages were opened");
        Ok(())
    }
}

/// Opens the next call's messages one by one, each copied to private memory first.
fn open_copy(key: &Key, private: &mut Vec<u8>, messages: &mut Messages<'_>) -> anyhow::Result<()> {
    let call = messages.next();
    for (at, source) in call.sources.iter().enumerate() {
        private.clear();
        private.extend_from_slice(source);
        key.open_in_place(&nonce(call.first + at), &AAD, private, &call.tags[at])?;
    }
    Ok(())
}

pub(super) fn operation_parameter() -> Parameter {
    parameter(
        "operation",
        ParameterKind::Choice(vec!["seal".into(), "open".into()]),
        Some("seal".into()),
        "private to shared memory, or shared to private",
    )
}

pub(super) fn key_parameter() -> Parameter {
    parameter(
        "key",
        ParameterKind::Int(128, 256),
        Some(128.into()),
        "bits of the key: 128 or 256",
    )
}

pub(super) fn operation(parameters: &Parameters) -> anyhow::Result<Operation> {
    match text(parameters, "operation")? {
        "seal" => Ok(Operation::Seal),
        "open" => Ok(Operation::Open),
        other => Err(anyhow!(
            "parameter operation: found \"{other}\", expected seal or open"
        )),
    }
}

/// The key's length in bytes.
pub(super) fn key_length(parameters: &Parameters) -> anyhow::Result<usize> {
    match count(parameters, "key")? {
        bits @ (128 | 256) => Ok(bits / 8),
        other => Err(anyhow!("parameter key: found {other}, expected 128 or 256")),
    }
}

/// Whether this processor has what a path needs.
pub(super) fn check_path(path: Path) -> Result<(), Missing> {
    if path.is_available() {
        return Ok(());
    }
    Err(Missing {
        reason: format!("this processor lacks the instructions of the path {path}"),
        remedy: Some(
            "a processor with VAES and VPCLMULQDQ (Intel Ice Lake, AMD Zen 3 or later), or a hypervisor that passes them on"
                .into(),
        ),
    })
}
