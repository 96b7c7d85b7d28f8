//! The interface to the processor's own code for AES-GCM.
//!
//! A kernel is that code for one path and key size, as a table of functions. The code of a family
//! of processors is a folder (`x86/`) that gives `lib.rs` the module `native`: which kernels there
//! are and whether this processor can run them, copies that access each byte once, and a hint to
//! fetch a line of the cache. `native.rs` is that module for processors that have none.

use crate::columns::{Columns, Tags};
use crate::schedule::{Block, Schedule, Shape};
use crate::{Nonce, Path};
use core::mem::MaybeUninit;

/// Fills a schedule from a key of 16 or 32 bytes.
///
/// # Safety
/// The processor must have the path's instructions.
pub(crate) type Fill = unsafe fn(&mut Schedule, &[u8]);

/// Begins a message that comes in pieces, with its nonce and additional data.
///
/// # Safety
/// As for [`Whole`].
pub(crate) type Begin = unsafe fn(&Schedule, &Nonce, &[u8]) -> Progress;

/// Seals or opens a message that is contiguous on both sides, and returns its tag.
///
/// # Safety
/// The processor must have the path's instructions; the schedule must have been filled for the
/// path; the given number of bytes must be readable at the source and writable at the destination,
/// which either are the same or do not overlap.
pub(crate) type Whole = unsafe fn(&Schedule, &Nonce, &[u8], *const u8, *mut u8, usize) -> u128;

/// Seals or opens the next whole steps of a message; of a new message the head and that many steps.
///
/// # Safety
/// As for [`Whole`].
pub(crate) type Steps = unsafe fn(&Schedule, &mut Progress, *const u8, *mut u8, usize);

/// Seals or opens the end of a message, shorter than a step (of a new message, than a head), and
/// returns its tag.
///
/// # Safety
/// As for [`Whole`].
pub(crate) type Finish = unsafe fn(&Schedule, &mut Progress, *const u8, *mut u8, usize) -> u128;

/// Seals four packets of up to 64 bytes, with at most 16 of additional data, and stores their tags.
///
/// # Safety
/// As for [`Whole`], for each packet; all schedules must be of the kernel's path and key size.
pub(crate) type SealFour = unsafe fn(&Columns, &mut MaybeUninit<Tags>);

/// Opens four packets of up to 64 bytes, with at most 16 of additional data, and returns a bit for
/// each that is forged. Its output is still there.
///
/// # Safety
/// As for [`SealFour`].
pub(crate) type OpenFour = unsafe fn(&Columns) -> u8;

/// The longest additional data, in bytes, that is one block. Protocols have no more.
pub(crate) const AAD_SHORT_MAX: usize = 16;

/// The longest additional data, in bytes, that is hashed one block after the other. Up to here
/// there is hardly a gain in adding products up before they are reduced.
pub(crate) const AAD_SERIAL_MAX: usize = 64;

/// The functions of one path and key size.
pub(crate) struct Kernel {
    pub(crate) path: Path,
    pub(crate) shape: Shape,
    pub(crate) fill: Fill,
    pub(crate) begin: Begin,
    /// Whole messages: the first with up to [`AAD_SHORT_MAX`] bytes of additional data, the second
    /// with more. An index takes the caller less time than a branch.
    pub(crate) seal: [Whole; 2],
    pub(crate) open: [Whole; 2],
    pub(crate) seal_steps: Steps,
    pub(crate) open_steps: Steps,
    /// The two readings of a message that is opened as most libraries do it: the first hashes and
    /// stores nothing but the head, the second decrypts.
    pub(crate) hash_steps: Steps,
    pub(crate) decrypt_steps: Steps,
    pub(crate) seal_finish: Finish,
    pub(crate) open_finish: Finish,
    /// Four short packets at once, on paths that can.
    pub(crate) batch4: Option<&'static Batch4>,
}

/// Four packets of one path and key size at once, and one that is left over.
pub(crate) struct Batch4 {
    pub(crate) seal: SealFour,
    pub(crate) open: OpenFour,
    pub(crate) alone: &'static Kernel,
}

impl Kernel {
    /// Seals or opens a whole message and returns its tag.
    ///
    /// # Safety
    /// As for [`Whole`].
    #[allow(clippy::too_many_arguments, reason = "those of `Whole`, in registers")]
    #[inline(always)]
    pub(crate) unsafe fn whole(
        &self,
        seal: bool,
        schedule: &Schedule,
        nonce: &Nonce,
        aad: &[u8],
        src: *const u8,
        dst: *mut u8,
        len: usize,
    ) -> u128 {
        let much = usize::from(aad.len() > AAD_SHORT_MAX);
        let whole = if seal { self.seal } else { self.open }[much];
        // SAFETY: the caller's contract.
        unsafe {
            let tag = whole(schedule, nonce, aad, src, dst, len);
            wipe_checked();
            tag
        }
    }
}

/// Wipes what a kernel has left on the stack in a build with checks, which keeps there what others
/// keep in registers. Kernels of other builds wipe what little they leave.
#[inline(always)]
pub(crate) fn wipe_checked() {
    if cfg!(debug_assertions) {
        zeroize::zeroize_stack::<4096>();
    }
}

impl Batch4 {
    /// Seals or opens one of the packets and returns its tag.
    ///
    /// # Safety
    /// As for [`Whole`]; the `i`-th of each column must be filled.
    pub(crate) unsafe fn one(&self, columns: &Columns, i: usize, seal: bool) -> u128 {
        // SAFETY: the caller's contract; nonces and additional data are that long.
        unsafe {
            self.alone.whole(
                seal,
                &*columns.schedule[i],
                Nonce::of_words(&columns.nonce[i]),
                core::slice::from_raw_parts(columns.aad[i].as_ptr().cast(), columns.len[i].aad()),
                columns.src[i],
                columns.dst[i],
                columns.len[i].data(),
            )
        }
    }
}

/// Returns the counter of the block after `data_len` bytes: 1 is J0's. After the longest message it
/// would be 2^32, and is not used.
#[inline(always)]
pub(crate) fn counter_after(data_len: u64) -> u32 {
    ((data_len / 16) as u32).wrapping_add(2)
}

/// The state of a message that comes in pieces.
pub(crate) struct Progress {
    pub(crate) nonce: Nonce,
    pub(crate) aad_len: usize,
    pub(crate) data_len: u64,
    /// The kernel's own: until there is data, what it made of the additional data; then the state
    /// of the hash.
    pub(crate) hash: Block,
    /// The encryption of J0, once there is data.
    pub(crate) tag_mask: Block,
}

impl Progress {
    /// The counter of the next block.
    pub(crate) fn next_counter(&self) -> u32 {
        counter_after(self.data_len)
    }

    /// Returns true as long as no data has been worked on.
    pub(crate) fn is_new(&self) -> bool {
        self.data_len == 0
    }
}
