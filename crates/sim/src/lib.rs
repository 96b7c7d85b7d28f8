//! Virtual time for protocol cores that know no clock: moments as numbers, and lines that delay,
//! lose, duplicate and reorder what they carry, all from a seed.

mod line;
mod time;
mod token_bucket;

pub use line::{Carried, Line, LineConfig, LineCounters, Queue, OVERHEAD, SHORTEST};
pub use time::Instant;
pub use token_bucket::TokenBucket;
