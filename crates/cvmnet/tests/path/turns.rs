//! Guest and host on one thread and in virtual time, with turns and pauses that are drawn: what two
//! busy processors do to them is repeated for each seed.

use std::time::Duration;

use tare_sim::Random;

use super::*;

/// Bytes of each connection and direction: more than all queues hold.
const EACH: u64 = 3 << 20;
/// Without a byte that arrives: longer than several timeouts of TCP.
const STALL: Duration = Duration::from_secs(20);

/// Moves bytes both ways, and returns the time that it took.
fn run_in_turns(variant: Variant, to_guest: u64, from_guest: u64, seed: u64) -> Duration {
    let mut random = Random::new(seed);
    let (server, client) = tls();
    let layout = variant.config(1);
    let region = Region::create(&layout).unwrap();
    let fd = region.fd().try_clone_to_owned().unwrap();
    let own = Region::open(fd, &layout).unwrap();
    let driver = Driver::new(own, 0, Settings::default(), Off).unwrap();
    let tcp = variant.tcp(Config::on_link([2, 0, 0, 0, 0, 2], GUEST));
    let streams: Box<dyn Service> = Box::new(Streams(from_guest, to_guest));
    let secret = Secret::new(&[7; 16]);
    let mut guest = Guest::new(driver, tcp, secret, server, vec![(PORT, streams)], Off).unwrap();
    let began = Instant::ZERO + Duration::from_secs(1);
    let peer = peer(client, began, (to_guest, from_guest));
    let mut device = Device::new(&region, 0, settings(variant), peer).unwrap();
    let (mut now, mut finished) = (began, Vec::new());
    let (mut moved, mut moved_at) = (0, now);
    while finished.len() < 4 {
        let time = Time {
            now,
            unix: Duration::from_secs(1_800_000_000),
        };
        // Now and then one of them is not on a processor for a while.
        let turns = 1 + random.below(40);
        match random.below(2) {
            0 => (0..turns).for_each(|_| {
                guest.turn(time).unwrap();
            }),
            _ => (0..turns).for_each(|_| {
                device.frames().turn(time);
                device.poll(now).unwrap();
            }),
        }
        finished.extend(device.frames().take_finished());
        let pause = match random.below(2000) {
            0 => random.duration(Duration::from_millis(1), Duration::from_millis(600)),
            _ => random.duration(Duration::from_micros(1), Duration::from_micros(300)),
        };
        now += pause;
        let counters = (guest.counters(), device.frames().counters());
        let sum = counters.0.bytes_in + counters.1.bytes_in;
        if sum != moved {
            (moved, moved_at) = (sum, now);
        }
        assert!(
            now.since(moved_at) < STALL,
            "{}, seed {seed}: no byte arrives after {:?}: {counters:?} {:?}",
            variant.name,
            moved_at.since(began),
            device.counters()
        );
    }
    for (_, stream) in finished {
        assert_eq!((stream.received, stream.wrong), (from_guest, 0));
    }
    assert_eq!(guest.counters().bytes_in, 4 * to_guest, "{}", variant.name);
    now.since(began)
}

/// Each side has more to send than all queues hold, and takes what arrives all the same.
#[test]
fn no_order_of_turns_stops_bytes_both_ways() {
    for variant in Variant::ALL {
        for seed in 0..6 {
            let took = run_in_turns(variant, EACH, EACH, seed);
            eprintln!("{:20} seed {seed} {took:?}", variant.name);
        }
    }
}

#[test]
fn no_order_of_turns_stops_bytes_one_way() {
    for variant in Variant::ALL {
        for seed in 0..3 {
            run_in_turns(variant, EACH, 0, seed);
            run_in_turns(variant, 0, EACH, seed);
        }
    }
}
