//! The status of a running gateway, as JSON and for Prometheus.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tare_daemon::{Metrics, ProcessStatus};
use tare_port::Counters;

use crate::control::{RouteCounters, RouteStatus, SaStatus, Status};
use crate::dataplane::{DropReason, TrafficCounters};

/// The status of a running gateway.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// The process and its configuration.
    #[serde(flatten)]
    pub process: ProcessStatus,
    /// The workers.
    pub workers: Vec<WorkerReport>,
    /// Packets of the private side, of all workers.
    pub outbound: TrafficCounters,
    /// Packets of the public side, of all workers.
    pub inbound: TrafficCounters,
    /// Frames for the control side that its queue had no room for.
    pub control_lost: u64,
    /// True if metrics have the counters of each SA.
    #[serde(default)]
    pub metrics_per_sa: bool,
    /// Routes, next hops and the key exchange.
    #[serde(flatten)]
    pub status: Status,
}

/// One worker.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WorkerReport {
    /// The core that it is bound to.
    pub cpu: Option<usize>,
    /// Its port of the private interface.
    pub private: PortReport,
    /// Its port of the public interface.
    pub public: PortReport,
    /// Frames of the gateway's own that a port did not take.
    pub own_lost: u64,
}

/// One port.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PortReport {
    /// Interface, kind and mode, and the kinds that could not be had.
    pub kind: String,
    /// Its counters.
    #[serde(flatten)]
    pub counters: PortCounters,
}

tare_daemon::counters! {
    /// Counters of a port.
    pub struct PortCounters {
        rx_packets => "port_rx_packets_total": "Frames received",
        rx_bytes => "port_rx_bytes_total": "Bytes received",
        rx_dropped => "port_rx_dropped_total": "Frames lost before they were received",
        tx_packets => "port_tx_packets_total": "Frames sent",
        tx_bytes => "port_tx_bytes_total": "Bytes sent",
        tx_dropped => "port_tx_dropped_total": "Frames taken for sending that were not sent",
    }
}

impl From<Counters> for PortCounters {
    fn from(counters: Counters) -> PortCounters {
        PortCounters {
            rx_packets: counters.rx_packets,
            rx_bytes: counters.rx_bytes,
            rx_dropped: counters.rx_dropped,
            tx_packets: counters.tx_packets,
            tx_bytes: counters.tx_bytes,
            tx_dropped: counters.tx_dropped,
        }
    }
}

impl tare_daemon::Report for Report {
    fn prometheus(&self) -> String {
        let mut page = Metrics::new("tare_gateway");
        self.process.metrics(&mut page);
        self.traffic(&mut page);
        self.ports(&mut page);
        self.routes(&mut page);
        if self.metrics_per_sa {
            self.sas(&mut page);
        }
        self.control(&mut page);
        page.into_text()
    }
}

impl Report {
    fn traffic(&self, page: &mut Metrics) {
        let directions = [("outbound", &self.outbound), ("inbound", &self.inbound)];
        let labels = directions.map(|(name, _)| [("direction", name)]);
        let values = directions.map(|(_, counters)| counters.values());
        let instances = labels.iter().map(|labels| &labels[..]).zip(values);
        page.counters(TrafficCounters::INFO, &instances.collect::<Vec<_>>());
        let help = "Packets dropped, by reason";
        page.family("dropped_packets_total", "counter", help);
        for (direction, counters) in directions {
            for (reason, n) in counters.dropped.iter() {
                let labels = [("direction", direction), ("reason", reason.name())];
                page.sample("dropped_packets_total", &labels, n);
            }
        }
    }

    fn ports(&self, page: &mut Metrics) {
        let numbers: Vec<_> = (0..self.workers.len()).map(|n| n.to_string()).collect();
        let mut ports = Vec::new();
        for (number, worker) in numbers.iter().zip(&self.workers) {
            for (side, port) in [("private", &worker.private), ("public", &worker.public)] {
                ports.push(([("worker", &**number), ("interface", side)], port));
            }
        }
        let instances = ports
            .iter()
            .map(|(labels, port)| (&labels[..], port.counters.values()));
        page.counters(PortCounters::INFO, &instances.collect::<Vec<_>>());
    }

    fn control(&self, page: &mut Metrics) {
        let help = "Whether a next hop's MAC address is known";
        page.family("neighbor_known", "gauge", help);
        for neighbor in &self.status.neighbors {
            let labels = [
                ("interface", &*neighbor.interface),
                ("address", &neighbor.address),
                ("state", &neighbor.state),
            ];
            page.sample("neighbor_known", &labels, u8::from(neighbor.mac.is_some()));
        }
        let families = [
            (
                "exchange_total",
                "Messages and SAs of the key exchange",
                &self.status.exchange,
            ),
            (
                "control_frames_total",
                "Frames of the control side",
                &self.status.control,
            ),
        ];
        for (name, help, counts) in families {
            page.family(name, "counter", help);
            for (event, n) in counts {
                page.sample(name, &[("event", event)], n);
            }
        }
        let latency = &self.status.negotiation_latency;
        let buckets = NEGOTIATION_BUCKETS_S.map(|limit| {
            let within = latency.count_up_to(Duration::from_secs_f64(limit));
            (limit, within)
        });
        let summary = latency.summary();
        let sum_s = summary.map_or(0.0, |all| all.mean_ns * all.count as f64 / 1e9);
        let help = "Time from the first knock of a negotiation begun by this side to its agreement";
        let (name, count) = ("negotiation_seconds", latency.count());
        page.histogram(name, help, buckets, sum_s, count);
        let help = "Frames that the control side had no room for";
        page.single("control_lost_total", "counter", help, self.control_lost);
    }

    fn routes(&self, page: &mut Metrics) {
        let routes = &self.status.routes;
        let help = "Whether packets of a route can be sent";
        page.family("route_up", "gauge", help);
        for route in routes {
            let labels = [("route", &*route.id), ("gateway", &route.gateway)];
            page.sample("route_up", &labels, u8::from(route.state == "up"));
        }
        type Of = fn(&RouteStatus) -> Option<u64>;
        let gauges: [(&str, &str, Of); 3] = [
            (
                "route_path_mtu_bytes",
                "Bytes that an outer packet may have",
                |route| Some(route.path_mtu.into()),
            ),
            (
                "route_inner_mtu_bytes",
                "Bytes that an inner packet may have",
                |route| Some(route.inner_mtu.into()),
            ),
            (
                "route_handshake_age_seconds",
                "Time since keys were agreed on last",
                |route| route.handshake_age_s,
            ),
        ];
        for (name, help, of) in gauges {
            page.family(name, "gauge", help);
            for route in routes {
                if let Some(value) = of(route) {
                    page.sample(name, &[("route", &route.id)], value);
                }
            }
        }
        let directions = || {
            routes.iter().flat_map(|route| {
                let directions = [("outbound", &route.sent), ("inbound", &route.received)];
                directions.map(|(direction, counters)| (&*route.id, direction, counters))
            })
        };
        let labels = |(route, direction, _)| [("route", route), ("direction", direction)];
        let labels: Vec<_> = directions().map(labels).collect();
        let values = directions().map(|(_, _, counters)| counters.values());
        let instances = labels.iter().map(|labels| &labels[..]).zip(values);
        page.counters(RouteCounters::INFO, &instances.collect::<Vec<_>>());
        let name = "route_dropped_packets_total";
        page.family(name, "counter", "Packets of a route dropped, by reason");
        for (route, direction, counters) in directions() {
            for (reason, n) in counters.dropped.iter() {
                // Ten thousand routes would have half a million samples that are always 0.
                if n > 0 || ALWAYS.contains(&(direction, reason)) {
                    let labels = [
                        ("route", route),
                        ("direction", direction),
                        ("reason", reason.name()),
                    ];
                    page.sample(name, &labels, n);
                }
            }
        }
    }

    fn sas(&self, page: &mut Metrics) {
        type Of = fn(&SaStatus) -> Option<u64>;
        let figures: [(&str, &str, &str, Of); 5] = [
            ("sa_packets_total", "counter", "Packets of an SA", |sa| {
                Some(sa.packets)
            }),
            (
                "sa_bytes_total",
                "counter",
                "Bytes encrypted or decrypted by an SA",
                |sa| Some(sa.bytes),
            ),
            (
                "sa_forged_packets_total",
                "counter",
                "Packets that were not authentic",
                |sa| Some(sa.forged),
            ),
            (
                "sa_replayed_packets_total",
                "counter",
                "Packets seen before",
                |sa| Some(sa.replayed),
            ),
            (
                "sa_key_age_seconds",
                "gauge",
                "Time since keys were agreed on",
                |sa| sa.age_s,
            ),
        ];
        for (name, kind, help, of) in figures {
            page.family(name, kind, help);
            for route in &self.status.routes {
                let outbound = route.outbound.iter().map(|sa| ("outbound", sa));
                let inbound = route.inbound.iter().map(|sa| ("inbound", sa));
                for (direction, sa) in outbound.chain(inbound) {
                    let Some(value) = of(sa) else { continue };
                    let spi = sa.spi.to_string();
                    let labels = [
                        ("route", &*route.id),
                        ("direction", direction),
                        ("spi", &spi),
                    ];
                    page.sample(name, &labels, value);
                }
            }
        }
    }
}

/// Upper limits of the buckets of negotiations, in seconds: from a peer on the same switch to the
/// end of the longest negotiation.
const NEGOTIATION_BUCKETS_S: [f64; 12] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0,
];

/// The reasons that each route has a sample for from the start, so that the first packet is seen as
/// an increase; others have one from their first packet on.
const ALWAYS: [(&str, DropReason); 4] = [
    ("outbound", DropReason::NoSa),
    ("inbound", DropReason::Forged),
    ("inbound", DropReason::Replayed),
    ("inbound", DropReason::TooOld),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_is_a_comment_or_a_sample_and_labels_are_escaped() {
        let route = RouteStatus {
            id: "a \"b\"\\\nc".into(),
            outbound: vec![SaStatus::default(), SaStatus::default()],
            ..RouteStatus::default()
        };
        let mut report = Report {
            workers: vec![WorkerReport::default()],
            metrics_per_sa: true,
            status: Status {
                routes: vec![route],
                ..Status::default()
            },
            ..Report::default()
        };
        let text = tare_daemon::Report::prometheus(&report);
        assert!(
            text.contains(r#"route_up{route="a \"b\"\\\nc",gateway=""} 0"#),
            "{text}"
        );
        for line in text.lines() {
            let (name, value) = line.rsplit_once(' ').unwrap();
            let sample = name.starts_with("tare_gateway_") && value.parse::<f64>().is_ok();
            assert!(line.starts_with("# ") || sample, "{line}");
        }
        let with_spi = text.contains(",spi=\"");
        report.metrics_per_sa = false;
        let without = tare_daemon::Report::prometheus(&report);
        assert!(with_spi && !without.contains("spi="), "{without}");
        // A family is described once, before its samples, and they stand together.
        let families = text.lines().filter(|line| line.starts_with("# TYPE"));
        let names: Vec<_> = families
            .map(|line| line.split(' ').nth(2).unwrap())
            .collect();
        let unique: std::collections::HashSet<_> = names.iter().collect();
        assert_eq!(unique.len(), names.len());
        let json = serde_json::to_string(&report).unwrap();
        assert_eq!(serde_json::from_str::<Report>(&json).unwrap(), report);
    }
}
