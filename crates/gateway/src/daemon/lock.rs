//! Locks that keep a second gateway off the interfaces of one that runs.
//!
//! The lock on an interface is a listening UNIX socket with an abstract name. Such names belong to
//! a network namespace, as interfaces do, and end with the last descriptor of the socket, however
//! its process ended. A process that gets the descriptor has the lock; once it listens too, others
//! see it as the holder.

use std::fmt;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::socket::{
    accept, bind, connect, getsockopt, listen, socket, sockopt::PeerCredentials, AddressFamily,
    Backlog, SockFlag, SockType, UnixAddr, UnixCredentials,
};
use tare_daemon::{Level, Log, Record};

use super::interfaces::InterfaceQueues;

/// Other processes that may wait to learn who has a lock. They are answered a few times a second,
/// so where there is no room, there soon is.
const BACKLOG: i32 = 64;
const ATTEMPTS: u32 = 5;
const PAUSE: Duration = Duration::from_millis(100);

/// The time for which a process that was told to end may still have its locks: it closes its ports.
const PATIENCE: Duration = Duration::from_secs(2);

/// The user ID of the administrator.
const ROOT: u32 = 0;

/// The locks on the interfaces of a gateway.
#[derive(Clone, Default)]
pub(super) struct InterfaceLocks {
    /// By the numbers of the interfaces.
    held: Vec<(u32, Arc<OwnedFd>)>,
}

/// The reason why there is no lock.
#[derive(Debug)]
pub(super) enum LockError {
    /// Another gateway has it.
    Held { interface: String, pid: i32 },
    /// The system does not give one.
    System(Errno),
}

impl fmt::Display for LockError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LockError::Held { interface, pid } => write!(
                f,
                "interface {interface} is used by the gateway of process {pid}; stop that one, or name another interface"
            ),
            LockError::System(error) => write!(f, "the lock on an interface: {error}"),
        }
    }
}

impl From<Errno> for LockError {
    fn from(error: Errno) -> LockError {
        LockError::System(error)
    }
}

impl InterfaceLocks {
    /// Returns the locks on these interfaces, those that are held already among them.
    pub(super) fn on(
        &self,
        interfaces: [&InterfaceQueues; 2],
        log: &Log,
    ) -> Result<InterfaceLocks, LockError> {
        let mut locks = InterfaceLocks::default();
        for interface in interfaces {
            let number = interface.index;
            let mut known = self.held.iter();
            match known.find(|(held, _)| *held == number) {
                Some(held) => locks.held.push(held.clone()),
                None => {
                    // A gateway that starts may follow one that is just ending.
                    let patience = match self.held.is_empty() {
                        true => PATIENCE,
                        false => Duration::ZERO,
                    };
                    let lock = take_within(patience, interface, log)?;
                    locks.held.extend(lock.map(|lock| (number, Arc::new(lock))));
                }
            }
        }
        Ok(locks)
    }

    /// Makes room for others that ask who has the locks.
    pub(super) fn answer(&self) {
        for (_, lock) in &self.held {
            while let Ok(client) = accept(lock.as_raw_fd()) {
                let _ = nix::unistd::close(client);
            }
        }
    }
}

/// As [`take`], and asks again for a time while another gateway has the lock.
fn take_within(
    patience: Duration,
    interface: &InterfaceQueues,
    log: &Log,
) -> Result<Option<OwnedFd>, LockError> {
    let until = Instant::now() + patience;
    loop {
        match take(interface, log) {
            Err(LockError::Held { .. }) if Instant::now() < until => std::thread::sleep(PAUSE),
            taken => return taken,
        }
    }
}

/// Takes the lock on an interface; `None` if a process has its name that cannot be a gateway of
/// ours: any user may take the name, and is not to keep the gateway from its work.
fn take(interface: &InterfaceQueues, log: &Log) -> Result<Option<OwnedFd>, LockError> {
    let name = format!("tare-gateway/interface/{}", interface.index);
    let name = UnixAddr::new_abstract(name.as_bytes())?;
    let lock = stream()?;
    match bind(lock.as_raw_fd(), &name) {
        Ok(()) => {
            listen(&lock, Backlog::new(BACKLOG)?)?;
            return Ok(Some(lock));
        }
        Err(Errno::EADDRINUSE) => {}
        Err(error) => return Err(error.into()),
    }
    match holder(&name) {
        Ok(holder) if [ROOT, rustix::process::geteuid().as_raw()].contains(&holder.uid()) => {
            Err(LockError::Held {
                interface: interface.name.clone(),
                pid: holder.pid(),
            })
        }
        _ => {
            let record = Record::new(Level::Warn, "lock").with("interface", &*interface.name);
            let error = "its name is taken by a process of another user; not locked";
            log.write(&record.with("error", error));
            Ok(None)
        }
    }
}

/// Returns the process that listens at a name.
fn holder(name: &UnixAddr) -> Result<UnixCredentials, Errno> {
    let client = stream()?;
    for _ in 0..ATTEMPTS {
        match connect(client.as_raw_fd(), name) {
            Err(Errno::EAGAIN) => std::thread::sleep(PAUSE),
            connected => {
                connected?;
                return getsockopt(&client, PeerCredentials);
            }
        }
    }
    Err(Errno::EAGAIN)
}

fn stream() -> Result<OwnedFd, Errno> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    socket(AddressFamily::Unix, SockType::Stream, flags, None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_is_waited_for_if_its_holder_is_ending_and_not_without_end() {
        // No interface has such a number.
        let interface = InterfaceQueues {
            name: "lan".into(),
            queue: 0,
            index: u32::MAX - std::process::id() % 100_000,
        };
        let (json, level) = (false, Level::Warn);
        let log = Log::new(tare_daemon::LogOptions { json, level });
        let take = |patience| take_within(patience, &interface, &log);
        let held = take(Duration::ZERO).unwrap();
        assert!(held.is_some());
        let refused = take(Duration::ZERO).unwrap_err().to_string();
        let expected = format!("of process {};", std::process::id());
        assert!(refused.contains(&expected), "{refused}");
        let ending = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(300));
            drop(held);
        });
        // A lock whose holder does not answer cannot be had: on a busy machine, where the holder
        // has not ended for seconds.
        let mut taken = std::iter::repeat_with(|| take(Duration::from_secs(60)).unwrap());
        assert!(taken.any(|lock| lock.is_some()));
        ending.join().unwrap();
    }
}
