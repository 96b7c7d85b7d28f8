#![doc = include_str!("../README.md")]

mod arena;
mod error;
mod mapping;
mod view;

pub use arena::{Arena, Placed, Shared};
pub use error::Error;
pub use mapping::{SharedMemory, LEN_MAX};
pub use view::{Atomic, AtomicValue, Slice, Value, View, Volatile};
