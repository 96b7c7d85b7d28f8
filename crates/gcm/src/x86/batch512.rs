//! Four packets of four blocks at a time on 512-bit registers.
//!
//! A packet of 49 to 64 bytes has five blocks to encrypt, which alone fill two registers badly, and a hash whose reduction
//! costs as much as that of a longer one. Here each packet's data has a register, and J0, additional data and lengths of
//! the four packets share one each, one lane a packet. For the hash the data is transposed, so that a lane holds one
//! packet there too: no sums across lanes, and one reduction for all.
//!
//! The packets may have different keys and lengths.

use super::bulk::NUMBERS;
use super::ghash::{self, Sum};
use super::lanes::{Lanes, Quad};
use super::once;
use super::schedule::{Block, Schedule};
use core::arch::x86_64::*;

/// Four packets, by what is known of each.
#[repr(C, align(64))]
pub(crate) struct Columns {
    /// The nonce with a zero counter.
    pub(crate) nonce: [[u64; 2]; 4],
    /// Additional data, zero-padded.
    pub(crate) aad: [[u64; 2]; 4],
    /// The block of lengths, byte-reversed: bits of data, bits of additional data.
    pub(crate) lengths: [[u64; 2]; 4],
    pub(crate) schedule: [*const Schedule; 4],
    pub(crate) src: [*const u8; 4],
    pub(crate) dst: [*mut u8; 4],
    pub(crate) len: [usize; 4],
}

/// The tags of four packets, as little-endian words. Within one line of the cache, so that they can be loaded right after
/// they were stored.
#[repr(C, align(64))]
pub(crate) struct Tags(pub(crate) [[u64; 2]; 4]);

/// Blocks of data in each packet.
const BLOCKS: usize = 4;

/// One block from each of four places, one a lane.
#[inline(always)]
unsafe fn gather(from: [*const Block; 4]) -> Quad {
    // SAFETY: the callers pass addresses of blocks; otherwise under the contract of Lanes, as everywhere in this file.
    unsafe {
        let [a, b, c, d] = from.map(|p| _mm_load_si128(p.cast()));
        let low = _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(a), b);
        let high = _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(c), d);
        Quad(_mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), high))
    }
}

/// Lane 0 of the first, lane 1 of the second, and so on, of registers that hold one block in every lane.
#[inline(always)]
unsafe fn first_lanes(from: [Quad; 4]) -> Quad {
    // SAFETY: as above.
    unsafe { Quad(once::blend_lanes_512(from.map(|q| q.0))) }
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

/// Seals or opens four packets and returns their tags, one a lane. `MIXED`: their keys differ.
///
/// # Safety
/// The processor must have the 512-bit path's instructions and all schedules be filled for it, of `ROUNDS` rounds;
/// each packet of 49 to 64 bytes with at most 16 of additional data, readable at its source and writable at its
/// destination, which either are the same or do not overlap with anything else.
#[inline(always)]
pub(super) unsafe fn four<const ROUNDS: usize, const SEAL: bool, const MIXED: bool>(
    packets: &Columns,
) -> __m512i {
    // SAFETY: masks limit all accesses to the bytes of the packets.
    unsafe {
        let reversal = Quad::splat(ghash::byte_reversal());
        let schedules = packets.schedule.map(|s| &*s);
        let keys = schedules.map(|s| s.round_keys.as_ptr());
        // A round's keys: of each packet in every lane, and of all packets in their lanes.
        let round_keys = |r: usize| {
            if MIXED {
                let each = keys.map(|k| Quad::splat_from(k.add(r)));
                (each, first_lanes(each))
            } else {
                let key = Quad::splat_from(keys[0].add(r));
                ([key; 4], key)
            }
        };

        let nonces = [0, 1, 2, 3].map(|j| Quad(once::load_words_512(&raw const packets.nonce[j])));
        let masks = packets.len.map(|len| _bzhi_u64(u64::MAX, len as u32));
        let inputs = [0, 1, 2, 3].map(|j| Quad(once::load_512_masked(packets.src[j], masks[j])));
        let numbers = Quad::load_private(NUMBERS.as_ptr().add(2));
        let (first_keys, lanes) = round_keys(0);
        let mut state = [0, 1, 2, 3].map(|j| nonces[j].xor3(first_keys[j], numbers));
        let mut tag_masks =
            first_lanes(nonces).xor3(lanes, Quad::splat_from(NUMBERS.as_ptr().add(1)));
        macro_rules! rounds {
            ($($r:literal)*) => {$(
                if $r < ROUNDS {
                    let (each, lanes) = round_keys($r);
                    for j in 0..4 {
                        state[j] = state[j].aes(each[j]);
                    }
                    tag_masks = tag_masks.aes(lanes);
                    if MIXED {
                        // The compiler would load the keys of all rounds first, and spill them.
                        let mut four = state.map(|s| s.0);
                        once::together(&mut four, &mut tag_masks.0);
                        state = four.map(Quad);
                    }
                }
            )*};
        }
        rounds!(1 2 3 4 5 6 7 8 9 10 11 12 13);
        let (last_keys, last_lanes) = round_keys(ROUNDS);
        tag_masks = tag_masks.aes_last(last_lanes);

        let mut outputs = state;
        for j in 0..4 {
            outputs[j] = state[j].aes_last(last_keys[j].xor(inputs[j]));
        }
        once::store_4_512_masked(packets.dst, outputs.map(|o| o.0), masks);
        let blocks = if SEAL { outputs } else { inputs };
        let mut blocks = transpose(blocks).map(|b| b.permute(reversal));
        if SEAL {
            // What counter mode made of bytes that do not exist is not hashed. Reversed, these come first.
            let mask = packets.len.iter().rev().fold(0, |mask, len| {
                mask << 16 | (0xffff_0000_u64 >> ((len - 48) & 31)) & 0xffff
            });
            blocks[3].0 = _mm512_maskz_mov_epi8(mask, blocks[3].0);
        }

        let power_lanes = |k: usize| {
            if MIXED {
                gather(schedules.map(|s| s.powers_from(k)))
            } else {
                Quad::splat_from(schedules[0].powers_from(k))
            }
        };
        let powers: [Quad; BLOCKS] = if MIXED {
            transpose(schedules.map(|s| Quad::load_private(s.powers_from(BLOCKS + 1))))
        } else {
            [5, 4, 3, 2].map(power_lanes)
        };
        let additional = Quad::load_private(packets.aad.as_ptr().cast()).permute(reversal);
        let lengths = Quad::load_private(packets.lengths.as_ptr().cast());
        let mut sum = Sum::of(additional, power_lanes(BLOCKS + 2));
        sum.add2(blocks[0], powers[0], blocks[1], powers[1]);
        sum.add2(blocks[2], powers[2], blocks[3], powers[3]);
        sum.add(lengths, power_lanes(1));
        sum.reduce().permute(reversal).xor(tag_masks).0
    }
}
