//! Frames longer than a page.

use tare_port::{open, Burst, Frame, Interface, Kind, Layout, Pool, Port, XdpMode};

use crate::namespace::{in_namespace, ip, veth};
use crate::traffic::{receive, receive_all, send};

const LONGEST: usize = 9014;

/// The ends of a cable with an MTU of 9000.
fn wired() -> (Interface, Interface) {
    let ends = veth("a", "b");
    ip("link set dev a mtu 9000");
    ip("link set dev b mtu 9000");
    ends
}

fn pool() -> Pool {
    Pool::new(1024, 16_384, Layout::PowerOfTwo).unwrap()
}

/// A frame that tells its number, each byte of which is known.
fn numbered(pool: &Pool, number: usize) -> Frame {
    // Around the ends of pages and of what the kernel puts into a first chunk, and any others.
    let lengths = [
        60, 1514, 3824, 3839, 3840, 3841, 4096, 7679, 7680, 7681, 9000, LONGEST,
    ];
    let length = match number.checked_sub(lengths.len()) {
        None => lengths[number],
        Some(rest) => 60 + rest * 577 % (LONGEST - 59),
    };
    let mut frame = pool.take().unwrap();
    let bytes = frame.append(length).unwrap();
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = ((at % 251) ^ number) as u8;
    }
    bytes[..12].copy_from_slice(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 0, 1]);
    bytes[12..14].copy_from_slice(&[0x88, 0xb5]);
    frame
}

fn carries(from: &mut dyn Port, to: &mut dyn Port, pool: &Pool, frames: usize) {
    let mut burst = Burst::new();
    for first in (0..frames).step_by(16) {
        let numbers = first..(first + 16).min(frames);
        burst.extend(numbers.clone().map(|number| numbered(pool, number)));
        send(from, &mut burst);
        receive_all(to, &mut burst, numbers.len());
        assert_eq!(burst.len(), numbers.len(), "from frame {first}");
        for (number, frame) in numbers.zip(burst.drain(..)) {
            assert_eq!(&*frame, &*numbered(pool, number), "frame {number}");
            assert!(frame.headroom() >= tare_port::HEADROOM);
        }
    }
}

#[test]
fn frames_longer_than_a_page_arrive_intact_and_in_order() {
    for mode in [XdpMode::Generic, XdpMode::Native] {
        in_namespace(move || {
            let (a, b) = wired();
            let pool = pool();
            let open = |interface, kind| {
                let (port, opened) = open(interface, 0, &pool, kind).unwrap();
                assert_eq!(opened.kind, kind);
                port
            };
            let kind = Kind::Xdp(mode);
            let (mut a, mut b) = (open(&a, kind), open(&b, kind));
            carries(&mut a, &mut b, &pool, 2000);
            carries(&mut b, &mut a, &pool, 2000);
            assert_eq!(a.counters().rx_dropped + b.counters().rx_dropped, 0);
            drop((a, b));
            assert_eq!(pool.available(), pool.slots());
        });
    }
}

#[test]
fn an_mtu_of_9000_needs_no_packet_socket() {
    in_namespace(|| {
        let (a, b) = wired();
        let pool = pool();
        let (mut a, opened) = open(&a, 0, &pool, Kind::Auto).unwrap();
        assert_eq!(opened.kind, Kind::Xdp(XdpMode::Native), "{opened:?}");
        let (mut b, _) = open(&b, 0, &pool, Kind::Packet).unwrap();
        carries(&mut a, &mut b, &pool, 200);
        carries(&mut b, &mut a, &pool, 200);
    });
}

#[test]
fn a_frame_that_no_slot_holds_is_dropped_and_counted_and_the_next_arrives() {
    in_namespace(|| {
        let (a, b) = wired();
        let (long, short) = (pool(), Pool::new(1024, 8192, Layout::PowerOfTwo).unwrap());
        let (mut a, _) = open(&a, 0, &long, Kind::Packet).unwrap();
        let (mut b, _) = open(&b, 0, &short, Kind::Xdp(XdpMode::Native)).unwrap();
        let mut burst: Burst = [11, 0, 11, 1].map(|number| numbered(&long, number)).into();
        send(&mut a, &mut burst);
        receive_all(&mut b, &mut burst, 2);
        receive(&mut b, &mut burst, 4);
        let lengths: Vec<usize> = burst.iter().map(|frame| frame.len()).collect();
        assert_eq!(lengths, [60, 1514]);
        assert_eq!(b.counters().rx_dropped, 2);
        burst.clear();
        drop(b);
        assert_eq!(short.available(), short.slots());
    });
}

#[test]
fn slots_of_a_page_at_an_mtu_of_9000_are_refused_with_the_reason() {
    in_namespace(|| {
        let (a, _b) = wired();
        let pool = Pool::new(1024, 4096, Layout::PowerOfTwo).unwrap();
        let error = open(&a, 0, &pool, Kind::Xdp(XdpMode::Native))
            .err()
            .unwrap();
        assert!(error.to_string().contains("MTU"), "{error}");
    });
}
