//! Captures and frames with any contents.

mod network;

use network::{quick, udp4, udp6};
use proptest::collection::vec;
use proptest::prelude::*;
use tare_loadtest::stamp::{self, Found};
use tare_loadtest::{pair, Error, Length, Load, Rate, StreamConfig, Tester};
use tare_port::Frame;
use tare_sim::LineConfig;

fn config(frames: Vec<Vec<u8>>) -> StreamConfig {
    StreamConfig {
        name: "a".into(),
        rx: "a".into(),
        port: 0,
        frames,
    }
}

/// Something like a packet: a good one with bytes changed and its end cut off, or noise behind an
/// EtherType.
fn almost_a_packet() -> impl Strategy<Value = Vec<u8>> {
    let good = prop_oneof![
        (60usize..200).prop_map(|size| udp4(size, 1)),
        (80usize..200).prop_map(|size| udp6(size, 1)),
    ];
    let changed = (good, vec((0usize..70, any::<u8>()), 0..6), 0usize..120).prop_map(
        |(mut frame, changes, cut)| {
            for (at, value) in changes {
                if let Some(byte) = frame.get_mut(at) {
                    *byte = value;
                }
            }
            frame.truncate((frame.len() - cut.min(frame.len())).max(14));
            frame
        },
    );
    let ethertypes = prop_oneof![
        Just(0x0800u16),
        Just(0x86dd),
        Just(0x8100),
        Just(0x88a8),
        any::<u16>()
    ];
    let noise = (ethertypes, vec(any::<u8>(), 14..200)).prop_map(|(ethertype, mut frame)| {
        frame[12..14].copy_from_slice(&ethertype.to_be_bytes());
        frame
    });
    prop_oneof![changed, noise]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, ..ProptestConfig::default() })]

    /// Whatever is in a capture is sent and found again, stamped or not.
    #[test]
    fn any_capture_is_replayed_and_accounted_for(frames in vec(almost_a_packet(), 1..5), size in 0usize..300) {
        let streams = pair(&[config(frames)]).unwrap();
        for stream in &streams {
            let _ = stream.resize(size);
        }
        let (count, plain) = streams[0].frames();
        let testbed = network::looped(&LineConfig::new(1_000_000_000), |_: &mut Frame| true);
        let mut tester = Tester::new(testbed, streams, quick()).unwrap();
        let load = Load { rate: Rate::from_bits(500_000_000), length: Length::Frames(3 * count as u64) };
        let trial = tester.trial(&load).unwrap();
        let stream = &trial.streams[0];
        prop_assert_eq!(stream.tx_packets, 3 * count as u64);
        prop_assert_eq!(stream.tx_unstamped, 3 * plain as u64);
        prop_assert_eq!(stream.rx_packets, stream.tx_packets);
        prop_assert_eq!(stream.tx_bytes, stream.rx_bytes);
        prop_assert_eq!(stream.duplicates + stream.reordered + stream.surplus, 0);
    }

    #[test]
    fn any_bytes_can_be_asked_for_a_stamp(bytes in vec(any::<u8>(), 0..200), like in almost_a_packet()) {
        prop_assert_eq!(stamp::read(&bytes), Found::Nothing);
        prop_assert_eq!(stamp::read(&like), Found::Nothing);
    }

    /// Strangers that are injected are strangers: none is taken for a packet of the stream.
    #[test]
    fn what_others_send_is_foreign(strangers in vec(almost_a_packet(), 1..50)) {
        let expected = strangers.len() as u64;
        let mut strangers = strangers.into_iter();
        let mut tester = network::tester(
            &LineConfig::new(1_000_000_000),
            &[udp4(400, 77)],
            quick(),
            move |frame: &mut Frame| {
                if let Some(stranger) = strangers.next() {
                    frame.truncate(0);
                    frame.append(stranger.len()).unwrap().copy_from_slice(&stranger);
                }
                true
            },
        );
        let load = Load { rate: Rate::from_bits(500_000_000), length: Length::Frames(60) };
        let trial = tester.trial(&load).unwrap();
        prop_assert_eq!(trial.streams[0].rx_packets, 60 - expected);
        prop_assert_eq!(trial.ports[0].foreign, expected);
    }

    #[test]
    fn a_resized_packet_is_a_valid_packet(from in 60usize..1500, to in 60usize..1500, v6: bool) {
        let (frame, transport) = if v6 { (udp6(from.max(80), 1), 54) } else { (udp4(from, 1), 34) };
        let to = to.max(transport + 8);
        let resized = pair(&[config(vec![frame])]).unwrap()[0].resize(to).unwrap();
        let mut seen = Vec::new();
        let seen_by = std::rc::Rc::new(std::cell::RefCell::new(Vec::new()));
        let see = seen_by.clone();
        let testbed = network::looped(&LineConfig::new(1_000_000_000), move |frame: &mut Frame| {
            see.borrow_mut().push(frame.to_vec());
            true
        });
        let mut tester = Tester::new(testbed, vec![resized], quick()).unwrap();
        tester.trial(&Load { rate: Rate::from_bits(1_000_000), length: Length::Frames(1) }).unwrap();
        seen.append(&mut seen_by.borrow_mut());
        let frame = &seen[0];
        // One that is too short for Ethernet is padded, behind its packet.
        prop_assert_eq!(frame.len(), to.max(60));
        let packet = &frame[..to];
        prop_assert_eq!(tare_packet::checksum::finish(network::transport_sum(packet, transport)), 0);
        if !v6 {
            prop_assert_eq!(tare_packet::checksum::finish(tare_packet::checksum::sum(&frame[14..34])), 0);
        }
    }
}

#[test]
fn a_stream_that_cannot_be_sent_is_refused_in_words() {
    let named = |name: &str, rx: &str| StreamConfig {
        name: name.into(),
        rx: rx.into(),
        ..config(vec![udp4(60, 1)])
    };
    let cases = [
        (pair(&[]), "found 0 streams"),
        (pair(&vec![named("a", "a"); 256]), "found 256 streams"),
        (pair(&[config(vec![])]), "no frames"),
        (pair(&[config(vec![vec![0; 13]])]), "frame 1 has 13 bytes"),
        (
            pair(&[config(vec![udp4(60, 1), vec![0; 65_500]])]),
            "frame 2 has 65500 bytes",
        ),
        (
            pair(&[named("a", "a"), named("a", "a")]),
            "two streams are named a",
        ),
        (pair(&[named("a", "b")]), "received by b"),
    ];
    for (result, expected) in cases {
        let error: Error = result.unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
    }
    let mut fragment = udp4(100, 1);
    fragment[20] = 0x20;
    for (frame, length, why) in [
        (vec![0x55; 60], 100, "no IP packet"),
        (udp4(60, 1), 40, "do not fit"),
        (fragment, 200, "fragment"),
    ] {
        let error = pair(&[config(vec![frame])]).unwrap()[0]
            .resize(length)
            .unwrap_err();
        assert!(error.to_string().contains(why), "{error}");
    }
}

#[test]
fn only_what_may_be_changed_is_stamped() {
    let with = |change: fn(&mut Vec<u8>)| {
        let mut frame = udp4(100, 1);
        change(&mut frame);
        pair(&[config(vec![frame])]).unwrap()[0].frames().1 == 0
    };
    assert!(with(|_| {}));
    assert!(
        with(|frame| frame[23] = 6 + 55),
        "a protocol without a checksum"
    );
    assert!(
        with(|frame| frame[40..42].fill(0)),
        "UDP without a checksum"
    );
    let tagged = |frame: &mut Vec<u8>| drop(frame.splice(12..12, [0x81, 0, 0, 7]));
    assert!(with(tagged), "behind a VLAN tag");
    for protocol in [2, 4, 33, 41, 47, 50, 51, 89, 103, 112, 132, 135, 136] {
        let mut frame = udp4(100, 1);
        frame[23] = protocol;
        assert_eq!(
            pair(&[config(vec![frame])]).unwrap()[0].frames(),
            (1, 1),
            "protocol {protocol}"
        );
    }
    assert!(!with(|frame| frame[20] = 0x20), "a first fragment");
    assert!(!with(|frame| frame[21] = 0x10), "a later fragment");
    assert!(!with(|frame| frame[17] += 1), "a packet that was cut off");
    assert!(
        !with(|frame| frame[39] -= 1),
        "UDP that is shorter than its packet"
    );
}
