//! The requests that are not answered, and their attempts.

use std::collections::VecDeque;

use tare_sim::{EventQueue, Instant};

use super::operations::Handle;
use super::path::Path;

/// An attempt of a part of an operation, which is one request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Attempt {
    pub(super) operation: Handle,
    pub(super) offset: u32,
    pub(super) length: u32,
    /// The time when it was sent.
    pub(super) at: Instant,
    /// The time when the first attempt of its part was sent, by the node's clock.
    pub(super) sent_ns: u64,
    /// Bytes of the request, and of the response as far as they can be foreseen.
    pub(super) request_bytes: u32,
    pub(super) response_bytes: u32,
    /// The attempts of the same part before and after it, as distances between their numbers; 0 if
    /// there is none.
    earlier: u32,
    later: u32,
    /// Attempts before it.
    pub(super) retries: u16,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// On the way.
    Flying,
    /// The node had no room for it. It counts as on the way until its timer fires.
    Refused,
    /// Taken for lost. An answer that comes after all is as good as any.
    Lost,
    /// Its part is answered, by it or another attempt.
    Over,
}

/// An attempt that is over.
const NONE: Attempt = Attempt {
    operation: Handle::NONE,
    offset: 0,
    length: 0,
    at: Instant::ZERO,
    sent_ns: 0,
    request_bytes: 0,
    response_bytes: 0,
    earlier: 0,
    later: 0,
    retries: 0,
    state: State::Over,
};

impl Attempt {
    /// A first attempt.
    #[inline(always)]
    pub(super) fn first(
        operation: Handle,
        (offset, length): (u32, u32),
        (now, sent_ns): (Instant, u64),
        (request_bytes, response_bytes): (u64, u64),
    ) -> Attempt {
        Attempt {
            operation,
            offset,
            length,
            at: now,
            sent_ns,
            // A message is at most `MESSAGE_MAX`.
            request_bytes: request_bytes as u32,
            response_bytes: response_bytes as u32,
            ..NONE
        }
    }

    /// Bytes in both directions.
    #[inline]
    pub(super) fn bytes(&self) -> u64 {
        u64::from(self.request_bytes) + u64::from(self.response_bytes)
    }

    #[inline]
    fn counts(&self) -> bool {
        matches!(self.state, State::Flying | State::Refused)
    }

    /// True if it is taken for lost.
    pub(super) fn is_lost(&self) -> bool {
        self.state == State::Lost
    }

    /// True if the node had no room for it.
    pub(super) fn is_refused(&self) -> bool {
        self.state == State::Refused
    }

    /// True if it, or one before it, was taken for lost.
    #[inline]
    pub(super) fn was_lost(&self) -> bool {
        self.retries > 0 || self.is_lost()
    }
}

/// The requests that are not answered.
///
/// Attempts have consecutive numbers and stay in the order in which they were sent, so that the
/// number of one is its place, and the oldest one on the way is the first whose time is over.
#[derive(Debug)]
pub(super) struct Requests {
    attempts: VecDeque<Attempt>,
    /// The number of the first of them.
    first: u64,
    /// The number of the oldest attempt on the way, or of one before it.
    oldest: u64,
    /// Parts that are not answered.
    len: usize,
    /// Attempts that the node had no room for, by the ends of their timers.
    refused: EventQueue<u64>,
    /// Attempts that are lost and whose parts are to be sent again.
    pub(super) again: VecDeque<u64>,
    /// The latest time when an attempt was sent that is answered.
    answered: Instant,
    /// Bytes on the way, both directions, and of responses alone.
    pub(super) bytes: u64,
    pub(super) response_bytes: u64,
}

/// Attempts that are kept beside four times as many as there are parts.
const ATTEMPTS_MORE: usize = 1024;

impl Requests {
    pub(super) const fn new(first_id: u64) -> Requests {
        Requests {
            attempts: VecDeque::new(),
            first: first_id,
            oldest: first_id,
            len: 0,
            refused: EventQueue::new(),
            again: VecDeque::new(),
            answered: Instant::ZERO,
            bytes: 0,
            response_bytes: 0,
        }
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// The numbers of all attempts that are kept.
    pub(super) fn ids(&self) -> impl Iterator<Item = u64> {
        let first = self.first;
        (0..self.attempts.len() as u64).map(move |n| first.wrapping_add(n))
    }

    /// A number that no attempt gets.
    pub(super) fn new_id(&mut self) -> u64 {
        if let Some(id) = self.next_id() {
            self.pass(id);
            return id;
        }
        self.attempts.push_back(NONE);
        self.first.wrapping_add(self.attempts.len() as u64 - 1)
    }

    /// The number that the next attempt gets; `None` while attempts are kept.
    #[inline]
    pub(super) fn next_id(&self) -> Option<u64> {
        self.attempts.is_empty().then(|| self.first.max(1))
    }

    /// Keeps the number of [`Requests::next_id`] from all attempts.
    #[inline]
    pub(super) fn pass(&mut self, id: u64) {
        self.first = id.wrapping_add(1);
        self.oldest = self.first;
    }

    /// Takes note that what was sent at this time, under such a number, is answered.
    #[inline]
    pub(super) fn passed(&mut self, at: Instant) {
        self.answered = self.answered.max(at);
    }

    /// Gives such a number to the next attempt after all, if none was added since.
    pub(super) fn take_back(&mut self, id: u64) {
        if self.attempts.is_empty() {
            (self.first, self.oldest) = (id, id);
        }
    }

    /// The attempt with a number, unless its part is answered.
    #[inline]
    pub(super) fn find(&self, id: u64) -> Option<&Attempt> {
        let attempt = self.attempts.get(id.wrapping_sub(self.first) as usize);
        attempt.filter(|attempt| attempt.state != State::Over)
    }

    #[inline]
    fn find_mut(&mut self, id: u64) -> Option<&mut Attempt> {
        let attempt = self.attempts.get_mut(id.wrapping_sub(self.first) as usize);
        attempt.filter(|attempt| attempt.state != State::Over)
    }

    /// Adds the first attempt of a part; returns its number.
    #[inline(always)]
    pub(super) fn insert(&mut self, attempt: &Attempt) -> u64 {
        self.len += 1;
        self.push(attempt)
    }

    #[inline(always)]
    fn push(&mut self, attempt: &Attempt) -> u64 {
        let mut id = self.first.wrapping_add(self.attempts.len() as u64);
        if id == 0 {
            // It would mean that there is none.
            self.attempts.push_back(NONE);
            id = 1;
        }
        self.bytes += attempt.bytes();
        self.response_bytes += u64::from(attempt.response_bytes);
        // Field by field, because a copy of all would wait for what was just written.
        self.attempts.push_back(NONE);
        if let Some(place) = self.attempts.back_mut() {
            place.operation = attempt.operation;
            place.offset = attempt.offset;
            place.length = attempt.length;
            place.at = attempt.at;
            place.sent_ns = attempt.sent_ns;
            place.request_bytes = attempt.request_bytes;
            place.response_bytes = attempt.response_bytes;
            place.retries = attempt.retries;
            place.state = State::Flying;
        }
        id
    }

    /// Sends a lost part again; returns the attempt with its number.
    pub(super) fn retry(&mut self, id: u64, now: Instant) -> Option<(u64, Attempt)> {
        let attempt = *self.find(id)?;
        let number = self.push(&Attempt {
            at: now,
            retries: attempt.retries.saturating_add(1),
            ..attempt
        });
        let distance = number.wrapping_sub(id) as u32;
        if let Some(before) = self.find_mut(id) {
            before.later = distance;
        }
        let attempt = self.find_mut(number)?;
        attempt.earlier = distance;
        Some((number, *attempt))
    }

    /// Takes an attempt for lost: it no longer counts as being on the way, and its part is to be
    /// sent again.
    pub(super) fn send_again(&mut self, id: u64) {
        let Some(attempt) = self.find_mut(id).filter(|attempt| attempt.counts()) else {
            return;
        };
        attempt.state = State::Lost;
        let (bytes, response_bytes) = (attempt.bytes(), attempt.response_bytes);
        self.bytes -= bytes;
        self.response_bytes -= u64::from(response_bytes);
        self.again.push_back(id);
    }

    /// Takes note that the node had no room for an attempt, which is lost from this time on.
    pub(super) fn refuse(&mut self, id: u64, until: Instant) {
        if let Some(attempt) = self.find_mut(id).filter(|attempt| attempt.counts()) {
            attempt.state = State::Refused;
            self.refused.push(until, id);
        }
    }

    /// Takes note of an answer to the attempt with this number, and forgets its part.
    #[inline]
    pub(super) fn answer(&mut self, id: u64) {
        let Some(attempt) = self.find_mut(id) else {
            return;
        };
        let at = attempt.at;
        let is_only = attempt.earlier == 0 && attempt.later == 0 && attempt.state == State::Flying;
        if is_only {
            // Nearly always; the rest does the same for all attempts of a part.
            attempt.state = State::Over;
            let (bytes, response_bytes) = (attempt.bytes(), attempt.response_bytes);
            self.bytes -= bytes;
            self.response_bytes -= u64::from(response_bytes);
            self.len -= 1;
            if id == self.first || self.attempts.len() > ATTEMPTS_MORE {
                self.forget();
            }
        } else {
            self.remove(id);
        }
        self.answered = self.answered.max(at);
    }

    /// Ends one attempt; returns the distance to the one before it.
    #[inline]
    fn end(&mut self, id: u64) -> Option<u32> {
        let attempt = self.find_mut(id)?;
        let counts = attempt.counts();
        attempt.state = State::Over;
        let (bytes, response, earlier) = (attempt.bytes(), attempt.response_bytes, attempt.earlier);
        if counts {
            self.bytes -= bytes;
            self.response_bytes -= u64::from(response);
        }
        Some(earlier)
    }

    /// Forgets the part of an attempt.
    pub(super) fn remove(&mut self, id: u64) {
        let mut next = id;
        // From the latest of its attempts to the first.
        while let Some(distance) = self.find(next).map(|attempt| attempt.later) {
            if distance == 0 {
                self.len -= 1;
                break;
            }
            next = next.wrapping_add(distance.into());
        }
        while let Some(distance @ 1..) = self.end(next) {
            next = next.wrapping_sub(distance.into());
        }
        self.forget();
    }

    /// Removes attempts that are over, and those that were replaced if they are many.
    #[inline]
    fn forget(&mut self) {
        while let Some(attempt) = self.attempts.front() {
            let is_full = self.attempts.len() > ATTEMPTS_MORE + 4 * self.len;
            if attempt.state != State::Over && !(is_full && attempt.later > 0) {
                break;
            }
            self.attempts.pop_front();
            self.first = self.first.wrapping_add(1);
        }
        if self.attempts.is_empty() {
            // Back to the start of its memory, so that one operation at a time uses the same lines.
            self.attempts.clear();
        }
    }

    /// The oldest attempt on the way, with its number.
    #[inline]
    fn oldest(&self) -> Option<(u64, &Attempt)> {
        let from = self.oldest.wrapping_sub(self.first);
        let from = if from > self.attempts.len() as u64 {
            0
        } else {
            from as usize
        };
        let place = from
            + self
                .attempts
                .range(from..)
                .position(|attempt| attempt.state == State::Flying)?;
        Some((
            self.first.wrapping_add(place as u64),
            self.attempts.get(place)?,
        ))
    }

    /// The time from which on an attempt is lost. An answer to one that was sent later says much:
    /// then it needs no patience.
    #[inline]
    fn lost_at(&self, attempt: &Attempt, path: &Path) -> Instant {
        let after_ns = match attempt.at < self.answered {
            true => path.round_trip_ns(),
            false => path.timeout_ns(attempt.retries.into()),
        };
        Instant::from_nanos(attempt.at.as_nanos().saturating_add(after_ns))
    }

    /// The time from which on [`Requests::due`] has something.
    #[inline]
    pub(super) fn next_due(&self, path: &Path) -> Instant {
        let oldest = self.oldest();
        let end = oldest.map_or(Instant::NEVER, |(_, attempt)| self.lost_at(attempt, path));
        end.min(self.refused.next_at())
    }

    /// The number of an attempt whose time is over.
    pub(super) fn due(&mut self, now: Instant, path: &Path) -> Option<u64> {
        while let Some((_, id)) = self.refused.pop(now) {
            if self.find(id).is_some_and(Attempt::counts) {
                return Some(id);
            }
        }
        let (id, attempt) = self.oldest()?;
        let is_over = self.lost_at(attempt, path) <= now;
        self.oldest = id;
        is_over.then_some(id)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Beside the plainest account of it: for each part its attempts, of which only the last
        /// one may be on the way.
        #[test]
        fn an_answer_to_any_attempt_ends_its_part_and_bytes_on_the_way_are_those_of_the_last_ones(
            first in prop_oneof![Just(1u64), (u64::MAX - 40)..=u64::MAX],
            steps in proptest::collection::vec((0u8..4, any::<proptest::sample::Index>()), 1..400),
        ) {
            let mut requests = Requests::new(first);
            let mut parts: Vec<(Vec<u64>, bool)> = Vec::new();
            for (step, index) in steps {
                if step == 0 || parts.is_empty() {
                    let part = Attempt::first(Handle::NONE, (0, 8), (Instant::ZERO, 0), (72, 56));
                    parts.push((vec![requests.insert(&part)], true));
                    continue;
                }
                let chosen = index.index(parts.len());
                let (ids, is_flying) = &mut parts[chosen];
                let last = ids[ids.len() - 1];
                match step {
                    1 => {
                        requests.send_again(last);
                        *is_flying = false;
                    }
                    2 if !*is_flying => {
                        let (id, attempt) = requests.retry(last, Instant::ZERO).unwrap();
                        prop_assert_eq!(usize::from(attempt.retries), ids.len());
                        ids.push(id);
                        *is_flying = true;
                    }
                    2 => {}
                    _ => {
                        let id = ids[index.index(ids.len())];
                        prop_assert!(requests.find(id).is_some());
                        requests.answer(id);
                        for id in parts.swap_remove(chosen).0 {
                            prop_assert!(requests.find(id).is_none());
                        }
                    }
                }
                let flying = parts.iter().filter(|part| part.1).count() as u64;
                prop_assert_eq!((requests.bytes, requests.response_bytes), (flying * 128, flying * 56));
                prop_assert_eq!(requests.len(), parts.len());
                let mut ids: Vec<u64> = parts.iter().flat_map(|part| part.0.clone()).collect();
                prop_assert!(ids.iter().all(|id| *id != 0 && requests.find(*id).is_some()));
                let kept = ids.len();
                ids.sort_unstable();
                ids.dedup();
                prop_assert_eq!(ids.len(), kept, "no number is given twice");
            }
        }
    }

    #[test]
    fn attempts_that_were_replaced_do_not_pile_up_behind_one_that_is_never_answered() {
        let mut requests = Requests::new(1);
        let part = Attempt::first(Handle::NONE, (0, 8), (Instant::ZERO, 0), (72, 56));
        let lost = requests.insert(&part);
        requests.send_again(lost);
        for _ in 0..20 * ATTEMPTS_MORE {
            let id = requests.insert(&part);
            requests.answer(id);
            if let Some(id) = requests.again.pop_front() {
                let (id, _) = requests.retry(id, Instant::ZERO).unwrap();
                requests.send_again(id);
            }
        }
        assert_eq!(requests.len(), 1);
        assert!(requests.ids().count() < 2 * ATTEMPTS_MORE);
    }
}
