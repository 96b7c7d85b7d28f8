//! Binding threads to CPUs.

use std::{fmt, io};

use rustix::thread::{sched_setaffinity, CpuSet};

/// The error of [`bind_to_cpu`].
#[derive(Debug)]
pub struct BindError {
    cpu: usize,
    source: io::Error,
}

impl fmt::Display for BindError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let BindError { cpu, source } = self;
        write!(f, "no thread can be bound to core {cpu}: {source}")
    }
}

impl std::error::Error for BindError {}

/// Binds the calling thread to a CPU; does nothing for `None`.
///
/// # Errors
/// There is no such CPU, or this process may not run there.
pub fn bind_to_cpu(cpu: Option<usize>) -> Result<(), BindError> {
    let Some(cpu) = cpu else { return Ok(()) };
    let error = |source| BindError { cpu, source };
    if cpu >= CpuSet::MAX_CPU {
        return Err(error(io::ErrorKind::InvalidInput.into()));
    }
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set).map_err(|errno| error(errno.into()))
}
