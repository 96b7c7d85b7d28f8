//! Routes and their SAs, for another process.

use std::collections::HashSet;

use super::{Entry, Inbound, Keys, OutboundSa, Routes};
use crate::clock::MonotonicClock;
use crate::config::SaKey;
use crate::dataplane::{Highest, InboundSa};
use crate::exchange::Exchange;
use crate::handover::{InboundState, OutboundState, RouteState, Terms, Used, RESERVED};

/// The keys of the SAs of a route: data planes have them expanded only.
#[derive(Default)]
pub(super) struct SecretKeys(Vec<(Direction, u32, SaKey)>);

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Direction {
    In,
    Out,
}

impl SecretKeys {
    /// Adds the key of an SA, in place of another one's with the same SPI.
    pub(super) fn set(&mut self, direction: Direction, spi: u32, key: &SaKey) {
        self.remove(direction, spi);
        self.0.push((direction, spi, key.clone()));
    }

    pub(super) fn remove(&mut self, direction: Direction, spi: u32) {
        self.0.retain(|(d, s, _)| (*d, *s) != (direction, spi));
    }

    pub(super) fn get(&self, direction: Direction, spi: u32) -> Option<&SaKey> {
        let mut all = self.0.iter();
        let found = all.find(|(d, s, _)| (*d, *s) == (direction, spi));
        found.map(|(_, _, key)| key)
    }
}

impl Entry {
    fn terms(&self) -> Terms {
        let exchange = match &self.config.keys {
            Keys::Exchange {
                preshared_key,
                spi,
                aead,
            } => Some((preshared_key.clone(), *spi, *aead)),
            Keys::Manual { .. } => None,
        };
        Terms {
            addresses: [self.ends.own, self.ends.seen, self.ends.peer],
            esn: self.config.esn,
            window: self.config.window,
            exchange,
        }
    }

    fn export(&self, number: usize, exchange: &Exchange, clock: &MonotonicClock) -> RouteState {
        let negotiated = exchange.export(number);
        let manual = negotiated.is_none();
        let negotiated = negotiated.unwrap_or_default();
        let inbound = self.inbound.iter().filter_map(|Inbound { sa, .. }| {
            let life = negotiated.inbound.iter().find(|life| life.spi == sa.spi());
            (manual || life.is_some()).then_some(InboundState {
                spi: sa.spi(),
                key: self.secrets.get(Direction::In, sa.spi())?.clone(),
                opened: sa.opened(),
                life: life.copied(),
            })
        });
        let outbound = self.outbound.iter().filter_map(|sa| {
            let mut lives = negotiated.outbound.iter();
            let life = lives.find(|life| life.spi == sa.spi());
            (manual || life.is_some()).then_some(OutboundState {
                spi: sa.spi(),
                key: self.secrets.get(Direction::Out, sa.spi())?.clone(),
                sent: sa.sent(),
                life: life.copied(),
            })
        });
        RouteState {
            id: self.config.id.clone(),
            terms: self.terms(),
            inbound: inbound.collect(),
            outbound: outbound.collect(),
            pending: negotiated.pending.clone(),
            handshake: self.handshake.map(|at| clock.outside(at)),
            counters: serde_json::to_string(&self.counters()).unwrap_or_default(),
        }
    }

    /// Goes on with the counters of another process.
    fn go_on(&mut self, counters: &str) {
        if let Ok(counted) = serde_json::from_str(counters) {
            let present = self.counters();
            self.totals.go_on(&counted, &present);
        }
    }
}

impl Routes {
    /// Returns the routes, and how far manual keys were used that are in use no more.
    pub(in crate::control) fn export(
        &self,
        exchange: &Exchange,
        clock: &MonotonicClock,
    ) -> (Vec<RouteState>, Used) {
        let routes = self.in_order();
        let routes = routes.map(|(number, entry)| entry.export(number, exchange, clock));
        (routes.collect(), self.given.export())
    }

    /// Remembers how far manual keys were used, and has the SAs that were made with these keys
    /// begin after that. To be called before any SA is used.
    pub(in crate::control) fn import_given(&mut self, routes: &[RouteState], used: &Used) {
        self.given.import(used);
        for route in routes.iter().filter(|route| route.terms.exchange.is_none()) {
            for sa in &route.outbound {
                let digest = self.given.outbound_digest(&sa.key);
                self.given.outbound.remember(digest, sa.sent.highest());
            }
            for sa in &route.inbound {
                let digest = self.given.inbound_digest(&sa.key, sa.spi, route.terms.esn);
                let highest = Highest {
                    number: sa.opened.received.top,
                    iv_base: 0,
                };
                self.given.inbound.remember(digest, highest);
            }
        }
        for number in 0..self.entries.len() {
            let keys = self.entry(number).map(|entry| entry.config.keys.clone());
            if let Some(Keys::Manual { inbound, outbound }) = keys {
                for sa in inbound {
                    self.remove_inbound(number, sa.spi);
                    self.install_inbound(number, sa.spi, &sa.key);
                }
                self.install_outbound(number, outbound.spi, &outbound.key, Some(outbound.spi));
            }
        }
    }

    /// Takes over the SAs of a route, if one of that name exists for which they are valid: of
    /// negotiated ones those that the exchange keeps, with `keep`, and of manual ones those whose
    /// keys are the same. Returns the number of the route. One of that name goes on counting in any
    /// case.
    pub(in crate::control) fn import(
        &mut self,
        state: &RouteState,
        keep: impl FnOnce(usize) -> Vec<u32>,
    ) -> Option<usize> {
        let number = *self.names.get(&state.id)?;
        let is_same = self.entry(number)?.terms() == state.terms;
        if is_same {
            self.import_sas(number, state, keep);
        }
        self.entry_mut(number)?.go_on(&state.counters);
        is_same.then_some(number)
    }

    fn import_sas(
        &mut self,
        number: usize,
        state: &RouteState,
        keep: impl FnOnce(usize) -> Vec<u32>,
    ) {
        let manual = state.terms.exchange.is_none();
        let kept: HashSet<u32> = keep(number).into_iter().collect();
        let same = |entry: &Entry, direction, spi, key| {
            entry.secrets.get(direction, spi).is_some_and(|k| k == key)
        };
        for sa in &state.inbound {
            let Some(entry) = self.entry_mut(number) else {
                return;
            };
            if manual {
                if !same(entry, Direction::In, sa.spi, &sa.key) {
                    continue;
                }
                self.remove_inbound(number, sa.spi);
            } else if !kept.contains(&sa.spi) {
                continue;
            }
            let go_on = |new: &mut InboundSa| new.go_on(&sa.opened);
            self.install_inbound_as(number, sa.spi, &sa.key, go_on);
        }
        for sa in &state.outbound {
            let Some(entry) = self.entry_mut(number) else {
                return;
            };
            if manual && !same(entry, Direction::Out, sa.spi, &sa.key) {
                continue;
            }
            let go_on = |new: &mut OutboundSa| new.go_on(&sa.sent, RESERVED);
            let replaces = manual.then_some(sa.spi);
            self.install_outbound_as(number, sa.spi, &sa.key, replaces, go_on);
        }
        if let Some(entry) = self.entry_mut(number) {
            entry.handshake = state.handshake;
        }
    }
}
