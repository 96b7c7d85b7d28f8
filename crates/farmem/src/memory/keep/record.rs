//! The records of the log: each change of the spaces and regions, as it was executed.

use crate::memory::Preset;
use crate::operation::{Address, PageSize, Permission, RegionId, SpaceId, NAME_MAX};

/// The most words of a record, with its first one.
pub(super) const WORDS_MAX: usize = 16;

/// A change. The order in the enum is the number in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::memory) enum Record<'a> {
    /// A space, with the area that it has from the start.
    Open {
        space: SpaceId,
        quota: u64,
        preset: Option<Preset>,
    },
    Close {
        space: SpaceId,
    },
    Quota {
        space: SpaceId,
        quota: u64,
    },
    Alloc {
        space: SpaceId,
        start: Address,
        end: Address,
        page: PageSize,
        permission: Permission,
        is_sparse: bool,
    },
    Free {
        space: SpaceId,
        from: Address,
        to: Address,
    },
    Region {
        region: RegionId,
        owner: SpaceId,
        address: Address,
        end: Address,
        name: &'a [u8],
    },
    /// A grant; it replaces another one.
    Grant {
        region: RegionId,
        to: SpaceId,
        permission: Permission,
    },
    Revoke {
        region: RegionId,
        from: SpaceId,
    },
    Map {
        region: RegionId,
        to: SpaceId,
        start: Address,
    },
    Retire {
        region: RegionId,
    },
    /// The last region and the last token that may have been given.
    Last {
        region: u64,
        token: u64,
    },
}

/// The words of a record. The first one is left to the log.
pub(super) struct Words {
    words: [u64; WORDS_MAX],
    len: usize,
}

impl Words {
    fn of(values: &[u64]) -> Words {
        let mut words = [0; WORDS_MAX];
        words[1..=values.len()].copy_from_slice(values);
        let len = values.len() + 1;
        Words { words, len }
    }

    /// Returns all words, the first one 0.
    pub(super) fn as_slice(&self) -> &[u64] {
        &self.words[..self.len]
    }
}

impl<'a> Record<'a> {
    /// Returns the kind, from 1, and the words.
    pub(super) fn encode(&self) -> (u8, Words) {
        match *self {
            Record::Open {
                space,
                quota,
                preset: None,
            } => (1, Words::of(&[space.0, quota])),
            Record::Open {
                space,
                quota,
                preset: Some(Preset { start, end, page }),
            } => (1, Words::of(&[space.0, quota, start | page as u64, end])),
            Record::Close { space } => (2, Words::of(&[space.0])),
            Record::Quota { space, quota } => (3, Words::of(&[space.0, quota])),
            Record::Alloc {
                space,
                start,
                end,
                page,
                permission,
                is_sparse,
            } => {
                let sparse = u64::from(is_sparse) << 4;
                let bits = sparse | u64::from(permission.bits()) << 2 | page as u64;
                (4, Words::of(&[space.0, start | bits, end]))
            }
            Record::Free { space, from, to } => (5, Words::of(&[space.0, from, to])),
            Record::Region {
                region,
                owner,
                address,
                end,
                name,
            } => {
                // The unused bytes of the last word are 0, and its length says how many they are.
                let mut words = Words::of(&[region.0, owner.0, address, end, name.len() as u64]);
                for bytes in name.chunks(8) {
                    let mut word = [0; 8];
                    word[..bytes.len()].copy_from_slice(bytes);
                    words.words[words.len] = u64::from_le_bytes(word);
                    words.len += 1;
                }
                (6, words)
            }
            Record::Grant {
                region,
                to,
                permission,
            } => {
                let permission = permission.bits().into();
                (7, Words::of(&[region.0, to.0, permission]))
            }
            Record::Revoke { region, from } => (8, Words::of(&[region.0, from.0])),
            Record::Map { region, to, start } => (9, Words::of(&[region.0, to.0, start])),
            Record::Retire { region } => (10, Words::of(&[region.0])),
            Record::Last { region, token } => (11, Words::of(&[region, token])),
        }
    }

    /// Returns the record of a kind and its words; `None` if that is no record. The name is in
    /// `name`.
    pub(super) fn decode(
        kind: u8,
        words: &[u64],
        name: &'a mut [u8; NAME_MAX],
    ) -> Option<Record<'a>> {
        let words = words.get(1..)?;
        Some(match (kind, words) {
            (1, &[space, quota]) => Record::Open {
                space: SpaceId(space),
                quota,
                preset: None,
            },
            (1, &[space, quota, start, end]) => Record::Open {
                space: SpaceId(space),
                quota,
                preset: Some(Preset {
                    start: start & !3,
                    end,
                    page: page(start)?,
                }),
            },
            (2, &[space]) => Record::Close {
                space: SpaceId(space),
            },
            (3, &[space, quota]) => Record::Quota {
                space: SpaceId(space),
                quota,
            },
            (4, &[space, start, end]) => Record::Alloc {
                space: SpaceId(space),
                start: start & !0x1f,
                end,
                page: page(start)?,
                permission: Permission::from_bits((start >> 2 & 3) as u8)?,
                is_sparse: start & 1 << 4 != 0,
            },
            (5, &[space, from, to]) => Record::Free {
                space: SpaceId(space),
                from,
                to,
            },
            (6, &[region, owner, address, end, len, ref rest @ ..]) => {
                let len = usize::try_from(len).ok()?;
                if len > NAME_MAX || len.div_ceil(8) != rest.len() {
                    return None;
                }
                for (bytes, word) in name.as_chunks_mut::<8>().0.iter_mut().zip(rest) {
                    *bytes = word.to_le_bytes();
                }
                Record::Region {
                    region: RegionId(region),
                    owner: SpaceId(owner),
                    address,
                    end,
                    name: &name[..len],
                }
            }
            (7, &[region, to, permission]) => Record::Grant {
                region: RegionId(region),
                to: SpaceId(to),
                permission: Permission::from_bits(u8::try_from(permission).ok()?)?,
            },
            (8, &[region, from]) => Record::Revoke {
                region: RegionId(region),
                from: SpaceId(from),
            },
            (9, &[region, to, start]) => Record::Map {
                region: RegionId(region),
                to: SpaceId(to),
                start,
            },
            (10, &[region]) => Record::Retire {
                region: RegionId(region),
            },
            (11, &[region, token]) => Record::Last { region, token },
            _ => return None,
        })
    }
}

/// Returns the size in the lowest two bits.
fn page(bits: u64) -> Option<PageSize> {
    PageSize::ALL.get((bits & 3) as usize).copied()
}
