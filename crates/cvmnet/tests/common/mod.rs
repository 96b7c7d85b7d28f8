//! Two guests on a simulated line: stacks whose frames are bytes, with programs that send and check
//! streams.
#![allow(
    dead_code,
    unreachable_pub,
    reason = "each test file uses a part of it"
)]

pub mod wire;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::Range;
use std::rc::Rc;

use tare_cvmnet::tcp::{
    Buffer, Checksum, Chunk, Config, Frame, Id, Network, Packet, Secret, Segmentation, Stack,
    Transmit,
};
use tare_packet::checksum;
use tare_sim::{Instant, Node, Outbox};

/// A buffer of a pool that is counted: a leak is a count that does not return to 0.
pub struct Pooled {
    pub bytes: Vec<u8>,
    capacity: usize,
    live: Rc<Cell<usize>>,
}

impl fmt::Debug for Pooled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.bytes.len())
    }
}

impl Pooled {
    pub fn new(bytes: Vec<u8>, capacity: usize, live: &Rc<Cell<usize>>) -> Pooled {
        live.set(live.get() + 1);
        Pooled {
            bytes,
            capacity,
            live: live.clone(),
        }
    }
}

impl Pooled {
    /// A buffer of any length whose bytes are 0 and not there: for tests that move gigabytes.
    pub fn without_bytes(live: &Rc<Cell<usize>>) -> Pooled {
        Pooled::new(Vec::new(), 0, live)
    }
}

impl Drop for Pooled {
    fn drop(&mut self) {
        self.live.set(self.live.get() - 1);
    }
}

impl Buffer for Pooled {
    fn capacity(&self) -> usize {
        self.capacity
    }

    fn read(&self, at: usize, to: &mut [u8]) {
        self.bytes.read(at, to);
    }

    fn sum(&self, range: Range<usize>) -> u64 {
        if self.bytes.is_empty() {
            return 0;
        }
        self.bytes.sum(range)
    }
}

/// The byte at a position of the stream with a seed.
pub fn byte(seed: u64, at: u64) -> u8 {
    let mixed = (at >> 3)
        .wrapping_add(seed << 32)
        .wrapping_mul(0x9e37_79b9_7f4a_7c15);
    ((mixed ^ mixed >> 29) >> (at % 8 * 5)) as u8
}

/// The stream that a program sends, and the one that it expects.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub seed: u64,
    /// Bytes to send.
    pub send: u64,
    /// Bytes of each reference.
    pub piece: usize,
    /// True to read what arrives.
    pub reads: bool,
    /// True to close when both streams have ended.
    pub closes: bool,
}

impl Plan {
    pub fn new(seed: u64, send: u64) -> Plan {
        Plan {
            seed,
            send,
            piece: 16_000,
            reads: true,
            closes: true,
        }
    }
}

/// A program on a connection.
#[derive(Debug)]
pub struct Flow {
    pub plan: Plan,
    peer_seed: u64,
    pub sent: u64,
    pub received: u64,
    pub is_wrong: bool,
    pub has_ended: bool,
    pub has_failed: bool,
    pub shared: u64,
}

/// The way out of a host: whole frames.
#[derive(Default)]
struct Device {
    frames: Vec<Vec<u8>>,
    /// Deliver what should be cut as it is, as between two guests of one host.
    keeps_large: bool,
    largest: usize,
}

impl Transmit<Pooled> for Device {
    fn room(&mut self) -> usize {
        // As little as a ring has.
        256 - self.frames.len().min(256)
    }

    fn send(&mut self, packet: Packet<'_, Pooled>) {
        let mut frame = packet.headers.to_vec();
        let mut pieces = 0;
        for (buffer, range) in packet.payload {
            frame.extend_from_slice(&buffer.bytes[range]);
            pieces += 1;
        }
        assert!(pieces <= tare_cvmnet::tcp::PIECES_MAX);
        assert_eq!(frame.len() - packet.headers.len(), packet.payload_len);
        self.largest = self.largest.max(frame.len());
        let offload = packet.offload;
        if offload.segmentation != Segmentation::None && !self.keeps_large {
            self.frames.extend(cut(&frame, &offload));
            return;
        }
        if offload.needs_checksum {
            fill_checksum(
                &mut frame,
                offload.checksum_start.into(),
                offload.checksum_offset.into(),
            );
        }
        self.frames.push(frame);
    }
}

fn fill_checksum(frame: &mut [u8], start: usize, offset: usize) {
    let sum = checksum::finish(checksum::sum(&frame[start..]));
    frame[start + offset..start + offset + 2].copy_from_slice(&sum.to_be_bytes());
}

/// Cuts a large packet as a device does.
fn cut(frame: &[u8], offload: &tare_cvmnet::tcp::Offload) -> Vec<Vec<u8>> {
    let start = usize::from(offload.checksum_start);
    let (headers, payload) = frame.split_at(offload.header_bytes.into());
    let mut segments = Vec::new();
    let size = usize::from(offload.segment_bytes);
    let count = payload.len().div_ceil(size);
    for (n, part) in payload.chunks(size).enumerate() {
        let mut segment = headers.to_vec();
        segment.extend_from_slice(part);
        let len = (segment.len() - 14) as u16;
        let tcp_len = segment.len() - start;
        let (source, target) = if offload.segmentation == Segmentation::Tcp4 {
            segment[16..18].copy_from_slice(&len.to_be_bytes());
            segment[24..26].fill(0);
            let sum = checksum::finish(checksum::sum(&segment[14..start]));
            segment[24..26].copy_from_slice(&sum.to_be_bytes());
            (26..30, 30..34)
        } else {
            segment[18..20].copy_from_slice(&(len - 40).to_be_bytes());
            (22..38, 38..54)
        };
        let seq = u32::from_be_bytes(segment[start + 4..start + 8].try_into().unwrap());
        let seq = seq.wrapping_add((n * size) as u32);
        segment[start + 4..start + 8].copy_from_slice(&seq.to_be_bytes());
        if n + 1 < count {
            // FIN and PSH are the last segment's.
            segment[start + 13] &= !0x09;
        }
        let pseudo = checksum::pseudo_header(&segment[source], &segment[target], 6, tcp_len);
        let pseudo = !checksum::finish(pseudo);
        segment[start + 16..start + 18].copy_from_slice(&pseudo.to_be_bytes());
        fill_checksum(&mut segment, start, 16);
        segments.push(segment);
    }
    segments
}

/// A guest: a stack and its programs.
pub struct Host {
    pub stack: Stack<Pooled>,
    pub live: Rc<Cell<usize>>,
    pub flows: BTreeMap<Id, Flow>,
    /// The plan of programs that are started for connections to [`PORT`].
    pub serve: Plan,
    /// Flows that ended well, and that failed.
    pub ended: usize,
    pub failed: usize,
    pub received: u64,
    device: Device,
    checksum: Checksum,
    pub frames_in: u64,
    pub pinned_max: usize,
}

pub const PORT: u16 = 443;
pub const A: u8 = 1;
pub const B: u8 = 2;

pub fn address4(host: u8) -> Ipv4Addr {
    Ipv4Addr::new(192, 0, 2, host)
}

pub fn address6(host: u8) -> Ipv6Addr {
    Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, host.into())
}

pub fn mac(host: u8) -> [u8; 6] {
    [2, 0, 0, 0, 0, host]
}

pub fn config(host: u8) -> Config {
    Config {
        ip4: Some(Network {
            address: address4(host),
            prefix_len: 24,
            gateway: None,
        }),
        ip6: Some(Network {
            address: address6(host),
            prefix_len: 64,
            gateway: None,
        }),
        ..Config::new(mac(host))
    }
}

impl Host {
    pub fn new(config: Config) -> Host {
        let key = [config.mac[5]; 16];
        let mut stack = Stack::new(config, Secret::new(&key)).expect("a possible configuration");
        stack.listen(PORT);
        Host {
            stack,
            live: Rc::default(),
            flows: BTreeMap::new(),
            serve: Plan::new(0, 0),
            ended: 0,
            failed: 0,
            received: 0,
            device: Device::default(),
            checksum: Checksum::Unverified,
            frames_in: 0,
            pinned_max: 0,
        }
    }

    /// Exchanges large packets without cutting them.
    pub fn keep_large(&mut self) {
        self.device.keeps_large = true;
        self.checksum = Checksum::Trusted;
    }

    /// Returns the bytes of the largest frame that was sent.
    pub fn largest(&self) -> usize {
        self.device.largest
    }

    pub fn connect(&mut self, now: Instant, to: IpAddr, plan: Plan) -> Id {
        let id = self
            .stack
            .connect(now, SocketAddr::new(to, PORT))
            .expect("a route");
        self.start(id, plan, plan.seed);
        id
    }

    fn start(&mut self, id: Id, plan: Plan, peer_seed: u64) {
        let flow = Flow {
            plan,
            peer_seed,
            sent: 0,
            received: 0,
            is_wrong: false,
            has_ended: false,
            has_failed: false,
            shared: 0,
        };
        self.flows.insert(id, flow);
    }

    /// Lets programs work and the stack send until both have nothing to do.
    pub fn run(&mut self, now: Instant, out: &mut Outbox<Vec<u8>>) {
        loop {
            while let Some(id) = self.stack.accept(PORT) {
                let plan = self.serve;
                self.start(id, plan, plan.seed);
                self.pump(now, id);
            }
            while let Some((id, _)) = self.stack.event() {
                self.pump(now, id);
            }
            self.pinned_max = self.pinned_max.max(self.stack.pinned());
            let has_more = self.stack.poll(now, &mut self.device) || self.device.room() == 0;
            self.device
                .frames
                .drain(..)
                .for_each(|frame| out.send(0, frame));
            if !has_more {
                return;
            }
        }
    }

    /// Lets the program of a connection read and send.
    pub fn pump(&mut self, now: Instant, id: Id) {
        let Some(flow) = self.flows.get_mut(&id) else {
            return;
        };
        let mut read = 0;
        if flow.plan.reads {
            for chunk in self.stack.readable(id) {
                let at = flow.received + read as u64;
                let bytes = match &chunk {
                    Chunk::Shared(buffer, range) => {
                        flow.shared += range.len() as u64;
                        &buffer.bytes[range.clone()]
                    }
                    Chunk::Private(bytes) => bytes,
                };
                let expected = (at..).map(|at| byte(flow.peer_seed, at));
                flow.is_wrong |= !bytes.iter().copied().eq(expected.take(bytes.len()));
                read += bytes.len();
            }
            flow.received += read as u64;
            self.received += read as u64;
            self.stack.consume(now, id, read);
        }
        while flow.sent < flow.plan.send {
            let len = (flow.plan.send - flow.sent).min(flow.plan.piece as u64);
            let bytes = (flow.sent..flow.sent + len).map(|at| byte(flow.plan.seed, at));
            let buffer = Pooled::new(bytes.collect(), 1 << 14, &self.live);
            match self.stack.send(now, id, buffer, 0..len as usize) {
                Ok(()) => flow.sent += len,
                Err(_) => break,
            }
        }
        if flow.sent == flow.plan.send && !flow.has_ended {
            self.stack.shutdown(now, id);
        }
        if self.stack.failure(id).is_some() {
            flow.has_failed = true;
            self.failed += 1;
            self.stack.close(now, id);
            self.flows.remove(&id);
        } else if self.stack.is_finished(id) && flow.sent == flow.plan.send {
            if !flow.has_ended {
                self.ended += usize::from(!flow.is_wrong);
                flow.has_ended = true;
            }
            if flow.plan.closes {
                self.stack.close(now, id);
                self.flows.remove(&id);
            }
        }
    }
}

impl Node for Host {
    type Message = Vec<u8>;

    fn receive(&mut self, now: Instant, _: usize, frame: Vec<u8>, out: &mut Outbox<Vec<u8>>) {
        self.frames_in += 1;
        let range = 0..frame.len();
        let capacity = frame.len().max(2048);
        self.stack.receive(
            now,
            Frame {
                buffer: Pooled::new(frame, capacity, &self.live),
                range,
                checksum: self.checksum,
            },
        );
        self.run(now, out);
    }

    fn next_deadline(&self) -> Instant {
        self.stack.next_timer()
    }

    fn tick(&mut self, now: Instant, out: &mut Outbox<Vec<u8>>) {
        self.run(now, out);
    }
}
