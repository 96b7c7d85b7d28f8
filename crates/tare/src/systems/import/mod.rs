//! `tare import`: figures of other benchmarks, and what is wrong with them.

mod bridge;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, IsTerminal as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{bail, Context as _};
use serde_json::json;
use tare_import::{Finding, Format, Input, Record, Run, Statistic};
use tare_lab::report::text::clean;

use crate::terminal;

/// The exit status if something could not be read.
const REFUSED: u8 = 2;

#[derive(clap::Args)]
#[command(after_help = examples())]
pub(crate) struct Args {
    /// Benchmark output: files or pipes, or - for standard input
    #[arg(value_name = "LOG", required = true, value_hint = clap::ValueHint::FilePath)]
    logs: Vec<PathBuf>,
    /// Format of the input [default: detected from the content]
    #[arg(long, value_name = "NAME", value_parser = clap::builder::PossibleValuesParser::new(Format::all().map(|format| format.name)))]
    format: Option<String>,
    /// Also write the figures as a run, for tare report, diff and export
    #[arg(long, value_name = "DIR", value_hint = clap::ValueHint::DirPath)]
    out: Option<PathBuf>,
    /// Experiment that the figures belong to, such as vita/software [default: imported/ followed by
    /// the format]
    #[arg(long = "as", value_name = "ID", requires = "out", value_parser = bridge::id)]
    id: Option<String>,
    /// Coordinate of the cell that the figures belong to, instead of the parameters in the log
    #[arg(long, value_name = "AXIS=VALUE", requires = "out", value_parser = pair)]
    at: Vec<(String, String)>,
    /// Import only this figure, as the metric of this name
    #[arg(long, value_name = "FIGURE=METRIC", requires = "out", value_parser = pair)]
    metric: Vec<(String, String)>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

fn examples() -> String {
    let mut text = "Examples:\n  \
        tare import wrk-host.txt wrk-guest.txt     do both measure the same work?\n  \
        wrk -t4 -c100 http://127.0.0.1/ | tare import -\n  \
        tare import run-*.txt --out imported       ten logs become ten rounds; then:\n  \
        tare report imported --cells\n  \
        tare import vita.log --out vita --as vita/software --at size=IMIX \\\n    \
        --metric packet_rate=cpu_packet_rate       then: tare diff vita RUN\n\n\
        Formats:\n"
        .to_owned();
    for format in Format::all() {
        let _ = writeln!(text, "  {:<20} {}", format.name, format.about);
    }
    text.push_str(
        "\nFigures are given in their actual units, which may differ from the printed ones.\n\n\
        Exit status: 0 all input was read, whatever was found; 2 usage error, or some input could \
        not be read.",
    );
    text
}

/// Two words around an equals sign.
fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() && !value.is_empty() => {
            Ok((name.to_owned(), value.to_owned()))
        }
        _ => Err("expected NAME=VALUE".to_owned()),
    }
}

/// Imports and prints.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let standard_input = |log: &&PathBuf| log.as_os_str() == "-";
    if args.logs.iter().filter(standard_input).count() > 1 {
        bail!("found - twice, expected it once: standard input can be read once");
    }
    bridge::check_metrics(&args.metric)?;
    let format = args.format.as_deref().and_then(Format::named);
    let inputs = args.logs.iter().map(|log| read(log, format));
    let inputs: Vec<Input> = inputs.collect::<anyhow::Result<_>>()?;
    let findings = tare_import::check(&inputs);
    if args.json {
        let all = json!({ "inputs": inputs, "findings": findings });
        terminal::print_last(&terminal::json(&all)?)?;
    } else {
        terminal::print_last(&text(&inputs, &findings))?;
    }
    let refused: Vec<String> = inputs
        .iter()
        .flat_map(|input| &input.refused)
        .map(|refusal| format!("tare: {refusal}"))
        .collect();
    if !refused.is_empty() {
        terminal::say(&refused.join("\n"));
        if args.out.is_some() {
            terminal::say("tare: no run was written, because some input could not be read");
        }
        return Ok(ExitCode::from(REFUSED));
    }
    if let Some(out) = &args.out {
        bridge::write(out, &inputs, &findings, args)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn read(log: &Path, format: Option<&'static Format>) -> anyhow::Result<Input> {
    if log.as_os_str() == "-" {
        if io::stdin().is_terminal() {
            bail!("standard input is a terminal; give a file, or pipe a program's output into it");
        }
        let name = "standard input";
        return tare_import::read(name, format, io::stdin().lock()).context(name);
    }
    let name = log.display().to_string();
    let file = File::open(log).with_context(|| name.clone())?;
    tare_import::read(&name, format, file).context(name)
}

/// The figures of every run, then the findings.
fn text(inputs: &[Input], findings: &[Finding]) -> String {
    let mut out = String::new();
    for input in inputs {
        for run in &input.runs {
            figures(&mut out, input, run);
        }
    }
    match findings.len() {
        0 if out.is_empty() => {}
        0 => out.push_str("No errors were found in these figures.\n"),
        1 => out.push_str("1 finding\n"),
        n => drop(writeln!(out, "{n} findings")),
    }
    for finding in findings {
        let _ = writeln!(out, "  {}", clean(&finding.to_string()));
    }
    out
}

/// One run: what all its figures share in the heading, and a row for each.
fn figures(out: &mut String, input: &Input, run: &Run) {
    let is_progress = |r: &&Record| r.statistic == Statistic::Progress;
    let records: Vec<&Record> = run.records.iter().filter(|r| !is_progress(r)).collect();
    let shared = |name: &&str, value: &str| {
        let mut all = records.iter().map(|r| r.parameters.get(name));
        all.all(|other| other.is_some_and(|other| **other == *value))
    };
    let mut heading = format!("{}:{}  {}", input.file, run.line, run.format);
    let mut common = BTreeSet::new();
    for (name, value) in records.iter().take(1).flat_map(|r| &r.parameters) {
        if shared(name, value) {
            let _ = write!(heading, "  {name}={value}");
            common.insert(*name);
        }
    }
    let _ = writeln!(out, "{}", clean(&heading));
    let row = |record: &&Record| {
        let own = record.parameters.iter();
        let own = own.filter(|(name, _)| !common.contains(*name));
        let own: Vec<String> = own.map(|(name, value)| format!("{name}={value}")).collect();
        let [line, value] = [record.line.to_string(), record.value.to_string()];
        [
            line,
            record.name(),
            value,
            record.unit.to_string(),
            clean(&own.join(" ")),
        ]
    };
    let head = ["Line", "Figure", "Value", "Unit", ""].map(str::to_owned);
    let rows: Vec<[String; 5]> = std::iter::once(head)
        .chain(records.iter().map(row))
        .collect();
    let width = |column: usize| {
        let widths = rows.iter().map(|row| row[column].chars().count());
        widths.max().unwrap_or(0).max(6)
    };
    let (name, value, unit) = (width(1), width(2), width(3));
    for [line, figure, amount, of, own] in &rows {
        let row = format!("  {line:>6}  {figure:<name$}  {amount:>value$}  {of:<unit$}  {own}");
        let _ = writeln!(out, "{}", row.trim_end());
    }
    let progress = run.records.iter().filter(is_progress).count();
    if progress > 0 {
        let _ = writeln!(out, "  and {progress} progress figures, shown by --json");
    }
    out.push('\n');
}
