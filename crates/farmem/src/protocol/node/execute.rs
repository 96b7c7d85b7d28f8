//! The memory behind a node, as it sees it.

use tare_sim::Instant;

use crate::memory::{Bytes, Store};
use crate::operation::{Address, Error, Guard, Operation, SpaceId, Value};

/// Freed memory that is zeroed at a time: about 10 µs, for which a request may have to wait.
const CLEAN_BYTES: u64 = 64 << 10;

/// The memory that a [`Node`](super::Node) runs operations on, or a wrapper around it.
pub trait Execute {
    /// Runs an operation on a space, and appends what it reads to `out`. A refused one changes
    /// nothing.
    fn execute(
        &mut self,
        now: Instant,
        space: SpaceId,
        operation: &Operation<'_>,
        out: &mut Vec<u8>,
    ) -> Result<Value, Error>;

    /// Does a bounded part of the work of an operation ahead of it. Returns false if there is more
    /// of it, so that a caller can serve others before it calls this again. An operation runs
    /// without it too, at once.
    fn prepare(&mut self, _space: SpaceId, _operation: &Operation<'_>) -> bool {
        true
    }

    /// Does a little of what can wait until there is nothing else to do; returns false if there is
    /// no more of it.
    fn idle(&mut self) -> bool {
        false
    }

    /// Asks the cache for what [`Execute::part`] reads for an address, and does not wait for it.
    fn prefetch(&self, _space: SpaceId, _address: Address) {}

    /// Returns the first bytes of a range where they are, at least one and at most `len`, without
    /// loading them, so that the misses of calls for several ranges overlap. Refused as a read of
    /// the first address is. `None` if there is no such way: then [`Execute::execute`] reads.
    fn part(&self, _space: SpaceId, _address: Address, _len: u32) -> Option<Result<&[u8], Error>> {
        None
    }

    /// Runs [`Operation::Write`] with data that `fill` puts in place: it is called for consecutive
    /// parts, `len` bytes in all, once; or not at all, if the write is refused.
    fn write_with(
        &mut self,
        now: Instant,
        space: SpaceId,
        address: Address,
        len: u32,
        guard: Option<Guard>,
        fill: &mut dyn FnMut(&mut [u8]),
    ) -> Result<Value, Error> {
        let mut data = vec![0; len as usize];
        fill(&mut data);
        let operation = Operation::Write {
            address,
            data: &data,
            guard,
        };
        self.execute(now, space, &operation, &mut Vec::new())
    }
}

impl<M: Bytes> Execute for Store<M> {
    fn execute(
        &mut self,
        now: Instant,
        space: SpaceId,
        operation: &Operation<'_>,
        out: &mut Vec<u8>,
    ) -> Result<Value, Error> {
        Store::execute(self, now, space, operation, out)
    }

    fn prepare(&mut self, space: SpaceId, operation: &Operation<'_>) -> bool {
        Store::prepare(self, space, operation)
    }

    fn idle(&mut self) -> bool {
        self.clean(CLEAN_BYTES)
    }

    #[inline]
    fn prefetch(&self, space: SpaceId, address: Address) {
        Store::prefetch(self, space, address);
    }

    #[inline]
    fn part(&self, space: SpaceId, address: Address, len: u32) -> Option<Result<&[u8], Error>> {
        Some(Store::part(self, space, address, len))
    }

    fn write_with(
        &mut self,
        now: Instant,
        space: SpaceId,
        address: Address,
        len: u32,
        guard: Option<Guard>,
        fill: &mut dyn FnMut(&mut [u8]),
    ) -> Result<Value, Error> {
        self.check_guard(now, space, guard)?;
        Store::write_with(self, space, address, len, fill).map(|()| Value::None)
    }
}
