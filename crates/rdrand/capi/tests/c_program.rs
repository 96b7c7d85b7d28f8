//! A C program, compiled against the header and both libraries, calls every function; another
//! loads the shared library as a plug-in would; a third one, written for the librdrand of 2013, is
//! built against what the installation put into a tree; the shared library exports what the
//! header declares and nothing else; and the manual pages render.

use std::collections::BTreeSet;
use std::env;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

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

/// Past the test harness, which keeps the output of tests that pass to itself.
fn not_tested(what: &str) {
    let _ = std::io::stderr().write_all(format!("\nNOT TESTED: {what}\n").as_bytes());
}

/// Runs a tool; `None`, with a note, if it is not installed and not required.
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
            not_tested(&format!("{program} does not run: {error}"));
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
    let path = libraries();
    let directory = format!("-L{}", path.display());
    let archive = path.join("librdrand.a");
    let archive = archive.to_str().expect("a path in UTF-8");
    let c = ["gcc", "-std=gnu99"];
    compile_and_run(&c, "shared", &[&directory, "-lrdrand", "-lpthread"], &path);
    compile_and_run(&c, "static", &[archive, "-lpthread", "-ldl", "-lm"], &path);
    // Without RDRAND every function fails, which the program looks at.
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("static");
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

/// The library, installed once for all tests; where its tree is and where its libraries are.
fn installed() -> (PathBuf, PathBuf) {
    static TREE: OnceLock<PathBuf> = OnceLock::new();
    let tree = TREE.get_or_init(|| {
        let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
        let tree = directory.join("tree");
        let _ = std::fs::remove_dir_all(&tree);
        let output = Command::new("sh")
            .arg(format!("{HERE}/install.sh"))
            .args(["--prefix=/opt/rdrand", "--libdir=/opt/rdrand/lib64"])
            .arg(format!("--destdir={}", tree.display()))
            .env("CARGO", env!("CARGO"))
            .env("CARGO_TARGET_DIR", &directory)
            .env_remove("CARGO_BUILD_TARGET")
            .output()
            .expect("sh runs");
        assert!(output.status.success(), "{}", text(&output.stderr));
        tree
    });
    (tree.clone(), tree.join("opt/rdrand/lib64"))
}

#[test]
fn a_program_for_the_original_builds_and_notices_failure() {
    let (_, libraries) = installed();
    // By relative paths, which have no space whatever the directory's own name is: pkg-config
    // cannot tell it from the end of an argument.
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let asked = Command::new("pkg-config")
        .args(["--cflags", "--libs", "librdrand"])
        .env("PKG_CONFIG_SYSROOT_DIR", "tree")
        .env("PKG_CONFIG_PATH", "tree/opt/rdrand/lib64/pkgconfig")
        .current_dir(directory)
        .output();
    let Some(asked) = found("pkg-config", asked) else {
        return;
    };
    assert!(asked.status.success(), "{}", text(&asked.stderr));
    let linking = text(&asked.stdout);
    let shared: Vec<&str> = linking.split_whitespace().collect();
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
                .env("LD_LIBRARY_PATH", &libraries)
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
    let (tree, libraries) = installed();
    for file in [
        "include/rdrand.h",
        "include/librdrand.h",
        "include/librdrand-aes.h",
    ] {
        assert!(tree.join("opt/rdrand").join(file).is_file(), "{file}");
    }
    for page in declared() {
        let page = tree.join(format!("opt/rdrand/share/man/man3/{page}.3"));
        assert!(page.is_file(), "{}", page.display());
    }
    for name in ["rdrand", "librdrand"] {
        let file = libraries.join(format!("pkgconfig/{name}.pc"));
        let file = std::fs::read_to_string(file).expect("a pkg-config file");
        assert!(
            file.contains("prefix=/opt/rdrand\n") && !file.contains("/tree"),
            "{file}"
        );
    }
    let shared = std::fs::canonicalize(libraries.join("librdrand.so")).expect("the library");
    assert_eq!(shared.file_name().expect("a name"), "librdrand.so.2.0.0");
    for library in [shared, libraries.join("librdrand.a")] {
        let library = library.to_str().expect("a path in UTF-8");
        let Some(sections) = run("objdump", &["-h", library]) else {
            return;
        };
        let sections = text(&sections.stdout);
        assert!(sections.contains(".text"), "{library}");
        assert!(
            !sections.contains(" .debug_"),
            "{library} has debugging symbols"
        );
    }
    let library = libraries.join("librdrand.so.2");
    let library = library.to_str().expect("a path in UTF-8");
    let Some(dynamic) = run("objdump", &["-p", library]) else {
        return;
    };
    assert!(text(&dynamic.stdout).contains("SONAME               librdrand.so.2\n"));
    let Some(symbols) = run("nm", &[library]) else {
        return;
    };
    assert_eq!(
        text(&symbols.stdout),
        "",
        "the symbols of the program that built it"
    );
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
        not_tested(&format!("dlopen: {report}"));
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
        assert!(main.contains(&name), "librdrand.3 does not describe {name}");
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
