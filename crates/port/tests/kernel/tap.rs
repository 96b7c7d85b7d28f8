//! TAP devices, whose other side is a packet socket here.

use tare_port::{Burst, Layout, PacketPort, Pool, Port, TapPort};

use crate::namespace::{in_namespace, ip};
use crate::traffic::{allocations, carries, numbered, receive, send};

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
            receive(&mut tap, &mut burst, 64);
            send(&mut tap, &mut burst);
            receive(&mut kernel, &mut burst, 64);
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
        receive(&mut tap, &mut burst, 2000);
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
        // Something else has it.
        assert!(TapPort::open("lo", &pool).is_err());
    });
}
