//! `tare list` and `tare show`: the experiments, before anything runs.

use std::fmt::Write as _;
use std::process::ExitCode;

use tare_lab::experiment::{Claim, ClaimKind, Experiment, Standing};
use tare_lab::file::Size;
use tare_lab::judge;
use tare_lab::report::text::clean;
use tare_lab::value::Selector;

use crate::{catalog, cli, systems, terminal};

/// Lists the experiments that come with the command.
pub(crate) fn list(json: bool) -> anyhow::Result<ExitCode> {
    let experiments = catalog::embedded(Size::Quick, &systems::all())?;
    if json {
        let list: Vec<_> = experiments
            .iter()
            .map(|experiment| {
                serde_json::json!({
                    "id": experiment.id,
                    "title": experiment.title,
                    "source": experiment.source,
                    "driver": experiment.driver,
                    "cells": experiment.points().len(),
                    "claims": stated(experiment, Standing::Claim),
                    "targets": stated(experiment, Standing::Target),
                })
            })
            .collect();
        terminal::print(&terminal::json(&list)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let widest = experiments.iter().map(|e| e.id.len()).max().unwrap_or(0);
    let counts: Vec<String> = experiments.iter().map(counts).collect();
    let wide = counts.iter().map(String::len).max().unwrap_or(0);
    let mut text = String::new();
    for (experiment, counts) in experiments.iter().zip(&counts) {
        let _ = writeln!(
            text,
            "{:widest$}  {:>3} cells  {counts:wide$}  {}",
            experiment.id,
            experiment.points().len(),
            experiment.title
        );
    }
    let _ = writeln!(
        text,
        "\n`tare show ID` explains one and `tare run ID` runs it; `tare run SUITE`, with the word before the slash, runs the whole suite."
    );
    terminal::print(&terminal::fitted(&text))?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the number of an experiment's statements of that standing.
fn stated(experiment: &Experiment, standing: Standing) -> usize {
    let claims = experiment.claims.iter();
    claims.filter(|claim| claim.standing == standing).count()
}

/// The numbers of an experiment's claims and targets: `2 claims, 1 target`.
fn counts(experiment: &Experiment) -> String {
    let all = [("claim", Standing::Claim), ("target", Standing::Target)];
    let all = all.map(|(name, standing)| match stated(experiment, standing) {
        0 => None,
        1 => Some(format!("1 {name}")),
        n => Some(format!("{n} {name}s")),
    });
    all.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

/// Shows what experiments measure and claim.
pub(crate) fn show(arguments: &cli::Show) -> anyhow::Result<ExitCode> {
    let size = if arguments.full {
        Size::Full
    } else {
        Size::Quick
    };
    let words = std::slice::from_ref(&arguments.experiment);
    let drivers = systems::all();
    let experiments = catalog::chosen(words, size, &drivers)?;
    if arguments.json {
        terminal::print(&terminal::json(&experiments)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut text = String::new();
    for experiment in &experiments {
        describe(experiment, &mut text);
        for ((reason, remedy), cells) in catalog::lacks(experiment, &drivers) {
            let _ = write!(text, "  lacking  {cells} cells cannot run here: {reason}");
            let _ = match remedy {
                Some(remedy) => writeln!(text, "; to change that: {remedy}"),
                None => writeln!(text),
            };
        }
        text.push('\n');
    }
    // The text may come from a file that is not the user's own.
    let mut text = terminal::plain(&text);
    text.push('\n');
    let _ = writeln!(
        text,
        "At {} size. To run: tare run {}{}",
        size.name(),
        clean(&terminal::word(arguments.experiment.as_ref())),
        if arguments.full { " --full" } else { "" }
    );
    terminal::print(&terminal::fitted(&text))?;
    Ok(ExitCode::SUCCESS)
}

fn describe(experiment: &Experiment, text: &mut String) {
    let _ = writeln!(text, "{} — {}", experiment.id, experiment.title);
    let _ = writeln!(text, "  source   {}", experiment.source);
    let _ = writeln!(text, "  driver   {}", experiment.driver);
    for (name, value) in &experiment.fixed {
        let _ = writeln!(text, "  fixed    {name} = {value}");
    }
    for axis in &experiment.axes {
        let values: Vec<String> = axis.values.iter().map(ToString::to_string).collect();
        let _ = writeln!(text, "  axis     {} = {}", axis.name, values.join(", "));
    }
    for left_out in &experiment.exclude {
        let _ = writeln!(text, "  without  {left_out}");
    }
    if !experiment.beside.is_empty() {
        let _ = writeln!(text, "  beside   {}", experiment.beside.join(", "));
    }
    for metric in &experiment.metrics {
        let _ = writeln!(
            text,
            "  metric   {} in {}, {} is better{}",
            metric.name,
            metric.unit,
            match metric.better {
                tare_lab::unit::Better::Higher => "higher",
                tare_lab::unit::Better::Lower => "lower",
            },
            metric
                .work
                .as_ref()
                .map_or_else(String::new, |work| format!(
                    "; equal work: {work} per operation"
                ))
        );
    }
    if !experiment.parts.is_empty() {
        let _ = writeln!(text, "  parts    {}", experiment.parts.join(", "));
    }
    let rounds = experiment.rounds;
    let _ = if rounds.least == rounds.most {
        writeln!(text, "  rounds   {}", rounds.least)
    } else {
        writeln!(
            text,
            "  rounds   {} to {}: until its claims and targets are decided",
            rounds.least, rounds.most
        )
    };
    for (place, published) in experiment.published.iter().enumerate() {
        let unit = experiment.metric(&published.metric).map(|m| m.unit);
        let value = unit.map_or_else(
            || published.value.to_string(),
            |unit| unit.show_exact(published.value),
        );
        let _ = writeln!(text, "  printed  {} at {}", value, published.at);
        let next = experiment.published.get(place + 1);
        if next.is_none_or(|next| next.source != published.source) {
            let source = published.source.iter();
            text.extend(source.map(|source| format!("           {source}\n")));
        }
    }
    for claim in &experiment.claims {
        let standing = match claim.standing {
            Standing::Claim => "claim",
            Standing::Target => "target",
        };
        let _ = writeln!(text, "  {standing:<7}  {}: {}", claim.id, claim.text);
        let _ = writeln!(text, "           {}", criterion(experiment, claim));
    }
}

/// The cells that a claim compares, then its criterion as reports have it.
fn criterion(experiment: &Experiment, claim: &Claim) -> String {
    let metric = &claim.metric;
    let about = match &claim.kind {
        ClaimKind::Ratio { of, to, .. } => format!("{metric} at {of} / {metric} at {to}"),
        ClaimKind::Flat { within, .. } | ClaimKind::Scales { within, .. } => {
            format!("{metric}{}", among(within))
        }
        ClaimKind::Order { .. } => metric.clone(),
        ClaimKind::Value { of, .. } => format!("{metric}{}", among(of)),
        ClaimKind::Zero { within, .. } => format!("count{}", among(within)),
    };
    let holds = judge::criterion(claim, experiment.metric(metric));
    format!("{about}: {holds}")
}

fn among(within: &Selector) -> String {
    if within.0.is_empty() {
        String::new()
    } else {
        format!(" at {within}")
    }
}
