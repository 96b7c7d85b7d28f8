#![doc = include_str!("../README.md")]
#![no_std]

#[cfg(any(feature = "std", test))]
extern crate std;

#[cfg(feature = "aes")]
pub mod aes_ctr;
mod error;
#[cfg(feature = "aes")]
mod fork;
mod generator;
pub mod health;
pub mod instruction;
pub mod processor;
pub mod reseed;
mod retry;
mod retry_limit;
#[cfg(any(feature = "rand_core", feature = "std"))]
mod rng;
#[cfg(feature = "testing")]
pub mod scripted;
mod seed;
pub mod source;
#[cfg(feature = "std")]
pub mod stream;

#[cfg(feature = "aes")]
pub use aes_ctr::AesCtr;
pub use error::{Error, HealthFailure};
#[cfg(feature = "fast_path")]
pub use generator::fast_path;
pub use generator::{Counts, Generator, Rdrand, Rdseed, SELF_TEST_DRAWS};
pub use processor::{Instruction, KnownIssue};
pub use retry_limit::RetryLimit;
pub use seed::{seed, SeedGrade, Seeder};
pub use source::Source;
