#![doc = include_str!("../README.md")]

mod arena;
mod cache;
mod copier;
mod copy;
mod error;
mod file;
mod gate;
mod mapping;
mod meminfo;
mod private;
mod timestamp;
mod view;

pub use arena::{Arena, Placed, Shared};
pub use cache::prefetch;
pub use copier::{Copier, Pieces};
pub use error::Error;
pub use file::OwnedFile;
pub use gate::{Means, Window};
pub use mapping::{SharedMemory, LEN_MAX};
pub use meminfo::Meminfo;
pub use private::{publish, Mapping, Pages, MAPPING_MAX};
pub use timestamp::timestamp;
pub use view::{Atomic, AtomicValue, Slice, Value, View, Volatile};
