//! The content of a store, as text.

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::memory::space::Kind;
use crate::memory::{Bytes, Store};

impl<M: Bytes> Store<M> {
    /// Returns all that a restart restores, one line for each space, allocation, region, grant and
    /// page that is not all zero, with a hash of its bytes. Two stores have the same if no client
    /// can tell them apart, but for what a page takes that is all zero. It takes as long as reading
    /// all memory.
    pub fn describe(&self) -> String {
        let mut text = String::new();
        for (id, space) in self.spaces.iter().collect::<BTreeMap<_, _>>() {
            let _ = writeln!(text, "space {} quota {}", id.0, space.quota);
            for (&start, area) in &space.areas {
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
                    let frame = self.find(*id, at).and_then(|entry| entry.frame());
                    let bytes = frame.map_or(&[][..], |frame| self.pool.bytes(frame, 0, each));
                    if bytes.iter().any(|&byte| byte != 0) {
                        let _ = writeln!(text, "  {at:#x} {:016x}", hash(bytes));
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
}

fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |hash: u64, &byte| {
        (hash ^ u64::from(byte))
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .rotate_left(29)
    })
}
