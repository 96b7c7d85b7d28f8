//! Scripted hardware for tests: sound, stuck, without data, or late.
//!
//! Only for tests, of this crate and of others; the feature `testing` enables it. The values of a
//! healthy script are a fixed function of a seed, not secret. A script has a clock of its own, in
//! which an execution takes [`EXECUTION_TIME`], so that limits in time need no waiting in tests.

use core::time::Duration;

use crate::processor::Instruction;
use crate::source::Source;

/// The time of one execution by the clock of a script.
pub const EXECUTION_TIME: Duration = Duration::from_micros(1);

/// The behaviour of the carry flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carry {
    /// Every execution delivers.
    Always,
    /// No execution delivers.
    Never,
    /// Each value takes this many executions; the last of them delivers. 0 and 1 are
    /// [`Carry::Always`].
    AfterTries(u32),
    /// The lowest `length` bits (1 to 64), over and over, lowest first: 1 delivers.
    Pattern {
        /// One bit per execution.
        bits: u64,
        /// The number of bits.
        length: u32,
    },
    /// Delivers for this many executions, then never again.
    Until(u64),
}

/// The values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Values {
    /// Different every time, evenly spread, the same for the same seed.
    Healthy(u64),
    /// Always this one, cut to the width.
    Stuck(u64),
    /// Healthy for `healthy` values, then `count` times `value`, then healthy again.
    Burst {
        /// The seed of the healthy part.
        seed: u64,
        /// Values before the burst.
        healthy: u64,
        /// The value of the burst, cut to the width.
        value: u64,
        /// Length of the burst in values.
        count: u64,
    },
    /// Healthy values, each this many times in a row.
    Repeating {
        /// The seed of the values.
        seed: u64,
        /// The number of times that each comes.
        times: u64,
    },
    /// The first `length` healthy values, over and over.
    Cycle {
        /// The seed of the values.
        seed: u64,
        /// Values in the cycle.
        length: u64,
    },
    /// Healthy, but the bits of `mask` are always those of `bits`.
    StuckBits {
        /// The seed of the other bits.
        seed: u64,
        /// The bits that are stuck.
        mask: u64,
        /// Their values.
        bits: u64,
    },
    /// Healthy, but the 16- and 32-bit forms give 0 in one value of `one_in`: AMD Zen 5.
    NarrowZeros {
        /// The seed of the healthy values.
        seed: u64,
        /// One value of this many is zero.
        one_in: u64,
    },
}

/// RDRAND, played by a script.
pub type ScriptedRdrand = Scripted<false>;

/// RDSEED, played by a script.
pub type ScriptedRdseed = Scripted<true>;

/// A scripted instruction; `SEED` makes it play RDSEED instead of RDRAND.
#[derive(Clone, Debug)]
pub struct Scripted<const SEED: bool> {
    carry: Carry,
    values: Values,
    executed: u64,
    delivered: u64,
    tries: u32,
}

impl<const SEED: bool> Scripted<SEED> {
    /// Plays `values`, delivered as `carry` says.
    #[must_use]
    pub const fn new(values: Values, carry: Carry) -> Self {
        Scripted {
            carry,
            values,
            executed: 0,
            delivered: 0,
            tries: 0,
        }
    }

    /// Sound hardware.
    #[must_use]
    pub const fn healthy(seed: u64) -> Self {
        Self::new(Values::Healthy(seed), Carry::Always)
    }

    /// Hardware that always returns `value` with CF = 1.
    #[must_use]
    pub const fn stuck(value: u64) -> Self {
        Self::new(Values::Stuck(value), Carry::Always)
    }

    /// Hardware that never has data.
    #[must_use]
    pub const fn never() -> Self {
        Self::new(Values::Healthy(0), Carry::Never)
    }

    /// Sound hardware that needs `tries` executions for each value.
    #[must_use]
    pub const fn after_tries(seed: u64, tries: u32) -> Self {
        Self::new(Values::Healthy(seed), Carry::AfterTries(tries))
    }

    /// Executions so far, with and without data.
    #[must_use]
    pub const fn executed(&self) -> u64 {
        self.executed
    }

    /// Values delivered so far.
    #[must_use]
    pub const fn delivered(&self) -> u64 {
        self.delivered
    }

    /// Replaces the behaviour of the carry flag from here on.
    pub fn set_carry(&mut self, carry: Carry) {
        self.carry = carry;
        self.tries = 0;
    }

    fn carry_flag(&mut self) -> bool {
        match self.carry {
            Carry::Always => true,
            Carry::Never => false,
            Carry::AfterTries(tries) => {
                self.tries += 1;
                let delivers = self.tries >= tries;
                if delivers {
                    self.tries = 0;
                }
                delivers
            }
            Carry::Pattern { bits, length } => {
                let length = u64::from(length.clamp(1, 64));
                bits >> (self.executed % length) & 1 != 0
            }
            Carry::Until(executions) => self.executed < executions,
        }
    }

    fn step(&mut self, bits: u32) -> Option<u64> {
        let delivers = self.carry_flag();
        self.executed += 1;
        if !delivers {
            return None;
        }
        let index = self.delivered;
        self.delivered += 1;
        let value = match self.values {
            Values::Healthy(seed) => healthy_value(seed, index),
            Values::Stuck(value) => value,
            Values::Burst {
                seed,
                healthy,
                value,
                count,
            } => {
                if (healthy..healthy.saturating_add(count)).contains(&index) {
                    value
                } else {
                    healthy_value(seed, index)
                }
            }
            Values::Repeating { seed, times } => healthy_value(seed, index / times.max(1)),
            Values::Cycle { seed, length } => healthy_value(seed, index % length.max(1)),
            Values::StuckBits { seed, mask, bits } => {
                healthy_value(seed, index) & !mask | bits & mask
            }
            Values::NarrowZeros { seed, one_in } => {
                if bits < 64 && index.is_multiple_of(one_in.max(1)) {
                    0
                } else {
                    healthy_value(seed, index)
                }
            }
        };
        Some(value & (u64::MAX >> (64 - bits)))
    }
}

impl<const SEED: bool> Source for Scripted<SEED> {
    const INSTRUCTION: Instruction = if SEED {
        Instruction::Rdseed
    } else {
        Instruction::Rdrand
    };

    fn step_u16(&mut self) -> Option<u16> {
        self.step(16).map(|value| value as u16)
    }

    fn step_u32(&mut self) -> Option<u32> {
        self.step(32).map(|value| value as u32)
    }

    fn step_u64(&mut self) -> Option<u64> {
        self.step(64)
    }

    fn now(&self) -> Option<Duration> {
        Some(Duration::from_nanos(
            self.executed
                .saturating_mul(EXECUTION_TIME.as_nanos() as u64),
        ))
    }
}

/// Returns value `index` of the healthy stream of `seed`: the output function of SplitMix64
/// (Steele, Lea and Flood, OOPSLA 2014) over a counter.
#[must_use]
pub const fn healthy_value(seed: u64, index: u64) -> u64 {
    let step = index.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut z = seed.wrapping_mul(0xd134_2543_de82_ef95).wrapping_add(step);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
