//! Several ranges at a time.

use std::ffi::c_int;

use crate::border;
use crate::session::{with, Handle};
use crate::status::Fault;

/// Most ranges of a call.
const COUNT_MAX: usize = 1 << 20;

/// `tfm_read_range`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ReadRange {
    address: u64,
    into: *mut u8,
    len: usize,
}

/// `tfm_write_range`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct WriteRange {
    address: u64,
    data: *const u8,
    len: usize,
}

/// Checks each place, and that no byte is written twice.
fn check_places(ranges: &[ReadRange]) -> Result<(), Fault> {
    for (index, range) in ranges.iter().enumerate() {
        let checked = border::check_place(range.address, range.into, range.len);
        checked.map_err(|fault| fault.at_index(index))?;
    }
    let mut places: Vec<(usize, usize, usize)> = ranges
        .iter()
        .enumerate()
        .filter(|(_, range)| range.len > 0)
        .map(|(index, range)| (range.into.addr(), range.len, index))
        .collect();
    places.sort_unstable();
    for pair in places.windows(2) {
        let [(first, len, before), (second, _, index)] = *pair else {
            continue;
        };
        if second - first < len {
            let overlap = Fault::argument("its place overlaps that of another range");
            return Err(overlap.at_index(index.max(before)));
        }
    }
    Ok(())
}

/// Reads several ranges.
///
/// # Safety
/// `ranges` is NULL or has `count` elements; each place is NULL or has as many bytes as the range
/// says, which no other code uses during the call.
#[no_mangle]
pub unsafe extern "C" fn tfm_read_many(
    session: Handle,
    ranges: *const ReadRange,
    count: usize,
) -> c_int {
    with(session, |connection| {
        // SAFETY: the same promise.
        let ranges = unsafe { border::array(ranges, count, COUNT_MAX) }?;
        // Before there is a reference to any: two to the same bytes must not be.
        check_places(&ranges)?;
        let part = |range: &ReadRange| {
            // SAFETY: the same promise; the places do not overlap, and are only written.
            let into = unsafe { border::bytes_mut(range.address, range.into, range.len) };
            Ok((range.address, into?))
        };
        let parts: Result<Vec<_>, Fault> = ranges.iter().map(part).collect();
        Ok(connection.session.read_many(&mut parts?)?)
    })
}

/// Writes several ranges.
///
/// # Safety
/// `ranges` is NULL or has `count` elements; the data of each is NULL or has as many bytes as the
/// range says, which stay as they are during the call.
#[no_mangle]
pub unsafe extern "C" fn tfm_write_many(
    session: Handle,
    ranges: *const WriteRange,
    count: usize,
) -> c_int {
    with(session, |connection| {
        // SAFETY: the same promise.
        let ranges = unsafe { border::array(ranges, count, COUNT_MAX) }?;
        let part = |(index, range): (usize, &WriteRange)| {
            // SAFETY: the same promise.
            let data = unsafe { border::bytes(range.address, range.data, range.len) };
            let data = data.map_err(|fault| fault.at_index(index))?;
            Ok((range.address, data))
        };
        let parts: Result<Vec<_>, Fault> = ranges.iter().enumerate().map(part).collect();
        Ok(connection.session.write_many(&parts?)?)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disjoint(places: &[(usize, usize)]) -> bool {
        let range = |&(into, len)| ReadRange {
            address: 0,
            into: std::ptr::without_provenance_mut(into),
            len,
        };
        let ranges: Vec<ReadRange> = places.iter().map(range).collect();
        check_places(&ranges).is_ok()
    }

    #[test]
    fn places_that_overlap_are_found_in_any_order() {
        assert!(disjoint(&[]));
        assert!(disjoint(&[(0x1000, 16), (0x1010, 16), (0xff0, 16)]));
        assert!(!disjoint(&[(0x1000, 16), (0x1020, 16), (0x100f, 1)]));
        assert!(!disjoint(&[(0x1000, 16), (0x1000, 16)]));
        assert!(!disjoint(&[(0x1008, 1), (0x2000, 1), (0x1000, 16)]));
        // Ranges of no bytes are nowhere.
        assert!(disjoint(&[(0x1000, 16), (0x1008, 0), (0x1000, 0)]));
        assert!(!disjoint(&[(0x1000, 1 << 30), ((1 << 30) + 0xfff, 1)]));
        assert!(disjoint(&[(usize::MAX, 1 << 30), (0x1000, 1)]));
    }
}
