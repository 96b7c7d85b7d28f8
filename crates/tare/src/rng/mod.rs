//! `tare rng`: random bytes from the hardware, how fast they come, and whether they look random.

pub(crate) mod method;
pub(crate) mod workload;
