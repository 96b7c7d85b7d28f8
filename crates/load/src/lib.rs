#![doc = include_str!("../README.md")]

mod error;
mod intervals;
mod pace;
mod poller;
pub mod protocol;
mod record;
mod session;
mod trace;
mod transport;
mod trial;
mod worker;
mod workload;

pub use error::{Error, Unexpected};
pub use intervals::Intervals;
pub use pace::{Pace, RATES};
pub use record::Record;
pub use trace::{Trace, TraceKind};
pub use transport::{ask, Target};
pub use trial::{run, run_with, Options};
pub use workload::{
    Key, KeyPattern, Operation, Request, Requests, ValueLen, Workload, DATAGRAM_VALUE_MAX,
    VALUE_LEN_MAX,
};
