//! The border with C: pointers that are checked once, and panics that go no further.

use std::ffi::{c_char, c_int};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::ptr::NonNull;
use std::time::Duration;

use tare_farmem::operation::{is_range, Guard};

use crate::status::{Fault, TFM_INTERNAL, TFM_OK, TFM_TOO_LONG};

/// Most bytes of a text from C, without the NUL.
pub(crate) const TEXT_MAX: usize = 1024;

/// `tfm_guard`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct GuardOfC {
    lock: u64,
    token: u64,
}

/// Runs the body of a function for C: its result becomes a code, and a failure the thread's last.
pub(crate) fn call(body: impl FnOnce() -> Result<(), Fault>) -> c_int {
    let result = catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|payload| {
        // The payload is of a type with a destructor of its own, which could panic as well.
        std::mem::forget(payload);
        Err(Fault::new(TFM_INTERNAL))
    });
    match result {
        Ok(()) => TFM_OK,
        Err(fault) => {
            fault.record();
            fault.code
        }
    }
}

/// The same for a function without a code.
pub(crate) fn call_quietly(body: impl FnOnce()) {
    if let Err(payload) = catch_unwind(AssertUnwindSafe(body)) {
        std::mem::forget(payload);
    }
}

/// A place of the caller for a result.
#[derive(Debug)]
pub(crate) struct Out<T>(NonNull<T>);

impl<T> Out<T> {
    /// # Safety
    /// `place` is NULL, or can be written until the function for C returns.
    pub(crate) unsafe fn new(place: *mut T) -> Result<Out<T>, Fault> {
        let place = NonNull::new(place);
        Ok(Out(place.ok_or(NULL_RESULT)?))
    }

    /// Stores the result.
    pub(crate) fn set(self, value: T) {
        // SAFETY: the promise of `new`; it was not about alignment.
        unsafe { self.0.as_ptr().write_unaligned(value) }
    }
}

const NULL_RESULT: Fault = Fault::argument("the place for a result is NULL");

/// Returns the value behind a pointer; `None` for NULL.
///
/// # Safety
/// `place` is NULL, or can be read.
pub(crate) unsafe fn optional<T: Copy>(place: *const T) -> Option<T> {
    // SAFETY: not NULL, and the promise of the caller but for alignment.
    (!place.is_null()).then(|| unsafe { place.read_unaligned() })
}

/// Returns the guard behind a pointer; `None` for NULL.
///
/// # Safety
/// As [`optional`].
pub(crate) unsafe fn guard(place: *const GuardOfC) -> Option<Guard> {
    // SAFETY: the same promise.
    let guard = unsafe { optional(place) };
    guard.map(|GuardOfC { lock, token }| Guard { lock, token })
}

/// Checks a number of bytes that one operation transfers.
pub(crate) fn checked_len(address: u64, len: usize) -> Result<u32, Fault> {
    const TOO_LONG: Fault = Fault::new(TFM_TOO_LONG);
    let short = u32::try_from(len).ok();
    let short = short.filter(|len| is_range(address, (*len).into()));
    short.ok_or(TOO_LONG)
}

/// Checks a place of the caller for bytes that one operation transfers.
pub(crate) fn check_place<T>(address: u64, place: *const T, len: usize) -> Result<(), Fault> {
    checked_len(address, len)?;
    if place.is_null() && len > 0 {
        return Err(Fault::argument("the pointer to the bytes is NULL"));
    }
    Ok(())
}

/// Returns bytes of the caller that are read.
///
/// # Safety
/// `data` is NULL or has `len` bytes, which stay as they are for `'a`.
pub(crate) unsafe fn bytes<'a>(
    address: u64,
    data: *const u8,
    len: usize,
) -> Result<&'a [u8], Fault> {
    check_place(address, data, len)?;
    if len == 0 {
        return Ok(&[]);
    }
    // SAFETY: not NULL, at most 1 GiB; the rest is the promise of the caller.
    Ok(unsafe { std::slice::from_raw_parts(data, len) })
}

/// Returns bytes of the caller that are written.
///
/// # Safety
/// `into` is NULL or has `len` bytes that no other code uses for `'a`. They are only written.
pub(crate) unsafe fn bytes_mut<'a>(
    address: u64,
    into: *mut u8,
    len: usize,
) -> Result<&'a mut [u8], Fault> {
    check_place(address, into, len)?;
    if len == 0 {
        return Ok(&mut []);
    }
    // SAFETY: not NULL, at most 1 GiB; the rest is the promise of the caller.
    Ok(unsafe { std::slice::from_raw_parts_mut(into, len) })
}

/// Returns an array of the caller.
///
/// # Safety
/// `items` is NULL or has `count` elements that can be read.
pub(crate) unsafe fn array<T: Copy>(
    items: *const T,
    count: usize,
    count_max: usize,
) -> Result<Vec<T>, Fault> {
    if count > count_max {
        return Err(Fault::argument("the count is too great"));
    }
    if items.is_null() && count > 0 {
        return Err(Fault::argument("the pointer to the ranges is NULL"));
    }
    // SAFETY: within the array that the caller promises, and not NULL.
    let item = |at| unsafe { items.add(at).read_unaligned() };
    Ok((0..count).map(item).collect())
}

/// Returns a text of the caller, without the NUL.
///
/// # Safety
/// `text` is NULL, or can be read up to its NUL or for [`TEXT_MAX`] + 1 bytes, and stays as it is
/// for `'a`.
pub(crate) unsafe fn text<'a>(text: *const c_char) -> Result<&'a [u8], Fault> {
    if text.is_null() {
        return Err(Fault::argument("the pointer to a text is NULL"));
    }
    // SAFETY: it looks at no byte after the NUL, and at no more than the caller promises.
    let len = unsafe { libc::strnlen(text, TEXT_MAX + 1) };
    if len > TEXT_MAX {
        return Err(Fault::argument("a text is longer than 1024 bytes"));
    }
    // SAFETY: bytes before the NUL.
    Ok(unsafe { std::slice::from_raw_parts(text.cast(), len) })
}

/// Writes a text with a NUL, cut to `size` bytes.
///
/// # Safety
/// `buffer` is NULL or has `size` bytes that can be written.
pub(crate) unsafe fn store_text(text: &str, buffer: *mut c_char, size: usize) {
    if buffer.is_null() || size == 0 {
        return;
    }
    let len = text.len().min(size - 1);
    // SAFETY: `len` bytes and the NUL are within the buffer, which is no part of the text.
    unsafe {
        buffer.copy_from_nonoverlapping(text.as_ptr().cast(), len);
        buffer.add(len).write(0);
    }
}

/// Returns a duration in nanoseconds, at most those that a `u64` can hold.
pub(crate) fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::{tfm_last_error, TFM_INVALID_ARGUMENT};

    /// A payload of a panic that panics itself.
    struct Twice;

    impl Drop for Twice {
        fn drop(&mut self) {
            panic!("the payload of a panic is dropped");
        }
    }

    #[test]
    fn a_panic_becomes_a_code() {
        assert_eq!(call(|| panic!("made by a test")), TFM_INTERNAL);
        assert_eq!(call(|| std::panic::panic_any(Twice)), TFM_INTERNAL);
        // SAFETY: NULL is allowed.
        let last = unsafe { tfm_last_error(std::ptr::null_mut()) };
        assert_eq!(last, TFM_INTERNAL);
        call_quietly(|| panic!("made by a test"));
        assert_eq!(call(|| Ok(())), TFM_OK);
    }

    #[test]
    fn lengths_end_at_1_gib_and_at_the_last_address() {
        let code = |address, len| checked_len(address, len).map_err(|fault| fault.code);
        assert_eq!(code(0, 1 << 30), Ok(1 << 30));
        assert_eq!(code(0, (1 << 30) + 1), Err(TFM_TOO_LONG));
        assert_eq!(code(0, (1 << 32) + 1), Err(TFM_TOO_LONG));
        assert_eq!(code(0, usize::MAX), Err(TFM_TOO_LONG));
        assert_eq!(code(u64::MAX, 0), Ok(0));
        assert_eq!(code(u64::MAX - 16, 16), Ok(16));
        // The end of the range is 2^64.
        assert_eq!(code(u64::MAX - 15, 16), Err(TFM_TOO_LONG));
        assert_eq!(code(u64::MAX, 1), Err(TFM_TOO_LONG));
    }

    #[test]
    fn texts_are_bounded() {
        let whole = [b"a".repeat(TEXT_MAX), vec![0]].concat();
        // SAFETY: a text with its NUL.
        let read = unsafe { text(whole.as_ptr().cast()) };
        assert_eq!(read.map(<[u8]>::len).map_err(|fault| fault.code), Ok(1024));
        let long = b"a".repeat(TEXT_MAX + 1);
        // SAFETY: as many bytes as are looked at.
        let read = unsafe { text(long.as_ptr().cast()) };
        assert_eq!(read.map_err(|fault| fault.code), Err(TFM_INVALID_ARGUMENT));
    }

    #[test]
    fn a_text_is_cut_to_the_buffer_and_ends_with_a_nul() {
        let mut buffer = [1; 8];
        for (size, expected) in [
            (0, [1, 1, 1, 1, 1, 1, 1, 1]),
            (1, [0, 1, 1, 1, 1, 1, 1, 1]),
            (3, [b'a', b'b', 0, 1, 1, 1, 1, 1]),
            (8, [b'a', b'b', b'c', b'd', 0, 1, 1, 1]),
        ] {
            buffer.fill(1);
            // SAFETY: at most the buffer's size.
            unsafe { store_text("abcd", buffer.as_mut_ptr().cast(), size) };
            assert_eq!(buffer, expected, "{size}");
        }
    }
}
