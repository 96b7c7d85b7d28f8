//! `tare memory status`: what a running node is doing.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use tare_daemon::Words;
use tare_farmem::daemon::{self, Report};

use crate::terminal;

/// The most spaces that are listed.
const LISTED_MAX: usize = 20;

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
    Of the address spaces, the 20 that use most memory are listed, with --json 1024. One whose client\n\
    is gone is freed by `tare memory close`.\n\n\
    Without ADDRESS or SOCKET, the only node of this machine that answers below /run/tare.")]
pub(crate) struct Args {
    /// The address that the node listens at, or the socket that answers for it
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
    let socket = args.at.as_deref().map(socket_of);
    if let Some(report) = crate::daemon::status(daemon::KIND, WORDS, socket, args.json)? {
        terminal::print(&text(&report))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn socket_of(at: &Path) -> PathBuf {
    let address = at.to_str().and_then(|text| text.parse::<SocketAddr>().ok());
    address.map_or_else(|| at.into(), daemon::socket_of)
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
            "          and {others} spaces with no more than these"
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
