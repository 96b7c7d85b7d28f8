//! Guests under QEMU, booted from a kernel of the distribution and an initramfs of programs of this
//! machine, with an agent inside that runs commands.
//!
//! [`Guest::boot`] starts one and returns when its agent answers; [`Guest::run`] runs a command in
//! it. A guest ends with the [`Guest`], and with the process that has it, however that ends.

pub mod accelerator;
pub mod agent;
pub mod arguments;
mod clock;
mod console;
mod error;
mod evidence;
mod guest;
pub mod host;
pub mod initramfs;
pub mod kernel;
pub mod probes;
mod qmp;
pub mod syscall;
pub mod version;

pub use accelerator::Accelerator;
pub use arguments::{Flavour, Hardware, Network};
pub use error::Error;
pub use evidence::Evidence;
pub use guest::{Guest, Output, Stream};
pub use host::Host;
