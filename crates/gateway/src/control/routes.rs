//! Routes and their SAs, by numbers that a route keeps for as long as it does not change.

mod given;
mod handover;

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use tare_gcm::Key;
use tare_memory::Shared;
use tare_sim::{Instant, TokenBucket};

use super::totals::{Counting as _, RouteCounters, Totals};
use crate::config::{self, Config, Keys, SaKey};
use crate::dataplane::{
    error_limit, DropTable, Highest, InboundSa, OutboundSa, Outer, SequenceMode,
};
use crate::exchange::{RouteKeys, SaKeys};
use given::Given;
use handover::{Direction, SecretKeys};

/// Packets that workers may still send with the SA before a change, when the SA after it has the
/// same given key.
const MARGIN: u64 = 1 << 20;

/// A route with its SAs.
pub(super) struct Entry {
    pub(super) config: config::Route,
    ends: Ends,
    /// Workers take these in turn.
    pub(super) outbound: Vec<Shared<OutboundSa>>,
    pub(super) inbound: Vec<Inbound>,
    secrets: SecretKeys,
    pub(super) totals: Totals,
    /// The time at which keys were agreed on last.
    pub(super) handshake: Option<Instant>,
    /// Limits answers to the peer's probes of the path: each route has its own limit, so that no
    /// peer costs another one an answer.
    pub(super) probe_answers: TokenBucket,
}

pub(super) struct Inbound {
    pub(super) sa: Shared<InboundSa>,
    /// Packets when it was looked at last.
    pub(super) seen: u64,
}

/// The addresses of a tunnel.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Ends {
    /// Ours.
    own: IpAddr,
    /// Ours as the peer sees it.
    seen: IpAddr,
    peer: IpAddr,
    outer: Outer,
}

impl Entry {
    fn sequence_mode(&self) -> SequenceMode {
        match self.config.esn {
            true => SequenceMode::Extended,
            false => SequenceMode::Plain,
        }
    }

    /// Returns the counters of both directions, outbound first.
    pub(super) fn counters(&self) -> [RouteCounters; 2] {
        let inbound = self.inbound.iter().map(|inbound| &inbound.sa);
        [
            self.totals.outbound(self.outbound.iter()),
            self.totals.inbound(inbound),
        ]
    }

    /// Returns true if SAs of this route are valid for the other one.
    fn is(&self, other: &config::Route, ends: &Ends) -> bool {
        let ours = &self.config;
        self.ends == *ends
            && (ours.esn, ours.window) == (other.esn, other.window)
            && ours.keys == other.keys
    }
}

/// An outbound SA, and the numbers that it has used lately.
pub(super) struct Shown {
    route: usize,
    sa: Shared<OutboundSa>,
    /// The last number at the last sample but one, and at the last one.
    samples: [u64; 2],
}

impl Shown {
    /// Returns true if a packet with this lower half of its sequence number was sent since the last
    /// sample but one.
    pub(super) fn is_recent(&self, sequence: u32) -> bool {
        is_recent(self.sa.last_number(), self.samples[0], sequence)
    }
}

/// Returns true if the number with this lower half is after `since` and not after `last`.
fn is_recent(last: u64, since: u64, sequence: u32) -> bool {
    let behind = (last as u32).wrapping_sub(sequence);
    u64::from(behind) < last.saturating_sub(since)
}

/// The routes and their numbers.
#[derive(Default)]
pub(super) struct Routes {
    /// Routes by number.
    entries: Vec<Option<Entry>>,
    free: Vec<usize>,
    /// Numbers by name.
    names: HashMap<String, usize>,
    /// Numbers in the order of the file.
    order: Vec<usize>,
    /// Outbound SAs by what an outer packet shows: the peer and the SPI.
    shown: HashMap<(IpAddr, u32), Shown>,
    given: Given,
    /// Routes with SAs that workers may still use, though the tables have them no longer.
    leaving: BTreeSet<usize>,
}

/// The numbers of the routes of a new configuration.
pub(super) struct Plan {
    places: Vec<(usize, Ends)>,
}

impl Routes {
    /// Assigns numbers to the routes of a configuration: those that do not change keep theirs.
    /// `None` if an interface has no address towards a gateway; a configuration that was read from
    /// a file has one.
    pub(super) fn plan(&self, config: &Config) -> Option<Plan> {
        let mut free = self.free.iter().rev().copied();
        let mut next = self.entries.len();
        let mut place = |route: &config::Route| {
            let peer = route.gateway;
            let own = config.public.address_towards(peer)?;
            let ends = Ends {
                own,
                seen: config.public.address_seen_by(peer)?,
                peer,
                outer: Outer::between(own, peer)?,
            };
            let kept = self.names.get(&route.id).copied();
            let kept = kept.filter(|&n| self.entry(n).is_some_and(|entry| entry.is(route, &ends)));
            let number = kept.or_else(|| free.next()).unwrap_or_else(|| {
                next += 1;
                next - 1
            });
            Some((number, ends))
        };
        let places = config
            .routes
            .iter()
            .map(&mut place)
            .collect::<Option<_>>()?;
        Some(Plan { places })
    }

    /// Takes over a plan that was made for `config` and returns how many routes are new or changed
    /// and how many are gone.
    pub(super) fn commit(&mut self, config: &Config, plan: Plan) -> (usize, usize) {
        let mut kept = vec![false; self.entries.len()];
        for &(number, _) in &plan.places {
            if let Some(kept) = kept.get_mut(number) {
                *kept = true;
            }
        }
        // A route that stays by its name goes on counting.
        let mut totals = HashMap::new();
        let mut gone = 0;
        for (number, _) in kept.iter().enumerate().filter(|(_, kept)| !**kept) {
            if let Some(entry) = self.remove(number) {
                gone += 1;
                totals.insert(entry.config.id, entry.totals);
            }
        }
        self.names.clear();
        self.order.clear();
        let mut added = 0;
        for (route, (number, ends)) in config.routes.iter().zip(plan.places) {
            if number >= self.entries.len() {
                self.entries.resize_with(number + 1, || None);
            }
            self.names.insert(route.id.clone(), number);
            self.order.push(number);
            match &mut self.entries[number] {
                // Its prefixes may have changed.
                Some(entry) => entry.config = route.clone(),
                None => {
                    added += 1;
                    let totals = totals.remove(&route.id).unwrap_or_default();
                    self.insert(number, route, ends, totals);
                }
            }
        }
        let entries = &self.entries;
        self.free = (0..entries.len())
            .filter(|&n| entries[n].is_none())
            .collect();
        (added, gone)
    }

    fn remove(&mut self, number: usize) -> Option<Entry> {
        let mut entry = self.entries[number].take()?;
        for sa in entry.outbound.drain(..) {
            self.shown.remove(&(entry.ends.peer, sa.spi()));
            match &entry.config.keys {
                Keys::Manual { outbound, .. } => {
                    let digest = self.given.outbound_digest(&outbound.key);
                    let counted = sa.traffic();
                    entry.totals.add(true, counted);
                    let id = &entry.config.id;
                    self.given.outbound.leave(digest, sa, id, counted);
                }
                Keys::Exchange { .. } => entry.totals.outbound_leaves(sa),
            }
        }
        for Inbound { sa, .. } in entry.inbound.drain(..) {
            let spi = sa.spi();
            match entry.secrets.get(Direction::In, spi) {
                Some(key) if matches!(entry.config.keys, Keys::Manual { .. }) => {
                    let digest = self.given.inbound_digest(key, spi, entry.config.esn);
                    let counted = sa.traffic();
                    entry.totals.add(false, counted);
                    let id = &entry.config.id;
                    self.given.inbound.leave(digest, sa, id, counted);
                }
                _ => entry.totals.inbound_leaves(sa),
            }
        }
        Some(entry)
    }

    fn insert(&mut self, number: usize, route: &config::Route, ends: Ends, totals: Totals) {
        self.leaving.insert(number);
        self.entries[number] = Some(Entry {
            config: route.clone(),
            ends,
            outbound: Vec::new(),
            inbound: Vec::new(),
            secrets: SecretKeys::default(),
            totals,
            handshake: None,
            probe_answers: error_limit(),
        });
        if let Keys::Manual { inbound, outbound } = &route.keys {
            for sa in inbound {
                self.install_inbound(number, sa.spi, &sa.key);
            }
            self.install_outbound(number, outbound.spi, &outbound.key, None);
        }
    }

    fn install_inbound(&mut self, number: usize, spi: u32, key: &SaKey) {
        self.install_inbound_as(number, spi, key, |_| ());
    }

    fn install_inbound_as(
        &mut self,
        number: usize,
        spi: u32,
        key: &SaKey,
        go_on: impl FnOnce(&mut InboundSa),
    ) {
        let Some(Some(entry)) = self.entries.get_mut(number) else {
            return;
        };
        let Ok(expanded) = Key::new(key.key()) else {
            return;
        };
        let (sequence_mode, window) = (entry.sequence_mode(), entry.config.window);
        let mut sa = InboundSa::new(spi, expanded, key.salt(), sequence_mode, window, number);
        // The peer may be Vita.
        match entry.config.keys {
            Keys::Exchange { .. } => sa = sa.with_zeros_as_padding(),
            Keys::Manual { .. } => {
                let digest = self.given.inbound_digest(key, spi, entry.config.esn);
                if let Some(highest) = self.given.inbound.highest(&digest) {
                    sa.refuse_up_to(highest.number);
                }
            }
        }
        go_on(&mut sa);
        entry.secrets.set(Direction::In, spi, key);
        entry.inbound.push(Inbound {
            seen: sa.packets(),
            sa: Shared::new(sa),
        });
    }

    /// One more, or one in the place of another.
    fn install_outbound(&mut self, number: usize, spi: u32, key: &SaKey, replaces: Option<u32>) {
        self.install_outbound_as(number, spi, key, replaces, |_| ());
    }

    fn install_outbound_as(
        &mut self,
        number: usize,
        spi: u32,
        key: &SaKey,
        replaces: Option<u32>,
        go_on: impl FnOnce(&mut OutboundSa),
    ) {
        let Some(Some(entry)) = self.entries.get_mut(number) else {
            return;
        };
        let Ok(expanded) = Key::new(key.key()) else {
            return;
        };
        let mut sa = OutboundSa::new(
            spi,
            expanded,
            key.salt(),
            entry.sequence_mode(),
            entry.ends.outer,
        );
        if matches!(entry.config.keys, Keys::Manual { .. }) {
            // Negotiated keys are new and have nothing to follow.
            let digest = self.given.outbound_digest(key);
            match self.given.outbound.highest(&digest) {
                // Not from the present time on. The clock may have been set back behind IVs that
                // were used; and numbers that go on are added to it, so that IVs would be ahead of
                // the clock of a process that starts after a crash.
                Some(Highest { number, iv_base }) => {
                    sa = sa.with_iv_base(iv_base);
                    sa.begin_after(number.saturating_add(MARGIN));
                }
                None => sa = sa.with_ivs_from((self.given.since_1970)()),
            }
        }
        go_on(&mut sa);
        let sa = Shared::new(sa);
        let place = entry
            .outbound
            .iter()
            .position(|sa| Some(sa.spi()) == replaces);
        let last = sa.last_number();
        let shown = Shown {
            route: number,
            sa: sa.clone(),
            samples: [last; 2],
        };
        self.shown.insert((entry.ends.peer, spi), shown);
        match place {
            Some(place) => {
                let before = std::mem::replace(&mut entry.outbound[place], sa);
                if before.spi() != spi {
                    unshow(&mut self.shown, (entry.ends.peer, before.spi()), number);
                }
                entry.secrets.remove(Direction::Out, before.spi());
                entry.totals.outbound_leaves(before);
                self.leaving.insert(number);
            }
            None => entry.outbound.push(sa),
        }
        entry.secrets.set(Direction::Out, spi, key);
    }

    /// Accepts packets under these keys too, which were agreed on now.
    pub(super) fn add_inbound(&mut self, now: Instant, number: usize, keys: &SaKeys) {
        self.install_inbound(number, keys.spi, &keys.key);
        if let Some(entry) = self.entry_mut(number) {
            entry.handshake = Some(now);
        }
    }

    /// Sends packets of the route under these keys, in place of those of another SA where there is
    /// one to replace.
    pub(super) fn set_outbound(&mut self, number: usize, keys: &SaKeys, replaces: Option<u32>) {
        self.install_outbound(number, keys.spi, &keys.key, replaces);
    }

    pub(super) fn remove_inbound(&mut self, number: usize, spi: u32) {
        let Some(Some(entry)) = self.entries.get_mut(number) else {
            return;
        };
        entry.secrets.remove(Direction::In, spi);
        for inbound in entry.inbound.extract_if(.., |one| one.sa.spi() == spi) {
            entry.totals.inbound_leaves(inbound.sa);
            self.leaving.insert(number);
        }
    }

    /// Removes the outbound SA with this SPI.
    pub(super) fn remove_outbound(&mut self, number: usize, spi: u32) {
        let Some(Some(entry)) = self.entries.get_mut(number) else {
            return;
        };
        entry.secrets.remove(Direction::Out, spi);
        for sa in entry.outbound.extract_if(.., |sa| sa.spi() == spi) {
            unshow(&mut self.shown, (entry.ends.peer, spi), number);
            entry.totals.outbound_leaves(sa);
            self.leaving.insert(number);
        }
    }

    /// Adds up what SAs have counted that no worker uses any more.
    pub(super) fn settle(&mut self) {
        let (entries, names) = (&mut self.entries, &self.names);
        self.given.settle(|route, outbound, more| {
            let number = names.get(route).copied();
            let entry = number.and_then(|number| entries.get_mut(number)?.as_mut());
            if let Some(entry) = entry {
                entry.totals.add(outbound, more);
            }
        });
        self.leaving
            .retain(|&number| match entries.get_mut(number) {
                Some(Some(entry)) => !entry.totals.settle(),
                _ => false,
            });
    }

    /// Returns true if some of those are still in use.
    pub(super) fn are_leaving(&self) -> bool {
        !self.leaving.is_empty() || self.given.are_leaving()
    }

    /// Returns the counters of drops of all routes.
    pub(super) fn drops(&self) -> DropTable {
        let drops = |entry: &Option<Entry>| Some(Arc::clone(&entry.as_ref()?.totals.drops));
        self.entries.iter().map(drops).collect()
    }

    pub(super) fn entry(&self, number: usize) -> Option<&Entry> {
        self.entries.get(number)?.as_ref()
    }

    pub(super) fn entry_mut(&mut self, number: usize) -> Option<&mut Entry> {
        self.entries.get_mut(number)?.as_mut()
    }

    /// By number, with gaps.
    pub(super) fn entries(&self) -> &[Option<Entry>] {
        &self.entries
    }

    /// In the order of the file.
    pub(super) fn in_order(&self) -> impl Iterator<Item = (usize, &Entry)> {
        let entry = |&number: &usize| Some((number, self.entry(number)?));
        self.order.iter().filter_map(entry)
    }

    pub(super) fn prefixes(&self) -> impl Iterator<Item = (IpNet, u32)> + '_ {
        self.in_order().flat_map(|(number, entry)| {
            let prefixes = entry.config.prefixes.iter();
            prefixes.map(move |prefix| (*prefix, number as u32))
        })
    }

    /// Returns the SA that sends such packets to a peer.
    pub(super) fn shown(&self, peer: IpAddr, spi: u32) -> Option<&Shown> {
        self.shown.get(&(peer, spi))
    }

    /// Returns true if any route has an outbound SA.
    pub(super) fn has_outbound(&self) -> bool {
        !self.shown.is_empty()
    }

    /// Notes the numbers that outbound SAs have used.
    pub(super) fn sample(&mut self) {
        for shown in self.shown.values_mut() {
            shown.samples = [shown.samples[1], shown.sa.last_number()];
        }
    }

    /// Returns the routes of a plan for the key exchange.
    pub(super) fn exchanged(config: &Config, plan: &Plan) -> Vec<RouteKeys> {
        let keys = |(route, (number, ends)): (&config::Route, &(usize, Ends))| match &route.keys {
            Keys::Exchange {
                preshared_key,
                spi,
                aead,
            } => Some(RouteKeys {
                route: *number,
                spi: *spi,
                psk: preshared_key.clone(),
                aead: *aead,
                local: ends.seen,
                remote: ends.peer,
            }),
            Keys::Manual { .. } => None,
        };
        config
            .routes
            .iter()
            .zip(&plan.places)
            .filter_map(keys)
            .collect()
    }
}

/// Another route may show the same by now.
fn unshow(shown: &mut HashMap<(IpAddr, u32), Shown>, what: (IpAddr, u32), number: usize) {
    if shown.get(&what).is_some_and(|shown| shown.route == number) {
        shown.remove(&what);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::dataplane::WorkerGroup;

    /// Takes over a configuration of one route with manual keys.
    fn configure(routes: &mut Routes, key: u32, more: &str) {
        let text = format!(
            "private-interface {{ ifname a; ip4 192.0.2.1; nexthop-ip4 192.0.2.2; }}
             public-interface {{ ifname b; ip4 203.0.113.1; nexthop-ip4 203.0.113.2; }}
             route {{ id a; gw-ip4 203.0.113.2; net \"10.0.0.0/8\"; {more}
                 inbound-sa {{ spi 300; aead aes-128-gcm; key {:032x}; salt 01020304; }}
                 outbound-sa {{ spi 300; aead aes-128-gcm; key {:032x}; salt 01020304; }} }}",
            2 * key,
            2 * key + 1
        );
        let config = Config::parse("a", text.as_bytes()).unwrap().0;
        let plan = routes.plan(&config).unwrap();
        routes.commit(&config, plan);
        routes.settle();
        assert!(!routes.are_leaving());
    }

    #[test]
    fn ivs_of_a_manual_key_go_on_whatever_the_clock_says_while_the_process_runs() {
        // Ahead by a minute at the start, set back, set back far, ahead again.
        let clocks: [fn() -> Duration; 4] = [
            || Duration::from_secs(1_800_000_060),
            || Duration::from_secs(1_800_000_000),
            || Duration::from_secs(1_700_000_000),
            || Duration::from_secs(1_800_003_600),
        ];
        let (_, worker) = WorkerGroup::sole();
        let mut routes = Routes::default();
        let (mut highest, mut taken) = (1_800_000_060 * 62_500_000, 0);
        let start = highest;
        for (turn, clock) in (0u64..).zip(clocks) {
            routes.given.since_1970 = clock;
            // Another window: another SA with the same key.
            configure(
                &mut routes,
                1,
                ["window 64;", "window 128;"][turn as usize % 2],
            );
            let (_, entry) = routes.in_order().next().unwrap();
            let sa = &entry.outbound[0];
            let iv = |number| sa.sent().iv_base + number;
            let first = iv(sa.take(5_000_000, &worker).unwrap());
            assert!(first > highest, "{turn}: {first} is not behind {highest}");
            highest = iv(sa.last_number());
            // They are ahead of the start by what was sent and the margins, and by no more.
            taken += 5_000_000;
            assert_eq!(highest - start, taken + turn * MARGIN);
        }
        // A key that was never used begins at the time.
        configure(&mut routes, 2, "");
        let (_, entry) = routes.in_order().next().unwrap();
        assert_eq!(entry.outbound[0].sent().iv_base, 1_800_003_600 * 62_500_000);
    }

    #[test]
    fn manual_keys_that_are_gone_leave_their_numbers_alone() {
        let mut routes = Routes::default();
        for key in 1..=1000 {
            configure(&mut routes, key, "");
        }
        let used = routes.given.export();
        assert_eq!([used.outbound.len(), used.inbound.len()], [999; 2]);
    }

    #[test]
    fn a_number_is_recent_after_the_sample_and_up_to_the_last_also_over_the_lower_half() {
        for since in [0, 5, (1 << 32) - 50, 1 << 32, (7 << 32) - 1] {
            for sent in [0, 1, 100] {
                let last: u64 = since + sent;
                for number in since.saturating_sub(200)..last + 200 {
                    let wanted = number > since && number <= last;
                    let found = is_recent(last, since, number as u32);
                    assert_eq!(found, wanted, "{number} of {since} to {last}");
                }
            }
        }
    }
}
