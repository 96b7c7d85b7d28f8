//! The content of a store, as text.

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::memory::space::Kind;
use crate::memory::{Bytes, Store};
use crate::operation::{PageSize, SpaceId};

impl<M: Bytes> Store<M> {
    /// Returns all that a restart restores, one line for each space, allocation, region, grant and
    /// page that is not all zero, with a hash of its bytes. Two stores have the same if no client
    /// can tell them apart, but for what a page takes that is all zero. It takes as long as reading
    /// all memory.
    pub fn describe(&self) -> String {
        let mut text = String::new();
        for (id, space) in self.spaces.iter().collect::<BTreeMap<_, _>>() {
            let _ = writeln!(text, "space {} quota {}", id.0, space.quota);
            for (&start, area) in space.areas.iter() {
                let (end, page, permission) = (area.end, area.page, area.permission);
                let kind = area.kind;
                let _ = writeln!(
                    text,
                    " {start:#x}..{end:#x} {page:?} {permission:?} {kind:?}"
                );
                let each = page.bytes() as usize;
                let pages: Box<dyn Iterator<Item = u64>> = match kind {
                    Kind::Sparse => Box::new(space.touched.range(start..end).copied()),
                    _ => Box::new((start..end).step_by(each)),
                };
                for at in pages {
                    if let Some(hash) = self.hash_page(*id, at, page) {
                        let _ = writeln!(text, "  {at:#x} {hash:016x}");
                    }
                }
            }
        }
        for (id, region) in self.regions.iter().collect::<BTreeMap<_, _>>() {
            let (name, owner) = (region.name.escape_ascii(), region.owner.0);
            let (address, end) = (region.address, region.end);
            let _ = writeln!(
                text,
                "region {} {name} of {owner} {address:#x}..{end:#x} {:?}",
                id.0, region.permission
            );
            for (to, grant) in &region.grants {
                let (permission, mapped) = (grant.permission, grant.mapped);
                let _ = writeln!(text, " to {} {permission:?} {mapped:x?}", to.0);
            }
        }
        text
    }

    /// Returns a hash of the bytes of a page, unless all are zero. One of 1 GiB may be in parts, so
    /// that it is looked at as these are.
    fn hash_page(&self, id: SpaceId, start: u64, page: PageSize) -> Option<u64> {
        let len = page.bytes().min(PageSize::Large.bytes());
        let mut whole = None;
        for at in (start..start + page.bytes()).step_by(len as usize) {
            let Some((entry, frame)) = self
                .find(id, at)
                .and_then(|entry| Some((entry, entry.frame()?)))
            else {
                continue;
            };
            let offset = at & (entry.size().bytes() - 1);
            let bytes = self.pool.bytes(frame, offset, len as usize);
            if bytes.iter().any(|&byte| byte != 0) {
                whole = Some(hash(whole.unwrap_or(0) ^ (at - start), bytes));
            }
        }
        whole
    }
}

/// Returns a hash of bytes and of what was before them.
fn hash(before: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(before, |hash: u64, &byte| {
        (hash ^ u64::from(byte))
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .rotate_left(29)
    })
}
