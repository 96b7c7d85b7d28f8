//! Ports at the ends of simulated lines.

use std::cell::Cell;
use std::rc::Rc;

use tare_port::{joined, Burst, Layout, Pool, Port};
use tare_sim::{Instant, LineConfig, Queue};

const GIGABIT: u64 = 1_000_000_000;

fn at(ns: u64) -> Instant {
    Instant::from_nanos(ns)
}

#[test]
fn frames_cross_a_pair_of_line_ports_at_the_times_of_the_callers_clock() {
    let pool = Pool::new(64, 2048, Layout::Spread).unwrap();
    let time = Rc::new(Cell::new(Instant::ZERO));
    let clock = {
        let time = Rc::clone(&time);
        move || time.get()
    };
    let config = LineConfig {
        queue: Queue::Frames(9),
        duplication: 1.0,
        ..LineConfig::new(GIGABIT)
    };
    let (mut a, mut b) = joined(&config, &LineConfig::new(GIGABIT), clock);
    let mut burst: Burst = (0..12u8).map(|n| pool.copy(&[n; 60]).unwrap()).collect();
    assert_eq!(a.send(&mut burst).unwrap(), 12);
    assert_eq!(a.counters().tx_dropped, 2);
    assert_eq!(a.line().queue_dropped, 2);
    assert_eq!(b.receive(&mut burst, 64).unwrap(), 0);
    time.set(b.next_arrival().unwrap());
    assert_eq!(b.receive(&mut burst, 64).unwrap(), 2);
    assert_eq!(&*burst[0], [0; 60]);
    assert_eq!(&*burst[1], [0; 60]);
    time.set(at(10 * 672));
    assert_eq!(b.receive(&mut burst, 7).unwrap(), 7);
    assert_eq!(b.receive(&mut burst, 64).unwrap(), 11);
    assert_eq!(b.counters().rx_packets, 20);
    b.send(&mut burst).unwrap();
    time.set(at(1_000_000));
    assert_eq!(a.receive(&mut burst, 64).unwrap(), 20);
    burst.clear();
    assert_eq!(pool.available(), 64);
}
