//! Segments that leave: which, and when.

use tare_sim::Instant;

use super::{Clock, Connection, State};
use crate::tcp::buffer::Buffer;
use crate::tcp::config::Config;
use crate::tcp::headers::{Options, Segment};
use crate::tcp::recovery::Phase;
use crate::tcp::transmit::PIECES_MAX;

/// The payload of the largest packet: what the length field of IPv4 leaves with the longest
/// headers.
pub(crate) const PACKET_MAX: usize = 65_535 - 60 - 60;

/// A segment to be sent, with its payload as a range of the stream.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outgoing {
    pub(crate) segment: Segment,
    /// The position of the first byte.
    pub(crate) at: u64,
    /// Bytes of payload.
    pub(crate) len: usize,
    /// The bytes of each segment, if the device is to cut it.
    pub(crate) segment_bytes: Option<usize>,
}

/// A range of positions to be sent.
#[derive(Clone, Copy)]
struct Range {
    at: u64,
    len: usize,
    has_fin: bool,
}

impl<B: Buffer> Connection<B> {
    /// Returns the next segment that is to be sent now, and notes it as sent.
    pub(crate) fn next_packet(&mut self, now: Instant, config: &Config) -> Option<Outgoing> {
        match self.state {
            State::SynSent | State::SynReceived if self.is_syn_due => {
                return Some(self.syn(now, config));
            }
            State::SynSent | State::Closed => return None,
            _ => {}
        }
        if std::mem::take(&mut self.is_probe_due) {
            // A number that was acknowledged already: the peer has to answer, and need not take it.
            let mut probe = self.bare(now, config);
            probe.segment.seq = self.sequence(self.una.wrapping_sub(1));
            return Some(probe);
        }
        let is_sender = matches!(
            self.state,
            State::Established
                | State::CloseWait
                | State::FinWait1
                | State::Closing
                | State::LastAck
        );
        if is_sender {
            let options = self.options(now);
            let len_max = self.payload_max(&options, config);
            let range = self.retransmission(now, len_max);
            if let Some(range) = range.or_else(|| self.new_data(now, len_max)) {
                return Some(self.send_range(now, range, options, len_max.0, config));
            }
        }
        if self.acks_due > 0 {
            return Some(self.bare(now, config));
        }
        None
    }

    /// Returns the queue's pieces of a segment.
    pub(crate) fn pieces(&self, at: u64, len: usize) -> crate::tcp::send_queue::Pieces<'_, B> {
        self.queue.pieces(at, len)
    }

    fn syn(&mut self, now: Instant, config: &Config) -> Outgoing {
        self.is_syn_due = false;
        if self.timers.retransmit == Instant::NEVER {
            self.timers.retransmit = self.retransmit_at(now);
            self.timing = Some((1, now));
        }
        let is_answer = self.state == State::SynReceived;
        let is_scaled = self.own_scale > 0 || !is_answer || self.peer_scale > 0;
        let options = Options {
            mss: Some(config.mss(self.tuple.local, config.mtu) as u16),
            scale: is_scaled.then_some(self.own_scale),
            sack_permitted: self.has_sack,
            timestamps: self.timestamps(now),
            ..Options::default()
        };
        let window = config.receive_buffer.min(usize::from(u16::MAX));
        let mut segment = self.header(options);
        segment.seq = self.iss;
        segment.syn = true;
        segment.ack = is_answer.then(|| self.irs.wrapping_add(1));
        segment.window = window as u16;
        self.acked = 1;
        self.acks_due = 0;
        Outgoing {
            segment,
            at: 0,
            len: 0,
            segment_bytes: None,
        }
    }

    /// Returns the timestamps of a segment that is sent now.
    fn timestamps(&self, now: Instant) -> Option<(u32, u32)> {
        let clock = self.clock.as_ref()?;
        Some((Clock::at(clock.offset, now), clock.recent))
    }

    fn options(&self, now: Instant) -> Options {
        let mut options = Options {
            timestamps: self.timestamps(now),
            ..Options::default()
        };
        if self.has_sack && self.rx.has_gap() {
            options.sack = self.rx.selective().map(|range| {
                let (start, end) = range?;
                let number = |position: u64| self.irs.wrapping_add(position as u32);
                Some((number(start), number(end)))
            });
        }
        options
    }

    /// Returns the payload of one segment and of one packet, with these options.
    fn payload_max(&self, options: &Options, config: &Config) -> (usize, usize) {
        let selective = options.sack.iter().flatten().count();
        let taken = if selective > 0 { 4 + 8 * selective } else { 0 };
        let segment = self.segment_bytes.saturating_sub(taken).max(1);
        let packet = match config.segmentation_offload {
            true => PACKET_MAX / segment * segment,
            false => segment,
        };
        (segment, packet.max(segment))
    }

    /// Returns what is to be sent again, if the congestion window has room for it.
    fn retransmission(&mut self, now: Instant, len_max: (usize, usize)) -> Option<Range> {
        if self.recovery.phase == Phase::Open {
            return None;
        }
        let mss = self.mss();
        let pipe = self.recovery.pipe(self.una, self.next, mss);
        let room = self.congestion.window().saturating_sub(pipe);
        let is_forced = self.recovery.is_forced;
        if !is_forced && room < mss {
            return None;
        }
        let lost = self.recovery.next_lost(self.una, mss);
        let has_new = self.next < self.send_end() && self.next < self.una + self.window;
        let (start, end) = match lost {
            None if !has_new => self.recovery.next_doubtful(self.una, self.next, mss),
            lost => lost,
        }?;
        let most = match is_forced {
            true => len_max.0,
            false => len_max
                .1
                .min(room as usize / len_max.0 * len_max.0)
                .max(len_max.0),
        };
        let range = self.cut(start, end, most);
        let is_rescue = lost.is_none() && self.recovery.is_rescue(start);
        let sent = start + range.len as u64 + u64::from(range.has_fin);
        self.recovery.sent_again(sent, is_rescue);
        self.timing = None;
        self.timers.retransmit = self.retransmit_at(now);
        Some(range)
    }

    /// Cuts positions to at most `most` bytes and the pieces of a packet. The FIN is the one
    /// position that is no byte.
    fn cut(&self, start: u64, end: u64, most: usize) -> Range {
        let bytes = end.min(self.queue.end()).saturating_sub(start) as usize;
        let len = self.queue.limit(start, bytes.min(most), PIECES_MAX);
        Range {
            at: start,
            len,
            has_fin: self.is_fin_queued && len == bytes && end > self.queue.end(),
        }
    }

    /// Returns what is to be sent for the first time: as much as the windows allow, but no short
    /// segment that is better sent later.
    fn new_data(&mut self, now: Instant, (segment, packet): (usize, usize)) -> Option<Range> {
        let end = self.send_end();
        if self.next >= end {
            self.is_window_full = false;
            return None;
        }
        let is_idle = self.una == self.next;
        if is_idle && now.since(self.last_sent) > self.rtt.timeout() {
            self.congestion.restart();
        }
        let available = self.queue.end().saturating_sub(self.next) as usize;
        let usable = (self.una + self.window).saturating_sub(self.next) as usize;
        let pipe = self.recovery.pipe(self.una, self.next, self.mss());
        let room = self.congestion.window().saturating_sub(pipe) as usize;
        let wanted = available.min(usable).min(packet);
        self.is_window_full = room < wanted;
        let len = if wanted <= room {
            wanted
        } else {
            room / segment * segment
        };
        let len = self.queue.limit(self.next, len, PIECES_MAX);
        let takes_all = len == available;
        let tail = len % segment;
        let may_be_short = match takes_all {
            // Nagle's algorithm (RFC 9293, 3.7.4).
            true => self.no_delay || self.is_fin_queued || is_idle && len < segment,
            // The peer's window is the limit (RFC 9293, 3.8.6.2.1), or the pieces are.
            false => len == usable && len as u64 * 2 >= self.window_max || len < wanted.min(room),
        };
        let len = if may_be_short { len } else { len - tail };
        let range = Range {
            at: self.next,
            len,
            has_fin: self.is_fin_queued && len == available && usable > len,
        };
        if len > 0 || range.has_fin {
            return Some(range);
        }
        if is_idle && std::mem::take(&mut self.is_small_due) && tail > 0 {
            return Some(Range { len: tail, ..range });
        }
        if is_idle && self.timers.retransmit == Instant::NEVER {
            // The persist timer (RFC 9293, 3.8.6.1): nothing is in flight whose loss would be
            // noticed, and what opens the window may be lost.
            self.timers.retransmit = self.retransmit_at(now);
        }
        None
    }

    fn send_range(
        &mut self,
        now: Instant,
        range: Range,
        options: Options,
        segment_bytes: usize,
        config: &Config,
    ) -> Outgoing {
        let sent = range.at + range.len as u64 + u64::from(range.has_fin);
        let mut segment = self.header(options);
        segment.seq = self.sequence(range.at);
        segment.fin = range.has_fin;
        segment.psh = range.len > 0 && range.at + range.len as u64 == self.queue.end();
        segment.window = self.advertise(config);
        self.last_sent = now;
        self.is_small_due = false;
        if sent > self.next {
            if self.una == self.next || self.timers.retransmit == Instant::NEVER {
                self.timers.retransmit = self.retransmit_at(now);
            }
            if self.recovery.phase == Phase::Open {
                self.timing.get_or_insert((sent, now));
            }
            self.next = sent;
        }
        Outgoing {
            segment,
            at: range.at,
            len: range.len,
            segment_bytes: (range.len > segment_bytes).then_some(segment_bytes),
        }
    }

    /// Returns a segment without payload: an acknowledgment.
    fn bare(&mut self, now: Instant, config: &Config) -> Outgoing {
        let due = self.acks_due.saturating_sub(1);
        let mut segment = self.header(self.options(now));
        segment.seq = self.sequence(self.next);
        segment.window = self.advertise(config);
        self.acks_due = due;
        Outgoing {
            segment,
            at: self.next,
            len: 0,
            segment_bytes: None,
        }
    }

    fn header(&self, options: Options) -> Segment {
        Segment {
            source_port: self.tuple.local_port,
            target_port: self.tuple.remote_port,
            ack: Some(self.irs.wrapping_add(self.rx.next() as u32)),
            options,
            ..Segment::default()
        }
    }

    /// Returns the window of a segment that acknowledges all that has arrived, and notes that both
    /// are told.
    fn advertise(&mut self, config: &Config) -> u16 {
        let next = self.rx.next();
        let window = self.new_edge(config).saturating_sub(next) >> self.own_scale;
        let window = window.min(u64::from(u16::MAX));
        self.edge = self.edge.max(next + (window << self.own_scale));
        self.acked = next;
        self.acks_due = 0;
        self.unacknowledged = 0;
        self.timers.ack = Instant::NEVER;
        window as u16
    }
}
