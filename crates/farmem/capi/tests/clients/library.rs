//! The library, its header, its manual page and its installation agree.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use crate::node::Running;
use crate::tools::{find_manual_pages, found, render_manual_pages, scratch, text, Library, HERE};

const HEADER: &str = include_str!("../../include/tare_farmem.h");

pub(crate) const LIBRARY: Library = Library {
    name: "libtare_farmem",
    files: [
        concat!("libtare_farmem.so.", env!("CARGO_PKG_VERSION")),
        "libtare_farmem.so.0.1",
    ],
    prefix: "/opt/farmem",
    headers: &["tare_farmem.h"],
    packages: &["tare_farmem"],
};

/// The functions that the header declares.
fn declared() -> BTreeSet<String> {
    HEADER
        .lines()
        .filter(|line| line.starts_with(|first: char| first.is_ascii_lowercase()))
        .filter_map(|line| line.split_once('('))
        .filter_map(|(before, _)| before.split_whitespace().last())
        .map(|name| name.trim_start_matches('*').to_owned())
        .filter(|name| name.starts_with("tfm_"))
        .collect()
}

/// Returns the sources of the programs that use the library.
fn program() -> String {
    let path = Path::new(HERE).join("tests/c/every_function.c");
    std::fs::read_to_string(path).expect("the program")
}

#[test]
fn the_shared_library_exports_what_the_header_declares_and_nothing_else() {
    let Some(exported) = LIBRARY.exported() else {
        return;
    };
    assert_eq!(exported, declared());
    assert_eq!(exported.len(), 36);
}

#[test]
fn the_program_calls_every_function_of_the_header() {
    let program = program();
    for function in declared() {
        assert!(program.contains(&format!("{function}(")), "{function}");
    }
}

#[test]
fn every_function_has_a_manual_page_and_a_comment_before_it() {
    let lines: Vec<&str> = HEADER.lines().collect();
    for function in declared() {
        let at = lines.iter().position(|line| {
            let is_prose = line.trim_start().starts_with(['/', '*']);
            line.contains(&format!("{function}(")) && !is_prose
        });
        let before = lines[at.expect("a declaration") - 1];
        assert!(before.ends_with("*/"), "{function} has no comment");
    }
    find_manual_pages(&declared(), "tare_farmem.3", |name| format!("{name}("));
    find_manual_pages(&declared(), "tare_farmem.3", |name| format!(".BR {name} ("));
}

#[test]
fn every_manual_page_renders_without_a_warning() {
    render_manual_pages();
}

#[test]
fn what_is_installed_is_complete_and_stripped() {
    LIBRARY.check_installed(env!("CARGO_PKG_VERSION"), &declared());
}

#[test]
fn the_example_of_the_readme_builds_by_pkg_config_and_works() {
    let readme = include_str!("../../README.md");
    let example = readme.split("```c\n").nth(1).expect("an example");
    let example = example.split("```").next().expect("its end");
    std::fs::write(scratch().join("example.c"), example).expect("a file");
    let Some(flags) = LIBRARY.flags("tare_farmem") else {
        return;
    };
    let compiled = Command::new("cc")
        .args(["-Wall", "-Werror", "example.c", "-o", "example"])
        .args(flags)
        .current_dir(scratch())
        .output();
    let (Some(compiled), Some(node)) = (found("cc", compiled), Running::start()) else {
        return;
    };
    assert!(compiled.status.success(), "{}", text(&compiled.stderr));
    let example = |address: &str| {
        let mut command = Command::new(scratch().join("example"));
        command
            .arg(address)
            .env("LD_LIBRARY_PATH", LIBRARY.installed());
        command.output().expect("the example runs")
    };
    let output = example(&node.address());
    assert_eq!(
        text(&output.stdout),
        "far away\n",
        "{}",
        text(&output.stderr)
    );
    let failed = example("udp://nowhere");
    assert_eq!(failed.status.code(), Some(1));
    assert!(text(&failed.stderr).contains("udp://HOST:PORT"));
}
