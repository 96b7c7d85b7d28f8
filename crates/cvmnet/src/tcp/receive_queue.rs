//! Received bytes: in their order, and what arrived ahead of a gap. Payloads stay in the buffers
//! that they arrived in until they are consumed.

use std::collections::VecDeque;

use crate::tcp::buffer::{Buffer, Chunk, Payload};
use crate::tcp::intervals::Intervals;

/// Segments ahead of a gap that are kept. Beyond, they are dropped and have to be sent again.
const AHEAD_MAX: usize = 4096;
/// Gaps between them that are remembered.
const GAPS_MAX: usize = 1024;
/// Copied bytes that follow each other share a piece of private memory up to this size.
const PRIVATE_BYTES: usize = 16 * 1024;
/// The memory that a piece takes beside its bytes, rounded up.
const PIECE_BYTES: usize = 64;

/// The bounds of a queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Bytes of buffers.
    pub(crate) pinned_max: usize,
    /// Bytes of private memory.
    pub(crate) copied_max: usize,
    /// Bytes of it that what can be read may always take.
    pub(crate) copied_reserve: usize,
    /// A payload shorter than its buffer's capacity divided by this is copied,
    pub(crate) copy_divisor: usize,
    /// unless the queue keeps no more bytes of buffers than this with it.
    pub(crate) uncopied_max: usize,
}

struct Ahead<B> {
    start: u64,
    payload: Payload<B>,
}

impl<B: Buffer> Ahead<B> {
    fn end(&self) -> u64 {
        self.start + self.payload.len() as u64
    }
}

/// The receive queue of a connection. Positions are those of the stream; the first byte is at 1.
pub(crate) struct ReceiveQueue<B> {
    next: u64,
    ready: VecDeque<Payload<B>>,
    ready_bytes: usize,
    ahead: VecDeque<Ahead<B>>,
    gaps: Intervals,
    /// Positions in the ranges that changed last, latest first (RFC 2018, section 4).
    recent: [u64; 3],
    /// Bytes of the pool in both parts.
    pinned: usize,
    /// Bytes of private memory in both parts.
    copied: usize,
    /// Of them, those ahead of a gap.
    copied_ahead: usize,
    /// The position of the FIN.
    fin: Option<u64>,
}

impl<B: Buffer> ReceiveQueue<B> {
    pub(crate) fn new() -> ReceiveQueue<B> {
        ReceiveQueue {
            next: 1,
            ready: VecDeque::new(),
            ready_bytes: 0,
            ahead: VecDeque::new(),
            gaps: Intervals::new(GAPS_MAX),
            recent: [0; 3],
            pinned: 0,
            copied: 0,
            copied_ahead: 0,
            fin: None,
        }
    }

    /// Returns the position that is expected next, the FIN's included.
    pub(crate) fn next(&self) -> u64 {
        self.next + u64::from(self.is_finished())
    }

    /// Returns true if all up to the FIN has arrived.
    pub(crate) fn is_finished(&self) -> bool {
        self.fin == Some(self.next)
    }

    /// Returns the number of bytes that can be read.
    pub(crate) fn len(&self) -> usize {
        self.ready_bytes
    }

    /// Returns true if segments wait for what is missing before them.
    pub(crate) fn has_gap(&self) -> bool {
        !self.ahead.is_empty()
    }

    /// Returns the bytes of the pool that the queue keeps.
    pub(crate) fn pinned(&self) -> usize {
        self.pinned
    }

    /// Returns the bytes of private memory that the queue keeps.
    pub(crate) fn copied(&self) -> usize {
        self.copied
    }

    /// Returns the number of pieces.
    #[cfg(test)]
    pub(crate) fn pieces(&self) -> usize {
        self.ready.len() + self.ahead.len()
    }

    /// Returns the bytes that can be read, in their order.
    pub(crate) fn chunks(&self) -> impl Iterator<Item = Chunk<'_, B>> {
        self.ready.iter().map(Payload::chunk)
    }

    /// Drops `n` bytes at the front, or as many as there are, and returns how many that were. A
    /// buffer is given back when its last byte is dropped.
    pub(crate) fn consume(&mut self, n: usize) -> usize {
        let n = n.min(self.ready_bytes);
        let mut left = n;
        while let Some(first) = self.ready.front_mut() {
            let len = first.len();
            self.copied -= cost(first);
            if left < len {
                first.trim_front(left);
                self.copied += cost(first);
                break;
            }
            left -= len;
            self.pinned -= first.pinned();
            self.ready.pop_front();
        }
        self.ready_bytes -= n;
        n
    }

    /// Notes that the stream ends at a position. The first to say so is believed, unless more is
    /// there already.
    pub(crate) fn finish(&mut self, at: u64) {
        let end = self.ahead.back().map_or(self.next, Ahead::end);
        if at >= end.max(self.next) {
            self.fin.get_or_insert(at);
        }
    }

    /// Takes a payload at a position, or as much of its front as there is memory for; all of it is
    /// within the window. Returns true if bytes have become readable.
    pub(crate) fn insert(&mut self, start: u64, mut payload: Payload<B>, limits: &Limits) -> bool {
        let mut start = start;
        if let Some(fin) = self.fin {
            payload.truncate(fin.saturating_sub(start) as usize);
        }
        if start < self.next {
            let old = (self.next - start).min(payload.len() as u64);
            payload.trim_front(old as usize);
            start += old;
        }
        if payload.len() == 0 {
            return false;
        }
        if start > self.next {
            self.insert_ahead(start, payload, limits);
            return false;
        }
        let Some(payload) = self.admit(payload, limits, limits.copied_reserve) else {
            return false;
        };
        self.push(payload);
        while let Some(first) = self.ahead.front() {
            if first.start > self.next {
                break;
            }
            if let Some(Ahead { start, mut payload }) = self.ahead.pop_front() {
                self.pinned -= payload.pinned();
                self.copied -= cost(&payload);
                self.copied_ahead -= cost(&payload);
                let old = (self.next - start).min(payload.len() as u64);
                payload.trim_front(old as usize);
                if payload.len() > 0 {
                    self.push(payload);
                }
            }
        }
        self.gaps.remove_below(self.next);
        true
    }

    /// Adds a payload at the end of what can be read.
    fn push(&mut self, payload: Payload<B>) {
        let len = payload.len();
        self.next += len as u64;
        self.ready_bytes += len;
        if let (Some(Payload::Private(bytes)), Payload::Private(new)) =
            (self.ready.back_mut(), &payload)
        {
            if bytes.len() + len <= PRIVATE_BYTES {
                bytes.extend_from_slice(new);
                self.copied += len;
                return;
            }
        }
        self.pinned += payload.pinned();
        self.copied += cost(&payload);
        self.ready.push_back(payload);
    }

    /// Copies a payload that would keep much of the pool for few bytes, or more than the connection
    /// may keep. If there is no private memory for it either, it is cut to what is left of
    /// `reserve` beside what can be read: refused as a whole, a segment with the end of one record
    /// and the beginning of the next would keep the first from being read. `None` if that is none.
    fn admit(
        &self,
        mut payload: Payload<B>,
        limits: &Limits,
        reserve: usize,
    ) -> Option<Payload<B>> {
        let pinned = payload.pinned();
        let is_small = payload.len() < pinned / limits.copy_divisor.max(1)
            && self.pinned + pinned > limits.uncopied_max;
        if !is_small && self.pinned + pinned <= limits.pinned_max {
            return Some(payload);
        }
        if self.copied + payload.len() + PIECE_BYTES > limits.copied_max {
            let readable = self.copied - self.copied_ahead;
            payload.truncate(reserve.saturating_sub(readable + PIECE_BYTES));
        }
        (payload.len() > 0).then(|| payload.copied())
    }

    /// Keeps a segment that arrived ahead of a gap, without what is there already. Those that it
    /// covers are dropped, so that it need not be split.
    fn insert_ahead(&mut self, mut start: u64, mut payload: Payload<B>, limits: &Limits) {
        let first = self.ahead.partition_point(|held| held.end() <= start);
        if let Some(held) = self.ahead.get(first).filter(|held| held.start <= start) {
            let known = (held.end() - start).min(payload.len() as u64);
            payload.trim_front(known as usize);
            start += known;
        }
        let end = start + payload.len() as u64;
        if payload.len() == 0 {
            self.note_recent(start - 1);
            return;
        }
        let first = self.ahead.partition_point(|held| held.end() <= start);
        let behind = self.ahead.partition_point(|held| held.end() <= end);
        if let Some(held) = self.ahead.get(behind).filter(|held| held.start < end) {
            payload.truncate(held.start.saturating_sub(start) as usize);
        }
        if behind == first && self.ahead.len() >= AHEAD_MAX || payload.len() == 0 {
            return;
        }
        let end = start + payload.len() as u64;
        let Some(payload) = self.admit(payload, limits, 0) else {
            return;
        };
        if self.gaps.insert(start, end) == 0 && behind == first {
            // There are too many gaps to tell the peer of another.
            return;
        }
        self.note_recent(start);
        for covered in self.ahead.drain(first..behind) {
            self.pinned -= covered.payload.pinned();
            self.copied -= cost(&covered.payload);
            self.copied_ahead -= cost(&covered.payload);
        }
        self.pinned += payload.pinned();
        self.copied += cost(&payload);
        self.copied_ahead += cost(&payload);
        self.ahead.insert(first, Ahead { start, payload });
    }

    fn note_recent(&mut self, at: u64) {
        let range = self.gaps.containing(at).unwrap_or((at, at + 1));
        let is_other = |&old: &u64| old < range.0 || old >= range.1;
        let mut others = self.recent.into_iter().filter(is_other);
        self.recent = [at, others.next().unwrap_or(0), others.next().unwrap_or(0)];
    }

    /// Returns ranges ahead of the gap, that of the latest segment first (RFC 2018, section 4).
    pub(crate) fn selective(&self) -> [Option<(u64, u64)>; 3] {
        let mut ranges = [None; 3];
        let mut count = 0;
        let recent = self
            .recent
            .iter()
            .filter_map(|&at| self.gaps.containing(at));
        for range in recent.chain(self.gaps.iter().take(6)) {
            if count < ranges.len() && !ranges.contains(&Some(range)) {
                ranges[count] = Some(range);
                count += 1;
            }
        }
        ranges
    }

    /// Drops all bytes.
    pub(crate) fn clear(&mut self) {
        self.ready.clear();
        self.ahead.clear();
        self.gaps.clear();
        self.ready_bytes = 0;
        self.pinned = 0;
        self.copied = 0;
        self.copied_ahead = 0;
    }
}

/// Returns the private memory that a piece takes.
fn cost<B>(payload: &Payload<B>) -> usize {
    match payload {
        Payload::Shared { .. } => 0,
        Payload::Private(bytes) => bytes.len() + PIECE_BYTES,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LIMITS: Limits = Limits {
        pinned_max: 100_000,
        copied_max: 1 << 20,
        copied_reserve: 0,
        copy_divisor: 4,
        uncopied_max: 0,
    };

    fn part(range: std::ops::Range<usize>) -> Payload<Vec<u8>> {
        // The byte at position p of the stream is p mod 251.
        let buffer = range.clone().map(|p| (p % 251) as u8).collect();
        Payload::Shared {
            buffer,
            range: 0..range.len(),
        }
    }

    fn read(queue: &ReceiveQueue<Vec<u8>>) -> Vec<u8> {
        let mut all = Vec::new();
        for chunk in queue.chunks() {
            match chunk {
                Chunk::Shared(buffer, range) => all.extend_from_slice(&buffer[range]),
                Chunk::Private(bytes) => all.extend_from_slice(bytes),
            }
        }
        all
    }

    #[test]
    fn a_payload_stays_in_its_buffer_until_it_is_consumed() {
        let mut queue = ReceiveQueue::new();
        assert!(queue.insert(1, part(1..101), &LIMITS));
        assert!(
            matches!(queue.chunks().next(), Some(Chunk::Shared(_, range)) if range == (0..100))
        );
        assert_eq!(queue.consume(99), 99);
        assert_eq!((queue.pinned(), queue.len()), (100, 1));
        assert_eq!(queue.consume(5), 1);
        assert_eq!((queue.pinned(), queue.len(), queue.pieces()), (0, 0, 0));
    }

    #[test]
    fn a_payload_that_keeps_much_of_the_pool_is_copied_and_copies_share_memory() {
        let mut queue = ReceiveQueue::new();
        for at in 0..10 {
            let buffer = vec![at; 2048];
            let range = 100..100 + 511;
            queue.insert(
                1 + 511 * u64::from(at),
                Payload::Shared { buffer, range },
                &LIMITS,
            );
        }
        assert_eq!((queue.pinned(), queue.pieces(), queue.len()), (0, 1, 5110));
        assert_eq!(read(&queue)[510..512], [0, 1]);
        let full = Limits {
            pinned_max: 150,
            ..LIMITS
        };
        queue.insert(5111, part(5111..5211), &full);
        queue.insert(5211, part(5211..5311), &full);
        assert_eq!((queue.pinned(), queue.pieces()), (100, 3));
    }

    #[test]
    fn selective_ranges_have_the_latest_segment_first() {
        let mut queue = ReceiveQueue::new();
        for start in [11, 31, 51, 71] {
            assert!(!queue.insert(start as u64, part(start..start + 10), &LIMITS));
        }
        assert_eq!(
            queue.selective(),
            [Some((71, 81)), Some((51, 61)), Some((31, 41))]
        );
        queue.insert(41, part(41..51), &LIMITS);
        assert_eq!(queue.selective()[..2], [Some((31, 61)), Some((71, 81))]);
        // Segments of one range take one place.
        queue.insert(61, part(61..66), &LIMITS);
        queue.insert(66, part(66..68), &LIMITS);
        assert_eq!(
            queue.selective(),
            [Some((31, 68)), Some((71, 81)), Some((11, 21))]
        );
        // A duplicate is reported first too.
        queue.insert(11, part(11..21), &LIMITS);
        assert_eq!(queue.selective()[0], Some((11, 21)));
        queue.insert(1, part(1..11), &LIMITS);
        assert_eq!((queue.next(), queue.len()), (21, 20));
        assert!(!queue.selective().contains(&Some((11, 21))));
    }

    #[test]
    fn without_private_memory_what_would_be_copied_is_not_taken() {
        let limits = Limits {
            pinned_max: 0,
            copied_max: 300,
            copied_reserve: 0,
            copy_divisor: 4,
            uncopied_max: 0,
        };
        let mut queue = ReceiveQueue::new();
        assert!(queue.insert(1, part(1..101), &limits));
        queue.insert(201, part(201..211), &limits);
        assert_eq!(queue.copied(), 100 + 10 + 2 * PIECE_BYTES);
        assert!(!queue.insert(101, part(101..201), &limits));
        assert_eq!(
            (queue.next(), queue.selective()[0]),
            (101, Some((201, 211)))
        );
        queue.consume(100);
        assert!(queue.insert(101, part(101..201), &limits));
        assert_eq!((queue.next(), queue.copied()), (211, 110 + PIECE_BYTES));
    }

    #[test]
    fn what_was_read_of_a_copy_takes_no_memory() {
        let limits = Limits {
            pinned_max: 0,
            copied_max: 0,
            copied_reserve: 1000 + PIECE_BYTES,
            ..LIMITS
        };
        let mut queue = ReceiveQueue::new();
        assert!(queue.insert(1, part(1..901), &limits));
        // There is room for a part of the next one.
        assert!(queue.insert(901, part(901..1801), &limits));
        assert_eq!(queue.next(), 1001 - PIECE_BYTES as u64);
        queue.consume(700);
        assert_eq!(queue.copied(), queue.len() + PIECE_BYTES);
        assert!(queue.insert(901, part(901..1801), &limits));
        assert_eq!(queue.next(), 1701 - PIECE_BYTES as u64);
        let bytes = read(&queue);
        assert!(bytes
            .iter()
            .enumerate()
            .all(|(n, &b)| b == ((n + 701) % 251) as u8));
        // Ahead of a gap nothing is taken in parts.
        queue.insert(5000, part(5000..5010), &limits);
        assert!(!queue.has_gap());
    }

    #[test]
    fn what_arrives_ahead_is_bounded() {
        let mut queue = ReceiveQueue::new();
        for at in 0..10_000 {
            queue.insert(10 + 2 * at, part(1..2), &LIMITS);
        }
        assert_eq!(queue.pieces(), GAPS_MAX);
        for at in 0..10_000 {
            queue.insert(11 + at, part(1..2), &LIMITS);
        }
        assert!(queue.pieces() <= AHEAD_MAX);
    }

    #[test]
    fn nothing_is_taken_behind_the_fin_and_no_fin_before_what_is_there() {
        let mut queue = ReceiveQueue::new();
        queue.insert(11, part(11..21), &LIMITS);
        queue.finish(15);
        assert!(!queue.is_finished());
        queue.finish(21);
        queue.insert(1, part(1..31), &LIMITS);
        assert_eq!(
            (queue.len(), queue.next(), queue.is_finished()),
            (20, 22, true)
        );
        queue.finish(40);
        assert!(queue.is_finished());
    }

    proptest! {
        #[test]
        fn segments_in_any_order_and_overlap_give_the_stream(
            cuts in proptest::collection::vec((0usize..400, 1usize..120), 0..60), pinned_max in 0usize..2000,
        ) {
            let limits = Limits { pinned_max, ..LIMITS };
            let mut queue = ReceiveQueue::new();
            let mut there = [false; 600];
            let mut all = Vec::new();
            for (at, len) in cuts {
                let start = 1 + at;
                queue.insert(start as u64, part(start..start + len), &limits);
                there[start..start + len].fill(true);
                let next = 1 + there[1..].iter().position(|&is| !is).unwrap();
                prop_assert_eq!(queue.next(), next as u64);
                prop_assert!(queue.pinned() <= pinned_max);
                let held: usize = queue.ready.iter().map(Payload::pinned).sum::<usize>()
                    + queue.ahead.iter().map(|held| held.payload.pinned()).sum::<usize>();
                prop_assert_eq!(queue.pinned(), held);
                let copied: usize = queue.ready.iter().map(cost).sum::<usize>()
                    + queue.ahead.iter().map(|held| cost(&held.payload)).sum::<usize>();
                prop_assert_eq!(queue.copied(), copied);
                let ahead = queue.ahead.iter().map(|held| cost(&held.payload)).sum::<usize>();
                prop_assert_eq!(queue.copied_ahead, ahead);
                let ahead = there[next..].iter().filter(|&&is| is).count();
                let kept: u64 = queue.ahead.iter().map(|held| held.end() - held.start).sum();
                prop_assert_eq!(kept as usize, ahead);
                if at % 3 == 0 {
                    let bytes = read(&queue);
                    let n = bytes.len() / 2;
                    all.extend_from_slice(&bytes[..n]);
                    queue.consume(n);
                }
            }
            all.extend(read(&queue));
            prop_assert!(all.iter().enumerate().all(|(n, &b)| b == ((n + 1) % 251) as u8));
            prop_assert_eq!(all.len() as u64, queue.next() - 1);
        }
    }
}
