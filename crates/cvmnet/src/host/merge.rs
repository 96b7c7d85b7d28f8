//! PRPR: consecutive segments of a TCP connection are merged into one large frame before the ring,
//! so that the guest processes, and bounces, one packet in the place of many.
//!
//! The rules are those of Linux's GRO, but that PSH does not end a frame: a sender of TLS records
//! sets it at the end of each. Segments are merged if they follow each other without a gap and all
//! other fields of their headers are equal, TCP options included. Every checksum is verified
//! first, and a merged frame has a right one, computed from the sums of its segments. Everything
//! else passes through as it came, after what is held of its connection.

use std::collections::VecDeque;
use std::time::Duration;

use tare_packet::{checksum, ethernet, ipv4, ipv6, protocol};
use tare_sim::Instant;

use super::FRAME_MAX;
use crate::ring::{Checksum, NetHeader, Protocol, Segments};

const ACK: u8 = 0x10;
const PSH: u8 = 0x08;

/// Bytes of a TCP header without options.
const TCP: usize = 20;

/// The limits of merging.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Connections that segments are held of at the same time, at most 4096.
    pub flows: usize,
    /// Bytes of a merged frame, at most [`FRAME_MAX`].
    pub frame_bytes: usize,
    /// The longest time to hold a segment while others arrive; 0 is until none does. A device
    /// looks when none does, and after 256 frames that it passed on.
    pub hold: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            flows: 64,
            frame_bytes: FRAME_MAX,
            hold: Duration::ZERO,
        }
    }
}

/// Frames in their order, on their way to the guest.
#[derive(Debug, Default)]
pub struct Output {
    frames: VecDeque<(NetHeader, Vec<u8>)>,
    /// Memory of frames that are gone.
    spare: Vec<Vec<u8>>,
}

impl Output {
    /// Adds a copy of a frame.
    pub fn push(&mut self, header: NetHeader, frame: &[u8]) {
        let mut copy = self.memory();
        copy.extend_from_slice(frame);
        self.frames.push_back((header, copy));
    }

    /// Returns the first frame.
    pub fn front(&self) -> Option<(NetHeader, &[u8])> {
        let (header, frame) = self.frames.front()?;
        Some((*header, frame))
    }

    /// Drops the first frame.
    pub fn pop(&mut self) {
        if let Some((_, frame)) = self.frames.pop_front() {
            if self.spare.len() < 64 {
                self.spare.push(frame);
            }
        }
    }

    /// Returns the number of frames.
    pub fn len(&self) -> usize {
        self.frames.len()
    }

    /// Returns true if there are none.
    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Returns an empty vector, which may have memory.
    fn memory(&mut self) -> Vec<u8> {
        let mut memory = self.spare.pop().unwrap_or_default();
        memory.clear();
        memory
    }
}

/// Frames since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MergeCounters {
    /// Segments that could be merged.
    pub segments: u64,
    /// Frames that were made of them, of one segment or more.
    pub frames: u64,
    /// Frames that passed through.
    pub passed: u64,
    /// Segments with a wrong checksum among these.
    pub wrong_checksum: u64,
}

/// Segments that are held, by connection.
#[derive(Debug)]
pub struct Merger {
    limits: Limits,
    /// Each connection has one place; another one that falls on the same flushes it.
    flows: Box<[Option<Flow>]>,
    held: usize,
    counters: MergeCounters,
}

/// A frame that grows.
#[derive(Debug)]
struct Flow {
    frame: Vec<u8>,
    tcp: usize,
    payload: usize,
    /// The sequence number behind the last byte.
    next: u32,
    /// Payload of each segment but the last.
    segment: usize,
    count: usize,
    /// The sum of the payload.
    sum: u64,
    due: Instant,
}

/// A segment that may be merged: its fields are valid, and its checksums right.
struct Segment {
    /// The first byte of the TCP header.
    tcp: usize,
    /// The first byte of the payload, and the end of it: Ethernet may pad.
    payload: usize,
    end: usize,
    sequence: u32,
    /// The sum of the payload.
    sum: u64,
}

/// The kind of a frame.
enum Kind {
    Segment(Segment),
    /// TCP that is not merged, with the place of its header.
    Tcp(usize),
    /// TCP without the fields that tell its connection.
    Unclear,
    Other,
}

impl Merger {
    /// Returns a merger that holds nothing. Limits that are too large are cut.
    pub fn new(limits: Limits) -> Merger {
        let limits = Limits {
            flows: limits.flows.clamp(1, 4096),
            frame_bytes: limits.frame_bytes.min(FRAME_MAX),
            ..limits
        };
        Merger {
            limits,
            flows: (0..limits.flows).map(|_| None).collect(),
            held: 0,
            counters: MergeCounters::default(),
        }
    }

    /// Returns the counters.
    pub fn counters(&self) -> MergeCounters {
        self.counters
    }

    /// Returns the number of connections that segments are held of.
    pub fn held(&self) -> usize {
        self.held
    }

    /// Takes a frame. It is held, or added to `output` after what it must not overtake.
    pub fn push(&mut self, frame: &[u8], header: NetHeader, now: Instant, output: &mut Output) {
        // Large ones are merged already, and there is no checksum to verify in partial ones.
        let plain = header.segments.is_none() && header.checksum == Checksum::Unverified;
        match kind(frame, &mut self.counters) {
            Kind::Segment(segment) if plain && segment.end <= self.limits.frame_bytes => {
                self.counters.segments += 1;
                self.merge(frame, &segment, now, output);
                return;
            }
            Kind::Segment(Segment { tcp, .. }) | Kind::Tcp(tcp) => {
                let place = self.place(frame, tcp);
                self.flush(place, output);
            }
            Kind::Unclear => self.flush_all(output),
            Kind::Other => {}
        }
        self.counters.passed += 1;
        output.push(header, frame);
    }

    /// Adds frames to `output` that were held for as long as they may be; returns true if there
    /// were any. The caller calls it when no frame has come for now, and from time to time if some
    /// always do.
    pub fn flush_due(&mut self, now: Instant, output: &mut Output) -> bool {
        let before = output.len();
        if self.held > 0 {
            for place in 0..self.flows.len() {
                if self.flows[place]
                    .as_ref()
                    .is_some_and(|flow| flow.due <= now)
                {
                    self.flush(place, output);
                }
            }
        }
        output.len() > before
    }

    /// Returns the time at which the next frame is due; `None` if none is held.
    pub fn next_due(&self) -> Option<Instant> {
        if self.held == 0 {
            return None;
        }
        self.flows.iter().flatten().map(|flow| flow.due).min()
    }

    /// Adds all frames to `output` that are held.
    pub fn flush_all(&mut self, output: &mut Output) {
        (0..self.flows.len()).for_each(|place| self.flush(place, output));
    }

    fn merge(&mut self, frame: &[u8], segment: &Segment, now: Instant, output: &mut Output) {
        let place = self.place(frame, segment.tcp);
        if let Some(flow) = &mut self.flows[place] {
            if flow.continues(frame, segment, self.limits.frame_bytes) {
                flow.append(frame, segment);
                // The last one of a large frame may be shorter, and the next one cannot follow it.
                if segment.end - segment.payload < flow.segment {
                    self.flush(place, output);
                }
                return;
            }
            self.flush(place, output);
        }
        let mut memory = output.memory();
        memory.extend_from_slice(&frame[..segment.end]);
        let bytes = segment.end - segment.payload;
        self.held += 1;
        self.flows[place] = Some(Flow {
            frame: memory,
            tcp: segment.tcp,
            payload: segment.payload,
            next: segment.sequence.wrapping_add(bytes as u32),
            segment: bytes,
            count: 1,
            sum: segment.sum,
            due: now + self.limits.hold,
        });
    }

    fn flush(&mut self, place: usize, output: &mut Output) {
        if let Some(flow) = self.flows[place].take() {
            self.held -= 1;
            self.counters.frames += 1;
            output.frames.push_back(flow.finish());
        }
    }

    /// Returns the place of the connection of a frame with addresses and ports.
    fn place(&self, frame: &[u8], tcp: usize) -> usize {
        // FNV-1a, over a few bytes. A peer that makes its connections collide has them merged less.
        let mut hash = 0xcbf2_9ce4_8422_2325u64;
        for &byte in identity(frame, tcp) {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        ((u128::from(hash) * self.flows.len() as u128) >> 64) as usize
    }
}

impl Flow {
    fn continues(&self, frame: &[u8], segment: &Segment, frame_bytes: usize) -> bool {
        let bytes = segment.end - segment.payload;
        let (tcp, payload) = (self.tcp, self.payload);
        let same = |range: std::ops::Range<usize>| self.frame[range.clone()] == frame[range];
        segment.tcp == tcp
            && segment.payload == payload
            && segment.sequence == self.next
            && bytes <= self.segment
            && self.frame.len() + bytes <= frame_bytes
            // Ethernet header; for IPv4 all but length, identification and checksum, for IPv6 all
            // but the length.
            && same(0..16)
            && match tcp - ethernet::HEADER {
                ipv4::HEADER => same(20..24) && same(26..34),
                _ => same(16..18) && same(20..54),
            }
            // Ports; acknowledgment and data offset; window; urgent pointer and options. Flags are
            // those of `Segment`, so only PSH can differ.
            && same(tcp..tcp + 4)
            && same(tcp + 8..tcp + 13)
            && same(tcp + 14..tcp + 16)
            && same(tcp + 18..payload)
    }

    fn append(&mut self, frame: &[u8], segment: &Segment) {
        let bytes = &frame[segment.payload..segment.end];
        // A sum is of 16-bit words: behind an odd number of bytes, high and low half change places.
        let odd = (self.frame.len() - self.payload) % 2 == 1;
        self.sum += match odd {
            true => u64::from((!checksum::finish(segment.sum)).swap_bytes()),
            false => segment.sum,
        };
        self.frame.extend_from_slice(bytes);
        self.frame[self.tcp + 13] |= frame[segment.tcp + 13] & PSH;
        self.next = self.next.wrapping_add(bytes.len() as u32);
        self.count += 1;
    }

    /// Returns the frame with the lengths and checksums of what it has become.
    fn finish(mut self) -> (NetHeader, Vec<u8>) {
        let checksum = Checksum::Verified;
        if self.count == 1 {
            let segments = None;
            return (NetHeader { checksum, segments }, self.frame);
        }
        let (frame, tcp) = (&mut self.frame, self.tcp);
        let ip = ethernet::HEADER;
        let len = frame.len() - tcp;
        let (protocol, pseudo) = if tcp - ip == ipv4::HEADER {
            set(frame, ip + 2, (ipv4::HEADER + len) as u16);
            set(frame, ip + 10, 0);
            let sum = checksum::finish(checksum::sum(&frame[ip..tcp]));
            set(frame, ip + 10, sum);
            (Protocol::Tcp4, pseudo_header(frame, ip + 12, tcp, len))
        } else {
            set(frame, ip + 4, len as u16);
            (Protocol::Tcp6, pseudo_header(frame, ip + 8, tcp, len))
        };
        set(frame, tcp + 16, 0);
        let headers = checksum::sum(&frame[tcp..self.payload]);
        set(
            frame,
            tcp + 16,
            checksum::finish(pseudo + headers + self.sum),
        );
        let segments = Some(Segments {
            protocol,
            bytes: self.segment as u16,
            header_bytes: self.payload as u16,
        });
        (NetHeader { checksum, segments }, self.frame)
    }
}

fn set(frame: &mut [u8], at: usize, value: u16) {
    frame[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

/// Returns the sum of the pseudo-header, whose addresses are between `addresses` and `end`.
fn pseudo_header(frame: &[u8], addresses: usize, end: usize, len: usize) -> u64 {
    checksum::sum(&frame[addresses..end]) + u64::from(protocol::TCP) + len as u64
}

/// Returns addresses and ports.
fn identity(frame: &[u8], tcp: usize) -> &[u8] {
    // They are next to each other: what has IP options is `Unclear`.
    let addresses = match tcp - ethernet::HEADER {
        ipv4::HEADER => 8,
        _ => 32,
    };
    &frame[tcp - addresses..tcp + 4]
}

fn kind(frame: &[u8], counters: &mut MergeCounters) -> Kind {
    const IP: usize = ethernet::HEADER;
    let word = |at: usize| u16::from_be_bytes([frame[at], frame[at + 1]]);
    let (tcp, end, whole) = match ethernet::kind(frame) {
        Some(ethernet::IPV4) => {
            let Some(header) = frame.get(IP..IP + ipv4::HEADER) else {
                return Kind::Other;
            };
            if header[9] != protocol::TCP {
                return Kind::Other;
            }
            // Options, or a fragment.
            let header: &[u8; 20] = header.first_chunk().expect("20 bytes");
            if header[0] != ipv4::VERSION_AND_LENGTH || word(IP + 6) & 0x3fff != 0 {
                return Kind::Unclear;
            }
            let end = IP + usize::from(word(IP + 2));
            // Without "don't fragment" the identification would have to count up.
            let whole = word(IP + 6) == 0x4000 && checksum::is_right(header);
            (IP + ipv4::HEADER, end, whole)
        }
        Some(ethernet::IPV6) => {
            let Some(header) = frame.get(IP..IP + ipv6::HEADER) else {
                return Kind::Other;
            };
            match header[6] {
                protocol::TCP => {}
                protocol::HOP_BY_HOP
                | protocol::ROUTING
                | protocol::FRAGMENT
                | protocol::DESTINATION_OPTIONS => return Kind::Unclear,
                _ => return Kind::Other,
            }
            let end = IP + ipv6::HEADER + usize::from(word(IP + 4));
            (IP + ipv6::HEADER, end, header[0] >> 4 == 6)
        }
        _ => return Kind::Other,
    };
    if end > frame.len() || end < tcp + TCP {
        return Kind::Unclear;
    }
    let payload = tcp + usize::from(frame[tcp + 12] >> 4) * 4;
    let flags = frame[tcp + 13];
    // The low bits of the data offset are reserved, and one is a flag (RFC 9768).
    let usual = flags & !PSH == ACK && frame[tcp + 12] & 0x0f == 0 && word(tcp + 18) == 0;
    if !whole || !usual || payload < tcp + TCP || payload >= end {
        return Kind::Tcp(tcp);
    }
    let addresses = if tcp == IP + ipv4::HEADER { 12 } else { 8 };
    let pseudo = pseudo_header(frame, IP + addresses, tcp, end - tcp);
    let sum = checksum::sum(&frame[payload..end]);
    if checksum::finish(pseudo + checksum::sum(&frame[tcp..payload]) + sum) != 0 {
        counters.wrong_checksum += 1;
        return Kind::Tcp(tcp);
    }
    let sequence = u32::from(word(tcp + 4)) << 16 | u32::from(word(tcp + 6));
    Kind::Segment(Segment {
        tcp,
        payload,
        end,
        sequence,
        sum,
    })
}
