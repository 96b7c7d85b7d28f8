//! libtare_farmem: the C interface of the client of `tare-farmem`. Its documentation is
//! `include/tare_farmem.h` and the manual page.
//!
//! | module | contents |
//! |---|---|
//! | `status` | codes, the last failure of a thread, the functions about both |
//! | `border` | pointers from C, checked once; panics that stop here |
//! | `table` | sessions by number, so that a closed one is known as such |
//! | `session` | connect, disconnect, options, spaces |
//! | `memory` | one operation on memory at a time |
//! | `batches` | several ranges at a time |
//! | `regions` | named ranges that spaces share |
//! | `asynchronous` | submit, poll, release |
//!
//! `unsafe` is in `border`, and in the functions for C, which state what they need of a caller.

mod asynchronous;
mod batches;
mod border;
mod memory;
mod regions;
mod session;
mod status;
mod table;

#[cfg(not(target_pointer_width = "64"))]
compile_error!("a session is a number of 64 bits in a pointer");
