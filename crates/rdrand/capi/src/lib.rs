//! librdrand: the C interface of `tare-rdrand`. Its documentation is `include/rdrand.h` and
//! the man pages.
//!
//! | module | contents |
//! |---|---|
//! | `numbers` | steps, single values, arrays, bytes, reseeded arrays |
//! | `encrypted` | the AES-CTR functions |
//! | `file` | `rdrand_fwrite` |
//! | `thread` | the generator of the calling thread |
//!
//! No function unwinds into C: nothing here panics, and `extern "C"` aborts if it did.
//! Pointers that are NULL are refused; others must be as the header says.

mod encrypted;
mod file;
mod numbers;
mod thread;

/// Random number(s) delivered.
pub const RDRAND_SUCCESS: i32 = 1;
/// Random number(s) not delivered.
pub const RDRAND_FAILURE: i32 = -1;
/// The processor has RDRAND and it passed its self-test.
pub const RDRAND_SUPPORTED: i32 = 2;
/// The processor has no RDRAND that can be used.
pub const RDRAND_UNSUPPORTED: i32 = -2;

/// `RDRAND_SUCCESS` or `RDRAND_FAILURE`.
fn status(done: bool) -> i32 {
    if done {
        RDRAND_SUCCESS
    } else {
        RDRAND_FAILURE
    }
}

/// 1 or 0, as the functions of the AES variant return.
fn truth(done: bool) -> i32 {
    i32::from(done)
}
