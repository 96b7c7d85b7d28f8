//! The handover of a running gateway to another process, so that the program can be replaced
//! without a loss of packets or keys.
//!
//! The new process connects to the socket of the one that runs, which is beside its status socket,
//! has mode 0600, and accepts root and its own user only. Both name their version of this protocol;
//! if they differ, nothing happens. Then:
//!
//! ```text
//! new                                   old
//! reads and checks its configuration    forwards
//! Hello, workers                ────►
//!                               ◄────   Hello; a Port with descriptors for each port
//! opens what it needs, starts
//! its workers, which hold
//! Ready                         ────►
//!                                       its workers hold
//!                               ◄────   State: SAs with counters and windows, next hops, path MTUs
//! takes the state over
//! Taken                         ────►
//! its workers forward                   closes its ports and endpoints
//!                               ◄────   end of the connection
//! serves its endpoints
//! ```
//!
//! *One moment decides.* A process that has the SAs may send, and two processes with one SA would
//! use a sequence number, which is a nonce, twice. That moment is when the new process has written
//! Taken: it uses no SA before. The old process uses none from Hold on, until it has read Taken,
//! and then it ends, or knows that Taken will not come. It knows that when the other end is
//! closed, or, after a time limit, because it closes its own end for reception: then the kernel
//! either has Taken in the socket already, or lets the new process's attempt to write it fail. So
//! each process may die or hang at any step: one of them forwards afterwards, or none if both are
//! dead. A state that was received is never used later, because windows that are too old would
//! accept packets twice. Beyond that, the new process leaves [`crate::handover::RESERVED`]
//! numbers of each SA unused.
//!
//! *No packet is lost*: those that arrive meanwhile wait in packet sockets, which the new process
//! has, whatever the kind of port ([`tare_port::Handover`]).
//!
//! What is not handed over: negotiations in flight ([`crate::exchange::handover`]), and frames to
//! the control side that it had not handled.

mod predecessor;
mod wire;

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::mpsc::SyncSender;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{eventfd, poll, EventfdFlags, PollFd, PollFlags};
use serde::{Deserialize, Serialize};
use tare_port::Descriptors;

use super::shared::{unpoisoned, Shared, WorkerEvent};
pub(super) use predecessor::Predecessor;
pub(super) use wire::Wire;
use wire::{explain, Kind, SHORT};

/// The version of the protocol; that of the state is its own.
const PROTOCOL: u32 = 1;
/// The time limit of each step, while the old process forwards.
const PATIENCE: Duration = Duration::from_secs(10);
/// The longest time for which a request waits for ports that are not open yet, as they are not for
/// a moment after a handover. Less than [`PATIENCE`], for which the other process waits.
const SETTLING_MAX: Duration = Duration::from_secs(8);
/// The interval at which it looks whether they are open.
const SETTLING_STEP: Duration = Duration::from_millis(5);
/// The time limit of a handover, from the moment at which workers hold, without the time that the
/// state takes.
pub(super) const HOLD_MAX: Duration = Duration::from_millis(500);

/// The first message of each side.
#[derive(Debug, Serialize, Deserialize)]
struct Hello {
    protocol: u32,
    // Another protocol may not have these, and is to be refused for what it is.
    #[serde(default)]
    version: String,
    #[serde(default)]
    workers: usize,
    /// The number of the network namespace.
    #[serde(default)]
    namespace: u64,
}

/// A port of a worker.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct PortHello {
    worker: usize,
    public: bool,
    /// The number of the interface.
    interface: u32,
    queue: u32,
    /// See [`Descriptors::name`].
    kind: String,
}

/// A port as another process would take it over.
pub(super) struct Offered {
    pub(super) interface: u32,
    pub(super) queue: u32,
    pub(super) descriptors: Descriptors,
}

/// Returns the path of the socket for a handover, which is beside the status socket.
pub(super) fn socket_beside(status: &Path) -> PathBuf {
    status.with_extension("handover")
}

/// The socket at which another process may ask for a handover. Its thread ends once this is dropped
/// and no other process is being spoken with.
#[derive(Debug)]
pub(super) struct Listener {
    path: PathBuf,
    stop: Arc<OwnedFd>,
}

impl Listener {
    /// Listens. A process that is ready to take over is reported as [`WorkerEvent::Successor`].
    ///
    /// # Errors
    /// The socket cannot be made.
    pub(super) fn start(
        path: PathBuf,
        shared: Arc<Shared>,
        events: SyncSender<WorkerEvent>,
    ) -> io::Result<Listener> {
        let listener = tare_daemon::bind_socket(&path)?;
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let stopped = Arc::clone(&stop);
        std::thread::Builder::new()
            .name("tare-handover".into())
            .spawn(move || listen(&listener, &stopped, &shared, &events))?;
        Ok(Listener { path, stop })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let _ = rustix::io::write(&*self.stop, &1u64.to_ne_bytes());
        let _ = std::fs::remove_file(&self.path);
    }
}

fn listen(
    listener: &UnixListener,
    stop: &OwnedFd,
    shared: &Shared,
    events: &SyncSender<WorkerEvent>,
) {
    loop {
        let mut fds =
            [stop.as_fd(), listener.as_fd()].map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        let _ = poll(&mut fds, None);
        if !fds[0].revents().is_empty() {
            return;
        }
        let stream = match listener.accept() {
            Ok((stream, _)) => stream,
            Err(error) => {
                if error.kind() != io::ErrorKind::WouldBlock {
                    // No descriptor is left, perhaps.
                    std::thread::sleep(Duration::from_millis(100));
                }
                continue;
            }
        };
        let Ok(wire) = Wire::new(stream) else {
            continue;
        };
        match offer(&wire, shared) {
            Ok(()) => {
                if events.send(WorkerEvent::Successor(wire)).is_err() {
                    return;
                }
            }
            Err(reason) => refuse(&wire, &reason),
        }
    }
}

/// Speaks with another process until it is ready. Nothing changes here.
fn offer(wire: &Wire, shared: &Shared) -> Result<(), String> {
    let broken = |error: io::Error| explain(&error);
    wire.set_timeout(PATIENCE).map_err(broken)?;
    let hello: Hello = expect(wire, Kind::Hello)?;
    let workers = shared.workers.len();
    if hello.protocol != PROTOCOL {
        return Err(format!(
            "this gateway is of version {} with handover protocol {PROTOCOL}, and the other of {} with {}: restart instead",
            env!("CARGO_PKG_VERSION"),
            hello.version,
            hello.protocol
        ));
    }
    if hello.workers != workers {
        return Err(format!(
            "this gateway has {workers} workers and the other {}; --cpu must name as many",
            hello.workers
        ));
    }
    let own = own_hello(workers).map_err(broken)?;
    if hello.namespace != own.namespace {
        return Err("this gateway runs in another network namespace".into());
    }
    let mut ports = Vec::new();
    let end = Instant::now() + SETTLING_MAX;
    for (worker, state) in shared.workers.iter().enumerate() {
        while unpoisoned(&state.offered).is_none() && Instant::now() < end {
            std::thread::sleep(SETTLING_STEP);
        }
        let offered = unpoisoned(&state.offered);
        let both = offered.as_ref().ok_or_else(|| {
            format!("the ports of worker {worker} are not open; see the log, and try again")
        })?;
        for (public, port) in [false, true].into_iter().zip(both) {
            let hello = PortHello {
                worker,
                public,
                interface: port.interface,
                queue: port.queue,
                kind: port.descriptors.name(),
            };
            ports.push((hello, port.descriptors.try_clone().map_err(broken)?));
        }
    }
    send_json(wire, Kind::Hello, &own, &[]).map_err(broken)?;
    for (hello, descriptors) in ports {
        let fds = descriptors.into_fds();
        let fds: Vec<_> = fds.iter().map(|fd| fd.as_fd()).collect();
        send_json(wire, Kind::Port, &hello, &fds).map_err(broken)?;
    }
    expect_empty(wire, Kind::Ready)
}

/// Tells another process why there will be no handover.
pub(super) fn refuse(wire: &Wire, reason: &str) {
    let _ = wire.send(Kind::Refused, reason.as_bytes(), &[]);
}

/// Gives the state to a process that is ready and returns once it has taken over.
///
/// # Errors
/// It has not, and never will: the state is still this process's.
pub(super) fn give(wire: &Wire, state: &[u8], timeout: Duration) -> Result<(), String> {
    let told = wire
        .set_timeout(timeout)
        .and_then(|()| wire.send(Kind::State, state, &[]));
    let mut reason = match told {
        Ok(()) => None,
        Err(error) => Some(explain(&error)),
    };
    // From the first sign that it has not been taken, nothing is accepted but what was sent before.
    loop {
        if reason.is_some() {
            wire.close_reception();
        }
        match wire.receive(SHORT) {
            Ok(message) if message.kind == Kind::Taken => return Ok(()),
            Ok(message) if message.kind == Kind::Refused => {
                let text = String::from_utf8_lossy(&message.content).into_owned();
                reason.get_or_insert(text);
            }
            Ok(_) => {
                reason.get_or_insert("the other process does not keep to the protocol".into());
            }
            Err(error) => match reason {
                Some(reason) => return Err(reason),
                None => reason = Some(explain(&error)),
            },
        }
    }
}

fn own_hello(workers: usize) -> io::Result<Hello> {
    Ok(Hello {
        protocol: PROTOCOL,
        version: env!("CARGO_PKG_VERSION").into(),
        workers,
        namespace: std::fs::metadata("/proc/thread-self/ns/net")?.ino(),
    })
}

fn send_json(
    wire: &Wire,
    kind: Kind,
    content: &impl Serialize,
    fds: &[std::os::fd::BorrowedFd<'_>],
) -> io::Result<()> {
    wire.send(kind, &serde_json::to_vec(content)?, fds)
}

/// Receives a message of this type; anything else is an error in words.
fn receive(wire: &Wire, kind: Kind, longest: u64) -> Result<wire::Message, String> {
    let message = wire.receive(longest).map_err(|error| explain(&error))?;
    match message.kind {
        same if same == kind => Ok(message),
        Kind::Refused => Err(String::from_utf8_lossy(&message.content).into_owned()),
        other => Err(format!(
            "the other process sent {other:?} instead of {kind:?}"
        )),
    }
}

fn expect<T: for<'a> Deserialize<'a>>(wire: &Wire, kind: Kind) -> Result<T, String> {
    let message = receive(wire, kind, SHORT)?;
    let parsed = serde_json::from_slice(&message.content);
    parsed.map_err(|error| format!("{kind:?} of the other process: {error}"))
}

fn expect_empty(wire: &Wire, kind: Kind) -> Result<(), String> {
    receive(wire, kind, SHORT).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::shared::{control_queues, tests::shared};

    #[test]
    fn a_listener_that_is_dropped_leaves_no_thread_and_no_socket() {
        let directory = tempfile::tempdir().unwrap();
        let shared = Arc::new(shared());
        let (to_control, _inbox) = control_queues();
        let end = Instant::now() + Duration::from_secs(60);
        for n in 0..10 {
            let path = directory.path().join(format!("{n}.handover"));
            let events = to_control.events.clone();
            drop(Listener::start(path.clone(), Arc::clone(&shared), events).unwrap());
            assert!(!path.exists());
        }
        // Each thread has a part in it.
        while Arc::strong_count(&shared) > 1 {
            assert!(Instant::now() < end);
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
