//! `tare gateway run`: a gateway on real interfaces.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{anyhow, Context as _};
use tare_daemon::Signals;
use tare_gateway::daemon::{self, Options};

use crate::daemon::DaemonArgs;
use crate::systems::port_kind::PortKind;

#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    tare gateway run node1.conf\n  \
    tare gateway run --cpu 1,2,3 node1.conf    keys and neighbors on core 1, workers on 2 and 3\n  \
    tare gateway run --check node1.conf        only check the file\n\n\
    The gateway applies a changed configuration file while it runs; routes that remain lose no \
    packets. SIGHUP applies it immediately, SIGTERM stops the gateway, SIGUSR2 replaces the \
    program without packet loss (see `tare gateway handover`). Events are logged to standard \
    error. Requires root, or CAP_NET_ADMIN, CAP_NET_RAW, CAP_BPF and CAP_IPC_LOCK.")]
pub(crate) struct Args {
    #[command(flatten)]
    pub(super) common: Common,
}

/// The arguments of a gateway, however it begins.
#[derive(clap::Args)]
pub(crate) struct Common {
    /// Configuration file
    #[arg(value_name = "CONF")]
    config: PathBuf,
    /// CPU cores: the first runs key exchange, neighbor resolution and configuration, each other
    /// one runs a worker with its own pair of queues; a single core runs everything. Without this
    /// option, one worker runs, bound to no core
    #[arg(long, value_name = "N,N…", value_delimiter = ',')]
    cpu: Vec<usize>,
    /// Type of port for the interfaces
    #[arg(long, value_name = "KIND", default_value = "auto")]
    io: PortKind,
    /// Let workers poll without sleeping: lower latency, but each uses a full core
    #[arg(long)]
    busy_poll: bool,
    #[command(flatten)]
    daemon: DaemonArgs,
    /// Check the configuration and exit
    #[arg(long)]
    check: bool,
}

/// Runs a gateway until a signal ends it.
///
/// # Errors
/// It cannot be started.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    args.common.start(daemon::run)
}

impl Common {
    /// Runs a gateway in one of the ways to begin, or checks its configuration.
    pub(super) fn start(
        &self,
        begin: impl FnOnce(Options) -> Result<(), daemon::Error>,
    ) -> anyhow::Result<ExitCode> {
        if self.check {
            let checked = daemon::check(&self.config).map_err(|error| anyhow!("{error}"))?;
            return crate::daemon::say(&checked);
        }
        let options = Options {
            config: self.config.clone(),
            kind: self.io.into(),
            cpus: self.cpu.clone(),
            busy_poll: self.busy_poll,
            endpoints: self.daemon.endpoints(),
            log: self.daemon.log(),
            signals: signals().context("signals")?,
            successor: successor(std::env::args_os()),
        };
        begin(options).map_err(|error| anyhow!("{error}"))?;
        Ok(ExitCode::SUCCESS)
    }
}

fn signals() -> std::io::Result<Signals> {
    let signals = Signals::install()?;
    signals.install_succession()?;
    Ok(signals)
}

/// Returns this program's command with `handover` in place of `run`.
fn successor(arguments: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut arguments: Vec<_> = arguments.collect();
    if let Some(how) = arguments.iter_mut().find(|argument| *argument == "run") {
        *how = "handover".into();
    }
    arguments
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_successor_has_the_same_arguments_and_takes_over() {
        let command = |line: &str| line.split(' ').map(OsString::from).collect::<Vec<_>>();
        let started = command("/bin/tare gateway run --cpu 1,2 run.conf");
        let taken = command("/bin/tare gateway handover --cpu 1,2 run.conf");
        assert_eq!(successor(started.into_iter()), taken);
        assert_eq!(successor(taken.clone().into_iter()), taken);
    }
}
