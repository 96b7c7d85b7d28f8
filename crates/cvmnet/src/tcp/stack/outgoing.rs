//! Packets that leave, and timers.

use tare_packet::checksum;
use tare_sim::Instant;

use super::{push_live, Stack};
use crate::tcp::buffer::Buffer;
use crate::tcp::connection::{Connection, Failure, Outgoing, PACKET_MAX};
use crate::tcp::headers::Headers;
use crate::tcp::send_queue::Pieces;
use crate::tcp::table::Id;
use crate::tcp::transmit::{Offload, Packet, Transmit};

/// Timers that are served in one [`Stack::poll`].
const TIMERS: usize = 256;
/// Connections that may send in one.
const CONNECTIONS: usize = 256;

/// The outcome of a connection's turn.
enum Turn {
    Done,
    /// There may be more to send.
    Again,
    /// The station of the next hop is not known yet.
    Unresolved,
}

impl<B: Buffer> Stack<B> {
    /// Does what is due and sends what can be sent. Returns true if there is more to do at once:
    /// not if it only waits for room.
    pub fn poll(&mut self, now: Instant, transmit: &mut impl Transmit<B>) -> bool {
        self.expire(now);
        self.link.tick(now);
        while self.link.has_frames() && transmit.room() > 0 {
            if let Some(frame) = self.link.pop() {
                transmit.send(Packet {
                    headers: &frame,
                    payload: Pieces::none(),
                    payload_len: 0,
                    offload: Offload::default(),
                });
            }
        }
        for _ in 0..self.output.len().min(CONNECTIONS) {
            if transmit.room() == 0 {
                break;
            }
            let Some(id) = self.output.pop_front() else {
                break;
            };
            match self.turn(now, id, transmit) {
                Turn::Done => {}
                Turn::Again => self.output.push_back(id),
                Turn::Unresolved => push_live(&mut self.unresolved, id, &self.table),
            }
        }
        let has_output = !self.output.is_empty() || self.link.has_frames();
        self.next_timer() <= now || (has_output && transmit.room() > 0)
    }

    fn expire(&mut self, now: Instant) {
        for _ in 0..TIMERS {
            let Some(&(at, index)) = self.timers.first().filter(|timer| timer.0 <= now) else {
                return;
            };
            self.timers.remove(&(at, index));
            let Some(connection) = self.table.at(index) else {
                continue;
            };
            connection.book.scheduled = Instant::NEVER;
            // The entry may be that of a timer that was set later since.
            if connection.deadline() <= now && connection.expire(now, &self.config) {
                self.fail(now, index, Failure::TimedOut);
            } else {
                self.touch(now, index);
            }
        }
    }

    /// Lets a connection send a large packet, or as much in segments: a host that merges them then
    /// finds them one after another, and nothing is left over.
    fn turn(&mut self, now: Instant, id: Id, transmit: &mut impl Transmit<B>) -> Turn {
        let Some(connection) = self.table.get_mut(id) else {
            return Turn::Done;
        };
        if connection.mac.is_none() {
            let hop = self.config.next_hop(connection.tuple.remote);
            connection.mac = hop.and_then(|hop| self.link.resolve(now, hop));
        }
        let Some(mac) = connection.mac else {
            return Turn::Unresolved;
        };
        let macs = (mac, self.config.mac);
        let mut turn = Turn::Again;
        let (mut sent, mut last) = (0, 0);
        while sent + last <= PACKET_MAX && transmit.room() > 0 {
            let Some(outgoing) = connection.next_packet(now, &self.config) else {
                turn = Turn::Done;
                break;
            };
            self.counters.sent += 1;
            self.counters.sent_bytes += outgoing.len as u64;
            last = outgoing.len.max(1);
            sent += last;
            send(
                connection,
                &outgoing,
                macs,
                self.config.checksum_offload,
                transmit,
            );
        }
        connection.book.is_output = matches!(turn, Turn::Again);
        self.settle(now, id.index);
        turn
    }
}

/// Builds the headers of a segment and hands it to the device.
fn send<B: Buffer>(
    connection: &Connection<B>,
    outgoing: &Outgoing,
    macs: ([u8; 6], [u8; 6]),
    has_offload: bool,
    transmit: &mut impl Transmit<B>,
) {
    let Outgoing {
        segment,
        at,
        len,
        segment_bytes,
    } = outgoing;
    let tuple = &connection.tuple;
    let mut headers = Headers::new(macs, tuple, segment, *len);
    let offload = if has_offload {
        headers.offload(tuple, *len, *segment_bytes)
    } else {
        headers.finish(tuple, *len, sum(connection.pieces(*at, *len)));
        Offload::default()
    };
    transmit.send(Packet {
        headers: headers.bytes(),
        payload: connection.pieces(*at, *len),
        payload_len: *len,
        offload,
    });
}

/// Returns the sum of a payload. A piece that begins at an odd offset has its bytes in the other
/// halves of the words (RFC 1071, 2 B).
fn sum<B: Buffer>(pieces: Pieces<'_, B>) -> u64 {
    let (mut total, mut offset) = (0, 0);
    for (buffer, range) in pieces {
        let len = range.len();
        let folded = !checksum::finish(buffer.sum(range));
        total += u64::from(if offset % 2 == 1 {
            folded.swap_bytes()
        } else {
            folded
        });
        offset += len;
    }
    total
}
