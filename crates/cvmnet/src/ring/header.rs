//! The header of the network device in front of each frame (virtio 1.2, 5.1.6).

/// Bytes of the header.
pub const NET_HEADER: usize = 12;

const NEEDS_CSUM: u8 = 1;
const DATA_VALID: u8 = 2;
const GSO_TCPV4: u8 = 1;
const GSO_TCPV6: u8 = 4;
const GSO_ECN: u8 = 0x80;

/// The state of a transport checksum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Checksum {
    /// Not looked at by the device.
    #[default]
    Unverified,
    /// Verified by the device (`DATA_VALID`).
    Verified,
    /// Not computed: the bytes from `start` on are to be summed, and the checksum is at `offset`
    /// behind `start`, where the sum of the pseudo-header is (`NEEDS_CSUM`).
    Partial {
        /// The first byte that it covers, from the start of the frame (`csum_start`).
        start: u16,
        /// The place of the checksum behind that (`csum_offset`).
        offset: u16,
    },
}

/// The protocol by which a large frame is cut into segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// TCP over IPv4.
    Tcp4,
    /// TCP over IPv6.
    Tcp6,
}

/// A large frame: one that stands for several segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segments {
    /// The protocol.
    pub protocol: Protocol,
    /// Payload of each segment but the last, in bytes (`gso_size`), not 0.
    pub bytes: u16,
    /// Bytes of all headers (`hdr_len`): a hint.
    pub header_bytes: u16,
}

/// A header whose fields are valid for its frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NetHeader {
    /// The transport checksum.
    pub checksum: Checksum,
    /// The segments; `None` if the frame is one.
    pub segments: Option<Segments>,
}

/// The reason why a header is not valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HeaderError {
    /// A frame shorter than an Ethernet header.
    Short,
    /// A kind of segments that was not negotiated.
    Kind(u8),
    /// Segments without payload, or longer than the frame.
    SegmentBytes(u16),
    /// Headers longer than the frame.
    HeaderBytes(u16),
    /// A checksum outside of the frame.
    ChecksumRange,
    /// A frame in several buffers, which was not negotiated.
    BufferCount(u16),
}

impl NetHeader {
    /// Reads the header of a received frame of `frame` bytes. The bytes are a private copy: the
    /// host cannot change them after they are checked.
    ///
    /// # Errors
    /// A field is not valid for such a frame.
    pub fn parse(bytes: &[u8; NET_HEADER], frame: usize) -> Result<NetHeader, HeaderError> {
        let field = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let (flags, kind) = (bytes[0], bytes[1]);
        let (header_bytes, segment_bytes) = (field(2), field(4));
        let (start, offset, buffers) = (field(6), field(8), field(10));
        if frame < tare_packet::ethernet::HEADER {
            return Err(HeaderError::Short);
        }
        if buffers != 1 {
            return Err(HeaderError::BufferCount(buffers));
        }
        let checksum = if flags & NEEDS_CSUM != 0 {
            let end = usize::from(start) + usize::from(offset) + 2;
            if end > frame {
                return Err(HeaderError::ChecksumRange);
            }
            Checksum::Partial { start, offset }
        } else if flags & DATA_VALID != 0 {
            Checksum::Verified
        } else {
            Checksum::Unverified
        };
        let protocol = match kind & !GSO_ECN {
            0 if kind == 0 => None,
            GSO_TCPV4 => Some(Protocol::Tcp4),
            GSO_TCPV6 => Some(Protocol::Tcp6),
            _ => return Err(HeaderError::Kind(kind)),
        };
        let segments = match protocol {
            None => None,
            Some(_) if segment_bytes == 0 || usize::from(segment_bytes) > frame => {
                return Err(HeaderError::SegmentBytes(segment_bytes));
            }
            Some(_) if usize::from(header_bytes) > frame => {
                return Err(HeaderError::HeaderBytes(header_bytes));
            }
            Some(protocol) => Some(Segments {
                protocol,
                bytes: segment_bytes,
                header_bytes,
            }),
        };
        Ok(NetHeader { checksum, segments })
    }

    /// Returns the bytes of the header.
    pub fn to_bytes(&self) -> [u8; NET_HEADER] {
        let (flags, start, offset) = match self.checksum {
            Checksum::Unverified => (0, 0, 0),
            Checksum::Verified => (DATA_VALID, 0, 0),
            Checksum::Partial { start, offset } => (NEEDS_CSUM, start, offset),
        };
        let (kind, header_bytes, bytes) = match self.segments {
            None => (0, 0, 0),
            Some(segments) => {
                let kind = match segments.protocol {
                    Protocol::Tcp4 => GSO_TCPV4,
                    Protocol::Tcp6 => GSO_TCPV6,
                };
                (kind, segments.header_bytes, segments.bytes)
            }
        };
        let mut to = [0; NET_HEADER];
        (to[0], to[1]) = (flags, kind);
        for (at, field) in [
            (2, header_bytes),
            (4, bytes),
            (6, start),
            (8, offset),
            (10, 1),
        ] {
            to[at..at + 2].copy_from_slice(&u16::to_le_bytes(field));
        }
        to
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bytes(flags: u8, kind: u8, fields: [u16; 5]) -> [u8; NET_HEADER] {
        let mut to = [0; NET_HEADER];
        (to[0], to[1]) = (flags, kind);
        for (n, field) in fields.into_iter().enumerate() {
            to[2 + 2 * n..4 + 2 * n].copy_from_slice(&field.to_le_bytes());
        }
        to
    }

    #[test]
    fn every_fault_of_a_header_has_its_reason() {
        let cases = [
            (bytes(0, 0, [0, 0, 0, 0, 1]), 13, HeaderError::Short),
            (bytes(0, 3, [0, 9, 0, 0, 1]), 60, HeaderError::Kind(3)),
            (bytes(0, 0x80, [0, 9, 0, 0, 1]), 60, HeaderError::Kind(0x80)),
            (
                bytes(0, 1, [0, 0, 0, 0, 1]),
                60,
                HeaderError::SegmentBytes(0),
            ),
            (
                bytes(0, 4, [0, 61, 0, 0, 1]),
                60,
                HeaderError::SegmentBytes(61),
            ),
            (
                bytes(0, 4, [61, 60, 0, 0, 1]),
                60,
                HeaderError::HeaderBytes(61),
            ),
            (
                bytes(1, 0, [0, 0, 43, 16, 1]),
                60,
                HeaderError::ChecksumRange,
            ),
            (
                bytes(1, 0, [0, 0, 0xffff, 0xffff, 1]),
                60,
                HeaderError::ChecksumRange,
            ),
            (
                bytes(0, 0, [0, 0, 0, 0, 0]),
                60,
                HeaderError::BufferCount(0),
            ),
            (
                bytes(0, 0, [0, 0, 0, 0, 2]),
                60,
                HeaderError::BufferCount(2),
            ),
        ];
        for (header, frame, expected) in cases {
            assert_eq!(
                NetHeader::parse(&header, frame),
                Err(expected),
                "{header:x?}"
            );
        }
    }

    #[test]
    fn fields_are_where_virtio_has_them() {
        let header = NetHeader {
            checksum: Checksum::Partial {
                start: 0x0102,
                offset: 0x0304,
            },
            segments: Some(Segments {
                protocol: Protocol::Tcp6,
                bytes: 0x0506,
                header_bytes: 0x0708,
            }),
        };
        let expected = [1, 4, 8, 7, 6, 5, 2, 1, 4, 3, 1, 0];
        assert_eq!(header.to_bytes(), expected);
        // With the bit for congestion notification, which a device may add.
        let mut marked = expected;
        marked[1] |= 0x80;
        assert_eq!(NetHeader::parse(&marked, 0x2000), Ok(header));
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_again(
            checksum in prop_oneof![
                Just(Checksum::Unverified),
                Just(Checksum::Verified),
                (0u16..900, 0u16..98).prop_map(|(start, offset)| Checksum::Partial { start, offset }),
            ],
            segments in proptest::option::of((any::<bool>(), 1u16..1000, 0u16..1000)),
        ) {
            let segments = segments.map(|(four, bytes, header_bytes)| Segments {
                protocol: if four { Protocol::Tcp4 } else { Protocol::Tcp6 },
                bytes,
                header_bytes,
            });
            let header = NetHeader { checksum, segments };
            prop_assert_eq!(NetHeader::parse(&header.to_bytes(), 1000), Ok(header));
        }

        #[test]
        fn any_bytes_are_read_without_a_panic(bytes: [u8; NET_HEADER], frame in 0usize..70_000) {
            if let Ok(header) = NetHeader::parse(&bytes, frame) {
                if let Checksum::Partial { start, offset } = header.checksum {
                    prop_assert!(usize::from(start) + usize::from(offset) + 2 <= frame);
                }
            }
        }
    }
}
