#![doc = include_str!("../README.md")]

mod clock;
mod event_queue;
mod line;
mod random;
mod seeds;
mod testbed;
mod time;
mod token_bucket;

pub use clock::SkewedClock;
pub use event_queue::EventQueue;
pub use line::{Carried, Line, LineConfig, LineCounters, Queue};
pub use random::Random;
pub use seeds::for_seeds;
pub use testbed::{Cable, Interface, Node, NodeId, Outbox, Testbed};
pub use time::Instant;
pub use token_bucket::TokenBucket;
