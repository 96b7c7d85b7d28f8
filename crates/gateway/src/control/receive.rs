//! Frames that the control side gets, and what they are about.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use tare_packet::checksum;
use tare_packet::ethernet::{self, Mac, HEADER};
use tare_packet::ipv4::Ipv4;
use tare_packet::ipv6::{self, Ipv6};
use tare_sim::Instant;

use super::counters::{Ignored, Taken};
use super::icmp::{self, TooBig};
use super::record::{Level, Record};
use super::{interface, wire, Control};
use crate::interface::InterfaceId;

impl Control {
    pub(super) fn handle(
        &mut self,
        now: Instant,
        inside: Instant,
        from: InterfaceId,
        frame: &[u8],
    ) -> Result<Taken, Ignored> {
        let packet = frame.get(HEADER..).ok_or(Ignored::Malformed)?;
        match packet.first().ok_or(Ignored::Malformed)? >> 4 {
            // What comes out of the tunnel has no Ethernet header of its own.
            4 if from == InterfaceId::Tunnel => self.handle_v4(now, inside, from, frame, packet),
            6 if from == InterfaceId::Tunnel => self.handle_v6(now, inside, from, frame, packet),
            _ => match ethernet::kind(frame) {
                _ if from == InterfaceId::Tunnel => Err(Ignored::Malformed),
                Some(ethernet::ARP) => {
                    let mut frames = Vec::new();
                    let outcome = self.interface_mut(from).arp(inside, packet, &mut frames);
                    self.hold(from, &mut frames);
                    outcome
                }
                Some(ethernet::IPV4) => self.handle_v4(now, inside, from, frame, packet),
                Some(ethernet::IPV6) => self.handle_v6(now, inside, from, frame, packet),
                _ => Err(Ignored::Unsupported),
            },
        }
    }

    fn handle_v4(
        &mut self,
        now: Instant,
        inside: Instant,
        from: InterfaceId,
        frame: &[u8],
        packet: &[u8],
    ) -> Result<Taken, Ignored> {
        let ip = Ipv4::parse(packet).map_err(|_| Ignored::Malformed)?;
        let (src, dst) = (Ipv4Addr::from_bits(ip.src), Ipv4Addr::from_bits(ip.dst));
        if !self.is_ours(from, dst.into()) {
            return Err(Ignored::NotForUs);
        }
        if !interface::is_host4(src) || self.is_own(src.into()) {
            return Err(Ignored::Source);
        }
        if ip.is_fragment() {
            return Err(Ignored::Fragment);
        }
        let payload = packet
            .get(ip.header_len..ip.total_len)
            .ok_or(Ignored::Malformed)?;
        match ip.protocol {
            wire::UDP if from == InterfaceId::Public => {
                self.handle_message(now, src.into(), dst.into(), payload)
            }
            wire::ICMP => {
                let kind = *payload.first().ok_or(Ignored::Malformed)?;
                if payload.len() < 8 {
                    return Err(Ignored::Malformed);
                }
                if checksum::finish(checksum::sum(payload)) != 0 {
                    return Err(Ignored::Checksum);
                }
                match kind {
                    icmp::ECHO_REQUEST4 => {
                        let to = self.answer(inside, from, frame)?;
                        let mac = self.interface_mut(from).mac();
                        let reply = icmp::reply4(payload);
                        let reply = wire::ipv4_frame(to, mac, dst, src, wire::ICMP, &reply);
                        self.hold(from, &mut vec![reply]);
                        Ok(Taken::Echo)
                    }
                    icmp::UNREACHABLE4 if from == InterfaceId::Public => {
                        let too_big = TooBig::v4(payload).ok_or(Ignored::Unsupported)?;
                        self.narrow_path(inside, &too_big)
                    }
                    _ => Err(Ignored::Unsupported),
                }
            }
            _ => Err(Ignored::Unsupported),
        }
    }

    fn handle_v6(
        &mut self,
        now: Instant,
        inside: Instant,
        from: InterfaceId,
        frame: &[u8],
        packet: &[u8],
    ) -> Result<Taken, Ignored> {
        let ip = Ipv6::parse(packet).map_err(|_| Ignored::Malformed)?;
        let (src, dst) = (Ipv6Addr::from_bits(ip.src), Ipv6Addr::from_bits(ip.dst));
        let payload = packet
            .get(ipv6::HEADER..ip.total_len)
            .ok_or(Ignored::Malformed)?;
        let group = dst.is_multicast();
        if !self.is_ours(from, dst.into()) && (!group || from == InterfaceId::Tunnel) {
            return Err(Ignored::NotForUs);
        }
        if ip.next_header == wire::UDP && from == InterfaceId::Public && !group {
            return self.handle_message(now, src.into(), dst.into(), payload);
        }
        if ip.next_header != wire::ICMPV6 {
            return Err(Ignored::Unsupported);
        }
        let kind = *payload.first().ok_or(Ignored::Malformed)?;
        if payload.len() < 8 {
            return Err(Ignored::Malformed);
        }
        if wire::sum_v6(src, dst, wire::ICMPV6, payload) != 0 {
            return Err(Ignored::Checksum);
        }
        let station = frame[6..].first_chunk::<6>().ok_or(Ignored::Malformed)?;
        let mut frames = Vec::new();
        match kind {
            // A peer must not tell us about our own link.
            wire::SOLICITATION if from != InterfaceId::Tunnel => {
                let end = self.interface_mut(from);
                let outcome = end.solicited(inside, &ip, *station, payload, &mut frames);
                self.hold(from, &mut frames);
                outcome
            }
            wire::ADVERTISEMENT if from != InterfaceId::Tunnel => self
                .interface_mut(from)
                .advertised(inside, &ip, *station, payload),
            icmp::ECHO_REQUEST6 if !group => {
                if !interface::is_host6(src) || self.is_own(src.into()) {
                    return Err(Ignored::Source);
                }
                let to = self.answer(inside, from, frame)?;
                let mac = self.interface_mut(from).mac();
                let reply = icmp::reply6(payload);
                let reply = wire::icmpv6_frame(to, mac, dst, src, 64, reply);
                self.hold(from, &mut vec![reply]);
                Ok(Taken::Echo)
            }
            icmp::TOO_BIG6 if from == InterfaceId::Public && !group => {
                let too_big = TooBig::v6(payload).ok_or(Ignored::Unsupported)?;
                self.narrow_path(inside, &too_big)
            }
            _ => Err(Ignored::Unsupported),
        }
    }

    /// Whether a packet that came by `from` may be for this address of ours: by the public
    /// interface, that of the other side is to be reached through the tunnel alone.
    fn is_ours(&self, from: InterfaceId, address: IpAddr) -> bool {
        let of = |end: &interface::InterfaceControl| match address {
            IpAddr::V4(address) => end.ip4 == Some(address),
            IpAddr::V6(address) => end.ip6 == Some(address),
        };
        of(&self.public) || (from != InterfaceId::Public && of(&self.private))
    }

    fn is_own(&self, address: IpAddr) -> bool {
        self.is_ours(InterfaceId::Private, address)
    }

    /// The station that an answer goes to, if there is to be one: the one that asked.
    fn answer(&mut self, inside: Instant, from: InterfaceId, frame: &[u8]) -> Result<Mac, Ignored> {
        let asker = frame[6..].first_chunk::<6>().copied().unwrap_or_default();
        if from != InterfaceId::Tunnel
            && (!interface::is_unicast(frame) || !wire::is_station(asker))
        {
            return Err(Ignored::Source);
        }
        // The tunnel's answers have a limit of their own kind: that of the private side, whose
        // traffic they are.
        let limits = match from {
            InterfaceId::Public => &mut self.public.answers,
            InterfaceId::Private | InterfaceId::Tunnel => &mut self.private.answers,
        };
        if !limits.take(inside) {
            return Err(Ignored::Rate);
        }
        Ok(asker)
    }

    fn handle_message(
        &mut self,
        now: Instant,
        src: IpAddr,
        dst: IpAddr,
        datagram: &[u8],
    ) -> Result<Taken, Ignored> {
        let port = self.config.protocol_port;
        let message = wire::udp_payload(src, dst, port, datagram).ok_or(Ignored::Checksum)?;
        self.exchange.receive(now, src, message, &mut self.events);
        self.apply_events();
        Ok(Taken::Exchange)
    }

    /// RFC 1191, 6.1, and RFC 8201, 5.1: only an error about a packet of one of our SAs is
    /// believed.
    fn narrow_path(&mut self, inside: Instant, too_big: &TooBig) -> Result<Taken, Ignored> {
        if !self.path_reports.take(inside) {
            return Err(Ignored::Rate);
        }
        let peer = too_big.dst;
        let own = self.config.public.address_towards(peer);
        if own != Some(too_big.src) || self.routes.shown(peer, too_big.spi).is_none() {
            return Err(Ignored::NotOurs);
        }
        let known = self.path_mtu(peer);
        let mtu = self
            .paths
            .narrow(inside, peer, too_big.mtu, known)
            .ok_or(Ignored::NotOurs)?;
        self.dirty = true;
        self.record(
            Record::new(Level::Info, "path_mtu")
                .with("gateway", peer.to_string())
                .with("mtu", mtu),
        );
        Ok(Taken::PathMtu)
    }
}
