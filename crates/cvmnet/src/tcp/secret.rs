//! Numbers that an outsider must not be able to guess: initial sequence numbers, SYN cookies,
//! clocks of timestamps, ports, and the places of connections in the table.

use std::hash::{BuildHasher, Hash, Hasher};

use tare_sim::Instant;
use zeroize::Zeroize;

use crate::tcp::headers::Tuple;

/// 128 random bits from the system's generator, new in each start of the guest. Wiped on drop; not
/// printed by `Debug`, which it does not have.
#[derive(Clone)]
pub struct Secret {
    key: [u64; 2],
}

impl Drop for Secret {
    fn drop(&mut self) {
        self.key.zeroize();
    }
}

/// The purposes of the secret: each has a function of its own.
#[derive(Clone, Copy)]
enum Purpose {
    Sequence = 1,
    Cookie,
    Clock,
    Port,
}

/// The time in which a SYN cookie is valid: the period in which it was made and the next.
const COOKIE_PERIOD_NS: u64 = 64_000_000_000;
/// Segment sizes that a cookie can stand for, ascending.
const COOKIE_MSS: [u16; 8] = [216, 536, 1220, 1300, 1400, 1440, 1460, 8940];

impl Secret {
    /// Takes 16 random bytes as the secret.
    pub fn new(bytes: &[u8; 16]) -> Secret {
        let word = |half: &[u8]| half.iter().fold(0, |word, &b| word << 8 | u64::from(b));
        Secret {
            key: [word(&bytes[..8]), word(&bytes[8..])],
        }
    }

    /// Returns SipHash-2-4 of what is hashed, a pseudo-random function as RFC 6528 wants it.
    fn hash(&self, purpose: Purpose, what: impl Hash) -> u64 {
        let mut hasher = self.build_hasher();
        (purpose as u8).hash(&mut hasher);
        what.hash(&mut hasher);
        hasher.finish()
    }

    /// Returns the initial sequence number of a connection (RFC 6528): a clock of 4 µs plus a
    /// function of the connection, so that numbers of one tuple grow and those of others say
    /// nothing about them.
    pub(crate) fn initial_sequence(&self, now: Instant, tuple: &Tuple) -> u32 {
        let clock = (now.as_nanos() / 4096) as u32;
        clock.wrapping_add(self.hash(Purpose::Sequence, tuple) as u32)
    }

    /// Returns the offset of a connection's timestamps (RFC 7323, 7.1).
    pub(crate) fn clock_offset(&self, tuple: &Tuple) -> u32 {
        self.hash(Purpose::Clock, tuple) as u32
    }

    /// Returns where to begin to look for a free port (RFC 6056, 3.3.3).
    pub(crate) fn first_port(&self, tuple: &Tuple) -> u16 {
        self.hash(Purpose::Port, tuple) as u16
    }

    /// Returns the initial sequence number that stands for a SYN which is not remembered: 5 bits of
    /// the period, 3 of the segment size and 24 that only the holder of the secret can compute.
    pub(crate) fn cookie(&self, now: Instant, tuple: &Tuple, peer_seq: u32, mss: u16) -> u32 {
        let size = COOKIE_MSS.iter().rposition(|&known| known <= mss);
        let size = size.unwrap_or(0) as u32;
        self.cookie_of(now.as_nanos() / COOKIE_PERIOD_NS, tuple, peer_seq, size)
    }

    fn cookie_of(&self, period: u64, tuple: &Tuple, peer_seq: u32, size: u32) -> u32 {
        let mac = self.hash(Purpose::Cookie, (tuple, period, peer_seq, size)) as u32;
        (period as u32) << 27 | size << 24 | mac & 0xff_ffff
    }

    /// Returns the segment size that a cookie stands for; `None` if it is not valid (any more).
    pub(crate) fn open_cookie(
        &self,
        now: Instant,
        tuple: &Tuple,
        peer_seq: u32,
        cookie: u32,
    ) -> Option<u16> {
        let size = cookie >> 24 & 7;
        let period = now.as_nanos() / COOKIE_PERIOD_NS;
        let is_valid = [period, period.saturating_sub(1)]
            .iter()
            .any(|&period| self.cookie_of(period, tuple, peer_seq, size) == cookie);
        is_valid.then(|| COOKIE_MSS[size as usize])
    }
}

/// Builds the hashers of the table of connections.
impl BuildHasher for Secret {
    // Deprecated in favour of a hasher whose key is fixed. This one is SipHash-2-4 with a key.
    #[allow(deprecated)]
    type Hasher = std::hash::SipHasher;

    #[allow(deprecated)]
    fn build_hasher(&self) -> Self::Hasher {
        std::hash::SipHasher::new_with_keys(self.key[0], self.key[1])
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};
    use std::time::Duration;

    use super::*;

    fn tuple(remote_port: u16) -> Tuple {
        Tuple {
            local: IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)),
            remote: IpAddr::V4(Ipv4Addr::new(192, 0, 2, 2)),
            local_port: 443,
            remote_port,
        }
    }

    fn at(seconds: u64) -> Instant {
        Instant::ZERO + Duration::from_secs(seconds)
    }

    #[test]
    fn initial_numbers_of_one_tuple_grow_by_the_clock_and_those_of_others_are_unrelated() {
        let secret = Secret::new(&[7; 16]);
        let first = secret.initial_sequence(at(10), &tuple(1));
        let later = secret.initial_sequence(at(11), &tuple(1));
        assert!((244_000..245_000).contains(&later.wrapping_sub(first)));
        let differences: std::collections::BTreeSet<u32> = (2..200)
            .map(|port| {
                secret
                    .initial_sequence(at(10), &tuple(port))
                    .wrapping_sub(first)
            })
            .collect();
        assert_eq!(differences.len(), 198);
        assert!(differences.iter().filter(|&&d| d < 1 << 16).count() < 3);
        let other = Secret::new(&[8; 16]);
        assert_ne!(other.initial_sequence(at(10), &tuple(1)), first);
    }

    #[test]
    fn a_cookie_is_valid_for_its_connection_for_64_to_128_seconds() {
        let secret = Secret::new(&[7; 16]);
        let cookie = secret.cookie(at(100), &tuple(1), 5, 1459);
        for seconds in [100, 127, 128, 191] {
            let mss = secret.open_cookie(at(seconds), &tuple(1), 5, cookie);
            assert_eq!(mss, Some(1440), "{seconds}");
        }
        assert_eq!(secret.open_cookie(at(192), &tuple(1), 5, cookie), None);
        assert_eq!(secret.open_cookie(at(100), &tuple(2), 5, cookie), None);
        assert_eq!(secret.open_cookie(at(100), &tuple(1), 6, cookie), None);
        let other = Secret::new(&[8; 16]);
        assert_eq!(other.open_cookie(at(100), &tuple(1), 5, cookie), None);
        let forged = (0..10_000).filter(|n| {
            let guess = cookie.wrapping_add(n + 1);
            secret.open_cookie(at(100), &tuple(1), 5, guess).is_some()
        });
        assert!(forged.count() < 3);
    }
}
