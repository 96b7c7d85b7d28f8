//! The page around the figures: head, summary, claims, machine, data.

use std::collections::HashSet;
use std::fmt::Write;

use super::escape::{clip, slug, Shown};
use super::{base64, claims, count, section, summary, VERDICTS};
use crate::fingerprint::Machine;
use crate::result::RunResult;

/// The whole style of the page.
const STYLE: &str = include_str!("style.css");

/// Nothing but the page's own style and `data:` pictures: no request, no script, no form.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; \
                      base-uri 'none'; form-action 'none'";

/// The whole file.
pub(super) fn page(result: &RunResult) -> String {
    let anchors = anchors(result);
    let mut out = String::with_capacity(1 << 18);
    let run = clip(&result.run, 120);
    let _ = write!(
        out,
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta http-equiv=\"Content-Security-Policy\" content=\"{POLICY}\">\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         <meta name=\"color-scheme\" content=\"light dark\"><meta name=\"referrer\" content=\"no-referrer\">\
         <link rel=\"icon\" href=\"data:,\"><title>{} · Tare</title>\n<style>\n{STYLE}</style></head>\n\
         <body><a class=\"skip\" href=\"#claims\">Skip to the claims</a>\n<header><p class=\"brand\">Tare</p>\
         <h1><bdi>{}</bdi></h1>",
        Shown(&run),
        Shown(&run),
    );
    let _ = write!(out, "<p class=\"summary\">{}</p>", tally(result));
    let _ = write!(
        out,
        "<p class=\"where\"><bdi>{}</bdi>, {} rounds, <bdi>{}</bdi>, seed {}, tare <bdi>{}</bdi></p>",
        Shown(&clip(&result.size, 40)),
        result.rounds,
        Shown(&clip(&result.started, 40)),
        result.seed,
        Shown(&clip(&result.tare, 40)),
    );
    if !result.complete {
        out.push_str(
            "<p class=\"warning\" role=\"note\"><strong>Incomplete.</strong> This run was stopped before its \
             last trial; resume it before you rely on it.</p>",
        );
    }
    out.push_str("</header>\n<main>\n<section id=\"claims\" aria-labelledby=\"claims-h\"><h2 id=\"claims-h\">Claims</h2>");
    out.push_str(READING);
    claims::table(&mut out, result, &anchors);
    out.push_str("</section>\n");
    data(&mut out, result);
    machine(&mut out, &result.machine, &result.warnings);
    contents(&mut out, result, &anchors);
    for (experiment, anchor) in result.experiments.iter().zip(&anchors) {
        section::section(&mut out, experiment, anchor);
        out.push('\n');
    }
    out.push_str("</main>\n<footer><p>Written by Tare. This file is whole: it asks no server for anything.</p></footer></body></html>\n");
    out
}

/// What a verdict means.
const READING: &str = "<p class=\"reading\">A verdict speaks of this machine and this run, not of the publication. \
<b>Reproduced</b>: the whole 95&nbsp;% interval meets the criterion, and the test is significant after \
Holm’s correction. <b>Not reproduced</b>: the whole interval misses it, just as surely. \
<b>Inconclusive</b>: the rounds do not carry either. <b>Not testable here</b>: the machine lacks \
something, or the work compared was not the same; the reason says what. A dash is a value that is \
missing, never a zero.</p>";

/// The summary with a badge a verdict.
fn tally(result: &RunResult) -> String {
    let mut out = String::new();
    for verdict in VERDICTS {
        let count = count(result, verdict);
        if count > 0 {
            if !out.is_empty() {
                out.push_str("<span class=\"comma\">,</span> ");
            }
            let badge = claims::badge(verdict);
            let _ = write!(out, "<span class=\"tally\"><b>{count}</b> {badge}</span>");
        }
    }
    if out.is_empty() {
        out = summary(result);
    }
    out
}

/// Other people's sentence as a paragraph; what is very long is folded after its beginning.
pub(super) fn prose(out: &mut String, class: &str, text: &str) {
    const OPEN: usize = 400;
    if text.chars().count() <= OPEN {
        let _ = write!(out, "<p class=\"{class}\"><bdi>{}</bdi></p>", Shown(text));
        return;
    }
    let _ = write!(
        out,
        "<details class=\"long {class}\"><summary><bdi>{}</bdi></summary><p><bdi>{}</bdi></p></details>",
        Shown(&clip(text, OPEN / 2)),
        Shown(text)
    );
}

/// An anchor an experiment, each once.
fn anchors(result: &RunResult) -> Vec<String> {
    let mut taken = HashSet::new();
    let anchor = |(number, id): (usize, &str)| {
        let plain = format!("x-{}", slug(id));
        if taken.insert(plain.clone()) {
            return plain;
        }
        let numbered = format!("{plain}.{number}"); // No slug has a full stop.
        taken.insert(numbered.clone());
        numbered
    };
    let ids = result.experiments.iter().map(|e| e.id.as_str());
    ids.enumerate().map(anchor).collect()
}

/// The raw data, inside the page.
fn data(out: &mut String, result: &RunResult) {
    let name = match slug(&result.run) {
        name if name.is_empty() => "run".to_owned(),
        name => name,
    };
    let json = serde_json::to_string(result).unwrap_or_default();
    let csv = super::csv(result);
    let _ = write!(
        out,
        "<section aria-labelledby=\"data-h\"><h2 id=\"data-h\">Data</h2><p>Everything on this page, every \
         sample included, travels with it:</p><p class=\"downloads\">\
         <a id=\"data-json\" download=\"{name}.json\" href=\"data:application/json;base64,{}\">{name}.json \
         <span class=\"sub\">{}</span></a> <a id=\"data-csv\" download=\"{name}.csv\" \
         href=\"data:text/csv;charset=utf-8;base64,{}\">{name}.csv <span class=\"sub\">samples, {}</span></a></p></section>",
        base64::encode(json.as_bytes()),
        size(json.len()),
        base64::encode(csv.as_bytes()),
        size(csv.len()),
    );
}

fn size(bytes: usize) -> String {
    match bytes {
        0..=9_999 => format!("{bytes} B"),
        _ => format!("{} kB", bytes / 1000),
    }
}

fn contents(out: &mut String, result: &RunResult, anchors: &[String]) {
    if result.experiments.len() < 2 {
        return;
    }
    out.push_str("<nav aria-labelledby=\"contents-h\"><h2 id=\"contents-h\">Experiments</h2><ul>");
    for (experiment, anchor) in result.experiments.iter().zip(anchors) {
        let title = clip(&experiment.title, 100);
        let _ = write!(
            out,
            "<li><a href=\"#{anchor}\"><bdi>{}</bdi></a></li>",
            Shown(&title)
        );
    }
    out.push_str("</ul></nav>\n");
}

fn machine(out: &mut String, machine: &Machine, warnings: &[String]) {
    out.push_str("<section aria-labelledby=\"machine-h\"><h2 id=\"machine-h\">Machine</h2>");
    if !warnings.is_empty() {
        out.push_str("<div class=\"warning\" role=\"note\"><p><strong>What may hurt these results</strong></p><ul>");
        for warning in warnings {
            let _ = write!(out, "<li><bdi>{}</bdi></li>", Shown(&clip(warning, 600)));
        }
        out.push_str("</ul></div>");
    }
    const UNKNOWN: &str = "not readable";
    let or = |text: Option<&str>, otherwise: &str| clip(text.unwrap_or(otherwise), 300);
    let threads = machine.threads_per_core.map(|n| n.to_string());
    let load = machine.load.map(|load| format!("{load:.2}"));
    let turbo = machine.turbo.map(|on| if on { "on" } else { "off" });
    let memory = machine
        .memory
        .map(|bytes| format!("{:.1} GiB", bytes as f64 / (1u64 << 30) as f64));
    let rows = [
        ("Processor", or(machine.cpu_model.as_deref(), UNKNOWN)),
        ("Processors usable", machine.cpus.to_string()),
        ("Threads a core", or(threads.as_deref(), UNKNOWN)),
        ("Hypervisor", or(machine.hypervisor.as_deref(), "none seen")),
        (
            "Frequency governor",
            or(machine.governor.as_deref(), "none"),
        ),
        ("Turbo", or(turbo, UNKNOWN)),
        ("Memory", or(memory.as_deref(), UNKNOWN)),
        ("Kernel", clip(&machine.kernel, 300)),
        ("Load at the start", or(load.as_deref(), UNKNOWN)),
    ];
    out.push_str("<dl>");
    for (name, value) in rows {
        let _ = write!(
            out,
            "<div><dt>{name}</dt><dd><bdi>{}</bdi></dd></div>",
            Shown(&value)
        );
    }
    out.push_str("</dl><details><summary>Flags, mitigations, command line, interfaces</summary><dl class=\"wide\">");
    let mitigations: Vec<String> = machine
        .mitigations
        .iter()
        .map(|(name, what)| format!("{name}: {what}"))
        .collect();
    let interfaces: Vec<String> = machine
        .interfaces
        .iter()
        .map(|interface| {
            let driver = interface.driver.as_deref().unwrap_or("no driver");
            match interface.speed_mbit {
                Some(speed) => format!("{} ({driver}, {speed} Mbit/s)", interface.name),
                None => format!("{} ({driver})", interface.name),
            }
        })
        .collect();
    let rows = [
        (
            "Kernel command line",
            machine
                .kernel_command_line
                .clone()
                .unwrap_or_else(|| UNKNOWN.into()),
        ),
        ("Interfaces", interfaces.join(", ")),
        ("Mitigations", mitigations.join("; ")),
        ("Processor flags", machine.cpu_flags.join(" ")),
    ];
    for (name, value) in rows {
        let value = if value.is_empty() { "none" } else { &value };
        let _ = write!(
            out,
            "<div><dt>{name}</dt><dd><bdi>{}</bdi></dd></div>",
            Shown(&clip(value, 8000))
        );
    }
    out.push_str("</dl></details></section>\n");
}
