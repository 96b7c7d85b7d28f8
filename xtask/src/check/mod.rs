//! The checks that are not tests: format, lints, documents, layers, words, dependencies.

mod layers;
mod promises;
mod words;

use std::fs;
use std::path::{Path, PathBuf};

use crate::aarch64;
use crate::mutants;
use crate::shell::{command, has, is_ci, root, step, succeeds};

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
    optional_parts()?;
    aarch64::lints()?;
    oldest_toolchain()?;
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

/// Lints of what only features build: the comparison with other libraries, and the fuzz targets,
/// which nothing else would notice no longer fit what they attack.
fn optional_parts() -> Result<(), String> {
    // Nothing is linked, so no C++ compiler is needed for libFuzzer: this takes its place.
    std::env::set_var("CUSTOM_LIBFUZZER_PATH", "/nonexistent/libfuzzer.a");
    let checked = step(
        "clippy with other libraries and fuzz targets",
        "cargo",
        &[
            "clippy",
            "--workspace",
            "--features",
            "tare/references,tare-fuzz/libfuzzer",
            "--all-targets",
            "--locked",
            "--",
            "-D",
            "warnings",
        ],
    );
    std::env::remove_var("CUSTOM_LIBFUZZER_PATH");
    checked
}

/// The cipher, which is of use without the rest, compiles with the oldest toolchain that its
/// `rust-version` promises. It needs 1.95: `core::hint::cold_path` is stable from there on.
fn oldest_toolchain() -> Result<(), String> {
    let version = rust_version()?;
    let listed = command("rustup").args(["toolchain", "list"]).output();
    let listed = listed.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    let listed = listed.unwrap_or_default();
    let Some(toolchain) = toolchain(&version, &listed) else {
        eprintln!(
            "xtask: NOT TESTED: the cipher with Rust {version}, its oldest: \
             rustup toolchain install {version} --profile minimal"
        );
        return Ok(());
    };
    let toolchain = format!("+{toolchain}");
    step(
        "the oldest toolchain",
        "cargo",
        &[
            toolchain.as_str(),
            "check",
            "-p",
            "tare-gcm",
            "--all-features",
            "--target-dir",
            "target/rust-version",
            "--locked",
        ],
    )
}

/// The workspace's `rust-version`, which the cipher and its dependencies inherit.
fn rust_version() -> Result<String, String> {
    let file = root().join("Cargo.toml");
    let text = fs::read_to_string(&file).map_err(|error| format!("{}: {error}", file.display()))?;
    text.lines()
        .find_map(|line| line.strip_prefix("rust-version = \"")?.strip_suffix('"'))
        .map(str::to_owned)
        .ok_or_else(|| format!("{}: no rust-version", file.display()))
}

/// The name of an installed toolchain of this version, from the list that rustup prints: `1.95` or
/// `1.95.0`, and behind it the machine.
fn toolchain<'a>(version: &str, listed: &'a str) -> Option<&'a str> {
    let names = listed.lines().filter_map(|line| line.split(' ').next());
    let mut own = names.filter(|name| {
        let rest = name.strip_prefix(version).unwrap_or_default();
        rest.starts_with('-') || rest.starts_with(".0-")
    });
    own.next()
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
            &[
                "install",
                "cargo-deny",
                // It runs for a second: 91 processor seconds to build in place of 217.
                "--debug",
                "--locked",
                "--version",
                CARGO_DENY,
            ],
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

#[cfg(test)]
mod tests {
    use super::toolchain;

    #[test]
    fn a_toolchain_of_the_version_is_found_and_no_other() {
        let listed = "stable-x86_64-unknown-linux-gnu (active, default)\n\
                      1.195.0-x86_64-unknown-linux-gnu\n1.95.1-x86_64-unknown-linux-gnu\n";
        assert_eq!(toolchain("1.95", listed), None);
        for name in [
            "1.95-x86_64-unknown-linux-gnu",
            "1.95.0-x86_64-unknown-linux-gnu",
        ] {
            let listed = format!("{listed}{name}\n");
            assert_eq!(toolchain("1.95", &listed), Some(name));
        }
    }
}
