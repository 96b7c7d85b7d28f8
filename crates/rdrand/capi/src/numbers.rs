//! Steps, single values, arrays, bytes.

use std::ffi::{c_int, c_void};

use tare_rdrand::fast_path::{self, Unusual};
use tare_rdrand::{Error, Generator, Rdrand, Source};

use crate::thread::{attempt_and_generator, ready_generator, with_generator};
use crate::{status, RDRAND_SUCCESS, RDRAND_SUPPORTED, RDRAND_UNSUPPORTED};

/// Returns `RDRAND_SUPPORTED` if RDRAND can be used here, else `RDRAND_UNSUPPORTED`.
#[no_mangle]
pub extern "C" fn rdrand_testSupport() -> c_int {
    match with_generator(-1, |_| Ok(())) {
        // An underflow is no defect of the processor.
        Ok(()) | Err(Error::Underflow { .. }) => RDRAND_SUPPORTED,
        Err(_) => RDRAND_UNSUPPORTED,
    }
}

/// Returns a C array as a slice; `None` for NULL, for no elements, and for more than an address
/// space can hold.
///
/// # Safety
/// `dest` is NULL or points to `count` elements that may be written and that no other code uses.
pub(crate) unsafe fn slice<'a, T>(dest: *mut T, count: usize) -> Option<&'a mut [T]> {
    let bytes = count.checked_mul(size_of::<T>())?;
    if dest.is_null() || count == 0 || isize::try_from(bytes).is_err() || !dest.is_aligned() {
        return None;
    }
    // SAFETY: not NULL, aligned, within the limits of a slice; the rest is the caller's promise.
    Some(unsafe { std::slice::from_raw_parts_mut(dest, count) })
}

macro_rules! single {
    ($step:ident, $retry:ident, $type:ty, $next:ident) => {
        /// One attempt at one value.
        ///
        /// # Safety
        /// `x` is NULL or points to a value that may be written.
        #[no_mangle]
        pub unsafe extern "C" fn $step(x: *mut $type) -> c_int {
            // SAFETY: the same promise.
            unsafe { $retry(x, 1) }
        }

        /// One value in at most `retry_limit` attempts; 10 if that is negative.
        ///
        /// # Safety
        /// `dest` is NULL or points to a value that may be written.
        #[no_mangle]
        pub unsafe extern "C" fn $retry(dest: *mut $type, retry_limit: c_int) -> c_int {
            if dest.is_null() {
                return status(false);
            }
            match with_generator(retry_limit, Generator::$next) {
                Ok(value) => {
                    // SAFETY: not NULL, and the caller promises the rest but alignment.
                    unsafe { dest.write_unaligned(value) };
                    status(true)
                }
                Err(_) => status(false),
            }
        }
    };
}

single!(rdrand16_step, rdrand_get_uint16_retry, u16, next_u16);
single!(rdrand32_step, rdrand_get_uint32_retry, u32, next_u32);

/// One attempt at one value.
///
/// # Safety
/// `x` is NULL or points to a value that may be written.
#[no_mangle]
pub unsafe extern "C" fn rdrand64_step(x: *mut u64) -> c_int {
    // SAFETY: the same promise.
    unsafe { rdrand_get_uint64_retry(x, 1) }
}

/// One value in at most `retry_limit` attempts; 10 if that is negative.
///
/// # Safety
/// `dest` is NULL or points to a value that may be written.
#[no_mangle]
pub unsafe extern "C" fn rdrand_get_uint64_retry(dest: *mut u64, retry_limit: c_int) -> c_int {
    // SAFETY: the same promise.
    match unsafe { one(dest) } {
        Ok(()) => RDRAND_SUCCESS,
        // SAFETY: the same promise.
        Err(first) => unsafe { one_from(dest, retry_limit, first) },
    }
}

/// The fast path of a single number, the commonest small request. Whatever runs beside the
/// instruction that draws adds to its latency, so the rare cases, and all that only they need, are
/// in [`one_from`]. An error is the first attempt, or that there was none.
///
/// # Safety
/// `dest` is NULL or points to eight bytes that may be written.
#[inline(always)]
unsafe fn one(dest: *mut u64) -> Result<(), Option<Unusual>> {
    if dest.is_null() {
        return Err(None);
    }
    // SAFETY: used here only.
    let (first, generator) = unsafe { attempt_and_generator() }.ok_or(None)?;
    let value = fast_path::one(generator, first).map_err(Some)?;
    // SAFETY: not NULL, and the caller promises the rest but alignment.
    unsafe { dest.write_unaligned(value) };
    Ok(())
}

/// Finishes what [`one`] did not. `extern "C"`, because only a call to a function that cannot
/// unwind is compiled to a jump, and so costs the fast path nothing.
///
/// # Safety
/// As [`one`].
#[cold]
#[inline(never)]
#[expect(improper_ctypes_definitions, reason = "called from here only")]
unsafe extern "C" fn one_from(dest: *mut u64, retry_limit: c_int, first: Option<Unusual>) -> c_int {
    if dest.is_null() {
        return status(false);
    }
    let drawn = with_generator(retry_limit, |generator| match first {
        Some(first) => fast_path::finish_one(generator, first),
        None => generator.next_u64(),
    });
    if let Ok(value) = drawn {
        // SAFETY: not NULL, and the caller promises the rest but alignment.
        unsafe { dest.write_unaligned(value) };
    }
    status(drawn.is_ok())
}

/// Fills an array whose elements have `size_of::<T>()` bytes; counts whole elements. Goes by
/// bytes, so that no alignment is asked of the caller.
///
/// # Safety
/// As [`slice`].
pub(crate) unsafe fn array<T, S: Source>(
    generator: &mut Generator<S>,
    dest: *mut T,
    count: usize,
    fill: impl FnOnce(&mut Generator<S>, &mut [u8]) -> Result<(), Error>,
) -> Result<usize, Error> {
    let Some(size) = count.checked_mul(size_of::<T>()) else {
        return Ok(0);
    };
    // SAFETY: as many bytes as the caller promises.
    match unsafe { slice(dest.cast::<u8>(), size) } {
        Some(bytes) => match fill(generator, bytes) {
            Ok(()) => Ok(count),
            Err(error @ Error::Underflow { .. }) => Ok(error.written() / size_of::<T>()),
            Err(error) => Err(error),
        },
        None => Ok(0),
    }
}

/// [`array`] with this thread's generator.
///
/// # Safety
/// As [`slice`].
#[inline(always)]
unsafe fn with_array<T>(
    dest: *mut T,
    count: usize,
    retry_limit: c_int,
    fill: impl FnOnce(&mut Rdrand, &mut [u8]) -> Result<(), Error>,
) -> usize {
    // SAFETY: the same promise.
    with_generator(retry_limit, |generator| unsafe {
        array(generator, dest, count, fill)
    })
    .unwrap_or(0)
}

macro_rules! arrays {
    ($($name:ident, $type:ty, $fill:ident;)*) => {$(
        /// Fills an array; returns the number of elements that are good.
        ///
        /// # Safety
        /// `dest` is NULL or points to `count` elements that may be written.
        #[no_mangle]
        pub unsafe extern "C" fn $name(
            dest: *mut $type,
            count: usize,
            retry_limit: c_int,
        ) -> usize {
            // SAFETY: the same promise.
            unsafe { with_array(dest, count, retry_limit, Generator::$fill) }
        }
    )*};
}

arrays! {
    rdrand_get_uint8_array_retry, u8, fill_bytes;
    rdrand_get_uint16_array_retry, u16, fill_bytes;
    rdrand_get_uint32_array_retry, u32, fill_bytes;
    rdrand_get_uint64_array_reseed_delay, u64, fill_bytes_reseed_delay;
    rdrand_get_uint64_array_reseed_skip, u64, fill_bytes_reseed_skip;
}

/// Up to this many numbers are drawn and tested one by one, on the fast path.
const FEW: usize = 5;

/// Fills an array; returns the number of elements that are good.
///
/// # Safety
/// `dest` is NULL or points to `count` elements that may be written.
#[no_mangle]
pub unsafe extern "C" fn rdrand_get_uint64_array_retry(
    dest: *mut u64,
    count: usize,
    retry_limit: c_int,
) -> usize {
    // SAFETY: the same promise, in every case.
    unsafe {
        if count == 1 {
            match one(dest) {
                Ok(()) => 1,
                Err(Some(first)) => rest(dest, 1, retry_limit, 0, first),
                Err(None) => any(dest, 1, retry_limit),
            }
        } else if count <= FEW {
            few::<_, 1>(dest, count, retry_limit)
        } else {
            any(dest, count, retry_limit)
        }
    }
}

/// Fills memory; returns the number of bytes that are good.
///
/// # Safety
/// `dest` is NULL or points to `size` bytes that may be written.
#[no_mangle]
pub unsafe extern "C" fn rdrand_get_bytes_retry(
    dest: *mut c_void,
    size: usize,
    retry_limit: c_int,
) -> usize {
    let dest = dest.cast::<u8>();
    // SAFETY: the same promise, in every case.
    unsafe {
        if size == 8 {
            match one(dest.cast()) {
                Ok(()) => 8,
                Err(Some(first)) => rest(dest, 8, retry_limit, 0, first),
                Err(None) => any(dest, 8, retry_limit),
            }
        } else if size <= 8 * FEW && size.is_multiple_of(8) {
            few::<_, 8>(dest, size, retry_limit)
        } else {
            any(dest, size, retry_limit)
        }
    }
}

/// Fills up to [`FEW`] numbers of `A_NUMBER` elements each. `extern "C"` as [`one_from`].
///
/// # Safety
/// As [`slice`].
#[inline(never)]
unsafe extern "C" fn few<T, const A_NUMBER: usize>(
    dest: *mut T,
    count: usize,
    retry_limit: c_int,
) -> usize {
    // SAFETY: the same promise.
    let numbers = unsafe { slice(dest.cast::<[u8; 8]>(), count / A_NUMBER) };
    // SAFETY: used here only.
    let generator = unsafe { ready_generator() };
    let (Some(numbers), Some(generator)) = (numbers, generator) else {
        // SAFETY: the same promise.
        return unsafe { any(dest, count, retry_limit) };
    };
    match fast_path::few(generator, numbers) {
        Ok(()) => count,
        // SAFETY: the same promise.
        Err((written, first)) => unsafe { rest(dest, count, retry_limit, written, first) },
    }
}

/// Fills what is left of a few numbers after `written` bytes and a first attempt.
///
/// # Safety
/// As [`slice`].
#[cold]
#[inline(never)]
#[expect(improper_ctypes_definitions, reason = "called from here only")]
unsafe extern "C" fn rest<T>(
    dest: *mut T,
    count: usize,
    retry_limit: c_int,
    written: usize,
    first: Unusual,
) -> usize {
    // SAFETY: the same promise.
    unsafe {
        with_array(dest, count, retry_limit, |generator, bytes| {
            fast_path::finish_few(generator, first, written, bytes)
        })
    }
}

/// Fills any number of elements. Apart from [`one`], which would have to save registers for it.
///
/// # Safety
/// As [`slice`].
#[inline(never)]
unsafe extern "C" fn any<T>(dest: *mut T, count: usize, retry_limit: c_int) -> usize {
    // SAFETY: the same promise.
    unsafe { with_array(dest, count, retry_limit, Generator::fill_bytes) }
}

#[cfg(test)]
mod tests;
