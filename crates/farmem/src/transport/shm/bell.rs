//! The words of the header, by which a side that sleeps is woken.

use std::cell::Cell;
use std::sync::atomic::{fence, Ordering};

use tare_memory::SharedMemory;

use super::layout;

/// The words of both sides, as one of them sees them.
///
/// A side that is going to sleep makes its word odd, passes a fence, and looks for an entry once
/// more. A side that has stored an entry passes a fence and looks at the other's word. So one of
/// the two sees what the other has stored.
#[derive(Debug)]
pub(super) struct Bell {
    /// The offset and the value of this side's word, odd while it must be notified. It changes
    /// when the caller asks for the descriptor, to sleep on it.
    own: usize,
    word: Cell<u32>,
    /// The offset of the other side's word, and the value for which it was notified last.
    other: usize,
    notified: u32,
    /// Entries were stored since the last fence.
    is_fence_due: bool,
}

impl Bell {
    pub(super) fn new(own: usize, other: usize) -> Bell {
        Bell {
            own,
            word: Cell::new(0),
            other,
            notified: 0,
            is_fence_due: false,
        }
    }

    /// From now on the other side has to notify this one. Returns false, and changes that back, if
    /// the next entry for this side, at `at` with this number, is there already.
    pub(super) fn park(&self, memory: &SharedMemory, at: usize, number: u32) -> bool {
        self.set(memory, self.word.get().wrapping_add(1) | 1);
        fence(Ordering::SeqCst);
        if layout::first_word(memory, at, number).is_some() {
            self.unpark(memory);
            return false;
        }
        true
    }

    /// From now on this side looks for entries by itself. Returns true if it did not.
    #[inline]
    pub(super) fn unpark(&self, memory: &SharedMemory) -> bool {
        let is_parked = self.word.get() & 1 == 1;
        if is_parked {
            self.set(memory, self.word.get().wrapping_add(1));
        }
        is_parked
    }

    fn set(&self, memory: &SharedMemory, value: u32) {
        self.word.set(value);
        if let Some(word) = memory.view().atomic::<u32>(self.own) {
            word.store(value, Ordering::Relaxed);
        }
    }

    /// Takes note of an entry that was stored.
    #[inline]
    pub(super) fn stored(&mut self) {
        self.is_fence_due = true;
    }

    /// Returns true if the other side must be notified now, as far as is known without a fence.
    #[inline]
    pub(super) fn must_notify(&mut self, memory: &SharedMemory) -> bool {
        let word = memory.view().atomic::<u32>(self.other);
        let word = word.map_or(0, |word| word.load(Ordering::Relaxed));
        let must = word & 1 == 1 && word != self.notified;
        if must {
            self.notified = word;
        }
        must
    }

    /// Returns true if the other side must be notified of what was stored since the last call.
    #[inline]
    pub(super) fn must_notify_for_certain(&mut self, memory: &SharedMemory) -> bool {
        std::mem::take(&mut self.is_fence_due) && {
            fence(Ordering::SeqCst);
            self.must_notify(memory)
        }
    }
}
