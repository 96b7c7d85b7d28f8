//! Nonces of which none is used twice.

use tare_gcm::Nonce;

use super::super::message::Direction;

/// The first bit of a nonce is 1 in responses, which have the same key as requests.
const RESPONSE: u32 = 1 << 31;

/// A counter of 95 bits that begins at a random number, behind the bit of the direction.
///
/// One sender repeats a nonce after 2⁹⁵ messages. Those of two senders of a direction with the same
/// key, which send n messages each, overlap with probability below 2n/2⁹⁵; so do those of one that
/// was started again.
#[derive(Debug)]
pub(super) struct Nonces {
    high: u32,
    low: u64,
}

impl Nonces {
    /// The first nonce is `first`, apart from the bit of the direction.
    pub(super) fn new(first: [u8; 12]) -> Nonces {
        let [a, b, c, d, low @ ..] = first;
        Nonces {
            high: u32::from_be_bytes([a, b, c, d]),
            low: u64::from_be_bytes(low),
        }
    }

    /// The next nonce, for a message of a direction.
    #[inline]
    pub(super) fn take(&mut self, direction: Direction) -> Nonce {
        let high = match direction {
            Direction::Request => self.high & !RESPONSE,
            Direction::Response => self.high | RESPONSE,
        };
        let nonce = Nonce::from_parts(high.to_be_bytes(), self.low);
        let (low, carry) = self.low.overflowing_add(1);
        self.low = low;
        self.high = self.high.wrapping_add(u32::from(carry));
        nonce
    }
}

/// Returns true if a sender of this direction may have used the nonce.
#[inline]
pub(super) fn is_of(direction: Direction, nonce: &[u8; Nonce::LEN]) -> bool {
    let is_response = nonce[0] >> 7 == 1;
    is_response == (direction == Direction::Response)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_counter_has_95_bits_and_the_first_is_the_direction() {
        for (first, second) in [
            ([0; 12], [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]),
            (
                [9, 0, 0, 1, 255, 255, 255, 255, 255, 255, 255, 255],
                [9, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0],
            ),
            ([255; 12], [0; 12]),
        ] {
            for (direction, bit) in [(Direction::Request, 0), (Direction::Response, 0x80)] {
                let mut nonces = Nonces::new(first);
                for mut expected in [first, second] {
                    expected[0] = expected[0] & 0x7f | bit;
                    assert_eq!(nonces.take(direction).as_bytes(), &expected);
                    assert!(is_of(direction, &expected));
                    expected[0] ^= 0x80;
                    assert!(!is_of(direction, &expected));
                }
            }
        }
    }
}
