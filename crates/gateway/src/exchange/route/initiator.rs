//! The initiator's part of a route: a negotiation that this side begins.

use std::collections::VecDeque;
use std::time::Duration;

use tare_sim::Instant;

use super::super::candidates::{Candidate, Candidates, Wanted};
use super::super::counters::DropReason;
use super::super::handshake::{KeyPair, Proposed, Terms};
use super::super::limits::within;
use super::super::mark::{Context, Number};
use super::super::message::{Body, Noise, Nonce};
use super::super::sas::Pair;
use super::super::shared::Shared;
use super::super::sightings::Search;
use super::super::{Event, SaKeys};
use super::{Phase, Route};

/// A negotiation that this side has begun.
pub(super) struct Initiator {
    pub(super) begun: Instant,
    pub(super) deadline: Instant,
    pub(super) resend: Instant,
    /// Until when it counts as fresh, if it still does.
    pub(super) fresh: Option<Instant>,
    pub(super) candidates: Candidates,
    pub(super) search: Search,
    /// The numbers of the last knocks.
    pub(super) knocks: VecDeque<Number>,
}

/// Knocks that a challenge may answer: it comes within two seconds.
const KNOCKS: usize = 4;

impl Initiator {
    /// Notes a knock.
    pub(super) fn knocks(&mut self, number: Number) {
        if self.knocks.len() == KNOCKS {
            self.knocks.pop_front();
        }
        self.knocks.push_back(number);
    }
}

impl Route {
    /// As initiator: answers a challenge with a proposal, if it may be the peer's.
    pub(super) fn challenged(
        &mut self,
        now: Instant,
        bytes: &[u8],
        nonce: &Nonce,
        shared: &mut Shared,
        events: &mut Vec<Event>,
    ) -> Result<(), DropReason> {
        let (marker, from, to) = (&self.marker, self.keys.remote, self.keys.local);
        let (Phase::Negotiating(own), Some(spi)) = (&mut self.phase, self.spi) else {
            return Err(self.stray(now));
        };
        let is_marked = own
            .knocks
            .iter()
            .any(|answers| marker.is_on(bytes, Context { from, to, answers }));
        // A peer that makes marks is expected to go on, unless it stopped answering.
        let is_credible = is_marked || !self.peer_marks || self.failures > 0;
        let wanted = match is_credible {
            true => own.candidates.wants(nonce, is_marked),
            false => Wanted::No,
        };
        let name = shared.name_of(self.keys.route, nonce);
        let mut followed = None;
        if wanted == Wanted::IfItFollowsKnocks {
            let ttl = shared.timers.negotiation_ttl;
            followed = shared.sightings().see(now, name, &own.search, ttl);
        }
        if wanted != Wanted::Yes && followed.is_none() {
            return Err(match is_marked {
                true => DropReason::Unexpected,
                false => self.stray(now),
            });
        }
        let limits = match is_marked {
            true => &mut self.marked,
            false => &mut self.unmarked,
        };
        within(&mut limits.challenges, now)
            .inspect_err(|_| followed.into_iter().for_each(|n| own.search.crowded(n)))?;
        if !is_marked {
            within(&mut shared.source(self.keys.remote).handshakes, now)?;
        }
        let terms = Terms {
            spi: self.keys.spi,
            initiator: self.keys.local,
            responder: self.keys.remote,
            aead: self.keys.aead,
            nonce,
            psk: &self.keys.psk,
        };
        let (mask, ephemeral) = (shared.seed(), shared.seed());
        let proposed = Proposed::new(&terms, spi, mask, ephemeral, &mut shared.counters)?;
        let ttl = shared.timers.negotiation_ttl;
        if followed.is_none() {
            own.deadline = now + ttl;
            own.resend = now + ttl / 20;
            own.fresh = own.fresh.map(|_| own.deadline);
        }
        let proposal = proposed.proposal;
        if followed.is_some() {
            shared.sightings().answered(name);
        }
        own.candidates.add(Candidate {
            nonce: *nonce,
            is_marked,
            proposed: Box::new(proposed),
            since: now,
        });
        shared.counters.challenges += 1;
        self.offered = true;
        events.push(self.send(Body::Proposal(&proposal), nonce, shared));
        Ok(())
    }

    /// As initiator: takes the agreement, from which the pair of SAs follows. One that is not
    /// authentic changes nothing, so a forged one does not end the negotiation.
    pub(super) fn agreed(
        &mut self,
        now: Instant,
        bytes: &[u8],
        agreement: &Noise,
        shared: &mut Shared,
        events: &mut Vec<Event>,
    ) -> Result<(), DropReason> {
        let (marker, from, to) = (&self.marker, self.keys.remote, self.keys.local);
        let answers = |candidate: &Candidate| {
            let answers = &candidate.proposed.proposal;
            marker.is_on(bytes, Context { from, to, answers })
        };
        let (Phase::Negotiating(own), Some(inbound)) = (&mut self.phase, self.spi) else {
            return Err(self.stray(now));
        };
        if own.candidates.is_empty() {
            return Err(self.stray(now));
        }
        let is_marked = own.candidates.iter().any(answers);
        let limits = match is_marked {
            true => &mut self.marked,
            false => &mut self.unmarked,
        };
        within(&mut limits.agreements, now)?;
        let mut accepted = Err(DropReason::Unexpected);
        for candidate in own.candidates.iter_mut() {
            if is_marked && !answers(candidate) {
                continue;
            }
            if !is_marked {
                within(&mut shared.source(from).handshakes, now)?;
            }
            let outcome = candidate.proposed.accept(agreement, &mut shared.counters);
            accepted = outcome.map(|agreed| (agreed, candidate.since));
            if accepted.is_ok() {
                break;
            }
        }
        let ((outbound, keys), since) = accepted?;
        limits.agreements.give_back();
        shared.counters.agreements += 1;
        shared.took.record_duration(now.since(own.begun));
        let KeyPair {
            initiator,
            responder,
        } = keys;
        let pair = Pair {
            inbound: SaKeys {
                spi: inbound,
                key: initiator,
            },
            outbound: SaKeys {
                spi: outbound,
                key: responder,
            },
            confirmed: true,
            doubt: self.failures > 0,
            since,
        };
        self.stop(shared);
        (self.spi, self.offered) = (None, false);
        (self.failures, self.peer_marks) = (0, is_marked);
        self.sas.add(now, self.keys.route, pair, shared, events);
        Ok(())
    }

    /// Returns until when a negotiation is left to the peer, if it is.
    ///
    /// A flood of agreements can hide the one of a peer that makes no marks, which has SAs then
    /// that this side does not have. Where the peer begins, nothing depends on messages that take a
    /// Diffie-Hellman operation to check. So it gets a quarter of the life of an SA to do so.
    pub(super) fn leave_to_peer(&self, now: Instant, shared: &Shared) -> Option<Instant> {
        let (due, second) = (self.sas.rekey(), Duration::from_secs(1));
        // An SA is missing, or the peer has one that this side does not have.
        if due == Instant::ZERO || self.offered {
            return None;
        }
        let is_flooded = self.flooded.is_some_and(|at| now.since(at) < second);
        let limit = due + shared.timers.sa_ttl / 4;
        (is_flooded && !self.peer_marks && now < limit).then(|| limit.min(now + second))
    }

    /// Begins the negotiation that waited for its turn.
    pub(crate) fn begin(&mut self, now: Instant, shared: &mut Shared, events: &mut Vec<Event>) {
        if !matches!(self.phase, Phase::Waiting) {
            return;
        }
        self.phase = Phase::Idle;
        if !self.offered && self.sas.rekey() > now {
            return;
        }
        if self.spi.is_none() {
            self.spi = Some(shared.take_spi(self.keys.route));
        }
        let ttl = shared.timers.negotiation_ttl;
        let number = self.marker.number(now, shared.counters.sent);
        self.phase = Phase::Negotiating(Box::new(Initiator {
            begun: now,
            deadline: now + ttl,
            // A peer that seems to be gone is not asked more often than Vita would.
            resend: if self.failures < 3 || self.hears(now, shared) {
                now + ttl / 20
            } else {
                Instant::NEVER
            },
            fresh: Some(now + ttl / 5),
            candidates: Candidates::default(),
            search: Search::new(now),
            knocks: VecDeque::from([number]),
        }));
        shared.fresh += 1;
        shared.counters.negotiations += 1;
        events.push(self.knock(number, shared));
    }
}
