//! Physical memory: frames that read as zero when they are taken.

use std::collections::{BTreeSet, VecDeque};

use crate::operation::PageSize;

/// The number of a frame of 4 KiB; a larger frame has that of its first 4 KiB.
pub(super) type Frame = u32;

/// The most memory of a pool: frame numbers and the page table's mark for "no frame" are 32 bits.
pub(super) const BYTES_MAX: u64 = (u32::MAX as u64) << PageSize::Small.shift();

/// Frames of 4 KiB in a block of 2 MiB.
pub(super) const FRAMES: u32 = 512;
/// Blocks in a frame of 1 GiB.
const BLOCKS: u32 = 512;

/// The memory for frames, in blocks of 2 MiB. A block is one frame of 2 MiB, or is split into 512
/// of 4 KiB for as long as one of them is taken; 512 aligned blocks are a frame of 1 GiB.
///
/// All memory is written once at the start, so that no later access waits for the kernel. A frame
/// that comes back holds its old bytes until [`Pool::clean`] or, at the latest, until it is taken;
/// a block of a frame of 1 GiB until [`Pool::zero_block`].
pub(super) struct Pool<M> {
    memory: M,
    blocks: Vec<Block>,
    /// The blocks with free frames, in the order in which they are taken from: those that are split
    /// already first, so that whole blocks stay whole, and in each part those that are zero first.
    free: BTreeSet<(Shape, bool, u32)>,
    /// The blocks that may have frames with old bytes.
    unclean: VecDeque<u32>,
    frames_free: u64,
    late: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Shape {
    Split,
    Whole,
}

#[derive(Clone, Default)]
struct Block {
    free: Bits,
    /// Those with old bytes, which are free, or of a frame of 1 GiB.
    dirty: Bits,
    is_queued: bool,
}

impl Block {
    /// Returns the key of the block in [`Pool::free`], without its number.
    fn rank(&self) -> Option<(Shape, bool)> {
        if self.free.is_full() {
            Some((Shape::Whole, !self.dirty.is_empty()))
        } else if !self.free.is_empty() {
            Some((Shape::Split, self.free == self.dirty))
        } else {
            None
        }
    }
}

impl<M: AsRef<[u8]> + AsMut<[u8]>> Pool<M> {
    /// Makes a pool of memory whose bytes may be anything; a last part of less than 4 KiB stays
    /// unused.
    pub(super) fn new(mut memory: M) -> Pool<M> {
        memory.as_mut().fill(0);
        let bytes = (memory.as_ref().len() as u64).min(BYTES_MAX);
        let frames = (bytes >> PageSize::Small.shift()) as u32;
        let mut blocks = vec![Block::default(); frames.div_ceil(FRAMES) as usize];
        let mut free = BTreeSet::new();
        for (number, block) in (0..).zip(&mut blocks) {
            block.free = Bits::first((frames - number * FRAMES).min(FRAMES));
            free.extend(block.rank().map(|(shape, late)| (shape, late, number)));
        }
        Pool {
            memory,
            blocks,
            free,
            unclean: VecDeque::new(),
            frames_free: frames.into(),
            late: 0,
        }
    }

    /// Makes a pool of frames whose bytes are of earlier use; those that are taken are to be
    /// claimed.
    pub(super) fn existing(memory: M, frames: u64) -> Pool<M> {
        let frames = frames as u32;
        let mut blocks = vec![Block::default(); frames.div_ceil(FRAMES) as usize];
        let mut free = BTreeSet::new();
        for (number, block) in (0..).zip(&mut blocks) {
            block.free = Bits::first((frames - number * FRAMES).min(FRAMES));
            block.dirty = block.free.clone();
            block.is_queued = true;
            free.extend(block.rank().map(|(shape, late)| (shape, late, number)));
        }
        Pool {
            memory,
            unclean: (0..blocks.len() as u32).collect(),
            blocks,
            free,
            frames_free: frames.into(),
            late: 0,
        }
    }

    /// Takes a certain frame as it is. Returns false, and changes nothing, if there is no such
    /// frame, or a part of it is taken.
    pub(super) fn claim(&mut self, frame: Frame, size: PageSize) -> bool {
        let (number, index) = (frame / FRAMES, frame % FRAMES);
        let (blocks, bits) = match size {
            PageSize::Small => (1, Bits::one(index)),
            PageSize::Large => (1, Bits::first(FRAMES)),
            PageSize::Huge => (BLOCKS, Bits::first(FRAMES)),
        };
        let range = number as usize..number as usize + blocks as usize;
        let is_aligned = size == PageSize::Small || index == 0;
        let is_free = |block: &Block| block.free.and(&bits) == bits;
        let found = self.blocks.get(range.clone());
        if !is_aligned || !found.is_some_and(|blocks| blocks.iter().all(is_free)) {
            return false;
        }
        for number in range {
            self.change(number as u32, |block| {
                block.dirty = block.dirty.without(&bits);
                block.free = block.free.without(&bits);
            });
            self.frames_free -= u64::from(bits.count());
        }
        true
    }

    pub(super) fn memory(&self) -> &M {
        &self.memory
    }

    /// Returns the number of free bytes.
    pub(super) fn bytes_free(&self) -> u64 {
        self.frames_free << PageSize::Small.shift()
    }

    /// Returns how many 4 KiB were zeroed only when they were taken.
    pub(super) fn late(&self) -> u64 {
        self.late
    }

    /// Takes a frame; `None` if no memory of this size is free. All its bytes are zero, but for one
    /// of 1 GiB that is not [clean](Pool::is_clean).
    pub(super) fn take(&mut self, size: PageSize) -> Option<Frame> {
        match size {
            PageSize::Small => {
                let number = self.free.first()?.2;
                let block = &self.blocks[number as usize];
                let clean = block.free.without(&block.dirty);
                let index = clean.lowest().or(block.free.lowest())?;
                self.take_from(number, Bits::one(index));
                Some(number * FRAMES + index)
            }
            PageSize::Large => {
                let whole = (Shape::Whole, false, 0);
                let number = self.free.range(whole..).next()?.2;
                self.take_from(number, Bits::first(FRAMES));
                Some(number * FRAMES)
            }
            PageSize::Huge => {
                let is_whole = |block: &Block| block.free.is_full();
                let is_zero = |block: &Block| is_whole(block) && block.dirty.is_empty();
                let find = |is_right: &dyn Fn(&Block) -> bool| {
                    let mut runs = self.blocks.chunks_exact(BLOCKS as usize);
                    runs.position(|run| run.iter().all(is_right))
                };
                let first = find(&is_zero).or_else(|| find(&is_whole))? as u32 * BLOCKS;
                for number in first..first + BLOCKS {
                    self.change(number, |block| block.free = Bits::default());
                }
                self.frames_free -= u64::from(BLOCKS * FRAMES);
                Some(first * FRAMES)
            }
        }
    }

    fn take_from(&mut self, number: u32, bits: Bits) {
        self.zero_late(number, &bits);
        self.change(number, |block| {
            block.dirty = block.dirty.without(&bits);
            block.free = block.free.without(&bits);
        });
        self.frames_free -= u64::from(bits.count());
    }

    /// Returns true if all bytes of a frame of 1 GiB that was taken are zero.
    pub(super) fn is_clean(&self, frame: Frame) -> bool {
        let number = (frame / FRAMES) as usize;
        let blocks = &self.blocks[number..number + BLOCKS as usize];
        blocks.iter().all(|block| block.dirty.is_empty())
    }

    /// Zeroes what has old bytes in a block of a frame of 1 GiB that was taken.
    pub(super) fn zero_block(&mut self, frame: Frame) {
        let number = frame / FRAMES;
        self.zero_late(number, &Bits::first(FRAMES));
        self.blocks[number as usize].dirty = Bits::default();
    }

    /// Takes note that a block of a frame of 1 GiB that was claimed has old bytes.
    pub(super) fn mark_block(&mut self, frame: Frame) {
        self.blocks[(frame / FRAMES) as usize].dirty = Bits::first(FRAMES);
    }

    /// Takes back a frame.
    pub(super) fn give_back(&mut self, frame: Frame, size: PageSize) {
        let number = frame / FRAMES;
        match size {
            PageSize::Small => self.give_back_to(number, Bits::one(frame % FRAMES)),
            PageSize::Large => self.give_back_to(number, Bits::first(FRAMES)),
            PageSize::Huge => {
                for number in number..number + BLOCKS {
                    self.give_back_to(number, Bits::first(FRAMES));
                }
            }
        }
    }

    /// Takes back a frame that was taken and not written: what was zero still is.
    pub(super) fn put_back(&mut self, frame: Frame, size: PageSize) {
        let (first, count, bits) = match size {
            PageSize::Small => (frame / FRAMES, 1, Bits::one(frame % FRAMES)),
            PageSize::Large => (frame / FRAMES, 1, Bits::first(FRAMES)),
            PageSize::Huge => (frame / FRAMES, BLOCKS, Bits::first(FRAMES)),
        };
        for number in first..first + count {
            self.change(number, |block| block.free = block.free.or(&bits));
        }
        self.frames_free += u64::from(count) * u64::from(bits.count());
    }

    /// Takes back frames of 4 KiB, mostly consecutive ones.
    pub(super) fn give_back_small(&mut self, frames: &[Frame]) {
        for of_block in frames.chunk_by(|one, next| one / FRAMES == next / FRAMES) {
            let mut bits = Bits::default();
            for frame in of_block {
                bits.0[(frame % FRAMES / 64) as usize] |= 1 << (frame % 64);
            }
            self.give_back_to(of_block[0] / FRAMES, bits);
        }
    }

    fn give_back_to(&mut self, number: u32, bits: Bits) {
        self.change(number, |block| {
            debug_assert!(block.free.and(&bits).is_empty(), "a frame came back twice");
            block.free = block.free.or(&bits);
            block.dirty = block.dirty.or(&bits);
        });
        self.frames_free += u64::from(bits.count());
        if !std::mem::replace(&mut self.blocks[number as usize].is_queued, true) {
            self.unclean.push_back(number);
        }
    }

    /// Zeroes frames with old bytes, at most `frames` of 4 KiB. Returns how many it zeroed.
    pub(super) fn clean(&mut self, frames: u64) -> u64 {
        let mut zeroed = 0;
        while zeroed < frames {
            let Some(&number) = self.unclean.front() else {
                break;
            };
            let Some(index) = self.blocks[number as usize].dirty.lowest() else {
                self.blocks[number as usize].is_queued = false;
                self.unclean.pop_front();
                continue;
            };
            let bit = Bits::one(index);
            zeroed += self.zero(number, &bit);
            self.change(number, |block| block.dirty = block.dirty.without(&bit));
        }
        zeroed
    }

    /// Changes a block and its place in the order.
    fn change(&mut self, number: u32, change: impl FnOnce(&mut Block)) {
        let block = &mut self.blocks[number as usize];
        let before = block.rank();
        change(block);
        let after = block.rank();
        if before != after {
            if let Some((shape, late)) = before {
                self.free.remove(&(shape, late, number));
            }
            self.free
                .extend(after.map(|(shape, late)| (shape, late, number)));
        }
    }

    /// Zeroes frames that are needed at once, as far as they have old bytes.
    fn zero_late(&mut self, number: u32, bits: &Bits) {
        let dirty = self.blocks[number as usize].dirty.and(bits);
        self.late += self.zero(number, &dirty);
    }

    fn zero(&mut self, number: u32, bits: &Bits) -> u64 {
        let mut rest = bits.clone();
        while let Some(index) = rest.lowest() {
            let frame = number * FRAMES + index;
            self.bytes_mut(frame, 0, PageSize::Small.bytes() as usize)
                .fill(0);
            rest = rest.without(&Bits::one(index));
        }
        bits.count().into()
    }

    /// Returns `len` bytes at an offset in a frame.
    #[inline]
    pub(super) fn bytes(&self, frame: Frame, offset: u64, len: usize) -> &[u8] {
        let start = place(frame, offset) as usize;
        &self.memory.as_ref()[start..start + len]
    }

    /// Returns `len` bytes at an offset in a frame, to be written.
    #[inline]
    pub(super) fn bytes_mut(&mut self, frame: Frame, offset: u64, len: usize) -> &mut [u8] {
        let start = place(frame, offset) as usize;
        &mut self.memory.as_mut()[start..start + len]
    }
}

/// Returns the physical address: the offset in the memory of the pool.
#[inline]
pub(super) fn place(frame: Frame, offset: u64) -> u64 {
    (u64::from(frame) << PageSize::Small.shift()) + offset
}

/// A set of frames of a block.
#[derive(Clone, Default, PartialEq, Eq)]
struct Bits([u64; 8]);

impl Bits {
    #[inline]
    fn one(index: u32) -> Bits {
        let mut bits = Bits::default();
        bits.0[(index / 64) as usize] = 1 << (index % 64);
        bits
    }

    fn first(count: u32) -> Bits {
        Bits(std::array::from_fn(|word| {
            match count.saturating_sub(64 * word as u32) {
                64.. => u64::MAX,
                count => (1 << count) - 1,
            }
        }))
    }

    #[inline]
    fn combine(&self, other: &Bits, with: impl Fn(u64, u64) -> u64) -> Bits {
        Bits(std::array::from_fn(|n| with(self.0[n], other.0[n])))
    }

    #[inline]
    fn and(&self, other: &Bits) -> Bits {
        self.combine(other, |one, other| one & other)
    }

    #[inline]
    fn or(&self, other: &Bits) -> Bits {
        self.combine(other, |one, other| one | other)
    }

    #[inline]
    fn without(&self, other: &Bits) -> Bits {
        self.combine(other, |one, other| one & !other)
    }

    fn is_empty(&self) -> bool {
        self.0 == [0; 8]
    }

    fn is_full(&self) -> bool {
        self.0 == [u64::MAX; 8]
    }

    fn count(&self) -> u32 {
        self.0.iter().map(|word| word.count_ones()).sum()
    }

    fn lowest(&self) -> Option<u32> {
        let word = self.0.iter().position(|&word| word != 0)?;
        Some(64 * word as u32 + self.0[word].trailing_zeros())
    }
}
