//! `tare gateway handover`: takes over from a running gateway.

use std::process::ExitCode;

use tare_gateway::daemon;

use super::run::Common;

#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    tare gateway handover node1.conf              replaces `tare gateway run node1.conf`\n  \
    tare gateway handover --cpu 1,2,3 node1.conf\n\n\
    The arguments are those of `tare gateway run`; the number of workers must be the same. This \
    process continues as the gateway, and the old one exits. If this process cannot take over, the \
    old one continues. On SIGUSR2, a running gateway starts the program again in this way, with \
    the arguments that it was started with.")]
pub(crate) struct Args {
    #[command(flatten)]
    common: Common,
}

/// Takes over from a gateway and runs in its place until a signal ends it.
///
/// # Errors
/// It cannot take over.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    args.common.start(daemon::take_over)
}
