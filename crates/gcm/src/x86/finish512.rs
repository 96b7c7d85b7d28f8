//! Short messages and the ends of long ones on 512-bit registers.
//!
//! A short message is one pass. In most of them the last register has a lane to spare, and then all
//! is held in place: the lane in which GHASH wants the additional data is the lane in which counter
//! mode has the block for the tag (J0), and the block of lengths follows the last block of data. So
//! AES runs once over [J0, C1, C2, …], and one sum of products, reduced once, covers additional
//! data, ciphertext and lengths. In registers the data therefore sits one block further up than in
//! memory; it is moved by register shifts, because an access 16 bytes before the data would touch
//! what the caller has just written there (a header, an IV) and wait for it.
//!
//! Where the last register is full, that would take one more. There the data stays where it is, J0
//! is encrypted beside it in a register of one block, and additional data and lengths share one.
//!
//! Masks keep every access to the bytes that exist, each once.

use super::bulk::NUMBERS;
use super::ghash::{self, Sum};
use super::lanes::{Lanes, Quad, Single};
use super::message::{Begun, Data, Message};
use super::once;
use crate::schedule::Block;
use core::arch::x86_64::*;

macro_rules! rounds {
    ($keys:expr, $state:expr; $($r:literal)*) => {$(
        if $r < ROUNDS {
            let key = Quad::splat_from($keys.add($r));
            for s in &mut $state {
                *s = s.aes(key);
            }
        }
    )*};
}

/// The bytes present in the register that begins `at`, of `len` bytes in all.
#[inline(always)]
pub(super) unsafe fn mask_from(len: usize, at: usize) -> u64 {
    // SAFETY: BMI2 is enabled wherever this is inlined. Lengths here are below 256, as the
    // instruction wants.
    unsafe { _bzhi_u64(u64::MAX, len.saturating_sub(at) as u32) }
}

/// The longest message that is one pass, in bytes.
pub(super) const SHORT_MAX: usize = 256;

/// Seals or opens a whole message of up to [`SHORT_MAX`] bytes and returns its tag.
///
/// `additional` is the last block of additional data with the state before it, byte-reversed.
///
/// # Safety
/// The processor must have the 512-bit path's instructions; the data must be readable at its source
/// and writable at its destination, which either are the same or do not overlap.
#[inline(always)]
pub(super) unsafe fn short<const ROUNDS: usize, const SEAL: bool>(
    message: Message<'_>,
    additional: __m128i,
    data: Data,
) -> __m128i {
    // SAFETY: each function gets the lengths that it demands.
    unsafe {
        macro_rules! with_j0 {
            ($registers:literal) => {
                short_with_j0::<ROUNDS, SEAL, $registers>(message, additional, data)
            };
        }
        macro_rules! full {
            ($registers:literal) => {
                short_full::<ROUNDS, SEAL, $registers>(message, additional, data)
            };
        }
        // In steps of the 16 bytes by which the two kinds of messages differ.
        match data.len.div_ceil(16) {
            0..=3 => with_j0!(1),
            4 => full!(1),
            5..=7 => with_j0!(2),
            8 => full!(2),
            9..=11 => with_j0!(3),
            12 => full!(3),
            13..=15 => with_j0!(4),
            _ => full!(4),
        }
    }
}

/// [`short`], for messages that leave room for J0 in their registers.
///
/// # Safety
/// As for [`short`]; `R` must be ⌈(len + 16) / 64⌉, and ⌈len / 64⌉ unless that is 0.
#[inline(always)]
unsafe fn short_with_j0<const ROUNDS: usize, const SEAL: bool, const R: usize>(
    message: Message<'_>,
    additional: __m128i,
    data: Data,
) -> __m128i {
    let Message {
        schedule, nonce, ..
    } = message;
    let Data { src, dst, len } = data;
    // SAFETY: masks limit all accesses to the `len` bytes.
    unsafe {
        let reversal = Quad::splat(ghash::byte_reversal());
        let keys = once::fresh(schedule.round_keys.as_ptr());
        let (nonce, first_key) = (Quad::splat(nonce), Quad::splat_from(keys));
        let mut state = [Quad::zero(); R];
        for (i, s) in state.iter_mut().enumerate() {
            *s = nonce.xor3(
                first_key,
                Quad::load_private(NUMBERS.as_ptr().add(1 + 4 * i)),
            );
        }

        let in_last = mask_from(len, 64 * (R - 1));
        let mut data = [Quad::zero(); R];
        for i in 0..R - 1 {
            data[i].0 = once::load_512::<0>(src.add(64 * i));
        }
        // No bytes may be nowhere.
        if R > 1 || len > 0 {
            data[R - 1].0 = once::load_512_masked(src.add(64 * (R - 1)), in_last);
        }
        let mut input = data;
        for i in 0..R {
            let below = if i > 0 { data[i - 1] } else { Quad::zero() };
            input[i].0 = _mm512_alignr_epi64::<6>(data[i].0, below.0);
        }

        rounds!(keys, state; 1 2 3 4 5 6 7 8 9 10 11 12 13);
        let last_key = Quad::splat_from(keys.add(ROUNDS));
        let mut output = [Quad::zero(); R];
        for i in 0..R {
            output[i] = state[i].aes_last(last_key.xor(input[i]));
        }
        for i in 0..R {
            let above = if i + 1 < R {
                output[i + 1]
            } else {
                Quad::zero()
            };
            data[i].0 = _mm512_alignr_epi64::<2>(above.0, output[i].0);
        }
        for i in 0..R - 1 {
            once::store_512::<0>(dst.add(64 * i), data[i].0);
        }
        if R > 1 || len > 0 {
            once::store_512_masked(dst.add(64 * (R - 1)), data[R - 1].0, in_last);
        }
        // Nothing was loaded into lane 0 of the first register, so this is the encryption of J0.
        let tag_mask = output[0].first_lane();

        let mut blocks = input;
        if SEAL {
            blocks = output;
            // Keystream in place of bytes that do not exist is not hashed.
            blocks[R - 1].0 =
                _mm512_maskz_mov_epi8(mask_from(len + 16, 64 * (R - 1)), blocks[R - 1].0);
        }
        for b in &mut blocks {
            *b = b.permute(reversal);
        }
        blocks[0].0 = _mm512_inserti32x4::<0>(blocks[0].0, additional);
        let data_blocks = len.div_ceil(16);
        let powers = schedule.powers_from(data_blocks + 2);
        hash::<R>(message, blocks, powers, data_blocks + 1, tag_mask)
    }
}

/// [`short`], for messages whose blocks fill their registers.
///
/// # Safety
/// As for [`short`]; ⌈len / 16⌉ must be 4·`R`.
#[inline(always)]
unsafe fn short_full<const ROUNDS: usize, const SEAL: bool, const R: usize>(
    message: Message<'_>,
    additional: __m128i,
    data: Data,
) -> __m128i {
    let Message {
        schedule,
        nonce,
        lengths,
    } = message;
    let Data { src, dst, len } = data;
    // SAFETY: masks limit all accesses to the `len` bytes.
    unsafe {
        let reversal = Quad::splat(ghash::byte_reversal());
        let in_last = mask_from(len, 64 * (R - 1));
        let mut input = [Quad::zero(); R];
        for i in 0..R - 1 {
            input[i].0 = once::load_512::<0>(src.add(64 * i));
        }
        input[R - 1].0 = once::load_512_masked(src.add(64 * (R - 1)), in_last);

        // The part of the hash that does not wait for the cipher.
        let first = schedule.powers_from(4 * R + 2);
        let ends = _mm256_set_m128i(lengths, additional);
        let end_powers = _mm256_set_m128i(
            Single::<true>::load_private(schedule.powers_from(1)).0,
            Single::<true>::load_private(first).0,
        );
        let mut sum = Sum::of(
            Quad(_mm512_zextsi256_si512(ends)),
            Quad(_mm512_zextsi256_si512(end_powers)),
        );

        let keys = once::fresh(schedule.round_keys.as_ptr());
        let first_key = Quad::splat_from(keys);
        let one = Single::<true>::load_private(NUMBERS.as_ptr().add(1));
        let mut j0 = Single(nonce).xor3(Single(first_key.first_lane()), one);
        let nonce = Quad::splat(nonce);
        let mut state = [Quad::zero(); R];
        for (i, s) in state.iter_mut().enumerate() {
            let numbers = Quad::load_private(NUMBERS.as_ptr().add(2 + 4 * i));
            *s = nonce.xor3(first_key, numbers);
        }
        macro_rules! rounds_with_j0 {
            ($($r:literal)*) => {$(
                if $r < ROUNDS {
                    let key = Quad::splat_from(keys.add($r));
                    for s in &mut state {
                        *s = s.aes(key);
                    }
                    j0 = j0.aes(Single(key.first_lane()));
                }
            )*};
        }
        rounds_with_j0!(1 2 3 4 5 6 7 8 9 10 11 12 13);
        let last_key = Quad::splat_from(keys.add(ROUNDS));
        let tag_mask = j0.aes_last(Single(last_key.first_lane())).0;
        let mut blocks = input;
        for i in 0..R {
            let output = state[i].aes_last(last_key.xor(input[i]));
            let to = dst.add(64 * i);
            if i + 1 < R {
                once::store_512::<0>(to, output.0);
            } else {
                once::store_512_masked(to, output.0, in_last);
            }
            if SEAL {
                blocks[i] = output;
            }
        }
        if SEAL {
            // Keystream in place of bytes that do not exist is not hashed.
            let last = &mut blocks[R - 1].0;
            *last = _mm512_maskz_mov_epi8(in_last, *last);
        }
        let powers = once::fresh(first.add(1));
        for i in 0..R {
            let block = blocks[i].permute(reversal);
            sum.add(block, Quad::load_private(powers.add(4 * i)));
        }
        let hash = sum.reduce().sum_of_lanes();
        _mm_xor_si128(_mm_shuffle_epi8(hash, ghash::byte_reversal()), tag_mask)
    }
}

/// Seals or opens the last bytes of a longer message, fewer than 256, and returns the tag.
///
/// `counter` is that of the first block, a multiple of 16.
///
/// # Safety
/// As for [`short`].
#[inline(always)]
pub(super) unsafe fn tail<const ROUNDS: usize, const SEAL: bool>(
    message: Message<'_>,
    counter: u32,
    begun: Begun<Quad>,
    data: Data,
) -> __m128i {
    // SAFETY: the number of registers passed is ⌈len / 64⌉, as the function demands.
    unsafe {
        macro_rules! on {
            ($registers:literal) => {
                tail_on::<ROUNDS, SEAL, $registers>(message, counter, begun, data)
            };
        }
        match data.len.div_ceil(64) {
            0 => {
                let block = Quad::in_first_lane(_mm_xor_si128(begun.state, message.lengths));
                let h = Quad::load_private(message.schedule.powers_from(1));
                let hash = ghash::multiply(block, h).first_lane();
                _mm_xor_si128(
                    _mm_shuffle_epi8(hash, ghash::byte_reversal()),
                    begun.tag_mask,
                )
            }
            1 => on!(1),
            2 => on!(2),
            3 => on!(3),
            _ => on!(4),
        }
    }
}

/// # Safety
/// As for [`tail`]; `R` must be ⌈len / 64⌉.
#[inline(always)]
unsafe fn tail_on<const ROUNDS: usize, const SEAL: bool, const R: usize>(
    message: Message<'_>,
    counter: u32,
    begun: Begun<Quad>,
    data: Data,
) -> __m128i {
    let Message {
        schedule, nonce, ..
    } = message;
    let Data { src, dst, len } = data;
    // SAFETY: the mask limits accesses to the `len` bytes.
    unsafe {
        let reversal = Quad::splat(ghash::byte_reversal());
        let keys = once::fresh(schedule.round_keys.as_ptr());
        let first_key = Quad::splat_from(keys);
        let nonce = Quad::splat(_mm_insert_epi32::<3>(nonce, counter.swap_bytes() as i32));
        let mut state = [Quad::zero(); R];
        for (i, s) in state.iter_mut().enumerate() {
            *s = nonce.xor3(first_key, Quad::load_private(NUMBERS.as_ptr().add(4 * i)));
        }
        let in_last = mask_from(len, 64 * (R - 1));
        let mut input = [Quad::zero(); R];
        for (i, x) in input.iter_mut().enumerate() {
            let p = src.add(64 * i);
            x.0 = if i + 1 < R {
                once::load_512::<0>(p)
            } else {
                once::load_512_masked(p, in_last)
            };
        }
        rounds!(keys, state; 1 2 3 4 5 6 7 8 9 10 11 12 13);
        let last_key = Quad::splat_from(keys.add(ROUNDS));
        let mut blocks = input;
        for i in 0..R {
            let output = state[i].aes_last(last_key.xor(input[i]));
            let p = dst.add(64 * i);
            if i + 1 < R {
                once::store_512::<0>(p, output.0);
            } else {
                once::store_512_masked(p, output.0, in_last);
            }
            if SEAL {
                blocks[i] = output;
            }
        }
        if SEAL {
            blocks[R - 1].0 = _mm512_maskz_mov_epi8(in_last, blocks[R - 1].0);
        }
        for b in &mut blocks {
            *b = b.permute(reversal);
        }
        blocks[0] = blocks[0].xor(Quad::in_first_lane(begun.state));
        let data_blocks = len.div_ceil(16);
        let powers = schedule.powers_from(data_blocks + 1);
        hash::<R>(message, blocks, powers, data_blocks, begun.tag_mask)
    }
}

/// The tag over `blocks`, of which the first `count` are in use, and the block of lengths after
/// them.
///
/// # Safety
/// `powers` must be followed by `R` registers of powers; the processor as for [`short`].
#[inline(always)]
unsafe fn hash<const R: usize>(
    message: Message<'_>,
    mut blocks: [Quad; R],
    powers: *const Block,
    count: usize,
    tag_mask: __m128i,
) -> __m128i {
    // SAFETY: the caller's contract.
    unsafe {
        let powers = once::fresh(powers);
        let lane = count % 4;
        if lane > 0 {
            let last = &mut blocks[R - 1].0;
            *last = _mm512_mask_broadcast_i32x4(*last, 0xf << (4 * lane), message.lengths);
        }
        let mut sum = Sum::of(blocks[0], Quad::load_private(powers));
        for i in 1..R {
            sum.add(blocks[i], Quad::load_private(powers.add(4 * i)));
        }
        if lane == 0 {
            // The registers are full: the lengths take the first lane of one more.
            sum.add(
                Quad::in_first_lane(message.lengths),
                Quad::load_private(message.schedule.powers_from(1)),
            );
        }
        let hash = sum.reduce().sum_of_lanes();
        _mm_xor_si128(_mm_shuffle_epi8(hash, ghash::byte_reversal()), tag_mask)
    }
}
