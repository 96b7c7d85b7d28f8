//! One operation, or one batch, at a time.

use std::time::{Duration, Instant};

use super::{Error, Session};
use crate::operation::{
    self, is_range, Address, Guard, Operation, PageSize, Permission, RegionId, SpaceId, Value,
};
use crate::protocol::{Completion, Failure, OperationId, SubmitError};
use crate::transport::{Channel, Direct};

/// The shortest time after which a lock is tried again.
const RETRY_MIN: Duration = Duration::from_micros(100);

impl<C: Channel> Session<C> {
    /// Makes the address space, unless it exists.
    ///
    /// # Errors
    /// [`Error`], as of all methods here; [`SubmitError::Unauthorized`] if the node demands a
    /// capability for the space and the session has none.
    pub fn open(&mut self) -> Result<(), Error> {
        match self.value(&Operation::Open) {
            // Over shared memory a space without a capability is one that does not exist. Nothing
            // else can be the reason, as this operation makes it.
            Err(Error::Failed(Failure::Refused(operation::Error::NoSuchSpace))) => {
                Err(SubmitError::Unauthorized.into())
            }
            outcome => outcome.map(drop),
        }
    }

    /// Removes the address space with its memory, its locks and its regions.
    ///
    /// # Errors
    /// [`Error`].
    pub fn close(&mut self) -> Result<(), Error> {
        self.value(&Operation::Close).map(drop)
    }

    /// Allocates readable and writable memory that reads as zero, in pages of 4 KiB; returns its
    /// first address.
    ///
    /// # Errors
    /// [`Error`].
    pub fn alloc(&mut self, bytes: u64) -> Result<Address, Error> {
        self.alloc_with(bytes, PageSize::Small, None, Permission::READ_WRITE, false)
    }

    /// Allocates memory as [`Operation::Alloc`] says; returns its first address.
    ///
    /// # Errors
    /// [`Error`].
    pub fn alloc_with(
        &mut self,
        bytes: u64,
        page: PageSize,
        at: Option<Address>,
        permission: Permission,
        sparse: bool,
    ) -> Result<Address, Error> {
        let alloc = Operation::Alloc {
            bytes,
            page,
            at,
            permission,
            sparse,
        };
        let value = self.value(&alloc).map_err(|error| match sparse {
            true => error,
            false => error.on_pages(bytes, Some(page)),
        });
        match value? {
            Value::Address(address) => Ok(address),
            _ => Err(unexpected()),
        }
    }

    /// Frees allocated memory, or unmaps a region.
    ///
    /// # Errors
    /// [`Error`].
    pub fn free(&mut self, address: Address, bytes: u64) -> Result<(), Error> {
        let freed = self.value(&Operation::Free { address, bytes });
        freed.map_err(|error| error.on_pages(bytes, None)).map(drop)
    }

    /// Reads bytes into a buffer.
    ///
    /// # Errors
    /// [`Error`]; the buffer is then as it was.
    pub fn read(&mut self, address: Address, into: &mut [u8]) -> Result<(), Error> {
        let read = read(address, into)?;
        self.run_into(&read, into).map(drop)
    }

    /// Writes bytes, as a whole or not at all.
    ///
    /// # Errors
    /// [`Error`].
    pub fn write(&mut self, address: Address, data: &[u8]) -> Result<(), Error> {
        self.write_guarded(address, data, None)
    }

    /// Writes bytes if the lock is still held.
    ///
    /// # Errors
    /// [`Error`].
    pub fn write_guarded(
        &mut self,
        address: Address,
        data: &[u8],
        guard: Option<Guard>,
    ) -> Result<(), Error> {
        let write = Operation::Write {
            address,
            data,
            guard,
        };
        self.value(&write).map(drop)
    }

    /// Stores `new` if the value is `expected`; returns the value before.
    ///
    /// # Errors
    /// [`Error`].
    pub fn compare_and_swap(
        &mut self,
        address: Address,
        expected: u64,
        new: u64,
    ) -> Result<u64, Error> {
        self.compare_and_swap_guarded(address, expected, new, None)
    }

    /// Stores `new` if the value is `expected` and the lock is still held; returns the value
    /// before.
    ///
    /// # Errors
    /// [`Error`].
    pub fn compare_and_swap_guarded(
        &mut self,
        address: Address,
        expected: u64,
        new: u64,
        guard: Option<Guard>,
    ) -> Result<u64, Error> {
        let swap = Operation::CompareAndSwap {
            address,
            expected,
            new,
            guard,
        };
        self.old(&swap)
    }

    /// Adds to a value, with wrap-around; returns the value before.
    ///
    /// # Errors
    /// [`Error`].
    pub fn fetch_add(&mut self, address: Address, add: u64) -> Result<u64, Error> {
        self.fetch_add_guarded(address, add, None)
    }

    /// Adds to a value if the lock is still held; returns the value before.
    ///
    /// # Errors
    /// [`Error`].
    pub fn fetch_add_guarded(
        &mut self,
        address: Address,
        add: u64,
        guard: Option<Guard>,
    ) -> Result<u64, Error> {
        let add = Operation::FetchAdd {
            address,
            add,
            guard,
        };
        self.old(&add)
    }

    /// Takes the lock of an address until `lease` is over.
    ///
    /// # Errors
    /// [`Error`]; if another holder has it,
    /// [`Locked`](crate::operation::Error::Locked).
    pub fn lock(&mut self, address: Address, lease: Duration) -> Result<Guard, Error> {
        match self.value(&Operation::Lock { address, lease })? {
            Value::Token(token) => Ok(Guard {
                lock: address,
                token,
            }),
            _ => Err(unexpected()),
        }
    }

    /// Takes the lock of an address until `lease` is over; while another holder has it, tries again
    /// for at most `patience`.
    ///
    /// # Errors
    /// [`Error`]; if another holder has it still, that of the last attempt.
    pub fn lock_within(
        &mut self,
        address: Address,
        lease: Duration,
        patience: Duration,
    ) -> Result<Guard, Error> {
        let start = Instant::now();
        let mut pause = RETRY_MIN;
        loop {
            let error = match self.lock(address, lease) {
                Ok(guard) => return Ok(guard),
                Err(error) => error,
            };
            let Error::Failed(Failure::Refused(crate::operation::Error::Locked { retry_after })) =
                error
            else {
                return Err(error);
            };
            let left = patience.saturating_sub(start.elapsed());
            if left.is_zero() {
                return Err(error);
            }
            std::thread::sleep(pause.min(retry_after).min(left));
            pause = (pause * 2).min(MAX_PAUSE);
        }
    }

    /// Gives a lock back.
    ///
    /// # Errors
    /// [`Error`].
    pub fn unlock(&mut self, guard: Guard) -> Result<(), Error> {
        let unlock = Operation::Unlock {
            address: guard.lock,
            token: guard.token,
        };
        self.value(&unlock).map(drop)
    }

    /// Waits until all operations that were submitted before have ended.
    ///
    /// # Errors
    /// [`Error`].
    pub fn fence(&mut self) -> Result<(), Error> {
        self.value(&Operation::Fence).map(drop)
    }

    /// Names a range of the space's own memory.
    ///
    /// # Errors
    /// [`Error`].
    pub fn region(&mut self, name: &[u8], address: Address, bytes: u64) -> Result<RegionId, Error> {
        let region = Operation::Region {
            name,
            address,
            bytes,
        };
        let id = self.region_id(&region);
        id.map_err(|error| error.on_pages(bytes, None))
    }

    /// Looks up a region that belongs or is granted to the space.
    ///
    /// # Errors
    /// [`Error`].
    pub fn find(&mut self, name: &[u8]) -> Result<RegionId, Error> {
        self.region_id(&Operation::Find { name })
    }

    /// Lets another space map a region of this space.
    ///
    /// # Errors
    /// [`Error`].
    pub fn grant(
        &mut self,
        region: RegionId,
        to: SpaceId,
        permission: Permission,
    ) -> Result<(), Error> {
        let grant = Operation::Grant {
            region,
            to,
            permission,
        };
        self.value(&grant).map(drop)
    }

    /// Takes a grant back, and unmaps the region from the other space.
    ///
    /// # Errors
    /// [`Error`].
    pub fn revoke(&mut self, region: RegionId, from: SpaceId) -> Result<(), Error> {
        self.value(&Operation::Revoke { region, from }).map(drop)
    }

    /// Maps a region that is granted to the space; returns its first address.
    ///
    /// # Errors
    /// [`Error`].
    pub fn map(&mut self, region: RegionId, at: Option<Address>) -> Result<Address, Error> {
        match self.value(&Operation::Map { region, at })? {
            Value::Address(address) => Ok(address),
            _ => Err(unexpected()),
        }
    }

    /// Ends a region of the space, with all grants and mappings; the memory stays.
    ///
    /// # Errors
    /// [`Error`].
    pub fn retire(&mut self, region: RegionId) -> Result<(), Error> {
        self.value(&Operation::Retire { region }).map(drop)
    }

    /// Reads several ranges, all outstanding at once.
    ///
    /// # Errors
    /// [`Error::Part`] with the first that failed, after all have ended; the buffers of those that
    /// failed are as they were. [`Error::Submit`] if one cannot be taken: of ranges that no
    /// operation can have, before any is read.
    pub fn read_many(&mut self, parts: &mut [(Address, &mut [u8])]) -> Result<(), Error> {
        check(parts.iter().map(|(address, into)| (*address, into.len())))?;
        let mut batch = Batch::default();
        for index in 0..parts.len() {
            let read = read(parts[index].0, parts[index].1)?;
            batch.submit(self, &read, |session, index, completion| {
                session.deliver(completion, parts[index].1).map(drop)
            })?;
        }
        batch.finish(self, |session, index, completion| {
            session.deliver(completion, parts[index].1).map(drop)
        })
    }

    /// Writes several ranges, all outstanding at once; each as a whole or not at all.
    ///
    /// # Errors
    /// [`Error::Part`] with the first that failed, after all have ended. [`Error::Submit`] if one
    /// cannot be taken: of ranges that no operation can have, before any is written.
    pub fn write_many(&mut self, parts: &[(Address, &[u8])]) -> Result<(), Error> {
        check(parts.iter().map(|(address, data)| (*address, data.len())))?;
        let mut batch = Batch::default();
        let ended = |_: &mut Session<C>, _, completion: Completion| completion.outcome.map(drop);
        for &(address, data) in parts {
            let write = Operation::Write {
                address,
                data,
                guard: None,
            };
            batch.submit(self, &write, ended)?;
        }
        batch.finish(self, ended)
    }

    /// Asks the node for an answer; returns the round-trip time. The space need not exist.
    ///
    /// # Errors
    /// [`Error`]; [`Failure::NodeGone`] if there is no answer.
    pub fn ping(&mut self) -> Result<Duration, Error> {
        // A read of nothing is refused, which is an answer as good as any. The first operation also
        // asks for epoch and limits, and is not what is to be measured.
        let question = Operation::Read { address: 0, len: 0 };
        if !self.has_answered {
            answered(self.run(&question)?.outcome)?;
            self.has_answered = true;
        }
        let start = Instant::now();
        answered(self.run(&question)?.outcome)?;
        Ok(start.elapsed())
    }

    fn value(&mut self, operation: &Operation<'_>) -> Result<Value, Error> {
        self.run_into(operation, &mut [])
    }

    /// Runs one operation by the shortest way that the channel has; what it reads is put into
    /// `into`.
    fn run_into(&mut self, operation: &Operation<'_>, into: &mut [u8]) -> Result<Value, Error> {
        let id = match self.channel.direct(self.space, operation, into)? {
            Direct::Ended(outcome) => return Ok(outcome?),
            Direct::Submitted(id) => {
                self.outstanding += 1;
                id
            }
            Direct::NotTaken => self.submit_waiting(operation)?,
        };
        let completion = self.wait(id)?;
        Ok(self.deliver(completion, into)?)
    }

    fn old(&mut self, operation: &Operation<'_>) -> Result<u64, Error> {
        match self.value(operation)? {
            Value::Old(old) => Ok(old),
            _ => Err(unexpected()),
        }
    }

    fn region_id(&mut self, operation: &Operation<'_>) -> Result<RegionId, Error> {
        match self.value(operation)? {
            Value::Region(region) => Ok(region),
            _ => Err(unexpected()),
        }
    }

    /// Copies what was read, and gives the buffer back.
    fn deliver(&mut self, completion: Completion, into: &mut [u8]) -> Result<Value, Failure> {
        let outcome = completion.outcome;
        if outcome.is_ok() && completion.data.len() == into.len() {
            into.copy_from_slice(&completion.data);
        }
        if !completion.data.is_empty() {
            self.release(completion);
        }
        outcome
    }
}

const MAX_PAUSE: Duration = Duration::from_millis(10);

/// Operations that were submitted together.
#[derive(Default)]
struct Batch {
    /// Ids of those that have not ended, with their indices, in the order of submission.
    waiting: std::collections::VecDeque<(OperationId, usize)>,
    submitted: usize,
    failed: Option<(usize, Failure)>,
}

impl Batch {
    /// Submits one more; while too many are outstanding, waits for the first.
    ///
    /// # Errors
    /// That of its submission, after all before it have ended: the caller knows none of their
    /// numbers.
    fn submit<C: Channel>(
        &mut self,
        session: &mut Session<C>,
        operation: &Operation<'_>,
        mut ended: impl FnMut(&mut Session<C>, usize, Completion) -> Result<(), Failure>,
    ) -> Result<(), Error> {
        let id = loop {
            let submitted = match session.submit(operation) {
                Err(Error::Submit(SubmitError::Full)) if !self.waiting.is_empty() => {
                    self.end_first(session, &mut ended)?;
                    continue;
                }
                Err(Error::Submit(SubmitError::Full)) => session.submit_waiting(operation),
                submitted => submitted,
            };
            match submitted {
                Ok(id) => break id,
                Err(error) => {
                    self.end_all(session, &mut ended)?;
                    return Err(error);
                }
            }
        };
        self.waiting.push_back((id, self.submitted));
        self.submitted += 1;
        Ok(())
    }

    fn finish<C: Channel>(
        mut self,
        session: &mut Session<C>,
        mut ended: impl FnMut(&mut Session<C>, usize, Completion) -> Result<(), Failure>,
    ) -> Result<(), Error> {
        self.end_all(session, &mut ended)?;
        match self.failed {
            None => Ok(()),
            Some((index, failure)) => Err(Error::Part { index, failure }),
        }
    }

    fn end_all<C: Channel>(
        &mut self,
        session: &mut Session<C>,
        ended: &mut impl FnMut(&mut Session<C>, usize, Completion) -> Result<(), Failure>,
    ) -> Result<(), Error> {
        while !self.waiting.is_empty() {
            self.end_first(session, ended)?;
        }
        Ok(())
    }

    fn end_first<C: Channel>(
        &mut self,
        session: &mut Session<C>,
        ended: &mut impl FnMut(&mut Session<C>, usize, Completion) -> Result<(), Failure>,
    ) -> Result<(), Error> {
        if let Some((id, index)) = self.waiting.pop_front() {
            let completion = session.wait(id)?;
            if let Err(failure) = ended(session, index, completion) {
                self.failed = self.failed.or(Some((index, failure)));
            }
        }
        Ok(())
    }
}

/// Checks whether operations can have these ranges.
fn check(mut ranges: impl Iterator<Item = (Address, usize)>) -> Result<(), SubmitError> {
    match ranges.all(|(address, len)| is_range(address, len as u64)) {
        true => Ok(()),
        false => Err(SubmitError::Length),
    }
}

fn read(address: Address, into: &[u8]) -> Result<Operation<'static>, Error> {
    let len = u32::try_from(into.len()).map_err(|_| SubmitError::Length)?;
    Ok(Operation::Read { address, len })
}

/// Takes any answer of the node for success.
fn answered(outcome: Result<Value, Failure>) -> Result<(), Error> {
    match outcome {
        Ok(_) | Err(Failure::Refused(_)) => Ok(()),
        Err(failure) => Err(failure.into()),
    }
}

/// The client checks that each value fits its operation.
fn unexpected() -> Error {
    std::io::Error::other("a value of another operation").into()
}
