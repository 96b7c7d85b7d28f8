//! `tare memory keygen` and `tare memory capability`: secrets of nodes, and of spaces.

use std::fs::Metadata;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::str::FromStr;

use anyhow::{anyhow, ensure, Context as _};
use tare_farmem::operation::SpaceId;
use tare_farmem::protocol::{Capability, Secret, TextError};
use zeroize::Zeroizing;

use crate::terminal;

/// The longest file with a secret or a capability, in bytes.
const FILE_MAX: usize = 4096;

#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    (umask 077; tare memory keygen > node.secret)\n  \
    tare memory serve --listen 10.0.0.1:7311 --secret node.secret\n\n\
    The keys of all address spaces are derived from the secret: keep it on the node only.")]
pub(crate) struct KeygenArgs {}

#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    (umask 077; tare memory capability 7 --secret node.secret > space7.capability)\n  \
    tare memory ping udp://10.0.0.1:7311 --capability space7.capability\n\n\
    The holder of a capability has full access to that address space, and none to others.")]
pub(crate) struct CapabilityArgs {
    /// Number of the address space
    #[arg(value_name = "SPACE")]
    space: u64,
    /// File with the node's secret
    #[arg(long, value_name = "FILE")]
    secret: PathBuf,
}

/// Prints a new secret.
///
/// # Errors
/// The system has no random numbers, or standard output is closed.
pub(crate) fn keygen(_: &KeygenArgs) -> anyhow::Result<ExitCode> {
    let secret = Secret::random().context("no random numbers")?;
    terminal::print(&secret.to_text())?;
    Ok(ExitCode::SUCCESS)
}

/// Prints the capability of a space.
///
/// # Errors
/// The file has no secret, or standard output is closed.
pub(crate) fn capability(args: &CapabilityArgs) -> anyhow::Result<ExitCode> {
    let secret = read_secret(&args.secret)?;
    terminal::print(&secret.capability(SpaceId(args.space)).to_text())?;
    Ok(ExitCode::SUCCESS)
}

/// Reads a node's secret from a file.
///
/// # Errors
/// It cannot be read, has none, or other users may access it.
pub(super) fn read_secret(path: &Path) -> anyhow::Result<Secret> {
    read(path, "make one with `tare memory keygen`", |metadata| {
        let mode = metadata.mode() & 0o7777;
        ensure!(
            mode & 0o077 == 0,
            "found a file of mode {mode:04o}, expected 0600, since who reads it may do everything \
             with all address spaces: chmod 600"
        );
        Ok(())
    })
}

/// Reads the capability of a space from a file.
///
/// # Errors
/// It cannot be read, or has none.
pub(super) fn read_capability(path: &Path) -> anyhow::Result<Capability> {
    let remedy = "the node's operator makes one with `tare memory capability`";
    read(path, remedy, |_| Ok(()))
}

/// Reads a file that `check` accepts; `remedy` is for one that does not exist.
fn read<T: FromStr<Err = TextError>>(
    path: &Path,
    remedy: &str,
    check: impl Fn(&Metadata) -> anyhow::Result<()>,
) -> anyhow::Result<T> {
    let content = tare_daemon::read_file(path, FILE_MAX).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => anyhow!("{error}; {remedy}"),
        _ => error.into(),
    });
    let content = content.with_context(|| path.display().to_string())?;
    check(&content.metadata).with_context(|| path.display().to_string())?;
    let bytes = Zeroizing::new(content.bytes);
    let text = std::str::from_utf8(&bytes).ok();
    let text =
        text.with_context(|| format!("{}: found binary data, expected text", path.display()))?;
    text.parse().with_context(|| path.display().to_string())
}
