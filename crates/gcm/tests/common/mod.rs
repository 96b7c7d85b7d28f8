//! The paths that a test runs.

use std::io::Write as _;
use std::sync::Once;

use tare_gcm::Path;

/// The variable that names a path to leave out. On emulated processors, where everything takes a
/// hundred times as long, it is the portable one, which is the same code on each of them and runs
/// on the one that has no other. `once` counts its accesses without an emulator alone.
const LEFT_OUT: &str = "TARE_GCM_LEFT_OUT";

/// The paths of this processor, without the one that [`LEFT_OUT`] names. Those that it cannot run
/// are named once, past the test runner's capture: what is not tested must be seen.
pub(crate) fn paths() -> Vec<Path> {
    static NAMED: Once = Once::new();
    NAMED.call_once(|| {
        for path in Path::ALL.into_iter().filter(|path| !path.is_available()) {
            let mut errors = std::io::stderr();
            let _ = writeln!(
                errors,
                "NOT TESTED: this processor cannot run the {path} path"
            );
        }
    });
    let left_out = std::env::var(LEFT_OUT).ok();
    let paths = Path::available().filter(|path| left_out.as_deref() != Some(&path.to_string()));
    let paths: Vec<Path> = paths.collect();
    assert!(!paths.is_empty(), "{LEFT_OUT} leaves no path to test");
    paths
}
