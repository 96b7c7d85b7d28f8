//! The drivers of the random number generators: throughput, underflows, the statistical battery.

pub(crate) mod battery;
pub(crate) mod rdrand;
pub(crate) mod underflow;
