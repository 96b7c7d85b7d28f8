//! Sending by XDP, on the thread of a port and on others.

use std::sync::mpsc;
use std::thread;

use tare_port::{
    open, open_to_send, open_with_lanes, Burst, Interface, Kind, Layout, Pool, Port, XdpMode,
    XdpSender,
};

use crate::namespace::{in_namespace, ip, veth};
use crate::traffic::{allocations, carries, number, numbered, receive_all, send};

const NATIVE: Kind = Kind::Xdp(XdpMode::Native);

fn pool() -> Pool {
    Pool::new(4096, 2048, Layout::PowerOfTwo).unwrap()
}

/// Both ends of a cable with these lanes.
fn opened(a: &Interface, b: &Interface, pool: &Pool, lanes: u32) -> [Box<dyn Port>; 2] {
    // A driver sends by XDP if the other end receives so.
    let (near, _) = open_with_lanes(a, 0, pool, NATIVE, lanes).unwrap();
    assert!(XdpSender::is_possible(a).is_err());
    let (far, _) = open_with_lanes(b, 0, pool, NATIVE, lanes).unwrap();
    for end in [a, b] {
        XdpSender::is_possible(end).unwrap();
    }
    [near, far]
}

#[test]
fn frames_of_every_length_are_sent_by_xdp_intact_and_in_order() {
    in_namespace(|| {
        let (a, b) = veth("a", "b");
        let pool = pool();
        let [mut near, mut far] = opened(&a, &b, &pool, 1);
        carries(&mut near, &mut far, &pool, 10_185);
        carries(&mut far, &mut near, &pool, 10_185);
        let other = Pool::new(64, 2000, Layout::Spread).unwrap();
        carries(&mut near, &mut far, &other, 640);
        let mut burst = Burst::with_capacity(64);
        let before = allocations();
        burst.extend((0..64).map(|n| numbered(&pool, n)));
        send(&mut near, &mut burst);
        receive_all(&mut far, &mut burst, 64);
        burst.clear();
        assert_eq!(allocations() - before, 0);
        drop((near, far));
        assert_eq!(pool.available(), pool.slots());
    });
}

#[test]
fn frames_that_the_other_end_does_not_take_are_counted_as_dropped() {
    in_namespace(|| {
        let (a, b) = veth("a", "b");
        let pool = pool();
        let [mut near, mut far] = opened(&a, &b, &pool, 1);
        carries(&mut near, &mut far, &pool, 64);
        b.set_up(false).unwrap();
        let mut burst: Burst = (0..50).map(|n| numbered(&pool, n)).collect();
        send(&mut near, &mut burst);
        assert_eq!(near.counters().tx_packets, 64 + 50);
        assert_eq!(near.counters().tx_dropped, 50);
        b.set_up(true).unwrap();
        ip("link del dev a");
        burst.push(numbered(&pool, 0));
        let error = near.send(&mut burst).unwrap_err();
        assert!(error.to_string().contains("gone"), "{error}");
    });
}

#[test]
fn threads_send_beside_the_port_and_every_frame_arrives_once() {
    in_namespace(|| {
        let (a, b) = veth("a", "b");
        let pool = pool();
        let [mut near, mut far] = opened(&a, &b, &pool, 3);
        // Together not more than the receiver's ring holds.
        let (done, wait) = mpsc::channel();
        let threads: Vec<_> = (1..3)
            .map(|thread| {
                let (a, done) = (a.clone(), done.clone());
                thread::spawn(move || {
                    let pool = Pool::new(64, 2048, Layout::Spread).unwrap();
                    let mut sender = XdpSender::open(&a).unwrap();
                    let mut burst = Burst::new();
                    for first in (0..320).step_by(32) {
                        let numbers = thread * 1000 + first..thread * 1000 + first + 32;
                        burst.extend(numbers.map(|n| numbered(&pool, n)));
                        send(&mut sender, &mut burst);
                    }
                    done.send(sender.counters().tx_packets).unwrap();
                })
            })
            .collect();
        let mut burst: Burst = (0..320).map(|n| numbered(&pool, n)).collect();
        send(&mut near, &mut burst);
        receive_all(&mut far, &mut burst, 3 * 320);
        threads.into_iter().for_each(|t| t.join().unwrap());
        assert_eq!(wait.try_iter().collect::<Vec<_>>(), [320, 320]);
        // A thread that changes its CPU meanwhile changes its queue, so their order is open.
        let mut numbers: Vec<u32> = burst.drain(..).map(|frame| number(&frame)).collect();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), 3 * 320);
        assert_eq!(near.counters().tx_dropped, 0);
    });
}

#[test]
fn a_lane_is_free_again_after_its_sender_and_nothing_is_sent_from_it_twice() {
    in_namespace(|| {
        let (a, b) = veth("a", "b");
        let pool = pool();
        let [_near, mut far] = opened(&a, &b, &pool, 3);
        let lane = |sender: &XdpSender| format!("{sender:?}");
        let mut senders = [(); 2].map(|()| XdpSender::open(&a).unwrap());
        let error = XdpSender::open(&a).unwrap_err();
        assert!(error.to_string().contains("in use"), "{error}");
        let mut burst: Burst = (0..10).map(|n| numbered(&pool, n)).collect();
        send(&mut senders[0], &mut burst);
        receive_all(&mut far, &mut burst, 10);
        drop(senders);
        for _ in 0..5 {
            let reopened = [(); 2].map(|()| XdpSender::open(&a).unwrap());
            let lanes = reopened.each_ref().map(lane);
            assert_eq!(lanes, ["XdpSender(lane 1)", "XdpSender(lane 2)"]);
        }
        thread::sleep(std::time::Duration::from_millis(50));
        assert_eq!(far.receive(&mut burst, 64).unwrap(), 0);
        // Where it is not possible any more, none is lost either.
        drop(far);
        for _ in 0..5 {
            let error = XdpSender::open(&a).unwrap_err();
            assert!(!error.to_string().contains("in use"), "{error}");
        }
    });
}

#[test]
fn where_the_other_end_is_plain_a_port_sends_by_its_ring_and_threads_by_packet_sockets() {
    in_namespace(|| {
        let (a, b) = veth("a", "b");
        let pool = pool();
        let (mut near, _) = open_with_lanes(&a, 0, &pool, NATIVE, 2).unwrap();
        let (mut far, _) = open(&b, 0, &pool, Kind::Packet).unwrap();
        carries(&mut near, &mut far, &pool, 640);
        let mut beside = open_to_send(&a, &pool).unwrap();
        carries(&mut beside, &mut far, &pool, 640);
        // It receives nothing.
        let mut burst: Burst = vec![numbered(&pool, 0)];
        send(&mut far, &mut burst);
        receive_all(&mut near, &mut burst, 1);
        assert_eq!(burst.len(), 1);
        burst.clear();
        assert_eq!(beside.receive(&mut burst, 1).unwrap(), 0);
    });
}
