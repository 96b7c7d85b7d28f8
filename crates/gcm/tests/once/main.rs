//! Every shared byte is accessed exactly once: counted by the processor's debug registers while the code runs, and read
//! off the machine code.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod breakpoint;
mod machine_code;
