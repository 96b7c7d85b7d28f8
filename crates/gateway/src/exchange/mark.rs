//! Marks: three reserved bytes of each message, which only a gateway with the route's preshared key
//! can fill in.
//!
//! An attacker that sends with the peer's address but reads nothing cannot make them, so messages
//! with a mark have limits of their own, which a flood does not use up. Half of a knock's mark is a
//! number, and the mark of each later message covers what it answers: a challenge the number of the
//! knock, a proposal the challenge's nonce, an agreement the proposal. So a message that was
//! recorded has no mark in another negotiation, but for knocks. A mark is short, and no proof: only
//! the handshake authenticates. Vita leaves these bytes zero and does not look at them.

use std::net::IpAddr;

use blake2::digest::{Mac, Output};
use blake2::Blake2sMac256;
use tare_sim::Instant;
use zeroize::Zeroizing;

use crate::config::PresharedKey;

/// The bytes of a message that carry its mark.
const PLACE: std::ops::Range<usize> = 5..8;

/// Makes and checks the marks of one route.
pub(crate) struct Marker(Zeroizing<[u8; 32]>);

/// The circumstances of a message, which its mark covers too.
#[derive(Clone, Copy)]
pub(crate) struct Context<'a> {
    pub(crate) from: IpAddr,
    pub(crate) to: IpAddr,
    /// The number of the knock that a challenge answers, the nonce that a proposal does, or the
    /// proposal that an agreement does. Empty if there is none.
    pub(crate) answers: &'a [u8],
}

/// The number of a knock, big-endian, at most [`NUMBER_MAX`] and not 0.
pub(crate) type Number = [u8; 2];

/// The largest number of a knock: half of the bits of its mark. The others are few enough that one
/// in 4,096 forged knocks is answered as the peer's, twelve per second of 50,000.
const NUMBER_MAX: u16 = (1 << 12) - 1;

impl Marker {
    pub(crate) fn new(psk: &PresharedKey) -> Marker {
        let key = keyed(psk.bytes(), &[b"tare: marks of messages"]);
        Marker(Zeroizing::new(key.into()))
    }

    /// Returns the number of a knock that is sent at this time, after so many other messages; who
    /// does not have the key cannot foresee it.
    pub(crate) fn number(&self, now: Instant, sent: u64) -> Number {
        let [time, sent] = [now.as_nanos(), sent].map(u64::to_be_bytes);
        let mac = keyed(&self.0, &[b"number of a knock", &time, &sent]);
        let drawn = mac
            .first_chunk()
            .map_or(0, |bytes| u16::from_be_bytes(*bytes));
        (drawn % NUMBER_MAX + 1).to_be_bytes()
    }

    /// Fills in the mark of a knock with this number.
    pub(crate) fn write_knock(&self, knock: &mut [u8], from: IpAddr, to: IpAddr, number: Number) {
        if let Some(mark) = self.of_knock(knock, from, to, number) {
            knock[PLACE].copy_from_slice(&mark);
        }
    }

    /// Returns the number of a knock with the right mark.
    pub(crate) fn number_of(&self, knock: &[u8], from: IpAddr, to: IpAddr) -> Option<Number> {
        let mark: [u8; 3] = knock.get(PLACE)?.try_into().ok()?;
        let number = u16::from_be_bytes([mark[0], mark[1]]) >> 4;
        let number = (number != 0).then(|| number.to_be_bytes())?;
        (self.of_knock(knock, from, to, number)? == mark).then_some(number)
    }

    /// The mark of a knock: twelve bits of its number, then as many of the MAC.
    fn of_knock(&self, knock: &[u8], from: IpAddr, to: IpAddr, number: Number) -> Option<[u8; 3]> {
        let answers = &number[..];
        let mac = self.of(knock, Context { from, to, answers })?;
        let number = u16::from_be_bytes(number) << 4;
        let [high, low] = number.to_be_bytes();
        Some([high, low | mac[0] >> 4, mac[1]])
    }

    /// Fills in the mark of a message.
    pub(crate) fn write(&self, message: &mut [u8], context: Context<'_>) {
        if let Some(mark) = self.of(message, context) {
            message[PLACE].copy_from_slice(&mark);
        }
    }

    /// Returns true if a message has the right mark. Zeros are none, and take no time to check.
    pub(crate) fn is_on(&self, message: &[u8], context: Context<'_>) -> bool {
        message.get(PLACE).is_some_and(|place| place != [0; 3])
            && self
                .of(message, context)
                .is_some_and(|mark| message[PLACE] == mark)
    }

    /// The mark over everything but itself. The length of each part follows from the type of the
    /// message, so different parts are never the same bytes.
    fn of(&self, message: &[u8], context: Context<'_>) -> Option<[u8; 3]> {
        let before = message.get(..PLACE.start)?;
        let behind = message.get(PLACE.end..)?;
        let [from, to] = [context.from, context.to].map(|address| match address {
            IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
            IpAddr::V6(address) => address.octets(),
        });
        let mac = keyed(&self.0, &[before, behind, &from, &to, context.answers]);
        mac.first_chunk().copied()
    }
}

fn keyed(key: &[u8; 32], parts: &[&[u8]]) -> Output<Blake2sMac256> {
    let mut mac = <Blake2sMac256 as blake2::digest::KeyInit>::new(key.into());
    parts.iter().for_each(|part| Mac::update(&mut mac, part));
    mac.finalize().into_bytes()
}
