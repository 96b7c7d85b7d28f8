//! UDP (RFC 768).

/// Bytes of a header: ports, length, checksum. That of an ICMP message is as long.
pub const HEADER: usize = 8;

/// The port of the discard service (RFC 863).
pub const DISCARD: u16 = 9;

/// The port of the gateway's key exchange, which is Vita's: not assigned by IANA.
pub const KEY_EXCHANGE: u16 = 303;

/// The first of the dynamic ports, which are free for any use (RFC 6335, section 6).
pub const DYNAMIC_FIRST: u16 = 49152;
