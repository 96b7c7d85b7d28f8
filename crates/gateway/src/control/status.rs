//! The status of a gateway, for people and programs.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tare_daemon::{CountsBy, Level, Reason, Record};
use tare_histogram::Histogram;
use tare_packet::ipv6;

use super::routes::{Entry, Inbound};
use super::totals::RouteCounters;
use super::Control;
use crate::config::Keys;
use crate::exchange;

/// The control side.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// The routes, in the order of the file.
    pub routes: Vec<RouteStatus>,
    /// The next hops.
    pub neighbors: Vec<NeighborStatus>,
    /// Counters of the key exchange.
    pub exchange: BTreeMap<String, u64>,
    /// The durations of negotiations begun by this gateway, from the first knock to the agreement.
    #[serde(default)]
    pub negotiation_latency: Histogram,
    /// Counters of frames that the control side received.
    pub control: BTreeMap<String, u64>,
}

/// One route.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RouteStatus {
    /// Its name.
    pub id: String,
    /// The peer.
    pub gateway: String,
    /// The prefixes behind the peer.
    pub prefixes: Vec<String>,
    /// The source of the keys: `exchange` or `manual`.
    pub keys: String,
    /// `up` where packets can be sent, else what the exchange does about it: `waiting`, `knocking`,
    /// `proposed`, `idle`.
    pub state: String,
    /// Negotiations in a row that were not answered.
    pub failures: u32,
    /// The most bytes of an outer packet.
    pub path_mtu: u16,
    /// The most bytes of an inner packet.
    pub inner_mtu: u16,
    /// True if the route has IPv6 prefixes and takes fewer inner bytes than the 1280 that IPv6
    /// needs: senders are told of no less (RFC 8200, 5), so longer packets are lost.
    #[serde(default)]
    pub ipv6_too_narrow: bool,
    /// Seconds since keys were agreed on; `None` if they are manual or not agreed on yet.
    pub handshake_age_s: Option<u64>,
    /// Packets to the peer since the route was configured, under all SAs.
    pub sent: RouteCounters,
    /// Packets from the peer since the route was configured, under all SAs.
    pub received: RouteCounters,
    /// The outbound SAs, in the order in which workers take them.
    pub outbound: Vec<SaStatus>,
    /// The inbound SAs, oldest first.
    pub inbound: Vec<SaStatus>,
}

/// One SA.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SaStatus {
    /// Its SPI.
    pub spi: u32,
    /// Packets sealed or opened.
    pub packets: u64,
    /// Bytes of those packets that were encrypted: inner packets and padding.
    pub bytes: u64,
    /// Packets that were not authentic.
    pub forged: u64,
    /// Packets that were seen before, or may have been.
    pub replayed: u64,
    /// Seconds since its keys were agreed on; `None` if they are manual.
    pub age_s: Option<u64>,
    /// Seconds until it ends.
    pub left_s: Option<u64>,
}

/// One next hop.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct NeighborStatus {
    /// `private` or `public`.
    pub interface: String,
    /// Its address.
    pub address: String,
    /// Its station address, while it is known.
    pub mac: Option<String>,
    /// `fixed`, `asking`, `reachable` or `probing`.
    pub state: String,
}

impl Control {
    /// Returns the status of the gateway.
    pub fn status(&self) -> Status {
        let mut neighbors = Vec::new();
        let exchange = self.exchange.counters();
        self.private.status("private", &mut neighbors);
        self.public.status("public", &mut neighbors);
        Status {
            routes: self
                .routes
                .in_order()
                .map(|(n, entry)| self.route_status(n, entry))
                .collect(),
            neighbors,
            exchange: counts(exchange.named(), "dropped_", &exchange.dropped),
            negotiation_latency: self.exchange.negotiation_latency().clone(),
            control: counts(self.counters.named(), "ignored_", &self.counters.ignored)
                .into_iter()
                .chain(counts(std::iter::empty(), "", &self.counters.taken))
                .collect(),
        }
    }

    /// Returns [`RouteStatus::ipv6_too_narrow`].
    fn ipv6_is_too_narrow(&self, number: usize, entry: &Entry) -> bool {
        let route = self.tables.routes.get(number);
        route.is_some_and(|route| route.inner_max() < ipv6::MTU_MIN)
            && entry.config.prefixes.iter().any(|p| p.addr().is_ipv6())
    }

    /// Tells of routes that became too narrow for IPv6 with the present tables.
    pub(super) fn look_for_narrow_routes(&mut self) {
        let routes = self.routes.in_order();
        let mut narrow = routes.filter(|(number, entry)| self.ipv6_is_too_narrow(*number, entry));
        let first = narrow.next().map(|(_, entry)| entry.config.id.clone());
        let count = usize::from(first.is_some()) + narrow.count();
        let before = std::mem::replace(&mut self.too_narrow, count);
        if let Some(first) = first.filter(|_| count > before) {
            self.record(
                Record::new(Level::Warn, "ipv6_too_narrow")
                    .with("route", first)
                    .with("routes", count)
                    .with("needs", ipv6::MTU_MIN),
            );
        }
    }

    fn route_status(&self, number: usize, entry: &Entry) -> RouteStatus {
        let exchanged = self.exchange.status(number);
        let state = match &exchanged {
            _ if !entry.outbound.is_empty() => "up",
            Some(status) => match status.negotiation {
                exchange::Negotiation::Idle => "idle",
                exchange::Negotiation::Waiting => "waiting",
                exchange::Negotiation::Knocking => "knocking",
                exchange::Negotiation::Proposed => "proposed",
            },
            None => "idle",
        };
        let times = |spi: u32, of: &[exchange::SaStatus]| {
            let sa = of.iter().find(|sa| sa.spi == spi);
            (
                sa.map(|sa| sa.age.as_secs()),
                sa.map(|sa| sa.left.as_secs()),
            )
        };
        let negotiated = exchanged
            .as_ref()
            .map_or(&[][..], |status| &status.outbound);
        let outbound = entry.outbound.iter().map(|sa| {
            let (age_s, left_s) = times(sa.spi(), negotiated);
            SaStatus {
                spi: sa.spi(),
                packets: sa.packets(),
                bytes: sa.bytes(),
                age_s,
                left_s,
                ..SaStatus::default()
            }
        });
        let negotiated = exchanged.as_ref().map_or(&[][..], |status| &status.inbound);
        let inbound = entry.inbound.iter().map(|Inbound { sa, .. }| {
            let (age_s, left_s) = times(sa.spi(), negotiated);
            SaStatus {
                spi: sa.spi(),
                packets: sa.packets(),
                bytes: sa.bytes(),
                forged: sa.forged(),
                replayed: sa.replayed(),
                age_s,
                left_s,
            }
        });
        let [sent, received] = entry.counters();
        RouteStatus {
            id: entry.config.id.clone(),
            gateway: entry.config.gateway.to_string(),
            prefixes: entry
                .config
                .prefixes
                .iter()
                .map(ToString::to_string)
                .collect(),
            keys: match entry.config.keys {
                Keys::Exchange { .. } => "exchange".into(),
                Keys::Manual { .. } => "manual".into(),
            },
            state: state.into(),
            failures: exchanged.as_ref().map_or(0, |status| status.failures),
            path_mtu: self.path_mtu(entry.config.gateway),
            inner_mtu: self
                .tables
                .routes
                .get(number)
                .map_or(0, |r| r.inner_max() as u16),
            ipv6_too_narrow: self.ipv6_is_too_narrow(number, entry),
            handshake_age_s: entry
                .handshake
                .map(|at| self.clock.last().since(at).as_secs()),
            sent,
            received,
            outbound: outbound.collect(),
            inbound: inbound.collect(),
        }
    }
}

/// Returns plain counters and counts by reason, whose names get a prefix, as one map.
fn counts<R: Reason, const N: usize>(
    plain: impl Iterator<Item = (&'static str, u64)>,
    prefix: &str,
    by_reason: &CountsBy<R, N>,
) -> BTreeMap<String, u64> {
    let plain = plain.map(|(name, n)| (name.to_owned(), n));
    let named = |(reason, n): (R, u64)| (format!("{prefix}{}", reason.reason_name()), n);
    plain.chain(by_reason.iter().map(named)).collect()
}
