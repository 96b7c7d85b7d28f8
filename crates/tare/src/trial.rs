//! `tare trial`: the process that a run starts for a trial, or for one role of it.

use std::process::ExitCode;

use anyhow::Context as _;
use rustix::process::Signal;
use tare_lab::value::Parameters;

use crate::agent::Agent;
use crate::{cli, systems};

/// Runs one trial, or one role of it, and reports it.
pub(crate) fn trial(arguments: &cli::Trial) -> anyhow::Result<ExitCode> {
    // The run that started this trial may be killed; the trial must not outlive it.
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    let parameters: Parameters = serde_json::from_str(&arguments.parameters)
        .context("PARAMETERS: expected a JSON object of numbers, booleans and text")?;
    let role = arguments.role.as_deref();
    let mut agent = Agent::new(role.is_some())?;
    let result = systems::play(&arguments.driver, role, &parameters, &mut agent);
    agent.end(result)?;
    Ok(ExitCode::SUCCESS)
}
