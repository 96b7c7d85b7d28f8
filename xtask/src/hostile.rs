//! The campaign of a hostile host; the tests have a short one.

use crate::shell;

/// Runs it with these options, which it knows itself.
pub(crate) fn run(options: &[&str]) -> Result<(), String> {
    let arguments = "run --release --locked -p tare-cvmnet --example hostile --";
    let mut arguments: Vec<&str> = arguments.split(' ').collect();
    arguments.extend(options);
    shell::step("hostile host", "cargo", &arguments)
}
