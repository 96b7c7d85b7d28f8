//! The report of a tester is true, packet by packet.

mod network;

use std::collections::VecDeque;
use std::time::Duration;

use network::{looped, one_way, quick, tester, udp4, udp6};
use proptest::prelude::*;
use tare_loadtest::{
    pair, report, Error, Length, Link, Load, Options, Rate, StreamConfig, Tester, TesterPorts,
    Trial, Virtual,
};
use tare_port::Frame;
use tare_sim::{Instant, LineConfig, Node, Outbox, Queue, Testbed};

const GIGA: u64 = 1_000_000_000;

fn rate(gbps: f64) -> Rate {
    Rate::from_f64(gbps * 1e9)
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// The bookkeeping that holds whatever happens.
fn assert_adds_up(trial: &Trial) {
    let mut known = 0;
    for stream in &trial.streams {
        assert_eq!(
            stream.tx_packets,
            stream.rx_packets + stream.lost,
            "{stream:?}"
        );
        assert!(stream.ingress_drop <= stream.lost);
        known += stream.rx_packets + stream.duplicates + stream.late + stream.surplus;
    }
    let strangers =
        |p: &tare_loadtest::PortRecord| p.stray + p.damaged + p.foreign + p.misdelivered;
    let received: u64 = trial.ports.iter().map(|port| port.received).sum();
    assert_eq!(
        received,
        known + trial.ports.iter().map(strangers).sum::<u64>(),
        "{trial:?}"
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn what_a_line_does_to_packets_is_reported_exactly(
        seed: u64,
        faults in (0.0..0.3f64, 0.0..0.3f64, 0.0..0.3f64),
        overtakers in 1u32..20,
        queue in 0usize..200,
        load in 0.1..1.3f64,
        delay_us in 0u64..3000,
        sizes in proptest::collection::vec(60usize..1500, 1..5),
        overload_by_mtu in any::<bool>(),
    ) {
        let config = LineConfig {
            loss: faults.0,
            duplication: faults.1,
            reordering: faults.2,
            overtakers,
            queue: Queue::Frames(queue),
            delay: Duration::from_micros(delay_us),
            seed,
            ..LineConfig::new(if overload_by_mtu { GIGA / 2 } else { GIGA })
        };
        let frames: Vec<_> = sizes.iter().map(|&size| udp4(size, 1)).collect();
        let mut tester = tester(&config, &frames, quick(), |_| true);
        for _ in 0..2 {
            let before = tester.testbed().network().counters();
            let trial = tester.trial(&Load::new(rate(load), ms(5))).unwrap();
            assert_adds_up(&trial);
            let after = tester.testbed().network().counters();
            let stream = &trial.streams[0];
            prop_assert_eq!(stream.tx_packets, after.offered - before.offered);
            prop_assert_eq!(stream.lost, after.lost + after.queue_dropped - before.lost - before.queue_dropped);
            prop_assert_eq!(stream.duplicates, after.duplicated - before.duplicated);
            prop_assert_eq!(stream.reordered, after.reordered - before.reordered);
            prop_assert_eq!(trial.ports[0].received, after.delivered - before.delivered);
            prop_assert_eq!(trial.ports[0].stray + trial.ports[0].damaged + trial.ports[0].foreign, 0);
        }
    }

    #[test]
    fn a_damaged_packet_is_neither_received_nor_a_stranger(
        at in 0usize..100,
        bit in 0u8..8,
        nth in 0u64..50,
        v6: bool,
    ) {
        let (frame, ip) = if v6 { (udp6(154, 1), 54) } else { (udp4(134, 1), 34) };
        // Behind the headers, which a router may rewrite: payload and stamp.
        let mut count = 0;
        let mut tester = tester(&LineConfig::new(GIGA), &[frame], quick(), move |frame: &mut Frame| {
            if count == nth {
                let position = ip + 20 + at % 80;
                frame[position] ^= 1 << bit;
            }
            count += 1;
            true
        });
        let load = Load { rate: rate(0.5), length: Length::Frames(50) };
        let trial = tester.trial(&load).unwrap();
        assert_adds_up(&trial);
        prop_assert_eq!(trial.streams[0].lost, 1);
        prop_assert_eq!(trial.ports[0].damaged, 1);
        prop_assert_eq!(trial.ports[0].foreign, 0);
    }
}

#[test]
fn leftovers_of_the_warm_up_are_counted_apart_and_no_loss_is_negative() {
    // The drain is cut short, so that the warm-up is still in flight when the trial begins.
    let config = LineConfig {
        delay: ms(400),
        queue: Queue::Frames(100_000),
        ..LineConfig::new(GIGA)
    };
    let options = Options {
        warm_up: Some(Load::new(rate(0.1), ms(50))),
        drain_max: ms(100),
        frames: 1 << 17,
        ..quick()
    };
    let mut tester = tester(&config, &[udp4(60, 1)], options, |_| true);
    let trial = tester.trial(&Load::new(rate(0.1), ms(350))).unwrap();
    assert_adds_up(&trial);
    let warm_up = 7441; // 0.1 Gb/s of 672 bits for 50 ms
    assert_eq!(trial.ports[0].stray, warm_up);
    // Nothing of the trial's own that was sent in its last 300 ms could arrive.
    assert_eq!(trial.streams[0].rx_packets, 7441);
    assert!(trial.streams[0].lost > 0);
}

#[test]
fn a_router_may_change_what_routers_change() {
    for (name, frame, ttl, traffic_class) in
        [("IPv4", udp4(60, 9), 22, 15), ("IPv6", udp6(80, 9), 21, 15)]
    {
        let mut tester = tester(
            &LineConfig::new(GIGA),
            &[frame],
            quick(),
            move |frame: &mut Frame| {
                frame[0..6].copy_from_slice(&[9; 6]);
                frame[ttl] -= 1;
                frame[traffic_class] |= 3;
                // Addresses, ports and checksum of a translator, and padding.
                frame[if ttl == 22 { 26 } else { 30 }] ^= 0x55;
                frame[if ttl == 22 { 34 } else { 54 }] ^= 0x55;
                frame[if ttl == 22 { 40 } else { 60 }] ^= 0x55;
                frame.append(10).unwrap().fill(0xee);
                true
            },
        );
        let trial = tester.trial(&Load::new(rate(0.5), ms(1))).unwrap();
        assert_adds_up(&trial);
        assert_eq!(trial.lost(), 0, "{name}");
        assert_eq!(trial.streams[0].rx_packets, trial.streams[0].tx_packets);
    }
}

#[test]
fn stamped_packets_keep_a_right_checksum() {
    for (name, frame, transport) in [
        ("IPv4", udp4(60, 1), 34),
        ("IPv4, odd", udp4(61, 1), 34),
        ("IPv6", udp6(80, 1), 54),
        ("IPv6, odd", udp6(97, 1), 54),
    ] {
        let mut checked = 0u32;
        let counter = std::rc::Rc::new(std::cell::Cell::new(0));
        let seen = counter.clone();
        let mut tester = tester(
            &LineConfig::new(GIGA),
            &[frame],
            quick(),
            move |frame: &mut Frame| {
                assert_ne!(&frame[transport + 6..transport + 8], &[0, 0], "{name}");
                let sum = network::transport_sum(frame, transport);
                assert_eq!(tare_packet::checksum::finish(sum), 0, "{name}");
                checked += 1;
                seen.set(checked);
                true
            },
        );
        tester.trial(&Load::new(rate(0.9), ms(20))).unwrap();
        assert!(counter.get() > 10_000, "{name}");
    }
}

#[test]
fn frames_without_room_are_counted_by_totals_and_that_is_said() {
    // A UDP packet without payload, one with, and something that is no IP.
    let mut small = udp4(60, 1);
    small[16..18].copy_from_slice(&28u16.to_be_bytes());
    small[38..40].copy_from_slice(&8u16.to_be_bytes());
    let mut other = vec![0x55; 60];
    other[12..14].copy_from_slice(&0x88b5u16.to_be_bytes());
    let config = LineConfig {
        loss: 0.1,
        duplication: 0.02,
        seed: 5,
        ..LineConfig::new(GIGA)
    };
    let frames = [small, udp4(60, 1), other];
    let streams = one_way(&frames);
    assert!(report::unstamped(&streams)
        .unwrap()
        .contains("2 of 3 frames"));
    let mut tester = tester(&config, &frames, quick(), |_| true);
    let load = Load {
        rate: rate(0.5),
        length: Length::Frames(3000),
    };
    let trial = tester.trial(&load).unwrap();
    assert_adds_up(&trial);
    let (stream, line) = (&trial.streams[0], tester.testbed().network().counters());
    assert_eq!((stream.tx_packets, stream.tx_unstamped), (3000, 2000));
    assert_eq!(line.offered, 3000);
    // A copy of an unstamped one makes up for one that was lost: totals know no better.
    let unstamped_copies = line.duplicated - stream.duplicates;
    assert_eq!(stream.lost, line.lost - unstamped_copies);
    assert!(stream.duplicates > 0 && unstamped_copies > 0);
    assert!(report::unstamped(&one_way(&[udp4(60, 1)])).is_none());
}

#[test]
fn more_unstamped_frames_than_were_sent_are_a_surplus_and_no_negative_loss() {
    let mut other = vec![0x55; 60];
    other[12..14].copy_from_slice(&0x88b5u16.to_be_bytes());
    let config = LineConfig {
        duplication: 0.5,
        ..LineConfig::new(GIGA)
    };
    let mut tester = tester(&config, &[other], quick(), |_| true);
    let trial = tester.trial(&Load::new(rate(0.3), ms(3))).unwrap();
    assert_adds_up(&trial);
    assert_eq!(trial.lost(), 0);
    assert_eq!(
        trial.streams[0].surplus,
        tester.testbed().network().counters().duplicated
    );
    assert_eq!(trial.streams[0].rx_bytes, trial.streams[0].tx_bytes);
}

#[test]
fn copies_of_long_unstamped_frames_in_place_of_short_ones_are_no_more_bytes_than_were_sent() {
    let other = |length| {
        let mut frame = vec![0x55; length];
        frame[12..14].copy_from_slice(&0x88b5u16.to_be_bytes());
        frame[14] = length as u8;
        frame
    };
    let config = LineConfig {
        duplication: 1.0,
        ..LineConfig::new(GIGA)
    };
    let is_long = |frame: &mut Frame| frame.len() > 60;
    let mut tester = tester(&config, &[other(60), other(200)], quick(), is_long);
    let load = Load {
        rate: rate(0.3),
        length: Length::Frames(100),
    };
    let trial = tester.trial(&load).unwrap();
    assert_adds_up(&trial);
    let stream = &trial.streams[0];
    assert_eq!((stream.tx_packets, stream.rx_packets), (100, 100));
    assert_eq!((stream.tx_bytes, stream.rx_bytes), (13_000, 13_000));
}

#[test]
fn streams_with_the_same_unstamped_frames_share_what_arrives() {
    let other = |kind| {
        let mut frame = vec![0x55; 60];
        frame[12..15].copy_from_slice(&[0x88, 0xb5, kind]);
        frame
    };
    let config = |name: &str, frames: &[Vec<u8>]| StreamConfig {
        name: name.into(),
        rx: name.into(),
        port: 0,
        frames: frames.to_vec(),
    };
    for lost in [0, 1, 40] {
        // The second stream's frames are some of the first one's.
        let both = [config("a", &[other(1), other(2)]), config("b", &[other(1)])];
        let mut dropped = 0;
        let testbed = looped(&LineConfig::new(GIGA), move |_: &mut Frame| {
            dropped += 1;
            dropped > lost
        });
        let mut tester = Tester::new(testbed, pair(&both).unwrap(), quick()).unwrap();
        let load = Load {
            rate: rate(0.3),
            length: Length::Frames(100),
        };
        let trial = tester.trial(&load).unwrap();
        assert_adds_up(&trial);
        assert_eq!(trial.lost(), lost, "{trial:?}");
        assert!(trial.streams.iter().all(|stream| stream.surplus == 0));
    }
}

#[test]
fn what_a_device_sends_later_by_itself_arrives_before_a_trial_ends() {
    /// Sends each frame back after a time.
    struct Store(VecDeque<(Instant, Frame)>);

    const HELD: Duration = Duration::from_micros(5);

    impl Node for Store {
        type Message = Frame;

        fn receive(&mut self, now: Instant, _: usize, frame: Frame, _: &mut Outbox<Frame>) {
            self.0.push_back((now + HELD, frame));
        }

        fn next_deadline(&self) -> Instant {
            self.0.front().map_or(Instant::NEVER, |(at, _)| *at)
        }

        fn tick(&mut self, now: Instant, out: &mut Outbox<Frame>) {
            while self.0.front().is_some_and(|(at, _)| *at <= now) {
                let (_, frame) = self.0.pop_front().unwrap();
                out.send(0, frame);
            }
        }
    }

    let mut simulation = Testbed::new(0);
    let ports = simulation.add(TesterPorts::new(0..1));
    let store = simulation.add(Store(VecDeque::new()));
    simulation.connect(ports, store, &LineConfig::IDEAL);
    let testbed = Virtual::new((simulation, ports));
    let mut tester = Tester::new(testbed, one_way(&[udp4(60, 1)]), quick()).unwrap();
    let trial = tester.trial(&Load::new(rate(0.5), ms(1))).unwrap();
    assert_adds_up(&trial);
    assert_eq!(trial.lost(), 0);
    assert_eq!(trial.streams[0].latency.unwrap().min_ns, 5_000);
    assert!(trial.drained() > 0);
}

#[test]
fn a_generator_that_cannot_offer_the_load_makes_the_trial_invalid() {
    // Too few frames for what is under way: at 1 Gb/s and 10 ms there are 14,880.
    let config = LineConfig {
        delay: ms(10),
        ..LineConfig::new(GIGA)
    };
    let options = Options {
        frames: 1000,
        invalid_retries: 2,
        ..quick()
    };
    let mut tester = tester(&config, &[udp4(60, 1)], options, |_| true);
    match tester.trial(&Load::new(rate(0.9), ms(100))) {
        Err(Error::NotOffered {
            attempts: 3,
            reason,
            advice,
        }) => {
            let expected = "offered of 0.900000 Gb/s asked, because all 1000 frames were under way";
            assert!(reason.contains(expected), "{reason}");
            assert!(advice.contains("lower the rate"), "{advice}");
            assert!(!advice.contains("--cpu"), "{advice}");
        }
        other => panic!("{other:?}"),
    }
    // What it can offer, it offers.
    let trial = tester.trial(&Load::new(rate(0.03), ms(100))).unwrap();
    assert_eq!((trial.lost(), trial.invalid.len()), (0, 0));
}

#[test]
fn a_load_that_makes_no_trial_is_refused() {
    let mut tester = tester(&LineConfig::new(GIGA), &[udp4(60, 1)], quick(), |_| true);
    let loads = [
        Load::new(rate(0.0), ms(1)),
        Load::new(rate(1.0), Duration::ZERO),
        Load::new(rate(1.0), Duration::from_secs(100_000)),
        Load::new(Rate::MAX, Duration::from_secs(80_000)),
        Load {
            rate: rate(1.0),
            length: Length::Frames(0),
        },
        Load {
            rate: rate(1.0),
            length: Length::Frames(1 << 40),
        },
    ];
    for load in loads {
        let result = tester.trial(&load);
        assert!(
            matches!(result, Err(Error::Load(_))),
            "{load:?}: {result:?}"
        );
    }
}

#[test]
fn a_frame_longer_than_the_mtu_is_refused_before_any_trial() {
    let link = Link {
        name: "eth1".into(),
        mtu: 1500,
    };
    let tester = |frames: &[Vec<u8>]| {
        let options = Options {
            links: vec![link.clone()],
            ..quick()
        };
        let testbed = looped(&LineConfig::new(GIGA), |_: &mut Frame| true);
        Tester::new(testbed, one_way(frames), options)
    };
    // A VLAN tag is no payload.
    let mut tagged = udp4(1514, 1);
    tagged.splice(12..12, [0x81, 0, 0, 5]);
    let mut fits = tester(&[udp4(1514, 1), tagged]).unwrap();
    fits.trial(&Load::new(rate(0.5), ms(1))).unwrap();
    let expected = "stream NIC: frame 2 has 1515 bytes (without checksum), but eth1 has an MTU of 1500 and sends 1514 at most: use shorter frames, or `ip link set eth1 mtu 1501`, at its other end too";
    let error = tester(&[udp4(60, 1), udp4(1515, 1)]).err().unwrap();
    assert_eq!(error.to_string(), expected);
    let resized = fits.streams()[0].resize(9014);
    let error = resized.and_then(|stream| fits.replace_streams(vec![stream]));
    assert!(
        matches!(error, Err(Error::OverMtu { frame: 1, .. })),
        "{error:?}"
    );
}

#[test]
fn the_latency_of_a_line_is_measured_exactly() {
    let config = LineConfig {
        delay: Duration::from_micros(50),
        ..LineConfig::new(GIGA)
    };
    let mut tester = Tester::new(
        looped(&config, |_: &mut Frame| true),
        one_way(&[udp4(60, 1)]),
        quick(),
    )
    .unwrap();
    let trial = tester.trial(&Load::new(rate(0.5), ms(10))).unwrap();
    // 672 bits at 1 Gb/s and the delay; an idle line makes no frame wait.
    let latency = trial.streams[0].latency.unwrap();
    assert!(
        latency.min_ns.abs_diff(50_672) < 60 && latency.max_ns.abs_diff(50_672) < 60,
        "{latency:?}"
    );
    assert_eq!(latency.count, trial.streams[0].rx_packets);
}

#[test]
fn the_offered_load_is_exact() {
    let mut tester = tester(&LineConfig::new(GIGA), &[udp4(60, 1)], quick(), |_| true);
    let trial = tester
        .trial(&Load::new(rate(0.5), Duration::from_secs(1)))
        .unwrap();
    // 0.5 Gb/s of 672 bits: 744,047.6 a second; the first leaves at once.
    assert_eq!(trial.streams[0].tx_packets, 744_048);
    let moment = Instant::from_nanos(1_000_000_000);
    assert!(tester.testbed().network().line().idle_at() <= moment + Duration::from_micros(2));
}
