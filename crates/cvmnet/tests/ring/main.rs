//! The guest's driver and the host's device over one region.

mod notifications;

use std::os::fd::AsFd;
use std::time::Duration;

use proptest::prelude::*;
use tare_cvmnet::breakdown::{Breakdown, Category, Off};
use tare_cvmnet::host::merge::Limits;
use tare_cvmnet::host::{Device, DeviceSettings, Frames, Memory};
use tare_cvmnet::pool::GuestBuffer;
use tare_cvmnet::region::{Config, Region};
use tare_cvmnet::ring::{
    Checksum, Doorbell, Driver, NetHeader, Notification, Received, SendError, Settings,
};
use tare_cvmnet::variant::{Exits, Variant, BASELINE, BIFROST, CVM, PRPR, ZC};
use tare_sim::{Instant, Random};

struct Link {
    driver: Driver,
    device: Device<Memory>,
}

impl Link {
    fn new(config: &Config) -> Link {
        Link::with(config, Settings::default(), DeviceSettings::default())
    }

    fn with(config: &Config, settings: Settings, device: DeviceSettings) -> Link {
        let host = Region::create(config).unwrap();
        let guest = Region::open(host.fd().try_clone_to_owned().unwrap(), config).unwrap();
        let device = Device::new(&host, 0, device, Memory::default()).unwrap();
        let driver = Driver::new(guest, 0, settings, Off).unwrap();
        let mut link = Link { driver, device };
        link.start();
        link
    }

    fn start(&mut self) {
        assert!(
            !self.driver.start().unwrap(),
            "the device has not seen the reset"
        );
        self.poll();
        assert!(self.driver.start().unwrap());
        self.poll();
    }

    fn poll(&mut self) -> bool {
        self.device.poll(Instant::ZERO).unwrap()
    }

    fn push(&mut self, frame: &[u8], header: NetHeader) {
        self.device
            .frames()
            .to_guest
            .push_back((frame.to_vec(), header));
    }

    fn receive(&mut self, max: usize) -> Vec<Received> {
        let mut frames = Vec::new();
        self.driver.receive(&mut frames, max).unwrap();
        frames
    }
}

fn bytes(received: &Received) -> Vec<u8> {
    let mut bytes = vec![0; received.range.len()];
    received
        .buffer
        .read(received.range.start, &mut bytes)
        .unwrap();
    bytes
}

fn small(variant: Variant) -> Config {
    Config {
        receive_queue: 16,
        transmit_queue: 64,
        receive_posted: 16,
        receive_buffers: 40,
        record_buffers: 40,
        bounce_slots: 2048,
        ..variant.config(1)
    }
}

fn frame(random: &mut Random, len: usize) -> Vec<u8> {
    let mut frame = vec![0; len];
    random.fill(&mut frame);
    frame
}

#[test]
fn frames_and_headers_pass_both_ways_in_every_variant() {
    for variant in Variant::ALL {
        let mut link = Link::new(&small(variant));
        let mut random = Random::new(1);
        let large = if variant.has_large_frames() {
            65_000
        } else {
            1514
        };
        let header = NetHeader {
            checksum: Checksum::Partial {
                start: 34,
                offset: 16,
            },
            segments: None,
        };
        for n in 0..100 {
            let arriving = frame(&mut random, 60 + (large - 60) * n / 99);
            link.push(&arriving, header);
            assert!(link.poll());
            let received = link.receive(64);
            assert_eq!(received.len(), 1, "{}", variant.name);
            assert_eq!(bytes(&received[0]), arriving, "{}", variant.name);
            assert_eq!(received[0].header, header);
            assert_eq!(received[0].buffer.is_shared(), !small(variant).bounced);

            let record = link.driver.record().unwrap();
            let (headers, payload) = (frame(&mut random, 66), frame(&mut random, 16_000));
            record.write(100, &payload).unwrap();
            let pieces = [(&record, 100..9000), (&record, 9000..16_100)];
            link.driver.send(&headers, pieces, &header).unwrap();
            drop(record);
            link.driver.flush().unwrap();
            assert!(link.poll());
            let (sent, with) = link.device.frames().from_guest.pop().unwrap();
            assert_eq!(sent, [headers, payload].concat(), "{}", variant.name);
            assert_eq!(with, header);
        }
        let bounced = link.driver.counters().bounced;
        assert_eq!(bounced > 0, small(variant).bounced, "{}", variant.name);
    }
}

#[test]
fn no_buffer_is_lost_after_any_number_of_frames() {
    for variant in [ZC, CVM] {
        let mut link = Link::new(&small(variant));
        let fresh = (link.driver.free(), link.driver.in_flight());
        let mut random = Random::new(2);
        for n in 0..2000usize {
            link.push(&frame(&mut random, 60 + n % 1400), NetHeader::default());
            let record = link.driver.record().unwrap();
            let _ = link
                .driver
                .send(&[0; 54], [(&record, 0..1000)], &NetHeader::default());
            drop(record);
            if n % 3 == 0 {
                link.driver.flush().unwrap();
                link.poll();
                link.receive(5);
            }
        }
        for _ in 0..2000 {
            link.driver.flush().unwrap();
            link.poll();
            link.receive(5);
        }
        assert_eq!(
            (link.driver.free(), link.driver.in_flight()),
            fresh,
            "{}",
            variant.name
        );
        assert_eq!(link.driver.counters().received, 2000);
        let sent = link.driver.counters().sent;
        assert_eq!(link.device.frames().from_guest.len() as u64, sent);
    }
}

#[test]
fn a_guest_that_keeps_its_frames_receives_no_more_than_it_has_buffers() {
    let mut link = Link::new(&small(ZC));
    let mut kept = Vec::new();
    for _ in 0..100 {
        link.push(&[7; 60], NetHeader::default());
        link.poll();
        kept.extend(link.receive(64));
    }
    assert_eq!(kept.len(), 40);
    assert!(link.device.counters().no_buffer > 0);
    kept.clear();
    for _ in 0..10 {
        kept.extend(link.receive(64));
        link.poll();
    }
    assert_eq!(kept.len(), 40, "as many of the other 60");
}

#[test]
fn a_full_ring_refuses_a_packet_and_takes_it_after_completions() {
    for variant in [BASELINE, CVM] {
        let mut link = Link::new(&small(variant));
        let record = link.driver.record().unwrap();
        let send = |link: &mut Link| {
            link.driver
                .send(&[1; 54], [(&record, 0..100)], &NetHeader::default())
        };
        let state = |link: &Link| (link.driver.free(), link.driver.in_flight());
        let (mut sent, mut before) = (0, state(&link));
        while send(&mut link).is_ok() {
            (sent, before) = (sent + 1, state(&link));
        }
        assert!((24..=32).contains(&sent), "{sent}");
        assert_eq!(state(&link), before, "a refused packet leaves no trace");
        assert_eq!(send(&mut link), Err(SendError::Full));
        assert_eq!(link.driver.room(), 0);
        link.driver.flush().unwrap();
        link.poll();
        assert!(send(&mut link).is_ok());
        assert!(link.driver.room() > 0);
    }
}

#[test]
fn a_packet_that_the_caller_describes_wrongly_is_refused_and_leaves_no_trace() {
    for variant in [ZC, CVM] {
        let mut link = Link::new(&small(variant));
        let record = link.driver.record().unwrap();
        let fresh = (link.driver.free(), link.driver.in_flight());
        let beyond = record.capacity() + 1;
        let pieces: [Vec<(&GuestBuffer, std::ops::Range<usize>)>; 3] = [
            vec![(&record, 0..10), (&record, 0..beyond)],
            vec![(&record, 5..5)],
            (0..18).map(|n| (&record, n..n + 1)).collect(),
        ];
        for pieces in pieces {
            let sent = link.driver.send(&[1; 54], pieces, &NetHeader::default());
            assert_eq!(sent, Err(SendError::Invalid));
            assert_eq!((link.driver.free(), link.driver.in_flight()), fresh);
        }
    }
}

#[test]
fn a_buffer_that_the_device_reads_is_not_free_until_it_has_used_it() {
    let mut link = Link::new(&small(ZC));
    let record = link.driver.record().unwrap();
    record.write(0, &[5; 100]).unwrap();
    link.driver
        .send(&[1; 54], [(&record, 0..100)], &NetHeader::default())
        .unwrap();
    drop(record);
    link.driver.flush().unwrap();
    assert_eq!(link.driver.free()[1], 39);
    // All others, none of which is the one on its way.
    let others: Vec<_> = std::iter::from_fn(|| link.driver.record()).collect();
    others
        .iter()
        .for_each(|other| other.write(0, &[6; 100]).unwrap());
    link.poll();
    assert_eq!(link.device.frames().from_guest[0].0[54..], [5; 100]);
    drop(others);
    link.driver.flush().unwrap();
    assert_eq!(link.driver.free()[1], 40);
}

#[test]
fn a_reset_takes_everything_back_and_leaves_frames_that_were_received() {
    for variant in [ZC, CVM] {
        let mut link = Link::new(&small(variant));
        let fresh = (link.driver.free(), link.driver.in_flight());
        for round in 0..50u8 {
            link.push(&[round; 60], NetHeader::default());
            link.push(&[0; 61], NetHeader::default());
            link.poll();
            let kept = link.receive(1);
            let record = link.driver.record().unwrap();
            link.driver
                .send(&[1; 54], [(&record, 0..100)], &NetHeader::default())
                .unwrap();
            drop(record);
            link.driver.reset();
            assert_eq!(link.driver.room(), 0);
            let sent = link.driver.send(&[1; 54], [], &NetHeader::default());
            assert_eq!(sent, Err(SendError::Resetting));
            assert!(link.receive(64).is_empty());
            link.start();
            assert_eq!(bytes(&kept[0]), [round; 60]);
            drop(kept);
            link.push(&[9; 62], NetHeader::default());
            link.poll();
            assert_eq!(bytes(&link.receive(64)[0]), [9; 62]);
            link.device.frames().from_guest.clear();
        }
        link.poll();
        assert_eq!(
            (link.driver.free(), link.driver.in_flight()),
            fresh,
            "{}",
            variant.name
        );
        // The one before the first start is none.
        assert_eq!(link.device.counters().resets, 50);
    }
}

#[test]
fn a_guest_that_starts_again_over_the_same_region_is_served() {
    let config = small(ZC);
    let host = Region::create(&config).unwrap();
    let settings = DeviceSettings::default();
    let mut device = Device::new(&host, 0, settings, Memory::default()).unwrap();
    for n in 0..5 {
        let guest = host.try_clone().unwrap();
        let mut driver = Driver::new(guest, 0, Settings::default(), Off).unwrap();
        assert!(
            !driver.start().unwrap(),
            "the device has not seen the reset"
        );
        device.poll(Instant::ZERO).unwrap();
        assert!(driver.start().unwrap());
        for m in 0..20u8 {
            let frame = ([n, m].repeat(30), NetHeader::default());
            device.frames().to_guest.push_back(frame.clone());
            device.poll(Instant::ZERO).unwrap();
            let mut frames = Vec::new();
            driver.receive(&mut frames, 64).unwrap();
            assert_eq!(bytes(&frames[0]), frame.0);
        }
    }
}

#[test]
fn a_pass_looks_at_no_more_frames_than_it_was_told() {
    let mut link = Link::new(&small(BASELINE));
    (0..10).for_each(|n| link.push(&[n; 60], NetHeader::default()));
    link.poll();
    let counts: Vec<_> = (0..4).map(|_| link.receive(4).len()).collect();
    assert_eq!(counts, [4, 4, 2, 0]);
}

#[test]
fn frames_longer_than_the_guests_buffers_are_dropped_by_the_device() {
    let mut link = Link::new(&small(ZC));
    link.push(&[1; 2037], NetHeader::default());
    link.push(&[2; 2036], NetHeader::default());
    link.poll();
    let received = link.receive(64);
    assert_eq!((received.len(), bytes(&received[0])), (1, vec![2; 2036]));
    assert_eq!(link.device.counters().too_long, 1);
}

#[test]
fn frames_longer_than_the_mtu_are_dropped_and_counted_where_segments_are_merged_too() {
    for variant in [ZC, BIFROST] {
        let settings = DeviceSettings {
            merge: variant.has_large_frames().then(Limits::default),
            frame_max: Some(1514),
            ..DeviceSettings::default()
        };
        let mut link = Link::with(&small(variant), Settings::default(), settings);
        link.push(&[1; 1515], NetHeader::default());
        link.push(&[2; 1514], NetHeader::default());
        link.poll();
        let received = link.receive(64);
        assert_eq!((received.len(), bytes(&received[0])), (1, vec![2; 1514]));
        let counters = link.device.counters();
        assert_eq!((counters.too_long, counters.packets), (1, 2));
    }
}

/// Segments of one connection, numbered.
fn segments(count: usize) -> Vec<Vec<u8>> {
    let segment = |n: usize| {
        let mut tcp = vec![0x13, 0x88, 1, 0xbb];
        tcp.extend((1000 * n as u32).to_be_bytes());
        tcp.extend([0, 0, 0, 1, 0x50, 0x10, 1, 0, 0, 0, 0, 0]);
        tcp.extend(vec![n as u8; 1000]);
        let mut ip = vec![
            0x45, 0, 4, 16, 0, 0, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2,
        ];
        let sum = |bytes: &[u8]| tare_packet::checksum::sum(bytes);
        let finish = |sum| tare_packet::checksum::finish(sum).to_be_bytes();
        let header = finish(sum(&ip));
        ip[10..12].copy_from_slice(&header);
        let check = finish(sum(&ip[12..]) + 6 + tcp.len() as u64 + sum(&tcp));
        tcp[16..18].copy_from_slice(&check);
        let header = tare_packet::ethernet::header([2; 6], [3; 6], 0x0800);
        [header.to_vec(), ip, tcp].concat()
    };
    (0..count).map(segment).collect()
}

#[test]
fn segments_merged_before_the_ring_arrive_as_large_frames_with_the_same_bytes() {
    for variant in [PRPR, BIFROST] {
        let settings = DeviceSettings {
            merge: Some(Limits::default()),
            ..DeviceSettings::default()
        };
        let mut link = Link::with(&small(variant), Settings::default(), settings);
        for segment in segments(200) {
            link.push(&segment, NetHeader::default());
        }
        let mut payload = Vec::new();
        let mut frames = 0;
        while link.poll() {
            for received in link.receive(64) {
                assert_eq!(received.header.checksum, Checksum::Verified);
                payload.extend_from_slice(&bytes(&received)[54..]);
                frames += 1;
            }
        }
        let expected: Vec<u8> = (0..200).flat_map(|n| [n as u8; 1000]).collect();
        assert_eq!(payload, expected, "{}", variant.name);
        assert_eq!(frames, 200usize.div_ceil(65));
    }
}

/// One segment, and after it other frames without end.
struct Endless(Option<Vec<u8>>);

impl Frames for Endless {
    fn receive(&mut self, frame: &mut Vec<u8>) -> Option<NetHeader> {
        frame.extend(self.0.take().unwrap_or(vec![0xff; 60]));
        Some(NetHeader::default())
    }

    fn send(&mut self, _: &[u8], _: NetHeader) -> bool {
        true
    }
}

#[test]
fn a_segment_is_not_held_for_as_long_as_other_frames_arrive() {
    for posted in [16, 512] {
        let config = Config {
            receive_queue: posted,
            receive_posted: posted,
            receive_buffers: 2 * u32::from(posted),
            bounce_slots: 256,
            ..small(ZC)
        };
        let settings = DeviceSettings {
            merge: Some(Limits::default()),
            ..DeviceSettings::default()
        };
        let host = Region::create(&config).unwrap();
        let guest = Region::open(host.fd().try_clone_to_owned().unwrap(), &config).unwrap();
        let first = segments(1).remove(0);
        let mut device = Device::new(&host, 0, settings, Endless(Some(first.clone()))).unwrap();
        let mut driver = Driver::new(guest, 0, Settings::default(), Off).unwrap();
        while !driver.start().unwrap() {
            device.poll(Instant::ZERO).unwrap();
        }
        let (mut others, mut frames) = (0, Vec::new());
        let is_there = (0..100).any(|_| {
            device.poll(Instant::ZERO).unwrap();
            driver.receive(&mut frames, 1000).unwrap();
            frames.drain(..).any(|received| {
                others += 1;
                bytes(&received) == first
            })
        });
        assert!(is_there && others <= 2 * 256, "{posted}: {others}");
    }
}

#[test]
fn a_packet_for_which_there_is_room_is_sent_whatever_its_pieces() {
    // A record takes 9 slots, and a bit more than two slots takes 3.
    for (pieces, bytes) in [(1, 65_000), (4, 16_250), (16, 4100), (17, 3500)] {
        let config = Config {
            record_bytes: 65_535,
            bounce_slots: 16 + 50,
            receive_bytes: 2048,
            ..small(CVM)
        };
        let mut link = Link::new(&config);
        let record = link.driver.record().unwrap();
        assert_eq!(link.driver.room(), 1);
        let parts = (0..pieces).map(|_| (&record, 0..bytes));
        let sent = link.driver.send(&[1; 66], parts, &NetHeader::default());
        assert_eq!(sent, Ok(()), "{pieces} pieces of {bytes} bytes");
        assert_eq!(link.driver.room(), 0);
    }
}

#[test]
fn queue_pairs_are_independent() {
    let config = Config {
        pairs: 4,
        ..small(ZC)
    };
    let host = Region::create(&config).unwrap();
    let mut pairs: Vec<_> = (0..4)
        .map(|n| {
            let device = Device::new(&host, n, DeviceSettings::default(), Memory::default());
            let guest = host.try_clone().unwrap();
            let driver = Driver::new(guest, n, Settings::default(), Off).unwrap();
            let mut link = Link {
                driver,
                device: device.unwrap(),
            };
            link.start();
            link
        })
        .collect();
    assert!(Driver::new(host.try_clone().unwrap(), 4, Settings::default(), Off).is_err());
    assert!(Device::new(&host, 4, DeviceSettings::default(), Memory::default()).is_err());
    for (n, link) in pairs.iter_mut().enumerate() {
        link.push(&[n as u8; 100], NetHeader::default());
    }
    pairs.iter_mut().for_each(|link| assert!(link.poll()));
    for (n, link) in pairs.iter_mut().enumerate() {
        let received = link.receive(64);
        assert_eq!(
            (received.len(), bytes(&received[0])),
            (1, vec![n as u8; 100])
        );
    }
}

#[test]
fn a_network_without_room_keeps_the_guests_frame_until_it_has() {
    #[derive(Default)]
    struct Busy(Memory, bool);
    impl Frames for Busy {
        fn receive(&mut self, frame: &mut Vec<u8>) -> Option<NetHeader> {
            self.0.receive(frame)
        }
        fn send(&mut self, frame: &[u8], header: NetHeader) -> bool {
            self.1 && self.0.send(frame, header)
        }
    }
    let host = Region::create(&small(ZC)).unwrap();
    let mut device = Device::new(&host, 0, DeviceSettings::default(), Busy::default()).unwrap();
    let mut driver = Driver::new(host, 0, Settings::default(), Off).unwrap();
    while !driver.start().unwrap() {
        device.poll(Instant::ZERO).unwrap();
    }
    for n in 0..3 {
        driver.send(&[n; 60], [], &NetHeader::default()).unwrap();
    }
    driver.flush().unwrap();
    for _ in 0..3 {
        device
            .frames()
            .0
            .to_guest
            .push_back((vec![9; 100], NetHeader::default()));
        device.poll(Instant::ZERO).unwrap();
        assert!(device.frames().0.from_guest.is_empty());
    }
    device.frames().1 = true;
    device.poll(Instant::ZERO).unwrap();
    let sent: Vec<_> = device
        .frames()
        .0
        .from_guest
        .iter()
        .map(|(frame, _)| frame[0])
        .collect();
    assert_eq!(sent, [0, 1, 2]);
}

#[test]
fn a_doorbell_can_be_handed_to_another_process() {
    let ours = Doorbell::new().unwrap();
    Doorbell::from_fd(ours.as_fd().try_clone_to_owned().unwrap()).ring();
    assert_eq!(ours.clear(), 1);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn bytes_are_equal_and_no_buffer_is_leaked_whatever_the_order_of_operations(
        bounced: bool,
        event_index: bool,
        seed: u64,
        steps in proptest::collection::vec(0u8..7, 1..300),
    ) {
        let variant = if bounced { CVM } else { ZC };
        let config = Config { event_index, ..small(variant) };
        let mut link = Link::new(&config);
        let fresh = (link.driver.free(), link.driver.in_flight());
        let mut random = Random::new(seed);
        let (mut arriving, mut leaving) = (Vec::new(), Vec::new());
        let (mut received, mut kept) = (Vec::new(), Vec::new());
        for step in steps {
            match step {
                0 | 1 => {
                    let len = 14 + random.below(2000) as usize;
                    let next = frame(&mut random, len);
                    link.push(&next, NetHeader::default());
                    arriving.push(next);
                }
                2 => { link.poll(); }
                3 => {
                    let max = random.below(20) as usize;
                    for next in link.receive(max) {
                        received.push(bytes(&next));
                        kept.push(next);
                    }
                }
                4 if !kept.is_empty() => {
                    kept.swap_remove(random.below(kept.len() as u64) as usize);
                }
                5 => {
                    let Some(record) = link.driver.record() else { continue };
                    let len = 14 + random.below(300) as usize;
                    let headers = frame(&mut random, len);
                    let payload = frame(&mut random, 5000);
                    record.write(0, &payload).unwrap();
                    let count = random.below(18) as usize;
                    let mut pieces = Vec::new();
                    let mut whole = headers.clone();
                    for _ in 0..count {
                        let start = random.below(4999) as usize;
                        let end = start + 1 + random.below(4999 - start as u64 + 1) as usize;
                        whole.extend_from_slice(&payload[start..end]);
                        pieces.push((&record, start..end));
                    }
                    if link.driver.send(&headers, pieces, &NetHeader::default()).is_ok() {
                        leaving.push(whole);
                    }
                }
                6 => link.driver.flush().unwrap(),
                _ => {}
            }
        }
        kept.clear();
        for _ in 0..arriving.len() + 2 {
            link.driver.flush().unwrap();
            link.poll();
            received.extend(link.receive(64).iter().map(bytes));
        }
        link.driver.flush().unwrap();
        prop_assert!(received == arriving);
        let sent: Vec<_> = link.device.frames().from_guest.iter().map(|(f, _)| f.clone()).collect();
        leaving.retain(|frame| frame.len() <= tare_cvmnet::host::FRAME_MAX);
        prop_assert!(sent == leaving);
        prop_assert_eq!((link.driver.free(), link.driver.in_flight()), fresh);
    }
}
