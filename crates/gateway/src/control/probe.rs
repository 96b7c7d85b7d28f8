//! Path MTU discovery that needs no ICMP (RFC 8899): the search of one path, as a state machine.
//!
//! A probe is an ESP dummy (next header 59) that is padded to the size in question. RFC 4303, 2.6,
//! has a receiver drop dummies, so they do no harm anywhere; a Tare gateway answers those whose
//! payload begins with [`MAGIC`] with a short dummy of the same kind, which comes back through the
//! reverse SA and is thus authentic. A peer that answers no probe of the least size has no such
//! search: what routers report is then all there is.

use std::time::Duration;

use tare_sim::Instant;

pub(super) use crate::dataplane::esp::DUMMY_MAGIC as MAGIC;

/// The time within which a probe is answered, and the probes of a size until it is given up
/// (RFC 8899, 5.1.1 and 5.1.2: PROBE_TIMER, MAX_PROBES).
const TIMEOUT: Duration = Duration::from_secs(1);
const TRIES: u32 = 3;
/// The interval at which the size in use is confirmed (RFC 8899, 5.1.1: CONFIRMATION_TIMER).
const CONFIRM: Duration = Duration::from_secs(30);
/// The interval at which more is tried (RFC 8899, 5.1.1: PMTU_RAISE_TIMER), and at which a peer
/// that does not answer is tried again.
const RAISE: Duration = Duration::from_secs(600);
/// The search ends where the least size that was lost is so close to the greatest that was not.
const STEP: u16 = 8;

const PROBE: u8 = 1;
const ANSWER: u8 = 2;

/// A message within a dummy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Message {
    /// A probe of an outer packet of so many bytes.
    Probe(u16),
    /// The answer to one.
    Answer(u16),
}

impl Message {
    /// Bytes of a message.
    pub(super) const LEN: usize = MAGIC.len() + 4;

    /// Reads a message from the start of a dummy's payload.
    pub(super) fn parse(payload: &[u8]) -> Option<Message> {
        let message = payload.strip_prefix(&MAGIC)?.first_chunk::<4>()?;
        let size = u16::from_be_bytes([message[2], message[3]]);
        match message[0] {
            PROBE => Some(Message::Probe(size)),
            ANSWER => Some(Message::Answer(size)),
            _ => None,
        }
    }

    /// Returns the payload of a dummy of `len` bytes, or as many as the message has.
    pub(super) fn payload(self, len: usize) -> Vec<u8> {
        let (kind, size) = match self {
            Message::Probe(size) => (PROBE, size),
            Message::Answer(size) => (ANSWER, size),
        };
        let mut payload = MAGIC.to_vec();
        payload.extend([kind, 0]);
        payload.extend(size.to_be_bytes());
        payload.resize(len.max(Message::LEN), 0);
        payload
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The peer is asked whether it answers, by a probe of the least size. The size beside it is
    /// one that was lost and was in use.
    Base(Option<u16>),
    /// The greatest size that is not lost is searched, between `low` and `high`.
    Search { low: u16, high: u16 },
    /// It is found.
    Found,
    /// The peer does not answer.
    Off,
}

/// The search of one path.
#[derive(Debug)]
pub(super) struct Search {
    state: State,
    /// The size that every path of the family takes.
    least: u16,
    /// The size that the interface takes.
    top: u16,
    /// The most that is known to pass, if it is less than the interface takes.
    limit: Option<u16>,
    /// The size of the last probe, and the times that it was sent; 0 if it was answered.
    size: u16,
    tries: u32,
    due: Instant,
    raise: Instant,
}

impl Search {
    pub(super) fn new(now: Instant, least: u16, top: u16) -> Search {
        Search {
            state: State::Base(None),
            least,
            top,
            limit: None,
            size: 0,
            tries: 0,
            due: now,
            raise: now,
        }
    }

    /// Returns the time of the next [`Search::tick`].
    pub(super) fn due(&self) -> Instant {
        self.due
    }

    /// Returns the path MTU, if it is less than the interface takes; `None` if the peer does not
    /// answer.
    pub(super) fn limit(&self) -> Option<Option<u16>> {
        match self.state {
            State::Search { .. } | State::Found => Some(self.limit),
            State::Base(_) | State::Off => None,
        }
    }

    /// Returns the size of a probe to be sent now, on an interface that takes `top` bytes.
    pub(super) fn tick(&mut self, now: Instant, top: u16) -> Option<u16> {
        if now < self.due {
            return None;
        }
        if self.top != top {
            *self = Search::new(now, self.least, top);
        }
        if self.tries == TRIES {
            self.lost(now);
            if now < self.due {
                return None;
            }
        }
        self.size = match self.state {
            State::Off => {
                self.state = State::Base(None);
                self.least
            }
            State::Base(_) => self.least,
            State::Found if self.limit.is_some() && now >= self.raise => {
                self.search(now, self.limit.unwrap_or(top))
            }
            State::Found => self.limit.unwrap_or(top),
            State::Search { high, .. } if high > top => top,
            // ESP ends on four bytes, so the packet has as many bytes as are asked for.
            State::Search { low, high } => (low + (high - low) / 2) & !3,
        };
        self.tries += 1;
        self.due = now + TIMEOUT;
        Some(self.size)
    }

    /// Begins to search above `low` and returns the first size to try.
    fn search(&mut self, now: Instant, low: u16) -> u16 {
        let high = self.top.saturating_add(1);
        self.state = State::Search { low, high };
        self.raise = now + RAISE;
        self.top
    }

    /// Gives up the size of the last probe.
    fn lost(&mut self, now: Instant) {
        self.tries = 0;
        match self.state {
            // No probe at all is answered: either the peer is not there, and nothing is known of
            // the path, or it is not a Tare gateway.
            State::Base(_) | State::Off => {
                self.state = State::Off;
                self.due = now + RAISE;
            }
            State::Found => self.state = State::Base(Some(self.size)),
            State::Search { low, .. } => {
                self.limit = Some(low);
                self.narrow(now, low, self.size);
            }
        }
    }

    fn narrow(&mut self, now: Instant, low: u16, high: u16) {
        if high - low <= STEP {
            self.found(now);
        } else {
            self.state = State::Search { low, high };
            self.due = now;
        }
    }

    fn found(&mut self, now: Instant) {
        self.state = State::Found;
        self.due = now + CONFIRM;
    }

    /// Takes an answer to a probe of `size` bytes.
    pub(super) fn answered(&mut self, now: Instant, size: u16) {
        if self.tries == 0 || size != self.size {
            return;
        }
        self.tries = 0;
        self.due = now;
        match self.state {
            State::Base(None) => {
                self.search(now, self.limit.unwrap_or(self.least));
            }
            State::Base(Some(high)) => {
                self.limit = Some(self.least);
                self.raise = now + RAISE;
                self.narrow(now, self.least, high);
            }
            State::Search { .. } if size == self.top => {
                self.limit = None;
                self.found(now);
            }
            State::Search { high, .. } => {
                self.limit = Some(size);
                self.narrow(now, size, high);
            }
            State::Found => self.due = now + CONFIRM,
            State::Off => self.due = now + RAISE,
        }
    }

    /// Takes a router's report that is believed. More is tried at once, so that a forged one that
    /// was believed has an effect for no longer than a round trip.
    pub(super) fn reported(&mut self, now: Instant, mtu: u16) {
        let answers = self.limit().is_some();
        self.limit = Some(mtu);
        if answers {
            self.tries = 0;
            self.search(now, mtu);
            self.due = now;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a search for so long over a path that takes `takes` bytes and answers after 10 ms, and
    /// returns the probes as seconds and sizes.
    fn run(
        search: &mut Search,
        from: u64,
        seconds: u64,
        takes: impl Fn(u16) -> bool,
    ) -> Vec<(u64, u16)> {
        let at = |seconds: u64| Instant::ZERO + Duration::from_secs(seconds);
        let mut probes = Vec::new();
        let mut now = at(from).max(search.due());
        while now < at(from + seconds) {
            if let Some(size) = search.tick(now, 1500) {
                probes.push((now.as_nanos() / 1_000_000_000, size));
                if takes(size) {
                    search.answered(now + Duration::from_millis(10), size);
                }
            }
            now = search.due().max(now);
        }
        probes
    }

    #[test]
    fn every_path_mtu_is_found_and_never_exceeded() {
        for mtu in 576..=1500 {
            let mut search = Search::new(Instant::ZERO, 576, 1500);
            run(&mut search, 0, 60, |size| size <= mtu);
            let limit = search.limit().unwrap().unwrap_or(1500);
            assert!(limit <= mtu && mtu - limit <= STEP, "{limit} of {mtu}");
        }
    }

    #[test]
    fn a_search_that_begins_with_a_known_limit_does_not_fall_below_it() {
        let mut search = Search::new(Instant::ZERO, 576, 1500);
        search.reported(Instant::ZERO, 1400);
        for second in 0..60 {
            run(&mut search, second, 1, |size| size <= 1400);
            assert_eq!(search.limit(), Some(Some(1400)), "{second}");
        }
    }

    #[test]
    fn a_peer_that_does_not_answer_is_sent_three_probes_in_ten_minutes_and_nothing_changes() {
        let mut search = Search::new(Instant::ZERO, 576, 1500);
        let probes = run(&mut search, 0, 3600, |_| false);
        assert!(probes.len() <= 18, "{probes:?}");
        assert!(probes.iter().all(|&(_, size)| size == 576));
        assert_eq!(search.limit(), None);
    }

    #[test]
    fn a_peer_that_is_gone_narrows_no_path() {
        let mut search = Search::new(Instant::ZERO, 576, 1500);
        run(&mut search, 0, 100, |size| size <= 1400);
        let limit = search.limit();
        assert!(limit.flatten().is_some());
        run(&mut search, 100, 100, |_| false);
        assert_eq!(search.limit(), None);
    }

    #[test]
    fn a_path_that_becomes_narrower_is_noticed_and_one_that_becomes_wider_is_used() {
        let mut search = Search::new(Instant::ZERO, 576, 1500);
        run(&mut search, 0, 100, |_| true);
        assert_eq!(search.limit(), Some(None));
        run(&mut search, 100, 70, |size| size <= 1300);
        let limit = search.limit().unwrap().unwrap();
        assert!((1292..=1300).contains(&limit), "{limit}");
        run(&mut search, 170, 620, |_| true);
        assert_eq!(search.limit(), Some(None));
    }

    #[test]
    fn a_report_is_believed_until_a_probe_shows_otherwise() {
        let mut search = Search::new(Instant::ZERO, 576, 1500);
        run(&mut search, 0, 100, |_| true);
        let now = Instant::ZERO + Duration::from_secs(100);
        search.reported(now, 600);
        assert_eq!(search.limit(), Some(Some(600)));
        assert_eq!(search.tick(now, 1500), Some(1500));
        search.answered(now, 1500);
        assert_eq!(search.limit(), Some(None));
        // Only what was asked is an answer.
        search.reported(now, 600);
        search.answered(now, 1500);
        assert_eq!(search.tick(now, 1500), Some(1500));
        search.answered(now, 1400);
        assert_eq!(search.limit(), Some(Some(600)));
    }

    #[test]
    fn messages_are_read_as_they_were_written() {
        for message in [Message::Probe(1500), Message::Answer(577)] {
            for len in [0, 12, 13, 1446] {
                let payload = message.payload(len);
                assert_eq!(payload.len(), len.max(Message::LEN));
                assert_eq!(Message::parse(&payload), Some(message));
            }
        }
        assert_eq!(Message::parse(&Message::Probe(1).payload(0)[..11]), None);
        assert_eq!(Message::parse(&[0; 40]), None);
    }
}
