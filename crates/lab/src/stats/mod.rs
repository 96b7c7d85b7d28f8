//! The statistics of a run: pure functions over numbers, no clock and no file.
//!
//! Three questions are asked of every comparison, each by a method chosen for few rounds
//! (eight or ten) on a machine that stalls now and then:
//!
//! - *How large is it?* The [`median`] over rounds: one stall moves it by one rank.
//! - *How sure is that?* A smoothed bootstrap of that median, [`interval`].
//! - *Could chance have done it?* Sign flips of the signed ranks, [`sign_flip()`] for one
//!   comparison and [`any_beyond`] for several at once, corrected by [`holm()`].
//!
//! `docs/src/instrument.md` has the measured coverage, error rates and power.

mod bootstrap;
mod holm;
mod sign_flip;
mod shape;
mod summary;

pub use bootstrap::{interval, interval_limits};
pub use holm::{holm, rounds_for, smallest_p};
pub use sign_flip::{any_beyond, sign_flip, SignFlip};
pub use shape::{shape, Shape};
pub use summary::{log_ratios, median, quantile, slope};
