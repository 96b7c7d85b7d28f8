//! What a running gateway says about itself, as JSON and for Prometheus.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::{Deserialize, Serialize};
use tare_port::Counters;

use super::shared::Counts;
use crate::control::{SaStatus, Status};
use crate::dataplane::{DropReason, TrafficCounters};

/// A running gateway.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// The version of the program.
    pub version: String,
    /// The file that it was configured by.
    pub config: String,
    /// Its process.
    pub pid: u32,
    /// Seconds since it was started.
    pub uptime_s: u64,
    /// Changed files that were taken over.
    pub reloads: u64,
    /// Changed files that were refused.
    pub reloads_refused: u64,
    /// Why the file is not what it runs by, where that is so.
    pub reload_error: Option<String>,
    /// The workers.
    pub workers: Vec<WorkerReport>,
    /// Packets of the private side, of all workers.
    pub outbound: TrafficReport,
    /// Packets of the public side, of all workers.
    pub inbound: TrafficReport,
    /// Frames for the control side that it had no room for.
    pub control_lost: u64,
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
    /// Interface, kind and mode, and what else was tried.
    pub kind: String,
    /// Frames received.
    pub rx_packets: u64,
    /// Their bytes.
    pub rx_bytes: u64,
    /// Frames that arrived and were lost before the gateway had them.
    pub rx_dropped: u64,
    /// Frames sent.
    pub tx_packets: u64,
    /// Their bytes.
    pub tx_bytes: u64,
    /// Frames taken for sending that never left.
    pub tx_dropped: u64,
}

/// What happened to the packets that came in on one side.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TrafficReport {
    /// Packets that came in.
    pub received: u64,
    /// Their bytes.
    pub received_bytes: u64,
    /// Packets that went on, each fragment counted.
    pub forwarded: u64,
    /// Bytes that went on.
    pub forwarded_bytes: u64,
    /// Packets of those that were for the gateway itself.
    pub control: u64,
    /// Packets of those that were dropped, by cause; causes that did not occur are left out.
    pub dropped: BTreeMap<String, u64>,
    /// Packets more than came in, by fragmenting.
    pub fragments: u64,
    /// ICMP errors made on top.
    pub errors_sent: u64,
    /// ICMP errors not made, because there were too many.
    pub errors_suppressed: u64,
}

impl TrafficReport {
    pub(super) fn of(direction: &TrafficCounters) -> TrafficReport {
        let dropped = DropReason::ALL
            .into_iter()
            .map(|cause| (cause, direction.dropped(cause)));
        let dropped = dropped.filter(|(_, n)| *n > 0);
        TrafficReport {
            received: direction.received,
            received_bytes: direction.received_bytes,
            forwarded: direction.forwarded,
            forwarded_bytes: direction.forwarded_bytes,
            control: direction.control,
            dropped: dropped
                .map(|(cause, n)| (cause.name().to_owned(), n))
                .collect(),
            fragments: direction.fragments,
            errors_sent: direction.errors_sent,
            errors_suppressed: direction.errors_suppressed,
        }
    }
}

impl PortReport {
    fn of(kind: &str, counters: &Counters) -> PortReport {
        PortReport {
            kind: kind.to_owned(),
            rx_packets: counters.rx_packets,
            rx_bytes: counters.rx_bytes,
            rx_dropped: counters.rx_dropped,
            tx_packets: counters.tx_packets,
            tx_bytes: counters.tx_bytes,
            tx_dropped: counters.tx_dropped,
        }
    }
}

impl WorkerReport {
    pub(super) fn of(cpu: Option<usize>, counts: &Counts) -> WorkerReport {
        WorkerReport {
            cpu,
            private: PortReport::of(&counts.private_kind, &counts.private),
            public: PortReport::of(&counts.public_kind, &counts.public),
            own_lost: counts.own_lost,
        }
    }
}

/// Name and help of a metric, and where it is.
type Figure<T> = (&'static str, &'static str, fn(&T) -> u64);

impl Report {
    /// In the text format of Prometheus, version 0.0.4.
    pub fn prometheus(&self) -> String {
        let mut text = Text::default();
        text.family(
            "uptime_seconds",
            "gauge",
            "Time since the gateway was started",
        );
        text.sample("uptime_seconds", &[], self.uptime_s);
        text.family(
            "reloads_total",
            "counter",
            "Changed configurations, by outcome",
        );
        text.sample("reloads_total", &[("outcome", "taken")], self.reloads);
        text.sample(
            "reloads_total",
            &[("outcome", "refused")],
            self.reloads_refused,
        );
        let sides = [("outbound", &self.outbound), ("inbound", &self.inbound)];
        let figures: [Figure<TrafficReport>; 8] = [
            ("received_packets_total", "Packets that came in", |d| {
                d.received
            }),
            ("received_bytes_total", "Bytes that came in", |d| {
                d.received_bytes
            }),
            ("forwarded_packets_total", "Packets that went on", |d| {
                d.forwarded
            }),
            ("forwarded_bytes_total", "Bytes that went on", |d| {
                d.forwarded_bytes
            }),
            (
                "control_packets_total",
                "Packets for the gateway itself",
                |d| d.control,
            ),
            (
                "fragments_total",
                "Packets made on top by fragmenting",
                |d| d.fragments,
            ),
            ("icmp_errors_total", "ICMP errors sent", |d| d.errors_sent),
            (
                "icmp_errors_suppressed_total",
                "ICMP errors not sent",
                |d| d.errors_suppressed,
            ),
        ];
        for (name, help, of) in figures {
            text.family(name, "counter", help);
            for (side, direction) in sides {
                text.sample(name, &[("direction", side)], of(direction));
            }
        }
        text.family(
            "dropped_packets_total",
            "counter",
            "Packets dropped, by cause",
        );
        for (side, direction) in sides {
            for cause in DropReason::ALL {
                let n = direction
                    .dropped
                    .get(cause.name())
                    .copied()
                    .unwrap_or_default();
                let labels = [("direction", side), ("cause", cause.name())];
                text.sample("dropped_packets_total", &labels, n);
            }
        }
        self.ports(&mut text);
        self.routes(&mut text);
        text.family(
            "neighbor_known",
            "gauge",
            "Whether a next hop's station address is known",
        );
        for neighbor in &self.status.neighbors {
            let labels = [
                ("interface", &*neighbor.interface),
                ("address", &neighbor.address),
                ("state", &neighbor.state),
            ];
            text.sample("neighbor_known", &labels, neighbor.mac.is_some().into());
        }
        text.family(
            "exchange_total",
            "counter",
            "Messages and SAs of the key exchange",
        );
        for (event, n) in &self.status.exchange {
            text.sample("exchange_total", &[("event", event)], *n);
        }
        text.family(
            "control_frames_total",
            "counter",
            "Frames of the control side",
        );
        for (event, n) in &self.status.control {
            text.sample("control_frames_total", &[("event", event)], *n);
        }
        text.family(
            "control_lost_total",
            "counter",
            "Frames that the control side had no room for",
        );
        text.sample("control_lost_total", &[], self.control_lost);
        text.0
    }

    fn ports(&self, text: &mut Text) {
        let figures: [Figure<PortReport>; 6] = [
            ("port_rx_packets_total", "Frames received", |p| p.rx_packets),
            ("port_rx_bytes_total", "Bytes received", |p| p.rx_bytes),
            (
                "port_rx_dropped_total",
                "Frames lost before they were received",
                |p| p.rx_dropped,
            ),
            ("port_tx_packets_total", "Frames sent", |p| p.tx_packets),
            ("port_tx_bytes_total", "Bytes sent", |p| p.tx_bytes),
            ("port_tx_dropped_total", "Frames that never left", |p| {
                p.tx_dropped
            }),
        ];
        for (name, help, of) in figures {
            text.family(name, "counter", help);
            for (number, worker) in self.workers.iter().enumerate() {
                let number = number.to_string();
                for (side, port) in [("private", &worker.private), ("public", &worker.public)] {
                    let labels = [("worker", &*number), ("interface", side)];
                    text.sample(name, &labels, of(port));
                }
            }
        }
    }

    fn routes(&self, text: &mut Text) {
        text.family(
            "route_up",
            "gauge",
            "Whether packets of a route can be sent",
        );
        for route in &self.status.routes {
            let labels = [("route", &*route.id), ("gateway", &route.gateway)];
            text.sample("route_up", &labels, (route.state == "up").into());
        }
        text.family(
            "route_path_mtu_bytes",
            "gauge",
            "Bytes that an outer packet may have",
        );
        for route in &self.status.routes {
            text.sample(
                "route_path_mtu_bytes",
                &[("route", &route.id)],
                route.path_mtu.into(),
            );
        }
        type Of = fn(&SaStatus) -> Option<u64>;
        let figures: [(&str, &str, &str, Of); 5] = [
            ("sa_packets_total", "counter", "Packets of an SA", |sa| {
                Some(sa.packets)
            }),
            (
                "sa_bytes_total",
                "counter",
                "Bytes of inner packets of an SA",
                |sa| Some(sa.bytes),
            ),
            (
                "sa_forged_total",
                "counter",
                "Packets that were not authentic",
                |sa| Some(sa.forged),
            ),
            (
                "sa_replayed_total",
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
            text.family(name, kind, help);
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
                    text.sample(name, &labels, value);
                }
            }
        }
    }
}

#[derive(Default)]
struct Text(String);

impl Text {
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.0, "# HELP tare_gateway_{name} {help}");
        let _ = writeln!(self.0, "# TYPE tare_gateway_{name} {kind}");
    }

    fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: u64) {
        let _ = write!(self.0, "tare_gateway_{name}");
        for (n, (label, value)) in labels.iter().enumerate() {
            let value = value
                .replace('\\', "\\\\")
                .replace('"', "\\\"")
                .replace('\n', "\\n");
            let _ = write!(
                self.0,
                "{}{label}=\"{value}\"",
                if n == 0 { '{' } else { ',' }
            );
        }
        let close = if labels.is_empty() { "" } else { "}" };
        let _ = writeln!(self.0, "{close} {value}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::RouteStatus;

    #[test]
    fn every_line_is_a_comment_or_a_sample_and_labels_are_escaped() {
        let route = RouteStatus {
            id: "a \"b\"\\\nc".into(),
            outbound: vec![SaStatus::default(), SaStatus::default()],
            ..RouteStatus::default()
        };
        let report = Report {
            workers: vec![WorkerReport::default()],
            status: Status {
                routes: vec![route],
                ..Status::default()
            },
            ..Report::default()
        };
        let text = report.prometheus();
        assert!(
            text.contains(r#"route_up{route="a \"b\"\\\nc",gateway=""} 0"#),
            "{text}"
        );
        for line in text.lines() {
            let (name, value) = line.rsplit_once(' ').unwrap();
            let sample = name.starts_with("tare_gateway_") && value.parse::<u64>().is_ok();
            assert!(line.starts_with("# ") || sample, "{line}");
        }
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
