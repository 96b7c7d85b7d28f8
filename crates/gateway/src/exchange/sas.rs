//! The SAs of one route: up to four inbound, one outbound, and those that wait to become the outbound one.

use std::collections::VecDeque;
use std::time::Duration;

use tare_port::Instant;

use super::shared::Shared;
use super::{Event, SaKeys};

/// As many inbound SAs as Vita keeps: what peers may use while they change over, on both sides at once.
pub(crate) const MAX_INBOUND: usize = 4;

#[derive(Default)]
pub(crate) struct Sas {
    /// Oldest first.
    pub(crate) inbound: VecDeque<Inbound>,
    pub(crate) outbound: Option<Outbound>,
    /// Oldest first.
    pub(crate) queue: VecDeque<Queued>,
    /// Whether somebody asked for new keys before the time.
    pub(crate) renew: bool,
}

pub(crate) struct Inbound {
    pub(crate) spi: u32,
    /// The SPI of the outbound SA that was negotiated with it.
    partner: u32,
    pub(crate) since: Instant,
    pub(crate) expires: Instant,
}

pub(crate) struct Outbound {
    pub(crate) spi: u32,
    pub(crate) since: Instant,
    pub(crate) expires: Instant,
    rekey: Instant,
}

/// An outbound SA that is not used yet.
pub(crate) struct Queued {
    keys: SaKeys,
    /// The SPI of the inbound SA that was negotiated with it.
    partner: u32,
    /// Whether the peer is known to have it: as responder always, as initiator once it has used the partner.
    confirmed: bool,
    since: Instant,
    expires: Instant,
    rekey: Instant,
    activate: Instant,
}

/// What a negotiation leaves.
pub(crate) struct Pair {
    pub(crate) inbound: SaKeys,
    pub(crate) outbound: SaKeys,
    pub(crate) confirmed: bool,
    /// When the peer may have installed its end of the outbound SA, at the earliest.
    pub(crate) since: Instant,
}

impl Sas {
    /// Installs the inbound SA and queues the outbound one.
    ///
    /// A peer that negotiates an SPI anew has lost what it negotiated under it before, or never had it because the agreement
    /// was lost: both SAs of that pair go.
    pub(crate) fn add(
        &mut self,
        now: Instant,
        route: usize,
        pair: Pair,
        shared: &mut Shared,
        events: &mut Vec<Event>,
    ) {
        let Pair {
            inbound,
            outbound,
            confirmed,
            since,
        } = pair;
        let timers = shared.timers;
        let expires = now + timers.sa_ttl;
        let new = Inbound {
            spi: inbound.spi,
            partner: outbound.spi,
            since: now,
            expires,
        };
        events.push(Event::InstallInbound {
            route,
            keys: inbound,
            expires: shared.outside(expires),
        });
        let partner = new.spi;
        let stale = |sa: &Inbound| sa.partner == outbound.spi;
        let mut kept = VecDeque::with_capacity(MAX_INBOUND + 1);
        for sa in self.inbound.drain(..) {
            if stale(&sa) {
                shared.counters.outbound_updated += 1;
                shared.remove_inbound(route, sa.spi, events);
            } else {
                kept.push_back(sa);
            }
        }
        self.inbound = kept;
        self.inbound.push_back(new);
        while self.inbound.len() > MAX_INBOUND {
            if let Some(oldest) = self.inbound.pop_front() {
                shared.counters.inbound_displaced += 1;
                shared.remove_inbound(route, oldest.spi, events);
            }
        }
        self.queue.retain(|queued| queued.keys.spi != outbound.spi);
        if self
            .outbound
            .as_ref()
            .is_some_and(|sa| sa.spi == outbound.spi)
        {
            // The next one takes its place at once.
            self.outbound = None;
        }
        if self.queue.len() == MAX_INBOUND {
            self.queue.pop_front();
        }
        let half = timers.sa_ttl / 2;
        let rekey = now + half + shared.jitter(timers.sa_ttl / 8);
        self.queue.push_back(Queued {
            keys: outbound,
            partner,
            confirmed,
            since: now,
            expires: since + timers.sa_ttl,
            rekey,
            activate: now + timers.activation(),
        });
        self.renew = false;
    }

    /// Does what is due: the ends of lives, and the change to the next outbound SA.
    pub(crate) fn tick(
        &mut self,
        now: Instant,
        route: usize,
        shared: &mut Shared,
        events: &mut Vec<Event>,
    ) {
        let before = self.inbound.len();
        self.inbound.retain(|sa| {
            let alive = sa.expires > now;
            if !alive {
                shared.remove_inbound(route, sa.spi, events);
            }
            alive
        });
        shared.counters.inbound_expired += (before - self.inbound.len()) as u64;
        self.queue.retain(|queued| queued.expires > now);
        let expired = self.outbound.take_if(|sa| sa.expires <= now);
        self.activate(now, route, shared, events);
        if let (Some(sa), None) = (expired, &self.outbound) {
            shared.counters.outbound_expired += 1;
            events.push(Event::RemoveOutbound { route, spi: sa.spi });
        }
    }

    /// Changes to the youngest queued SA whose time has come; where there is no outbound SA, all have. One that the peer may
    /// not have waits while there is one that it has.
    fn activate(
        &mut self,
        now: Instant,
        route: usize,
        shared: &mut Shared,
        events: &mut Vec<Event>,
    ) {
        let none = self.outbound.is_none();
        let due = |queued: &Queued| none || queued.activate <= now;
        let confirmed = self.queue.iter().rposition(|q| q.confirmed && due(q));
        let choice = match confirmed {
            None if !self.queue.iter().any(|q| q.confirmed) => self.queue.iter().rposition(due),
            choice => choice,
        };
        let Some(choice) = choice else { return };
        let Some(next) = self.queue.drain(..=choice).next_back() else {
            return;
        };
        self.outbound = Some(Outbound {
            spi: next.keys.spi,
            since: next.since,
            expires: next.expires,
            rekey: next.rekey,
        });
        events.push(Event::InstallOutbound {
            route,
            keys: next.keys,
            expires: shared.outside(next.expires),
        });
    }

    /// A packet was received on an inbound SA. On the partner of a queued one it proves that the peer has that too; on an older
    /// one, that the peer is alive and may still miss the agreement.
    pub(crate) fn used(&mut self, now: Instant, spi: u32, shared: &Shared) {
        let timers = shared.timers;
        if let Some(queued) = self.queue.iter_mut().find(|queued| queued.partner == spi) {
            if !queued.confirmed {
                queued.confirmed = true;
                queued.activate = now;
            }
        } else if let Some(outbound) = &self.outbound {
            let limit = outbound.expires - timers.activation();
            self.queue
                .iter_mut()
                .for_each(|queued| queued.wait(now + timers.activation(), limit));
        }
    }

    /// The peer seems to miss the agreement: it knocks, or repeats its proposal. Anybody can knock, so this has a limit.
    pub(crate) fn unsettled(&mut self, now: Instant, shared: &Shared) {
        let timers = shared.timers;
        for queued in &mut self.queue {
            let limit = queued.since + timers.negotiation_ttl * 4;
            queued.wait(now + timers.activation(), limit);
        }
    }

    /// Whether the data plane should tell which inbound SAs are used.
    pub(crate) fn unconfirmed(&self) -> bool {
        self.queue.iter().any(|queued| !queued.confirmed)
    }

    /// When a new pair should be negotiated: never while one is queued.
    pub(crate) fn rekey(&self) -> Instant {
        match &self.outbound {
            _ if !self.queue.is_empty() => Instant::NEVER,
            Some(sa) if !self.renew => sa.rekey,
            _ => Instant::ZERO,
        }
    }

    /// When there is something to do.
    pub(crate) fn due(&self) -> Instant {
        let confirmed = self.queue.iter().any(|queued| queued.confirmed);
        let inbound = self.inbound.iter().map(|sa| sa.expires);
        let outbound = self.outbound.iter().map(|sa| sa.expires);
        let queued = self.queue.iter().map(|queued| {
            if queued.confirmed || !confirmed {
                queued.activate.min(queued.expires)
            } else {
                queued.expires
            }
        });
        inbound
            .chain(outbound)
            .chain(queued)
            .min()
            .unwrap_or(Instant::NEVER)
    }

    /// Removes all.
    pub(crate) fn clear(&mut self, route: usize, shared: &mut Shared, events: &mut Vec<Event>) {
        for sa in self.inbound.drain(..) {
            shared.remove_inbound(route, sa.spi, events);
        }
        if let Some(sa) = self.outbound.take() {
            events.push(Event::RemoveOutbound { route, spi: sa.spi });
        }
        self.queue.clear();
    }

    /// Removes the inbound SAs whose SPI somebody else needs; their traffic has to move.
    pub(crate) fn evict(&mut self, route: usize, shared: &mut Shared, events: &mut Vec<Event>) {
        let before = self.inbound.len();
        self.inbound.retain(|sa| {
            let free = !shared.is_reserved(sa.spi);
            if !free {
                shared.remove_inbound(route, sa.spi, events);
            }
            free
        });
        self.renew |= self.inbound.len() < before;
    }

    /// The age of the youngest SA pair.
    pub(crate) fn youngest(&self, now: Instant) -> Option<Duration> {
        self.inbound.back().map(|sa| now.since(sa.since))
    }
}

impl Queued {
    /// Puts the change off to `until`, but not beyond `limit`, while the peer may not have the SA.
    fn wait(&mut self, until: Instant, limit: Instant) {
        if !self.confirmed {
            self.activate = self.activate.max(until.min(limit));
        }
    }

    pub(crate) fn spi(&self) -> u32 {
        self.keys.spi
    }

    pub(crate) fn since(&self) -> Instant {
        self.since
    }

    pub(crate) fn expires(&self) -> Instant {
        self.expires
    }
}
