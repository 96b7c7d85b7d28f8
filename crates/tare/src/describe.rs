//! `tare explain`: the drivers, and everything that an experiment may say to one.

use std::fmt::Write as _;
use std::process::ExitCode;

use anyhow::bail;
use serde_json::json;
use tare_lab::driver::{Parameter, Role};
use tare_lab::file::nearest;
use tare_lab::unit::Unit;
use tare_lab::usage;
use tare_lab::value::Value;

use crate::machine::Machine;
use crate::systems::workload::Description;
use crate::{cli, systems, terminal};

/// Explains a driver, or lists them.
pub(crate) fn describe(arguments: &cli::Explain) -> anyhow::Result<ExitCode> {
    let all = descriptions();
    let text = match (&arguments.driver, arguments.json) {
        (None, false) => terminal::fitted(&list(&all)),
        (None, true) => terminal::json(&all.iter().map(as_json).collect::<Vec<_>>())?,
        (Some(name), in_json) => {
            let description = named(name, &all)?;
            match in_json {
                true => terminal::json(&as_json(description))?,
                false => terminal::fitted(&in_words(description)),
            }
        }
    };
    terminal::print(&text)?;
    Ok(ExitCode::SUCCESS)
}

fn descriptions() -> Vec<Description> {
    let drivers = systems::on(&Machine::This);
    drivers.iter().map(|driver| driver.description()).collect()
}

fn named<'d>(name: &str, all: &'d [Description]) -> anyhow::Result<&'d Description> {
    if let Some(found) = all.iter().find(|one| one.vocabulary.name == name) {
        return Ok(found);
    }
    let names: Vec<&str> = all.iter().map(|one| one.vocabulary.name.as_str()).collect();
    let meant = nearest(name, &names)
        .map_or_else(String::new, |name| format!("; did you mean \"{name}\"?"));
    bail!(
        "found driver \"{name}\", expected one of {}{meant}",
        names.join(", ")
    )
}

fn list(all: &[Description]) -> String {
    let rows: Vec<_> = all
        .iter()
        .map(|one| [one.vocabulary.name.clone(), one.vocabulary.about.clone()])
        .collect();
    format!(
        "{}\n`tare explain DRIVER` lists its parameters, metrics and counters.\n",
        table(&rows, "")
    )
}

fn in_words(one: &Description) -> String {
    let words = &one.vocabulary;
    let mut text = format!("{}: {}\n", words.name, words.about);
    let mut section = |title: &str, rows: &[Vec<String>]| {
        if !rows.is_empty() {
            let _ = write!(text, "\n{title}\n{}", table(rows, "  "));
        }
    };
    let parameters = words.parameters.iter().zip(&one.expectations);
    let parameters: Vec<_> = parameters.map(parameter_row).collect();
    let others = match words.open {
        true => "Parameters (and any other, for the command to use)",
        false => "Parameters",
    };
    section(others, &parameters);
    let row =
        |name: &str, unit: Unit, about: &str| vec![name.into(), unit.to_string(), about.into()];
    let metrics = one.metrics.iter();
    let metrics = metrics.map(|one| row(one.name, one.unit, &one.about));
    section("Metrics", &metrics.collect::<Vec<_>>());
    let usage = usage::METRICS.iter();
    let usage = usage.filter(|(name, _)| one.metrics.iter().all(|metric| metric.name != *name));
    let usage = usage.map(|(name, unit)| row(name, *unit, ""));
    section(
        "Metrics of every driver: what the process used",
        &usage.collect::<Vec<_>>(),
    );
    let counters = one.counters.iter();
    let counters = counters.map(|one| vec![one.name.into(), one.about.clone()]);
    section("Counters", &counters.collect::<Vec<_>>());
    if let Some(references) = &one.references {
        let title = format!(
            "References for `beside`, in place of `{}`",
            references.parameter
        );
        let names = references.names.iter();
        section(
            &title,
            &names.map(|name| vec![(*name).into()]).collect::<Vec<_>>(),
        );
    }
    let roles = one.roles.iter().enumerate();
    section("Roles", &roles.map(role_row).collect::<Vec<_>>());
    if words.deterministic {
        text.push_str("\nEqual parameters always give equal figures: the time is virtual.\n");
    }
    text
}

fn parameter_row((one, expected): (&Parameter, &String)) -> Vec<String> {
    let default = match &one.default {
        Some(Value::Text(text)) if text.is_empty() => "none".into(),
        Some(default) => default.to_string(),
        None if one.kind == tare_lab::driver::ParameterKind::Table => "none".into(),
        None => "required".into(),
    };
    vec![
        one.name.clone(),
        default,
        format!("{}; {expected}", one.about),
    ]
}

fn role_row((place, role): (usize, &Role)) -> Vec<String> {
    let what = match place {
        0 => "measures",
        _ => "serves",
    };
    let host = match role.same_host {
        true => "on the same machine as the other roles",
        false => "",
    };
    vec![role.name.clone(), what.into(), host.into()]
}

/// Columns under each other; the last one is broken between words.
fn table<R: AsRef<[String]>>(rows: &[R], indent: &str) -> String {
    let wide = terminal::width();
    let columns = rows.iter().map(|row| row.as_ref().len()).max().unwrap_or(0);
    let width_of = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.as_ref().get(column));
        cells
            .map(|cell| console::measure_text_width(cell))
            .max()
            .unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns.saturating_sub(1)).map(width_of).collect();
    let before: usize = indent.len() + widths.iter().map(|width| width + 2).sum::<usize>();
    let mut text = String::new();
    for row in rows {
        let Some((last, cells)) = row.as_ref().split_last() else {
            continue;
        };
        let mut line = indent.to_owned();
        for (cell, width) in cells.iter().zip(&widths) {
            let _ = write!(line, "{cell:width$}  ");
        }
        for word in last.split(' ') {
            let used = console::measure_text_width(&line);
            if used > before && used + 1 + word.len() > wide {
                text.push_str(line.trim_end());
                text.push('\n');
                line = " ".repeat(before);
            } else if used > before {
                line.push(' ');
            }
            line.push_str(word);
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

fn as_json(one: &Description) -> serde_json::Value {
    let words = &one.vocabulary;
    json!({
        "name": words.name,
        "about": words.about,
        "open": words.open,
        "deterministic": words.deterministic,
        "parameters": words.parameters.iter().zip(&one.expectations).map(|(parameter, expected)| json!({
            "name": parameter.name,
            "about": parameter.about,
            "default": parameter.default,
            "expected": expected,
        })).collect::<Vec<_>>(),
        "metrics": one.metrics.iter().map(|metric| json!({
            "name": metric.name,
            "unit": metric.unit,
            "about": metric.about,
        })).collect::<Vec<_>>(),
        "counters": one.counters.iter().map(|counter| json!({
            "name": counter.name,
            "about": counter.about,
        })).collect::<Vec<_>>(),
        "references": one.references.as_ref().map(|references| json!({
            "parameter": references.parameter,
            "names": references.names,
        })),
        "roles": one.roles.iter().map(|role| json!({
            "name": role.name,
            "same_host": role.same_host,
        })).collect::<Vec<_>>(),
    })
}
