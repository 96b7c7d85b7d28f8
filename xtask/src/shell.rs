//! Runs other programs, and says which and for how long.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

/// A program, run at the root with the usual umask and an empty standard input, whatever this
/// process inherited.
pub(crate) fn command(program: &str) -> Command {
    let mut command = Command::new("sh");
    command
        .args(["-c", "umask 022; exec \"$@\"", "sh", program])
        .current_dir(root())
        .stdin(Stdio::null());
    command
}

/// Runs a program to its end with its output shown; its failure is an error that names it.
pub(crate) fn step(title: &str, program: &str, arguments: &[&str]) -> Result<(), String> {
    eprintln!("\nxtask: {title}: {program} {}", arguments.join(" "));
    let began = Instant::now();
    let status = command(program)
        .args(arguments)
        .status()
        .map_err(|error| format!("{program} could not be started: {error}"))?;
    let took = began.elapsed().as_secs_f64();
    if status.success() {
        eprintln!("xtask: {title}: done in {took:.0} s");
        Ok(())
    } else {
        Err(format!(
            "{title} failed after {took:.0} s: {program} {}",
            arguments.join(" ")
        ))
    }
}

/// Returns whether a program succeeds with these arguments; its output is discarded.
pub(crate) fn succeeds(program: &str, arguments: &[&str]) -> bool {
    Command::new(program)
        .args(arguments)
        .current_dir(root())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// Returns whether a program of that name is on the path, or, where it is a whole path itself, exists.
pub(crate) fn has(program: &str) -> bool {
    path_of(program).is_some()
}

/// The path of the program of that name.
pub(crate) fn path_of(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let mut places = std::env::split_paths(&path).map(|folder| folder.join(program));
    places.find(|place| place.is_file())
}

/// The workspace's root.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .unwrap_or(Path::new("."))
}

/// Returns whether this is a CI machine, where nothing may be left out.
pub(crate) fn is_ci() -> bool {
    std::env::var("CI").is_ok_and(|value| value == "true")
}
