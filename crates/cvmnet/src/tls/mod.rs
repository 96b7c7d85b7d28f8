//! TLS 1.3 between memory that the host may write to and memory that it may not.
//!
//! rustls makes the handshake, on copies in private memory, and hands over its secrets; records are
//! then opened from shared into private memory and sealed from private into shared memory by
//! `tare-gcm`, which accesses each shared byte once. A record may lie in any number of pieces.
//!
//! [`Session`] has no I/O. Its user reads a record's header into private memory
//! ([`Header::parse`]), waits until all of the record is there, and hands it to
//! [`Session::handshake`] (a copy) as long as [`Session::is_handshaking`], then to [`Session::open`]
//! (in pieces, where they lie). What a session wants sent beside the data is in
//! [`Session::take_outgoing`]: handshake messages, key updates, alerts.

mod config;
mod error;
mod handshake;
mod header;
mod messages;
mod records;
mod session;

pub use config::{self_signed_pem, Client, ConfigError, Identity, Options, Server, Suites};
pub use error::{Alert, Error};
pub use header::{ContentType, Header};
pub use records::{Piece, Reading, Room};
pub use session::{Content, Session};

/// The most bytes of data in one record (RFC 8446, section 5.1).
pub const DATA_MAX: usize = 1 << 14;
/// The bytes that a record has beside its data: header, content type and tag.
pub const OVERHEAD: usize = Header::LEN + 1 + tare_gcm::Tag::LEN;
/// The most bytes of a record after its header, while it is encrypted (RFC 8446, section 5.2).
pub const BODY_MAX: usize = DATA_MAX + 256;
