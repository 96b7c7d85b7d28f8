//! Short messages on 512-bit registers.
//!
//! A short message is one pass: AES once over its blocks and the block for the tag (J0), and one
//! sum of products, reduced once. Data stays in the lanes that it is loaded into. Where the last
//! register has a lane to spare, J0 is encrypted there, in the last lane; where it is full, J0 is
//! encrypted beside it in a register of one block. Additional data and lengths share one. Of up to
//! two blocks there is code that uses as few multiplications, or as narrow ones, as there can be.
//!
//! While instructions on 512 bits run, Intel's processors have two of their three vector units for
//! them, and a short message takes half a cycle for each operation on vectors. Loads need neither:
//! so the nonce is put into its lanes by loads, and the tag leaves through memory.
//!
//! Masks keep every access to the bytes that exist, each once.

use super::bulk::NUMBERS;
use super::ghash::{self, Sum};
use super::lanes::{Lanes, Pair, Quad, Single};
use super::message::{Additional, Data, Message};
use super::once::{self, Mask};
use crate::schedule::{Block, Schedule};
use core::arch::x86_64::*;

/// The longest message that is one pass, in bytes.
pub(super) const SHORT_MAX: usize = 256;

/// Counters of a message's last register that has a lane for J0, which is its last, by the number
/// of registers.
static NUMBERS_WITH_J0: [[Block; 4]; 4] = {
    let mut all = [[NUMBERS[1]; 4]; 4];
    let mut i = 0;
    while i < 12 {
        all[i / 3][i % 3] = NUMBERS[2 + i / 3 * 4 + i % 3];
        i += 1;
    }
    all
};

/// Counters of data, of messages whose registers have no lane for J0.
static NUMBERS_OF_DATA: [[Block; 4]; 4] = {
    let mut all = NUMBERS_WITH_J0;
    let mut i = 0;
    while i < 4 {
        all[i][3] = NUMBERS[5 + 4 * i];
        i += 1;
    }
    all
};

/// Seals or opens a whole message of up to [`SHORT_MAX`] bytes and returns its tag.
///
/// # Safety
/// The processor must have the 512-bit path's instructions; the data must be readable at its source
/// and writable at its destination, which either are the same or do not overlap.
#[inline(always)]
pub(super) unsafe fn short<const ROUNDS: usize, const SEAL: bool>(
    message: Message<'_>,
    additional: Additional<'_>,
    data: Data,
) -> __m128i {
    // SAFETY: each function gets the lengths that it demands.
    unsafe {
        let ends = additional.ends(message);
        let nonce = Quad::nonce(message.nonce_at);
        macro_rules! with_j0 {
            ($registers:literal) => {
                short_on::<ROUNDS, SEAL, $registers, true>(message.schedule, nonce, ends, data)
            };
        }
        macro_rules! full {
            ($registers:literal) => {
                short_on::<ROUNDS, SEAL, $registers, false>(message.schedule, nonce, ends, data)
            };
        }
        // In steps of the 16 bytes by which the two kinds of messages differ.
        match data.len.div_ceil(16) {
            0..=1 => few::<ROUNDS, SEAL, true>(message.schedule, nonce, ends, data),
            2 => few::<ROUNDS, SEAL, false>(message.schedule, nonce, ends, data),
            3 => with_j0!(1),
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

/// Of messages of one block the counters of the data and of J0.
static NUMBERS_OF_ONE: [Block; 2] = [NUMBERS[2], NUMBERS[1]];

/// For messages of up to two blocks, by their number: which words of H^4, …, H the data is
/// multiplied by, additional data in the third lane, and lengths in the last.
static POWERS_OF_FEW: [[u64; 8]; 3] = [
    [0, 0, 0, 0, 4, 5, 6, 7],
    [4, 5, 0, 0, 2, 3, 6, 7],
    [2, 3, 4, 5, 0, 1, 6, 7],
];

/// [`short`] of up to two blocks, and of up to one on registers of two blocks if `ONE`.
///
/// Ciphertext that is there from the beginning shares the register, and so the product, with
/// additional data and lengths. That which has to be waited for is alone with its product, whose
/// narrower sum takes less time to be reduced and added up.
///
/// # Safety
/// As for [`short`]; `ONE` must tell whether there is at most one block.
#[inline(always)]
unsafe fn few<const ROUNDS: usize, const SEAL: bool, const ONE: bool>(
    schedule: &Schedule,
    nonce: Quad,
    ends: __m256i,
    data: Data,
) -> __m128i {
    let Data { src, dst, len } = data;
    // SAFETY: masks limit all accesses to the `len` bytes.
    unsafe {
        let exist = Mask::from(len, 0);
        let mut input = Quad::zero();
        // No bytes may be nowhere.
        if !ONE || len > 0 {
            input.0 = once::load_512_masked(src, exist);
        }
        let blocks = if ONE { len.div_ceil(16) } else { 2 };
        // The part of the hash that does not wait for the cipher.
        let hash = if SEAL {
            of_ends(schedule, ends, blocks)
        } else {
            Sum::zero()
        };

        let keys = once::fresh(schedule.round_keys.as_ptr());
        let (output, tag_mask) = if ONE {
            let nonce = Pair(_mm512_castsi512_si256(nonce.0));
            let input = Pair(_mm512_castsi512_si256(input.0));
            let output = encrypt::<Pair, ROUNDS>(nonce, keys, NUMBERS_OF_ONE.as_ptr(), input);
            (Quad(_mm512_zextsi256_si512(output.0)), output.second_lane())
        } else {
            let numbers = NUMBERS_WITH_J0[0].as_ptr();
            let output = encrypt::<Quad, ROUNDS>(nonce, keys, numbers, input);
            (output, _mm512_extracti32x4_epi32::<3>(output.0))
        };
        if !ONE || len > 0 {
            once::store_512_masked(dst, output.0, exist);
        }
        let reversal = ghash::byte_reversal();
        let hash = if SEAL {
            let mut sum = hash;
            // Keystream in place of bytes that do not exist is not hashed.
            let block = _mm512_maskz_mov_epi8(exist.register, output.0);
            let block = Pair(_mm512_castsi512_si256(block));
            let powers = Pair::load_private(schedule.powers_from(blocks + 1));
            sum.add(block.permute(Pair::splat(reversal)), powers);
            sum.reduce().sum_of_lanes()
        } else {
            let order = Quad::load_private(POWERS_OF_FEW[blocks].as_ptr().cast());
            let powers = Quad::load_private(schedule.powers_from(4));
            let powers = Quad(_mm512_permutexvar_epi64(order.0, powers.0));
            let all = input.permute(Quad::splat(reversal));
            let all = Quad(_mm512_inserti64x4::<1>(all.0, ends));
            ghash::multiply(all, powers).sum_of_lanes()
        };
        _mm_xor_si128(_mm_shuffle_epi8(hash, reversal), tag_mask)
    }
}

/// Returns the products of additional data and lengths, which have `blocks` of data between them.
/// On registers of two blocks: less work for processors whose units are no wider.
///
/// # Safety
/// The processor as for [`short`].
#[inline(always)]
unsafe fn of_ends(schedule: &Schedule, ends: __m256i, blocks: usize) -> Sum<Pair> {
    // SAFETY: under the contract of Lanes; there are powers for 18 blocks.
    unsafe {
        let powers = Pair::of_blocks(
            Single::<true>::load_private(schedule.powers_from(blocks + 2)).0,
            Single::<true>::load_private(schedule.powers_from(1)).0,
        );
        Sum::of(Pair(ends), powers)
    }
}

/// Encrypts counters and adds `input`.
///
/// # Safety
/// The processor must have what `V` needs; there must be round keys and numbers.
#[inline(always)]
unsafe fn encrypt<V: Lanes, const ROUNDS: usize>(
    nonce: V,
    keys: *const Block,
    numbers: *const Block,
    input: V,
) -> V {
    // SAFETY: the caller's contract.
    unsafe {
        let mut state = nonce.xor3(V::splat_from(keys), V::load_private(numbers));
        macro_rules! rounds {
            ($($r:literal)*) => {$(
                if $r < ROUNDS {
                    state = state.aes(V::splat_from(keys.add($r)));
                }
            )*};
        }
        rounds!(1 2 3 4 5 6 7 8 9 10 11 12 13);
        state.aes_last(V::splat_from(keys.add(ROUNDS)).xor(input))
    }
}

/// [`short`] on `R` registers, of which the last has a lane for J0 if `WITH_J0`.
///
/// # Safety
/// As for [`short`]; `R` must be ⌈len / 64⌉, of more than two blocks; `WITH_J0` must tell whether
/// ⌈len / 16⌉ is less than 4·`R`.
#[inline(always)]
unsafe fn short_on<const ROUNDS: usize, const SEAL: bool, const R: usize, const WITH_J0: bool>(
    schedule: &Schedule,
    nonce: Quad,
    ends: __m256i,
    data: Data,
) -> __m128i {
    let Data { src, dst, len } = data;
    // SAFETY: masks limit all accesses to the `len` bytes.
    unsafe {
        let in_last = Mask::from(len, 64 * (R - 1));
        let input: [Quad; R] = load(src, in_last);

        // The part of the hash that does not wait for the cipher.
        let blocks = if WITH_J0 { len.div_ceil(16) } else { 4 * R };
        let first = schedule.powers_from(blocks + 2);
        let mut sum = wide(of_ends(schedule, ends, blocks));

        let (output, tag_mask) = with_j0::<ROUNDS, R, WITH_J0>(schedule, nonce, input);
        store(dst, output, in_last);

        let mut blocks = input;
        if SEAL {
            blocks = output;
            // Keystream in place of bytes that do not exist is not hashed.
            let last = &mut blocks[R - 1].0;
            *last = _mm512_maskz_mov_epi8(in_last.register, *last);
        }
        let reversal = Quad::splat(ghash::byte_reversal());
        let powers = once::fresh(first.add(1));
        for i in 0..R {
            let block = blocks[i].permute(reversal);
            sum.add(block, Quad::load_private(powers.add(4 * i)));
        }
        let hash = sum.reduce().sum_of_lanes();
        _mm_xor_si128(_mm_shuffle_epi8(hash, ghash::byte_reversal()), tag_mask)
    }
}

/// Loads `R` registers, whole but the last, of which the bytes in `in_last`.
///
/// # Safety
/// They must be mapped and readable; the processor as for [`short`].
#[inline(always)]
pub(super) unsafe fn load<const R: usize>(src: *const u8, in_last: Mask) -> [Quad; R] {
    // SAFETY: the caller's contract.
    unsafe {
        let mut input = [Quad::zero(); R];
        for (i, x) in input.iter_mut().enumerate() {
            let p = src.add(64 * i);
            x.0 = if i + 1 < R {
                once::load_512::<0>(p)
            } else {
                once::load_512_masked(p, in_last)
            };
        }
        input
    }
}

/// Stores `R` registers, whole but the last, of which the bytes in `in_last`.
///
/// # Safety
/// They must be mapped and writable; the processor as for [`short`].
#[inline(always)]
pub(super) unsafe fn store<const R: usize>(dst: *mut u8, output: [Quad; R], in_last: Mask) {
    // SAFETY: the caller's contract.
    unsafe {
        for (i, x) in output.iter().enumerate() {
            let p = dst.add(64 * i);
            if i + 1 < R {
                once::store_512::<0>(p, x.0);
            } else {
                once::store_512_masked(p, x.0, in_last);
            }
        }
    }
}

/// Returns the same sum in the lower half of wider registers.
///
/// # Safety
/// The processor as for [`short`].
#[inline(always)]
pub(super) unsafe fn wide(sum: Sum<Pair>) -> Sum<Quad> {
    // SAFETY: the caller's contract.
    unsafe {
        Sum {
            low: Quad(_mm512_zextsi256_si512(sum.low.0)),
            middle: Quad(_mm512_zextsi256_si512(sum.middle.0)),
            high: Quad(_mm512_zextsi256_si512(sum.high.0)),
        }
    }
}

/// Encrypts the counters of the first `R` registers of a message and adds `input`; returns that and
/// the encryption of J0, which takes the last lane if `WITH_J0`.
///
/// # Safety
/// The processor as for [`short`].
#[inline(always)]
pub(super) unsafe fn with_j0<const ROUNDS: usize, const R: usize, const WITH_J0: bool>(
    schedule: &Schedule,
    nonce: Quad,
    input: [Quad; R],
) -> ([Quad; R], __m128i) {
    // SAFETY: under the contract of Lanes; there are 34 numbers and 15 round keys.
    unsafe {
        let keys = once::fresh(schedule.round_keys.as_ptr());
        let first_key = Quad(once::splat_512(keys));
        let mut state = [Quad::zero(); R];
        for (i, s) in state.iter_mut().enumerate() {
            let numbers = if WITH_J0 && i == R - 1 {
                &NUMBERS_WITH_J0[i]
            } else {
                &NUMBERS_OF_DATA[i]
            };
            *s = nonce.xor3(first_key, Quad::load_private(numbers.as_ptr()));
        }
        let mut j0 = Single::<true>::zero();
        if !WITH_J0 {
            let one = Single::load_private(NUMBERS.as_ptr().add(1));
            j0 = Single(nonce.first_lane()).xor3(Single(first_key.first_lane()), one);
        }
        // The compiler would do all rounds of a register before those of the next: each waits for
        // the one before it, and together they fill the processor's queue. Of four registers every
        // third round is enough.
        let spacing = if R < 4 { 1 } else { 3 };
        macro_rules! rounds_with_j0 {
            ($($r:literal)*) => {$(
                if $r < ROUNDS {
                    let key = Quad::splat_from(keys.add($r));
                    for s in &mut state {
                        *s = s.aes(key);
                    }
                    if !WITH_J0 {
                        j0 = j0.aes(Single(key.first_lane()));
                    }
                    if $r % spacing == 0 {
                        for s in &mut state {
                            *s = once::in_order_512(*s);
                        }
                        if !WITH_J0 {
                            j0 = Single(once::in_order(j0.0));
                        }
                    }
                }
            )*};
        }
        rounds_with_j0!(1 2 3 4 5 6 7 8 9 10 11 12 13);
        let last_key = Quad(once::splat_512(keys.add(ROUNDS)));
        let mut output = [Quad::zero(); R];
        for i in 0..R {
            output[i] = state[i].aes_last(last_key.xor(input[i]));
        }
        let tag_mask = if WITH_J0 {
            // Nothing was loaded into that lane, so this is the encryption of J0.
            _mm512_extracti32x4_epi32::<3>(output[R - 1].0)
        } else {
            j0.aes_last(Single(last_key.first_lane())).0
        };
        (output, tag_mask)
    }
}
