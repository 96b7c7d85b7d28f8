//! One gateway with manual SAs, and packets for its tunnels.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use tare_gateway::dataplane::Prefixes;
use tare_gateway::dataplane::{Dataplane, Output, WorkerGroup};
use tare_gateway::dataplane::{InboundSa, OutboundSa, Outer, SequenceMode};
use tare_gateway::dataplane::{InterfaceView, Route, SpiTable, Tables};
use tare_gcm::Key;
use tare_memory::Shared;
use tare_packet::ethernet::{self, Mac, HEADER};
use tare_packet::{checksum, ipv4, ipv6};
use tare_port::{Burst, Layout, Pool, BURST};
use tare_sim::{Instant, Random};

pub(crate) const ICMP: u8 = 1;
pub(crate) const UDP: u8 = 17;

/// The stations on the public side: this gateway, and the peer.
pub(crate) const OUR_MAC: Mac = [2, 0, 0, 0, 0, 1];
pub(crate) const PEER_MAC: Mac = [2, 0, 0, 0, 0, 2];

/// Their addresses (RFC 5737, RFC 3849).
pub(crate) const OUR_V4: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
pub(crate) const PEER_V4: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 2));
pub(crate) const OUR_V6: IpAddr = IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1));
pub(crate) const PEER_V6: IpAddr = IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 2));

/// One tunnel: an SA in each direction, with its own keys. Its number decides its SPIs and its
/// inner networks.
#[derive(Clone, Debug)]
pub(crate) struct Tunnel {
    pub(crate) number: u8,
    pub(crate) key_bytes: usize,
    pub(crate) sequence_mode: SequenceMode,
    /// True if the outer addresses are of IPv6.
    pub(crate) outer_v6: bool,
    /// True if the inner ones are.
    pub(crate) inner_v6: bool,
    /// The number that our first packet follows.
    pub(crate) last_sent: u64,
}

/// Key and salt of one direction.
#[derive(Clone)]
pub(crate) struct Secret {
    pub(crate) key: Vec<u8>,
    pub(crate) salt: [u8; 4],
}

impl Tunnel {
    /// Every combination of key length, sequence_mode, and families outside and inside.
    pub(crate) fn matrix() -> Vec<Tunnel> {
        (0..16)
            .map(|number| Tunnel {
                number,
                key_bytes: if number & 1 == 0 { 16 } else { 32 },
                sequence_mode: match number & 2 {
                    0 => SequenceMode::Extended,
                    _ => SequenceMode::Plain,
                },
                outer_v6: number & 4 != 0,
                inner_v6: number & 8 != 0,
                last_sent: 0,
            })
            .collect()
    }

    /// SPI of our packets.
    pub(crate) fn spi_out(&self) -> u32 {
        0x0a00_0100 + u32::from(self.number)
    }

    /// SPI of the peer's.
    pub(crate) fn spi_in(&self) -> u32 {
        0x0b00_0100 + u32::from(self.number)
    }

    /// The secret that seals our packets.
    pub(crate) fn secret_out(&self) -> Secret {
        self.secret(self.spi_out())
    }

    /// The secret that seals the peer's.
    pub(crate) fn secret_in(&self) -> Secret {
        self.secret(self.spi_in())
    }

    fn secret(&self, spi: u32) -> Secret {
        let bytes = noise(u64::from(spi), self.key_bytes + 4);
        let (key, salt) = bytes.split_at(self.key_bytes);
        Secret {
            key: key.to_vec(),
            salt: salt.try_into().unwrap(),
        }
    }

    /// The outer addresses, ours first.
    pub(crate) fn outer(&self) -> (IpAddr, IpAddr) {
        if self.outer_v6 {
            (OUR_V6, PEER_V6)
        } else {
            (OUR_V4, PEER_V4)
        }
    }

    /// An inner address on our side.
    pub(crate) fn near(&self) -> IpAddr {
        self.inner(8)
    }

    /// An inner address on the peer's side.
    pub(crate) fn far(&self) -> IpAddr {
        self.inner(9)
    }

    fn inner(&self, side: u8) -> IpAddr {
        let n = self.number;
        if self.inner_v6 {
            Ipv6Addr::new(0xfd00 + u16::from(side), n.into(), 0, 0, 0, 0, 0, 1).into()
        } else {
            Ipv4Addr::new(10, side, n, 1).into()
        }
    }

    /// An inner UDP packet of `len` bytes from our side to the peer's.
    pub(crate) fn packet(&self, len: usize) -> Vec<u8> {
        udp(self.near(), self.far(), len)
    }

    /// The same the other way.
    pub(crate) fn packet_back(&self, len: usize) -> Vec<u8> {
        udp(self.far(), self.near(), len)
    }
}

/// Bytes that look random and are always the same.
pub(crate) fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    Random::new(seed).fill(&mut bytes);
    bytes
}

/// A UDP packet of `len` bytes, IP header included.
pub(crate) fn udp(src: IpAddr, dst: IpAddr, len: usize) -> Vec<u8> {
    let header = ip_header(src);
    let mut datagram = noise(len as u64, len - header);
    let udp_len = datagram.len() as u16;
    datagram[..2].copy_from_slice(&5000u16.to_be_bytes());
    datagram[2..4].copy_from_slice(&6000u16.to_be_bytes());
    datagram[4..6].copy_from_slice(&udp_len.to_be_bytes());
    ip(src, dst, UDP, 6, datagram)
}

fn ip_header(of: IpAddr) -> usize {
    if of.is_ipv4() {
        ipv4::HEADER
    } else {
        ipv6::HEADER
    }
}

/// A packet with this payload, whose checksum is to stand `at` bytes into it.
pub(crate) fn ip(
    src: IpAddr,
    dst: IpAddr,
    protocol: u8,
    at: usize,
    mut payload: Vec<u8>,
) -> Vec<u8> {
    payload[at..at + 2].fill(0);
    let pseudo = match (src, dst) {
        _ if protocol == ICMP => 0,
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            checksum::pseudo_header(&src.octets(), &dst.octets(), protocol, payload.len())
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            checksum::pseudo_header(&src.octets(), &dst.octets(), protocol, payload.len())
        }
        _ => panic!("addresses of two families"),
    };
    let sum = checksum::finish(pseudo + checksum::sum(&payload));
    // No UDP checksum of 0: that would say there is none (RFC 768).
    let sum = if sum == 0 { 0xffff } else { sum };
    payload[at..at + 2].copy_from_slice(&sum.to_be_bytes());
    let header = match (src, dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            let header = ipv4::Repr {
                src: src.to_bits(),
                dst: dst.to_bits(),
                protocol,
                ttl: 64,
                tos: 0xb8,
                total_len: (ipv4::HEADER + payload.len()) as u16,
                fragment: 0,
            };
            header.to_bytes().to_vec()
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            let header = ipv6::Repr {
                src: src.to_bits(),
                dst: dst.to_bits(),
                next_header: protocol,
                hop_limit: 64,
                traffic_class: 0xb8,
                payload_len: payload.len() as u16,
            };
            header.to_bytes().to_vec()
        }
        _ => panic!("addresses of two families"),
    };
    [header, payload].concat()
}

/// The packet a hop further.
pub(crate) fn a_hop_further(packet: &[u8]) -> Vec<u8> {
    let mut packet = packet.to_vec();
    match packet[0] >> 4 {
        4 => ipv4::decrement_ttl(&mut packet),
        _ => ipv6::decrement_hop_limit(&mut packet),
    }
    packet
}

/// The gateway on our side.
pub(crate) struct Gateway {
    pub(crate) worker: Dataplane,
    group: WorkerGroup,
    pool: Pool,
}

impl Gateway {
    /// A gateway with these tunnels.
    pub(crate) fn new(tunnels: &[Tunnel]) -> Gateway {
        let pool = Pool::new(4 * BURST, 2048 + 512, Layout::Spread).unwrap();
        let (group, id) = WorkerGroup::sole();
        let worker = Dataplane::new(group.bind(tables(tunnels)), pool.clone(), id);
        Gateway {
            worker,
            group,
            pool,
        }
    }

    /// A gateway with this tunnel and, beside its inbound SA, one with another SPI and the same
    /// key.
    pub(crate) fn with_neighbor_spi(tunnel: &Tunnel, spi: u32) -> Gateway {
        let mut gateway = Gateway::new(&[]);
        let mut tables = tables(std::slice::from_ref(tunnel));
        let sas = [tunnel.spi_in(), spi].map(|spi| inbound(tunnel, spi, 0));
        tables.inbound = SpiTable::new(sas);
        gateway.worker.replace(gateway.group.bind(tables));
        gateway
    }

    /// Seals inner packets: the frames that leave.
    pub(crate) fn seal(&mut self, packets: &[Vec<u8>]) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        for packets in packets.chunks(BURST) {
            let mut output = Output::default();
            let mut input = self.burst(packets.iter().map(|packet| framed(packet)));
            self.worker.outbound(Instant::ZERO, &mut input, &mut output);
            frames.extend(output.forward.iter().map(|frame| frame.to_vec()));
        }
        frames
    }

    /// Opens frames: the inner packets that come out.
    pub(crate) fn open(&mut self, frames: &[Vec<u8>]) -> Vec<Vec<u8>> {
        let mut packets = Vec::new();
        for frames in frames.chunks(BURST) {
            let mut output = Output::default();
            let mut input = self.burst(frames.iter().cloned());
            self.worker.inbound(Instant::ZERO, &mut input, &mut output);
            packets.extend(output.forward.iter().map(|frame| frame[HEADER..].to_vec()));
        }
        packets
    }

    fn burst(&self, frames: impl Iterator<Item = Vec<u8>>) -> Burst {
        frames
            .map(|frame| self.pool.copy(&frame).expect("a free frame"))
            .collect()
    }
}

/// A packet in a frame to this gateway.
pub(crate) fn framed(packet: &[u8]) -> Vec<u8> {
    let kind = match packet[0] >> 4 {
        4 => ethernet::IPV4,
        _ => ethernet::IPV6,
    };
    [&ethernet::header(OUR_MAC, PEER_MAC, kind)[..], packet].concat()
}

fn tables(tunnels: &[Tunnel]) -> Tables {
    let side = InterfaceView {
        mac: OUR_MAC,
        next_hop4: Some(PEER_MAC),
        next_hop6: Some(PEER_MAC),
        mtu: 2000,
        ..InterfaceView::default()
    };
    let (IpAddr::V4(ip4), IpAddr::V6(ip6)) = (OUR_V4, OUR_V6) else {
        panic!("our own addresses");
    };
    let prefix = |(route, tunnel): (usize, &Tunnel)| (tunnel.far().into(), route as u32);
    let inbound = |(route, tunnel): (usize, &Tunnel)| inbound(tunnel, tunnel.spi_in(), route);
    Tables {
        prefixes: Arc::new(Prefixes::new(tunnels.iter().enumerate().map(prefix))),
        routes: tunnels
            .iter()
            .map(|tunnel| Route::new(Some(outbound(tunnel)), 2000))
            .collect(),
        inbound: SpiTable::new(tunnels.iter().enumerate().map(inbound)),
        private: side,
        public: InterfaceView {
            ip4: Some(ip4.to_bits()),
            ip6: Some(ip6.to_bits()),
            ..side
        },
        exchange_port: 303,
    }
}

fn inbound(tunnel: &Tunnel, spi: u32, route: usize) -> Shared<InboundSa> {
    let Secret { key, salt } = tunnel.secret_in();
    let key = Key::new(&key).unwrap();
    let sa = InboundSa::new(spi, key, salt, tunnel.sequence_mode, 1024, route);
    Shared::new(sa)
}

fn outbound(tunnel: &Tunnel) -> Shared<OutboundSa> {
    let make = || {
        let Secret { key, salt } = tunnel.secret_out();
        let key = Key::new(&key).unwrap();
        let (src, dst) = tunnel.outer();
        let outer = Outer::between(src, dst).unwrap();
        OutboundSa::new(tunnel.spi_out(), key, salt, tunnel.sequence_mode, outer)
    };
    let mut sa = make();
    sa.follow(&make(), tunnel.last_sent);
    Shared::new(sa)
}

/// The lengths that a tunnel of the matrix is tried with: edges for all, and every length from 46
/// to 1500 for one or the other, four in a row so that each tunnel sees every padding.
pub(crate) fn lengths(tunnel: &Tunnel) -> Vec<usize> {
    let shortest = if tunnel.inner_v6 { 48 } else { 46 };
    (shortest..=1500)
        .filter(|&len| !(56..=1490).contains(&len) || len / 4 % 16 == usize::from(tunnel.number))
        .collect()
}

/// Asserts that the same packets came out, and shows the first that differs.
#[track_caller]
pub(crate) fn same(found: &[Vec<u8>], expected: &[Vec<u8>]) {
    for (n, (found, expected)) in found.iter().zip(expected).enumerate() {
        assert_eq!(hex(found), hex(expected), "packet {n}");
    }
    assert_eq!(found.len(), expected.len(), "packets");
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
