//! One end on the frames of an interface: its port, and the stations that it knows.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use tare_neighbor::{Handled, Local, Neighbors, SOLICITATION};
use tare_packet::ethernet::Mac;
use tare_port::{Exclusive, Interface, Kind, OfInterface, Opened, Port, BURST};
use tare_sim::{Instant, TokenBucket};

use super::frame::{self, Content, End, Refusal};
use super::XdpAddress;
use crate::protocol::{Datagrams, DATAGRAM_MIN};
use crate::transport::{share_processor, Waiting};

/// Most addresses that are known or asked for. One that has not answered gives its place to the
/// next, so that false sources do not take those of clients that are there.
const TARGETS_MAX: usize = 1024;

/// The time after which an address that does not answer is given up.
const GIVE_UP: Duration = Duration::from_secs(3);

/// New addresses asked for, and answers to requests for the own address: so many at once, and one
/// more per interval.
const ASKS: (Duration, u32) = (Duration::from_millis(4), 64);
const ANSWERS: (Duration, u32) = (Duration::from_millis(1), 64);

/// Datagrams that wait until the station of their address is known: a few runs.
const HELD_MAX: usize = 128;

/// Looks at an empty port between two at the clock, and receptions after which what is due is done
/// though the port is never empty.
const SPINS: u32 = 32;
const RECEPTIONS: u32 = 256;

/// Frames of a station that were dropped, counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct XdpCounters {
    /// For another station, address or port, or of another kind.
    pub foreign: u64,
    /// Contradictory, with a wrong checksum or an impossible source.
    pub malformed: u64,
    /// Messages of ARP and neighbor discovery that were not acted on.
    pub ignored: u64,
    /// Datagrams that could not be sent: the station of their address did not answer, they are
    /// longer than the interface takes, or it had no room.
    pub unsent: u64,
}

/// An address on an interface, whose frames this process receives instead of the kernel.
///
/// All ends are on one link, such as a cable, a switch or a bridge: there is no routing. Requests
/// for the own address are answered (ARP, or neighbor discovery for IPv6). Datagrams leave only to
/// stations that have answered for their address.
#[derive(Debug)]
pub struct XdpStation<P: Port = OfInterface> {
    port: Exclusive<P>,
    own: End,
    datagram_max: usize,
    neighbors: Neighbors,
    /// The addresses that are known or asked for, and since when, the oldest first.
    targets: Vec<(IpAddr, Instant)>,
    /// The last address that was looked up.
    last: Option<(IpAddr, Mac)>,
    held: Vec<(SocketAddr, Vec<u8>)>,
    asks: TokenBucket,
    answers: TokenBucket,
    /// The time of the next [`XdpStation::tick`].
    due: Instant,
    receptions: u32,
    /// The clock as it was read a moment before something came.
    seen: Option<Instant>,
    counters: XdpCounters,
}

impl XdpStation {
    /// Opens the only queue of an interface. Among the kinds of ports, [`Kind::Auto`] takes the
    /// best.
    ///
    /// # Errors
    /// Those of [`Exclusive::open`] in words, and those of the operating system.
    pub fn open(at: &XdpAddress, kind: Kind) -> io::Result<(XdpStation, Opened)> {
        let other = |error: tare_port::Error| io::Error::other(error.to_string());
        let interface = Interface::find(&at.interface).map_err(other)?;
        let (port, opened) = Exclusive::open(&interface, kind).map_err(other)?;
        let (mac, mtu) = (interface.mac()?, interface.mtu()?);
        let station = XdpStation::new(port, mac, at.address, mtu);
        if station.datagram_max < DATAGRAM_MIN {
            let least = mtu + DATAGRAM_MIN - station.datagram_max;
            return Err(io::Error::other(format!(
                "found an MTU of {mtu} at {}, expected at least {least}",
                at.interface
            )));
        }
        Ok((station, opened))
    }
}

impl<P: Port> XdpStation<P> {
    /// Makes a station of a port. `mtu` is the most bytes behind the Ethernet header.
    pub fn new(port: Exclusive<P>, mac: Mac, address: SocketAddr, mtu: usize) -> XdpStation<P> {
        let (ip4, ip6) = match address.ip() {
            IpAddr::V4(ip) => (Some(ip), None),
            IpAddr::V6(ip) => (None, Some(ip)),
        };
        let bytes = mtu.min(usize::from(u16::MAX)) + tare_packet::ethernet::HEADER;
        XdpStation {
            port,
            own: End { mac, address },
            datagram_max: bytes.saturating_sub(frame::headers(&address)),
            neighbors: Neighbors::new(Local { mac, ip4, ip6 }),
            targets: Vec::new(),
            last: None,
            held: Vec::new(),
            asks: TokenBucket::new(ASKS.0, ASKS.1),
            answers: TokenBucket::new(ANSWERS.0, ANSWERS.1),
            due: Instant::NEVER,
            receptions: 0,
            seen: None,
            counters: XdpCounters::default(),
        }
    }

    /// Returns the own address.
    pub fn address(&self) -> SocketAddr {
        self.own.address
    }

    /// Returns the most bytes of a datagram.
    pub fn datagram_max(&self) -> usize {
        self.datagram_max
    }

    /// Returns the counters.
    pub fn counters(&self) -> XdpCounters {
        self.counters
    }

    /// Returns the port, for callers that send and receive frames of their own between two calls.
    pub fn port_mut(&mut self) -> &mut Exclusive<P> {
        &mut self.port
    }

    /// Returns the descriptor that is readable when something may have come.
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.port.wait_on()
    }

    /// Returns the time, which is that of the last arrival to within a few microseconds.
    #[inline]
    pub(crate) fn now(&mut self) -> Instant {
        self.seen.take().unwrap_or_else(Instant::now)
    }

    /// Takes up to `max` frames that have come, and shows their datagrams to `each`; returns how
    /// many.
    ///
    /// # Errors
    /// The interface is gone.
    #[inline]
    pub(crate) fn receive(
        &mut self,
        max: usize,
        mut each: impl FnMut(SocketAddr, &[u8]),
    ) -> io::Result<usize> {
        let (mut datagrams, mut send) = (0, Vec::new());
        let (mut has_message, mut has_reply) = (false, false);
        let (own, counters) = (&self.own, &mut self.counters);
        let (neighbors, answers) = (&mut self.neighbors, &mut self.answers);
        self.port.receive(max.min(BURST), |bytes| {
            let handled = match frame::read(bytes, own) {
                Ok(Content::Datagram(from, payload)) => {
                    datagrams += 1;
                    return each(from, payload);
                }
                Ok(Content::Arp(packet)) => {
                    neighbors.receive_arp(Instant::now(), packet, answers, &mut send)
                }
                Ok(Content::Discovery(ip, from, message)) => {
                    let now = Instant::now();
                    match message.first() == Some(&SOLICITATION) {
                        true => {
                            let send = &mut send;
                            neighbors.receive_solicitation(now, &ip, from, message, answers, send)
                        }
                        false => neighbors.receive_advertisement(now, &ip, from, message),
                    }
                }
                Err(Refusal::Foreign) => return counters.foreign += 1,
                Err(Refusal::Malformed) => return counters.malformed += 1,
            };
            has_message = true;
            match handled {
                Ok(Handled::Reply | Handled::Moved { .. }) => has_reply = true,
                Ok(Handled::Request) => {}
                Err(_) => counters.ignored += 1,
            }
        })?;
        if has_message {
            self.settle(&send, has_reply)?;
        }
        self.receptions += 1;
        if self.receptions >= RECEPTIONS {
            self.tick(Instant::now())?;
        }
        Ok(datagrams)
    }

    /// Sends what messages of neighbors gave rise to.
    #[cold]
    fn settle(&mut self, send: &[Vec<u8>], has_reply: bool) -> io::Result<()> {
        self.last = None;
        self.due = self.neighbors.next_deadline();
        for frame in send {
            self.put_frame(frame);
        }
        if has_reply {
            for (to, payload) in std::mem::take(&mut self.held) {
                match self.neighbors.mac(to.ip()) {
                    Some(mac) => self.put(&End { mac, address: to }, &payload)?,
                    None => self.held.push((to, payload)),
                }
            }
        }
        self.flush()
    }

    /// As [`XdpStation::receive`]; if nothing has come it waits for about `wait`, or less.
    pub(crate) fn receive_within(
        &mut self,
        max: usize,
        wait: Duration,
        waiting: Waiting,
        mut each: impl FnMut(SocketAddr, &[u8]),
    ) -> io::Result<usize> {
        self.seen = None;
        let busy = waiting.busy().min(wait);
        let looks = if busy.is_zero() { 1 } else { SPINS };
        let start = Instant::now();
        let mut now = start;
        loop {
            for _ in 0..looks {
                let datagrams = self.receive(max, &mut each)?;
                if datagrams > 0 {
                    self.seen = Some(now);
                    return Ok(datagrams);
                }
            }
            now = Instant::now();
            self.tick(now)?;
            if now.since(start) >= busy {
                break;
            }
            share_processor(now.since(start));
        }
        let sleep = (wait - busy).min(self.due.since(now));
        let Some(descriptor) = self.port.wait_on().filter(|_| !sleep.is_zero()) else {
            return Ok(0);
        };
        let mut ready = [PollFd::from_borrowed_fd(descriptor, PollFlags::IN)];
        match poll(&mut ready, Timespec::try_from(sleep).ok().as_ref()) {
            Ok(_) | Err(Errno::INTR) => self.receive(max, each),
            Err(error) => Err(error.into()),
        }
    }

    /// Asks again for the addresses whose time has come, and gives up those that do not answer.
    pub(crate) fn tick(&mut self, now: Instant) -> io::Result<()> {
        self.receptions = 0;
        if now < self.due {
            return Ok(());
        }
        let neighbors = &self.neighbors;
        let mut given_up = Vec::new();
        self.targets.retain(|(address, since)| {
            let stays = now.since(*since) < GIVE_UP || neighbors.mac(*address).is_some();
            if !stays {
                given_up.push(*address);
            }
            stays
        });
        if !given_up.is_empty() {
            self.follow_targets(now, &given_up);
        }
        let mut send = Vec::new();
        self.neighbors.tick(now, &mut send);
        self.settle(&send, false)
    }

    /// Sends a range of datagrams to an address. What cannot be sent is lost.
    ///
    /// # Errors
    /// The interface is gone.
    pub(crate) fn send(
        &mut self,
        datagrams: &Datagrams,
        range: Range<usize>,
        to: SocketAddr,
    ) -> io::Result<()> {
        let mac = match self.last {
            Some((address, mac)) if address == to.ip() => Some(mac),
            _ => self.neighbors.mac(to.ip()),
        };
        let Some(mac) = mac else {
            return self.hold(datagrams, range, to);
        };
        self.last = Some((to.ip(), mac));
        let end = End { mac, address: to };
        for (run, size) in datagrams.runs(range, usize::MAX, 1) {
            debug_assert_eq!(run.len(), size);
            self.put(&end, run)?;
        }
        self.flush()
    }

    /// Keeps datagrams until the station of their address is known, and asks for it.
    #[cold]
    fn hold(
        &mut self,
        datagrams: &Datagrams,
        range: Range<usize>,
        to: SocketAddr,
    ) -> io::Result<()> {
        let now = Instant::now();
        let is_known = self.targets.iter().any(|(address, _)| *address == to.ip());
        if !is_known && !self.ask(now, to.ip()) {
            self.counters.unsent += range.len() as u64;
            return Ok(());
        }
        for (datagram, _) in datagrams.runs(range, usize::MAX, 1) {
            if self.held.len() < HELD_MAX {
                self.held.push((to, datagram.to_vec()));
            } else {
                self.counters.unsent += 1;
            }
        }
        self.tick(now)
    }

    /// Makes an address a target; returns false if that is not possible now.
    fn ask(&mut self, now: Instant, address: IpAddr) -> bool {
        if !self.asks.take(now) {
            return false;
        }
        let mut given_up = None;
        if self.targets.len() >= TARGETS_MAX {
            let neighbors = &self.neighbors;
            let is_silent = |(address, _): &(IpAddr, Instant)| neighbors.mac(*address).is_none();
            let silent = self.targets.iter().position(is_silent);
            given_up = Some(self.targets.remove(silent.unwrap_or(0)).0);
        }
        self.targets.push((address, now));
        self.follow_targets(now, given_up.as_slice());
        true
    }

    /// Lets the table follow the list of targets, from which some are gone with what is held for
    /// them.
    fn follow_targets(&mut self, now: Instant, given_up: &[IpAddr]) {
        let addresses = self.targets.iter().map(|(address, _)| *address);
        self.neighbors.set_targets(addresses, now);
        self.due = self.neighbors.next_deadline();
        let count = self.held.len();
        self.held.retain(|(to, _)| !given_up.contains(&to.ip()));
        self.counters.unsent += (count - self.held.len()) as u64;
        self.last = None;
    }

    #[inline]
    fn put(&mut self, to: &End, payload: &[u8]) -> io::Result<()> {
        let len = frame::len(&to.address, payload.len());
        let is_fit = payload.len() <= self.datagram_max
            && to.address.is_ipv4() == self.own.address.is_ipv4();
        let own = self.own;
        let write = |place: &mut [u8]| frame::write(place, &own, to, payload);
        let mut is_put = is_fit && self.port.put(len, write);
        if is_fit && !is_put {
            // Those before leave, and make room.
            self.flush()?;
            is_put = self.port.put(len, write);
        }
        self.counters.unsent += u64::from(!is_put);
        Ok(())
    }

    fn put_frame(&mut self, frame: &[u8]) {
        let has_room = self
            .port
            .put(frame.len(), |place| place.copy_from_slice(frame));
        self.counters.unsent += u64::from(!has_room);
    }

    #[inline]
    fn flush(&mut self) -> io::Result<()> {
        self.counters.unsent += self.port.send()? as u64;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use tare_port::{memory, Layout, Memory, Pool};

    use super::*;

    const OWN: (Mac, Ipv4Addr) = ([2, 0, 0, 0, 0, 1], Ipv4Addr::new(10, 0, 0, 1));
    const PEER: (Mac, Ipv4Addr) = ([2, 0, 0, 0, 0, 2], Ipv4Addr::new(10, 0, 0, 2));

    fn station() -> (XdpStation<Memory>, Exclusive<Memory>) {
        let (a, b) = memory(4096);
        let end = |port| Exclusive::new(port, Pool::new(4096, 2048, Layout::Spread).unwrap());
        let station = XdpStation::new(end(a), OWN.0, (OWN.1, 7311).into(), 1500);
        (station, end(b))
    }

    /// Lets the peer answer what it is asked.
    fn answer(station: &mut XdpStation<Memory>, link: &mut Exclusive<Memory>) {
        let mut peer = Neighbors::new(Local {
            mac: PEER.0,
            ip4: Some(PEER.1),
            ip6: None,
        });
        let (mut limit, mut replies) = (TokenBucket::new(ANSWERS.0, 9), Vec::new());
        let each = |frame: &[u8]| {
            let now = Instant::now();
            let _ = peer.receive_arp(now, &frame[14..], &mut limit, &mut replies);
        };
        link.receive(64, each).unwrap();
        assert_eq!(replies.len(), 1);
        assert!(link.put(replies[0].len(), |place| place.copy_from_slice(&replies[0])));
        link.send().unwrap();
        station.receive(64, |_, _| ()).unwrap();
    }

    fn one(bytes: &[u8]) -> Datagrams {
        let mut datagrams = Datagrams::new();
        datagrams.push(bytes);
        datagrams
    }

    #[test]
    fn silent_addresses_give_way_to_others_and_known_ones_do_not() {
        let (mut station, mut link) = station();
        station
            .send(&one(&[1; 9]), 0..1, (PEER.1, 9).into())
            .unwrap();
        answer(&mut station, &mut link);
        let mut now = Instant::now();
        assert_eq!(station.neighbors.mac(PEER.1.into()), Some(PEER.0));
        for number in 0..3 * TARGETS_MAX as u32 {
            now += ASKS.0;
            let address = Ipv4Addr::from_bits(Ipv4Addr::new(10, 1, 0, 0).to_bits() + number);
            assert!(station.ask(now, address.into()));
            assert!(station.targets.len() <= TARGETS_MAX);
        }
        assert_eq!(station.targets.len(), TARGETS_MAX);
        assert_eq!(station.neighbors.mac(PEER.1.into()), Some(PEER.0));
        station.tick(now + 2 * GIVE_UP).unwrap();
        let left: Vec<_> = station.targets.iter().map(|target| target.0).collect();
        assert_eq!(left, [IpAddr::from(PEER.1)]);
    }

    #[test]
    fn each_datagram_leaves_to_the_station_of_its_own_address() {
        let (mut station, mut link) = station();
        let to = |last| (Ipv4Addr::new(10, 0, 0, last), 9).into();
        station.send(&one(&[1; 9]), 0..1, to(2)).unwrap();
        answer(&mut station, &mut link);
        station.send(&one(&[2; 9]), 0..1, to(2)).unwrap();
        station.send(&one(&[3; 9]), 0..1, to(3)).unwrap();
        let mut sent = Vec::new();
        let each = |frame: &[u8]| sent.push((frame[..6].to_vec(), frame[42]));
        link.receive(64, each).unwrap();
        let all = tare_packet::ethernet::BROADCAST;
        assert_eq!(
            sent,
            [(PEER.0.into(), 1), (PEER.0.into(), 2), (all.into(), 0)]
        );
    }

    #[test]
    fn datagrams_for_silent_addresses_are_bounded_given_up_and_counted() {
        let send_all = || {
            let (mut station, link) = station();
            let start = Instant::now();
            for number in 1..=10 {
                let mut datagrams = Datagrams::new();
                for _ in 0..20 {
                    datagrams.push(&[number; 9]);
                }
                let to = (Ipv4Addr::new(10, 0, 0, number), 9).into();
                station.send(&datagrams, 0..20, to).unwrap();
            }
            // On a busy machine the first may have been given up already.
            let is_in_time = Instant::now().since(start) < GIVE_UP;
            is_in_time.then_some((station, link))
        };
        let (mut station, _link) = std::iter::repeat_with(send_all).flatten().next().unwrap();
        assert_eq!(station.held.len(), HELD_MAX);
        assert_eq!(station.counters.unsent, 200 - HELD_MAX as u64);
        station.tick(Instant::now() + 2 * GIVE_UP).unwrap();
        assert_eq!((station.held.len(), station.targets.len()), (0, 0));
        assert_eq!(station.counters.unsent, 200);
    }

    #[test]
    fn new_addresses_are_asked_for_at_a_bounded_rate() {
        let (mut station, _link) = station();
        let now = Instant::now();
        let asked = (0..1000).filter(|number| {
            let address = Ipv4Addr::from_bits(Ipv4Addr::new(10, 1, 0, 0).to_bits() + number);
            station.ask(now, address.into())
        });
        assert_eq!(asked.count(), ASKS.1 as usize);
    }

    #[test]
    fn what_a_dead_neighbor_left_is_asked_for_again_and_then_forgotten() {
        let (mut station, mut link) = station();
        station
            .send(&one(&[1; 9]), 0..1, (PEER.1, 9).into())
            .unwrap();
        answer(&mut station, &mut link);
        let mut now = Instant::now();
        let end = now + Duration::from_secs(120);
        let mut asked = 0;
        while now < end {
            now += Duration::from_millis(100);
            station.tick(now).unwrap();
            while link.receive(64, |_| asked += 1).unwrap() > 0 {}
        }
        assert!(station.targets.is_empty(), "{:?}", station.targets);
        // The first datagram, three questions to it alone, three to all, and at most a few more.
        assert!((7..=12).contains(&asked), "{asked}");
        assert_eq!(station.due, Instant::NEVER);
    }
}
