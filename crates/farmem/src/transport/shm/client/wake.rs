//! Sleep, and the messages on the socket.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{fence, Ordering};
use std::time::Duration;

use rustix::event::{poll, PollFd, PollFlags};
use rustix::io::Errno;

use super::Client;
use crate::transport::shm::layout::{self, CLIENT_WORD, NODE_WORD};
use crate::transport::shm::rendezvous::{self, Message, Received};
use crate::transport::shm::server::timespec;

impl Client {
    /// Wakes the node if it asks for that, as far as is known without a fence.
    #[inline]
    pub(super) fn notify(&mut self) {
        let waits = layout::waits(&self.memory, NODE_WORD);
        if waits & 1 == 1 && waits != self.notified {
            self.notified = waits;
            if rendezvous::send(&self.socket, &Message::Notify).is_err() {
                self.is_gone = true;
            }
        }
    }

    /// Wakes the node if it asks for that. The fence is against the node's between its store of the
    /// word and its last look at the ring: one of the two sees what the other stored.
    pub(super) fn ring_doorbell(&mut self) {
        if std::mem::take(&mut self.is_fence_due) {
            fence(Ordering::SeqCst);
            self.notify();
        }
    }

    /// Sleeps until the node answers or something comes over the socket, for at most `timeout`.
    pub(super) fn sleep(&mut self, timeout: Duration) -> io::Result<()> {
        let result = match self.prepare_to_sleep() {
            true => wait_readable(&self.socket, timeout).map(drop),
            false => Ok(()),
        };
        self.wake();
        result
    }

    /// Asks the node to notify this client from now on. Returns false if it has answered already.
    fn prepare_to_sleep(&self) -> bool {
        let word = self.client_word.get().wrapping_add(1) | 1;
        self.client_word.set(word);
        layout::set_waits(&self.memory, CLIENT_WORD, word);
        // Against the node's fence between its completion and its load of this word.
        fence(Ordering::SeqCst);
        let at = self.layout.completion(self.answered);
        layout::first_word(&self.memory, at, self.answered).is_none()
    }

    /// Asks the node for no more notifications, and takes what came over the socket.
    fn wake(&mut self) {
        let word = self.client_word.get_mut();
        *word = word.wrapping_add(1);
        layout::set_waits(&self.memory, CLIENT_WORD, *word);
        self.messages();
    }

    /// Ends the sleep that the caller's look at the descriptor has begun.
    #[inline]
    pub(super) fn wake_if_asleep(&mut self) {
        if *self.client_word.get_mut() & 1 == 1 {
            self.wake();
        }
    }

    /// Returns the descriptor to sleep on.
    pub(super) fn sleeping_descriptor(&self) -> BorrowedFd<'_> {
        // Completions that were not taken are not announced again, nor an answer that came before.
        match self.prepare_to_sleep() && self.completions.is_empty() && !self.is_gone {
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
            Received::Message(Message::Notify | Message::Attached { .. }) | Received::Nothing => {}
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
