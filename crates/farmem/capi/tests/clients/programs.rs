//! Programs that use the library.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tare_farmem::operation::SpaceId;
use tare_farmem::protocol::Secret;

use crate::library::LIBRARY;
use crate::node::{silent, Running};
use crate::tools::{found, name, run, scratch, text, HERE};

/// Compiles the program with every warning an error; `None`, with a note, without a compiler.
fn compile(compiler: &[&str], to: &str, linking: &[&str]) -> Option<PathBuf> {
    let program = scratch().join(to);
    let include = format!("-I{HERE}/include");
    let source = format!("{HERE}/tests/c/every_function.c");
    let mut arguments = compiler[1..].to_vec();
    arguments.extend(["-pedantic", "-Wall", "-Wextra", "-Werror", "-g", "-O1"]);
    arguments.extend([&include, &source, "-o", name(&program)]);
    arguments.extend(linking);
    let compiled = run(compiler[0], &arguments)?;
    assert!(compiled.status.success(), "{}", text(&compiled.stderr));
    Some(program)
}

/// Runs the program, below a wrapper if there is one, and reads its report.
fn use_every_function(wrapper: &[&str], program: &Path) {
    let (Some(node), Some(stopped)) = (Running::start(), Running::start()) else {
        return;
    };
    let (key, space) = (Secret::new(&[7; 32]), SpaceId(1234));
    let capability = key.capability(space).to_text();
    let Some(secret) = Running::with_secret(Some(key)) else {
        return;
    };
    let (_socket, silent) = silent();
    let command = [wrapper, &[name(program)]].concat();
    let child = Command::new(command[0])
        .args(&command[1..])
        .args([node.address(), silent, stopped.address()])
        .args([&secret.address(), capability.as_str(), &space.0.to_string()])
        .env("LD_LIBRARY_PATH", LIBRARY.installed())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let Some(mut child) = found(command[0], child) else {
        return;
    };
    let mut stopped = Some(stopped);
    let mut report = String::new();
    let output = BufReader::new(child.stdout.take().expect("a pipe"));
    for line in output.lines() {
        let line = line.expect("text");
        if line == "stop" {
            stopped.take().expect("one node to stop").stop();
            let input = child.stdin.as_mut().expect("a pipe");
            input.write_all(b"stopped\n").expect("a reader");
        }
        report.push_str(&line);
        report.push('\n');
    }
    let status = child.wait().expect("an exit status");
    let mut errors = String::new();
    let read = child
        .stderr
        .take()
        .expect("a pipe")
        .read_to_string(&mut errors);
    read.expect("text");
    let is_good = status.success() && !report.contains("not ok") && report.contains("\n1..");
    assert!(is_good, "{command:?}: {status}\n{report}{errors}");
    node.stop();
    secret.stop();
    println!("{command:?}:\n{report}");
}

const C: &[&str] = &["cc", "-std=c89"];

/// The arguments to link the shared library.
fn shared() -> [String; 2] {
    [
        format!("-L{}", LIBRARY.installed().display()),
        "-ltare_farmem".to_string(),
    ]
}

#[test]
fn a_c_program_uses_every_function_of_the_shared_library() {
    let [folder, library] = shared();
    if let Some(program) = compile(C, "every-shared", &[&folder, &library, "-lpthread"]) {
        use_every_function(&[], &program);
    }
}

#[test]
fn a_c_program_uses_every_function_of_the_static_library_under_valgrind() {
    let archive = LIBRARY.installed().join("libtare_farmem.a");
    let linking = [name(&archive), "-lpthread", "-ldl", "-lm"];
    if let Some(program) = compile(C, "every-static", &linking) {
        use_every_function(&[], &program);
        let valgrind = [
            "valgrind",
            "--quiet",
            "--error-exitcode=9",
            "--leak-check=full",
            "--errors-for-leak-kinds=definite",
        ];
        use_every_function(&valgrind, &program);
    }
}

#[test]
fn a_cpp_program_uses_every_function() {
    let [folder, library] = shared();
    let cpp = ["c++", "-std=c++98", "-Wno-long-long", "-x", "c++"];
    if let Some(program) = compile(&cpp, "every-cpp", &[&folder, &library, "-lpthread"]) {
        use_every_function(&[], &program);
    }
}

#[test]
fn a_python_program_reads_asynchronously_and_gets_typed_errors() {
    let Some(node) = Running::start() else {
        return;
    };
    let library = LIBRARY.installed().join("libtare_farmem.so");
    let client = format!("{HERE}/tests/python/client.py");
    let arguments = ["-B", &client, name(&library), &node.address()];
    let Some(output) = run("python3", &arguments) else {
        return;
    };
    let report = text(&output.stdout);
    assert!(output.status.success(), "{report}{}", text(&output.stderr));
    assert_eq!(
        report,
        concat!("version ", env!("CARGO_PKG_VERSION"), " works\n")
    );
    node.stop();
}
