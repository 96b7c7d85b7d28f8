//! Every shared byte is accessed exactly once: counted while the code runs, by decoding every
//! instruction that accesses it (`counted.rs`, on any machine) and by the processor's debug
//! registers (`breakpoint.rs`, where there are any), and read off the machine code. On AArch64 the
//! first of these alone.
#![cfg(all(
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64")
))]

/// Prints past the test runner's capture: what is not tested must be seen.
macro_rules! eprint_always {
    ($($text:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr(), $($text)*);
    }};
}

#[cfg(target_arch = "x86_64")]
mod breakpoint;
#[path = "../common/mod.rs"]
mod common;
mod counted;
#[cfg(target_arch = "x86_64")]
mod machine_code;
#[cfg_attr(target_arch = "aarch64", path = "watch_aarch64.rs")]
mod watch;
