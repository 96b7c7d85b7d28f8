//! Promises that every kind of port keeps.

use std::time::{Duration, Instant};

use tare_port::{open, Burst, Interface, Kind, Layout, Pool, Port, XdpMode};

use crate::namespace::{in_namespace, ip, veth};
use crate::traffic::{allocations, becomes, carries, number, numbered, receive, receive_all, send};

const KINDS: [Kind; 3] = [
    Kind::Xdp(XdpMode::Generic),
    Kind::Xdp(XdpMode::Native),
    Kind::Packet,
];

fn pool() -> Pool {
    Pool::new(4096, 2048, Layout::PowerOfTwo).unwrap()
}

fn opened(interface: &Interface, pool: &Pool, kind: Kind) -> Box<dyn Port> {
    // On a busy machine the kernel may not have released the queue of the port before.
    let is_taken = |error: &str| error.contains("another socket has this queue");
    let mut attempts = (0..12).map(|_| open(interface, 0, pool, kind));
    let opened = attempts.find(|it| !matches!(it, Err(error) if is_taken(&error.to_string())));
    let (port, opened) = opened.expect("a free queue within a minute").unwrap();
    assert_eq!(opened.kind, kind);
    assert!(opened.refused.is_empty());
    port
}

/// A test of every kind, each in a namespace of its own.
fn with_every_kind(test: fn(Kind)) {
    for kind in KINDS {
        in_namespace(move || {
            println!("{kind:?}");
            test(kind);
        });
    }
}

#[test]
fn frames_of_every_length_arrive_intact_and_in_order() {
    with_every_kind(|kind| {
        let (a, b) = veth("a", "b");
        let pool = pool();
        let (mut a, mut b) = (opened(&a, &pool, kind), opened(&b, &pool, kind));
        // Seven times all lengths.
        carries(&mut a, &mut b, &pool, 10_185);
        carries(&mut b, &mut a, &pool, 10_185);
        drop((a, b));
        assert_eq!(pool.available(), pool.slots());
    });
}

#[test]
fn two_ports_over_one_pool_forward_in_place() {
    with_every_kind(|kind| {
        let ((a, b), (c, d)) = (veth("a", "b"), veth("c", "d"));
        let (ends, middle) = (pool(), pool());
        let (mut a, mut d) = (
            opened(&a, &ends, Kind::Packet),
            opened(&d, &ends, Kind::Packet),
        );
        let (mut b, mut c) = (opened(&b, &middle, kind), opened(&c, &middle, kind));
        let mut burst = Burst::new();
        for first in (0..10_240).step_by(64) {
            burst.extend((first..first + 64).map(|n| numbered(&ends, n)));
            send(&mut a, &mut burst);
            receive_all(&mut b, &mut burst, 64);
            assert_eq!(burst.len(), 64);
            for frame in &mut burst {
                assert!(middle.owns(frame));
                assert!(frame.headroom() >= tare_port::HEADROOM);
                // As a tunnel would, and back.
                frame.prepend(54).unwrap().fill(0xaa);
                frame.trim_front(54);
            }
            send(&mut c, &mut burst);
            receive_all(&mut d, &mut burst, 64);
            assert!((first..first + 64).eq(burst.drain(..).map(|frame| number(&frame))));
        }
        let (received, sent) = (b.counters(), c.counters());
        assert_eq!(received.rx_packets, 10_240);
        assert_eq!(sent.tx_packets, received.rx_packets);
        assert_eq!(sent.tx_bytes, received.rx_bytes);
        drop((b, c));
        assert_eq!(middle.available(), middle.slots());
        drop((a, d));
        assert_eq!(ends.available(), ends.slots());
    });
}

#[test]
fn frames_of_another_pool_are_sent_and_go_home() {
    with_every_kind(|kind| {
        let (a, b) = veth("a", "b");
        let (pool, other) = (pool(), Pool::new(64, 2000, Layout::Spread).unwrap());
        let (mut a, mut b) = (opened(&a, &pool, kind), opened(&b, &pool, kind));
        carries(&mut a, &mut b, &other, 1455);
        assert_eq!(other.available(), other.slots());
        drop((a, b));
        assert_eq!(pool.available(), pool.slots());
    });
}

#[test]
fn frames_that_are_not_received_in_time_are_dropped_and_counted() {
    with_every_kind(|kind| {
        let (a, b) = veth("a", "b");
        let (pool, far) = (pool(), Pool::new(256, 2048, Layout::PowerOfTwo).unwrap());
        // Its queue is of 64 frames, or of what a socket buffers.
        let (mut a, mut b) = (opened(&a, &pool, Kind::Packet), opened(&b, &far, kind));
        let sent = if kind == Kind::Packet { 100_000 } else { 1000 };
        let mut burst = Burst::new();
        for first in (0..sent).step_by(50) {
            burst.extend((first..first + 50).map(|n| numbered(&pool, n)));
            send(&mut a, &mut burst);
        }
        let mut n = 0;
        // Until all have come or been dropped, however long the kernel takes.
        let is_whole = becomes(|| {
            receive(&mut b, &mut burst, 50);
            while !burst.is_empty() {
                // The first ones, without a gap.
                for frame in burst.drain(..) {
                    assert_eq!(number(&frame), n);
                    n += 1;
                }
                receive(&mut b, &mut burst, 50);
            }
            u64::from(n) + b.counters().rx_dropped >= u64::from(sent)
        });
        let counted = b.counters();
        assert!(is_whole, "{n} of {sent}: {counted:?}");
        assert!(0 < n && n < sent);
        assert_eq!(counted.rx_packets, u64::from(n));
        assert_eq!(counted.rx_dropped, u64::from(sent - n));
        assert_eq!(b.counters(), counted, "asked again");
        drop(b);
        assert_eq!(far.available(), far.slots());
    });
}

#[test]
fn no_packet_costs_an_allocation() {
    with_every_kind(|kind| {
        let (a, b) = veth("a", "b");
        let pool = pool();
        let (mut a, mut b) = (opened(&a, &pool, kind), opened(&b, &pool, kind));
        let mut burst = Burst::with_capacity(64);
        let mut turn = |first| {
            burst.extend((first..first + 64).map(|n| numbered(&pool, n)));
            send(&mut a, &mut burst);
            receive_all(&mut b, &mut burst, 64);
            assert_eq!(burst.len(), 64);
            burst.clear();
        };
        turn(0);
        let before = allocations();
        for first in (0..6400).step_by(64) {
            turn(first);
        }
        assert_eq!(allocations() - before, 0);
    });
}

#[test]
fn an_interface_that_is_down_comes_back() {
    with_every_kind(|kind| {
        let (left, right) = veth("a", "b");
        let pool = pool();
        let (mut a, mut b) = (opened(&left, &pool, kind), opened(&right, &pool, kind));
        carries(&mut a, &mut b, &pool, 640);
        let mut burst = Burst::new();

        // The far end is down: the cable is out.
        right.set_up(false).unwrap();
        until(&left, false);
        for n in 0..64 {
            burst.push(numbered(&pool, n));
        }
        let before = a.counters();
        send(&mut a, &mut burst);
        let after = a.counters();
        assert_eq!(after.tx_dropped - before.tx_dropped, 64);
        assert_eq!(after.tx_packets - before.tx_packets, 64);
        for _ in 0..1000 {
            assert_eq!(b.receive(&mut burst, 64).unwrap(), 0);
        }
        right.set_up(true).unwrap();
        until(&left, true);
        carries(&mut a, &mut b, &pool, 640);

        // This end is down.
        left.set_up(false).unwrap();
        let before = a.counters();
        for n in 0..640 {
            burst.push(numbered(&pool, n));
            send(&mut a, &mut burst);
        }
        let after = a.counters();
        // With AF_XDP the first one may lie in the ring.
        assert_eq!(after.tx_packets - before.tx_packets, 640);
        let dropped = after.tx_dropped - before.tx_dropped;
        assert!((639..=640).contains(&dropped), "{dropped}");
        for _ in 0..1000 {
            assert_eq!(a.receive(&mut burst, 64).unwrap(), 0);
        }
        left.set_up(true).unwrap();
        until(&left, true);
        a.send(&mut burst).unwrap();
        receive_all(&mut b, &mut burst, 640 - dropped as usize);
        receive(&mut b, &mut burst, 1 + 640 - dropped as usize);
        assert_eq!(burst.len() as u64, 640 - dropped);
        burst.clear();
        carries(&mut a, &mut b, &pool, 640);
        carries(&mut b, &mut a, &pool, 640);
        drop((a, b));
        assert_eq!(pool.available(), pool.slots());
    });
}

/// The kernel takes a moment to tell that a cable was pulled out or plugged in.
fn until(interface: &Interface, up: bool) {
    let begin = Instant::now();
    while interface.is_up().unwrap() != up {
        assert!(begin.elapsed() < Duration::from_secs(30));
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn an_interface_that_was_deleted_is_an_error() {
    with_every_kind(|kind| {
        let (a, b) = veth("a", "b");
        let pool = pool();
        let (mut a, mut b) = (opened(&a, &pool, kind), opened(&b, &pool, kind));
        carries(&mut a, &mut b, &pool, 64);
        ip("link del dev a");
        let mut burst = Burst::new();
        let mut error = None;
        becomes(|| {
            error = a.receive(&mut burst, 64).err();
            error.is_some()
        });
        let error = error.expect("an error");
        assert!(error.to_string().contains("gone"), "{error}");
        burst.push(numbered(&pool, 0));
        let error = b.send(&mut burst).expect_err("an error");
        assert!(error.to_string().contains("gone"), "{error}");
        drop((a, b, burst));
        assert_eq!(pool.available(), pool.slots());
        // The name can be had again, and a port over the same pool.
        let (a, b) = veth("a", "b");
        let (mut a, mut b) = (opened(&a, &pool, kind), opened(&b, &pool, kind));
        carries(&mut a, &mut b, &pool, 64);
    });
}

#[test]
fn a_port_can_be_closed_and_opened_again_at_once() {
    with_every_kind(|kind| {
        let (left, right) = veth("a", "b");
        let pool = pool();
        let mut a = opened(&left, &pool, kind);
        for _ in 0..5 {
            let mut b = opened(&right, &pool, kind);
            carries(&mut a, &mut b, &pool, 64);
            drop(a);
            a = b;
            let mut b = opened(&left, &pool, kind);
            carries(&mut a, &mut b, &pool, 64);
            drop(a);
            a = b;
        }
        drop(a);
        assert_eq!(pool.available(), pool.slots());
    });
}

#[test]
fn a_port_can_be_waited_on() {
    with_every_kind(|kind| {
        let (a, b) = veth("a", "b");
        let pool = pool();
        let (mut a, mut b) = (opened(&a, &pool, kind), opened(&b, &pool, kind));
        let ready = |port: &dyn Port, longest_ms: i32| {
            let fd = std::os::fd::AsRawFd::as_raw_fd(&port.wait_on().unwrap());
            let mut poll = libc::pollfd {
                fd,
                events: libc::POLLIN,
                revents: 0,
            };
            // SAFETY: one entry, as told.
            unsafe { libc::poll(&mut poll, 1, longest_ms) == 1 && poll.revents & libc::POLLIN != 0 }
        };
        assert!(!ready(&b, 0));
        let mut burst: Burst = vec![numbered(&pool, 0)];
        send(&mut a, &mut burst);
        assert!(ready(&b, 10_000));
        receive_all(&mut b, &mut burst, 1);
        assert_eq!(burst.len(), 1);
        assert!(!ready(&b, 0));
    });
}
