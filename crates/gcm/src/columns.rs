//! Four packets laid out in columns, so that one load fills a register with all four.

use crate::schedule::Schedule;

/// Four packets, a column for each of their properties.
#[repr(C, align(64))]
pub(crate) struct Columns {
    /// The nonce with a zero counter.
    pub(crate) nonce: [[u64; 2]; 4],
    /// Additional data, zero-padded.
    pub(crate) aad: [[u64; 2]; 4],
    /// Of packets to be opened: the tags that they came with, as little-endian words.
    pub(crate) tag: [[u64; 2]; 4],
    pub(crate) len: [Lens; 4],
    pub(crate) schedule: [*const Schedule; 4],
    pub(crate) src: [*const u8; 4],
    pub(crate) dst: [*mut u8; 4],
}

/// The lengths of a packet's data (the lower half, up to 64) and additional data (the upper half,
/// up to 16): the halves of the block of lengths, next to each other.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Lens(pub(crate) u64);

impl Lens {
    #[inline(always)]
    pub(crate) fn new(data: usize, aad: usize) -> Self {
        Self(data as u64 | (aad as u64) << 32)
    }

    #[inline(always)]
    pub(crate) fn data(self) -> usize {
        self.0 as u32 as usize
    }

    pub(crate) fn aad(self) -> usize {
        (self.0 >> 32) as usize
    }
}

/// The tags of four packets, as little-endian words. Within one line of the cache, so that they can
/// be loaded right after they were stored.
#[repr(C, align(64))]
pub(crate) struct Tags(pub(crate) [[u64; 2]; 4]);

/// A value in memory, at any address. Reading its field takes no function, where the intrinsics and
/// `read_unaligned` are calls in a debug build.
#[derive(Clone, Copy)]
#[repr(C, packed)]
pub(crate) struct Unaligned<T>(pub(crate) T);

/// Loads up to 16 bytes of private memory, zero-padded, as two little-endian words.
///
/// The additional data of ESP (8 or 12 bytes) is loaded four bytes at a time: the caller has just
/// stored it in parts of four or eight bytes, and a load across two stores waits until both have
/// reached the cache.
#[inline(always)]
pub(crate) fn words(bytes: &[u8]) -> [u64; 2] {
    let (p, len) = (bytes.as_ptr(), bytes.len());
    // SAFETY: the callers below pass offsets of four bytes within the slice.
    let quarter = |at: usize| u64::from(unsafe { (*p.add(at).cast::<Unaligned<u32>>()).0 });
    if len == 8 || len == 12 {
        let high = if len == 12 { quarter(8) } else { 0 };
        return [quarter(0) | quarter(4) << 32, high];
    }
    // SAFETY: each load is of bytes within the slice; where two overlap, the second is shifted to
    // leave what is new.
    unsafe {
        if len >= 8 {
            let high = (*p.add(len - 8).cast::<Unaligned<u64>>()).0;
            // Twice half the shift, for it may be all 64 bits.
            let half = 4 * (16 - len as u32);
            [(*p.cast::<Unaligned<u64>>()).0, high >> half >> half]
        } else if len >= 4 {
            let high = u64::from((*p.add(len - 4).cast::<Unaligned<u32>>()).0);
            let low = u64::from((*p.cast::<Unaligned<u32>>()).0);
            [low | high >> (8 * (8 - len)) << 32, 0]
        } else {
            if len == 0 {
                return [0, 0];
            }
            // The first, the middle and the last of one to three bytes, which may be the same ones.
            let byte = |at: usize| u64::from(p.add(at).read()) << (8 * at);
            [byte(0) | byte(len / 2) | byte(len - 1), 0]
        }
    }
}
