//! The lists of the stack under a peer, or a host, that opens connections and resets them.

use std::cell::Cell;
use std::net::Ipv4Addr;
use std::ops::Range;

use tare_packet::{checksum, frame};

use super::*;
use crate::tcp::buffer::{Checksum, Frame};
use crate::tcp::transmit::{Packet, Transmit};

const OWN: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 2);
const PEER: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 1);
const MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];

/// A frame that the host replaces after it was read once.
struct Replaced([Vec<u8>; 2], Cell<usize>);

impl Buffer for Replaced {
    fn capacity(&self) -> usize {
        self.0[0].len()
    }

    fn read(&self, at: usize, to: &mut [u8]) {
        self.0[self.1.replace(1)].read(at, to);
    }

    fn sum(&self, range: Range<usize>) -> u64 {
        self.0[1].sum(range)
    }
}

/// The frames that a stack sends.
struct Sent(Vec<Vec<u8>>);

impl Transmit<Replaced> for Sent {
    fn room(&mut self) -> usize {
        usize::MAX
    }

    fn send(&mut self, packet: Packet<'_, Replaced>) {
        self.0.push(packet.headers.to_vec());
    }
}

/// The checks of the headers, which are read first, hold for the message, which is read later.
#[test]
fn a_message_is_not_taken_with_other_headers_than_those_that_were_checked() {
    let mut ping = vec![8, 0, 0, 0, 1, 2, 3, 4];
    let sum = checksum::finish(checksum::sum(&ping));
    ping[2..4].copy_from_slice(&sum.to_be_bytes());
    let packet = |source, protocol| frame::ipv4(MAC, [9; 6], source, OWN, protocol, &ping);
    let mut stack = Stack::new(Config::on_link(MAC, OWN), Secret::new(&[1; 16])).unwrap();
    let good = packet(PEER, 1);
    let mut give = |then: Vec<u8>| {
        let frame = Frame {
            range: 0..good.len(),
            buffer: Replaced([good.clone(), then], Cell::new(0)),
            checksum: Checksum::Trusted,
        };
        stack.receive(Instant::ZERO, frame);
        let mut sent = Sent(Vec::new());
        stack.poll(Instant::ZERO, &mut sent);
        (
            sent.0.len(),
            stack.counters().source,
            stack.counters().not_for_us,
        )
    };
    assert_eq!(give(good.clone()), (1, 0, 0));
    assert_eq!(give(packet(OWN, 1)), (0, 1, 0));
    assert_eq!(give(packet(PEER, 17)), (0, 1, 1));
}

/// A device that never completes a packet.
struct Stuck;

impl Transmit<Vec<u8>> for Stuck {
    fn room(&mut self) -> usize {
        0
    }

    fn send(&mut self, _: Packet<'_, Vec<u8>>) {
        panic!("there is no room");
    }
}

/// Returns a segment without payload and options.
fn segment(port: u16, seq: u32, flags: u8) -> Frame<Vec<u8>> {
    let mut tcp = [0; 20];
    tcp[..2].copy_from_slice(&port.to_be_bytes());
    tcp[2..4].copy_from_slice(&443u16.to_be_bytes());
    tcp[4..8].copy_from_slice(&seq.to_be_bytes());
    (tcp[12], tcp[13]) = (5 << 4, flags);
    let buffer = frame::ipv4(MAC, [2, 0, 0, 0, 0, 1], PEER, OWN, 6, &tcp);
    Frame {
        range: 0..buffer.len(),
        buffer,
        checksum: Checksum::Trusted,
    }
}

#[test]
fn without_room_there_is_nothing_to_do_at_once_and_no_timer_stays_due() {
    /// A device with room for so many packets.
    struct Ring(usize);

    impl Transmit<Vec<u8>> for Ring {
        fn room(&mut self) -> usize {
            self.0
        }

        fn send(&mut self, _: Packet<'_, Vec<u8>>) {
            self.0 -= 1;
        }
    }

    let mut stack = Stack::new(Config::on_link(MAC, OWN), Secret::new(&[1; 16])).unwrap();
    stack.listen(443);
    let mut now = Instant::ZERO;
    for port in 1..=3 {
        stack.receive(now, segment(port, 0, 2));
    }
    assert!(!stack.poll(now, &mut Ring(0)));
    assert!(!stack.poll(now, &mut Ring(1)));
    assert_eq!((stack.output.len(), stack.counters().sent), (3, 1));
    // Until the handshakes are given up.
    let mut timers = 0;
    while stack.connections() > 0 {
        now = stack.next_timer();
        assert!(!stack.poll(now, &mut Ring(0)));
        assert!(stack.next_timer() > now);
        timers += 1;
        assert!(timers < 1000);
    }
}

#[test]
fn connections_that_end_before_they_could_send_leave_no_entry_in_a_list() {
    const SYN: u8 = 2;
    const RST: u8 = 4;
    let config = Config::on_link(MAC, OWN);
    let mut stack = Stack::new(config, Secret::new(&[1; 16])).unwrap();
    stack.listen(443);
    let now = Instant::ZERO;
    // One that stays, so that lists are not empty.
    stack.receive(now, segment(1, 0, SYN));
    for n in 0..100_000_u32 {
        let port = 1000 + (n % 50_000) as u16;
        stack.receive(now, segment(port, n, SYN));
        stack.receive(now, segment(port, n + 1, RST));
        stack.poll(now, &mut Stuck);
        let most = 2 * (stack.connections() + 1) + 16;
        assert!(stack.output.len() <= most, "{}", stack.output.len());
        assert!(stack.events.len() <= most, "{}", stack.events.len());
    }
    assert_eq!(stack.connections(), 1);
    assert_eq!(stack.timers.len(), 1);
}
