//! The memory that holds a thread's generator.
//!
//! On Linux with glibc that is a block of static thread-local storage, whose distance from the
//! thread pointer is known once the library is loaded: two instructions find it. What
//! `thread_local!` compiles to in a shared library is a call of `__tls_get_addr`, which costs a
//! tenth of a random number. The price is that the block counts against the surplus of static
//! storage that glibc keeps for libraries loaded by `dlopen` (about 1.6 kB for all of them), so
//! it has to stay small.

use std::mem::MaybeUninit;

use tare_rdrand::Rdrand;

/// A generator or none. With all bytes zero, as in fresh thread-local storage, it is none.
#[repr(C)]
pub(super) struct Slot {
    made: bool,
    generator: MaybeUninit<Rdrand>,
}

impl Slot {
    #[inline(always)]
    pub(super) fn generator(&mut self) -> Option<&mut Rdrand> {
        // SAFETY: `made` is true only after `insert` has written the generator.
        self.made
            .then(|| unsafe { self.generator.assume_init_mut() })
    }

    /// Puts a generator into an empty slot.
    #[cold]
    pub(super) fn insert(&mut self, generator: Rdrand) -> &mut Rdrand {
        self.made = true;
        self.generator.write(generator)
    }

    /// Drops the generator.
    #[cold]
    pub(super) fn clear(&mut self) {
        if std::mem::take(&mut self.made) {
            // SAFETY: it was made, and is not reached any more.
            unsafe { self.generator.assume_init_drop() };
        }
    }
}

/// The slot of the calling thread. It has no destructor, so that it can be used for as long
/// as the thread runs, also by destructors of other libraries.
///
/// # Safety
/// The reference is the only one at a time, and does not leave the thread.
#[inline(always)]
pub(super) unsafe fn of_this_thread<'a>() -> &'a mut Slot {
    // SAFETY: aligned, initialised and the thread's own, see `address`; the caller promises the
    // rest.
    unsafe { &mut *address() }
}

#[cfg(all(
    target_arch = "x86_64",
    target_pointer_width = "64",
    target_os = "linux",
    target_env = "gnu",
    not(miri)
))]
mod place {
    use super::Slot;

    // A thread-local variable of its own, zeroed, as a compiler would emit it. Hidden, so that
    // no other library can put its own in place of it.
    std::arch::global_asm!(
        ".pushsection .tbss.tare_rdrand_generator,\"awT\",@nobits",
        ".balign {align}",
        ".hidden tare_rdrand_generator",
        ".globl tare_rdrand_generator",
        ".type tare_rdrand_generator,@object",
        ".size tare_rdrand_generator,{size}",
        "tare_rdrand_generator:",
        ".zero {size}",
        ".popsection",
        size = const size_of::<Slot>(),
        align = const align_of::<Slot>(),
    );

    /// This thread's slot, by the initial-exec model: a linker of a program turns the load
    /// into a constant.
    #[inline(always)]
    pub(super) fn address() -> *mut Slot {
        let address;
        // SAFETY: on x86-64 Linux `fs:0` holds the thread pointer, and the dynamic linker has put
        // the variable's distance from it into the table before any code of this library runs
        // (or refused to load the library). Both stay as they are while the thread runs. The
        // variable is as large and as aligned as a `Slot` and all zeros at first, which is a
        // valid `Slot`.
        unsafe {
            std::arch::asm!(
                "mov {address}, qword ptr [rip + tare_rdrand_generator@GOTTPOFF]",
                "add {address}, qword ptr fs:[0]",
                address = out(reg) address,
                // Not `pure`: it has to stay in front of the instruction that draws.
                options(readonly, nostack),
            );
        }
        address
    }
}

#[cfg(not(all(
    target_arch = "x86_64",
    target_pointer_width = "64",
    target_os = "linux",
    target_env = "gnu",
    not(miri)
)))]
mod place {
    use std::cell::UnsafeCell;
    use std::mem::MaybeUninit;

    use super::Slot;

    thread_local! {
        static SLOT: UnsafeCell<Slot> = const {
            UnsafeCell::new(Slot { made: false, generator: MaybeUninit::uninit() })
        };
    }

    pub(super) fn address() -> *mut Slot {
        SLOT.with(UnsafeCell::get)
    }
}

use place::address;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_block_leaves_most_of_the_static_surplus_to_others() {
        assert!(size_of::<Slot>() <= 256, "{}", size_of::<Slot>());
    }

    #[test]
    fn every_thread_has_a_slot_of_its_own_that_starts_empty() {
        let slots: Vec<usize> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8)
                .map(|_| {
                    scope.spawn(|| {
                        // SAFETY: the only reference in this thread.
                        let slot = unsafe { of_this_thread() };
                        assert!(slot.generator().is_none());
                        assert!(std::ptr::from_mut(slot).is_aligned());
                        // Not in the arguments of spawn: all threads live until the last line.
                        std::thread::sleep(std::time::Duration::from_millis(50));
                        std::ptr::from_mut(slot) as usize
                    })
                })
                .collect();
            threads
                .into_iter()
                .map(|thread| thread.join().expect("no panic"))
                .collect()
        });
        let different: std::collections::BTreeSet<_> = slots.iter().collect();
        assert_eq!(different.len(), slots.len());
    }
}
