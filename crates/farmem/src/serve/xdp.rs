//! Requests over the frames of an interface.

use std::io;
use std::net::SocketAddr;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use tare_port::{OfInterface, Port};

use super::source::{Source, Turn};
use super::FairMutex;
use crate::protocol::{Datagrams, Execute, Node, SEND_BYTES};
use crate::transport::xdp::XdpStation;
use crate::transport::Waiting;

/// Most datagrams taken in one turn.
const BATCH_MAX: usize = 32;

/// A station on an interface that receives requests.
#[derive(Debug)]
pub struct XdpSource<P: Port = OfInterface> {
    station: XdpStation<P>,
    /// Datagrams that came, one behind the other, since the node reads them in place.
    buffer: Vec<u8>,
    arrived: Vec<(Range<usize>, SocketAddr)>,
    replies: Datagrams,
    refused: u64,
}

impl<P: Port> XdpSource<P> {
    /// A source that receives at a station.
    pub fn new(station: XdpStation<P>) -> XdpSource<P> {
        XdpSource {
            station,
            buffer: Vec::new(),
            arrived: Vec::with_capacity(BATCH_MAX),
            replies: Datagrams::default(),
            refused: 0,
        }
    }

    /// Returns the station, for callers that use its port between two turns.
    pub fn station_mut(&mut self) -> &mut XdpStation<P> {
        &mut self.station
    }

    /// Takes what has come and lets the node answer it, as [`Source::turn`] does, also for ports
    /// that stay on their thread.
    ///
    /// # Errors
    /// The interface is gone.
    pub fn take_turn<S: Execute>(
        &mut self,
        node: &FairMutex<Node<S>>,
        wait: Duration,
        waiting: Waiting,
    ) -> io::Result<Turn> {
        self.buffer.clear();
        self.arrived.clear();
        let (buffer, arrived) = (&mut self.buffer, &mut self.arrived);
        let each = |from, payload: &[u8]| {
            let start = buffer.len();
            buffer.extend_from_slice(payload);
            arrived.push((start..buffer.len(), from));
        };
        match wait.is_zero() {
            true => self.station.receive(BATCH_MAX, each)?,
            false => (self.station).receive_within(BATCH_MAX, wait, waiting, each)?,
        };
        let mut turn = Turn {
            received: self.arrived.len() as u64,
            received_bytes: self.buffer.len() as u64,
            ..Turn::default()
        };
        for (piece, from) in &mut self.arrived {
            while piece.start < piece.end {
                self.replies.clear();
                {
                    let mut node = node.lock();
                    let now = self.station.now();
                    let bytes = &mut self.buffer[piece.clone()];
                    piece.start += node.receive_some(now, bytes, &mut self.replies, SEND_BYTES);
                }
                let all = 0..self.replies.len();
                self.station.send(&self.replies, all, *from)?;
                turn.sent += self.replies.len() as u64;
                turn.sent_bytes += self.replies.bytes() as u64;
            }
        }
        let counters = self.station.counters();
        let refused = counters.foreign + counters.malformed + counters.ignored;
        turn.refused = refused - std::mem::replace(&mut self.refused, refused);
        Ok(turn)
    }
}

impl<S: Execute, P: Port> Source<S> for XdpSource<P>
where
    XdpSource<P>: Send,
{
    fn turn(
        &mut self,
        node: &FairMutex<Node<S>>,
        wait: Duration,
        waiting: Waiting,
    ) -> io::Result<Turn> {
        self.take_turn(node, wait, waiting)
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.station.descriptor()
    }
}
