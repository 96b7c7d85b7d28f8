#![doc = include_str!("../README.md")]

mod figures;
mod histogram;
mod log;

pub use figures::{Contradiction, LoadFigures};
pub use histogram::{Histogram, Latency, LONGEST};
pub use log::HistogramLog;
