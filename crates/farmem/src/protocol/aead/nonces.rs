//! Nonces of which none is used twice.

use tare_gcm::Nonce;

/// A 96-bit counter that begins at a random number.
///
/// One sender repeats a nonce after 2⁹⁶ messages. Those of two senders with the same key, which
/// send n messages each, overlap with probability below 2n/2⁹⁶; so do those of one that was started
/// again.
#[derive(Debug)]
pub(super) struct Nonces {
    high: u32,
    low: u64,
}

impl Nonces {
    /// The first nonce is `first`.
    pub(super) fn new(first: [u8; 12]) -> Nonces {
        let [a, b, c, d, low @ ..] = first;
        Nonces {
            high: u32::from_be_bytes([a, b, c, d]),
            low: u64::from_be_bytes(low),
        }
    }

    #[inline]
    pub(super) fn take(&mut self) -> Nonce {
        let nonce = Nonce::from_parts(self.high.to_be_bytes(), self.low);
        let (low, carry) = self.low.overflowing_add(1);
        self.low = low;
        self.high = self.high.wrapping_add(u32::from(carry));
        nonce
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_counter_has_96_bits() {
        for (first, second) in [
            ([0; 12], [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]),
            (
                [9, 0, 0, 1, 255, 255, 255, 255, 255, 255, 255, 255],
                [9, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0],
            ),
            ([255; 12], [0; 12]),
        ] {
            let mut nonces = Nonces::new(first);
            assert_eq!(nonces.take().as_bytes(), &first);
            assert_eq!(nonces.take().as_bytes(), &second);
        }
    }
}
