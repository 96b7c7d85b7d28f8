//! `tare gateway run`: a gateway on real interfaces.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{anyhow, Context as _};
use clap::ValueEnum;
use tare_daemon::Signals;
use tare_gateway::daemon::{self, Options};
use tare_port::{Kind, XdpMode};

use crate::daemon::DaemonArgs;

#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    tare gateway run node1.conf\n  \
    tare gateway run --cpu 1,2,3 node1.conf    keys and neighbors on core 1, workers on 2 and 3\n  \
    tare gateway run --check node1.conf        only say what is wrong with the file\n\n\
    A changed file is taken over while the gateway runs; routes that stay lose no packet. SIGHUP does so at once, SIGTERM ends it.\n\
    Events go to standard error. Needs root, or CAP_NET_ADMIN, CAP_NET_RAW, CAP_BPF and CAP_IPC_LOCK.")]
pub(crate) struct Args {
    /// The configuration
    #[arg(value_name = "CONF")]
    config: PathBuf,
    /// Cores: the first for keys, neighbors and configuration, each other one for a worker with its
    /// own pair of queues; a single one for all. Without it, one worker, bound to no core
    #[arg(long, value_name = "N,N…", value_delimiter = ',')]
    cpu: Vec<usize>,
    /// The kind of port of the interfaces
    #[arg(long, value_enum, default_value_t = Io::Auto, hide_possible_values = true,
        value_name = "auto|xdp|xdp-generic|xdp-native|packet")]
    io: Io,
    /// Workers never sleep: less delay, and a whole core each
    #[arg(long)]
    busy_poll: bool,
    #[command(flatten)]
    daemon: DaemonArgs,
}

/// Kinds of ports.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Io {
    /// The best that works
    Auto,
    /// AF_XDP without copies
    Xdp,
    /// AF_XDP in the kernel's generic mode
    XdpGeneric,
    /// AF_XDP in the driver
    XdpNative,
    /// A packet socket
    Packet,
}

/// Runs a gateway until a signal ends it.
///
/// # Errors
/// It cannot be started.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    if args.daemon.check {
        let checked = daemon::check(&args.config).map_err(|error| anyhow!("{error}"))?;
        return crate::daemon::say(&checked);
    }
    let kind = match args.io {
        Io::Auto => Kind::Auto,
        Io::Xdp => Kind::Xdp(XdpMode::ZeroCopy),
        Io::XdpGeneric => Kind::Xdp(XdpMode::Generic),
        Io::XdpNative => Kind::Xdp(XdpMode::Native),
        Io::Packet => Kind::Packet,
    };
    let options = Options {
        config: args.config.clone(),
        kind,
        cpus: args.cpu.clone(),
        busy_poll: args.busy_poll,
        endpoints: args.daemon.endpoints(),
        log: args.daemon.log(),
        signals: Signals::install().context("signals")?,
    };
    daemon::run(options).map_err(|error| anyhow!("{error}"))?;
    Ok(ExitCode::SUCCESS)
}
