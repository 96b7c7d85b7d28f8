//! Requests over rings in shared memory.

use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::event::{eventfd, EventfdFlags};
use tare_sim::Instant;

use super::source::{Source, Turn};
use super::FairMutex;
use crate::protocol::{Execute, Node, Secret};
use crate::transport::shm::{Counters, Server, ServerConfig};
use crate::transport::{share_processor, Waiting};

/// Looks at the rings between two looks at the clock.
const LOOKS: u32 = 256;

/// The rings of the clients on this machine.
///
/// The node is locked only while there are entries, so that other workers are not held up by one
/// that looks for some. It is best alone at its worker: then the worker looks at nothing else, and
/// the time for which it does is that of [`Waiting`].
#[derive(Debug)]
pub struct ShmSource {
    /// [`Source::descriptor`] changes it, since it is called just before the worker sleeps, and
    /// from then on clients must notify the node.
    server: RefCell<Server>,
    is_asleep: Cell<bool>,
    /// The server's descriptor.
    sockets: OwnedFd,
    /// A descriptor that can always be read.
    ready: OwnedFd,
    work: Arc<ShmWork>,
}

/// The clients over shared memory and the work for them, for another thread to read: as of at most
/// 20 ms ago, unless the worker slept since.
#[derive(Debug, Default)]
pub struct ShmWork(Mutex<(usize, Counters)>);

impl ShmWork {
    /// Returns the number of clients, and what the node did.
    pub fn get(&self) -> (usize, Counters) {
        *self.lock()
    }

    fn lock(&self) -> MutexGuard<'_, (usize, Counters)> {
        // It is copied as a whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ShmSource {
    /// Listens at a path. With a secret, clients need capabilities that follow from it. The epoch
    /// tells one run of the node from another; see [`ServerConfig::epoch`].
    ///
    /// # Errors
    /// Those of the operating system; `AddrInUse` if another node listens there.
    pub fn listen(path: &Path, epoch: u64, secret: Option<Secret>) -> io::Result<ShmSource> {
        let config = match secret {
            Some(secret) => ServerConfig::with_secret(epoch, secret),
            None => ServerConfig::new(epoch),
        };
        ShmSource::new(Server::listen(path, config)?)
    }

    /// A source around a server with any settings.
    ///
    /// # Errors
    /// Those of the operating system, such as no free descriptor.
    pub fn new(server: Server) -> io::Result<ShmSource> {
        Ok(ShmSource {
            sockets: server.as_fd().try_clone_to_owned()?,
            ready: eventfd(1, EventfdFlags::CLOEXEC)?,
            server: RefCell::new(server),
            is_asleep: Cell::new(false),
            work: Arc::default(),
        })
    }

    /// Returns where the source shows its clients and its work, while it belongs to a worker.
    pub fn work(&self) -> Arc<ShmWork> {
        Arc::clone(&self.work)
    }

    /// Answers what is there.
    #[inline]
    fn serve<S: Execute>(&mut self, node: &FairMutex<Node<S>>) -> io::Result<Turn> {
        let server = self.server.get_mut();
        if !server.look()? {
            return Ok(Turn::default());
        }
        let before = server.counters();
        let mut locked = node.lock();
        server.turn(locked.store_mut(), &Instant::now)?;
        // The next entry may be there already, and the other workers have a turn first.
        node.leave(locked);
        Ok(difference(before, server.counters()))
    }
}

fn difference(before: Counters, after: Counters) -> Turn {
    let entries = after.entries - before.entries;
    Turn {
        received: entries,
        received_bytes: after.written_bytes - before.written_bytes,
        sent: entries,
        sent_bytes: after.read_bytes - before.read_bytes,
        refused: 0,
    }
}

impl<S: Execute> Source<S> for ShmSource {
    fn turn(
        &mut self,
        node: &FairMutex<Node<S>>,
        wait: Duration,
        waiting: Waiting,
    ) -> io::Result<Turn> {
        if self.is_asleep.take() {
            self.server.get_mut().wake()?;
        }
        let turn = self.serve(node)?;
        if turn.received > 0 || wait.is_zero() {
            return Ok(turn);
        }
        let busy = waiting.busy().min(wait);
        if !busy.is_zero() {
            let start = Instant::now();
            loop {
                for _ in 0..LOOKS {
                    let turn = self.serve(node)?;
                    if turn.received > 0 {
                        return Ok(turn);
                    }
                    // Without PAUSE a round trip takes 1.15 times as long: the node takes the line
                    // away while the client still writes it.
                    std::hint::spin_loop();
                }
                let waited = Instant::now().since(start);
                if waited >= busy {
                    break;
                }
                share_processor(waited);
            }
        }
        let left = wait - busy;
        if !left.is_zero() {
            self.server.get_mut().wait(Some(left))?;
        }
        self.serve(node)
    }

    fn report(&self) {
        let server = self.server.borrow();
        *self.work.lock() = (server.clients(), server.counters());
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.is_asleep.set(true);
        // If a client was faster, it does not notify the node: the worker must not sleep.
        match self.server.borrow_mut().prepare_to_sleep() {
            true => Some(self.sockets.as_fd()),
            false => Some(self.ready.as_fd()),
        }
    }
}
