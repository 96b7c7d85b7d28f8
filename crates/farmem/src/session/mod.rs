//! Sessions: the way in for programs that use remote memory.
//!
//! A [`Session`] is one address space at one node, over any [`Channel`]. Its blocking methods run
//! one operation each, or a batch; [`Session::submit`] and [`Session::poll`] keep many operations
//! outstanding. [`AsyncSession`] is the same for `async` programs of any runtime.

mod asynchronous;
mod blocking;
mod connect;
mod error;

use std::collections::VecDeque;
use std::time::Duration;

use tare_sim::Instant;

use crate::operation::{Operation, SpaceId};
use crate::protocol::{Completion, OperationId, OwnedWrite, SubmitError};
use crate::transport::Channel;

pub use asynchronous::AsyncSession;
pub use connect::{addresses, connect, connect_authorized, random_id, AnyChannel, Options};
pub use error::Error;

/// The longest time that one call of [`Channel::progress`] waits. Nothing depends on it: channels
/// return earlier when something is due.
const WAIT: Duration = Duration::from_millis(100);

/// A client of one address space.
#[derive(Debug)]
pub struct Session<C = AnyChannel> {
    channel: C,
    space: SpaceId,
    /// Completions of operations that were submitted, which came while another one was waited for.
    completed: VecDeque<Completion>,
    /// Operations whose completions were not handed out.
    outstanding: usize,
    /// The node has answered once.
    has_answered: bool,
}

impl<C: Channel> Session<C> {
    /// A session over a channel that it alone uses. The space need not exist: see
    /// [`Session::open`].
    pub fn new(channel: C, space: SpaceId) -> Session<C> {
        Session {
            channel,
            space,
            completed: VecDeque::new(),
            outstanding: 0,
            has_answered: false,
        }
    }

    /// Returns the address space.
    pub fn space(&self) -> SpaceId {
        self.space
    }

    /// Returns the channel.
    pub fn channel(&self) -> &C {
        &self.channel
    }

    /// Returns the channel, for callers that drive it themselves.
    pub fn channel_mut(&mut self) -> &mut C {
        &mut self.channel
    }

    /// Returns the number of operations that were submitted and whose completions were not polled.
    pub fn outstanding(&self) -> usize {
        self.outstanding
    }

    /// Takes an operation without waiting. It is sent with others by the next [`Session::poll`] or
    /// blocking call.
    ///
    /// # Errors
    /// [`Error::Submit`]; if it is full, poll first.
    pub fn submit(&mut self, operation: &Operation<'_>) -> Result<OperationId, Error> {
        let id = self.channel.submit(self.space, operation)?;
        self.outstanding += 1;
        Ok(id)
    }

    /// Takes a write without waiting, whose bytes the session keeps until it has ended: the
    /// completion gives them back. It saves the copy that [`Session::submit`] makes of a long
    /// write.
    ///
    /// # Errors
    /// [`SubmitError`] with the write; if it is full, poll first.
    pub fn submit_write(
        &mut self,
        write: OwnedWrite,
    ) -> Result<OperationId, (SubmitError, OwnedWrite)> {
        let id = self.channel.submit_write(self.space, write)?;
        self.outstanding += 1;
        Ok(id)
    }

    /// Returns the next operation that has completed (`rpoll`), for which it waits at most for
    /// about `wait`, or twice that; `None` if none has, or none is outstanding.
    ///
    /// # Errors
    /// Those of the channel. That an operation failed is its outcome.
    pub fn poll(&mut self, wait: Duration) -> Result<Option<Completion>, Error> {
        if let Some(completion) = self.next() {
            return Ok(Some(completion));
        }
        // The clock is read only if nothing came in the first attempt, which may end early.
        let (mut left, mut start) = (wait, None);
        while self.channel.outstanding() > 0 {
            self.channel.progress(left)?;
            if let Some(completion) = self.next() {
                return Ok(Some(completion));
            }
            if left.is_zero() {
                break;
            }
            let now = Instant::now();
            left = wait.saturating_sub(now.since(*start.get_or_insert(now)));
        }
        Ok(None)
    }

    /// Gives back the buffer of a completion (`rrelease`), so that a later read can use it.
    pub fn release(&mut self, completion: Completion) {
        self.channel.recycle(completion.data);
    }

    /// Runs one operation, and waits for its end.
    ///
    /// # Errors
    /// Those of the channel and of submission. That the operation failed is its outcome.
    pub fn run(&mut self, operation: &Operation<'_>) -> Result<Completion, Error> {
        let id = self.submit_waiting(operation)?;
        self.wait(id)
    }

    /// Takes an operation; while too many are outstanding, waits for others to end.
    fn submit_waiting(&mut self, operation: &Operation<'_>) -> Result<OperationId, Error> {
        loop {
            match self.submit(operation) {
                Err(Error::Submit(SubmitError::Full)) if self.channel.outstanding() > 0 => {
                    self.channel.progress(WAIT)?;
                    self.completed
                        .extend(std::iter::from_fn(|| self.channel.poll()));
                }
                result => return result,
            }
        }
    }

    /// Waits for the end of an operation that was submitted and not polled.
    fn wait(&mut self, id: OperationId) -> Result<Completion, Error> {
        let place = self.completed.iter().position(|ended| ended.id == id);
        if let Some(ended) = place.and_then(|place| self.completed.remove(place)) {
            self.outstanding -= 1;
            return Ok(ended);
        }
        loop {
            self.channel.progress(WAIT)?;
            while let Some(ended) = self.channel.poll() {
                if ended.id == id {
                    self.outstanding -= 1;
                    return Ok(ended);
                }
                self.completed.push_back(ended);
            }
        }
    }

    fn next(&mut self) -> Option<Completion> {
        let next = match self.completed.is_empty() {
            true => self.channel.poll(),
            false => self.completed.pop_front(),
        };
        self.outstanding -= usize::from(next.is_some());
        next
    }
}
