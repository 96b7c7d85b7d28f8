//! The settings of a client, and the results of operations.

use std::fmt;
use std::time::Duration;

use super::super::protection::{Authentication, KEYS_MAX};
use crate::operation::{Address, Error, Guard, SpaceId, Value};

/// The settings of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientConfig {
    /// The number of the first request: a random one, because a space may have been used by another
    /// client a moment ago, whose operations the node still remembers by their numbers.
    pub first_id: u64,
    /// The protection of every message. With [`Authentication::Aead`] each space needs
    /// [`Client::authorize`](super::Client::authorize).
    pub authentication: Authentication,
    /// The number of spaces whose expanded keys are kept, as for the node
    /// ([`NodeConfig::keys_max`](super::super::NodeConfig::keys_max)).
    pub keys_max: usize,
    /// Longest datagram in both directions, in bytes, at least 1024; the node's, if that is less.
    /// `None` for what the path to the node carries if that is known, else 1472.
    pub datagram_bytes: Option<usize>,
    /// The time after which an operation is given up; the node's, if that is less. While parts of
    /// a long read or write are answered, it begins anew with each of them, for all operations, and
    /// after those of a write is longer by 1 ns for each of its bytes.
    pub timeout: Duration,
    /// Most operations that have not completed, those that wait for others included.
    pub operations_max: usize,
    /// Most requests that are not answered.
    pub requests_max: usize,
    /// Most bytes of requests and responses on the way, whatever the delay.
    pub window_bytes_max: u64,
    /// Most bytes of responses on the way: what the last switch before the client can queue.
    pub response_bytes_max: u64,
    /// Time in queues that the window aims at.
    pub queueing: Duration,
    /// Retransmission timeout before the first answer.
    pub retransmission_initial: Duration,
    /// Least retransmission timeout.
    pub retransmission_min: Duration,
    /// Longest retransmission timeout.
    pub retransmission_max: Duration,
}

impl ClientConfig {
    /// Settings for Ethernet within a data centre, and a timeout of 250 ms.
    pub const fn new(first_id: u64) -> ClientConfig {
        ClientConfig {
            first_id,
            authentication: Authentication::None,
            keys_max: KEYS_MAX,
            datagram_bytes: None,
            timeout: Duration::from_millis(250),
            operations_max: 4096,
            requests_max: 4096,
            window_bytes_max: 16 << 20,
            response_bytes_max: 4 << 20,
            queueing: Duration::from_micros(500),
            retransmission_initial: Duration::from_millis(10),
            retransmission_min: Duration::from_micros(200),
            retransmission_max: Duration::from_millis(50),
        }
    }
}

/// The number of an operation of a client, which no other operation of that client has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OperationId(pub u64);

/// The reason why an operation was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SubmitError {
    /// The settings allow no more outstanding operations.
    Full,
    /// It transfers more than 1 GiB, or beyond the last address.
    Length,
    /// The client has no capability for the space.
    Unauthorized,
}

impl fmt::Display for SubmitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SubmitError::Full => "too many operations are outstanding: poll completions first",
            SubmitError::Length => "more than 1 GiB, or beyond the last address: use several",
            SubmitError::Unauthorized => {
                "no capability for the space: authorize it with the one that the node's operator \
                 made"
            }
        })
    }
}

impl std::error::Error for SubmitError {}

/// The reason why an operation did not succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The node refused it; it changed nothing.
    Refused(Error),
    /// It may have run, or may run until the node's horizon is reached, once. Which, the client
    /// cannot know: no answer came, or the node was restarted.
    OutcomeUnknown,
    /// It was given up, and changed nothing: it had not been sent, or only reads. The node was
    /// there, but slow.
    Timeout,
    /// It was given up, and changed nothing; nothing came from the node since it was submitted.
    NodeGone,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Refused(error) => error.fmt(f),
            Failure::OutcomeUnknown => {
                f.write_str("no answer: it may have happened; read what it was to change")
            }
            Failure::Timeout => f.write_str("the node was too slow; nothing happened: try again"),
            Failure::NodeGone => f.write_str(
                "the node does not answer; nothing happened: is it running? A node with a secret \
                 answers only clients that have it, or a capability of it",
            ),
        }
    }
}

impl std::error::Error for Failure {}

/// A write with bytes of its own: since nothing else can change or drop them, they need not be
/// copied to be kept until the write has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnedWrite {
    /// The first byte.
    pub address: Address,
    /// At most [`LEN_MAX`](crate::operation::LEN_MAX) bytes.
    pub data: Vec<u8>,
    /// The lock under which it happens.
    pub guard: Option<Guard>,
}

/// The end of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Completion {
    /// Its number.
    pub id: OperationId,
    /// Its space.
    pub space: SpaceId,
    /// The value, or the reason why there is none.
    pub outcome: Result<Value, Failure>,
    /// The bytes that were read, or those of an [`OwnedWrite`]; empty for other operations.
    pub data: Vec<u8>,
}

/// The work of a client, counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClientCounters {
    /// Operations submitted.
    pub submitted: u64,
    /// Operations that had to wait for others on the same pages.
    pub ordered: u64,
    /// Requests sent, retransmissions included.
    pub requests: u64,
    /// Requests sent again.
    pub retransmissions: u64,
    /// Requests that the node had no room for.
    pub busy: u64,
    /// Messages that could not be read, or that do not fit the request that they answer.
    pub malformed: u64,
    /// Messages that were not sealed with the key of their space, epoch and direction, or were
    /// changed since; the rest of their datagrams is not counted.
    pub unauthenticated: u64,
    /// Responses to requests that were answered already, or were never sent.
    pub unmatched: u64,
    /// Epochs seen after the first.
    pub restarts: u64,
}
