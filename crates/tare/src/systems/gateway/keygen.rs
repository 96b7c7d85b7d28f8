//! `tare gateway keygen`: a new preshared key.

use std::process::ExitCode;

use anyhow::Context as _;
use serde_json::json;

use crate::terminal;

#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    tare gateway keygen\n  \
    echo \"preshared-key $(tare gateway keygen);\"\n\n\
    Both ends of a route use the same key; no two routes share a key.")]
pub(crate) struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Prints 32 bytes of the operating system's random number generator in hexadecimal.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let key = tare_gateway::tools::keygen().context("no random numbers")?;
    if args.json {
        terminal::print(&json!({ "schema": 1, "preshared_key": &**key }).to_string())?;
    } else {
        terminal::print(&key)?;
    }
    Ok(ExitCode::SUCCESS)
}
