//! The end of a message on registers without byte masks: up to 127 bytes, staged in private memory.
//!
//! The bytes are copied in once and out once; in between they are handled as on 512-bit registers (see
//! `finish512`): one pass over [J0, C1, …], one sum of products.

use super::bulk::counter_order;
use super::finish512::Before;
use super::ghash::{self, Sum};
use super::lanes::{Lanes, Pair, Single};
use super::once;
use super::schedule::{Block, Schedule};
use core::arch::asm;
use core::arch::x86_64::*;

/// Blocks on the stage: J0 or additional data, up to 8 of data, one of lengths.
const STAGE: usize = 10;

/// Seals or opens the last `len` ≤ 127 bytes and returns the tag; arguments as for `finish512::finish`.
///
/// # Safety
/// The processor must have what `V` needs; `len` bytes must be readable at `src` and writable at
/// `dst`, which either are the same or do not overlap.
#[inline(always)]
#[allow(clippy::too_many_arguments)]
unsafe fn finish<V: Lanes, const ROUNDS: usize, const SEAL: bool>(
    schedule: &Schedule,
    nonce: __m128i,
    first: u32,
    before: Before,
    lengths: __m128i,
    src: *const u8,
    dst: *mut u8,
    len: usize,
) -> __m128i {
    // SAFETY: the stage holds 1 + 8 + 1 blocks, enough for 127 bytes; each case covers len/16 + 2 blocks.
    unsafe {
        macro_rules! run {
            ($registers:literal) => {
                run::<V, ROUNDS, SEAL, $registers>(schedule, nonce, first, before, lengths, src, dst, len)
            };
        }
        match (V::COUNT, len > 64) {
            (2, false) => run!(3),
            (2, true) => run!(5),
            (_, false) => run!(6),
            (_, true) => run!(10),
        }
    }
}

macro_rules! finish_on {
    ($name:ident, $register:ident) => {
        /// [`finish`] on one kind of register.
        ///
        /// # Safety
        /// As for [`finish`].
        #[inline(always)]
        #[allow(clippy::too_many_arguments)]
        pub(super) unsafe fn $name<const ROUNDS: usize, const SEAL: bool>(
            schedule: &Schedule,
            nonce: __m128i,
            first: u32,
            before: Before,
            lengths: __m128i,
            src: *const u8,
            dst: *mut u8,
            len: usize,
        ) -> __m128i {
            // SAFETY: the caller's contract.
            unsafe {
                finish::<$register, ROUNDS, SEAL>(schedule, nonce, first, before, lengths, src, dst, len)
            }
        }
    };
}
finish_on!(finish_pair, Pair);
finish_on!(finish_single, Single);

/// # Safety
/// As for `finish`; `R` registers must hold ⌈len/16⌉ + 2 blocks and no more than the stage.
#[inline(always)]
#[allow(clippy::too_many_arguments)]
unsafe fn run<V: Lanes, const ROUNDS: usize, const SEAL: bool, const R: usize>(
    schedule: &Schedule,
    nonce: __m128i,
    first: u32,
    before: Before,
    lengths: __m128i,
    src: *const u8,
    dst: *mut u8,
    len: usize,
) -> __m128i {
    // SAFETY: all private accesses are within the stage or the schedule; shared ones within `len` bytes.
    unsafe {
        let reversal = V::splat(ghash::byte_reversal());
        let keys = schedule.round_keys.as_ptr();
        let mut stage = [Block::ZERO; STAGE];
        let stage = stage.as_mut_ptr();
        copy_in(src, stage.add(1).cast(), len);

        let order = V::splat(counter_order());
        let first_key = V::splat_from(keys);
        let one_lane = V::splat(_mm_set_epi32(V::COUNT as i32, 0, 0, 0));
        let mut counter = V::splat(_mm_add_epi32(nonce, _mm_set_epi32(first.wrapping_sub(2) as i32, 0, 0, 0)))
            .add_words(V::lane_numbers());
        let j0 = _mm_add_epi32(nonce, _mm_set_epi32(1, 0, 0, 0));
        let mut state = [V::zero(); R];
        for s in &mut state {
            *s = counter;
            counter = counter.add_words(one_lane);
        }
        let displaced = state[0].first_lane();
        state[0] = state[0].xor(V::in_first_lane(_mm_xor_si128(displaced, j0)));
        for s in &mut state {
            *s = s.permute(order).xor(first_key);
        }
        macro_rules! rounds {
            ($($r:literal)*) => {$(
                if $r < ROUNDS {
                    let key = V::splat_from(keys.add($r));
                    for s in &mut state {
                        *s = s.aes(key);
                    }
                }
            )*};
        }
        rounds!(1 2 3 4 5 6 7 8 9 10 11 12 13);
        let last_key = V::splat_from(keys.add(ROUNDS));
        let mut input = [V::zero(); R];
        let mut output = [V::zero(); R];
        for i in 0..R {
            input[i] = V::load_private(stage.add(i * V::COUNT));
            output[i] = state[i].aes_last(last_key.xor(input[i]));
            V::store_private(stage.add(i * V::COUNT), output[i]);
        }
        let tag_mask = output[0].first_lane();
        copy_out(stage.add(1).cast(), dst, len);

        // The hashed blocks go back on the stage, where additional data and lengths are put around them.
        let data_blocks = len.div_ceil(16);
        if SEAL {
            core::ptr::write_bytes(stage.add(1).cast::<u8>().add(len), 0, 16 * (STAGE - 1) - len);
        } else {
            for (i, x) in input.iter().enumerate() {
                V::store_private(stage.add(i * V::COUNT), *x);
            }
        }
        let lengths = _mm_shuffle_epi8(lengths, ghash::byte_reversal());
        _mm_store_si128(stage.add(data_blocks + 1).cast(), lengths);
        _mm_store_si128(stage.cast(), _mm_setzero_si128());
        let (at, b) = match before {
            Before::Additional(b) => (0, b),
            Before::State(b) => (1, b),
        };
        let block = _mm_load_si128(stage.add(at).cast());
        _mm_store_si128(stage.add(at).cast(), _mm_xor_si128(block, _mm_shuffle_epi8(b, ghash::byte_reversal())));

        let powers = schedule.powers_from(data_blocks + 2);
        let mut sum = Sum::zero();
        for i in 0..R {
            let x = V::load_private(stage.add(i * V::COUNT)).permute(reversal);
            sum.add(x, V::load_private(powers.add(i * V::COUNT)));
        }
        let hash = sum.reduce().sum_of_lanes();
        // What is left on the stage is ciphertext; its plaintext, if any, has been overwritten.
        _mm_xor_si128(_mm_shuffle_epi8(hash, ghash::byte_reversal()), tag_mask)
    }
}

/// Copies `len` bytes from memory that may be shared, each loaded once.
///
/// # Safety
/// `len` bytes must be readable at `src` and writable at `dst`; `dst` is private.
#[inline(always)]
pub(crate) unsafe fn copy_in(mut src: *const u8, mut dst: *mut u8, mut len: usize) {
    macro_rules! piece {
        ($bytes:literal, $type:ty, $text:literal) => {
            if len & $bytes != 0 {
                let v: $type;
                asm!($text, v = lateout(reg) v, p = in(reg) src, options(nostack, readonly, preserves_flags));
                dst.cast::<$type>().write_unaligned(v);
                src = src.add($bytes);
                dst = dst.add($bytes);
            }
        };
    }
    // SAFETY: the pieces add up to `len`.
    unsafe {
        while len >= 16 {
            _mm_storeu_si128(dst.cast(), once::load_128::<0>(src));
            src = src.add(16);
            dst = dst.add(16);
            len -= 16;
        }
        piece!(8, u64, "mov {v:r}, qword ptr [{p}]");
        piece!(4, u32, "mov {v:e}, dword ptr [{p}]");
        piece!(2, u16, "mov {v:x}, word ptr [{p}]");
        if len & 1 != 0 {
            let v: u8;
            asm!("mov {v}, byte ptr [{p}]", v = lateout(reg_byte) v, p = in(reg) src,
                options(nostack, readonly, preserves_flags));
            dst.write(v);
        }
    }
}

/// Copies `len` bytes to memory that may be shared, each stored once.
///
/// # Safety
/// `len` bytes must be readable at `src` and writable at `dst`; `src` is private.
#[inline(always)]
pub(crate) unsafe fn copy_out(mut src: *const u8, mut dst: *mut u8, mut len: usize) {
    macro_rules! piece {
        ($bytes:literal, $type:ty, $text:literal) => {
            if len & $bytes != 0 {
                let v = src.cast::<$type>().read_unaligned();
                asm!($text, v = in(reg) v, p = in(reg) dst, options(nostack, preserves_flags));
                src = src.add($bytes);
                dst = dst.add($bytes);
            }
        };
    }
    // SAFETY: the pieces add up to `len`.
    unsafe {
        while len >= 16 {
            once::store_128::<0>(dst, _mm_loadu_si128(src.cast()));
            src = src.add(16);
            dst = dst.add(16);
            len -= 16;
        }
        piece!(8, u64, "mov qword ptr [{p}], {v:r}");
        piece!(4, u32, "mov dword ptr [{p}], {v:e}");
        piece!(2, u16, "mov word ptr [{p}], {v:x}");
        if len & 1 != 0 {
            asm!("mov byte ptr [{p}], {v}", v = in(reg_byte) src.read(), p = in(reg) dst,
                options(nostack, preserves_flags));
        }
    }
}
