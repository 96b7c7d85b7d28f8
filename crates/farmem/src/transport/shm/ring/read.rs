//! Reads.

use tare_sim::Instant;

use super::{Ring, Shared};
use crate::operation::{Error, Operation, Value};
use crate::protocol::codec::{self, status};
use crate::protocol::Execute;
use crate::transport::shm::layout::{flag, to_words, Entry, READ_INLINE};
use crate::transport::shm::{Violation, BATCH};

/// The longest read whose lookup overlaps with those of others: a longer one looks ahead itself.
const LOOK_AHEAD_MAX: u32 = 4096;

impl Ring {
    /// Answers `count` reads of the batch, whose lookups overlap.
    #[inline]
    pub(super) fn read<S: Execute, C: Fn() -> Instant>(
        &mut self,
        at: usize,
        count: usize,
        shared: &mut Shared<'_, S, C>,
    ) -> Result<(), Violation> {
        let mut done = 0;
        while done < count {
            let entry = shared.batch[at + done];
            if done + 1 == count || entry.length > LOOK_AHEAD_MAX {
                let part = shared
                    .store
                    .part(entry.space(), entry.address, entry.length);
                if !self.read_inline(&entry, part, shared)? {
                    let next = shared.batch[at + done + 1..at + count].first().copied();
                    self.read_any(&entry, next.as_ref(), shared)?;
                }
                done += 1;
                continue;
            }
            // Refused ones end the look ahead, since what they need changes the store's borrow.
            let mut parts: [Option<Result<&[u8], Error>>; BATCH] = [None; BATCH];
            for (part, entry) in parts.iter_mut().zip(&shared.batch[at + done..at + count]) {
                *part = shared
                    .store
                    .part(entry.space(), entry.address, entry.length);
            }
            let mut slow = None;
            for part in &parts[..count - done] {
                let entry = shared.batch[at + done];
                done += 1;
                if !self.read_inline(&entry, *part, shared)? {
                    slow = Some(entry);
                    break;
                }
            }
            if let Some(entry) = slow {
                self.read_any(&entry, None, shared)?;
            }
        }
        Ok(())
    }

    /// Answers a read of bytes that are all in one part, or returns false.
    #[inline]
    fn read_inline<S, C>(
        &mut self,
        entry: &Entry,
        part: Option<Result<&[u8], Error>>,
        shared: &Shared<'_, S, C>,
    ) -> Result<bool, Violation> {
        let Some(Ok(bytes)) = part else {
            return Ok(false);
        };
        let len = bytes.len();
        let is_within = entry.address.checked_add(entry.length.into()).is_some();
        let is_plain = is_within && len == entry.length as usize && len > 0;
        if !is_plain || !self.is_allowed(entry.space(), shared) {
            return Ok(false);
        }
        match entry.flags {
            0 if len <= READ_INLINE => {
                let value = u64::from(entry.length);
                if let Ok(bytes) = <&[u8; 16]>::try_from(bytes) {
                    let [a, b] = to_words(bytes);
                    self.complete(status::DONE, &[value, a, b]);
                } else {
                    let [a, b, c, d, e, f] = to_words(bytes);
                    let words = [value, a, b, c, d, e, f];
                    self.complete(status::DONE, &words[..1 + len.div_ceil(8)]);
                }
            }
            flag::AREA => {
                let to = self.layout.area(&self.memory, entry.line, entry.length);
                let to = to.ok_or(Violation::Area)?;
                self.copier.copy(to, bytes).ok_or(Violation::Area)?;
                self.complete(status::DONE, &[entry.length.into()]);
            }
            0 => return Err(Violation::Area),
            _ => return Err(Violation::Reserved),
        }
        Ok(true)
    }

    /// Answers a read of several pages, or one that is refused. `next` is the read after it.
    #[inline(never)]
    fn read_any<S: Execute, C: Fn() -> Instant>(
        &mut self,
        entry: &Entry,
        next: Option<&Entry>,
        shared: &mut Shared<'_, S, C>,
    ) -> Result<(), Violation> {
        let len = entry.length;
        match entry.flags {
            0 if len as usize <= READ_INLINE => {}
            flag::AREA => {}
            0 => return Err(Violation::Area),
            _ => return Err(Violation::Reserved),
        }
        // Checked before anything is copied, and whatever comes of the read.
        let area = match entry.has(flag::AREA) {
            true => Some(
                self.layout
                    .area(&self.memory, entry.line, len)
                    .ok_or(Violation::Area)?,
            ),
            false => None,
        };
        let mut outcome = match self.is_allowed(entry.space(), shared) {
            true => Ok(Value::Bytes(len)),
            false => Err(Error::NoSuchSpace),
        };
        let mut words = [0; 7];
        let is_within = len > 0 && entry.address.checked_add(len.into()).is_some();
        let mut done = 0;
        if let (Some(area), true, Ok(_)) = (area, is_within, outcome) {
            let store = &*shared.store;
            let pieces = self.copier.start(len as usize);
            // The next part is looked up before this one is copied, which prefetches it: the
            // processor itself does not look beyond a page.
            let part = |done: u32| match done < len {
                true => store.part(entry.space(), entry.address + u64::from(done), len - done),
                false => next
                    .filter(|next| self.is_allowed(next.space(), shared))
                    .and_then(|next| store.part(next.space(), next.address, next.length)),
            };
            let mut this = part(0);
            while let (true, Some(Ok(bytes))) = (done < len, this) {
                let next = part(done + bytes.len() as u32);
                let ahead = next.and_then(Result::ok).unwrap_or_default();
                let to = area.range(done as usize, bytes.len());
                let copied = to.and_then(|to| pieces.copy(to, bytes, ahead));
                copied.ok_or(Violation::Area)?;
                done += bytes.len() as u32;
                this = next;
            }
            if done == len {
                self.copier.finish(pieces);
            }
            if let (true, Some(Err(error))) = (done < len, this) {
                outcome = Err(error);
            }
        }
        if outcome.is_ok() && (done < len || len == 0) {
            shared.scratch.clear();
            let address = entry.address;
            let operation = Operation::Read { address, len };
            let now = shared.time();
            let store = &mut *shared.store;
            outcome = store.execute(now, entry.space(), &operation, shared.scratch);
            if outcome.is_ok() {
                match area {
                    Some(area) => {
                        let copied = area.copy_from(shared.scratch);
                        copied.ok_or(Violation::Area)?;
                    }
                    None => words[1..].copy_from_slice(&to_words::<6>(shared.scratch)),
                }
            }
        }
        let (status, value) = codec::encode_outcome(outcome);
        words[0] = value;
        self.complete(status, &words);
        Ok(())
    }
}
