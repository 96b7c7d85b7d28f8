//! Frames that the control side gets, and what they are about.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use tare_neighbor as neighbor;
use tare_packet::ethernet::{self, Mac, HEADER};
use tare_packet::ipv4::{self, Ipv4};
use tare_packet::ipv6::{self, Ipv6};
use tare_packet::{checksum, frame};
use tare_sim::Instant;

use super::counters::{Ignored, Taken};
use super::icmp::{self, TooBig};
use super::probe::Message;
use super::{interface, path, Control};
use crate::interface::InterfaceId;
use tare_daemon::{Level, Record};

impl Control {
    pub(super) fn handle(
        &mut self,
        now: Instant,
        inside: Instant,
        from: InterfaceId,
        bytes: &[u8],
    ) -> Result<Taken, Ignored> {
        let packet = bytes.get(HEADER..).ok_or(Ignored::Malformed)?;
        match packet.first().ok_or(Ignored::Malformed)? >> 4 {
            // What comes out of the tunnel has no Ethernet header of its own.
            4 if from == InterfaceId::Tunnel => self.handle_v4(now, inside, from, bytes, packet),
            6 if from == InterfaceId::Tunnel => self.handle_v6(now, inside, from, bytes, packet),
            _ => match ethernet::kind(bytes) {
                _ if from == InterfaceId::Tunnel => self.handle_dummy(inside, bytes, packet),
                Some(ethernet::ARP) => {
                    let mut frames = Vec::new();
                    let outcome = {
                        let interface = self.interface_mut(from);
                        let (neighbors, answers) =
                            (&mut interface.neighbors, &mut interface.neighbor_answers);
                        neighbors.receive_arp(inside, packet, answers, &mut frames)
                    };
                    self.hold(from, &mut frames);
                    self.neighbor_outcome(from, outcome)
                }
                Some(ethernet::IPV4) => self.handle_v4(now, inside, from, bytes, packet),
                Some(ethernet::IPV6) => self.handle_v6(now, inside, from, bytes, packet),
                _ => Err(Ignored::Unsupported),
            },
        }
    }

    fn handle_v4(
        &mut self,
        now: Instant,
        inside: Instant,
        from: InterfaceId,
        bytes: &[u8],
        packet: &[u8],
    ) -> Result<Taken, Ignored> {
        let ip = Ipv4::parse(packet).map_err(|_| Ignored::Malformed)?;
        let (src, dst) = (Ipv4Addr::from_bits(ip.src), Ipv4Addr::from_bits(ip.dst));
        if !self.is_ours(from, dst.into()) {
            return Err(Ignored::NotForUs);
        }
        if !ipv4::is_host(ip.src) || self.is_own(src.into()) {
            return Err(Ignored::Source);
        }
        if ip.is_fragment() {
            return Err(Ignored::Fragment);
        }
        let payload = packet
            .get(ip.header_len..ip.total_len)
            .ok_or(Ignored::Malformed)?;
        match ip.protocol {
            frame::UDP if from == InterfaceId::Public => {
                self.handle_message(now, src.into(), dst.into(), payload)
            }
            frame::ICMP => {
                let kind = *payload.first().ok_or(Ignored::Malformed)?;
                if payload.len() < 8 {
                    return Err(Ignored::Malformed);
                }
                if checksum::finish(checksum::sum(payload)) != 0 {
                    return Err(Ignored::Checksum);
                }
                match kind {
                    icmp::ECHO_REQUEST4 => {
                        let to = self.echo_reply_to(inside, from, bytes)?;
                        let mac = self.interface_mut(from).mac();
                        let reply = icmp::reply4(payload);
                        let reply = frame::ipv4(to, mac, dst, src, frame::ICMP, &reply);
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
        bytes: &[u8],
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
        if ip.next_header == frame::UDP && from == InterfaceId::Public && !group {
            return self.handle_message(now, src.into(), dst.into(), payload);
        }
        if ip.next_header != frame::ICMPV6 {
            return Err(Ignored::Unsupported);
        }
        let kind = *payload.first().ok_or(Ignored::Malformed)?;
        if payload.len() < 8 {
            return Err(Ignored::Malformed);
        }
        if frame::icmpv6_sum(src, dst, payload) != 0 {
            return Err(Ignored::Checksum);
        }
        let station = bytes[6..].first_chunk::<6>().ok_or(Ignored::Malformed)?;
        let mut frames = Vec::new();
        match kind {
            // A peer must not tell us about our own link.
            tare_neighbor::SOLICITATION if from != InterfaceId::Tunnel => {
                let interface = self.interface_mut(from);
                let answers = &mut interface.neighbor_answers;
                let outcome = interface.neighbors.receive_solicitation(
                    inside,
                    &ip,
                    *station,
                    payload,
                    answers,
                    &mut frames,
                );
                self.hold(from, &mut frames);
                self.neighbor_outcome(from, outcome)
            }
            tare_neighbor::ADVERTISEMENT if from != InterfaceId::Tunnel => {
                let neighbors = &mut self.interface_mut(from).neighbors;
                let outcome = neighbors.receive_advertisement(inside, &ip, *station, payload);
                self.neighbor_outcome(from, outcome)
            }
            icmp::ECHO_REQUEST6 if !group => {
                if !ipv6::is_host(ip.src) || self.is_own(src.into()) {
                    return Err(Ignored::Source);
                }
                let to = self.echo_reply_to(inside, from, bytes)?;
                let mac = self.interface_mut(from).mac();
                let reply = icmp::reply6(payload);
                let reply = frame::icmpv6(to, mac, dst, src, frame::TTL, reply);
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

    /// Returns true if a packet that came by `from` may be for this address of ours: by the public
    /// interface, that of the other side is to be reached through the tunnel alone.
    fn is_ours(&self, from: InterfaceId, address: IpAddr) -> bool {
        self.public.has(address) || (from != InterfaceId::Public && self.private.has(address))
    }

    fn is_own(&self, address: IpAddr) -> bool {
        self.is_ours(InterfaceId::Private, address)
    }

    /// Returns the station that an echo reply goes to, the one that asked, if there is to be one.
    fn echo_reply_to(
        &mut self,
        inside: Instant,
        from: InterfaceId,
        bytes: &[u8],
    ) -> Result<Mac, Ignored> {
        let asker = bytes[6..].first_chunk::<6>().copied().unwrap_or_default();
        if from != InterfaceId::Tunnel
            && (!interface::is_unicast(bytes) || !tare_neighbor::is_station(asker))
        {
            return Err(Ignored::Source);
        }
        let limit = match from {
            InterfaceId::Public => &mut self.public.echo_replies,
            InterfaceId::Private => &mut self.private.echo_replies,
            InterfaceId::Tunnel => &mut self.tunnel_echo_replies,
        };
        if !limit.take(inside) {
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
        let message = frame::udp_payload(src, dst, port, datagram).ok_or(Ignored::Checksum)?;
        self.exchange.receive(now, src, message, &mut self.events);
        self.apply_events();
        Ok(Taken::Exchange)
    }

    /// RFC 8899, 4.6.1: an error is believed if it quotes a packet that was sent lately and is
    /// longer than what the path is said to take. An attacker who does not see the packets would
    /// have to guess the sequence number.
    fn narrow_path(&mut self, inside: Instant, too_big: &TooBig) -> Result<Taken, Ignored> {
        let peer = too_big.dst;
        let own = self.config.public.address_towards(peer);
        let shown = self.routes.shown(peer, too_big.spi);
        let shown = shown.filter(|_| own == Some(too_big.src) && too_big.len > too_big.mtu);
        if !shown.ok_or(Ignored::NotOurs)?.is_recent(too_big.sequence) {
            return Err(Ignored::NotRecent);
        }
        let known = self.path_mtu(peer);
        let mtu = path::believed(peer, too_big.mtu, known).ok_or(Ignored::NotOurs)?;
        // Last, so that errors which are not believed cost those none that are.
        if !self.path_reports.take(inside) {
            return Err(Ignored::Rate);
        }
        self.paths.narrow(inside, peer, mtu);
        self.path_changed(peer);
        Ok(Taken::PathMtu)
    }

    /// Takes a dummy of a peer, with the number of its route in front: a probe of the path, or the
    /// answer to one.
    fn handle_dummy(
        &mut self,
        inside: Instant,
        bytes: &[u8],
        payload: &[u8],
    ) -> Result<Taken, Ignored> {
        let message = Message::parse(payload).ok_or(Ignored::Malformed)?;
        let route = u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]) as usize;
        let entry = self.routes.entry_mut(route).ok_or(Ignored::NotOurs)?;
        match message {
            Message::Probe(size) => {
                if !entry.probe_answers.take(inside) {
                    return Err(Ignored::Rate);
                }
                let answer = Message::Answer(size);
                self.send_dummy(route, answer, Message::LEN);
            }
            Message::Answer(size) => {
                let peer = entry.config.gateway;
                if self.paths.answered(inside, peer, size) {
                    self.path_changed(peer);
                }
            }
        }
        Ok(Taken::PathProbe)
    }

    fn neighbor_outcome(
        &mut self,
        from: InterfaceId,
        outcome: Result<neighbor::Handled, neighbor::Ignored>,
    ) -> Result<Taken, Ignored> {
        match outcome {
            Ok(neighbor::Handled::Request) => Ok(Taken::NeighborAsked),
            Ok(neighbor::Handled::Reply) => Ok(Taken::NeighborTold),
            Ok(neighbor::Handled::Moved {
                address,
                from: before,
                to,
            }) => {
                self.record(
                    Record::new(Level::Warn, "neighbor_moved")
                        .with("interface", from.name())
                        .with("address", address.to_string())
                        .with("from", interface::text(before))
                        .with("to", interface::text(to)),
                );
                Ok(Taken::NeighborMoved)
            }
            Err(neighbor::Ignored::Malformed) => Err(Ignored::Malformed),
            Err(neighbor::Ignored::NotForUs) => Err(Ignored::NotForUs),
            Err(neighbor::Ignored::Source) => Err(Ignored::Source),
            Err(neighbor::Ignored::HopLimit) => Err(Ignored::HopLimit),
            Err(neighbor::Ignored::NotNeighbor) => Err(Ignored::NotNeighbor),
            Err(neighbor::Ignored::Unsolicited) => Err(Ignored::Unsolicited),
            Err(neighbor::Ignored::Rate) => Err(Ignored::Rate),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::{dummy, Actions};
    use super::*;
    use crate::config::Config;
    use crate::dataplane::{ERROR_BURST, ERROR_INTERVAL};
    use crate::interface::InterfaceState;

    const CONFIG: &str = r#"
        private-interface { device private; ip4 172.16.0.10; nexthop-mac 02:00:00:00:01:09; }
        public-interface { device public; ip4 192.0.2.16; nexthop-mac 02:00:00:00:02:02; }
        route { id one; gw-ip4 192.0.2.17; net "172.17.0.0/16"; spi 1001;
          preshared-key 91440DA06376A668AC4959A840A125D75FB544E8AA25A08B813E49F0A4B2E270; }
        route { id two; gw-ip4 192.0.2.18; net "172.18.0.0/16"; spi 1002;
          preshared-key 91440DA06376A668AC4959A840A125D75FB544E8AA25A08B813E49F0A4B2E271; }
    "#;

    #[test]
    fn a_peer_that_floods_with_probes_is_answered_at_a_bounded_rate_and_costs_no_other_one() {
        let (config, _) = Config::parse("test", CONFIG.as_bytes()).unwrap();
        let link = |mac| InterfaceState {
            mac,
            mtu: 1500,
            up: true,
        };
        let (private, public) = (link([2, 0, 0, 0, 1, 1]), link([2, 0, 0, 0, 1, 2]));
        let begun = Instant::from_nanos(1_000_000_000);
        let entropy = Box::new(|bytes: &mut [u8]| bytes.fill(7));
        let control = Control::new(config, private, public, 1, entropy, begun);
        let (mut control, _) = control.unwrap();
        let answers = |control: &mut Control, now| {
            let mut actions = Actions::default();
            control.tick(now, &mut actions);
            let frames = actions.frames.iter();
            frames.filter(|(to, _)| *to == InterfaceId::Tunnel).count()
        };
        answers(&mut control, begun);
        let probe = |route| dummy(route, &Message::Probe(1500).payload(1446));
        let (mut flood, mut other) = (0, 0);
        for ms in 0..1000 {
            let now = begun + Duration::from_millis(ms);
            for _ in 0..10 {
                control.receive(now, InterfaceId::Tunnel, &probe(0));
            }
            flood += answers(&mut control, now);
            // As fast as a search over a path of 20 ms does.
            if ms % 20 == 0 {
                control.receive(now, InterfaceId::Tunnel, &probe(1));
                other += answers(&mut control, now);
            }
        }
        let most = u128::from(ERROR_BURST) + 1000 / ERROR_INTERVAL.as_millis();
        assert!((100..=most as usize).contains(&flood), "{flood} of {most}");
        assert_eq!(other, 50);
        assert!(control.counters().ignored(Ignored::Rate) > 9000);
    }
}
