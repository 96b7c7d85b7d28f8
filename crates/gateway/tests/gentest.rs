//! Generated tests: the configuration that the seed has, and traffic that two gateways pass.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::time::Duration;

use ipnet::IpNet;
use proptest::prelude::*;
use rustix::time::{clock_gettime, ClockId};
use tare_gateway::config::{Config, Keys};
use tare_gateway::tools::gentest::{Meta, TestPrefix};
use tare_packet::wire::{
    EthernetFrame, EthernetProtocol, IpProtocol, Ipv4Packet, Ipv6Packet, UdpPacket,
};

const META1: &str = include_str!("seed/gentest-node1.conf");
const META2: &str = include_str!("seed/gentest-node2.conf");
const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];

#[track_caller]
fn meta(text: &str) -> Meta {
    match Meta::parse("meta.conf", text.as_bytes()) {
        Ok(meta) => meta,
        Err(error) => panic!("{error}\nin\n{text}"),
    }
}

fn refusal(text: &str) -> String {
    Meta::parse("meta.conf", text.as_bytes())
        .unwrap_err()
        .to_string()
}

#[track_caller]
fn config(text: &str) -> Config {
    Config::parse("node.conf", text.as_bytes()).unwrap().0
}

/// A meta-configuration of the seed's with other routes and sizes.
fn with(text: &str, routes: u32, size: &str) -> String {
    text.replace("nroutes 1;", &format!("nroutes {routes};"))
        .replace("packet-size 60;", &format!("packet-size {size};"))
}

/// A pair of meta-configurations for IPv6 packets, over IPv4 or IPv6.
fn six(this: &str, other: &str, over: u8) -> String {
    let public = match over {
        4 => format!(
            "ip4 172.{}.0.10; nexthop-ip4 172.{}.0.10;",
            &this[2..],
            &other[2..]
        ),
        _ => format!("ip6 {this}::10; nexthop-ip6 {other}::10;"),
    };
    format!(
        "private-interface6 {{ device a; ip {this}::10; nexthop-ip {this}::1; nexthop-mac 02:00:00:00:00:07; }}
         public-interface {{ device b; {public} }}
         route-prefix {other}; nroutes 1; packet-size 60;"
    )
}

#[test]
fn one_route_gives_the_seed_s_configurations() {
    for (meta_text, node) in [
        (META1, include_str!("seed/node1.conf")),
        (META2, include_str!("seed/node2.conf")),
    ] {
        let generated = meta(meta_text).config();
        assert_eq!(generated, config(node));
        assert_eq!(config(&generated.text()), generated);
    }
}

/// The identity of a frame: source and destination address, UDP ports where it has them.
fn read(frame: &[u8]) -> (IpAddr, IpAddr, Option<(u16, u16)>) {
    let ethernet = EthernetFrame::new_checked(frame).unwrap();
    assert_eq!(ethernet.dst_addr().0, MAC);
    let udp = |payload: &[u8], src: IpAddr, dst: IpAddr| {
        let udp = UdpPacket::new_checked(payload).unwrap();
        assert!(udp.checksum() != 0 && udp.verify_checksum(&src.into(), &dst.into()));
        assert_eq!(usize::from(udp.len()), payload.len());
        (udp.src_port(), udp.dst_port())
    };
    match ethernet.ethertype() {
        EthernetProtocol::Ipv4 => {
            let ip = Ipv4Packet::new_checked(ethernet.payload()).unwrap();
            assert!(ip.verify_checksum() && ip.hop_limit() == 64);
            assert_eq!(usize::from(ip.total_len()), ethernet.payload().len());
            let (src, dst) = (ip.src_addr().into(), ip.dst_addr().into());
            (src, dst, Some(udp(ip.payload(), src, dst)))
        }
        EthernetProtocol::Ipv6 => {
            let ip = Ipv6Packet::new_checked(ethernet.payload()).unwrap();
            assert_eq!(ip.total_len(), ethernet.payload().len());
            assert_eq!(ip.hop_limit(), 64);
            let (src, dst) = (ip.src_addr().into(), ip.dst_addr().into());
            match ip.next_header() {
                IpProtocol::Udp => (src, dst, Some(udp(ip.payload(), src, dst))),
                IpProtocol::Ipv6NoNxt => (src, dst, None),
                other => panic!("{other}"),
            }
        }
        other => panic!("{other}"),
    }
}

/// The route of packets to an address, and the sources allowed on it.
fn prefixes(config: &Config) -> HashMap<IpNet, &str> {
    let routes = config.routes.iter();
    let nets = routes.flat_map(|route| route.prefixes.iter().map(|net| (*net, &*route.id)));
    nets.collect()
}

fn route_of<'c>(prefixes: &HashMap<IpNet, &'c str>, address: IpAddr) -> Option<&'c str> {
    let len = prefixes.keys().next()?.prefix_len();
    let net = IpNet::new(address, len).unwrap().trunc();
    prefixes.get(&net).copied()
}

/// The properties of the traffic from `here` to `there`.
fn check(here: &Meta, there: &Meta) {
    let (near, far) = (here.config(), there.config());
    let (near, far) = (prefixes(&near), prefixes(&far));
    let traffic = here.traffic(MAC);
    let sizes: Vec<u16> = here.packet_size.period().to_vec();
    let mut seen: HashMap<&str, HashMap<usize, usize>> = HashMap::new();
    let mut bytes = 0;
    let mut frames = 0;
    for (i, frame) in traffic.iter().enumerate() {
        let (src, dst, _) = read(&frame);
        let route = route_of(&near, dst).expect("a route to the destination");
        assert_eq!(route, format!("test{}", traffic.route_of(i)));
        // The far gateway lets in on a route what comes from that route's prefix.
        assert_eq!(route_of(&far, src), Some(route), "{src} to {dst}");
        *seen
            .entry(route)
            .or_default()
            .entry(frame.len())
            .or_default() += 1;
        bytes += frame.len() as u64;
        frames += 1;
    }
    assert_eq!((frames, bytes), (traffic.frames(), traffic.bytes()));
    assert!((501..=120_000).contains(&frames), "{frames}");
    // Every route sees the whole mix, equally often.
    assert_eq!(seen.len(), here.routes as usize);
    let each = frames / here.routes as usize;
    for (route, counts) in seen {
        for size in &sizes {
            let share = sizes.iter().filter(|s| *s == size).count();
            assert_eq!(
                counts[&usize::from(*size)] * sizes.len(),
                each * share,
                "{route}"
            );
        }
    }
}

#[test]
fn traffic_takes_every_route_and_passes_the_other_end_s_source_check() {
    for (routes, size) in [
        (1, "60"),
        (1, "IMIX"),
        (1, "9014"),
        (40, "IMIX"),
        (255, "61"),
        (256, "590"),
        (10_000, "IMIX"),
    ] {
        let (one, two) = (
            meta(&with(META1, routes, size)),
            meta(&with(META2, routes, size)),
        );
        check(&one, &two);
        check(&two, &one);
    }
}

#[test]
fn ipv6_tests_are_made_over_either_family() {
    for over in [4, 6] {
        for (routes, size) in [(1, "60"), (3, "IMIX"), (1000, "62")] {
            let (one, two) = (six("fd16", "fd17", over), six("fd17", "fd16", over));
            let (one, two) = (
                meta(&with(&one, routes, size)),
                meta(&with(&two, routes, size)),
            );
            assert_eq!(one.gateway.is_ipv4(), over == 4);
            check(&one, &two);
        }
    }
    let frame = meta(&six("fd16", "fd17", 6)).traffic(MAC).frame(0);
    assert_eq!(frame[6..12], [2, 0, 0, 0, 0, 7]);
    assert_eq!(frame.len(), 60);
    assert_eq!(read(&frame).2, None, "60 bytes have no room for UDP");
    let frame = meta(&with(&six("fd16", "fd17", 6), 1, "62"))
        .traffic(MAC)
        .frame(0);
    assert!(read(&frame).2.is_some());
}

#[test]
fn packets_of_few_routes_are_of_many_flows() {
    let traffic = meta(META1).traffic(MAC);
    let flows: HashSet<_> = traffic.iter().map(|frame| read(&frame)).collect();
    assert_eq!(flows.len(), 1000);
    assert_eq!(traffic.frame(1000), traffic.frame(0));
}

/// The processor time of this thread, which other programs do not stretch.
fn processor_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap()
}

#[test]
fn every_route_has_keys_and_a_part_of_the_prefix_of_its_own() {
    for routes in [2, 255, 256, 511, 10_000] {
        let config = meta(&with(META1, routes, "60")).config();
        assert_eq!(config.routes.len(), routes as usize);
        let keys: HashSet<[u8; 32]> = config
            .routes
            .iter()
            .map(|route| match &route.keys {
                Keys::Exchange { preshared_key, .. } => *preshared_key.bytes(),
                Keys::Manual { .. } => panic!("{route:?}"),
            })
            .collect();
        assert_eq!(keys.len(), routes as usize);
        // Ids, SPIs and prefixes are looked at where it is read.
        let before = processor_time();
        let (read, warnings) = Config::parse("node.conf", config.text().as_bytes()).unwrap();
        assert!(processor_time() - before < Duration::from_secs(1));
        assert_eq!(read, config);
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        assert!(warnings[0]
            .text
            .starts_with("route test1: the preshared key is all zeros"));
    }
}

proptest! {
    #[test]
    fn parts_of_a_prefix_are_within_it_apart_and_not_in_its_first_256th(
        prefix in prop::sample::select(vec!["172.17", "10.0", "ac11", "2001:db8", "2001:db8:1"]),
        routes in 1..=10_000u32,
        a in any::<prop::sample::Index>(),
        b in any::<prop::sample::Index>(),
    ) {
        let prefix = TestPrefix::read(prefix).unwrap();
        let (a, b) = (a.index(routes as usize) as u32 + 1, b.index(routes as usize) as u32 + 1);
        let (first, second) = (prefix.part(a, routes), prefix.part(b, routes));
        let reserved = IpNet::new(prefix.net().addr(), prefix.net().prefix_len() + 8).unwrap();
        prop_assert!(prefix.net().contains(&first) && !reserved.contains(&first));
        prop_assert_eq!(first.trunc(), first);
        prop_assert!(first.max_prefix_len() - first.prefix_len() >= 2);
        prop_assert_eq!(first.contains(&second), a == b);
        if routes <= 255 {
            prop_assert_eq!(first.prefix_len(), prefix.net().prefix_len() + 8);
        }
    }

    #[test]
    fn a_meta_configuration_with_one_byte_changed_is_read_or_refused(
        at in any::<prop::sample::Index>(),
        byte: u8,
    ) {
        let mut bytes = META1.as_bytes().to_vec();
        let at = at.index(bytes.len());
        bytes[at] = byte;
        if let Ok(meta) = Meta::parse("meta.conf", &bytes) {
            let traffic = meta.traffic(MAC);
            prop_assert_eq!(traffic.frame(0).len(), usize::from(meta.packet_size.period()[0]));
        }
    }
}

#[test]
fn prefixes_are_read_and_others_refused() {
    for (text, net) in [
        ("172.17", "172.17.0.0/16"),
        ("10.0", "10.0.0.0/16"),
        ("ac11", "ac11::/16"),
        ("2001:db8", "2001:db8::/32"),
        ("2001:DB8:1", "2001:db8:1::/48"),
    ] {
        let read = TestPrefix::read(text).map(|prefix| prefix.net().to_string());
        assert_eq!(read.as_deref(), Some(net));
    }
    for text in [
        "",
        "172",
        "172.",
        "172.17.1",
        "172.256",
        "+1.2",
        "0.1",
        "127.0",
        "224.0",
        "ff02",
        "0",
        "1:2:3:4",
        "12345",
        "g",
        ":",
        "1:",
        "172.17.0.0/16",
    ] {
        // Three digits without a point are a group of IPv6.
        assert_eq!(TestPrefix::read(text).is_some(), text == "172", "{text}");
    }
}

#[test]
fn a_wrong_meta_configuration_is_reported_with_its_line() {
    let cases: [(&str, &str, &str); 9] = [
        ("nroutes 1;", "nroutes 0;", "13: leaf \"nroutes\": found \"0\", expected a number from 1 to 10000"),
        ("nroutes 1;", "nroutes 10001;", "13: leaf \"nroutes\": found \"10001\", expected a number from 1 to 10000"),
        ("packet-size 60;", "packet-size 59;", "14: leaf \"packet-size\": found \"59\", expected IMIX or a number of bytes from 60 to 9014"),
        ("\"172.17\"", "\"172.17.0\"", "12: leaf \"route-prefix\": found \"172.17.0\", expected two bytes of IPv4 such as 172.17, or one to three groups of IPv6 such as ac11 or 2001:db8:1"),
        ("\"172.17\"", "fd17", "12: leaf \"route-prefix\": found one of IPv6, while the private interface has no IPv6 address, expected one of the other family, or an address there"),
        ("route-prefix \"172.17\";", "", "1: leaf \"route-prefix\": found nothing, expected two bytes of IPv4 such as 172.17, or one to three groups of IPv6 such as ac11 or 2001:db8:1"),
        ("nroutes 1;", "source-prefix fd16;", "13: leaf \"source-prefix\": found another family than that of the route prefix, expected the same"),
        ("nexthop-ip4 172.17.0.10;", "nexthop-mac 02:00:00:00:00:02;", "1: public-interface: found neither nexthop-ip4 nor nexthop-ip6, expected the peer's public address as one of them"),
        ("nroutes 1;", "routes 1;", "13: found leaf \"routes\", expected one of route-prefix, source-prefix, nroutes, packet-size, negotiation-ttl, sa-ttl, private-interface, public-interface, private-interface4, private-interface6, public-interface4, public-interface6; did you mean \"nroutes\"?"),
    ];
    for (from, to, said) in cases {
        let text = META1.replace(from, to);
        assert_ne!(text, META1);
        assert_eq!(refusal(&text), format!("meta.conf:{said}"));
    }
}

#[test]
fn what_is_left_out_of_a_meta_configuration_has_its_default() {
    let short = META1
        .replace("nroutes 1;", "")
        .replace("packet-size 60;", "sa-ttl 60;");
    let meta = meta(&short);
    assert_eq!(
        (meta.routes, meta.packet_size.to_string()),
        (1, "IMIX".into())
    );
    assert_eq!(meta.config().sa_ttl, Duration::from_secs(60));
    assert_eq!(meta.source_prefix, TestPrefix::read("172.16").unwrap());
}
