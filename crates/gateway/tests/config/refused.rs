use tare_gateway::config::{Config, BYTES_MAX};

use super::refusal;

const NODE1: &str = include_str!("../seed/node1.conf");
const KEY: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

/// The seed's node 1 with one thing replaced, and the one line that is said of it.
#[test]
fn a_mistake_is_reported_with_its_line_what_was_found_and_what_was_expected() {
    let cases: &[(&str, &str, &str)] = &[
        ("spi 1001", "spi abc", r#"17: route test1: leaf "spi": found "abc", expected a number from 256 to 4294967295"#),
        ("spi 1001", "spi 255", r#"17: route test1: leaf "spi": found "255", expected a number from 256 to 4294967295"#),
        ("spi 1001", "spii 1001", r#"12: route test1: leaf "spi": found nothing, expected a number from 256 to 4294967295
node.conf:17: route test1: found leaf "spii", expected one of id, gw-ip4, gw-ip6, net-cidr4, net-cidr6, net, preshared-key, spi, aead, esn, window, gateway, inbound-sa, outbound-sa; did you mean "spi"?"#),
        ("  spi 1001;\n", "", r#"12: route test1: leaf "spi": found nothing, expected a number from 256 to 4294967295"#),
        ("spi 1001;", "spi 1001; spi 1002;", r#"17: route test1: found "spi" again, expected only that of line 17"#),
        ("spi 1001;", "spi 1001; mtu 1400;", r#"17: route test1: found leaf "mtu", expected one of id, gw-ip4, gw-ip6, net-cidr4, net-cidr6, net, preshared-key, spi, aead, esn, window, gateway, inbound-sa, outbound-sa"#),
        ("spi 1001;", "spi 1001; esn no;", r#"17: route test1: leaf "esn": found "no", expected true or false"#),
        ("spi 1001;", "spi 1001; window 63;", r#"17: route test1: leaf "window": found "63", expected a number from 64 to 4032"#),
        ("spi 1001;", "spi 1001; aead chacha20;", r#"17: route test1: leaf "aead": found "chacha20", expected aes-128-gcm or aes-256-gcm"#),
        ("spi 1001;", "spi 1001\n", r#"17: leaf "spi": found "}" on line 19, expected ";" after its value"#),
        ("spi 1001;", "spi;", r#"17: leaf "spi": found ";", expected a value or "{""#),
        ("spi 1001;\n}", "spi 1001;\n", r#"19: found the end of the file, expected "}" for the block of line 12"#),
        ("id test1", "id \"a b\"", r#"13: route: leaf "id": found "a b", expected up to 48 letters, digits, "_", "-" and ".""#),
        ("id test1;\n", "\n", r#"12: route: leaf "id": found nothing, expected up to 48 letters, digits, "_", "-" and ".""#),
        ("172.17.1.0/24", "172.17.1.5/24", r#"15: route test1: leaf "net-cidr4": found "172.17.1.5/24", which has bits behind its 24, expected "172.17.1.0/24""#),
        ("172.17.1.0/24", "172.17.1.0", r#"15: route test1: leaf "net-cidr4": found "172.17.1.0", expected an IPv4 prefix such as 172.17.1.0/24"#),
        ("172.17.1.0/24", "2001:db8::/32", r#"15: route test1: leaf "net-cidr4": found "2001:db8::/32", expected an IPv4 prefix such as 172.17.1.0/24"#),
        ("net-cidr4 \"172.17.1.0/24\"", "net 2001:db8::/32", r#"15: route test1: leaf "net": found 2001:db8::/32, while the private interface has no IPv6 address, expected an IPv4 prefix, or an address of IPv6 there"#),
        ("net-cidr4 \"172.17.1.0/24\";", "", "12: route test1: found no prefix, expected at least one net-cidr4, net-cidr6 or net"),
        ("net-cidr4 \"172.17.1.0/24\"", "net-cidr4 \"172.17.1.0/24\"; net 172.17.1.0/24", r#"15: route test1: leaf "net": found 172.17.1.0/24, which this route already has (line 15), expected a prefix of no other"#),
        ("gw-ip4 172.17.0.10", "gw-ip6 2001:db8::1", r#"14: route test1: leaf "gw-ip6": found 2001:db8::1, while the public interface has no IPv6 address, expected an IPv4 address, or one of IPv6 there"#),
        ("gw-ip4 172.17.0.10", "gw-ip4 0.0.0.0", r#"14: route test1: leaf "gw-ip4": found "0.0.0.0", expected an IPv4 address of one station"#),
        ("gw-ip4 172.17.0.10;", "", "12: route test1: found no gateway, expected one of gw-ip4, gw-ip6 and gateway { ip …; }"),
        ("gw-ip4 172.17.0.10;", "gw-ip4 172.17.0.10; gateway { ip 172.17.0.11; }", "14: route test1: found gateway beside gw-ip4, expected one gateway"),
        ("gw-ip4 172.17.0.10", "gateway 172.17.0.10", r#"12: route test1: found no gateway, expected one of gw-ip4, gw-ip6 and gateway { ip …; }
node.conf:14: route test1: found a value of "gateway", expected a block: gateway { … }"#),
        ("gw-ip4 172.17.0.10;", "gateway { ip 172.17.0.10; queue 2; }", r#"14: route test1: gateway: leaf "queue": found "2", expected 1: one interface and one gateway serve all workers"#),
        ("  preshared-key 00", "  preshared-key ", r#"16: route test1: leaf "preshared-key": found 62 hexadecimal digits, expected 64 hexadecimal digits (tare gateway keygen makes them)"#),
        ("  preshared-key 00", "  preshared-key xy", r#"16: route test1: leaf "preshared-key": found 64 characters, 2 of them no hexadecimal digits, expected 64 hexadecimal digits (tare gateway keygen makes them)"#),
        ("ip4 172.16.0.10;\n  nexthop-ip4 172.17.0.10;", "", "7: public-interface: found neither ip4 nor ip6, expected at least one of them"),
        ("  nexthop-ip4 172.17.0.10;\n", "", r#"7: public-interface: leaf "nexthop-ip4": found nothing, expected an IPv4 address of one station, or nexthop-mac"#),
        ("  nexthop-ip4 172.17.0.10;", "  nexthop-ip4 172.17.0.10; nexthop-ip6 fe80::1;", r#"7: public-interface: leaf "ip6": found nothing, expected an IPv6 address of one station beside nexthop-ip6"#),
        ("pci 22:00.1;", "", "7: public-interface: found no interface, expected one of pci, device and ifname"),
        ("pci 22:00.1;", "pci 22:00.1; device eth0;", "8: public-interface: found device beside pci, expected one of them"),
        ("pci 22:00.1;", "pci 0000:23:00.0;", r#"8: public-interface: leaf "pci": found 0000:23:00.0, which private-interface has too (line 2), expected another interface"#),
        ("pci 22:00.1;", "pci 22:00;", r#"8: public-interface: leaf "pci": found "22:00", expected a PCI address such as 23:00.0"#),
        ("pci 22:00.1;", "device eth/0;", r#"8: public-interface: leaf "device": found "eth/0", expected the name of an interface: up to 15 characters without "/" or white space"#),
        ("nexthop-mac 02:00:00:00:00:00", "nexthop-mac 03:00:00:00:00:00", r#"5: private-interface: leaf "nexthop-mac": found "03:00:00:00:00:00", expected a MAC address of one station such as 02:00:00:00:00:01"#),
        ("public-interface {", "publik-interface {", "1: found no public-interface, expected a block public-interface { … }\nnode.conf:7: found block \"publik-interface\", expected one of mtu, aead, esn, window, negotiation-ttl, sa-ttl, protocol-port, data-plane, tfc, metrics, metrics-per-sa, status-socket, private-interface, public-interface, route, inbound-sa, outbound-sa, private-interface4, private-interface6, public-interface4, public-interface6, route4, route6; did you mean \"public-interface\"?"),
        ("public-interface {", "private-interface {", "1: found no public-interface, expected a block public-interface { … }\nnode.conf:7: found \"private-interface\" again, expected only that of line 1\nnode.conf:7: private-interface: found private-interface beside another block for the same interface, expected private-interface alone, or private-interface4 and private-interface6"),
        ("route {", "mtu 67;\nroute {", r#"12: leaf "mtu": found "67", expected a number from 68 to 8923, from 1280 with IPv6 prefixes"#),
        ("route {", "mtu { }\nroute {", "12: found a block \"mtu\", expected a value: mtu …;"),
        ("route {", "tfc true;\nroute {", r#"12: leaf "tfc": found "true", expected false: packets are not padded to hide their lengths"#),
        ("route {", "metrics 9303;\nroute {", r#"12: leaf "metrics": found "9303", expected an address and a port such as 127.0.0.1:9303"#),
        ("route {", "status-socket x;\nroute {", r#"12: leaf "status-socket": found "x", expected an absolute path of up to 107 bytes"#),
        ("route {", "protocol-port 0;\nroute {", r#"12: leaf "protocol-port": found "0", expected a number from 1 to 65535"#),
        ("route {", "sa-ttl 19;\nroute {", r#"12: leaf "sa-ttl": found 19, expected at least 20, four times negotiation-ttl"#),
        ("route {", "negotiation-ttl 151;\nroute {", r#"12: leaf "negotiation-ttl": found 151, expected at most 150, a quarter of sa-ttl"#),
        ("gw-ip4 172.17.0.10", "gw-ip4 172.16.0.10", r#"14: route test1: leaf "gw-ip4": found 172.16.0.10, which is this gateway's own address, expected the peer's"#),
        ("route {", "sa-ttl 0;\nroute {", r#"12: leaf "sa-ttl": found "0", expected a number of seconds from 1 to 4294967295"#),
        ("route {", "data-plane true;\nroute {", r#"13: route test1: found no SAs, expected an inbound-sa and an outbound-sa, as the file says "data-plane true;""#),
        ("route {", "route test1 {", r#"12: leaf "route": found "{", expected ";" after its value"#),
    ];
    for (from, to, said) in cases {
        assert_eq!(NODE1.matches(from).count(), 1, "{from}");
        let text = NODE1.replacen(from, to, 1);
        assert_eq!(
            refusal(text.as_bytes()),
            format!("node.conf:{said}"),
            "{to}"
        );
    }
}

/// The error for node 1 with `rest` behind it.
fn refusal_with(rest: &str) -> String {
    refusal(format!("{NODE1}{rest}").as_bytes())
}

#[test]
fn what_two_routes_may_not_share_is_reported_with_both_lines() {
    let second = format!(
        "route {{ id test1; spi 1001; gw-ip4 172.17.0.10;\nnet 172.17.1.0/24; preshared-key {KEY}; }}"
    );
    assert_eq!(
        refusal_with(&second),
        "node.conf:19: route test1: leaf \"id\": found \"test1\", which route test1 too has (line 13), expected a name of its own\n\
         node.conf:19: route test1: leaf \"spi\": found 1001, which route test1 too has (line 17), expected a number of its own\n\
         node.conf:20: route test1: leaf \"net\": found 172.17.1.0/24, which route test1 too has (line 15), expected a prefix of no other"
    );
    // A longer prefix within is another route's.
    let nested = second
        .replace("test1", "b")
        .replace("1001", "1002")
        .replace("/24", "/25");
    assert!(Config::parse("node.conf", format!("{NODE1}{nested}").as_bytes()).is_ok());
}

#[test]
fn manual_sas_are_complete_and_of_a_route() {
    let key = &KEY[..32];
    let sa = |kind: &str, spi: &str| {
        let salt = if kind == "inbound" {
            "01020304"
        } else {
            "01020305"
        };
        format!("{kind}-sa {{ spi {spi}; key {key}; salt {salt}; }}")
    };
    let route = |sas: &str| format!("route {{ id m; gw-ip4 172.17.0.11; net 10.0.0.0/8;\n{sas} }}");
    let beside = |kind: &str, id: &str| {
        format!("{kind}-sa {{ route {id}; spi 300; key {key}; salt 01020304; }}")
    };
    let cases = [
        (route(""), "19: route m: leaf \"preshared-key\": found nothing, expected 64 hexadecimal digits (tare gateway keygen makes them)\nnode.conf:19: route m: leaf \"spi\": found nothing, expected a number from 256 to 4294967295"),
        (route(&sa("inbound", "300")), "20: route m: found 1 inbound and 0 outbound SAs, expected at least one inbound and exactly one outbound"),
        (route(&format!("spi 300; {} {}", sa("inbound", "300"), sa("outbound", "300"))), "20: route m: found spi beside SAs of the route's own, expected either, or \"data-plane true;\" in the file"),
        (route(&format!("{} {} {}", sa("inbound", "300"), sa("inbound", "300").replace("04;", "06;"), sa("outbound", "300"))), "20: route m: leaf \"spi\": found 300, which this route already has (line 20), expected an inbound SPI of its own"),
        (route(&format!("{} {}", sa("inbound", "1"), sa("outbound", "300"))), "20: route m: inbound-sa: leaf \"spi\": found \"1\", expected a number from 256 to 4294967295"),
        (route(&format!("{} {}", sa("inbound", "300").replace("; salt", "00; salt"), sa("outbound", "300"))), "20: route m: inbound-sa: leaf \"key\": found 34 hexadecimal digits, expected 32 hexadecimal digits for aes-128-gcm or 64 for aes-256-gcm"),
        (route(&format!("{} {}", sa("inbound", "300").replace("spi", "aead aes-256-gcm; spi"), sa("outbound", "300"))), "20: route m: inbound-sa: leaf \"key\": found 32 hexadecimal digits, expected 64 hexadecimal digits for aes-256-gcm"),
        (route(&format!("{} {}", sa("inbound", "300").replace("01020304", "0102030"), sa("outbound", "300"))), "20: route m: inbound-sa: leaf \"salt\": found 7 hexadecimal digits, expected 8 hexadecimal digits"),
        (beside("outbound", "test2"), "19: outbound-sa: leaf \"route\": found \"test2\", expected the id of a route; did you mean \"test1\"?"),
        (beside("inbound", "test1"), "16: route test1: found preshared-key beside SAs of the route's own, expected either, or \"data-plane true;\" in the file"),
        (format!("{} {}", route(&format!("{} {}", sa("inbound", "300"), sa("outbound", "300"))), route(&format!("{} {}", sa("inbound", "301"), sa("outbound", "300"))).replace(" m;", " n;").replace("10.0", "11.0").replace("salt 01", "salt 02")), "21: route n: leaf \"spi\": found 300, which route m too has (line 20), expected an SPI of its own at that gateway"),
        (route(&format!("{}\n{}", sa("inbound", "300"), sa("outbound", "300").replace("05;", "04;"))), "21: route m: leaf \"key\": found a key with a salt, which this route already has (line 20), expected a key and salt of its own: SAs that share them repeat nonces, which gives the key away"),
        (format!("{}\n{}", route(&format!("{} {}", sa("inbound", "300"), sa("outbound", "300"))), route(&format!("{} {}", sa("inbound", "301"), sa("outbound", "301").replace("05;", "06;"))).replace(" m;", " n;").replace("10.0", "11.0")), "22: route n: leaf \"key\": found a key with a salt, which route m too has (line 20), expected a key and salt of its own: SAs that share them repeat nonces, which gives the key away"),
    ];
    for (rest, said) in cases {
        assert_eq!(refusal_with(&rest), format!("node.conf:{said}"), "{rest}");
    }
}

#[test]
fn the_two_spellings_of_an_interface_do_not_mix() {
    let other = "private-interface6 { pci 23:00.1; mac 02:00:00:00:00:01; ip 2001:db8::1; nexthop-ip 2001:db8::2; }";
    assert_eq!(
        refusal_with(other),
        "node.conf:19: private-interface6: found private-interface6 beside another block for the same interface, expected private-interface alone, or private-interface4 and private-interface6"
    );
    let newer = NODE1
        .replace("private-interface", "private-interface4")
        .replacen("ip4", "ip", 1)
        .replacen("nexthop-ip4", "nexthop-ip", 1)
        .replacen("nexthop-mac", "mac 02:00:00:00:00:02; nexthop-mac", 1);
    assert_eq!(
        refusal(format!("{newer}{other}").as_bytes()),
        "node.conf:19: private-interface6: found another interface than in the other family's block, expected the same: there is one private and one public interface\n\
         node.conf:19: private-interface6: found another mac than in the other family's block, expected the same"
    );
    assert_eq!(
        refusal_with("public-interface4 { pci 22:00.1; }"),
        "node.conf:19: public-interface4: leaf \"ip\": found nothing, expected an IPv4 address of one station\n\
         node.conf:19: public-interface4: found public-interface4 beside another block for the same interface, expected public-interface alone, or public-interface4 and public-interface6"
    );
}

#[test]
fn an_mtu_that_ipv6_cannot_use_is_refused() {
    let text = NODE1
        .replace("  ip4", "  ip6 2001:db8::1; nexthop-ip6 2001:db8::2; ip4")
        .replace("net-cidr4 \"172.17.1.0/24\"", "net 2001:db8:1::/48")
        + "mtu 1279;";
    assert_eq!(
        refusal(text.as_bytes()),
        "node.conf:19: leaf \"mtu\": found 1279, expected at least 1280, as there are IPv6 prefixes"
    );
}

#[test]
fn of_many_mistakes_the_first_are_told_and_the_others_counted() {
    let routes: String = (0..1000)
        .map(|n| format!("route {{ id customer-{n}; gw-ip4 203.0.113.2; data-plane true; }}\n"))
        .collect();
    let sas: String = (0..20_000)
        .map(|n| format!("inbound-sa {{ route customers-{n}; spi 300; }}\n"))
        .collect();
    let said = refusal(format!("{routes}{sas}").as_bytes());
    assert_eq!(said.lines().count(), 21, "{said}");
    assert!(said.ends_with(" more mistakes"), "{said}");
}

#[test]
fn what_could_be_a_key_is_never_quoted() {
    let files = [
        // Too long, without its semicolon, in two words, under another name, as a name, in a block
        // of its own.
        NODE1.replace(&"0".repeat(64), &format!("{KEY}{KEY}")),
        NODE1.replace(&format!("{};", "0".repeat(64)), KEY),
        NODE1.replace(&"0".repeat(64), &format!("{} {}", &KEY[..32], &KEY[32..])),
        NODE1.replace(&"0".repeat(64), &KEY.replace('a', "g")),
        NODE1.replace("preshared-key 0", &format!("psk {KEY};#")),
        NODE1.replace("preshared-key ", &format!("{KEY} ")),
        NODE1.replace("preshared-key ", &format!("{} ", &KEY[..16])),
        NODE1.replace("preshared-key 0", &format!("spi {KEY};#")),
        NODE1.replace("preshared-key 0", &format!("spi 0x{};#", &KEY[..32])),
        NODE1.replace("preshared-key 0", &format!("spi {}g;#", &KEY[..31])),
        NODE1.replace("id test1", &format!("id {KEY}")),
        NODE1.replace("id test1", &format!("spi 1; id {}", &KEY[..32])),
        NODE1.replace(
            "preshared-key 0",
            &format!("preshared-key {{ {KEY} {KEY}; }} #"),
        ),
        NODE1.replace("preshared-key 0", &format!("preshared-key;\n{KEY};")),
        NODE1.replace(
            "preshared-key 0",
            &format!("inbound-sa {{ spi 300; key {KEY}00; salt 01; }} #"),
        ),
    ];
    for text in &files {
        let said = refusal(text.as_bytes());
        assert!(
            text.contains("23456789") && !said.contains("23456789"),
            "{said}"
        );
    }
}

#[test]
fn a_file_that_is_no_text_is_refused() {
    assert_eq!(
        refusal(b"a b;\n\xff"),
        "node.conf:2: found bytes that are not UTF-8, expected text"
    );
    let long = vec![b' '; BYTES_MAX + 1];
    assert_eq!(
        refusal(&long),
        "node.conf: found more than 64 MiB, expected a configuration"
    );
    assert_eq!(
        refusal(&long[1..]),
        "node.conf:1: found no private-interface, expected a block private-interface { … }\n\
         node.conf:1: found no public-interface, expected a block public-interface { … }"
    );
    let folder = tempfile::tempdir().unwrap();
    let said = |path: &std::path::Path| Config::load(path).unwrap_err().to_string();
    assert!(said(folder.path()).ends_with("found a directory, expected a regular file"));
    let missing = folder.path().join("none.conf");
    assert_eq!(
        said(&missing),
        format!(
            "cannot read {}: No such file or directory (os error 2)",
            missing.display()
        )
    );
}

#[test]
fn a_file_full_of_mistakes_is_reported_in_few_lines() {
    let text = "x y;\n".repeat(1_000_000);
    let said = refusal(text.as_bytes());
    assert_eq!(said.lines().count(), 21);
    assert!(
        said.ends_with("\nnode.conf: 999982 more mistakes"),
        "{said}"
    );
    let deep = refusal("a{".repeat(1 << 20).as_bytes());
    assert_eq!(
        deep,
        "node.conf:1: found a block within a block, expected at most 8 deep"
    );
    let many = refusal("a 1;".repeat((4 << 20) + 1).as_bytes());
    assert_eq!(
        many,
        "node.conf:1: found another statement, expected at most 4194304 in a file"
    );
}
