//! Frames of any content at both sides of a gateway that has SAs: ESP, the key exchange, ICMP, ARP,
//! neighbor discovery. Nothing panics, and every frame is accounted for.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tare_gateway::config::Config;
use tare_gateway::exchange;
use tare_gateway::Node;
use tare_gateway::{InterfaceId, InterfaceState};
use tare_port::{Burst, Layout, Pool};
use tare_sim::Instant;

const CONFIG: &str = "
private-interface { device a; ip4 10.1.0.1; ip6 fd01::1; nexthop-ip4 10.1.0.2; nexthop-ip6 fd01::2; }
public-interface { device b; ip4 192.0.2.1; ip6 2001:db8::1; nexthop-ip4 192.0.2.2; nexthop-ip6 2001:db8::2; }
route {
  id hand; gw-ip4 192.0.2.2; net-cidr4 \"10.2.0.0/16\"; net-cidr6 \"fd02::/64\";
  inbound-sa { spi 3001; aead aes-128-gcm; key 00112233445566778899aabbccddeeff; salt 01020304; }
  outbound-sa { spi 3002; aead aes-128-gcm; key ffeeddccbbaa99887766554433221100; salt 04030201; }
}
route { id talks; gw-ip4 192.0.2.3; net-cidr4 \"10.3.0.0/16\"; spi 1003;
  preshared-key 0101010101010101010101010101010101010101010101010101010101010101; }
";

/// The first bytes of frames that get further than random ones.
const HEADERS: [&[u8]; 6] = [
    b"",
    // IPv4 to the public address: ESP, UDP, ICMP follow from the input.
    &[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 9, 8, 0, 0x45, 0],
    // IPv6.
    &[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 9, 0x86, 0xdd, 0x60, 0],
    // ARP.
    &[
        0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 0, 9, 8, 6, 0, 1, 8, 0, 6, 4,
    ],
    &[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 9, 8, 0, 0x46, 0],
    &[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 9, 0x81, 0],
];

fuzz_target!(|input: &[u8]| {
    let (config, _) = Config::parse("fuzz.conf", CONFIG.as_bytes()).unwrap();
    let link = |mac| InterfaceState {
        mac: [2, 0, 0, 0, 0, mac],
        mtu: 1500,
        up: true,
    };
    let pool = Pool::new(64, 2304, Layout::Spread).unwrap();
    let entropy = exchange::system_entropy().unwrap();
    let mut node = Node::new(
        config,
        link(1),
        link(2),
        entropy,
        pool.clone(),
        Instant::ZERO,
    )
    .unwrap();
    let mut time = 0;
    for piece in input.chunks(96) {
        let [choice, flags, rest @ ..] = piece else {
            break;
        };
        let mut frame = HEADERS[usize::from(choice & 7) % HEADERS.len()].to_vec();
        frame.extend_from_slice(rest);
        update_checksums(&mut frame, *flags);
        let place = if choice & 0x80 == 0 {
            InterfaceId::Public
        } else {
            InterfaceId::Private
        };
        let mut burst: Burst = pool.copy(&frame).into_iter().collect();
        time += u64::from(*flags) * 1_000_000;
        let now = Instant::from_nanos(time);
        node.receive(now, place, &mut burst);
        node.tick(now);
        node.leaving(InterfaceId::Private).clear();
        node.leaving(InterfaceId::Public).clear();
    }
    assert!(node.dataplane().sent().adds_up());
    assert!(node.dataplane().received().adds_up());
    assert!(node.control().counters().adds_up());
});

/// Makes length and checksum of an IPv4 header right, where asked to: past them the interesting
/// part begins.
fn update_checksums(frame: &mut [u8], flags: u8) {
    if flags & 1 == 0 || frame.len() < 34 || frame[12..14] != [8, 0] {
        return;
    }
    let len = (frame.len() - 14) as u16;
    frame[16..18].copy_from_slice(&len.to_be_bytes());
    if flags & 2 != 0 {
        frame[30..34].copy_from_slice(&[192, 0, 2, 1]);
    }
    if flags & 4 != 0 {
        frame[20..22].copy_from_slice(&[0, 0]);
    }
    frame[24..26].fill(0);
    let header = usize::from(frame[14] & 15) * 4;
    let end = (14 + header).min(frame.len());
    let sum = tare_packet::checksum::finish(tare_packet::checksum::sum(&frame[14..end]));
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
}
