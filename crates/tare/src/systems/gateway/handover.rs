//! `tare gateway handover`: takes over from a running gateway.

use std::process::ExitCode;

use tare_gateway::daemon;

use super::run::Common;

#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    tare gateway handover node1.conf              in place of `tare gateway run node1.conf`\n  \
    tare gateway handover --cpu 1,2,3 node1.conf\n\n\
    The arguments are those of `tare gateway run`, with as many workers. This process goes on as the gateway and the other one ends. If this one cannot take over, the other goes on.\n\
    SIGUSR2 has a running gateway start the program again in this way, with the arguments that it was started with.")]
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
