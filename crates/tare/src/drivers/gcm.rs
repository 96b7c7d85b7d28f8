//! AES-GCM's speed: this house's paths, and other libraries beside them.

use std::hint::black_box;

use anyhow::anyhow;
use aws_lc_rs::aead as aws;
use ring::aead as ring_aead;
use tare_gcm::{
    open_each, seal_each, Key, Nonce, OpenPacket, Path, SealPacket, SharedRead, SharedWrite, Tag,
};
use tare_lab::driver::{Driver, Invocation, Missing, Parameter, ParameterKind, Vocabulary};
use tare_lab::sample::OPERATIONS;
use tare_lab::unit::{Dimension, Unit};
use tare_lab::value::Parameters;

use super::{count, duration, own_trial, parameter, text, Workload};
use crate::pace;
use crate::trial::{Speaker, TrialError};

/// The part of a trial's duration that its warm-up takes on top.
const WARM_UP: f64 = 0.15;

/// Bytes of source that no processor's private cache holds.
const COLD_BYTES: usize = 64 << 20;

/// Additional data of a message: those of ESP with extended sequence numbers.
const AAD: [u8; 12] = [7; 12];

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
        implementations.extend(["aws_lc_rs", "copy_aws_lc_rs", "ring"].map(String::from));
        Vocabulary {
            name: "gcm".into(),
            about: "AES-GCM sealed and opened, by this house's paths and by other libraries".into(),
            parameters: vec![
                parameter(
                    "implementation",
                    ParameterKind::Choice(implementations),
                    Some("best".into()),
                    "best, a path, or another library; copy_aws_lc_rs copies to private memory first",
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
            peers: vec![],
            metrics: vec![
                ("message_rate".into(), Dimension::OperationRate),
                ("throughput".into(), Dimension::DataRate),
                ("time".into(), Dimension::Time),
            ],
            counters: [OPERATIONS, "bytes"].map(String::from).to_vec(),
            open: false,
        }
    }

    fn check(&self, parameters: &Parameters) -> Result<(), Missing> {
        match text(parameters, "implementation")
            .ok()
            .and_then(Path::by_name)
        {
            Some(path) => check_path(path),
            None => Ok(()),
        }
    }

    fn invocation(&self, parameters: &Parameters) -> Invocation {
        let expected = duration(parameters, "duration").unwrap_or_default();
        own_trial("gcm", parameters, expected.mul_f64(1.0 + WARM_UP))
    }
}

impl Workload for Gcm {
    fn run(&self, parameters: &Parameters, speaker: &mut Speaker) -> Result<(), TrialError> {
        let operation = operation(parameters)?;
        let size = count(parameters, "size")?;
        let batch = count(parameters, "batch")?;
        let duration = duration(parameters, "duration")?;
        let key = vec![9; key_length(parameters)?];
        let messages = match text(parameters, "source")? {
            "cold" => (COLD_BYTES / size).max(batch),
            _ => batch,
        };
        let mut messages = Messages::new(&key, operation, size, messages, batch)?;
        let mut cipher = Cipher::new(text(parameters, "implementation")?, &key)?;
        let mut turn = || match operation {
            Operation::Seal => cipher.seal(&mut messages),
            Operation::Open => cipher.open(&mut messages),
        };
        let calls = pace::warm_up(duration.mul_f64(WARM_UP), &mut turn)?;
        speaker.start()?;
        let timed = pace::run(calls, duration, None, &mut turn)?;
        let done = timed.operations * batch as u64;
        let seconds = timed.cpu.as_secs_f64();
        let rate = done as f64 / seconds;
        speaker.sample("message_rate", rate, Unit::OperationsPerSecond)?;
        speaker.sample("throughput", rate * size as f64, Unit::BytesPerSecond)?;
        speaker.sample("time", 1.0 / rate, Unit::Seconds)?;
        speaker.counters(&[(OPERATIONS, done), ("bytes", done * size as u64)])?;
        Ok(())
    }
}

/// Messages in a row, taken `batch` at a time and over again.
struct Messages {
    size: usize,
    /// From one message's first byte to the next one's: whole cache lines, as packet buffers have.
    stride: usize,
    batch: usize,
    at: usize,
    sources: Vec<u8>,
    tags: Vec<Tag>,
    outputs: Vec<u8>,
}

impl Messages {
    fn new(
        key: &[u8],
        operation: Operation,
        size: usize,
        messages: usize,
        batch: usize,
    ) -> anyhow::Result<Messages> {
        let stride = size.next_multiple_of(64);
        let mut sources: Vec<u8> = (0..stride * messages).map(|at| at as u8).collect();
        let mut tags = vec![Tag::from([0; 16]); messages];
        if operation == Operation::Open {
            let key = Key::new(key)?;
            for (at, message) in sources.chunks_exact_mut(stride).enumerate() {
                tags[at] = key.seal_in_place(nonce(at), &AAD, &mut message[..size])?;
            }
        }
        Ok(Messages {
            size,
            stride,
            batch,
            at: 0,
            sources,
            tags,
            outputs: vec![0; stride * batch],
        })
    }

    /// The number of the next call's first message.
    fn advance(&mut self) -> usize {
        let at = self.at;
        self.at += self.batch;
        if self.at + self.batch > self.tags.len() {
            self.at = 0;
        }
        at
    }
}

fn nonce(message: usize) -> Nonce {
    let mut bytes = [0x5c; 12];
    bytes[4..].copy_from_slice(&(message as u64).to_be_bytes());
    Nonce::from(bytes)
}

/// An implementation with its key.
enum Cipher {
    Ours(Key),
    Aws(aws::LessSafeKey),
    /// Copies each message to private memory first: what makes an ordinary library safe here.
    CopyAws(aws::LessSafeKey, Vec<u8>),
    Ring(Box<ring_aead::LessSafeKey>, Vec<u8>),
}

impl Cipher {
    fn new(name: &str, key: &[u8]) -> anyhow::Result<Cipher> {
        let aws_key = || {
            let algorithm = if key.len() == 16 {
                &aws::AES_128_GCM
            } else {
                &aws::AES_256_GCM
            };
            aws::UnboundKey::new(algorithm, key)
                .map(aws::LessSafeKey::new)
                .map_err(|_| anyhow!("aws-lc-rs refused the key"))
        };
        Ok(match name {
            "best" => Cipher::Ours(Key::new(key)?),
            "aws_lc_rs" => Cipher::Aws(aws_key()?),
            "copy_aws_lc_rs" => Cipher::CopyAws(aws_key()?, Vec::new()),
            "ring" => {
                let algorithm = if key.len() == 16 {
                    &ring_aead::AES_128_GCM
                } else {
                    &ring_aead::AES_256_GCM
                };
                let key = ring_aead::UnboundKey::new(algorithm, key)
                    .map_err(|_| anyhow!("ring refused the key"))?;
                Cipher::Ring(Box::new(ring_aead::LessSafeKey::new(key)), Vec::new())
            }
            path => {
                let path = Path::by_name(path)
                    .ok_or_else(|| anyhow!("found implementation \"{path}\""))?;
                Cipher::Ours(Key::with_path(key, path)?)
            }
        })
    }

    /// Seals the next call's messages. Other libraries seal where the plaintext lies.
    fn seal(&mut self, messages: &mut Messages) -> anyhow::Result<()> {
        let first = messages.advance();
        let (size, stride) = (messages.size, messages.stride);
        let sources = &messages.sources[first * stride..][..messages.batch * stride];
        let outputs = &mut messages.outputs[..];
        match self {
            Cipher::Ours(key) if messages.batch == 1 => {
                messages.tags[first] = key.seal(
                    nonce(first),
                    &AAD,
                    &sources[..size],
                    SharedWrite::from(&mut outputs[..size]),
                )?;
            }
            Cipher::Ours(key) => {
                let buffers = pieces(sources, stride, size).zip(pieces_mut(outputs, stride, size));
                let packets = buffers.enumerate().map_while(|(at, (source, output))| {
                    let output = SharedWrite::from(output);
                    SealPacket::new(key, nonce(first + at), &AAD, source, output).ok()
                });
                let tags = &mut messages.tags[first..first + messages.batch];
                let mut sealed = 0;
                seal_each(packets, |number, tag| {
                    tags[number] = tag;
                    sealed += 1;
                });
                anyhow::ensure!(
                    sealed == tags.len(),
                    "{sealed} of {} messages were sealed",
                    tags.len()
                );
            }
            Cipher::Aws(key) | Cipher::CopyAws(key, _) => {
                for (at, output) in pieces_mut(outputs, stride, size).enumerate() {
                    let nonce = aws::Nonce::assume_unique_for_key(*nonce(first + at).as_bytes());
                    let tag = key
                        .seal_in_place_separate_tag(nonce, aws::Aad::from(AAD), output)
                        .map_err(|_| anyhow!("aws-lc-rs did not seal"))?;
                    let _ = black_box(tag);
                }
            }
            Cipher::Ring(key, _) => {
                for (at, output) in pieces_mut(outputs, stride, size).enumerate() {
                    let nonce =
                        ring_aead::Nonce::assume_unique_for_key(*nonce(first + at).as_bytes());
                    let tag = key
                        .seal_in_place_separate_tag(nonce, ring_aead::Aad::from(AAD), output)
                        .map_err(|_| anyhow!("ring did not seal"))?;
                    let _ = black_box(tag);
                }
            }
        }
        Ok(())
    }

    /// Opens the next call's messages, from one buffer into another.
    fn open(&mut self, messages: &mut Messages) -> anyhow::Result<()> {
        let first = messages.advance();
        let (size, stride, batch) = (messages.size, messages.stride, messages.batch);
        let sources = &messages.sources[first * stride..][..batch * stride];
        let tags = &messages.tags[first..first + batch];
        let outputs = &mut messages.outputs[..];
        match self {
            Cipher::Ours(key) if batch == 1 => {
                key.open(
                    &nonce(first),
                    &AAD,
                    SharedRead::from(&sources[..size]),
                    &tags[0],
                    &mut outputs[..size],
                )?;
            }
            Cipher::Ours(key) => {
                let buffers = pieces(sources, stride, size).zip(pieces_mut(outputs, stride, size));
                let packets = buffers.enumerate().map_while(|(at, (source, output))| {
                    let source = SharedRead::from(source);
                    OpenPacket::new(key, nonce(first + at), &AAD, source, tags[at], output).ok()
                });
                let opened = open_each(packets, |_, _| {});
                anyhow::ensure!(opened == batch, "{opened} of {batch} messages were opened");
            }
            Cipher::Aws(key) => {
                for (at, (source, output)) in pieces(sources, stride, size)
                    .zip(pieces_mut(outputs, stride, size))
                    .enumerate()
                {
                    let nonce = aws::Nonce::assume_unique_for_key(*nonce(first + at).as_bytes());
                    let tag = tags[at].as_bytes();
                    key.open_separate_gather(nonce, aws::Aad::from(AAD), source, tag, output)
                        .map_err(|_| anyhow!("aws-lc-rs did not open"))?;
                }
            }
            Cipher::CopyAws(key, private) => {
                for (at, source) in pieces(sources, stride, size).enumerate() {
                    let nonce = aws::Nonce::assume_unique_for_key(*nonce(first + at).as_bytes());
                    copy(private, source, &tags[at]);
                    key.open_in_place(nonce, aws::Aad::from(AAD), private)
                        .map_err(|_| anyhow!("aws-lc-rs did not open"))?;
                }
            }
            Cipher::Ring(key, private) => {
                for (at, source) in pieces(sources, stride, size).enumerate() {
                    let nonce =
                        ring_aead::Nonce::assume_unique_for_key(*nonce(first + at).as_bytes());
                    copy(private, source, &tags[at]);
                    key.open_in_place(nonce, ring_aead::Aad::from(AAD), private)
                        .map_err(|_| anyhow!("ring did not open"))?;
                }
            }
        }
        Ok(())
    }
}

/// The first `size` bytes of each `stride`.
fn pieces(all: &[u8], stride: usize, size: usize) -> impl Iterator<Item = &[u8]> {
    all.chunks_exact(stride).map(move |piece| &piece[..size])
}

fn pieces_mut(all: &mut [u8], stride: usize, size: usize) -> impl Iterator<Item = &mut [u8]> {
    all.chunks_exact_mut(stride)
        .map(move |piece| &mut piece[..size])
}

fn copy(private: &mut Vec<u8>, source: &[u8], tag: &Tag) {
    private.clear();
    private.extend_from_slice(source);
    private.extend_from_slice(tag.as_bytes());
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
