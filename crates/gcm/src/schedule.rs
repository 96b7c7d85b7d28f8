//! Round keys and powers of the hash key, computed once for each key, and their layout.

use core::mem::offset_of;
use core::ops::RangeInclusive;

/// 16 bytes, aligned.
#[derive(Clone, Copy)]
#[repr(C, align(16))]
pub(crate) struct Block(pub(crate) [u8; 16]);

impl Block {
    pub(crate) const ZERO: Self = Self([0; 16]);
}

/// The sizes that the code of one path and key size works with.
#[derive(Clone, Copy)]
pub(crate) struct Shape {
    /// Rounds of AES.
    pub(crate) rounds: usize,
    /// Blocks per register.
    pub(crate) lanes: usize,
    /// Bytes in the first step of a message.
    pub(crate) head_len: usize,
    /// The longest message that is worked on without a head, in bytes.
    pub(crate) short_max: usize,
    /// Bytes in every further step: a power of two.
    pub(crate) step_len: usize,
}

/// The highest power of H that a schedule has a place for.
pub(crate) const POWER_MAX: usize = 36;

/// Returns the highest power of H that is there for registers of `lanes` blocks. The end of a
/// message needs as many as it has blocks, and those of the step before it: on registers of four
/// blocks 16 and up to 16, on narrower ones 8 and up to 8; the block of lengths, and for a message
/// of two halves that of additional data; rounded up to whole registers.
pub(crate) const fn power_max(lanes: usize) -> usize {
    if lanes == 4 {
        POWER_MAX
    } else {
        20
    }
}

/// The lengths of messages that registers of four blocks work on as two halves, in bytes: as a
/// head, a step and an end they would wait for the cipher three times, the last time for one or two
/// blocks.
pub(crate) const HALVES: RangeInclusive<usize> = 481..=512;

/// Returns true if the end of a message, in this many registers of four blocks, is in one sum with
/// the last step, which saves a reduction but needs consecutive powers for both. For an end of two
/// registers, as packets of 576 bytes have it, these are three cache lines more, and with 10,000
/// keys in turn that took 9 % longer: there the last step is in one sum with the steps before it.
pub(crate) const fn is_one_sum(registers: usize) -> bool {
    registers != 2
}

/// The number of registers whose products are summed before a reduction: on registers of four
/// blocks five steps, as many as a packet of up to 1503 bytes has, its head included.
pub(crate) const STRIDES: usize = 20;

/// Bytes per line of the cache.
const LINE: usize = 64;

/// Round keys and powers of the hash key.
///
/// In the order that a short message under AES-128 needs them: H^5/x, …, H/x and eleven round keys
/// are four lines of the cache. With many keys, as a gateway with many tunnels has, those lines are
/// what a packet waits for. A register of powers that begins with one of the last goes on into the
/// round keys, which it multiplies by zero data.
#[repr(C, align(64))]
pub(crate) struct Schedule {
    /// K^20/x, …, K/x, where K = H^lanes: each lane hashes every `lanes`-th block. They are divided
    /// by x because that is what a product of reflected polynomials wants (`x86/ghash.rs`).
    /// Registers of one block use `powers` in their place, which are the same.
    pub(crate) strides: [Block; STRIDES],
    /// So that H^5/x begins a line.
    gap: [Block; 1],
    /// H^36/x, …, H/x; from [`power_max`] on.
    pub(crate) powers: [Block; POWER_MAX],
    /// Round keys; AES-128 uses the first 11.
    pub(crate) round_keys: [Block; 15],
    /// 10 or 14.
    pub(crate) rounds: usize,
}

const _: () = assert!(Schedule::SHORT.is_multiple_of(LINE));

impl Schedule {
    pub(crate) const EMPTY: Self = Self {
        strides: [Block::ZERO; STRIDES],
        gap: [Block::ZERO; 1],
        powers: [Block::ZERO; POWER_MAX],
        round_keys: [Block::ZERO; 15],
        rounds: 0,
    };

    /// The offset of what a message of up to three blocks needs: five powers, then the round keys.
    const SHORT: usize = offset_of!(Self, powers) + size_of::<Block>() * (POWER_MAX - 5);

    /// Gives `prefetch` the address of each cache line that a message of `len` bytes needs. (The
    /// schedule holds its rounds too, but reading them would be the wait that this is to avoid.)
    #[inline]
    pub(crate) fn lines(&self, shape: &Shape, len: usize, prefetch: impl Fn(*const u8)) {
        let line = |at| prefetch(core::ptr::from_ref(self).cast::<u8>().wrapping_add(at));
        // In few instructions, for there may be a key for each packet.
        for i in 0..4 {
            line(Self::SHORT + LINE * i);
        }
        if shape.rounds > 10 {
            line(Self::SHORT + LINE * 4);
        }
        if len > 48 {
            Self::lines_of_longer(shape, len, line);
        }
    }

    /// The offsets of the lines that only a message of more than three blocks needs.
    fn lines_of_longer(shape: &Shape, len: usize, line: impl Fn(usize)) {
        const BLOCK: usize = size_of::<Block>();
        let mut powers = len.div_ceil(16) + 2;
        if len > shape.short_max {
            let behind = len - shape.head_len;
            // The rest has fewer blocks than a step, except in a message of two halves, which is
            // one sum. The sums of the others are those of `is_one_sum`; narrower registers always
            // have the rest in one sum with the last step. Steps are powers of two.
            let (steps, rest) = if shape.lanes == 4 && HALVES.contains(&len) {
                (0, behind)
            } else {
                (
                    behind >> shape.step_len.trailing_zeros(),
                    behind & (shape.step_len - 1),
                )
            };
            let (step, data) = (shape.step_len / 16, rest.div_ceil(16));
            let registers = shape.step_len / (16 * shape.lanes);
            let mut strides = (steps * registers).min(STRIDES);
            powers = step + data + 1;
            if shape.lanes == 4 && !is_one_sum(data.div_ceil(4)) {
                powers = data + 1;
                strides = (strides + registers).min(STRIDES);
            }
            if shape.lanes == 1 {
                powers = powers.max(strides);
            } else {
                let end = offset_of!(Self, strides) + BLOCK * STRIDES;
                for at in (end - BLOCK * strides..end).step_by(LINE) {
                    line(at);
                }
            }
        }
        let first = offset_of!(Self, powers) + BLOCK * POWER_MAX.saturating_sub(powers);
        for at in (first / LINE * LINE..Self::SHORT).step_by(LINE) {
            line(at);
        }
    }

    /// The address of H^k/x, with the lower powers after it, and behind them the round keys: never
    /// the end of the schedule within a register.
    #[inline(always)]
    pub(crate) fn powers_from(&self, k: usize) -> *const Block {
        debug_assert!(k <= POWER_MAX);
        let at = offset_of!(Self, powers) + size_of::<Block>() * (POWER_MAX - k);
        // From the schedule, not from the array, whose end is not the end of what may be read.
        core::ptr::from_ref(self)
            .cast::<Block>()
            .wrapping_byte_add(at)
    }

    /// One past K/x, the last stride of registers of so many blocks.
    #[inline(always)]
    pub(crate) fn strides_end(&self, lanes: usize) -> *const Block {
        if lanes == 1 {
            self.powers_from(0)
        } else {
            self.strides.as_ptr_range().end
        }
    }
}
