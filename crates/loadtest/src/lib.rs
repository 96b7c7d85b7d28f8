//! A packet load tester: it finds how much a network forwards without loss, and says exactly what
//! became of every packet.
//!
//! A [`Stream`] replays frames in a loop and writes a [`Stamp`] into each: trial, stream, sequence
//! and time of sending. A [`Ledger`] tells by the stamp what arrived: once, twice, late, out of
//! order, from an earlier trial. So for each stream of a trial *sent = received once + lost*, and
//! no loss is negative. Frames that have no room for a stamp are counted by totals, and the report
//! says so.
//!
//! A [`Tester`] runs trials on a [`Testbed`]: real ports on a real clock ([`Ports`]), or a [`Network`]
//! of nodes and lines in virtual time ([`Virtual`]), where a trial is exact and repeatable. The searches know neither:
//! [`Bisection`] and [`mlr`] take outcomes of trials and give the next load.
//!
//! # Rates
//! A rate is in bits a second of one interface and includes what a frame occupies on the wire
//! beyond its own bytes: 24 bytes, as Ethernet's preamble, checksum and gap take them.
//!
//! # Precision
//! A device with a queue of *q* frames passes a load above its rate until the queue is full. A
//! trial of *d* seconds at *p* packets a second therefore finds a rate that is up to *q* / (*p d*)
//! too high, about 0.13 % for 512 frames, 400,000 packets a second and one second. Longer trials
//! find it more precisely; [`Trial::drained`] shows how much was queued when sending ended.

mod bisect;
mod error;
mod ledger;
pub mod mlr;
mod receiver;
pub mod report;
pub mod rfc2544;
mod schedule;
pub mod simulate;
mod source;
pub mod stamp;
mod stream;
mod testbed;
mod tester;
pub mod transient;
mod trial;

pub use bisect::{Bisection, Limit, Step};
pub use error::Error;
pub use ledger::{Ledger, Seen};
pub use schedule::{Rate, Schedule};
pub use stamp::Stamp;
pub use stream::{pair, Stream, StreamConfig};
pub use tare_histogram::{Latency, LoadFigures};
pub use testbed::{Arrival, Network, Ports, Testbed, TesterPorts, Virtual};
pub use tester::{Options, Pulse, Tester};
pub use trial::{Length, Load, PortRecord, StreamRecord, Trial};
