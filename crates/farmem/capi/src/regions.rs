//! Regions: named ranges that spaces share.

use std::ffi::{c_char, c_int};

use tare_farmem::operation::{RegionId, SpaceId};

use crate::border::{self, Out};
use crate::memory;
use crate::session::{with, Handle};

/// Names a range of the space's own memory.
///
/// # Safety
/// `name` is NULL or ends with a NUL, `region` is NULL or can be written.
#[no_mangle]
pub unsafe extern "C" fn tfm_region(
    session: Handle,
    name: *const c_char,
    address: u64,
    bytes: u64,
    region: *mut u64,
) -> c_int {
    with(session, |connection| {
        // SAFETY: the same promises.
        let (name, region) = unsafe { (border::text(name)?, Out::new(region)?) };
        region.set(connection.session.region(name, address, bytes)?.0);
        Ok(())
    })
}

/// Looks up a region.
///
/// # Safety
/// As [`tfm_region`].
#[no_mangle]
pub unsafe extern "C" fn tfm_find(session: Handle, name: *const c_char, region: *mut u64) -> c_int {
    with(session, |connection| {
        // SAFETY: the same promises.
        let (name, region) = unsafe { (border::text(name)?, Out::new(region)?) };
        region.set(connection.session.find(name)?.0);
        Ok(())
    })
}

/// Lets another space map a region.
#[no_mangle]
pub extern "C" fn tfm_grant(
    session: Handle,
    region: u64,
    to_space: u64,
    permission: c_int,
) -> c_int {
    with(session, |connection| {
        let permission = memory::permission(permission)?;
        let session = &mut connection.session;
        Ok(session.grant(RegionId(region), SpaceId(to_space), permission)?)
    })
}

/// Takes a grant back.
#[no_mangle]
pub extern "C" fn tfm_revoke(session: Handle, region: u64, from_space: u64) -> c_int {
    with(session, |connection| {
        let session = &mut connection.session;
        Ok(session.revoke(RegionId(region), SpaceId(from_space))?)
    })
}

/// Maps a region.
///
/// # Safety
/// `at` is NULL or can be read, `address` is NULL or can be written.
#[no_mangle]
pub unsafe extern "C" fn tfm_map(
    session: Handle,
    region: u64,
    at: *const u64,
    address: *mut u64,
) -> c_int {
    // SAFETY: the same promises.
    let (at, address) = unsafe { (border::optional(at), Out::new(address)) };
    with(session, |connection| {
        let address = address?;
        address.set(connection.session.map(RegionId(region), at)?);
        Ok(())
    })
}

/// Ends a region.
#[no_mangle]
pub extern "C" fn tfm_retire(session: Handle, region: u64) -> c_int {
    with(session, |connection| {
        Ok(connection.session.retire(RegionId(region))?)
    })
}
