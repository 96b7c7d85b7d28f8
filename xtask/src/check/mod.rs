//! The checks that are not tests: format, lints, documents, layers, words, dependencies.

mod layers;
mod promises;
mod words;

use std::fs;
use std::path::{Path, PathBuf};

use crate::mutants;
use crate::shell::{has, is_ci, root, step, succeeds};

/// The version of cargo-deny that the checks are written for.
const CARGO_DENY: &str = "0.20.2";

/// The version of mdBook that the guide is written for.
const MDBOOK: &str = "0.5.4";

/// Formatting, lints, documentation, links, promises, layers, words, mutants, experiments,
/// dependencies, the lock file.
pub(crate) fn all() -> Result<(), String> {
    step("rustfmt", "cargo", &["fmt", "--all", "--check"])?;
    step("lock file", "cargo", &["fetch", "--locked"])?;
    // What takes no build comes first.
    links()?;
    promises::check()?;
    layers::check()?;
    words::check()?;
    mutants::check()?;
    step(
        "clippy",
        "cargo",
        &[
            "clippy",
            "--workspace",
            "--all-targets",
            "--locked",
            "--",
            "-D",
            "warnings",
        ],
    )?;
    step(
        "clippy with other libraries",
        "cargo",
        &[
            "clippy",
            "--workspace",
            "--features",
            "tare/references",
            "--all-targets",
            "--locked",
            "--",
            "-D",
            "warnings",
        ],
    )?;
    fuzz_targets()?;
    std::env::set_var("RUSTDOCFLAGS", "-D warnings");
    step(
        "documentation",
        "cargo",
        &[
            "doc",
            "--workspace",
            "--no-deps",
            "--document-private-items",
            "--locked",
        ],
    )?;
    experiments()?;
    dependencies()
}

/// The fuzz targets compile. They are a workspace of their own, and running them wants a nightly
/// toolchain, so nothing else notices that they no longer fit what they attack.
fn fuzz_targets() -> Result<(), String> {
    // Nothing is linked, so no C++ compiler is needed for libFuzzer: this takes its place.
    std::env::set_var("CUSTOM_LIBFUZZER_PATH", "/nonexistent/libfuzzer.a");
    let checked = step(
        "fuzz targets",
        "cargo",
        &[
            "check",
            "--manifest-path",
            "fuzz/Cargo.toml",
            "--target-dir",
            "target/fuzz",
            "--locked",
        ],
    );
    std::env::remove_var("CUSTOM_LIBFUZZER_PATH");
    checked
}

/// The words alone: the check that a change of text needs most often.
pub(crate) fn words() -> Result<(), String> {
    words::check()
}

/// Builds the guide.
pub(crate) fn book() -> Result<(), String> {
    if !has("mdbook") {
        step(
            "mdBook",
            "cargo",
            &["install", "mdbook", "--locked", "--version", MDBOOK],
        )?;
    }
    step("guide", "mdbook", &["build", "docs"])
}

fn dependencies() -> Result<(), String> {
    if !has("cargo-deny") {
        if !is_ci() {
            eprintln!("xtask: NOT CHECKED: dependencies: cargo-deny is missing: cargo install cargo-deny --locked --version {CARGO_DENY}");
            return Ok(());
        }
        step(
            "cargo-deny",
            "cargo",
            &["install", "cargo-deny", "--locked", "--version", CARGO_DENY],
        )?;
    }
    step(
        "dependencies",
        "cargo",
        &["deny", "--locked", "check", "bans", "licenses", "sources"],
    )?;
    if succeeds("cargo", &["deny", "fetch", "db"]) {
        step(
            "advisories",
            "cargo",
            &["deny", "--locked", "check", "advisories"],
        )
    } else {
        eprintln!("xtask: NOT CHECKED: advisories: their database cannot be reached from here");
        Ok(())
    }
}

/// Every cell of every embedded experiment is accepted by its driver, at both sizes.
fn experiments() -> Result<(), String> {
    step(
        "experiments",
        "cargo",
        // Of the workspace: dependencies have the features that all of its tests ask for, and are
        // not built once more for these.
        &[
            "test",
            "--workspace",
            "--bin",
            "tare",
            "--locked",
            "--quiet",
            "every_embedded_experiment",
        ],
    )
}

/// Every relative link in the documents leads to a file.
fn links() -> Result<(), String> {
    let mut documents = Vec::new();
    collect(root(), "md", &mut documents);
    let mut broken = Vec::new();
    let mut count = 0;
    for document in &documents {
        let text = fs::read_to_string(document)
            .map_err(|error| format!("{}: {error}", document.display()))?;
        let folder = document.parent().unwrap_or(Path::new("."));
        for (at, line) in text.lines().enumerate() {
            for target in targets(line) {
                count += 1;
                if !folder.join(target).exists() {
                    broken.push(format!("{}:{}: {target}", document.display(), at + 1));
                }
            }
        }
    }
    if broken.is_empty() {
        eprintln!(
            "xtask: links: {count} in {} documents lead somewhere",
            documents.len()
        );
        Ok(())
    } else {
        Err(format!(
            "links that lead nowhere:\n  {}",
            broken.join("\n  ")
        ))
    }
}

/// The files below `folder` with this extension, what is built or fetched left out.
fn collect(folder: &Path, extension: &str, found: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(folder) else {
        return;
    };
    for path in entries.flatten().map(|entry| entry.path()) {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if path.is_dir() {
            if !name.starts_with('.') && !["target", "book", "tare-runs"].contains(&&*name) {
                collect(&path, extension, found);
            }
        } else if path.extension().is_some_and(|own| own == extension) {
            found.push(path);
        }
    }
}

/// The relative targets of a line's Markdown links, without their anchors.
fn targets(line: &str) -> Vec<&str> {
    line.split("](")
        .skip(1)
        .filter_map(|rest| rest.split_once(')'))
        .map(|(target, _)| target.split('#').next().unwrap_or(target))
        .filter(|target| !target.is_empty() && !target.contains(':') && !target.contains(' '))
        .collect()
}
