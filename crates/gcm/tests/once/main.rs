//! Every shared byte is accessed exactly once: counted by the processor's debug registers while the
//! code runs, and read off the machine code.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

/// Prints past the test runner's capture: what is not tested must be seen.
macro_rules! eprint_always {
    ($($text:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr(), $($text)*);
    }};
}

mod breakpoint;
mod machine_code;
