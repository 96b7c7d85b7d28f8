//! Errors, with what to do about each.

use core::fmt;
use core::time::Duration;

use crate::processor::{Instruction, KnownIssue};

/// The health test that found the source broken (SP 800-90B, section 4.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HealthFailure {
    /// Repetition count test: the same symbol came `run` times in a row.
    Repetition {
        /// The repeated value, zero-extended.
        value: u64,
        /// Width of the symbol in bits: 16, 32 or 64.
        bits: u32,
        /// Consecutive equal values seen; at least the cut-off.
        run: u32,
    },
    /// Adaptive proportion test: one byte value fills too much of a window.
    Proportion {
        /// The byte that came too often.
        byte: u8,
        /// The number of times that it came.
        count: u32,
        /// Bytes looked at, at most 512.
        window: u32,
    },
    /// Start-up self-test: a value came twice.
    Duplicate {
        /// The smallest value that came more than once.
        value: u64,
        /// Values looked at.
        draws: u32,
    },
    /// Start-up self-test: bits that were the same in all values.
    StuckBits {
        /// Those bits.
        mask: u64,
    },
}

impl fmt::Display for HealthFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HealthFailure::Repetition { value, bits, run } => {
                write!(
                    f,
                    "the {bits}-bit value {value:#x} came {run} times in a row"
                )
            }
            HealthFailure::Proportion {
                byte,
                count,
                window,
            } => {
                write!(
                    f,
                    "the byte {byte:#04x} came {count} times in {window} bytes"
                )
            }
            HealthFailure::Duplicate { value, draws } => {
                write!(
                    f,
                    "the 64-bit value {value:#x} came more than once in {draws} draws"
                )
            }
            HealthFailure::StuckBits { mask } => {
                write!(f, "the bits {mask:#018x} were the same in every value")
            }
        }
    }
}

/// The reason that no, or not all, random numbers were delivered.
///
/// `written` counts elements of the caller's array from its start: bytes for byte
/// functions, values for the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// The processor does not have the instruction, or CPUID hides it.
    Unsupported {
        /// The missing instruction.
        instruction: Instruction,
    },
    /// The instruction said "no data" (CF = 0) until the
    /// [`RetryLimit`](crate::RetryLimit) of one value was used up.
    Underflow {
        /// The instruction that ran dry.
        instruction: Instruction,
        /// Attempts made for the value that never came.
        attempts: u32,
        /// Time waited for it after the attempts of the limit; `None` for a limit in attempts
        /// alone.
        waited: Option<Duration>,
        /// Elements delivered before it; they are good.
        written: usize,
    },
    /// The start-up self-test failed: the source was never used.
    SelfTest {
        /// The instruction that was tested.
        instruction: Instruction,
        /// The test that failed, with what it found.
        failure: HealthFailure,
        /// The published defect of this processor that fits the failure; `None` if there is none.
        known: Option<KnownIssue>,
    },
    /// A continuous health test failed. The destination of the call was zeroed, nothing
    /// in it counts, and the generator refuses to work until it is started anew.
    Health {
        /// The instruction that failed.
        instruction: Instruction,
        /// The test that failed, with what it found.
        failure: HealthFailure,
    },
    /// An AES key or nonce has a length that AES-CTR here does not take.
    KeyLength {
        /// Bytes of the key.
        key: usize,
        /// Bytes of the nonce.
        nonce: usize,
    },
    /// AES-CTR was asked to work without any key.
    NoKey,
    /// Source and destination of an encryption differ in length.
    Length {
        /// Bytes to be encrypted.
        source: usize,
        /// Bytes of room.
        destination: usize,
    },
    /// A key has encrypted as much as it may; set a new one.
    KeyExhausted,
}

impl Error {
    /// Returns the number of elements at the start of the destination that hold good random
    /// numbers.
    #[must_use]
    pub fn written(&self) -> usize {
        match self {
            Error::Underflow { written, .. } => *written,
            _ => 0,
        }
    }

    /// Returns this error with another count of written elements.
    #[must_use]
    pub(crate) fn with_written(self, elements: usize) -> Self {
        match self {
            Error::Underflow {
                instruction,
                attempts,
                waited,
                ..
            } => Error::Underflow {
                instruction,
                attempts,
                waited,
                written: elements,
            },
            other => other,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Unsupported { instruction } => write!(
                f,
                "this processor has no {instruction}, or firmware or hypervisor hides it{}; use the \
                 operating system's generator (getrandom) instead",
                match instruction {
                    Instruction::Rdseed => ", or TARE_RDSEED=off is set",
                    Instruction::Rdrand => "",
                }
            ),
            Error::Underflow {
                instruction,
                attempts,
                waited,
                written,
            } => {
                write!(f, "{instruction} gave no number in {attempts} attempts")?;
                if let Some(waited) = waited {
                    write!(f, " and {} ms", waited.as_millis())?;
                }
                write!(
                    f,
                    ", after {written} elements; raise the retry limit, draw with fewer threads, \
                     or try again when other programs draw less"
                )
            }
            Error::SelfTest {
                instruction,
                failure,
                known,
            } => {
                write!(
                    f,
                    "{instruction} failed its start-up self-test: {failure}; do not use it"
                )?;
                match known {
                    Some(issue) => write!(f, " ({issue})"),
                    None => Ok(()),
                }
            }
            Error::Health {
                instruction,
                failure,
            } => write!(
                f,
                "{instruction} failed a continuous health test: {failure}; nothing was delivered, \
                 start the generator anew to test it again"
            ),
            Error::KeyLength { key, nonce } => write!(
                f,
                "a key of {key} bytes with a nonce of {nonce} does not fit AES-CTR: \
                 keys have 16, 24 or 32 bytes, nonces half of that"
            ),
            Error::NoKey => f.write_str("no AES key is set; set keys or a random key first"),
            Error::Length {
                source,
                destination,
            } => write!(
                f,
                "{source} bytes cannot be encrypted into {destination}; both must be of one length"
            ),
            Error::KeyExhausted => {
                f.write_str("every AES key has encrypted all it may; set new keys")
            }
        }
    }
}

impl core::error::Error for Error {}
