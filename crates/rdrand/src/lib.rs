//! Hardware random numbers that fail loudly.
//!
//! RDRAND and RDSEED are not sold on speed here (a userspace cipher is faster) but on
//! guarantees: a start-up self-test that knows the broken processors, continuous health
//! tests, bounded retries, exact lengths, and errors instead of zeros.
//!
//! ```
//! use tare_rdrand::{Error, Rdrand};
//!
//! let mut key = [0; 32];
//! match Rdrand::new().and_then(|mut rdrand| rdrand.fill_bytes(&mut key)) {
//!     Ok(()) => assert_ne!(key, [0; 32]),
//!     Err(Error::Unsupported { .. }) => {} // use the operating system's generator
//!     Err(other) => panic!("{other}"),
//! }
//! ```
//!
//! | room | what is in it |
//! |---|---|
//! | [`Rdrand`], [`Rdseed`], [`Generator`] | numbers: bytes, 16-, 32- and 64-bit arrays, single values |
//! | [`RetryLimit`] | how long a value is waited for |
//! | [`seed()`], [`Seeder`] | seeds for other generators, with their grade |
//! | `AesCtr` | RDRAND encrypted under a key that the hardware does not know |
//! | `stream` | exact numbers of bytes into a writer |
//! | [`reseed`] | output with a hardware reseed between any two values |
//! | [`health`] | the cut-offs of the health tests and where they come from |
//! | [`processor`] | what CPUID says, and the processors known to be broken |
//! | [`source`], [`scripted`] | the instruction, and hardware played by a script for tests |
//! | [`instruction`] | the bare loop, as a limit to measure against |
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
pub use error::{Error, HealthFailure, Instruction};
#[cfg(feature = "fast_path")]
pub use generator::fast_path;
pub use generator::{Counts, Generator, Rdrand, Rdseed, SELF_TEST_DRAWS};
pub use processor::KnownIssue;
pub use retry::RetryLimit;
pub use seed::{seed, SeedGrade, Seeder};
pub use source::Source;

/// The examples of the README are tests.
#[cfg(all(doctest, feature = "std"))]
#[doc = include_str!("../README.md")]
struct Readme;
