//! Everything but TCP: ARP and neighbor discovery, echo requests, and errors about the path's MTU.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use tare_neighbor::{Handled, Local, Neighbors};
use tare_packet::ethernet::{self, Mac};
use tare_packet::ipv6::Ipv6;
use tare_packet::{checksum, frame, ipv4, ipv6, protocol};
use tare_sim::{Instant, TokenBucket};

use crate::tcp::config::Config;
use crate::tcp::headers::{Dropped, Ip, Tuple};

/// Frames of the link's own that wait to be sent; above, the oldest are dropped.
const WAITING_MAX: usize = 256;
/// Stations other than the routers that are resolved at once; above, the oldest is forgotten.
const STATIONS_MAX: usize = 64;
/// Answers to others: one per interval, and as many at once.
const ANSWERS: (Duration, u32) = (Duration::from_millis(1), 100);
/// Bytes of an ICMP header (RFC 792, RFC 4443).
const ICMP: usize = 8;
/// The smallest path MTU that is believed of IPv4: every host takes 576 bytes (RFC 1191, 3).
const MTU4_MIN: usize = 552;

const ECHO_REPLY4: u8 = 0;
const UNREACHABLE4: u8 = 3;
const FRAGMENTATION_NEEDED: u8 = 4;
const ECHO4: u8 = 8;
const TOO_BIG6: u8 = 2;
const ECHO6: u8 = 128;
const ECHO_REPLY6: u8 = 129;
const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;

/// An ICMP error about a segment of this guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TooBig {
    pub(crate) tuple: Tuple,
    pub(crate) seq: u32,
    pub(crate) mtu: usize,
}

/// The effects of a frame that is not TCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    None,
    /// The station of a neighbor has become known.
    Resolved,
    TooBig(TooBig),
}

/// The link of a guest.
pub(crate) struct Link {
    mac: Mac,
    neighbors: Neighbors,
    routers: Vec<IpAddr>,
    stations: VecDeque<IpAddr>,
    answers: TokenBucket,
    waiting: VecDeque<Vec<u8>>,
    /// Kept for its memory.
    scratch: Vec<Vec<u8>>,
}

impl Link {
    pub(crate) fn new(config: &Config) -> Link {
        let local = Local {
            mac: config.mac,
            ip4: config.ip4.map(|net| net.address),
            ip6: config.ip6.map(|net| net.address),
        };
        let router4 = config.ip4.and_then(|net| net.gateway).map(IpAddr::V4);
        let router6 = config.ip6.and_then(|net| net.gateway).map(IpAddr::V6);
        let mut link = Link {
            mac: config.mac,
            neighbors: Neighbors::new(local),
            routers: router4.into_iter().chain(router6).collect(),
            stations: VecDeque::new(),
            answers: TokenBucket::new(ANSWERS.0, ANSWERS.1),
            waiting: VecDeque::new(),
            scratch: Vec::new(),
        };
        link.set_targets(Instant::ZERO);
        link
    }

    fn set_targets(&mut self, now: Instant) {
        let targets = self.routers.iter().chain(&self.stations);
        self.neighbors.set_targets(targets.copied(), now);
    }

    /// Returns the station of a next hop; one that is unknown is asked for.
    pub(crate) fn resolve(&mut self, now: Instant, hop: IpAddr) -> Option<Mac> {
        if !self.routers.contains(&hop) && !self.stations.contains(&hop) {
            if self.stations.len() >= STATIONS_MAX {
                self.stations.pop_front();
            }
            self.stations.push_back(hop);
            self.set_targets(now);
        }
        self.neighbors.mac(hop)
    }

    /// Returns the time of the next [`Link::tick`].
    pub(crate) fn deadline(&self) -> Instant {
        self.neighbors.next_deadline()
    }

    pub(crate) fn tick(&mut self, now: Instant) {
        if self.deadline() <= now {
            self.neighbors.tick(now, &mut self.scratch);
            self.queue_scratch();
        }
    }

    fn queue_scratch(&mut self) {
        for frame in std::mem::take(&mut self.scratch) {
            self.queue(frame);
        }
    }

    /// Adds a whole frame to those that wait to be sent.
    pub(crate) fn queue(&mut self, frame: Vec<u8>) {
        if self.waiting.len() >= WAITING_MAX {
            self.waiting.pop_front();
        }
        self.waiting.push_back(frame);
    }

    /// Takes a token for an answer that is no part of a connection.
    pub(crate) fn may_answer(&mut self, now: Instant) -> bool {
        self.answers.take(now)
    }

    /// Returns the next frame to be sent.
    pub(crate) fn pop(&mut self) -> Option<Vec<u8>> {
        self.waiting.pop_front()
    }

    pub(crate) fn has_frames(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Takes an ARP packet, a private copy of a frame.
    pub(crate) fn arp(&mut self, now: Instant, frame: &[u8]) -> Result<Effect, Dropped> {
        let packet = frame.get(ethernet::HEADER..).ok_or(Dropped::Malformed)?;
        let answers = &mut self.answers;
        let handled = self
            .neighbors
            .receive_arp(now, packet, answers, &mut self.scratch);
        self.queue_scratch();
        Ok(effect(handled.ok()))
    }

    /// Takes an ICMP message, in a private copy of the whole frame.
    pub(crate) fn icmp(
        &mut self,
        now: Instant,
        frame: &[u8],
        ip: &Ip,
        config: &Config,
    ) -> Result<Effect, Dropped> {
        let message = frame.get(ip.start..ip.end).ok_or(Dropped::Malformed)?;
        let header = message.first_chunk::<ICMP>().ok_or(Dropped::Malformed)?;
        let from = *frame[6..].first_chunk::<6>().ok_or(Dropped::Malformed)?;
        let pseudo = if ip.source.is_ipv6() {
            ip.pseudo_sum()
        } else {
            0
        };
        if checksum::finish(pseudo + checksum::sum(message)) != 0 {
            return Err(Dropped::Checksum);
        }
        if ip.source.is_unspecified() && header[0] != SOLICITATION {
            return Err(Dropped::Source);
        }
        let to_us = config.is_local(ip.target);
        match (ip.source, ip.target, header[0]) {
            (IpAddr::V4(source), IpAddr::V4(own), ECHO4) if to_us => {
                self.echo4(now, from, (own, source), message);
                Ok(Effect::None)
            }
            (IpAddr::V6(source), IpAddr::V6(own), ECHO6) if to_us => {
                self.echo6(now, from, (own, source), message);
                Ok(Effect::None)
            }
            (IpAddr::V4(_), _, UNREACHABLE4) | (IpAddr::V6(_), _, TOO_BIG6) if to_us => {
                let error = too_big(ip, message).ok_or(Dropped::NotForUs)?;
                Ok(Effect::TooBig(error))
            }
            (IpAddr::V6(_), _, SOLICITATION | ADVERTISEMENT) => {
                let packet = &frame[ethernet::HEADER..];
                let ip = Ipv6::parse(packet).map_err(|_| Dropped::Malformed)?;
                Ok(self.discovery(now, &ip, from, message, header[0]))
            }
            _ => Err(Dropped::NotForUs),
        }
    }

    fn discovery(
        &mut self,
        now: Instant,
        ip: &Ipv6,
        from: Mac,
        message: &[u8],
        kind: u8,
    ) -> Effect {
        let Link {
            neighbors,
            answers,
            scratch,
            ..
        } = self;
        let handled = match kind {
            SOLICITATION => {
                neighbors.receive_solicitation(now, ip, from, message, answers, scratch)
            }
            _ => neighbors.receive_advertisement(now, ip, from, message),
        };
        self.queue_scratch();
        effect(handled.ok())
    }

    fn echo4(&mut self, now: Instant, to: Mac, (own, peer): (Ipv4Addr, Ipv4Addr), message: &[u8]) {
        if !self.answers.take(now) {
            return;
        }
        let mut reply = message.to_vec();
        reply[0] = ECHO_REPLY4;
        reply[2..4].fill(0);
        let sum = checksum::finish(checksum::sum(&reply));
        reply[2..4].copy_from_slice(&sum.to_be_bytes());
        let frame = frame::ipv4(to, self.mac, own, peer, protocol::ICMP, &reply);
        self.queue(frame);
    }

    fn echo6(&mut self, now: Instant, to: Mac, (own, peer): (Ipv6Addr, Ipv6Addr), message: &[u8]) {
        if !self.answers.take(now) {
            return;
        }
        let mut reply = message.to_vec();
        reply[0] = ECHO_REPLY6;
        let frame = frame::icmpv6(to, self.mac, own, peer, protocol::TTL_DEFAULT, reply);
        self.queue(frame);
    }
}

fn effect(handled: Option<Handled>) -> Effect {
    match handled {
        Some(Handled::Reply | Handled::Moved { .. }) => Effect::Resolved,
        _ => Effect::None,
    }
}

/// Returns what an ICMP message says about a segment that was too big for the path: of the packet
/// that it quotes, the addresses and the start of the TCP header.
pub(crate) fn too_big(ip: &Ip, message: &[u8]) -> Option<TooBig> {
    let (header, quoted) = message.split_first_chunk::<ICMP>()?;
    match (ip.source, header[0], header[1]) {
        (IpAddr::V4(_), UNREACHABLE4, FRAGMENTATION_NEEDED) => {
            let mtu = usize::from(u16::from_be_bytes([header[6], header[7]]));
            too_big4(quoted, mtu.max(MTU4_MIN))
        }
        (IpAddr::V6(_), TOO_BIG6, _) => {
            let mtu = u32::from_be_bytes([header[4], header[5], header[6], header[7]]);
            too_big6(quoted, (mtu as usize).max(ipv6::MTU_MIN))
        }
        _ => None,
    }
}

fn too_big4(quoted: &[u8], mtu: usize) -> Option<TooBig> {
    let header = quoted.first_chunk::<{ ipv4::HEADER }>()?;
    let address = |at: usize| {
        let bytes = [header[at], header[at + 1], header[at + 2], header[at + 3]];
        IpAddr::V4(Ipv4Addr::from(bytes))
    };
    let is_tcp = header[0] >> 4 == 4 && header[9] == protocol::TCP;
    let len = usize::from(header[0] & 15) * 4;
    let tcp = quoted.get(len..).filter(|_| is_tcp)?;
    quoted_tcp(tcp, (address(12), address(16)), mtu)
}

fn too_big6(quoted: &[u8], mtu: usize) -> Option<TooBig> {
    let header = quoted.first_chunk::<{ ipv6::HEADER }>()?;
    let address = |at: usize| {
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&header[at..at + 16]);
        IpAddr::V6(Ipv6Addr::from(bytes))
    };
    let is_tcp = header[0] >> 4 == 6 && header[6] == protocol::TCP;
    let tcp = quoted.get(ipv6::HEADER..).filter(|_| is_tcp)?;
    quoted_tcp(tcp, (address(8), address(24)), mtu)
}

fn quoted_tcp(tcp: &[u8], (local, remote): (IpAddr, IpAddr), mtu: usize) -> Option<TooBig> {
    let tcp = tcp.first_chunk::<8>()?;
    Some(TooBig {
        tuple: Tuple {
            local,
            remote,
            local_port: u16::from_be_bytes([tcp[0], tcp[1]]),
            remote_port: u16::from_be_bytes([tcp[2], tcp[3]]),
        },
        seq: u32::from_be_bytes([tcp[4], tcp[5], tcp[6], tcp[7]]),
        mtu,
    })
}
