//! Operations on memory, one at a time.

use std::ffi::c_int;
use std::time::Duration;

use tare_farmem::operation::{Guard, PageSize, Permission};

use crate::border::{self, GuardOfC, Out};
use crate::session::{with, Handle};
use crate::status::Fault;

/// Returns the page size with a number of `enum tfm_page`.
fn page_size(page: c_int) -> Result<PageSize, Fault> {
    let found = usize::try_from(page).ok();
    let size = found.and_then(|page| PageSize::ALL.get(page));
    let expected = "the page is not one of enum tfm_page";
    size.copied().ok_or(Fault::argument(expected))
}

/// Returns the permission with a number of `enum tfm_permission`.
pub(crate) fn permission(permission: c_int) -> Result<Permission, Fault> {
    let bits = u8::try_from(permission).ok();
    let expected = "the permission is not one of enum tfm_permission";
    bits.and_then(Permission::from_bits)
        .ok_or(Fault::argument(expected))
}

/// Allocates memory where the node chooses.
///
/// # Safety
/// `address` is NULL or can be written.
#[no_mangle]
pub unsafe extern "C" fn tfm_alloc(session: Handle, bytes: u64, address: *mut u64) -> c_int {
    // SAFETY: the same promise.
    let address = unsafe { Out::new(address) };
    with(session, |connection| {
        let address = address?;
        address.set(connection.session.alloc(bytes)?);
        Ok(())
    })
}

/// Allocates memory at an address.
#[no_mangle]
pub extern "C" fn tfm_alloc_at(session: Handle, address: u64, bytes: u64) -> c_int {
    with(session, |connection| {
        let (page, permission) = (PageSize::Small, Permission::READ_WRITE);
        let session = &mut connection.session;
        session.alloc_with(bytes, page, Some(address), permission, false)?;
        Ok(())
    })
}

/// Allocates memory with all choices.
///
/// # Safety
/// `at` is NULL or can be read, `address` is NULL or can be written.
#[no_mangle]
pub unsafe extern "C" fn tfm_alloc_with(
    session: Handle,
    bytes: u64,
    page: c_int,
    permission: c_int,
    sparse: c_int,
    at: *const u64,
    address: *mut u64,
) -> c_int {
    // SAFETY: the same promises.
    let (at, address) = unsafe { (border::optional(at), Out::new(address)) };
    with(session, |connection| {
        let (address, page, permission) =
            (address?, page_size(page)?, self::permission(permission)?);
        let sparse = match sparse {
            0 => false,
            1 => true,
            _ => return Err(Fault::argument("sparse is neither 0 nor 1")),
        };
        let session = &mut connection.session;
        address.set(session.alloc_with(bytes, page, at, permission, sparse)?);
        Ok(())
    })
}

/// Frees memory, or unmaps a region.
#[no_mangle]
pub extern "C" fn tfm_free(session: Handle, address: u64, bytes: u64) -> c_int {
    with(session, |connection| {
        Ok(connection.session.free(address, bytes)?)
    })
}

/// Reads bytes.
///
/// # Safety
/// `into` is NULL or has `len` bytes that no other code uses during the call.
#[no_mangle]
pub unsafe extern "C" fn tfm_read(
    session: Handle,
    address: u64,
    into: *mut u8,
    len: usize,
) -> c_int {
    // SAFETY: the same promise; a read only writes them.
    let into = unsafe { border::bytes_mut(address, into, len) };
    with(session, |connection| {
        Ok(connection.session.read(address, into?)?)
    })
}

/// Writes bytes.
///
/// # Safety
/// `data` is NULL or has `len` bytes that stay as they are during the call; `guard` is NULL or can
/// be read.
#[no_mangle]
pub unsafe extern "C" fn tfm_write(
    session: Handle,
    address: u64,
    data: *const u8,
    len: usize,
    guard: *const GuardOfC,
) -> c_int {
    // SAFETY: the same promises.
    let (data, guard) = unsafe { (border::bytes(address, data, len), border::guard(guard)) };
    with(session, |connection| {
        Ok(connection.session.write_guarded(address, data?, guard)?)
    })
}

/// Compares and swaps.
///
/// # Safety
/// `guard` is NULL or can be read, `old` is NULL or can be written.
#[no_mangle]
pub unsafe extern "C" fn tfm_cas(
    session: Handle,
    address: u64,
    expected: u64,
    desired: u64,
    guard: *const GuardOfC,
    old: *mut u64,
) -> c_int {
    // SAFETY: the same promises.
    let (guard, old) = unsafe { (border::guard(guard), Out::new(old)) };
    with(session, |connection| {
        let old = old?;
        let session = &mut connection.session;
        old.set(session.compare_and_swap_guarded(address, expected, desired, guard)?);
        Ok(())
    })
}

/// Fetches and adds.
///
/// # Safety
/// As [`tfm_cas`].
#[no_mangle]
pub unsafe extern "C" fn tfm_fetch_add(
    session: Handle,
    address: u64,
    add: u64,
    guard: *const GuardOfC,
    old: *mut u64,
) -> c_int {
    // SAFETY: the same promises.
    let (guard, old) = unsafe { (border::guard(guard), Out::new(old)) };
    with(session, |connection| {
        let old = old?;
        old.set(connection.session.fetch_add_guarded(address, add, guard)?);
        Ok(())
    })
}

/// Takes a lock.
///
/// # Safety
/// `token` is NULL or can be written.
#[no_mangle]
pub unsafe extern "C" fn tfm_lock(
    session: Handle,
    address: u64,
    lease_ns: u64,
    patience_ns: u64,
    token: *mut u64,
) -> c_int {
    // SAFETY: the same promise.
    let token = unsafe { Out::new(token) };
    with(session, |connection| {
        let token = token?;
        let lease = Duration::from_nanos(lease_ns);
        let session = &mut connection.session;
        // One attempt knows when the lease of the other holder is over.
        let guard = match patience_ns {
            0 => session.lock(address, lease),
            _ => session.lock_within(address, lease, Duration::from_nanos(patience_ns)),
        };
        token.set(guard?.token);
        Ok(())
    })
}

/// Gives a lock back.
#[no_mangle]
pub extern "C" fn tfm_unlock(session: Handle, address: u64, token: u64) -> c_int {
    with(session, |connection| {
        let guard = Guard {
            lock: address,
            token,
        };
        Ok(connection.session.unlock(guard)?)
    })
}

/// Waits for all operations before.
#[no_mangle]
pub extern "C" fn tfm_fence(session: Handle) -> c_int {
    with(session, |connection| Ok(connection.session.fence()?))
}
