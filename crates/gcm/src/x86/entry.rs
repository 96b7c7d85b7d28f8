//! The ways into the kernels: functions that enable a path's instructions around the generic code,
//! and the tables of them.

use super::ends::Ends;
use super::ghash::Sum;
use super::lanes::{Lanes, Pair, Quad, Single};
use super::message::{hash_additional, Additional, Begun, Data, Message};
use super::{batch512, bulk, expand, finish128, finish256, once, short512, stack};
use crate::columns::{Columns, Tags};
use crate::kernel::{counter_after, Batch4, Kernel, Progress, Whole};
use crate::schedule::{is_one_sum, Block, Schedule, Shape};
use crate::{Nonce, Path};
use core::arch::asm;
use core::arch::x86_64::*;
use core::mem::MaybeUninit;

/// The entry points of one path: functions that enable its instructions around the generic code.
macro_rules! path {
    ($module:ident, $path:expr, $register:ty, $registers:literal, $features:literal, $batch4_128:expr, $batch4_256:expr) => {
        pub(super) mod $module {
            use super::*;

            const HEAD_LEN: usize = bulk::head_len(<$register>::COUNT, $registers);

            /// The longest message that is worked on without a head, in bytes.
            const SHORT_MAX: usize = match <$register>::COUNT {
                4 => short512::SHORT_MAX,
                2 => finish256::SHORT_MAX,
                _ => finish128::SHORT_MAX,
            };

            #[target_feature(enable = $features)]
            unsafe fn whole<const ROUNDS: usize, const SEAL: bool>(
                schedule: &Schedule,
                nonce: &Nonce,
                aad: &[u8],
                src: *const u8,
                dst: *mut u8,
                len: usize,
            ) -> u128 {
                // SAFETY: the caller's contract.
                unsafe {
                    if len <= SHORT_MAX {
                        return super::short::<$register, ROUNDS, SEAL, false>(
                            schedule, nonce, aad, src, dst, len,
                        );
                    }
                    // No secret but the mask of the tag would be spilled, and that has its place.
                    if <$register>::COUNT == 4 {
                        // Through its address, which the compiler does not look at. It would
                        // change how `long` takes its arguments, and could no longer jump to it.
                        let address: usize;
                        asm!("lea {}, [rip + {}]", lateout(reg) address, sym long::<ROUNDS, SEAL>,
                            options(pure, nomem, nostack, preserves_flags));
                        let long: Whole = core::mem::transmute(address);
                        return long(schedule, nonce, aad, src, dst, len);
                    }
                    let tag = long::<ROUNDS, SEAL>(schedule, nonce, aad, src, dst, len);
                    stack::wipe::<$register>();
                    tag
                }
            }

            /// [`whole`] with sums of products for additional data of many blocks. Messages with a
            /// head have them in any case; in the code of short ones, even where they were not run,
            /// they took 1 to 4 % of the time.
            #[target_feature(enable = $features)]
            unsafe fn whole_after_much<const ROUNDS: usize, const SEAL: bool>(
                schedule: &Schedule,
                nonce: &Nonce,
                aad: &[u8],
                src: *const u8,
                dst: *mut u8,
                len: usize,
            ) -> u128 {
                // SAFETY: the caller's contract.
                unsafe {
                    if len > SHORT_MAX {
                        // As `long` above: not inlined.
                        let address: usize;
                        asm!("lea {}, [rip + {}]", lateout(reg) address, sym whole::<ROUNDS, SEAL>,
                            options(pure, nomem, nostack, preserves_flags));
                        let whole: Whole = core::mem::transmute(address);
                        return whole(schedule, nonce, aad, src, dst, len);
                    }
                    super::short::<$register, ROUNDS, SEAL, true>(
                        schedule, nonce, aad, src, dst, len,
                    )
                }
            }

            /// A message with a head. Not inlined: what it has to save would cost short messages
            /// time as well, and all it uses of the stack is below what wipes it.
            #[inline(never)]
            #[target_feature(enable = $features)]
            unsafe fn long<const ROUNDS: usize, const SEAL: bool>(
                schedule: &Schedule,
                nonce: &Nonce,
                aad: &[u8],
                src: *const u8,
                dst: *mut u8,
                len: usize,
            ) -> u128 {
                // SAFETY: the caller's contract.
                unsafe {
                    super::long::<$register, $registers, ROUNDS, SEAL>(
                        schedule, nonce, aad, src, dst, len,
                    )
                }
            }

            #[target_feature(enable = $features)]
            unsafe fn fill(schedule: &mut Schedule, key: &[u8]) {
                // SAFETY: the caller's contract.
                unsafe { expand::fill::<$register>(schedule, key) }
            }

            #[target_feature(enable = $features)]
            unsafe fn begin(schedule: &Schedule, nonce: &Nonce, aad: &[u8]) -> Progress {
                // SAFETY: the caller's contract.
                unsafe { super::begin::<$register>(schedule, nonce, aad) }
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
            unsafe fn one_reading<const ROUNDS: usize, const HASH: bool>(
                schedule: &Schedule,
                progress: &mut Progress,
                src: *const u8,
                dst: *mut u8,
                count: usize,
            ) {
                // SAFETY: the caller's contract.
                unsafe {
                    super::one_reading::<$register, $registers, ROUNDS, HASH>(
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
                    super::finish::<$register, ROUNDS, SEAL>(schedule, progress, src, dst, len)
                }
            }

            const fn kernel<const ROUNDS: usize>(batch4: Option<&'static Batch4>) -> Kernel {
                Kernel {
                    path: $path,
                    shape: Shape {
                        rounds: ROUNDS,
                        lanes: <$register>::COUNT,
                        head_len: HEAD_LEN,
                        short_max: SHORT_MAX,
                        step_len: 16 * $registers * <$register>::COUNT,
                    },
                    fill,
                    begin,
                    seal: [whole::<ROUNDS, true>, whole_after_much::<ROUNDS, true>],
                    open: [whole::<ROUNDS, false>, whole_after_much::<ROUNDS, false>],
                    seal_steps: steps::<ROUNDS, true>,
                    open_steps: steps::<ROUNDS, false>,
                    hash_steps: one_reading::<ROUNDS, true>,
                    decrypt_steps: one_reading::<ROUNDS, false>,
                    seal_finish: finish::<ROUNDS, true>,
                    open_finish: finish::<ROUNDS, false>,
                    batch4,
                }
            }

            pub(in super::super) static AES_128: Kernel = kernel::<10>($batch4_128);
            pub(in super::super) static AES_256: Kernel = kernel::<14>($batch4_256);
        }
    };
}

path!(
    vaes512,
    Path::Vaes512,
    Quad,
    4,
    "avx512f,avx512bw,avx512vl,avx512dq,avx512vbmi,avx2,vaes,vpclmulqdq,aes,pclmulqdq,ssse3,sse4.1,bmi1,bmi2",
    Some(&BATCH4_128),
    Some(&BATCH4_256)
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
    Single<false>,
    8,
    "aes,pclmulqdq,ssse3,sse4.1",
    None,
    None
);
// The same with the instructions of AVX.
path!(
    aesni_avx,
    Path::AesNi,
    Single<true>,
    8,
    "avx,aes,pclmulqdq,ssse3,sse4.1",
    None,
    None
);

static BATCH4_128: Batch4 = Batch4 {
    seal: seal_four::<10>,
    open: open_four::<10>,
    alone: &vaes512::AES_128,
};

static BATCH4_256: Batch4 = Batch4 {
    seal: seal_four::<14>,
    open: open_four::<14>,
    alone: &vaes512::AES_256,
};

/// [`batch512::four`] with its instructions, for sealing.
#[target_feature(
    enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vbmi,avx2,vaes,vpclmulqdq,aes,pclmulqdq,ssse3,sse4.1,bmi1,bmi2"
)]
unsafe fn seal_four<const ROUNDS: usize>(packets: &Columns, tags: &mut MaybeUninit<Tags>) {
    // SAFETY: the caller's contract; the tags are 64 bytes.
    unsafe {
        let lanes = batch512::four::<ROUNDS, true>(packets);
        _mm512_store_si512(tags.as_mut_ptr().cast(), lanes);
    }
}

/// [`batch512::four`] with its instructions, for opening.
#[target_feature(
    enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vbmi,avx2,vaes,vpclmulqdq,aes,pclmulqdq,ssse3,sse4.1,bmi1,bmi2"
)]
unsafe fn open_four<const ROUNDS: usize>(packets: &Columns) -> u8 {
    // SAFETY: the caller's contract; the tags are 64 bytes.
    unsafe {
        let computed = batch512::four::<ROUNDS, false>(packets);
        // All words at once: there is no early exit to time.
        let differ =
            _mm512_cmpneq_epu64_mask(computed, _mm512_load_si512(packets.tag.as_ptr().cast()));
        // Two bits per packet: the even ones, put together.
        _pext_u32(u32::from(differ | differ >> 1), 0x55) as u8
    }
}

/// Begins a message that comes in pieces.
#[inline(always)]
unsafe fn begin<V: Lanes>(schedule: &Schedule, nonce: &Nonce, aad: &[u8]) -> Progress {
    // SAFETY: the caller's contract.
    unsafe {
        let mut hash = Block::ZERO;
        let state = hash_additional::<V>(schedule, aad);
        _mm_store_si128((&raw mut hash).cast(), state);
        Progress {
            nonce: nonce.copy(),
            aad_len: aad.len(),
            data_len: 0,
            hash,
            tag_mask: Block::ZERO,
        }
    }
}

/// A whole message that is worked on without a head, with sums of products for additional data of
/// many blocks if `MUCH`.
#[inline(always)]
unsafe fn short<V: Ends, const ROUNDS: usize, const SEAL: bool, const MUCH: bool>(
    schedule: &Schedule,
    nonce: &Nonce,
    aad: &[u8],
    src: *const u8,
    dst: *mut u8,
    len: usize,
) -> u128 {
    // SAFETY: the caller's contract.
    unsafe {
        let message = Message::new(schedule, nonce, aad.len(), len as u64);
        let additional = if MUCH {
            Additional::Any(aad)
        } else {
            Additional::Short(aad)
        };
        let data = Data { src, dst, len };
        V::tag(V::short::<ROUNDS, SEAL>(message, additional, data))
    }
}

/// A whole message of a head and more.
#[inline(always)]
unsafe fn long<V: Ends, const N: usize, const ROUNDS: usize, const SEAL: bool>(
    schedule: &Schedule,
    nonce: &Nonce,
    aad: &[u8],
    src: *const u8,
    dst: *mut u8,
    len: usize,
) -> u128 {
    // SAFETY: the caller's contract; head, steps and tail add up to `len`.
    unsafe {
        let message = Message::new(schedule, nonce, aad.len(), len as u64);
        let additional = hash_additional::<V>(schedule, aad);
        let head_len = bulk::head_len(V::COUNT, N);
        let step_len = 16 * N * V::COUNT;
        let count = (len - head_len) / step_len;
        let done = head_len + count * step_len;
        let mut mask = Block::ZERO;
        let mut lengths = MaybeUninit::uninit();
        if V::COUNT == 4 {
            once::put_words(&mut lengths, message.bits());
            let data = Data { src, dst, len };
            let tag = V::halves::<ROUNDS, SEAL>(message, additional, lengths.as_ptr(), data);
            if let Some(tag) = tag {
                return V::tag(tag);
            }
        }
        bulk::fetch_beginning::<V, N>(src, count);
        let mut steps = bulk::Steps::<V, N>::new(schedule, nonce, 0);
        // Otherwise the last step is in one sum with the end.
        let is_joined = V::COUNT == 4 && !is_one_sum((len - done).div_ceil(64));
        let mut sum = bulk::begin::<V, N, ROUNDS, SEAL>(
            &mut steps, additional, src, dst, count, is_joined, &mut mask,
        );
        if V::COUNT == 2 {
            // The end of the message is in the same sum.
            sum = steps.hash((len - done).div_ceil(16) + 1);
        }
        let begun = Begun {
            tag_mask: once::take(&mut mask, V::VEX),
            state: _mm_setzero_si128(),
            sum,
            last: if V::COUNT == 4 {
                Some(steps.last())
            } else {
                None
            },
            lengths: lengths.as_ptr(),
            left: if V::COUNT == 1 {
                Some(steps.left().cast())
            } else {
                None
            },
        };
        let counter = counter_after(done as u64);
        let rest = Data {
            src: src.add(done),
            dst: dst.add(done),
            len: len - done,
        };
        V::tag(V::tail::<ROUNDS, SEAL>(message, counter, begun, rest))
    }
}

/// Whole steps of a message that comes in pieces.
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
        let nonce = progress.nonce.copy();
        let hash = _mm_load_si128((&raw const progress.hash).cast());
        let mut done = 16 * N * V::COUNT * count;
        let state = if progress.is_new() {
            done += bulk::head_len(V::COUNT, N);
            let mask = &mut progress.tag_mask;
            bulk::fetch_beginning::<V, N>(src, count);
            let mut steps = bulk::Steps::<V, N>::new(schedule, &nonce, 0);
            bulk::begin::<V, N, ROUNDS, SEAL>(&mut steps, hash, src, dst, count, false, mask);
            steps.hash(0).reduce().sum_of_lanes()
        } else {
            let counter = progress.next_counter();
            bulk::proceed::<V, N, ROUNDS, SEAL>(schedule, &nonce, counter, hash, src, dst, count)
        };
        _mm_store_si128((&raw mut progress.hash).cast(), state);
        progress.data_len += done as u64;
    }
}

/// Whole steps of a message that is read twice: hashed the first time, decrypted the second. The
/// head is opened in both.
#[inline(always)]
unsafe fn one_reading<V: Ends, const N: usize, const ROUNDS: usize, const HASH: bool>(
    schedule: &Schedule,
    progress: &mut Progress,
    src: *const u8,
    dst: *mut u8,
    count: usize,
) {
    // SAFETY: the caller's contract; the block is aligned.
    unsafe {
        let mut at = 0;
        if progress.is_new() {
            at = bulk::head_len(V::COUNT, N);
            steps::<V, N, ROUNDS, false>(schedule, progress, src, dst, 0);
        }
        if count == 0 {
            return;
        }
        let (src, dst) = (src.add(at), dst.add(at));
        if HASH {
            let state = _mm_load_si128((&raw const progress.hash).cast());
            let state = bulk::hash_alone::<V, N>(schedule, state, src, count);
            _mm_store_si128((&raw mut progress.hash).cast(), state);
        } else {
            let nonce = progress.nonce.copy();
            let counter = progress.next_counter();
            bulk::decrypt_alone::<V, N, ROUNDS>(schedule, &nonce, counter, src, dst, count);
        }
        progress.data_len += (16 * N * V::COUNT * count) as u64;
    }
}

/// The end of a message that comes in pieces.
#[inline(always)]
unsafe fn finish<V: Ends, const ROUNDS: usize, const SEAL: bool>(
    schedule: &Schedule,
    progress: &mut Progress,
    src: *const u8,
    dst: *mut u8,
    len: usize,
) -> u128 {
    // SAFETY: the caller's contract; the blocks are aligned.
    unsafe {
        let data_len = progress.data_len + len as u64;
        let message = Message::new(schedule, &progress.nonce, progress.aad_len, data_len);
        let data = Data { src, dst, len };
        let state = _mm_load_si128((&raw const progress.hash).cast());
        if progress.is_new() {
            let additional = Additional::Hashed(state);
            return V::tag(V::short::<ROUNDS, SEAL>(message, additional, data));
        }
        let tag_mask = _mm_load_si128((&raw const progress.tag_mask).cast());
        let mut lengths = MaybeUninit::uninit();
        if V::COUNT == 4 {
            once::put_words(&mut lengths, message.bits());
        }
        let begun = Begun::<V> {
            tag_mask,
            state,
            sum: Sum::zero(),
            last: None,
            lengths: lengths.as_ptr(),
            left: None,
        };
        let counter = progress.next_counter();
        V::tag(V::tail::<ROUNDS, SEAL>(message, counter, begun, data))
    }
}
