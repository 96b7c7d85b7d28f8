//! The lists of the stack under a peer, or a host, that opens connections and resets them.

use std::net::Ipv4Addr;

use tare_packet::frame;

use super::*;
use crate::tcp::buffer::{Checksum, Frame};
use crate::tcp::transmit::{Packet, Transmit};

const OWN: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 2);
const PEER: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 1);
const MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];

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
