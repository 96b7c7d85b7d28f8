//! Tests that take minutes, or a machine of their own.

use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tare_packet::frame;
use tare_port::{open, Burst, Interface, Kind, Layout, Pool};

use crate::testbed::*;

/// Spoofed messages of each type.
const PER_SECOND: u64 = 50_000;

/// Not a type: frames of the same rate that are no messages, and dropped as soon as they are seen.
/// What is lost beside them is what so many frames cost this machine.
const CONTROL: u8 = 0;

/// Sends spoofed messages of these types to the gateway at the other end of a public link, so many
/// of each per second, and returns how many it sent.
fn spoof(bed: &Testbed, side: usize, types: &[u8], per_second: u64, time: Duration) -> u64 {
    let mac = |side: usize| {
        bed.spaces.within(&format!("g{side}"), || {
            Interface::by_name("public").unwrap().mac().unwrap()
        })
    };
    let (to, from) = (mac(side), mac(1 - side));
    let address = |side: usize| format!("192.0.2.{}", side + 1).parse().unwrap();
    let mut random = tare_sim::Random::new(side as u64);
    let mut frames = Vec::new();
    for _ in 0..1000 {
        for &kind in types {
            let mut body = [0; 80];
            random.fill(&mut body);
            let mut message = 1001u32.to_be_bytes().to_vec();
            message.extend([kind, 0, 0, 0]);
            match kind {
                11 => message.extend([0, 0, 0, 5]),
                12 => {
                    message.extend([0, 0, 0, 5]);
                    message.extend(b"aes-gcm-16-icv");
                    message.resize(8 + 4 + 32, 0);
                    message.extend(&body[..32]);
                }
                _ => message.extend(body),
            }
            let (src, dst) = (address(1 - side), address(side));
            let port = if kind == CONTROL { 9 } else { 303 };
            frames.push(frame::udp(to, from, src, dst, port, &message).unwrap());
        }
    }
    bed.spaces.within(&format!("g{}", 1 - side), || {
        let pool = Pool::new(4096, 2048, Layout::Spread).unwrap();
        let interface = Interface::by_name("public").unwrap();
        let (mut port, _) = open(&interface, 0, &pool, Kind::Packet).unwrap();
        let (start, mut sent) = (Instant::now(), 0);
        let per_second = per_second * types.len() as u64;
        let mut frames = frames.iter().cycle();
        while start.elapsed() < time {
            let due = (start.elapsed().as_secs_f64() * per_second as f64) as u64;
            if due <= sent {
                thread::sleep(Duration::from_micros(500));
                continue;
            }
            let burst = frames.by_ref().take((due - sent).min(256) as usize);
            let mut burst: Burst = burst.filter_map(|frame| pool.copy(frame)).collect();
            let n = burst.len() as u64;
            port.send(&mut burst).unwrap();
            sent += n - burst.len() as u64;
        }
        sent
    })
}

/// The whole of it takes eight minutes, and two CPUs for the gateways and the attackers:
/// `sudo -E cargo test -p tare --test gateway_run -- --ignored --nocapture spoofed`.
#[test]
#[ignore = "takes eight minutes and a machine of its own; see the guide's page about the gateway"]
fn spoofed_messages_leave_no_packet_without_an_sa() {
    let seconds = std::env::var("TARE_FLOOD_SECONDS").map_or(60, |text| text.parse().unwrap());
    for types in [
        &[CONTROL][..],
        &[11],
        &[12],
        &[13],
        &[14],
        &[11, 12, 13, 14],
    ] {
        let Some(mut bed) = Testbed::new(&[]) else {
            return;
        };
        bed.timers = "negotiation-ttl 5; sa-ttl 20;";
        bed.up();
        bed.wait_for_packets();
        let drops = |direction: &str| {
            [0, 1].map(|side| {
                let mut dropped = bed.status(side).unwrap()[direction]["dropped"].clone();
                // No host has sent it: it proves that an SA is in use.
                dropped.as_object_mut().unwrap().remove("dummy");
                dropped
            })
        };
        // Frames for which a port had no room, because its gateway was not on a CPU, or a cable.
        let without_room = || -> u64 {
            let count = |side: usize, port: &str| {
                bed.status(side).unwrap()["workers"][0][port]["rx_dropped"].as_u64()
            };
            let all = [(0, "private"), (0, "public"), (1, "private"), (1, "public")];
            let ports = all.map(|(side, port)| count(side, port).unwrap());
            ports.into_iter().sum::<u64>() + bed.dropped_by_cables()
        };
        let before = [drops("outbound"), drops("inbound")];
        let without_room_before = without_room();
        let traffic = bed.traffic();
        let time = Duration::from_secs(seconds);
        let flood = thread::scope(|scope| {
            let floods = [0, 1].map(|side| {
                let bed = &bed;
                scope.spawn(move || spoof(bed, side, types, PER_SECOND, time))
            });
            floods.map(|flood| flood.join().unwrap() / seconds)
        });
        thread::sleep(Duration::from_secs(20));
        let count = traffic.end(&bed);
        let (sent, lost) = (count.sent, count.lost.len());
        let no_room = without_room() - without_room_before;
        println!(
            "types {types:?}: {flood:?} per second; {lost} of {sent} packets lost, \
             {no_room} frames without room at a port or in a cable"
        );
        if types == [CONTROL] {
            continue;
        }
        // No packet was without an SA, and what is lost had no room before the gateway saw it.
        assert_eq!(
            [drops("outbound"), drops("inbound")],
            before,
            "types {types:?}"
        );
        assert!(lost as u64 <= no_room, "types {types:?}: {lost}, {no_room}");
        if let [one] = types {
            let asked = 0.95 * PER_SECOND as f64;
            let is_offered = flood.iter().all(|rate| *rate as f64 > asked);
            assert!(is_offered, "type {one}: {flood:?} per second");
        }
    }
}

/// The outage of packets that only one host sends, when the other gateway is killed and started.
#[test]
#[ignore = "timed: needs a machine of its own"]
fn a_restarted_gateway_is_followed_within_a_second_and_a_half() {
    let Some(mut bed) = Testbed::new(&[]) else {
        return;
    };
    bed.timers = "";
    bed.up();
    bed.wait_for_packets();
    let sockets = [bed.udp(0, 7002), bed.udp(1, 7002)];
    let to = sockets[1].local_addr().unwrap();
    let limit = Some(Duration::from_millis(20));
    sockets[1].set_read_timeout(limit).unwrap();
    for _ in 0..5 {
        thread::sleep(Duration::from_secs(10));
        bed.signal(1, Signal::KILL);
        bed.gateways[1].take().unwrap().wait().unwrap();
        let killed = Instant::now();
        bed.start(1);
        while sockets[1].recv(&mut [0; 8]).is_ok() {}
        let mut n = 0u64;
        let outage = loop {
            sockets[0].send_to(&n.to_be_bytes(), to).unwrap();
            n += 1;
            if sockets[1].recv(&mut [0; 8]).is_ok() {
                break killed.elapsed();
            }
            assert!(killed.elapsed() < Duration::from_secs(30), "{}", bed.log(1));
        };
        println!("{outage:?} from the end of a gateway to a packet through the next");
        assert!(outage < Duration::from_millis(1500), "{outage:?}");
    }
}
