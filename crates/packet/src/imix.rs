//! The sizes of a test's frames: one size, or the Internet mix.

use std::fmt;
use std::iter::{Copied, Cycle};
use std::slice;
use std::str::FromStr;

use crate::ethernet;

/// One period of the Internet mix, in bytes of Ethernet frames without their checksum: seven of 60,
/// four of 590 and one of 1514, in an order in which no part of the period is far from the mean
/// and at most two short ones follow each other.
pub const IMIX: [u16; 12] = [60, 590, 60, 60, 590, 60, 1514, 60, 590, 60, 590, 60];

/// The shortest frame that Ethernet has, without its checksum.
pub const SIZE_MIN: u16 = ethernet::MIN as u16;

/// The longest frame that a test can ask for: a packet of 9000 bytes behind an Ethernet header.
pub const SIZE_MAX: u16 = 9000 + ethernet::HEADER as u16;

/// The sizes of a test's frames.
///
/// Read from `60` … `9014` or `IMIX` (in any case), and displayed as that. ` bytes` may follow the
/// number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PacketSize(Sizes);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Sizes {
    One([u16; 1]),
    Imix,
}

impl PacketSize {
    /// The Internet mix.
    pub const IMIX: PacketSize = PacketSize(Sizes::Imix);

    /// Frames of `bytes` each; `None` outside of [`SIZE_MIN`] to [`SIZE_MAX`].
    pub const fn fixed(bytes: u16) -> Option<PacketSize> {
        if bytes < SIZE_MIN || bytes > SIZE_MAX {
            return None;
        }
        Some(PacketSize(Sizes::One([bytes])))
    }

    /// Returns the period that [`sequence`](Self::sequence) repeats.
    pub const fn period(&self) -> &[u16] {
        match &self.0 {
            Sizes::One(size) => size,
            Sizes::Imix => &IMIX,
        }
    }

    /// Returns the sizes of frame after frame, without an end.
    pub fn sequence(&self) -> Cycle<Copied<slice::Iter<'_, u16>>> {
        self.period().iter().copied().cycle()
    }

    /// Returns the mean size in bytes; 357.83 for the mix.
    pub fn mean_bytes(&self) -> f64 {
        let sum: u32 = self.period().iter().copied().map(u32::from).sum();
        f64::from(sum) / self.period().len() as f64
    }

    /// Returns the longest size in bytes.
    pub fn max_bytes(&self) -> u16 {
        match self.0 {
            Sizes::One([size]) => size,
            Sizes::Imix => 1514,
        }
    }
}

impl fmt::Display for PacketSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Sizes::One([size]) => size.fmt(f),
            Sizes::Imix => f.pad("IMIX"),
        }
    }
}

/// The text is no packet size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoPacketSize;

impl fmt::Display for NoPacketSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "expected IMIX or a number of bytes from {SIZE_MIN} to {SIZE_MAX}"
        )
    }
}

impl std::error::Error for NoPacketSize {}

impl FromStr for PacketSize {
    type Err = NoPacketSize;

    fn from_str(text: &str) -> Result<PacketSize, NoPacketSize> {
        if text.eq_ignore_ascii_case("imix") {
            return Ok(PacketSize::IMIX);
        }
        let text = text.strip_suffix(" bytes").unwrap_or(text);
        // `parse` would take a sign.
        if !text.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(NoPacketSize);
        }
        text.parse()
            .ok()
            .and_then(PacketSize::fixed)
            .ok_or(NoPacketSize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mix_is_seven_four_and_one_and_spread() {
        for (size, count) in [(60, 7), (590, 4), (1514, 1)] {
            assert_eq!(IMIX.iter().filter(|&&s| s == size).count(), count);
        }
        let twice: Vec<u16> = PacketSize::IMIX.sequence().take(24).collect();
        assert_eq!(twice[..12], IMIX);
        assert_eq!(twice[12..], IMIX);
        assert!(twice.windows(3).all(|w| w != [60, 60, 60]));
        assert!(twice.windows(2).all(|w| w != [590, 590]));
        assert!((PacketSize::IMIX.mean_bytes() - 4294.0 / 12.0).abs() < 1e-9);
        assert_eq!(PacketSize::IMIX.max_bytes(), 1514);
    }

    #[test]
    fn sizes_are_read_as_they_are_displayed_and_others_refused() {
        for text in ["60", "590", "1514", "9014", "IMIX"] {
            let size: PacketSize = text.parse().unwrap();
            assert_eq!(size.to_string(), text);
        }
        assert_eq!("imix".parse(), Ok(PacketSize::IMIX));
        assert_eq!("60 bytes".parse(), Ok(PacketSize::fixed(60).unwrap()));
        let sixty: PacketSize = "60".parse().unwrap();
        assert_eq!(sixty.sequence().take(3).collect::<Vec<_>>(), [60; 3]);
        assert_eq!((sixty.mean_bytes(), sixty.max_bytes()), (60.0, 60));
        for text in [
            "", "59", "9015", "65596", "+60", "-60", "60.0", " 60", "mix", " bytes", "60bytes",
        ] {
            assert_eq!(text.parse::<PacketSize>(), Err(NoPacketSize), "{text}");
        }
    }
}
