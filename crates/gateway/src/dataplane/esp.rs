//! ESP in tunnel mode with AES-GCM (RFC 4303, RFC 4106): where the bytes stand.
//!
//! ```text
//! Ethernet 14 | outer IPv4 20 or IPv6 40 | SPI 4, sequence 4 | IV 8 | inner packet, padding, pad length, next header | ICV 16
//! ```

use super::sequence::SequenceMode;
use tare_gcm::ShortAad;

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
#[inline]
pub(crate) fn write_trailer(behind: &mut [u8], padding: usize, next_header: u8) -> Option<()> {
    // Up to six bytes; what is written over of the ICV comes later.
    *behind.first_chunk_mut()? = trailer(padding, next_header).to_le_bytes();
    Some(())
}

/// [`write_trailer`] for the next header IPv4.
#[inline(always)]
pub(crate) fn write_trailer4(behind: &mut [u8], padding: usize) -> Option<()> {
    const TRAILERS: [u64; 4] = [
        trailer(0, INNER_IPV4),
        trailer(1, INNER_IPV4),
        trailer(2, INNER_IPV4),
        trailer(3, INNER_IPV4),
    ];
    *behind.first_chunk_mut()? = TRAILERS[padding & 3].to_le_bytes();
    Some(())
}

/// Returns padding of up to three bytes, pad length and next header as a little-endian word.
///
/// RFC 4303, 2.4: "the first padding byte appended to the plaintext is numbered 1, with subsequent
/// padding bytes making up a monotonically increasing sequence".
#[inline(always)]
const fn trailer(padding: usize, next_header: u8) -> u64 {
    /// By how many bytes there are.
    const PADDING: [u64; 4] = [0, 1 + (1 << 8), 1 + (2 << 8) + (2 << 16), 0x0303_0201];
    PADDING[padding & 3] | (next_header as u64) << (8 * (padding & 3) + 8)
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

/// Returns true if behind the first `len` bytes of a payload there is what [`write_trailer`] writes
/// for the next header IPv4, and nothing else. Another trailer may be right nevertheless: see
/// [`is_padding`].
#[inline(always)]
pub(crate) fn is_trailer4(payload: &[u8], len: usize) -> bool {
    /// By the bytes of padding, the last bytes of such a payload, and which of them are the
    /// trailer.
    const ENDS: [[u64; 2]; 4] = [end(0), end(1), end(2), end(3)];
    const fn end(padding: usize) -> [u64; 2] {
        let trailer = trailer(padding, INNER_IPV4);
        let others = 48 - 8 * padding;
        [trailer << others, u64::MAX << others]
    }
    let padding = payload.len().wrapping_sub(len + TRAILER);
    match (payload.last_chunk(), ENDS.get(padding)) {
        (Some(last), Some([end, mask])) => (u64::from_le_bytes(*last) ^ end) & mask == 0,
        _ => false,
    }
}

/// Returns the additional authenticated data: SPI and sequence number (RFC 4106, 5), the latter in
/// full where it is extended.
#[inline(always)]
pub(crate) fn aad(spi: u32, sequence: u64, sequence_mode: SequenceMode) -> ShortAad {
    match sequence_mode {
        SequenceMode::Extended => ShortAad::long(spi, sequence),
        SequenceMode::Plain => ShortAad::short(spi, sequence as u32),
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
    fn a_trailer_that_is_compared_at_once_is_one_that_was_written_and_no_other() {
        for inner in [4, 20, 47] {
            for padding in 0..=3 {
                let mut payload = vec![0xee; inner + padding + TRAILER + ICV];
                write_trailer(&mut payload[inner..], padding, INNER_IPV4).unwrap();
                let written = payload.clone();
                write_trailer4(&mut payload[inner..], padding).unwrap();
                assert_eq!(payload, written);
                payload.truncate(inner + padding + TRAILER);
                let is_long = payload.len() >= 8;
                for len in 0..payload.len() + 4 {
                    let found = is_trailer4(&payload, len);
                    assert_eq!(
                        found,
                        is_long && len == inner,
                        "{len} of {inner}, {padding}"
                    );
                }
                for at in inner..payload.len() {
                    for bit in 0..8 {
                        payload[at] ^= 1 << bit;
                        assert!(!is_trailer4(&payload, inner), "bit {bit} of byte {at}");
                        payload[at] ^= 1 << bit;
                    }
                }
            }
        }
        assert!(!is_trailer4(&[0, 0, 0, 0, 0, 0, INNER_IPV4], 5));
        let mut four = vec![0; 4];
        four.extend([1, 2, 3, 4, 4, INNER_IPV4]);
        assert!(!is_trailer4(&four, 4), "four bytes of padding");
        assert!(write_trailer4(&mut [0; 7], 0).is_none());
    }

    #[test]
    fn additional_data_has_the_whole_number_where_it_is_extended() {
        let (spi, sequence) = (0x0102_0304, 0x0506_0708_090a_0b0c);
        let of = |mode| aad(spi, sequence, mode);
        let long = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12];
        assert_eq!(of(SequenceMode::Extended).as_bytes(), long);
        let short = [1, 2, 3, 4, 9, 10, 11, 12];
        assert_eq!(of(SequenceMode::Plain).as_bytes(), short);
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
