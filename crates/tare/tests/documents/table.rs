//! The table of README.md: each system, what it is compared with, and the figure of a run.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde::Deserialize;
use serde_json::Value;

/// A row of `docs/systems.toml`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct System {
    name: String,
    purpose: String,
    /// The system or figure that it is compared with.
    reference: String,
    /// A claim or target of the run, whose figure is shown.
    figure: String,
}

/// The table of the systems, with their figures in a judged run.
pub(crate) fn table(result: &Value) -> String {
    let path = Path::new(crate::ROOT).join("docs/systems.toml");
    let list = fs::read_to_string(path).unwrap();
    let list: BTreeMap<String, Vec<System>> = toml::from_str(&list).unwrap();
    let judged: BTreeMap<&str, &Value> = result["experiments"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|experiment| ["claims", "targets"].map(|kind| &experiment[kind]))
        .flat_map(|list| list.as_array().into_iter().flatten())
        .map(|claim| (claim["id"].as_str().unwrap(), claim))
        .collect();
    let mut text = String::from(
        "| | what you do with it | compared with | measured [95 %] | verdict | source |\n\
         |---|---|---|---:|---|---|\n",
    );
    for system in &list["system"] {
        let claim = judged
            .get(system.figure.as_str())
            .unwrap_or_else(|| panic!("docs/systems.toml: the run has no {}", system.figure));
        text += &format!(
            "| {} | {} | {} | {} | {} | `{}` |\n",
            system.name,
            system.purpose,
            system.reference,
            measured(claim),
            claim["verdict"].as_str().unwrap().replace('-', " "),
            system.figure
        );
    }
    text
}

/// A claim's figure with its unit, and its interval if it has one.
fn measured(claim: &Value) -> String {
    let number = |value: &Value| {
        let value = value.as_f64().unwrap_or_else(|| panic!("{claim}"));
        let digits = if value >= 100.0 { 0 } else { 2 };
        format!("{value:.digits$}")
    };
    let mut text = number(&claim["measured"]);
    if let Some(ends) = claim["ci95"].as_array() {
        text += &format!(" [{}, {}]", number(&ends[0]), number(&ends[1]));
    }
    match claim["unit"].as_str() {
        Some("ratio") => text + " times",
        Some(unit) => format!("{text} {unit}"),
        None => text,
    }
}
