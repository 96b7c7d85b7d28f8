//! The order of outstanding operations: those on the same page run one after the other if one of
//! them writes; all others are sent at once.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use super::super::codec::{code, Head};
use crate::operation::{Operation, PageSize, SpaceId};

/// The pages of 4 KiB that an operation touches, as far as the order is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Footprint {
    kind: Kind,
    first: u64,
    last: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// That of an empty slot.
    None,
    /// Pages that only the node knows, or none: ordered with barriers alone.
    Elsewhere,
    Read,
    Write,
    /// Everything: runs after all operations of its space that were submitted before it, and before
    /// all that are submitted after it.
    Barrier,
}

const PAGE_SHIFT: u32 = 12;

/// Most pages that an operation is entered under one by one.
const NARROW_MAX: u64 = 4;

impl Footprint {
    const fn without_pages(kind: Kind) -> Footprint {
        Footprint {
            kind,
            first: 0,
            last: 0,
        }
    }

    #[inline]
    pub(super) fn new(operation: &Operation<'_>, head: &Head) -> Footprint {
        let bytes = match operation {
            Operation::Read { .. } | Operation::Write { .. } => u64::from(head.length),
            Operation::Alloc { at: None, .. } | Operation::Find { .. } => {
                return Footprint::without_pages(Kind::Elsewhere)
            }
            Operation::Alloc { bytes, page, .. } => {
                return Footprint::whole_pages(head.address, *bytes, *page);
            }
            Operation::Free { bytes, .. } => {
                let page = longest_page(head.address, *bytes);
                return Footprint::whole_pages(head.address, *bytes, page);
            }
            Operation::CompareAndSwap { .. } | Operation::FetchAdd { .. } => 8,
            // Locks, so that what a lock protects happens while it is held; changes of the space
            // and its regions, because what they touch is known to the node alone.
            _ => return Footprint::without_pages(Kind::Barrier),
        };
        let kind = match head.code {
            code::READ => Kind::Read,
            _ => Kind::Write,
        };
        Footprint::range(kind, head.address, last(head.address, bytes))
    }

    /// That of an operation on whole pages, which end with the page that has its last byte.
    fn whole_pages(address: u64, bytes: u64, page: PageSize) -> Footprint {
        let end = last(address, bytes) | (page.bytes() - 1);
        Footprint::range(Kind::Write, address, end)
    }

    #[inline]
    fn range(kind: Kind, first: u64, last: u64) -> Footprint {
        Footprint {
            kind,
            first: first >> PAGE_SHIFT,
            last: last >> PAGE_SHIFT,
        }
    }

    fn conflicts(self, other: Footprint) -> bool {
        match (self.kind, other.kind) {
            (Kind::None, _) | (_, Kind::None) => false,
            (Kind::Barrier, _) | (_, Kind::Barrier) => true,
            (Kind::Elsewhere, _) | (_, Kind::Elsewhere) | (Kind::Read, Kind::Read) => false,
            _ => self.first <= other.last && other.first <= self.last,
        }
    }

    /// Returns true if it never has to wait for others of which this is true.
    #[inline]
    fn is_read(self) -> bool {
        matches!(self.kind, Kind::None | Kind::Elsewhere | Kind::Read)
    }

    /// Returns true if it is of pages, of few.
    #[inline]
    fn is_narrow(self) -> bool {
        matches!(self.kind, Kind::Read | Kind::Write) && self.last - self.first < NARROW_MAX
    }
}

/// Returns the last byte of a range; of an empty one, its address.
#[inline]
fn last(address: u64, bytes: u64) -> u64 {
    address.saturating_add(bytes.max(1) - 1)
}

/// Returns the longest page that can begin in a range. Only the node knows which pages are there,
/// and frees the last of them as a whole.
fn longest_page(address: u64, bytes: u64) -> PageSize {
    let begins = |page: &PageSize| last(address, bytes) & !(page.bytes() - 1) >= address;
    let page = PageSize::ALL.into_iter().rev().find(begins);
    page.unwrap_or(PageSize::Small)
}

/// The operations that have not completed, by what they touch.
///
/// Operations on few pages are found by page; the others, which are rare, are compared with all.
/// While all only read, or there is only one, none has to be found: the index of pages is made when
/// there is another one beside one that writes.
#[derive(Debug, Default)]
pub(super) struct Order {
    /// Operations.
    len: usize,
    /// Operations that may write.
    writers: u32,
    /// True if those on few pages are in `pages`.
    is_indexed: bool,
    /// True if one that writes entered when there was no other, and is not in `pages`.
    is_alone: bool,
    /// Reads that entered since the last writer, while there is an index.
    reads: u32,
    pages: HashMap<(SpaceId, u64), Page, BuildHasherDefault<PageHasher>>,
    /// Operations by slot.
    entries: Vec<Entry>,
    /// The slots of those that are not narrow.
    wide: Vec<u32>,
    /// Empty lists, for their memory.
    spare: Vec<Vec<u32>>,
}

/// An operation, or [`Kind::None`] in an empty slot, of which nothing has to be known either.
#[derive(Clone, Copy, Debug)]
struct Entry {
    space: SpaceId,
    footprint: Footprint,
}

const EMPTY: Entry = Entry {
    space: SpaceId(0),
    footprint: Footprint::without_pages(Kind::None),
};

/// The operations that the next one on a page has to wait for. Those before them are waited for by
/// them.
#[derive(Debug, Default)]
struct Page {
    writer: Option<u32>,
    /// Reads since the writer.
    readers: Vec<u32>,
}

impl Order {
    /// Asks the cache for the first slot.
    #[inline]
    pub(super) fn prefetch(&self) {
        self.entries
            .first()
            .into_iter()
            .for_each(tare_memory::prefetch);
    }

    /// Enters an operation; appends the slots of the operations that it must wait for to
    /// `blockers`, some perhaps twice.
    #[inline(always)]
    pub(super) fn enter(
        &mut self,
        slot: u32,
        space: SpaceId,
        footprint: Footprint,
        blockers: &mut Vec<u32>,
    ) {
        let is_narrow = footprint.is_narrow();
        let is_read = footprint.is_read();
        // While all are narrow reads, as mostly, there is nothing to find.
        let is_plain = is_narrow && is_read && !self.is_alone;
        if !is_plain || self.is_indexed || !self.wide.is_empty() {
            self.find_blockers(slot, space, footprint, blockers);
        }
        self.len += 1;
        if self.entries.len() <= slot as usize {
            self.entries.resize(slot as usize + 1, EMPTY);
        }
        let entry = &mut self.entries[slot as usize];
        entry.space = space;
        entry.footprint.kind = footprint.kind;
        entry.footprint.first = footprint.first;
        entry.footprint.last = footprint.last;
    }

    /// Finds what an operation must wait for, and lets those after it find it.
    fn find_blockers(
        &mut self,
        slot: u32,
        space: SpaceId,
        footprint: Footprint,
        blockers: &mut Vec<u32>,
    ) {
        let (is_narrow, is_read) = (footprint.is_narrow(), footprint.is_read());
        if !is_narrow || !self.wide.is_empty() {
            self.compare(slot, space, footprint, blockers);
        }
        self.writers += u32::from(!is_read);
        if is_narrow && self.needs_index(is_read) {
            self.index(slot, space, footprint, blockers);
        }
    }

    /// Compares an operation with those that are not in the index, or with all.
    fn compare(
        &mut self,
        slot: u32,
        space: SpaceId,
        footprint: Footprint,
        blockers: &mut Vec<u32>,
    ) {
        let conflicts = |slot: &u32| {
            let entry = self.entries.get(*slot as usize);
            entry.is_some_and(|e| e.space == space && e.footprint.conflicts(footprint))
        };
        if footprint.is_narrow() {
            blockers.extend(self.wide.iter().copied().filter(conflicts));
        } else {
            blockers.extend((0..self.entries.len() as u32).filter(conflicts));
            self.wide.push(slot);
        }
    }

    /// Makes the index if an operation or one that is there is not a read, and forgets it if it was
    /// of no use for more reads than it took to make it; returns true if there is one.
    #[inline]
    fn needs_index(&mut self, is_read: bool) -> bool {
        if self.len == 0 {
            // There is nothing in it.
            (self.is_indexed, self.is_alone) = (false, !is_read);
            return false;
        }
        if !is_read {
            self.reads = 0;
        }
        if !self.is_indexed && (!is_read || self.is_alone) {
            (self.is_indexed, self.is_alone) = (true, false);
            self.index_all();
        } else if is_read && self.is_indexed {
            self.reads += 1;
            if self.writers == 0 && self.reads as usize > 2 * self.entries.len() {
                self.is_indexed = false;
                let pages = self.pages.drain();
                self.spare.extend(pages.map(|(_, mut page)| {
                    page.readers.clear();
                    page.readers
                }));
            }
        }
        self.is_indexed
    }

    /// Enters the operations that are there into the index: reads, or a single write.
    #[cold]
    fn index_all(&mut self) {
        for slot in 0..self.entries.len() as u32 {
            let Entry { space, footprint } = self.entries[slot as usize];
            if footprint.is_narrow() {
                // They have nothing to wait for.
                self.index(slot, space, footprint, &mut Vec::new());
            }
        }
    }

    fn index(&mut self, slot: u32, space: SpaceId, footprint: Footprint, blockers: &mut Vec<u32>) {
        for page in footprint.first..=footprint.last {
            let spare = &mut self.spare;
            let page = self.pages.entry((space, page)).or_insert_with(|| Page {
                writer: None,
                readers: spare.pop().unwrap_or_default(),
            });
            if footprint.kind == Kind::Write {
                match page.readers.is_empty() {
                    true => blockers.extend(page.writer),
                    false => blockers.append(&mut page.readers),
                }
                page.writer = Some(slot);
            } else {
                blockers.extend(page.writer);
                page.readers.push(slot);
            }
        }
    }

    /// Removes an operation that has completed.
    #[inline(always)]
    pub(super) fn leave(&mut self, slot: u32) {
        let Some(entry) = self.entries.get_mut(slot as usize) else {
            return;
        };
        let Entry { space, footprint } = *entry;
        self.len -= 1;
        entry.footprint.kind = Kind::None;
        self.writers -= u32::from(!footprint.is_read());
        self.is_alone &= self.writers > 0;
        if footprint.is_narrow() && !self.is_indexed {
            return;
        }
        self.leave_lists(slot, space, footprint);
    }

    fn leave_lists(&mut self, slot: u32, space: SpaceId, footprint: Footprint) {
        if !footprint.is_narrow() {
            self.wide.retain(|wide| *wide != slot);
            return;
        }
        for number in footprint.first..=footprint.last {
            let Some(page) = self.pages.get_mut(&(space, number)) else {
                continue;
            };
            page.writer = page.writer.filter(|writer| *writer != slot);
            if let Some(at) = page.readers.iter().position(|reader| *reader == slot) {
                page.readers.swap_remove(at);
            }
            if page.writer.is_none() && page.readers.is_empty() {
                if let Some(page) = self.pages.remove(&(space, number)) {
                    self.spare.push(page.readers);
                }
            }
        }
    }
}

/// One multiplication per number. The keys are the program's own pages: there is no adversary who
/// could choose them, and a keyed hash would be a tenth of a round trip.
#[derive(Default)]
struct PageHasher(u64);

impl Hasher for PageHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64((*byte).into()));
    }

    fn write_u64(&mut self, word: u64) {
        let product = u128::from(self.0 ^ word) * 0x9e37_79b9_7f4a_7c15;
        self.0 = (product >> 64) as u64 ^ product as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_waits_for_a_writer_of_its_page_however_many_reads_came_between() {
        let page = |n, write| Footprint {
            kind: if write { Kind::Write } else { Kind::Read },
            first: n,
            last: n,
        };
        let (mut order, mut blockers) = (Order::default(), Vec::new());
        order.enter(0, SpaceId(1), page(7, true), &mut blockers);
        assert!(!order.is_indexed, "it is alone");
        for _ in 0..100 {
            order.enter(1, SpaceId(1), page(8, false), &mut blockers);
            order.leave(1);
        }
        assert!(blockers.is_empty());
        order.enter(1, SpaceId(1), page(7, false), &mut blockers);
        assert_eq!(blockers, [0]);
    }

    #[test]
    fn what_maps_or_frees_a_long_page_is_ordered_with_all_of_it() {
        const LARGE: u64 = 2 << 20;
        let footprint = |address, bytes, page: Option<PageSize>| {
            let operation = match page {
                None => Operation::Free { address, bytes },
                Some(page) => Operation::Alloc {
                    bytes,
                    page,
                    at: Some(address),
                    permission: crate::operation::Permission::READ_WRITE,
                    sparse: false,
                },
            };
            let head = Head {
                code: code::FREE,
                address,
                ..Head::default()
            };
            let footprint = Footprint::new(&operation, &head);
            (footprint.first..=footprint.last, footprint.kind)
        };
        for (address, bytes, page, last) in [
            // A page of 4 KiB, where no other can begin.
            (LARGE + 4096, 1, None, LARGE + 4096),
            (LARGE + 4096, 4097, None, LARGE + 8192),
            // A page of 2 MiB may begin there, or be the last one.
            (LARGE, 1, None, 2 * LARGE - 1),
            (LARGE - 4096, 4097, None, 2 * LARGE - 1),
            (3 << 30, 1, None, (4 << 30) - 1),
            (LARGE, 1, Some(PageSize::Large), 2 * LARGE - 1),
            (LARGE, 1, Some(PageSize::Small), LARGE),
        ] {
            let expected = (address >> 12..=last >> 12, Kind::Write);
            assert_eq!(footprint(address, bytes, page), expected, "{address:#x}");
        }
    }
}
