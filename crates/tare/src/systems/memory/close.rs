//! `tare memory close`: address spaces whose clients are gone.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use serde_json::json;
use tare_farmem::operation::{Error as Refusal, SpaceId};
use tare_farmem::protocol::{Failure, Secret};
use tare_farmem::session::{connect, connect_authorized, Error, Options};

use super::keygen::read_secret;
use crate::terminal;

#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    tare memory status                                  the largest spaces of a node\n  \
    tare memory close udp://127.0.0.1:7311 7 8\n  \
    tare memory close udp://10.0.0.1:7311 7 --secret node.secret\n\n\
    A space has its memory until it is closed, also if its client was killed. Closing it frees its\n\
    memory, its locks and its regions; a client that still uses it is told that there is no such\n\
    space.\n\n\
    Exit status: 0 all were closed; 1 some did not exist; 2 wrong usage, or the node did not answer.")]
pub(crate) struct Args {
    /// The node, such as udp://127.0.0.1:7311, shm:/run/tare/node.shm or
    /// xdp:eth1,10.0.0.2,10.0.0.1:7311
    #[arg(value_name = "NODE")]
    node: String,
    /// The numbers of the address spaces
    #[arg(value_name = "SPACE", required = true)]
    spaces: Vec<u64>,
    /// Encrypt: the file with the node's secret
    #[arg(long, value_name = "FILE")]
    secret: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Closes the spaces, one after the other.
///
/// # Errors
/// The node does not answer, or not in time.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let secret = args.secret.as_deref().map(read_secret).transpose()?;
    let (mut closed, mut missing) = (Vec::new(), Vec::new());
    for &space in &args.spaces {
        let is_closed = close(&args.node, SpaceId(space), secret.as_ref())
            .with_context(|| format!("{}: space {space}", args.node))?;
        let (list, said) = match is_closed {
            true => (&mut closed, "closed"),
            false => (&mut missing, "no such space"),
        };
        list.push(space);
        if !args.json {
            terminal::print(&format!("space {space}: {said}\n"))?;
        }
    }
    if args.json {
        let result = json!({
            "schema": 1,
            "node": args.node,
            "closed": closed,
            "missing": missing,
        });
        terminal::print(&format!("{result}\n"))?;
    }
    Ok(ExitCode::from(u8::from(!missing.is_empty())))
}

/// Closes a space; returns false if there is none.
fn close(node: &str, space: SpaceId, secret: Option<&Secret>) -> Result<bool, Error> {
    let options = Options {
        space: Some(space),
        ..Options::default()
    };
    let mut session = match secret {
        Some(secret) => connect_authorized(node, &options, secret.capability(space))?,
        None => connect(node, &options)?,
    };
    match session.close() {
        Ok(()) => Ok(true),
        Err(Error::Failed(Failure::Refused(Refusal::NoSuchSpace))) => Ok(false),
        Err(error) => Err(error),
    }
}
