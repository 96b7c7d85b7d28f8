//! Segments that arrive (RFC 9293, 3.10.7), with the checks of RFC 5961 and RFC 7323.

use std::time::Duration;

use tare_sim::Instant;

use super::{Clock, Connection, Failure, PeerOptions, State};
use crate::tcp::buffer::{Buffer, Payload};
use crate::tcp::config::Config;
use crate::tcp::headers::Segment;
use crate::tcp::receive_queue::Limits;
use crate::tcp::recovery::Phase;

/// The age from which a remembered timestamp is not compared with any more (RFC 7323, 5.5).
const CLOCK_LIFE: Duration = Duration::from_secs(24 * 86_400);

/// The part of the work on a segment that is left to the stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The connection did all.
    Done,
    /// It is to be answered with a reset.
    Reset,
    /// The connection was given up because of it, and the peer is to be told.
    Abort,
}

/// A segment in the positions of its connection; those of the peer may be before 0.
#[derive(Clone, Copy)]
struct Place {
    /// The position of the first byte, behind the SYN.
    start: i64,
    /// Positions that it takes.
    len: i64,
}

impl<B: Buffer> Connection<B> {
    /// Takes a segment for this connection.
    pub(crate) fn segment(
        &mut self,
        now: Instant,
        segment: &Segment,
        mut payload: Payload<B>,
        config: &Config,
        limits: &Limits,
    ) -> Verdict {
        self.is_genuine = false;
        match self.state {
            State::SynSent => return self.opening(now, segment, config),
            State::Closed => return Verdict::Reset,
            _ => {}
        }
        let next = self.rx.next();
        let expected = self.irs.wrapping_add(next as u32);
        let ahead = i64::from(segment.seq.wrapping_sub(expected) as i32);
        let mut place = Place {
            start: next as i64 + ahead,
            len: i64::from(segment.length(payload.len())),
        };
        if self.state == State::SynReceived && segment.syn && segment.ack.is_none() && ahead == -1 {
            // The SYN again: our answer was lost.
            self.is_syn_due |= self.stray.take(now);
            return Verdict::Done;
        }
        if let Some(verdict) = self.check_clock(now, segment) {
            return verdict;
        }
        let window = self.edge.saturating_sub(next) as i64;
        let is_probe = window == 0 && ahead == 0 && place.len > 0 && !segment.syn && !segment.rst;
        if is_probe {
            // RFC 9293, 3.10.7.4: with a closed window, acknowledgments are to be processed still.
            payload.truncate(0);
            place.len = 0;
            self.answer_stray(now);
        }
        if !is_acceptable(ahead, place.len, window) {
            if !segment.rst {
                self.answer_stray(now);
                if self.state == State::TimeWait && segment.fin {
                    self.timers.end = now + config.time_wait;
                }
            }
            return Verdict::Done;
        }
        if segment.rst {
            return self.reset_received(now, ahead);
        }
        if segment.syn {
            // RFC 5961, section 4.
            self.answer_stray(now);
            return Verdict::Done;
        }
        let Some(ack) = segment.ack else {
            return Verdict::Done;
        };
        let distance = i64::from(ack.wrapping_sub(self.sequence(self.una)) as i32);
        let acknowledged = self.una as i64 + distance;
        if self.state == State::SynReceived {
            if acknowledged != 1 {
                return Verdict::Reset;
            }
            self.establish(now, place.start, segment, config);
        } else if acknowledged > self.next as i64 || -distance > self.window_max as i64 {
            // RFC 5961, section 5.
            self.answer_stray(now);
            return Verdict::Done;
        }
        (self.last_received, self.is_genuine) = (now, true);
        self.update_clock(now, place.start, segment);
        let is_plain = payload.len() == 0 && !segment.fin && !is_probe;
        self.acknowledgment(now, acknowledged, place.start, segment, is_plain, config);
        if self.state == State::Closed || is_probe {
            return Verdict::Done;
        }
        // What is beyond the window is cut off, the FIN with it.
        let fits = window - ahead;
        let has_fin = segment.fin && place.len <= fits;
        payload.truncate(usize::try_from(fits).unwrap_or(0));
        self.data(now, place.start, payload, has_fin, config, limits)
    }

    /// Takes an answer to our SYN, or a SYN that crossed it (RFC 9293, 3.10.7.3).
    fn opening(&mut self, now: Instant, segment: &Segment, config: &Config) -> Verdict {
        let is_answer = match segment.ack {
            Some(ack) if ack != self.sequence(1) => {
                return if segment.rst {
                    Verdict::Done
                } else {
                    Verdict::Reset
                };
            }
            ack => ack.is_some(),
        };
        if segment.rst {
            if is_answer {
                self.end(Some(Failure::Refused));
            }
            return Verdict::Done;
        }
        if !segment.syn {
            return Verdict::Done;
        }
        self.learn(now, segment.seq, PeerOptions::of(segment), config);
        (self.last_received, self.is_genuine) = (now, true);
        if is_answer {
            self.establish(now, 0, segment, config);
            self.acknowledgment(now, 1, 0, segment, true, config);
            self.acks_due = 1;
        } else {
            self.state = State::SynReceived;
            self.is_syn_due = true;
        }
        Verdict::Done
    }

    /// The connection is open: our SYN is acknowledged and the peer's has arrived.
    fn establish(&mut self, now: Instant, at: i64, segment: &Segment, config: &Config) {
        self.state = match self.is_fin_queued {
            false => State::Established,
            true => State::FinWait1,
        };
        self.is_syn_due = false;
        self.timers.end = Instant::NEVER;
        self.timers.retransmit = Instant::NEVER;
        self.progress = now;
        self.ready.writable = true;
        // RFC 7323, 2.2: the window of a segment with SYN is never scaled.
        let scale = if segment.syn { 0 } else { self.peer_scale };
        self.window = u64::from(segment.window) << scale;
        self.window_max = self.window;
        self.window_from = (at.max(0) as u64, 1);
        if let Some(settings) = config.keep_alive {
            self.timers.keep_alive = now + settings.idle;
        }
    }

    /// Answers a segment that cannot be what the peer sent now: if it is the peer's, it learns
    /// where the connection stands. At a bounded rate.
    fn answer_stray(&mut self, now: Instant) {
        if self.stray.take(now) {
            self.acks_due = self.acks_due.max(1);
        }
    }

    /// RFC 5961, section 3: only the number that is expected next resets a connection.
    fn reset_received(&mut self, now: Instant, ahead: i64) -> Verdict {
        if ahead != 0 {
            self.answer_stray(now);
            return Verdict::Done;
        }
        let is_orderly = matches!(
            self.state,
            State::TimeWait | State::Closing | State::LastAck
        );
        self.end((!is_orderly).then_some(Failure::Reset));
        Verdict::Done
    }

    /// Returns what is to be done about a segment whose timestamp is missing or old (RFC 7323, 3.2
    /// and 5.3); `None` if it may go on. Resets are never dropped here.
    fn check_clock(&mut self, now: Instant, segment: &Segment) -> Option<Verdict> {
        let clock = self.clock.filter(|_| !segment.rst)?;
        let Some((value, _)) = segment.options.timestamps else {
            if segment.syn {
                // RFC 5961, section 4: a peer that has forgotten the connection is told of it.
                self.answer_stray(now);
            }
            return Some(Verdict::Done);
        };
        let is_old = (value.wrapping_sub(clock.recent) as i32) < 0;
        if is_old && now.since(clock.recent_at) < CLOCK_LIFE {
            self.answer_stray(now);
            return Some(Verdict::Done);
        }
        None
    }

    /// Remembers the peer's timestamp (RFC 7323, 4.3).
    fn update_clock(&mut self, now: Instant, start: i64, segment: &Segment) {
        let (Some(clock), Some((value, _))) = (&mut self.clock, segment.options.timestamps) else {
            return;
        };
        if start <= self.acked as i64 {
            clock.recent = value;
            clock.recent_at = now;
        }
    }

    /// Takes the acknowledgment, the selective ones and the window of an acceptable segment at
    /// `start`. `is_plain` is true for one that carries nothing else.
    fn acknowledgment(
        &mut self,
        now: Instant,
        acknowledged: i64,
        start: i64,
        segment: &Segment,
        is_plain: bool,
        config: &Config,
    ) {
        let acknowledged = acknowledged.max(0) as u64;
        let is_news = self.selective(segment);
        let scale = if segment.syn { 0 } else { self.peer_scale };
        let window = u64::from(segment.window) << scale;
        let has_flight = self.next > self.una;
        if acknowledged > self.una {
            self.advance(now, acknowledged, segment);
        } else if acknowledged == self.una && has_flight {
            if self.has_sack && is_news {
                self.recovery.duplicate();
            } else if !self.has_sack && is_plain && window == self.window {
                self.recovery.duplicate();
                self.recovery.imagine(self.una, self.next, self.mss());
            }
        }
        if self.recovery.must_begin(self.una, self.mss()) {
            self.congestion.lost(self.next - self.una);
            self.recovery.begin(self.una, self.next);
            self.timing = None;
        }
        self.update_window(window, start.max(0) as u64, acknowledged);
        if self.is_fin_queued && self.una > self.queue.end() {
            self.fin_acknowledged(now, config);
        }
    }

    /// Takes selective acknowledgments, and returns whether one was new.
    fn selective(&mut self, segment: &Segment) -> bool {
        let mut is_news = false;
        if !self.has_sack {
            return false;
        }
        for (start, end) in segment.options.sack.into_iter().flatten() {
            let base = self.sequence(self.una);
            let position = |number: u32| {
                let distance = i64::from(number.wrapping_sub(base) as i32);
                u64::try_from(self.una as i64 + distance).unwrap_or(0)
            };
            let (start, end) = (position(start), position(end));
            is_news |= self.recovery.sack(start, end, self.una, self.next);
        }
        is_news
    }

    /// The peer has all below `acknowledged`.
    fn advance(&mut self, now: Instant, acknowledged: u64, segment: &Segment) {
        let bytes = acknowledged - self.una;
        // RFC 7323, 4.1: an echoed timestamp tells the transmissions of a segment apart.
        let echoed = self.clock.zip(segment.options.timestamps);
        let echoed =
            echoed.map(|(clock, (_, echo))| Clock::at(clock.offset, now).wrapping_sub(echo));
        let echoed = echoed.filter(|&age| age < 60_000);
        let echoed = echoed.map(|age| Duration::from_millis(u64::from(age)));
        if let Some(time) = echoed {
            self.congestion.measured(time);
        }
        let timed = self
            .timing
            .filter(|&(position, _)| acknowledged >= position);
        if let Some((_, sent)) = timed {
            self.timing = None;
            self.rtt.measure(now.since(sent));
        } else if let Some(time) = echoed.filter(|_| self.timing.is_none()) {
            self.rtt.measure(time);
        }
        // Without a measurement the back-off stays (RFC 6298, 3 and 5.7): a round-trip time above
        // the timeout would never be measured otherwise, and each burst be sent twice.
        self.una = acknowledged;
        self.queue.acknowledge(acknowledged);
        self.progress = now;
        self.congestion.advance(acknowledged, self.next);
        let was = self.recovery.phase;
        let has_ended = self
            .recovery
            .advance(acknowledged, self.has_sack, self.mss());
        if was != Phase::Fast && !has_ended {
            let rtt = self.rtt.smoothed().unwrap_or_default();
            let is_limit = self.is_window_full || was == Phase::Timeout;
            self.congestion.acknowledged(now, bytes, rtt, is_limit);
        }
        self.timers.retransmit = match self.una < self.next {
            true => self.retransmit_at(now),
            false => Instant::NEVER,
        };
        if self.is_writer_waiting {
            self.is_writer_waiting = false;
            self.ready.writable = true;
        }
    }

    /// Takes the peer's window from a segment that is not older than the last that had one
    /// (RFC 9293, 3.10.7.4).
    fn update_window(&mut self, window: u64, start: u64, acknowledged: u64) {
        let (last_start, last_ack) = self.window_from;
        if last_start < start || last_start == start && last_ack <= acknowledged {
            let has_grown = window > self.window;
            self.window = window;
            self.window_max = self.window_max.max(window);
            self.window_from = (start, acknowledged);
            if has_grown && self.una == self.next {
                // The persist timer begins anew, if there is still need of it.
                self.rtt.end_back_off();
                self.timers.retransmit = Instant::NEVER;
            }
        }
    }

    fn fin_acknowledged(&mut self, now: Instant, config: &Config) {
        match self.state {
            State::FinWait1 => {
                self.state = State::FinWait2;
                if self.is_released {
                    self.timers.end = now + config.stall_max;
                }
            }
            State::Closing => self.enter_time_wait(now, config),
            State::LastAck => self.end(None),
            _ => {}
        }
    }

    /// Takes bytes and the FIN.
    fn data(
        &mut self,
        now: Instant,
        start: i64,
        mut payload: Payload<B>,
        has_fin: bool,
        config: &Config,
        limits: &Limits,
    ) -> Verdict {
        let is_open = matches!(
            self.state,
            State::Established | State::FinWait1 | State::FinWait2
        );
        let next = self.rx.next();
        if !is_open || payload.len() == 0 && !has_fin {
            return Verdict::Done;
        }
        let len = payload.len();
        let end = start + len as i64;
        if self.is_deaf && end > next as i64 {
            // There is no reader any more: the peer is to know that its bytes are lost.
            return Verdict::Abort;
        }
        let skipped = (next as i64 - start).clamp(0, len as i64);
        payload.trim_front(skipped as usize);
        let start = (start + skipped).max(1) as u64;
        let had_gap = self.rx.has_gap();
        if payload.len() > 0 {
            self.ready.readable |= self.rx.insert(start, payload, limits);
        }
        if has_fin {
            self.rx.finish(end.max(1) as u64);
        }
        if start > next {
            // RFC 5681, 4.2: each segment ahead of a gap is answered. Selective acknowledgments say
            // the same in one.
            let more = if self.has_sack { 1 } else { self.acks_due + 1 };
            self.acks_due = self.acks_due.max(more.min(16));
        } else if had_gap {
            self.acks_due = self.acks_due.max(1);
        } else {
            self.unacknowledged += len;
            // RFC 9293, 3.8.6.3: every second full segment. Their length is the peer's choice.
            let full = config.mss(self.tuple.local, config.mtu);
            self.longest = self.longest.max(len.min(full));
            if self.unacknowledged >= 2 * self.longest {
                self.acks_due = self.acks_due.max(1);
            } else {
                self.timers.ack = self.timers.ack.min(now + config.ack_delay);
            }
        }
        if self.rx.is_finished() {
            self.ready.readable = true;
            self.acks_due = self.acks_due.max(1);
            match self.state {
                State::Established => self.state = State::CloseWait,
                State::FinWait1 => self.state = State::Closing,
                _ => self.enter_time_wait(now, config),
            }
        }
        Verdict::Done
    }
}

/// The four cases of RFC 9293, 3.10.7.4, table 6: a segment `ahead` of what is expected.
fn is_acceptable(ahead: i64, len: i64, window: i64) -> bool {
    match (len, window) {
        (0, 0) => ahead == 0,
        (0, _) => (0..window).contains(&ahead),
        (_, 0) => false,
        _ => ahead < window && ahead + len > 0,
    }
}
