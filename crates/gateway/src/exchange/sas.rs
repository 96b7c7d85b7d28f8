//! The SAs of one route: those outbound that its workers use, those that wait to take their place,
//! and up to four inbound for each.

pub(crate) mod handover;

use std::collections::VecDeque;
use std::time::Duration;

use tare_sim::Instant;

use super::shared::Shared;
use super::{Event, SaKeys, Timers};

/// Inbound SAs for each outbound one. As many as Vita keeps: what peers may use while they change
/// over, on both sides at once.
pub(crate) const MAX_INBOUND: usize = 4;

/// Dummy packets that prove an SA, at most, and the interval between them.
const PROOFS: u32 = 5;
const PROOF_INTERVAL: Duration = Duration::from_millis(200);

pub(crate) struct Sas {
    /// Outbound SAs to be used at a time.
    pub(crate) wanted: usize,
    /// Oldest first.
    pub(crate) inbound: VecDeque<Inbound>,
    /// In use.
    pub(crate) outbound: Vec<Outbound>,
    /// Oldest first.
    pub(crate) queue: VecDeque<Queued>,
    /// True if new keys are to be negotiated early.
    pub(crate) renew: bool,
    /// The time of this side's last successful negotiation as initiator.
    own: Option<Instant>,
    proof: Option<Proof>,
}

/// An SA that is in use and of which the peer is to know that.
struct Proof {
    /// The SPI of the inbound SA that was negotiated with it: a packet there shows that the peer
    /// knows.
    partner: u32,
    next: Instant,
    left: u32,
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
    /// True if it is to be used no longer: it has expired, or the peer does not have it any more.
    lost: bool,
}

/// An outbound SA that is not used yet.
pub(crate) struct Queued {
    keys: SaKeys,
    /// The SPI of the inbound SA that was negotiated with it.
    partner: u32,
    /// True if the peer is known to have it: as initiator always, as responder once the peer has
    /// used the partner.
    confirmed: bool,
    /// True if the peer seems to have none of the earlier SAs.
    anew: bool,
    /// The time at which the peer was first seen to use one of those.
    continued: Option<Instant>,
    since: Instant,
    expires: Instant,
    rekey: Instant,
    activate: Instant,
}

/// The result of a negotiation.
pub(crate) struct Pair {
    pub(crate) inbound: SaKeys,
    pub(crate) outbound: SaKeys,
    pub(crate) confirmed: bool,
    /// True if the peer may have restarted, because it asked or did not answer before.
    pub(crate) doubt: bool,
    /// The earliest time at which the peer may have installed its end of the outbound SA.
    pub(crate) since: Instant,
}

impl Sas {
    /// Creates the state of a route that is to use so many outbound SAs.
    pub(crate) fn new(wanted: usize) -> Sas {
        Sas {
            wanted,
            inbound: VecDeque::new(),
            outbound: Vec::new(),
            queue: VecDeque::new(),
            renew: false,
            own: None,
            proof: None,
        }
    }

    /// Installs the inbound SA and queues the outbound one.
    ///
    /// A peer that negotiates an SPI anew has lost what it negotiated under it before, or never had
    /// it because the agreement was lost: both SAs of that pair go.
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
            doubt,
            since,
        } = pair;
        let timers = shared.timers;
        // The peer counts the life of its end from a moment that may be later, and its data plane
        // may take over the next SA seconds later still (Vita's: up to two). Without this grace its
        // packets of that time were lost where SAs live for 20 s.
        let expires = now + timers.sa_ttl + timers.negotiation_ttl;
        let new = Inbound {
            spi: inbound.spi,
            partner: outbound.spi,
            since: now,
            expires,
        };
        events.push(Event::InstallInbound {
            route,
            keys: inbound,
            expires: shared.clock.outside(expires),
        });
        let partner = new.spi;
        let stale = |sa: &Inbound| sa.partner == outbound.spi;
        let most = MAX_INBOUND * self.wanted;
        let mut kept = VecDeque::with_capacity(most + 1);
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
        while self.inbound.len() > most {
            if let Some(oldest) = self.inbound.pop_front() {
                shared.counters.inbound_displaced += 1;
                shared.remove_inbound(route, oldest.spi, events);
            }
        }
        self.queue.retain(|queued| queued.keys.spi != outbound.spi);
        let same = self.outbound.iter_mut();
        same.filter(|sa| sa.spi == outbound.spi)
            .for_each(|sa| sa.lost = true);
        if self.queue.len() == most {
            self.queue.pop_front();
        }
        // Both sides want several SAs if both have several workers, so a peer that asks right after
        // this side did has not restarted.
        let soon = timers.negotiation_ttl * 5 / 2;
        let answered = !confirmed && self.own.is_some_and(|own| now.since(own) < soon);
        if confirmed {
            self.own = Some(now);
        }
        let half = timers.sa_ttl / 2;
        let rekey = now + half + shared.jitter(timers.sa_ttl / 8);
        self.queue.push_back(Queued {
            keys: outbound,
            partner,
            confirmed,
            anew: doubt && !answered,
            continued: None,
            since: now,
            expires: since + timers.sa_ttl,
            rekey,
            activate: now + timers.activation(),
        });
        self.renew = false;
    }

    /// Does what is due: the ends of lives, and the change to the next outbound SAs.
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
        let ended = self.outbound.iter_mut().filter(|sa| sa.expires <= now);
        ended.for_each(|sa| sa.lost = true);
        while self.activate(now, route, shared, events) {}
        self.outbound.retain(|sa| {
            if sa.lost {
                shared.counters.outbound_expired += u64::from(sa.expires <= now);
                events.push(Event::RemoveOutbound { route, spi: sa.spi });
            }
            !sa.lost
        });
        if let Some(proof) = self.proof.as_mut().filter(|proof| proof.next <= now) {
            events.push(Event::Prove { route });
            proof.next = now + PROOF_INTERVAL;
            proof.left -= 1;
            if proof.left == 0 {
                self.proof = None;
            }
        }
    }

    /// Changes to the youngest queued SA whose time has come, if there is one; without an outbound
    /// SA, the time of all has come. One that the peer may not have waits while there is one that
    /// it has.
    ///
    /// The delay is Vita's: a peer installs its inbound SA when it sends or receives the agreement,
    /// and packets under an SA that it does not have yet would be lost. So the old SA is used until
    /// the peer has surely installed the new one, or until a packet proves it ([`Sas::used`]).
    fn activate(
        &mut self,
        now: Instant,
        route: usize,
        shared: &Shared,
        events: &mut Vec<Event>,
    ) -> bool {
        let none = self.outbound.iter().all(|sa| sa.lost);
        let due = |queued: &Queued| none || queued.activate <= now;
        let confirmed = self.queue.iter().rposition(|q| q.confirmed && due(q));
        let choice = match confirmed {
            None if !self.queue.iter().any(|q| q.confirmed) => self.queue.iter().rposition(due),
            choice => choice,
        };
        let Some(choice) = choice else { return false };
        let younger = self.queue.split_off(choice + 1);
        let next = self.queue.pop_back();
        if next.as_ref().is_some_and(|next| next.anew) {
            self.queue.clear();
        }
        if let Some(next) = next {
            self.install(now, next, route, shared, events);
        }
        // Those before it are still good where something older is in use.
        let short = self.outbound.len() < self.wanted;
        let outbound = &self.outbound;
        self.queue.retain(|queued| {
            let older = |sa: &Outbound| sa.lost || sa.since < queued.since;
            short || outbound.iter().any(older)
        });
        self.queue.extend(younger);
        true
    }

    /// Puts an SA in the place of one that is lost, or adds it if one is missing, or replaces the
    /// oldest; if the peer seems to have restarted, it replaces all older ones.
    fn install(
        &mut self,
        now: Instant,
        next: Queued,
        route: usize,
        shared: &Shared,
        events: &mut Vec<Event>,
    ) {
        let of = |what: &dyn Fn(&Outbound) -> bool| self.outbound.iter().position(what);
        let ages = || self.outbound.iter().map(|sa| sa.since).enumerate();
        let same = of(&|sa| sa.spi == next.keys.spi);
        let place = match same.or_else(|| of(&|sa| sa.lost)) {
            None if self.outbound.len() < self.wanted => None,
            None => ages().min_by_key(|(_, since)| *since).map(|(n, _)| n),
            lost => lost,
        };
        if next.anew {
            let before = self.outbound.iter_mut();
            let before = before.filter(|sa| sa.since < next.since);
            before.for_each(|sa| sa.lost = true);
        }
        let new = Outbound {
            spi: next.keys.spi,
            since: next.since,
            expires: next.expires,
            rekey: next.rekey,
            lost: false,
        };
        let replaces = match place.and_then(|place| self.outbound.get_mut(place)) {
            Some(place) => Some(std::mem::replace(place, new).spi),
            None => {
                // The peer may have older SAs, which this side does not have, and goes on to use
                // them until it sees a packet.
                if self.outbound.is_empty() {
                    self.proof = Some(Proof {
                        partner: next.partner,
                        next: now,
                        left: PROOFS,
                    });
                }
                self.outbound.push(new);
                None
            }
        };
        events.push(Event::InstallOutbound {
            route,
            keys: next.keys,
            replaces,
            expires: shared.clock.outside(next.expires),
        });
    }

    /// Handles the report that a packet was received on an inbound SA.
    ///
    /// On the partner of a queued one it proves that the peer has that too. On an older one it
    /// proves that the peer is alive and may still miss the agreement: a peer that has older SAs
    /// waits before it uses another. Without this, an agreement that is lost just before the old SA
    /// is given up would stop traffic for a negotiation.
    pub(crate) fn used(&mut self, now: Instant, spi: u32, shared: &Shared) {
        let timers = shared.timers;
        self.proof.take_if(|proof| proof.partner == spi);
        if let Some(queued) = self.queue.iter_mut().find(|queued| queued.partner == spi) {
            if !queued.confirmed {
                let soon = now.since(queued.since) < timers.negotiation_ttl;
                queued.anew |= soon && queued.continued.is_none();
            }
            queued.confirmed = true;
            queued.activate = now;
        } else if let Some(first) = self.outbound.iter().map(|sa| sa.expires).min() {
            let limit = first - timers.activation();
            let age = self.inbound.iter().find(|sa| sa.spi == spi);
            let age = age.map(|sa| sa.since);
            for queued in &mut self.queue {
                queued.wait(now + timers.activation(), limit);
                if age.is_some_and(|age| age < queued.since) {
                    // The first report may be of packets that were received before the restart.
                    let first = *queued.continued.get_or_insert(now);
                    queued.anew &= now == first;
                }
            }
        }
    }

    /// The peer seems to miss the agreement: it knocks with a mark, or repeats its proposal. Either
    /// may be a recording, so the wait has a limit.
    pub(crate) fn unsettled(&mut self, now: Instant, shared: &Shared) {
        let timers = shared.timers;
        for queued in &mut self.queue {
            let limit = queued.since + timers.negotiation_ttl * 4;
            queued.wait(now + timers.activation(), limit);
        }
    }

    /// Returns true if the data plane should report which inbound SAs are used.
    pub(crate) fn unconfirmed(&self) -> bool {
        let unsure = |queued: &Queued| !queued.confirmed || queued.anew;
        self.proof.is_some() || self.queue.iter().any(unsure)
    }

    /// Returns the time for negotiating a new pair: never while one is queued, at once if an
    /// outbound SA is missing.
    pub(crate) fn rekey(&self) -> Instant {
        if !self.queue.is_empty() {
            return Instant::NEVER;
        }
        let first = self.outbound.iter().map(|sa| sa.rekey).min();
        match first {
            Some(first) if !self.renew && self.outbound.len() >= self.wanted => first,
            _ => Instant::ZERO,
        }
    }

    /// Returns the time of the next [`Sas::tick`].
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
        let proof = self.proof.iter().map(|proof| proof.next);
        inbound
            .chain(outbound)
            .chain(queued)
            .chain(proof)
            .min()
            .unwrap_or(Instant::NEVER)
    }

    /// Gives the SAs the life that they would have, had they been made with this setting; `before`
    /// is the setting that they have.
    ///
    /// One that is too old by it is replaced now, and ends no earlier than a negotiation and the
    /// change to its result may take. A longer life does not put off the next negotiation: the
    /// peer, whose setting may be the old one still, could give the SA up before.
    pub(crate) fn set_life(&mut self, now: Instant, before: Duration, shared: &mut Shared) {
        let Timers {
            sa_ttl,
            negotiation_ttl,
        } = shared.timers;
        let least = now + negotiation_ttl * 4;
        let end = |expires: &mut Instant| {
            *expires = (*expires - before + sa_ttl).max(least.min(*expires));
        };
        let ratio = sa_ttl.as_secs_f64() / before.as_secs_f64();
        let mut renew = |since: Instant, rekey: &mut Instant| {
            let scaled = since + rekey.since(since).mul_f64(ratio.min(1.0));
            if scaled < *rekey {
                // Not those of all routes at once.
                let soon = now + shared.jitter(negotiation_ttl);
                *rekey = scaled.max(soon).min(*rekey);
            }
        };
        self.inbound.iter_mut().for_each(|sa| end(&mut sa.expires));
        for sa in &mut self.outbound {
            end(&mut sa.expires);
            renew(sa.since, &mut sa.rekey);
        }
        for queued in &mut self.queue {
            end(&mut queued.expires);
            renew(queued.since, &mut queued.rekey);
        }
    }

    /// Removes all.
    pub(crate) fn clear(&mut self, route: usize, shared: &mut Shared, events: &mut Vec<Event>) {
        for sa in self.inbound.drain(..) {
            shared.remove_inbound(route, sa.spi, events);
        }
        for sa in self.outbound.drain(..) {
            events.push(Event::RemoveOutbound { route, spi: sa.spi });
        }
        self.proof = None;
        self.queue.clear();
    }

    /// Removes the inbound SAs whose SPI is reserved now; their traffic has to move.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::SaKey;
    use proptest::prelude::*;
    use std::collections::{BTreeMap, HashSet};

    /// An operation on the SAs of a route.
    #[derive(Clone, Debug)]
    enum Act {
        /// A negotiation, of which the peer is known to have both SAs or not; now and then under an
        /// SPI that it used before, or such that it may have none of the SAs before.
        Add {
            confirmed: bool,
            again: bool,
            doubt: bool,
        },
        /// Seconds pass.
        Wait(u64),
        /// The peer uses one of the inbound SAs.
        Use(usize),
    }

    fn act() -> impl Strategy<Value = Act> {
        prop_oneof![
            (any::<bool>(), prop::bool::weighted(0.2), any::<bool>()).prop_map(
                |(confirmed, again, doubt)| Act::Add {
                    confirmed,
                    again,
                    doubt
                }
            ),
            (0u64..20).prop_map(Act::Wait),
            (0u64..400).prop_map(Act::Wait),
            any::<prop::sample::Index>().prop_map(|which| Act::Use(which.index(16))),
        ]
    }

    proptest! {
        /// Against a model: as many as are wanted, each in the place of one that is lost, of none,
        /// or of the oldest.
        #[test]
        fn the_newest_sa_takes_the_place_of_a_missing_one_or_of_the_oldest(
            wanted in 1usize..5, acts in prop::collection::vec(act(), 1..60),
        ) {
            let timers = Timers::default();
            let entropy = Box::new(|bytes: &mut [u8]| bytes.fill(7));
            let mut shared = Shared::new(timers, wanted, HashSet::new(), entropy);
            let mut sas = Sas::new(wanted);
            let mut now = Instant::ZERO + Duration::from_secs(1);
            let mut spi = 1000;
            // When each was negotiated.
            let mut since = BTreeMap::new();
            let mut model: Vec<u32> = Vec::new();
            for act in acts {
                let mut events = Vec::new();
                let mut renewed = None;
                match act {
                    Act::Add {
                        confirmed,
                        again,
                        doubt,
                    } => {
                        spi += 2;
                        let old = model.first().copied().filter(|_| again);
                        let keys = |spi| SaKeys {
                            spi,
                            key: SaKey::aes_128_gcm(&[1; 16], [2; 4]),
                        };
                        let outbound = old.unwrap_or(spi);
                        since.insert(outbound, now);
                        renewed = old;
                        let pair = Pair {
                            inbound: keys(spi + 1),
                            outbound: keys(outbound),
                            confirmed,
                            doubt,
                            since: now,
                        };
                        sas.add(now, 0, pair, &mut shared, &mut events);
                    }
                    Act::Wait(seconds) => now += Duration::from_secs(seconds),
                    Act::Use(which) => {
                        let used = sas.inbound.get(which).map(|sa| sa.spi);
                        used.into_iter().for_each(|spi| sas.used(now, spi, &shared));
                    }
                }
                sas.tick(now, 0, &mut shared, &mut events);
                for event in events {
                    match event {
                        Event::InstallOutbound { keys, replaces, .. } => {
                            let place = replaces.map(|spi| model.iter().position(|s| *s == spi));
                            match place {
                                Some(place) => {
                                    let place = place.expect("one to replace");
                                    let before = std::mem::replace(&mut model[place], keys.spi);
                                    let lost = renewed == Some(before);
                                    prop_assert!(lost || since[&before] <= since[&keys.spi]);
                                }
                                None => model.push(keys.spi),
                            }
                        }
                        Event::RemoveOutbound { spi, .. } => {
                            let before = model.len();
                            model.retain(|s| *s != spi);
                            prop_assert_eq!(model.len(), before - 1);
                        }
                        _ => {}
                    }
                }
                let spis: Vec<u32> = sas.outbound.iter().map(|sa| sa.spi).collect();
                prop_assert_eq!(&spis, &model);
                prop_assert!(model.len() <= wanted);
                prop_assert_eq!(model.iter().collect::<HashSet<_>>().len(), model.len());
                prop_assert!(sas.inbound.len() <= MAX_INBOUND * wanted);
                prop_assert!(sas.queue.len() <= MAX_INBOUND * wanted);
                // Where there is anything to send under, it is sent under.
                prop_assert!(!model.is_empty() || sas.queue.is_empty());
                // Nothing waits that is older than all that is in use.
                let oldest = sas.outbound.iter().map(|sa| sa.since).min();
                let missing = sas.outbound.len() < wanted;
                prop_assert!(missing || sas.queue.iter().all(|q| Some(q.since) >= oldest));
                // New ones are wanted at once if some are missing and none is under negotiation.
                let at_once = sas.queue.is_empty() && missing;
                prop_assert_eq!(sas.rekey() == Instant::ZERO, at_once);
                prop_assert!(sas.due() > now);
            }
        }
    }
}
