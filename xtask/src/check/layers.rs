//! The layers of ARCHITECTURE.md, enforced from Cargo's metadata: which crate may know which.

use std::collections::BTreeMap;
use std::process::Command;

use serde::Deserialize;

use crate::shell::root;

/// The part of `cargo metadata` that concerns the layers.
#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
    #[serde(rename = "metadata")]
    workspace: Workspace,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    dependencies: Vec<Dependency>,
}

#[derive(Deserialize)]
struct Dependency {
    name: String,
}

/// `[workspace.metadata]` of the root's Cargo.toml.
#[derive(Deserialize)]
struct Workspace {
    layers: BTreeMap<String, Layer>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Layer {
    /// Its crates, by folder name.
    crates: Vec<String>,
    /// The layers that its crates may depend on.
    uses: Vec<String>,
}

/// Every crate of the workspace is in one layer and depends on what its layer may use.
pub(super) fn check() -> Result<(), String> {
    let output = Command::new("cargo")
        .args(["metadata", "--no-deps", "--format-version", "1", "--locked"])
        .current_dir(root())
        .output()
        .map_err(|error| format!("cargo metadata could not be started: {error}"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(format!("cargo metadata: {}", said.trim()));
    }
    let metadata: Metadata = serde_json::from_slice(&output.stdout)
        .map_err(|error| format!("cargo metadata, [workspace.metadata.layers]: {error}"))?;
    let broken = violations(&metadata);
    if broken.is_empty() {
        let crates = metadata.packages.len();
        eprintln!("xtask: layers: {crates} crates depend only on what their layer may use");
        Ok(())
    } else {
        Err(format!("layers:\n  {}", broken.join("\n  ")))
    }
}

/// The violations of the layers, one line each. Dependencies of tests and build scripts count as well: a
/// system whose tests need another system cannot be taken out alone.
fn violations(metadata: &Metadata) -> Vec<String> {
    let layers = &metadata.workspace.layers;
    let layer_of = |name: &str| {
        layers
            .iter()
            .find(|(_, layer)| layer.crates.iter().any(|own| own == name))
            .map(|(layer, _)| layer.as_str())
    };
    let mut broken = Vec::new();
    for (name, layer) in layers {
        for used in &layer.uses {
            if !layers.contains_key(used) {
                broken.push(format!("layer {name} uses {used}: there is no such layer"));
            }
        }
        for own in &layer.crates {
            let times = layers
                .values()
                .flat_map(|layer| &layer.crates)
                .filter(|other| *other == own)
                .count();
            if times > 1 {
                broken.push(format!(
                    "{own} is in {times} layers, {name} among them, expected one"
                ));
            }
            if !metadata.packages.iter().any(|package| package.name == *own) {
                broken.push(format!("layer {name}: there is no crate {own}"));
            }
        }
    }
    for package in &metadata.packages {
        let Some(own) = layer_of(&package.name) else {
            broken.push(format!(
                "{} is in no layer: add it to [workspace.metadata.layers] in Cargo.toml",
                package.name
            ));
            continue;
        };
        for dependency in &package.dependencies {
            // A package outside the workspace has no layer. The testing features of a crate are
            // enabled for its own tests by a dependency on itself.
            let Some(other) = layer_of(&dependency.name) else {
                continue;
            };
            if dependency.name != package.name && !layers[own].uses.iter().any(|used| used == other)
            {
                broken.push(format!(
                    "{} ({own}) depends on {} ({other}); the layer {own} may use: {}",
                    package.name,
                    dependency.name,
                    layers[own].uses.join(", ")
                ));
            }
        }
    }
    broken
}

#[cfg(test)]
mod tests {
    use super::{violations, Metadata};

    fn found(packages: &str) -> Vec<String> {
        let layers = r#"{
            "foundations": { "crates": ["packet", "port"], "uses": ["foundations"] },
            "systems": { "crates": ["gateway", "memory"], "uses": ["foundations"] }
        }"#;
        let text = format!(r#"{{"packages": {packages}, "metadata": {{"layers": {layers}}}}}"#);
        violations(&serde_json::from_str::<Metadata>(&text).unwrap())
    }

    fn package(name: &str, dependencies: &[&str]) -> String {
        let dependencies: Vec<_> = dependencies
            .iter()
            .map(|name| format!(r#"{{"name": "{name}"}}"#))
            .collect();
        format!(
            r#"{{"name": "{name}", "dependencies": [{}]}}"#,
            dependencies.join(",")
        )
    }

    fn workspace(gateway: &[&str], packet: &[&str], more: &str) -> Vec<String> {
        found(&format!(
            "[{},{},{},{}{more}]",
            package("gateway", gateway),
            package("packet", packet),
            package("port", &["packet", "libc"]),
            package("memory", &[])
        ))
    }

    #[test]
    fn what_the_layers_allow_passes() {
        assert_eq!(
            workspace(&["packet", "port", "serde", "gateway"], &[], ""),
            [""; 0]
        );
    }

    #[test]
    fn a_system_that_imports_another_is_found() {
        let broken = workspace(&["memory"], &[], "");
        assert_eq!(
            broken,
            ["gateway (systems) depends on memory (systems); the layer systems may use: foundations"]
        );
    }

    #[test]
    fn a_foundation_that_imports_a_system_is_found() {
        assert_eq!(workspace(&[], &["gateway"], "").len(), 1);
    }

    #[test]
    fn a_crate_without_a_layer_is_found() {
        let more = format!(",{}", package("new", &[]));
        let broken = workspace(&[], &[], &more);
        assert!(broken[0].starts_with("new is in no layer"), "{broken:?}");
    }

    #[test]
    fn a_layer_that_names_a_missing_crate_is_found() {
        let broken = found(&format!("[{}]", package("packet", &[])));
        assert_eq!(broken.len(), 3, "{broken:?}");
    }
}
