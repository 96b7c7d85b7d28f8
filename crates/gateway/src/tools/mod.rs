//! Tools beside the gateway: the benchmark in software, the generator of test configurations and
//! traffic, and new preshared keys.

pub mod bench;
pub mod gentest;
mod keygen;

pub use keygen::keygen;
