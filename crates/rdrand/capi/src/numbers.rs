//! Steps, single values, arrays, bytes.

use std::ffi::{c_int, c_void};

use tare_rdrand::{Error, Generator, Rdrand, Source};

use crate::thread::with_generator;
use crate::{status, RDRAND_SUPPORTED, RDRAND_UNSUPPORTED};

/// Whether RDRAND can be used here: `RDRAND_SUPPORTED` or `RDRAND_UNSUPPORTED`.
#[no_mangle]
pub extern "C" fn rdrand_testSupport() -> c_int {
    match with_generator(-1, |_| Ok(())) {
        // A dry moment says nothing against the processor.
        Ok(()) | Err(Error::Underflow { .. }) => RDRAND_SUPPORTED,
        Err(_) => RDRAND_UNSUPPORTED,
    }
}

/// A C array as a slice; `None` for NULL, for no elements, and for more than an address space
/// can hold.
///
/// # Safety
/// `dest` is NULL or points to `count` elements that may be written and that nobody else uses.
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
single!(rdrand64_step, rdrand_get_uint64_retry, u64, next_u64);

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

/// [`array`] with this thread's generator. Not inlined: the short way of a single number
/// would have to save registers for it.
///
/// # Safety
/// As [`slice`].
#[inline(never)]
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
    if count == 1 {
        // SAFETY: the same promise.
        return usize::from(unsafe { one(dest, retry_limit) });
    }
    // SAFETY: the same promise.
    unsafe { with_array(dest, count, retry_limit, Generator::fill_bytes) }
}

/// The short way of a single number, the commonest small request.
///
/// # Safety
/// `dest` is NULL or points to eight bytes that may be written.
#[inline(always)]
unsafe fn one(dest: *mut u64, retry_limit: c_int) -> bool {
    if dest.is_null() {
        return false;
    }
    match with_generator(retry_limit, Generator::next_u64) {
        Ok(value) => {
            // SAFETY: not NULL, and the caller promises the rest but alignment.
            unsafe { dest.write_unaligned(value) };
            true
        }
        Err(_) => false,
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
    if size == 8 {
        // SAFETY: the same promise.
        return 8 * usize::from(unsafe { one(dest.cast(), retry_limit) });
    }
    // SAFETY: the same promise.
    unsafe { with_array(dest.cast::<u8>(), size, retry_limit, Generator::fill_bytes) }
}

#[cfg(test)]
mod tests;
