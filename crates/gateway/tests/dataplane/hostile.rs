//! Packets from attackers.

use std::slice::from_ref;

use proptest::prelude::*;
use tare_gateway::dataplane::DropReason;
use tare_gateway::dataplane::SequenceMode;
use tare_packet::ethernet::HEADER;

use crate::errors::update_checksum;
use crate::pair::{bytes, Packet, Pair, Shape};

fn sealed(pair: &mut Pair, size: usize) -> Vec<u8> {
    bytes(&pair.seal(&[Packet::v4(size).bytes()]).forward).remove(0)
}

#[test]
fn no_changed_bit_is_let_through() {
    for shape in Shape::all() {
        let mut pair = Pair::new(shape);
        let frame = sealed(&mut pair, 70);
        let outer = if shape.outer_v6 { 40 } else { 20 };
        for at in HEADER..frame.len() {
            for bit in 0..8 {
                let mut changed = frame.clone();
                changed[at] ^= 1 << bit;
                let in_outer = at < HEADER + outer;
                if in_outer && !shape.outer_v6 {
                    update_checksum(&mut changed);
                }
                let output = pair.open(&[changed]);
                // Source, class, hops and flow of the outer header are not authenticated.
                // Everything behind it is.
                let free = in_outer && output.forward.len() + output.control.len() <= 1;
                assert!(
                    free || output.forward.is_empty(),
                    "{shape:?} byte {at} bit {bit}"
                );
                if !in_outer {
                    assert!(output.control.is_empty());
                }
                // One that was let through has used the number up.
                if !output.forward.is_empty() {
                    drop(output);
                    pair = Pair::new(shape);
                    assert_eq!(sealed(&mut pair, 70), frame);
                }
            }
        }
    }
}

#[test]
fn every_truncation_is_dropped_for_a_cause() {
    let mut pair = Pair::new(Shape::default());
    let frame = sealed(&mut pair, 200);
    for len in 0..frame.len() {
        pair.refusal(frame[..len].to_vec());
        // The same with a header that says so.
        if len >= HEADER + 20 {
            let mut short = frame[..len].to_vec();
            short[HEADER + 2..HEADER + 4].copy_from_slice(&((len - HEADER) as u16).to_be_bytes());
            update_checksum(&mut short);
            let cause = pair.refusal(short);
            assert!(
                matches!(cause, DropReason::Malformed | DropReason::Forged),
                "{len} {cause:?}"
            );
        }
    }
    assert_eq!(pair.open(&[frame]).forward.len(), 1);
}

#[test]
fn a_packet_is_taken_once() {
    let mut pair = Pair::new(Shape::default());
    let frame = sealed(&mut pair, 100);
    assert_eq!(pair.open(from_ref(&frame)).forward.len(), 1);
    assert_eq!(pair.refusal(frame.clone()), DropReason::Replayed);
    // Twice in one burst, which both pass the look at the window.
    let next = sealed(&mut pair, 100);
    assert_eq!(pair.open(&[next.clone(), next]).forward.len(), 1);
    assert_eq!(pair.far.received().dropped(DropReason::Replayed), 2);
    let sa = pair.far.tables().inbound.iter().next().unwrap().clone();
    assert_eq!((sa.packets(), sa.replayed()), (2, 2));
}

#[test]
fn what_falls_behind_the_window_is_refused() {
    // With extended numbers the lower half of an old one is taken for that of a coming one (RFC
    // 4303, A2.1), which then is not what was authenticated.
    let expected = [
        (SequenceMode::Plain, DropReason::TooOld),
        (SequenceMode::Extended, DropReason::Forged),
    ];
    for (sequence_mode, cause) in expected {
        let mut pair = Pair::new(Shape {
            window: 64,
            sequence_mode,
            ..Shape::default()
        });
        let frames: Vec<_> = (0..66).map(|_| sealed(&mut pair, 100)).collect();
        assert_eq!(pair.open(&frames[65..]).forward.len(), 1);
        assert_eq!(pair.refusal(frames[0].clone()), cause);
        assert_eq!(pair.refusal(frames[1].clone()), cause);
        assert_eq!(pair.open(&frames[2..65]).forward.len(), 63);
    }
}

#[test]
fn a_forged_packet_moves_no_window() {
    let mut pair = Pair::new(Shape::default());
    let mut far_ahead = sealed(&mut pair, 100);
    let front = HEADER + 20;
    far_ahead[front + 4..front + 8].copy_from_slice(&900_000u32.to_be_bytes());
    assert_eq!(pair.refusal(far_ahead), DropReason::Forged);
    assert_eq!(pair.far.tables().inbound.iter().next().unwrap().top(), 0);
    let next = sealed(&mut pair, 100);
    assert_eq!(pair.open(&[next]).forward.len(), 1);
}

#[test]
fn a_peer_with_a_key_speaks_for_its_own_networks_only() {
    let mut pair = Pair::new(Shape::default());
    for (src, v6) in [
        ("10.2.0.77", false),
        ("8.8.8.8", false),
        ("fd02::77", true),
        ("2001:db8::1", true),
    ] {
        let base = if v6 { Packet::v6(100) } else { Packet::v4(100) };
        let sealed = bytes(
            &pair
                .seal(&[Packet {
                    src: src.parse().unwrap(),
                    ..base
                }
                .bytes()])
                .forward,
        );
        assert_eq!(
            pair.refusal(sealed[0].clone()),
            DropReason::InnerSource,
            "{src}"
        );
    }
}

#[test]
fn packets_of_no_sa_are_counted_by_reason() {
    let mut pair = Pair::new(Shape::default());
    let frame = sealed(&mut pair, 100);
    let with = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut changed = frame.clone();
        change(&mut changed);
        update_checksum(&mut changed);
        changed
    };
    let front = HEADER + 20;
    let spi = with(&|f| f[front] = 0xff);
    let dst = with(&|f| f[HEADER + 19] = 77);
    let fragment = with(&|f| f[HEADER + 6] = 0x20);
    let protocol = with(&|f| f[HEADER + 9] = 6);
    let udp = with(&|f| f[HEADER + 9] = 17);
    let kind = with(&|f| f[12] = 0x88);
    let expected = [
        (spi, DropReason::UnknownSpi),
        (dst, DropReason::NotForUs),
        (fragment, DropReason::OuterFragment),
        (protocol, DropReason::UnknownProtocol),
        (udp, DropReason::UnknownProtocol),
        (kind, DropReason::NotIp),
    ];
    for (frame, cause) in expected {
        assert_eq!(pair.refusal(frame), cause);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]
    #[test]
    fn nothing_panics_and_everything_is_accounted_for(
        frames in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..200), 1..20),
        kind in prop_oneof![Just(None), Just(Some([8u8, 0])), Just(Some([0x86, 0xdd]))],
        version in prop_oneof![Just(0x45u8), Just(0x46), Just(0x60), any::<u8>()],
    ) {
        let mut pair = Pair::new(Shape::default());
        let frames: Vec<Vec<u8>> = frames.into_iter().map(|mut frame| {
            if let (Some(kind), true) = (kind, frame.len() > HEADER + 20) {
                frame[12..14].copy_from_slice(&kind);
                frame[HEADER] = version;
                let len = (frame.len() - HEADER) as u16;
                frame[HEADER + 2..HEADER + 4].copy_from_slice(&len.to_be_bytes());
                update_checksum(&mut frame);
            }
            frame
        }).collect();
        // These check that the counters add up.
        pair.seal(&frames);
        pair.open(&frames);
        prop_assert_eq!(pair.far.received().forwarded, 0);
        prop_assert_eq!(pair.pool.available(), pair.pool.slots());
    }

    #[test]
    fn any_header_around_a_good_packet_is_survived(
        changes in proptest::collection::vec((0usize..50, any::<u8>()), 1..6), with_checksum: bool,
    ) {
        let mut pair = Pair::new(Shape::default());
        let mut frame = sealed(&mut pair, 100);
        for (at, value) in changes {
            frame[at] = value;
        }
        if with_checksum {
            update_checksum(&mut frame);
        }
        pair.open(from_ref(&frame));
        pair.seal(&[frame]);
    }
}
