//! memcached's frames of UDP.

use std::collections::BTreeMap;

use super::{Progress, Protocol, Response, Wire};
use crate::workload::Request;
use crate::Unexpected;

const HEADER: usize = 8;

/// The most bytes of datagrams that arrived before an earlier one of the same reply.
const KEPT_MAX: usize = 4 << 20;

/// One of memcached's protocols over UDP: each datagram begins with the number of its request, its
/// place and the number of datagrams. Requests are one datagram, replies are put together.
/// Datagrams of other requests, whose replies came too late or twice, are ignored.
#[derive(Clone, Debug)]
pub struct Udp<P> {
    protocol: P,
    /// The number of the last request.
    id: u16,
    /// The reply that is waited for.
    reply: Option<Reply>,
}

#[derive(Clone, Debug, Default)]
struct Reply {
    /// The place of the datagram that is read next, and their number.
    next: u16,
    total: Option<u16>,
    /// Datagrams that arrived before it.
    kept: BTreeMap<u16, Vec<u8>>,
    kept_bytes: usize,
    /// Bytes that the protocol has not consumed.
    rest: Vec<u8>,
}

impl<P> Udp<P> {
    /// A client whose requests and replies are those of `protocol`.
    pub fn new(protocol: P) -> Udp<P> {
        Udp {
            protocol,
            id: 0,
            reply: None,
        }
    }
}

impl<P: Protocol> Protocol for Udp<P> {
    fn wire() -> Wire {
        Wire::Datagrams
    }

    fn write(&mut self, request: &Request, out: &mut Vec<u8>) {
        self.end();
        self.id = self.id.wrapping_add(1);
        self.reply = Some(Reply::default());
        let [high, low] = self.id.to_be_bytes();
        out.extend_from_slice(&[high, low, 0, 0, 0, 1, 0, 0]);
        self.protocol.write(request, out);
    }

    /// Reads one datagram, and always all of it.
    fn read(&mut self, bytes: &[u8]) -> Result<Progress, Unexpected> {
        let wrong = |expected| Err(Unexpected::bytes(bytes, expected));
        let Some((header, payload)) = bytes.split_first_chunk::<HEADER>() else {
            return wrong("the frame header of UDP");
        };
        let word = |at| u16::from_be_bytes([header[at], header[at + 1]]);
        let (id, place, total) = (word(0), word(2), word(4));
        let mut response = None;
        if let Some(reply) = self.reply.as_mut().filter(|_| id == self.id) {
            if place >= total || *reply.total.get_or_insert(total) != total {
                return wrong("a place among the datagrams of a reply");
            }
            if place >= reply.next && !reply.kept.contains_key(&place) {
                reply.kept_bytes += payload.len();
                reply.kept.insert(place, payload.into());
            }
            while let Some(payload) = reply.kept.remove(&reply.next) {
                reply.kept_bytes -= payload.len();
                reply.next += 1;
                reply.rest.extend_from_slice(&payload);
                let progress = self.protocol.read(&reply.rest)?;
                reply.rest.drain(..progress.consumed);
                response = response.or(progress.response);
            }
            if reply.kept_bytes > KEPT_MAX {
                return wrong("the first datagrams of a reply");
            }
            let is_whole = reply.next == total;
            if response.is_some() != is_whole || (is_whole && !reply.rest.is_empty()) {
                return wrong("a reply that ends with its datagrams");
            }
            if is_whole {
                self.reply = None;
            }
        }
        Ok(Progress {
            consumed: bytes.len(),
            response,
        })
    }

    fn end(&mut self) -> Option<Response> {
        self.protocol.end();
        self.reply = None;
        None
    }
}
