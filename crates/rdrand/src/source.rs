//! Sources of random values: an instruction, or in tests a script in its place.

use core::time::Duration;

use crate::error::Error;
use crate::processor::{self, Instruction};
use crate::retry_limit::RetryLimit;

/// A source that either has a random value now (CF = 1) or has none (CF = 0).
///
/// One step is one execution of the instruction, without retries.
pub trait Source {
    /// The instruction that this executes or stands for; it decides retry limits and messages.
    const INSTRUCTION: Instruction;

    /// Sixteen bits, or `None` when the carry flag was clear.
    fn step_u16(&mut self) -> Option<u16>;

    /// Thirty-two bits, or `None` when the carry flag was clear.
    fn step_u32(&mut self) -> Option<u32>;

    /// Sixty-four bits, or `None` when the carry flag was clear.
    fn step_u64(&mut self) -> Option<u64>;

    /// Returns the time since some fixed moment, for retry limits in time; `None` without a clock.
    /// A scripted source has a clock of its own.
    fn now(&self) -> Option<Duration> {
        clock::now()
    }
}

#[cfg(feature = "std")]
mod clock {
    use std::sync::OnceLock;
    use std::time::{Duration, Instant};

    pub(super) fn now() -> Option<Duration> {
        static START: OnceLock<Instant> = OnceLock::new();
        Some(START.get_or_init(Instant::now).elapsed())
    }
}

#[cfg(not(feature = "std"))]
mod clock {
    use core::time::Duration;

    /// Reads the processor's time-stamp counter and takes its frequency to be 8 GHz: higher than
    /// any, so that a limit in time is longer than asked for and never shorter.
    #[cfg(any(target_arch = "x86_64", target_arch = "x86"))]
    pub(super) fn now() -> Option<Duration> {
        #[cfg(target_arch = "x86")]
        use core::arch::x86::_rdtsc;
        #[cfg(target_arch = "x86_64")]
        use core::arch::x86_64::_rdtsc;

        // SAFETY: every processor with RDRAND has RDTSC, and it touches only registers.
        Some(Duration::from_nanos(unsafe { _rdtsc() } / 8))
    }

    #[cfg(not(any(target_arch = "x86_64", target_arch = "x86")))]
    pub(super) fn now() -> Option<Duration> {
        None
    }
}

/// Proof that this processor has RDRAND; executes it.
#[derive(Clone, Copy, Debug)]
pub struct RdrandInstruction(());

/// Proof that this processor has RDSEED; executes it.
#[derive(Clone, Copy, Debug)]
pub struct RdseedInstruction(());

impl RdrandInstruction {
    /// Returns the token if CPUID reports the instruction.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the instruction is absent or hidden.
    #[inline]
    pub fn detect() -> Result<Self, Error> {
        if processor::has_rdrand() {
            Ok(RdrandInstruction(()))
        } else {
            Err(Error::Unsupported {
                instruction: Instruction::Rdrand,
            })
        }
    }
}

impl RdseedInstruction {
    /// Returns the token if CPUID reports the instruction.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the instruction is absent or hidden.
    #[inline]
    pub fn detect() -> Result<Self, Error> {
        if processor::has_rdseed() {
            Ok(RdseedInstruction(()))
        } else {
            Err(Error::Unsupported {
                instruction: Instruction::Rdseed,
            })
        }
    }
}

/// One instruction and its carry flag. Assembly and not the intrinsic, because the
/// intrinsic cannot be inlined into functions compiled without the target feature, and
/// a call costs more than the health tests do.
#[cfg(any(target_arch = "x86_64", target_arch = "x86"))]
macro_rules! step {
    ($mnemonic:literal, $modifier:literal, $type:ty) => {{
        let value: $type;
        let carry: u8;
        // SAFETY: the token that carries this method exists only where CPUID reported the
        // instruction. It writes one register and the flags and touches no memory.
        unsafe {
            core::arch::asm!(
                concat!($mnemonic, " {value:", $modifier, "}"),
                "setc {carry}",
                value = out(reg) value,
                carry = out(reg_byte) carry,
                options(nomem, nostack),
            );
        }
        if carry != 0 { Some(value) } else { None }
    }};
}

/// On other targets no token can be had, so this never runs.
#[cfg(not(any(target_arch = "x86_64", target_arch = "x86")))]
macro_rules! step {
    ($mnemonic:literal, $modifier:literal, $type:ty) => {
        None::<$type>
    };
}

macro_rules! hardware {
    ($token:ty, $instruction:expr, $mnemonic:literal) => {
        impl Source for $token {
            const INSTRUCTION: Instruction = $instruction;

            #[inline(always)]
            fn step_u16(&mut self) -> Option<u16> {
                step!($mnemonic, "x", u16)
            }

            #[inline(always)]
            fn step_u32(&mut self) -> Option<u32> {
                step!($mnemonic, "e", u32)
            }

            #[cfg(not(target_arch = "x86"))]
            #[inline(always)]
            fn step_u64(&mut self) -> Option<u64> {
                step!($mnemonic, "r", u64)
            }

            #[cfg(target_arch = "x86")]
            #[inline(always)]
            fn step_u64(&mut self) -> Option<u64> {
                two_halves(self)
            }
        }
    };
}

hardware!(RdrandInstruction, Instruction::Rdrand, "rdrand");
hardware!(RdseedInstruction, Instruction::Rdseed, "rdseed");

/// A source as on a 32-bit processor, which has no 64-bit form of the instructions: a 64-bit value
/// is two draws of 32. There, the instructions themselves are such sources; elsewhere this is for
/// tests and measurements.
#[derive(Clone, Copy, Debug)]
pub struct Halves<S>(pub S);

impl<S: Source> Source for Halves<S> {
    const INSTRUCTION: Instruction = S::INSTRUCTION;

    fn step_u16(&mut self) -> Option<u16> {
        self.0.step_u16()
    }

    fn step_u32(&mut self) -> Option<u32> {
        self.0.step_u32()
    }

    fn step_u64(&mut self) -> Option<u64> {
        two_halves(&mut self.0)
    }

    fn now(&self) -> Option<Duration> {
        self.0.now()
    }
}

/// Draws a 64-bit value in two halves; `None` if either has none. The second one is retried
/// here: where values come one at a time, two in a row would never come.
///
/// A half of RDSEED that is zero counts as no data, as AMD advises for the 16- and 32-bit forms
/// on Zen 5, where it mostly is an error (AMD-SB-7055). This leaves out one value in 2³¹.
fn two_halves<S: Source>(source: &mut S) -> Option<u64> {
    let seed = matches!(S::INSTRUCTION, Instruction::Rdseed);
    let half = |source: &mut S| source.step_u32().filter(|&half| half != 0 || !seed);
    let high = half(source)?;
    let low = (0..RetryLimit::of(S::INSTRUCTION).attempts()).find_map(|_| {
        let low = half(source);
        if low.is_none() {
            core::hint::spin_loop(); // PAUSE
        }
        low
    })?;
    Some(u64::from(high) << 32 | u64::from(low))
}

impl<S: Source + ?Sized> Source for &mut S {
    const INSTRUCTION: Instruction = S::INSTRUCTION;

    #[inline]
    fn step_u16(&mut self) -> Option<u16> {
        (**self).step_u16()
    }

    #[inline]
    fn step_u32(&mut self) -> Option<u32> {
        (**self).step_u32()
    }

    #[inline]
    fn step_u64(&mut self) -> Option<u64> {
        (**self).step_u64()
    }

    fn now(&self) -> Option<Duration> {
        (**self).now()
    }
}
