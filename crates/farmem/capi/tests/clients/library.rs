//! The library, its header, its manual page and its installation agree.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use crate::node::Running;
use crate::tools::{found, libraries, name, run, scratch, text, HERE};

const HEADER: &str = include_str!("../../include/tare_farmem.h");

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
    let library = libraries().join("libtare_farmem.so");
    let Some(output) = run("nm", &["-D", "--defined-only", name(&library)]) else {
        return;
    };
    assert!(output.status.success(), "{}", text(&output.stderr));
    let exported: BTreeSet<String> = text(&output.stdout)
        .lines()
        .filter_map(|line| line.split_whitespace().nth(2).map(str::to_owned))
        .collect();
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
    let pages = Path::new(HERE).join("man/man3");
    let main = std::fs::read_to_string(pages.join("tare_farmem.3")).expect("the main page");
    let lines: Vec<&str> = HEADER.lines().collect();
    for function in declared() {
        let page = pages.join(format!("{function}.3"));
        let page =
            std::fs::read_to_string(page).unwrap_or_else(|error| panic!("{function}: {error}"));
        assert_eq!(page, ".so man3/tare_farmem.3\n", "{function}");
        for place in [format!("{function}("), format!(".BR {function} (")] {
            assert!(main.contains(&place), "tare_farmem.3 lacks {place}");
        }
        let at = lines.iter().position(|line| {
            let is_prose = line.trim_start().starts_with(['/', '*']);
            line.contains(&format!("{function}(")) && !is_prose
        });
        let before = lines[at.expect("a declaration") - 1];
        assert!(before.ends_with("*/"), "{function} has no comment");
    }
    let pages = std::fs::read_dir(pages).expect("pages").count();
    assert_eq!(pages, declared().len() + 1);
}

#[test]
fn every_manual_page_renders_without_a_warning() {
    let manual = Path::new(HERE).join("man");
    for page in std::fs::read_dir(manual.join("man3")).expect("pages") {
        let file = page.expect("a page").file_name();
        let page = format!("man3/{}", file.to_str().expect("a name in UTF-8"));
        // From here, because most pages only name the one that they stand for.
        let rendered = Command::new("man")
            .args(["--warnings", "-E", "UTF-8", "-l", &page])
            .current_dir(&manual)
            // `man` complains of a locale that this machine lacks.
            .env("LC_ALL", "C.UTF-8")
            .env("MANPAGER", "cat")
            .env("MANWIDTH", "80")
            .output();
        let Some(rendered) = found("man", rendered) else {
            return;
        };
        assert!(rendered.status.success(), "{page}: {}", rendered.status);
        assert_eq!(text(&rendered.stderr), "", "{page}");
        assert!(text(&rendered.stdout).contains("SYNOPSIS"), "{page}");
    }
}

/// The library, installed once for all tests; the folder of its libraries.
fn installed() -> &'static Path {
    static LIBRARIES: OnceLock<PathBuf> = OnceLock::new();
    LIBRARIES.get_or_init(|| {
        let tree = scratch().join("tree");
        let _ = std::fs::remove_dir_all(&tree);
        let output = Command::new("sh")
            .arg(format!("{HERE}/install.sh"))
            .args(["--prefix=/opt/farmem", "--libdir=/opt/farmem/lib64"])
            .arg(format!("--destdir={}", tree.display()))
            .env("CARGO", env!("CARGO"))
            .env("CARGO_TARGET_DIR", scratch())
            .env_remove("CARGO_BUILD_TARGET")
            .output()
            .expect("sh runs");
        assert!(output.status.success(), "{}", text(&output.stderr));
        tree.join("opt/farmem/lib64")
    })
}

#[test]
fn what_is_installed_is_complete_and_stripped() {
    let libraries = installed();
    let place = libraries.parent().expect("a folder");
    assert!(place.join("include/tare_farmem.h").is_file());
    for function in declared() {
        let page = place.join(format!("share/man/man3/{function}.3"));
        assert!(page.is_file(), "{}", page.display());
    }
    let file = libraries.join("pkgconfig/tare_farmem.pc");
    let file = std::fs::read_to_string(file).expect("a pkg-config file");
    let version = format!("Version: {}\n", env!("CARGO_PKG_VERSION"));
    assert!(file.contains("prefix=/opt/farmem\n") && file.contains(&version));
    assert!(!file.contains("/tree"), "{file}");
    let shared = std::fs::canonicalize(libraries.join("libtare_farmem.so")).expect("the library");
    let expected = concat!("libtare_farmem.so.", env!("CARGO_PKG_VERSION"));
    assert_eq!(shared.file_name().expect("a name"), expected);
    for library in [shared, libraries.join("libtare_farmem.a")] {
        let Some(sections) = run("objdump", &["-h", name(&library)]) else {
            return;
        };
        let sections = text(&sections.stdout);
        assert!(sections.contains(".text"), "{}", library.display());
        assert!(!sections.contains(" .debug_"), "{}", library.display());
    }
    let library = libraries.join("libtare_farmem.so.0.1");
    let Some(dynamic) = run("objdump", &["-p", name(&library)]) else {
        return;
    };
    let soname = "SONAME               libtare_farmem.so.0.1\n";
    assert!(text(&dynamic.stdout).contains(soname));
}

#[test]
fn the_example_of_the_readme_builds_by_pkg_config_and_works() {
    let libraries = installed();
    let readme = include_str!("../../README.md");
    let example = readme.split("```c\n").nth(1).expect("an example");
    let example = example.split("```").next().expect("its end");
    std::fs::write(scratch().join("example.c"), example).expect("a file");
    // By relative paths, which have no space whatever the folder's own name is: pkg-config cannot
    // tell it from the end of an argument.
    let asked = Command::new("pkg-config")
        .args(["--cflags", "--libs", "tare_farmem"])
        .env("PKG_CONFIG_SYSROOT_DIR", "tree")
        .env("PKG_CONFIG_PATH", "tree/opt/farmem/lib64/pkgconfig")
        .current_dir(scratch())
        .output();
    let Some(asked) = found("pkg-config", asked) else {
        return;
    };
    assert!(asked.status.success(), "{}", text(&asked.stderr));
    let compiled = Command::new("cc")
        .args(["-Wall", "-Werror", "example.c", "-o", "example"])
        .args(text(&asked.stdout).split_whitespace())
        .current_dir(scratch())
        .output();
    let (Some(compiled), Some(node)) = (found("cc", compiled), Running::start()) else {
        return;
    };
    assert!(compiled.status.success(), "{}", text(&compiled.stderr));
    let example = |address: &str| {
        let mut command = Command::new(scratch().join("example"));
        command.arg(address).env("LD_LIBRARY_PATH", libraries);
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
