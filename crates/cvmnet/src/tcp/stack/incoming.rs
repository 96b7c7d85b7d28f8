//! Frames that arrive, and those of listening ports.

use std::time::Duration;

use tare_packet::ethernet::{self, Mac};
use tare_packet::{checksum, ipv6, protocol};
use tare_sim::Instant;

use super::{push_live, Stack};
use crate::tcp::buffer::{Buffer, Checksum, Frame, Payload};
use crate::tcp::config::COPIED_RESERVE;
use crate::tcp::connection::{Clock, Connection, Failure, PeerOptions, State, Verdict};
use crate::tcp::headers::{self, Dropped, Ip, Options, Segment, Tuple, PREFIX, TCP};
use crate::tcp::link::{Effect, TooBig};
use crate::tcp::receive_queue::Limits;
use crate::variant::Headers;

/// The time for which cookies are looked for after the last was sent: as long as they are valid.
const COOKIES: Duration = Duration::from_secs(128);

/// The place of the header's length in a TCP header.
const TCP_OFFSET: usize = 12;

/// Reads up to `len` bytes of a frame's headers at `at` where they lie, again if they were read
/// before: there may be other bytes by now.
fn look_at<B: Buffer>(frame: &Frame<B>, prefix: &mut [u8], at: usize, len: usize) {
    let end = at.saturating_add(len).min(prefix.len());
    if let Some(to) = prefix.get_mut(at..end) {
        frame.buffer.read(frame.range.start + at, to);
    }
}

/// Returns true if the packet is of the ICMP of its version of IP.
fn is_icmp(ip: &Ip) -> bool {
    let expected = match ip.source.is_ipv4() {
        true => protocol::ICMP,
        false => protocol::ICMPV6,
    };
    ip.protocol == expected
}

/// A segment on its way to a connection.
struct Arrived<B> {
    tuple: Tuple,
    segment: Segment,
    payload: Payload<B>,
    /// The station that it came from.
    from: Mac,
}

impl<B: Buffer> Stack<B> {
    /// Takes a frame from the device. What it is about is done or noted; packets that answer it are
    /// sent by [`Stack::poll`].
    pub fn receive(&mut self, now: Instant, frame: Frame<B>) {
        self.counters.received += 1;
        match self.dispatch(now, frame) {
            Ok(()) => {}
            Err(Dropped::Malformed) => self.counters.malformed += 1,
            Err(Dropped::NotForUs) => self.counters.not_for_us += 1,
            Err(Dropped::Checksum) => self.counters.checksum += 1,
            Err(Dropped::Source) => self.counters.source += 1,
        }
    }

    fn dispatch(&mut self, now: Instant, frame: Frame<B>) -> Result<(), Dropped> {
        let len = frame.range.len();
        let mut prefix = [0; PREFIX];
        let prefix = &mut prefix[..len.min(PREFIX)];
        match self.config.headers {
            Headers::CopiedFirst => frame.buffer.read(frame.range.start, prefix),
            Headers::InPlace => {
                // Once for the length, and once for the fields, as with TCP below.
                look_at(&frame, prefix, 0, ethernet::HEADER + 1);
                let len = match prefix.get(ethernet::HEADER) {
                    Some(first) if first >> 4 == 4 => usize::from(first & 15) * 4,
                    _ => ipv6::HEADER,
                };
                look_at(&frame, prefix, ethernet::HEADER, len);
            }
        }
        let kind = ethernet::kind(prefix).ok_or(Dropped::Malformed)?;
        let is_group = prefix[0] & 1 == 1;
        if !is_group && prefix[..6] != self.config.mac {
            return Err(Dropped::NotForUs);
        }
        if kind == ethernet::ARP {
            let effect = self.link.arp(now, prefix)?;
            self.take_effect(now, effect);
            return Ok(());
        }
        let ip = Ip::parse(prefix, len)?;
        if self.config.is_local(ip.source) {
            return Err(Dropped::Source);
        }
        match ip.protocol {
            protocol::TCP if !is_group && self.config.is_local(ip.target) => {
                self.tcp(now, frame, prefix, &ip)
            }
            protocol::ICMP | protocol::ICMPV6 if is_icmp(&ip) => {
                if len > self.config.frame_max() {
                    return Err(Dropped::NotForUs);
                }
                let mut copy = vec![0; len];
                frame.buffer.read(frame.range.start, &mut copy);
                // The second reading may differ from the first, and is the one that counts.
                let ip = Ip::parse(&copy, len)?;
                if self.config.is_local(ip.source) {
                    return Err(Dropped::Source);
                }
                if !is_icmp(&ip) {
                    return Err(Dropped::NotForUs);
                }
                let effect = self.link.icmp(now, &copy, &ip, &self.config)?;
                self.take_effect(now, effect);
                Ok(())
            }
            _ => Err(Dropped::NotForUs),
        }
    }

    fn take_effect(&mut self, now: Instant, effect: Effect) {
        match effect {
            Effect::None => {}
            Effect::Resolved => {
                for id in std::mem::take(&mut self.unresolved) {
                    push_live(&mut self.output, id, &self.table);
                }
            }
            Effect::TooBig(TooBig { tuple, seq, mtu }) => {
                let Some(index) = self.table.find(&tuple) else {
                    return;
                };
                if let Some(connection) = self.table.at(index) {
                    connection.packet_too_big(mtu, seq, &self.config);
                    self.touch(now, index);
                }
            }
        }
    }

    fn tcp(
        &mut self,
        now: Instant,
        frame: Frame<B>,
        prefix: &mut [u8],
        ip: &Ip,
    ) -> Result<(), Dropped> {
        let is_copied = self.config.headers == Headers::CopiedFirst;
        if !is_copied {
            // Once for the length, and once for the fields.
            look_at(&frame, prefix, ip.start, TCP);
            let len = prefix
                .get(ip.start + TCP_OFFSET)
                .map_or(0, |byte| byte >> 4);
            look_at(&frame, prefix, ip.start, usize::from(len) * 4);
        }
        let bytes = prefix.get(ip.start..ip.end.min(prefix.len()));
        let bytes = bytes.ok_or(Dropped::Malformed)?;
        let (segment, header_len) = Segment::parse(bytes)?;
        let start = frame.range.start + ip.start + header_len;
        let range = start..frame.range.start + ip.end;
        if frame.checksum == Checksum::Unverified {
            let header = if is_copied {
                checksum::sum(&bytes[..header_len])
            } else {
                let at = frame.range.start + ip.start;
                frame.buffer.sum(at..at + header_len)
            };
            let sum = ip.pseudo_sum() + header + frame.buffer.sum(range.clone());
            if checksum::finish(sum) != 0 {
                return Err(Dropped::Checksum);
            }
        }
        let mut from = [0; 6];
        from.copy_from_slice(&prefix[6..12]);
        let arrived = Arrived {
            tuple: Tuple {
                local: ip.target,
                remote: ip.source,
                local_port: segment.target_port,
                remote_port: segment.source_port,
            },
            segment,
            payload: Payload::Shared {
                buffer: frame.buffer,
                range,
            },
            from,
        };
        match self.table.find(&arrived.tuple) {
            Some(index) => self.deliver(now, index, arrived),
            None => self.listening(now, arrived),
        }
        Ok(())
    }

    /// Hands a segment to its connection.
    fn deliver(&mut self, now: Instant, index: u32, arrived: Arrived<B>) {
        let free = self.config.pool_max.saturating_sub(self.pinned);
        // Short payloads too are mostly read before the next ones arrive, and stay where they are
        // as long as they keep a small part of the pool.
        let uncopied = (self.config.pool_max / 4).saturating_sub(self.pinned);
        let private = self.config.copied_max.saturating_sub(self.copied);
        let Some(connection) = self.table.at(index) else {
            return;
        };
        if connection.may_be_replaced(&arrived.segment) {
            connection.end(None);
            let is_gone = connection.is_released;
            self.settle(now, index);
            if is_gone {
                self.listening(now, arrived);
            }
            return;
        }
        let limits = Limits {
            pinned_max: self.config.pinned_max.min(connection.rx.pinned() + free),
            copied_max: connection.rx.copied() + private,
            copied_reserve: COPIED_RESERVE,
            copy_divisor: self.config.copy_divisor,
            uncopied_max: connection.rx.pinned() + uncopied,
        };
        let Arrived {
            tuple,
            segment,
            payload,
            from,
        } = arrived;
        let len = payload.len();
        let verdict = connection.segment(now, &segment, payload, &self.config, &limits);
        if connection.is_genuine || connection.mac.is_none() {
            // Answers go where it came from.
            connection.mac = Some(from);
        }
        match verdict {
            Verdict::Done => self.touch(now, index),
            Verdict::Reset => {
                self.refuse(now, &tuple, from, &segment, len);
                self.touch(now, index);
            }
            Verdict::Abort => self.fail(now, index, Failure::Aborted),
        }
    }

    /// Answers a segment that belongs to no connection with a reset (RFC 9293, 3.10.7.1).
    fn refuse(&mut self, now: Instant, tuple: &Tuple, to: Mac, segment: &Segment, len: usize) {
        if segment.rst || !self.link.may_answer(now) {
            return;
        }
        let behind = segment.seq.wrapping_add(segment.length(len));
        let reset = Segment {
            source_port: tuple.local_port,
            target_port: tuple.remote_port,
            seq: segment.ack.unwrap_or(0),
            ack: segment.ack.is_none().then_some(behind),
            rst: true,
            ..Segment::default()
        };
        self.reply(to, tuple, &reset);
    }

    /// Sends a segment of no connection.
    pub(super) fn reply(&mut self, to: Mac, tuple: &Tuple, segment: &Segment) {
        let mut headers = headers::Headers::new((to, self.config.mac), tuple, segment, 0);
        headers.finish(tuple, 0, 0);
        self.link.queue(headers.bytes().to_vec());
    }

    /// Takes a segment to a port, of no connection (RFC 9293, 3.10.7.2).
    fn listening(&mut self, now: Instant, arrived: Arrived<B>) {
        let Arrived {
            tuple,
            segment,
            from,
            ..
        } = &arrived;
        let Some(listener) = self.listeners.get_mut(&tuple.local_port) else {
            self.refuse(now, tuple, *from, segment, arrived.payload.len());
            return;
        };
        if segment.rst {
            return;
        }
        if segment.ack.is_some() {
            let is_open = !segment.syn && listener.cookies_until > now;
            if !is_open || !self.take_cookie(now, &arrived) {
                self.refuse(now, tuple, *from, segment, arrived.payload.len());
                return;
            }
            if let Some(index) = self.table.find(tuple) {
                self.deliver(now, index, arrived);
            }
            return;
        }
        if !segment.syn || segment.fin {
            return;
        }
        if listener.waiting.len() >= self.config.backlog {
            self.counters.overflow += 1;
            return;
        }
        if listener.opening >= self.config.backlog {
            listener.cookies_until = now + COOKIES;
            self.counters.cookies_sent += 1;
            self.send_cookie(now, tuple, segment, *from);
            return;
        }
        let iss = self.secret.initial_sequence(now, tuple);
        let peer = (segment.seq, PeerOptions::of(segment));
        self.open(now, tuple, iss, peer, *from, Connection::passive);
    }

    /// Adds a connection that a peer opens. Returns false if there is no room for it.
    fn open(
        &mut self,
        now: Instant,
        tuple: &Tuple,
        iss: u32,
        peer: (u32, PeerOptions),
        from: Mac,
        make: Make<B>,
    ) -> bool {
        if !self.make_room(now) {
            self.counters.overflow += 1;
            return false;
        }
        let clock = self.secret.clock_offset(tuple);
        let mut connection = make(now, *tuple, iss, clock, peer, &self.config);
        connection.mac = Some(from);
        connection.book.is_opening = true;
        if let Some(listener) = self.listeners.get_mut(&tuple.local_port) {
            listener.opening += 1;
        }
        let id = self.table.insert(connection);
        self.touch(now, id.index);
        true
    }

    /// Answers a SYN with a cookie, and forgets it. The low bits of the timestamp keep what the
    /// cookie has no room for: the window scale and whether the peer takes selective
    /// acknowledgments. Without timestamps there is neither.
    fn send_cookie(&mut self, now: Instant, tuple: &Tuple, segment: &Segment, from: Mac) {
        let options = &segment.options;
        let value = options.timestamps.filter(|_| self.config.timestamps);
        let clock = Clock::at(self.secret.clock_offset(tuple), now);
        let has_sack = options.sack_permitted && self.config.sack;
        let kept = u32::from(options.scale.unwrap_or(15)) | u32::from(has_sack) << 4;
        // Not later than the clock: timestamps must not run backwards afterwards.
        let stamp = (clock & !0x1f | kept).wrapping_sub(if kept > clock & 0x1f { 32 } else { 0 });
        let mss = self.config.mss(tuple.local, self.config.mtu) as u16;
        let is_kept = value.is_some();
        let default = if tuple.local.is_ipv4() { 536 } else { 1220 };
        let peer_mss = options.mss.unwrap_or(default);
        let answer = Segment {
            source_port: tuple.local_port,
            target_port: tuple.remote_port,
            seq: self.secret.cookie(now, tuple, segment.seq, peer_mss),
            ack: Some(segment.seq.wrapping_add(1)),
            syn: true,
            window: self.config.receive_buffer.min(usize::from(u16::MAX)) as u16,
            options: Options {
                mss: Some(mss),
                scale: options
                    .scale
                    .filter(|_| is_kept)
                    .map(|_| self.config.window_scale()),
                sack_permitted: has_sack && is_kept,
                timestamps: value.map(|(value, _)| (stamp, value)),
                ..Options::default()
            },
            ..Segment::default()
        };
        self.reply(from, tuple, &answer);
    }

    /// Opens a connection whose SYN was answered with a cookie, if the segment acknowledges one.
    fn take_cookie(&mut self, now: Instant, arrived: &Arrived<B>) -> bool {
        let Arrived {
            tuple,
            segment,
            from,
            ..
        } = arrived;
        let is_full = |it: &super::Listener| it.waiting.len() >= self.config.backlog;
        let is_full = self.listeners.get(&tuple.local_port).is_none_or(is_full);
        let cookie = segment.ack.unwrap_or(0).wrapping_sub(1);
        let peer_seq = segment.seq.wrapping_sub(1);
        let mss = self.secret.open_cookie(now, tuple, peer_seq, cookie);
        let Some(mss) = mss.filter(|_| !is_full) else {
            return false;
        };
        let stamps = segment
            .options
            .timestamps
            .filter(|_| self.config.timestamps);
        let kept = stamps.map_or(15, |(_, echo)| echo);
        let peer = PeerOptions {
            mss: Some(mss),
            scale: Some((kept & 15) as u8).filter(|&scale| scale < 15),
            sack: kept & 16 != 0,
            timestamp: stamps.map(|(value, _)| value),
        };
        let is_open = self.open(
            now,
            tuple,
            cookie,
            (peer_seq, peer),
            *from,
            Connection::from_cookie,
        );
        self.counters.cookies_taken += u64::from(is_open);
        is_open
    }
}

/// A way to create a connection that a peer opens.
type Make<B> =
    fn(Instant, Tuple, u32, u32, (u32, PeerOptions), &crate::tcp::config::Config) -> Connection<B>;

impl<B: Buffer> Connection<B> {
    /// Returns true if a segment opens a new connection in place of this one in TIME-WAIT: its
    /// number or its timestamp is later than all of the old one (RFC 6191, 2).
    fn may_be_replaced(&self, segment: &Segment) -> bool {
        let is_syn = segment.syn && segment.ack.is_none() && !segment.rst;
        self.state == State::TimeWait && is_syn && self.is_later(segment)
    }
}
