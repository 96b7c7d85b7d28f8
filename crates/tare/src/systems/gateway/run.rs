//! `tare gateway run`: a gateway on real interfaces.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;
use std::sync::Arc;

use anyhow::{anyhow, Context as _};
use clap::ValueEnum;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use tare_gateway::config::Config;
use tare_gateway::control::{Level, Record};
use tare_gateway::daemon::{self, Log, Options};
use tare_port::{Kind, XdpMode};

use crate::terminal;

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
    /// Workers poll and never sleep: less delay, and a whole core each
    #[arg(long)]
    busy_poll: bool,
    /// Address of the Prometheus endpoint, such as 127.0.0.1:9303
    #[arg(long, value_name = "ADDRESS:PORT")]
    metrics: Option<SocketAddr>,
    /// Socket for `tare gateway status` [default: /run/tare/gateway-NAME.sock]
    #[arg(long, value_name = "PATH")]
    status_socket: Option<PathBuf>,
    /// Log JSON
    #[arg(long)]
    log_json: bool,
    /// The lowest level that is logged
    #[arg(long, value_enum, default_value_t = LogLevel::Info, value_name = "LEVEL")]
    log_level: LogLevel,
    /// Only check the configuration
    #[arg(long)]
    check: bool,
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

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum LogLevel {
    Debug,
    Info,
    Warn,
    Error,
}

/// Runs a gateway until a signal ends it.
///
/// # Errors
/// It cannot be started.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let log = Log {
        json: args.log_json,
        level: match args.log_level {
            LogLevel::Debug => Level::Debug,
            LogLevel::Info => Level::Info,
            LogLevel::Warn => Level::Warn,
            LogLevel::Error => Level::Error,
        },
    };
    if args.check {
        return check(args);
    }
    let (stop, reload) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicBool::new(false)),
    );
    for signal in [SIGINT, SIGTERM] {
        // The second one ends the process, should the first have no effect.
        signal_hook::flag::register_conditional_default(signal, Arc::clone(&stop))
            .and_then(|_| signal_hook::flag::register(signal, Arc::clone(&stop)))
            .context("signals")?;
    }
    signal_hook::flag::register(SIGHUP, Arc::clone(&reload)).context("signals")?;
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
        metrics: args.metrics,
        status_socket: args.status_socket.clone(),
        log,
        stop,
        reload,
    };
    daemon::run(options).map_err(|error| anyhow!("{error}"))?;
    Ok(ExitCode::SUCCESS)
}

/// Prints a summary of a configuration and its warnings.
fn check(args: &Args) -> anyhow::Result<ExitCode> {
    let (config, warnings) = Config::load(&args.config).map_err(|error| anyhow!("{error}"))?;
    for warning in &warnings {
        let mut record = Record::new(Level::Warn, "config").with("file", warning.file.as_str());
        if let Some(line) = warning.line {
            record = record.with("line", line);
        }
        terminal::say(&record.with("text", warning.text.as_str()).to_string());
    }
    let routes = config.routes.len();
    let s = if routes == 1 { "" } else { "s" };
    terminal::print(&format!(
        "{}: {routes} route{s} between {} and {}\n",
        args.config.display(),
        config.private.device,
        config.public.device
    ))?;
    Ok(ExitCode::SUCCESS)
}
