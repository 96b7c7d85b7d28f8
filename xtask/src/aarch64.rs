//! The cipher's tests for AArch64: built for it here, and run by the emulator.
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
    if !has_standard_library() {
        // Without a network this fails, after it has said why.
        let _ = command("rustup").args(["target", "add", TARGET]).status();
    }
    if !has_standard_library() {
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
    can_run() && has_standard_library()
}

/// Returns true if emulator, linker and libraries are there. What is missing has been said when the
/// packages were looked for.
fn can_run() -> bool {
    has(QEMU) && has(LINKER) && Path::new(LIBRARIES).join("lib/libc.so").is_file()
}

/// Returns true if programs for the target can be compiled.
pub(crate) fn has_standard_library() -> bool {
    let arguments = ["--print", "target-libdir", "--target", TARGET];
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

/// The crate's lints of what is compiled for the target alone. No test: a check of them compiles
/// the C code of the libraries that they compare with.
pub(crate) fn lints() -> Result<(), String> {
    if !has_standard_library() {
        eprintln!(
            "xtask: NOT CHECKED: lints of the cipher on AArch64: its standard library is missing: \
             rustup target add {TARGET}"
        );
        return Ok(());
    }
    for features in [&["--all-features"][..], &["--no-default-features"]] {
        let mut arguments = vec!["clippy", "-p", "tare-gcm", "--lib", "--locked"];
        arguments.extend(["--target", TARGET]);
        arguments.extend(features);
        arguments.extend(["--", "-D", "warnings"]);
        step("clippy for AArch64", "cargo", &arguments)?;
    }
    Ok(())
}
