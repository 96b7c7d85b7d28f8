//! What is computed once from a key: AES round keys and powers of the hash key.

use super::ghash;
use super::lanes::Single;
use super::Kernel;
use core::arch::x86_64::*;
use core::mem::offset_of;
use zeroize::Zeroize;

/// 16 bytes, aligned.
#[derive(Clone, Copy)]
#[repr(C, align(16))]
pub(crate) struct Block(pub(crate) [u8; 16]);

impl Block {
    pub(super) const ZERO: Self = Self([0; 16]);
}

/// The highest power of H that the last, partial step of a message needs: 16 blocks of data, one of
/// additional data, one of lengths, rounded up to whole registers.
pub(super) const POWER_MAX: usize = 20;

/// The number of registers whose products are summed before a reduction.
pub(super) const STRIDES: usize = 16;

/// Round keys and powers of the hash key, as the x86 paths want them.
///
/// In the order that a short message under AES-128 needs them: H^5/x, …, H/x and eleven round keys
/// are four lines of the cache. A register of powers that begins with one of the last goes on into
/// the round keys, which it multiplies by zero data.
#[repr(C, align(64))]
pub(crate) struct Schedule {
    /// K^16/x, …, K/x, where K = H^lanes: each lane hashes every `lanes`-th block (why /x: see
    /// `ghash`).
    pub(super) strides: [Block; STRIDES],
    /// So that H^5/x begins a line.
    gap: [Block; 1],
    /// H^20/x, …, H/x.
    pub(super) powers: [Block; POWER_MAX],
    /// Round keys; AES-128 uses the first 11.
    pub(super) round_keys: [Block; 15],
    /// 10 or 14.
    pub(super) rounds: usize,
}

const _: () = assert!(Schedule::SHORT.is_multiple_of(LINE));

/// Bytes of a line of the cache.
const LINE: usize = 64;

impl Schedule {
    pub(crate) const EMPTY: Self = Self {
        strides: [Block::ZERO; STRIDES],
        gap: [Block::ZERO; 1],
        powers: [Block::ZERO; POWER_MAX],
        round_keys: [Block::ZERO; 15],
        rounds: 0,
    };

    /// Asks for the cache lines that a message of `len` bytes needs on this path. (The schedule
    /// knows its rounds, but reading them would be the wait that this is to avoid.)
    #[inline]
    pub(crate) fn prefetch(&self, kernel: &Kernel, len: usize) {
        // In few instructions, for there may be a key for each packet.
        for line in 0..4 {
            self.prefetch_at(Self::SHORT + LINE * line);
        }
        if kernel.rounds > 10 {
            self.prefetch_at(Self::SHORT + LINE * 4);
        }
        if len > 48 {
            self.prefetch_longer(kernel, len);
        }
    }

    /// Where what a message of up to three blocks needs begins: five powers, then the round keys.
    const SHORT: usize = offset_of!(Self, powers) + size_of::<Block>() * (POWER_MAX - 5);

    /// What a message of more than three blocks needs besides.
    fn prefetch_longer(&self, kernel: &Kernel, len: usize) {
        const BLOCK: usize = size_of::<Block>();
        let mut powers = len.div_ceil(16) + 2;
        if let Some(behind) = len.checked_sub(kernel.head_len) {
            // Head and steps end with a power for each block of a step, the rest has fewer than a
            // step. Steps are powers of two.
            let steps = behind >> kernel.step_len.trailing_zeros();
            let rest = behind & (kernel.step_len - 1);
            powers = (kernel.step_len / 16).max(rest.div_ceil(16) + 1);
            let registers = kernel.step_len / (16 * kernel.lanes);
            let strides = (steps * registers).min(STRIDES);
            let end = offset_of!(Self, strides) + BLOCK * STRIDES;
            for at in (end - BLOCK * strides..end).step_by(LINE) {
                self.prefetch_at(at);
            }
        }
        let first = offset_of!(Self, powers) + BLOCK * POWER_MAX.saturating_sub(powers);
        for at in (first / LINE * LINE..Self::SHORT).step_by(LINE) {
            self.prefetch_at(at);
        }
    }

    #[inline(always)]
    fn prefetch_at(&self, at: usize) {
        let line = core::ptr::from_ref(self).cast::<i8>().wrapping_add(at);
        // Into the second-level cache, which can wait for more lines at once than the first.
        // SAFETY: a hint never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(line) };
    }

    /// Where H^k/x is, with the lower powers after it, and behind them the round keys: never the
    /// end of the schedule within a register.
    #[inline(always)]
    pub(super) fn powers_from(&self, k: usize) -> *const Block {
        debug_assert!(k <= POWER_MAX);
        let at = offset_of!(Self, powers) + size_of::<Block>() * (POWER_MAX - k);
        // From the schedule, not from the array, whose end is not the end of what may be read.
        core::ptr::from_ref(self)
            .cast::<Block>()
            .wrapping_byte_add(at)
    }

    /// One past K/x, the last stride.
    #[inline(always)]
    pub(super) fn strides_end(&self) -> *const Block {
        self.strides.as_ptr_range().end
    }

    /// Fills the schedule from a key of 4 or 8 words (16 or 32 bytes), for registers of `lanes`
    /// blocks.
    ///
    /// # Safety
    /// The processor must have AES-NI, PCLMULQDQ and SSSE3.
    #[target_feature(enable = "aes,pclmulqdq,ssse3")]
    pub(crate) unsafe fn fill(&mut self, key: &[u8], lanes: usize) {
        self.expand(key);
        // SAFETY: the features are enabled on this function; all addresses are within `self`.
        unsafe {
            let h = encrypt(self, _mm_setzero_si128());
            let h = over_x(_mm_shuffle_epi8(h, ghash::byte_reversal()));
            let mut power = h;
            for k in 1..=POWER_MAX.max(lanes * STRIDES) {
                if k <= POWER_MAX {
                    _mm_store_si128(self.powers.as_mut_ptr().add(POWER_MAX - k).cast(), power);
                }
                if k % lanes == 0 && k / lanes <= STRIDES {
                    _mm_store_si128(
                        self.strides.as_mut_ptr().add(STRIDES - k / lanes).cast(),
                        power,
                    );
                }
                power = ghash::multiply(Single(power), Single(h)).0;
            }
        }
    }

    /// The key expansion of FIPS 197, section 5.2, a word at a time.
    #[inline]
    #[target_feature(enable = "aes,ssse3")]
    fn expand(&mut self, key: &[u8]) {
        let words_in_key = key.len() / 4;
        self.rounds = words_in_key + 6;
        let mut words = [0u32; 60];
        for (word, bytes) in words.iter_mut().zip(key.chunks_exact(4)) {
            *word = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        }
        let mut round_constant = 1u32;
        for i in words_in_key..4 * (self.rounds + 1) {
            let mut word = words[i - 1];
            if i % words_in_key == 0 {
                word = substitute(word).rotate_right(8) ^ round_constant;
                // Doubling in GF(2^8); the constants are public.
                round_constant =
                    (round_constant << 1) ^ if round_constant & 0x80 != 0 { 0x11b } else { 0 };
            } else if words_in_key == 8 && i % 8 == 4 {
                word = substitute(word);
            }
            words[i] = words[i - words_in_key] ^ word;
        }
        for (block, words) in self.round_keys.iter_mut().zip(words.chunks_exact(4)) {
            for (bytes, word) in block.0.chunks_exact_mut(4).zip(words) {
                bytes.copy_from_slice(&word.to_le_bytes());
            }
        }
        words.zeroize();
    }
}

impl Zeroize for Schedule {
    fn zeroize(&mut self) {
        for block in self
            .round_keys
            .iter_mut()
            .chain(&mut self.powers)
            .chain(&mut self.strides)
        {
            block.0.zeroize();
        }
        self.rounds.zeroize();
    }
}

/// The AES S-box on each byte, by the instruction (a table would leak the key through the cache).
#[inline]
#[target_feature(enable = "aes")]
fn substitute(word: u32) -> u32 {
    _mm_cvtsi128_si32(_mm_aeskeygenassist_si128::<0>(_mm_set1_epi32(word as i32))) as u32
}

/// One block through AES.
///
/// # Safety
/// The processor must have AES-NI.
#[inline]
#[target_feature(enable = "aes")]
unsafe fn encrypt(schedule: &Schedule, block: __m128i) -> __m128i {
    // SAFETY: round keys are aligned blocks, and `rounds` is 10 or 14.
    unsafe {
        let key = |r: usize| _mm_load_si128(schedule.round_keys[r..].as_ptr().cast());
        let mut state = _mm_xor_si128(block, key(0));
        for r in 1..schedule.rounds {
            state = _mm_aesenc_si128(state, key(r));
        }
        _mm_aesenclast_si128(state, key(schedule.rounds))
    }
}

/// The polynomial over x: reflected, that is a shift left, and the bit that falls out is x^0/x =
/// x^127 + x^6 + x + 1. No branch.
#[inline]
#[target_feature(enable = "sse2")]
fn over_x(h: __m128i) -> __m128i {
    let carry_between = _mm_slli_si128::<8>(_mm_srli_epi64::<63>(h));
    let shifted = _mm_or_si128(_mm_slli_epi64::<1>(h), carry_between);
    // All ones where the bit that falls out (the sign of the upper word) is set.
    let falls_out = _mm_srai_epi32::<31>(_mm_shuffle_epi32::<0xff>(h));
    let polynomial = _mm_set_epi64x(0xc200_0000_0000_0000_u64 as i64, 1);
    _mm_xor_si128(shifted, _mm_and_si128(falls_out, polynomial))
}
