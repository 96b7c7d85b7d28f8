//! Two dependent cache misses without a page table: the place of a page is in one line, and its
//! bytes are at that place.
//!
//! Both arrays are as long as those of a node, a line and 4 KiB for each page, in the pages of the
//! machine that a node takes. As a node's frames, the places are in no order, and bytes are read at
//! the start of a page.

use tare_farmem::operation::PageSize;
use tare_memory::Mapping;

/// Bytes of a page.
const PAGE: usize = PageSize::Small.bytes() as usize;

/// Bytes of a cache line.
const LINE: usize = 64;

/// Bytes that are read at a page.
const READ: usize = 16;

/// The arrays, and where in them the next misses are.
pub(super) struct Misses {
    table: Mapping,
    pool: Mapping,
    mask: u64,
    state: u64,
}

impl Misses {
    /// Returns the bytes of both arrays for `2^order` pages.
    pub(super) const fn bytes(order: u32) -> u64 {
        ((PAGE + LINE) as u64) << order
    }

    /// Makes both arrays.
    ///
    /// # Errors
    /// There is too little memory.
    pub(super) fn new(order: u32) -> anyhow::Result<Misses> {
        let pages = 1usize << order;
        let mut table = Mapping::best(pages * LINE)?;
        let mask = pages as u64 - 1;
        for (page, line) in (0..).zip(table.as_mut().chunks_exact_mut(LINE)) {
            let place = scattered(page, mask) * PAGE as u64;
            line[..8].copy_from_slice(&place.to_le_bytes());
        }
        Ok(Misses {
            table,
            pool: Mapping::best(pages * PAGE)?,
            mask,
            state: 1,
        })
    }

    /// Reads the first bytes of a page. Which page is next depends on them, so that no two steps
    /// overlap.
    #[inline]
    pub(super) fn step(&mut self) -> [u8; READ] {
        let page = (self.state >> 33 & self.mask) as usize;
        let line = &self.table.as_ref()[page * LINE..];
        let place = u64::from_le_bytes(*line.first_chunk().expect("a line")) as usize;
        let bytes = *self.pool.as_ref()[place..].first_chunk().expect("a page");
        // All of them are 0, which the compiler does not know.
        self.state = (self.state ^ u128::from_le_bytes(bytes) as u64)
            .wrapping_mul(0x5851_f42d_4c95_7f2d)
            .wrapping_add(0x1405_7b7e_f767_814f);
        bytes
    }
}

/// A permutation of the pages in which neighbours are far from each other.
fn scattered(page: u64, mask: u64) -> u64 {
    page.wrapping_mul(0x9e37_79b1) & mask
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn misses_are_at_the_start_of_every_page() {
        let order = 6;
        let mut misses = Misses::new(order).unwrap();
        let table = misses.table.as_ref().len() + misses.pool.as_ref().len();
        assert_eq!(table as u64, Misses::bytes(order));
        let place = |line: &[u8]| u64::from_le_bytes(*line.first_chunk().unwrap());
        let lines = misses.table.as_ref().chunks_exact(LINE);
        let places: HashSet<u64> = lines.map(place).collect();
        let all = (0..1 << order).map(|page| page * PAGE as u64);
        assert_eq!(places, all.collect());
        // Each page has another first byte, by which the steps tell it.
        for (page, bytes) in (0..).zip(misses.pool.as_mut().chunks_exact_mut(PAGE)) {
            bytes[0] = page;
        }
        let seen: HashSet<u8> = (0..2000).map(|_| misses.step()[0]).collect();
        assert_eq!(seen.len(), 1 << order);
    }
}
