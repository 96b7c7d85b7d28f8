//! A data plane and packets for it, right ones and some with a fault: for the tests that compare
//! the short way of a packet with the full checks.

use std::sync::Arc;

use proptest::prelude::*;
use tare_gcm::{Key, Nonce};
use tare_memory::Shared;
use tare_packet::ethernet::{self, Mac, HEADER};
use tare_packet::{checksum, ipv4, protocol};
use tare_port::{Layout, Pool};

use super::esp;
use super::{
    BoundTables, Dataplane, InboundSa, InterfaceView, OutboundSa, Outer, Prefixes, Route,
    SequenceMode, SpiTable, Tables, WorkerGroup,
};

pub(crate) const PRIVATE: Mac = [2, 0, 0, 0, 0, 1];
pub(super) const PUBLIC: Mac = [2, 0, 0, 0, 0, 2];
pub(super) const SPI: u32 = 1000;
const KEY: [u8; 16] = [7; 16];
const SALT: [u8; 4] = [1, 2, 3, 4];

/// Our private address, our public one, and the peer's.
const OWN: [u32; 2] = [0x0a00_0001, 0xc0a8_0001];
pub(super) const PEER: u32 = 0xc0a8_0002;

/// A host behind this gateway, one behind the peer, and addresses that are not to be forwarded.
const HERE: u32 = 0x0a00_0102;
const THERE: u32 = 0x0a02_0001;
/// Routes and SAs that are so many that packets go the way for many.
pub(super) const MANY: u32 = 200;

const ODD: [u32; 6] = [
    0,
    0x7f00_0001,
    0xa9fe_0101,
    0xe000_0001,
    0x0a03_0001,
    0x0808_0808,
];

/// Returns a data plane with a route to 10.2/16 and one to 10.3/16, its tables and its pool.
pub(crate) fn dataplane() -> (Dataplane, Arc<BoundTables>, Pool) {
    dataplane_with(SequenceMode::Extended, None, 0, 0)
}

/// Returns the same with sequence numbers of this width, IVs that begin behind this one, numbers of
/// sent packets that begin behind `last`, and `more` routes and inbound SAs.
pub(crate) fn dataplane_with(
    mode: SequenceMode,
    iv_base: Option<u64>,
    last: u64,
    more: u32,
) -> (Dataplane, Arc<BoundTables>, Pool) {
    let outer = Outer::V4 {
        src: OWN[1],
        dst: PEER,
    };
    let key = || Key::new(&KEY).unwrap();
    let mut sa = OutboundSa::new(SPI, key(), SALT, mode, outer);
    sa.begin_after(last);
    let sa = Shared::new(match iv_base {
        Some(base) => sa.with_iv_base(base),
        None => sa,
    });
    let inbound = |spi| Shared::new(InboundSa::new(spi, key(), SALT, mode, 64, 0));
    let more_spis = SPI + 1000..SPI + 1000 + more;
    let side = |mac, ip4| InterfaceView {
        mac,
        ip4: Some(ip4),
        next_hop4: Some([4; 6]),
        mtu: 200,
        ..InterfaceView::default()
    };
    let (group, id) = WorkerGroup::sole();
    let route = |net: &str, route| (net.parse().unwrap(), route);
    let tables = group.bind(Tables {
        prefixes: Arc::new(Prefixes::new([
            route("10.2.0.0/16", 0),
            route("10.3.0.0/16", 1),
            route("10.0.0.1/32", 0),
        ])),
        routes: [sa]
            .into_iter()
            .map(|sa| Route::new([sa], 1500))
            .chain((0..=more).map(|_| Route::new([], 1500)))
            .collect(),
        inbound: SpiTable::new([SPI, SPI + 1].into_iter().chain(more_spis).map(inbound)),
        private: side(PRIVATE, OWN[0]),
        public: side(PUBLIC, OWN[1]),
        exchange_port: 303,
    });
    let pool = Pool::new(64, 2048, Layout::Spread).unwrap();
    (
        Dataplane::new(tables.clone(), pool.clone(), id),
        tables,
        pool,
    )
}

/// IPv4 packets from one of `src` to one of `dst`: each field is as a rule as it should be.
fn packet(
    src: impl Strategy<Value = u32>,
    dst: impl Strategy<Value = u32>,
    protocol: u8,
) -> impl Strategy<Value = Vec<u8>> {
    let protocol = prop_oneof![9 => Just(protocol), 1 => any::<u8>()];
    let ttl = prop_oneof![6 => Just(64), 1 => 0..4u8];
    let tos = prop_oneof![Just(0), any::<u8>()];
    let fragment = prop_oneof![8 => Just(ipv4::DONT_FRAGMENT), 1 => any::<u32>()];
    let payload = 0..240usize;
    let more = prop_oneof![6 => Just(0), 1 => -30..30i32];
    let flip = proptest::option::weighted(0.3, (0..ipv4::HEADER, 0..8u8, any::<bool>()));
    let fields = (src, dst, protocol, ttl, tos, fragment, payload, more, flip);
    fields.prop_map(
        |(src, dst, protocol, ttl, tos, fragment, payload, more, flip)| {
            let len = ipv4::HEADER + payload;
            let header = ipv4::Repr {
                src,
                dst,
                protocol,
                ttl,
                tos,
                total_len: (len as i32 + more).max(0) as u16,
                fragment,
            };
            let mut bytes = header.to_bytes().to_vec();
            bytes.extend((0..payload).map(|n| n as u8));
            if let Some((at, bit, is_right)) = flip {
                bytes[at] ^= 1 << bit;
                if is_right {
                    bytes[10..12].fill(0);
                    let sum = checksum::finish(checksum::sum(&bytes[..ipv4::HEADER]));
                    bytes[10..12].copy_from_slice(&sum.to_be_bytes());
                }
            }
            bytes
        },
    )
}

pub(super) fn odd_or(usual: u32) -> impl Strategy<Value = u32> {
    let own = proptest::sample::select(OWN.to_vec());
    prop_oneof![8 => Just(usual), 1 => own, 1 => proptest::sample::select(ODD.to_vec())]
}

/// Returns frames with `packet` behind an Ethernet header to `mac`, as a rule.
fn frame(mac: Mac, packet: impl Strategy<Value = Vec<u8>>) -> impl Strategy<Value = Vec<u8>> {
    let macs = prop_oneof![9 => Just(mac), 1 => Just([0xff; 6]), 1 => Just([2; 6])];
    let kinds = prop_oneof![12 => Just(ethernet::IPV4), 1 => Just(ethernet::IPV6)];
    (macs, kinds, packet, 0..8usize).prop_map(|(mac, kind, packet, padding)| {
        let mut frame = ethernet::header(mac, [6; 6], kind).to_vec();
        frame.extend(packet);
        frame.resize(frame.len() + padding.saturating_sub(5), 0);
        frame
    })
}

/// Returns a frame of the public side, from an address that is as a rule the peer's, with a payload
/// that is sealed under the key of all SAs.
pub(super) fn sealed(
    payload: &[u8],
    (src, spi, number): (u32, u32, u64),
    mode: SequenceMode,
    tos: u8,
) -> Vec<u8> {
    let header = ipv4::Repr {
        src,
        dst: OWN[1],
        protocol: protocol::ESP,
        ttl: 64,
        tos,
        total_len: (ipv4::HEADER + esp::HEADER + payload.len() + esp::ICV) as u16,
        fragment: ipv4::DONT_FRAGMENT,
    };
    let mut frame = ethernet::header(PUBLIC, [6; 6], ethernet::IPV4).to_vec();
    frame.extend(header.to_bytes());
    frame.extend((u64::from(spi) << 32 | number & 0xffff_ffff).to_be_bytes());
    // Any IV will do that no other packet has.
    let iv = number ^ u64::from(spi) << 40;
    frame.extend(iv.to_be_bytes());
    let mut data = payload.to_vec();
    let aad = esp::aad(spi, number, mode);
    let key = Key::new(&KEY).unwrap();
    let nonce = Nonce::from_parts(SALT, iv);
    let tag = key.seal_in_place(nonce, aad.as_bytes(), &mut data);
    frame.extend(data);
    frame.extend(tag.unwrap().as_bytes());
    frame
}

/// Returns a frame that goes to the control side, and takes its burst off the shortest way.
pub(super) fn arp(mac: Mac) -> Vec<u8> {
    let mut frame = ethernet::header(mac, [6; 6], ethernet::ARP).to_vec();
    frame.resize(ethernet::MIN, 0);
    frame
}

/// Returns frames of the private side.
pub(super) fn private_frame() -> impl Strategy<Value = Vec<u8>> {
    frame(PRIVATE, packet(odd_or(HERE), odd_or(THERE), protocol::UDP))
}

/// Returns frames of the private side in which nothing is special.
pub(super) fn plain_frame() -> impl Strategy<Value = Vec<u8>> {
    (0..240usize, any::<u8>()).prop_map(|(payload, tos)| {
        let header = ipv4::Repr {
            src: HERE,
            dst: THERE,
            protocol: protocol::UDP,
            ttl: 64,
            tos,
            total_len: (ipv4::HEADER + payload) as u16,
            fragment: 0,
        };
        let mut frame = ethernet::header(PRIVATE, [6; 6], ethernet::IPV4).to_vec();
        frame.extend(header.to_bytes());
        frame.resize((frame.len() + payload).max(ethernet::MIN), 7);
        frame
    })
}

/// Returns frames of the public side, whose payload is not authentic.
pub(super) fn public_frame() -> impl Strategy<Value = Vec<u8>> {
    let outer = packet(odd_or(PEER), odd_or(OWN[1]), protocol::ESP);
    let spi = prop_oneof![9 => Just(SPI), 1 => any::<u32>()];
    (frame(PUBLIC, outer), spi, any::<u32>()).prop_map(|(mut frame, spi, number)| {
        const ESP: usize = HEADER + ipv4::HEADER;
        let numbers = u64::from(spi) << 32 | u64::from(number % 200);
        if let Some(place) = frame.get_mut(ESP..ESP + 8) {
            place.copy_from_slice(&numbers.to_be_bytes());
        }
        frame
    })
}

/// Returns payloads of ESP as they are when they have been opened, with their trailer.
pub(super) fn opened() -> impl Strategy<Value = Vec<u8>> {
    let next = prop_oneof![9 => Just(protocol::IPV4), 1 => any::<u8>()];
    let padding = prop_oneof![6 => 0..4u8, 1 => any::<u8>()];
    let flip = proptest::option::weighted(0.2, (1..8usize, 0..8u8));
    let packet = packet(odd_or(THERE), odd_or(HERE), protocol::UDP);
    (packet, padding, next, flip).prop_map(|(mut payload, padding, next, flip)| {
        payload.extend(1..=padding);
        payload.extend([padding, next]);
        if let Some((back, bit)) = flip {
            let at = payload.len() - back;
            payload[at] ^= 1 << bit;
        }
        payload
    })
}
