//! The page table: one hash table for the pages of all spaces.

use std::num::NonZeroU64;

use tare_memory::publish;

use super::keep::KeepError;
use crate::memory::pool::Frame;
use crate::operation::{PageSize, Permission, SpaceId};

/// Bytes of a bucket: a cache line.
const LINE: usize = 64;
/// Entries in a bucket.
const WAYS: usize = 3;
/// The least number of buckets.
const BUCKETS_MIN: u64 = 64;
/// Buckets that an insertion looks at, at most, to make room.
const SEARCH_MAX: usize = 128;
/// Consecutive pages, as a power of two, whose home buckets are consecutive too.
const RUN_SHIFT: u32 = 18;
/// The frame of a page that was never written.
const NO_FRAME: u32 = u32::MAX;

/// A page of a space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Page {
    pub(super) space: SpaceId,
    /// The address divided by the page's size.
    pub(super) number: u64,
    pub(super) size: PageSize,
}

impl Page {
    /// Returns the page of this size that has an address.
    #[inline]
    pub(super) fn of(space: SpaceId, address: u64, size: PageSize) -> Page {
        Page {
            space,
            number: address >> size.shift(),
            size,
        }
    }

    /// Returns the page of the same size that is so many after this one.
    #[inline]
    pub(super) fn after(&self, pages: u64) -> Page {
        Page {
            number: self.number + pages,
            ..*self
        }
    }

    /// The second word of an entry, without the permission: bits 12 to 63 are the number of the
    /// page, 4 is set in each entry, 2 and 3 are the size, 0 and 1 the permission.
    #[inline]
    fn word(&self) -> u64 {
        self.number << 12 | 1 << 4 | (self.size as u64) << 2
    }
}

/// The value of an entry: bits 0 to 31 are the frame, and above them are bits 0 to 4 of
/// the entry's second word. One word, so that it stays in a register: as a struct of three fields,
/// it went through the stack in pieces, which took half of the time of a read from the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry(NonZeroU64);

impl Entry {
    /// Returns an entry; a page that was never written has no frame.
    pub(super) fn new(size: PageSize, permission: Permission, frame: Option<Frame>) -> Entry {
        let high = 1 << 4 | (size as u64) << 2 | u64::from(permission.bits());
        let low = u64::from(frame.unwrap_or(NO_FRAME));
        Entry(NonZeroU64::MIN.saturating_add((high << 32 | low) - 1))
    }

    #[inline]
    pub(super) fn size(self) -> PageSize {
        match self.0.get() >> 34 & 3 {
            0 => PageSize::Small,
            1 => PageSize::Large,
            _ => PageSize::Huge,
        }
    }

    #[inline]
    pub(super) fn allows(self, permission: Permission) -> bool {
        let bits = (self.0.get() >> 32) as u8;
        bits & permission.bits() == permission.bits()
    }

    pub(super) fn permission_bits(self) -> u8 {
        (self.0.get() >> 32) as u8 & 3
    }

    #[inline]
    pub(super) fn frame(self) -> Option<Frame> {
        let frame = self.0.get() as u32;
        (frame != NO_FRAME).then_some(frame)
    }
}

/// The place of an entry, which holds until the table changes.
#[derive(Clone, Copy)]
struct Slot {
    bucket: usize,
    way: usize,
}

/// The places that an entry may have.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Room {
    /// Into its home bucket alone, where one cache line answers.
    Home,
    /// Also into its second bucket, for pages whose address cannot be another one.
    Second,
}

/// The table: buckets of three entries, one cache line each, twice as many entries as frames or
/// more.
///
/// The home bucket of a page is a keyed hash of the space and of the page's number without its last
/// 18 bits, plus these bits. A range of pages thus fills consecutive buckets evenly, where a hash
/// of each page by itself would fill some beyond their three entries long before the table is full:
/// the allocation of a thousand pages would find room at no address. A page whose address is given
/// and whose home is full goes to a second bucket, by a hash of the whole number; its home counts
/// it, and a lookup goes on to the second bucket only if that count is not 0. So a lookup reads one
/// line nearly always, and never more than two for each size of page that is in use.
///
/// The bytes belong to the caller's memory, which may be of huge pages. A bucket is eight words:
/// three spaces, three pages, the frames 0 and 1, then frame 2 and the count of pages that are
/// elsewhere.
pub(super) struct Table<M> {
    memory: M,
    /// The offset of the first bucket, so that a bucket is one line.
    start: usize,
    mask: u64,
    key: [u64; 2],
    counts: [u64; 3],
    displaced: u64,
}

/// Returns the bytes of a table for so many frames.
pub(super) fn bytes(frames: u64) -> usize {
    buckets(frames) as usize * LINE + LINE
}

fn buckets(frames: u64) -> u64 {
    frames.max(BUCKETS_MIN).next_power_of_two()
}

impl<M: AsRef<[u8]> + AsMut<[u8]>> Table<M> {
    /// Makes an empty table in memory of [`bytes`] bytes, for as many frames.
    pub(super) fn new(mut memory: M, frames: u64, key: [u64; 2]) -> Table<M> {
        memory.as_mut().fill(0);
        Table::existing(memory, frames, key)
    }

    /// Makes a table of the entries that are in the memory, which [`Table::repair`] has yet to
    /// count.
    pub(super) fn existing(memory: M, frames: u64, key: [u64; 2]) -> Table<M> {
        let start = memory.as_ref().as_ptr().align_offset(LINE);
        Table {
            memory,
            start: if start < LINE { start } else { 0 },
            mask: buckets(frames) - 1,
            key,
            counts: [0; 3],
            displaced: 0,
        }
    }

    /// Returns the number of entries for pages of a size.
    #[inline]
    pub(super) fn count(&self, size: PageSize) -> u64 {
        self.counts[size as usize]
    }

    /// Returns the number of entries that are in their second bucket.
    pub(super) fn displaced(&self) -> u64 {
        self.displaced
    }

    /// Finds the entry of a page.
    #[inline(always)]
    pub(super) fn find(&self, page: &Page) -> Option<Entry> {
        let home = self.home(page);
        let line = self.line(home);
        let way = way(line, page);
        if way.is_none() && away(line) > 0 {
            return self.find_away(home, page);
        }
        entry(line, way?)
    }

    /// Asks the cache for the home of a page, and does not wait for it.
    #[inline]
    pub(super) fn prefetch(&self, page: &Page) {
        tare_memory::prefetch(self.line(self.home(page)));
    }

    #[inline(never)]
    fn find_away(&self, home: usize, page: &Page) -> Option<Entry> {
        let line = self.line(self.second(home, page));
        entry(line, way(line, page)?)
    }

    fn slot(&self, page: &Page) -> Option<Slot> {
        self.slot_from(self.home(page), page)
    }

    #[inline]
    fn slot_from(&self, home: usize, page: &Page) -> Option<Slot> {
        let slot = |bucket| {
            let way = way(self.line(bucket), page)?;
            Some(Slot { bucket, way })
        };
        // The second bucket takes another hash.
        slot(home).or_else(|| slot(self.second(home, page)))
    }

    /// Adds the entry of a page that has none. Returns false, and changes nothing, if there is no
    /// room.
    pub(super) fn insert(&mut self, page: &Page, entry: Entry, room: Room) -> bool {
        self.insert_from(self.home(page), page, entry, room)
    }

    /// Adds the entries of consecutive pages that have none, of which `entry` returns each by its
    /// place. Returns false, and changes nothing, if one has no room.
    pub(super) fn insert_all(
        &mut self,
        first: &Page,
        count: u64,
        room: Room,
        entry: impl Fn(u64) -> Entry,
    ) -> bool {
        let mut run = None;
        for n in 0..count {
            let page = first.after(n);
            let home = self.home_in(&page, &mut run);
            if !self.insert_from(home, &page, entry(n), room) {
                self.remove_all(first, n, |_| ());
                return false;
            }
        }
        true
    }

    /// Removes the entries of consecutive pages, and calls `each` with those that there were.
    pub(super) fn remove_all(&mut self, first: &Page, count: u64, mut each: impl FnMut(Entry)) {
        let mut run = None;
        for n in 0..count {
            let page = first.after(n);
            let home = self.home_in(&page, &mut run);
            if let Some(entry) = self.remove_from(home, &page) {
                each(entry);
            }
        }
    }

    #[inline]
    fn insert_from(&mut self, home: usize, page: &Page, entry: Entry, room: Room) -> bool {
        if let Some(way) = self.vacant(home) {
            self.store(Slot { bucket: home, way }, page, entry);
        } else if room == Room::Home {
            return false;
        } else {
            let bucket = self.second(home, page);
            let slot = match self.vacant(bucket) {
                Some(way) => Some(Slot { bucket, way }),
                None => self.make_room([bucket, home]),
            };
            let Some(slot) = slot else {
                return false;
            };
            self.store(slot, page, entry);
            // Room may have been made in its home.
            if home != slot.bucket {
                self.count_away(home, true);
            }
        }
        self.counts[page.size as usize] += 1;
        true
    }

    /// Makes room in one of two full buckets: moves an entry to the other bucket that it may be in,
    /// and before that, if that one is full too, an entry of that one, and so on along the shortest
    /// such path.
    ///
    /// One move is not enough. Runs of pages may begin close together: the table is then full where
    /// they are, and each page beyond the third needs one of its few entries out of there.
    fn make_room(&mut self, buckets: [usize; 2]) -> Option<Slot> {
        // Buckets, and for each the entry that would move there: its slot, whose bucket is found
        // before.
        let mut found: [(usize, Option<(usize, usize)>); SEARCH_MAX] = [(0, None); SEARCH_MAX];
        (found[0].0, found[1].0) = (buckets[0], buckets[1]);
        let (mut known, mut next) = (2, 0);
        while next < known {
            let bucket = found[next].0;
            for way in 0..WAYS {
                let to = self.other(Slot { bucket, way })?;
                if found[..known].iter().any(|&(bucket, _)| bucket == to) {
                    continue;
                }
                if let Some(vacant) = self.vacant(to) {
                    let mut vacant = Slot {
                        bucket: to,
                        way: vacant,
                    };
                    let mut from = Some((next, way));
                    while let Some((place, way)) = from {
                        let (bucket, before) = found[place];
                        let slot = Slot { bucket, way };
                        self.relocate(slot, vacant);
                        (vacant, from) = (slot, before);
                    }
                    return Some(vacant);
                }
                if known < SEARCH_MAX {
                    found[known] = (to, Some((next, way)));
                    known += 1;
                }
            }
            next += 1;
        }
        None
    }

    /// Returns the other bucket that an entry may be in.
    fn other(&self, slot: Slot) -> Option<usize> {
        let (page, _) = self.load(slot)?;
        let home = self.home(&page);
        Some(match home == slot.bucket {
            true => self.second(home, &page),
            false => home,
        })
    }

    /// Copies an entry to the other bucket that it may be in. Its slot is to be written next.
    fn relocate(&mut self, from: Slot, to: Slot) {
        if let Some((page, entry)) = self.load(from) {
            let home = self.home(&page);
            self.count_away(home, home == from.bucket);
            self.store(to, &page, entry);
        }
    }

    /// Removes an entry.
    pub(super) fn remove(&mut self, page: &Page) -> Option<Entry> {
        self.remove_from(self.home(page), page)
    }

    #[inline]
    fn remove_from(&mut self, home: usize, page: &Page) -> Option<Entry> {
        let slot = self.slot_from(home, page)?;
        let line = self.line_mut(slot.bucket);
        let entry = entry(line, slot.way)?;
        write(line, WAYS + slot.way, 0);
        if slot.bucket != home {
            self.count_away(home, false);
        }
        self.counts[page.size as usize] -= 1;
        Some(entry)
    }

    /// Makes a table whole that a process has left, and counts what is in it. Drops the entries for
    /// which `keep` says so, and the second one of a page that was being moved. Returns how many it
    /// dropped.
    pub(super) fn repair(
        &mut self,
        mut keep: impl FnMut(&Page, Entry) -> Result<bool, KeepError>,
    ) -> Result<u64, KeepError> {
        let slots = || {
            let ways = |bucket| (0..WAYS).map(move |way| Slot { bucket, way });
            (0..=self.mask as usize).flat_map(ways)
        };
        let slots = (slots(), slots());
        let mut dropped = 0;
        for slot in slots.0 {
            write_half(self.line_mut(slot.bucket), 5 * WAYS, 0);
            let word = read(self.line(slot.bucket), WAYS + slot.way);
            if word == 0 {
                continue;
            }
            // The size 3 and the permission 0 are none; the bits 5 to 11 are unused.
            let shift = 12 + 9 * (word >> 2 & 3) as u32;
            let is_one = word & 0xff0 == 1 << 4 && shift < 39 && word & 3 != 0;
            let (page, entry) = match self.load(slot) {
                Some(found) if is_one && (word >> 12).leading_zeros() >= shift => found,
                _ => return Err(KeepError::Corrupt("an entry of the page table is none")),
            };
            let home = self.home(&page);
            if slot.bucket != home && slot.bucket != self.second(home, &page) {
                return Err(KeepError::Corrupt(
                    "an entry of the page table is misplaced",
                ));
            }
            let first = self
                .slot(&page)
                .and_then(|slot| Some((slot, self.load(slot)?)));
            let is_kept = match first {
                Some((first, _)) if (first.bucket, first.way) == (slot.bucket, slot.way) => {
                    keep(&page, entry)?
                }
                Some((_, (_, first))) if first == entry => false,
                _ => return Err(KeepError::Corrupt("a page has two entries")),
            };
            if !is_kept {
                write(self.line_mut(slot.bucket), WAYS + slot.way, 0);
                dropped += 1;
            }
        }
        (self.counts, self.displaced) = ([0; 3], 0);
        for slot in slots.1 {
            if let Some((page, _)) = self.load(slot) {
                self.counts[page.size as usize] += 1;
                let home = self.home(&page);
                if home != slot.bucket {
                    self.count_away(home, true);
                }
            }
        }
        Ok(dropped)
    }

    /// Changes the frame of an entry.
    pub(super) fn set_frame(&mut self, page: &Page, frame: Option<Frame>) {
        if let Some(Slot { bucket, way }) = self.slot(page) {
            let frame = frame.unwrap_or(NO_FRAME);
            write_half(self.line_mut(bucket), 4 * WAYS + way, frame);
        }
    }

    #[inline]
    fn home(&self, page: &Page) -> usize {
        self.home_in(page, &mut None)
    }

    /// Returns the home of a page. The last run of pages and its hash are in `run`, for the other
    /// pages of it.
    #[inline]
    fn home_in(&self, page: &Page, run: &mut Option<(u64, u64)>) -> usize {
        let number = page.number >> RUN_SHIFT << 2 | page.size as u64;
        let hash = match *run {
            Some((of, hash)) if of == number => hash,
            _ => self.hash(page.space.0, number),
        };
        *run = Some((number, hash));
        let within = page.number & ((1 << RUN_SHIFT) - 1);
        (hash.wrapping_add(within) & self.mask) as usize
    }

    /// Returns the second bucket, which is another one than the home.
    fn second(&self, home: usize, page: &Page) -> usize {
        let further = 1 + self.hash(!page.space.0, page.word()) % self.mask;
        ((home as u64 + further) & self.mask) as usize
    }

    /// Hashes by two rounds of a 128-bit product, folded. The secret key keeps clients from finding
    /// addresses that meet in one bucket; no client sees a hash.
    #[inline]
    fn hash(&self, space: u64, page: u64) -> u64 {
        let first = fold(space ^ self.key[0], page ^ self.key[1]);
        fold(first ^ space, self.key[0].rotate_left(32) | 1)
    }

    fn vacant(&self, bucket: usize) -> Option<usize> {
        let line = self.line(bucket);
        (0..WAYS).find(|way| read(line, WAYS + way) == 0)
    }

    fn load(&self, slot: Slot) -> Option<(Page, Entry)> {
        let line = self.line(slot.bucket);
        if read(line, WAYS + slot.way) == 0 {
            return None;
        }
        let entry = entry(line, slot.way)?;
        let page = Page {
            space: SpaceId(read(line, slot.way)),
            number: read(line, WAYS + slot.way) >> 12,
            size: entry.size(),
        };
        Some((page, entry))
    }

    fn store(&mut self, slot: Slot, page: &Page, entry: Entry) {
        // A process that is killed leaves the entry, another one, or none: the word with the
        // number of the page, which makes it one, comes last.
        let entry = entry.0.get();
        let (word, frame) = (WAYS + slot.way, 4 * WAYS + slot.way);
        // Each asks for the line anew, so that tests can kill in between.
        write(self.line_mut(slot.bucket), word, 0);
        write_half(self.line_mut(slot.bucket), frame, entry as u32);
        write(self.line_mut(slot.bucket), slot.way, page.space.0);
        let value = page.word() | entry >> 32;
        write(self.line_mut(slot.bucket), word, value);
    }

    fn count_away(&mut self, bucket: usize, more: bool) {
        let away = away(self.line(bucket));
        let (away, displaced) = if more {
            (away + 1, self.displaced + 1)
        } else {
            (away - 1, self.displaced - 1)
        };
        self.displaced = displaced;
        write_half(self.line_mut(bucket), 5 * WAYS, away);
    }

    #[inline]
    fn line(&self, bucket: usize) -> &[u8; LINE] {
        match self.memory.as_ref()[self.start + bucket * LINE..].first_chunk() {
            Some(line) => line,
            None => unreachable!("the table has as many lines as buckets"),
        }
    }

    #[inline]
    fn line_mut(&mut self, bucket: usize) -> &mut [u8; LINE] {
        match self.memory.as_mut()[self.start + bucket * LINE..].first_chunk_mut() {
            Some(line) => line,
            None => unreachable!("the table has as many lines as buckets"),
        }
    }
}

/// Returns the way of a bucket in which the entry of a page is.
#[inline(always)]
fn way(line: &[u8; LINE], page: &Page) -> Option<usize> {
    let word = page.word();
    (0..WAYS).find(|way| read(line, WAYS + way) & !3 == word && read(line, *way) == page.space.0)
}

#[inline(always)]
fn entry(line: &[u8; LINE], way: usize) -> Option<Entry> {
    let high = read(line, WAYS + way) & 0x1f;
    let low = read_half(line, 4 * WAYS + way);
    NonZeroU64::new(high << 32 | u64::from(low)).map(Entry)
}

/// Returns the number of pages that have their home here and are in their second bucket.
#[inline]
fn away(line: &[u8; LINE]) -> u32 {
    read_half(line, 5 * WAYS)
}

#[inline]
fn fold(one: u64, other: u64) -> u64 {
    let product = u128::from(one) * u128::from(other);
    product as u64 ^ (product >> 64) as u64
}

#[inline]
fn read(line: &[u8; LINE], word: usize) -> u64 {
    u64::from_ne_bytes(line.as_chunks().0[word])
}

fn write(line: &mut [u8; LINE], word: usize, value: u64) {
    publish(&mut line.as_chunks_mut().0[word], value);
}

#[inline]
fn read_half(line: &[u8; LINE], half: usize) -> u32 {
    u32::from_ne_bytes(line.as_chunks().0[half])
}

fn write_half(line: &mut [u8; LINE], half: usize, value: u32) {
    let mut halves = read(line, half / 2).to_ne_bytes();
    halves.as_chunks_mut().0[half % 2] = value.to_ne_bytes();
    write(line, half / 2, u64::from_ne_bytes(halves));
}
