//! Every shared byte is accessed exactly once: counted while the code runs, by decoding every
//! instruction that accesses it (`counted.rs`, on any machine) and by the processor's debug
//! registers (`breakpoint.rs`, where there are any), and read off the machine code.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

/// Prints past the test runner's capture: what is not tested must be seen.
macro_rules! eprint_always {
    ($($text:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr(), $($text)*);
    }};
}

mod breakpoint;
mod counted;
mod machine_code;
mod watch;
