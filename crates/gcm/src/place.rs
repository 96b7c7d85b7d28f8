//! The memory that schedules are in, zero when they are dropped.

/// With the standard library, side by side: an arena spreads many keys over the whole cache.
#[cfg(feature = "std")]
mod arena {
    use crate::schedule::Schedule;
    use tare_memory::{Arena, Placed, Shared};

    pub(crate) type Place = Shared<Schedule>;

    impl Placed for Schedule {
        fn arena() -> &'static Arena<Schedule> {
            static SCHEDULES: Arena<Schedule> = Arena::new();
            &SCHEDULES
        }
    }
}

/// Without it, each where the allocator puts it.
#[cfg(not(feature = "std"))]
mod heap {
    use crate::schedule::Schedule;
    use alloc::boxed::Box;
    use core::ops::Deref;
    use zeroize::optimization_barrier;

    pub(crate) struct Place(Box<Schedule>);

    impl Place {
        /// Puts a schedule on the heap and fills it there, so that no copy of its secrets is
        /// elsewhere.
        pub(crate) fn filled(empty: Schedule, fill: impl FnOnce(&mut Schedule)) -> Place {
            let mut place = Place(Box::new(empty));
            fill(&mut place.0);
            place
        }
    }

    impl Deref for Place {
        type Target = Schedule;

        fn deref(&self) -> &Schedule {
            &self.0
        }
    }

    impl Drop for Place {
        fn drop(&mut self) {
            *self.0 = Schedule::EMPTY;
            // Counts as a read, so that the compiler does not drop the stores.
            optimization_barrier(&*self.0);
        }
    }
}

#[cfg(feature = "std")]
pub(crate) use arena::Place;
#[cfg(not(feature = "std"))]
pub(crate) use heap::Place;

#[cfg(all(test, feature = "std"))]
mod tests {
    use crate::schedule::Schedule;
    use tare_memory::Arena;

    #[test]
    fn a_key_has_the_bytes_that_the_guide_says() {
        assert_eq!(size_of::<Schedule>(), 1216);
        assert_eq!(Arena::<Schedule>::STRIDE, 1344);
    }
}
