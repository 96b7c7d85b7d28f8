//! The client's side.

mod area;
mod call;
mod channel;
mod config;
mod entry;
mod pending;
mod timeout;
mod wake;

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{eventfd, EventfdFlags};
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use tare_memory::{Copier, SharedMemory};

use self::area::Area;
pub use self::config::ClientConfig;
use self::pending::Pending;
use self::wake::wait_readable;
use super::bell::Bell;
use super::layout::{Layout, CLIENT, FIRST, LINE, NODE};
use super::rendezvous::{self, Message, Received, Shown};
use super::{ConnectError, Violation, PART_MAX, VERSION};
use crate::protocol::{Capability, Completion, Failure};

/// Looks at a completion between looks at the clock.
const SPINS: u32 = 512;

/// Capabilities that were shown and not answered, at most: the socket has room for more, so that no
/// message for which there is none is waited for.
const SHOWN_MAX: u32 = 64;

/// The time between looks at the socket while the node does not answer.
const LIVENESS: Duration = Duration::from_millis(1);

/// A client process's ring to a node, for any number of spaces.
///
/// Operations that are submitted complete in the order of submission. For one at a time,
/// [`Client::call`], [`Client::read_into`] and [`Client::write`] neither allocate nor queue.
pub struct Client {
    socket: OwnedFd,
    memory: SharedMemory,
    layout: Layout,
    config: ClientConfig,
    part_max: u32,
    epoch: u64,
    /// The number of the next entry, and of the first that is not answered.
    next: u32,
    answered: u32,
    /// The entries between these, in order.
    flights: VecDeque<Flight>,
    area: Area,
    /// For what is written.
    copier: Copier,
    /// The operations that are not over, in order, and the number of the first.
    operations: VecDeque<Pending>,
    first: u64,
    /// Those at the end of `operations` that are not in the ring as a whole.
    unsent: usize,
    /// Those at the end that were submitted since the last call of `progress`.
    undated: usize,
    /// The operations that have no completion yet.
    outstanding: usize,
    completions: VecDeque<Completion>,
    buffers: Vec<Vec<u8>>,
    /// Their capacities together.
    buffer_bytes: usize,
    bell: Bell,
    /// A descriptor that can always be read.
    ready: OwnedFd,
    /// The last time that the node answered.
    heard: Instant,
    /// Capabilities that were shown and not answered; answers come in order.
    shown: u32,
    is_gone: bool,
    violation: Option<Violation>,
}

/// An entry that is not answered.
#[derive(Clone, Copy, Debug)]
struct Flight {
    operation: u64,
    len: u32,
    line: u32,
    /// Lines of the data area that are free again after it.
    lines: u32,
}

impl Client {
    /// Connects to the node at a path.
    ///
    /// # Errors
    /// No node listens there, it refuses, or it is another version.
    pub fn connect(path: &Path, config: &ClientConfig) -> Result<Client, ConnectError> {
        let sizes = (config.entries, config.data_bytes);
        let wanted = Layout::checked(sizes);
        let wanted = wanted.ok_or(ConnectError::Refused {
            refusal: super::Refusal::Sizes,
            version: VERSION,
        })?;
        let address = SocketAddrUnix::new(path).map_err(ConnectError::os("the socket's path"))?;
        let kind = SocketType::SEQPACKET;
        let socket = net::socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None);
        let socket = socket.map_err(ConnectError::os("socket"))?;
        net::connect(&socket, &address).map_err(ConnectError::os("connecting to the node"))?;
        let failed = |source| ConnectError::Os {
            doing: "greeting the node",
            source,
        };
        let hello = Message::Hello {
            version: VERSION,
            layout: sizes,
        };
        match rendezvous::send(&socket, &hello) {
            // It has refused already, and said why.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
            sent => sent.map_err(failed)?,
        }
        // Longer than for an operation: the node zeroes a region first.
        let patience = config.timeout.saturating_add(Duration::from_secs(2));
        if !wait_readable(&socket, patience).map_err(failed)? {
            return Err(ConnectError::Silent);
        }
        let (message, file) = rendezvous::receive_with(&socket).map_err(failed)?;
        let Some(Message::Welcome {
            version,
            layout,
            epoch,
            refusal,
        }) = message
        else {
            return Err(ConnectError::NotANode);
        };
        if let Some(refusal) = refusal {
            return Err(ConnectError::Refused { refusal, version });
        }
        let file = file.ok_or(ConnectError::NotANode)?;
        let memory = SharedMemory::open(file).map_err(ConnectError::Memory)?;
        if layout != sizes || memory.len() != wanted.bytes() {
            return Err(ConnectError::NotANode);
        }
        let ready = eventfd(1, EventfdFlags::CLOEXEC).map_err(ConnectError::os("eventfd"))?;
        Ok(Client {
            socket,
            memory,
            layout: wanted,
            config: *config,
            part_max: PART_MAX.min(wanted.data_bytes / 4),
            epoch,
            next: FIRST,
            answered: FIRST,
            flights: VecDeque::with_capacity(wanted.entries as usize),
            area: Area::new(wanted.data_bytes / LINE as u32),
            copier: Copier::default(),
            operations: VecDeque::new(),
            first: 0,
            unsent: 0,
            undated: 0,
            outstanding: 0,
            completions: VecDeque::new(),
            buffers: Vec::new(),
            buffer_bytes: 0,
            bell: Bell::new(CLIENT, NODE),
            ready,
            heard: Instant::now(),
            shown: 0,
            is_gone: false,
            violation: None,
        })
    }

    /// Returns the node's epoch.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Returns true if the node has ended or cut off this client. Then nothing reaches it any more:
    /// connect again.
    pub fn is_gone(&self) -> bool {
        self.is_gone
    }

    /// Returns the reason if the node cut off this client.
    pub fn violation(&self) -> Option<Violation> {
        self.violation
    }

    /// Shows the capability of a space to the node; returns whether it is the right one.
    ///
    /// # Errors
    /// [`Failure::NodeGone`], or [`Failure::Timeout`].
    pub fn attach(&mut self, capability: &Capability) -> Result<bool, Failure> {
        let deadline = Instant::now() + self.config.timeout;
        while self.shown >= SHOWN_MAX {
            let left = deadline.saturating_duration_since(Instant::now());
            if !wait_readable(&self.socket, left).map_err(|_| Failure::NodeGone)? {
                return Err(Failure::Timeout);
            }
            self.messages();
            if self.is_gone {
                return Err(Failure::NodeGone);
            }
        }
        let space = capability.space();
        let capability = Shown::new(capability.bytes());
        let message = Message::Attach { space, capability };
        rendezvous::send(&self.socket, &message).map_err(|_| Failure::NodeGone)?;
        self.shown += 1;
        loop {
            match rendezvous::receive(&self.socket) {
                // Those before it are of calls that did not wait for them.
                Received::Message(Message::Attached { allowed }) if self.shown == 1 => {
                    self.shown = 0;
                    return Ok(allowed);
                }
                Received::Nothing => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    let is_there = wait_readable(&self.socket, left);
                    if !is_there.map_err(|_| Failure::NodeGone)? {
                        return Err(Failure::Timeout);
                    }
                }
                other => self.received(&other),
            }
            if self.is_gone {
                return Err(Failure::NodeGone);
            }
        }
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("epoch", &self.epoch)
            .field("next", &self.next)
            .field("answered", &self.answered)
            .field("outstanding", &self.outstanding)
            .field("is_gone", &self.is_gone)
            .finish_non_exhaustive()
    }
}
