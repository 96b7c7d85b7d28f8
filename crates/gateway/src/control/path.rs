//! Paths to peers that take less than the interface does (RFC 1191, RFC 8201).

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::time::Duration;

use tare_packet::{ipv4, ipv6};
use tare_sim::Instant;

use tare_daemon::{Level, Record};

use crate::clock::MonotonicClock;

use super::probe::Search;

/// The time for which a reported path MTU is believed. RFC 1191, 6.3: "10 minutes".
const LIFE: Duration = Duration::from_secs(600);

/// The lowest path MTU that is believed. Any host on the path can forge a report, and each step
/// down costs throughput.
const LEAST4: u16 = ipv4::REASSEMBLED_MIN as u16;
/// RFC 8200, 5: every link takes this.
const LEAST6: u16 = ipv6::MTU_MIN as u16;

/// Returns the path MTU to believe in where a router reports `said` and `known` was believed;
/// `None` if nothing changes.
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

/// A search of the path to a peer, and the route that its probes take.
struct Probed {
    route: usize,
    search: Search,
}

/// A probe that is to be sent.
pub(super) struct Probe {
    pub(super) route: usize,
    pub(super) peer: IpAddr,
    /// Bytes of the outer packet.
    pub(super) size: u16,
}

/// The paths to peers.
#[derive(Default)]
pub(super) struct Paths {
    /// Those that are narrower than the interface, and until when.
    narrow: HashMap<IpAddr, (u16, Instant)>,
    probed: HashMap<IpAddr, Probed>,
    /// The times at which searches are due: there may be thousands.
    queue: BTreeSet<(Instant, IpAddr)>,
}

impl Paths {
    /// Bytes that a packet to this peer may have; more than any interface takes if nothing is
    /// known.
    pub(super) fn mtu(&self, peer: IpAddr) -> u16 {
        self.narrow.get(&peer).map_or(u16::MAX, |(mtu, _)| *mtu)
    }

    /// Searches the path to a peer by probes of this route, if it is not searched already.
    pub(super) fn probe(&mut self, now: Instant, peer: IpAddr, route: usize, top: u16) {
        let least = if peer.is_ipv4() { LEAST4 } else { LEAST6 };
        self.probed.entry(peer).or_insert_with(|| {
            self.queue.insert((now, peer));
            let mut search = Search::new(now, least.min(top), top);
            if let Some((mtu, _)) = self.narrow.get(&peer) {
                search.reported(now, *mtu);
            }
            Probed { route, search }
        });
    }

    /// Searches the path to a peer no longer.
    pub(super) fn forget(&mut self, peer: IpAddr) {
        if let Some(probed) = self.probed.remove(&peer) {
            self.queue.remove(&(probed.search.due(), peer));
        }
    }

    /// Believes a router that the path takes no more than `mtu`.
    pub(super) fn narrow(&mut self, now: Instant, peer: IpAddr, mtu: u16) {
        self.narrow.insert(peer, (mtu, now + LIFE));
        self.search(now, peer, |search| search.reported(now, mtu));
    }

    /// Takes an answer to a probe. Returns true if the path MTU has changed.
    pub(super) fn answered(&mut self, now: Instant, peer: IpAddr, size: u16) -> bool {
        let before = self.mtu(peer);
        self.search(now, peer, |search| search.answered(now, size));
        self.mtu(peer) != before
    }

    /// Moves a search on and takes over what it says.
    fn search<T>(
        &mut self,
        now: Instant,
        peer: IpAddr,
        step: impl FnOnce(&mut Search) -> T,
    ) -> Option<(usize, T)> {
        let probed = self.probed.get_mut(&peer)?;
        self.queue.remove(&(probed.search.due(), peer));
        let outcome = step(&mut probed.search);
        self.queue.insert((probed.search.due(), peer));
        match probed.search.limit() {
            // Each probe that is answered proves it again.
            Some(Some(mtu)) => drop(self.narrow.insert(peer, (mtu, now + LIFE))),
            Some(None) => drop(self.narrow.remove(&peer)),
            None => {}
        }
        Some((probed.route, outcome))
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

    /// Returns the time at which something is due.
    pub(super) fn due(&self) -> Instant {
        let ends = self.narrow.values().map(|(_, until)| *until);
        let search = self.queue.first().map(|(due, _)| *due);
        ends.chain(search).min().unwrap_or(Instant::NEVER)
    }

    /// Forgets what is too old, and adds probes that are due. Returns the peers whose path MTU has
    /// changed.
    pub(super) fn tick(
        &mut self,
        now: Instant,
        top: u16,
        log: &mut Vec<Record>,
        probes: &mut Vec<Probe>,
    ) -> Vec<IpAddr> {
        let mut changed = Vec::new();
        while let Some(&(due, peer)) = self.queue.first() {
            if due > now {
                break;
            }
            let before = self.mtu(peer);
            if let Some((route, Some(size))) =
                self.search(now, peer, |search| search.tick(now, top))
            {
                probes.push(Probe { route, peer, size });
            }
            if self.mtu(peer) != before {
                changed.push(peer);
            }
        }
        self.narrow.retain(|peer, (_, until)| {
            let keep = *until > now;
            if !keep {
                changed.push(*peer);
                log.push(
                    Record::new(Level::Info, "path_mtu_forgotten")
                        .with("gateway", peer.to_string()),
                );
            }
            keep
        });
        changed
    }
}
