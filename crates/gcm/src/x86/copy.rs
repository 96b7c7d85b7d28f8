//! Copies of a few bytes to and from memory that may be shared: tags, and messages that come in
//! pieces.

use super::once;
use core::arch::asm;
use core::arch::x86_64::*;

/// Copies `len` bytes from memory that may be shared, each loaded once, by instructions that every
/// x86-64 since 2005 has (`lddqu` is of SSE3).
///
/// # Safety
/// `len` bytes must be readable at `src` and writable at `dst`; `dst` is private.
pub(crate) unsafe fn copy_in(mut src: *const u8, mut dst: *mut u8, mut len: usize) {
    macro_rules! piece {
        ($bytes:literal, $type:ty, $text:literal) => {
            if len & $bytes != 0 {
                let v: $type;
                asm!($text, v = lateout(reg) v, p = in(reg) src, options(nostack, readonly, preserves_flags));
                dst.cast::<$type>().write_unaligned(v);
                src = src.add($bytes);
                dst = dst.add($bytes);
            }
        };
    }
    // SAFETY: the pieces add up to `len`.
    unsafe {
        while len >= 16 {
            _mm_storeu_si128(dst.cast(), once::load_128::<0, false>(src));
            src = src.add(16);
            dst = dst.add(16);
            len -= 16;
        }
        piece!(8, u64, "mov {v:r}, qword ptr [{p}]");
        piece!(4, u32, "mov {v:e}, dword ptr [{p}]");
        piece!(2, u16, "mov {v:x}, word ptr [{p}]");
        if len & 1 != 0 {
            let v: u8;
            asm!("mov {v}, byte ptr [{p}]", v = lateout(reg_byte) v, p = in(reg) src,
                options(nostack, readonly, preserves_flags));
            dst.write(v);
        }
    }
}

/// Copies `len` bytes to memory that may be shared, each stored once, by instructions that every
/// x86-64 has.
///
/// # Safety
/// `len` bytes must be readable at `src` and writable at `dst`; `src` is private.
pub(crate) unsafe fn copy_out(mut src: *const u8, mut dst: *mut u8, mut len: usize) {
    macro_rules! piece {
        ($bytes:literal, $type:ty, $text:literal) => {
            if len & $bytes != 0 {
                let v = src.cast::<$type>().read_unaligned();
                asm!($text, v = in(reg) v, p = in(reg) dst, options(nostack, preserves_flags));
                src = src.add($bytes);
                dst = dst.add($bytes);
            }
        };
    }
    // SAFETY: the pieces add up to `len`.
    unsafe {
        while len >= 16 {
            once::store_128::<0, false>(dst, _mm_loadu_si128(src.cast()));
            src = src.add(16);
            dst = dst.add(16);
            len -= 16;
        }
        piece!(8, u64, "mov qword ptr [{p}], {v:r}");
        piece!(4, u32, "mov dword ptr [{p}], {v:e}");
        piece!(2, u16, "mov word ptr [{p}], {v:x}");
        if len & 1 != 0 {
            asm!("mov byte ptr [{p}], {v}", v = in(reg_byte) src.read(), p = in(reg) dst,
                options(nostack, preserves_flags));
        }
    }
}
