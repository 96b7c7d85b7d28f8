//! The long middle of a message: whole steps of `N` registers, encryption and hashing woven
//! together.
//!
//! A step holds the blocks whose counters share all but their lowest bits, so the counter blocks of
//! a step differ by constants: one addition (exclusive or) makes the input of AES, the first round
//! key included. The first step of a message, the head, has the counters 0 and 1 in its first two
//! places. Counter 1 is that of J0, which masks the tag, and its place is where GHASH wants the
//! additional data, right before the first block of ciphertext: so the head makes the tag's mask
//! and hashes the additional data at no extra cost.
//!
//! Every lane hashes its own share of the blocks (every `lanes`-th one) with powers of K = H^lanes,
//! so the loop never crosses lanes; up to [`STRIDES`] registers are summed before one reduction.
//! The last step uses the consecutive powers H^n … H instead, which puts the shares back in their
//! places, and only then the lanes are added up.
//!
//! Hashing runs one step behind encryption in both directions. It always works on the register that
//! was loaded (open) or that is about to be stored (seal), never on what memory holds.
//!
//! On registers of one block a step is eight registers of sixteen, and what it leaves for the hash
//! waits in private memory (`narrow.rs`).

use super::ghash::{self, Sum};
use super::lanes::Lanes;
use super::once;
use crate::schedule::{Block, Schedule, STRIDES};
use crate::Nonce;
use core::arch::x86_64::*;
use core::mem::MaybeUninit;

/// Blocks of the head that hold no data.
const HEAD_OFFSET: usize = 2;

/// The distance in bytes by which the source is fetched into the cache ahead of the loads. The loop
/// works on a few hundred bytes at a time; what a device or another processor has written needs
/// more in flight.
const PREFETCH: usize = 4096;

/// Fetches the lines of `len` bytes that begin [`PREFETCH`] bytes after `p`.
#[inline(always)]
unsafe fn fetch_ahead(p: *const u8, len: usize) {
    for line in 0..len / 64 {
        // SAFETY: a hint never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(p.wrapping_add(PREFETCH + 64 * line).cast()) };
    }
}

/// Bytes of data in the head of a message, on registers of `lanes` blocks, `registers` to a step.
pub(super) const fn head_len(lanes: usize, registers: usize) -> usize {
    16 * (lanes * registers - HEAD_OFFSET)
}

/// Blocks whose last byte is their number, all others zero: what the counters of a step add to the
/// first.
pub(super) static NUMBERS: [Block; 34] = {
    let mut blocks = [Block::ZERO; 34];
    let mut i = 0;
    while i < blocks.len() {
        blocks[i].0[15] = i as u8;
        i += 1;
    }
    blocks
};

/// The source of a step's powers of the hash key.
#[derive(Clone, Copy)]
pub(super) enum Powers {
    /// One power per register, the same in every lane.
    Strides(*const Block),
    /// One power per lane, descending.
    Consecutive(*const Block),
}

impl Powers {
    #[inline(always)]
    pub(super) unsafe fn of_register<V: Lanes>(self, i: usize) -> V {
        // SAFETY: the callers below pass addresses with enough powers after them.
        unsafe {
            match self {
                Powers::Strides(p) => V::splat_from(p.add(i)),
                Powers::Consecutive(p) => V::load_private(p.add(i * V::COUNT)),
            }
        }
    }

    /// The first of them.
    #[inline(always)]
    fn start(self) -> *const Block {
        match self {
            Powers::Strides(p) | Powers::Consecutive(p) => p,
        }
    }
}

/// The last step of a message on registers of four blocks, encrypted but not hashed. With its end,
/// it is hashed in one sum or in lanes that are added up once, at the very end.
#[derive(Clone, Copy)]
pub(super) struct Last<V>(pub(super) [V; 4]);

impl<V: Lanes> Last<V> {
    /// Returns the sum of its products with powers for `after` blocks that follow, at most four.
    #[inline(always)]
    pub(super) unsafe fn sum(self, schedule: &Schedule, after: usize) -> Sum<V> {
        // SAFETY: as many powers as blocks.
        unsafe {
            let powers = schedule.powers_from(4 * V::COUNT + after);
            add_all(&self.0, Powers::Consecutive(powers))
        }
    }
}

/// Returns the sum of the products of all blocks.
#[inline(always)]
unsafe fn add_all<V: Lanes>(blocks: &[V; 4], powers: Powers) -> Sum<V> {
    // SAFETY: the caller's powers are as many.
    unsafe {
        let mut sum = Sum::zero();
        for i in (0..blocks.len()).step_by(2) {
            sum.add2(
                blocks[i],
                powers.of_register(i),
                blocks[i + 1],
                powers.of_register(i + 1),
            );
        }
        sum
    }
}

/// The state of a message between its steps.
pub(super) struct Steps<'k, V, const N: usize> {
    schedule: &'k Schedule,
    /// The nonce in every lane with a zero counter, which all steps but the head overwrite. Not
    /// added to the first round key once for all: the sum would tell the key, and what is held over
    /// all steps is what the compiler leaves on the stack first.
    nonce: V,
    /// The nonce in memory, from where steps of AES-256 load it on registers of four blocks: they
    /// have none to keep it in.
    nonce_at: &'k Nonce,
    /// The counter of the first block of the next step.
    counter: u32,
    byte_reversal: V,
    /// Ciphertext of the step before, byte-reversed, not yet hashed. On registers of one block it
    /// is in memory, on purpose. The first step writes it.
    pending: MaybeUninit<[V; N]>,
}

impl<'k, V: Lanes, const N: usize> Steps<'k, V, N> {
    #[inline(always)]
    pub(super) unsafe fn new(schedule: &'k Schedule, nonce: &'k Nonce, counter: u32) -> Self {
        // SAFETY: under the contract of Lanes, as everywhere in this file.
        unsafe {
            Self {
                schedule,
                nonce_at: nonce,
                nonce: V::nonce(nonce),
                counter,
                byte_reversal: V::splat(ghash::byte_reversal()),
                pending: MaybeUninit::uninit(),
            }
        }
    }

    /// The place of the pending blocks, each of which is written before it is read.
    #[inline(always)]
    fn pending(&mut self) -> *mut V {
        self.pending.as_mut_ptr().cast()
    }

    /// Adds to the first of the pending blocks.
    #[inline(always)]
    unsafe fn carry(&mut self, carried: V) {
        // SAFETY: a step has written it.
        unsafe {
            let first = self.pending();
            first.write((*first).xor(carried));
        }
    }

    /// Keystream of one step up to the last round, from the nonce with its first counter in every
    /// lane; when `HASH`, adds the pending blocks to `sum`
    /// meanwhile.
    #[inline(always)]
    unsafe fn keystream<const ROUNDS: usize, const HASH: bool>(
        &mut self,
        nonce: V,
        sum: &mut Sum<V>,
        powers: Powers,
    ) -> [V; N] {
        // SAFETY: as above; there are 16 numbers and 15 round keys.
        unsafe {
            let mut keys = self.schedule.round_keys.as_ptr();
            if V::COUNT < 4 {
                // Loaded in each step: there are no registers for them over all steps.
                keys = once::fresh(keys);
            }
            let first_key = V::splat_from(keys);
            let first = nonce.xor(first_key);
            self.counter = self.counter.wrapping_add((N * V::COUNT) as u32);
            let mut state = [V::zero(); N];
            let mut numbers = NUMBERS.as_ptr();
            if V::COUNT == 4 {
                // Operands in memory: there are no registers for them over all steps.
                numbers = once::fresh(numbers);
            }
            for (i, s) in state.iter_mut().enumerate() {
                let numbers = V::load_private(numbers.add(i * V::COUNT));
                *s = if V::COUNT == 4 {
                    nonce.xor3(first_key, numbers)
                } else {
                    first.xor(numbers)
                };
            }
            if V::COUNT == 1 {
                let pending = self.pending().cast::<Block>().cast_const();
                let powers = powers.start();
                macro_rules! rounds {
                    ($($r:literal $i:literal)*) => {$(
                        if HASH && $i < N {
                            V::round_and_product::<N, $r, $i>(&mut state, keys, sum, pending, powers);
                        } else {
                            V::round::<N, $r>(&mut state, keys);
                        }
                    )*};
                }
                rounds!(1 1  2 2  3 3  4 4  5 5  6 6  7 7  8 0  9 8);
                if ROUNDS > 10 {
                    rounds!(10 8  11 8  12 8  13 8);
                }
                return state;
            }
            macro_rules! rounds {
                ($($r:literal)*) => {$(
                    if $r < ROUNDS {
                        let key = V::splat_from(keys.add($r));
                        for s in &mut state {
                            *s = s.aes(key);
                        }
                        // Two registers are hashed at a time, so that the multiplier and the cipher
                        // both have work all the time.
                        let i = if N == 4 { [8, 0, 8, 8, 8, 2, 8, 8, 8][($r - 1) % 9] } else { $r - 1 };
                        if HASH && $r < 10 && i % 2 == 0 && i + 1 < N {
                            let pending = self.pending();
                            sum.add2(
                                *pending.add(i), powers.of_register(i),
                                *pending.add(i + 1), powers.of_register(i + 1),
                            );
                        }
                    }
                )*};
            }
            rounds!(1 2 3 4 5 6 7 8 9 10 11 12 13);
            state
        }
    }

    /// Encrypts or decrypts one step.
    #[inline(always)]
    unsafe fn step<const ROUNDS: usize, const SEAL: bool, const HASH: bool>(
        &mut self,
        src: *const u8,
        dst: *mut u8,
        sum: &mut Sum<V>,
        powers: Powers,
    ) {
        // SAFETY: under the contract of `run`: a whole step is at `src` and `dst`.
        unsafe {
            // Hints, not loads: no value reaches the program, and an address past the end does no
            // harm.
            fetch_ahead(src, 16 * N * V::COUNT);
            let nonce = if V::COUNT == 4 && ROUNDS > 10 {
                V::nonce(self.nonce_at)
            } else {
                self.nonce
            };
            let nonce = nonce.with_last_words(self.counter.swap_bytes());
            let state = self.keystream::<ROUNDS, HASH>(nonce, sum, powers);
            let last_key = V::splat_from(self.schedule.round_keys.as_ptr().add(ROUNDS));
            macro_rules! registers {
                ($($i:literal)*) => {$(
                    if $i < N {
                        let input = V::load_once::<$i>(src);
                        let output = state[$i].aes_last(last_key.xor(input));
                        V::store_once::<$i>(dst, output);
                        let x = if SEAL { output } else { input }.permute(self.byte_reversal);
                        self.pending().add($i).write(x);
                    }
                )*};
            }
            registers!(0 1 2 3 4 5 6 7);
        }
    }

    /// Encrypts or decrypts the head, and returns the encryption of J0.
    #[inline(always)]
    unsafe fn head<const ROUNDS: usize, const SEAL: bool>(
        &mut self,
        additional: __m128i,
        src: *const u8,
        dst: *mut u8,
    ) -> __m128i {
        // SAFETY: under the contract of `run`: `head_len` bytes are at `src` and `dst`.
        unsafe {
            let none = Powers::Strides(self.schedule.strides_end(V::COUNT));
            // Its counter is zero, as it was loaded.
            let state = self.keystream::<ROUNDS, false>(self.nonce, &mut Sum::zero(), none);
            let last_key = V::splat_from(self.schedule.round_keys.as_ptr().add(ROUNDS));
            let mut tag_mask = _mm_setzero_si128();
            macro_rules! registers {
                ($($i:literal)*) => {$(
                    if $i < N {
                        let input = V::load_head::<$i>(src);
                        let output = state[$i].aes_last(last_key.xor(input));
                        V::store_head::<$i>(dst, output);
                        if let Some(mask) = output.block_one::<$i>() {
                            tag_mask = mask;
                        }
                        let x = if SEAL { output } else { input }
                            .permute(self.byte_reversal)
                            .with_head::<$i>(additional);
                        self.pending().add($i).write(x);
                    }
                )*};
            }
            registers!(0 1 2 3 4 5 6 7);
            tag_mask
        }
    }

    /// `count` further steps, of which the last is still to be hashed, see [`Steps::hash`]. If
    /// `is_joined`, it will be by the lowest strides, and those before it may be in the same sum:
    /// returned is what there is of it.
    #[inline(always)]
    unsafe fn run<const ROUNDS: usize, const SEAL: bool>(
        &mut self,
        mut src: *const u8,
        mut dst: *mut u8,
        count: usize,
        is_joined: bool,
    ) -> Sum<V> {
        // SAFETY: `count` steps are at `src` and `dst`; powers are read from the tables that the
        // schedule holds, at most STRIDES registers before their end.
        unsafe {
            let step_len = 16 * N * V::COUNT;
            let mut carried = V::zero();
            let mut left = count;
            while left > 0 {
                let together = left.min(STRIDES / N);
                let is_open = is_joined && left < STRIDES / N;
                let registers = (together + usize::from(is_open)) * N;
                let mut powers = self.schedule.strides_end(V::COUNT).sub(registers);
                let mut sum = Sum::zero();
                for _ in 0..together {
                    if V::COUNT > 1 {
                        self.carry(carried);
                        carried = V::zero();
                    }
                    self.step::<ROUNDS, SEAL, true>(src, dst, &mut sum, Powers::Strides(powers));
                    powers = powers.add(N);
                    src = src.add(step_len);
                    dst = dst.add(step_len);
                }
                if is_open {
                    return sum;
                }
                carried = sum.reduce();
                if V::COUNT == 1 {
                    // Into memory at once: a register would be held over all steps.
                    self.carry(carried);
                }
                left -= together;
            }
            if V::COUNT > 1 {
                self.carry(carried);
            }
            Sum::zero()
        }
    }

    /// The last step.
    #[inline(always)]
    pub(super) unsafe fn last(&mut self) -> Last<V> {
        let p = self.pending();
        // SAFETY: a step of four registers has written them.
        Last(unsafe { [*p, *p.add(1), *p.add(2), *p.add(3)] })
    }

    /// The blocks that are still to be hashed.
    #[inline(always)]
    pub(super) fn left(&mut self) -> *const V {
        let pending = self.pending().cast_const();
        if V::COUNT == 1 {
            // Otherwise the compiler would keep what it knows to be there in registers.
            // SAFETY: no instruction.
            return unsafe { once::fresh(pending) };
        }
        pending
    }

    /// Returns the hash of all steps with `after` blocks to follow, of which the powers must be
    /// there: not reduced, and in lanes.
    #[inline(always)]
    pub(super) unsafe fn hash(&mut self, after: usize) -> Sum<V> {
        // SAFETY: as above.
        unsafe {
            let powers = Powers::Consecutive(self.schedule.powers_from(N * V::COUNT + after));
            let mut sum = Sum::zero();
            let pending = self.left();
            for i in 0..N / 2 {
                sum.add2(
                    *pending.add(2 * i),
                    powers.of_register(2 * i),
                    *pending.add(2 * i + 1),
                    powers.of_register(2 * i + 1),
                );
            }
            sum
        }
    }
}

/// Fetches the beginning of a message of `count` steps into the cache, if it is long. Before
/// [`Steps::new`]: with this loop after it, the compiler left round keys of AES-256 on the stack on
/// registers of 512 bits.
#[inline(always)]
pub(super) unsafe fn fetch_beginning<V: Lanes, const N: usize>(src: *const u8, count: usize) {
    if count * 16 * N * V::COUNT >= PREFETCH {
        // SAFETY: hints.
        unsafe { fetch_ahead(src.wrapping_sub(PREFETCH), PREFETCH) };
    }
}

/// Seals or opens the head and `count` whole steps after it, of which the last is still to be
/// hashed, and puts the encryption of J0 into `tag_mask`. Returns the sum that the last belongs to,
/// see [`Steps::run`].
///
/// `steps` are new, from counter 0 on; `additional` is the last block of additional data with the
/// state before it, byte-reversed.
///
/// # Safety
/// The processor must have what `V` needs; [`head_len`] bytes and `count` steps must be readable at
/// `src` and writable at `dst`, which either are the same or do not overlap.
#[inline(always)]
#[allow(
    clippy::too_many_arguments,
    reason = "those of a whole message, in registers"
)]
pub(super) unsafe fn begin<V: Lanes, const N: usize, const ROUNDS: usize, const SEAL: bool>(
    steps: &mut Steps<'_, V, N>,
    additional: __m128i,
    src: *const u8,
    dst: *mut u8,
    count: usize,
    is_joined: bool,
    tag_mask: &mut Block,
) -> Sum<V> {
    // SAFETY: the caller's contract.
    unsafe {
        let mask = steps.head::<ROUNDS, SEAL>(additional, src, dst);
        once::put(tag_mask, mask, V::VEX);
        let head_len = head_len(V::COUNT, N);
        steps.run::<ROUNDS, SEAL>(src.add(head_len), dst.add(head_len), count, is_joined)
    }
}

/// Seals or opens `count` ≥ 1 whole steps that do not begin the message, and returns the state
/// after them.
///
/// `counter` is that of the first block, a multiple of the blocks in a step; `state` the state
/// before it.
///
/// # Safety
/// As for [`begin`].
#[inline(always)]
pub(super) unsafe fn proceed<V: Lanes, const N: usize, const ROUNDS: usize, const SEAL: bool>(
    schedule: &Schedule,
    nonce: &Nonce,
    counter: u32,
    state: __m128i,
    src: *const u8,
    dst: *mut u8,
    count: usize,
) -> __m128i {
    // SAFETY: the caller's contract.
    unsafe {
        let mut steps = Steps::<V, N>::new(schedule, nonce, counter);
        let none = Powers::Strides(schedule.strides_end(V::COUNT));
        steps.step::<ROUNDS, SEAL, false>(src, dst, &mut Sum::zero(), none);
        steps.carry(V::in_first_lane(state));
        let step_len = 16 * N * V::COUNT;
        let (src, dst) = (src.add(step_len), dst.add(step_len));
        steps.run::<ROUNDS, SEAL>(src, dst, count - 1, false);
        steps.hash(0).reduce().sum_of_lanes()
    }
}

/// Hashes `count` ≥ 1 whole steps of ciphertext and returns the state after them: the first of two
/// readings, see `Key::open_reading_twice`.
///
/// # Safety
/// As for [`proceed`]; nothing is stored.
#[inline(always)]
pub(super) unsafe fn hash_alone<V: Lanes, const N: usize>(
    schedule: &Schedule,
    state: __m128i,
    mut src: *const u8,
    count: usize,
) -> __m128i {
    // SAFETY: the caller's contract; the powers are those that `Steps::run` takes.
    unsafe {
        let step_len = 16 * N * V::COUNT;
        let byte_reversal = V::splat(ghash::byte_reversal());
        let mut carried = V::in_first_lane(state);
        let mut blocks = [V::zero(); N];
        macro_rules! load {
            ($($i:literal)*) => {$(
                if $i < N {
                    blocks[$i] = V::load_once::<$i>(src).permute(byte_reversal);
                }
            )*};
        }
        macro_rules! add_to {
            ($sum:ident, $powers:expr) => {
                for i in 0..N / 2 {
                    let (a, b) = (2 * i, 2 * i + 1);
                    $sum.add2(
                        blocks[a],
                        $powers.of_register(a),
                        blocks[b],
                        $powers.of_register(b),
                    );
                }
            };
        }
        let mut left = count - 1;
        while left > 0 {
            let together = left.min(STRIDES / N);
            let mut powers = schedule.strides_end(V::COUNT).sub(together * N);
            let mut sum = Sum::zero();
            for _ in 0..together {
                fetch_ahead(src, step_len);
                load!(0 1 2 3 4 5 6 7);
                blocks[0] = blocks[0].xor(carried);
                carried = V::zero();
                add_to!(sum, Powers::Strides(powers));
                powers = powers.add(N);
                src = src.add(step_len);
            }
            carried = sum.reduce();
            left -= together;
        }
        load!(0 1 2 3 4 5 6 7);
        blocks[0] = blocks[0].xor(carried);
        let powers = Powers::Consecutive(schedule.powers_from(N * V::COUNT));
        let mut sum = Sum::zero();
        add_to!(sum, powers);
        sum.reduce().sum_of_lanes()
    }
}

/// Decrypts `count` whole steps without hashing them: the second of two readings.
///
/// # Safety
/// As for [`proceed`].
#[inline(always)]
pub(super) unsafe fn decrypt_alone<V: Lanes, const N: usize, const ROUNDS: usize>(
    schedule: &Schedule,
    nonce: &Nonce,
    counter: u32,
    src: *const u8,
    dst: *mut u8,
    count: usize,
) {
    // SAFETY: the caller's contract.
    unsafe {
        let mut steps = Steps::<V, N>::new(schedule, nonce, counter);
        let none = Powers::Strides(schedule.strides_end(V::COUNT));
        for at in (0..count).map(|step| step * 16 * N * V::COUNT) {
            let (src, dst) = (src.add(at), dst.add(at));
            steps.step::<ROUNDS, false, false>(src, dst, &mut Sum::zero(), none);
        }
    }
}
