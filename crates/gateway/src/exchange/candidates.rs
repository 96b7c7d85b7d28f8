//! The challenges that an initiator has answered in one negotiation.
//!
//! Challenges are not authentic, so the first one is not believed alone: several are answered, and
//! an authentic agreement to one of the proposals decides. A challenge with a [mark](super::mark)
//! answers one of the last knocks, so it comes from the peer and ends the search. Of those without
//! one, the first is answered, and then those that [`sightings`](super::sightings) takes for the
//! peer's.

use std::collections::VecDeque;

use tare_sim::Instant;

use super::handshake::Proposed;
use super::message::Nonce;

/// Challenges that are answered at a time; another takes the place of the oldest.
const MOST: usize = 8;

#[derive(Default)]
pub(crate) struct Candidates {
    answered: VecDeque<Candidate>,
    is_contested: bool,
}

/// The answer to whether a challenge is to be answered.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wanted {
    Yes,
    No,
    /// If it comes after knocks as the peer's would.
    IfItFollowsKnocks,
}

pub(crate) struct Candidate {
    pub(crate) nonce: Nonce,
    pub(crate) is_marked: bool,
    pub(crate) proposed: Box<Proposed>,
    /// The time at which the proposal was first sent.
    pub(crate) since: Instant,
}

impl Candidates {
    pub(crate) fn is_empty(&self) -> bool {
        self.answered.is_empty()
    }

    /// Returns true if it is not clear which challenge is the peer's.
    pub(crate) fn is_contested(&self) -> bool {
        self.is_contested && !self.has_marked()
    }

    fn has_marked(&self) -> bool {
        self.answered.iter().any(|candidate| candidate.is_marked)
    }

    /// Judges a challenge with this nonce.
    pub(crate) fn wants(&mut self, nonce: &Nonce, is_marked: bool) -> Wanted {
        // The peer takes another nonce with each proposal that it accepts. A second answer to it
        // would replace the SAs of the first, whose agreement may be on its way.
        if self.has_marked() {
            return Wanted::No;
        }
        if is_marked || self.answered.is_empty() {
            return Wanted::Yes;
        }
        let mut answered = self.answered.iter();
        if answered.any(|candidate| candidate.nonce == *nonce) {
            return Wanted::No;
        }
        self.is_contested = true;
        Wanted::IfItFollowsKnocks
    }

    /// Adds one that was answered.
    pub(crate) fn add(&mut self, candidate: Candidate) {
        if candidate.is_marked {
            self.answered.clear();
        }
        if self.answered.len() == MOST {
            self.answered.pop_front();
        }
        self.answered.push_back(candidate);
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Candidate> {
        self.answered.iter()
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Candidate> {
        self.answered.iter_mut()
    }
}
