//! The arguments that all daemons have, and what `--check` prints.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::ValueEnum;
use tare_daemon::{Checked, Endpoints, Level, LogOptions};

use crate::terminal;

#[derive(clap::Args)]
pub(crate) struct DaemonArgs {
    /// Address of the Prometheus endpoint, such as 127.0.0.1:9303
    #[arg(long, value_name = "ADDRESS:PORT")]
    metrics: Option<SocketAddr>,
    /// Socket that answers `status` [default: below /run/tare]
    #[arg(long, value_name = "PATH")]
    status_socket: Option<PathBuf>,
    /// Log JSON
    #[arg(long)]
    log_json: bool,
    /// The lowest level that is logged
    #[arg(long, value_enum, default_value_t = LogLevel::Info, value_name = "LEVEL")]
    log_level: LogLevel,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum LogLevel {
    Debug,
    Info,
    Warn,
    Error,
}

impl DaemonArgs {
    /// Returns the endpoints that are set on the command line.
    pub(crate) fn endpoints(&self) -> Endpoints {
        Endpoints {
            metrics: self.metrics,
            socket: self.status_socket.clone(),
        }
    }

    /// Returns the settings of the log.
    pub(crate) fn log(&self) -> LogOptions {
        LogOptions {
            json: self.log_json,
            level: match self.log_level {
                LogLevel::Debug => Level::Debug,
                LogLevel::Info => Level::Info,
                LogLevel::Warn => Level::Warn,
                LogLevel::Error => Level::Error,
            },
        }
    }
}

/// Prints the result of a check: warnings on standard error, the summary on standard output.
///
/// # Errors
/// Standard output cannot be written.
pub(crate) fn say(checked: &Checked) -> anyhow::Result<ExitCode> {
    for warning in &checked.warnings {
        terminal::say(&warning.to_string());
    }
    terminal::print(&format!("{}\n", checked.summary))?;
    Ok(ExitCode::SUCCESS)
}
