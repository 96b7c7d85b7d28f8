#![doc = include_str!("../README.md")]
#![cfg_attr(not(feature = "std"), no_std)]

extern crate alloc;

#[cfg(feature = "aead")]
pub mod aead;
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
mod place;
mod portable;
mod run;
#[allow(dead_code, reason = "used where `native` has kernels")]
mod schedule;
mod stream;
mod tag;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(feature = "comparison")]
mod twice;
mod wipe;
// The code for this processor: a folder for each family, one line each. Targets of kernels and
// firmware do without vector registers, and so have the portable path.
#[cfg_attr(
    all(target_arch = "x86_64", target_feature = "sse2", not(miri)),
    path = "x86/mod.rs"
)]
#[cfg_attr(
    all(
        target_arch = "aarch64",
        target_feature = "neon",
        target_endian = "little",
        not(miri)
    ),
    path = "aarch64/mod.rs"
)]
mod native;

pub use batch::{open_batch, open_each, seal_batch, seal_each, OpenPacket, SealPacket};
pub use context::{NonceScheme, SealingContext};
pub use error::Error;
pub use key::Key;
pub use memory::{SharedRead, SharedWrite};
pub use path::Path;
pub use run::{open_keyed, open_run, seal_keyed, seal_run, RunPacket, ShortAad};
pub use tag::{Nonce, Tag};

/// The most bytes that one nonce may seal: 2³⁶ − 32 (NIST SP 800-38D, section 5.2.1.1).
pub const MESSAGE_LEN_MAX: u64 = (1 << 36) - 32;

/// The most bytes of additional data: 2⁶¹ − 1 (NIST SP 800-38D, section 5.2.1.1).
pub const AAD_LEN_MAX: u64 = (1 << 61) - 1;
