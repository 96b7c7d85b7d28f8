//! The kept part besides page table and pool: a header, the write under way, and the log.
//!
//! All stores that another process may find half done are made whole by the order: a word that
//! says that something is there is published after it ([`publish`]).

use tare_memory::publish;

use super::record::{Record, WORDS_MAX};
use super::KeepError;
use crate::operation::{Address, SpaceId, NAME_MAX};

/// Bytes of the header.
const HEADER: usize = 4096;
/// The longest write that is never kept in part.
pub const WHOLE_WRITE_MAX: usize = 64 << 10;
/// Bytes before the two halves of the log: the header, then the place of the write under way.
const BEFORE: usize = HEADER + 64 + WHOLE_WRITE_MAX;
/// The least bytes of a half.
const HALF_MIN: u64 = 64 << 10;
/// Bytes of a half that only operations may use which make the state smaller, so that a full log
/// can be emptied.
const RESERVE: usize = 4096;

/// "tare", then the version of all that is kept: since 2 a page of 1 GiB may be in parts.
const MAGIC: u64 = FIRST + 1;

/// The first version, which is one of this version as well.
const FIRST: u64 = 0x6572_6174_0000_0001;

/// The words of the header.
const AT_MAGIC: usize = 0;
const AT_SHAPE: usize = 8;
const AT_KEY: usize = 16;
const AT_CHECK: usize = 32;
/// The generation of the log; its last bit is the half that is in use.
const AT_GENERATION: usize = 64;
/// The length of the write under way; then its space, its address and its bytes.
const AT_WRITE: usize = HEADER;

/// The log, in the caller's memory.
pub(super) struct Log<M> {
    memory: M,
    half: usize,
    generation: u64,
    /// The bytes of this half that are in use.
    used: usize,
}

/// The state that a part is found in.
pub(super) enum Opened<M> {
    /// Empty so far.
    Empty(M),
    /// A log, and the key of the page table.
    Log(Log<M>, [u64; 2]),
}

/// A write that a process was killed in.
pub(super) struct UnderWay {
    pub(super) space: SpaceId,
    pub(super) address: Address,
    pub(super) data: Vec<u8>,
}

/// Returns the bytes of the part for a pool of so many bytes.
pub(super) fn bytes(pool: u64) -> usize {
    BEFORE + 2 * half(pool)
}

/// A space that has one allocation takes 64 bytes.
fn half(pool: u64) -> usize {
    (pool / 256).max(HALF_MIN).next_multiple_of(64) as usize
}

impl<M: AsRef<[u8]> + AsMut<[u8]>> Log<M> {
    /// Opens the part of a pool of so many bytes.
    pub(super) fn open(memory: M, pool: u64) -> Result<Opened<M>, KeepError> {
        let found = memory.as_ref();
        if found.as_ptr().align_offset(64) != 0 || found.len() < bytes(pool) {
            return Err(KeepError::Memory);
        }
        let Some(key) = check_header(found, pool)? else {
            return Ok(Opened::Empty(memory));
        };
        let log = Log {
            generation: word(found, AT_GENERATION),
            memory,
            half: half(pool),
            used: 0,
        };
        Ok(Opened::Log(log, key))
    }

    /// Makes the part of an empty one. It counts from [`Log::finish`] on.
    pub(super) fn create(mut memory: M, pool: u64, key: [u64; 2]) -> Log<M> {
        memory.as_mut()[..bytes(pool)].fill(0);
        let mut log = Log {
            memory,
            half: half(pool),
            generation: 0,
            used: 0,
        };
        log.put(AT_SHAPE, pool);
        log.put(AT_KEY, key[0]);
        log.put(AT_KEY + 8, key[1]);
        log.put(AT_CHECK, check(&[FIRST, pool, key[0], key[1]]));
        log
    }

    /// Says that the part, the page table and the pool are complete, and of this version.
    pub(super) fn finish(&mut self) {
        self.put(AT_MAGIC, MAGIC);
    }

    /// Calls `each` for the records.
    pub(super) fn replay(
        &mut self,
        mut each: impl FnMut(&Record<'_>) -> Result<(), KeepError>,
    ) -> Result<(), KeepError> {
        let start = self.start(self.generation);
        let half = &self.memory.as_ref()[start..start + self.half];
        let mut at = 0;
        // A record whose first word was not stored yet does not count.
        while at + 8 <= half.len() && word(half, at) != 0 {
            let first = word(half, at);
            let (kind, len) = (first as u8, (first >> 8) as u8 as usize);
            if len == 0 || len > WORDS_MAX || at + 8 * len > half.len() {
                return Err(KeepError::Corrupt("a record of the log has a wrong length"));
            }
            let mut words = [0; WORDS_MAX];
            for (n, value) in words[1..len].iter_mut().enumerate() {
                *value = word(half, at + 8 * (n + 1));
            }
            if first != first_word(kind, &words[..len], self.generation, at) {
                return Err(KeepError::Corrupt("the checksum of a record is wrong"));
            }
            let mut name = [0; NAME_MAX];
            let record = Record::decode(kind, &words[..len], &mut name);
            each(&record.ok_or(KeepError::Corrupt("a record is none that there is"))?)?;
            at += 8 * len;
        }
        self.used = at;
        // What a process left that was killed while it wrote a record.
        let half = self.half;
        self.memory.as_mut()[start + at..start + half].fill(0);
        Ok(())
    }

    /// Returns true if there is room for the record of one operation, which makes the state larger
    /// or not.
    pub(super) fn has_room(&self, grows: bool) -> bool {
        let reserve = if grows { RESERVE } else { 0 };
        self.used + 2 * 8 * WORDS_MAX + reserve <= self.half
    }

    /// Adds a record, for which there is room.
    pub(super) fn append(&mut self, record: &Record<'_>) {
        let (start, at) = (self.start(self.generation), self.used);
        self.used += self.write(start, self.half, at, self.generation, record);
    }

    /// Writes the records that `all` gives into the other half, and uses that one if they have
    /// room.
    pub(super) fn compact(&mut self, all: impl FnOnce(&mut dyn FnMut(&Record<'_>))) {
        let next = self.generation + 1;
        let (start, half) = (self.start(next), self.half);
        // Also what a process left that was killed here.
        self.memory.as_mut()[start..start + half].fill(0);
        let mut at = 0;
        all(&mut |record| {
            if at + 8 * WORDS_MAX <= half {
                at += self.write(start, half, at, next, record);
            } else {
                at = half;
            }
        });
        if at + 8 * WORDS_MAX <= half {
            self.put(AT_GENERATION, next);
            (self.generation, self.used) = (next, at);
        }
    }

    fn write(
        &mut self,
        start: usize,
        half: usize,
        at: usize,
        generation: u64,
        record: &Record<'_>,
    ) -> usize {
        let (kind, words) = record.encode();
        let words = words.as_slice();
        let place = &mut self.memory.as_mut()[start..start + half][at..at + 8 * words.len()];
        for (bytes, word) in place.as_chunks_mut().0.iter_mut().zip(words) {
            *bytes = word.to_ne_bytes();
        }
        self.put(start + at, first_word(kind, words, generation, at));
        8 * words.len()
    }

    /// Returns the offset of the half of a generation.
    fn start(&self, generation: u64) -> usize {
        BEFORE + (generation & 1) as usize * self.half
    }

    /// Notes a write before its first byte is in place.
    #[inline]
    pub(super) fn begin_write(&mut self, space: SpaceId, address: Address, data: &[u8]) {
        let Some(place) = self.memory.as_mut().get_mut(AT_WRITE..BEFORE) else {
            return;
        };
        let (words, bytes) = place.split_at_mut(64);
        let words = words.as_chunks_mut().0;
        words[1] = space.0.to_ne_bytes();
        words[2] = address.to_ne_bytes();
        bytes[..data.len()].copy_from_slice(data);
        publish(&mut words[0], data.len() as u64);
    }

    /// Notes that the write is in place.
    #[inline]
    pub(super) fn end_write(&mut self) {
        self.put(AT_WRITE, 0);
    }

    /// Returns the write that was under way.
    pub(super) fn write_under_way(&self) -> Result<Option<UnderWay>, KeepError> {
        let memory = self.memory.as_ref();
        match word(memory, AT_WRITE) {
            0 => Ok(None),
            len if len <= WHOLE_WRITE_MAX as u64 => {
                let bytes = &memory[AT_WRITE + 64..][..len as usize];
                Ok(Some(UnderWay {
                    space: SpaceId(word(memory, AT_WRITE + 8)),
                    address: word(memory, AT_WRITE + 16),
                    data: bytes.to_vec(),
                }))
            }
            _ => Err(KeepError::Corrupt("the write under way is too long")),
        }
    }

    #[inline]
    fn put(&mut self, at: usize, value: u64) {
        match self.memory.as_mut()[at..].first_chunk_mut() {
            Some(word) => publish(word, value),
            None => unreachable!("within the part"),
        }
    }
}

/// Returns the key of the page table; `None` if the header is empty, or was when the process was
/// killed that made the store.
pub(super) fn check_header(memory: &[u8], pool: u64) -> Result<Option<[u64; 2]>, KeepError> {
    let header = memory.get(..HEADER).ok_or(KeepError::Memory)?;
    let magic = word(header, AT_MAGIC);
    if magic == 0 && header[AT_GENERATION..].iter().all(|&byte| byte == 0) {
        return Ok(None);
    }
    if magic >> 32 != MAGIC >> 32 {
        return Err(KeepError::NotKept);
    }
    if !(FIRST..=MAGIC).contains(&magic) {
        return Err(KeepError::Version {
            found: magic as u32,
            expected: MAGIC as u32,
        });
    }
    let key = [word(header, AT_KEY), word(header, AT_KEY + 8)];
    let found = word(header, AT_SHAPE);
    // The same in all versions, so that a store of an earlier one gets this one by one change.
    if word(header, AT_CHECK) != check(&[FIRST, found, key[0], key[1]]) {
        return Err(KeepError::Corrupt("the header's checksum is wrong"));
    }
    match found == pool {
        true => Ok(Some(key)),
        false => Err(KeepError::Bytes {
            found,
            expected: pool,
        }),
    }
}

fn word(bytes: &[u8], at: usize) -> u64 {
    let word = bytes.get(at..).and_then(<[u8]>::first_chunk);
    word.map_or(0, |word| u64::from_ne_bytes(*word))
}

/// Returns the first word of a record: kind, number of words, and 48 bits of a checksum over all
/// of it, its place and its generation, by which a record of an earlier use of the half is none.
fn first_word(kind: u8, words: &[u64], generation: u64, at: usize) -> u64 {
    let kind = u64::from(kind) | (words.len() as u64) << 8;
    let mut sum = check(&[kind, generation, at as u64]);
    for word in &words[1..] {
        sum = check(&[sum, *word]);
    }
    kind | sum << 16
}

/// A checksum against accidents.
fn check(words: &[u64]) -> u64 {
    words.iter().fold(words.len() as u64, |sum, word| {
        let product = u128::from(sum ^ word ^ 0x6a09_e667_f3bc_c909) * 0xbb67_ae85_84ca_a73b;
        (product as u64 ^ (product >> 64) as u64).rotate_left(23)
    })
}
