//! AES-GCM for data in memory that somebody else may be writing to at the same moment.
//!
//! A guest shares memory with a host that it does not trust; a process shares a ring with another.
//! Whoever opens a message there with an ordinary library has it authenticated and then decrypted,
//! from memory, twice: what is decrypted need not be what was authenticated. Copying the message to
//! private memory first is safe, and costs a pass over it. This crate needs no copy.
//!
//! # Contract
//! - **Open** ([`Key::open`]): every byte of ciphertext is loaded from its source **once**, and the
//!   same register value feeds the hash and the cipher. Plaintext goes to private memory only, a
//!   `&mut [u8]`; when the tag does not match it is wiped, and the call returns [`Error::Forged`].
//!   A tag in shared memory is loaded once too, by [`Tag::load`].
//! - **Seal** ([`Key::seal`]): plaintext is private; every byte of output is stored **once**,
//!   final; the hash is made of registers, never of what was stored. No plaintext, no keystream and
//!   nothing unauthenticated is ever in the output.
//! - Additional data and nonces are private memory: copy them first.
//! - Time and memory accesses do not depend on keys or data, only on lengths (and on whether the
//!   tag matched).
//! - What is private stays on this side: registers, stack and the heap of the key. Keys are wiped
//!   on drop. Registers and spilled registers are not: no stable Rust can promise that.
//!
//! The tests hold the crate to this on every path: `tests/once.rs` counts, by the processor's own
//! debug registers, how often each byte is accessed, and reads the machine code; `tests/race.rs`
//! lets a hostile thread write meanwhile, and shows that the same test catches an implementation
//! that reads twice.
//!
//! # Types
//! [`SharedRead`] and [`SharedWrite`] are views of memory that never become slices. Private memory
//! is a special case of both, so each call also works from private to private memory; `…_in_place`
//! works on one buffer, `…_scattered` on lists of pieces, [`seal_each`], [`open_each`],
//! [`seal_batch`] and [`open_batch`] on many small packets at once. [`SealingContext`] gives out
//! nonces, so that none is used twice.
//!
//! ```
//! use tare_gcm::{Key, NonceScheme, SealingContext, SharedRead, SharedWrite};
//!
//! let (mut shared, mut private) = ([0u8; 5], [0u8; 5]);
//! let scheme = NonceScheme::Salt([1, 2, 3, 4]);
//! let mut sealing = SealingContext::new(Key::new(&[7; 16])?, scheme, 1, u64::MAX);
//! let (sequence, tag) = sealing.seal(|n| n.to_be_bytes(), b"hello", SharedWrite::from(&mut shared[..]))?;
//!
//! let key = Key::new(&[7; 16])?;
//! let ciphertext = SharedRead::from(&shared[..]);
//! key.open(&scheme.nonce(sequence), &sequence.to_be_bytes(), ciphertext, &tag, &mut private)?;
//! assert_eq!(&private, b"hello");
//! # Ok::<(), tare_gcm::Error>(())
//! ```
//!
//! # Paths
//! A [`Path`] is one implementation; [`Path::best`] is chosen once. All do the same, tested by the
//! same tests.

mod batch;
mod columns;
mod context;
mod error;
#[allow(dead_code, reason = "used where `native` has kernels")]
mod kernel;
mod key;
mod memory;
mod once;
mod path;
mod portable;
#[allow(dead_code, reason = "used where `native` has kernels")]
mod schedule;
mod stream;
mod tag;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
// The code for this processor: a folder for each family, one line each.
#[cfg_attr(all(target_arch = "x86_64", not(miri)), path = "x86/mod.rs")]
mod native;

pub use batch::{open_batch, open_each, seal_batch, seal_each, OpenPacket, SealPacket};
pub use context::{NonceScheme, SealingContext};
pub use error::Error;
pub use key::Key;
pub use memory::{SharedRead, SharedWrite};
pub use path::Path;
pub use tag::{Nonce, Tag};

/// The most bytes that one nonce may seal: 2³⁶ − 32 (NIST SP 800-38D, section 5.2.1.1).
pub const MESSAGE_LEN_MAX: u64 = (1 << 36) - 32;

/// The most bytes of additional data: 2⁶¹ − 1 (NIST SP 800-38D, section 5.2.1.1).
pub const AAD_LEN_MAX: u64 = (1 << 61) - 1;
