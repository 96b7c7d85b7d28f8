//! The requirements of tests of `tare cvm serve`.

use std::io::Write as _;
use std::path::Path;
use std::process::Command;

/// Returns whether this can be tested here; under CI=true it must be.
pub(crate) fn is_testable(programs: &[&str]) -> bool {
    let runs = |program: &&str| {
        let output = Command::new("sh")
            .args(["-c", &format!("command -v {program}")])
            .output();
        output.is_ok_and(|output| output.status.success())
    };
    let mut all = vec!["unshare", "ip"];
    all.extend(programs);
    let missing: Vec<_> = all.iter().filter(|program| !runs(program)).collect();
    let notice = if !rustix::process::geteuid().is_root() {
        "NOT TESTED: tare cvm serve, which needs root".to_owned()
    } else if !Path::new("/dev/net/tun").exists() {
        "NOT TESTED: tare cvm serve, which needs /dev/net/tun (modprobe tun)".to_owned()
    } else if !missing.is_empty() {
        format!("NOT TESTED: tare cvm serve; missing: {missing:?}")
    } else {
        return true;
    };
    assert!(std::env::var("CI").as_deref() != Ok("true"), "{notice}");
    let _ = writeln!(std::io::stderr(), "{notice}");
    false
}
