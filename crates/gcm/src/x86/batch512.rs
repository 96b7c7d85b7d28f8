//! Four short packets at a time on 512-bit registers.
//!
//! One short packet wastes most of two registers: J0, additional data and lengths are a block each. Here four
//! packets share a register for each of these three, one lane a packet, and their hashes are reduced together.
//! The packets may have different keys and lengths.

use super::bulk::NUMBERS;
use super::ghash::{self, Sum};
use super::lanes::{Lanes, Quad};
use super::once;
use super::schedule::{Block, Schedule};
use core::arch::x86_64::*;

/// A packet of a batch.
#[derive(Clone, Copy)]
pub(crate) struct Short<'a> {
    /// None for a key of another path, which never comes here.
    pub(crate) schedule: Option<&'a Schedule>,
    pub(crate) nonce: [u8; 12],
    pub(crate) aad: &'a [u8],
    pub(crate) src: *const u8,
    pub(crate) dst: *mut u8,
    pub(crate) len: usize,
}

impl Short<'_> {
    /// Where the schedule is; two packets have the same key when it is the same.
    #[inline(always)]
    pub(super) fn address(&self) -> *const Schedule {
        self.schedule.map_or(core::ptr::null(), core::ptr::from_ref)
    }
}

/// The longest packet that goes four at a time, in bytes. Longer ones keep the processor busy alone.
pub(crate) const SHORT_LEN_MAX: usize = 128;

/// One block from each of four places, one a lane.
#[inline(always)]
unsafe fn gather(from: [*const Block; 4]) -> Quad {
    // SAFETY: the callers pass addresses of blocks.
    unsafe { lanes(from.map(|p| _mm_load_si128(p.cast()))) }
}

/// Four blocks, one a lane.
#[inline(always)]
unsafe fn lanes([a, b, c, d]: [__m128i; 4]) -> Quad {
    // SAFETY: under the contract of Lanes, as everywhere in this file.
    unsafe {
        let low = _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(a), b);
        let high = _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(c), d);
        Quad(_mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), high))
    }
}

/// Lane 0 of the first, lane 1 of the second, and so on.
#[inline(always)]
unsafe fn first_lanes([a, b, c, d]: [Quad; 4]) -> Quad {
    // SAFETY: as above. The registers hold the same block in every lane.
    unsafe {
        let ab = _mm512_mask_mov_epi64(a.0, 0x0c, b.0);
        let abc = _mm512_mask_mov_epi64(ab, 0x30, c.0);
        Quad(_mm512_mask_mov_epi64(abc, 0xc0, d.0))
    }
}

/// The sum of the lanes of each register, in the lane of the register's number.
#[inline(always)]
unsafe fn sums_of_lanes([a, b, c, d]: [Quad; 4]) -> Quad {
    // SAFETY: as above.
    unsafe {
        let half = |x: Quad, y: Quad| {
            _mm512_xor_si512(
                _mm512_shuffle_i64x2::<0x44>(x.0, y.0),
                _mm512_shuffle_i64x2::<0xee>(x.0, y.0),
            )
        };
        let (ab, cd) = (half(a, b), half(c, d));
        Quad(_mm512_xor_si512(
            _mm512_shuffle_i64x2::<0x88>(ab, cd),
            _mm512_shuffle_i64x2::<0xdd>(ab, cd),
        ))
    }
}

/// Seals or opens four packets and returns their tags, one a lane. `MIXED`: their keys differ.
///
/// # Safety
/// The processor must have the 512-bit path's instructions and all schedules be filled for it, of `ROUNDS` rounds;
/// each packet of at most 64·`D` bytes with at most 16 of additional data, readable at its source and writable at its destination, which
/// either are the same or do not overlap with anything else.
#[inline(always)]
pub(super) unsafe fn four<
    const ROUNDS: usize,
    const SEAL: bool,
    const D: usize,
    const MIXED: bool,
>(
    packets: [&Short<'_>; 4],
) -> __m512i {
    // SAFETY: masks limit all accesses to the bytes of the packets; powers of H run to H^(4·D + 2).
    unsafe {
        let reversal = Quad::splat(ghash::byte_reversal());
        let schedules = packets.map(|p| &*p.address());
        let keys = schedules.map(|s| s.round_keys.as_ptr());
        let nonces = packets.map(|p| Quad(once::load_nonce_512(p.nonce.as_ptr())));
        let key_lanes = |r: usize| {
            if MIXED {
                gather(keys.map(|k| k.add(r)))
            } else {
                Quad::splat_from(keys[0].add(r))
            }
        };
        let key_of = |j: usize, r: usize| Quad::splat_from(keys[if MIXED { j } else { 0 }].add(r));

        let mut tag_masks =
            first_lanes(nonces).xor3(key_lanes(0), Quad::splat_from(NUMBERS.as_ptr().add(1)));
        let mut state = [[Quad::zero(); D]; 4];
        for j in 0..4 {
            for i in 0..D {
                state[j][i] = nonces[j].xor3(
                    key_of(j, 0),
                    Quad::load_private(NUMBERS.as_ptr().add(2 + 4 * i)),
                );
            }
        }
        let mask = |j: usize, i: usize| super::finish512::mask_from(packets[j].len, 64 * i);
        macro_rules! rounds {
            ($($r:literal)*) => {$(
                if $r < ROUNDS {
                    let shared = key_lanes($r);
                    for j in 0..4 {
                        let key = if MIXED { key_of(j, $r) } else { shared };
                        for s in &mut state[j] {
                            *s = s.aes(key);
                        }
                    }
                    tag_masks = tag_masks.aes(shared);
                }
            )*};
        }
        rounds!(1 2 3 4 5 6 7 8 9 10 11 12 13);
        tag_masks = tag_masks.aes_last(key_lanes(ROUNDS));

        let mut sums = [Sum::zero(); 4];
        for j in 0..4 {
            let last_key = key_of(j, ROUNDS);
            let p = packets[j];
            let powers = schedules[j].powers_from(p.len.div_ceil(16) + 1);
            for i in 0..D {
                let mask = mask(j, i);
                // A register without data may lie beyond mapped memory, where even a masked access is slow.
                let (src, dst) = if i == 0 || mask != 0 {
                    (p.src.wrapping_add(64 * i), p.dst.wrapping_add(64 * i))
                } else {
                    (p.src, p.dst)
                };
                let input = Quad(once::load_512_masked(src, mask));
                let output = state[j][i].aes_last(last_key.xor(input));
                once::store_512_masked(dst, output.0, mask);
                let hashed = if SEAL {
                    Quad(_mm512_maskz_mov_epi8(mask, output.0))
                } else {
                    input
                };
                let (x, power) = (
                    hashed.permute(reversal),
                    Quad::load_private(powers.add(4 * i)),
                );
                if i == 0 {
                    sums[j] = Sum::of(x, power);
                } else {
                    sums[j].add(x, power);
                }
            }
        }

        let additional = lanes(packets.map(|p| {
            let mask = _bzhi_u32(0xffff, p.aad.len() as u32) as u16;
            _mm_maskz_loadu_epi8(mask, p.aad.as_ptr().cast())
        }))
        .permute(reversal);
        // Lengths in bits: both fit into one word first, and are then moved to their halves of the block.
        let mut lengths = _mm512_setzero_si512();
        macro_rules! lane {
            ($($j:literal)*) => {$(
                let bits = (packets[$j].aad.len() as i64) << 35 | (packets[$j].len as i64) << 3;
                lengths = _mm512_mask_set1_epi64(lengths, 1 << (2 * $j), bits);
            )*};
        }
        lane!(0 1 2 3);
        let lengths = Quad(_mm512_maskz_shuffle_epi32::<0b11_01_11_00>(0x5555, lengths));
        let powers_of_additional =
            gather([0, 1, 2, 3].map(|j| schedules[j].powers_from(packets[j].len.div_ceil(16) + 2)));
        let powers_of_lengths = if MIXED {
            gather(schedules.map(|s| s.powers_from(1)))
        } else {
            Quad::splat_from(schedules[0].powers_from(1))
        };
        let mut sum = Sum {
            low: sums_of_lanes(sums.map(|s| s.low)),
            middle: sums_of_lanes(sums.map(|s| s.middle)),
            high: sums_of_lanes(sums.map(|s| s.high)),
        };
        sum.add2(additional, powers_of_additional, lengths, powers_of_lengths);
        sum.reduce().permute(reversal).xor(tag_masks).0
    }
}
