//! The arguments that all daemons have, and what `--check` prints.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{anyhow, Context as _};
use clap::ValueEnum;
use serde::de::DeserializeOwned;
use tare_daemon::{Checked, Endpoints, Level, LogOptions, Words};

use crate::terminal;

#[derive(clap::Args)]
pub(crate) struct DaemonArgs {
    /// Address of the Prometheus endpoint, such as 127.0.0.1:9303
    #[arg(long, value_name = "ADDRESS:PORT", global = true)]
    metrics: Option<SocketAddr>,
    /// Socket that answers `status` requests [default: a socket in /run/tare]
    #[arg(long, value_name = "PATH", global = true)]
    status_socket: Option<PathBuf>,
    /// Write log records as JSON
    #[arg(long, global = true)]
    log_json: bool,
    /// Lowest level of records to log
    #[arg(long, value_enum, default_value_t = LogLevel::Info, value_name = "LEVEL", global = true)]
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

/// Asks the daemon of a kind at a socket, or the only one of this machine, for its status. `words`
/// are those of errors. With `is_json` the answer is printed as it is, and `None` returned.
///
/// # Errors
/// It does not answer, or with something else.
pub(crate) fn status<R: DeserializeOwned>(
    kind: &str,
    words: Words,
    socket: Option<PathBuf>,
    is_json: bool,
) -> anyhow::Result<Option<R>> {
    let socket = match socket {
        Some(socket) => socket,
        None => tare_daemon::only_socket(kind, words).map_err(|error| anyhow!(error))?,
    };
    let name = words.one;
    let at = socket.display();
    let answer = tare_daemon::ask(&socket).map_err(|error| match error.kind() {
        io::ErrorKind::PermissionDenied => anyhow!(
            "the status at {at}: {error}; run this as the user that started the {name}, or with \
             sudo"
        ),
        _ => anyhow!(error).context(format!("no {name} answers at {at} (is it running?)")),
    })?;
    if is_json {
        terminal::print(answer.trim_end())?;
        return Ok(None);
    }
    let report = serde_json::from_str(&answer);
    Ok(Some(
        report.with_context(|| format!("the {name}'s answer"))?,
    ))
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
