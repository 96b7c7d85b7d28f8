//! One connection: its state, what its owner may do with it, and its timers. Segments that arrive
//! are in [`input`], those that leave in [`output`].
//!
//! Sequence numbers are 64-bit positions inside: the SYN is at 0, the first byte at 1, the FIN
//! behind the last. They are converted once, where a segment arrives or leaves, by their distance
//! from what is expected; so nothing else has to know that sequence numbers wrap.

mod input;
mod output;

use std::ops::Range;
use std::time::Duration;

use tare_packet::ethernet::Mac;
use tare_sim::{Instant, TokenBucket};

pub(crate) use input::Verdict;
pub(crate) use output::{Outgoing, PACKET_MAX};

use crate::tcp::buffer::Buffer;
use crate::tcp::config::Config;
use crate::tcp::congestion::Congestion;
use crate::tcp::headers::{Segment, Tuple};
use crate::tcp::receive_queue::ReceiveQueue;
use crate::tcp::recovery::Recovery;
use crate::tcp::rtt::Rtt;
use crate::tcp::send_queue::SendQueue;
use crate::tcp::stack::Book;
use crate::tcp::transmit::{Refused, SendError};

/// The segment size of a peer that names none over IPv4 (RFC 9293, 3.7.1), and over IPv6.
const MSS_DEFAULT: (u16, u16) = (536, 1220);
/// The smallest segment size that is believed: with less, a peer could make a packet of every byte.
const MSS_MIN: u16 = 88;
/// Challenge ACKs and answers to segments outside the window (RFC 5961, section 7). The limit is
/// one of each connection: a common one would tell a peer of one connection what happens on the
/// others.
const STRAY: (Duration, u32) = (Duration::from_millis(100), 10);

/// The state of a connection (RFC 9293, 3.3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Our SYN was sent.
    SynSent,
    /// A SYN has arrived and ours was sent.
    SynReceived,
    /// Open in both directions.
    Established,
    /// Our FIN was sent or waits to be.
    FinWait1,
    /// Our FIN was acknowledged.
    FinWait2,
    /// The peer's FIN has arrived.
    CloseWait,
    /// Both FINs were sent, ours is not acknowledged.
    Closing,
    /// As `Closing`, but the peer's came first.
    LastAck,
    /// Both are acknowledged; old segments may still arrive.
    TimeWait,
    /// There is nothing left.
    Closed,
}

/// The reason why a connection ended early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The peer refused it.
    Refused,
    /// The peer reset it.
    Reset,
    /// The peer did not answer in time.
    TimedOut,
    /// This end aborted it: its owner, or because the peer sent to an end that was closed.
    Aborted,
}

/// Timestamps of a connection (RFC 7323).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    /// Added to the milliseconds of this end's clock.
    pub(crate) offset: u32,
    /// TS.Recent, and when it was set.
    recent: u32,
    recent_at: Instant,
}

impl Clock {
    fn new(offset: u32) -> Clock {
        Clock {
            offset,
            recent: 0,
            recent_at: Instant::ZERO,
        }
    }

    /// Returns the timestamp of now.
    pub(crate) fn at(offset: u32, now: Instant) -> u32 {
        offset.wrapping_add((now.as_nanos() / 1_000_000) as u32)
    }
}

/// The properties of a peer, from its SYN or the cookie that stood for it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PeerOptions {
    pub(crate) mss: Option<u16>,
    pub(crate) scale: Option<u8>,
    pub(crate) sack: bool,
    /// TSval.
    pub(crate) timestamp: Option<u32>,
}

impl PeerOptions {
    pub(crate) fn of(segment: &Segment) -> PeerOptions {
        let options = &segment.options;
        PeerOptions {
            mss: options.mss,
            scale: options.scale,
            sack: options.sack_permitted,
            timestamp: options.timestamps.map(|(value, _)| value),
        }
    }
}

/// The times at which something is due; [`Instant::NEVER`] if nothing is.
#[derive(Clone, Copy, Debug)]
struct Timers {
    /// Retransmission while something is in flight, the persist timer while something waits and
    /// nothing is.
    retransmit: Instant,
    ack: Instant,
    keep_alive: Instant,
    /// The end of the state: of a handshake, of FIN-WAIT-2, of TIME-WAIT.
    end: Instant,
}

/// Events that the owner has not been told of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ready {
    /// Bytes or the end of the stream can be read.
    pub readable: bool,
    /// The connection was opened, or takes bytes again after it refused some.
    pub writable: bool,
    /// The connection is over, or failed.
    pub closed: bool,
}

pub(crate) struct Connection<B> {
    pub(crate) tuple: Tuple,
    /// The station that packets to the peer go to.
    pub(crate) mac: Option<Mac>,
    pub(crate) state: State,
    pub(crate) failure: Option<Failure>,
    /// True until it is accepted: it came in through a listening port.
    pub(crate) is_unaccepted: bool,
    /// Its owner has closed it, or there never was one: it goes when it is over.
    pub(crate) is_released: bool,
    pub(crate) ready: Ready,
    pub(crate) no_delay: bool,
    pub(crate) book: Book,

    iss: u32,
    /// The oldest position that is not acknowledged.
    una: u64,
    /// The next new position to send.
    next: u64,
    queue: SendQueue<B>,
    is_fin_queued: bool,
    /// The peer's window, the largest it ever was, and the segment that it is from: its position
    /// and its acknowledgment.
    window: u64,
    window_max: u64,
    window_from: (u64, u64),
    peer_scale: u8,
    peer_mss: usize,
    /// The MTU of the path.
    mtu: usize,
    /// Payload of a full segment.
    segment_bytes: usize,
    recovery: Recovery,
    congestion: Congestion,
    rtt: Rtt,
    /// The position whose acknowledgment is timed, and when it was sent.
    timing: Option<(u64, Instant)>,
    /// The congestion window was what kept more from being sent.
    is_window_full: bool,
    is_syn_due: bool,
    is_probe_due: bool,
    /// The persist timer ran out before a window too small to be worth a segment.
    is_small_due: bool,
    /// The owner was refused.
    is_writer_waiting: bool,
    last_sent: Instant,
    last_received: Instant,
    /// The last segment was one that only the peer could send.
    pub(crate) is_genuine: bool,
    /// The last time at which the peer acknowledged something or there was nothing to acknowledge.
    progress: Instant,
    keep_alive_probes: u32,
    stall_max: Duration,

    irs: u32,
    pub(crate) rx: ReceiveQueue<B>,
    /// The end of the window that the peer was told of.
    edge: u64,
    /// The position that the last segment sent acknowledged.
    acked: u64,
    own_scale: u8,
    has_sack: bool,
    clock: Option<Clock>,
    /// Acknowledgments that are to be sent now, and bytes received since the last one.
    acks_due: u32,
    unacknowledged: usize,
    /// The longest segment that has arrived, at most a full one.
    longest: usize,
    /// The owner does not read any more.
    is_deaf: bool,
    stray: TokenBucket,
    timers: Timers,
}

impl<B: Buffer> Connection<B> {
    fn new(now: Instant, tuple: Tuple, iss: u32, clock: Option<u32>, config: &Config) -> Self {
        let is_four = tuple.local.is_ipv4();
        let mss = if is_four {
            MSS_DEFAULT.0
        } else {
            MSS_DEFAULT.1
        };
        Connection {
            tuple,
            mac: None,
            state: State::SynSent,
            failure: None,
            is_unaccepted: false,
            is_released: false,
            ready: Ready::default(),
            no_delay: config.no_delay,
            book: Book::new(),
            iss,
            una: 0,
            next: 1,
            queue: SendQueue::new(1),
            is_fin_queued: false,
            window: 0,
            window_max: 0,
            window_from: (0, 0),
            peer_scale: 0,
            peer_mss: usize::from(mss),
            mtu: config.mtu,
            segment_bytes: usize::from(mss),
            recovery: Recovery::new(),
            congestion: Congestion::new(config.congestion, usize::from(mss)),
            rtt: Rtt::new(config.timeout_min),
            timing: None,
            is_window_full: false,
            is_syn_due: true,
            is_probe_due: false,
            is_small_due: false,
            is_writer_waiting: false,
            last_sent: now,
            last_received: now,
            is_genuine: false,
            progress: now,
            keep_alive_probes: 0,
            stall_max: config.stall_max,
            irs: 0,
            rx: ReceiveQueue::new(),
            edge: 1 + config.receive_buffer.min(usize::from(u16::MAX)) as u64,
            acked: 0,
            own_scale: config.window_scale(),
            has_sack: config.sack,
            clock: clock.map(Clock::new),
            acks_due: 0,
            unacknowledged: 0,
            longest: 0,
            is_deaf: false,
            stray: TokenBucket::new(STRAY.0, STRAY.1),
            timers: Timers {
                retransmit: Instant::NEVER,
                ack: Instant::NEVER,
                keep_alive: Instant::NEVER,
                end: now + config.handshake_max,
            },
        }
    }

    /// Creates a connection that this end opens. `clock` is the offset of its timestamps.
    pub(crate) fn active(
        now: Instant,
        tuple: Tuple,
        iss: u32,
        clock: u32,
        config: &Config,
    ) -> Self {
        Connection::new(now, tuple, iss, config.timestamps.then_some(clock), config)
    }

    /// Creates a connection for a SYN that came to a listening port.
    pub(crate) fn passive(
        now: Instant,
        tuple: Tuple,
        iss: u32,
        clock: u32,
        (peer_seq, peer): (u32, PeerOptions),
        config: &Config,
    ) -> Self {
        let mut connection = Connection::active(now, tuple, iss, clock, config);
        connection.state = State::SynReceived;
        connection.is_unaccepted = true;
        connection.is_released = true;
        connection.learn(now, peer_seq, peer, config);
        connection
    }

    /// Creates a connection whose SYN was answered with a cookie: the SYN-ACK has been sent.
    pub(crate) fn from_cookie(
        now: Instant,
        tuple: Tuple,
        iss: u32,
        clock: u32,
        peer: (u32, PeerOptions),
        config: &Config,
    ) -> Self {
        let mut connection = Connection::passive(now, tuple, iss, clock, peer, config);
        connection.is_syn_due = false;
        connection.acked = 1;
        connection
    }

    /// Takes what the peer's SYN says: its sequence number and its options.
    fn learn(&mut self, now: Instant, peer_seq: u32, peer: PeerOptions, config: &Config) {
        self.irs = peer_seq;
        let mss = peer
            .mss
            .map_or(self.peer_mss, |mss| usize::from(mss.max(MSS_MIN)));
        self.peer_mss = mss;
        match peer.scale {
            Some(scale) => self.peer_scale = scale,
            None => self.own_scale = 0,
        }
        self.has_sack &= peer.sack;
        match (&mut self.clock, peer.timestamp) {
            (Some(clock), Some(value)) => {
                clock.recent = value;
                clock.recent_at = now;
            }
            (clock, _) => *clock = None,
        }
        self.set_mtu(self.mtu, config);
        self.congestion = Congestion::new(config.congestion, self.segment_bytes);
    }

    /// Sets the path's MTU, and the segment size that follows from it.
    fn set_mtu(&mut self, mtu: usize, config: &Config) {
        self.mtu = mtu;
        let mss = config.mss(self.tuple.local, mtu).min(self.peer_mss);
        let options = if self.clock.is_some() { 12 } else { 0 };
        self.segment_bytes = mss - options;
        self.congestion.set_mss(self.segment_bytes);
    }

    /// The path takes packets of at most `mtu` bytes, an ICMP error about a segment says that had
    /// the sequence number `seq`. It is believed if that segment is in flight (RFC 5927, 4.1), and
    /// what is in flight is sent again.
    pub(crate) fn packet_too_big(&mut self, mtu: usize, seq: u32, config: &Config) -> bool {
        let distance = seq.wrapping_sub(self.sequence(self.una));
        let is_in_flight = u64::from(distance) < self.next - self.una;
        if !is_in_flight || mtu >= self.mtu || self.state == State::SynSent {
            return false;
        }
        self.set_mtu(mtu, config);
        self.recovery.time_out(self.una, self.next);
        self.timing = None;
        true
    }

    /// Returns the sequence number of a position of this end.
    fn sequence(&self, position: u64) -> u32 {
        self.iss.wrapping_add(position as u32)
    }

    /// Returns the position behind the FIN, or that of the FIN while there is none.
    fn send_end(&self) -> u64 {
        self.queue.end() + u64::from(self.is_fin_queued)
    }

    fn mss(&self) -> u64 {
        self.segment_bytes as u64
    }

    /// Returns true if the owner may send.
    pub(crate) fn can_send(&self) -> bool {
        matches!(
            self.state,
            State::SynSent | State::SynReceived | State::Established | State::CloseWait
        ) && !self.is_fin_queued
    }

    /// Takes a reference to sealed bytes.
    pub(crate) fn send(
        &mut self,
        now: Instant,
        buffer: B,
        range: Range<usize>,
        config: &Config,
    ) -> Result<(), Refused<B>> {
        let reason = if !self.can_send() {
            Some(SendError::Closed)
        } else if self.queue.len() + range.len() > config.send_buffer
            || self.queue.references() >= config.send_references
        {
            self.is_writer_waiting = true;
            Some(SendError::Full)
        } else {
            None
        };
        if let Some(reason) = reason {
            return Err(Refused {
                buffer,
                range,
                reason,
            });
        }
        self.note_progress(now);
        self.queue.push(buffer, range);
        Ok(())
    }

    /// Returns the number of references that wait to be sent or acknowledged.
    pub(crate) fn references(&self) -> usize {
        self.queue.references()
    }

    /// With nothing waiting for the peer, the time without progress begins now.
    fn note_progress(&mut self, now: Instant) {
        if self.una == self.send_end() {
            self.progress = now;
        }
    }

    /// Sends a FIN behind what is queued.
    pub(crate) fn shutdown(&mut self, now: Instant) {
        if !self.can_send() {
            return;
        }
        self.note_progress(now);
        self.is_fin_queued = true;
        self.state = match self.state {
            State::CloseWait => State::LastAck,
            State::Established => State::FinWait1,
            // The FIN follows the handshake.
            other => other,
        };
    }

    /// The owner neither reads nor sends any more. Returns true if the connection must be reset,
    /// because bytes were not read (RFC 9293, 3.10.4) or there is no connection yet.
    pub(crate) fn close(&mut self, now: Instant, config: &Config) -> bool {
        self.is_released = true;
        self.is_deaf = true;
        if self.rx.len() > 0 || self.state == State::SynSent {
            return true;
        }
        // What waits for bytes before it will not be read.
        self.rx.clear();
        self.shutdown(now);
        if self.state == State::FinWait2 {
            self.timers.end = now + config.stall_max;
        }
        false
    }

    /// Ends the connection here and now, and drops all buffers.
    pub(crate) fn end(&mut self, failure: Option<Failure>) {
        self.state = State::Closed;
        self.failure = self.failure.or(failure);
        self.ready.closed = true;
        self.queue.clear();
        if failure.is_some() || self.is_released {
            self.rx.clear();
        }
        self.stop_timers();
    }

    fn stop_timers(&mut self) {
        self.timers = Timers {
            retransmit: Instant::NEVER,
            ack: Instant::NEVER,
            keep_alive: Instant::NEVER,
            end: Instant::NEVER,
        };
    }

    /// Returns true if a SYN is later than all that arrived on this connection, by its timestamp or
    /// its number (RFC 6191, 2).
    pub(crate) fn is_later(&self, segment: &Segment) -> bool {
        let number = segment
            .seq
            .wrapping_sub(self.irs.wrapping_add(self.rx.next() as u32));
        match (self.clock, segment.options.timestamps) {
            (Some(clock), Some((value, _))) if value != clock.recent => {
                value.wrapping_sub(clock.recent) as i32 > 0
            }
            _ => number as i32 >= 0,
        }
    }

    /// Returns the segment that resets the connection at the peer.
    pub(crate) fn reset(&self) -> Segment {
        let is_synchronized = self.state != State::SynSent;
        Segment {
            source_port: self.tuple.local_port,
            target_port: self.tuple.remote_port,
            seq: self.sequence(self.next),
            ack: is_synchronized.then(|| self.irs.wrapping_add(self.rx.next() as u32)),
            rst: true,
            ..Segment::default()
        }
    }

    fn enter_time_wait(&mut self, now: Instant, config: &Config) {
        self.stop_timers();
        self.state = State::TimeWait;
        self.ready.closed = true;
        self.queue.clear();
        self.timers.end = now + config.time_wait;
    }

    pub(crate) fn rx(&self) -> &ReceiveQueue<B> {
        &self.rx
    }

    /// Drops bytes that were read. The peer is told when the window has grown by a segment or half
    /// of the buffer (RFC 9293, 3.8.6.2.2).
    pub(crate) fn consume(&mut self, n: usize, config: &Config) -> usize {
        let n = self.rx.consume(n);
        let is_open = matches!(
            self.state,
            State::Established | State::FinWait1 | State::FinWait2
        );
        // As long as the peer may still send a quarter of the buffer, it learns of a small step by
        // the next acknowledgment of data.
        let quarter = config.receive_buffer as u64 / 4;
        let grown = self.new_edge(config).saturating_sub(self.edge);
        let left = self.edge.saturating_sub(self.rx.next());
        if n > 0 && is_open && grown > 0 && (grown >= quarter || left < quarter) {
            self.acks_due = self.acks_due.max(1);
        }
        n
    }

    /// Returns the end of the window that the peer may be told of: the old one until it has grown
    /// enough.
    fn new_edge(&self, config: &Config) -> u64 {
        let free = config.receive_buffer.saturating_sub(self.rx.len());
        let edge = self.rx.next() + free as u64;
        let step = (config.receive_buffer / 2).min(config.mss(self.tuple.local, config.mtu));
        if edge >= self.edge + step as u64 {
            edge
        } else {
            self.edge
        }
    }

    /// Returns the time of the next [`Connection::expire`].
    pub(crate) fn deadline(&self) -> Instant {
        let timers = &self.timers;
        let first = timers.retransmit.min(timers.ack);
        first.min(timers.keep_alive).min(timers.end)
    }

    /// Does what is due. Returns true if the connection has failed and the peer is to be told.
    pub(crate) fn expire(&mut self, now: Instant, config: &Config) -> bool {
        if self.timers.end <= now {
            let is_opening = matches!(self.state, State::SynSent | State::SynReceived);
            self.end(is_opening.then_some(Failure::TimedOut));
            return false;
        }
        if self.timers.ack <= now {
            self.timers.ack = Instant::NEVER;
            self.acks_due = self.acks_due.max(1);
        }
        if self.timers.retransmit <= now && self.retransmit_expired(now) {
            return true;
        }
        self.timers.keep_alive <= now && self.keep_alive_expired(now, config)
    }

    fn retransmit_expired(&mut self, now: Instant) -> bool {
        let is_opening = matches!(self.state, State::SynSent | State::SynReceived);
        if !is_opening && now.since(self.progress) >= self.stall_max {
            return true;
        }
        self.timing = None;
        if is_opening {
            self.is_syn_due = true;
        } else if self.una < self.next {
            let is_first = self.recovery.time_out(self.una, self.next);
            self.congestion.timed_out(self.next - self.una, is_first);
        } else if self.send_end() == self.next {
            self.timers.retransmit = Instant::NEVER;
            return false;
        } else if self.window == 0 {
            self.is_probe_due = true;
        } else {
            self.is_small_due = true;
        }
        self.rtt.back_off();
        self.timers.retransmit = self.retransmit_at(now);
        false
    }

    /// Returns the time of the retransmission, or of giving up if that is earlier.
    fn retransmit_at(&self, now: Instant) -> Instant {
        let at = now + self.rtt.timeout();
        match self.state {
            State::SynSent | State::SynReceived => at,
            _ => at.min(self.progress + self.stall_max),
        }
    }

    /// The timer is not set again with each segment: it looks at the time of the last one.
    fn keep_alive_expired(&mut self, now: Instant, config: &Config) -> bool {
        let Some(settings) = config.keep_alive else {
            self.timers.keep_alive = Instant::NEVER;
            return false;
        };
        let idle_until = self.last_received + settings.idle;
        if idle_until > now {
            self.keep_alive_probes = 0;
            self.timers.keep_alive = idle_until;
            return false;
        }
        if self.keep_alive_probes >= settings.probes {
            return true;
        }
        self.keep_alive_probes += 1;
        self.is_probe_due = true;
        self.timers.keep_alive = now + settings.interval;
        false
    }
}
