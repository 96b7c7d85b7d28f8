//! TAP devices, whose other side is a packet socket here.

use std::process::Command;
use tare_port::{Burst, Layout, PacketPort, Pool, Port, TapPort, VnetTap, VNET_HEADER};

use crate::namespace::{in_namespace, ip};
use crate::traffic::{allocations, becomes, carries, numbered, receive, receive_all, send};

fn pool() -> Pool {
    Pool::new(4096, 2048, Layout::Spread).unwrap()
}

#[test]
fn frames_of_every_length_cross_a_tap_device_both_ways() {
    in_namespace(|| {
        let pool = pool();
        let mut tap = TapPort::open("tap", &pool).unwrap();
        let mut kernel = PacketPort::open(tap.interface(), &pool).unwrap();
        carries(&mut kernel, &mut tap, &pool, 10_185);
        carries(&mut tap, &mut kernel, &pool, 10_185);
        let mut burst = Burst::with_capacity(64);
        let before = allocations();
        for first in (0..640).step_by(64) {
            burst.extend((first..first + 64).map(|n| numbered(&pool, n)));
            send(&mut kernel, &mut burst);
            receive_all(&mut tap, &mut burst, 64);
            send(&mut tap, &mut burst);
            receive_all(&mut kernel, &mut burst, 64);
            burst.clear();
        }
        assert_eq!(allocations() - before, 0);
        drop((tap, kernel));
        assert_eq!(pool.available(), pool.slots());
    });
}

#[test]
fn what_a_tap_device_has_no_room_for_is_dropped_and_counted() {
    in_namespace(|| {
        let pool = pool();
        let mut tap = TapPort::open("tap", &pool).unwrap();
        let mut kernel = PacketPort::open(tap.interface(), &pool).unwrap();
        let mut burst = Burst::new();
        for first in (0..2000).step_by(50) {
            burst.extend((first..first + 50).map(|n| numbered(&pool, n)));
            send(&mut kernel, &mut burst);
        }
        becomes(|| {
            receive(&mut tap, &mut burst, 2000);
            let counted = tap.counters();
            counted.rx_packets + counted.rx_dropped >= 2000
        });
        let (sent, counted) = (kernel.counters(), tap.counters());
        assert!(counted.rx_dropped > 0);
        assert_eq!(counted.rx_packets, burst.len() as u64);
        assert_eq!(counted.rx_packets + counted.rx_dropped, sent.tx_packets);
    });
}

#[test]
fn a_tap_device_goes_down_comes_back_and_is_deleted() {
    in_namespace(|| {
        let pool = pool();
        let mut tap = TapPort::open("tap", &pool).unwrap();
        let interface = tap.interface().clone();
        interface.set_up(false).unwrap();
        let mut burst = vec![numbered(&pool, 0), numbered(&pool, 1)];
        assert_eq!(tap.receive(&mut burst, 9).unwrap(), 0);
        send(&mut tap, &mut burst);
        assert_eq!(tap.counters().tx_dropped, 2);
        interface.set_up(true).unwrap();
        let mut kernel = PacketPort::open(&interface, &pool).unwrap();
        carries(&mut tap, &mut kernel, &pool, 64);
        carries(&mut kernel, &mut tap, &pool, 64);
        ip("link del dev tap");
        let error = tap.receive(&mut burst, 9).unwrap_err();
        assert!(error.to_string().contains("gone"), "{error}");
        burst.push(numbered(&pool, 0));
        let error = tap.send(&mut burst).unwrap_err();
        assert!(error.to_string().contains("gone"), "{error}");
    });
}

#[test]
fn a_name_that_no_device_can_have_is_refused() {
    in_namespace(|| {
        let pool = pool();
        for name in ["", "a%d", "a-name-that-is-far-too-long", "a\0b", "a/b"] {
            let error = TapPort::open(name, &pool).unwrap_err();
            assert!(error.to_string().contains("TAP device"), "{error}");
        }
    });
}

#[test]
fn a_device_that_is_there_and_does_not_fit_is_named_for_what_it_is() {
    in_namespace(|| {
        ip("tuntap add dev tun mode tun");
        ip("tuntap add dev single mode tap vnet_hdr");
        ip("tuntap add dev several mode tap vnet_hdr multi_queue");
        for (name, queues, expected) in [
            ("lo", 1, "found another interface of this name"),
            ("tun", 1, "found a TUN device"),
            ("single", 2, "found one with a single queue"),
            ("several", 1, "found one that was made with \"multi_queue\""),
            ("a-name-that-is-far-too-long", 1, "found a name of 27 bytes"),
            ("a/b", 1, "found '/' in the name"),
        ] {
            let error = VnetTap::open_queues(name, false, queues).unwrap_err();
            assert!(error.to_string().contains(expected), "{name}: {error}");
            assert!(!error.to_string().contains("CAP_"), "{error}");
        }
        let held = VnetTap::open("single", false).unwrap();
        let error = VnetTap::open("single", false).unwrap_err();
        assert!(error.to_string().contains("in use"), "{error}");
        assert!(!held.is_new());
    });
}

#[test]
fn mtu_and_transmit_queue_of_a_tap_device_that_is_made_can_be_set() {
    in_namespace(|| {
        let taps = VnetTap::open_queues("tap", false, 2).unwrap();
        assert_eq!([taps[0].is_new(), taps[1].is_new()], [true, false]);
        let interface = taps[0].interface();
        assert_eq!(interface.mtu().unwrap(), 1500);
        for mtu in [1280, 9000] {
            interface.set_mtu(mtu).unwrap();
            assert_eq!(interface.mtu().unwrap(), mtu);
        }
        assert!(interface.set_mtu(1 << 20).is_err());
        assert!(interface.set_mtu(usize::MAX).is_err());
        for frames in [3, 4096] {
            interface.set_transmit_queue(frames).unwrap();
            let show = ["-o", "link", "show", "tap"];
            let shown = Command::new("ip").args(show).output().unwrap().stdout;
            let shown = String::from_utf8(shown).unwrap();
            assert!(shown.contains(&format!("qlen {frames}")), "{shown}");
        }
    });
}

#[test]
fn frames_with_headers_cross_both_ways_and_what_does_not_fit_is_counted() {
    in_namespace(|| {
        let pool = pool();
        let mut tap = VnetTap::open("tap", false).unwrap();
        let mut kernel = PacketPort::open(tap.interface(), &pool).unwrap();
        let (mut header, mut frame) = ([0xff; VNET_HEADER], [0; 2000]);
        let mut burst = Burst::new();
        for n in 0..2000 {
            let sent = numbered(&pool, n);
            assert!(tap.send(&[0; VNET_HEADER], &sent).unwrap());
            receive_all(&mut kernel, &mut burst, 1);
            assert_eq!(*burst.pop().unwrap(), *sent, "to the kernel");
            burst.push(sent.duplicate().unwrap());
            send(&mut kernel, &mut burst);
            let len = tap.receive(&mut header, &mut frame).unwrap().unwrap();
            assert_eq!(frame[..len], *sent, "from the kernel");
            assert_eq!(header[..2], [0, 0], "nothing was left to this side");
        }
        assert_eq!(tap.receive(&mut header, &mut frame).unwrap(), None);
        assert_eq!(tap.dropped(), 0);
        // A checksum that is left to the kernel.
        let mut unfinished = numbered(&pool, 0);
        unfinished.truncate(60);
        unfinished[44..60].fill(1);
        unfinished[50..52].fill(0);
        let needs_checksum = [1, 0, 0, 0, 0, 0, 44, 0, 6, 0];
        assert!(tap.send(&needs_checksum, &unfinished).unwrap());
        // A way of cutting that there is not.
        assert!(tap
            .send(&[0, 9, 0, 0, 1, 0, 0, 0, 0, 0], &unfinished)
            .unwrap());
        assert_eq!(tap.dropped(), 1);
        // Frames that fill the room may have been cut.
        let sent = numbered(&pool, 1);
        for (room, is_dropped) in [(sent.len(), true), (sent.len() + 1, false)] {
            burst.push(sent.duplicate().unwrap());
            send(&mut kernel, &mut burst);
            let received = tap.receive(&mut header, &mut frame[..room]).unwrap();
            assert_eq!(received, (!is_dropped).then_some(sent.len()));
        }
        assert_eq!(tap.dropped(), 2);
        ip("link del dev tap");
        let error = tap.receive(&mut header, &mut frame).unwrap_err();
        assert!(error.to_string().contains("gone"), "{error}");
    });
}
