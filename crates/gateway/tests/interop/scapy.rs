//! scapy as an oracle, in both directions. One process of it answers all questions of a test.

use std::io::{Read, Write};
use std::net::IpAddr;
use std::process::{Command, Stdio};

use serde_json::{json, Value};
use tare_gateway::dataplane::esp;
use tare_gateway::dataplane::DropReason;
use tare_gateway::dataplane::SequenceMode;
use tare_packet::ethernet::HEADER;

use crate::missing;
use crate::tunnels::{a_hop_further, framed, hex, lengths, noise, same, Gateway, Secret, Tunnel};

/// Debian's, which has Debian's packages.
const PYTHON: &str = "/usr/bin/python3";

fn scapy_is_here() -> bool {
    let import = "import scapy.layers.ipsec, cryptography.hazmat.primitives.ciphers.aead";
    let packages = "python3-scapy python3-cryptography";
    missing::has(PYTHON, &["-c", import], packages, "ESP against scapy's")
}

/// Asks all questions; the answers in their order.
fn ask(questions: &[Value]) -> Vec<Value> {
    let mut scapy = Command::new(PYTHON)
        .args(["-c", include_str!("scapy.py")])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = scapy.stdin.take().unwrap();
    let mut stdout = scapy.stdout.take().unwrap();
    let mut answers = String::new();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for question in questions {
                // Where it has ended, its exit status says why.
                let _ = writeln!(stdin, "{question}");
            }
        });
        stdout.read_to_string(&mut answers).unwrap();
    });
    assert!(scapy.wait().unwrap().success(), "scapy's end failed");
    let answers: Vec<Value> = answers
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(answers.len(), questions.len());
    answers
}

fn question(
    op: &str,
    spi: u32,
    secret: &Secret,
    ends: (IpAddr, IpAddr),
    high: Option<u32>,
) -> Value {
    json!({
        "op": op, "spi": spi, "key": hex(&secret.key), "salt": hex(&secret.salt),
        "src": ends.0, "dst": ends.1, "high": high, "tos": 0,
    })
}

/// A packet of ours, to be opened. `number` is its sequence number.
fn open_question(tunnel: &Tunnel, number: u64, packet: &[u8]) -> Value {
    let high = high(tunnel, number);
    let mut question = question(
        "open",
        tunnel.spi_out(),
        &tunnel.secret_out(),
        tunnel.outer(),
        high,
    );
    question["packet"] = hex(packet).into();
    question
}

/// A packet to us, to be sealed.
fn seal_question(tunnel: &Tunnel, number: u64, next: u8, inner: &[u8]) -> Value {
    let (we, peer) = tunnel.outer();
    let high = high(tunnel, number);
    let mut question = question(
        "seal",
        tunnel.spi_in(),
        &tunnel.secret_in(),
        (peer, we),
        high,
    );
    question["seq"] = (number as u32).into();
    question["next"] = next.into();
    question["inner"] = hex(inner).into();
    question
}

fn high(tunnel: &Tunnel, number: u64) -> Option<u32> {
    (tunnel.sequence_mode == SequenceMode::Extended).then_some((number >> 32) as u32)
}

/// The packets that scapy sealed, as frames.
fn sealed(questions: &[Value]) -> Vec<Vec<u8>> {
    let bytes = |text: &str| -> Vec<u8> {
        let pairs = text.as_bytes().chunks(2);
        let byte = |pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
        pairs.map(byte).collect()
    };
    let answers = ask(questions);
    let packets = answers.iter().map(|a| a["packet"].as_str().unwrap());
    packets.map(|packet| framed(&bytes(packet))).collect()
}

fn next_header(tunnel: &Tunnel) -> u8 {
    if tunnel.inner_v6 {
        esp::INNER_IPV6
    } else {
        esp::INNER_IPV4
    }
}

/// Numbers that packets are sent from: the first ones, and across the border of the lower half
/// where there is an upper one.
fn starts(sequence_mode: SequenceMode) -> &'static [u64] {
    match sequence_mode {
        SequenceMode::Extended => &[0, (1 << 32) - 40, (7 << 32) - 2],
        SequenceMode::Plain => &[0, (1 << 31) - 3],
    }
}

#[test]
fn scapy_opens_what_we_seal() {
    if !scapy_is_here() {
        return;
    }
    let mut questions = Vec::new();
    let mut expected = Vec::new();
    for mut tunnel in Tunnel::matrix() {
        for &start in starts(tunnel.sequence_mode) {
            tunnel.last_sent = start;
            let packets: Vec<_> = lengths(&tunnel)
                .into_iter()
                .map(|len| tunnel.packet(len))
                .collect();
            let frames = Gateway::new(std::slice::from_ref(&tunnel)).seal(&packets);
            assert_eq!(frames.len(), packets.len());
            for (number, (packet, frame)) in (start + 1..).zip(packets.iter().zip(frames)) {
                questions.push(open_question(&tunnel, number, &frame[HEADER..]));
                let inner = a_hop_further(packet);
                let padding: Vec<u8> = (1..=esp::padding(inner.len()) as u8).collect();
                expected.push(json!({
                    "inner": hex(&inner), "next": next_header(&tunnel), "padding": hex(&padding),
                    "ttl": 64, "tos": 0xb8, "df": true,
                    "seq": number as u32, "iv": hex(&number.to_be_bytes()),
                }));
            }
        }
    }
    let answers = ask(&questions);
    for ((answer, expected), question) in answers.iter().zip(&expected).zip(&questions) {
        assert_eq!(answer, expected, "{question}");
    }
}

#[test]
fn we_open_what_scapy_seals() {
    if !scapy_is_here() {
        return;
    }
    let mut questions = Vec::new();
    let mut expected = Vec::new();
    for tunnel in Tunnel::matrix() {
        // In steps that a window infers the upper half over.
        let starts: &[u64] = match tunnel.sequence_mode {
            SequenceMode::Extended => &[
                1,
                1 << 31,
                (1 << 32) - 9,
                (1 << 32) + 100,
                3 << 31,
                (1 << 33) - 7,
            ],
            SequenceMode::Plain => &[1, 1 << 31, (1 << 32) - 400],
        };
        let lengths = lengths(&tunnel);
        let share = lengths.len().div_ceil(starts.len());
        for (lengths, &start) in lengths.chunks(share).zip(starts) {
            let mut run = Vec::new();
            for (number, &len) in (start..).zip(lengths) {
                let packet = tunnel.packet_back(len);
                let next = next_header(&tunnel);
                questions.push(seal_question(&tunnel, number, next, &packet));
                run.push(a_hop_further(&packet));
            }
            expected.push(run);
        }
    }
    let mut frames = &sealed(&questions)[..];
    let mut gateway = Gateway::new(&Tunnel::matrix());
    for run in &expected {
        // A run in a burst of its own: a step of half the numbers within one burst is nothing that
        // a peer sends.
        let (now, later) = frames.split_at(run.len());
        frames = later;
        same(&gateway.open(now), run);
    }
    let received = gateway.worker.received();
    assert_eq!(received.forwarded, questions.len() as u64);
}

#[test]
fn we_strip_padding_that_hides_the_length_and_drop_dummies_of_scapy() {
    if !scapy_is_here() {
        return;
    }
    let mut questions = Vec::new();
    let mut expected = Vec::new();
    let mut dummies = 0;
    for tunnel in Tunnel::matrix() {
        let mut numbers = 1..;
        for (len, hiding) in [(60, 1), (61, 2), (62, 3), (63, 700), (500, 999)] {
            let packet = tunnel.packet_back(len);
            let behind = [&packet[..], &noise(1, hiding)].concat();
            let number = numbers.next().unwrap();
            questions.push(seal_question(
                &tunnel,
                number,
                next_header(&tunnel),
                &behind,
            ));
            expected.push(a_hop_further(&packet));
            let number = numbers.next().unwrap();
            questions.push(seal_question(
                &tunnel,
                number,
                esp::DUMMY,
                &noise(2, hiding),
            ));
            dummies += 1;
        }
    }
    let frames = sealed(&questions);
    let mut gateway = Gateway::new(&Tunnel::matrix());
    same(&gateway.open(&frames), &expected);
    assert_eq!(
        gateway.worker.received().dropped(DropReason::Dummy),
        dummies
    );
    let dropped: u64 = gateway.worker.received().dropped_total();
    assert_eq!(dropped, dummies);
}

/// The place of the bit that is flipped, counted from the end of the outer IP header or, when
/// negative, from the end of the packet.
const TAMPERED: [(&str, isize); 8] = [
    ("SPI, which is authenticated", 3),
    ("sequence number, which is authenticated", 7),
    ("first byte of the IV", 8),
    ("last byte of the IV", 15),
    ("first byte of the ciphertext", 16),
    ("last byte of the ciphertext", -17),
    ("first byte of the ICV", -16),
    ("last byte of the ICV", -1),
];

fn tampered(tunnel: &Tunnel, packet: &[u8], at: isize) -> Vec<u8> {
    let outer = if tunnel.outer_v6 { 40 } else { 20 };
    let at = match usize::try_from(at) {
        Ok(at) => outer + at,
        Err(_) => packet.len() - at.unsigned_abs(),
    };
    let mut packet = packet.to_vec();
    // Not the lowest bit: the SPI is to be one that no other tunnel has.
    packet[at] ^= 0x40;
    packet
}

#[test]
fn scapy_refuses_what_was_changed_on_the_way() {
    if !scapy_is_here() {
        return;
    }
    let mut questions = Vec::new();
    for tunnel in Tunnel::matrix() {
        let frame = &Gateway::new(std::slice::from_ref(&tunnel)).seal(&[tunnel.packet(100)])[0];
        for (_, at) in TAMPERED {
            let packet = tampered(&tunnel, &frame[HEADER..], at);
            let mut question = open_question(&tunnel, 1, &packet);
            if at == 3 {
                // An SA that has this SPI, else it would not come to looking at the ICV.
                question["spi"] = (tunnel.spi_out() ^ 0x40).into();
            }
            questions.push(question);
        }
        if tunnel.sequence_mode == SequenceMode::Extended {
            // The upper half is authenticated although it is not sent.
            questions.push(open_question(&tunnel, 1 << 32 | 1, &frame[HEADER..]));
        }
    }
    for (answer, question) in ask(&questions).iter().zip(&questions) {
        assert_eq!(answer["refused"], "integrity", "{question}");
    }
}

#[test]
fn we_refuse_what_was_changed_in_transit_from_scapy_and_take_the_original() {
    if !scapy_is_here() {
        return;
    }
    for tunnel in Tunnel::matrix() {
        let packet = tunnel.packet_back(100);
        let next = next_header(&tunnel);
        let mut questions = vec![seal_question(&tunnel, 1, next, &packet)];
        if tunnel.sequence_mode == SequenceMode::Extended {
            // Sealed with an upper half that is not the one to infer.
            let mut wrong = seal_question(&tunnel, 1, next, &packet);
            wrong["high"] = 1.into();
            questions.push(wrong);
        }
        let mut frames = sealed(&questions);
        let good = frames.remove(0);
        let mut changed = frames;
        for (_, at) in TAMPERED {
            changed.push(framed(&tampered(&tunnel, &good[HEADER..], at)));
        }
        // Else a changed SPI would be an unknown one.
        let mut gateway = Gateway::with_neighbor_spi(&tunnel, tunnel.spi_in() ^ 0x40);
        let none: Vec<Vec<u8>> = Vec::new();
        for (n, frame) in (1..).zip(&changed) {
            assert_eq!(gateway.open(std::slice::from_ref(frame)), none);
            let forged = gateway.worker.received().dropped(DropReason::Forged);
            assert_eq!(forged, n, "{tunnel:?}: {}", hex(frame));
        }
        let good = [good];
        assert_eq!(gateway.open(&good), [a_hop_further(&packet)], "{tunnel:?}");
        assert_eq!(gateway.open(&good), none, "twice");
        assert_eq!(gateway.worker.received().dropped(DropReason::Replayed), 1);
    }
}
