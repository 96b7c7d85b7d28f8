//! The page: title, warnings, the forest plot, the tables, the figures, the machine, the data.

use std::collections::HashSet;

use data_encoding::BASE64;
use maud::{html, Markup, PreEscaped, DOCTYPE};

use super::csv::{claims_csv, csv};
use super::figure;
use super::forest::{self, badge, standing_name};
use super::table::{self, About, Kind, Note, Row, Table};
use super::words::{slug, Exact};
use crate::experiment::Standing;
use crate::fingerprint::Machine;
use crate::result::{ExperimentResult, RunResult};
use crate::text::{clean, clip, count};

/// The whole style of the page.
const STYLE: &str = include_str!("style.css");

/// Allows the page's own style and `data:` pictures alone: no request, no script, no form.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; \
                      base-uri 'none'; form-action 'none'";

/// Longer text from outside is folded after its beginning.
const OPEN: usize = 400;

/// The whole file.
pub(super) fn page(run: &RunResult) -> String {
    let title = clip(&table::title(run), 160);
    let standings: Vec<Standing> = [Standing::Claim, Standing::Target]
        .into_iter()
        .filter(|&standing| !table::statements(run, standing).is_empty())
        .collect();
    let failed = table::failed_trials(run);
    let anchors = anchors(run);
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta http-equiv="Content-Security-Policy" content=(POLICY);
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                meta name="referrer" content="no-referrer";
                link rel="icon" href="data:,";
                title { (title) " · Tare" }
                style { (PreEscaped(STYLE)) }
            }
            body {
                a.skip href="#claims" { "Skip to the results" }
                header {
                    p.brand { "Tare" }
                    h1 { bdi { (title) } }
                    (about(run))
                    (warnings(run))
                }
                main {
                    section #claims aria-label="Results" {
                        @for &standing in &standings {
                            section.panel aria-label=(table::name(standing)) {
                                (forest::counts(run, standing))
                                (forest::panel(run, standing, standing_name(standing)))
                            }
                        }
                        @if standings.is_empty() { p.empty { "No claim was judged in this run." } }
                        @if let Some(rate) = table::error_rate(run) { p.reading { (rate) } }
                        @if let Some(words) = table::independence(run) { p.reading { (words) } }
                    }
                    @for &standing in &standings {
                        section {
                            h2 { (table::name(standing)) }
                            (reading(standing))
                            @if let Some(correction) = table::correction(run, standing) {
                                p.reading { bdi { (clean(&correction)) } }
                            }
                            (render(&table::claims(run, standing), standing_name(standing)))
                        }
                    }
                    @if !failed.rows.is_empty() {
                        section #failed {
                            h2 { "Failed trials" }
                            p.reading { "A failed trial counts against a verdict: one stands only if it \
                                would survive every failed round. The last lines are those that the \
                                last failed trial printed on its standard error." }
                            (render(&failed, "failed"))
                        }
                    }
                    (contents(run, &anchors))
                    @for (experiment, anchor) in run.experiments.iter().zip(&anchors) {
                        (section(experiment, anchor))
                    }
                    (machine(&run.machine))
                    (data(run))
                }
                footer { p { "Written by Tare. This file is self-contained and makes no network requests." } }
            }
        }
    };
    page.into_string()
}

fn about(run: &RunResult) -> Markup {
    html! {
        p.where {
            bdi { (clip(&run.run, 120)) } " · " bdi { (clip(&run.size, 40)) } " · "
            (count(run.rounds as usize, "round")) " at most · "
            bdi { (clip(&run.started, 40)) } " · seed " (run.seed) " · tare " bdi { (clip(&run.tare, 40)) }
        }
    }
}

/// The warnings, which a reader must know before believing a verdict.
fn warnings(run: &RunResult) -> Markup {
    let mut all: Vec<String> = run
        .warnings
        .iter()
        .map(|warning| clip(warning, 600))
        .collect();
    if !run.complete {
        let text = "Incomplete: this run was stopped before its last trial; resume it before you rely on it.";
        all.insert(0, text.to_owned());
    }
    html! {
        @if !all.is_empty() {
            div.warning role="note" {
                p { strong { "Conditions that may distort these results" } }
                ul { @for warning in &all { li { bdi { (warning) } } } }
            }
        }
        @if let Some(failed) = table::failed_summary(run) {
            p.where { a href="#failed" { (failed) } }
        }
    }
}

/// The meaning of each verdict.
fn reading(standing: Standing) -> Markup {
    html! {
        p.reading {
            @match standing {
                Standing::Claim => {
                    "The claims of publications. A verdict is about this machine and this run, not about \
                     the publication. " b { "Reproduced" } ": the whole interval meets the criterion and the \
                     test is significant. " b { "Not reproduced" } ": the whole interval misses it, and that \
                     test is significant. "
                }
                Standing::Target => {
                    "Targets are no publication's: this project or the author of the experiment set \
                     them, as ratios to something measured in the same round. "
                    b { "Held" } ": the whole interval meets the criterion and the test is significant. "
                    b { "Missed" } ": the whole interval misses it, and that test is significant. "
                }
            }
            b { "Inconclusive" } ": the rounds support neither. " b { "Not testable here" }
            ": the machine lacks something, or the work compared was not the same. A dash is a value \
             that is missing, never a zero."
        }
    }
}

/// A table; below 600 px each row is a card.
fn render(table: &Table, anchor: &str) -> Markup {
    let verdicts = table.rows.iter().any(|row| row.verdict.is_some());
    let columns = table.columns.len() + usize::from(verdicts);
    html! {
        table class=(if verdicts { "claims" } else { "plain" }) {
            caption.hidden { bdi { (clip(&table.title, 120)) } }
            thead {
                tr {
                    @if verdicts { th scope="col" { "Verdict" } }
                    @for column in &table.columns {
                        th scope="col" .n[column.kind == Kind::Figure] { bdi { (clip(&column.head, 80)) } }
                    }
                }
            }
            tbody {
                @for (number, row) in table.rows.iter().enumerate() {
                    tr id=(format!("{anchor}-{number}")) data-claim=[row.verdict.map(|_| Exact(&row.id))]
                        data-verdict=[row.verdict] {
                        @if let Some(verdict) = row.verdict { td.badge { (badge(verdict)) } }
                        (cells(table, row))
                    }
                    // Beside figures alone a note has the whole width.
                    @if row.verdict.is_none() && !row.notes.is_empty() {
                        tr.notes { td colspan=(columns) { (notes(&row.notes)) } }
                    }
                }
            }
        }
        @for line in &table.below { (prose("source", line)) }
    }
}

fn cells(table: &Table, row: &Row) -> Markup {
    html! {
        @for (place, (cell, column)) in row.cells.iter().zip(&table.columns).enumerate() {
            @if place == 0 {
                th scope="row" {
                    (prose("claim", &cell.text))
                    @if row.verdict.is_some() { (notes(&row.notes)) }
                }
            } @else if column.kind == Kind::Figure {
                td.n data-head=(clean(&column.head)) {
                    bdi { (clip(&cell.text, 80)) }
                    @if !cell.under.is_empty() { " " span.sub { (clip(&cell.under, 80)) } }
                }
            } @else {
                td data-head=(clean(&column.head)) { (prose("words", &cell.text)) }
            }
        }
    }
}

fn notes(notes: &[Note]) -> Markup {
    html! {
        @for (about, text) in notes {
            @match about {
                About::Source => (prose("source", text)),
                About::Reason => (prose("reason", text)),
                About::Failure => (prose("failure", text)),
                About::Printed => pre { (clip(text, 400)) },
            }
        }
    }
}

/// A text from outside; a very long one is folded after its beginning.
fn prose(class: &str, text: &str) -> Markup {
    html! {
        @if text.chars().count() <= OPEN {
            p class=(class) { bdi { (clean(text)) } }
        } @else {
            details class=(format!("long {class}")) {
                summary { bdi { (clip(text, OPEN / 2)) } }
                p { bdi { (clip(text, 8000)) } }
            }
        }
    }
}

/// One experiment: its figures, its cells, its noise floor.
fn section(experiment: &ExperimentResult, anchor: &str) -> Markup {
    let metrics = table::metrics(experiment);
    let noise = table::noise(experiment);
    let rounds = count(experiment.rounds as usize, "round");
    html! {
        section id=(anchor) aria-labelledby=(format!("{anchor}-h")) {
            h2 id=(format!("{anchor}-h")) { bdi { (clip(&experiment.title, 240)) } }
            p.where {
                bdi.id { (clip(&experiment.id, 120)) } " · " bdi { (clip(&experiment.source, 400)) } " · "
                (rounds) @if experiment.exact { ", deterministic: judged exactly" }
            }
            @if metrics.is_empty() { p.empty { "No cell of this experiment was run." } }
            div.figures-grid {
                (figure::shares(experiment))
                @for metric in &metrics { (figure::figures(experiment, metric)) }
            }
            @for (number, metric) in metrics.iter().enumerate() {
                @let table = table::cells(experiment, metric);
                details.cells {
                    summary {
                        "Table of " (count(table.rows.len(), "cell")) ": " bdi { (clip(&table.title, 120)) }
                    }
                    (render(&table, &format!("{anchor}-c{number}")))
                }
            }
            @if !noise.rows.is_empty() {
                p.part { (noise.title) }
                (render(&noise, &format!("{anchor}-n")))
            }
            p.back { a href="#claims" { "Back to the results" } }
        }
    }
}

/// An anchor per experiment, each once.
fn anchors(run: &RunResult) -> Vec<String> {
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
    let ids = run
        .experiments
        .iter()
        .map(|experiment| experiment.id.as_str());
    ids.enumerate().map(anchor).collect()
}

/// The raw data, inside the page.
fn data(run: &RunResult) -> Markup {
    let name = match slug(&run.run) {
        name if name.is_empty() => "run".to_owned(),
        name => name,
    };
    let json = serde_json::to_string(run).unwrap_or_default();
    let files = [
        (
            "data-json",
            format!("{name}.json"),
            "application/json",
            json,
            "everything",
        ),
        (
            "data-csv",
            format!("{name}.csv"),
            "text/csv;charset=utf-8",
            csv(run),
            "samples",
        ),
        (
            "data-claims",
            format!("{name}-claims.csv"),
            "text/csv;charset=utf-8",
            claims_csv(run),
            "claims and targets",
        ),
    ];
    html! {
        section.data aria-labelledby="data-h" {
            h2 #data-h { "Data" }
            p { "All data of this page, every sample included:" }
            p.downloads {
                @for (id, name, kind, text, what) in &files {
                    a id=(id) download=(name) href={ "data:" (kind) ";base64," (BASE64.encode(text.as_bytes())) } {
                        (name) " " span.sub { (what) ", " (text.len().div_ceil(1000)) " kB" }
                    }
                    " "
                }
            }
        }
    }
}

fn contents(run: &RunResult, anchors: &[String]) -> Markup {
    html! {
        @if run.experiments.len() > 1 {
            nav aria-labelledby="contents-h" {
                h2 #contents-h { "Experiments" }
                ul {
                    @for (experiment, anchor) in run.experiments.iter().zip(anchors) {
                        li { a href=(format!("#{anchor}")) { bdi { (clip(&experiment.title, 100)) } } }
                    }
                }
            }
        }
    }
}

fn machine(machine: &Machine) -> Markup {
    if machine.is_imported() {
        return html! {
            section aria-labelledby="machine-h" {
                h2 #machine-h { "Machine" }
                p { "Unknown: the figures were imported from the output of other programs." }
            }
        };
    }
    const UNKNOWN: &str = "not readable";
    let or = |text: Option<&str>, otherwise: &str| text.unwrap_or(otherwise).to_owned();
    let threads = machine.threads_per_core.map(|n| n.to_string());
    let load = machine.load.map(|load| format!("{load:.2}"));
    let turbo = machine.turbo.map(|on| if on { "on" } else { "off" });
    let memory = machine
        .memory
        .map(|bytes| format!("{:.1} GiB", bytes as f64 / (1u64 << 30) as f64));
    let short = [
        ("Processor", or(machine.cpu_model.as_deref(), UNKNOWN)),
        ("Processors usable", machine.cpus.to_string()),
        ("Threads per core", or(threads.as_deref(), UNKNOWN)),
        ("Hypervisor", or(machine.hypervisor.as_deref(), "none seen")),
        (
            "Frequency governor",
            or(machine.governor.as_deref(), "none"),
        ),
        ("Turbo", or(turbo, UNKNOWN)),
        ("Memory", or(memory.as_deref(), UNKNOWN)),
        ("Kernel", machine.kernel.clone()),
        ("Load at the start", or(load.as_deref(), UNKNOWN)),
    ];
    let mitigations = machine.mitigations.iter();
    let mitigations: Vec<String> = mitigations
        .map(|(name, what)| format!("{name}: {what}"))
        .collect();
    let interfaces = machine.interfaces.iter().map(|interface| {
        let driver = interface.driver.as_deref().unwrap_or("no driver");
        match interface.speed_mbit {
            Some(speed) => format!("{} ({driver}, {speed} Mbit/s)", interface.name),
            None => format!("{} ({driver})", interface.name),
        }
    });
    let interfaces: Vec<String> = interfaces.collect();
    let long = [
        (
            "Kernel command line",
            or(machine.kernel_command_line.as_deref(), UNKNOWN),
        ),
        ("Interfaces", interfaces.join(", ")),
        ("Mitigations", mitigations.join("; ")),
        ("Processor flags", machine.cpu_flags.join(" ")),
    ];
    let list = |rows: &[(&str, String)], limit: usize| {
        html! {
            @for (name, value) in rows {
                div {
                    dt { (name) }
                    dd { bdi { @if value.is_empty() { "none" } @else { (clip(value, limit)) } } }
                }
            }
        }
    };
    html! {
        section aria-labelledby="machine-h" {
            h2 #machine-h { "Machine" }
            dl { (list(&short, 300)) }
            details {
                summary { "Flags, mitigations, command line, interfaces" }
                dl.wide { (list(&long, 8000)) }
            }
        }
    }
}
