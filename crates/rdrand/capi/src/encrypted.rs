//! RDRAND output encrypted with AES-CTR.
//!
//! Here failure is 0 and not `RDRAND_FAILURE`: the original says "true if set", and programs
//! test the result with `!`.

use std::ffi::{c_int, c_uchar, c_uint, c_void};

use tare_rdrand::aes_ctr::{AesCtr, Slot};

use crate::numbers::{array, slice};
use crate::thread::with_generator;
use crate::truth;

/// The keys of the process.
static KEYS: Slot = Slot::new();

/// Sets `amount` keys of `key_length` bytes, each with a nonce of half as many.
///
/// # Safety
/// `keys` and `nonces` are NULL or point to `amount` pointers, each NULL or to as many bytes
/// as said.
#[no_mangle]
pub unsafe extern "C" fn rdrand_set_aes_keys(
    amount: c_uint,
    key_length: usize,
    keys: *mut *mut c_uchar,
    nonces: *mut *mut c_uchar,
) -> c_int {
    if !matches!(key_length, 16 | 24 | 32) {
        return truth(false);
    }
    let Ok(amount) = usize::try_from(amount) else {
        return truth(false);
    };
    // SAFETY: the same promise.
    let (keys, nonces) = unsafe { (slice(keys, amount), slice(nonces, amount)) };
    let (Some(keys), Some(nonces)) = (keys, nonces) else {
        return truth(false);
    };
    let pairs: Option<Vec<(&[u8], &[u8])>> = keys
        .iter()
        .zip(nonces)
        .map(|(key, nonce)| {
            // SAFETY: the same promise; `slice` refuses NULL.
            unsafe { Some((&*slice(*key, key_length)?, &*slice(*nonce, key_length / 2)?)) }
        })
        .collect();
    match pairs.map(|pairs| AesCtr::with_keys(&pairs)) {
        Some(Ok(cipher)) => {
            KEYS.set(Some(cipher));
            truth(true)
        }
        _ => truth(false),
    }
}

/// Sets a random key, replaced after each mebibyte.
#[no_mangle]
pub extern "C" fn rdrand_set_aes_random_key() -> c_int {
    match AesCtr::with_random_key() {
        Ok(cipher) => {
            KEYS.set(Some(cipher));
            truth(true)
        }
        Err(_) => truth(false),
    }
}

/// Fills memory with encrypted RDRAND output; returns the number of bytes that are good.
///
/// # Safety
/// `dest` is NULL or points to `count` bytes that may be written.
#[no_mangle]
pub unsafe extern "C" fn rdrand_get_bytes_aes_ctr(
    dest: *mut c_void,
    count: usize,
    retry_limit: c_int,
) -> usize {
    KEYS.with(|cipher| {
        with_generator(retry_limit, |generator| {
            // SAFETY: the same promise.
            unsafe {
                array(generator, dest.cast::<u8>(), count, |generator, bytes| {
                    cipher.fill_bytes(generator, bytes)
                })
            }
        })
    })
    .unwrap_or(0)
}

/// Encrypts `len` bytes with the next keystream; `dest` and `src` may overlap.
///
/// # Safety
/// Each is NULL or points to `len` bytes, those of `dest` to be written.
#[no_mangle]
pub unsafe extern "C" fn rdrand_enc_buffer(
    dest: *mut c_void,
    src: *mut c_void,
    len: usize,
) -> c_int {
    if dest.is_null() || src.is_null() || isize::try_from(len).is_err() {
        return truth(false);
    }
    let encrypted = KEYS.with(|cipher| {
        // SAFETY: neither is NULL and both have `len` bytes; overlapping is allowed.
        unsafe { std::ptr::copy(src.cast::<u8>(), dest.cast::<u8>(), len) };
        // SAFETY: the same promise; `slice` says `None` for no bytes.
        match unsafe { slice(dest.cast::<u8>(), len) } {
            Some(data) => cipher.encrypt_in_place(data),
            None => Ok(()),
        }
    });
    truth(encrypted.is_ok())
}

/// Wipes the keys.
#[no_mangle]
pub extern "C" fn rdrand_clean_aes() {
    KEYS.set(None);
}
