//! AES-GCM for data in memory that somebody else may be writing to.

mod error;
mod key;
mod memory;
mod once;
mod path;
mod portable;
mod stream;
mod tag;
#[cfg(target_arch = "x86_64")]
mod x86;

pub use error::Error;
pub use key::Key;
pub use memory::{SharedRead, SharedWrite};
pub use path::Path;
pub use tag::{Nonce, Tag};

/// The most bytes that one nonce may seal: 2³⁶ − 32 (NIST SP 800-38D, section 5.2.1.1).
pub const MESSAGE_LEN_MAX: u64 = (1 << 36) - 32;

/// The most bytes of additional data: 2⁶¹ − 1 (NIST SP 800-38D, section 5.2.1.1).
pub const AAD_LEN_MAX: u64 = (1 << 61) - 1;
