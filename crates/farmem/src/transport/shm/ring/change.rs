//! Entries that are no reads.

use tare_sim::Instant;

use super::{Ring, Shared};
use crate::operation::{Error, Operation};
use crate::protocol::codec::{self, code, status};
use crate::protocol::{Execute, Request};
use crate::transport::shm::layout::{flag, to_bytes, Entry, RETRACTED};
use crate::transport::shm::Violation;

impl Ring {
    /// Runs an entry that is no read; `None` if that is not possible at present.
    pub(super) fn other<S: Execute, C: Fn() -> Instant>(
        &mut self,
        entry: &Entry,
        shared: &mut Shared<'_, S, C>,
    ) -> Result<Option<(u8, u64)>, Violation> {
        if !entry.has(flag::PART) {
            self.forget_parts(shared);
        }
        if entry.code == RETRACTED {
            return Ok(Some((status::EXPIRED, 0)));
        }
        if !self.is_allowed(entry.space(), shared) {
            return Ok(Some(codec::encode_outcome(Err(Error::NoSuchSpace))));
        }
        match entry.code {
            code::WRITE if entry.has(flag::PART) => self.assemble(entry, shared),
            _ if entry.has(flag::PART) => Err(Violation::Reserved),
            code::WRITE => self.write(entry, shared).map(Some),
            _ => self.run(entry, shared),
        }
    }

    fn write<S: Execute, C: Fn() -> Instant>(
        &mut self,
        entry: &Entry,
        shared: &mut Shared<'_, S, C>,
    ) -> Result<(u8, u64), Violation> {
        let (space, guard) = (entry.space(), entry.guard());
        if guard.is_some() {
            shared.time();
        }
        // Without a guard the time changes nothing, and a look at the clock takes as long as the
        // write does.
        let now = *shared.now;
        let len = entry.length as usize;
        let outcome = if entry.has(flag::AREA) {
            let from = self.layout.area(&self.memory, entry.line, entry.length);
            let from = from.ok_or(Violation::Area)?;
            let mut done = 0;
            let mut fill = |to: &mut [u8]| {
                // Bytes that are not within the area are not copied: `len` of them are.
                if let Some(from) = from.range(done, to.len()) {
                    let _ = from.copy_to(to);
                }
                done += to.len();
            };
            let (address, length) = (entry.address, entry.length);
            let store = &mut *shared.store;
            store.write_with(now, space, address, length, guard, &mut fill)
        } else {
            if len > Entry::inline_max(guard.is_some()) {
                return Err(Violation::Area);
            }
            let bytes = to_bytes(&entry.body);
            let operation = Operation::Write {
                address: entry.address,
                data: &bytes[..len],
                guard,
            };
            shared.store.execute(now, space, &operation, shared.scratch)
        };
        Ok(codec::encode_outcome(outcome))
    }

    fn run<S: Execute, C: Fn() -> Instant>(
        &mut self,
        entry: &Entry,
        shared: &mut Shared<'_, S, C>,
    ) -> Result<Option<(u8, u64)>, Violation> {
        let len = usize::from(entry.arguments);
        let guard = entry.guard();
        let inline = to_bytes(&entry.body);
        let mut copy = [0; u8::MAX as usize];
        let body = if entry.has(flag::AREA) {
            let from = self
                .layout
                .area(&self.memory, entry.line, entry.arguments.into());
            let copied = from.and_then(|from| from.copy_to(&mut copy[..len]));
            copied.ok_or(Violation::Area)?;
            &copy[..len]
        } else if len <= Entry::inline_max(guard.is_some()) {
            &inline[..len]
        } else {
            return Err(Violation::Area);
        };
        let request = Request {
            code: entry.code,
            space: entry.space(),
            id: 0,
            epoch: 0,
            replaced: 0,
            sent_ns: 0,
            address: entry.address,
            length: entry.length,
            offset: 0,
            segment: 0,
            guard,
            body,
        };
        let operation = codec::decode(&request, body).map_err(|_| Violation::Operation)?;
        if !shared.store.prepare(entry.space(), &operation) {
            return Ok(None);
        }
        shared.scratch.clear();
        // The others do not look at it, and asking for it takes as long as many of them.
        let now = match guard.is_some() || matches!(entry.code, code::LOCK | code::UNLOCK) {
            true => shared.time(),
            false => *shared.now,
        };
        let outcome = shared
            .store
            .execute(now, entry.space(), &operation, shared.scratch);
        Ok(Some(codec::encode_outcome(outcome)))
    }
}
