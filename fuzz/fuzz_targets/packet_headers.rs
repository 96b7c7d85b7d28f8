//! Any bytes as IPv4 and IPv6 headers, and any text as packet sizes: what a view accepts has its
//! bytes, and a change in place leaves a packet that the view accepts again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tare_packet::imix::PacketSize;
use tare_packet::ipv4::{self, Ipv4};
use tare_packet::ipv6::{self, Ipv6};
use tare_packet::{checksum, frame};

fuzz_target!(|input: &[u8]| {
    if let Ok(header) = Ipv4::parse(input) {
        assert!((20..=header.total_len).contains(&header.header_len));
        assert!(header.total_len <= input.len());
        let mut changed = input.to_vec();
        ipv4::decrement_ttl(&mut changed);
        ipv4::set_tos(&mut changed, !header.tos);
        let ttl = header.ttl.wrapping_sub(1);
        let tos = !header.tos;
        // A decrement of 0 borrows from no other field, and its checksum is not defined.
        if header.ttl > 0 {
            assert_eq!(Ipv4::parse(&changed), Ok(Ipv4 { ttl, tos, ..header }));
        }
    }
    if let Ok(header) = Ipv6::parse(input) {
        assert!((40..=input.len()).contains(&header.total_len));
        let mut changed = input.to_vec();
        ipv6::decrement_hop_limit(&mut changed);
        ipv6::set_traffic_class(&mut changed, !header.traffic_class);
        let hop_limit = header.hop_limit.wrapping_sub(1);
        let traffic_class = !header.traffic_class;
        assert_eq!(
            Ipv6::parse(&changed),
            Ok(Ipv6 {
                hop_limit,
                traffic_class,
                ..header
            })
        );
    }
    // The sum of 16-bit words, word by word, as the fast one must have it.
    let words = input
        .chunks(2)
        .map(|w| u64::from(w[0]) << 8 | w.get(1).map_or(0, |&b| b.into()));
    let mut sum: u64 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    assert_eq!(checksum::finish(checksum::sum(input)), !(sum as u16));
    if let [v6, a, b, rest @ ..] = input {
        let address = |last: &u8| match v6 & 1 {
            0 => std::net::IpAddr::from([192, 0, 2, *last]),
            _ => std::net::IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, u16::from(*last)]),
        };
        let _ = frame::udp_payload(address(a), address(b), 303, rest);
    }
    if let Ok(text) = std::str::from_utf8(input) {
        if let Ok(sizes) = text.parse::<PacketSize>() {
            assert!(sizes.mean_bytes() <= f64::from(sizes.max_bytes()));
            assert_eq!(
                sizes
                    .sequence()
                    .take(100)
                    .filter(|&s| s > sizes.max_bytes())
                    .count(),
                0
            );
        }
    }
});
