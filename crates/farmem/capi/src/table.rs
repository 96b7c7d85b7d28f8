//! Sessions by number.
//!
//! C gets a number and not the address of a session, so that a session that was closed is known as
//! such instead of read after it was freed, and one that another thread uses is refused instead of
//! used twice at once. A number is a slot and the slot's generation, which grows each time that the
//! slot is emptied. Slots are never freed, so that finding one takes no lock but its own.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};

use crate::status::{Fault, TFM_BUSY, TFM_CLOSED, TFM_INTERNAL, TFM_SESSIONS};

/// Slots of the first chunk; each chunk has twice as many as the one before.
const FIRST: usize = 64;
const CHUNKS: usize = 15;

/// Most sessions of a process: about two million, each of which has a socket.
const SLOTS_MAX: usize = FIRST * ((1 << CHUNKS) - 1);

/// Bits of a number for the slot. The rest is for the generation, which begins at 1, so that no
/// number is 0, and is not used up within a lifetime.
const SLOT_BITS: u32 = 21;
const _: () = assert!(SLOTS_MAX <= 1 << SLOT_BITS);

/// Values that are found by numbers which are never given again.
pub(crate) struct Table<T> {
    chunks: [OnceLock<Box<[Slot<T>]>>; CHUNKS],
    free: Mutex<Free>,
}

struct Slot<T> {
    /// Changed only while the value is locked.
    generation: AtomicU64,
    value: Mutex<Option<T>>,
}

struct Free {
    /// Slots that were used and are empty.
    slots: Vec<usize>,
    /// The first slot that was never used.
    next: usize,
}

impl<T> Table<T> {
    pub(crate) const fn new() -> Table<T> {
        Table {
            chunks: [const { OnceLock::new() }; CHUNKS],
            free: Mutex::new(Free {
                slots: Vec::new(),
                next: 0,
            }),
        }
    }

    /// Keeps a value; returns its number.
    pub(crate) fn insert(&self, value: T) -> Result<u64, Fault> {
        let index = {
            let mut free = lock(&self.free);
            match free.slots.pop() {
                Some(index) => index,
                None if free.next < SLOTS_MAX => {
                    free.next += 1;
                    free.next - 1
                }
                None => return Err(Fault::new(TFM_SESSIONS)),
            }
        };
        let (chunk, at) = place(index);
        let slots = self.chunks[chunk]
            .get_or_init(|| (0..FIRST << chunk).map(|_| Slot::default()).collect());
        let slot = &slots[at];
        *lock(&slot.value) = Some(value);
        let generation = slot.generation.load(Ordering::Relaxed);
        Ok(generation << SLOT_BITS | index as u64)
    }

    /// Calls a function with a value.
    ///
    /// # Errors
    /// `TFM_CLOSED` if there is no value with the number, `TFM_BUSY` if another thread has it, and
    /// `TFM_INTERNAL` if an earlier call panicked with it.
    pub(crate) fn with<R>(
        &self,
        number: u64,
        call: impl FnOnce(&mut T) -> Result<R, Fault>,
    ) -> Result<R, Fault> {
        let mut value = self.locked(number, false)?;
        call(value.as_mut().ok_or(CLOSED)?)
    }

    /// Takes a value out, also one that a call panicked with.
    ///
    /// # Errors
    /// `TFM_CLOSED` and `TFM_BUSY`.
    pub(crate) fn remove(&self, number: u64) -> Result<T, Fault> {
        let (slot, index) = self.slot(number).ok_or(CLOSED)?;
        let mut place = self.locked(number, true)?;
        let value = place.take().ok_or(CLOSED)?;
        slot.generation.fetch_add(1, Ordering::Relaxed);
        slot.value.clear_poison();
        drop(place);
        lock(&self.free).slots.push(index);
        Ok(value)
    }

    /// Locks the value with a number.
    fn locked(&self, number: u64, takes_broken: bool) -> Result<MutexGuard<'_, Option<T>>, Fault> {
        let (slot, _) = self.slot(number).ok_or(CLOSED)?;
        let is_current = || slot.generation.load(Ordering::Relaxed) == number >> SLOT_BITS;
        // An old number is refused as such also while another thread uses the slot's new value.
        if !is_current() {
            return Err(CLOSED);
        }
        let value = match slot.value.try_lock() {
            Ok(value) => value,
            Err(TryLockError::Poisoned(value)) if takes_broken => value.into_inner(),
            Err(TryLockError::Poisoned(_)) => return Err(Fault::new(TFM_INTERNAL)),
            Err(TryLockError::WouldBlock) => return Err(Fault::new(TFM_BUSY)),
        };
        // The slot may have been emptied, and filled again, before it was locked.
        if is_current() {
            Ok(value)
        } else {
            Err(CLOSED)
        }
    }

    /// Returns the slot of a number, and its index.
    fn slot(&self, number: u64) -> Option<(&Slot<T>, usize)> {
        let index = (number & ((1 << SLOT_BITS) - 1)) as usize;
        let (chunk, at) = place(index);
        let slot = self.chunks.get(chunk)?.get()?.get(at)?;
        Some((slot, index))
    }
}

const CLOSED: Fault = Fault::new(TFM_CLOSED);

impl<T> Default for Slot<T> {
    fn default() -> Slot<T> {
        Slot {
            generation: AtomicU64::new(1),
            value: Mutex::new(None),
        }
    }
}

/// Returns the chunk of a slot, and its place there.
fn place(index: usize) -> (usize, usize) {
    let chunk = (index / FIRST + 1).ilog2() as usize;
    (chunk, index - FIRST * ((1 << chunk) - 1))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::border;

    fn code<R>(result: Result<R, Fault>) -> std::ffi::c_int {
        result.err().map_or(0, |fault| fault.code)
    }

    #[test]
    fn values_are_found_by_their_numbers_in_every_chunk() {
        let table = Table::new();
        let numbers: Vec<u64> = (0..5000)
            .map(|at| table.insert(at).expect("room"))
            .collect();
        for (at, number) in numbers.iter().enumerate() {
            assert_ne!(*number, 0);
            assert_eq!(table.with(*number, |value| Ok(*value)).ok(), Some(at));
        }
        for (at, number) in numbers.iter().enumerate() {
            assert_eq!(table.remove(*number).ok(), Some(at));
            assert_eq!(code(table.remove(*number)), TFM_CLOSED);
        }
    }

    #[test]
    fn a_number_is_not_given_again() {
        let table = Table::new();
        let mut seen = std::collections::HashSet::new();
        for round in 0..1000 {
            let number = table.insert(round).expect("room");
            assert!(seen.insert(number));
            for old in &seen {
                let found = table.with(*old, |value| Ok(*value));
                assert_eq!(code(found), if *old == number { 0 } else { TFM_CLOSED });
            }
            table.remove(number).ok();
        }
        assert_eq!(lock(&table.free).next, 1);
    }

    #[test]
    fn numbers_that_were_never_given_are_refused() {
        let table = Table::new();
        let number = table.insert(()).expect("room");
        for wrong in [
            0,
            1,
            1 << 20,
            number + 1,
            number + (1 << SLOT_BITS),
            !0,
            !0 - 1,
        ] {
            assert_eq!(
                code(table.with(wrong, |()| Ok(()))),
                TFM_CLOSED,
                "{wrong:#x}"
            );
            assert_eq!(code(table.remove(wrong)), TFM_CLOSED, "{wrong:#x}");
        }
    }

    #[test]
    fn a_value_in_use_is_neither_used_nor_taken_and_its_old_number_is_closed() {
        let table = Table::new();
        let old = table.insert(0).expect("room");
        table.remove(old).ok();
        let number = table.insert(1).expect("room");
        let inside = table.with(number, |_| {
            let busy = (table.with(number, |_| Ok(())), table.remove(number));
            assert_eq!((code(busy.0), code(busy.1)), (TFM_BUSY, TFM_BUSY));
            assert_eq!(code(table.with(old, |_| Ok(()))), TFM_CLOSED);
            Ok(())
        });
        assert_eq!(code(inside), 0);
        assert_eq!(table.remove(number).ok(), Some(1));
    }

    #[test]
    fn after_a_panic_a_value_can_only_be_removed() {
        let table = Table::new();
        let number = table.insert(7).expect("room");
        let panicked = border::call(|| table.with(number, |_| panic!("made by a test")));
        assert_eq!(panicked, TFM_INTERNAL);
        assert_eq!(code(table.with(number, |_| Ok(()))), TFM_INTERNAL);
        assert_eq!(table.remove(number).ok(), Some(7));
        // The slot serves the next one.
        let next = table.insert(8).expect("room");
        assert_eq!(table.with(next, |value| Ok(*value)).ok(), Some(8));
    }

    #[test]
    fn the_last_slot_is_in_the_last_chunk() {
        assert_eq!(place(0), (0, 0));
        assert_eq!(place(63), (0, 63));
        assert_eq!(place(64), (1, 0));
        let (chunk, at) = place(SLOTS_MAX - 1);
        assert_eq!((chunk, at), (CHUNKS - 1, (FIRST << (CHUNKS - 1)) - 1));
    }
}
