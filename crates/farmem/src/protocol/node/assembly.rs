//! Segmented writes that are not complete yet.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher, RandomState};

use super::super::message::{Malformed, Request};
use crate::operation::{Address, Guard, SpaceId};

/// Most writes kept at a time; short ones need little memory, but each takes time to look through.
const WRITES_MAX: usize = 1024;

/// Most writes kept of one space.
const WRITES_MAX_PER_SPACE: usize = 128;

/// The segments of writes, until each write is complete or too old to be completed.
#[derive(Debug)]
pub(super) struct Assemblies {
    /// The write of the last segment, which is mostly that of the next one. It is not in `writes`.
    recent: Option<(Key, Assembly)>,
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
    fn new(request: &Request<'_>, data: Vec<u8>, expires_ns: u64) -> Assembly {
        let segments = request.length.div_ceil(request.segment);
        Assembly {
            shape: Shape::of(request),
            data,
            arrived: vec![0; segments.div_ceil(64) as usize],
            missing: segments,
            expires_ns,
            next: (0, 0),
        }
    }

    /// Takes a segment of the write, unless it came before.
    #[inline]
    fn put(&mut self, request: &Request<'_>) -> Result<(), Malformed> {
        let (offset, at) = (request.offset, request.offset as usize);
        let index = match self.next {
            // Nearly always; a division takes as long as much of the rest.
            (next, index) if next == offset => index,
            _ => offset / request.segment,
        };
        self.next = (offset + request.segment, index + 1);
        let bit = 1 << (index % 64);
        let word = self.arrived.get_mut(index as usize / 64);
        let place = self.data.get_mut(at..at + request.body.len());
        let (Some(word), Some(place)) = (word, place) else {
            return Err(Malformed::Segment);
        };
        if *word & bit != 0 {
            return Ok(());
        }
        place.copy_from_slice(request.body);
        *word |= bit;
        self.missing -= 1;
        Ok(())
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
    /// which a copy of one of the segments may be accepted.
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
    pub(super) fn keep(&mut self, request: &Request<'_>) -> bool {
        let Some((key, assembly)) = &mut self.recent else {
            return false;
        };
        *key == (request.space, request.operation_id())
            && assembly.missing > 1
            && assembly.shape == Shape::of(request)
            && assembly.put(request).is_ok()
    }

    /// Takes a segment of which copies are accepted until `expires_ns`. The data of a write is
    /// complete only if `may_complete`.
    pub(super) fn receive(
        &mut self,
        request: &Request<'_>,
        expires_ns: u64,
        may_complete: bool,
    ) -> Result<Arrival, Malformed> {
        let key = (request.space, request.operation_id());
        if !self.recall(key) {
            if !self.has_room(request) {
                return Ok(Arrival::NoRoom);
            }
            let data = self.memory(request.length as usize);
            self.set_recent(key, Assembly::new(request, data, expires_ns));
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
        assembly.put(request)?;
        // A write that goes on is not given up, however long it takes.
        assembly.expires_ns = assembly.expires_ns.max(expires_ns);
        if assembly.missing > 0 {
            return Ok(Arrival::Kept);
        }
        let complete = self.recent.take();
        let complete = complete.map_or((Vec::new(), 0), |(_, one)| (one.data, one.expires_ns));
        Ok(Arrival::Complete(complete.0, complete.1))
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
    fn recall(&mut self, key: Key) -> bool {
        if self.recent.as_ref().is_some_and(|recent| recent.0 == key) {
            return true;
        }
        let assembly = self.writes.remove(&key);
        let is_there = assembly.is_some();
        if let Some(assembly) = assembly {
            self.set_recent(key, assembly);
        }
        is_there
    }

    fn set_recent(&mut self, key: Key, assembly: Assembly) {
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
        self.recent.take_if(|(_, write)| write.expires_ns < now_ns);
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
            let len = write.data.len() as u64;
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

    proptest! {
        #[test]
        fn segments_in_any_order_and_number_of_copies_complete_once_with_every_byte(
            length in 513u32..20_000,
            seed in any::<u64>(),
        ) {
            let mut random = Random::new(seed);
            let mut data = vec![0; length as usize];
            random.fill(&mut data);
            let mut offsets: Vec<u32> = (0..length).step_by(512).collect();
            for _ in 0..offsets.len() {
                offsets.push(offsets[random.below(offsets.len() as u64) as usize]);
            }
            for n in (1..offsets.len()).rev() {
                offsets.swap(n, random.below(n as u64 + 1) as usize);
            }
            let last = offsets.iter().enumerate().filter(|(n, offset)| !offsets[..*n].contains(offset));
            let last = last.map(|(n, _)| n).max();
            let mut assemblies = Assemblies::new(1 << 20, 1 << 20);
            for (n, &offset) in offsets.iter().enumerate().take(last.unwrap() + 1) {
                let end = (offset + 512).min(length);
                let body = &data[offset as usize..end as usize];
                let request = segment(7, offset, length, body);
                let arrival = assemblies.receive(&request, 10, true).unwrap();
                let expected = if Some(n) == last { Arrival::Complete(data.clone(), 10) } else { Arrival::Kept };
                prop_assert_eq!(arrival, expected);
            }
            prop_assert_eq!(assemblies.next_expiry(), u64::MAX);
        }
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
            assert_eq!(assemblies.receive(&first, 10, true), Ok(Arrival::Kept));
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
            assert_eq!(assemblies.receive(&request, 10, true), Ok(Arrival::Kept));
        }
        let complete = assemblies.receive(&segment(1, 512, 1024, &twos), 10, true);
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
            |request: Request<'_>, complete| assemblies.receive(&request, 10, complete);
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
