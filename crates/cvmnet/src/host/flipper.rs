//! A host that changes received frames while the guest reads them.

use std::collections::VecDeque;
use std::hint;
use std::sync::atomic::Ordering;

use crate::region::{QueueLayout, Region};

/// Frames back from the last one that are attacked.
const RECENT: usize = 4;

/// The attack on a guest that reads shared bytes more than once: it flips a bit of a frame that the
/// guest has just been given, and soon flips it back. A guest that looks at the byte in between
/// takes part in it: if it does for all of its readings it refuses the record, and if it does for
/// the last one alone it accepts what the host has chosen.
///
/// It has nothing but what every host has, the region.
pub struct Flipper<'r> {
    region: &'r Region,
    queue: QueueLayout,
    /// The available index up to which buffers were noted, and the used index.
    available: u16,
    used: u16,
    /// Places of buffers that the device has, in the order of their use.
    posted: VecDeque<u64>,
    /// Place and length of the frames that the guest was given last.
    recent: VecDeque<(usize, usize)>,
    random: u64,
    flips: u64,
}

impl<'r> Flipper<'r> {
    /// Returns an attacker of a queue pair's received frames; `None` if the region has no such
    /// pair.
    pub fn new(region: &'r Region, pair: usize) -> Option<Flipper<'r>> {
        Some(Flipper {
            region,
            queue: region.layout().pair(pair)?.receive,
            available: 0,
            used: 0,
            posted: VecDeque::new(),
            recent: VecDeque::new(),
            random: 1,
            flips: 0,
        })
    }

    /// Notes the buffers that the guest has posted. To be called before the device uses them: once
    /// the guest has its frame, the descriptor is that of another buffer.
    pub fn note(&mut self) {
        let queue = self.queue;
        let index: u16 = self.region.load(queue.available + 2, Ordering::Acquire);
        while self.available != u16::from_le(index) {
            let slot = usize::from(self.available % queue.size);
            let place = queue.available + 4 + 2 * slot;
            let id = u16::from_le(self.region.load(place, Ordering::Relaxed));
            let descriptor = queue.descriptors + 16 * usize::from(id % queue.size);
            let address: u64 = self.region.load(descriptor, Ordering::Relaxed);
            self.posted.push_back(u64::from_le(address));
            self.available = self.available.wrapping_add(1);
        }
    }

    /// Notes the frames that the device has given to the guest since.
    pub fn follow(&mut self) {
        let queue = self.queue;
        let index: u16 = self.region.load(queue.used + 2, Ordering::Acquire);
        while self.used != u16::from_le(index) {
            let slot = usize::from(self.used % queue.size);
            let element = queue.used + 4 + 8 * slot;
            let len = u32::from_le(self.region.load(element + 4, Ordering::Relaxed));
            self.used = self.used.wrapping_add(1);
            if let Some(address) = self.posted.pop_front() {
                self.recent.push_front((address as usize, len as usize));
                self.recent.truncate(RECENT);
            }
        }
    }

    /// Flips a bit of one of the last frames behind its first `skip` bytes, and flips it back after
    /// up to 64 turns of waiting. Does nothing if there is no such frame.
    pub fn flip(&mut self, skip: usize) {
        // Knuth's MMIX generator; the upper bits are the good ones.
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005);
        self.random = self.random.wrapping_add(1_442_695_040_888_963_407);
        let number = |shift: u32, below: usize| (self.random >> shift) as usize % below.max(1);
        let frame = self.recent.get(number(56, RECENT));
        let Some(&(address, len)) = frame.filter(|(_, len)| *len > skip) else {
            return;
        };
        let at = address + skip + number(24, len - skip);
        let bit = 1 << number(53, 8);
        let found: u8 = self.region.load(at, Ordering::Relaxed);
        self.region.store(at, found ^ bit, Ordering::Relaxed);
        for _ in 0..number(47, 64) {
            hint::spin_loop();
        }
        self.region.store(at, found, Ordering::Relaxed);
        self.flips += 1;
    }

    /// Returns the number of bits that were flipped and flipped back.
    pub fn flips(&self) -> u64 {
        self.flips
    }
}
