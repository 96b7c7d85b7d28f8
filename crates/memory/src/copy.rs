//! Copies of many bytes between private memory and memory that another process may change.

/// Bytes of a block, a line of the cache.
pub(crate) const BLOCK: usize = 64;

/// The distance at which a copy from shared memory prefetches ahead: the lines are in another
/// processor's cache. In the other direction that was slower, since the stores already wait for as
/// many lines as the processor can wait for.
pub(crate) const AHEAD: usize = 8 * BLOCK;

/// The loop of a copy of `blocks` times 64 bytes, with the instruction that stores, and one for the
/// end. It prefetches a block at `ahead` for each.
#[cfg(all(target_arch = "x86_64", not(miri)))]
macro_rules! copy_loop {
    ($store:literal, $end:literal, $blocks:expr, $from:expr, $to:expr, $ahead:expr) => {
        std::arch::asm!(
            "2:",
            "prefetcht0 [{ahead}]",
            "movups {a}, [{from}]",
            "movups {b}, [{from} + 16]",
            "movups {c}, [{from} + 32]",
            "movups {d}, [{from} + 48]",
            concat!($store, " [{to}], {a}"),
            concat!($store, " [{to} + 16], {b}"),
            concat!($store, " [{to} + 32], {c}"),
            concat!($store, " [{to} + 48], {d}"),
            "add {ahead}, 64",
            "add {from}, 64",
            "add {to}, 64",
            "dec {n}",
            "jnz 2b",
            $end,
            n = inout(reg) $blocks => _,
            ahead = inout(reg) $ahead => _,
            from = inout(reg) $from => _,
            to = inout(reg) $to => _,
            a = out(xmm_reg) _,
            b = out(xmm_reg) _,
            c = out(xmm_reg) _,
            d = out(xmm_reg) _,
            options(nostack),
        )
    };
}

/// Copies the whole blocks of the first `len` bytes, each byte loaded once and stored once; returns
/// how many bytes that are. For each block it prefetches one at `ahead`, which may be any address.
///
/// This is assembly because the compiler may neither repeat nor assume anything of an access that
/// it does not see, and because volatile accesses are at most a word wide, which takes three times
/// as long as `memcpy`. `rep movsb` was tried: between two processors it takes 5 % longer, and
/// nothing after it begins before it is over.
///
/// # Safety
/// `len` bytes at `from` can be read and `len` bytes at `to` written, by this thread for as long as
/// the call lasts; they do not overlap.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline]
pub(crate) unsafe fn blocks(from: *const u8, to: *mut u8, len: usize, ahead: *const u8) -> usize {
    let blocks = len / BLOCK;
    if blocks == 0 {
        return 0;
    }
    // SAFETY: the loop loads and stores `blocks` times 64 bytes, no more than `len`, for all of
    // which the caller vouches. SSE2 is a part of x86-64; a prefetch of any address has no effect
    // but on the caches. All registers that change are named.
    unsafe {
        copy_loop!("movups", "", blocks, from, to, ahead);
    }
    blocks * BLOCK
}

/// Copies as [`blocks`], but by stores past the caches, which are ordered before all later stores
/// when it returns.
///
/// # Safety
/// As for [`blocks`]; and `to` is a multiple of [`BLOCK`], if there is a block.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline]
pub(crate) unsafe fn stream_blocks(
    from: *const u8,
    to: *mut u8,
    len: usize,
    ahead: *const u8,
) -> usize {
    let blocks = len / BLOCK;
    if blocks == 0 {
        return 0;
    }
    // SAFETY: as in `blocks`; the stores are aligned since `to` is. The fence orders them, which
    // the processor does not by itself.
    unsafe {
        copy_loop!("movntps", "sfence", blocks, from, to, ahead);
    }
    blocks * BLOCK
}

/// Adds the native 32-bit words of the whole blocks of the first `len` bytes, each byte loaded
/// once; returns the sum and how many bytes that are. It prefetches [`AHEAD`].
///
/// # Safety
/// `len` bytes at `from` can be read by this thread for as long as the call lasts, and `len` is
/// below 2³⁴, so that the sum has room.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline]
pub(crate) unsafe fn sum_blocks(from: *const u8, len: usize) -> (u64, usize) {
    let blocks = len / BLOCK;
    if blocks == 0 {
        return (0, 0);
    }
    let sum;
    // SAFETY: the loop loads `blocks` times 64 bytes, no more than `len`, for all of which the
    // caller vouches. SSE2 is a part of x86-64; a prefetch of any address has no effect but on the
    // caches. All registers that change are named.
    unsafe {
        std::arch::asm!(
            "pxor {zero}, {zero}",
            "pxor {low}, {low}",
            "pxor {high}, {high}",
            "2:",
            "prefetcht0 [{from} + {ahead}]",
            "movdqu {a}, [{from}]",
            "movdqu {b}, [{from} + 16]",
            "movdqu {c}, [{from} + 32]",
            "movdqu {d}, [{from} + 48]",
            // Each pair of words becomes two of 64 bits.
            "movdqa {e}, {a}",
            "punpckldq {a}, {zero}",
            "punpckhdq {e}, {zero}",
            "paddq {low}, {a}",
            "paddq {high}, {e}",
            "movdqa {e}, {b}",
            "punpckldq {b}, {zero}",
            "punpckhdq {e}, {zero}",
            "paddq {low}, {b}",
            "paddq {high}, {e}",
            "movdqa {e}, {c}",
            "punpckldq {c}, {zero}",
            "punpckhdq {e}, {zero}",
            "paddq {low}, {c}",
            "paddq {high}, {e}",
            "movdqa {e}, {d}",
            "punpckldq {d}, {zero}",
            "punpckhdq {e}, {zero}",
            "paddq {low}, {d}",
            "paddq {high}, {e}",
            "add {from}, 64",
            "dec {n}",
            "jnz 2b",
            "paddq {low}, {high}",
            "movdqa {high}, {low}",
            "punpckhqdq {high}, {high}",
            "paddq {low}, {high}",
            "movq {sum}, {low}",
            ahead = const AHEAD,
            n = inout(reg) blocks => _,
            from = inout(reg) from => _,
            sum = lateout(reg) sum,
            zero = out(xmm_reg) _,
            low = out(xmm_reg) _,
            high = out(xmm_reg) _,
            a = out(xmm_reg) _,
            b = out(xmm_reg) _,
            c = out(xmm_reg) _,
            d = out(xmm_reg) _,
            e = out(xmm_reg) _,
            options(nostack, readonly),
        );
    }
    (sum, blocks * BLOCK)
}

/// Copies by the C library's `memcpy`, which the compiler does not see: what it may neither repeat
/// nor assume anything of is then a call of an unknown function.
///
/// # Safety
/// As for [`blocks`].
pub(crate) unsafe fn memcpy(from: *const u8, to: *mut u8, len: usize) {
    type Copy = unsafe extern "C" fn(*mut u8, *const u8, usize) -> *mut u8;
    unsafe extern "C" {
        #[link_name = "memcpy"]
        unsafe fn of_c(to: *mut u8, from: *const u8, len: usize) -> *mut u8;
    }
    let copy: Copy = std::hint::black_box(of_c);
    // SAFETY: it reads `len` bytes and writes as many, for which the caller vouches.
    unsafe { copy(to, from, len) };
}

/// Copies nothing: the words of the caller do it.
///
/// # Safety
/// As for x86-64.
#[cfg(not(all(target_arch = "x86_64", not(miri))))]
#[inline]
pub(crate) unsafe fn blocks(
    _from: *const u8,
    _to: *mut u8,
    len: usize,
    _ahead: *const u8,
) -> usize {
    let _ = len / BLOCK;
    0
}

#[cfg(not(all(target_arch = "x86_64", not(miri))))]
pub(crate) use self::blocks as stream_blocks;

/// Adds nothing: the caller copies.
///
/// # Safety
/// As for x86-64.
#[cfg(not(all(target_arch = "x86_64", not(miri))))]
#[inline]
pub(crate) unsafe fn sum_blocks(_from: *const u8, _len: usize) -> (u64, usize) {
    (0, 0)
}
