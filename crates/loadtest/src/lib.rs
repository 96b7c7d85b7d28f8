#![doc = include_str!("../README.md")]

mod bisect;
mod consistency;
mod error;
mod ledger;
pub mod mlr;
mod options;
mod receiver;
pub mod report;
pub mod rfc2544;
mod schedule;
mod senders;
pub mod simulate;
mod source;
pub mod stamp;
mod stream;
mod testbed;
mod tester;
pub mod transient;
mod trial;

pub use bisect::{Bisection, Limit, Step};
pub use consistency::{Consistency, Doubt};
pub use error::Error;
pub use ledger::{Ledger, Seen};
pub use options::{Link, Options};
pub use schedule::{Rate, Schedule};
pub use senders::OpenPorts;
pub use stamp::Stamp;
pub use stream::{pair, Stream, StreamConfig};
pub use tare_histogram::{Latency, LoadFigures};
pub use testbed::{Arrival, Network, Ports, Testbed, TesterPorts, Virtual};
pub use tester::{Pulse, Tester};
pub use trial::{Length, Load, PortRecord, StreamRecord, Trial};
