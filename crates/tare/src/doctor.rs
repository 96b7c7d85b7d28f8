//! `tare doctor`: what this machine can test, what is missing, and the command that gets it.

use std::fmt::Write as _;
use std::path::Path;
use std::process::ExitCode;

use clap::ValueEnum as _;
use serde::Serialize;
use tare_guest::version::Version;
use tare_guest::Host;
use tare_lab::file::Size;
use tare_lab::fingerprint::Machine;

use crate::machine::Feature;
use crate::systems::guest::hosts;
use crate::systems::rng::diagnosis;
use crate::systems::rng::external::Tool;
use crate::{catalog, cli, systems, terminal};

#[derive(Serialize)]
struct Diagnosis {
    machine: Machine,
    warnings: Vec<String>,
    random: Vec<diagnosis::Diagnosis>,
    guests: Host,
    experiments: Vec<Readiness>,
    programs: Vec<Program>,
}

#[derive(Serialize)]
struct Readiness {
    id: String,
    cells: usize,
    testable: usize,
    missing: Vec<Lack>,
}

#[derive(Serialize)]
struct Lack {
    cells: usize,
    reason: String,
    remedy: Option<String>,
}

#[derive(Serialize)]
struct Program {
    name: &'static str,
    used_by: &'static str,
    path: Option<String>,
    remedy: Option<&'static str>,
}

/// Examines the machine. The exit status is 0 whatever is missing: that is no failure.
pub(crate) fn doctor(arguments: &cli::Doctor) -> anyhow::Result<ExitCode> {
    let machine = Machine::read();
    let diagnosis = Diagnosis {
        warnings: machine.warnings(),
        random: diagnosis::diagnose(&machine),
        guests: guests(arguments.experiments.is_empty()),
        machine,
        experiments: readiness(&arguments.experiments)?,
        programs: programs(),
    };
    if arguments.json {
        terminal::print(&terminal::json(&diagnosis)?)?;
    } else {
        // An experiment's text may come from a file that is not the user's own.
        let is_whole = arguments.experiments.is_empty();
        let text = terminal::plain(&in_words(&diagnosis, is_whole));
        terminal::print(&terminal::fitted(&text))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn readiness(names: &[String]) -> anyhow::Result<Vec<Readiness>> {
    let drivers = systems::all();
    let experiments = if names.is_empty() {
        catalog::embedded(Size::Quick, &drivers)?
    } else {
        catalog::chosen(names, Size::Quick, &drivers)?
    };
    Ok(experiments
        .iter()
        .map(|experiment| {
            let missing = catalog::lacks(experiment, &drivers);
            let cells = experiment.points().len();
            Readiness {
                id: experiment.id.clone(),
                cells,
                testable: cells - missing.values().sum::<usize>(),
                missing: missing
                    .into_iter()
                    .map(|((reason, remedy), cells)| Lack {
                        cells,
                        reason,
                        remedy,
                    })
                    .collect(),
            }
        })
        .collect())
}

/// Examines the host of guests. Where no experiment is named, KVM is tried by booting one, which
/// `tdx/nginx` asks for anyway.
fn guests(is_tried: bool) -> Host {
    let this = crate::machine::Machine::This;
    let is_tried = is_tried && this.need(Feature::Guests).is_ok();
    let boots = is_tried.then(|| this.need(Feature::Kvm).is_ok());
    Host::examine(Path::new("/"), &Version::installed(), boots)
}

fn programs() -> Vec<Program> {
    let batteries = Tool::value_variants().iter().map(|tool| {
        let path = tool.find();
        Program {
            name: tool.program(),
            used_by: "tare rng test",
            remedy: path.is_none().then(|| tool.install()),
            // A path may be no UTF-8, which JSON cannot hold.
            path: path.map(|path| path.to_string_lossy().into_owned()),
        }
    });
    batteries.collect()
}

/// The machine and the experiments; the whole diagnosis, also what no experiment asked for.
fn in_words(diagnosis: &Diagnosis, is_whole: bool) -> String {
    let mut text = String::from("Machine\n");
    let machine = &diagnosis.machine;
    let _ = writeln!(
        text,
        "  {} × {}, {}, {}",
        machine.cpus,
        machine.cpu_model.as_deref().unwrap_or("unknown processor"),
        machine.memory.map_or_else(
            || "unknown memory".to_owned(),
            |bytes| format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30))
        ),
        machine.kernel
    );
    for warning in &diagnosis.warnings {
        let _ = writeln!(text, "  ! {warning}");
    }
    if is_whole {
        text.push('\n');
        text.push_str(&diagnosis::in_words(&diagnosis.random));
        text.push_str(&hosts::in_words(&diagnosis.guests));
    }
    text.push_str("\nExperiments\n");
    let widest = diagnosis
        .experiments
        .iter()
        .map(|e| e.id.len())
        .max()
        .unwrap_or(0);
    for experiment in &diagnosis.experiments {
        let _ = writeln!(
            text,
            "  {} {:widest$}  {} of {} cells can run here",
            if experiment.missing.is_empty() {
                "✓"
            } else {
                "!"
            },
            experiment.id,
            experiment.testable,
            experiment.cells
        );
        for lack in &experiment.missing {
            let plural = if lack.cells == 1 { "" } else { "s" };
            let _ = writeln!(text, "      {} cell{plural}: {}", lack.cells, lack.reason);
            if let Some(remedy) = &lack.remedy {
                let _ = writeln!(text, "      to change that: {remedy}");
            }
        }
    }
    if !is_whole {
        return text;
    }
    text.push_str("\nPrograms\n");
    for program in &diagnosis.programs {
        let _ = match (&program.path, &program.remedy) {
            (Some(path), _) => writeln!(text, "  ✓ {} ({})", program.name, path),
            (None, remedy) => writeln!(
                text,
                "  ! {} is not installed ({} uses it): {}",
                program.name,
                program.used_by,
                remedy.unwrap_or("not packaged")
            ),
        };
    }
    text
}
