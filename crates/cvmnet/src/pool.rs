//! Pools of equal buffers, in shared or in private memory, with handles that count.

use std::cell::{Cell, Ref, RefCell, RefMut};
use std::fmt;
use std::ops::Range;
use std::rc::Rc;

use tare_memory::View;
use tare_packet::checksum;

use crate::region::{PoolLayout, Region};

/// Equal buffers, of which each is free or held.
pub struct Pool {
    memory: Memory,
    /// Handles of each buffer.
    holders: Box<[Cell<u32>]>,
    /// The buffers without handles, the last one given back on top: the caches have it.
    free: RefCell<Vec<u32>>,
}

enum Memory {
    Shared {
        region: Rc<Region>,
        layout: PoolLayout,
    },
    Private {
        buffers: Box<[RefCell<Box<[u8]>>]>,
        bytes: usize,
    },
}

impl Pool {
    /// Returns a pool of shared buffers.
    pub(crate) fn shared(region: Rc<Region>, layout: PoolLayout) -> Rc<Pool> {
        Pool::new(layout.count, Memory::Shared { region, layout })
    }

    /// Returns a pool of `count` private buffers.
    pub(crate) fn private(count: usize, bytes: usize) -> Rc<Pool> {
        let one = || RefCell::new(vec![0; bytes].into_boxed_slice());
        let buffers = (0..count).map(|_| one()).collect();
        Pool::new(count, Memory::Private { buffers, bytes })
    }

    fn new(count: usize, memory: Memory) -> Rc<Pool> {
        Rc::new(Pool {
            memory,
            holders: vec![Cell::new(0); count].into_boxed_slice(),
            // Has room for all, so that giving back never allocates.
            free: RefCell::new((0..count as u32).rev().collect()),
        })
    }

    /// Takes a buffer; `None` if all are held.
    #[inline]
    pub fn take(self: &Rc<Pool>) -> Option<GuestBuffer> {
        let index = self.free.borrow_mut().pop()?;
        self.holders[index as usize].set(1);
        Some(GuestBuffer {
            pool: Rc::clone(self),
            index,
        })
    }

    /// Returns the number of buffers that are free.
    pub fn free(&self) -> usize {
        self.free.borrow().len()
    }

    /// Returns the number of all buffers.
    pub fn count(&self) -> usize {
        self.holders.len()
    }

    /// Returns the bytes of a buffer.
    #[inline]
    pub fn bytes(&self) -> usize {
        match &self.memory {
            Memory::Shared { layout, .. } => layout.bytes,
            Memory::Private { bytes, .. } => *bytes,
        }
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Pool({} of {} buffers of {} bytes free)",
            self.free(),
            self.count(),
            self.bytes()
        )
    }
}

/// A handle of a buffer, which goes back to its pool with the last handle. Cheap to clone.
pub struct GuestBuffer {
    pool: Rc<Pool>,
    index: u32,
}

impl GuestBuffer {
    /// Returns the number of bytes.
    #[inline]
    pub fn capacity(&self) -> usize {
        self.pool.bytes()
    }

    /// Returns true if the host can change it.
    pub fn is_shared(&self) -> bool {
        matches!(self.pool.memory, Memory::Shared { .. })
    }

    /// Returns a view of bytes of a shared buffer; `None` if it is private or has not as many.
    #[inline]
    pub fn view(&self, range: Range<usize>) -> Option<View<'_>> {
        let Memory::Shared { region, .. } = &self.pool.memory else {
            return None;
        };
        let len = range.end.checked_sub(range.start)?;
        let whole = region.bytes(self.address()?, self.capacity());
        whole.range(range.start, len)
    }

    /// Returns bytes of a private buffer; `None` if it is shared or has not as many.
    ///
    /// # Panics
    /// While it is being written to.
    pub fn private(&self, range: Range<usize>) -> Option<Ref<'_, [u8]>> {
        let Memory::Private { buffers, .. } = &self.pool.memory else {
            return None;
        };
        let bytes = buffers[self.index as usize].borrow();
        Ref::filter_map(bytes, |bytes| bytes.get(range)).ok()
    }

    /// Returns bytes of a private buffer to be changed; `None` if it is shared or has not as many.
    ///
    /// # Panics
    /// While it is being read or written to.
    pub fn private_mut(&self, range: Range<usize>) -> Option<RefMut<'_, [u8]>> {
        let Memory::Private { buffers, .. } = &self.pool.memory else {
            return None;
        };
        let bytes = buffers[self.index as usize].borrow_mut();
        RefMut::filter_map(bytes, |bytes| bytes.get_mut(range)).ok()
    }

    /// Copies the bytes from `at` on, each read once; `None` if the buffer has not as many.
    #[inline]
    pub fn read(&self, at: usize, to: &mut [u8]) -> Option<()> {
        let range = at..at.checked_add(to.len())?;
        match self.view(range.clone()) {
            Some(view) => view.copy_to(to),
            None => {
                to.copy_from_slice(&self.private(range)?);
                Some(())
            }
        }
    }

    /// Copies bytes into the buffer at `at`; `None` if it has not as many.
    #[inline]
    pub fn write(&self, at: usize, from: &[u8]) -> Option<()> {
        let range = at..at.checked_add(from.len())?;
        match self.view(range.clone()) {
            Some(view) => view.copy_from(from),
            None => {
                self.private_mut(range)?.copy_from_slice(from);
                Some(())
            }
        }
    }

    /// Returns the sum of bytes as [`tare_packet::checksum::sum`] does, each read once; `None` if
    /// the buffer has not as many.
    pub fn sum(&self, range: Range<usize>) -> Option<u64> {
        let Some(view) = self.view(range.clone()) else {
            return Some(checksum::sum(&self.private(range)?));
        };
        let (native, done) = view.sum_words();
        let mut sum = checksum::of_native(native);
        // The rest through private memory, since a sum reads with instructions of its own.
        let mut part = [0; 64];
        for at in (done..view.len()).step_by(part.len()) {
            let part = &mut part[..(view.len() - at).min(64)];
            view.range(at, part.len())?.copy_to(part)?;
            sum += checksum::sum(part);
        }
        Some(sum)
    }

    /// Returns the place in the region, which is its address for the device; `None` if private.
    #[inline]
    pub(crate) fn address(&self) -> Option<usize> {
        match &self.pool.memory {
            Memory::Shared { layout, .. } => {
                Some(layout.start + layout.stride * self.index as usize)
            }
            Memory::Private { .. } => None,
        }
    }
}

impl Clone for GuestBuffer {
    #[inline]
    fn clone(&self) -> GuestBuffer {
        let holders = &self.pool.holders[self.index as usize];
        // Each handle is 16 bytes: four billion of them do not fit into the memory of a guest.
        holders.set(holders.get().checked_add(1).expect("too many handles"));
        GuestBuffer {
            pool: Rc::clone(&self.pool),
            index: self.index,
        }
    }
}

impl Drop for GuestBuffer {
    #[inline]
    fn drop(&mut self) {
        let holders = &self.pool.holders[self.index as usize];
        holders.set(holders.get() - 1);
        if holders.get() == 0 {
            self.pool.free.borrow_mut().push(self.index);
        }
    }
}

impl fmt::Debug for GuestBuffer {
    /// The bytes may be anything, and are not printed.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.is_shared() {
            "shared"
        } else {
            "private"
        };
        write!(f, "GuestBuffer({}, {kind})", self.index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::region::Config;

    fn pools() -> [Rc<Pool>; 2] {
        let config = Config {
            record_buffers: 4,
            record_bytes: 1000,
            ..Config::default()
        };
        let region = Rc::new(Region::create(&config).unwrap());
        let layout = region.layout().pair(0).unwrap().records;
        [Pool::shared(region, layout), Pool::private(4, 1000)]
    }

    #[test]
    fn a_buffer_is_free_again_with_its_last_handle() {
        for pool in pools() {
            let buffers: Vec<_> = (0..4).map_while(|_| pool.take()).collect();
            assert!(buffers.len() == 4 && pool.take().is_none(), "{pool:?}");
            let other = buffers[2].clone();
            drop(buffers);
            assert_eq!(pool.free(), 3);
            drop(other);
            assert_eq!(pool.free(), 4);
        }
    }

    #[test]
    fn bytes_are_written_read_and_summed_within_the_buffer_alone() {
        let bytes: Vec<u8> = (0..1000u32).map(|n| (n * 7) as u8).collect();
        for pool in pools() {
            let (buffer, other) = (pool.take().unwrap(), pool.take().unwrap());
            other.write(0, &[0xee; 1000]).unwrap();
            buffer.write(0, &bytes).unwrap();
            buffer.write(998, &[1, 2]).unwrap();
            assert!(buffer.write(999, &[1, 2]).is_none());
            assert!(buffer.write(usize::MAX, &[1, 2]).is_none());
            let mut part = [0; 100];
            buffer.read(437, &mut part).unwrap();
            assert_eq!(part, bytes[437..537]);
            assert!(buffer.read(901, &mut part).is_none());
            let sum = buffer.sum(3..998).unwrap();
            assert_eq!(
                checksum::finish(sum),
                checksum::finish(checksum::sum(&bytes[3..998]))
            );
            assert!(buffer.sum(3..1001).is_none());
            let mut all = [0; 1000];
            other.read(0, &mut all).unwrap();
            assert_eq!(all, [0xee; 1000]);
        }
    }

    #[test]
    fn a_view_is_of_shared_buffers_alone_and_a_slice_of_private_ones() {
        let [shared, private] = pools().map(|pool| pool.take().unwrap());
        assert!(shared.is_shared() && !private.is_shared());
        assert!(shared.view(0..1000).is_some() && shared.view(0..1001).is_none());
        assert!(private.view(0..1000).is_none() && private.address().is_none());
        assert!(private.private(0..1000).is_some() && private.private(1..1001).is_none());
        assert!(shared.private(0..1).is_none() && shared.private_mut(0..1).is_none());
    }
}
