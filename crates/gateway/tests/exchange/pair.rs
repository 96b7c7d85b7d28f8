//! Two gateways, and what their data planes would hold.

use std::collections::{BTreeMap, HashSet};
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use tare_gateway::config::{Aead, PresharedKey};
use tare_gateway::exchange::{Entropy, Event, Exchange, RouteKeys, SaKeys, Settings, Timers};
use tare_sim::{Instant, Random};

pub(crate) const A: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
pub(crate) const B: IpAddr = IpAddr::V4(Ipv4Addr::new(198, 51, 100, 2));

/// Entropy that a seed makes again.
pub(crate) fn entropy(seed: u64) -> Entropy {
    let mut random = Random::new(seed);
    Box::new(move |bytes| random.fill(bytes))
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(crate) fn unhex(hex: &str) -> Vec<u8> {
    let digits = hex.as_bytes().chunks(2);
    let byte = |pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    digits.map(byte).collect()
}

pub(crate) fn seconds(s: f64) -> Instant {
    Instant::ZERO + Duration::from_secs_f64(s)
}

pub(crate) fn psk(n: u8) -> PresharedKey {
    PresharedKey::new([n; 32])
}

/// Route `n` from one address to another.
pub(crate) fn route(n: usize, local: IpAddr, remote: IpAddr) -> RouteKeys {
    RouteKeys {
        route: n,
        spi: 1001 + n as u32,
        psk: psk(n as u8),
        aead: Aead::Aes128Gcm,
        local,
        remote,
    }
}

pub(crate) fn settings(routes: Vec<RouteKeys>) -> Settings {
    Settings {
        routes,
        timers: Timers::default(),
        outbound_sas: 1,
        reserved: HashSet::new(),
    }
}

/// A gateway with its data plane, and the messages that it wants sent.
pub(crate) struct Gateway {
    pub(crate) exchange: Exchange,
    pub(crate) address: IpAddr,
    pub(crate) sent: Vec<(IpAddr, Vec<u8>)>,
    pub(crate) inbound: BTreeMap<u32, (usize, SaKeys)>,
    /// The outbound SA of each route that was installed last.
    pub(crate) outbound: BTreeMap<usize, SaKeys>,
    /// All outbound SAs of each route, in the order in which workers take them.
    pub(crate) sas: BTreeMap<usize, Vec<SaKeys>>,
    /// The most outbound SAs of a route.
    pub(crate) most: usize,
    pub(crate) log: Vec<String>,
    /// Dummy packets that it wants sent.
    pub(crate) dummies: usize,
    /// Packets that its peer sent and it could open.
    pub(crate) packets: u64,
    /// Packets that it could not open, or not send.
    pub(crate) packets_lost: u64,
    /// True if its host sends nothing.
    pub(crate) is_silent: bool,
}

impl Gateway {
    pub(crate) fn new(address: IpAddr, settings: Settings, seed: u64) -> Gateway {
        Gateway {
            most: settings.outbound_sas,
            sas: BTreeMap::new(),
            exchange: Exchange::new(settings, entropy(seed)).unwrap(),
            address,
            sent: Vec::new(),
            inbound: BTreeMap::new(),
            outbound: BTreeMap::new(),
            log: Vec::new(),
            dummies: 0,
            packets: 0,
            packets_lost: 0,
            is_silent: false,
        }
    }

    /// A gateway with one route.
    pub(crate) fn single(local: IpAddr, remote: IpAddr, seed: u64) -> Gateway {
        Gateway::new(local, settings(vec![route(0, local, remote)]), seed)
    }

    pub(crate) fn with<T>(&mut self, act: impl FnOnce(&mut Exchange, &mut Vec<Event>) -> T) -> T {
        let mut events = Vec::new();
        let result = act(&mut self.exchange, &mut events);
        for event in events {
            self.apply(event);
        }
        result
    }

    pub(crate) fn tick(&mut self, now: Instant) {
        self.with(|exchange, events| exchange.tick(now, events));
    }

    pub(crate) fn receive(&mut self, now: Instant, from: IpAddr, message: &[u8]) {
        self.with(|exchange, events| exchange.receive(now, from, message, events));
    }

    /// The messages that it wanted sent since the last call.
    pub(crate) fn take(&mut self) -> Vec<Vec<u8>> {
        self.sent.drain(..).map(|(_, message)| message).collect()
    }

    /// The first of the messages that it wanted sent since the last call, and the others dropped.
    pub(crate) fn take_first(&mut self) -> Vec<u8> {
        let messages = self.take();
        messages.into_iter().next().expect("a message")
    }

    /// Does what events say, and checks that they make sense one after another.
    fn apply(&mut self, event: Event) {
        match event {
            Event::Send {
                from, to, message, ..
            } => {
                assert_eq!(from, self.address);
                self.sent.push((to, message));
            }
            Event::InstallInbound { route, keys, .. } => {
                assert!(keys.spi >= 256);
                let before = self.inbound.insert(keys.spi, (route, keys));
                assert!(before.is_none(), "an SPI is used twice");
                let of_route = self.inbound.values().filter(|(r, _)| *r == route).count();
                assert!(of_route <= 4 * self.most + 1, "{of_route} inbound SAs");
            }
            Event::RemoveInbound { route, spi } => {
                let removed = self.inbound.remove(&spi);
                assert_eq!(removed.map(|(route, _)| route), Some(route));
            }
            Event::InstallOutbound {
                route,
                keys,
                replaces,
                ..
            } => {
                let sas = self.sas.entry(route).or_default();
                match replaces {
                    Some(spi) => {
                        let place = sas.iter_mut().find(|sa| sa.spi == spi);
                        *place.expect("an SA to replace") = keys.clone();
                    }
                    None => sas.push(keys.clone()),
                }
                assert!(sas.len() <= self.most, "{} outbound SAs", sas.len());
                let spis: HashSet<_> = sas.iter().map(|sa| sa.spi).collect();
                assert_eq!(spis.len(), sas.len());
                self.outbound.insert(route, keys);
            }
            Event::RemoveOutbound { route, spi } => {
                let sas = self.sas.get_mut(&route).expect("a route with SAs");
                let place = sas.iter().position(|sa| sa.spi == spi);
                sas.remove(place.expect("an SA to remove"));
                match sas.last() {
                    Some(last) => self.outbound.insert(route, last.clone()),
                    None => self.outbound.remove(&route),
                };
            }
            Event::Prove { route } => {
                assert!(self.outbound.contains_key(&route));
                self.dummies += 1;
            }
            Event::Watch { route } => assert!(self.exchange.unconfirmed(route)),
            Event::Unanswered { route, failures } => {
                self.log
                    .push(format!("route {route}: {failures} unanswered"));
            }
        }
    }

    /// The message counters add up.
    pub(crate) fn check_counters(&self) {
        let c = self.exchange.counters();
        let handled = c.knocks + c.challenges + c.proposals + c.agreements + c.repeats;
        assert_eq!(c.received, handled + c.dropped_in_all(), "{c:?}");
        assert_eq!(self.exchange.negotiation_latency().count(), c.agreements);
    }
}

/// A message without its mark, as Vita sends it.
pub(crate) fn unmarked(message: &[u8]) -> Vec<u8> {
    let mut unmarked = message.to_vec();
    unmarked[5..8].fill(0);
    unmarked
}

/// True if `to` can open what any worker of `from` sends on the route.
pub(crate) fn carries(from: &Gateway, to: &Gateway, route: usize) -> bool {
    let accepted = |out: &SaKeys| {
        to.inbound
            .get(&out.spi)
            .is_some_and(|(r, sa)| *r == route && sa == out)
    };
    let sas = from.sas.get(&route).map_or(&[][..], Vec::as_slice);
    !sas.is_empty() && sas.iter().all(accepted)
}

/// Delivers everything both want sent, at once and in order, until neither wants anything.
pub(crate) fn deliver(now: Instant, a: &mut Gateway, b: &mut Gateway) {
    loop {
        let (to_b, to_a) = (a.take(), b.take());
        if to_a.is_empty() && to_b.is_empty() {
            return;
        }
        to_b.iter()
            .for_each(|message| b.receive(now, a.address, message));
        to_a.iter()
            .for_each(|message| a.receive(now, b.address, message));
    }
}
