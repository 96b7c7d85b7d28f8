//! `tare gateway status`: the state of a running gateway.

use std::fmt::Write as _;
use std::io::Read as _;
use std::os::unix::fs::FileTypeExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{bail, Context as _};
use tare_gateway::config::Config;
use tare_gateway::control::{RouteStatus, SaStatus};
use tare_gateway::daemon::{default_socket, DirectionReport, Report};

use crate::terminal;

#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    tare gateway status node1.conf\n  \
    tare gateway status --json /run/tare/gateway-node1.sock | jq .routes\n\n\
    Without CONF or SOCKET, the only gateway of this machine that answers below /run/tare.")]
pub(crate) struct Args {
    /// The configuration of the gateway, or its status socket
    #[arg(value_name = "CONF or SOCKET")]
    at: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The largest answer that is read, in bytes: 10,000 routes take some 10 MB.
const ANSWER_MAX: u64 = 1 << 30;

const PATIENCE: Duration = Duration::from_secs(5);

/// Prints the status of a gateway.
///
/// # Errors
/// It does not answer.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let socket = match &args.at {
        Some(at) => socket_of(at)?,
        None => only_socket()?,
    };
    let answer = ask(&socket).with_context(|| {
        format!(
            "no gateway answers at {} (is it running?)",
            socket.display()
        )
    })?;
    if args.json {
        terminal::print(answer.trim_end())?;
        terminal::print("\n")?;
        return Ok(ExitCode::SUCCESS);
    }
    let report: Report = serde_json::from_str(&answer).context("the gateway's answer")?;
    terminal::print(&table(&report))?;
    Ok(ExitCode::SUCCESS)
}

fn ask(socket: &Path) -> std::io::Result<String> {
    let stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut answer = String::new();
    stream.take(ANSWER_MAX).read_to_string(&mut answer)?;
    if answer.is_empty() {
        return Err(std::io::ErrorKind::UnexpectedEof.into());
    }
    Ok(answer)
}

fn socket_of(at: &Path) -> anyhow::Result<PathBuf> {
    if at
        .symlink_metadata()
        .is_ok_and(|meta| meta.file_type().is_socket())
    {
        return Ok(at.into());
    }
    if at.extension().is_some_and(|extension| extension == "sock") {
        return Ok(at.into());
    }
    let named = match Config::load(at) {
        Ok((config, _)) => config.status_socket,
        // A configuration that was changed and is wrong now may still name the right socket.
        Err(_) => std::fs::read_to_string(at)
            .ok()
            .as_deref()
            .and_then(named_socket),
    };
    Ok(named.unwrap_or_else(|| default_socket(at)))
}

/// The socket that a configuration with errors names.
fn named_socket(text: &str) -> Option<PathBuf> {
    let (_, rest) = text.split_once("status-socket")?;
    let (value, _) = rest.split_once(';')?;
    Some(value.trim().trim_matches(['"', '\'']).into())
}

fn only_socket() -> anyhow::Result<PathBuf> {
    let names = std::fs::read_dir("/run/tare")
        .into_iter()
        .flatten()
        .flatten();
    let name = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("gateway-") && name.ends_with(".sock")
    };
    let mut sockets: Vec<PathBuf> = names.map(|entry| entry.path()).filter(name).collect();
    match (sockets.pop(), sockets.is_empty()) {
        (Some(socket), true) => Ok(socket),
        (Some(_), false) => bail!("several gateways run here; name the configuration of one"),
        (None, _) => {
            bail!("no gateway has a socket below /run/tare; name its socket or configuration")
        }
    }
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
        report.config,
        report.pid,
        age(report.uptime_s),
        report.status.routes.len()
    );
    if let Some(error) = &report.reload_error {
        let _ = writeln!(text, "the file has changed and was refused: {error}");
    }
    for (number, worker) in report.workers.iter().enumerate() {
        let cpu = worker
            .cpu
            .map_or(String::new(), |cpu| format!(" on core {cpu}"));
        let _ = writeln!(text, "\nworker {number}{cpu}");
        for (side, port) in [("private", &worker.private), ("public", &worker.public)] {
            let _ = writeln!(
                text,
                "  {side:8} {} · in {} (lost {}) · out {} (lost {})",
                port.kind, port.rx_packets, port.rx_dropped, port.tx_packets, port.tx_dropped
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
    text.push('\n');
    direction(&mut text, "outbound", &report.outbound);
    direction(&mut text, "inbound", &report.inbound);
    for route in &report.status.routes {
        text.push('\n');
        self::route(&mut text, route);
    }
    text
}

fn direction(text: &mut String, name: &str, counts: &DirectionReport) {
    let _ = write!(text, "{name:8} {} received", counts.received);
    if counts.fragments > 0 {
        let _ = write!(text, " + {} by fragmenting", counts.fragments);
    }
    let _ = write!(
        text,
        " = {} forwarded + {} control",
        counts.forwarded, counts.control
    );
    for (cause, n) in &counts.dropped {
        let _ = write!(text, " + {n} {cause}");
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

/// A time for people.
fn age(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        3600..86400 => format!("{}h{:02}m", seconds / 3600, seconds / 60 % 60),
        _ => format!("{}d{:02}h", seconds / 86400, seconds / 3600 % 24),
    }
}
