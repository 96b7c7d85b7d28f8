//! The transport by frames of an interface: a link that the reference shares, and the reference,
//! frames to and fro through the same two ports.

use std::cell::RefCell;
use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use tare_farmem::protocol::Datagrams;
use tare_farmem::transport::xdp::{XdpAddress, XdpLink, XdpStation};
use tare_farmem::transport::{Link, Waiting};
use tare_packet::ethernet::{self, Mac};
use tare_packet::{ipv4, udp};
use tare_port::{Exclusive, Interface, Kind};

use super::network::{CLIENT, INTERFACE, NODE};
use super::raw::Wait;

/// The node's port, and the client's.
const PORTS: [u16; 2] = [7311, 50_000];

/// Bytes in front of a datagram.
const HEADERS: usize = ethernet::HEADER + ipv4::HEADER + udp::HEADER;

/// The kind of raw frames (IEEE 802: for experiments), which no node takes.
const KIND: u16 = 0x88b5;

/// The place that says whether a frame is the last one of a request or an answer.
const LAST: usize = ethernet::HEADER;

/// Looks at an empty port after which frames are taken for lost.
const LOOKS_MAX: u32 = 1 << 18;

/// Opens a side's end, the node's or the client's.
///
/// # Errors
/// No port can be opened on the interface.
pub(super) fn open(is_node: bool) -> anyhow::Result<XdpStation> {
    let address: SocketAddr = match is_node {
        true => (NODE, PORTS[0]).into(),
        false => (CLIENT, PORTS[1]).into(),
    };
    let at = XdpAddress {
        interface: INTERFACE.into(),
        address,
    };
    let (station, _) = XdpStation::open(&at, Kind::Auto).with_context(|| at.to_string())?;
    Ok(station)
}

/// Returns the MAC address of this side's interface.
///
/// # Errors
/// There is none.
pub(super) fn mac() -> anyhow::Result<Mac> {
    Ok(Interface::by_name(INTERFACE)?.mac()?)
}

/// A link that the reference uses too, in turns.
#[derive(Clone)]
pub(super) struct CommonLink(Rc<RefCell<XdpLink>>);

impl CommonLink {
    /// Opens the client's end.
    ///
    /// # Errors
    /// No port can be opened on the interface.
    pub(super) fn open() -> anyhow::Result<CommonLink> {
        let link = XdpLink::new(open(false)?, (NODE, PORTS[0]).into(), Waiting::Busy);
        Ok(CommonLink(Rc::new(RefCell::new(link))))
    }
}

impl Link for CommonLink {
    fn send(&mut self, datagrams: &Datagrams) -> io::Result<()> {
        self.0.borrow_mut().send(datagrams)
    }

    fn receive(&mut self, buffer: &mut [u8], wait: Duration) -> io::Result<usize> {
        self.0.borrow_mut().receive(buffer, wait)
    }

    fn now(&mut self) -> tare_sim::Instant {
        self.0.borrow_mut().now()
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// The frames of a request or an answer, as long as those that carry so many bytes in datagrams.
struct Frames(Vec<Vec<u8>>);

impl Frames {
    fn new(bytes: usize, datagram: usize) -> Frames {
        let (mut frames, mut left) = (Vec::new(), bytes);
        while left > 0 {
            let len = left.min(datagram);
            left -= len;
            let mut frame = vec![7; (HEADERS + len).max(ethernet::MIN)];
            frame[12..14].copy_from_slice(&KIND.to_be_bytes());
            frame[LAST] = u8::from(left == 0);
            frames.push(frame);
        }
        Frames(frames)
    }

    fn address(&mut self, to: Mac, from: Mac) {
        for frame in &mut self.0 {
            frame[..6].copy_from_slice(&to);
            frame[6..12].copy_from_slice(&from);
        }
    }

    fn send(&self, port: &mut Exclusive) -> io::Result<()> {
        for frame in &self.0 {
            // What is dropped here is asked for again.
            let _ = port.put(frame.len(), |place| place.copy_from_slice(frame));
        }
        port.send().map(drop)
    }
}

/// Takes a frame; returns true if it is the last one of a request or an answer.
fn take(port: &mut Exclusive, mut see: impl FnMut(&[u8])) -> io::Result<bool> {
    let mut is_last = false;
    port.receive(1, |frame| {
        see(frame);
        is_last = ethernet::kind(frame) == Some(KIND) && frame.get(LAST) == Some(&1);
    })?;
    Ok(is_last)
}

/// Answers each request with `answer` bytes in datagrams of so many until `is_over`.
///
/// # Errors
/// The interface is gone.
pub(super) fn echo(
    port: &mut Exclusive,
    answer: usize,
    datagram: usize,
    mut is_over: impl FnMut() -> bool,
) -> io::Result<()> {
    let mut answer = Frames::new(answer, datagram);
    let mut wait = Wait::for_calls();
    while !is_over() {
        let mut ends = None;
        let see = |frame: &[u8]| ends = frame.first_chunk::<12>().copied();
        if !take(port, see)? {
            wait.goes_on();
        } else {
            wait.is_over();
            if let Some(ends) = ends {
                let mac = |at: usize| -> Mac { std::array::from_fn(|n| ends[at + n]) };
                answer.address(mac(6), mac(0));
                answer.send(port)?;
            }
        }
    }
    Ok(())
}

/// The client's side of frames to and fro.
pub(super) struct Ping {
    link: CommonLink,
    request: Frames,
}

impl Ping {
    /// A client with requests of so many bytes in datagrams, to a station.
    ///
    /// # Errors
    /// The interface is gone.
    pub(super) fn new(
        link: CommonLink,
        node: Mac,
        request: usize,
        datagram: usize,
    ) -> anyhow::Result<Ping> {
        let mut request = Frames::new(request, datagram);
        request.address(node, mac()?);
        Ok(Ping { link, request })
    }

    /// Returns the time of so many round trips, one after the other.
    ///
    /// # Errors
    /// The interface is gone.
    pub(super) fn round_trips(&mut self, count: usize) -> io::Result<Duration> {
        let mut link = self.link.0.borrow_mut();
        let port = link.station_mut().port_mut();
        let from = Instant::now();
        for _ in 0..count {
            self.request.send(port)?;
            let mut looks = 0;
            let mut wait = Wait::for_calls();
            while !take(port, |_| ())? {
                wait.goes_on();
                looks += 1;
                if looks % LOOKS_MAX == 0 {
                    self.request.send(port)?;
                }
            }
        }
        Ok(from.elapsed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_of_the_reference_are_as_long_as_those_with_datagrams() {
        let lengths = |bytes, datagram| -> Vec<usize> {
            Frames::new(bytes, datagram)
                .0
                .iter()
                .map(Vec::len)
                .collect()
        };
        assert_eq!(lengths(1, 1472), [ethernet::MIN]);
        assert_eq!(lengths(72, 1472), [114]);
        assert_eq!(lengths(1472, 1472), [1514]);
        assert_eq!(lengths(3000, 1472), [1514, 1514, 98]);
        let frames = Frames::new(3000, 1472);
        let last: Vec<_> = frames.0.iter().map(|frame| frame[LAST]).collect();
        assert_eq!(last, [0, 0, 1]);
    }
}
