use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use tare_gateway::config::{
    Aead, Config, Device, InterfaceConfig, Keys, ManualSa, PresharedKey, Route, SaKey,
};

use super::read;

fn ip4() -> impl Strategy<Value = Ipv4Addr> {
    (1..=223u8, any::<[u8; 3]>()).prop_map(|(a, [b, c, d])| Ipv4Addr::new(a, b, c, d))
}

fn ip6() -> impl Strategy<Value = Ipv6Addr> {
    (0x2000..=0x3fffu16, any::<[u16; 7]>())
        .prop_map(|(a, [b, c, d, e, f, g, h])| Ipv6Addr::new(a, b, c, d, e, f, g, h))
}

fn mac() -> impl Strategy<Value = [u8; 6]> {
    any::<[u8; 6]>().prop_map(|[a, rest @ ..]| {
        let [b, c, d, e, f] = rest;
        [a & 0xfe, b, c, d, e, f]
    })
}

fn device() -> impl Strategy<Value = Device> {
    let name = r#"[^\s/:\pC]{1,15}"#;
    prop_oneof![
        (0..0x20000u32, any::<u8>(), 0..32u8, 0..8u8).prop_map(
            |(domain, bus, device, function)| {
                let text = format!("{domain:04x}:{bus:02x}:{device:02x}.{function}");
                Device::Pci(text.parse().unwrap())
            }
        ),
        name.prop_filter("a name that Linux takes", |name| {
            name.len() <= 15 && name != "." && name != ".."
        })
        .prop_map(Device::Name),
    ]
}

/// An interface with both families, so that every route fits.
fn interface(nat: bool) -> impl Strategy<Value = InterfaceConfig> {
    let station = (
        device(),
        option::of(any::<u16>()),
        option::of(mac()),
        option::of(mac()),
    );
    let four = (ip4(), option::of(ip4()), ip4());
    let six = (ip6(), option::of(ip6()), ip6());
    (station, four, six).prop_map(move |(station, four, six)| {
        let (device, device_queue, mac, nexthop_mac) = station;
        InterfaceConfig {
            device,
            device_queue,
            mac,
            ip4: Some(four.0),
            ip6: Some(six.0),
            nat_ip4: four.1.filter(|_| nat),
            nat_ip6: six.1.filter(|_| nat),
            nexthop_ip4: Some(four.2),
            nexthop_ip6: Some(six.2),
            nexthop_mac,
        }
    })
}

fn sa_key() -> impl Strategy<Value = SaKey> {
    (any::<[u8; 32]>(), any::<[u8; 4]>(), any::<bool>()).prop_map(|(key, salt, long)| {
        if long {
            SaKey::aes_256_gcm(&key, salt)
        } else {
            SaKey::aes_128_gcm(key.first_chunk().unwrap(), salt)
        }
    })
}

/// A route without what must be unique: `routes` numbers it.
fn route() -> impl Strategy<Value = Route> {
    let exchange = (any::<[u8; 32]>(), any::<bool>()).prop_map(|(key, long)| Keys::Exchange {
        preshared_key: PresharedKey::new(key),
        spi: 0,
        aead: if long {
            Aead::Aes256Gcm
        } else {
            Aead::Aes128Gcm
        },
    });
    let manual = (vec(sa_key(), 1..4), sa_key()).prop_map(|(inbound, outbound)| Keys::Manual {
        inbound: inbound
            .into_iter()
            .map(|key| ManualSa { spi: 0, key })
            .collect(),
        outbound: ManualSa {
            spi: 0,
            key: outbound,
        },
    });
    let gateway = prop_oneof![ip4().prop_map(IpAddr::V4), ip6().prop_map(IpAddr::V6)];
    let prefixes = vec(any::<bool>(), 1..5);
    (
        "[A-Za-z0-9_.-]{1,40}",
        gateway,
        prefixes,
        prop_oneof![exchange, manual],
        any::<bool>(),
        64..=4032u32,
    )
        .prop_map(|(id, gateway, prefixes, keys, esn, window)| Route {
            id,
            gateway,
            prefixes: prefixes
                .into_iter()
                .map(|six| if six { "2001::/16" } else { "1.0.0.0/8" }.parse().unwrap())
                .collect(),
            keys,
            esn,
            window,
        })
}

fn routes() -> impl Strategy<Value = Vec<Route>> {
    vec(route(), 0..12).prop_map(|mut routes| {
        let mut next = 0u32;
        let mut number = || {
            next += 1;
            next
        };
        for route in &mut routes {
            route.id += &format!("-{}", number());
            for net in &mut route.prefixes {
                let n = number();
                *net = match net.addr() {
                    IpAddr::V4(_) => format!("10.{}.{}.0/24", n >> 8, n & 255),
                    IpAddr::V6(_) => format!("2001:db8:{n:x}::/48"),
                }
                .parse()
                .unwrap();
            }
            match &mut route.keys {
                Keys::Exchange { spi, .. } => *spi = 255 + number(),
                Keys::Manual { inbound, outbound } => {
                    for sa in inbound.iter_mut().chain([outbound]) {
                        sa.spi = u32::MAX - number();
                    }
                }
            }
        }
        routes
    })
}

fn config() -> impl Strategy<Value = Config> {
    let ttls = (1..=u32::MAX / 4).prop_flat_map(|negotiation| {
        let sa = negotiation * 4..=u32::MAX;
        (Just(negotiation), sa).prop_map(|(negotiation, sa)| {
            let seconds = |n: u32| Duration::from_secs(n.into());
            (seconds(negotiation), seconds(sa))
        })
    });
    let metrics = (
        prop_oneof![ip4().prop_map(IpAddr::V4), ip6().prop_map(IpAddr::V6)],
        any::<u16>(),
    );
    (
        interface(false),
        interface(true),
        routes(),
        option::of(1280..=8923u16),
        ttls,
        1..=u16::MAX,
        (option::of(metrics.prop_map(Into::into)), any::<bool>()),
        option::of(r#"/[a-zé \\"';{}#\n/*-]{1,50}"#.prop_map(Into::into)),
    )
        .prop_map(
            |(private, public, routes, mtu, ttls, port, metrics, status_socket)| Config {
                private,
                public,
                routes,
                mtu,
                negotiation_ttl: ttls.0,
                sa_ttl: ttls.1,
                protocol_port: port,
                metrics: metrics.0,
                metrics_per_sa: metrics.1,
                status_socket,
            },
        )
        .prop_filter("one interface on both sides", |config| {
            config.private.device != config.public.device
        })
}

proptest! {
    #[test]
    fn what_is_written_is_read_as_the_same(config in config()) {
        let text = config.text();
        prop_assert_eq!(read(&text).0, config);
    }

    #[test]
    fn a_file_with_one_byte_changed_is_read_or_refused(
        config in config(),
        at in any::<prop::sample::Index>(),
        byte in prop_oneof![Just(b';'), Just(b'{'), Just(b'}'), Just(b'"'), Just(b'/'), any::<u8>()],
    ) {
        let mut bytes = config.text().as_bytes().to_vec();
        let at = at.index(bytes.len());
        bytes[at] = byte;
        let _ = Config::parse("node.conf", &bytes);
    }

    #[test]
    fn arbitrary_bytes_are_read_or_refused(bytes in vec(any::<u8>(), 0..300)) {
        let _ = Config::parse("node.conf", &bytes);
    }

    #[test]
    fn arbitrary_words_of_the_grammar_are_read_or_refused(words in vec(word(), 0..60)) {
        let _ = Config::parse("node.conf", words.join(" ").as_bytes());
    }
}

/// Words that reach every reader.
fn word() -> impl Strategy<Value = String> {
    let block = prop::sample::select(vec![
        "private-interface {",
        "public-interface {",
        "private-interface4 {",
        "public-interface6 {",
        "route {",
        "route4 {",
        "route6 {",
        "gateway {",
        "inbound-sa {",
        "outbound-sa {",
        "}",
        "}",
        "}",
    ]);
    let leaf = prop::sample::select(vec![
        "pci",
        "device",
        "ifname",
        "mac",
        "ip",
        "ip4",
        "ip6",
        "nexthop-ip4",
        "nexthop-mac",
        "nat-ip",
        "queue",
        "id",
        "net",
        "net-cidr4",
        "net-cidr6",
        "gw-ip4",
        "gw-ip6",
        "preshared-key",
        "spi",
        "aead",
        "esn",
        "window",
        "key",
        "salt",
        "route",
        "mtu",
        "data-plane",
        "metrics",
        "metrics-per-sa",
        "status-socket",
        "sa-ttl",
    ]);
    let value = prop::sample::select(vec![
        "0",
        "1",
        "256",
        "1001",
        "4294967295",
        "true",
        "false",
        "10.0.0.1",
        "10.0.0.0/8",
        "2001:db8::1",
        "2001:db8::/32",
        "02:00:00:00:00:01",
        "23:00.0",
        "eth0",
        "aes-256-gcm",
        "00112233445566778899aabbccddeeff",
        "0000000000000000000000000000000000000000000000000000000000000000",
        "01020304",
        "/run/x",
        "[::1]:1",
        "\"\"",
    ]);
    prop_oneof![
        2 => block.prop_map(String::from),
        5 => (leaf, value).prop_map(|(leaf, value)| format!("{leaf} {value};")),
        1 => any::<String>(),
    ]
}
