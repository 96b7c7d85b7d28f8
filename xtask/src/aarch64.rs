//! The cipher for other processors: its tests for AArch64, built here and run by the emulator, and
//! what is compiled for targets on which nothing is run.
//!
//! They need three things that a machine may lack. The emulator and the linker are Debian's, see
//! `packages.rs`. The target's standard library is rustup's, and is asked for when it is missing;
//! without a network nothing is tested, which is said and is no failure.

use std::path::Path;

use crate::binaries::{self, Binary};
use crate::jobs::Job;
use crate::processors::{file, Emulated, EXERCISED, LIMIT_SECONDS};
use crate::shell::{command, has, step};

const TARGET: &str = "aarch64-unknown-linux-gnu";

/// The emulator, of Debian's qemu-user.
const QEMU: &str = "qemu-aarch64";

/// The linker, and the C library that programs are linked to.
pub(crate) const LINKER: &str = "aarch64-linux-gnu-gcc";
const LIBRARIES: &str = "/usr/aarch64-linux-gnu";

/// The processor, and the lines that its tests must write and those that they must not.
pub(crate) const PROCESSOR: Emulated = Emulated {
    cpu: "aarch64",
    about: "AArch64 with AES and PMULL",
    must: &["gcm chosen neon", "gcm ran neon", "gcm ran portable"],
    must_not: &["gcm ran aesni"],
    left_out: "",
};

/// The test programs, each with the tests of it that are run: all, if none is named. Those that are
/// left out take minutes there.
const SUITES: &[(&str, &[&str])] = &[
    ("crates/gcm batch", &[]),
    ("crates/gcm contract", &[]),
    (
        "crates/gcm differential",
        &["any_length_alignment_and_split"],
    ),
    ("crates/gcm tare_gcm", &[]),
    ("crates/gcm twice", &[]),
    ("crates/gcm vectors", &[]),
];

/// The tests as jobs, or none if they cannot be built and run here.
pub(crate) fn jobs() -> Result<Vec<Job>, String> {
    if !can_run() {
        return Ok(Vec::new());
    }
    if !get_library(TARGET) {
        eprintln!(
            "xtask: NOT TESTED: the cipher on AArch64: its standard library is missing: \
             rustup target add {TARGET}"
        );
        return Ok(Vec::new());
    }
    let said = file(PROCESSOR.cpu)?.display().to_string();
    let all = build()?;
    let prefix = ["timeout", LIMIT_SECONDS, QEMU, "-L", LIBRARIES].map(str::to_owned);
    let mut jobs = Vec::new();
    for (suite, tests) in SUITES {
        for binary in binaries::choose(&all, &[suite])? {
            let title = "on an emulated AArch64";
            jobs.push(binary.job(title, &prefix, tests, &[(EXERCISED, &said)]));
        }
    }
    Ok(jobs)
}

/// Returns true if the tests can be built and run here: [`jobs`] has them then.
pub(crate) fn is_tested() -> bool {
    can_run() && has_library(TARGET)
}

/// Returns true if emulator, linker and libraries are there. What is missing has been said when the
/// packages were looked for.
fn can_run() -> bool {
    has(QEMU) && has(LINKER) && Path::new(LIBRARIES).join("lib/libc.so").is_file()
}

/// Asks rustup for a target's library if it is missing; returns true if it is there then.
fn get_library(target: &str) -> bool {
    if !has_library(target) {
        // Without a network this fails, after it has said why.
        let _ = command("rustup").args(["target", "add", target]).status();
    }
    has_library(target)
}

/// Returns true if programs for a target can be compiled.
pub(crate) fn has_library(target: &str) -> bool {
    let arguments = ["--print", "target-libdir", "--target", target];
    let Ok(output) = command("rustc").args(arguments).output() else {
        return false;
    };
    let folder = String::from_utf8_lossy(&output.stdout);
    // The path is printed whether there is anything or not.
    output.status.success() && Path::new(folder.trim()).is_dir()
}

/// Builds the test programs.
fn build() -> Result<Vec<Binary>, String> {
    let mut arguments = vec![
        "test", "-p", "tare-gcm", "--target", TARGET, "--locked", "--lib",
    ];
    for (suite, _) in SUITES {
        match suite.rsplit_once(' ') {
            Some((_, "tare_gcm")) | None => {}
            Some((_, test)) => arguments.extend(["--test", test]),
        }
    }
    let variables = [
        ("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", LINKER),
        // Without the libraries that take minutes to build.
        (
            "CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUSTFLAGS",
            "--cfg tare_without_references",
        ),
    ];
    binaries::build_by(&arguments, &variables)
}

/// The cipher's library, for which other targets compile other code: lints for AArch64, and a check
/// for processors that only have the portable path, one without vector registers among them. No
/// test: a check of them compiles the C code of the libraries that they compare with.
pub(crate) fn lints() -> Result<(), String> {
    let without_std = &["--no-default-features"][..];
    let (lints, check) = (&["--", "-D", "warnings"][..], &[][..]);
    for (target, command, features, rest) in [
        (TARGET, "clippy", &["--all-features"][..], lints),
        (TARGET, "clippy", without_std, lints),
        ("x86_64-unknown-none", "check", without_std, check),
        ("riscv64gc-unknown-linux-gnu", "check", without_std, check),
    ] {
        if !get_library(target) {
            eprintln!(
                "xtask: NOT CHECKED: the cipher for {target}: its standard library is missing: \
                 rustup target add {target}"
            );
            continue;
        }
        let mut arguments = vec![command, "-p", "tare-gcm", "--lib", "--locked"];
        arguments.extend(["--target", target]);
        arguments.extend(features);
        arguments.extend(rest);
        step("the cipher for other targets", "cargo", &arguments)?;
    }
    Ok(())
}
