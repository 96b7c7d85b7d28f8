//! The agent: the first process of a guest, which runs commands for the host.
//!
//! Host and agent exchange frames over a port of a virtio serial device. The agent speaks first,
//! and one command runs at a time.

mod frame;
mod init;
mod serve;

use serde::{Deserialize, Serialize};

use crate::Evidence;

pub(crate) use frame::{read, write, Frame, Kind};
pub use init::run;

/// The protocol's version, which both sides must have.
pub(crate) const PROTOCOL: u32 = 1;

/// The agent's first message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Ready {
    pub(crate) protocol: u32,
    pub(crate) evidence: Evidence,
}

/// A command for the agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Run {
    /// The program and its arguments.
    pub(crate) command: Vec<String>,
}

/// The end of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exit {
    /// The exit status; `None` if a signal ended it.
    pub status: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// The most slots of bounce buffers that were in use at a time: since the guest was booted, if
    /// its kernel keeps that, or else seen during the command; `None` if the kernel does not say.
    pub bounce_slots_max: Option<u64>,
}
