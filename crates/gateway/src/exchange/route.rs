//! One route: its SAs, its part as responder, and its negotiations as initiator.

use std::time::Duration;

use tare_sim::{Instant, TokenBucket};

use super::counters::DropReason;
use super::handshake::{aead_name, Answer, KeyPair, Proposed, Terms};
use super::message::{AeadName, Body, Message, Noise, Nonce, VERSION};
use super::sas::{Pair, Sas};
use super::shared::Shared;
use super::{Event, Negotiation, RouteKeys, SaKeys};

pub(crate) struct Route {
    pub(crate) keys: RouteKeys,
    pub(crate) sas: Sas,
    /// The nonce that the next proposal must contain. It changes when one was accepted, so none is
    /// accepted twice.
    nonce: Nonce,
    /// The last proposal that was accepted, in case that its agreement gets lost.
    answered: Option<Answered>,
    replies: TokenBucket,
    proposals: TokenBucket,
    agreements: TokenBucket,
    phase: Phase,
    /// Of the inbound SA under negotiation. Kept until that succeeds: a peer that made an SA of an
    /// earlier proposal replaces it then.
    pub(super) spi: Option<u32>,
    /// True if a proposal was sent with that SPI.
    pub(super) offered: bool,
    /// Negotiations in a row that ran out of time.
    pub(crate) failures: u32,
    /// No negotiation before.
    resume: Instant,
    /// The time of the earliest entry of the timer queue for this route.
    pub(crate) scheduled: Instant,
}

struct Answered {
    proposal: Noise,
    agreement: Noise,
    until: Instant,
}

enum Phase {
    Idle,
    Waiting,
    Knocking(Times),
    Proposed(Times, Box<Proposed>),
}

/// The times of a negotiation.
struct Times {
    /// The time at which the proposal was first sent.
    since: Instant,
    deadline: Instant,
    resend: Instant,
    /// Until when it counts as fresh, if it still does.
    fresh: Option<Instant>,
}

impl Route {
    pub(crate) fn new(keys: RouteKeys, shared: &mut Shared) -> Route {
        Route {
            keys,
            sas: Sas::new(shared.sas),
            nonce: *shared.seed(),
            answered: None,
            replies: TokenBucket::new(Duration::from_millis(10), 50),
            proposals: TokenBucket::new(Duration::from_millis(1), 100),
            agreements: TokenBucket::new(Duration::from_millis(10), 20),
            phase: Phase::Idle,
            spi: None,
            offered: false,
            failures: 0,
            resume: Instant::ZERO,
            scheduled: Instant::NEVER,
        }
    }

    pub(crate) fn negotiation(&self) -> Negotiation {
        match self.phase {
            Phase::Idle => Negotiation::Idle,
            Phase::Waiting => Negotiation::Waiting,
            Phase::Knocking(_) => Negotiation::Knocking,
            Phase::Proposed(..) => Negotiation::Proposed,
        }
    }

    /// Answers a message that is for this route and from its peer.
    pub(crate) fn receive(
        &mut self,
        now: Instant,
        body: Body<'_>,
        shared: &mut Shared,
        events: &mut Vec<Event>,
    ) -> Result<(), DropReason> {
        match body {
            Body::Knock => self.knocked(now, shared, events),
            Body::Challenge {
                version,
                aead,
                nonce,
            } => self.challenged(now, version, aead, nonce, shared, events),
            Body::Proposal(proposal) => self.proposed(now, proposal, shared, events),
            Body::Agreement(agreement) => self.agreed(now, agreement, shared, events),
        }
    }

    /// As responder: answers a knock with a challenge.
    ///
    /// The challenge is the same for every knock and always goes to the peer, so a flood of forged
    /// knocks costs no memory and does not keep the peer out. It does the work of a cookie (RFC
    /// 7296, 2.6): a proposal must contain the nonce, which only a host that receives the peer's
    /// packets knows, so a blind attacker never gets as far as cryptography.
    fn knocked(
        &mut self,
        now: Instant,
        shared: &mut Shared,
        events: &mut Vec<Event>,
    ) -> Result<(), DropReason> {
        within(&mut self.replies, now)?;
        shared.counters.knocks += 1;
        self.sas.unsettled(now, shared);
        let aead = aead_name(self.keys.aead);
        let challenge = Body::Challenge {
            version: VERSION,
            aead: &aead,
            nonce: &self.nonce,
        };
        events.push(send(&self.keys, challenge, shared));
        Ok(())
    }

    /// As initiator: answers a challenge with a proposal. Challenges are not authentic; a forged
    /// one costs one negotiation.
    fn challenged(
        &mut self,
        now: Instant,
        version: u32,
        aead: &AeadName,
        nonce: &Nonce,
        shared: &mut Shared,
        events: &mut Vec<Event>,
    ) -> Result<(), DropReason> {
        let (Phase::Knocking(times), Some(spi)) = (&self.phase, self.spi) else {
            return Err(DropReason::Unexpected);
        };
        if version != VERSION {
            return Err(DropReason::Version);
        }
        if *aead != aead_name(self.keys.aead) {
            return Err(DropReason::Aead);
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
        let deadline = now + ttl;
        let times = Times {
            since: now,
            deadline,
            resend: now + ttl / 20,
            fresh: times.fresh.map(|_| deadline),
        };
        shared.counters.challenges += 1;
        events.push(send(&self.keys, Body::Proposal(&proposed.proposal), shared));
        self.offered = true;
        self.phase = Phase::Proposed(times, Box::new(proposed));
        Ok(())
    }

    /// As responder: answers a proposal with an agreement, from which the pair of SAs follows.
    fn proposed(
        &mut self,
        now: Instant,
        proposal: &Noise,
        shared: &mut Shared,
        events: &mut Vec<Event>,
    ) -> Result<(), DropReason> {
        // A repeated proposal means that the agreement was lost. The nonce that it contains is used
        // up, so it is not judged again: it gets the same agreement, and the pair of SAs stays one.
        if let Some(answered) = &self.answered {
            if answered.proposal == *proposal && now < answered.until {
                within(&mut self.replies, now)?;
                shared.counters.repeats += 1;
                self.sas.unsettled(now, shared);
                events.push(send(
                    &self.keys,
                    Body::Agreement(&answered.agreement),
                    shared,
                ));
                return Ok(());
            }
        }
        within(&mut self.proposals, now)?;
        let terms = Terms {
            spi: self.keys.spi,
            initiator: self.keys.remote,
            responder: self.keys.local,
            aead: self.keys.aead,
            nonce: &self.nonce,
            psk: &self.keys.psk,
        };
        let answer = Answer::read(&terms, proposal, shared.seed())?;
        let (outbound, inbound) = (answer.spi, shared.take_spi(self.keys.route));
        let ephemeral = shared.seed();
        let (agreement, keys) = answer
            .agree(inbound, ephemeral, &mut shared.counters)
            .inspect_err(|_| {
                shared.spis.remove(&inbound);
            })?;
        // The limit is on proposals that fail, and on nothing that the peer itself sends.
        self.proposals.give_back();
        self.nonce = *shared.seed();
        shared.counters.proposals += 1;
        let KeyPair {
            initiator,
            responder,
        } = keys;
        let pair = Pair {
            inbound: SaKeys {
                spi: inbound,
                key: responder,
            },
            outbound: SaKeys {
                spi: outbound,
                key: initiator,
            },
            confirmed: false,
            doubt: true,
            since: now,
        };
        self.sas.add(now, self.keys.route, pair, shared, events);
        events.push(send(&self.keys, Body::Agreement(&agreement), shared));
        self.answered = Some(Answered {
            proposal: *proposal,
            agreement,
            until: now + shared.timers.negotiation_ttl * 2,
        });
        self.failures = 0;
        Ok(())
    }

    /// As initiator: takes the agreement, from which the pair of SAs follows. One that is not
    /// authentic changes nothing, so a forged one does not end the negotiation.
    fn agreed(
        &mut self,
        now: Instant,
        agreement: &Noise,
        shared: &mut Shared,
        events: &mut Vec<Event>,
    ) -> Result<(), DropReason> {
        let (Phase::Proposed(times, proposed), Some(inbound)) = (&mut self.phase, self.spi) else {
            return Err(DropReason::Unexpected);
        };
        within(&mut self.agreements, now)?;
        let (outbound, keys) = proposed.accept(agreement, &mut shared.counters)?;
        self.agreements.give_back();
        shared.counters.agreements += 1;
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
            since: times.since,
        };
        self.stop(shared);
        (self.spi, self.offered, self.failures) = (None, false, 0);
        self.sas.add(now, self.keys.route, pair, shared, events);
        Ok(())
    }

    /// Does what is due: expiry, retransmission, or the beginning of a negotiation.
    pub(crate) fn tick(&mut self, now: Instant, shared: &mut Shared, events: &mut Vec<Event>) {
        self.sas.tick(now, self.keys.route, shared, events);
        let wanted = self.offered || self.sas.rekey() <= now;
        let (times, again) = match &mut self.phase {
            Phase::Idle if wanted && self.resume <= now => {
                self.phase = Phase::Waiting;
                shared.waiting.push_back(self.keys.route);
                return;
            }
            Phase::Idle | Phase::Waiting => return,
            Phase::Knocking(_) if !wanted => return self.stop(shared),
            Phase::Knocking(times) => (times, Body::Knock),
            Phase::Proposed(times, proposed) => (times, Body::Proposal(&proposed.proposal)),
        };
        if times.deadline <= now {
            return self.failed(now, shared, events);
        }
        if times.fresh.take_if(|until| *until <= now).is_some() {
            shared.fresh = shared.fresh.saturating_sub(1);
        }
        // Retransmission ten times within a negotiation, which Vita does not do: one lost message
        // costs a tenth of `negotiation_ttl` and not the whole of it. A peer that has it already
        // answers as before.
        if times.resend <= now {
            times.resend = now + shared.timers.negotiation_ttl / 10;
            events.push(send(&self.keys, again, shared));
        }
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
        self.phase = Phase::Knocking(Times {
            since: now,
            deadline: now + ttl,
            // A peer that seems to be gone is not asked more often than Vita would.
            resend: if self.failures < 3 {
                now + ttl / 20
            } else {
                Instant::NEVER
            },
            fresh: Some(now + ttl / 5),
        });
        shared.fresh += 1;
        shared.counters.negotiations += 1;
        events.push(send(&self.keys, Body::Knock, shared));
    }

    fn failed(&mut self, now: Instant, shared: &mut Shared, events: &mut Vec<Event>) {
        self.stop(shared);
        self.failures = self.failures.saturating_add(1);
        shared.counters.negotiations_expired += 1;
        let pause = match self.failures {
            0..=2 => Duration::ZERO,
            n => shared.timers.negotiation_ttl * (1 << (n - 3).min(3)),
        };
        self.resume = now + pause + shared.jitter(pause / 4);
        events.push(Event::Unanswered {
            route: self.keys.route,
            failures: self.failures,
        });
    }

    fn stop(&mut self, shared: &mut Shared) {
        if let Phase::Knocking(times) | Phase::Proposed(times, _) = &self.phase {
            shared.fresh = shared
                .fresh
                .saturating_sub(usize::from(times.fresh.is_some()));
        }
        self.phase = Phase::Idle;
    }

    /// Returns the time of the next [`Route::tick`].
    pub(crate) fn due(&self) -> Instant {
        let negotiation = match &self.phase {
            Phase::Idle if self.offered => self.resume,
            Phase::Idle => self.resume.max(self.sas.rekey()),
            Phase::Waiting => Instant::NEVER,
            Phase::Knocking(times) | Phase::Proposed(times, _) => {
                let fresh = times.fresh.unwrap_or(Instant::NEVER);
                times.deadline.min(times.resend).min(fresh)
            }
        };
        negotiation.min(self.sas.due())
    }

    /// Takes over other addresses: SAs stay, and a negotiation that is running begins
    /// anew.
    pub(crate) fn move_to(&mut self, keys: RouteKeys, shared: &mut Shared) {
        if !matches!(self.phase, Phase::Waiting) {
            self.stop(shared);
        }
        self.keys = keys;
        self.nonce = *shared.seed();
        self.answered = None;
        (self.failures, self.resume) = (0, Instant::ZERO);
    }

    /// Gives up the SPIs that are reserved now.
    pub(crate) fn evict(&mut self, shared: &mut Shared, events: &mut Vec<Event>) {
        self.sas.evict(self.keys.route, shared, events);
        if let Some(spi) = self.spi.take_if(|spi| shared.is_reserved(*spi)) {
            shared.spis.remove(&spi);
            self.offered = false;
            if !matches!(self.phase, Phase::Waiting) {
                self.stop(shared);
            }
        }
    }

    /// Removes the route with its SAs and its negotiation.
    pub(crate) fn remove(mut self, shared: &mut Shared, events: &mut Vec<Event>) {
        self.stop(shared);
        if let Some(spi) = self.spi {
            shared.spis.remove(&spi);
        }
        self.sas.clear(self.keys.route, shared, events);
    }
}

fn send(keys: &RouteKeys, body: Body<'_>, shared: &mut Shared) -> Event {
    shared.counters.sent += 1;
    Event::Send {
        route: keys.route,
        from: keys.local,
        to: keys.remote,
        message: Message {
            spi: keys.spi,
            body,
        }
        .emit(),
    }
}

/// Takes a token.
fn within(limit: &mut TokenBucket, now: Instant) -> Result<(), DropReason> {
    limit.take(now).then_some(()).ok_or(DropReason::Rate)
}
