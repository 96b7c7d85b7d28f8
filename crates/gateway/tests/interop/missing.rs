//! Tests that cannot run say so.

use std::io::Write;
use std::process::Command;

/// True if a program runs with these arguments. If it does not, a line says so, and that is a
/// failure under CI.
pub(crate) fn has(program: &str, arguments: &[&str], package: &str, what: &str) -> bool {
    let runs = Command::new(program).args(arguments).output();
    if runs.is_ok_and(|output| output.status.success()) {
        return true;
    }
    not_tested(&format!(
        "{what}: {program} {} does not run; as root: apt-get install {package}",
        arguments.join(" ")
    ));
    false
}

/// Says aloud what was not tested; a failure under CI.
pub(crate) fn not_tested(what: &str) {
    let said = format!("*** NOT TESTED HERE: {what} ***");
    assert!(std::env::var("CI").as_deref() != Ok("true"), "{said}");
    // Around the test harness, which would swallow it.
    let _ = writeln!(std::io::stderr(), "\n{said}\n");
}
