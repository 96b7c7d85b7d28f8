//! `tare memory close`: address spaces whose clients are gone.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use serde_json::json;
use tare_farmem::operation::{Error as Refusal, SpaceId};
use tare_farmem::protocol::{ClientConfig, Failure, Secret};
use tare_farmem::session::{connect, connect_authorized, random_id, Options};

use super::keygen::read_secret;
use crate::terminal;

#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    tare memory status                                  the largest spaces of a node\n  \
    tare memory close udp://127.0.0.1:7311 7 8\n  \
    tare memory close udp://10.0.0.1:7311 7 --secret node.secret\n\n\
    A space keeps its memory until it is closed, even if its client was killed. Closing it frees \
    its memory, its locks and its regions; a client that still uses it gets the error that no such \
    space exists.\n\n\
    Exit status: 0 all spaces were closed; 1 some did not exist; 2 usage error, or the node did \
    not answer (the spaces that were closed before are printed).")]
pub(crate) struct Args {
    /// The node, such as udp://127.0.0.1:7311, shm:/run/tare/node.shm or
    /// xdp:eth1,10.0.0.2,10.0.0.1:7311
    #[arg(value_name = "NODE")]
    node: String,
    /// Numbers of the address spaces
    #[arg(value_name = "SPACE", required = true)]
    spaces: Vec<u64>,
    /// Encrypt, with the node's secret in this file
    #[arg(long, value_name = "FILE")]
    secret: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The time after which a request is given up, unless the node has a shorter one. A person may wait
/// for longer than a program, and a node may be busy.
const TIMEOUT: Duration = Duration::from_secs(15);

/// Closes the spaces, one after the other, and prints those that were closed even if a later one
/// fails.
///
/// # Errors
/// The node does not answer, or not in time.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let secret = args.secret.as_deref().map(read_secret).transpose()?;
    let (mut closed, mut missing) = (Vec::new(), Vec::new());
    let mut failed = None;
    for &space in &args.spaces {
        let (list, said) = match close(&args.node, SpaceId(space), secret.as_ref()) {
            Ok(true) => (&mut closed, "closed"),
            Ok(false) => (&mut missing, "no such space"),
            Err(error) => {
                failed = Some(error.context(format!("{}: space {space}", args.node)));
                break;
            }
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
            "error": failed.as_ref().map(|error| format!("{error:#}")),
        });
        terminal::print(&format!("{result}\n"))?;
    }
    match failed {
        Some(error) => Err(error),
        None => Ok(ExitCode::from(u8::from(!missing.is_empty()))),
    }
}

/// Closes a space; returns false if there is none.
fn close(node: &str, space: SpaceId, secret: Option<&Secret>) -> anyhow::Result<bool> {
    let options = Options {
        space: Some(space),
        client: Some(ClientConfig {
            timeout: TIMEOUT,
            ..ClientConfig::new(random_id()?)
        }),
        ..Options::default()
    };
    let mut session = match secret {
        Some(secret) => connect_authorized(node, &options, secret.capability(space))?,
        None => connect(node, &options)?,
    };
    match session.close() {
        Ok(()) => Ok(true),
        Err(error) if error.failure() == Some(Failure::Refused(Refusal::NoSuchSpace)) => Ok(false),
        Err(error) => Err(error.into()),
    }
}
