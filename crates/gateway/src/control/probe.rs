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

/// Sizes that most paths take, tried first where nothing but the least is known to pass: between
/// that and a jumbo frame, halving would lose several probes before one passes, while all packets
/// have the least size.
const COMMON: [u16; 2] = [1500, 1280];

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
    /// The peer is asked whether it answers, by a probe of the least size.
    Base,
    /// The greatest size that is not lost is searched, between `low` and `high`.
    Search { low: u16, high: u16 },
    /// It is found.
    Found,
    /// The peer does not answer.
    Off,
}

/// A size whose probes were lost, and which may be too long for the path.
///
/// Losses alone do not say so: the path may have been down, and up again by the time at which a
/// probe of the least size is answered. So both sizes are probed in turn, and the path is narrower
/// only if [`TRIES`] probes of the size were lost with an answer to the least size after each of
/// them.
#[derive(Clone, Copy, Debug)]
struct Doubt {
    size: u16,
    /// Probes of the size that count as lost.
    lost: u32,
    /// True if the least size is probed.
    asks_least: bool,
}

/// The search of one path.
#[derive(Debug)]
pub(super) struct Search {
    state: State,
    /// The size in doubt, in the states [`State::Search`] and [`State::Found`].
    doubt: Option<Doubt>,
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
            state: State::Base,
            doubt: None,
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
            State::Base | State::Off => None,
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
        if self.tries >= self.tries_max() {
            self.lost(now);
            if now < self.due {
                return None;
            }
        }
        self.size = match self.doubt {
            Some(doubt) if doubt.asks_least => self.least,
            Some(doubt) => doubt.size,
            None => self.next_size(now, top),
        };
        self.tries += 1;
        self.due = now + TIMEOUT;
        Some(self.size)
    }

    /// Returns the number of probes of the present size after which it counts as lost.
    fn tries_max(&self) -> u32 {
        match (self.doubt, self.state) {
            (Some(doubt), _) if !doubt.asks_least => 1,
            // The first loss is the first of those that are counted in a doubt.
            (None, State::Search { .. }) => 1,
            _ => TRIES,
        }
    }

    /// Returns the size to probe where none is in doubt.
    fn next_size(&mut self, now: Instant, top: u16) -> u16 {
        match self.state {
            State::Off => {
                self.state = State::Base;
                self.least
            }
            State::Base => self.least,
            State::Found if self.limit.is_some() && now >= self.raise => {
                self.search(now, self.limit.unwrap_or(top))
            }
            State::Found => self.limit.unwrap_or(top),
            State::Search { high, .. } if high > top => top,
            State::Search { low, high } => {
                let is_open = |size: &u16| low == self.least && (low + 1..high).contains(size);
                let common = COMMON.into_iter().find(is_open);
                // ESP ends on four bytes, so the packet has as many bytes as are asked for.
                common.unwrap_or((low + (high - low) / 2) & !3)
            }
        }
    }

    /// Begins to search above `low` and returns the first size to try.
    fn search(&mut self, now: Instant, low: u16) -> u16 {
        let high = self.top.saturating_add(1);
        self.state = State::Search { low, high };
        self.raise = now + RAISE;
        self.top
    }

    /// Takes note that no probe of the present size was answered in time.
    fn lost(&mut self, now: Instant) {
        self.tries = 0;
        match (&mut self.doubt, self.state) {
            (Some(doubt), _) if !doubt.asks_least => {
                doubt.lost += 1;
                doubt.asks_least = true;
            }
            // No probe at all is answered: either the peer is not there, and nothing is known of
            // the path, or it is not a Tare gateway.
            (Some(_), _) | (None, State::Base | State::Off) => {
                self.doubt = None;
                self.state = State::Off;
                self.due = now + RAISE;
            }
            (None, State::Search { .. } | State::Found) => {
                self.doubt = Some(Doubt {
                    size: self.size,
                    lost: u32::from(self.state != State::Found),
                    asks_least: true,
                });
            }
        }
    }

    /// Gives up a size that the path does not take, though it takes the least.
    fn give_up(&mut self, now: Instant, size: u16) {
        let low = match self.state {
            State::Search { low, .. } => low,
            // A size that was in use.
            _ => {
                self.raise = now + RAISE;
                self.least
            }
        };
        self.limit = Some(low);
        self.narrow(now, low, size);
    }

    fn narrow(&mut self, now: Instant, low: u16, high: u16) {
        if high.saturating_sub(low) <= STEP {
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
        match &mut self.doubt {
            // Also if the answer took longer than the time for it: where that is usual, no size
            // would ever pass.
            Some(doubt) if size == doubt.size => self.doubt = None,
            _ if self.tries == 0 || size != self.size => return,
            Some(doubt) => {
                self.tries = 0;
                self.due = now;
                doubt.asks_least = false;
                if doubt.lost >= TRIES {
                    let size = doubt.size;
                    self.doubt = None;
                    self.give_up(now, size);
                }
                return;
            }
            None => {}
        }
        self.tries = 0;
        self.due = now;
        match self.state {
            State::Base => {
                self.search(now, self.limit.unwrap_or(self.least));
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
        // It was true of an interface that took more.
        if mtu >= self.top {
            return;
        }
        let answers = self.limit().is_some();
        self.limit = Some(mtu);
        if answers {
            self.doubt = None;
            self.tries = 0;
            self.search(now, mtu);
            self.due = now;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::ops::Range;

    use super::*;

    const TOP: u16 = 1500;

    fn ms(ms: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(ms)
    }

    /// Runs a search for so many seconds over a path that takes what `takes` says and answers after
    /// 10 ms, and returns the probes as seconds and sizes.
    fn run(
        search: &mut Search,
        from: u64,
        seconds: u64,
        takes: impl Fn(u16) -> bool,
    ) -> Vec<(u64, u16)> {
        let (from, until) = (1000 * from, 1000 * (from + seconds));
        let mut probes = Vec::new();
        run_ms(search, from..until, |_, ms, size| {
            probes.push((ms / 1000, size));
            takes(size).then_some(Duration::from_millis(10))
        });
        probes
    }

    /// Runs a search over a path whose answer to a probe, which `answer` gets with the search and
    /// the time in milliseconds, takes so long.
    fn run_ms(
        search: &mut Search,
        during: Range<u64>,
        mut answer: impl FnMut(&Search, u64, u16) -> Option<Duration>,
    ) {
        let mut answers = BTreeSet::new();
        let mut now = ms(during.start);
        loop {
            let first = answers.first().map_or(Instant::NEVER, |(at, _)| *at);
            now = now.max(search.due().min(first));
            if now >= ms(during.end) {
                return;
            }
            if first <= now {
                if let Some((_, size)) = answers.pop_first() {
                    search.answered(now, size);
                }
            } else if let Some(size) = search.tick(now, search.top) {
                let takes = answer(search, now.as_nanos() / 1_000_000, size);
                answers.extend(takes.map(|takes| (now + takes, size)));
            }
        }
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

    /// The first seconds are those in which three probes of the interface's size are lost.
    #[test]
    fn a_path_of_usual_size_between_interfaces_that_take_more_is_used_at_once() {
        for (mtu, common, seconds) in [(1500, 1500, 4), (1492, 1280, 7), (1280, 1280, 7)] {
            let mut search = Search::new(Instant::ZERO, 576, 9000);
            run(&mut search, 0, seconds, |size| size <= mtu);
            for second in seconds..60 {
                let limit = search.limit().unwrap().unwrap();
                assert!((common..=mtu).contains(&limit), "{limit} of {mtu}");
                run(&mut search, second, 1, |size| size <= mtu);
            }
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
    fn a_known_limit_above_what_the_interface_takes_is_none() {
        for known in [1500, 1501, 4000, u16::MAX] {
            let mut search = Search::new(Instant::ZERO, 576, 1500);
            for start in [0, 60] {
                search.reported(ms(1000 * start), known);
                run(&mut search, start, 10, |size| size <= 1400);
                assert!(search.limit().unwrap().is_some_and(|limit| limit <= 1400));
                run(&mut search, start + 10, 50, |size| size <= 1400);
            }
            let limit = search.limit().unwrap().unwrap();
            assert!((1400 - STEP..=1400).contains(&limit), "{limit}");
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
    fn an_outage_of_any_length_at_any_phase_narrows_no_path() {
        for from in (60_000..120_000).step_by(1100) {
            for length in (0..12_000).step_by(100) {
                let mut search = Search::new(Instant::ZERO, 576, TOP);
                run_ms(&mut search, 0..from + length + 60_000, |search, at, _| {
                    let limit = search.limit();
                    assert!(
                        matches!(limit, None | Some(None)),
                        "{limit:?} at {at}, down from {from} for {length} ms"
                    );
                    let is_down = (from..from + length).contains(&at);
                    (!is_down).then_some(Duration::from_millis(10))
                });
                assert!(matches!(search.limit(), None | Some(None)));
            }
        }
    }

    #[test]
    fn answers_that_take_longer_than_the_time_for_them_narrow_no_path() {
        for delay in [500, 999, 1001, 1500, 2500, 2900] {
            let mut search = Search::new(Instant::ZERO, 576, TOP);
            run_ms(&mut search, 0..1_000_000, |_, _, _| {
                Some(Duration::from_millis(delay))
            });
            assert_eq!(search.limit(), Some(None), "{delay} ms");
        }
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
