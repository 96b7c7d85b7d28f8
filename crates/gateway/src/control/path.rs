//! Paths to peers that take less than the interface does (RFC 1191, RFC 8201).

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

use tare_packet::{ipv4, ipv6};
use tare_sim::Instant;

use crate::clock::MonotonicClock;
use tare_daemon::{Level, Record};

/// The time for which a reported path MTU is believed. RFC 1191, 6.3: "10 minutes".
const LIFE: Duration = Duration::from_secs(600);

/// The lowest path MTU that is believed. Any host on the path can forge a report, and each step
/// down costs throughput.
const LEAST4: u16 = ipv4::REASSEMBLED_MIN as u16;
/// RFC 8200, 5: every link takes this.
const LEAST6: u16 = ipv6::MTU_MIN as u16;

/// The paths that are narrower than the interface; not more than there are peers.
#[derive(Default)]
pub(super) struct Paths {
    narrow: HashMap<IpAddr, (u16, Instant)>,
}

impl Paths {
    /// Bytes that a packet to this peer may have; more than any interface takes if nothing is
    /// known.
    pub(super) fn mtu(&self, peer: IpAddr) -> u16 {
        self.narrow.get(&peer).map_or(u16::MAX, |(mtu, _)| *mtu)
    }

    /// A router says that the path takes no more than `said`, where `now_known` was thought. Gives
    /// what is believed of that, if it is less.
    pub(super) fn narrow(
        &mut self,
        now: Instant,
        peer: IpAddr,
        said: u32,
        now_known: u16,
    ) -> Option<u16> {
        let least = if peer.is_ipv4() { LEAST4 } else { LEAST6 };
        let mtu = u16::try_from(said).unwrap_or(u16::MAX).max(least);
        if mtu >= now_known {
            return None;
        }
        self.narrow.insert(peer, (mtu, now + LIFE));
        Some(mtu)
    }

    /// Returns what is known, with the caller's times, for another process.
    pub(super) fn export(&self, clock: &MonotonicClock) -> Vec<(IpAddr, u16, Instant)> {
        let narrow = self.narrow.iter();
        narrow
            .map(|(peer, (mtu, until))| (*peer, *mtu, clock.outside(*until)))
            .collect()
    }

    /// Takes over what another process knows.
    pub(super) fn import(&mut self, paths: &[(IpAddr, u16, Instant)]) {
        let narrow = paths.iter().map(|&(peer, mtu, until)| {
            let least = if peer.is_ipv4() { LEAST4 } else { LEAST6 };
            (peer, (mtu.max(least), until))
        });
        self.narrow.extend(narrow);
    }

    /// Returns the time at which the first path MTU is forgotten.
    pub(super) fn due(&self) -> Instant {
        let ends = self.narrow.values().map(|(_, until)| *until);
        ends.min().unwrap_or(Instant::NEVER)
    }

    /// Forgets what is too old; whether there was something.
    pub(super) fn tick(&mut self, now: Instant, log: &mut Vec<Record>) -> bool {
        let before = self.narrow.len();
        self.narrow.retain(|peer, (_, until)| {
            let keep = *until > now;
            if !keep {
                log.push(
                    Record::new(Level::Info, "path_mtu_forgotten")
                        .with("gateway", peer.to_string()),
                );
            }
            keep
        });
        self.narrow.len() < before
    }
}
