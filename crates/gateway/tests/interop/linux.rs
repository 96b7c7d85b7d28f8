//! Linux in a guest as the peer: its own IPsec (xfrm), with the same keys by hand.
//! `cargo xtask interop` makes the guest.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use tare_gateway::dataplane::DropReason;
use tare_gateway::dataplane::SequenceMode;
use tare_packet::checksum;
use tare_packet::ethernet::HEADER;
use tare_packet::ipv4::{self, Ipv4};
use tare_packet::ipv6::{self, Ipv6};

use crate::console::Guest;
use crate::tunnels::{
    self, hex, Gateway, Secret, Tunnel, ICMP, OUR_MAC, OUR_V4, OUR_V6, PEER_MAC, PEER_V4, PEER_V6,
    UDP,
};

const ICMPV6: u8 = 58;

/// The guest's echo service answers here.
const ECHO_PORT: u16 = 7;

/// The time that an answer may take: a thousandth of that on an idle machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// The silence after which nothing more is expected.
const SILENCE: Duration = Duration::from_millis(500);

/// Lengths of inner packets: every padding, and what Ethernet takes once it is sealed.
const LENGTHS: [usize; 12] = [48, 49, 50, 51, 64, 127, 576, 1280, 1421, 1422, 1423, 1424];

/// Packets of the guest in these tunnels are padded to this many bytes, to hide how long they are.
const PADDED_TO: usize = 300;

fn is_padded(tunnel: &Tunnel) -> bool {
    tunnel.number.is_multiple_of(3)
}

/// The guest, and the gateway on this side.
struct Testbed {
    guest: Guest,
    gateway: Gateway,
    tunnels: Vec<Tunnel>,
}

/// Boots a guest with these tunnels and an echo service.
fn boot(tunnels: Vec<Tunnel>) -> Testbed {
    let path = |name| {
        let value = std::env::var_os(name);
        PathBuf::from(value.unwrap_or_else(|| panic!("{name} is not set: cargo xtask interop")))
    };
    let (kernel, initramfs) = (path("TARE_GUEST_KERNEL"), path("TARE_GUEST_INITRAMFS"));
    let mut guest = Guest::boot(&kernel, &initramfs, PEER_MAC);
    let mut lines = vec![
        "link set lo up".to_string(),
        "link set eth0 up".to_string(),
        format!("addr add {PEER_V4}/24 dev eth0"),
        format!("addr add {PEER_V6}/64 dev eth0 nodad"),
    ];
    let mac = OUR_MAC.map(|byte| format!("{byte:02x}")).join(":");
    for address in [OUR_V4, OUR_V6] {
        lines.push(format!(
            "neigh add {address} lladdr {mac} dev eth0 nud permanent"
        ));
    }
    for tunnel in &tunnels {
        lines.extend(configuration(tunnel));
    }
    for line in lines {
        guest.run(&format!("echo '{line}' >> /batch"));
    }
    guest.run("/bin/ip -batch /batch");
    // A socket of IPv6, which takes IPv4, too.
    guest.run(&format!(
        r#"{{ perl -e 'socket(S,10,2,17); bind(S,pack("SnNa16N",10,{ECHO_PORT},0,"\0"x16,0)) or die; while(defined($p=recv(S,$b,65535,0))) {{ send(S,$b,0,$p) }}' & }}"#
    ));
    guest.run("until grep -q :0007 /proc/net/udp6; do sleep 0.1; done");
    let gateway = Gateway::new(&tunnels);
    Testbed {
        guest,
        gateway,
        tunnels,
    }
}

/// The arguments of `ip` for a tunnel.
fn configuration(tunnel: &Tunnel) -> Vec<String> {
    let (we, peer) = tunnel.outer();
    let (near, far) = (tunnel.near(), tunnel.far());
    let via = if tunnel.inner_v6 { OUR_V6 } else { OUR_V4 };
    let now = if tunnel.inner_v6 { " nodad" } else { "" };
    let id = u32::from(tunnel.number) + 1;
    let addresses = [("in", near, far, we, peer), ("out", far, near, peer, we)];
    let policies = addresses.map(|(direction, from, to, src, dst)| {
        format!("xfrm policy add dir {direction} src {from} dst {to} tmpl src {src} dst {dst} proto esp reqid {id} mode tunnel")
    });
    let mut lines = vec![
        format!("addr add {far} dev lo{now}"),
        format!("route add {near} via {via} dev eth0 src {far}"),
        state_in(tunnel, tunnel.last_sent),
        state_out(tunnel, 0),
    ];
    lines.extend(policies);
    lines
}

/// The guest's SA for our packets, which follow this number.
fn state_in(tunnel: &Tunnel, last: u64) -> String {
    let (we, peer) = tunnel.outer();
    let numbers = format!(
        "replay-seq {:#x} replay-seq-hi {:#x}",
        last as u32,
        last >> 32
    );
    state(
        tunnel,
        we,
        peer,
        tunnel.spi_out(),
        &tunnel.secret_out(),
        &numbers,
    )
}

/// The guest's SA for its own packets, which follow this number.
fn state_out(tunnel: &Tunnel, last: u64) -> String {
    let (we, peer) = tunnel.outer();
    let mut more = format!(
        "replay-oseq {:#x} replay-oseq-hi {:#x}",
        last as u32,
        last >> 32
    );
    if is_padded(tunnel) {
        more += &format!(" tfcpad {PADDED_TO}");
    }
    state(
        tunnel,
        peer,
        we,
        tunnel.spi_in(),
        &tunnel.secret_in(),
        &more,
    )
}

fn state(
    tunnel: &Tunnel,
    src: IpAddr,
    dst: IpAddr,
    spi: u32,
    secret: &Secret,
    more: &str,
) -> String {
    let id = u32::from(tunnel.number) + 1;
    let esn = match tunnel.sequence_mode {
        SequenceMode::Extended => "flag esn",
        SequenceMode::Plain => "",
    };
    let (key, salt) = (hex(&secret.key), hex(&secret.salt));
    format!(
        "xfrm state add src {src} dst {dst} proto esp spi {spi:#x} reqid {id} mode tunnel \
         replay-window 128 {more} flag af-unspec {esn} aead rfc4106(gcm(aes)) 0x{key}{salt} 128"
    )
}

/// The counters of an SA of the guest.
#[derive(Debug, Default, PartialEq, Eq)]
struct Counted {
    packets: u64,
    replayed: u64,
    forged: u64,
}

impl Testbed {
    /// The counters of all SAs of the guest, by SPI.
    fn states(&mut self) -> BTreeMap<u32, Counted> {
        let text = self.guest.run("/bin/ip -s xfrm state");
        let mut states = BTreeMap::new();
        let mut spi = 0;
        for line in text.lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            match words[..] {
                ["proto", "esp", "spi", number, ..] => {
                    let digits = number.trim_start_matches("0x").split('(').next();
                    spi = u32::from_str_radix(digits.unwrap(), 16).unwrap();
                    states.insert(spi, Counted::default());
                }
                [_, packets] if packets.ends_with("(packets)") => {
                    let digits = packets.trim_end_matches("(packets)");
                    states.get_mut(&spi).unwrap().packets = digits.parse().unwrap();
                }
                ["replay-window", _, "replay", replayed, "failed", failed] => {
                    let counted = states.get_mut(&spi).unwrap();
                    counted.replayed = replayed.parse().unwrap();
                    counted.forged = failed.parse().unwrap();
                }
                _ => {}
            }
        }
        assert_eq!(states.len(), 2 * self.tunnels.len(), "{text}");
        states
    }

    /// The error counters of the guest's IPsec, by its names.
    fn errors(&mut self) -> BTreeMap<String, u64> {
        let text = self.guest.run("cat /proc/net/xfrm_stat");
        let lines = text
            .lines()
            .filter_map(|line| line.split_once(char::is_whitespace));
        let counts: Vec<_> = lines
            .map(|(name, count)| (name.to_string(), count.trim().parse().unwrap()))
            .collect();
        assert!(counts.len() > 10, "{text}");
        counts.into_iter().filter(|(_, count)| *count > 0).collect()
    }

    /// A packet to the guest's echo service.
    fn question(tunnel: &Tunnel, len: usize) -> Vec<u8> {
        let mut packet = tunnel.packet(len);
        let header = if tunnel.inner_v6 {
            ipv6::HEADER
        } else {
            ipv4::HEADER
        };
        let mut datagram = packet.split_off(header);
        datagram[2..4].copy_from_slice(&ECHO_PORT.to_be_bytes());
        tunnels::ip(tunnel.near(), tunnel.far(), UDP, 6, datagram)
    }

    /// The next ESP frame of the guest; none after a silence.
    fn esp(&self, wait: Duration) -> Option<Vec<u8>> {
        let began = std::time::Instant::now();
        while let Some(left) = wait.checked_sub(began.elapsed()) {
            let frame = self.guest.receive(left.max(Duration::from_millis(1)))?;
            if is_esp(&frame) {
                return Some(frame);
            }
        }
        None
    }

    /// Asks the guest's echo service, and checks the answer. Returns the frame that went and the
    /// one that came.
    fn echo(&mut self, tunnel: &Tunnel, len: usize) -> (Vec<u8>, Vec<u8>) {
        let question = Testbed::question(tunnel, len);
        let sealed = self.gateway.seal(std::slice::from_ref(&question)).remove(0);
        self.guest.send(&sealed);
        let answer = self.esp(PATIENCE).expect("an answer");
        let opened = self.gateway.open(std::slice::from_ref(&answer));
        assert_eq!(
            opened.len(),
            1,
            "{tunnel:?}, {len} bytes: {:?}",
            self.gateway.worker.received()
        );
        check_answer(tunnel, &question, &opened[0]);
        (sealed, answer)
    }
}

fn is_esp(frame: &[u8]) -> bool {
    match (frame[12], frame[13]) {
        (0x08, 0x00) => frame[HEADER + 9] == 50,
        (0x86, 0xdd) => frame[HEADER + 6] == 50,
        _ => false,
    }
}

/// Addresses, protocol and payload of a packet.
fn parse(packet: &[u8]) -> (IpAddr, IpAddr, u8, &[u8]) {
    if packet[0] >> 4 == 4 {
        let ip = Ipv4::parse(packet).unwrap();
        assert_eq!(ip.total_len, packet.len(), "no padding is left");
        let payload = &packet[ip.header_len..];
        (
            IpAddr::V4(ip.src.into()),
            IpAddr::V4(ip.dst.into()),
            ip.protocol,
            payload,
        )
    } else {
        let ip = Ipv6::parse(packet).unwrap();
        assert_eq!(ip.total_len, packet.len(), "no padding is left");
        let payload = &packet[ipv6::HEADER..];
        (
            IpAddr::V6(ip.src.into()),
            IpAddr::V6(ip.dst.into()),
            ip.next_header,
            payload,
        )
    }
}

fn check_answer(tunnel: &Tunnel, question: &[u8], answer: &[u8]) {
    let (_, _, _, asked) = parse(question);
    let (src, dst, protocol, answered) = parse(answer);
    assert_eq!((src, dst, protocol), (tunnel.far(), tunnel.near(), UDP));
    assert_eq!(answered[..2], asked[2..4], "source port");
    assert_eq!(answered[2..4], asked[..2], "destination port");
    assert_eq!(answered[4..6], asked[4..6], "length");
    assert_eq!(hex(&answered[8..]), hex(&asked[8..]));
    let addresses = match (src, dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            checksum::pseudo_header(&src.octets(), &dst.octets(), UDP, answered.len())
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            checksum::pseudo_header(&src.octets(), &dst.octets(), UDP, answered.len())
        }
        _ => panic!("two families"),
    };
    assert_eq!(
        checksum::finish(addresses + checksum::sum(answered)),
        0,
        "checksum"
    );
}

/// The answer to an echo request of ICMP or ICMPv6.
fn pong(packet: &[u8]) -> Vec<u8> {
    let (src, dst, protocol, request) = parse(packet);
    let kind = match (protocol, request[0]) {
        (ICMP, 8) => 0,
        (ICMPV6, 128) => 129,
        other => panic!("no echo request: {other:?}"),
    };
    let message = [&[kind, 0, 0, 0], &request[4..]].concat();
    tunnels::ip(dst, src, protocol, 2, message)
}

#[test]
#[ignore = "needs a guest: cargo xtask interop"]
fn linux_opens_what_we_seal_and_we_what_it_seals() {
    let mut bed = boot(Tunnel::matrix());
    for tunnel in Tunnel::matrix() {
        for len in LENGTHS {
            let (_, answer) = bed.echo(&tunnel, len);
            if is_padded(&tunnel) {
                assert!(
                    answer.len() > PADDED_TO,
                    "not padded: {} bytes",
                    answer.len()
                );
            }
        }
    }
    // The other way around: it asks, we answer.
    let sizes = [4, 5, 6, 7, 100, 1300];
    for tunnel in Tunnel::matrix() {
        let Testbed { guest, gateway, .. } = &mut bed;
        let near = tunnel.near();
        let mut asked = 0;
        let pings = sizes.map(|size| format!("ping -c 1 -W 120 -s {size} {near}"));
        let screen = guest.run_beside(&pings.join(" && "), &mut |frame| {
            if !is_esp(frame) {
                return Vec::new();
            }
            let opened = gateway.open(&[frame.to_vec()]);
            asked += opened.len();
            gateway.seal(&opened.iter().map(|packet| pong(packet)).collect::<Vec<_>>())
        });
        assert_eq!(asked, sizes.len(), "{tunnel:?}");
        assert_eq!(
            screen.matches(" 0% packet loss").count(),
            sizes.len(),
            "{screen}"
        );
    }
    let each = (LENGTHS.len() + sizes.len()) as u64;
    for (spi, counted) in bed.states() {
        let expected = Counted {
            packets: each,
            ..Counted::default()
        };
        assert_eq!(counted, expected, "{spi:#x}");
    }
    assert_eq!(bed.errors(), BTreeMap::new());
    let all = each * bed.tunnels.len() as u64;
    assert_eq!(bed.gateway.worker.sent().forwarded, all);
    let received = bed.gateway.worker.received();
    assert_eq!(received.forwarded, all);
    assert_eq!(received.dropped_total(), 0);
}

#[test]
#[ignore = "needs a guest: cargo xtask interop"]
fn linux_and_we_refuse_the_same_replays_and_forgeries() {
    let tunnels = Tunnel::matrix();
    let tunnels = vec![tunnels[0].clone(), tunnels[2].clone(), tunnels[13].clone()];
    let mut bed = boot(tunnels.clone());
    for tunnel in &tunnels {
        let (spi_out, spi_in) = (tunnel.spi_out(), tunnel.spi_in());
        let received_before = *bed.gateway.worker.received();
        let mut sent = Vec::new();
        let mut came = Vec::new();
        for len in 100..110 {
            let (sealed, answer) = bed.echo(tunnel, len);
            sent.push(sealed);
            came.push(answer);
        }
        // Again, to it and to us.
        for frame in &sent {
            bed.guest.send(frame);
        }
        assert_eq!(bed.esp(SILENCE), None, "an answer to a replay");
        assert!(bed.gateway.open(&came).is_empty());
        // A packet that was changed in transit; then as it was.
        let question = Testbed::question(tunnel, 200);
        let good = bed.gateway.seal(std::slice::from_ref(&question)).remove(0);
        let outer = HEADER + if tunnel.outer_v6 { 40 } else { 20 };
        // Upper byte of the sequence number (ahead of the window either way), IV, ciphertext, ICV.
        let places = [
            outer + 4,
            outer + 8,
            outer + 16,
            good.len() - 17,
            good.len() - 16,
            good.len() - 1,
        ];
        let forge = |frame: &[u8], at: usize| {
            let mut forged = frame.to_vec();
            forged[at] ^= 1;
            forged
        };
        for at in places {
            bed.guest.send(&forge(&good, at));
        }
        assert_eq!(bed.esp(SILENCE), None, "an answer to a forgery");
        bed.guest.send(&good);
        let answer = bed.esp(PATIENCE).expect("an answer to what is authentic");
        // The same with its answer, to us.
        let behind = answer.len();
        let places_in = [
            outer + 4,
            outer + 8,
            outer + 16,
            behind - 17,
            behind - 16,
            behind - 1,
        ];
        for at in places_in {
            assert!(bed.gateway.open(&[forge(&answer, at)]).is_empty());
        }
        let opened = bed.gateway.open(std::slice::from_ref(&answer));
        check_answer(tunnel, &question, &opened[0]);

        let states = bed.states();
        let expected = Counted {
            packets: 11,
            replayed: sent.len() as u64,
            forged: places.len() as u64,
        };
        assert_eq!(states[&spi_out], expected, "{tunnel:?}");
        assert_eq!(states[&spi_in].packets, 11);
        let since = |cause| {
            let received = bed.gateway.worker.received();
            received.dropped(cause) - received_before.dropped(cause)
        };
        assert_eq!(since(DropReason::Replayed), expected.replayed);
        assert_eq!(since(DropReason::Forged), expected.forged);
    }
    let n = tunnels.len() as u64;
    let expected = [
        ("XfrmInStateProtoError", 6 * n),
        ("XfrmInStateSeqError", 10 * n),
    ];
    let expected = expected.map(|(name, count)| (name.to_string(), count));
    assert_eq!(bed.errors(), BTreeMap::from(expected));
}

#[test]
#[ignore = "needs a guest: cargo xtask interop"]
fn extended_numbers_go_over_the_lower_half_with_linux() {
    const BEFORE: u64 = (1 << 32) - 16;
    let mut tunnels = vec![Tunnel::matrix()[0].clone(), Tunnel::matrix()[13].clone()];
    for tunnel in &mut tunnels {
        assert_eq!(tunnel.sequence_mode, SequenceMode::Extended);
        tunnel.last_sent = BEFORE;
    }
    let mut bed = boot(tunnels.clone());
    for tunnel in &tunnels {
        // Its numbers begin at 0 like all, go on half-way, and then just before the border.
        let (we, peer) = tunnel.outer();
        let delete = format!(
            "/bin/ip xfrm state delete src {peer} dst {we} proto esp spi {:#x}",
            tunnel.spi_in()
        );
        for last in [0, 1 << 31, BEFORE] {
            bed.guest.run(&delete);
            let add = state_out(tunnel, last)
                .replace('(', "\\(")
                .replace(')', "\\)");
            bed.guest.run(&format!("/bin/ip {add}"));
            bed.echo(tunnel, 100);
        }
        for len in 100..140 {
            let (sealed, answer) = bed.echo(tunnel, len);
            let outer = HEADER + if tunnel.outer_v6 { 40 } else { 20 };
            if len == 139 {
                // 43 and 41 packets after where each began.
                let low = |frame: &[u8]| {
                    u32::from_be_bytes(frame[outer + 4..outer + 8].try_into().unwrap())
                };
                assert_eq!(low(&sealed), (BEFORE + 43) as u32);
                assert_eq!(low(&answer), (BEFORE + 41) as u32);
            }
        }
    }
    assert_eq!(bed.errors(), BTreeMap::new());
    let received = bed.gateway.worker.received();
    assert_eq!(received.dropped_total(), 0);
}
