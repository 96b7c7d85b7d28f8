//! A hostile thread against a record that is opened or sealed at the same moment.

use super::Op;
use crate::{Error, Key, Nonce, Path, SharedRead, SharedWrite, Tag};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicU8, Ordering::Relaxed};
use std::sync::Barrier;
use std::time::{Duration, Instant};

/// The implementation under attack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Subject {
    /// This crate on one of its paths.
    Path(Path),
    /// An implementation that reads shared memory twice, as ordinary libraries do: the race must
    /// catch it, and ends at its first wrong record.
    TwoReads,
}

/// One race: the subject, the operation, the size of the records and the duration.
#[derive(Debug, Clone, Copy)]
pub struct Race {
    /// The implementation that opens or seals.
    pub subject: Subject,
    /// Opening from shared memory, or sealing into it.
    pub op: Op,
    /// 16 or 32 bytes.
    pub key_len: usize,
    /// Bytes of payload in a record, the tag not counted.
    pub record_len: usize,
    /// The duration; against [`Subject::TwoReads`] the longest. It is longer on a machine so busy
    /// that the hostile thread has not written by then, by ten seconds at most.
    pub duration: Duration,
}

/// The longest wait for the hostile thread beyond a race's duration.
const PATIENCE: Duration = Duration::from_secs(10);

impl Race {
    /// Returns true if the time is up, which is looked at after every 64 records, or an
    /// implementation that reads twice is caught.
    fn is_over(&self, report: &RaceReport, from: Instant, has_begun: &AtomicBool) -> bool {
        let is_caught = self.subject == Subject::TwoReads && report.wrong > 0;
        let looks = report.attempts > 0 && report.attempts.is_multiple_of(64);
        let is_up = || {
            let left = from.elapsed().checked_sub(self.duration);
            left.is_some_and(|over| has_begun.load(Relaxed) || over >= PATIENCE)
        };
        is_caught || (looks && is_up())
    }
}

/// The counts of a race.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RaceReport {
    /// Records opened or sealed.
    pub attempts: u64,
    /// Of these, records that were accepted (open), or all (seal).
    pub accepted: u64,
    /// Records refused because the tag did not match; open only.
    pub refused: u64,
    /// Open: accepted with a plaintext that was never sealed. Seal: a tag that is not that of the
    /// true ciphertext, so made over what the hostile thread wrote. Must be 0.
    pub wrong: u64,
    /// Open: refused, but the output was not wiped. Must be 0.
    pub unwiped: u64,
    /// Seal: bytes that the hostile thread saw in the output and that were neither there before nor
    /// ciphertext. Must be 0.
    pub exposed: u64,
    /// Writes of the hostile thread.
    pub hostile_writes: u64,
    /// The time from the first record to the last.
    pub time: Duration,
}

impl RaceReport {
    /// Returns true if nothing forbidden happened and the race took place at all.
    pub fn is_clean(&self) -> bool {
        self.attempts > 0
            && self.hostile_writes > 0
            && self.wrong == 0
            && self.unwiped == 0
            && self.exposed == 0
    }
}

const KEY: [u8; 32] = [0x6b; 32];
const NONCE: [u8; 12] = [0x5c; 12];
const AAD: [u8; 5] = [0x17, 3, 3, 0x40, 0];
/// The content of the output before it is sealed into.
const BLANK: u8 = 0xee;

/// Memory that two threads access at will.
struct Arena(Vec<AtomicU8>);

impl Arena {
    fn new(bytes: &[u8]) -> Self {
        Self(bytes.iter().map(|b| AtomicU8::new(*b)).collect())
    }

    fn read(&self, from: usize, len: usize) -> SharedRead<'_> {
        let bytes = &self.0[from..from + len];
        // SAFETY: the bytes live as long as the borrow; the other thread's accesses are atomic.
        unsafe { SharedRead::new(bytes.as_ptr().cast(), len) }
    }

    fn write(&self, from: usize, len: usize) -> SharedWrite<'_> {
        let bytes = &self.0[from..from + len];
        // SAFETY: as above; atomics may be written through a shared reference.
        unsafe { SharedWrite::new(bytes.as_ptr().cast_mut().cast(), len) }
    }

    fn copy(&self, from: usize, to: &mut [u8]) {
        for (to, from) in to.iter_mut().zip(&self.0[from..]) {
            *to = from.load(Relaxed);
        }
    }
}

/// Runs a race.
///
/// # Errors
/// [`Error::PathUnavailable`] and [`Error::KeyLength`].
pub fn race(race: &Race) -> Result<RaceReport, Error> {
    let path = match race.subject {
        Subject::Path(path) => path,
        Subject::TwoReads => Path::best(),
    };
    let key_bytes = KEY.get(..race.key_len).ok_or(Error::KeyLength {
        found: race.key_len,
    })?;
    let key = Key::with_path(key_bytes, path)?;
    let plaintext: Vec<u8> = (0..race.record_len)
        .map(|i| (i as u8).wrapping_mul(29) ^ 0x35)
        .collect();
    let mut ciphertext = plaintext.clone();
    let tag = key.seal_in_place(Nonce::from(NONCE), &AAD, &mut ciphertext)?;
    let record = Record {
        key,
        plaintext,
        ciphertext,
        tag,
    };
    match race.op {
        Op::Open => record.race_open(race),
        Op::Seal => record.race_seal(race),
    }
}

struct Record {
    key: Key,
    plaintext: Vec<u8>,
    ciphertext: Vec<u8>,
    tag: Tag,
}

/// A hostile thread's choice of places: anywhere, the last block, the tag.
fn place(random: &mut u64, payload: usize, tag: usize) -> usize {
    *random = random
        .wrapping_mul(6_364_136_223_846_793_005)
        .wrapping_add(1_442_695_040_888_963_407);
    let (kind, number) = (
        (*random >> 60) as usize,
        (*random >> 20) as usize & 0xff_ffff,
    );
    match kind {
        0..=1 if tag > 0 => payload + number % tag,
        0..=5 => payload - 1 - number % payload.min(16),
        _ => number % payload,
    }
}

impl Record {
    fn race_open(&self, race: &Race) -> Result<RaceReport, Error> {
        let len = self.plaintext.len();
        let mut record = self.ciphertext.clone();
        record.extend_from_slice(self.tag.as_bytes());
        let arena = Arena::new(&record);
        let (stop, writes) = (AtomicBool::new(false), AtomicU64::new(0));
        let has_begun = AtomicBool::new(false);
        let ready = Barrier::new(2);
        std::thread::scope(|threads| {
            threads.spawn(|| {
                let (mut random, mut count) = (1, 0);
                ready.wait();
                while !stop.load(Relaxed) {
                    let at = place(
                        &mut random,
                        len.max(1).min(record.len()),
                        record.len() - len,
                    );
                    arena.0[at].store(record[at] ^ 1 << (random >> 8 & 7), Relaxed);
                    pause(random >> 12);
                    arena.0[at].store(record[at], Relaxed);
                    pause(random >> 18);
                    if count == 0 {
                        has_begun.store(true, Relaxed);
                    }
                    count += 2;
                }
                writes.store(count, Relaxed);
            });
            ready.wait();
            let report = self.open_until(race, &arena, &has_begun);
            stop.store(true, Relaxed);
            report
        })
        .map(|report| RaceReport {
            hostile_writes: writes.load(Relaxed),
            ..report
        })
    }

    fn open_until(
        &self,
        race: &Race,
        arena: &Arena,
        has_begun: &AtomicBool,
    ) -> Result<RaceReport, Error> {
        let len = self.plaintext.len();
        let mut report = RaceReport::default();
        let mut out = vec![0; len];
        let from = Instant::now();
        while !race.is_over(&report, from, has_begun) {
            out.fill(0x99);
            let tag = Tag::load(arena.read(len, Tag::LEN))?;
            let opened = match race.subject {
                Subject::Path(_) => self.key.open(
                    &Nonce::from(NONCE),
                    &AAD,
                    arena.read(0, len),
                    &tag,
                    &mut out,
                ),
                Subject::TwoReads => self.open_reading_twice(arena, &tag, &mut out),
            };
            report.attempts += 1;
            match opened {
                Ok(()) => {
                    report.accepted += 1;
                    report.wrong += u64::from(out != self.plaintext);
                }
                Err(Error::Forged) => {
                    report.refused += 1;
                    report.unwiped += u64::from(out.iter().any(|b| *b != 0));
                }
                Err(error) => return Err(error),
            }
        }
        report.time = from.elapsed();
        Ok(report)
    }

    /// Authenticates one reading of the ciphertext and decrypts another.
    fn open_reading_twice(&self, arena: &Arena, tag: &Tag, out: &mut [u8]) -> Result<(), Error> {
        let mut hashed = vec![0; out.len()];
        arena.copy(0, &mut hashed);
        self.key.open(
            &Nonce::from(NONCE),
            &AAD,
            SharedRead::from(&hashed[..]),
            tag,
            out,
        )?;
        let mut decrypted = vec![0; out.len()];
        arena.copy(0, &mut decrypted);
        for ((out, a), b) in out.iter_mut().zip(hashed).zip(decrypted) {
            *out ^= a ^ b;
        }
        Ok(())
    }

    fn race_seal(&self, race: &Race) -> Result<RaceReport, Error> {
        let len = self.plaintext.len();
        let arena = Arena::new(&vec![BLANK; len]);
        let (stop, writes, exposed) =
            (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
        let has_begun = AtomicBool::new(false);
        let ready = Barrier::new(2);
        std::thread::scope(|threads| {
            threads.spawn(|| {
                let (mut random, mut count, mut seen) = (1, 0, 0);
                ready.wait();
                while !stop.load(Relaxed) {
                    let at = place(&mut random, len.max(1), 0);
                    let Some(byte) = arena.0.get(at) else { break };
                    let found = byte.load(Relaxed);
                    // What this thread itself wrote is the third value that may be there.
                    let own = self.ciphertext[at] ^ 0x80;
                    seen +=
                        u64::from(found != BLANK && found != self.ciphertext[at] && found != own);
                    byte.store(own, Relaxed);
                    pause(random >> 12);
                    if count == 0 {
                        has_begun.store(true, Relaxed);
                    }
                    count += 1;
                }
                writes.store(count, Relaxed);
                exposed.store(seen, Relaxed);
            });
            ready.wait();
            let report = self.seal_until(race, &arena, &has_begun);
            stop.store(true, Relaxed);
            report
        })
        .map(|report| RaceReport {
            hostile_writes: writes.load(Relaxed),
            exposed: exposed.load(Relaxed),
            ..report
        })
    }

    fn seal_until(
        &self,
        race: &Race,
        arena: &Arena,
        has_begun: &AtomicBool,
    ) -> Result<RaceReport, Error> {
        let len = self.plaintext.len();
        let mut report = RaceReport::default();
        let from = Instant::now();
        while !race.is_over(&report, from, has_begun) {
            let tag = match race.subject {
                Subject::Path(_) => self.key.seal(
                    Nonce::from(NONCE),
                    &AAD,
                    &self.plaintext,
                    arena.write(0, len),
                )?,
                Subject::TwoReads => self.seal_reading_back(arena)?,
            };
            report.attempts += 1;
            report.accepted += 1;
            report.wrong += u64::from(tag != self.tag);
            if report.attempts % 16 == 0 {
                arena.0.iter().for_each(|byte| byte.store(BLANK, Relaxed));
            }
        }
        report.time = from.elapsed();
        Ok(report)
    }

    /// Stores the ciphertext and makes the tag of what it then reads there.
    fn seal_reading_back(&self, arena: &Arena) -> Result<Tag, Error> {
        let len = self.plaintext.len();
        self.key.seal(
            Nonce::from(NONCE),
            &AAD,
            &self.plaintext,
            arena.write(0, len),
        )?;
        let mut read_back = vec![0; len];
        arena.copy(0, &mut read_back);
        // The tag of any ciphertext is that of sealing the plaintext that belongs to it.
        for ((byte, p), c) in read_back
            .iter_mut()
            .zip(&self.plaintext)
            .zip(&self.ciphertext)
        {
            *byte ^= p ^ c;
        }
        self.key
            .seal_in_place(Nonce::from(NONCE), &AAD, &mut read_back)
    }
}

/// Up to 63 turns of waiting.
fn pause(random: u64) {
    for _ in 0..random % 64 {
        std::hint::spin_loop();
    }
}
