//! The region of a client and the node: header, rings and data area.
//!
//! | offset | bytes | written by | content |
//! |---|---|---|---|
//! | 0 | 4 | node | how often it began and ended not to poll: odd while it must be notified |
//! | 128 | 4 | client | the same for the client |
//! | 256 | 64 × entries | client | the submission ring |
//! | then | 64 × entries | node | the completion ring |
//! | then, at a page | as agreed | both | the data area |

use tare_memory::{SharedMemory, View};

use super::{Violation, PART_MAX};
use crate::operation::{Guard, SpaceId};
use crate::protocol::codec::code;
use std::sync::atomic::Ordering;

pub(super) const LINE: usize = 64;
const WORDS: usize = LINE / 8;
const PAGE: usize = 4096;

/// The offset of the node's word. Two lines before the client's: processors fetch pairs of lines.
pub(super) const NODE: usize = 0;
/// The offset of the client's word.
pub(super) const CLIENT: usize = 128;
const HEADER: usize = 256;

/// The number of the first entry, such that the numbers of every client wrap around after its first
/// thousand operations, and not for the first time after months.
pub(super) const FIRST: u32 = u32::MAX - 999;

/// Bytes of a request's body that are in the entry.
pub(super) const BODY_INLINE: usize = 32;
/// The same if there is a guard, which takes the other half.
pub(super) const BODY_INLINE_GUARDED: usize = 16;
/// Bytes of a read that are in the completion.
pub(super) const READ_INLINE: usize = 48;

/// The code of an entry whose operation was given up before the node came to it.
pub(super) const RETRACTED: u8 = 0x7f;

/// The flags of an entry.
pub(super) mod flag {
    /// The last two words are a guard.
    pub(crate) const GUARD: u8 = 1;
    /// The body, or what is read, is in the data area.
    pub(crate) const AREA: u8 = 2;
    /// It is a part of a write; the first word of the body is its place and the whole length.
    pub(crate) const PART: u8 = 4;
    pub(super) const ALL: u8 = GUARD | AREA | PART;
}

/// The sizes of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    pub(super) entries: u32,
    pub(super) data_bytes: u32,
}

impl Layout {
    pub(super) const ENTRIES_MIN: u32 = 16;
    pub(super) const ENTRIES_MAX: u32 = 4096;
    pub(super) const DATA_MIN: u32 = 16 << 10;
    pub(super) const DATA_MAX: u32 = 64 << 20;

    /// Returns the layout with these sizes; `None` if it may not have them.
    pub(super) fn checked((entries, data_bytes): (u32, u32)) -> Option<Layout> {
        let are_entries = entries.is_power_of_two()
            && (Layout::ENTRIES_MIN..=Layout::ENTRIES_MAX).contains(&entries);
        let is_data = data_bytes.is_multiple_of(PAGE as u32)
            && (Layout::DATA_MIN..=Layout::DATA_MAX).contains(&data_bytes);
        (are_entries && is_data).then_some(Layout {
            entries,
            data_bytes,
        })
    }

    pub(super) fn bytes(&self) -> usize {
        self.data() + self.data_bytes as usize
    }

    fn data(&self) -> usize {
        (HEADER + 2 * LINE * self.entries as usize).next_multiple_of(PAGE)
    }

    #[inline]
    pub(super) fn submission(&self, position: u32) -> usize {
        HEADER + LINE * (position & (self.entries - 1)) as usize
    }

    #[inline]
    pub(super) fn completion(&self, position: u32) -> usize {
        self.submission(position) + LINE * self.entries as usize
    }

    /// Returns the data of an entry, by its first line; `None` if it is not all within the data
    /// area, or longer than a part.
    #[inline]
    pub(super) fn area<'a>(
        &self,
        memory: &'a SharedMemory,
        line: u32,
        len: u32,
    ) -> Option<View<'a>> {
        let offset = LINE * line as usize;
        if len > PART_MAX || offset + len as usize > self.data_bytes as usize {
            return None;
        }
        memory.view().range(self.data() + offset, len as usize)
    }

    /// Writes the numbers of the lap before the first to both rings, so that no entry is present.
    pub(super) fn initialize(&self, memory: &SharedMemory) {
        for n in 0..self.entries {
            let position = FIRST.wrapping_add(n);
            let before = u64::from(position.wrapping_sub(self.entries));
            store_line(memory, self.submission(position), before, &[]);
            store_line(memory, self.completion(position), before, &[]);
        }
    }
}

/// Returns the first word of a line if its number is this one. What is loaded after it is what was
/// stored before it.
#[inline]
pub(super) fn first_word(memory: &SharedMemory, at: usize, number: u32) -> Option<u64> {
    let word = memory.view().atomic::<u64>(at)?.load(Ordering::Acquire);
    (word as u32 == number).then_some(word)
}

/// Loads a word of a line other than the first.
#[inline]
pub(super) fn word(memory: &SharedMemory, at: usize, n: usize) -> u64 {
    let value = memory.view().volatile::<u64>(at + 8 * n);
    value.map_or(0, |value| value.load())
}

/// Stores the words after the first, and then the first, which makes them visible.
#[inline]
pub(super) fn store_line(memory: &SharedMemory, at: usize, first: u64, words: &[u64]) {
    let view = memory.view();
    if let Some(line) = view.slice::<u64>(at, WORDS) {
        for (n, word) in words.iter().take(WORDS - 1).enumerate() {
            line.store(n + 1, *word);
        }
    }
    if let Some(word) = view.atomic::<u64>(at) {
        word.store(first, Ordering::Release);
    }
}

/// An entry of the submission ring: a request.
///
/// Word 0 is the number (bits 0 to 31), the code (32 to 39), the flags (40 to 47), the length of
/// the arguments (48 to 55) and 0; word 1 the space, 2 the address; 3 the length of the transfer
/// (0 to 31) and the line of the data area (32 to 63); 4 to 7 the body, of which 6 and 7 may be the
/// guard.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Entry {
    pub(super) code: u8,
    pub(super) flags: u8,
    /// Length of the arguments, for all but reads and writes.
    pub(super) arguments: u8,
    pub(super) space: u64,
    pub(super) address: u64,
    pub(super) length: u32,
    pub(super) line: u32,
    pub(super) body: [u64; 4],
}

impl Entry {
    /// Loads the entry with this number, each word once, if it is there.
    #[inline]
    pub(super) fn load(
        memory: &SharedMemory,
        at: usize,
        number: u32,
    ) -> Option<Result<Entry, Violation>> {
        let first = first_word(memory, at, number)?;
        let third = word(memory, at, 3);
        let entry = Entry {
            code: (first >> 32) as u8,
            flags: (first >> 40) as u8,
            arguments: (first >> 48) as u8,
            space: word(memory, at, 1),
            address: word(memory, at, 2),
            length: third as u32,
            line: (third >> 32) as u32,
            body: std::array::from_fn(|n| word(memory, at, 4 + n)),
        };
        if first >> 56 != 0 || entry.flags & !flag::ALL != 0 {
            return Some(Err(Violation::Reserved));
        }
        Some(Ok(entry))
    }

    #[inline]
    pub(super) fn store(&self, memory: &SharedMemory, at: usize, number: u32) {
        let first = u64::from(number)
            | u64::from(self.code) << 32
            | u64::from(self.flags) << 40
            | u64::from(self.arguments) << 48;
        let third = u64::from(self.length) | u64::from(self.line) << 32;
        let [a, b, c, d] = self.body;
        let words = [self.space, self.address, third, a, b, c, d];
        // Stores are a part of the round trip: only those that the node looks at.
        let count = match self.code {
            code::READ => 3,
            code::WRITE if self.flags == 0 => 3 + (self.length as usize).div_ceil(8).min(4),
            _ => 7,
        };
        store_line(memory, at, first, &words[..count]);
    }

    /// Replaces an entry that the node may not have loaded yet by one without effect, in one store.
    pub(super) fn retract(memory: &SharedMemory, at: usize, number: u32) {
        let first = u64::from(number) | u64::from(RETRACTED) << 32;
        store_line(memory, at, first, &[]);
    }

    #[inline]
    pub(super) fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    #[inline]
    pub(super) fn space(&self) -> SpaceId {
        SpaceId(self.space)
    }

    #[inline]
    pub(super) fn guard(&self) -> Option<Guard> {
        self.has(flag::GUARD).then_some(Guard {
            lock: self.body[2],
            token: self.body[3],
        })
    }

    /// The bytes that the body in the entry has room for.
    pub(super) fn inline_max(guarded: bool) -> usize {
        if guarded {
            BODY_INLINE_GUARDED
        } else {
            BODY_INLINE
        }
    }
}

/// Returns bytes as words, at most 48.
#[inline]
pub(super) fn to_words<const N: usize>(bytes: &[u8]) -> [u64; N] {
    let mut words = [0; N];
    if let Ok(bytes) = <&[u8; 16]>::try_from(bytes) {
        // The most frequent one, without a loop.
        let both = u128::from_le_bytes(*bytes);
        (words[0], words[1]) = (both as u64, (both >> 64) as u64);
        return words;
    }
    for (word, bytes) in words.iter_mut().zip(bytes.chunks(8)) {
        let mut whole = [0; 8];
        whole[..bytes.len()].copy_from_slice(bytes);
        *word = u64::from_le_bytes(whole);
    }
    words
}

/// Returns words as bytes.
pub(super) fn to_bytes(words: &[u64; 4]) -> [u8; 32] {
    let mut bytes = [0; 32];
    for (bytes, word) in bytes.chunks_exact_mut(8).zip(words) {
        bytes.copy_from_slice(&word.to_le_bytes());
    }
    bytes
}
