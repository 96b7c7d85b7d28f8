//! Memory errors, and branches or addresses that depend on secrets, on the paths that valgrind can
//! run.
//!
//! (Valgrind 3.19 knows neither AVX-512 nor VAES; `tests/once/machine_code.rs` looks at those
//! paths' code instead.)

use std::process::Command;

/// Prints past the test runner's capture: what is not tested must be seen.
macro_rules! eprint_always {
    ($($text:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr(), $($text)*);
    }};
}

/// Says that nothing is tested; where tests must be complete, that is a failure.
fn not_tested(why: &str) {
    assert!(std::env::var_os("CI").is_none(), "not tested: {why}");
    eprint_always!("NOT TESTED: {why}");
}

#[test]
fn valgrind_finds_no_errors_and_no_secret_dependent_branches() {
    if !cfg!(target_arch = "x86_64") {
        eprint_always!("NOT TESTED by valgrind: secrets are marked for it on x86-64 alone");
        return;
    }
    let own = std::env::current_exe().unwrap();
    let target = own.ancestors().nth(2).unwrap();
    let example = target.join("examples/memcheck");
    if !example.exists() {
        let example = example.display();
        let how = "cargo build -p tare-gcm --example memcheck";
        return not_tested(&format!("{example} is not built: {how}"));
    }
    let valgrind = Command::new("valgrind")
        .args([
            "--tool=memcheck",
            "--read-inline-info=yes",
            "--num-callers=3",
            // What a kernel has used of the stack is wiped below the stack pointer.
            "--ignore-range-below-sp=1024-1",
        ])
        .arg(&example)
        .output();
    let Ok(output) = valgrind else {
        return not_tested("valgrind is not installed (apt-get install valgrind)");
    };
    let (out, errors) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    print!("{out}");
    assert!(output.status.success(), "{errors}");
    assert!(
        out.contains("ran: aesni") || out.contains("NOT TESTED: the aesni path"),
        "{out}{errors}"
    );
    assert!(out.contains("ran: portable"), "{out}{errors}");
    // The one branch on a secret is whether the tag matched, in `open`.
    let mut reports = errors.lines().filter(|line| line.contains("   at 0x"));
    let allowed = |line: &&str| line.contains("(key.rs:") || line.contains("(tag.rs:");
    // It must be there, too: otherwise the marking does not work, and silence means nothing.
    assert!(
        errors.contains("Conditional jump"),
        "secrets were not marked: {out}{errors}"
    );
    let bad: Vec<&str> = reports.by_ref().filter(|line| !allowed(line)).collect();
    assert!(bad.is_empty(), "{errors}");
    // One such branch for each message: a comparison that ends early makes several.
    let number = |text: &str, before: &str| -> Option<usize> {
        let (_, rest) = text.split_once(before)?;
        rest.split_whitespace().next()?.parse().ok()
    };
    let opened: usize = out.lines().filter_map(|line| number(line, "opened:")).sum();
    assert!(opened > 0, "{out}");
    assert_eq!(number(&errors, "ERROR SUMMARY:"), Some(opened), "{errors}");
    let uses = errors
        .lines()
        .filter(|line| line.contains("uninitialised") || line.contains("Invalid"))
        .filter(|line| !line.contains("--track-origins"));
    for line in uses {
        assert!(line.contains("Conditional jump"), "{errors}");
    }
}
