//! The long middle of a message: whole steps of `N` registers, encryption and hashing woven together.
//!
//! Every lane hashes its own share of the blocks (every `lanes`-th one) with powers of K = H^lanes, so
//! the loop never crosses lanes; up to [`STRIDES`] registers are summed before one reduction. The last step
//! uses the consecutive powers H^n … H instead, which puts the shares back in their places, and only
//! then the lanes are added up.
//!
//! Hashing runs one step behind encryption in both directions. It always works on the register that was
//! loaded (open) or that is about to be stored (seal), never on what memory holds.

use super::ghash::{self, Sum};
use super::lanes::Lanes;
use super::schedule::{Block, Schedule, STRIDES};
use core::arch::x86_64::*;

/// The last 32-bit word of a block from little to big endian, as a `permute` order.
#[inline(always)]
pub(super) unsafe fn counter_order() -> __m128i {
    // SAFETY: SSE2 is part of x86-64.
    unsafe { _mm_set_epi8(12, 13, 14, 15, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0) }
}

/// Where a step takes its powers of the hash key from.
#[derive(Clone, Copy)]
enum Powers {
    /// One power a register, the same in every lane.
    Strides(*const Block),
    /// One power a lane, descending.
    Consecutive(*const Block),
}

impl Powers {
    #[inline(always)]
    unsafe fn of_register<V: Lanes>(self, i: usize) -> V {
        // SAFETY: the callers below pass addresses with enough powers after them.
        unsafe {
            match self {
                Powers::Strides(p) => V::splat_from(p.add(i)),
                Powers::Consecutive(p) => V::load_private(p.add(i * V::COUNT)),
            }
        }
    }
}

/// What one step needs besides the data.
struct Step<V, const N: usize> {
    /// Counter blocks, with a little-endian counter, of the next register.
    counter: V,
    /// Added to `counter` for the next register.
    increment: V,
    counter_order: V,
    byte_reversal: V,
    /// Ciphertext of the step before, byte-reversed, not yet hashed.
    pending: [V; N],
}

impl<V: Lanes, const N: usize> Step<V, N> {
    /// Encrypts or decrypts one step; when `HASH`, adds the pending blocks to `sum` meanwhile.
    #[inline(always)]
    unsafe fn run<const ROUNDS: usize, const SEAL: bool, const HASH: bool>(
        &mut self,
        schedule: &Schedule,
        src: *const u8,
        dst: *mut u8,
        sum: &mut Sum<V>,
        powers: Powers,
    ) {
        // SAFETY: under the contract of `steps`.
        unsafe {
            let keys = schedule.round_keys.as_ptr();
            let first_key = V::splat_from(keys);
            let mut state = [V::zero(); N];
            for s in &mut state {
                *s = self.counter.permute(self.counter_order).xor(first_key);
                self.counter = self.counter.add_words(self.increment);
            }
            macro_rules! rounds {
                ($($r:literal)*) => {$(
                    if $r < ROUNDS {
                        let key = V::splat_from(keys.add($r));
                        for s in &mut state {
                            *s = s.aes(key);
                        }
                        // Two registers are hashed in every second round, so that the multiplier and the
                        // cipher have work at the same time.
                        let i = $r - 1;
                        if HASH && i % 2 == 0 && i + 1 < N {
                            sum.add2(
                                self.pending[i], powers.of_register(i),
                                self.pending[i + 1], powers.of_register(i + 1),
                            );
                        }
                    }
                )*};
            }
            rounds!(1 2 3 4 5 6 7 8 9 10 11 12 13);
            let last_key = V::splat_from(keys.add(ROUNDS));
            macro_rules! registers {
                ($($i:literal)*) => {$(
                    if $i < N {
                        let input = V::load_once::<$i>(src);
                        let output = state[$i].aes_last(last_key.xor(input));
                        V::store_once::<$i>(dst, output);
                        self.pending[$i] = if SEAL { output } else { input }.permute(self.byte_reversal);
                    }
                )*};
            }
            registers!(0 1 2 3 4 5 6 7);
        }
    }
}

/// Seals or opens `count` ≥ 1 whole steps and returns the GHASH state after them, byte-reversed.
///
/// `nonce` is the 96-bit nonce with a zero counter, `first` the counter of the first block, `state`
/// the GHASH state before it.
///
/// # Safety
/// The processor must have what `V` needs; `count` steps must be readable at `src` and writable at `dst`,
/// which either are the same or do not overlap.
#[inline(always)]
pub(super) unsafe fn steps<V: Lanes, const N: usize, const ROUNDS: usize, const SEAL: bool>(
    schedule: &Schedule,
    nonce: __m128i,
    first: u32,
    state: __m128i,
    mut src: *const u8,
    mut dst: *mut u8,
    count: usize,
) -> __m128i {
    // SAFETY: every step stays within `count` steps of `src` and `dst`; powers are read from the tables
    // that the schedule holds, N ≤ STRIDES registers before their end.
    unsafe {
        let step_len = 16 * N * V::COUNT;
        let counter = V::splat(_mm_add_epi32(nonce, _mm_set_epi32(first.wrapping_sub(1) as i32, 0, 0, 0)));
        let mut step = Step::<V, N> {
            counter: counter.add_words(V::lane_numbers()),
            increment: V::splat(_mm_set_epi32(V::COUNT as i32, 0, 0, 0)),
            counter_order: V::splat(counter_order()),
            byte_reversal: V::splat(ghash::byte_reversal()),
            pending: [V::zero(); N],
        };
        let mut carried = V::in_first_lane(state);
        let none = Powers::Strides(schedule.strides_end());
        step.run::<ROUNDS, SEAL, false>(schedule, src, dst, &mut Sum::zero(), none);
        let mut left = count - 1;
        while left > 0 {
            let together = left.min(STRIDES / N);
            let mut powers = schedule.strides_end().sub(together * N);
            let mut sum = Sum::zero();
            for _ in 0..together {
                src = src.add(step_len);
                dst = dst.add(step_len);
                step.pending[0] = step.pending[0].xor(carried);
                carried = V::zero();
                step.run::<ROUNDS, SEAL, true>(schedule, src, dst, &mut sum, Powers::Strides(powers));
                powers = powers.add(N);
            }
            carried = sum.reduce();
            left -= together;
        }
        step.pending[0] = step.pending[0].xor(carried);
        let powers = Powers::Consecutive(schedule.powers_from(N * V::COUNT));
        let mut sum = Sum::of(step.pending[0], powers.of_register(0));
        for i in 1..N {
            sum.add(step.pending[i], powers.of_register(i));
        }
        sum.reduce().sum_of_lanes()
    }
}
