//! ESP in tunnel mode with AES-GCM (RFC 4303, RFC 4106): where the bytes stand.
//!
//! ```text
//! Ethernet 14 | outer IPv4 20 or IPv6 40 | SPI 4, sequence 4 | IV 8 | inner packet, padding, pad length, next header | ICV 16
//! ```

use super::sequence::SequenceMode;

pub use tare_packet::esp::{inner_max, padding, HEADER, ICV, TRAILER};
pub use tare_packet::protocol::{
    ESP as PROTOCOL, IPV4 as INNER_IPV4, IPV6 as INNER_IPV6, NO_NEXT_HEADER as DUMMY,
};

/// The first bytes of the payload of a dummy that is for the control side of a Tare gateway. It is
/// not an IP packet's.
pub(crate) const DUMMY_MAGIC: [u8; 8] = *b"\0TareMTU";

/// The EtherType of frames of the control side that are to be sent as dummies, by the route whose
/// number is in their first four bytes. One for experiments within a station (IEEE 802, 9.2.3).
pub(crate) const DUMMY_KIND: u16 = 0x88b5;

/// Writes padding, pad length and next header to the start of what is behind an inner packet: these
/// and the ICV.
///
/// RFC 4303, 2.4: "the first padding byte appended to the plaintext is numbered 1, with subsequent
/// padding bytes making up a monotonically increasing sequence".
#[inline]
pub(crate) fn write_trailer(behind: &mut [u8], padding: usize, next_header: u8) -> Option<()> {
    /// By how many bytes there are.
    const PADDING: [u64; 4] = [0, 1 + (1 << 8), 1 + (2 << 8) + (2 << 16), 0x0303_0201];
    let trailer = PADDING[padding & 3] | u64::from(next_header) << (8 * (padding & 3) + 8);
    // Up to six bytes; what is written over of the ICV comes later.
    *behind.first_chunk_mut()? = trailer.to_le_bytes();
    Some(())
}

/// Returns true if what is behind the first `len` bytes of a payload is 1, 2, 3, …: RFC 4303, 2.4,
/// "the receiver SHOULD inspect the Padding field".
#[inline]
pub(crate) fn is_padding(payload: &[u8], len: usize) -> bool {
    /// The last bytes of a payload with so much padding, and which of them are padding.
    const WANTED: [u32; 4] = [0, 1, 0x0102, 0x01_0203];
    const PADDING: [u32; 4] = [0, 0xff, 0xffff, 0xff_ffff];
    let padding = payload.len().saturating_sub(len);
    match payload.last_chunk() {
        // Without a loop, whose end would be hard to predict among packets of all lengths.
        Some(end) if padding < 4 => u32::from_be_bytes(*end) & PADDING[padding] == WANTED[padding],
        _ => (1..=u8::MAX)
            .zip(payload.iter().skip(len))
            .all(|(n, &byte)| byte == n),
    }
}

/// Returns the bytes in front of the trailer of a payload, if the next header is `next_header` and
/// the trailer is as [`write_trailer`] writes it, with up to three bytes of padding. `None` for any
/// other, which may be right nevertheless: see [`is_padding`].
#[inline]
pub(crate) fn len_before_trailer(payload: &[u8], next_header: u8) -> Option<usize> {
    /// By the pad length, the last bytes of a payload with a next header of 0, and which of them
    /// are of the trailer.
    const WANTED: [u64; 4] = [0, 0x01_0100, 0x0102_0200, 0x01_0203_0300];
    const TRAILER_OF: [u64; 4] = [0xffff, 0xff_ffff, 0xffff_ffff, 0xff_ffff_ffff];
    let end = u64::from_be_bytes(*payload.last_chunk()?) ^ u64::from(next_header);
    let padding = (end >> 8 & 0xff) as usize;
    let is_right = end & TRAILER_OF.get(padding)? == *WANTED.get(padding)?;
    is_right.then(|| payload.len() - padding - TRAILER)
}

/// The additional authenticated data: SPI and sequence number (RFC 4106, 5), the latter in
/// full where it is extended.
#[derive(Clone, Copy, Default)]
pub(crate) struct Aad {
    bytes: [u8; 12],
}

impl Aad {
    #[inline]
    pub(crate) fn set(&mut self, spi: u32, sequence: u64, sequence_mode: SequenceMode) {
        self.bytes[..4].copy_from_slice(&spi.to_be_bytes());
        match sequence_mode {
            SequenceMode::Extended => {
                self.bytes[4..].copy_from_slice(&sequence.to_be_bytes());
            }
            SequenceMode::Plain => {
                self.bytes[4..8].copy_from_slice(&(sequence as u32).to_be_bytes());
            }
        }
    }

    /// Returns the bytes, where they were set for this width.
    #[inline]
    pub(crate) fn as_slice(&self, sequence_mode: SequenceMode) -> &[u8] {
        match sequence_mode {
            SequenceMode::Extended => &self.bytes,
            SequenceMode::Plain => &self.bytes[..8],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn padding_counts_up_and_then_come_its_length_and_the_next_header() {
        for (padding, written) in [
            (0, [0, 41].as_slice()),
            (1, &[1, 1, 41]),
            (2, &[1, 2, 2, 41]),
            (3, &[1, 2, 3, 3, 41]),
        ] {
            let mut behind = [0xee; ICV + 8];
            write_trailer(&mut behind, padding, INNER_IPV6).unwrap();
            assert_eq!(&behind[..padding + TRAILER], written);
        }
        assert!(write_trailer(&mut [0; 7], 0, DUMMY).is_none());
    }

    #[test]
    fn a_trailer_that_is_read_at_once_is_one_that_was_written_and_no_other() {
        for inner in [4, 20, 47] {
            for padding in 0..=3 {
                let mut payload = vec![0xee; inner + padding + TRAILER + ICV];
                write_trailer(&mut payload[inner..], padding, INNER_IPV4).unwrap();
                payload.truncate(inner + padding + TRAILER);
                let wanted = (payload.len() >= 8).then_some(inner);
                assert_eq!(len_before_trailer(&payload, INNER_IPV4), wanted);
                assert_eq!(len_before_trailer(&payload, INNER_IPV6), None);
                for at in inner..payload.len() {
                    for bit in 0..8 {
                        payload[at] ^= 1 << bit;
                        // Less padding than there seemed to be is right as well.
                        let found = len_before_trailer(&payload, INNER_IPV4);
                        let len = found.unwrap_or_default();
                        assert!(found.is_none() || is_padding(&payload[..payload.len() - 2], len));
                        assert_ne!(found, Some(inner), "bit {bit} of byte {at}");
                        payload[at] ^= 1 << bit;
                    }
                }
            }
        }
        assert_eq!(len_before_trailer(&[INNER_IPV4; 7], INNER_IPV4), None);
    }

    #[test]
    fn padding_of_any_length_is_checked_in_every_byte() {
        for len in [0, 1, 2, 3, 4, 20, 61] {
            for padding in 0..=255_u8 {
                let mut payload = vec![0xee; len];
                payload.extend(1..=padding);
                assert!(is_padding(&payload, len), "{padding} behind {len}");
                for at in len..payload.len() {
                    payload[at] ^= 0x80;
                    assert!(!is_padding(&payload, len), "{at} of {padding}");
                    payload[at] ^= 0x80;
                }
            }
        }
    }

    #[test]
    fn the_longest_inner_packet_fits_and_one_more_byte_does_not() {
        for mtu in 100..2000 {
            for outer in [20, 40] {
                let whole = |inner: usize| outer + HEADER + inner + padding(inner) + TRAILER + ICV;
                let inner = inner_max(mtu, outer);
                assert!(whole(inner) <= mtu, "{mtu} {outer}");
                assert!(whole(inner + 1) > mtu, "{mtu} {outer}");
            }
        }
    }

    #[test]
    fn a_frame_of_60_bytes_becomes_one_of_114() {
        let inner = 60 - 14;
        assert_eq!(
            14 + 20 + HEADER + inner + padding(inner) + TRAILER + ICV,
            114
        );
    }
}
