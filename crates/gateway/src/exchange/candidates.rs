//! The challenges that an initiator has answered in one negotiation.
//!
//! Challenges are not authentic, so the first one is not believed alone: several are answered, and
//! an authentic agreement to one of the proposals decides. A challenge with a [mark](super::mark)
//! comes from the peer and ends the search. Of those without one, the first is answered, and then
//! those that come twice, because the initiator knocks twice when there is more than one: the peer
//! answers both knocks alike, and random challenges do not come twice.

use std::collections::VecDeque;

use tare_sim::Instant;

use super::handshake::Proposed;
use super::message::Nonce;

/// Challenges that are answered at a time; another takes the place of the oldest.
const MOST: usize = 4;

/// Challenges that are remembered until they come again: those of 10 ms of a flood of 50,000 per
/// second.
const SEEN: usize = 512;

#[derive(Default)]
pub(crate) struct Candidates {
    answered: VecDeque<Candidate>,
    /// The first eight bytes of nonces seen once, each in the place that they name.
    seen: Option<Box<[u64; SEEN]>>,
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
        self.seen.is_some() && !self.has_marked()
    }

    fn has_marked(&self) -> bool {
        self.answered.iter().any(|candidate| candidate.is_marked)
    }

    /// Returns true if a challenge with this nonce is to be answered.
    pub(crate) fn wants(&mut self, nonce: &Nonce, is_marked: bool) -> bool {
        // The peer takes another nonce with each proposal that it accepts. A second answer to it
        // would replace the SAs of the first, whose agreement may be on its way.
        if self.has_marked() {
            return false;
        }
        if is_marked || self.answered.is_empty() {
            return true;
        }
        let mut answered = self.answered.iter();
        if answered.any(|candidate| candidate.nonce == *nonce) {
            return false;
        }
        let seen = self.seen.get_or_insert_with(|| Box::new([0; SEEN]));
        let name = nonce
            .first_chunk()
            .map_or(0, |name| u64::from_le_bytes(*name));
        let place = &mut seen[name as usize % SEEN];
        std::mem::replace(place, name) == name
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
