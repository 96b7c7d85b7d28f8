//! Two gateways with a route to each other, and packets for them.

use std::net::IpAddr;
use std::sync::Arc;

use tare_gateway::dataplane::Prefixes;
use tare_gateway::dataplane::{Dataplane, DropReason, Output, TrafficCounters, WorkerGroup};
use tare_gateway::dataplane::{InboundSa, OutboundSa, Outer, SequenceMode};
use tare_gateway::dataplane::{InterfaceView, Route, SpiTable, Tables};
use tare_gcm::{Key, Nonce};
use tare_memory::Shared;
use tare_packet::ethernet::{self, Mac, HEADER};
use tare_packet::{ipv4, ipv6};
use tare_port::{Burst, Layout, Pool};
use tare_sim::Instant;

/// The parameters of a pair.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) outer_v6: bool,
    pub(crate) key_bytes: usize,
    pub(crate) sequence_mode: SequenceMode,
    pub(crate) path_mtu: u16,
    pub(crate) private_mtu: u16,
    pub(crate) window: u32,
    /// True if the routes take every address.
    pub(crate) everything: bool,
    /// True if padding of zeros is accepted.
    pub(crate) zeros: bool,
    /// Sequence numbers before the first.
    pub(crate) skipped: u64,
    /// True if the MAC addresses of the next hops are known: private, public.
    pub(crate) next_hops: [bool; 2],
}

impl Default for Shape {
    fn default() -> Shape {
        Shape {
            outer_v6: false,
            key_bytes: 16,
            sequence_mode: SequenceMode::Extended,
            path_mtu: 1500,
            private_mtu: 1500,
            window: 1024,
            everything: false,
            zeros: false,
            skipped: 0,
            next_hops: [true; 2],
        }
    }
}

impl Shape {
    /// Every combination of outer family, key length and counting.
    pub(crate) fn all() -> impl Iterator<Item = Shape> {
        (0..8).map(|bits| Shape {
            outer_v6: bits & 1 != 0,
            key_bytes: if bits & 2 != 0 { 32 } else { 16 },
            sequence_mode: if bits & 4 != 0 {
                SequenceMode::Plain
            } else {
                SequenceMode::Extended
            },
            ..Shape::default()
        })
    }
}

pub(crate) const SPI: u32 = 1001;
pub(crate) const HOST: Mac = [2, 0, 0, 0, 0, 9];
pub(crate) const NEAR_MAC: Mac = [2, 0, 0, 0, 1, 0];
pub(crate) const FAR_MAC: Mac = [2, 0, 0, 0, 1, 1];
pub(crate) const NEAR4: u32 = 0x0a01_0001;
pub(crate) const FAR4: u32 = 0x0a02_0001;
const NEAR_NET: [&str; 2] = ["10.1.0.0/16", "fd01::/64"];
const FAR_NET: [&str; 2] = ["10.2.0.0/16", "fd02::/64"];
pub(crate) const NEAR6: u128 = 0xfd01 << 112 | 1;
pub(crate) const FAR6: u128 = 0xfd02 << 112 | 1;
pub(crate) const NEAR_OUTER4: u32 = 0xc0a8_0001;
pub(crate) const FAR_OUTER4: u32 = 0xc0a8_0002;
const NEAR_OUTER6: u128 = 0xfe80 << 112 | 1;
const FAR_OUTER6: u128 = 0xfe80 << 112 | 2;

pub(crate) struct Pair {
    pub(crate) pool: Pool,
    pub(crate) near: Dataplane,
    pub(crate) far: Dataplane,
    /// Outbound SAs of near and far.
    pub(crate) sas: [Shared<OutboundSa>; 2],
    pub(crate) now: Instant,
}

impl Pair {
    pub(crate) fn new(shape: Shape) -> Pair {
        let pool = Pool::new(1024, 4096, Layout::Spread).unwrap();
        let end = |is_near: bool| {
            let secret = [7; 32];
            let (own, peer) = if is_near { (0, 1) } else { (1, 0) };
            let key = || Key::new(&secret[..shape.key_bytes]).unwrap();
            let v4 = [NEAR_OUTER4, FAR_OUTER4];
            let v6 = [NEAR_OUTER6, FAR_OUTER6];
            let outer = if shape.outer_v6 {
                Outer::V6 {
                    src: v6[own].to_be_bytes(),
                    dst: v6[peer].to_be_bytes(),
                }
            } else {
                Outer::V4 {
                    src: v4[own],
                    dst: v4[peer],
                }
            };
            // Each direction has an SPI, a salt and thereby nonces of its own.
            let spi = |sender: usize| SPI + sender as u32;
            let salt = |sender: usize| [sender as u8; 4];
            let out = || OutboundSa::new(spi(own), key(), salt(own), shape.sequence_mode, outer);
            let mut out = (out(), out());
            out.0.follow(&out.1, shape.skipped);
            let out = Shared::new(out.0);
            let mut inbound = InboundSa::new(
                spi(peer),
                key(),
                salt(peer),
                shape.sequence_mode,
                shape.window,
                0,
            );
            if shape.zeros {
                inbound = inbound.with_zeros_as_padding();
            }
            let nets = match shape.everything {
                true => ["0.0.0.0/0", "::/0"],
                false => [NEAR_NET, FAR_NET][peer],
            };
            let side = InterfaceView {
                mac: [NEAR_MAC, FAR_MAC][own],
                ip4: Some(v4[own]),
                ip6: Some(v6[own]),
                next_hop4: shape.next_hops[0].then_some(HOST),
                next_hop6: shape.next_hops[0].then_some(HOST),
                mtu: shape.path_mtu,
            };
            let tables = Tables {
                prefixes: Arc::new(Prefixes::new(nets.map(|net| (net.parse().unwrap(), 0)))),
                routes: vec![Route::new(Some(out.clone()), shape.path_mtu)],
                inbound: SpiTable::new([Shared::new(inbound)]),
                private: InterfaceView {
                    ip4: Some([NEAR4, FAR4][own] + 0xfe),
                    ip6: Some([NEAR6, FAR6][own] + 0xfe),
                    mtu: shape.private_mtu,
                    ..side
                },
                public: InterfaceView {
                    next_hop4: shape.next_hops[1].then_some([NEAR_MAC, FAR_MAC][peer]),
                    next_hop6: shape.next_hops[1].then_some([NEAR_MAC, FAR_MAC][peer]),
                    ..side
                },
                exchange_port: 303,
            };
            let (group, worker) = WorkerGroup::sole();
            let plane = Dataplane::new(group.bind(tables), pool.clone(), worker);
            (plane, out)
        };
        let ((near, near_sa), (far, far_sa)) = (end(true), end(false));
        Pair {
            near,
            far,
            sas: [near_sa, far_sa],
            now: Instant::from_nanos(1),
            pool,
        }
    }

    /// Passes frames from its private side through the near gateway.
    pub(crate) fn seal(&mut self, frames: &[Vec<u8>]) -> Output {
        let mut burst = self.burst(frames);
        let mut output = Output::default();
        self.near.outbound(self.now, &mut burst, &mut output);
        assert!(burst.is_empty());
        assert!(self.near.sent().adds_up(), "{:?}", self.near.sent());
        output
    }

    /// Passes frames from its public side through the far gateway.
    pub(crate) fn open(&mut self, frames: &[Vec<u8>]) -> Output {
        let mut burst = self.burst(frames);
        let mut output = Output::default();
        self.far.inbound(self.now, &mut burst, &mut output);
        assert!(burst.is_empty());
        assert!(self.far.received().adds_up(), "{:?}", self.far.received());
        output
    }

    /// Frames through both gateways.
    pub(crate) fn through(&mut self, frames: &[Vec<u8>]) -> Vec<Vec<u8>> {
        let sealed = bytes(&self.seal(frames).forward);
        bytes(&self.open(&sealed).forward)
    }

    /// The reason for which the near gateway drops a frame of its private side.
    pub(crate) fn refusal_to_seal(&mut self, frame: Vec<u8>) -> DropReason {
        let before = *self.near.sent();
        let output = self.seal(&[frame]);
        let other = [&output.forward, &output.control, &output.back].map(Vec::len);
        assert_eq!(other, [0; 3]);
        reason(&self.near.sent().since(&before))
    }

    /// The reason for which the far gateway drops a frame.
    pub(crate) fn refusal(&mut self, frame: Vec<u8>) -> DropReason {
        let before = *self.far.received();
        let output = self.open(&[frame]);
        assert!(output.forward.is_empty() && output.control.is_empty());
        reason(&self.far.received().since(&before))
    }

    fn burst(&self, frames: &[Vec<u8>]) -> Burst {
        let copies = frames.iter().map(|bytes| self.pool.copy(bytes).unwrap());
        copies.collect()
    }
}

fn reason(counters: &TrafficCounters) -> DropReason {
    let one = |cause: &&DropReason| counters.dropped(**cause) == 1;
    *DropReason::ALL.iter().find(one).expect("a reason")
}

/// A frame of the near gateway of [`Shape::default`] that carries this payload, trailer and all.
pub(crate) fn sealed_by_hand(payload: &[u8], number: u64) -> Vec<u8> {
    let mut data = payload.to_vec();
    let mut aad = SPI.to_be_bytes().to_vec();
    aad.extend(number.to_be_bytes());
    let key = Key::new(&[7; 16]).unwrap();
    let nonce = Nonce::from_parts([0; 4], number);
    let tag = key.seal_in_place(nonce, &aad, &mut data).unwrap();
    let header = ipv4::Repr {
        src: NEAR_OUTER4,
        dst: FAR_OUTER4,
        protocol: 50,
        ttl: 64,
        tos: 0,
        total_len: (20 + 16 + data.len() + 16) as u16,
        fragment: 0,
    };
    let mut frame = ethernet::header(FAR_MAC, HOST, ethernet::IPV4).to_vec();
    frame.extend(header.to_bytes());
    frame.extend(SPI.to_be_bytes());
    frame.extend((number as u32).to_be_bytes());
    frame.extend(number.to_be_bytes());
    frame.extend(data);
    frame.extend(tag.as_bytes());
    frame
}

pub(crate) fn bytes(burst: &Burst) -> Vec<Vec<u8>> {
    burst.iter().map(|frame| frame.to_vec()).collect()
}

/// A packet of the near host to the far one, with its Ethernet header.
#[derive(Clone, Copy)]
pub(crate) struct Packet {
    pub(crate) v6: bool,
    /// Bytes with Ethernet header.
    pub(crate) size: usize,
    pub(crate) ttl: u8,
    pub(crate) tos: u8,
    pub(crate) df: bool,
    pub(crate) src: IpAddr,
    pub(crate) dst: IpAddr,
    pub(crate) seed: u8,
}

impl Packet {
    pub(crate) fn v4(size: usize) -> Packet {
        Packet {
            v6: false,
            size,
            ttl: 64,
            tos: 0,
            df: true,
            src: IpAddr::V4(NEAR4.into()),
            dst: IpAddr::V4(FAR4.into()),
            seed: 0,
        }
    }

    pub(crate) fn v6(size: usize) -> Packet {
        Packet {
            v6: true,
            src: IpAddr::V6(NEAR6.into()),
            dst: IpAddr::V6(FAR6.into()),
            ..Packet::v4(size)
        }
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let kind = if self.v6 {
            ethernet::IPV6
        } else {
            ethernet::IPV4
        };
        let mut bytes = ethernet::header(NEAR_MAC, HOST, kind).to_vec();
        match (self.src, self.dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                let header = ipv4::Repr {
                    src: src.to_bits(),
                    dst: dst.to_bits(),
                    protocol: 17,
                    ttl: self.ttl,
                    tos: self.tos,
                    total_len: (self.size - HEADER) as u16,
                    fragment: if self.df { 0x4000 } else { 0x1234_0000 },
                };
                bytes.extend(header.to_bytes());
            }
            (IpAddr::V6(src), IpAddr::V6(dst)) => {
                let header = ipv6::Repr {
                    src: src.to_bits(),
                    dst: dst.to_bits(),
                    next_header: 17,
                    hop_limit: self.ttl,
                    traffic_class: self.tos,
                    payload_len: (self.size - HEADER - ipv6::HEADER) as u16,
                };
                bytes.extend(header.to_bytes());
            }
            mixed => panic!("{mixed:?}"),
        }
        let from = bytes.len();
        bytes.extend((from..self.size).map(|i| (i * 31) as u8 ^ self.seed));
        bytes
    }
}
