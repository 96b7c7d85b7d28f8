//! Ethernet II.

/// Bytes of a header: destination, source, type.
pub const HEADER: usize = 14;

/// Bytes that a frame takes on the wire on top of those handed to a port: preamble 7, start 1,
/// checksum 4, gap 12.
pub const OVERHEAD: usize = 24;

/// The shortest frame without its checksum.
pub const MIN: usize = 60;

/// A station's address.
pub type Mac = [u8; 6];

/// Everybody.
pub const BROADCAST: Mac = [0xff; 6];

/// EtherType of IPv4.
pub const IPV4: u16 = 0x0800;
/// EtherType of ARP.
pub const ARP: u16 = 0x0806;
/// EtherType of IPv6.
pub const IPV6: u16 = 0x86dd;

/// A header's 14 bytes.
#[inline]
pub fn header(destination: Mac, source: Mac, kind: u16) -> [u8; HEADER] {
    let mut header = [0; HEADER];
    header[..6].copy_from_slice(&destination);
    header[6..12].copy_from_slice(&source);
    header[12..].copy_from_slice(&kind.to_be_bytes());
    header
}

/// The type of a frame; none where it is shorter than a header.
#[inline]
pub fn kind(frame: &[u8]) -> Option<u16> {
    let bytes = frame.get(12..14)?;
    Some(u16::from_be_bytes([bytes[0], bytes[1]]))
}
