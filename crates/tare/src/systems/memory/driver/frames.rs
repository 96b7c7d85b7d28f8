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
use tare_port::{Exclusive, Interface, Kind, Port};

use super::network::{CLIENT, INTERFACE, NODE};
use super::raw::{Wait, NUMBER};

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

    /// Gives the last frame the number of an exchange.
    fn number(&mut self, number: &[u8]) {
        if let Some(last) = self.0.last_mut() {
            last[NUMBER].copy_from_slice(number);
        }
    }

    fn send(&self, port: &mut Exclusive<impl Port>) -> io::Result<()> {
        for frame in &self.0 {
            // What is dropped here is asked for again.
            let _ = port.put(frame.len(), |place| place.copy_from_slice(frame));
        }
        port.send().map(drop)
    }
}

/// Takes a frame; returns its first bytes if it is the last one of a request or an answer.
fn take(port: &mut Exclusive<impl Port>) -> io::Result<Option<[u8; NUMBER.end]>> {
    let mut first = None;
    port.receive(1, |frame| {
        let is_last = ethernet::kind(frame) == Some(KIND) && frame.get(LAST) == Some(&1);
        first = frame.first_chunk().filter(|_| is_last).copied();
    })?;
    Ok(first)
}

/// Answers each request with `answer` bytes in datagrams of so many until `is_over`.
///
/// # Errors
/// The interface is gone.
pub(super) fn echo(
    port: &mut Exclusive<impl Port>,
    answer: usize,
    datagram: usize,
    mut is_over: impl FnMut() -> bool,
) -> io::Result<()> {
    let mut answer = Frames::new(answer, datagram);
    let mut wait = Wait::for_calls();
    while !is_over() {
        let Some(first) = take(port)? else {
            wait.goes_on();
            continue;
        };
        wait.is_over();
        let mac = |at: usize| -> Mac { std::array::from_fn(|n| first[at + n]) };
        answer.address(mac(6), mac(0));
        answer.number(&first[NUMBER]);
        answer.send(port)?;
    }
    Ok(())
}

/// The client's side of frames to and fro.
pub(super) struct Ping {
    link: CommonLink,
    request: Frames,
    /// The number of the last exchange.
    number: u64,
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
        Ok(Ping {
            link,
            request,
            number: 0,
        })
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
            self.number += 1;
            exchange(port, &mut self.request, self.number)?;
        }
        Ok(from.elapsed())
    }
}

/// Sends a request until it is answered; leaves out second answers to earlier ones.
fn exchange(port: &mut Exclusive<impl Port>, request: &mut Frames, number: u64) -> io::Result<()> {
    let number = number.to_le_bytes();
    request.number(&number);
    request.send(port)?;
    let mut looks = 0;
    let mut wait = Wait::for_calls();
    loop {
        match take(port)? {
            Some(first) if first[NUMBER] == number => return Ok(()),
            Some(_) => {}
            None => {
                wait.goes_on();
                looks += 1;
                if looks % LOOKS_MAX == 0 {
                    request.send(port)?;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tare_port::{Layout, Pool};

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

    #[test]
    fn the_second_answer_to_a_request_is_not_taken_for_that_to_the_next_one() {
        let (own, other) = tare_port::memory(64);
        let end = |port| Exclusive::new(port, Pool::new(64, 2048, Layout::Spread).unwrap());
        let [mut own, mut other] = [own, other].map(end);
        let mut request = Frames::new(3000, 1472);
        request.address([1; 6], [2; 6]);
        // The first request is sent twice, and the second one once, before the first is answered.
        for number in [1u64, 1, 2] {
            request.number(&number.to_le_bytes());
            request.send(&mut own).unwrap();
        }
        let mut looks = 0..20;
        echo(&mut other, 72, 1472, || looks.next().is_none()).unwrap();
        exchange(&mut own, &mut request, 1).unwrap();
        exchange(&mut own, &mut request, 2).unwrap();
        // All three answers are taken, those to the addresses that asked.
        assert_eq!(take(&mut own).unwrap(), None);
        other.receive(64, |_| ()).unwrap();
        request.number(&3u64.to_le_bytes());
        request.send(&mut own).unwrap();
        let mut looks = 0..20;
        echo(&mut other, 72, 1472, || looks.next().is_none()).unwrap();
        let answer = take(&mut own).unwrap().expect("an answer");
        assert_eq!(answer[..12], [2, 2, 2, 2, 2, 2, 1, 1, 1, 1, 1, 1]);
    }
}
