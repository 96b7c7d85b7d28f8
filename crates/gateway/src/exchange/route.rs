//! One route: its SAs, its part as responder, and its negotiations as initiator.

mod initiator;

use std::time::Duration;

use tare_sim::{Instant, TokenBucket};

use super::counters::DropReason;
use super::gate::Gate;
use super::handshake::{aead_name, Answer, KeyPair, Terms};
use super::limits::{within, Limits};
use super::mark::{Context, Marker, Number};
use super::message::{Body, Message, Noise, Nonce, VERSION};
use super::sas::{Pair, Sas};
use super::shared::Shared;
use super::sightings::window;
use super::{Event, Negotiation, RouteKeys, SaKeys};
use initiator::Initiator;

/// The time between two of [`Event::Watch`] while forged proposals arrive.
const WATCH: Duration = Duration::from_secs(5);

pub(crate) struct Route {
    pub(crate) keys: RouteKeys,
    pub(crate) sas: Sas,
    marker: Marker,
    /// True if the last pair was negotiated with marked messages, so that the peer makes them.
    pub(super) peer_marks: bool,
    /// The nonce that the next proposal must contain. It changes when one was accepted, so none is
    /// accepted twice.
    nonce: Nonce,
    /// The first look at proposals with this nonce, from the first unmarked one on.
    gate: Option<Gate>,
    /// The last proposal that was accepted, in case that its agreement gets lost.
    answered: Option<Answered>,
    marked: Limits,
    unmarked: Limits,
    /// Challenges and agreements that were not expected; a few are normal.
    strays: TokenBucket,
    /// The time at which there were last too many of them.
    flooded: Option<Instant>,
    /// The time at which the data plane last reported authentic packets of the peer.
    heard: Option<Instant>,
    /// First looks at unmarked proposals while packets arrive from a peer that marks its messages.
    doubtful: TokenBucket,
    /// The time of the last [`Event::Watch`].
    watched: Option<Instant>,
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
    /// The nonce that the proposal contained.
    nonce: Nonce,
    proposal: Noise,
    agreement: Noise,
    until: Instant,
}

enum Phase {
    Idle,
    Waiting,
    Negotiating(Box<Initiator>),
}

impl Route {
    pub(crate) fn new(keys: RouteKeys, shared: &mut Shared) -> Route {
        Route {
            marker: Marker::new(&keys.psk),
            peer_marks: false,
            keys,
            sas: Sas::new(shared.sas),
            nonce: *shared.seed(),
            gate: None,
            answered: None,
            marked: Limits::MARKED,
            unmarked: Limits::UNMARKED,
            strays: TokenBucket::new(Duration::from_millis(10), 50),
            flooded: None,
            heard: None,
            doubtful: TokenBucket::new(Duration::from_millis(1), 100),
            watched: None,
            phase: Phase::Idle,
            spi: None,
            offered: false,
            failures: 0,
            resume: Instant::ZERO,
            scheduled: Instant::NEVER,
        }
    }

    pub(crate) fn negotiation(&self) -> Negotiation {
        match &self.phase {
            Phase::Idle => Negotiation::Idle,
            Phase::Waiting => Negotiation::Waiting,
            Phase::Negotiating(own) if own.candidates.is_empty() => Negotiation::Knocking,
            Phase::Negotiating(_) => Negotiation::Proposed,
        }
    }

    /// Answers a message that is for this route and from its peer's address.
    pub(crate) fn receive(
        &mut self,
        now: Instant,
        bytes: &[u8],
        body: Body<'_>,
        shared: &mut Shared,
        events: &mut Vec<Event>,
    ) -> Result<(), DropReason> {
        match body {
            Body::Knock => self.knocked(now, bytes, shared, events),
            Body::Challenge {
                version,
                aead,
                nonce,
            } => {
                if version != VERSION {
                    return Err(DropReason::Version);
                }
                if *aead != aead_name(self.keys.aead) {
                    return Err(DropReason::Aead);
                }
                self.challenged(now, bytes, nonce, shared, events)
            }
            Body::Proposal(proposal) => self.proposed(now, bytes, proposal, shared, events),
            Body::Agreement(agreement) => self.agreed(now, bytes, agreement, shared, events),
        }
    }

    /// Returns true if a message of the peer has the mark of the one that answers this.
    fn is_marked(&self, bytes: &[u8], answers: &[u8]) -> bool {
        let (from, to) = (self.keys.remote, self.keys.local);
        let context = Context { from, to, answers };
        self.marker.is_on(bytes, context)
    }

    fn limits(&mut self, is_marked: bool) -> &mut Limits {
        match is_marked {
            true => &mut self.marked,
            false => &mut self.unmarked,
        }
    }

    /// As responder: answers a knock with a challenge.
    ///
    /// The challenge is the same for every knock and always goes to the peer, so a flood of forged
    /// knocks costs no memory and does not keep the peer out. It does the work of a cookie (RFC
    /// 7296, 2.6): a proposal must contain the nonce, which only a host that receives the peer's
    /// packets knows, so a blind attacker never gets as far as a handshake.
    fn knocked(
        &mut self,
        now: Instant,
        bytes: &[u8],
        shared: &mut Shared,
        events: &mut Vec<Event>,
    ) -> Result<(), DropReason> {
        let (local, remote) = (self.keys.local, self.keys.remote);
        let number = self.marker.number_of(bytes, remote, local);
        // The peer's own have different numbers; those that were recorded are not to use up what
        // these need.
        if number.is_some_and(|number| !shared.is_new_knock(now, self.keys.route, number)) {
            return Err(DropReason::Rate);
        }
        within(&mut self.limits(number.is_some()).answers, now)?;
        if number.is_some() {
            self.sas.unsettled(now, shared);
        } else {
            within(&mut shared.source(self.keys.remote).answers, now)?;
        }
        shared.counters.knocks += 1;
        let aead = aead_name(self.keys.aead);
        let challenge = Body::Challenge {
            version: VERSION,
            aead: &aead,
            nonce: &self.nonce,
        };
        let answers = number.as_ref().map_or(&[][..], |number| number);
        events.push(self.send(challenge, answers, shared));
        Ok(())
    }

    /// Counts a message that was not expected.
    fn stray(&mut self, now: Instant) -> DropReason {
        if !self.strays.take(now) {
            self.flooded = Some(now);
        }
        DropReason::Unexpected
    }

    /// As responder: answers a proposal with an agreement, from which the pair of SAs follows.
    fn proposed(
        &mut self,
        now: Instant,
        bytes: &[u8],
        proposal: &Noise,
        shared: &mut Shared,
        events: &mut Vec<Event>,
    ) -> Result<(), DropReason> {
        // A repeated proposal means that the agreement was lost. The nonce that it contains is used
        // up, so it is not judged again: it gets the same agreement, and the pair of SAs stays one.
        if let Some(answered) = &self.answered {
            if answered.proposal == *proposal && now < answered.until {
                let agreement = answered.agreement;
                let is_marked = self.is_marked(bytes, &answered.nonce);
                within(&mut self.limits(is_marked).answers, now)?;
                shared.counters.repeats += 1;
                self.sas.unsettled(now, shared);
                events.push(self.send(Body::Agreement(&agreement), proposal, shared));
                return Ok(());
            }
        }
        let is_marked = self.is_marked(bytes, &self.nonce);
        let terms = Terms {
            spi: self.keys.spi,
            initiator: self.keys.remote,
            responder: self.keys.local,
            aead: self.keys.aead,
            nonce: &self.nonce,
            psk: &self.keys.psk,
        };
        if !is_marked {
            // While its packets arrive, a peer that marks its proposals was not replaced by one
            // that does not, and others are forged.
            if self.peer_marks && self.hears(now, shared) {
                within(&mut self.doubtful, now)?;
            }
            within(&mut shared.source(self.keys.remote).looks, now)?;
            let gate = self.gate.get_or_insert_with(|| Gate::new(&terms));
            if !gate.admits(proposal) {
                if self.peer_marks && self.watched.is_none_or(|at| now.since(at) >= WATCH) {
                    self.watched = Some(now);
                    let route = self.keys.route;
                    events.push(Event::Watch { route });
                }
                return Err(DropReason::Authentication);
            }
        }
        let limits = match is_marked {
            true => &mut self.marked,
            false => &mut self.unmarked,
        };
        within(&mut limits.proposals, now)?;
        let answer = Answer::read(&terms, proposal, shared.seed())?;
        let (outbound, inbound) = (answer.spi, shared.take_spi(self.keys.route));
        let ephemeral = shared.seed();
        let (agreement, keys) = answer
            .agree(inbound, ephemeral, &mut shared.counters)
            .inspect_err(|_| {
                shared.spis.remove(&inbound);
            })?;
        // The limit is on proposals that fail, and on nothing that the peer itself sends.
        limits.proposals.give_back();
        let nonce = self.nonce;
        self.set_nonce(shared);
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
        events.push(self.send(Body::Agreement(&agreement), proposal, shared));
        self.answered = Some(Answered {
            nonce,
            proposal: *proposal,
            agreement,
            until: now + shared.timers.negotiation_ttl * 2,
        });
        (self.failures, self.peer_marks) = (0, is_marked);
        Ok(())
    }

    fn set_nonce(&mut self, shared: &mut Shared) {
        self.nonce = *shared.seed();
        self.gate = None;
    }

    /// Handles the report that authentic packets were received on an inbound SA.
    pub(crate) fn used(&mut self, now: Instant, spi: u32, shared: &Shared) {
        self.heard = Some(now);
        self.sas.used(now, spi, shared);
    }

    /// Returns true if the data plane should report which inbound SAs are used.
    pub(crate) fn is_watched(&self, now: Instant) -> bool {
        let is_forged = self.watched.is_some_and(|at| now.since(at) < 2 * WATCH);
        self.failures > 0 || self.sas.unconfirmed() || is_forged
    }

    /// Returns true if packets of the peer arrive: it is there, whatever becomes of messages.
    fn hears(&self, now: Instant, shared: &Shared) -> bool {
        let recent = |heard| now.since(heard) < shared.timers.negotiation_ttl;
        self.heard.is_some_and(recent)
    }

    /// Does what is due: expiry, retransmission, or the beginning of a negotiation.
    pub(crate) fn tick(&mut self, now: Instant, shared: &mut Shared, events: &mut Vec<Event>) {
        self.sas.tick(now, self.keys.route, shared, events);
        let wanted = self.offered || self.sas.rekey() <= now;
        let own = match &mut self.phase {
            Phase::Idle if wanted && self.resume <= now => {
                match self.leave_to_peer(now, shared) {
                    Some(until) => self.resume = until,
                    None => {
                        self.phase = Phase::Waiting;
                        shared.waiting.push_back(self.keys.route);
                    }
                }
                return;
            }
            Phase::Idle | Phase::Waiting => return,
            Phase::Negotiating(own) if own.candidates.is_empty() && !wanted => {
                return self.stop(shared);
            }
            Phase::Negotiating(own) => own,
        };
        if own.deadline <= now {
            return self.failed(now, shared, events);
        }
        if own.fresh.take_if(|until| *until <= now).is_some() {
            shared.fresh = shared.fresh.saturating_sub(1);
        }
        // Retransmission ten times within a negotiation, which Vita does not do: one lost message
        // costs a tenth of `negotiation_ttl` and not the whole of it. A peer that has it already
        // answers as before.
        if own.resend <= now {
            let ttl = shared.timers.negotiation_ttl;
            let is_contested = own.candidates.is_contested();
            own.resend = now
                + match is_contested {
                    true => window(ttl) + shared.jitter(ttl / 20),
                    false => ttl / 10,
                };
            let is_knock = own.candidates.is_empty() || is_contested;
            let number = self.marker.number(now, shared.counters.sent);
            if is_knock {
                own.search.knocked(now);
                own.knocks(number);
            }
            let proposals: Vec<(Nonce, Noise)> = own
                .candidates
                .iter()
                .filter(|candidate| now.since(candidate.since) >= ttl / 20)
                .map(|candidate| (candidate.nonce, candidate.proposed.proposal))
                .collect();
            if is_knock {
                events.push(self.knock(number, shared));
            }
            for (nonce, proposal) in &proposals {
                events.push(self.send(Body::Proposal(proposal), nonce, shared));
            }
        }
    }

    fn failed(&mut self, now: Instant, shared: &mut Shared, events: &mut Vec<Event>) {
        self.stop(shared);
        self.failures = self.failures.saturating_add(1);
        shared.counters.negotiations_expired += 1;
        let pause = match self.failures {
            // Whatever kept messages away, the peer is there.
            _ if self.hears(now, shared) => Duration::ZERO,
            0..=2 => Duration::ZERO,
            n => shared.timers.negotiation_ttl * (1 << (n - 3).min(3)),
        };
        self.resume = now + pause + shared.jitter(pause / 4);
        events.push(Event::Unanswered {
            route: self.keys.route,
            failures: self.failures,
        });
    }

    /// Ends a pause after failures and sends again what was not answered. That there were failures
    /// is not forgotten: the peer may have restarted meanwhile.
    pub(crate) fn retry(&mut self, now: Instant) {
        self.failures = self.failures.min(2);
        self.resume = self.resume.min(now);
        if let Phase::Negotiating(own) = &mut self.phase {
            own.resend = now;
        }
    }

    fn stop(&mut self, shared: &mut Shared) {
        if let Phase::Negotiating(own) = &self.phase {
            shared.fresh = shared
                .fresh
                .saturating_sub(usize::from(own.fresh.is_some()));
        }
        self.phase = Phase::Idle;
    }

    /// Returns the time of the next [`Route::tick`].
    pub(crate) fn due(&self) -> Instant {
        let negotiation = match &self.phase {
            Phase::Idle if self.offered => self.resume,
            Phase::Idle => self.resume.max(self.sas.rekey()),
            Phase::Waiting => Instant::NEVER,
            Phase::Negotiating(own) => {
                let fresh = own.fresh.unwrap_or(Instant::NEVER);
                own.deadline.min(own.resend).min(fresh)
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
        self.set_nonce(shared);
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

    fn knock(&self, number: Number, shared: &mut Shared) -> Event {
        self.send_with(Body::Knock, shared, |message| {
            let (from, to) = (self.keys.local, self.keys.remote);
            self.marker.write_knock(message, from, to, number);
        })
    }

    /// Makes a message that answers the peer's.
    fn send(&self, body: Body<'_>, answers: &[u8], shared: &mut Shared) -> Event {
        self.send_with(body, shared, |message| {
            let (from, to) = (self.keys.local, self.keys.remote);
            self.marker.write(message, Context { from, to, answers });
        })
    }

    fn send_with(
        &self,
        body: Body<'_>,
        shared: &mut Shared,
        mark: impl FnOnce(&mut [u8]),
    ) -> Event {
        shared.counters.sent += 1;
        let spi = self.keys.spi;
        let mut message = Message { spi, body }.emit();
        mark(&mut message);
        Event::Send {
            route: self.keys.route,
            from: self.keys.local,
            to: self.keys.remote,
            message,
        }
    }
}
