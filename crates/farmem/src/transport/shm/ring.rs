//! The node's side of one region.

use std::collections::HashSet;
use std::sync::atomic::{fence, Ordering};

use tare_memory::SharedMemory;
use tare_sim::Instant;

use super::layout::{
    self, flag, to_bytes, to_words, Entry, Layout, CLIENT_WORD, FIRST, NODE_WORD, READ_INLINE,
    RETRACTED,
};
use super::{Violation, BATCH, PART_MAX};
use crate::operation::{Address, Error, Guard, Operation, SpaceId, Value, LEN_MAX};
use crate::protocol::codec::{self, code, status};
use crate::protocol::{Execute, Request};

/// Bytes of data after which the node looks at the next client.
const TURN_BYTES: u64 = 4 * PART_MAX as u64;

/// A region as the node sees it, and what the node keeps of its client.
pub(super) struct Ring {
    memory: SharedMemory,
    layout: Layout,
    /// The number of the next entry.
    next: u32,
    /// The node's word in the header: odd while the client must notify the node.
    node_word: u32,
    /// The value of the client's word for which it was notified last.
    notified: u32,
    /// True if there are completions since the last full fence.
    is_fence_due: bool,
    assembly: Option<Assembly>,
    batch: Box<[Entry; BATCH]>,
    /// The spaces whose capability was shown.
    pub(super) attached: HashSet<SpaceId>,
}

/// A write in parts that is not complete yet.
struct Assembly {
    space: SpaceId,
    address: Address,
    length: u32,
    guard: Option<Guard>,
    data: Vec<u8>,
}

/// The state of the node that the rings share.
pub(super) struct Shared<'a, S, C> {
    pub(super) store: &'a mut S,
    pub(super) clock: &'a C,
    /// The last time that was asked for.
    pub(super) now: &'a mut Instant,
    /// Whether spaces must be attached.
    pub(super) is_restricted: bool,
    /// Bytes that further writes in parts may take.
    pub(super) assembly_free: &'a mut u64,
    pub(super) scratch: &'a mut Vec<u8>,
}

impl<S, C: Fn() -> Instant> Shared<'_, S, C> {
    fn time(&mut self) -> Instant {
        *self.now = (self.clock)();
        *self.now
    }
}

/// The result of a turn.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Turn {
    /// Entries answered.
    pub(super) entries: u32,
    /// Bytes to be read and written.
    pub(super) read_bytes: u64,
    pub(super) written_bytes: u64,
    /// The client is asleep, and has to be notified of completions.
    pub(super) must_notify: bool,
}

impl Ring {
    pub(super) fn new(memory: SharedMemory, layout: Layout) -> Ring {
        layout.initialize(&memory);
        Ring {
            memory,
            layout,
            next: FIRST,
            node_word: 0,
            notified: 0,
            is_fence_due: false,
            assembly: None,
            batch: Box::new([Entry::default(); BATCH]),
            attached: HashSet::new(),
        }
    }

    pub(super) fn memory(&self) -> &SharedMemory {
        &self.memory
    }

    /// Returns the bytes that the client's incomplete write takes.
    pub(super) fn assembly_bytes(&self) -> u64 {
        self.assembly
            .as_ref()
            .map_or(0, |write| write.length.into())
    }

    #[inline]
    pub(super) fn has_entry(&self) -> bool {
        let at = self.layout.submission(self.next);
        layout::first_word(&self.memory, at, self.next).is_some()
    }

    /// From now on the client has to notify the node. Returns false, and changes that back, if there
    /// is something to do already.
    pub(super) fn park(&mut self) -> bool {
        self.node_word = self.node_word.wrapping_add(1) | 1;
        layout::set_waits(&self.memory, NODE_WORD, self.node_word);
        // Against the client's fence between its entry and its load of this word: either it sees
        // the odd number, or this sees the entry.
        fence(Ordering::SeqCst);
        if self.has_entry() {
            self.unpark();
            return false;
        }
        true
    }

    /// From now on the node looks at the ring by itself.
    pub(super) fn unpark(&mut self) {
        if self.node_word & 1 == 1 {
            self.node_word = self.node_word.wrapping_add(1);
            layout::set_waits(&self.memory, NODE_WORD, self.node_word);
        }
    }

    /// Answers entries, at most [`BATCH`].
    #[inline]
    pub(super) fn turn<S: Execute, C: Fn() -> Instant>(
        &mut self,
        shared: &mut Shared<'_, S, C>,
    ) -> Result<Turn, Violation> {
        match self.has_entry() {
            true => self.serve(shared),
            false => Ok(self.rest()),
        }
    }

    /// A turn without entries.
    #[inline]
    pub(super) fn rest(&mut self) -> Turn {
        if self.is_fence_due {
            // Only now, when the client has what it waits for: completions and this fence in front
            // of the look at its word are only needed before the node stops looking.
            self.is_fence_due = false;
            fence(Ordering::SeqCst);
            return Turn {
                must_notify: self.must_notify(),
                ..Turn::default()
            };
        }
        Turn::default()
    }

    fn must_notify(&mut self) -> bool {
        let waits = layout::waits(&self.memory, CLIENT_WORD);
        let must = waits & 1 == 1 && waits != self.notified;
        if must {
            self.notified = waits;
        }
        must
    }

    fn serve<S: Execute, C: Fn() -> Instant>(
        &mut self,
        shared: &mut Shared<'_, S, C>,
    ) -> Result<Turn, Violation> {
        let (mut count, mut violation) = (0, None);
        while count < BATCH {
            let number = self.next.wrapping_add(count as u32);
            match Entry::load(&self.memory, self.layout.submission(number), number) {
                None => break,
                Some(Ok(entry)) => self.batch[count] = entry,
                Some(Err(found)) => {
                    violation = Some(found);
                    break;
                }
            }
            count += 1;
        }
        let mut at = 0;
        let mut turn = Turn::default();
        // Lengths are not checked yet: 16 of them are more than 32 bits.
        while at < count && turn.read_bytes + turn.written_bytes < TURN_BYTES {
            let batch = &self.batch[at..count];
            let reads = batch.iter().take_while(|entry| entry.code == code::READ);
            let reads = reads.count();
            if reads > 0 {
                let lengths = batch[..reads].iter().map(|entry| u64::from(entry.length));
                turn.read_bytes += lengths.sum::<u64>();
                self.read(at, reads, shared)?;
                at += reads;
                continue;
            }
            let entry = batch[0];
            turn.written_bytes += u64::from(entry.length);
            let Some((status, value)) = self.other(&entry, shared)? else {
                // No room for a write in parts: nothing of this ring goes on before that.
                break;
            };
            self.complete(status, &[value]);
            at += 1;
        }
        match violation {
            Some(violation) if at == count => Err(violation),
            _ => {
                self.is_fence_due = true;
                turn.entries = at as u32;
                turn.must_notify = self.must_notify();
                Ok(turn)
            }
        }
    }

    #[inline]
    fn complete(&mut self, status: u8, words: &[u64]) {
        let first = u64::from(self.next) | u64::from(status) << 32;
        layout::store_line(
            &self.memory,
            self.layout.completion(self.next),
            first,
            words,
        );
        self.next = self.next.wrapping_add(1);
    }

    fn is_allowed<S, C>(&self, space: SpaceId, shared: &Shared<'_, S, C>) -> bool {
        !shared.is_restricted || self.attached.contains(&space)
    }

    /// Answers `count` reads of the batch, whose lookups overlap.
    #[inline]
    fn read<S: Execute, C: Fn() -> Instant>(
        &mut self,
        at: usize,
        count: usize,
        shared: &mut Shared<'_, S, C>,
    ) -> Result<(), Violation> {
        if count == 1 {
            let entry = self.batch[at];
            let part = shared
                .store
                .part(entry.space(), entry.address, entry.length);
            if !self.read_inline(&entry, part, shared)? {
                self.read_any(&entry, shared)?;
            }
            return Ok(());
        }
        let mut done = 0;
        while done < count {
            // Refused ones end the look ahead, since what they need changes the store's borrow.
            let mut parts: [Option<Result<&[u8], Error>>; BATCH] = [None; BATCH];
            for (part, entry) in parts.iter_mut().zip(&self.batch[at + done..at + count]) {
                *part = shared
                    .store
                    .part(entry.space(), entry.address, entry.length);
            }
            let mut slow = None;
            for part in &parts[..count - done] {
                let entry = self.batch[at + done];
                done += 1;
                if !self.read_inline(&entry, *part, shared)? {
                    slow = Some(entry);
                    break;
                }
            }
            if let Some(entry) = slow {
                self.read_any(&entry, shared)?;
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
                to.copy_from(bytes).ok_or(Violation::Area)?;
                self.complete(status::DONE, &[entry.length.into()]);
            }
            0 => return Err(Violation::Area),
            _ => return Err(Violation::Reserved),
        }
        Ok(true)
    }

    /// Answers a read of several pages, or one that is refused.
    #[inline(never)]
    fn read_any<S: Execute, C: Fn() -> Instant>(
        &mut self,
        entry: &Entry,
        shared: &mut Shared<'_, S, C>,
    ) -> Result<(), Violation> {
        let len = entry.length;
        match entry.flags {
            0 if len as usize <= READ_INLINE => {}
            flag::AREA if len <= PART_MAX => {}
            0 | flag::AREA => return Err(Violation::Area),
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
            // The next part is looked up before this one is copied, which prefetches it: the
            // processor itself does not look beyond a page.
            let part = |done: u32| match done < len {
                true => store.part(entry.space(), entry.address + u64::from(done), len - done),
                false => None,
            };
            let mut this = part(0);
            while let Some(Ok(bytes)) = this {
                let next = part(done + bytes.len() as u32);
                let ahead = next.and_then(Result::ok).unwrap_or_default();
                let to = area.range(done as usize, bytes.len());
                let copied = to.and_then(|to| to.copy_from_and_prefetch(bytes, ahead));
                copied.ok_or(Violation::Area)?;
                done += bytes.len() as u32;
                this = next;
            }
            if let Some(Err(error)) = this {
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

    /// Runs an entry that is no read; `None` if that is not possible at present.
    fn other<S: Execute, C: Fn() -> Instant>(
        &mut self,
        entry: &Entry,
        shared: &mut Shared<'_, S, C>,
    ) -> Result<Option<(u8, u64)>, Violation> {
        if !entry.has(flag::PART) {
            if let Some(given_up) = self.assembly.take() {
                *shared.assembly_free += u64::from(given_up.length);
            }
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
            _ => self.run(entry, shared).map(Some),
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
    ) -> Result<(u8, u64), Violation> {
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
        shared.scratch.clear();
        let now = shared.time();
        let outcome = shared
            .store
            .execute(now, entry.space(), &operation, shared.scratch);
        Ok(codec::encode_outcome(outcome))
    }

    /// Takes a part of a write.
    fn assemble<S: Execute, C: Fn() -> Instant>(
        &mut self,
        entry: &Entry,
        shared: &mut Shared<'_, S, C>,
    ) -> Result<Option<(u8, u64)>, Violation> {
        let (at, length) = (entry.body[0] as u32, (entry.body[0] >> 32) as u32);
        let end = at.checked_add(entry.length);
        let is_sound = entry.length > 0 && length <= LEN_MAX && end.is_some_and(|e| e <= length);
        if !is_sound || !entry.has(flag::AREA) {
            return Err(Violation::Part);
        }
        let (space, address, guard) = (entry.space(), entry.address, entry.guard());
        if at == 0 {
            if let Some(given_up) = self.assembly.take() {
                *shared.assembly_free += u64::from(given_up.length);
            }
            if u64::from(length) > *shared.assembly_free {
                return Ok(None);
            }
            *shared.assembly_free -= u64::from(length);
            self.assembly = Some(Assembly {
                space,
                address,
                length,
                guard,
                data: Vec::new(),
            });
        }
        let Some(write) = &mut self.assembly else {
            return Err(Violation::Part);
        };
        let shape = (write.space, write.address, write.length, write.guard);
        if shape != (space, address, length, guard) || write.data.len() != at as usize {
            return Err(Violation::Part);
        }
        let from = self.layout.area(&self.memory, entry.line, entry.length);
        let from = from.ok_or(Violation::Area)?;
        write.data.resize(at as usize + entry.length as usize, 0);
        let copied = from.copy_to(&mut write.data[at as usize..]);
        copied.ok_or(Violation::Area)?;
        if end != Some(length) {
            return Ok(Some((status::RECEIVED, 0)));
        }
        let data = std::mem::take(&mut write.data);
        self.assembly = None;
        *shared.assembly_free += u64::from(length);
        let operation = Operation::Write {
            address,
            data: &data,
            guard,
        };
        let now = shared.time();
        let outcome = shared.store.execute(now, space, &operation, shared.scratch);
        Ok(Some(codec::encode_outcome(outcome)))
    }
}
