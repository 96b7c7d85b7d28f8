//! One of the two interfaces: its addresses, its next hops, and what stations of its link ask for.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use tare_packet::ethernet::{Mac, BROADCAST};
use tare_packet::ipv6::Ipv6;
use tare_packet::wire::ArpOperation;
use tare_sim::{Instant, TokenBucket};

use super::counters::{Ignored, Taken};
use super::neighbor::{Ask, Neighbor};
use super::status::NeighborStatus;
use super::wire::{self, Arp};
use crate::config::InterfaceConfig;
use crate::dataplane::error_limit;
use crate::interface::{InterfaceState, InterfaceView};

/// How often, at most, a station that claims an address of ours is told that it is wrong.
const DEFENSE: Duration = Duration::from_secs(10);

pub(super) struct InterfaceControl {
    state: InterfaceState,
    mac: Mac,
    pub(super) ip4: Option<Ipv4Addr>,
    pub(super) ip6: Option<Ipv6Addr>,
    fixed: Option<Mac>,
    hop4: Option<Neighbor>,
    hop6: Option<Neighbor>,
    /// Answers to whoever asks.
    pub(super) answers: TokenBucket,
    defended: Instant,
}

impl InterfaceControl {
    pub(super) fn new(
        interface: &InterfaceConfig,
        state: InterfaceState,
        now: Instant,
    ) -> InterfaceControl {
        let mut this = InterfaceControl {
            state,
            mac: state.mac,
            ip4: None,
            ip6: None,
            fixed: None,
            hop4: None,
            hop6: None,
            answers: error_limit(),
            defended: Instant::ZERO,
        };
        this.configure(interface, now);
        this
    }

    /// Goes on with another configuration; next hops that stay are not asked for again.
    pub(super) fn configure(&mut self, interface: &InterfaceConfig, now: Instant) {
        self.mac = interface.mac.unwrap_or(self.state.mac);
        self.ip4 = interface.ip4;
        self.ip6 = interface.ip6;
        self.fixed = interface.nexthop_mac;
        let keep = |old: &mut Option<Neighbor>, address: Option<IpAddr>| {
            let address = address.filter(|_| interface.nexthop_mac.is_none());
            if old.as_ref().map(|old| old.address) != address {
                *old = address.map(|address| Neighbor::new(address, now));
            }
        };
        keep(&mut self.hop4, interface.nexthop_ip4.map(IpAddr::V4));
        keep(&mut self.hop6, interface.nexthop_ip6.map(IpAddr::V6));
    }

    pub(super) fn mac(&self) -> Mac {
        self.mac
    }

    pub(super) fn state(&self) -> InterfaceState {
        self.state
    }

    /// The interface has changed. Where it came up or has another station address, the link is told
    /// and asked anew.
    pub(super) fn change(
        &mut self,
        interface: &InterfaceConfig,
        state: InterfaceState,
        now: Instant,
        send: &mut Vec<Vec<u8>>,
    ) {
        let again = state.up && (!self.state.up || state.mac != self.state.mac);
        self.state = state;
        self.configure(interface, now);
        if again {
            for hop in [&mut self.hop4, &mut self.hop6].into_iter().flatten() {
                hop.doubt(now);
            }
            self.announce(send);
        }
    }

    /// Tells the link where our addresses are.
    pub(super) fn announce(&self, send: &mut Vec<Vec<u8>>) {
        if let Some(ip4) = self.ip4 {
            send.push(wire::arp_request(None, self.mac, ip4, ip4));
        }
        if let Some(ip6) = self.ip6 {
            let group = wire::ALL_NODES;
            let to = wire::multicast_mac(group);
            send.push(wire::advertisement(to, self.mac, (ip6, group), false));
        }
    }

    /// When there is something to ask.
    pub(super) fn due(&self) -> Instant {
        if !self.state.up {
            return Instant::NEVER;
        }
        let hops = [&self.hop4, &self.hop6].into_iter().flatten();
        hops.map(Neighbor::due).min().unwrap_or(Instant::NEVER)
    }

    /// Asks what is to be asked.
    pub(super) fn tick(&mut self, now: Instant, send: &mut Vec<Vec<u8>>) {
        if !self.state.up {
            return;
        }
        for hop in [&mut self.hop4, &mut self.hop6].into_iter().flatten() {
            let Some(ask) = hop.tick(now) else { continue };
            let to = match ask {
                Ask::Everyone => None,
                Ask::Station(mac) => Some(mac),
            };
            match (hop.address, self.ip4, self.ip6) {
                (IpAddr::V4(target), Some(own), _) => {
                    send.push(wire::arp_request(to, self.mac, own, target));
                }
                (IpAddr::V6(target), _, Some(own)) => {
                    send.push(wire::solicitation(to, self.mac, own, target));
                }
                _ => {}
            }
        }
    }

    /// What workers see of it.
    pub(super) fn view(&self) -> InterfaceView {
        let known = |hop: &Option<Neighbor>| hop.as_ref().and_then(Neighbor::mac).or(self.fixed);
        InterfaceView {
            mac: self.mac,
            ip4: self.ip4.map(Ipv4Addr::to_bits),
            ip6: self.ip6.map(Ipv6Addr::to_bits),
            next_hop4: known(&self.hop4),
            next_hop6: known(&self.hop6),
            mtu: self.state.mtu,
        }
    }

    /// The station that packets to an address of this family go to.
    pub(super) fn next_hop(&self, family: IpAddr) -> Option<Mac> {
        let view = self.view();
        match family {
            IpAddr::V4(_) => view.next_hop4,
            IpAddr::V6(_) => view.next_hop6,
        }
    }

    /// RFC 826, "Packet Reception", but for stations other than the next hop, which are answered
    /// and not remembered.
    pub(super) fn arp(
        &mut self,
        now: Instant,
        packet: &[u8],
        send: &mut Vec<Vec<u8>>,
    ) -> Result<Taken, Ignored> {
        let arp = Arp::parse(packet).ok_or(Ignored::Malformed)?;
        let (mac, source) = arp.source;
        if !wire::is_station(mac) || mac == self.mac {
            return Err(Ignored::Source);
        }
        if Some(source) == self.ip4 {
            if now.since(self.defended) >= DEFENSE || self.defended == Instant::ZERO {
                self.defended = now.max(Instant::from_nanos(1));
                self.announce(send);
            }
            return Err(Ignored::Source);
        }
        let told = match &mut self.hop4 {
            Some(hop) if hop.address == IpAddr::V4(source) => {
                hop.told(now, mac);
                true
            }
            _ => false,
        };
        let asked = arp.operation == ArpOperation::Request && Some(arp.target) == self.ip4;
        match self.ip4.filter(|_| asked) {
            Some(own) if self.answers.take(now) => {
                let reply = ArpOperation::Reply;
                send.push(wire::arp_frame(mac, self.mac, reply, own, (mac, source)));
                Ok(Taken::NeighborAsked)
            }
            Some(_) => Err(Ignored::Rate),
            None if told => Ok(Taken::NeighborTold),
            None if Some(arp.target) == self.ip4 => Err(Ignored::NotNeighbor),
            None => Err(Ignored::NotForUs),
        }
    }

    /// A neighbor solicitation (RFC 4861, 7.1.1, 7.2.3, 7.2.4). `message` has a right checksum.
    pub(super) fn solicited(
        &mut self,
        now: Instant,
        ip: &Ipv6,
        from: Mac,
        message: &[u8],
        send: &mut Vec<Vec<u8>>,
    ) -> Result<Taken, Ignored> {
        let (target, option) = neighbor_message(ip, message, wire::SOURCE_OPTION)?;
        let source = Ipv6Addr::from_bits(ip.src);
        let own = self.ip6.filter(|own| *own == target);
        let own = own.ok_or(Ignored::NotForUs)?;
        let group = wire::solicited_node(own).to_bits();
        if ip.dst != own.to_bits() && ip.dst != group {
            return Err(Ignored::NotForUs);
        }
        if source.is_unspecified() {
            // Somebody looks for a duplicate of this address (RFC 4862, 5.4): it is taken. Such a
            // question goes to the group and has no option.
            if option.is_some() || ip.dst != group {
                return Err(Ignored::Malformed);
            }
            if !self.answers.take(now) {
                return Err(Ignored::Rate);
            }
            let to = wire::multicast_mac(wire::ALL_NODES);
            send.push(wire::advertisement(
                to,
                self.mac,
                (own, wire::ALL_NODES),
                false,
            ));
            return Ok(Taken::NeighborAsked);
        }
        if source.is_multicast() || source == own {
            return Err(Ignored::Source);
        }
        let mac = option.unwrap_or(from);
        if !wire::is_station(mac) || mac == self.mac {
            return Err(Ignored::Source);
        }
        if let (Some(hop), Some(mac)) = (&mut self.hop6, option) {
            if hop.address == IpAddr::V6(source) {
                hop.told(now, mac);
            }
        }
        if !self.answers.take(now) {
            return Err(Ignored::Rate);
        }
        send.push(wire::advertisement(mac, self.mac, (own, source), true));
        Ok(Taken::NeighborAsked)
    }

    /// A neighbor advertisement (RFC 4861, 7.1.2, 7.2.5). `message` has a right checksum.
    pub(super) fn advertised(
        &mut self,
        now: Instant,
        ip: &Ipv6,
        from: Mac,
        message: &[u8],
    ) -> Result<Taken, Ignored> {
        let (target, option) = neighbor_message(ip, message, wire::TARGET_OPTION)?;
        let flags = message.get(4).copied().unwrap_or_default();
        let (solicited, overriding) = (flags & 0x40 != 0, flags & 0x20 != 0);
        if solicited && ip.dst >> 120 == 0xff {
            return Err(Ignored::Malformed);
        }
        if Some(target) == self.ip6 {
            return Err(Ignored::Source);
        }
        let hop = self.hop6.as_mut();
        let hop = hop.filter(|hop| hop.address == IpAddr::V6(target));
        let hop = hop.ok_or(Ignored::NotNeighbor)?;
        // The option may be left out of an answer to one who must know the address to have asked.
        let mac = option.unwrap_or(from);
        if !wire::is_station(mac) || mac == self.mac {
            return Err(Ignored::Source);
        }
        match hop.mac() {
            None if solicited || hop.is_asked() => hop.told(now, mac),
            Some(known) if known == mac && !solicited => {}
            Some(known) if known == mac || overriding => hop.told(now, mac),
            _ => return Err(Ignored::NotNeighbor),
        }
        Ok(Taken::NeighborTold)
    }

    pub(super) fn neighbors(&self, interface: &'static str, to: &mut Vec<NeighborStatus>) {
        let status = |address: String, mac: Option<Mac>, state: &str| NeighborStatus {
            interface: interface.into(),
            address,
            mac: mac.map(text),
            state: state.into(),
        };
        if let Some(mac) = self.fixed {
            to.push(status("any".into(), Some(mac), "fixed"));
        }
        let hops = [&self.hop4, &self.hop6].into_iter().flatten();
        to.extend(hops.map(|hop| status(hop.address.to_string(), hop.mac(), hop.state())));
    }
}

/// Target and station address of a solicitation or advertisement, if it is valid but for its
/// checksum.
fn neighbor_message(
    ip: &Ipv6,
    message: &[u8],
    wanted: u8,
) -> Result<(Ipv6Addr, Option<Mac>), Ignored> {
    if ip.hop_limit != wire::ND_HOP_LIMIT {
        return Err(Ignored::HopLimit);
    }
    let (fixed, mut options) = message
        .split_at_checked(wire::ND)
        .ok_or(Ignored::Malformed)?;
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

/// A station address as people write it.
pub(super) fn text(mac: Mac) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

/// Whether an IPv4 packet may be answered: it is from one host, and to one station.
pub(super) fn is_host4(address: Ipv4Addr) -> bool {
    !(address.is_unspecified()
        || address.is_multicast()
        || address.is_broadcast()
        || address.is_loopback())
}

/// The same for IPv6.
pub(super) fn is_host6(address: Ipv6Addr) -> bool {
    !(address.is_unspecified() || address.is_multicast() || address.is_loopback())
}

/// Whether a frame was sent to this station and not to all.
pub(super) fn is_unicast(frame: &[u8]) -> bool {
    frame.first().is_some_and(|first| first & 1 == 0) && !frame.starts_with(&BROADCAST)
}
