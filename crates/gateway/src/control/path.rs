//! Paths to peers that take less than the interface does (RFC 1191, RFC 8201).

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

use tare_packet::{ipv4, ipv6};
use tare_sim::Instant;

use tare_daemon::{Level, Record};

/// The time for which a reported path MTU is believed. RFC 1191, 6.3: "10 minutes".
const LIFE: Duration = Duration::from_secs(600);

/// The lowest path MTU that is believed. Any host on the path can forge a report, and each step
/// down costs throughput.
const LEAST4: u16 = ipv4::REASSEMBLED_MIN as u16;
/// RFC 8200, 5: every link takes this.
const LEAST6: u16 = ipv6::MTU_MIN as u16;

/// Returns the path MTU to believe in where a router reports `said` and `known` was believed; `None`
/// if nothing changes.
pub(super) fn believed(peer: IpAddr, said: u32, known: u16) -> Option<u16> {
    let least = match peer {
        IpAddr::V4(_) => LEAST4,
        // RFC 8201, 4: a report of less "must be discarded".
        IpAddr::V6(_) if said < u32::from(LEAST6) => return None,
        IpAddr::V6(_) => LEAST6,
    };
    let mtu = u16::try_from(said).unwrap_or(u16::MAX).max(least);
    (mtu < known).then_some(mtu)
}

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

    /// Believes that the path takes no more than `mtu`.
    pub(super) fn narrow(&mut self, now: Instant, peer: IpAddr, mtu: u16) {
        self.narrow.insert(peer, (mtu, now + LIFE));
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
