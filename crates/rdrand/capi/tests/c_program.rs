//! A C program, compiled against the header and both libraries, calls every function; another
//! loads the shared library as a plug-in would; a third one, written for the librdrand of 2013, is
//! built against what the installation put into a tree; the shared library exports what the
//! header declares and nothing else; and the manual pages render.

#[path = "../../../../contrib/c-library/tests.rs"]
mod tools;

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use tools::{
    find_manual_pages, found, name, not_tested, render_manual_pages, run, scratch, text, Library,
    HERE,
};

const LIBRARY: Library = Library {
    name: "librdrand",
    files: ["librdrand.so.2.0.0", "librdrand.so.2"],
    prefix: "/opt/rdrand",
    headers: &["rdrand.h", "librdrand.h", "librdrand-aes.h"],
    packages: &["rdrand", "librdrand"],
};

/// Compiles with every warning an error, links, runs, and reads the protocol.
fn compile_and_run(compiler: &[&str], name: &str, linking: &[&str], library_path: &Path) {
    let program = scratch().join(name);
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
        // Not in the system's folder for temporary files, which may be read-only.
        .arg(program.with_extension("scratch"))
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
    let path = LIBRARY.installed();
    let directory = format!("-L{}", path.display());
    let archive = path.join("librdrand.a");
    let archive = name(&archive);
    let c = ["gcc", "-std=gnu99"];
    compile_and_run(&c, "shared", &[&directory, "-lrdrand", "-lpthread"], path);
    compile_and_run(&c, "static", &[archive, "-lpthread", "-ldl", "-lm"], path);
    // Without RDRAND every function fails, which the program looks at.
    let program = scratch().join("static");
    let program = program.to_str().expect("a path in UTF-8");
    let Some(emulated) = run("qemu-x86_64", &["-cpu", "Nehalem", program, "unused"]) else {
        return;
    };
    let report = text(&emulated.stdout);
    assert!(
        emulated.status.success(),
        "{report}{}",
        text(&emulated.stderr)
    );
    assert!(
        report.starts_with("ok 1 - without RDRAND everything fails\n1..1"),
        "{report}"
    );
}

#[test]
fn a_program_for_the_original_builds_and_notices_failure() {
    let Some(flags) = LIBRARY.flags("librdrand") else {
        return;
    };
    let (directory, libraries) = (scratch(), LIBRARY.installed());
    let shared: Vec<&str> = flags.iter().map(String::as_str).collect();
    let archive = "tree/opt/rdrand/lib64/librdrand.a";
    let fixed = [shared[0], archive, "-lpthread", "-ldl", "-lm"];
    for (name, linking) in [("original", &shared[..]), ("original-static", &fixed)] {
        let program = directory.join(name);
        let source = format!("{HERE}/tests/original.c");
        let output = program.to_str().expect("a path in UTF-8");
        let mut arguments = vec!["-std=gnu99", "-Wall", "-Werror", &source, "-o", output];
        arguments.extend(linking);
        let compiled = Command::new("gcc")
            .args(&arguments)
            .current_dir(directory)
            .output();
        let Some(compiled) = found("gcc", compiled) else {
            return;
        };
        assert!(compiled.status.success(), "{}", text(&compiled.stderr));
        let under = |wrapper: &[&str], how: &str| {
            let mut command = Command::new(wrapper.first().unwrap_or(&output));
            if !wrapper.is_empty() {
                command.args(&wrapper[1..]).arg(output);
            }
            command
                .args((!how.is_empty()).then_some(how))
                .env("LD_LIBRARY_PATH", libraries)
                .output()
        };
        let here = |how| under(&[], how).expect("the program runs");
        if here("").status.code() == Some(77) {
            not_tested("encryption by a program for the original: no RDRAND");
        } else {
            let (good, again) = (here(""), here(""));
            assert!(good.status.success() && good.stdout.len() == 129);
            assert_ne!(good.stdout, again.stdout);
            assert!(here("set-keys").status.success());
            for how in ["bad-key", "no-keys", "no-key"] {
                let failed = here(how);
                assert_eq!(failed.status.code(), Some(1), "{name} {how}");
                assert!(failed.stdout.is_empty(), "{name} {how}");
            }
        }
        // A processor without RDRAND: no random key can be made.
        let emulated = under(&["qemu-x86_64", "-cpu", "Nehalem"], "no-rdrand");
        let Some(emulated) = found("qemu-x86_64", emulated) else {
            continue;
        };
        assert_eq!(
            emulated.status.code(),
            Some(1),
            "{}",
            text(&emulated.stderr)
        );
        assert!(emulated.stdout.is_empty());
    }
}

#[test]
fn what_is_installed_is_complete_and_stripped() {
    LIBRARY.check_installed("2.0.0", &declared());
}

#[test]
fn copies_load_unload_and_load_again_in_threads_that_run_already() {
    let library = LIBRARY.installed().join("librdrand.so");
    let directory = scratch();
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
        not_tested(&format!("dlopen: {report}"));
        return;
    }
    assert!(ran.status.success(), "{report}{}", text(&ran.stderr));
    assert!(report.contains("\n1..6"), "{report}");
}

#[test]
fn the_header_is_valid_cpp() {
    let path = LIBRARY.installed();
    let directory = format!("-L{}", path.display());
    let cpp = ["g++", "-std=c++11", "-x", "c++"];
    compile_and_run(&cpp, "cpp", &[&directory, "-lrdrand", "-lpthread"], path);
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
    let Some(exported) = LIBRARY.exported() else {
        return;
    };
    assert_eq!(exported, declared());
    assert_eq!(exported.len(), 20);
}

#[test]
fn every_function_has_a_manual_page() {
    find_manual_pages(&declared(), "librdrand.3", str::to_owned);
}

#[test]
fn every_manual_page_renders_without_a_warning() {
    render_manual_pages();
}

#[test]
fn the_program_calls_every_function_of_the_header() {
    let program = include_str!("every_function.c");
    for name in declared() {
        assert!(program.contains(&name), "{name}");
    }
}
