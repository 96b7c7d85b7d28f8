#![doc = include_str!("../README.md")]

mod error;
mod pace;
pub mod protocol;
mod record;
mod session;
mod transport;
mod trial;
mod worker;
mod workload;

pub use error::Error;
pub use pace::Pace;
pub use record::Record;
pub use transport::Target;
pub use trial::{run, Options};
pub use workload::{
    KeyPattern, NoValueLen, Operation, Request, Requests, ValueLen, Workload, VALUE_LEN_MAX,
};
