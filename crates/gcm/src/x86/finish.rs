//! The end of a message on registers of two blocks: up to 128 bytes, staged in private memory.
//!
//! The bytes are copied in once and out once; in between they are handled as on 512-bit registers
//! (see `finish512`): one pass over [J0, C1, …], one sum of products.

use super::ghash::{self, Sum};
use super::lanes::{Lanes, Single};
use super::message::{Before, Data, Message, Stage, STAGE};
use super::once;
use crate::schedule::Block;
use core::arch::asm;
use core::arch::x86_64::*;

/// The longest message that is worked on at once, in bytes: as many as the stage holds.
pub(super) const SHORT_MAX: usize = 16 * (STAGE - 2);

/// Seals or opens up to [`SHORT_MAX`] bytes and returns the tag; `first` is the counter of the
/// first block, and `sum` what is added to the hash of ⌈len/16⌉ blocks and one of lengths.
///
/// # Safety
/// The processor must have what `V` needs; the data must be readable at its source and writable at
/// its destination, which either are the same or do not overlap.
#[inline(always)]
pub(super) unsafe fn finish<V: Lanes, const ROUNDS: usize, const SEAL: bool>(
    message: Message<'_>,
    first: u32,
    before: Before,
    sum: Sum<V>,
    data: Data,
    stage: &mut Stage,
) -> __m128i {
    // SAFETY: the stage holds 1 + 8 + 1 blocks, enough for 128 bytes; each case covers ⌈len/16⌉ + 2
    // blocks, and no block before the one it names can be partial.
    unsafe {
        const { assert!(V::COUNT == 2) };
        macro_rules! run {
            ($registers:literal, $partial:literal) => {
                run::<V, ROUNDS, SEAL, $registers, $partial>(
                    message, first, before, sum, data, stage,
                )
            };
        }
        match data.len {
            0..=32 => run!(2, 1),
            33..=64 => run!(3, 3),
            _ => run!(5, 5),
        }
    }
}

/// Bytes of ones, as many as the stage has, and then of zeros: from its byte number n on, a mask
/// for all but the last n bytes of the stage.
static EXIST: [Block; 2 * STAGE] = {
    let mut blocks = [Block::ZERO; 2 * STAGE];
    let mut i = 0;
    while i < STAGE {
        blocks[i] = Block([0xff; 16]);
        i += 1;
    }
    blocks
};

/// # Safety
/// As for `finish`; `R` registers must hold ⌈len/16⌉ + 2 blocks and no more than the stage; blocks
/// of data before number `PARTIAL`, counted from 1, must be whole.
#[inline(always)]
unsafe fn run<
    V: Lanes,
    const ROUNDS: usize,
    const SEAL: bool,
    const R: usize,
    const PARTIAL: usize,
>(
    message: Message<'_>,
    first: u32,
    before: Before,
    sum: Sum<V>,
    data: Data,
    stage: &mut Stage,
) -> __m128i {
    let Message {
        schedule,
        nonce,
        lengths,
    } = message;
    let Data { src, dst, len } = data;
    // SAFETY: all private accesses are within the stage or the schedule; shared ones within `len`
    // bytes.
    unsafe {
        let reversal = V::splat(ghash::byte_reversal());
        let keys = once::fresh(schedule.round_keys.as_ptr());
        let stage = stage.as_mut_ptr().cast::<[Block; STAGE]>();
        // Opened, the data has a place of its own: the hash is of what was loaded.
        let opened = stage.add(1).cast::<Block>();
        let stage = stage.cast::<Block>();
        _mm_store_si128(stage.cast(), _mm_setzero_si128());
        for i in PARTIAL..R * V::COUNT {
            _mm_store_si128(stage.add(i).cast(), _mm_setzero_si128());
        }
        let to = if SEAL { stage } else { opened };
        copy_in_on::<V>(src, stage.add(1).cast(), len);

        // Counters: 1 (that of J0) in the first place, then `first`, `first` + 1, …
        let mut counters = [Block::ZERO; STAGE];
        for (i, block) in counters.iter_mut().enumerate() {
            let counter = if i == 0 {
                1
            } else {
                first.wrapping_add(i as u32 - 1)
            };
            let counter = _mm_set_epi32(counter.swap_bytes() as i32, 0, 0, 0);
            _mm_store_si128((&raw mut *block).cast(), counter);
        }
        // Of a short message the counters are constants.
        let base = V::splat_from(keys).xor(V::splat(nonce));
        let mut state = [V::zero(); R];
        for (i, s) in state.iter_mut().enumerate() {
            *s = V::load_private(counters.as_ptr().add(i * V::COUNT)).xor(base);
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
        }
        // Not onto the stage: what overwrites it there may be dropped as a store that is not read.
        let mask = output[0].first_lane();
        output[0] = output[0].xor(V::in_first_lane(mask));
        let mut tag_mask = Block::ZERO;
        once::put(&mut tag_mask, mask, V::VEX);
        // Keystream in place of bytes that do not exist is neither hashed nor left here.
        let exist = EXIST.as_ptr().byte_add(16 * (STAGE - 1) - len);
        for (i, x) in output.iter().enumerate() {
            let mut x = *x;
            if SEAL {
                x = x.and(V::load_private(exist.add(i * V::COUNT)));
            }
            V::store_private(to.add(i * V::COUNT), x);
        }
        copy_out_on::<V>(to.add(1).cast(), dst, len);
        if !SEAL {
            for i in 0..R {
                V::clear(opened.add(i * V::COUNT));
            }
        }

        // Additional data and lengths are put around the hashed blocks.
        let data_blocks = len.div_ceil(16);
        let lengths = _mm_shuffle_epi8(lengths, ghash::byte_reversal());
        _mm_store_si128(stage.add(data_blocks + 1).cast(), lengths);
        _mm_store_si128(stage.cast(), _mm_setzero_si128());
        let (at, b) = match before {
            Before::Additional(b) => (0, b),
            Before::State(b) => (1, b),
        };
        let block = _mm_load_si128(stage.add(at).cast());
        _mm_store_si128(
            stage.add(at).cast(),
            _mm_xor_si128(block, _mm_shuffle_epi8(b, ghash::byte_reversal())),
        );

        let powers = once::fresh(schedule.powers_from(data_blocks + 2));
        let mut sum = sum;
        for i in 0..R {
            let x = V::load_private(stage.add(i * V::COUNT)).permute(reversal);
            sum.add(x, V::load_private(powers.add(i * V::COUNT)));
        }
        let hash = sum.reduce().sum_of_lanes();
        // What is left on the stage is ciphertext.
        _mm_xor_si128(
            _mm_shuffle_epi8(hash, ghash::byte_reversal()),
            once::take(&mut tag_mask, V::VEX),
        )
    }
}

/// Copies `len` bytes from memory that may be shared, each loaded once.
///
/// # Safety
/// `len` bytes must be readable at `src` and writable at `dst`; `dst` is private.
pub(crate) unsafe fn copy_in(src: *const u8, dst: *mut u8, len: usize) {
    // SAFETY: the caller's contract; the older encoding runs on every x86-64.
    unsafe { copy_in_on::<Single<false>>(src, dst, len) }
}

/// Copies `len` bytes to memory that may be shared, each stored once.
///
/// # Safety
/// `len` bytes must be readable at `src` and writable at `dst`; `src` is private.
pub(crate) unsafe fn copy_out(src: *const u8, dst: *mut u8, len: usize) {
    // SAFETY: as above.
    unsafe { copy_out_on::<Single<false>>(src, dst, len) }
}

/// [`copy_in`], in the instruction encoding of `V`.
///
/// # Safety
/// As for [`copy_in`].
#[inline(always)]
unsafe fn copy_in_on<V: Lanes>(mut src: *const u8, mut dst: *mut u8, mut len: usize) {
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
            _mm_storeu_si128(dst.cast(), V::load_block_once(src));
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

/// [`copy_out`], in the instruction encoding of `V`.
///
/// # Safety
/// As for [`copy_out`].
#[inline(always)]
unsafe fn copy_out_on<V: Lanes>(mut src: *const u8, mut dst: *mut u8, mut len: usize) {
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
            V::store_block_once(dst, _mm_loadu_si128(src.cast()));
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
