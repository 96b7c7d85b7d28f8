//! Segments by hand, to and from one stack.

use std::cell::Cell;
use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::time::Duration;

use tare_cvmnet::tcp::{Checksum, Config, Frame, Id, Packet, Secret, Stack, Transmit};
use tare_packet::wire::{TcpOption, TcpPacket, TcpSeqNumber};
use tare_packet::{ethernet, frame, protocol};
use tare_sim::Instant;

use super::{address4, config, mac, Pooled, A, B, PORT};

/// A segment. Those to the stack are from port 5000 to [`PORT`] unless they say something else.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seg {
    pub from: u16,
    pub to: u16,
    pub seq: u32,
    pub ack: Option<u32>,
    pub syn: bool,
    pub fin: bool,
    pub rst: bool,
    pub window: u16,
    pub mss: Option<u16>,
    pub scale: Option<u8>,
    pub sack_permitted: bool,
    pub sack: Vec<(u32, u32)>,
    pub stamps: Option<(u32, u32)>,
    pub payload: Vec<u8>,
}

pub const PEER_PORT: u16 = 5000;

impl Seg {
    pub fn new(seq: u32, ack: u32) -> Seg {
        Seg {
            from: PEER_PORT,
            to: PORT,
            seq,
            ack: Some(ack),
            syn: false,
            fin: false,
            rst: false,
            window: 60_000,
            mss: None,
            scale: None,
            sack_permitted: false,
            sack: Vec::new(),
            stamps: None,
            payload: Vec::new(),
        }
    }

    pub fn syn(seq: u32) -> Seg {
        Seg {
            ack: None,
            syn: true,
            mss: Some(1460),
            ..Seg::new(seq, 0)
        }
    }

    pub fn with(mut self, change: impl FnOnce(&mut Seg)) -> Seg {
        change(&mut self);
        self
    }

    pub fn data(self, payload: &[u8]) -> Seg {
        self.with(|it| it.payload = payload.to_vec())
    }

    /// The bytes of the TCP segment, by another encoder than the stack's.
    pub fn tcp(&self, from: Ipv4Addr, to: Ipv4Addr) -> Vec<u8> {
        let mut options = Vec::new();
        let mut put = |option: TcpOption<'_>| {
            let mut bytes = vec![0; option.buffer_len()];
            option.emit(&mut bytes);
            options.extend(bytes);
        };
        if let Some(mss) = self.mss {
            put(TcpOption::MaxSegmentSize(mss));
        }
        if let Some(scale) = self.scale {
            put(TcpOption::WindowScale(scale));
        }
        if self.sack_permitted {
            put(TcpOption::SackPermitted);
        }
        if let Some((tsval, tsecr)) = self.stamps {
            put(TcpOption::TimeStamp { tsval, tsecr });
        }
        if !self.sack.is_empty() {
            let mut ranges = [None; 3];
            ranges
                .iter_mut()
                .zip(&self.sack)
                .for_each(|(to, from)| *to = Some(*from));
            put(TcpOption::SackRange(ranges));
        }
        options.resize(options.len().next_multiple_of(4), 0);
        let header_len = 20 + options.len();
        let mut bytes = vec![0; header_len + self.payload.len()];
        bytes[20..header_len].copy_from_slice(&options);
        bytes[header_len..].copy_from_slice(&self.payload);
        let mut packet = TcpPacket::new_unchecked(&mut bytes);
        packet.set_src_port(self.from);
        packet.set_dst_port(self.to);
        packet.set_seq_number(TcpSeqNumber(self.seq as i32));
        packet.set_ack_number(TcpSeqNumber(self.ack.unwrap_or(0) as i32));
        packet.set_header_len(header_len as u8);
        packet.set_syn(self.syn);
        packet.set_fin(self.fin);
        packet.set_rst(self.rst);
        packet.set_ack(self.ack.is_some());
        packet.set_window_len(self.window);
        packet.fill_checksum(&from.into(), &to.into());
        bytes
    }

    pub fn frame(&self) -> Vec<u8> {
        let (from, to) = (address4(B), address4(A));
        frame::ipv4(mac(A), mac(B), from, to, protocol::TCP, &self.tcp(from, to))
    }

    /// Reads a frame of the stack, and checks all that a receiver would.
    pub fn parse(frame: &[u8]) -> Option<Seg> {
        if ethernet::kind(frame) != Some(ethernet::IPV4) {
            return None;
        }
        let ip = tare_packet::ipv4::Ipv4::parse(&frame[14..]).expect("a valid header");
        if ip.protocol != protocol::TCP {
            return None;
        }
        let bytes = &frame[14 + ip.header_len..14 + ip.total_len];
        let packet = TcpPacket::new_checked(bytes).expect("a valid segment");
        let [source, target] = [ip.src, ip.dst].map(|bits| Ipv4Addr::from_bits(bits).into());
        assert!(packet.verify_checksum(&source, &target));
        let mut seg = Seg {
            from: packet.src_port(),
            to: packet.dst_port(),
            seq: packet.seq_number().0 as u32,
            ack: packet.ack().then(|| packet.ack_number().0 as u32),
            syn: packet.syn(),
            fin: packet.fin(),
            rst: packet.rst(),
            window: packet.window_len(),
            payload: packet.payload().to_vec(),
            ..Seg::new(0, 0)
        };
        let mut options = packet.options();
        while !options.is_empty() {
            let (rest, option) = TcpOption::parse(options).expect("valid options");
            match option {
                TcpOption::MaxSegmentSize(mss) => seg.mss = Some(mss),
                TcpOption::WindowScale(scale) => seg.scale = Some(scale),
                TcpOption::SackPermitted => seg.sack_permitted = true,
                TcpOption::TimeStamp { tsval, tsecr } => seg.stamps = Some((tsval, tsecr)),
                TcpOption::SackRange(ranges) => seg.sack = ranges.into_iter().flatten().collect(),
                _ => {}
            }
            options = rest;
        }
        Some(seg)
    }
}

/// Frames that a stack sends.
#[derive(Default)]
pub struct Sink {
    pub frames: Vec<Vec<u8>>,
    pub offloads: Vec<tare_cvmnet::tcp::Offload>,
}

impl Transmit<Pooled> for Sink {
    fn room(&mut self) -> usize {
        100_000 - self.frames.len()
    }

    fn send(&mut self, packet: Packet<'_, Pooled>) {
        let mut frame = packet.headers.to_vec();
        for (buffer, range) in packet.payload {
            frame.extend_from_slice(&buffer.bytes[range]);
        }
        self.frames.push(frame);
        self.offloads.push(packet.offload);
    }
}

/// A stack, and a peer that is played by the test.
pub struct Bench {
    pub stack: Stack<Pooled>,
    pub live: Rc<Cell<usize>>,
    pub now: Instant,
}

/// A connection of a [`Bench`], as its peer sees it.
#[derive(Clone, Copy, Debug)]
pub struct Open {
    pub id: Id,
    /// The next sequence number of the peer.
    pub seq: u32,
    /// The next of the stack.
    pub ack: u32,
}

pub const MS: Duration = Duration::from_millis(1);

impl Bench {
    pub fn new(change: impl FnOnce(&mut Config)) -> Bench {
        let mut config = config(A);
        change(&mut config);
        let stack = Stack::new(config, Secret::new(&[9; 16])).expect("a possible configuration");
        let mut bench = Bench {
            stack,
            live: Rc::default(),
            now: Instant::ZERO + Duration::from_secs(1000),
        };
        bench.stack.listen(PORT);
        bench
    }

    /// Gives the stack a frame and nothing else to do.
    pub fn put(&mut self, frame: Vec<u8>) {
        let range = 0..frame.len();
        let frame = Frame {
            buffer: Pooled::new(frame, 2048, &self.live),
            range,
            checksum: Checksum::Unverified,
        };
        self.stack.receive(self.now, frame);
    }

    /// Lets the stack send, and returns all frames.
    pub fn frames(&mut self) -> Vec<Vec<u8>> {
        let mut sink = Sink::default();
        while self.stack.poll(self.now, &mut sink) {}
        sink.frames
    }

    /// Lets the stack send, and returns the segments.
    pub fn poll(&mut self) -> Vec<Seg> {
        self.frames()
            .iter()
            .filter_map(|frame| Seg::parse(frame))
            .collect()
    }

    /// Gives the stack a segment, and returns what it answers.
    pub fn give(&mut self, seg: &Seg) -> Vec<Seg> {
        self.put(seg.frame());
        self.poll()
    }

    /// Lets time pass, with all timers at their moments.
    pub fn wait(&mut self, time: Duration) -> Vec<Seg> {
        let end = self.now + time;
        let mut all = Vec::new();
        loop {
            let next = self.stack.next_timer().max(self.now);
            if next > end {
                break;
            }
            self.now = next;
            all.extend(self.poll());
        }
        self.now = end;
        all.extend(self.poll());
        all
    }

    /// Opens a connection with the options of this SYN.
    pub fn open(&mut self, syn: Seg) -> Open {
        let answers = self.give(&syn);
        let [answer] = &answers[..] else {
            panic!("one answer to a SYN: {answers:?}");
        };
        assert!(
            answer.syn && answer.ack == Some(syn.seq.wrapping_add(1)),
            "{answer:?}"
        );
        let open = |id| Open {
            id,
            seq: syn.seq.wrapping_add(1),
            ack: answer.seq.wrapping_add(1),
        };
        let stamps = answer.stamps.zip(syn.stamps);
        let ack = Seg {
            stamps: stamps.map(|((value, _), (own, _))| (own, value)),
            from: syn.from,
            ..Seg::new(syn.seq.wrapping_add(1), answer.seq.wrapping_add(1))
        };
        assert_eq!(self.give(&ack), []);
        open(self.stack.accept(PORT).expect("an open connection"))
    }

    /// Sends bytes on a connection.
    pub fn send(&mut self, id: Id, bytes: &[u8]) -> Vec<Seg> {
        let buffer = Pooled::new(bytes.to_vec(), bytes.len(), &self.live);
        let sent = self.stack.send(self.now, id, buffer, 0..bytes.len());
        assert!(sent.is_ok(), "{:?}", sent.err().map(|it| it.reason));
        self.poll()
    }

    /// Reads all that has arrived.
    pub fn read(&mut self, id: Id) -> Vec<u8> {
        let mut all = Vec::new();
        for chunk in self.stack.readable(id) {
            match chunk {
                tare_cvmnet::tcp::Chunk::Shared(buffer, range) => {
                    all.extend_from_slice(&buffer.bytes[range]);
                }
                tare_cvmnet::tcp::Chunk::Private(bytes) => all.extend_from_slice(bytes),
            }
        }
        self.stack.consume(self.now, id, all.len());
        all
    }

    /// Opens a connection from the stack, and returns it with its SYN.
    pub fn connect(&mut self) -> (Id, Seg) {
        let to = SocketAddr::new(address4(B).into(), PEER_PORT);
        let id = self.stack.connect(self.now, to).expect("a route");
        let frames = self.frames();
        let request = frames.last().expect("a request for the peer's station");
        assert_eq!(ethernet::kind(request), Some(ethernet::ARP));
        self.put(arp_reply());
        let syns = self.poll();
        (id, syns.into_iter().next().expect("a SYN"))
    }
}

/// The peer's answer to a request for its station address.
fn arp_reply() -> Vec<u8> {
    let mut frame = ethernet::header(mac(A), mac(B), ethernet::ARP).to_vec();
    frame.extend([0, 1, 8, 0, 6, 4, 0, 2]);
    frame.extend(mac(B));
    frame.extend(address4(B).octets());
    frame.extend(mac(A));
    frame.extend(address4(A).octets());
    frame
}
