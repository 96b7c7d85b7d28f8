//! Where random values come from: an instruction, or a script that plays one.

use crate::error::{Error, Instruction};
use crate::processor;

/// A machine that either has a random value now (CF = 1) or has none (CF = 0).
///
/// One step is one execution of the instruction; retrying is the caller's affair.
pub trait Source {
    /// The instruction that this is or plays; it decides retry limits and messages.
    const INSTRUCTION: Instruction;

    /// Sixteen bits, or `None` when the carry flag was clear.
    fn step_u16(&mut self) -> Option<u16>;

    /// Thirty-two bits, or `None` when the carry flag was clear.
    fn step_u32(&mut self) -> Option<u32>;

    /// Sixty-four bits, or `None` when the carry flag was clear.
    fn step_u64(&mut self) -> Option<u64>;
}

/// Proof that this processor has RDRAND; executes it.
#[derive(Clone, Copy, Debug)]
pub struct RdrandInstruction(());

/// Proof that this processor has RDSEED; executes it.
#[derive(Clone, Copy, Debug)]
pub struct RdseedInstruction(());

impl RdrandInstruction {
    /// Asks CPUID.
    ///
    /// # Errors
    /// [`Error::Unsupported`] where the instruction is absent or hidden.
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
    /// Asks CPUID.
    ///
    /// # Errors
    /// [`Error::Unsupported`] where the instruction is absent or hidden.
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
#[cfg(target_arch = "x86_64")]
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
#[cfg(not(target_arch = "x86_64"))]
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

            #[inline(always)]
            fn step_u64(&mut self) -> Option<u64> {
                step!($mnemonic, "r", u64)
            }
        }
    };
}

hardware!(RdrandInstruction, Instruction::Rdrand, "rdrand");
hardware!(RdseedInstruction, Instruction::Rdseed, "rdseed");

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
}
