//! Multiple Loss Ratio search (RFC 9971): one search for several goals, such as no loss (NDR) and
//! little loss (PDR).
//!
//! [`Goal`] holds what the RFC calls a Search Goal; [`Goal::classify`] and
//! [`Goal::conditional_throughput`] are its two algorithms, in the RFC's terms. Which loads are
//! tried, in which order and for how long is left to the implementation; what [`Search`] does is
//! written there.

mod goal;
mod search;

pub use goal::{Bound, Goal, Outcome};
pub use search::{GoalResult, Search, TrialInput};
