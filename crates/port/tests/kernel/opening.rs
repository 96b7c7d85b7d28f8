//! The kind chosen when a port is opened, and the error when none can be.

use std::sync::mpsc;
use std::thread;

use tare_port::{open, Burst, Interface, Kind, Layout, PacketPort, Pool, Port, XdpMode, XdpPort};

use crate::namespace::{in_namespace, ip, veth};
use crate::traffic::{becomes, carries, number, numbered, receive, receive_all, send};

fn pool() -> Pool {
    Pool::new(1024, 2048, Layout::PowerOfTwo).unwrap()
}

#[test]
fn the_mode_that_works_is_chosen_and_the_others_are_explained() {
    in_namespace(|| {
        let (a, _b) = veth("a", "b");
        let pool = pool();
        let modes = [XdpMode::ZeroCopy, XdpMode::Generic];
        let (port, refused) = XdpPort::open(&a, 0, &pool, &modes).unwrap();
        assert_eq!(port.mode(), XdpMode::Generic);
        assert_eq!(refused.len(), 1);
        assert_eq!(refused[0].kind, "AF_XDP zero-copy");
        assert!(
            refused[0].why.contains("driver cannot"),
            "{}",
            refused[0].why
        );
        drop(port);
        // A packet socket as long as the kernel has not released the queue, on a busy machine.
        let mut kinds = (0..12).map(|_| open(&a, 0, &pool, Kind::Auto).unwrap().1.kind);
        let kind = kinds.find(|kind| *kind != Kind::Packet);
        assert_eq!(kind, Some(Kind::Xdp(XdpMode::Native)));
        let error = open(&a, 0, &pool, Kind::Xdp(XdpMode::ZeroCopy))
            .err()
            .unwrap();
        assert!(error.to_string().contains("zero-copy"), "{error}");
    });
}

#[test]
fn a_pool_unfit_for_af_xdp_gets_a_packet_socket() {
    in_namespace(|| {
        let (a, b) = veth("a", "b");
        for pool in [
            Pool::new(1024, 2048, Layout::Spread).unwrap(),
            Pool::new(1024, 2000, Layout::PowerOfTwo).unwrap(),
            Pool::new(255, 2048, Layout::PowerOfTwo).unwrap(),
        ] {
            let (mut from, opened) = open(&a, 0, &pool, Kind::Auto).unwrap();
            assert_eq!(opened.kind, Kind::Packet);
            assert!(opened.refused[0].why.contains("Layout::PowerOfTwo"));
            let (mut to, _) = open(&b, 0, &pool, Kind::Auto).unwrap();
            carries(&mut from, &mut to, &pool, 640);
        }
    });
}

#[test]
fn a_queue_that_is_not_there_is_refused() {
    in_namespace(|| {
        let (a, _b) = veth("a", "b");
        let queues = a.queues();
        let error = open(&a, queues, &pool(), Kind::Xdp(XdpMode::Native))
            .err()
            .unwrap();
        let said = error.to_string();
        assert!(said.contains(&format!("a has no queue {queues}")), "{said}");
    });
}

#[test]
fn queues_on_several_threads_share_the_interface() {
    in_namespace(|| {
        ip("link add dev a numrxqueues 2 numtxqueues 2 type veth peer name b numrxqueues 2 numtxqueues 2");
        let [a, b] = ["a", "b"].map(|name| Interface::by_name(name).unwrap());
        a.set_up(true).unwrap();
        b.set_up(true).unwrap();
        assert_eq!(b.queues(), 2);
        let pool = pool();
        let (mut from, _) = XdpPort::open(&a, 0, &pool, &[XdpMode::Native]).unwrap();
        let (opened, wait) = mpsc::channel();
        let (done, stop) = mpsc::channel::<()>();
        let other = thread::spawn({
            let b = b.clone();
            move || {
                let pool = Pool::new(1024, 2048, Layout::PowerOfTwo).unwrap();
                // The other mode would need another program.
                let (port, _) = XdpPort::open(&b, 1, &pool, &[XdpMode::Native]).unwrap();
                opened.send(()).unwrap();
                stop.recv().unwrap();
                port.counters()
            }
        });
        wait.recv().unwrap();
        let error = XdpPort::open(&b, 0, &pool, &[XdpMode::Generic]).unwrap_err();
        assert!(error.to_string().contains("another queue"), "{error}");
        let (mut to, _) = XdpPort::open(&b, 0, &pool, &[XdpMode::Native]).unwrap();
        carries(&mut from, &mut to, &pool, 640);
        done.send(()).unwrap();
        assert_eq!(other.join().unwrap().rx_packets, 0);
        // The program stays for the queue that is left.
        carries(&mut from, &mut to, &pool, 640);
    });
}

#[test]
fn a_queue_that_is_taken_is_refused() {
    in_namespace(|| {
        let (a, _b) = veth("a", "b");
        let (first, second) = (pool(), pool());
        let (_port, _) = XdpPort::open(&a, 0, &first, &[XdpMode::Native]).unwrap();
        for (pool, why) in [
            (&first, "already"),
            (&second, "another socket has this queue"),
        ] {
            let error = XdpPort::open(&a, 0, pool, &[XdpMode::Native]).unwrap_err();
            assert!(error.to_string().contains(why), "{error}");
            assert_eq!(second.available(), second.slots());
        }
    });
}

#[test]
fn ports_that_share_an_interface_by_packet_sockets_get_each_flow_once() {
    in_namespace(|| {
        let (a, b) = veth("a", "b");
        let pool = pool();
        let mut from = PacketPort::open(&a, &pool).unwrap();
        let mut shares = [
            PacketPort::open_share(&b, &pool).unwrap(),
            PacketPort::open_share(&b, &pool).unwrap(),
        ];
        let mut all = PacketPort::open(&b, &pool).unwrap();
        let mut burst: Burst = (0..64).map(|n| numbered(&pool, n)).collect();
        send(&mut from, &mut burst);
        let mut numbers: Vec<u32> = Vec::new();
        becomes(|| {
            for port in &mut shares {
                receive(port, &mut burst, 64);
                numbers.extend(burst.drain(..).map(|frame| number(&frame)));
            }
            numbers.len() >= 64
        });
        numbers.sort_unstable();
        assert!(numbers.into_iter().eq(0..64));
        receive_all(&mut all, &mut burst, 64);
        assert_eq!(burst.len(), 64);
        burst.clear();
        // What a port sends, no port on the same interface receives.
        burst.push(numbered(&pool, 0));
        send(&mut all, &mut burst);
        for port in &mut shares {
            receive(port, &mut burst, 1);
        }
        assert!(burst.is_empty());
    });
}

/// A process that was forked, and has not executed anything yet, holds every socket of its parent.
#[test]
fn a_closed_port_that_a_forked_process_still_holds_takes_no_frames() {
    in_namespace(|| {
        let (a, b) = veth("a", "b");
        let pool = pool();
        let mut from = PacketPort::open(&a, &pool).unwrap();
        let mut held = Vec::new();
        for _ in 0..8 {
            let mut to = PacketPort::open_share(&b, &pool).unwrap();
            carries(&mut from, &mut to, &pool, 64);
            held.extend(to.handover().unwrap().duplicates().unwrap());
        }
    });
}
