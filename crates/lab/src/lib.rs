#![doc = include_str!("../README.md")]

mod descendants;
pub mod diff;
pub mod driver;
pub mod experiment;
pub mod extract;
pub mod figures;
pub mod file;
pub mod fingerprint;
pub mod judge;
pub mod leftovers;
pub mod parameters;
pub mod placement;
pub mod plan;
pub mod protocol;
pub mod report;
pub mod result;
pub mod runner;
pub mod sample;
pub mod schedule;
pub mod stats;
pub mod store;
pub mod synthetic;
mod text;
pub mod trial;
pub mod unit;
pub mod usage;
pub mod value;
