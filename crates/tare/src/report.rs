//! `tare report` and `tare export`: the result of a run in every format.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use tare_lab::plan::Plan;
use tare_lab::report;
use tare_lab::result::{Family, RunResult};
use tare_lab::sample::TrialRecord;
use tare_lab::schedule::Schedule;
use tare_lab::store::{self, RunDirectory};

use crate::{cli, systems, terminal};

/// Judges a run again, writes its report and prints its claims.
pub(crate) fn report(arguments: &cli::Report) -> anyhow::Result<ExitCode> {
    let (plan, records) = RunDirectory::read(&arguments.run)?;
    let result = judged(&plan, &records);
    let strict = arguments.strict;
    finish(
        &arguments.run,
        &result,
        arguments.json,
        arguments.cells,
        strict,
    )
}

/// Prints a run in another format.
pub(crate) fn export(arguments: &cli::Export) -> anyhow::Result<ExitCode> {
    let (plan, records) = RunDirectory::read(&arguments.run)?;
    let result = judged(&plan, &records);
    terminal::print(&match arguments.format {
        cli::Format::Json => terminal::json_pretty(&result)?,
        cli::Format::Csv => report::csv(&result),
        cli::Format::ClaimsCsv => report::claims_csv(&result),
        cli::Format::Markdown => report::markdown(&result),
        cli::Format::Html => report::html(&result),
    })?;
    Ok(ExitCode::SUCCESS)
}

/// The result of a run's records.
pub(crate) fn judged(plan: &Plan, records: &[TrialRecord]) -> RunResult {
    let rounds = records.iter().map(|record| record.round + 1).max();
    let judged = plan.judge(records);
    RunResult {
        schema: plan.schema,
        run: plan.run.clone(),
        tare: plan.tare.clone(),
        size: plan.size.clone(),
        seed: plan.seed,
        started: plan.started.clone(),
        rounds: rounds.unwrap_or(0),
        complete: Schedule::new(plan, records).is_complete(),
        machine: plan.machine.clone(),
        warnings: plan.warnings.clone(),
        error_rate: Family::error_rate(&judged.families),
        families: judged.families,
        assuming_independent_rounds: judged.assuming_independent_rounds,
        experiments: judged.experiments,
    }
}

/// Prints the result of a run and writes its page. If one of them fails (a directory that cannot be
/// written, a full disk, a closed pipe), the other is still written.
pub(crate) fn finish(
    directory: &Path,
    result: &RunResult,
    json: bool,
    cells: bool,
    strict: bool,
) -> anyhow::Result<ExitCode> {
    let page = write_html(directory, result);
    print(result, json, cells)?;
    terminal::say(&format!("tare: report: {}", page?.display()));
    Ok(exit_code(result, strict))
}

/// Writes the page into the run's directory.
pub(crate) fn write_html(directory: &Path, result: &RunResult) -> anyhow::Result<PathBuf> {
    let page = directory.join("report.html");
    store::write_whole(&page, report::html(result).as_bytes())?;
    Ok(page)
}

/// Prints the claims, or all of the result as JSON. Every cell is printed too if asked, or if the
/// run has no claim.
fn print(result: &RunResult, json: bool, cells: bool) -> anyhow::Result<()> {
    if json {
        return Ok(terminal::print_last(&terminal::json(result)?)?);
    }
    let (width, colour) = (terminal::width(), terminal::colour());
    let mut text = String::new();
    let claims = result.experiments.iter();
    let mut claims = claims.flat_map(|e| e.claims.iter().chain(&e.targets));
    if cells || claims.next().is_none() {
        for experiment in &result.experiments {
            text.push_str(&report::text::cells(experiment, width));
            text.push('\n');
        }
    }
    text.push_str(&systems::guest::cost::table(result, width).unwrap_or_default());
    text.push_str(&report::text::claims(result, width, colour));
    Ok(terminal::print_last(&text)?)
}

/// The exit status: 2 if trials ran and none gave a figure, or the run ended before any, 1 if
/// `strict` and a claim was not reproduced or a target missed, else 0, because verdicts are
/// results: also that nothing is testable here.
pub(crate) fn exit_code(result: &RunResult, strict: bool) -> ExitCode {
    let cells = || result.experiments.iter().flat_map(|e| &e.cells);
    if !cells().any(|cell| cell.n > 0) {
        // What this machine lacks is no trial and makes no round.
        let ran = result.experiments.iter().any(|e| e.rounds > 0);
        if ran || !result.complete {
            terminal::say("tare: nothing was measured: no trial gave a figure");
            return ExitCode::from(2);
        }
        terminal::say("tare: nothing was measured: nothing is testable here");
        let lacking: BTreeSet<&String> = cells().filter_map(|cell| cell.reason.as_ref()).collect();
        for reason in &lacking {
            terminal::say_wrapped(&format!("  {reason}"));
        }
    }
    let all = result.experiments.iter();
    let mut all = all.flat_map(|e| e.claims.iter().chain(&e.targets));
    let negative = all.any(|claim| claim.verdict.is_negative());
    ExitCode::from(u8::from(strict && negative))
}
