#![doc = include_str!("../README.md")]

mod error;
mod mapping;
mod view;

pub use error::Error;
pub use mapping::{SharedMemory, LEN_MAX};
pub use view::{Atomic, AtomicValue, Slice, Value, View, Volatile};
