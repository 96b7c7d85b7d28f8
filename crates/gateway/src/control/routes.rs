//! Routes and their SAs, by numbers that a route keeps for as long as it does not change.

mod handover;

use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use tare_gcm::Key;

use crate::config::{self, Config, Keys, SaKey};
use crate::dataplane::{InboundSa, OutboundSa, Outer, SequenceMode};
use crate::exchange::{RouteKeys, SaKeys};
use handover::{Direction, SecretKeys};

/// Packets that workers may still send with the SA before a change, when the SA after it has the
/// same given key.
const MARGIN: u64 = 1 << 20;

/// A route with its SAs.
pub(super) struct Entry {
    pub(super) config: config::Route,
    ends: Ends,
    /// Workers take these in turn.
    pub(super) outbound: Vec<Arc<OutboundSa>>,
    pub(super) inbound: Vec<Inbound>,
    secrets: SecretKeys,
}

pub(super) struct Inbound {
    pub(super) sa: Arc<InboundSa>,
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

    /// Returns true if SAs of this route are valid for the other one.
    fn is(&self, other: &config::Route, ends: &Ends) -> bool {
        let ours = &self.config;
        self.ends == *ends
            && (ours.esn, ours.window) == (other.esn, other.window)
            && ours.keys == other.keys
    }
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
    /// Numbers by what an outer packet of the route shows: the peer and the SPI.
    shown: HashMap<(IpAddr, u32), usize>,
    given: Given,
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
        let mut gone = 0;
        for (number, _) in kept.iter().enumerate().filter(|(_, kept)| !**kept) {
            gone += usize::from(self.remove(number));
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
                    self.insert(number, route, ends);
                }
            }
        }
        let entries = &self.entries;
        self.free = (0..entries.len())
            .filter(|&n| entries[n].is_none())
            .collect();
        (added, gone)
    }

    fn remove(&mut self, number: usize) -> bool {
        let Some(entry) = self.entries[number].take() else {
            return false;
        };
        for sa in &entry.outbound {
            self.shown.remove(&(entry.ends.peer, sa.spi()));
            if let Keys::Manual { outbound, .. } = &entry.config.keys {
                self.given.remember(&outbound.key, sa);
            }
        }
        true
    }

    fn insert(&mut self, number: usize, route: &config::Route, ends: Ends) {
        self.entries[number] = Some(Entry {
            config: route.clone(),
            ends,
            outbound: Vec::new(),
            inbound: Vec::new(),
            secrets: SecretKeys::default(),
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
        go_on(&mut sa);
        entry.secrets.set(Direction::In, spi, key);
        entry.inbound.push(Inbound {
            seen: sa.packets(),
            sa: Arc::new(sa),
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
        // Negotiated keys are new and have nothing to follow.
        self.given.follow(key, &mut sa);
        go_on(&mut sa);
        let sa = Arc::new(sa);
        let place = entry
            .outbound
            .iter()
            .position(|sa| Some(sa.spi()) == replaces);
        match place {
            Some(place) => {
                let before = std::mem::replace(&mut entry.outbound[place], sa);
                unshow(&mut self.shown, (entry.ends.peer, before.spi()), number);
                entry.secrets.remove(Direction::Out, before.spi());
            }
            None => entry.outbound.push(sa),
        }
        entry.secrets.set(Direction::Out, spi, key);
        self.shown.insert((entry.ends.peer, spi), number);
    }

    /// Accepts packets under these keys too.
    pub(super) fn add_inbound(&mut self, number: usize, keys: &SaKeys) {
        self.install_inbound(number, keys.spi, &keys.key);
    }

    /// Sends packets of the route under these keys, in place of those of another SA where there is
    /// one to replace.
    pub(super) fn set_outbound(&mut self, number: usize, keys: &SaKeys, replaces: Option<u32>) {
        self.install_outbound(number, keys.spi, &keys.key, replaces);
    }

    pub(super) fn remove_inbound(&mut self, number: usize, spi: u32) {
        if let Some(entry) = self.entry_mut(number) {
            entry.inbound.retain(|inbound| inbound.sa.spi() != spi);
            entry.secrets.remove(Direction::In, spi);
        }
    }

    /// Removes the outbound SA with this SPI.
    pub(super) fn remove_outbound(&mut self, number: usize, spi: u32) {
        let Some(Some(entry)) = self.entries.get_mut(number) else {
            return;
        };
        let before = entry.outbound.len();
        entry.outbound.retain(|sa| sa.spi() != spi);
        entry.secrets.remove(Direction::Out, spi);
        if entry.outbound.len() < before {
            unshow(&mut self.shown, (entry.ends.peer, spi), number);
        }
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

    /// The route of the SA that sends such packets to a peer.
    pub(super) fn shown(&self, peer: IpAddr, spi: u32) -> Option<usize> {
        self.shown.get(&(peer, spi)).copied()
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
fn unshow(shown: &mut HashMap<(IpAddr, u32), usize>, what: (IpAddr, u32), number: usize) {
    if shown.get(&what) == Some(&number) {
        shown.remove(&what);
    }
}

/// Outbound SAs with given keys that were in use and are not any more. One that comes back goes on
/// counting where it stopped: a number used twice would give the key away.
#[derive(Default)]
struct Given {
    hasher: RandomState,
    last: HashMap<u64, Vec<(SaKey, Arc<OutboundSa>)>>,
}

impl Given {
    fn remember(&mut self, key: &SaKey, sa: &Arc<OutboundSa>) {
        let same = self
            .last
            .entry(self.hasher.hash_one(key.key()))
            .or_default();
        same.retain(|(other, _)| other != key);
        same.push((key.clone(), Arc::clone(sa)));
    }

    fn follow(&self, key: &SaKey, sa: &mut OutboundSa) {
        let same = self.last.get(&self.hasher.hash_one(key.key()));
        for (other, earlier) in same.into_iter().flatten() {
            if other == key {
                sa.follow(earlier, MARGIN);
            }
        }
    }
}
