//! Links: the way of datagrams between a client and its node.

use std::cell::RefCell;
use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use tare_sim::Instant;

use crate::protocol::{Datagrams, Run};

/// Bytes that [`Link::receive`] needs room for: what the kernel puts together at most.
pub const DATAGRAM_MAX: usize = 1 << 16;

thread_local! {
    /// One buffer for all links of a thread: with one each, thousands of sessions would never find
    /// theirs in a cache.
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    /// The same for what is sent; empty between two uses.
    static OUT: RefCell<Datagrams> = const { RefCell::new(Datagrams::new()) };
}

/// Calls a function with the thread's buffer of [`DATAGRAM_MAX`] bytes.
#[inline]
pub(super) fn with_buffer<R>(call: impl FnOnce(&mut [u8]) -> R) -> R {
    BUFFER.with_borrow_mut(|buffer| {
        if buffer.is_empty() {
            buffer.resize(DATAGRAM_MAX, 0);
        }
        call(buffer)
    })
}

/// Calls a function with the thread's empty datagrams.
#[inline]
pub(super) fn with_out<R>(call: impl FnOnce(&mut Datagrams) -> R) -> R {
    OUT.with_borrow_mut(|out| {
        out.clear();
        call(out)
    })
}

/// The way to wait for datagrams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Waiting {
    /// Asleep in the kernel.
    #[default]
    Asleep,
    /// By asking again and again, which takes a processor and saves the time to wake up.
    Busy,
    /// Busy for so long, then asleep.
    Adaptive(Duration),
}

impl Waiting {
    /// The time to ask again and again for.
    pub(crate) fn busy(self) -> Duration {
        match self {
            Waiting::Asleep => Duration::ZERO,
            Waiting::Busy => Duration::MAX,
            Waiting::Adaptive(time) => time,
        }
    }
}

/// The time for which a thread that asks again and again keeps its processor to itself.
const UNSHARED: Duration = Duration::from_micros(50);

/// Offers the processor to other threads, if this one has asked again and again for long: perhaps
/// to the one that is to answer. Without others it costs a fraction of a microsecond. To sleep for
/// 5 or 20 µs instead, or to keep the processor, made fewer round trips beside compilers and tests
/// on two CPUs (Linux 6.18, load 8: in 2 s 13,400 with this, 9,900, 7,800 and 4,200; medians of 7).
#[inline]
pub fn share_processor(waited: Duration) {
    if waited > UNSHARED {
        std::thread::yield_now();
    }
}

/// The way of datagrams between the clients of one thread and one node. It may lose, duplicate and
/// reorder them.
pub trait Link {
    /// Sends datagrams. What the network has no room or no way for is lost, which is no error.
    ///
    /// # Errors
    /// Those after which the link is of no use.
    fn send(&mut self, datagrams: &Datagrams) -> io::Result<()>;

    /// Returns the least bytes of data in a datagram with which [`Link::send_run`] is faster than a
    /// copy; `None` if it never is.
    fn gathers(&self) -> Option<u32> {
        None
    }

    /// Sends segments of a long write, as [`Link::send`] sends datagrams.
    ///
    /// # Errors
    /// As [`Link::send`].
    fn send_run(&mut self, run: &Run<'_>) -> io::Result<()> {
        let mut datagrams = Datagrams::new();
        run.datagrams()
            .for_each(|parts| datagrams.push(&parts.concat()));
        self.send(&datagrams)
    }

    /// Takes a datagram, or several of the same sender in one piece, and returns the number of
    /// bytes; 0 if none came, for which it waits at most for `wait`. The buffer has
    /// [`DATAGRAM_MAX`] bytes.
    ///
    /// # Errors
    /// Those after which the link is of no use.
    fn receive(&mut self, buffer: &mut [u8], wait: Duration) -> io::Result<usize>;

    /// Returns the time when something came last, if that was a moment ago, to within a few
    /// microseconds. It is not before any time that was read before that.
    fn now(&mut self) -> Instant {
        Instant::now()
    }

    /// The descriptor that is readable when a datagram has come, if there is one.
    fn descriptor(&self) -> Option<BorrowedFd<'_>>;
}
