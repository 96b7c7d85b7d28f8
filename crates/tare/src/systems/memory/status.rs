//! `tare memory status`: what a running node is doing.

use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure};
use tare_daemon::Words;
use tare_farmem::daemon::{self, Report};
use tare_farmem::session::addresses;

use crate::terminal;

/// The most spaces that are listed.
const LISTED_MAX: usize = 20;

/// The time for which a node that takes the place of another may have no listener.
const TAKEOVER: Duration = Duration::from_secs(1);

/// The words of errors.
const WORDS: Words = Words {
    one: "memory node",
    key: "address",
};

#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    tare memory status\n  \
    tare memory status 127.0.0.1:7311\n  \
    tare memory status --json /run/tare/memory-127.0.0.1-7311.sock | jq .memory.largest\n\n\
    The 20 address spaces that use the most memory are listed, or 1024 with --json. `tare memory \
    close` frees a space whose client is gone.\n\n\
    Without ADDRESS or SOCKET, the only node that answers at a socket in /run/tare is shown.")]
pub(crate) struct Args {
    /// Address that the node listens on, or its status socket
    #[arg(value_name = "ADDRESS or SOCKET")]
    at: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Asks a node and prints what it says.
///
/// # Errors
/// It does not answer.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let socket = match args.at.as_deref() {
        Some(at) => find(at)?,
        None => only_node()?,
    };
    if let Some(report) = crate::daemon::status(daemon::KIND, WORDS, socket, args.json)? {
        terminal::print(&text(&report))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the addresses of the nodes that answer below /run/tare, and of others the sockets.
fn nodes() -> (Vec<SocketAddr>, String) {
    let sockets = tare_daemon::sockets(daemon::KIND);
    let nodes = sockets.iter().filter_map(|(stem, _)| listen(stem));
    let name = |(stem, socket): &(String, PathBuf)| match listen(stem) {
        Some(node) => node.to_string(),
        None => socket.display().to_string(),
    };
    let names: Vec<_> = sockets.iter().map(name).collect();
    (nodes.collect(), names.join(", "))
}

/// Returns the address in the name of a status socket.
fn listen(stem: &str) -> Option<SocketAddr> {
    let (ip, port) = stem.rsplit_once('-')?;
    Some(SocketAddr::new(ip.parse().ok()?, port.parse().ok()?))
}

/// Returns `None` if the only node is to be asked.
///
/// # Errors
/// There are several.
fn only_node() -> anyhow::Result<Option<PathBuf>> {
    let (nodes, names) = nodes();
    ensure!(
        nodes.len() < 2,
        "several memory nodes run here: {names}; name the address of one"
    );
    Ok(None)
}

/// Returns the status socket that an argument names: itself, or that of the node at an address.
///
/// # Errors
/// No node has that address.
fn find(at: &Path) -> anyhow::Result<Option<PathBuf>> {
    let Some(address) = at.to_str().and_then(url) else {
        return Ok(Some(at.into()));
    };
    let wanted = addresses(&address)?;
    let from = Instant::now();
    let names = loop {
        let (nodes, names) = nodes();
        let named = wanted.iter().copied().find(|node| nodes.contains(node));
        if let Some(node) = named.or_else(|| choose(&wanted, &nodes, is_own)) {
            return Ok(Some(daemon::socket_of(node)));
        }
        // One that is just taking the place of another has its socket, or none for a moment.
        let has_socket = wanted.iter().any(|node| daemon::socket_of(*node).exists());
        let longest = if has_socket { TAKEOVER } else { TAKEOVER / 5 };
        if from.elapsed() >= longest {
            break names;
        }
        thread::sleep(TAKEOVER / 10);
    };
    let place = address.trim_start_matches("udp://");
    if names.is_empty() {
        bail!("no memory node answers at {place} (is it running?), and none below /run/tare");
    }
    bail!(
        "no memory node answers at {place}; found {names}: name the address of one, or its socket"
    );
}

/// Returns the address as `udp://HOST:PORT` if an argument is one, and no path.
fn url(at: &str) -> Option<String> {
    let place = at.strip_prefix("udp://").unwrap_or(at);
    let place = place.strip_suffix('/').unwrap_or(place);
    let (host, port) = place.rsplit_once(':')?;
    let is_address = !host.is_empty() && !host.contains('/') && port.parse::<u16>().is_ok();
    (is_address && !Path::new(at).exists()).then(|| format!("udp://{place}"))
}

/// Returns the only node that listens at all addresses, of which one was named, at this port.
fn choose(
    wanted: &[SocketAddr],
    nodes: &[SocketAddr],
    is_own: impl Fn(IpAddr) -> bool,
) -> Option<SocketAddr> {
    let named = wanted.iter().find(|address| is_own(address.ip()))?;
    let mut at_port = nodes.iter().filter(|node| node.port() == named.port());
    let node = at_port.next().filter(|node| node.ip().is_unspecified())?;
    at_port.next().is_none().then_some(*node)
}

/// Returns true if this machine has an address.
fn is_own(ip: IpAddr) -> bool {
    UdpSocket::bind((ip, 0)).is_ok()
}

fn text(report: &Report) -> String {
    let (process, memory, node) = (&report.process, &report.memory, &report.node);
    let mut text = String::new();
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    let _ = writeln!(
        text,
        "{} · process {} · up {} s · epoch {}",
        report.listen, process.pid, process.uptime_s, report.epoch
    );
    let used = memory.bytes - memory.bytes_free;
    let _ = writeln!(
        text,
        "memory    {:.1} of {:.1} MiB in use, {} spaces, {} regions, {} locks held, {:.1} MiB \
         of metadata",
        mib(used),
        mib(memory.bytes),
        memory.spaces,
        memory.regions,
        memory.locks,
        mib(memory.metadata_bytes)
    );
    let [small, large, huge] = memory.entries;
    let _ = writeln!(
        text,
        "pages     {small} of 4 KiB, {large} of 2 MiB, {huge} of 1 GiB; {} displaced, {} retries, \
         {} zeroed late",
        memory.displaced, memory.retries, memory.zeroed_late
    );
    for space in memory.largest.iter().take(LISTED_MAX) {
        let _ = writeln!(
            text,
            "space     {}: {:.1} of {:.1} MiB",
            space.space,
            mib(space.bytes),
            mib(space.quota)
        );
    }
    let others = memory.spaces.saturating_sub(LISTED_MAX as u64);
    if others > 0 {
        let _ = writeln!(
            text,
            "          and {others} more spaces, none of them larger"
        );
    }
    let _ = writeln!(
        text,
        "requests  {}: {} operations run besides reads, {} repeated, {} busy",
        node.requests, node.executed, node.repeated, node.busy
    );
    let _ = writeln!(
        text,
        "refused   {} of another epoch, {} too old, {} malformed, {} unauthenticated; {} segmented \
         writes given up",
        node.stale, node.expired, node.malformed, node.unauthenticated, node.abandoned
    );
    if let Some(shm) = &report.shm {
        let work = &shm.work;
        let _ = writeln!(
            text,
            "shm       {} clients: {} accepted, {} refused, {} gone, {} cut off; {} requests, {:.1} \
             MiB read, {:.1} MiB written, {} writes given up",
            shm.clients,
            work.connected,
            work.refused,
            work.gone,
            work.cut_off,
            work.requests,
            mib(work.read_bytes),
            mib(work.written_bytes),
            work.evicted
        );
    }
    for (number, worker) in report.workers.iter().enumerate() {
        let _ = writeln!(
            text,
            "worker {number}  {} received, {} sent, {:.1} s of processor time",
            worker.received,
            worker.sent,
            worker.cpu_ns as f64 / 1e9
        );
        if worker.refused > 0 {
            let _ = writeln!(text, "          {} frames refused", worker.refused);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    #[test]
    fn nodes_are_listed_by_address_and_port() {
        let stems = ["0.0.0.0-7401", "::1-7398", "10.0.0.1-7311"];
        let nodes: Vec<_> = stems.iter().filter_map(|stem| listen(stem)).collect();
        let listed: Vec<_> = nodes.iter().map(SocketAddr::to_string).collect();
        assert_eq!(listed, ["0.0.0.0:7401", "[::1]:7398", "10.0.0.1:7311"]);
        for node in nodes {
            let socket = daemon::socket_of(node);
            let stem = socket.file_stem().unwrap().to_str().unwrap();
            assert_eq!(listen(stem.strip_prefix("memory-").unwrap()), Some(node));
        }
        for wrong in ["", "node", "10.0.0.1", "10.0.0.1-x", "a-1"] {
            assert_eq!(listen(wrong), None);
        }
    }

    #[test]
    fn an_address_is_one_with_a_port_and_everything_else_a_path() {
        for (text, expected) in [
            ("127.0.0.1:7311", "udp://127.0.0.1:7311"),
            ("udp://127.0.0.1:7311", "udp://127.0.0.1:7311"),
            ("udp://[::1]:7311/", "udp://[::1]:7311"),
            ("localhost:7311", "udp://localhost:7311"),
        ] {
            assert_eq!(url(text).as_deref(), Some(expected));
        }
        for path in ["/run/tare/a:1", "node.sock", "a:b", ":1", "./a:1"] {
            assert_eq!(url(path), None);
        }
    }

    #[test]
    fn an_own_address_names_the_only_node_at_all_addresses_with_its_port() {
        let nodes = ["0.0.0.0:1", "[::]:2", "0.0.0.0:3", "[::]:3", "127.0.0.1:4"].map(at);
        let is_own = |ip: IpAddr| ip.is_loopback();
        for (wanted, expected) in [
            ("127.0.0.1:1", Some("0.0.0.0:1")),
            ("[::1]:2", Some("[::]:2")),
            ("127.0.0.1:3", None),
            ("127.0.0.2:4", None),
            ("127.0.0.1:5", None),
            // Of another machine.
            ("10.0.0.1:1", None),
        ] {
            let found = choose(&[at(wanted)], &nodes, is_own);
            assert_eq!(found, expected.map(at), "{wanted}");
        }
        let localhost = ["[::1]:1", "127.0.0.1:1"].map(at);
        assert_eq!(choose(&localhost, &nodes, is_own), Some(at("0.0.0.0:1")));
    }
}
