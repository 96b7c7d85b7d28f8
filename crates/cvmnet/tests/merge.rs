//! Merging of segments before the ring.

use std::time::Duration;

use proptest::prelude::*;
use tare_cvmnet::host::merge::{Limits, Merger, Output};
use tare_cvmnet::host::FRAME_MAX;
use tare_cvmnet::ring::{Checksum, NetHeader, Protocol, Segments};
use tare_packet::{checksum, ethernet, ipv4, protocol};
use tare_sim::Instant;

const FIN: u8 = 1;
const SYN: u8 = 2;
const RST: u8 = 4;
const PSH: u8 = 8;
const ACK: u8 = 16;
const URG: u8 = 32;

#[derive(Clone, Debug)]
struct Tcp {
    six: bool,
    port: u16,
    sequence: u32,
    acknowledgment: u32,
    window: u16,
    flags: u8,
    options: Vec<u8>,
    payload: Vec<u8>,
    hops: u8,
    class: u8,
}

impl Tcp {
    fn new(sequence: u32, payload: &[u8]) -> Tcp {
        Tcp {
            six: false,
            port: 443,
            sequence,
            acknowledgment: 77,
            window: 1000,
            flags: ACK,
            options: vec![1, 1, 8, 10, 0, 0, 0, 9, 0, 0, 0, 3],
            payload: payload.to_vec(),
            hops: 64,
            class: 0,
        }
    }

    fn frame(&self) -> Vec<u8> {
        let mut tcp = Vec::new();
        tcp.extend(5000u16.to_be_bytes());
        tcp.extend(self.port.to_be_bytes());
        tcp.extend(self.sequence.to_be_bytes());
        tcp.extend(self.acknowledgment.to_be_bytes());
        tcp.push((5 + self.options.len() as u8 / 4) << 4);
        tcp.push(self.flags);
        tcp.extend(self.window.to_be_bytes());
        tcp.extend([0; 4]);
        tcp.extend(&self.options);
        tcp.extend(&self.payload);
        let (kind, addresses, mut ip) = if self.six {
            let mut ip = vec![0x60 | self.class >> 4, self.class << 4, 0, 5];
            ip.extend((tcp.len() as u16).to_be_bytes());
            ip.extend([protocol::TCP, self.hops]);
            ip.extend([1; 16]);
            ip.extend([2; 16]);
            (ethernet::IPV6, 8..40, ip)
        } else {
            let mut ip = vec![0x45, self.class];
            ip.extend((20 + tcp.len() as u16).to_be_bytes());
            ip.extend([
                self.sequence as u8,
                1,
                0x40,
                0,
                self.hops,
                protocol::TCP,
                0,
                0,
            ]);
            ip.extend([10, 0, 0, 1, 10, 0, 0, 2]);
            let sum = checksum::finish(checksum::sum(&ip));
            ip[10..12].copy_from_slice(&sum.to_be_bytes());
            (ethernet::IPV4, 12..20, ip)
        };
        let pseudo = checksum::sum(&ip[addresses]) + u64::from(protocol::TCP) + tcp.len() as u64;
        let sum = checksum::finish(pseudo + checksum::sum(&tcp));
        tcp[16..18].copy_from_slice(&sum.to_be_bytes());
        let mut frame = ethernet::header([2; 6], [3; 6], kind).to_vec();
        frame.append(&mut ip);
        frame.append(&mut tcp);
        frame
    }
}

/// The frames that are made of those given, at the same moment.
fn merged(frames: &[Vec<u8>], limits: Limits) -> Vec<(NetHeader, Vec<u8>)> {
    let (mut merger, mut output) = (Merger::new(limits), Output::default());
    for frame in frames {
        merger.push(frame, NetHeader::default(), Instant::ZERO, &mut output);
        assert!(merger.held() <= limits.flows);
    }
    merger.flush_due(Instant::ZERO, &mut output);
    assert_eq!((merger.held(), merger.next_due()), (0, None));
    drained(&mut output)
}

fn drained(output: &mut Output) -> Vec<(NetHeader, Vec<u8>)> {
    let mut frames = Vec::new();
    while let Some((header, frame)) = output.front() {
        frames.push((header, frame.to_vec()));
        output.pop();
    }
    frames
}

fn lengths(frames: &[Vec<u8>]) -> Vec<usize> {
    let all = merged(frames, Limits::default());
    all.iter().map(|(_, frame)| frame.len()).collect()
}

/// A name, and what it changes.
type Change = (&'static str, fn(&mut Tcp));

/// Two segments that follow each other, the second changed.
fn pair(change: impl Fn(&mut Tcp)) -> [Vec<u8>; 2] {
    let mut second = Tcp::new(1100, &[2; 100]);
    change(&mut second);
    [Tcp::new(1000, &[1; 100]).frame(), second.frame()]
}

#[test]
fn segments_that_follow_each_other_become_the_frame_of_all_their_bytes() {
    for six in [false, true] {
        let part = |n: u32| Tcp {
            six,
            ..Tcp::new(1000 + 1448 * n, &[n as u8; 1448])
        };
        let frames: Vec<_> = (0..10).map(|n| part(n).frame()).collect();
        let merged = merged(&frames, Limits::default());
        assert_eq!(merged.len(), 1);
        let payload = (0..10).flat_map(|n| part(n).payload).collect();
        let mut whole = Tcp { payload, ..part(0) }.frame();
        if !six {
            // The identification is that of the first segment in both.
            assert_eq!(whole[18..20], frames[0][18..20]);
        }
        assert_eq!(merged[0].1, whole);
        let (protocol, header_bytes) = match six {
            false => (Protocol::Tcp4, 66),
            true => (Protocol::Tcp6, 86),
        };
        let bytes = 1448;
        let expected = NetHeader {
            checksum: Checksum::Verified,
            segments: Some(Segments {
                protocol,
                bytes,
                header_bytes,
            }),
        };
        assert_eq!(merged[0].0, expected);
        // And the header checksum of IPv4 is right.
        if !six {
            let header: &mut [u8] = &mut whole[14..34];
            assert!(checksum::is_right(header.first_chunk().unwrap()));
        }
    }
}

#[test]
fn a_push_does_not_end_a_frame_and_is_kept() {
    let merged = merged(&pair(|_| ()), Limits::default());
    assert_eq!(merged[0].1[47], ACK);
    for at in 0..2 {
        let flags = |n| if n == at { ACK | PSH } else { ACK };
        let part = |n: u32| Tcp {
            flags: flags(n),
            ..Tcp::new(1000 + 100 * n, &[0; 100])
        };
        let frames: Vec<_> = (0..3).map(|n| part(n).frame()).collect();
        let merged = self::merged(&frames, Limits::default());
        assert_eq!((merged.len(), merged[0].1[47]), (1, ACK | PSH));
    }
}

#[test]
fn what_differs_in_any_other_field_is_not_merged() {
    assert_eq!(lengths(&pair(|_| ())), [266], "the same fields");
    let changes: [Change; 12] = [
        ("a gap", |tcp| tcp.sequence += 1),
        ("a repetition", |tcp| tcp.sequence -= 100),
        ("the acknowledgment", |tcp| tcp.acknowledgment += 1),
        ("the window", |tcp| tcp.window += 1),
        ("the time stamp", |tcp| tcp.options[7] += 1),
        ("the echoed time stamp", |tcp| tcp.options[11] += 1),
        ("the length of options", |tcp| tcp.options.truncate(8)),
        ("the port", |tcp| tcp.port += 1),
        ("the time to live", |tcp| tcp.hops -= 1),
        ("the congestion mark", |tcp| tcp.class = 3),
        ("the version", |tcp| tcp.six = true),
        ("a longer segment", |tcp| tcp.payload.push(0)),
    ];
    for (what, change) in changes {
        let frames = pair(change);
        let merged = merged(&frames, Limits::default());
        assert_eq!(merged.len(), 2, "{what}");
        for frame in &frames {
            assert!(merged.iter().any(|(_, merged)| merged == frame), "{what}");
        }
    }
}

#[test]
fn unusual_segments_pass_through_as_they_came_behind_what_was_held() {
    let changes: [Change; 8] = [
        ("SYN", |tcp| tcp.flags = SYN),
        ("FIN", |tcp| tcp.flags |= FIN),
        ("RST", |tcp| tcp.flags |= RST),
        ("URG", |tcp| tcp.flags |= URG),
        ("CWR", |tcp| tcp.flags |= 0x80),
        ("ECE", |tcp| tcp.flags |= 0x40),
        ("no ACK", |tcp| tcp.flags = PSH),
        ("no payload", |tcp| tcp.payload.clear()),
    ];
    for (what, change) in changes {
        let [first, second] = pair(change);
        let third = Tcp::new(1200, &[3; 100]).frame();
        let merged = merged(
            &[first.clone(), second.clone(), third.clone()],
            Limits::default(),
        );
        let frames: Vec<_> = merged.iter().map(|(_, frame)| frame).collect();
        assert_eq!(frames, [&first, &second, &third], "{what}");
        assert_eq!(merged[1].0, NetHeader::default(), "{what}");
    }
}

#[test]
fn a_segment_with_a_wrong_checksum_is_not_merged_and_not_called_verified() {
    let good = pair(|_| ());
    for at in [18, 24, 36, 50, 60, 70, 165] {
        let [first, mut second] = good.clone();
        second[at] ^= 0x10;
        let mut merger = Merger::new(Limits::default());
        let mut output = Output::default();
        for frame in [&first, &second] {
            merger.push(frame, NetHeader::default(), Instant::ZERO, &mut output);
        }
        merger.flush_all(&mut output);
        let merged = drained(&mut output);
        assert_eq!(merged.len(), 2, "byte {at}");
        assert_eq!(merged[1], (NetHeader::default(), second), "byte {at}");
    }
}

#[test]
fn fragments_options_and_packets_without_dont_fragment_are_not_merged() {
    let changes: [(&str, usize, u8); 4] = [
        ("may be fragmented", 20, 0),
        ("a first fragment", 20, 0x20),
        ("a later fragment", 21, 1),
        ("options", 14, 0x46),
    ];
    for (what, at, value) in changes {
        let [first, mut second] = pair(|_| ());
        second[at] = value;
        second[24..26].fill(0);
        let sum = checksum::finish(checksum::sum(&second[14..34]));
        second[24..26].copy_from_slice(&sum.to_be_bytes());
        let merged = merged(&[first, second.clone()], Limits::default());
        assert_eq!(merged.len(), 2, "{what}");
        assert_eq!(merged[1], (NetHeader::default(), second), "{what}");
    }
}

#[test]
fn frames_with_the_devices_own_offloads_pass_through() {
    let headers = [
        NetHeader {
            checksum: Checksum::Partial {
                start: 34,
                offset: 16,
            },
            segments: None,
        },
        NetHeader {
            checksum: Checksum::Unverified,
            segments: Some(Segments {
                protocol: Protocol::Tcp4,
                bytes: 50,
                header_bytes: 66,
            }),
        },
    ];
    for header in headers {
        let (mut merger, mut output) = (Merger::new(Limits::default()), Output::default());
        let [first, second] = pair(|_| ());
        merger.push(&first, NetHeader::default(), Instant::ZERO, &mut output);
        merger.push(&second, header, Instant::ZERO, &mut output);
        assert_eq!(drained(&mut output)[1], (header, second));
    }
}

#[test]
fn a_shorter_segment_is_the_last_of_its_frame() {
    let parts = [(1000, 100), (1100, 60), (1160, 60), (1220, 60)];
    let frames: Vec<_> = parts
        .iter()
        .map(|(sequence, len)| Tcp::new(*sequence, &vec![5; *len]).frame())
        .collect();
    assert_eq!(lengths(&frames), [66 + 160, 66 + 120]);
}

#[test]
fn a_frame_grows_up_to_its_limit() {
    let frames: Vec<_> = (0..100u32)
        .map(|n| Tcp::new(1448u32.wrapping_mul(n).wrapping_sub(70_000), &[9; 1448]).frame())
        .collect();
    let most = 66 + 1448 * ((FRAME_MAX - 66) / 1448);
    assert_eq!(lengths(&frames)[..2], [most, most]);
    let limits = Limits {
        frame_bytes: 66 + 3 * 1448 + 1447,
        ..Limits::default()
    };
    let merged = merged(&frames, limits);
    assert!(merged[..33]
        .iter()
        .all(|(_, frame)| frame.len() == 66 + 3 * 1448));
}

#[test]
fn padding_behind_a_packet_is_not_payload() {
    let [first, second] = pair(|tcp| tcp.payload.truncate(4));
    let first = Tcp {
        payload: first[66..70].to_vec(),
        ..Tcp::new(1096, &[])
    };
    let mut first = first.frame();
    first.resize(100, 0xaa);
    let mut second = second;
    second.resize(100, 0xbb);
    let merged = merged(&[first, second], Limits::default());
    assert_eq!(merged.len(), 1);
    assert_eq!(merged[0].1[66..], [1, 1, 1, 1, 2, 2, 2, 2]);
}

#[test]
fn segments_are_held_for_as_long_as_the_limit_says() {
    let hold = Duration::from_micros(20);
    let limits = Limits {
        hold,
        ..Limits::default()
    };
    let (mut merger, mut output) = (Merger::new(limits), Output::default());
    let [first, second] = pair(|_| ());
    merger.push(&first, NetHeader::default(), Instant::ZERO, &mut output);
    let later = Instant::ZERO + Duration::from_micros(19);
    assert_eq!(merger.next_due(), Some(Instant::ZERO + hold));
    assert!(!merger.flush_due(later, &mut output));
    // The time counts from the first segment of a frame.
    merger.push(&second, NetHeader::default(), later, &mut output);
    assert!(merger.flush_due(Instant::ZERO + hold, &mut output));
    assert_eq!(drained(&mut output).len(), 1);
    assert_eq!(merger.next_due(), None);
}

#[test]
fn more_connections_than_the_table_has_places_are_held_by_no_more_memory() {
    let limits = Limits {
        flows: 8,
        ..Limits::default()
    };
    let (mut merger, mut output) = (Merger::new(limits), Output::default());
    for n in 0..1000u32 {
        for port in 0..500 {
            let tcp = Tcp {
                port,
                ..Tcp::new(10 * n, &[n as u8; 10])
            };
            merger.push(
                &tcp.frame(),
                NetHeader::default(),
                Instant::ZERO,
                &mut output,
            );
            assert!(merger.held() <= 8 && output.len() <= 1);
            output.pop();
        }
    }
    assert_eq!(merger.counters().segments, 500_000);
}

#[test]
fn other_protocols_pass_without_ending_a_frame() {
    let [first, second] = pair(|_| ());
    let mut udp = Tcp::new(0, &[0; 30]).frame();
    udp[23] = protocol::UDP;
    let arp = ethernet::header([2; 6], [3; 6], ethernet::ARP).to_vec();
    let merged = merged(
        &[first, udp.clone(), arp.clone(), vec![], second],
        Limits::default(),
    );
    let frames: Vec<_> = merged.iter().map(|(_, frame)| frame.len()).collect();
    assert_eq!(frames, [udp.len(), arp.len(), 0, 266]);
    assert_eq!(ipv4::HEADER, 20);
}

/// The payload of each connection in the order of the frames, and the other fields.
fn streams(frames: &[(NetHeader, Vec<u8>)]) -> Vec<(u16, Vec<u8>)> {
    let mut streams: Vec<(u16, Vec<u8>)> = Vec::new();
    for (_, frame) in frames {
        let tcp = if frame[12] == 0x86 { 54 } else { 34 };
        let port = u16::from_be_bytes([frame[tcp + 2], frame[tcp + 3]]);
        let payload = &frame[tcp + usize::from(frame[tcp + 12] >> 4) * 4..];
        match streams.iter_mut().find(|(of, _)| *of == port) {
            Some((_, stream)) => stream.extend_from_slice(payload),
            None => streams.push((port, payload.to_vec())),
        }
    }
    streams.sort();
    streams
}

proptest! {
    #[test]
    fn every_connection_has_the_same_bytes_in_the_same_order_and_right_checksums(
        parts in proptest::collection::vec(
            (0u16..6, 1usize..300, any::<u8>(), 0u8..20), 1..200),
        flows in 1usize..9,
        six: bool,
    ) {
        let mut sequences = [u32::MAX - 500; 6];
        let mut frames = Vec::new();
        for (port, len, byte, unusual) in parts {
            let sequence = &mut sequences[usize::from(port)];
            let mut tcp = Tcp { port, six, ..Tcp::new(*sequence, &vec![byte; len]) };
            *sequence = sequence.wrapping_add(len as u32);
            match unusual {
                0 => tcp.flags |= FIN,
                1 => *sequence = sequence.wrapping_sub(len as u32),
                2 => tcp.window += 1,
                3 => tcp.flags |= PSH,
                _ => {}
            }
            frames.push(tcp.frame());
        }
        let limits = Limits { flows, ..Limits::default() };
        let merged = merged(&frames, limits);
        let before: Vec<_> = frames.iter().map(|f| (NetHeader::default(), f.clone())).collect();
        prop_assert_eq!(streams(&merged), streams(&before));
        for (_, frame) in &merged {
            let (ip, tcp) = if six { (22, 54) } else { (26, 34) };
            let pseudo = checksum::sum(&frame[ip..tcp]) + 6 + (frame.len() - tcp) as u64;
            prop_assert_eq!(checksum::finish(pseudo + checksum::sum(&frame[tcp..])), 0);
            if !six {
                prop_assert!(checksum::is_right(frame[14..34].first_chunk().unwrap()));
                prop_assert_eq!(&frame[16..18], &(frame.len() as u16 - 14).to_be_bytes());
            }
        }
    }

    #[test]
    fn any_bytes_pass_without_a_panic_and_none_are_lost(
        frames in proptest::collection::vec(
            (proptest::collection::vec(any::<u8>(), 0..120), any::<bool>()), 1..20),
    ) {
        let frames: Vec<Vec<u8>> = frames
            .into_iter()
            .map(|(mut frame, four)| {
                // Nearly TCP.
                let start: &[u8] = if four { &[8, 0, 0x45] } else { &[0x86, 0xdd, 0x60] };
                if frame.len() > 40 {
                    frame[12..15].copy_from_slice(start);
                    frame[if four { 23 } else { 20 }] = protocol::TCP;
                }
                frame
            })
            .collect();
        let merged = merged(&frames, Limits::default());
        prop_assert_eq!(merged.len(), frames.len());
    }
}
