//! The bounce buffer: slots of shared memory that frames are copied through, for the variants whose
//! device cannot touch the memory that the guest works on.
//!
//! As with Linux's `swiotlb`, slots have 2 KiB, a mapping is a run of adjacent slots within a
//! segment of 128, and a search begins where the last one ended. For each slot there is the number
//! of free slots from it to the end of its segment, so a search steps over whole runs.

use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;

use tare_memory::View;

use crate::region::{Region, SLOT};

/// Slots of a segment; no run is longer.
pub const SEGMENT: usize = 128;

/// A run of adjacent slots in use, given back by [`Bounce::release`] alone.
#[derive(Debug, PartialEq, Eq)]
pub struct Run {
    first: u32,
    slots: u32,
}

/// Slots that are free and those in use. Only this, in private memory, says which.
pub struct Bounce {
    region: Rc<Region>,
    start: usize,
    slots: RefCell<Slots>,
}

struct Slots {
    /// For each slot the number of free ones from it on, up to the end of the segment; 0 if it is
    /// in use.
    free_from: Box<[u8]>,
    next: usize,
    free: usize,
}

impl Bounce {
    /// Returns a bounce buffer whose `slots` begin at `start`, all free.
    pub(crate) fn new(region: Rc<Region>, start: usize, slots: usize) -> Bounce {
        let left = |slot: usize| (SEGMENT - slot % SEGMENT).min(slots - slot) as u8;
        Bounce {
            region,
            start,
            slots: RefCell::new(Slots {
                free_from: (0..slots).map(left).collect(),
                next: 0,
                free: slots,
            }),
        }
    }

    /// Returns the number of free slots.
    pub fn free(&self) -> usize {
        self.slots.borrow().free
    }

    /// Finds a run for `bytes` bytes; `None` if no segment has one, or `bytes` is 0 or more than a
    /// segment has.
    pub fn find(&self, bytes: usize) -> Option<Run> {
        let slots = bytes.div_ceil(SLOT);
        if !(1..=SEGMENT).contains(&slots) {
            return None;
        }
        self.slots.borrow_mut().find(slots)
    }

    /// Gives a run back.
    pub fn release(&self, run: Run) {
        self.slots.borrow_mut().release(&run);
    }

    /// Returns the place of a run in the region, which is its address for the device.
    pub fn address(&self, run: &Run) -> usize {
        self.start + SLOT * run.first as usize
    }

    /// Returns the bytes of a run.
    pub fn capacity(run: &Run) -> usize {
        SLOT * run.slots as usize
    }

    /// Returns a view of bytes of a run; `None` if it has not as many.
    pub fn view(&self, run: &Run, range: Range<usize>) -> Option<View<'_>> {
        let whole = self.region.bytes(self.address(run), Bounce::capacity(run));
        whole.range(range.start, range.len())
    }
}

impl Slots {
    fn find(&mut self, slots: usize) -> Option<Run> {
        if self.free < slots {
            return None;
        }
        let first = self
            .search(self.next..self.free_from.len(), slots)
            .or_else(|| self.search(0..self.next, slots))?;
        // Those before it in its segment now end where it begins.
        let left = usize::from(self.free_from[first]);
        self.free_from[first..first + slots].fill(0);
        self.shorten(first, left);
        self.free -= slots;
        self.next = (first + slots) % self.free_from.len();
        Some(Run {
            first: first as u32,
            slots: slots as u32,
        })
    }

    fn search(&self, range: Range<usize>, slots: usize) -> Option<usize> {
        let mut at = range.start;
        while at < range.end {
            let free = usize::from(self.free_from[at]);
            if free >= slots {
                return Some(at);
            }
            at += free.max(1);
        }
        None
    }

    /// Subtracts from the free slots right before `at` the ones that they no longer reach.
    fn shorten(&mut self, at: usize, left: usize) {
        let segment = at - at % SEGMENT;
        let before = self.free_from[segment..at].iter_mut().rev();
        before
            .take_while(|free| **free != 0)
            .for_each(|free| *free -= left as u8);
    }

    fn release(&mut self, run: &Run) {
        let (first, slots) = (run.first as usize, run.slots as usize);
        let end = first + slots;
        let behind = match end % SEGMENT {
            0 => 0,
            _ => self.free_from.get(end).copied().unwrap_or(0),
        };
        for (n, free) in self.free_from[first..end].iter_mut().enumerate() {
            *free = behind + (slots - n) as u8;
        }
        let left = self.free_from[first];
        let segment = first - first % SEGMENT;
        let before = self.free_from[segment..first].iter_mut().rev();
        before
            .take_while(|free| **free != 0)
            .for_each(|free| *free += left);
        self.free += slots;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::region::Config;
    use proptest::prelude::*;

    fn bounce(slots: u32) -> Bounce {
        let config = Config {
            bounce_slots: slots,
            ..Config::default()
        };
        let region = Rc::new(Region::create(&config).unwrap());
        let start = region.layout().pair(0).unwrap().bounce;
        Bounce::new(region, start, slots as usize)
    }

    #[test]
    fn a_run_is_copied_to_and_from_and_is_no_longer_than_asked_for() {
        let bounce = bounce(300);
        let first = bounce.find(1).unwrap();
        let run = bounce.find(2 * SLOT + 1).unwrap();
        assert_eq!(Bounce::capacity(&first), SLOT);
        assert_eq!(Bounce::capacity(&run), 3 * SLOT);
        assert_eq!(bounce.address(&run), bounce.address(&first) + SLOT);
        assert!(bounce.view(&run, SLOT..3 * SLOT + 1).is_none());
        let view = bounce.view(&run, 5..10).unwrap();
        view.copy_from(b"hello").unwrap();
        let mut bytes = [0; 5];
        bounce
            .view(&run, 5..10)
            .unwrap()
            .copy_to(&mut bytes)
            .unwrap();
        assert_eq!(&bytes, b"hello");
    }

    #[test]
    fn a_buffer_that_is_full_finds_none_until_one_is_released() {
        let bounce = bounce(200);
        assert!(bounce.find(0).is_none());
        assert!(bounce.find(SEGMENT * SLOT + 1).is_none());
        let whole = bounce.find(SEGMENT * SLOT).unwrap();
        // The last segment has 72.
        assert!(bounce.find(73 * SLOT).is_none());
        let rest = bounce.find(72 * SLOT).unwrap();
        assert_eq!((bounce.free(), bounce.find(1)), (0, None));
        bounce.release(whole);
        assert_eq!(bounce.free(), 128);
        assert!(bounce.find(SEGMENT * SLOT).is_some());
        bounce.release(rest);
    }

    proptest! {
        #[test]
        fn runs_never_overlap_and_every_slot_comes_back(
            slots in 1u32..400,
            steps in proptest::collection::vec((any::<bool>(), any::<prop::sample::Index>(), 1usize..140), 1..300),
        ) {
            let bounce = bounce(slots);
            let mut runs: Vec<Run> = Vec::new();
            let mut used = vec![false; slots as usize];
            for (take, which, count) in steps {
                if take {
                    // A search by hand: the longest free run of each segment.
                    let possible = used.chunks(SEGMENT).any(|segment| {
                        segment.split(|used| *used).any(|run| run.len() >= count)
                    });
                    let run = bounce.find(count * SLOT);
                    prop_assert_eq!(run.is_some(), possible && count <= SEGMENT);
                    if let Some(run) = run {
                        let range = run.first as usize..(run.first + run.slots) as usize;
                        prop_assert_eq!(range.start / SEGMENT, (range.end - 1) / SEGMENT);
                        prop_assert!(!used[range.clone()].contains(&true));
                        used[range].fill(true);
                        runs.push(run);
                    }
                } else if !runs.is_empty() {
                    let run = runs.swap_remove(which.index(runs.len()));
                    used[run.first as usize..(run.first + run.slots) as usize].fill(false);
                    bounce.release(run);
                }
                prop_assert_eq!(bounce.free(), used.iter().filter(|used| !**used).count());
            }
            runs.into_iter().for_each(|run| bounce.release(run));
            let fresh = super::Bounce::new(Rc::clone(&bounce.region), bounce.start, slots as usize);
            prop_assert_eq!(&bounce.slots.borrow().free_from, &fresh.slots.borrow().free_from);
        }
    }
}
