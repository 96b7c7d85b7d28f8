//! The paths for x86-64: one algorithm on registers of 512, 256 and 128 bits.

// Lanes and registers are numbered, and the numbers are constants to the compiler.
#![allow(clippy::needless_range_loop)]

mod batch512;
mod bulk;
mod finish;
mod finish512;
mod ghash;
mod lanes;
mod once;
mod schedule;

pub(crate) use batch512::{Columns, Lens, Tags};
pub(crate) use finish::{copy_in, copy_out};
use schedule::Block;
pub(crate) use schedule::Schedule;

use core::arch::x86_64::*;
use core::mem::MaybeUninit;

use crate::Path;
use lanes::{Lanes, Pair, Quad, Single};

/// Seals or opens a message that is contiguous on both sides, and returns its tag.
///
/// # Safety
/// The processor must have the path's instructions; the schedule must have been filled for the
/// path; the given number of bytes must be readable at the source and writable at the destination,
/// which either are the same or do not overlap.
pub(crate) type Whole = unsafe fn(&Schedule, &[u8; 12], &[u8], *const u8, *mut u8, usize) -> u128;

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

/// Seals four packets of up to 64 bytes, with at most 16 of additional data, and leaves their tags.
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

/// How packets of one path and key size are worked on together, and how one that is left over is.
pub(crate) struct Fours {
    pub(crate) seal: SealFour,
    pub(crate) open: OpenFour,
    alone: &'static Kernel,
}

static FOURS_128: Fours = Fours {
    seal: seal_four::<10>,
    open: open_four::<10>,
    alone: &vaes512::AES_128,
};

static FOURS_256: Fours = Fours {
    seal: seal_four::<14>,
    open: open_four::<14>,
    alone: &vaes512::AES_256,
};

impl Fours {
    /// Seals or opens one of the packets and returns its tag.
    ///
    /// # Safety
    /// As for [`Whole`]; the `i`-th of each column must be filled.
    pub(crate) unsafe fn one(&self, columns: &Columns, i: usize, seal: bool) -> u128 {
        let work = if seal {
            self.alone.seal
        } else {
            self.alone.open
        };
        // SAFETY: the caller's contract; nonces and additional data are that long.
        unsafe {
            work(
                &*columns.schedule[i],
                &*columns.nonce[i].as_ptr().cast(),
                core::slice::from_raw_parts(columns.aad[i].as_ptr().cast(), columns.len[i].aad()),
                columns.src[i],
                columns.dst[i],
                columns.len[i].data(),
            )
        }
    }
}

/// What the hash holds at some point of a message, byte-reversed.
#[derive(Clone, Copy)]
enum Before {
    /// No ciphertext yet: the last block of additional data, plus the state before it.
    Additional(__m128i),
    /// The state after all ciphertext so far.
    State(__m128i),
}

/// What is done of a message that comes in pieces.
pub(crate) struct Progress {
    nonce: [u8; 12],
    aad_len: usize,
    data_len: u64,
    /// As in [`Before`]: additional data until there is data, then the state.
    hash: Block,
    /// The encryption of J0, once there is data.
    tag_mask: Block,
}

impl Progress {
    /// The counter of the next block: 1 is J0's.
    fn next_counter(&self) -> u32 {
        (self.data_len / 16) as u32 + 2
    }

    /// Whether no data has been worked on.
    pub(crate) fn is_new(&self) -> bool {
        self.data_len == 0
    }
}

/// The functions of one path and key size.
pub(crate) struct Kernel {
    pub(crate) path: Path,
    /// Rounds of AES.
    pub(crate) rounds: usize,
    /// Blocks in a register, for [`Schedule::fill`].
    pub(crate) lanes: usize,
    /// Bytes in the first step of a message.
    pub(crate) head_len: usize,
    /// Bytes in every further step.
    pub(crate) step_len: usize,
    pub(crate) begin: unsafe fn(&Schedule, &[u8; 12], &[u8]) -> Progress,
    pub(crate) seal: Whole,
    pub(crate) open: Whole,
    pub(crate) seal_steps: Steps,
    pub(crate) open_steps: Steps,
    pub(crate) seal_finish: Finish,
    pub(crate) open_finish: Finish,
    /// How four short packets are worked on together, on paths that have a way to.
    pub(crate) fours: Option<&'static Fours>,
}

/// Short messages and the ends of long ones, by the registers that they are done on.
///
/// # Safety
/// As for [`Lanes`].
#[allow(clippy::too_many_arguments)]
unsafe trait Ends: Lanes {
    /// A message shorter than the head of a long one.
    unsafe fn short<const ROUNDS: usize, const SEAL: bool>(
        schedule: &Schedule,
        nonce: __m128i,
        additional: __m128i,
        lengths: __m128i,
        src: *const u8,
        dst: *mut u8,
        len: usize,
    ) -> __m128i;

    /// What is left after the last whole step.
    unsafe fn tail<const ROUNDS: usize, const SEAL: bool>(
        schedule: &Schedule,
        nonce: __m128i,
        counter: u32,
        state: __m128i,
        tag_mask: __m128i,
        lengths: __m128i,
        src: *const u8,
        dst: *mut u8,
        len: usize,
    ) -> __m128i;
}

// SAFETY: hands its arguments and its contract on.
unsafe impl Ends for Quad {
    #[inline(always)]
    unsafe fn short<const ROUNDS: usize, const SEAL: bool>(
        schedule: &Schedule,
        nonce: __m128i,
        additional: __m128i,
        lengths: __m128i,
        src: *const u8,
        dst: *mut u8,
        len: usize,
    ) -> __m128i {
        // SAFETY: the caller's contract.
        unsafe {
            finish512::short::<ROUNDS, SEAL>(schedule, nonce, additional, lengths, src, dst, len)
        }
    }

    #[inline(always)]
    unsafe fn tail<const ROUNDS: usize, const SEAL: bool>(
        schedule: &Schedule,
        nonce: __m128i,
        counter: u32,
        state: __m128i,
        tag_mask: __m128i,
        lengths: __m128i,
        src: *const u8,
        dst: *mut u8,
        len: usize,
    ) -> __m128i {
        // SAFETY: the caller's contract.
        unsafe {
            finish512::tail::<ROUNDS, SEAL>(
                schedule, nonce, counter, state, tag_mask, lengths, src, dst, len,
            )
        }
    }
}

macro_rules! staged_ends {
    ($register:ident) => {
        // SAFETY: hands its arguments and its contract on.
        unsafe impl Ends for $register {
            #[inline(always)]
            unsafe fn short<const ROUNDS: usize, const SEAL: bool>(
                schedule: &Schedule,
                nonce: __m128i,
                additional: __m128i,
                lengths: __m128i,
                src: *const u8,
                dst: *mut u8,
                len: usize,
            ) -> __m128i {
                let before = Before::Additional(additional);
                // SAFETY: the caller's contract.
                unsafe {
                    finish::finish::<Self, ROUNDS, SEAL>(
                        schedule, nonce, 2, before, lengths, src, dst, len,
                    )
                }
            }

            #[inline(always)]
            unsafe fn tail<const ROUNDS: usize, const SEAL: bool>(
                schedule: &Schedule,
                nonce: __m128i,
                counter: u32,
                state: __m128i,
                _tag_mask: __m128i,
                lengths: __m128i,
                src: *const u8,
                dst: *mut u8,
                len: usize,
            ) -> __m128i {
                let before = Before::State(state);
                // SAFETY: the caller's contract.
                unsafe {
                    finish::finish::<Self, ROUNDS, SEAL>(
                        schedule, nonce, counter, before, lengths, src, dst, len,
                    )
                }
            }
        }
    };
}
staged_ends!(Pair);
staged_ends!(Single);

/// The nonce with a zero counter.
#[inline(always)]
unsafe fn load_nonce(nonce: &[u8; 12]) -> __m128i {
    // SAFETY: both parts are within the 12 bytes.
    unsafe {
        let low = _mm_loadl_epi64(nonce.as_ptr().cast());
        let high = nonce.as_ptr().add(8).cast::<i32>().read_unaligned();
        _mm_insert_epi32::<2>(low, high)
    }
}

/// Up to 16 bytes of private memory, zero-padded and byte-reversed.
///
/// A masked load would be shorter, but wait for whatever was just stored into the bytes that its
/// mask leaves out: headers and tags lie close to additional data.
#[inline(always)]
unsafe fn load_partial(bytes: &[u8]) -> __m128i {
    let [low, high] = words(bytes);
    // Reversed, the first byte is the highest.
    // SAFETY: SSE2 is part of x86-64.
    unsafe { _mm_set_epi64x(low.swap_bytes() as i64, high.swap_bytes() as i64) }
}

/// Up to 16 bytes of private memory, zero-padded, as two little-endian words.
///
/// The additional data of ESP (8 or 12 bytes) is loaded four bytes at a time: whoever has just
/// stored it did so in parts of four or eight bytes, and a load across two stores waits until both
/// have reached the cache.
#[inline(always)]
pub(crate) fn words(bytes: &[u8]) -> [u64; 2] {
    let (p, len) = (bytes.as_ptr(), bytes.len());
    // SAFETY: the callers below pass offsets of four bytes within the slice.
    let quarter = |at: usize| u64::from(unsafe { p.add(at).cast::<u32>().read_unaligned() });
    if len == 8 || len == 12 {
        let high = if len == 12 { quarter(8) } else { 0 };
        return [quarter(0) | quarter(4) << 32, high];
    }
    // SAFETY: each load is of bytes within the slice; where two overlap, the second is shifted to
    // leave what is new.
    unsafe {
        if len >= 8 {
            let high = p.add(len - 8).cast::<u64>().read_unaligned();
            // Twice half the shift, for it may be all 64 bits.
            let half = 4 * (16 - len as u32);
            [p.cast::<u64>().read_unaligned(), high >> half >> half]
        } else if len >= 4 {
            let high = u64::from(p.add(len - 4).cast::<u32>().read_unaligned());
            let low = u64::from(p.cast::<u32>().read_unaligned());
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

/// All additional data hashed but for the multiplication that follows its last block.
#[inline(always)]
unsafe fn hash_additional(schedule: &Schedule, mut aad: &[u8]) -> __m128i {
    // SAFETY: under the contract of Lanes; blocks are within `aad`.
    unsafe {
        let mut state = _mm_setzero_si128();
        if aad.len() > 16 {
            let h = Single::load_private(schedule.powers_from(1));
            while aad.len() > 16 {
                let (block, rest) = aad.split_at(16);
                let block = _mm_shuffle_epi8(
                    _mm_loadu_si128(block.as_ptr().cast()),
                    ghash::byte_reversal(),
                );
                state = ghash::multiply(Single(_mm_xor_si128(state, block)), h).0;
                aad = rest;
            }
        }
        _mm_xor_si128(state, load_partial(aad))
    }
}

/// The block of lengths in bits, byte-reversed.
#[inline(always)]
unsafe fn length_block(aad_len: usize, data_len: u64) -> __m128i {
    // SAFETY: SSE2 is part of x86-64.
    unsafe { _mm_set_epi64x(aad_len as i64 * 8, data_len as i64 * 8) }
}

#[inline(always)]
unsafe fn to_u128(v: __m128i) -> u128 {
    // SAFETY: both are 16 bytes of plain data.
    unsafe { core::mem::transmute(v) }
}

#[inline(always)]
unsafe fn whole<V: Ends, const N: usize, const ROUNDS: usize, const SEAL: bool>(
    schedule: &Schedule,
    nonce: &[u8; 12],
    aad: &[u8],
    src: *const u8,
    dst: *mut u8,
    len: usize,
) -> u128 {
    // SAFETY: the caller's contract; head, steps and tail add up to `len`.
    unsafe {
        let nonce = load_nonce(nonce);
        let lengths = length_block(aad.len(), len as u64);
        let additional = hash_additional(schedule, aad);
        let head_len = bulk::head_len(V::COUNT, N);
        if len < head_len {
            return to_u128(V::short::<ROUNDS, SEAL>(
                schedule, nonce, additional, lengths, src, dst, len,
            ));
        }
        let step_len = 16 * N * V::COUNT;
        let count = (len - head_len) / step_len;
        let begun = bulk::begin::<V, N, ROUNDS, SEAL>(schedule, nonce, additional, src, dst, count);
        let done = head_len + count * step_len;
        let counter = (done / 16) as u32 + 2;
        to_u128(V::tail::<ROUNDS, SEAL>(
            schedule,
            nonce,
            counter,
            begun.state,
            begun.tag_mask,
            lengths,
            src.add(done),
            dst.add(done),
            len - done,
        ))
    }
}

#[inline(always)]
unsafe fn steps<V: Ends, const N: usize, const ROUNDS: usize, const SEAL: bool>(
    schedule: &Schedule,
    progress: &mut Progress,
    src: *const u8,
    dst: *mut u8,
    count: usize,
) {
    // SAFETY: the caller's contract; the blocks are aligned.
    unsafe {
        let nonce = load_nonce(&progress.nonce);
        let hash = _mm_load_si128((&raw const progress.hash).cast());
        let mut done = 16 * N * V::COUNT * count;
        let state = if progress.is_new() {
            done += bulk::head_len(V::COUNT, N);
            let begun = bulk::begin::<V, N, ROUNDS, SEAL>(schedule, nonce, hash, src, dst, count);
            _mm_store_si128((&raw mut progress.tag_mask).cast(), begun.tag_mask);
            begun.state
        } else {
            let counter = progress.next_counter();
            bulk::proceed::<V, N, ROUNDS, SEAL>(schedule, nonce, counter, hash, src, dst, count)
        };
        _mm_store_si128((&raw mut progress.hash).cast(), state);
        progress.data_len += done as u64;
    }
}

#[inline(always)]
unsafe fn finish_pieces<V: Ends, const ROUNDS: usize, const SEAL: bool>(
    schedule: &Schedule,
    progress: &mut Progress,
    src: *const u8,
    dst: *mut u8,
    len: usize,
) -> u128 {
    // SAFETY: the caller's contract; the blocks are aligned.
    unsafe {
        let nonce = load_nonce(&progress.nonce);
        let lengths = length_block(progress.aad_len, progress.data_len + len as u64);
        let hash = _mm_load_si128((&raw const progress.hash).cast());
        if progress.is_new() {
            return to_u128(V::short::<ROUNDS, SEAL>(
                schedule, nonce, hash, lengths, src, dst, len,
            ));
        }
        let counter = progress.next_counter();
        let tag_mask = _mm_load_si128((&raw const progress.tag_mask).cast());
        to_u128(V::tail::<ROUNDS, SEAL>(
            schedule, nonce, counter, hash, tag_mask, lengths, src, dst, len,
        ))
    }
}

/// The entry points of one path: functions that enable its instructions around the generic code.
macro_rules! path {
    ($module:ident, $path:expr, $register:ident, $registers:literal, $features:literal, $fours_128:expr, $fours_256:expr) => {
        pub(crate) mod $module {
            use super::*;

            #[target_feature(enable = $features)]
            unsafe fn whole<const ROUNDS: usize, const SEAL: bool>(
                schedule: &Schedule,
                nonce: &[u8; 12],
                aad: &[u8],
                src: *const u8,
                dst: *mut u8,
                len: usize,
            ) -> u128 {
                // SAFETY: the caller's contract.
                unsafe {
                    super::whole::<$register, $registers, ROUNDS, SEAL>(
                        schedule, nonce, aad, src, dst, len,
                    )
                }
            }

            #[target_feature(enable = $features)]
            unsafe fn begin(schedule: &Schedule, nonce: &[u8; 12], aad: &[u8]) -> Progress {
                // SAFETY: the caller's contract.
                unsafe {
                    let mut hash = Block::ZERO;
                    _mm_store_si128((&raw mut hash).cast(), hash_additional(schedule, aad));
                    Progress {
                        nonce: *nonce,
                        aad_len: aad.len(),
                        data_len: 0,
                        hash,
                        tag_mask: Block::ZERO,
                    }
                }
            }

            #[target_feature(enable = $features)]
            unsafe fn steps<const ROUNDS: usize, const SEAL: bool>(
                schedule: &Schedule,
                progress: &mut Progress,
                src: *const u8,
                dst: *mut u8,
                count: usize,
            ) {
                // SAFETY: the caller's contract.
                unsafe {
                    super::steps::<$register, $registers, ROUNDS, SEAL>(
                        schedule, progress, src, dst, count,
                    )
                }
            }

            #[target_feature(enable = $features)]
            unsafe fn finish<const ROUNDS: usize, const SEAL: bool>(
                schedule: &Schedule,
                progress: &mut Progress,
                src: *const u8,
                dst: *mut u8,
                len: usize,
            ) -> u128 {
                // SAFETY: the caller's contract.
                unsafe {
                    finish_pieces::<$register, ROUNDS, SEAL>(schedule, progress, src, dst, len)
                }
            }

            const fn kernel<const ROUNDS: usize>(fours: Option<&'static Fours>) -> Kernel {
                Kernel {
                    path: $path,
                    rounds: ROUNDS,
                    lanes: $register::COUNT,
                    head_len: bulk::head_len($register::COUNT, $registers),
                    step_len: 16 * $registers * $register::COUNT,
                    begin,
                    seal: whole::<ROUNDS, true>,
                    open: whole::<ROUNDS, false>,
                    seal_steps: steps::<ROUNDS, true>,
                    open_steps: steps::<ROUNDS, false>,
                    seal_finish: finish::<ROUNDS, true>,
                    open_finish: finish::<ROUNDS, false>,
                    fours,
                }
            }

            pub(crate) static AES_128: Kernel = kernel::<10>($fours_128);
            pub(crate) static AES_256: Kernel = kernel::<14>($fours_256);
        }
    };
}

path!(
    vaes512,
    Path::Vaes512,
    Quad,
    4,
    "avx512f,avx512bw,avx512vl,avx512dq,avx2,vaes,vpclmulqdq,aes,pclmulqdq,ssse3,sse4.1,bmi1,bmi2",
    Some(&FOURS_128),
    Some(&FOURS_256)
);
path!(
    vaes256,
    Path::Vaes256,
    Pair,
    4,
    "avx2,vaes,vpclmulqdq,aes,pclmulqdq,ssse3,sse4.1",
    None,
    None
);
path!(
    aesni,
    Path::AesNi,
    Single,
    8,
    "aes,pclmulqdq,ssse3,sse4.1",
    None,
    None
);

/// [`batch512::four`] with its instructions.
#[target_feature(
    enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,vaes,vpclmulqdq,aes,pclmulqdq,ssse3,sse4.1,bmi1,bmi2"
)]
unsafe fn seal_four<const ROUNDS: usize>(packets: &Columns, tags: &mut MaybeUninit<Tags>) {
    // SAFETY: the caller's contract; the tags are 64 bytes.
    unsafe {
        let lanes = batch512::four::<ROUNDS, true>(packets);
        _mm512_store_si512(tags.as_mut_ptr().cast(), lanes);
    }
}

/// As above.
#[target_feature(
    enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,vaes,vpclmulqdq,aes,pclmulqdq,ssse3,sse4.1,bmi1,bmi2"
)]
unsafe fn open_four<const ROUNDS: usize>(packets: &Columns) -> u8 {
    // SAFETY: the caller's contract; the tags are 64 bytes.
    unsafe {
        let computed = batch512::four::<ROUNDS, false>(packets);
        // All words at once: there is no early exit to time.
        let differ =
            _mm512_cmpneq_epu64_mask(computed, _mm512_load_si512(packets.tag.as_ptr().cast()));
        // Two bits a packet: the even ones, put together.
        _pext_u32(u32::from(differ | differ >> 1), 0x55) as u8
    }
}
