use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

use rustix::time::{clock_gettime, ClockId};
use tare_gateway::config::{
    reference, Aead, Block, Config, Device, InterfaceConfig, Keys, ManualSa, PresharedKey, Route,
    SaKey, GATEWAY_FILE, GENTEST_FILE,
};

use super::read;

const NODE1: &str = include_str!("../seed/node1.conf");
const NODE2: &str = include_str!("../seed/node2.conf");

fn interface(pci: &str, ip4: [u8; 4], nexthop_ip4: [u8; 4]) -> InterfaceConfig {
    InterfaceConfig {
        device: Device::Pci(pci.parse().unwrap()),
        device_queue: None,
        mac: None,
        ip4: Some(ip4.into()),
        ip6: None,
        nat_ip4: None,
        nat_ip6: None,
        nexthop_ip4: Some(nexthop_ip4.into()),
        nexthop_ip6: None,
        nexthop_mac: None,
    }
}

/// The configuration of the seed's node with this number, its peer being `other`.
fn seed_node(this: u8, other: u8, private: &str, public: &str) -> Config {
    let gateway = [172, other, 0, 10];
    Config::new(
        InterfaceConfig {
            nexthop_mac: Some([2, 0, 0, 0, 0, 0]),
            ..interface(private, [172, this, 0, 10], [172, this, 0, 1])
        },
        interface(public, [172, this, 0, 10], gateway),
        vec![Route {
            id: "test1".into(),
            gateway: IpAddr::from(gateway),
            prefixes: vec![format!("172.{other}.1.0/24").parse().unwrap()],
            keys: Keys::Exchange {
                preshared_key: PresharedKey::new([0; 32]),
                spi: 1001,
                aead: Aead::Aes128Gcm,
            },
            esn: true,
            window: 2048,
        }],
    )
}

#[test]
fn the_seed_s_nodes_are_accepted_unchanged() {
    let (node1, warnings) = read(NODE1);
    assert_eq!(node1, seed_node(16, 17, "23:00.0", "22:00.1"));
    assert_eq!((node1.protocol_port, node1.sa_ttl.as_secs()), (303, 600));
    let warnings: Vec<String> = warnings.iter().map(ToString::to_string).collect();
    assert_eq!(
        warnings,
        ["node.conf:12: route test1: the preshared key is all zeros, which is for tests only; make one with tare gateway keygen"]
    );
    assert_eq!(read(NODE2).0, seed_node(17, 16, "22:00.2", "23:00.1"));
}

#[test]
fn vita_s_newer_spelling_means_the_same() {
    let newer = NODE1
        .replace("private-interface", "private-interface4")
        .replace("public-interface", "public-interface4")
        .replace("  ip4", "  ip")
        .replace("nexthop-ip4", "nexthop-ip")
        .replace("route", "route4")
        .replace("net-cidr4", "net")
        .replace(
            "gw-ip4 172.17.0.10;",
            "gateway { queue 1; ip 172.17.0.10; }",
        );
    assert_ne!(newer, NODE1);
    assert_eq!(read(&newer).0, read(NODE1).0);
}

#[test]
fn every_combination_of_families_is_accepted() {
    let config = "
        private-interface4 { ifname lan0; ip 10.0.0.1; nexthop-ip 10.0.0.254; }
        private-interface6 { ifname lan0; ip 2001:db8::1; nexthop-mac 02:00:00:00:00:09; }
        public-interface {
            device \"wan0\"; device-queue 2;
            ip4 192.0.2.1; ip6 2001:db8:f::1; nat-ip4 203.0.113.1;
            nexthop-ip4 192.0.2.254; nexthop-ip6 fe80::1;
        }
        route { id four-in-four; gw-ip4 198.51.100.1; net-cidr4 10.1.0.0/16; net-cidr4 10.2.0.0/16;
                spi 256; preshared-key KEY1; }
        route { id six-in-four; gateway { ip 198.51.100.2; } net 2001:db8:2::/48;
                spi 257; preshared-key KEY2; aead aes-256-gcm; }
        route { id four-in-six; gw-ip6 2001:db8:e::3; net 10.3.0.0/16; esn false;
                spi 258; preshared-key KEY3; }
        route { id six-in-six; gw-ip6 2001:db8:e::4; net-cidr6 \"2001:db8:4::/48\"; net 0.0.0.0/0;
                spi 4294967295; preshared-key KEY4; window 64; }
        mtu 1400; window 4032; esn true; aead aes-gcm-16-icv; tfc false; data-plane false;
        metrics [::1]:9303; status-socket /run/tare/gateway.sock;
        negotiation-ttl 7; sa-ttl 1200; protocol-port 4303;";
    let config = (1..=4).fold(config.to_string(), |text, n| {
        text.replace(&format!("KEY{n}"), &format!("{n:064x}"))
    });
    let (config, warnings) = read(&config);
    assert_eq!(warnings, []);
    assert_eq!(config.private.device, Device::Name("lan0".into()));
    assert_eq!(
        config.private.nexthop_ip4,
        Some(Ipv4Addr::new(10, 0, 0, 254))
    );
    assert_eq!(config.private.nexthop_mac, Some([2, 0, 0, 0, 0, 9]));
    assert_eq!(config.public.device_queue, Some(2));
    let gateways = config.routes.iter().map(|route| route.gateway);
    let ours: Vec<String> = gateways
        .clone()
        .map(|gateway| config.public.address_towards(gateway).unwrap().to_string())
        .collect();
    assert_eq!(
        ours,
        ["192.0.2.1", "192.0.2.1", "2001:db8:f::1", "2001:db8:f::1"]
    );
    let seen: Vec<String> = gateways
        .map(|gateway| config.public.address_seen_by(gateway).unwrap().to_string())
        .collect();
    assert_eq!(
        seen,
        [
            "203.0.113.1",
            "203.0.113.1",
            "2001:db8:f::1",
            "2001:db8:f::1"
        ]
    );
    let kinds: Vec<_> = config
        .routes
        .iter()
        .map(|route| match &route.keys {
            Keys::Exchange { aead, .. } => (route.prefixes.len(), *aead, route.esn, route.window),
            Keys::Manual { .. } => panic!("{route:?}"),
        })
        .collect();
    assert_eq!(
        kinds,
        [
            (2, Aead::Aes128Gcm, true, 4032),
            (1, Aead::Aes256Gcm, true, 4032),
            (1, Aead::Aes128Gcm, false, 4032),
            (2, Aead::Aes128Gcm, true, 64),
        ]
    );
    assert_eq!(config.mtu, Some(1400));
    assert_eq!(config.metrics, Some("[::1]:9303".parse().unwrap()));
    assert_eq!(
        (config.negotiation_ttl, config.sa_ttl),
        (Duration::from_secs(7), Duration::from_secs(1200))
    );
    assert_eq!(config.protocol_port, 4303);
}

#[test]
fn manual_sas_stand_within_a_route_or_beside_it() {
    let interfaces = NODE1.split("route {").next().unwrap();
    let key = "00112233445566778899aabbccddeeff";
    let within = format!(
        "{interfaces} route {{ id a; gw-ip4 172.17.0.10; net 10.0.0.0/8;
            inbound-sa {{ spi 256; key \"{key} {key}\"; salt 01020304; }}
            inbound-sa {{ spi 257; aead aes-128-gcm; key {key}; salt 01020305; }}
            outbound-sa {{ spi 256; aead aes-gcm-16-icv; key {key}; salt 01020306; }} }}
         route {{ id b; gw-ip4 172.17.0.11; net 11.0.0.0/8; preshared-key {key}{key}; spi 256; }}"
    );
    let (config, warnings) = read(&within);
    assert_eq!(warnings, []);
    let bytes: [u8; 16] = std::array::from_fn(|i| i as u8 * 0x11);
    let mut long = [0; 32];
    long[..16].copy_from_slice(&bytes);
    long[16..].copy_from_slice(&bytes);
    let sa = |spi, key| ManualSa { spi, key };
    assert_eq!(
        config.routes[0].keys,
        Keys::Manual {
            inbound: vec![
                sa(256, SaKey::aes_256_gcm(&long, [1, 2, 3, 4])),
                sa(257, SaKey::aes_128_gcm(&bytes, [1, 2, 3, 5])),
            ],
            outbound: sa(256, SaKey::aes_128_gcm(&bytes, [1, 2, 3, 6])),
        }
    );
    assert!(matches!(
        config.routes[1].keys,
        Keys::Exchange { spi: 256, .. }
    ));

    let beside = format!(
        "{interfaces} data-plane true;
         route {{ id a; gw-ip4 172.17.0.10; net 10.0.0.0/8; preshared-key {key}{key}; spi 1001; }}
         outbound-sa {{ route a; spi 256; aead \"aes-gcm-16-icv\"; key {key}; salt 01020306; queue 1; }}
         inbound-sa {{ route a; spi 256; key {key}{key}; salt 01020304; }}
         inbound-sa {{ route a; spi 257; key {key}; salt 01020305; }}"
    );
    assert_eq!(read(&beside).0.routes[0].keys, config.routes[0].keys);
}

#[test]
fn what_is_probably_not_meant_is_warned_about() {
    let key = "11".repeat(32);
    let route = |id: &str, spi: u32, rest: &str| {
        format!("route {{ id {id}; spi {spi}; preshared-key {key}; {rest} }}\n")
    };
    let interfaces = NODE1.split("route {").next().unwrap();
    let sa_key = format!("key {};", "22".repeat(16));
    let text = format!(
        "{interfaces}{}{}{}route {{ id d; gw-ip4 172.16.0.10; net 10.4.0.0/16;
            inbound-sa {{ spi 300; {sa_key} salt 01020304; }} outbound-sa {{ spi 301; {sa_key} salt 01020305; }} }}
         metrics 0.0.0.0:9303;",
        route("a", 1001, "gw-ip4 172.17.0.10; net 10.1.0.0/16;"),
        route("b", 1002, "gw-ip4 172.17.0.11; net 10.2.0.0/16;"),
        route("c", 1003, "gw-ip4 172.17.0.12; net 172.16.0.0/16;"),
    );
    let (_, warnings) = read(&text);
    let warnings: Vec<String> = warnings.iter().map(ToString::to_string).collect();
    assert_eq!(
        warnings,
        [
            "node.conf:12: route a and 2 more routes: the preshared key is that of another route too; give each its own",
            "node.conf:15: route d: the gateway is this gateway itself",
            "node.conf:14: route c: a prefix holds the private interface's own next hop: what is sent to that goes to the peer",
            "node.conf:17: metrics at 0.0.0.0:9303 can be read from outside of this machine",
        ]
    );
}

#[test]
fn a_file_that_others_can_read_is_warned_about() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("node1.conf");
    fs::write(&path, NODE1.replace("00000000;", "00000001;")).unwrap();
    for (mode, may) in [
        (0o600, None),
        (0o400, None),
        (0o640, Some("read")),
        (0o604, Some("read")),
        (0o620, Some("change")),
    ] {
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        let (_, warnings) = Config::load(&path).unwrap();
        let expected = may.map(|may| {
            let file = path.display();
            format!(
                "{file}: holds keys and its mode 0{mode:o} lets others {may} it; chmod 600 {file}"
            )
        });
        let warning = warnings.first().map(ToString::to_string);
        assert_eq!(warning, expected, "{mode:o}");
    }
}

/// The processor time of this thread, which other programs do not stretch.
fn processor_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap()
}

#[test]
fn ten_thousand_routes_are_read_in_well_under_a_second() {
    let interfaces = NODE1.split("route {").next().unwrap();
    let text = (0..10_000u32).fold(interfaces.to_string(), |text, n| {
        text + &format!(
            "route {{\n  id test{n};\n  gw-ip4 172.17.0.10;\n  net-cidr4 \"10.{}.{}.0/24\";\n  preshared-key {:064x};\n  spi {};\n}}\n",
            n / 256, n % 256, n + 1, 1000 + n,
        )
    });
    let before = processor_time();
    let (config, warnings) = read(&text);
    let took = processor_time() - before;
    assert_eq!((config.routes.len(), warnings.len()), (10_000, 0));
    // About 60 ms.
    assert!(took < Duration::from_secs(1), "{took:?}");
}

/// Every leaf of the table, in a file that needs nothing else of that leaf's block.
#[test]
fn every_leaf_of_the_reference_is_accepted_with_its_example() {
    fn all(block: &Block, within: &str, tried: &mut usize) {
        for leaf in block.leaves {
            let path = format!("{within}{}/{}", block.name, leaf.name);
            let text = format!("{} {};", leaf.name, leaf.example);
            let nested = match within {
                "" if block.name.is_empty() => text,
                "/" => format!("{} {{ {text} }}", block.name),
                outer => format!(
                    "{} {{ {} {{ {text} }} }}",
                    outer.trim_matches('/'),
                    block.name
                ),
            };
            // What a leaf may name.
            let named = match leaf.name {
                "route" => "route { id test1; }",
                _ => "",
            };
            let said = super::refusal(format!("{nested} {named}").as_bytes());
            let about = |line: &str| {
                let name = format!("\"{}\"", leaf.name);
                line.contains(&format!("leaf {name}: found")) && !line.contains("found nothing")
                    || line.contains(&format!("leaf {name}, expected one of"))
            };
            // A prefix and a gateway are right in themselves: what they lack is an interface.
            assert!(!said.lines().any(about), "{path}: {said}");
            *tried += 1;
        }
        for inner in block.blocks {
            all(inner, &format!("{within}{}/", block.name), tried);
        }
    }
    let mut tried = 0;
    all(&GATEWAY_FILE, "", &mut tried);
    assert!(tried > 100, "{tried}");
    for file in [&GATEWAY_FILE, &GENTEST_FILE] {
        let text = reference(file);
        assert!(file
            .blocks
            .iter()
            .all(|block| text.contains(&format!("### `{}`", block.name))));
    }
}
