//! Sleep, and the messages on the socket.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{poll, PollFd, PollFlags};
use rustix::io::Errno;

use super::Client;
use crate::transport::shm::rendezvous::{self, Message, Received};
use crate::transport::shm::server::timespec;

impl Client {
    /// Wakes the node if it asks for that, as far as is known without a fence.
    #[inline]
    pub(super) fn notify(&mut self) {
        if self.bell.must_notify(&self.memory) {
            self.send_notification();
        }
    }

    /// Wakes the node if it asks for that.
    pub(super) fn ring_doorbell(&mut self) {
        if self.bell.must_notify_for_certain(&self.memory) {
            self.send_notification();
        }
    }

    #[cold]
    fn send_notification(&mut self) {
        if rendezvous::send(&self.socket, &Message::Notify).is_err() {
            self.is_gone = true;
        }
    }

    /// Sleeps until the node answers or something comes over the socket, for at most `timeout`.
    pub(super) fn sleep(&mut self, timeout: Duration) -> io::Result<()> {
        let result = match self.park() {
            true => wait_readable(&self.socket, timeout).map(drop),
            false => Ok(()),
        };
        self.wake();
        result
    }

    /// Asks the node to notify this client from now on. Returns false if it has answered already.
    fn park(&self) -> bool {
        let at = self.layout.completion(self.answered);
        self.bell.park(&self.memory, at, self.answered)
    }

    /// Ends a sleep, also one that the caller's look at the descriptor has begun: asks the node for
    /// no more notifications, and takes what came over the socket.
    #[inline]
    pub(super) fn wake(&mut self) {
        if self.bell.unpark(&self.memory) {
            self.messages();
        }
    }

    /// Returns the descriptor to sleep on.
    pub(super) fn sleeping_descriptor(&self) -> BorrowedFd<'_> {
        // Completions that were not taken are not announced again, nor an answer that came before.
        match self.park() && self.completions.is_empty() && !self.is_gone {
            true => self.socket.as_fd(),
            false => self.ready.as_fd(),
        }
    }

    /// Takes what came over the socket.
    pub(super) fn messages(&mut self) {
        while !self.is_gone {
            match rendezvous::receive(&self.socket) {
                Received::Nothing => break,
                other => self.received(&other),
            }
        }
    }

    pub(super) fn received(&mut self, received: &Received) {
        match received {
            Received::Message(Message::Notify) | Received::Nothing => {}
            Received::Message(Message::Attached { .. }) => {
                self.shown = self.shown.saturating_sub(1);
            }
            Received::Message(Message::End { violation }) => self.violation = Some(*violation),
            Received::Message(_) | Received::Malformed | Received::End => self.is_gone = true,
        }
    }
}

/// Waits until a socket can be read; returns false if the time is over.
pub(super) fn wait_readable(socket: &OwnedFd, timeout: Duration) -> io::Result<bool> {
    let mut fds = [PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::IN)];
    match poll(&mut fds, Some(&timespec(timeout))) {
        Ok(count) => Ok(count > 0),
        Err(Errno::INTR) => Ok(true),
        Err(errno) => Err(errno.into()),
    }
}
