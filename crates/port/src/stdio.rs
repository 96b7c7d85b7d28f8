//! Standard output as this program found it.

use std::sync::atomic::{AtomicBool, Ordering};

static OUTPUT_WAS_CLOSED: AtomicBool = AtomicBool::new(false);

/// True if standard output was closed when the program started (`>&-`).
///
/// Rust's runtime opens `/dev/null` in place of a closed descriptor before `main`, so that all
/// later writes succeed and are lost. Only code that runs before the runtime can tell the two
/// apart: many programs start others with a `/dev/null` that is open for reading and writing too.
pub fn output_was_closed() -> bool {
    OUTPUT_WAS_CLOSED.load(Ordering::Relaxed)
}

/// The C library calls what stands in this section before it starts the program.
#[used]
#[cfg_attr(target_os = "linux", link_section = ".init_array")]
static LOOK: extern "C" fn() = look;

extern "C" fn look() {
    // SAFETY: asks for the flags of a descriptor; takes numbers only.
    let flags = unsafe { libc::fcntl(libc::STDOUT_FILENO, libc::F_GETFD) };
    OUTPUT_WAS_CLOSED.store(flags == -1, Ordering::Relaxed);
}
