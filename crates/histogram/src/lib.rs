#![doc = include_str!("../README.md")]

mod figures;
mod histogram;

pub use figures::{Contradiction, LoadFigures};
pub use histogram::{Histogram, Latency, LONGEST};
