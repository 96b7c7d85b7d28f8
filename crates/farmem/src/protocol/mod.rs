//! The protocol between clients and a node, without sockets and clocks: datagrams and the time go
//! in, datagrams and completions come out.
//!
//! - An operation runs at most once, whatever the network does with its requests, and exactly once
//!   if success is reported. If no answer came in time, or the node was restarted, the client
//!   reports [`Failure::OutcomeUnknown`]: it ran once or not at all, or runs once before the node's
//!   horizon.
//! - The [`Node`] knows no connections. The [`Client`] retransmits, keeps operations on the same
//!   page in order, and decides how much is outstanding.
//! - A write of up to 1 GiB happens as a whole or not at all, however many messages it takes. A
//!   read that takes several messages is one read per message, which may see different moments.
//! - Messages can be encrypted ([`Authentication::Aead`]), with keys that follow from the node's
//!   [`Secret`]. Clients have a [`Capability`] for each of their spaces.
//!
//! The format of messages is in the guide, chapter "The protocol of remote memory".

mod aead;
mod checksum;
mod client;
pub(crate) mod codec;
mod datagrams;
mod message;
mod node;
mod protection;

pub use aead::{Capability, Secret, TextError, Unauthorized};
pub use client::{
    Client, ClientConfig, ClientCounters, Completion, Exchange, Failure, OperationId, OwnedWrite,
    Run, SubmitError,
};
pub use datagrams::{network_datagram, Datagrams, LOCAL_DATAGRAM, NETWORK_DATAGRAM};
pub(crate) use datagrams::{RUN_BYTES, SEND_BYTES};
pub use message::{
    peek, Malformed, Request, Response, GUARD_LEN, MESSAGE_MAX, OPERATION_MAX, REQUEST_HEADER,
    RESPONSE_HEADER, SEGMENT_MIN, VERSION,
};
pub(crate) use node::DATAGRAM_MIN;
pub use node::{Execute, Node, NodeConfig, NodeCounters, Pieces};
pub use protection::{Authentication, Protection};

/// The horizon of a node in timeouts of its clients: one for the operation, one for copies of its
/// last request that the network still holds, and one for clocks and estimates that are off.
const HORIZON_TIMEOUTS: u32 = 3;
