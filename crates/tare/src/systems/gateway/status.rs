//! `tare gateway status`: what a running gateway is doing.

use std::fmt::Write as _;
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use tare_daemon::Words;
use tare_gateway::control::{RouteCounters, RouteStatus, SaStatus};
use tare_gateway::daemon::{self, Report};
use tare_gateway::dataplane::TrafficCounters;

use crate::terminal;

/// The words of errors.
const WORDS: Words = Words {
    one: "gateway",
    key: "configuration",
};

#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    tare gateway status node1.conf\n  \
    tare gateway status --json /run/tare/gateway-node1.sock | jq .routes\n\n\
    Without CONF or SOCKET, the only gateway that answers at a socket in /run/tare is shown.")]
pub(crate) struct Args {
    /// Configuration file of the gateway, or its status socket
    #[arg(value_name = "CONF or SOCKET")]
    at: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Asks a gateway and prints what it says.
///
/// # Errors
/// It does not answer.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let socket = args.at.as_deref().map(socket_of);
    if let Some(report) = crate::daemon::status(daemon::KIND, WORDS, socket, args.json)? {
        terminal::print(&table(&report))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn socket_of(at: &Path) -> PathBuf {
    if at
        .symlink_metadata()
        .is_ok_and(|meta| meta.file_type().is_socket())
    {
        return at.into();
    }
    if at.extension().is_some_and(|extension| extension == "sock") {
        return at.into();
    }
    daemon::socket_of(at)
}

fn table(report: &Report) -> String {
    let mut text = String::new();
    let up = report
        .status
        .routes
        .iter()
        .filter(|route| route.state == "up")
        .count();
    let _ = writeln!(
        text,
        "{} · process {} · up {} · {up} of {} routes up",
        report.process.config,
        report.process.pid,
        age(report.process.uptime_s),
        report.status.routes.len()
    );
    if let Some(error) = &report.process.reload_error {
        let _ = writeln!(text, "the changed configuration file was rejected: {error}");
    }
    for (number, worker) in report.workers.iter().enumerate() {
        let cpu = worker
            .cpu
            .map_or(String::new(), |cpu| format!(" on core {cpu}"));
        let _ = writeln!(text, "\nworker {number}{cpu}");
        for (side, port) in [("private", &worker.private), ("public", &worker.public)] {
            let c = &port.counters;
            let _ = writeln!(
                text,
                "  {side:8} {} · in {} (lost {}) · out {} (lost {})",
                port.kind, c.rx_packets, c.rx_dropped, c.tx_packets, c.tx_dropped
            );
        }
    }
    text.push_str("\nnext hops\n");
    for hop in &report.status.neighbors {
        let mac = hop.mac.as_deref().unwrap_or("unknown");
        let _ = writeln!(
            text,
            "  {:8} {} at {mac} ({})",
            hop.interface, hop.address, hop.state
        );
    }
    if let Some(latency) = report.status.negotiation_latency.summary() {
        let ms = |ns: u64| ns as f64 / 1e6;
        let _ = writeln!(
            text,
            "\n{} negotiations begun here succeeded: p50 {:.1} ms, p99 {:.1} ms, longest {:.1} ms",
            latency.count,
            ms(latency.p50_ns),
            ms(latency.p99_ns),
            ms(latency.max_ns)
        );
    }
    text.push('\n');
    direction(&mut text, "outbound", &report.outbound);
    direction(&mut text, "inbound", &report.inbound);
    for route in &report.status.routes {
        text.push('\n');
        self::route(&mut text, route);
    }
    text
}

fn direction(text: &mut String, name: &str, counts: &TrafficCounters) {
    let _ = write!(text, "{name:8} {} received", counts.received);
    if counts.fragments > 0 {
        let _ = write!(text, " + {} by fragmenting", counts.fragments);
    }
    let _ = write!(
        text,
        " = {} forwarded + {} control",
        counts.forwarded, counts.control
    );
    for (reason, n) in counts.dropped.iter().filter(|(_, n)| *n > 0) {
        let _ = write!(text, " + {n} {}", reason.name());
    }
    text.push('\n');
}

fn route(text: &mut String, route: &RouteStatus) {
    let _ = write!(
        text,
        "route {} to {} · {}",
        route.id, route.gateway, route.state
    );
    if route.failures > 0 {
        let _ = write!(text, " ({} negotiations unanswered)", route.failures);
    }
    let _ = writeln!(
        text,
        " · {} keys · MTU {} outside, {} inside",
        route.keys, route.path_mtu, route.inner_mtu
    );
    let _ = writeln!(text, "  {}", route.prefixes.join(", "));
    if route.ipv6_too_narrow {
        text.push_str("  too narrow for IPv6, which needs 1280 bytes inside\n");
    }
    if let Some(seconds) = route.handshake_age_s {
        let _ = writeln!(text, "  keys agreed on {} ago", age(seconds));
    }
    for (direction, counters) in [("out", &route.sent), ("in", &route.received)] {
        let RouteCounters { packets, bytes, .. } = counters;
        let _ = write!(text, "  {direction:4} {packets} packets, {bytes} bytes");
        for (reason, n) in counters.dropped.iter().filter(|(_, n)| *n > 0) {
            let _ = write!(text, " · {n} {}", reason.name());
        }
        text.push('\n');
    }
    let _ = writeln!(
        text,
        "  {:4} {:>10} {:>8} {:>8} {:>14} {:>18} {:>8} {:>8}",
        "SA", "SPI", "age", "left", "packets", "bytes", "forged", "replayed"
    );
    route
        .outbound
        .iter()
        .for_each(|sa| self::sa(text, "out", sa));
    route.inbound.iter().for_each(|sa| self::sa(text, "in", sa));
}

fn sa(text: &mut String, direction: &str, sa: &SaStatus) {
    let time = |seconds: Option<u64>| seconds.map_or("-".to_owned(), age);
    let _ = writeln!(
        text,
        "  {direction:4} {:>10} {:>8} {:>8} {:>14} {:>18} {:>8} {:>8}",
        sa.spi,
        time(sa.age_s),
        time(sa.left_s),
        sa.packets,
        sa.bytes,
        sa.forged,
        sa.replayed
    );
}

/// A time as people say it.
fn age(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        3600..86400 => format!("{}h{:02}m", seconds / 3600, seconds / 60 % 60),
        _ => format!("{}d{:02}h", seconds / 86400, seconds / 3600 % 24),
    }
}
