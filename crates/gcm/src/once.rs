//! Copies between private memory and memory that may be shared, in which every shared byte is
//! accessed once.

pub(crate) use crate::native::{copy_in, copy_out};

#[allow(dead_code)] // where the processor has better
pub(crate) mod volatile {
    use core::ptr;

    const WORD: usize = size_of::<usize>();

    /// Copies `len` bytes from memory that may be shared, each loaded once.
    ///
    /// # Safety
    /// `len` bytes must be readable at `src` and writable at `dst`; `dst` is private.
    pub(crate) unsafe fn copy_in(src: *const u8, dst: *mut u8, len: usize) {
        let mut at = 0;
        while at < len {
            // SAFETY: `at` plus the size accessed is at most `len`; words are read only where
            // aligned.
            unsafe {
                if len - at >= WORD && src.add(at).addr().is_multiple_of(WORD) {
                    let word = ptr::read_volatile(src.add(at).cast::<usize>());
                    dst.add(at).cast::<usize>().write_unaligned(word);
                    at += WORD;
                } else {
                    dst.add(at).write(ptr::read_volatile(src.add(at)));
                    at += 1;
                }
            }
        }
    }

    /// Copies `len` bytes to memory that may be shared, each stored once.
    ///
    /// # Safety
    /// `len` bytes must be readable at `src` and writable at `dst`; `src` is private.
    pub(crate) unsafe fn copy_out(src: *const u8, dst: *mut u8, len: usize) {
        let mut at = 0;
        while at < len {
            // SAFETY: `at` plus the size accessed is at most `len`; words are written only where
            // aligned.
            unsafe {
                if len - at >= WORD && dst.add(at).addr().is_multiple_of(WORD) {
                    let word = src.add(at).cast::<usize>().read_unaligned();
                    ptr::write_volatile(dst.add(at).cast::<usize>(), word);
                    at += WORD;
                } else {
                    ptr::write_volatile(dst.add(at), src.add(at).read());
                    at += 1;
                }
            }
        }
    }
}
