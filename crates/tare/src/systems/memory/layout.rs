//! The memory that a load works on: spaces, pages, the places of operations and what each holds.

use tare_farmem::operation::{PageSize, SpaceId};
use tare_lab::choices;

/// Bytes of a page.
pub(super) const PAGE: u64 = PageSize::Small.bytes();

choices! {
    /// The direction of operations.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) enum Direction {
        /// From the node.
        Read = "read",
        /// To the node.
        Write = "write",
    }
}

/// The memory that a load works on: as many pages in each of some address spaces, at the same
/// addresses in all of them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    /// The first space; the others have the numbers after it.
    pub(crate) first_space: u64,
    /// Spaces, one per session.
    pub(crate) spaces: u64,
    /// Pages of 4 KiB per space, a power of two.
    pub(crate) pages: u64,
    /// The address of the first page.
    pub(crate) base: u64,
    /// Bytes per operation, which begin at the start of a page.
    pub(crate) size: u32,
    /// The direction of all operations.
    pub(crate) direction: Direction,
    /// Regions that the pages are in, which belong to the space after the last one and are mapped
    /// by all others; 0 if each has memory of its own.
    pub(crate) regions: u64,
}

impl Layout {
    /// The bytes of a space: whole pages, and enough for one operation at the last of its places.
    pub(crate) fn bytes(&self) -> u64 {
        self.places() * self.stride()
    }

    /// The bytes of all spaces.
    pub(crate) fn total(&self) -> u64 {
        self.spaces * self.bytes()
    }

    /// Places of a space at which operations begin.
    pub(super) fn places(&self) -> u64 {
        (self.pages * PAGE / self.stride()).max(1)
    }

    /// Bytes between two places: whole pages, so that each operation touches pages of its own.
    fn stride(&self) -> u64 {
        u64::from(self.size)
            .next_multiple_of(PAGE)
            .next_power_of_two()
    }

    pub(super) fn space(&self, place: Place) -> SpaceId {
        SpaceId(self.first_space + place.session)
    }

    /// All spaces, with the one that owns the regions last, if there are any.
    pub(super) fn all_spaces(&self) -> impl Iterator<Item = SpaceId> + Clone {
        let count = self.spaces + u64::from(self.regions > 0);
        (self.first_space..self.first_space + count).map(SpaceId)
    }

    pub(super) fn address(&self, place: Place) -> u64 {
        self.base + place.number * self.stride()
    }
}

/// A place in one of the spaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Place {
    pub(crate) session: u64,
    pub(crate) number: u64,
}

/// All places in turn: each session before one has a second turn, and each place of a session once
/// before one comes again, in an order that no prefetcher foresees.
#[derive(Clone, Debug)]
pub(super) struct Turns {
    sessions: u64,
    places: u64,
    session: u64,
    pub(super) state: u64,
}

impl Turns {
    pub(super) fn new(layout: &Layout) -> Turns {
        Turns::among(layout, layout.places())
    }

    /// Turns of the first places of each session alone, a power of two of them at most.
    pub(super) fn among(layout: &Layout, places: u64) -> Turns {
        Turns {
            sessions: layout.spaces,
            places: layout.places().min(places),
            session: 0,
            state: 0,
        }
    }

    pub(super) fn next(&mut self) -> Place {
        let place = Place {
            session: self.session,
            number: self.state,
        };
        self.session += 1;
        if self.session == self.sessions {
            self.session = 0;
            // A full period for every power of two (Hull and Dobell). Mixing the low bits, whose
            // period is short, would break it, so all sessions have the same place at a time.
            self.state =
                (self.state.wrapping_mul(MULTIPLIER).wrapping_add(INCREMENT)) & (self.places - 1);
        }
        place
    }
}

const MULTIPLIER: u64 = 0x5851_f42d_4c95_7f2d;
const INCREMENT: u64 = 0x1405_7b7e_f767_814f;

/// The first word of what a place holds after its last write: different for all.
pub(crate) fn seed(place: Place, version: u64) -> u64 {
    let mixed = [place.session, place.number, version]
        .iter()
        .fold(0, |mixed: u64, part| {
            (mixed ^ part).wrapping_mul(MULTIPLIER).rotate_left(29)
        });
    mixed | 1
}

/// Fills memory with words of which each differs from the next; no word is zero for long.
pub(crate) fn fill(data: &mut [u8], seed: u64) {
    let mut word = seed;
    let mut words = data.chunks_exact_mut(8);
    for bytes in &mut words {
        bytes.copy_from_slice(&word.to_le_bytes());
        word = word.wrapping_add(INCREMENT);
    }
    let rest = words.into_remainder();
    let len = rest.len();
    rest.copy_from_slice(&word.to_le_bytes()[..len]);
}
