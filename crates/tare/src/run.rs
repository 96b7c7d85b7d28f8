//! `tare run`: plan, run, judge, report.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::{bail, Context as _};
use tare_lab::driver::{Drivers, Missing};
use tare_lab::experiment::{Experiment, Rounds};
use tare_lab::fingerprint::Machine;
use tare_lab::plan::Plan;
use tare_lab::report::text::clean;
use tare_lab::result::{RunResult, SCHEMA};
use tare_lab::runner::{self, Ended};
use tare_lab::store::{RunDirectory, StoreError};

use crate::progress::Watch;
use crate::signals::signals_to_end;
use crate::{catalog, cli, forecast, report, systems, terminal, tour};

/// The exit status of a process that Ctrl-C ended, as shells have it.
pub(crate) const INTERRUPTED: u8 = 130;

/// The name of the tour's size in its plan.
const TOUR: &str = "tour";

/// Begins or resumes a run, and judges it.
pub(crate) fn run(arguments: &cli::Run) -> anyhow::Result<ExitCode> {
    let drivers = systems::all();
    let mut directory = match &arguments.resume {
        Some(path) => resume(path, &drivers)?,
        None => begin(arguments, &drivers)?,
    };
    let path = directory.path().to_owned();
    let Some(result) = execute(&mut directory, &drivers, &clean)? else {
        terminal::say(&format!(
            "tare: stopped; {} trials are in. To go on: tare run --resume {}",
            directory.records().len(),
            terminal::word(&path)
        ));
        return Ok(ExitCode::from(INTERRUPTED));
    };
    let code = report::finish(&path, &result, arguments.json, false, arguments.strict)?;
    if directory.plan().size == TOUR {
        tour::what_else(&drivers)?;
    }
    Ok(code)
}

/// Runs what remains of a run and judges it; `None` if it was interrupted. Texts about trials are
/// shown as `in_words` returns them, which must be without control characters.
pub(crate) fn execute(
    directory: &mut RunDirectory,
    drivers: &Drivers,
    in_words: &dyn Fn(&str) -> String,
) -> anyhow::Result<Option<RunResult>> {
    for warning in &directory.plan().warnings {
        terminal::say_wrapped(&format!("tare: warning: {warning}"));
    }
    // What the lab does not know of: it clears processes and folders itself.
    systems::guest::breakdown::clear();
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in signals_to_end() {
        signal_hook::flag::register(signal, Arc::clone(&interrupted))?;
    }
    let expected = forecast::expected(directory.plan(), drivers);
    let mut watch = Watch::new(directory.plan(), expected, in_words);
    let ended = runner::run(
        directory,
        drivers,
        &|| interrupted.load(Ordering::Relaxed),
        &mut watch,
    );
    watch.finish();
    Ok(match ended? {
        Ended::Interrupted => None,
        Ended::Complete => Some(report::judged(directory.plan(), directory.records())),
    })
}

fn begin(arguments: &cli::Run, drivers: &Drivers) -> anyhow::Result<RunDirectory> {
    let is_tour = arguments.experiments.is_empty();
    if is_tour && arguments.full {
        bail!("--full: found no experiment, expected one: `tare run all --full` runs every one");
    }
    let size = arguments.size();
    let mut experiments = if is_tour {
        tour::experiments(drivers)?
    } else {
        catalog::chosen(&arguments.experiments, size, drivers)?
    };
    if let Some(rounds) = arguments.rounds {
        for experiment in &mut experiments {
            experiment.rounds = Rounds::exactly(rounds);
        }
    }
    let budget = match (arguments.budget, arguments.rounds) {
        (Some(budget), _) => Some(budget),
        (None, Some(_)) => None,
        (None, None) if is_tour => Some(tour::BUDGET),
        (None, None) if catalog::are_suites(&arguments.experiments, &experiments) => {
            forecast::of(&experiments, drivers).map(forecast::budget)
        }
        (None, None) => None,
    };
    let size = if is_tour { TOUR } else { size.name() };
    let seed = arguments.seed;
    let out = arguments.out.as_deref();
    create(experiments, size, budget, None, seed, out)
}

/// Plans a run of `experiments` in the directory `out`, or one of its own. `give_up_after` is that
/// of [`Plan`].
pub(crate) fn create(
    experiments: Vec<Experiment>,
    size: &str,
    budget: Option<Duration>,
    give_up_after: Option<u32>,
    seed: Option<u64>,
    out: Option<&Path>,
) -> anyhow::Result<RunDirectory> {
    let machine = Machine::read();
    let started = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
    let seed = match seed {
        Some(seed) => seed,
        // 53 bits, so that JSON readers without whole numbers read the same seed.
        None => systems::system_random()? >> 11,
    };
    let mut plan = Plan {
        schema: SCHEMA,
        run: String::new(),
        tare: env!("CARGO_PKG_VERSION").into(),
        size: size.into(),
        seed,
        budget_s: budget.map(|budget| budget.as_secs_f64()),
        give_up_after,
        started,
        warnings: machine.warnings(),
        directory: std::env::current_dir()
            .ok()
            .filter(|directory| directory.to_str().is_some()),
        machine,
        experiments,
    };
    let time = plan.started.replace(['-', ':'], "");
    let mut place = 1;
    loop {
        let path = match out {
            Some(path) => path.to_owned(),
            None if place == 1 => PathBuf::from(format!("tare-runs/{time}")),
            None => PathBuf::from(format!("tare-runs/{time}-{place}")),
        };
        plan.run = path
            .file_name()
            .map_or_else(|| "run".into(), |name| name.to_string_lossy().into_owned());
        match RunDirectory::create(&path, plan.clone()) {
            // Another run that began in the same second.
            Err(StoreError::Exists(_)) if out.is_none() && place < 1000 => place += 1,
            created => return created.context("the run's directory"),
        }
    }
}

/// Opens a run to resume it. The program and the machine must be the same, because samples of two
/// programs or machines are not rounds of one experiment.
///
/// Relative paths of programs and files are relative to the folder in which the run began, so this
/// process changes to it.
fn resume(path: &Path, drivers: &Drivers) -> anyhow::Result<RunDirectory> {
    let mut directory = RunDirectory::open(path)?;
    if let Some(began_in) = directory.plan().directory.clone() {
        let same = |here: PathBuf| here == began_in;
        if !std::env::current_dir().is_ok_and(same) {
            let whole = path
                .canonicalize()
                .with_context(|| path.display().to_string())?;
            drop(directory);
            std::env::set_current_dir(&began_in).with_context(|| {
                format!(
                    "{}: this run began in {}, where its programs and files are, and which cannot be \
                     entered",
                    path.display(),
                    began_in.display()
                )
            })?;
            directory = RunDirectory::open(&whole)?;
        }
    }
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
        (
            "number of processors",
            &Some(plan.machine.cpus.to_string()),
            &Some(machine.cpus.to_string()),
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
    if let Some(lost) = runner::lost(&directory, drivers) {
        let Missing { reason, remedy } = lost.missing;
        let before = match lost.is_tried {
            true => "has measurements",
            false => "could run when the run began",
        };
        bail!(
            "{}: {} at {} {before} and cannot run any more: {reason}{}; without it the run cannot \
             go on (`tare report` judges the trials that are done)",
            path.display(),
            lost.experiment,
            lost.at,
            remedy.map_or_else(String::new, |remedy| format!(" (to change that: {remedy})"))
        );
    }
    Ok(directory)
}
