//! A C program, compiled against the header and both libraries, calls every function; another
//! loads the shared library as a plug-in would; the shared library exports what the header
//! declares and nothing else; and the manual pages render.

use std::collections::BTreeSet;
use std::env;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const HERE: &str = env!("CARGO_MANIFEST_DIR");

/// Builds the libraries into a target directory of this test's own, so that it neither waits
/// for nor deceives the build that runs it, and says where they are.
fn libraries() -> PathBuf {
    let target = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("capi");
    let built = Command::new(env!("CARGO"))
        .args([
            "build",
            "--quiet",
            "--lib",
            "--package",
            "tare-rdrand-capi",
            "--target-dir",
        ])
        .arg(&target)
        .args(["--manifest-path", &format!("{HERE}/Cargo.toml")])
        .env_remove("CARGO_BUILD_TARGET")
        .output()
        .expect("cargo runs");
    assert!(built.status.success(), "{}", text(&built.stderr));
    target.join("debug")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Runs a tool; `None`, and a loud note, where it is not installed and nobody requires it.
fn run(program: &str, arguments: &[&str]) -> Option<Output> {
    found(program, Command::new(program).args(arguments).output())
}

fn found(program: &str, output: std::io::Result<Output>) -> Option<Output> {
    match output {
        Ok(output) => Some(output),
        Err(error) if env::var("CI").is_ok_and(|value| value == "true") => {
            panic!("{program} is required where CI=true: {error}")
        }
        Err(error) => {
            // Past the capture of the test runner: what is not tested must be seen.
            let _ = writeln!(io::stderr(), "NOT TESTED: {program} does not run ({error})");
            None
        }
    }
}

/// Compiles with every warning an error, links, runs, and reads the protocol.
fn compile_and_run(compiler: &[&str], name: &str, linking: &[&str], library_path: &Path) {
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let (source, include) = (
        format!("{HERE}/tests/every_function.c"),
        format!("-I{HERE}/include"),
    );
    let mut arguments = compiler[1..].to_vec();
    arguments.extend([
        "-Wall", "-Wextra", "-Werror", "-O1", &include, &source, "-o",
    ]);
    arguments.push(program.to_str().expect("a path in UTF-8"));
    arguments.extend(linking);
    let Some(compiled) = run(compiler[0], &arguments) else {
        return;
    };
    assert!(compiled.status.success(), "{}", text(&compiled.stderr));
    let ran = Command::new(&program)
        .env("LD_LIBRARY_PATH", library_path)
        .output()
        .expect("the program runs");
    let report = text(&ran.stdout);
    let good = ran.status.success() && !report.contains("not ok") && report.contains("\n1..");
    assert!(
        good,
        "{name}: {}\n{report}{}",
        ran.status,
        text(&ran.stderr)
    );
    println!("{name}:\n{report}");
}

#[test]
fn a_c_program_uses_every_function_of_both_libraries() {
    let path = libraries();
    let directory = format!("-L{}", path.display());
    let archive = path.join("librdrand.a");
    let archive = archive.to_str().expect("a path in UTF-8");
    let c = ["gcc", "-std=gnu99"];
    compile_and_run(&c, "shared", &[&directory, "-lrdrand", "-lpthread"], &path);
    compile_and_run(&c, "static", &[archive, "-lpthread", "-ldl", "-lm"], &path);
}

#[test]
fn copies_load_unload_and_load_again_in_threads_that_run_already() {
    let library = libraries().join("librdrand.so");
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let (program, copy) = (
        directory.join("dlopen"),
        directory.join("librdrand-copy.so"),
    );
    std::fs::copy(&library, &copy).expect("a copy");
    let source = format!("{HERE}/tests/dlopen.c");
    let output = program.to_str().expect("a path in UTF-8");
    let arguments = [
        "-std=gnu99",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-O1",
        &source,
        "-o",
        output,
        "-lpthread",
        "-ldl",
    ];
    let Some(compiled) = run("gcc", &arguments) else {
        return;
    };
    assert!(compiled.status.success(), "{}", text(&compiled.stderr));
    let ran = Command::new(&program)
        .args([&library, &copy])
        .output()
        .expect("the program runs");
    let report = text(&ran.stdout);
    if report.starts_with("1..0 # SKIP") {
        // Past the capture of the test runner: what is not tested must be seen.
        let _ = writeln!(io::stderr(), "NOT TESTED: {report}");
        return;
    }
    assert!(ran.status.success(), "{report}{}", text(&ran.stderr));
    assert!(report.contains("\n1..6"), "{report}");
}

#[test]
fn the_header_is_valid_cpp() {
    let path = libraries();
    let directory = format!("-L{}", path.display());
    let cpp = ["g++", "-std=c++11", "-x", "c++"];
    compile_and_run(&cpp, "cpp", &[&directory, "-lrdrand", "-lpthread"], &path);
}

/// The functions that a declaration of the header names.
fn declared() -> BTreeSet<String> {
    let header = include_str!("../include/rdrand.h");
    header
        .lines()
        .filter(|line| {
            ["int ", "size_t ", "void "]
                .iter()
                .any(|kind| line.starts_with(kind))
        })
        .filter_map(|line| line.split('(').next()?.split_whitespace().last())
        .map(|name| name.trim_start_matches('*').to_owned())
        .collect()
}

#[test]
fn the_shared_library_exports_the_header_and_nothing_else() {
    let library = libraries().join("librdrand.so");
    let library = library.to_str().expect("a path in UTF-8");
    let Some(output) = run("nm", &["-D", "--defined-only", library]) else {
        return;
    };
    assert!(output.status.success(), "{}", text(&output.stderr));
    let exported: BTreeSet<String> = text(&output.stdout)
        .lines()
        .filter_map(|line| line.split_whitespace().nth(2).map(str::to_owned))
        .collect();
    assert_eq!(exported, declared());
    assert_eq!(exported.len(), 20);
}

#[test]
fn every_function_has_a_manual_page() {
    let pages = Path::new(HERE).join("man/man3");
    let main = std::fs::read_to_string(pages.join("librdrand.3")).expect("the main page");
    for name in declared() {
        let page = std::fs::read_to_string(pages.join(format!("{name}.3")))
            .unwrap_or_else(|error| panic!("{name}.3: {error}"));
        assert!(page.contains(".so man3/librdrand.3"), "{name}.3");
        assert!(main.contains(&name), "librdrand.3 says nothing of {name}");
    }
}

#[test]
fn every_manual_page_renders_without_a_warning() {
    let manual = Path::new(HERE).join("man");
    for page in std::fs::read_dir(manual.join("man3")).expect("pages") {
        let name = page.expect("a page").file_name();
        let page = format!("man3/{}", name.to_str().expect("a name in UTF-8"));
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

#[test]
fn the_program_calls_every_function_of_the_header() {
    let program = include_str!("every_function.c");
    for name in declared() {
        assert!(program.contains(&name), "{name}");
    }
}
