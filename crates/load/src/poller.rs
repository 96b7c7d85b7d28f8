//! Waiting for the events of a thread's connections.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, Event, EventFlags};
use rustix::event::Timespec;
use rustix::io::Errno;
use tare_sim::Instant;

use crate::Error;

/// The time for which a closed loop looks for responses before it sleeps. To wake it is work of the
/// server, of several microseconds on virtual machines: one that answers a request every 10 µs and
/// wakes its client for each answers a tenth fewer.
const LOOK_MAX: Duration = Duration::from_micros(10);

/// Sleeps without a look after one in which nothing came: a server that is slower than that is not
/// worth the generator's processor time.
const SLEEPS_WITHOUT_LOOK: u32 = 15;

/// The last part of a wait of an open loop, for which it looks instead of sleeping: sleeps are
/// whole milliseconds, and end up to a tenth of one late. To send a millisecond late would be more
/// than most latencies.
const WAKE_EARLY: Duration = Duration::from_micros(500);

/// Events that one call returns.
const EVENTS: usize = 256;

/// The sockets of a thread, by the numbers of their connections.
pub(crate) struct Poller {
    epoll: OwnedFd,
    /// The events that have come and are to be worked on.
    pub(crate) events: Vec<Event>,
    /// The time since which nothing has come.
    idle_since: Option<Instant>,
    /// Sleeps to come without a look.
    sleeps: u32,
}

impl Poller {
    pub(crate) fn new() -> Result<Poller, Error> {
        Ok(Poller {
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC).map_err(Error::system)?,
            events: Vec::with_capacity(EVENTS),
            idle_since: None,
            sleeps: 0,
        })
    }

    /// Adds the socket of connection `n`, which can be read or written when that is told.
    pub(crate) fn add(&self, socket: BorrowedFd<'_>, n: usize) -> Result<(), Error> {
        let flags = EventFlags::IN | EventFlags::OUT;
        let data = epoll::EventData::new_u64(n as u64);
        epoll::add(&self.epoll, socket, data, flags).map_err(Error::system)
    }

    /// Sets whether it is told when connection `n` can be written.
    pub(crate) fn tell(&self, socket: BorrowedFd<'_>, n: usize, out: bool) -> Result<(), Error> {
        let mut flags = EventFlags::IN;
        flags.set(EventFlags::OUT, out);
        let data = epoll::EventData::new_u64(n as u64);
        epoll::modify(&self.epoll, socket, data, flags).map_err(Error::system)
    }

    /// Waits for events of a closed loop, for `wait` at most.
    #[inline]
    pub(crate) fn wait_closed(&mut self, now: Instant, mut wait: Duration) -> Result<(), Error> {
        let idle = now.since(*self.idle_since.get_or_insert(now));
        match self.sleeps {
            0 if idle < LOOK_MAX => wait = Duration::ZERO,
            0 => self.sleeps = SLEEPS_WITHOUT_LOOK,
            _ => self.sleeps -= 1,
        }
        self.wait(wait)?;
        if !self.events.is_empty() {
            self.idle_since = None;
        }
        Ok(())
    }

    /// Waits for events of an open loop, for `wait` at most, and returns for how long there was
    /// nothing to do.
    #[inline]
    pub(crate) fn wait_open(&mut self, wait: Duration) -> Result<Duration, Error> {
        let begin = Instant::now();
        // What is there at once has been waiting for the generator, and not the generator for it.
        self.wait(Duration::ZERO)?;
        if !self.events.is_empty() {
            return Ok(Duration::ZERO);
        }
        let sleep = wait.saturating_sub(WAKE_EARLY).as_millis() as u64;
        if sleep > 0 {
            self.wait(Duration::from_millis(sleep))?;
        }
        Ok(Instant::now().since(begin))
    }

    #[inline]
    fn wait(&mut self, wait: Duration) -> Result<(), Error> {
        let wait = Timespec::try_from(wait).unwrap_or_default();
        match epoll::wait(&self.epoll, spare_capacity(&mut self.events), Some(&wait)) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(Error::system(error)),
        }
    }
}
