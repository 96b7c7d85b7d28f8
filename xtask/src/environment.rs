//! Everything that the tests must not inherit: one place that clears it, before
//! anything runs.
//!
//! The tests themselves bear it too, when `cargo test` runs them; `cargo xtask conditions` holds
//! them to that. Signals stay as they are: under `nohup`, Cargo and the tests have to survive the
//! end of the terminal, and a test that sends SIGHUP resets it for the process that it starts.

use std::env;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::shell::root;

/// Variables that change what programs print or where they look; a name that ends in `*` stands for
/// all that begin so. Cargo's describe the package of xtask itself: the build script of `ring` runs
/// again whenever they change, so `cargo build` and `cargo xtask` in turn would build it each time.
const CLEARED: &[&str] = &[
    "LANG",
    "LANGUAGE",
    "LC_*",
    "NO_COLOR",
    "CLICOLOR*",
    "FORCE_COLOR",
    "COLUMNS",
    "LINES",
    "PAGER",
    "MAN*",
    "GZIP",
    "GREP_*",
    "POSIXLY_CORRECT",
    "CDPATH",
    "PYTHON*",
    "QEMU_*",
    "TARE_*",
    "CARGO_MANIFEST_*",
    "CARGO_PKG_*",
];

/// Clears the environment of this process, and so of all that it starts. The umask and standard
/// input are [`crate::shell`]'s.
pub(crate) fn clear() {
    // Cargo's own output keeps the user's choice.
    if env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty()) {
        env::set_var("CARGO_TERM_COLOR", "never");
    }
    for (name, _) in env::vars_os() {
        if name.to_str().is_some_and(is_cleared) {
            env::remove_var(name);
        }
    }
    env::set_var("LC_ALL", "C.UTF-8");
    choose_temporary_folder();
}

fn is_cleared(name: &str) -> bool {
    CLEARED
        .iter()
        .any(|pattern| match pattern.strip_suffix('*') {
            Some(beginning) => name.starts_with(beginning),
            None => name == *pattern,
        })
}

/// If the folder for temporary files is read-only, or does not let programs run (the
/// documentation's examples are compiled into it), the target directory takes its place. Only then:
/// a path below it may be too long for a socket's name.
fn choose_temporary_folder() {
    let usual = env::temp_dir();
    if runs_programs(&usual) {
        return;
    }
    let own = own_temporary_folder();
    if fs::create_dir_all(&own).is_ok() && runs_programs(&own) {
        eprintln!(
            "xtask: no program can be written and run in {}: temporary files go to {}",
            usual.display(),
            own.display()
        );
        env::set_var("TMPDIR", own);
    } else {
        eprintln!(
            "xtask: no program can be written and run in {}, nor in {}: set TMPDIR to a folder where one can",
            usual.display(),
            own.display()
        );
    }
}

/// A folder for temporary files that is neither read-only nor without programs wherever the build
/// works.
pub(crate) fn own_temporary_folder() -> PathBuf {
    root().join("target/tmp")
}

fn runs_programs(folder: &Path) -> bool {
    let program = folder.join(format!("tare-xtask-{}", std::process::id()));
    let runs = fs::write(&program, "#!/bin/sh\nexit 0\n").is_ok()
        && fs::set_permissions(&program, fs::Permissions::from_mode(0o700)).is_ok()
        && Command::new(&program)
            .status()
            .is_ok_and(|status| status.success());
    let _ = fs::remove_file(program);
    runs
}
