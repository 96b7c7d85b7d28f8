//! Ethernet II.

/// Bytes of a header: destination, source, type.
pub const HEADER: usize = 14;

/// Bytes that a frame takes on the wire on top of those handed to a port (IEEE 802.3, 3.1.1 and
/// 4.4.2): preamble 7, start 1, checksum 4, gap 12.
pub const OVERHEAD: usize = 24;

/// Bytes of the shortest frame without its checksum; a shorter one is padded (IEEE 802.3, 4.2.3.3).
pub const MIN: usize = 60;

/// The address of a station.
pub type Mac = [u8; 6];

/// The broadcast address.
pub const BROADCAST: Mac = [0xff; 6];

/// EtherType of IPv4.
pub const IPV4: u16 = 0x0800;
/// EtherType of ARP.
pub const ARP: u16 = 0x0806;
/// EtherType of IPv6.
pub const IPV6: u16 = 0x86dd;
/// EtherType of a VLAN tag (IEEE 802.1Q).
pub const VLAN: u16 = 0x8100;
/// EtherType of a service provider's VLAN tag (IEEE 802.1ad).
pub const SERVICE_VLAN: u16 = 0x88a8;
/// Bytes of a VLAN tag.
pub const VLAN_TAG: usize = 4;

/// Returns the bytes that a frame of `length` bytes, without its checksum, takes on the wire:
/// padded to [`MIN`], with [`OVERHEAD`].
#[inline]
pub const fn on_wire(length: usize) -> usize {
    (if length < MIN { MIN } else { length }) + OVERHEAD
}

/// Returns the bytes of a header.
#[inline]
pub fn header(destination: Mac, source: Mac, kind: u16) -> [u8; HEADER] {
    let mut header = [0; HEADER];
    header[..6].copy_from_slice(&destination);
    header[6..12].copy_from_slice(&source);
    header[12..].copy_from_slice(&kind.to_be_bytes());
    header
}

/// Returns the EtherType of a frame; `None` if it is shorter than a header.
#[inline]
pub fn kind(frame: &[u8]) -> Option<u16> {
    let bytes = frame.get(12..14)?;
    Some(u16::from_be_bytes([bytes[0], bytes[1]]))
}
