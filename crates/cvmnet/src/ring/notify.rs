//! Notifications between guest and host, and what an exit costs.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{eventfd, poll, EventfdFlags, PollFd, PollFlags, Timespec};
use rustix::io::{read, write, Errno};
use tare_memory::timestamp;

/// A notification in one direction, by an eventfd. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Doorbell(Arc<OwnedFd>);

impl Doorbell {
    /// Makes one.
    ///
    /// # Errors
    /// The system has no file descriptors left.
    pub fn new() -> io::Result<Doorbell> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Doorbell(Arc::new(fd)))
    }

    /// Takes an eventfd from the other side.
    pub fn from_fd(fd: OwnedFd) -> Doorbell {
        Doorbell(Arc::new(fd))
    }

    /// Rings. A counter that the other side has filled up is no error: it is readable anyway.
    pub fn ring(&self) {
        let _ = write(&*self.0, &1u64.to_ne_bytes());
    }

    /// Returns how often it was rung since the last time.
    ///
    /// The answer is the other side's word. It can also make the descriptor one that blocks: it is
    /// read only after [`poll`] says that it is readable, and a read that blocks after all stops
    /// this guest alone, which its host can do anyway.
    pub fn clear(&self) -> u64 {
        let mut fds = [PollFd::new(&*self.0, PollFlags::IN)];
        let zero = Timespec::default();
        if !matches!(poll(&mut fds, Some(&zero)), Ok(1..)) {
            return 0;
        }
        let mut count = [0; 8];
        match read(&*self.0, &mut count) {
            Ok(8) => u64::from_ne_bytes(count),
            _ => 0,
        }
    }

    /// Waits until it is rung, at most for a time; returns true if it was.
    pub fn wait(&self, at_most: Duration) -> bool {
        let mut fds = [PollFd::new(&*self.0, PollFlags::IN)];
        let timeout = Timespec::try_from(at_most).unwrap_or(Timespec {
            tv_sec: i64::MAX,
            tv_nsec: 0,
        });
        match poll(&mut fds, Some(&timeout)) {
            Ok(ready) => ready > 0,
            // The caller's loop waits again.
            Err(Errno::INTR) => false,
            Err(_) => false,
        }
    }
}

impl AsFd for Doorbell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// The way in which the guest learns that the device has used buffers, and the other way round.
#[derive(Clone, Debug, Default)]
pub enum Notification {
    /// Both sides look, all the time, and ask for no notifications. What asks for one anyway is
    /// counted.
    #[default]
    Polling,
    /// By eventfds.
    Events {
        /// From the guest to the host.
        kick: Doorbell,
        /// From the host to the guest.
        interrupt: Doorbell,
    },
}

/// Exits of the guest by their reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExitCounts {
    /// The guest has notified the device: an exit as for I/O (`0x7b`, `0x3ff`).
    pub kicks: u64,
    /// The device has interrupted the guest (`0x60`).
    pub interrupts: u64,
    /// The guest has waited for an interrupt (`0x78`).
    pub halts: u64,
    /// Cycles that all of them took by the simulated cost of a world switch.
    pub cycles: u64,
}

/// Spends the cycles of `count` world switches; returns how many that were at most.
pub(super) fn switch(count: u64, cycles: u64) -> u64 {
    // Bounded: the count may come from the other side.
    let cycles = cycles.saturating_mul(count.min(16));
    if cycles > 0 {
        let start = timestamp();
        while timestamp().wrapping_sub(start) < cycles {
            std::hint::spin_loop();
        }
    }
    cycles
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_doorbell_is_heard_once_however_often_it_was_rung() {
        let (ours, theirs) = {
            let ours = Doorbell::new().unwrap();
            (
                ours.clone(),
                Doorbell::from_fd(ours.as_fd().try_clone_to_owned().unwrap()),
            )
        };
        assert!(!ours.wait(Duration::ZERO));
        assert_eq!(ours.clear(), 0);
        theirs.ring();
        theirs.ring();
        assert!(ours.wait(Duration::MAX));
        assert_eq!((ours.clear(), ours.clear()), (2, 0));
    }

    #[test]
    fn a_world_switch_takes_its_cycles_and_a_host_cannot_ask_for_endless_ones() {
        let start = timestamp();
        assert_eq!(switch(3, 100_000), 300_000);
        assert!(timestamp() - start >= 300_000);
        assert_eq!((switch(5, 0), switch(0, 9500)), (0, 0));
        assert_eq!(switch(u64::MAX, 10), 160);
    }
}
