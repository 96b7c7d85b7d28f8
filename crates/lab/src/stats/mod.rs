//! The statistics of a run: pure functions over numbers, no clock, no seed and no file.
//!
//! Three questions are asked of every comparison, each by a method for few rounds on a machine that
//! stalls now and then, and valid after any round:
//!
//! - *How large is it?* The [`median`] over rounds: one stall moves it by one rank.
//! - *How sure is that?* A confidence sequence, [`confidence_sequence`].
//! - *Could chance have done it?* A betting e-process, [`EProcess`], corrected by [`holm()`].
//!
//! `docs/src/instrument.md` has the measured coverage, error rates and times to a verdict.

mod e_process;
mod holm;
mod shape;
mod summary;

pub use e_process::{confidence_sequence, Bets, EProcess, Round};
pub use holm::holm;
pub use shape::{shape, Shape};
pub use summary::{log_ratios, median, slope};
