//! Segments of any content at a guest's stack with an open connection: frames as they are, and
//! segments whose numbers are near those of the connection. Nothing panics, memory is bounded, no
//! timer is left due, and nothing stays when all is closed.
#![no_main]

use std::net::Ipv4Addr;
use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use tare_cvmnet::tcp::{Checksum, Config, Frame, Id, Network, Packet, Secret, Stack, Transmit};
use tare_packet::{frame, protocol};
use tare_sim::Instant;

const OWN: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const PEER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 2);
const MAC: [[u8; 6]; 2] = [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]];
const BOUND: usize = 50_000;

/// Keeps the sequence number of the last packet.
#[derive(Default)]
struct Sink(u32);

impl Transmit<Vec<u8>> for Sink {
    fn room(&mut self) -> usize {
        64
    }

    fn send(&mut self, packet: Packet<'_, Vec<u8>>) {
        let pieces: usize = packet
            .payload
            .map(|(buffer, range)| buffer[range].len())
            .sum();
        assert_eq!(pieces, packet.payload_len);
        if let Some(seq) = packet.headers.get(38..42) {
            self.0 = seq.iter().fold(0, |word, &b| word << 8 | u32::from(b));
        }
    }
}

fn put(stack: &mut Stack<Vec<u8>>, now: Instant, frame: Vec<u8>) {
    let range = 0..frame.len();
    let checksum = Checksum::Trusted;
    stack.receive(
        now,
        Frame {
            buffer: frame,
            range,
            checksum,
        },
    );
}

/// A segment to the stack: flags and options as they are.
fn segment(seq: u32, ack: u32, flags: u8, window: u16, rest: &[u8]) -> Vec<u8> {
    let options = usize::from(rest.first().copied().unwrap_or(0) % 11) * 4;
    let rest = rest.get(1..).unwrap_or(&[]);
    let options = options.min(rest.len() / 4 * 4);
    let mut tcp = Vec::new();
    tcp.extend(5000u16.to_be_bytes());
    tcp.extend(443u16.to_be_bytes());
    tcp.extend(seq.to_be_bytes());
    tcp.extend(ack.to_be_bytes());
    tcp.extend([(5 + options as u8 / 4) << 4, flags]);
    tcp.extend(window.to_be_bytes());
    tcp.extend([0; 4]);
    tcp.extend(rest);
    frame::ipv4(MAC[0], MAC[1], PEER, OWN, protocol::TCP, &tcp)
}

fuzz_target!(|input: &[u8]| {
    let [choice, input @ ..] = input else { return };
    let ip4 = Some(Network {
        address: OWN,
        prefix_len: 24,
        gateway: None,
    });
    let config = Config {
        ip4,
        connections_max: 10,
        backlog: 3,
        pinned_max: BOUND,
        pool_max: BOUND,
        copied_max: BOUND,
        sack: choice & 1 != 0,
        timestamps: choice & 2 != 0,
        checksum_offload: choice & 4 != 0,
        segmentation_offload: choice & 4 != 0,
        ..Config::new(MAC[0])
    };
    let mut stack: Stack<Vec<u8>> = Stack::new(config, Secret::new(&[3; 16])).expect("possible");
    let mut sink = Sink::default();
    let mut now = Instant::from_nanos(1_000_000_000);
    stack.listen(443);
    // SACK permitted and a window scale of 3.
    put(
        &mut stack,
        now,
        segment(99, 0, 2, 1000, &[2, 4, 2, 3, 3, 3, 1, 1, 1]),
    );
    while stack.poll(now, &mut sink) {}
    let own = sink.0.wrapping_add(1);
    put(&mut stack, now, segment(100, own, 16, 1000, &[]));
    let mut ids: Vec<Id> = stack.accept(443).into_iter().collect();
    for piece in input.chunks(48) {
        let [kind, time, a, b, c, d, rest @ ..] = piece else {
            break;
        };
        now += Duration::from_millis(u64::from(*time) * u64::from(*time));
        let small = |high: u8, low: u8| (high as i8 as u32) << 8 | u32::from(low);
        match kind % 8 {
            0 => put(&mut stack, now, rest.to_vec()),
            1 => {
                for &id in &ids {
                    let _ = stack.send(now, id, vec![1; 16 * usize::from(*a)], 0..usize::from(*a));
                    stack.consume(now, id, usize::from(*b) * 16);
                }
            }
            2 if *a == 0 => ids.iter().for_each(|&id| stack.shutdown(now, id)),
            3 => {
                let _ = stack
                    .connect(now, (PEER, u16::from(*a) + 1).into())
                    .map(|id| ids.push(id));
            }
            _ => {
                let (seq, ack) = (
                    small(*a, *b).wrapping_add(100),
                    small(*c, *d).wrapping_add(own),
                );
                let window = u16::from(*time) << (kind >> 4);
                put(
                    &mut stack,
                    now,
                    segment(seq, ack, kind >> 3 & 0x1f | 0x10, window, rest),
                );
            }
        }
        while stack.poll(now, &mut sink) {}
        ids.extend(stack.accept(443));
        ids.retain(|&id| stack.state(id).is_some());
        assert!(stack.pinned() <= BOUND && stack.copied() <= BOUND);
        assert!(stack.connections() <= 10);
        assert!(stack.next_timer() > now);
    }
    ids.iter().for_each(|&id| stack.abort(now, id));
    stack.unlisten(now, 443);
    for _ in 0..10_000 {
        if stack.connections() == 0 {
            break;
        }
        now = now.max(stack.next_timer());
        while stack.poll(now, &mut sink) {}
    }
    assert_eq!(
        (stack.connections(), stack.pinned(), stack.copied()),
        (0, 0, 0)
    );
});
