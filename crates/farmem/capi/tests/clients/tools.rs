//! The library, built for these tests, and programs of the machine.

use std::env;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

pub(crate) const HERE: &str = env!("CARGO_MANIFEST_DIR");

/// The folder of these tests for what they make.
pub(crate) fn scratch() -> &'static Path {
    Path::new(env!("CARGO_TARGET_TMPDIR"))
}

/// Builds the libraries once, into a target folder of these tests' own, so that they neither wait
/// for nor deceive the build that runs them; returns where they are.
pub(crate) fn libraries() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let target = scratch().join("capi");
        let built = Command::new(env!("CARGO"))
            .args(["build", "--quiet", "--lib", "--package", "tare-farmem-capi"])
            .args(["--manifest-path", &format!("{HERE}/Cargo.toml")])
            .arg("--target-dir")
            .arg(&target)
            .env_remove("CARGO_BUILD_TARGET")
            .output()
            .expect("cargo runs");
        assert!(built.status.success(), "{}", text(&built.stderr));
        target.join("debug")
    })
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Returns a path as text.
pub(crate) fn name(path: &Path) -> &str {
    path.to_str().expect("a path in UTF-8")
}

/// Writes past the test harness, which keeps the output of tests that pass to itself.
pub(crate) fn not_tested(reason: &str) {
    let _ = std::io::stderr().write_all(format!("\nNOT TESTED: {reason}\n").as_bytes());
}

/// Runs a program; `None`, with a note, if it is not installed and not required.
pub(crate) fn run(program: &str, arguments: &[&str]) -> Option<Output> {
    found(program, Command::new(program).args(arguments).output())
}

pub(crate) fn found<T>(program: &str, result: std::io::Result<T>) -> Option<T> {
    match result {
        Ok(result) => Some(result),
        Err(error) if env::var("CI").is_ok_and(|value| value == "true") => {
            panic!("{program} is required where CI=true: {error}")
        }
        Err(error) => {
            not_tested(&format!("{program} does not run: {error}"));
            None
        }
    }
}
