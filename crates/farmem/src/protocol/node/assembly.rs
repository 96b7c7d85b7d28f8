//! Segmented writes that are not complete yet.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher, RandomState};

use super::super::message::{Malformed, Request};
use super::held::{HeldSegments, Place};
use crate::operation::{Address, Guard, SpaceId};

/// Most writes kept at a time; short ones need little memory, but each takes time to look through.
const WRITES_MAX: usize = 1024;

/// Most writes kept of one space.
const WRITES_MAX_PER_SPACE: usize = 128;

/// The segments of writes, until each write is complete or too old to be completed.
///
/// Of the recent write, segments stay in the buffers that they arrived in, if the node may keep
/// these: then they are copied once, to their pages. Those of all others are in memory of their
/// own.
#[derive(Debug)]
pub(super) struct Assemblies {
    /// The write of the last segment, which is mostly that of the next one. It is not in `writes`.
    recent: Option<(Key, Assembly)>,
    /// The segments of the recent write, where its `data` is empty.
    held: HeldSegments,
    writes: HashMap<Key, Assembly, Keyed>,
    bytes_max: u64,
    bytes_max_per_space: u64,
    /// The memory of writes that were complete. Writes come one like the other, and the allocator
    /// would give so much back to the system and fetch it again each time.
    spares: Vec<Vec<u8>>,
}

/// The space of a write, and the number of its first attempt.
type Key = (SpaceId, u64);

/// The most pieces of memory that are kept, and the longest. A client that takes turns between
/// writes has several of them incomplete.
const SPARES_MAX: usize = 4;
const SPARE_BYTES_MAX: usize = 1 << 20;

#[derive(Debug)]
struct Assembly {
    shape: Shape,
    /// All bytes in their places; empty while segments are where they arrived.
    data: Vec<u8>,
    /// A bit per segment.
    arrived: Vec<u64>,
    missing: u32,
    /// The time until which a copy of one of the segments that came may be accepted.
    expires_ns: u64,
    /// The offset and the index of the segment after the last one that came.
    next: (u32, u32),
}

/// The fields that all segments of a write share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shape {
    address: Address,
    length: u32,
    segment: u32,
    guard: Option<Guard>,
}

impl Shape {
    #[inline]
    fn of(request: &Request<'_>) -> Shape {
        Shape {
            address: request.address,
            length: request.length,
            segment: request.segment,
            guard: request.guard,
        }
    }
}

impl Assembly {
    fn new(request: &Request<'_>, expires_ns: u64) -> Assembly {
        let segments = request.length.div_ceil(request.segment);
        Assembly {
            shape: Shape::of(request),
            data: Vec::new(),
            arrived: vec![0; segments.div_ceil(64) as usize],
            missing: segments,
            expires_ns,
            next: (0, 0),
        }
    }

    /// Takes note of a segment; returns false if it came before.
    #[inline]
    fn mark(&mut self, request: &Request<'_>) -> Result<bool, Malformed> {
        let offset = request.offset;
        let index = match self.next {
            // Nearly always; a division takes as long as much of the rest.
            (next, index) if next == offset => index,
            _ => offset / request.segment,
        };
        self.next = (offset + request.segment, index + 1);
        let bit = 1 << (index % 64);
        let word = self.arrived.get_mut(index as usize / 64);
        let word = word.ok_or(Malformed::Segment)?;
        if *word & bit != 0 {
            return Ok(false);
        }
        *word |= bit;
        self.missing -= 1;
        Ok(true)
    }

    /// Puts bytes in their place.
    fn copy(&mut self, offset: u32, bytes: &[u8]) {
        let at = offset as usize;
        if let Some(place) = self.data.get_mut(at..at + bytes.len()) {
            place.copy_from_slice(bytes);
        }
    }

    /// Returns true if a segment came before.
    fn has(&self, request: &Request<'_>) -> bool {
        let index = request.offset / request.segment;
        let word = self.arrived.get(index as usize / 64);
        word.is_some_and(|word| word & 1 << (index % 64) != 0)
    }
}

/// The effect of a segment.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Arrival {
    /// It is kept, now or since its first copy; others are missing.
    Kept,
    /// It was the last one missing: all of the data, which is kept no longer, and the time until
    /// which a copy of one of the segments may be accepted. No data where the segments are where
    /// they arrived: [`Assemblies::held`] has them.
    Complete(Vec<u8>, u64),
    /// It is the last one missing, but the write may not be completed now; it is not kept.
    Refused,
    /// There is no room for another write.
    NoRoom,
}

impl Assemblies {
    /// Keeps writes of up to this many bytes in all, and of one space.
    pub(super) fn new(bytes_max: u64, bytes_max_per_space: u64) -> Assemblies {
        Assemblies {
            recent: None,
            held: HeldSegments::default(),
            writes: HashMap::with_hasher(Keyed::new()),
            bytes_max,
            bytes_max_per_space,
            spares: Vec::new(),
        }
    }

    /// Takes back the memory of a write that was complete.
    pub(super) fn recycle(&mut self, data: Vec<u8>) {
        if data.capacity() <= SPARE_BYTES_MAX && self.spares.len() < SPARES_MAX {
            self.spares.push(data);
        }
    }

    /// Returns true if segments of the write are kept.
    #[inline]
    pub(super) fn has(&self, key: Key) -> bool {
        let is_recent = self.recent.as_ref().is_some_and(|recent| recent.0 == key);
        is_recent || self.writes.contains_key(&key)
    }

    /// Takes a segment of the write that the last one was of, with the same send time, unless it is
    /// another's or the last one missing: then returns false, and [`Assemblies::receive`] is to
    /// have it.
    #[inline]
    pub(super) fn keep(&mut self, request: &Request<'_>, place: Option<Place<'_>>) -> bool {
        let Some((key, assembly)) = &mut self.recent else {
            return false;
        };
        *key == (request.space, request.operation_id())
            && assembly.missing > 1
            && assembly.shape == Shape::of(request)
            && self.put(request, place).is_ok()
    }

    /// Takes a segment of which copies are accepted until `expires_ns`. The data of a write is
    /// complete only if `may_complete`.
    ///
    /// It has a place if it may stay in its buffer, until [`Assemblies::end_buffer`] is called for
    /// that.
    pub(super) fn receive(
        &mut self,
        request: &Request<'_>,
        place: Option<Place<'_>>,
        expires_ns: u64,
        may_complete: bool,
    ) -> Result<Arrival, Malformed> {
        let key = (request.space, request.operation_id());
        if !self.recall(key, place) {
            if !self.has_room(request) {
                return Ok(Arrival::NoRoom);
            }
            self.set_recent(key, Assembly::new(request, expires_ns), place);
        }
        let Some((_, assembly)) = &mut self.recent else {
            return Ok(Arrival::NoRoom);
        };
        if assembly.shape != Shape::of(request) {
            return Err(Malformed::Segment);
        }
        if assembly.missing == 1 && !may_complete && !assembly.has(request) {
            return Ok(Arrival::Refused);
        }
        // A write that goes on is not given up, however long it takes.
        assembly.expires_ns = assembly.expires_ns.max(expires_ns);
        self.put(request, place)?;
        Ok(match self.recent.take_if(|(_, one)| one.missing == 0) {
            Some((_, one)) => Arrival::Complete(one.data, one.expires_ns),
            None => Arrival::Kept,
        })
    }

    /// Takes a segment of the recent write, unless it came before.
    #[inline]
    fn put(&mut self, request: &Request<'_>, place: Option<Place<'_>>) -> Result<(), Malformed> {
        let Some((_, write)) = &mut self.recent else {
            return Err(Malformed::Segment);
        };
        if !write.mark(request)? {
            return Ok(());
        }
        if write.data.is_empty() {
            if place.is_some_and(|place| self.held.push(request, place)) {
                return Ok(());
            }
            self.copy_held(place.map_or(&[], |place| place.before));
        }
        if let Some((_, write)) = &mut self.recent {
            write.copy(request.offset, request.body);
        }
        Ok(())
    }

    /// Gives the recent write memory of its own, and copies its segments there.
    #[inline(never)]
    fn copy_held(&mut self, present: &[u8]) {
        let Some((_, write)) = &mut self.recent else {
            return;
        };
        if !write.data.is_empty() {
            return;
        }
        let len = write.shape.length as usize;
        let data = self.memory(len);
        if let Some((_, write)) = &mut self.recent {
            write.data = data;
            for (offset, bytes) in self.held.all(present) {
                write.copy(offset, bytes);
            }
        }
        self.held.release();
    }

    /// The segments of a write that was complete without data, until they are released.
    pub(super) fn held(&mut self) -> &mut HeldSegments {
        &mut self.held
    }

    /// Ends the use of a buffer that requests came in. If segments are still needed, keeps it and
    /// puts another in its place if its owner gives it away, else copies them.
    #[inline]
    pub(super) fn end_buffer(&mut self, buffer: &mut Box<[u8]>, is_given: bool) {
        if self.held.needs_present() && !(is_given && self.held.keep(buffer)) {
            self.copy_held(buffer);
        }
    }

    /// Returns memory for a write of so many bytes.
    fn memory(&mut self, len: usize) -> Vec<u8> {
        let spare = match len <= SPARE_BYTES_MAX {
            true => self.spares.pop(),
            false => None,
        };
        match spare {
            // What another write left in it is never seen: all is written before it is complete.
            Some(mut data) if data.capacity() >= len => {
                data.resize(len, 0);
                data
            }
            // The kernel gives the pages of a long one when they are written: one segment must not
            // make the node write all of it.
            _ => vec![0; len],
        }
    }

    /// Makes a write the recent one; returns false if there is no such write.
    #[inline]
    fn recall(&mut self, key: Key, place: Option<Place<'_>>) -> bool {
        if self.recent.as_ref().is_some_and(|recent| recent.0 == key) {
            return true;
        }
        let assembly = self.writes.remove(&key);
        let is_there = assembly.is_some();
        if let Some(assembly) = assembly {
            self.set_recent(key, assembly, place);
        }
        is_there
    }

    fn set_recent(&mut self, key: Key, assembly: Assembly, place: Option<Place<'_>>) {
        if self.recent.is_some() {
            self.copy_held(place.map_or(&[], |place| place.before));
        }
        if let Some((key, assembly)) = self.recent.replace((key, assembly)) {
            self.writes.insert(key, assembly);
        }
    }

    /// All writes of which segments are kept.
    fn all(&self) -> impl Iterator<Item = (&Key, &Assembly)> {
        let recent = self.recent.iter().map(|(key, assembly)| (key, assembly));
        recent.chain(&self.writes)
    }

    /// Gives up writes of which no segment is accepted any more; returns how many.
    pub(super) fn expire(&mut self, now_ns: u64) -> usize {
        let before = self.all().count();
        self.writes.retain(|_, write| write.expires_ns >= now_ns);
        let recent = self.recent.take_if(|(_, write)| write.expires_ns < now_ns);
        if recent.is_some() {
            self.held.release();
        }
        before - self.all().count()
    }

    /// Returns when the first write is given up, in nanoseconds; `u64::MAX` if there is none.
    pub(super) fn next_expiry(&self) -> u64 {
        let expiries = self.all().map(|(_, write)| write.expires_ns);
        expiries.min().unwrap_or(u64::MAX)
    }

    fn has_room(&self, request: &Request<'_>) -> bool {
        let (mut writes, mut writes_of_space, mut bytes, mut bytes_of_space) = (0, 0, 0, 0);
        for ((space, _), write) in self.all() {
            let len = u64::from(write.shape.length);
            writes += 1;
            bytes += len;
            if *space == request.space {
                writes_of_space += 1;
                bytes_of_space += len;
            }
        }
        let more = u64::from(request.length);
        writes < WRITES_MAX
            && writes_of_space < WRITES_MAX_PER_SPACE
            && bytes + more <= self.bytes_max
            && bytes_of_space + more <= self.bytes_max_per_space
    }
}

/// A hash of two words under a secret key: a multiplication for each instead of the dozens of steps
/// of the standard one, at every segment.
#[derive(Clone, Copy, Debug)]
struct Keyed {
    keys: [u64; 2],
}

impl Keyed {
    fn new() -> Keyed {
        let random = RandomState::new();
        Keyed {
            keys: [random.hash_one(0), random.hash_one(1)],
        }
    }
}

impl BuildHasher for Keyed {
    type Hasher = KeyedHasher;

    #[inline]
    fn build_hasher(&self) -> KeyedHasher {
        KeyedHasher(*self)
    }
}

struct KeyedHasher(Keyed);

impl Hasher for KeyedHasher {
    #[inline]
    fn finish(&self) -> u64 {
        self.0.keys[0]
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64((*byte).into()));
    }

    #[inline]
    fn write_u64(&mut self, word: u64) {
        let [state, key] = &mut self.0.keys;
        let product = u128::from(*state ^ word) * u128::from(*key | 1);
        *state = (product >> 64) as u64 ^ product as u64;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tare_sim::Random;

    use super::super::held::BUFFERS_MAX;
    use super::*;

    fn segment(operation: u64, offset: u32, length: u32, body: &[u8]) -> Request<'_> {
        Request {
            code: 6,
            space: SpaceId(1),
            id: operation + u64::from(offset),
            epoch: 1,
            replaced: operation,
            sent_ns: 0,
            address: 4096,
            length,
            offset,
            segment: 512,
            guard: None,
            body,
        }
    }

    /// Returns these segments in any order, with copies of some.
    fn shuffled(mut offsets: Vec<u32>, copies: usize, random: &mut Random) -> Vec<u32> {
        for _ in 0..copies {
            offsets.push(offsets[random.below(offsets.len() as u64) as usize]);
        }
        for n in (1..offsets.len()).rev() {
            offsets.swap(n, random.below(n as u64 + 1) as usize);
        }
        offsets
    }

    proptest! {
        #[test]
        fn segments_in_any_order_and_number_of_copies_complete_once_with_every_byte(
            length in 513u32..20_000,
            seed in any::<u64>(),
        ) {
            let mut random = Random::new(seed);
            let mut data = vec![0; length as usize];
            random.fill(&mut data);
            let offsets: Vec<u32> = (0..length).step_by(512).collect();
            let copies = offsets.len();
            let offsets = shuffled(offsets, copies, &mut random);
            let last = offsets.iter().enumerate().filter(|(n, offset)| !offsets[..*n].contains(offset));
            let last = last.map(|(n, _)| n).max();
            let mut assemblies = Assemblies::new(1 << 20, 1 << 20);
            for (n, &offset) in offsets.iter().enumerate().take(last.unwrap() + 1) {
                let end = (offset + 512).min(length);
                let body = &data[offset as usize..end as usize];
                let request = segment(7, offset, length, body);
                let arrival = assemblies.receive(&request, None, 10, true).unwrap();
                let expected = if Some(n) == last { Arrival::Complete(data.clone(), 10) } else { Arrival::Kept };
                prop_assert_eq!(arrival, expected);
            }
            prop_assert_eq!(assemblies.next_expiry(), u64::MAX);
        }
    }

    proptest! {
        #[test]
        fn segments_where_they_arrived_are_the_same_bytes(
            length in 513u32..20_000,
            seed in any::<u64>(),
        ) {
            let mut random = Random::new(seed);
            let mut data = vec![0; length as usize];
            random.fill(&mut data);
            let mut offsets: Vec<u32> = (0..length).step_by(512).collect();
            let last = offsets.remove(random.below(offsets.len() as u64) as usize);
            let copies = offsets.len() / 4;
            let mut offsets = shuffled(offsets, copies, &mut random);
            offsets.push(last);
            let mut assemblies = Assemblies::new(1 << 20, 1 << 20);
            let mut offsets = offsets.into_iter().peekable();
            let mut written = None;
            while offsets.peek().is_some() {
                // A buffer with some of the segments behind bytes that are none of theirs.
                let some = 1 + random.below(8) as usize;
                let segments: Vec<u32> = offsets.by_ref().take(some).collect();
                let mut buffer: Box<[u8]> = vec![0xee; 8 * 600].into();
                for (at, &offset) in (64..).step_by(590).zip(&segments) {
                    let bytes = &data[offset as usize..(offset + 512).min(length) as usize];
                    buffer[at..at + bytes.len()].copy_from_slice(bytes);
                    let (before, body) = buffer.split_at(at);
                    let request = segment(7, offset, length, &body[..bytes.len()]);
                    // Another write may be between them.
                    if random.below(8) == 0 {
                        let other = segment(8, 0, 1024, &before[..512.min(at)]);
                        let place = Place { before, body_at: 0 };
                        let kept = assemblies.receive(&other, Some(place), 10, true);
                        prop_assert_eq!(kept, Ok(Arrival::Kept));
                    }
                    let place = Place { before, body_at: at };
                    match assemblies.receive(&request, Some(place), 10, true).unwrap() {
                        Arrival::Complete(all, 10) if all.is_empty() => {
                            let mut all = vec![0; length as usize];
                            assemblies.held().gather(before, request.body, |fill| {
                                all.chunks_mut(1 + random.below(3000) as usize).for_each(fill);
                            });
                            written = Some(all);
                        }
                        Arrival::Complete(all, 10) => written = Some(all),
                        arrival => prop_assert_eq!(arrival, Arrival::Kept),
                    }
                }
                assemblies.end_buffer(&mut buffer, random.below(4) > 0);
                prop_assert_eq!(buffer.len(), 8 * 600);
                // What comes into the buffer that it left does not matter.
                buffer.fill(0xdd);
                let (kept, spare) = assemblies.held.buffers();
                prop_assert!(kept <= BUFFERS_MAX && spare <= BUFFERS_MAX);
            }
            prop_assert_eq!(written, Some(data));
        }
    }

    #[test]
    fn a_buffer_is_kept_only_while_a_write_needs_it() {
        let mut assemblies = Assemblies::new(1 << 20, 1 << 20);
        let body = [5; 512];
        let mut buffers = (0..).map(|n| -> Box<[u8]> { vec![n; 600].into() });
        let mut receive = |operation, offset, is_given| {
            let mut buffer = buffers.next().unwrap();
            buffer[88..].copy_from_slice(&body);
            let (before, own) = buffer.split_at(88);
            let request = segment(operation, offset, 16 * 512, own);
            let place = Place {
                before,
                body_at: 88,
            };
            let arrival = assemblies.receive(&request, Some(place), 10, true);
            assert_eq!(arrival, Ok(Arrival::Kept));
            let address = buffer.as_ptr();
            assemblies.end_buffer(&mut buffer, is_given);
            let is_kept = buffer.as_ptr() != address;
            let (kept, spare) = assemblies.held.buffers();
            (is_kept, kept, spare)
        };
        for count in 1..=BUFFERS_MAX {
            let offset = 512 * count as u32;
            assert_eq!(receive(1, offset, true), (true, count, 0));
            // A copy of a segment needs nothing.
            assert_eq!(receive(1, offset, true), (false, count, 0));
        }
        // Too many: from now on it is copied.
        assert_eq!(receive(1, 15 * 512, true), (false, 0, BUFFERS_MAX));
        assert_eq!(receive(1, 14 * 512, true), (false, 0, BUFFERS_MAX));
        assert_eq!(receive(2, 0, false), (false, 0, BUFFERS_MAX));
        assert_eq!(receive(3, 0, true), (true, 1, BUFFERS_MAX - 1));
        assert_eq!(assemblies.expire(11), 3);
        assert!(!assemblies.held.needs_present());
        assert_eq!(assemblies.held.buffers(), (0, BUFFERS_MAX));
    }

    /// Returns how often this thread has waited for the kernel to give it a page.
    fn faults() -> u64 {
        let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
        let (_, fields) = stat.rsplit_once(") ").unwrap();
        fields.split(' ').nth(7).unwrap().parse().unwrap()
    }

    #[test]
    fn the_first_segment_of_a_long_write_takes_no_more_memory_than_itself() {
        let mut assemblies = Assemblies::new(16 << 30, 16 << 30);
        let (body, length) = ([5; 512], 1 << 30);
        for spare in [1000, SPARE_BYTES_MAX] {
            assemblies.recycle(vec![1; spare]);
        }
        let before = faults();
        for (operation, offset) in (1..).zip([0, 512, length / 2, length - 512]) {
            let first = segment(operation, offset, length, &body);
            assert_eq!(
                assemblies.receive(&first, None, 10, true),
                Ok(Arrival::Kept)
            );
        }
        assert_eq!(assemblies.expire(11), 4);
        let taken = faults() - before;
        assert!(taken < 100, "{taken} pages");
        // It is what the memory that is kept is for.
        assert_eq!(assemblies.spares.len(), 2);
    }

    #[test]
    fn a_copy_with_other_bytes_changes_nothing() {
        let mut assemblies = Assemblies::new(1 << 20, 1 << 20);
        let (ones, twos) = ([1; 512], [2; 512]);
        for body in [&ones, &twos] {
            let request = segment(1, 0, 1024, body);
            assert_eq!(
                assemblies.receive(&request, None, 10, true),
                Ok(Arrival::Kept)
            );
        }
        let complete = assemblies.receive(&segment(1, 512, 1024, &twos), None, 10, true);
        assert_eq!(
            complete,
            Ok(Arrival::Complete([ones, twos].concat().to_vec(), 10))
        );
    }

    #[test]
    fn segments_of_another_shape_are_refused_and_room_is_bounded() {
        let body = [3; 512];
        let mut assemblies = Assemblies::new(5000, 3000);
        let mut receive =
            |request: Request<'_>, complete| assemblies.receive(&request, None, 10, complete);
        assert_eq!(receive(segment(1, 0, 2048, &body), true), Ok(Arrival::Kept));
        let first = segment(1, 512, 2048, &body);
        let guard = Some(Guard { lock: 8, token: 1 });
        for other in [
            Request {
                length: 4096,
                ..first
            },
            Request {
                address: 8192,
                ..first
            },
            Request { guard, ..first },
            Request {
                segment: 1024,
                offset: 1024,
                ..first
            },
        ] {
            assert_eq!(receive(other, true), Err(Malformed::Segment));
        }
        assert_eq!(
            receive(segment(2, 0, 1024, &body), true),
            Ok(Arrival::NoRoom)
        );
        let other_space = |n, operation| Request {
            space: SpaceId(n),
            ..segment(operation, 0, 1024, &body)
        };
        assert_eq!(receive(other_space(2, 2), true), Ok(Arrival::Kept));
        assert_eq!(receive(other_space(3, 3), true), Ok(Arrival::Kept));
        assert_eq!(receive(other_space(4, 4), true), Ok(Arrival::NoRoom));
        let last = Request {
            offset: 512,
            ..other_space(2, 2)
        };
        assert_eq!(receive(last, false), Ok(Arrival::Refused));
        assert!(matches!(receive(last, true), Ok(Arrival::Complete(..))));
        assert_eq!(assemblies.expire(10), 0);
        assert_eq!(assemblies.next_expiry(), 10);
        assert_eq!(assemblies.expire(11), 2);
    }
}
