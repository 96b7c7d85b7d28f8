//! `tare run`: plan, run, judge, report.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

use anyhow::{bail, Context as _};
use tare_lab::experiment::Experiment;
use tare_lab::file::Size;
use tare_lab::fingerprint::Machine;
use tare_lab::judge;
use tare_lab::plan::Plan;
use tare_lab::result::SCHEMA;
use tare_lab::runner::{self, Ended};
use tare_lab::store::RunDirectory;

use crate::progress::Bar;
use crate::{catalog, cli, drivers, report};

/// The status of a process that Ctrl-C ended, as shells have it.
const INTERRUPTED: u8 = 130;

/// The chance of a wrong verdict that a run accepts, over all its claims together.
pub(crate) const ALPHA: f64 = 0.05;

/// Runs, or goes on with, a run and judges it.
pub(crate) fn run(arguments: &cli::Run) -> anyhow::Result<ExitCode> {
    let drivers = drivers::all();
    let mut directory = match &arguments.resume {
        Some(path) => resume(path)?,
        None => begin(arguments, &drivers)?,
    };
    for warning in &directory.plan().warnings {
        eprintln!("tare: warning: {warning}");
    }
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&interrupted))?;
    }
    let mut bar = Bar::new();
    let ended = runner::run(
        &mut directory,
        &drivers,
        &|| interrupted.load(Ordering::Relaxed),
        &mut bar,
    );
    bar.finish();
    let path = directory.path().to_owned();
    if ended? == Ended::Interrupted {
        eprintln!(
            "tare: stopped; {} trials are in. To go on: tare run --resume {}",
            directory.records().len(),
            path.display()
        );
        return Ok(ExitCode::from(INTERRUPTED));
    }
    let result = report::judged(directory.plan(), directory.records());
    let page = report::write_html(&path, &result)?;
    report::print(&result, arguments.json, false)?;
    eprintln!("tare: report: {}", page.display());
    Ok(report::exit_code(&result))
}

fn begin(
    arguments: &cli::Run,
    drivers: &tare_lab::driver::Drivers,
) -> anyhow::Result<RunDirectory> {
    let size = arguments.size();
    let experiments = catalog::chosen(&arguments.experiments, size, drivers)?;
    if experiments.is_empty() {
        bail!("there is no experiment to run");
    }
    let machine = Machine::read();
    let started = jiff::Timestamp::now();
    let path = match &arguments.out {
        Some(path) => path.clone(),
        None => PathBuf::from("tare-runs").join(started.strftime("%Y%m%dT%H%M%SZ").to_string()),
    };
    let seed = match arguments.seed {
        Some(seed) => seed,
        // 53 bits, so that JSON readers without whole numbers read the same seed.
        None => drivers::system_random()? >> 11,
    };
    let plan = Plan {
        schema: SCHEMA,
        run: path
            .file_name()
            .map_or_else(|| "run".into(), |name| name.to_string_lossy().into_owned()),
        tare: env!("CARGO_PKG_VERSION").into(),
        size: size.name().into(),
        seed,
        rounds: arguments
            .rounds
            .unwrap_or_else(|| rounds(size, &experiments)),
        started: started.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
        warnings: machine.warnings(),
        machine,
        experiments,
    };
    RunDirectory::create(&path, plan).context("the run's directory")
}

/// Rounds beyond the fewest that can carry a verdict, so that one bad round does not cost it.
const SPARE_ROUNDS: u32 = 2;

/// The size's own number of rounds, or as many as its claims need for a verdict after
/// correction, whichever is more.
pub(crate) fn rounds(size: Size, experiments: &[Experiment]) -> u32 {
    let least = match size {
        Size::Quick => 8,
        Size::Full => 10,
    };
    // A claim can turn out either way, and being outside a range is two tests.
    let tests = 2 * judge::tests_in(experiments);
    least.max(judge::rounds_for(tests, ALPHA) + SPARE_ROUNDS)
}

/// Opens a run to go on with it: only by the same program on the same machine, as samples of two
/// programs or machines are not rounds of one experiment.
fn resume(path: &Path) -> anyhow::Result<RunDirectory> {
    let directory = RunDirectory::open(path)?;
    let plan = directory.plan();
    if plan.tare != env!("CARGO_PKG_VERSION") {
        bail!(
            "{}: found a run of tare {}, expected {}: its samples cannot be mixed with this program's",
            path.display(),
            plan.tare,
            env!("CARGO_PKG_VERSION")
        );
    }
    let machine = Machine::read();
    for (what, then, now) in [
        ("processor", &plan.machine.cpu_model, &machine.cpu_model),
        (
            "kernel",
            &Some(plan.machine.kernel.clone()),
            &Some(machine.kernel.clone()),
        ),
    ] {
        if then != now {
            bail!(
                "{}: this run began on another {what} ({}, not {}): its samples cannot be mixed with this machine's",
                path.display(),
                then.as_deref().unwrap_or("unknown"),
                now.as_deref().unwrap_or("unknown")
            );
        }
    }
    Ok(directory)
}
