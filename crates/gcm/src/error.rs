//! Errors, each with what to do about it.

use core::fmt;

/// The reason that a call did not seal or open a message.
///
/// No error depends on secrets but [`Error::Forged`], which shows only that the tag did not match,
/// never where.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// The tag does not belong to this ciphertext, nonce, additional data and key. The output
    /// that was written before the tag could be checked has been wiped.
    Forged,
    /// A key of another length than 16 or 32 bytes.
    KeyLength {
        /// The length given, in bytes.
        found: usize,
    },
    /// A nonce of another length than 12 bytes.
    NonceLength {
        /// The length given, in bytes.
        found: usize,
    },
    /// A tag of another length than 16 bytes.
    TagLength {
        /// The length given, in bytes.
        found: usize,
    },
    /// Input and output hold different numbers of bytes.
    LengthMismatch {
        /// Bytes of input.
        input: usize,
        /// Bytes of output.
        output: usize,
    },
    /// Source and destination of more than 64 bytes overlap and are not the same. (A shorter
    /// message is worked on as if its source were a copy.)
    Overlap,
    /// More than 2³⁶ − 32 bytes of plaintext under one nonce (NIST SP 800-38D, section 5.2.1.1).
    MessageTooLong {
        /// The length given, in bytes.
        found: u64,
    },
    /// More than 2⁶¹ − 1 bytes of additional data (NIST SP 800-38D, section 5.2.1.1).
    AadTooLong {
        /// The length given, in bytes.
        found: u64,
    },
    /// A sealing context has used its last nonce: a new key is needed.
    NoncesExhausted,
    /// This processor lacks the instructions of the path.
    PathUnavailable {
        /// The path asked for.
        path: crate::Path,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Error::Forged => f.write_str(
                "the tag does not match: the message was altered or sealed under another key, nonce or \
                 additional data; the output has been wiped",
            ),
            Error::KeyLength { found: 24 } => f.write_str(
                "the key has 24 bytes: AES-192 is not supported; AES-GCM here takes 16 (AES-128) or 32 (AES-256)",
            ),
            Error::KeyLength { found } => {
                write!(f, "the key has {found} bytes; AES-GCM here takes 16 (AES-128) or 32 (AES-256)")
            }
            Error::NonceLength { found } => write!(f, "the nonce has {found} bytes; it must have 12"),
            Error::TagLength { found } => write!(f, "the tag has {found} bytes; it must have 16"),
            Error::LengthMismatch { input, output } => write!(
                f,
                "the input has {input} bytes and the output {output}; they must be equal (the tag is apart)"
            ),
            Error::Overlap => f.write_str(
                "source and destination overlap in part; expected separate memory, or the same bytes by the \
                 calls in place",
            ),
            Error::MessageTooLong { found } => write!(
                f,
                "the message has {found} bytes; AES-GCM allows {} under one nonce",
                crate::MESSAGE_LEN_MAX
            ),
            Error::AadTooLong { found } => write!(
                f,
                "the additional data has {found} bytes; AES-GCM allows {}",
                crate::AAD_LEN_MAX
            ),
            Error::NoncesExhausted => {
                f.write_str("this sealing context has used its last nonce; continue with a new key")
            }
            Error::PathUnavailable { path } => write!(
                f,
                "this processor cannot run the {path} path; Path::available() lists those that it can"
            ),
        }
    }
}

impl core::error::Error for Error {}
