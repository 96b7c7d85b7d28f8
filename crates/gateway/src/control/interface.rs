//! The control side of an interface: its state, its addresses and its next hops.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use tare_neighbor::{Local, Neighbors};
use tare_packet::ethernet::{Mac, BROADCAST};
use tare_sim::{Instant, TokenBucket};

use super::status::NeighborStatus;
use crate::config::InterfaceConfig;
use crate::dataplane::error_limit;
use crate::interface::{InterfaceState, InterfaceView};

pub(super) struct InterfaceControl {
    state: InterfaceState,
    /// The MAC address of both next hops, where it is given.
    fixed: Option<Mac>,
    next_hop4: Option<IpAddr>,
    next_hop6: Option<IpAddr>,
    pub(super) neighbors: Neighbors,
    /// Limits answers to requests for our MAC address, which any station of the link can send. It
    /// is apart from that of echo replies, which any host can have sent: if these used up the
    /// answers to the next hop, it would forget our address, and nothing would arrive any more.
    pub(super) neighbor_answers: TokenBucket,
    /// Limits echo replies.
    pub(super) echo_replies: TokenBucket,
}

impl InterfaceControl {
    pub(super) fn new(
        config: &InterfaceConfig,
        state: InterfaceState,
        now: Instant,
    ) -> InterfaceControl {
        let mut interface = InterfaceControl {
            state,
            fixed: None,
            next_hop4: None,
            next_hop6: None,
            neighbors: Neighbors::new(Local::default()),
            neighbor_answers: error_limit(),
            echo_replies: error_limit(),
        };
        interface.configure(config, now);
        interface
    }

    /// Takes over another configuration; next hops that stay are not asked for again.
    pub(super) fn configure(&mut self, config: &InterfaceConfig, now: Instant) {
        self.neighbors.set_local(Local {
            mac: config.mac.unwrap_or(self.state.mac),
            ip4: config.ip4,
            ip6: config.ip6,
        });
        self.fixed = config.nexthop_mac;
        self.next_hop4 = config.nexthop_ip4.map(IpAddr::V4);
        self.next_hop6 = config.nexthop_ip6.map(IpAddr::V6);
        let asked = self.next_hop4.into_iter().chain(self.next_hop6);
        let asked = asked.filter(|_| self.fixed.is_none());
        self.neighbors.set_targets(asked, now);
    }

    /// As [`InterfaceControl::configure`], and announces our addresses if they are others: stations
    /// of the link would go on with what they know for minutes.
    pub(super) fn reconfigure(
        &mut self,
        config: &InterfaceConfig,
        now: Instant,
        send: &mut Vec<Vec<u8>>,
    ) {
        let before = *self.neighbors.local();
        self.configure(config, now);
        if self.state.up && *self.neighbors.local() != before {
            self.neighbors.announce(send);
        }
    }

    pub(super) fn mac(&self) -> Mac {
        self.neighbors.local().mac
    }

    pub(super) fn state(&self) -> InterfaceState {
        self.state
    }

    /// Takes over another state of the interface. If it came up or has another MAC address, the
    /// link may be another one: our addresses are announced and next hops are asked for again.
    pub(super) fn change(
        &mut self,
        config: &InterfaceConfig,
        state: InterfaceState,
        now: Instant,
        send: &mut Vec<Vec<u8>>,
    ) {
        let again = state.up && (!self.state.up || state.mac != self.state.mac);
        self.state = state;
        self.configure(config, now);
        if again {
            self.neighbors.doubt_all(now);
            self.neighbors.announce(send);
        }
    }

    /// Returns the time of the next request.
    pub(super) fn due(&self) -> Instant {
        match self.state.up {
            true => self.neighbors.next_deadline(),
            false => Instant::NEVER,
        }
    }

    /// Sends the requests that are due.
    pub(super) fn tick(&mut self, now: Instant, send: &mut Vec<Vec<u8>>) {
        if self.state.up {
            self.neighbors.tick(now, send);
        }
    }

    /// Returns the interface as workers see it.
    pub(super) fn view(&self) -> InterfaceView {
        let Local { mac, ip4, ip6 } = *self.neighbors.local();
        let known = |hop: Option<IpAddr>| {
            let mac = hop.and_then(|hop| self.neighbors.mac(hop));
            mac.or(self.fixed)
        };
        InterfaceView {
            mac,
            ip4: ip4.map(Ipv4Addr::to_bits),
            ip6: ip6.map(Ipv6Addr::to_bits),
            next_hop4: known(self.next_hop4),
            next_hop6: known(self.next_hop6),
            mtu: self.state.mtu,
        }
    }

    /// Returns the MAC address of the next hop for an address of this family.
    pub(super) fn next_hop(&self, family: IpAddr) -> Option<Mac> {
        let view = self.view();
        match family {
            IpAddr::V4(_) => view.next_hop4,
            IpAddr::V6(_) => view.next_hop6,
        }
    }

    /// Returns true if the address is one of this interface.
    pub(super) fn has(&self, address: IpAddr) -> bool {
        let local = self.neighbors.local();
        match address {
            IpAddr::V4(address) => local.ip4 == Some(address),
            IpAddr::V6(address) => local.ip6 == Some(address),
        }
    }

    pub(super) fn status(&self, interface: &'static str, to: &mut Vec<NeighborStatus>) {
        let status = |address: String, mac: Option<Mac>, state: &str| NeighborStatus {
            interface: interface.into(),
            address,
            mac: mac.map(text),
            state: state.into(),
        };
        if let Some(mac) = self.fixed {
            to.push(status("any".into(), Some(mac), "fixed"));
        }
        let neighbors = self.neighbors.iter();
        to.extend(neighbors.map(|n| status(n.address.to_string(), n.mac, n.state.name())));
    }
}

/// Returns a MAC address in the usual notation.
pub(super) fn text(mac: Mac) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

/// Returns true if a frame was sent to one station.
pub(super) fn is_unicast(frame: &[u8]) -> bool {
    frame.first().is_some_and(|first| first & 1 == 0) && !frame.starts_with(&BROADCAST)
}
