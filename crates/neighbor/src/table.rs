//! The neighbors of one interface.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use tare_packet::ethernet::Mac;
use tare_packet::ipv6::Ipv6;
use tare_packet::wire::ArpOperation;
use tare_sim::{Instant, TokenBucket};

use crate::entry::{Entry, Request, State};
use crate::message::{self, Arp};

/// The shortest interval between two announcements against a station that claims our address.
const DEFENSE: Duration = Duration::from_secs(10);

/// The interface's own addresses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Local {
    /// MAC address.
    pub mac: Mac,
    /// IPv4 address.
    pub ip4: Option<Ipv4Addr>,
    /// IPv6 address.
    pub ip6: Option<Ipv6Addr>,
}

/// The reason why a message was acted on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Handled {
    /// A request for our MAC address, answered.
    Request,
    /// A neighbor answered a request with its MAC address.
    Reply,
    /// A neighbor answered a request with another MAC address than before.
    Moved {
        /// Its IP address.
        address: IpAddr,
        /// The MAC address before.
        from: Mac,
        /// Its MAC address now.
        to: Mac,
    },
}

/// The reason why a message was not acted on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ignored {
    /// Truncated, or it contradicts itself.
    Malformed,
    /// For another station.
    NotForUs,
    /// Its source is not one station, or claims an address of ours.
    Source,
    /// The hop limit is not 255: it may come from beyond the link (RFC 4861, 7.1).
    HopLimit,
    /// About a neighbor that is not a target.
    NotNeighbor,
    /// From a target, but no answer to a request of ours.
    Unsolicited,
    /// The limit on answers was reached.
    Rate,
}

/// The state of one target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Neighbor {
    /// Its IP address.
    pub address: IpAddr,
    /// Its MAC address; `None` if unknown.
    pub mac: Option<Mac>,
    /// Its state.
    pub state: State,
}

/// ARP and neighbor discovery for one interface.
///
/// Functions that may send add whole frames to `send`.
#[derive(Clone, Debug)]
pub struct Neighbors {
    local: Local,
    targets: BTreeMap<IpAddr, Entry>,
    defended: Option<Instant>,
}

impl Neighbors {
    /// Creates a table without targets.
    pub fn new(local: Local) -> Neighbors {
        Neighbors {
            local,
            targets: BTreeMap::new(),
            defended: None,
        }
    }

    /// Returns the interface's own addresses.
    pub fn local(&self) -> &Local {
        &self.local
    }

    /// Sets the interface's own addresses.
    pub fn set_local(&mut self, local: Local) {
        self.local = local;
    }

    /// Sets the addresses to resolve. Targets that stay keep what is known of them; new ones are
    /// asked for by the next [`Neighbors::tick`].
    pub fn set_targets(&mut self, targets: impl IntoIterator<Item = IpAddr>, now: Instant) {
        let mut before = std::mem::take(&mut self.targets);
        for address in targets {
            let entry = before.remove(&address).unwrap_or_else(|| Entry::new(now));
            self.targets.insert(address, entry);
        }
    }

    /// Returns the MAC address of a target; `None` if unknown.
    pub fn mac(&self, address: IpAddr) -> Option<Mac> {
        self.targets.get(&address)?.mac()
    }

    /// Returns all targets, in the order of their addresses.
    pub fn iter(&self) -> impl Iterator<Item = Neighbor> + '_ {
        self.targets.iter().map(|(address, entry)| Neighbor {
            address: *address,
            mac: entry.mac(),
            state: entry.state(),
        })
    }

    /// Assumes the MAC address of a target that is not known yet, because another process knew it,
    /// and asks for it at once.
    pub fn assume(&mut self, now: Instant, address: IpAddr, mac: Mac) {
        let entry = self.targets.get_mut(&address);
        if let Some(entry) = entry.filter(|entry| entry.mac().is_none()) {
            entry.answered(now, mac);
            entry.doubt(now);
        }
    }

    /// Asks for all targets again, because the link may be another one. Addresses that are known
    /// are used until the answer.
    pub fn doubt_all(&mut self, now: Instant) {
        self.targets.values_mut().for_each(|entry| entry.doubt(now));
    }

    /// Sends announcements of our own addresses.
    pub fn announce(&self, send: &mut Vec<Vec<u8>>) {
        let Local { mac, ip4, ip6 } = self.local;
        if let Some(ip4) = ip4 {
            send.push(message::arp_request(None, mac, ip4, ip4));
        }
        if let Some(ip6) = ip6 {
            let group = message::ALL_NODES;
            let to = message::multicast_mac(group);
            send.push(message::advertisement(to, mac, (ip6, group), false));
        }
    }

    /// Returns the time of the next [`Neighbors::tick`]; calling it earlier does no harm.
    pub fn next_deadline(&self) -> Instant {
        let due = self.targets.values().map(Entry::due);
        due.min().unwrap_or(Instant::NEVER)
    }

    /// Sends the requests that are due. A target of a family that the interface has no address of
    /// is not asked for.
    pub fn tick(&mut self, now: Instant, send: &mut Vec<Vec<u8>>) {
        let Local { mac, ip4, ip6 } = self.local;
        for (address, entry) in &mut self.targets {
            let Some(request) = entry.tick(now) else {
                continue;
            };
            let to = match request {
                Request::Broadcast => None,
                Request::Station(mac) => Some(mac),
            };
            match (*address, ip4, ip6) {
                (IpAddr::V4(target), Some(own), _) => {
                    send.push(message::arp_request(to, mac, own, target));
                }
                (IpAddr::V6(target), _, Some(own)) => {
                    send.push(message::solicitation(to, mac, own, target));
                }
                _ => {}
            }
        }
    }

    /// Handles an ARP packet, without its Ethernet header. RFC 826, "Packet Reception", but
    /// stations that are no target are answered and not remembered, and targets are believed where
    /// they answer a request: any station of the link can send anything else.
    ///
    /// # Errors
    /// The reason why it was ignored.
    pub fn receive_arp(
        &mut self,
        now: Instant,
        packet: &[u8],
        answers: &mut TokenBucket,
        send: &mut Vec<Vec<u8>>,
    ) -> Result<Handled, Ignored> {
        let arp = Arp::parse(packet).ok_or(Ignored::Malformed)?;
        let (mac, source) = arp.source;
        let local = self.local;
        self.check_station(mac)?;
        if Some(source) == local.ip4 {
            // RFC 5227, 2.4 (b): one announcement, and not more often than every ten seconds, lest
            // two stations that both defend an address flood the link.
            if self.defended.is_none_or(|at| now.since(at) >= DEFENSE) {
                self.defended = Some(now);
                self.announce(send);
            }
            return Err(Ignored::Source);
        }
        let is_for_us = Some(arp.target) == local.ip4;
        let is_answer = is_for_us && arp.operation == ArpOperation::Reply;
        let told = self.told(now, IpAddr::V4(source), mac, is_answer);
        let requested = is_for_us && arp.operation == ArpOperation::Request;
        match local.ip4.filter(|_| requested) {
            Some(own) if answers.take(now) => {
                let reply = ArpOperation::Reply;
                let reply = message::arp_frame(mac, local.mac, reply, own, (mac, source));
                send.push(reply);
                Ok(Handled::Request)
            }
            Some(_) => Err(Ignored::Rate),
            None if !is_for_us && told == Err(Ignored::NotNeighbor) => Err(Ignored::NotForUs),
            None => told,
        }
    }

    /// Takes over the MAC address that a target told, if it was asked for.
    fn told(
        &mut self,
        now: Instant,
        address: IpAddr,
        mac: Mac,
        is_answer: bool,
    ) -> Result<Handled, Ignored> {
        let entry = self.targets.get_mut(&address);
        let entry = entry.ok_or(Ignored::NotNeighbor)?;
        if !is_answer || !entry.expects(mac) {
            entry.claimed(now, mac);
            return Err(Ignored::Unsolicited);
        }
        Ok(match entry.answered(now, mac) {
            Some(from) => Handled::Moved {
                address,
                from,
                to: mac,
            },
            None => Handled::Reply,
        })
    }

    /// Handles a neighbor solicitation (RFC 4861, 7.1.1, 7.2.3, 7.2.4): the ICMPv6 message, whose
    /// checksum is right, from the station `from`.
    ///
    /// # Errors
    /// The reason why it was ignored.
    pub fn receive_solicitation(
        &mut self,
        now: Instant,
        ip: &Ipv6,
        from: Mac,
        message: &[u8],
        answers: &mut TokenBucket,
        send: &mut Vec<Vec<u8>>,
    ) -> Result<Handled, Ignored> {
        let (target, option) = parse(ip, message, message::SOURCE_OPTION)?;
        let source = Ipv6Addr::from_bits(ip.src);
        let own = self.local.ip6.filter(|own| *own == target);
        let own = own.ok_or(Ignored::NotForUs)?;
        let group = message::solicited_node(own).to_bits();
        if ip.dst != own.to_bits() && ip.dst != group {
            return Err(Ignored::NotForUs);
        }
        if source.is_unspecified() {
            // Duplicate address detection (RFC 4862, 5.4): another station is about to use this
            // address, and has none to be answered at. Such a message goes to the group and has no
            // option.
            if option.is_some() || ip.dst != group {
                return Err(Ignored::Malformed);
            }
            if !answers.take(now) {
                return Err(Ignored::Rate);
            }
            let group = message::ALL_NODES;
            let to = message::multicast_mac(group);
            let answer = message::advertisement(to, self.local.mac, (own, group), false);
            send.push(answer);
            return Ok(Handled::Request);
        }
        if source.is_multicast() || source == own {
            return Err(Ignored::Source);
        }
        let mac = option.unwrap_or(from);
        self.check_station(mac)?;
        if let Some(mac) = option {
            // A request is no answer, but may be a reason to ask.
            let _ = self.told(now, IpAddr::V6(source), mac, false);
        }
        if !answers.take(now) {
            return Err(Ignored::Rate);
        }
        let answer = message::advertisement(mac, self.local.mac, (own, source), true);
        send.push(answer);
        Ok(Handled::Request)
    }

    /// Handles a neighbor advertisement (RFC 4861, 7.1.2, 7.2.5): the ICMPv6 message, whose
    /// checksum is right, from the station `from`.
    ///
    /// # Errors
    /// The reason why it was ignored.
    pub fn receive_advertisement(
        &mut self,
        now: Instant,
        ip: &Ipv6,
        from: Mac,
        message: &[u8],
    ) -> Result<Handled, Ignored> {
        let (target, option) = parse(ip, message, message::TARGET_OPTION)?;
        let flags = message.get(4).copied().unwrap_or_default();
        let solicited = flags & 0x40 != 0;
        if solicited && ip.dst >> 120 == 0xff {
            return Err(Ignored::Malformed);
        }
        if Some(target) == self.local.ip6 {
            return Err(Ignored::Source);
        }
        // An answer may lack the option if the request was sent to the station itself.
        let mac = option.unwrap_or(from);
        if !self.targets.contains_key(&IpAddr::V6(target)) {
            return Err(Ignored::NotNeighbor);
        }
        self.check_station(mac)?;
        // RFC 4861, 4.4: an answer to a request is solicited. The flag "override" is not looked at:
        // who may answer is known from whom was asked.
        self.told(now, IpAddr::V6(target), mac, solicited)
    }

    fn check_station(&self, mac: Mac) -> Result<(), Ignored> {
        if !message::is_station(mac) || mac == self.local.mac {
            return Err(Ignored::Source);
        }
        Ok(())
    }
}

/// Returns the target and the link-layer address option of a solicitation or advertisement, if it
/// is valid but for its checksum.
fn parse(ip: &Ipv6, message: &[u8], wanted: u8) -> Result<(Ipv6Addr, Option<Mac>), Ignored> {
    if ip.hop_limit != message::ND_HOP_LIMIT {
        return Err(Ignored::HopLimit);
    }
    let split = message.split_at_checked(message::ND);
    let (fixed, mut options) = split.ok_or(Ignored::Malformed)?;
    let target = fixed[8..].first_chunk::<16>().ok_or(Ignored::Malformed)?;
    let target = Ipv6Addr::from(*target);
    if fixed[1] != 0 || target.is_multicast() {
        return Err(Ignored::Malformed);
    }
    let mut mac = None;
    while let [kind, length, ..] = *options {
        // RFC 4861, 7.1.1: "All included options have a length that is greater than zero."
        let split = options.split_at_checked(usize::from(length) * 8);
        let (option, rest) = split.filter(|_| length > 0).ok_or(Ignored::Malformed)?;
        if kind == wanted && length == 1 {
            mac = mac.or(option[2..].first_chunk::<6>().copied());
        }
        options = rest;
    }
    Ok((target, mac))
}
