//! `tare cvm status`: what a running guest and its host are doing.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use tare_cvmnet::daemon::{self, Report};
use tare_daemon::Words;

use crate::terminal;

/// The words of errors.
const WORDS: Words = Words {
    one: "guest",
    key: "TAP device",
};

#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    tare cvm status\n  \
    tare cvm status tare0\n  \
    tare cvm status --json | jq .guest\n\n\
    Without TAP or SOCKET, the only guest that answers at a socket in /run/tare is shown.")]
pub(crate) struct Args {
    /// TAP device of the guest, or its status socket
    #[arg(value_name = "TAP or SOCKET")]
    at: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Asks a host and prints what it says.
///
/// # Errors
/// It does not answer.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let socket = args.at.as_ref().map(|at| match at.to_str() {
        Some(tap) if !tap.contains('/') => daemon::socket_of(tap),
        _ => at.clone(),
    });
    if let Some(report) = crate::daemon::status(daemon::KIND, WORDS, socket, args.json)? {
        terminal::print(&text(&report))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the kind and the simulated cost of exits that the guest was started with.
fn exits(report: &Report) -> String {
    match report.switch_cycles {
        0 => format!("{}, at no cost", report.exits),
        cycles => format!("{}, {cycles} cycles each", report.exits),
    }
}

fn text(report: &Report) -> String {
    let (process, host) = (&report.process, &report.host);
    let mut text = String::new();
    let _ = writeln!(
        text,
        "{} · {} · host process {} · up {} s",
        report.address, report.variant, process.pid, process.uptime_s
    );
    let Some(guest) = &report.guest else {
        let _ = writeln!(text, "the guest has not answered yet");
        return text;
    };
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    let _ = writeln!(
        text,
        "connections  {} open of {}, {} handshakes; {} with an error of TLS, {} cut off",
        guest.opened - guest.closed.min(guest.opened),
        guest.opened,
        guest.handshakes,
        guest.tls_failures,
        guest.cut_off
    );
    let _ = writeln!(
        text,
        "data         {:.1} MiB received in {} records, {:.1} MiB sent in {}",
        mib(guest.bytes_in),
        guest.records_in,
        mib(guest.bytes_out),
        guest.records_out
    );
    let _ = writeln!(
        text,
        "frames       {} received, of {} packets; {} sent; {} too long; {:.1} MiB bounced",
        guest.frames_in,
        host.packets,
        host.from_guest,
        host.too_long,
        mib(guest.bounced)
    );
    let _ = writeln!(
        text,
        "exits        {} kicks, {} interrupts, {} waits ({}); {} faults of the host",
        guest.kicks,
        guest.interrupts,
        guest.halts,
        exits(report),
        guest.faults
    );
    let _ = writeln!(
        text,
        "guest        {:.1} s of processor time, of which {:.1} s were without work",
        guest.cpu_ns as f64 / 1e9,
        guest.polling_ns as f64 / 1e9
    );
    if report.pairs.len() > 1 {
        for (n, pair) in report.pairs.iter().enumerate() {
            let guest = pair.guest.unwrap_or_default();
            let _ = writeln!(
                text,
                "pair {n:<7} {} connections, {:.1} MiB received, {:.1} MiB sent; {} faults of the \
                 host; {:.1} s of processor time",
                guest.opened,
                mib(guest.bytes_in),
                mib(guest.bytes_out),
                guest.faults,
                (guest.cpu_ns.saturating_sub(guest.polling_ns)) as f64 / 1e9
            );
        }
    }
    text
}
