//! `tare report` and `tare export`: what a run came to, in every form it is wanted.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use tare_lab::judge::{self, Judging};
use tare_lab::plan::Plan;
use tare_lab::report;
use tare_lab::result::{RunResult, Verdict};
use tare_lab::sample::TrialRecord;
use tare_lab::store::{self, RunDirectory};

use crate::run::ALPHA;
use crate::{cli, terminal};

/// Judges a run again, writes its report and prints its claims.
pub(crate) fn report(arguments: &cli::Report) -> anyhow::Result<ExitCode> {
    let (plan, records) = RunDirectory::read(&arguments.run)?;
    let result = judged(&plan, &records);
    finish(&arguments.run, &result, arguments.json, arguments.cells)
}

/// Prints a run in another format.
pub(crate) fn export(arguments: &cli::Export) -> anyhow::Result<ExitCode> {
    let (plan, records) = RunDirectory::read(&arguments.run)?;
    let result = judged(&plan, &records);
    terminal::print(&match arguments.format {
        cli::Format::Json => serde_json::to_string_pretty(&result)?,
        cli::Format::Csv => report::csv(&result),
        cli::Format::Markdown => report::markdown(&result),
        cli::Format::Html => report::html(&result),
    })?;
    Ok(ExitCode::SUCCESS)
}

/// What a run's records come to.
pub(crate) fn judged(plan: &Plan, records: &[TrialRecord]) -> RunResult {
    let judged = judge::judge(&plan.experiments, records, &Judging { alpha: ALPHA });
    RunResult {
        schema: plan.schema,
        run: plan.run.clone(),
        tare: plan.tare.clone(),
        size: plan.size.clone(),
        seed: plan.seed,
        started: plan.started.clone(),
        rounds: plan.rounds,
        complete: plan.remaining(records).is_empty(),
        machine: plan.machine.clone(),
        warnings: plan.warnings.clone(),
        families: judged.families,
        experiments: judged.experiments,
    }
}

/// Prints what a run came to and writes its page. The page may have no place (a directory that can
/// only be read, a full disk), and the reader of the result may be gone: neither costs the other.
pub(crate) fn finish(
    directory: &Path,
    result: &RunResult,
    json: bool,
    cells: bool,
) -> anyhow::Result<ExitCode> {
    let page = write_html(directory, result);
    print(result, json, cells)?;
    terminal::say(&format!("tare: report: {}", page?.display()));
    Ok(exit_code(result))
}

/// Writes the page into the run's directory.
fn write_html(directory: &Path, result: &RunResult) -> anyhow::Result<PathBuf> {
    let page = directory.join("report.html");
    store::write_whole(&page, report::html(result).as_bytes())?;
    Ok(page)
}

/// Prints the claims, and every cell where asked, or all of it as JSON.
fn print(result: &RunResult, json: bool, cells: bool) -> anyhow::Result<()> {
    if json {
        return Ok(terminal::print(&serde_json::to_string(result)?)?);
    }
    let (width, colour) = (terminal::width(), terminal::colour());
    let mut text = String::new();
    if cells {
        for experiment in &result.experiments {
            text.push_str(&report::text::cells(experiment, width));
            text.push('\n');
        }
    }
    text.push_str(&report::text::claims(result, width, colour));
    Ok(terminal::print(&text)?)
}

/// 1 where a claim was not reproduced, 2 where nothing could be measured at all, else 0.
fn exit_code(result: &RunResult) -> ExitCode {
    let mut claims = result.experiments.iter().flat_map(|e| &e.claims);
    if claims.any(|claim| claim.verdict == Verdict::NotReproduced) {
        return ExitCode::from(1);
    }
    let mut cells = result.experiments.iter().flat_map(|e| &e.cells);
    if cells.any(|cell| cell.n > 0) {
        ExitCode::SUCCESS
    } else {
        terminal::say("tare: nothing was measured: no trial gave a figure");
        ExitCode::from(2)
    }
}
