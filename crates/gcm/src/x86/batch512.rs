//! Four packets of up to four blocks at a time on 512-bit registers.
//!
//! A packet of up to 64 bytes leaves most of the cipher and the multiplier idle, and the reduction
//! of its hash costs as much as that of a longer one. Here each packet's data has a register, and
//! additional data and lengths of the four packets share one each, one lane per packet. For the
//! hash the data is transposed, so that a lane holds one packet there too: no sums across lanes,
//! and one reduction for all.
//!
//! Packets of up to three blocks have J0 in the last lane of their data: transposed, that is a
//! register of tag masks. Of longer ones the four J0s share a register.
//!
//! The packets may have different keys and lengths.
//!
//! No closure holds a register here, nor does `array::map`: code that the compiler then leaves out
//! of line lacks the caller's instructions and passes registers through memory, which takes five
//! times as long (`tests/once/machine_code.rs` looks for calls).

use super::bulk::NUMBERS;
use super::ghash::{self, Sum};
use super::lanes::{Lanes, Quad};
use super::once::{self, Mask};
use crate::columns::{Columns, Lens};
use crate::schedule::{Block, Schedule};
use core::arch::x86_64::*;

/// The longest packet that has room for J0 in its register.
const LEN_MAX_WITH_J0: usize = 48;

/// Counters of a packet of up to three blocks, J0's last.
static NUMBERS_WITH_J0: [Block; 4] = [NUMBERS[2], NUMBERS[3], NUMBERS[4], NUMBERS[1]];

/// Seals or opens four packets of up to 64 bytes and returns their tags, one per lane.
///
/// # Safety
/// The processor must have the 512-bit path's instructions and all schedules be filled for it, of
/// `ROUNDS` rounds; each packet of up to 64 bytes with at most 16 of additional data, readable at
/// its source and writable at its destination, which either are the same or do not overlap with
/// anything else.
#[inline(always)]
pub(super) unsafe fn four<const ROUNDS: usize, const SEAL: bool>(packets: &Columns) -> __m512i {
    let ([a, b, c, d], [k, l, m, n]) = (packets.schedule, packets.len);
    let keys = (a as usize ^ b as usize) | (a as usize ^ c as usize) | (a as usize ^ d as usize);
    let lens = (k.0 ^ l.0) | (k.0 ^ m.0) | (k.0 ^ n.0);
    let alike = keys as u64 | lens == 0;
    // SAFETY: the caller's contract; the lengths are what each shape wants.
    unsafe {
        if alike && k.data().div_ceil(16) == 3 {
            of_shape::<ROUNDS, SEAL, 3, true>(packets)
        } else if alike && k.data().div_ceil(16) == 4 {
            of_shape::<ROUNDS, SEAL, 4, true>(packets)
        } else if packets.len.iter().all(|len| len.data() <= LEN_MAX_WITH_J0) {
            of_shape::<ROUNDS, SEAL, 3, false>(packets)
        } else {
            of_shape::<ROUNDS, SEAL, 4, false>(packets)
        }
    }
}

/// [`four`] on packets of at most `BLOCKS` (3 or 4) blocks of data; `ALIKE`: of exactly so many, of
/// one length and under one key.
///
/// # Safety
/// As for [`four`].
#[inline(always)]
unsafe fn of_shape<
    const ROUNDS: usize,
    const SEAL: bool,
    const BLOCKS: usize,
    const ALIKE: bool,
>(
    packets: &Columns,
) -> __m512i {
    // SAFETY: masks limit all accesses to the bytes of the packets.
    unsafe {
        let reversal = Quad::splat(ghash::byte_reversal());
        let (src, dst, len) = (packets.src, packets.dst, packets.len);
        let [a, b, c, d] = packets.schedule;
        let schedules = [&*a, &*b, &*c, &*d];

        let mut masks = [0; 4];
        let mut inputs = [Quad::zero(); 4];
        let mut nonces = [Quad::zero(); 4];
        for j in 0..4 {
            masks[j] = if ALIKE && j > 0 {
                masks[0]
            } else {
                Mask::from(len[j].data(), 0).register
            };
            inputs[j].0 = once::load_masked(src[j], masks[j]);
            nonces[j].0 = once::load_words_512(&raw const packets.nonce[j]);
        }

        // The part of the hash that does not wait for the cipher, and the powers for the rest.
        let mut sum = Sum::zero();
        let mut powers = [Quad::zero(); 6];
        macro_rules! begin_hash {
            () => {
                powers = hash_powers::<BLOCKS, ALIKE>(schedules, &packets.len);
                let additional = Quad::load_private(packets.aad.as_ptr().cast()).permute(reversal);
                sum = Sum::of(additional, powers[0]);
                sum.add(lengths::<ALIKE>(&packets.len), powers[BLOCKS + 1]);
            };
        }

        // A round's keys: of each packet in every lane, and of all packets in their lanes.
        macro_rules! round_keys {
            ($r:expr) => {{
                let mut each = [Quad::splat_from(schedules[0].round_keys.as_ptr().add($r)); 4];
                let mut lanes = each[0];
                if !ALIKE {
                    for j in 1..4 {
                        each[j] = Quad::splat_from(schedules[j].round_keys.as_ptr().add($r));
                    }
                    if BLOCKS == 4 {
                        lanes = first_lanes(each);
                    }
                }
                (each, lanes)
            }};
        }
        let numbers = if BLOCKS == 3 {
            Quad::load_private(NUMBERS_WITH_J0.as_ptr())
        } else {
            Quad::load_private(NUMBERS.as_ptr().add(2))
        };
        let (first_keys, first_lane_keys) = round_keys!(0);
        let mut state = [Quad::zero(); 4];
        for j in 0..4 {
            state[j] = nonces[j].xor3(first_keys[j], numbers);
        }
        let mut tag_masks = Quad::zero();
        if BLOCKS == 4 {
            let one = Quad::splat_from(NUMBERS.as_ptr().add(1));
            // One load of the nonces waits until the stores of all four have reached the cache, and
            // so the J0s come after the data. Sealing under AES-256 takes 8 % less time by that;
            // opening takes 6 % more, and under AES-128 there is no difference.
            let nonces = if SEAL && ALIKE && ROUNDS > 10 {
                Quad::load_private(packets.nonce.as_ptr().cast())
            } else {
                first_lanes(nonces)
            };
            tag_masks = nonces.xor3(first_lane_keys, one);
        }
        if ALIKE {
            // Before the cipher, so that the processor's queue is not full of what waits for it.
            // Powers of different keys would take too many registers.
            begin_hash!();
            let mut four = [sum.low.0, sum.middle.0, sum.high.0, state[3].0];
            once::together(&mut four, &mut state[0].0);
            (sum.low.0, sum.middle.0, sum.high.0) = (four[0], four[1], four[2]);
            state[3].0 = four[3];
        }
        macro_rules! rounds {
            ($($r:literal)*) => {$(
                if $r < ROUNDS {
                    let (each, lanes) = round_keys!($r);
                    for j in 0..4 {
                        state[j] = state[j].aes(each[j]);
                    }
                    if BLOCKS == 4 {
                        tag_masks = tag_masks.aes(lanes);
                    }
                    if !ALIKE || (BLOCKS == 4 && ROUNDS > 10) {
                        // The compiler would load the keys of all rounds first, and leave them, or
                        // data, on the stack.
                        let mut four = [state[0].0, state[1].0, state[2].0, state[3].0];
                        once::together(&mut four, &mut tag_masks.0);
                        for j in 0..4 {
                            state[j].0 = four[j];
                        }
                    }
                }
            )*};
        }
        rounds!(1 2 3 4 5 6 7 8 9 10 11 12 13);
        let (last_keys, last_lane_keys) = round_keys!(ROUNDS);
        let mut outputs = state;
        for j in 0..4 {
            outputs[j] = state[j].aes_last(last_keys[j].xor(inputs[j]));
        }
        let [o, p, q, r] = outputs;
        once::store_4_512_masked(dst, [o.0, p.0, q.0, r.0], masks);

        if BLOCKS == 4 {
            tag_masks = tag_masks.aes_last(last_lane_keys);
        } else {
            tag_masks = last_lanes(outputs);
        }
        let mut blocks = if SEAL { outputs } else { inputs };
        // Keystream in place of bytes that do not exist is not hashed.
        if SEAL && !ALIKE {
            for j in 0..4 {
                blocks[j].0 = _mm512_maskz_mov_epi8(masks[j], blocks[j].0);
            }
        }
        let mut blocks = transpose(blocks);
        for block in blocks.iter_mut().take(BLOCKS - usize::from(SEAL && ALIKE)) {
            *block = block.permute(reversal);
        }
        if SEAL && ALIKE {
            // Reversed, the last block's bytes that exist are the upper ones.
            let last = BLOCKS - 1;
            let upper = 0xffff_0000_u64 >> (len[0].data() - 16 * last) & 0xffff;
            let mask = upper * 0x0001_0001_0001_0001;
            blocks[last].0 = _mm512_maskz_shuffle_epi8(mask, blocks[last].0, reversal.0);
        }

        if !ALIKE {
            begin_hash!();
        }
        sum.add2(blocks[0], powers[1], blocks[1], powers[2]);
        if BLOCKS == 3 {
            sum.add(blocks[2], powers[3]);
        } else {
            sum.add2(blocks[2], powers[3], blocks[3], powers[4]);
        }
        sum.reduce().permute(reversal).xor(tag_masks).0
    }
}

/// Powers of the hash keys for additional data, for each block of data, for lengths.
#[inline(always)]
unsafe fn hash_powers<const BLOCKS: usize, const ALIKE: bool>(
    schedules: [&Schedule; 4],
    lens: &[Lens; 4],
) -> [Quad; 6] {
    // SAFETY: every register of powers is within a schedule.
    unsafe {
        let mut powers = [Quad::zero(); 6];
        if ALIKE {
            for (i, power) in powers.iter_mut().take(BLOCKS + 2).enumerate() {
                *power = Quad::splat_from(schedules[0].powers_from(BLOCKS + 2).add(i));
            }
            return powers;
        }
        let mut each = [Quad::zero(); 4];
        for j in 0..4 {
            let count = lens[j].data().div_ceil(16);
            each[j] = Quad::load_private(schedules[j].powers_from(count + 2));
        }
        let first = transpose(each);
        powers[..4].copy_from_slice(&first);
        // A fourth block there is only in packets that have four; for others it is zero.
        let last = last_powers(schedules);
        powers[4] = last[0];
        powers[BLOCKS + 1] = last[1];
        powers
    }
}

/// The block of lengths of each packet, byte-reversed: bits of data, bits of additional data.
#[inline(always)]
unsafe fn lengths<const ALIKE: bool>(lens: &[Lens; 4]) -> Quad {
    // SAFETY: the array is 32 bytes; otherwise as below.
    unsafe {
        let lens = if ALIKE {
            _mm256_set1_epi64x(lens[0].0 as i64)
        } else {
            _mm256_loadu_si256(lens.as_ptr().cast())
        };
        Quad(_mm512_slli_epi64::<3>(_mm512_cvtepu32_epi64(lens)))
    }
}

/// The second and the first power of each key, one key per lane.
#[inline(always)]
unsafe fn last_powers([a, b, c, d]: [&Schedule; 4]) -> [Quad; 2] {
    // SAFETY: two powers are 32 bytes; otherwise under the contract of Lanes, as everywhere in this
    // file.
    unsafe {
        macro_rules! two {
            ($first:expr, $second:expr) => {
                _mm512_inserti64x4::<1>(
                    _mm512_castsi256_si512(_mm256_loadu_si256($first.powers_from(2).cast())),
                    _mm256_loadu_si256($second.powers_from(2).cast()),
                )
            };
        }
        let (ab, cd) = (two!(a, b), two!(c, d));
        [
            Quad(_mm512_shuffle_i64x2::<0x88>(ab, cd)),
            Quad(_mm512_shuffle_i64x2::<0xdd>(ab, cd)),
        ]
    }
}

/// Lane 0 of the first, lane 1 of the second, and so on, of registers that hold one block in every
/// lane.
#[inline(always)]
unsafe fn first_lanes([a, b, c, d]: [Quad; 4]) -> Quad {
    // SAFETY: as above.
    unsafe { Quad(once::blend_lanes_512([a.0, b.0, c.0, d.0])) }
}

/// Lane 3 of each.
#[inline(always)]
unsafe fn last_lanes([a, b, c, d]: [Quad; 4]) -> Quad {
    // SAFETY: as above.
    unsafe {
        let ab = _mm512_shuffle_i64x2::<0xff>(a.0, b.0);
        let cd = _mm512_shuffle_i64x2::<0xff>(c.0, d.0);
        Quad(_mm512_shuffle_i64x2::<0x88>(ab, cd))
    }
}

/// Lane j of register i becomes lane i of register j.
#[inline(always)]
unsafe fn transpose([a, b, c, d]: [Quad; 4]) -> [Quad; 4] {
    // SAFETY: as above.
    unsafe {
        let ab = (
            _mm512_shuffle_i64x2::<0x44>(a.0, b.0),
            _mm512_shuffle_i64x2::<0xee>(a.0, b.0),
        );
        let cd = (
            _mm512_shuffle_i64x2::<0x44>(c.0, d.0),
            _mm512_shuffle_i64x2::<0xee>(c.0, d.0),
        );
        [
            Quad(_mm512_shuffle_i64x2::<0x88>(ab.0, cd.0)),
            Quad(_mm512_shuffle_i64x2::<0xdd>(ab.0, cd.0)),
            Quad(_mm512_shuffle_i64x2::<0x88>(ab.1, cd.1)),
            Quad(_mm512_shuffle_i64x2::<0xdd>(ab.1, cd.1)),
        ]
    }
}
