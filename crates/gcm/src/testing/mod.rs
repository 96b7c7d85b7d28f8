//! The race and the timing of each path, for tests, benchmarks and drivers that may hold no
//! `unsafe`.

mod race;
mod workload;

pub use race::{race, Race, RaceReport, Subject};
pub use workload::{Op, Workload};
