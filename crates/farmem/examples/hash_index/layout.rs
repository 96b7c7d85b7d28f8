//! The index as bytes: a header, and buckets of four entries.
//!
//! | bytes | header |
//! |---|---|
//! | 0–7 | the lock of the index; its bytes are not used |
//! | 8–15 | [`MAGIC`] |
//! | 16–23 | number of buckets |
//!
//! Buckets begin one page after it. An entry has 256 bytes:
//!
//! | bytes | entry |
//! |---|---|
//! | 0–7 | version: 0 if it is empty, and one more with each change |
//! | 8–15 | key |
//! | 16–23 | checksum of all other bytes |
//! | 24–31 | length of the value |
//! | 32–255 | value |

/// The first address of the index in its space.
pub(crate) const BASE: u64 = 0x4000_0000;

/// Bytes of a page, which the header has to itself.
pub(crate) const PAGE: u64 = 4096;

/// The mark of an index, and the version of its layout.
pub(crate) const MAGIC: u64 = 0x3158_4544_4e49_4654;

/// Entries of a bucket.
pub(crate) const ENTRIES: usize = 4;

/// Bytes of an entry and of a bucket.
pub(crate) const ENTRY_BYTES: usize = 256;
pub(crate) const BUCKET_BYTES: usize = ENTRIES * ENTRY_BYTES;

/// Longest value, in bytes.
pub(crate) const VALUE_MAX: usize = ENTRY_BYTES - HEAD_BYTES;

const HEAD_BYTES: usize = 32;

/// A value of up to [`VALUE_MAX`] bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Value {
    len: usize,
    bytes: [u8; VALUE_MAX],
}

impl Value {
    /// Takes a value; `None` if it is too long.
    pub(crate) fn new(value: &[u8]) -> Option<Value> {
        let mut bytes = [0; VALUE_MAX];
        bytes.get_mut(..value.len())?.copy_from_slice(value);
        let len = value.len();
        Some(Value { len, bytes })
    }

    /// Returns its bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// An entry in use.
#[derive(Clone, Copy)]
pub(crate) struct Entry {
    pub(crate) version: u64,
    pub(crate) key: u64,
    pub(crate) value: Value,
}

/// Bytes that are neither an entry nor an empty one: not written by this program, or damaged.
#[derive(Debug)]
pub(crate) struct Damaged;

impl Entry {
    /// Reads an entry; `None` if it is empty.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Option<Entry>, Damaged> {
        let (words, _) = bytes.as_chunks::<8>();
        let [version, key, checksum, len, ..] = words else {
            return Err(Damaged);
        };
        let [version, key, checksum, len] =
            [version, key, checksum, len].map(|word| u64::from_le_bytes(*word));
        if version == 0 {
            let is_empty = bytes.iter().all(|byte| *byte == 0);
            return is_empty.then_some(None).ok_or(Damaged);
        }
        let value = usize::try_from(len).ok().filter(|len| *len <= VALUE_MAX);
        let value = value.and_then(|len| Value::new(&bytes[HEAD_BYTES..HEAD_BYTES + len]));
        let entry = Entry {
            version,
            key,
            value: value.ok_or(Damaged)?,
        };
        (entry.checksum() == checksum)
            .then_some(Some(entry))
            .ok_or(Damaged)
    }

    /// Writes it down.
    pub(crate) fn encode(&self) -> [u8; ENTRY_BYTES] {
        let mut bytes = [0; ENTRY_BYTES];
        let len = self.value.len as u64;
        let head = [self.version, self.key, self.checksum(), len];
        for (place, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(head) {
            *place = word.to_le_bytes();
        }
        bytes[HEAD_BYTES..].copy_from_slice(&self.value.bytes);
        bytes
    }

    fn checksum(&self) -> u64 {
        let mut sum = mix(self.version ^ mix(self.key ^ mix(self.value.len as u64)));
        for word in self.value.bytes.as_chunks::<8>().0 {
            sum = mix(sum ^ u64::from_le_bytes(*word));
        }
        sum
    }
}

/// Returns the address of a bucket.
pub(crate) fn address(bucket: u64) -> u64 {
    BASE + PAGE + bucket * BUCKET_BYTES as u64
}

/// Returns the bucket that a key belongs to, if that has room.
pub(crate) fn home(key: u64, buckets: u64) -> u64 {
    ((u128::from(mix(key)) * u128::from(buckets)) >> 64) as u64
}

/// Returns another number for each number, in which every bit depends on every bit (SplitMix64).
pub(crate) fn mix(number: u64) -> u64 {
    let mut mixed = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}
