//! Datagrams over the frames of an interface (AF_XDP, or a packet socket), without the kernel's
//! network stack.
//!
//! On the wire they are the datagrams of UDP: a node over frames serves clients over sockets, and
//! the other way round.

mod address;
mod frame;
mod station;

use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use tare_packet::udp::DYNAMIC_FIRST;
use tare_port::{Kind, OfInterface, Port, BURST};
use tare_sim::Instant;

use super::link::{Link, Waiting, DATAGRAM_MAX};
use crate::protocol::Datagrams;

pub use address::{NotXdp, XdpAddress};
pub use station::{XdpCounters, XdpStation};

/// A way to one node over the frames of an interface.
#[derive(Debug)]
pub struct XdpLink<P: Port = OfInterface> {
    station: XdpStation<P>,
    node: SocketAddr,
    waiting: Waiting,
}

impl XdpLink {
    /// Opens an end, at a random port if it has none, and a link from it to a node.
    ///
    /// # Errors
    /// Those of [`XdpStation::open`].
    pub fn connect(mut own: XdpAddress, node: SocketAddr, waiting: Waiting) -> io::Result<XdpLink> {
        if own.address.port() == 0 {
            // One of the dynamic ports, of which there are 2^14.
            let drawn = u16::from_le_bytes(crate::random::bytes()?) & 0x3fff;
            own.address.set_port(DYNAMIC_FIRST | drawn);
        }
        let (station, _) = XdpStation::open(&own, Kind::Auto)?;
        Ok(XdpLink::new(station, node, waiting))
    }
}

impl<P: Port> XdpLink<P> {
    /// A link from a station to a node, which is on the same link layer.
    pub fn new(station: XdpStation<P>, node: SocketAddr, waiting: Waiting) -> XdpLink<P> {
        XdpLink {
            station,
            // Without the zone and the flow label of IPv6: a sender's address has none.
            node: (node.ip(), node.port()).into(),
            waiting,
        }
    }

    /// Returns the address of the node.
    pub fn node(&self) -> SocketAddr {
        self.node
    }

    /// Returns the station.
    pub fn station(&self) -> &XdpStation<P> {
        &self.station
    }

    /// Returns the station, for callers that use its port between two calls.
    pub fn station_mut(&mut self) -> &mut XdpStation<P> {
        &mut self.station
    }
}

impl<P: Port> Link for XdpLink<P> {
    fn send(&mut self, datagrams: &Datagrams) -> io::Result<()> {
        let all = 0..datagrams.len();
        self.station.send(datagrams, all, self.node)
    }

    fn receive(&mut self, buffer: &mut [u8], wait: Duration) -> io::Result<usize> {
        // As many as find room at any length; messages say their own.
        let max = (DATAGRAM_MAX / self.station.datagram_max().max(1)).clamp(1, BURST);
        let (node, mut end) = (self.node, 0);
        let each = |from, payload: &[u8]| {
            // As a connected socket, it takes what its node sends and nothing else.
            if from == node {
                if let Some(place) = buffer.get_mut(end..end + payload.len()) {
                    place.copy_from_slice(payload);
                    end += payload.len();
                }
            }
        };
        self.station.receive_within(max, wait, self.waiting, each)?;
        Ok(end)
    }

    fn now(&mut self) -> Instant {
        self.station.now()
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.station.descriptor()
    }
}
