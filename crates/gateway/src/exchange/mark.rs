//! Marks: three reserved bytes of each message, which only a gateway with the route's preshared key
//! can fill in.
//!
//! An attacker that sends with the peer's address but reads nothing cannot make them, so messages
//! with a mark have limits of their own, which a flood does not use up. The mark is no proof: it is
//! short, and a host that can read a message can send it again. Only the handshake authenticates.
//! Vita leaves these bytes zero and does not look at them.

use blake2::digest::{Mac, Output};
use blake2::Blake2sMac256;
use zeroize::Zeroizing;

use crate::config::PresharedKey;

/// The bytes of a message that carry its mark.
const PLACE: std::ops::Range<usize> = 5..8;

/// Makes and checks the marks of one route.
pub(crate) struct Marker(Zeroizing<[u8; 32]>);

impl Marker {
    pub(crate) fn new(psk: &PresharedKey) -> Marker {
        let key = keyed(psk.bytes(), &[b"tare: marks of messages"]);
        Marker(Zeroizing::new(key.into()))
    }

    /// Fills in the mark of a message.
    pub(crate) fn write(&self, message: &mut [u8]) {
        if let Some(mark) = self.of(message) {
            message[PLACE].copy_from_slice(&mark);
        }
    }

    /// Returns true if a message has the right mark. Zeros are none, and take no time to check.
    pub(crate) fn is_on(&self, message: &[u8]) -> bool {
        message.get(PLACE).is_some_and(|place| place != [0; 3])
            && self.of(message).is_some_and(|mark| message[PLACE] == mark)
    }

    /// The mark over everything but itself.
    fn of(&self, message: &[u8]) -> Option<[u8; 3]> {
        let before = message.get(..PLACE.start)?;
        let mac = keyed(&self.0, &[before, message.get(PLACE.end..)?]);
        mac.first_chunk().copied()
    }
}

fn keyed(key: &[u8; 32], parts: &[&[u8]]) -> Output<Blake2sMac256> {
    let mut mac = <Blake2sMac256 as blake2::digest::KeyInit>::new(key.into());
    parts.iter().for_each(|part| Mac::update(&mut mac, part));
    mac.finalize().into_bytes()
}
