//! The requests of a client to a node, and the answers.

use std::fmt;
use std::time::Duration;

/// A virtual address of a space.
pub type Address = u64;

/// The longest range of one read or write: 1 GiB.
pub const LEN_MAX: u32 = 1 << 30;

/// The longest name of a region, in bytes.
pub const NAME_MAX: usize = 64;

/// Returns true if the name of an operation is longer than any name of a region, which its client
/// refuses: nothing of the protocols has room for names of any length.
pub(crate) const fn has_long_name(operation: &Operation<'_>) -> bool {
    match operation {
        Operation::Region { name, .. } | Operation::Find { name } => name.len() > NAME_MAX,
        _ => false,
    }
}

/// Returns true if one read or write can transfer so many bytes at this address: at most
/// [`LEN_MAX`], and none at the last address, so that the end of the range has a number.
#[inline]
pub const fn is_range(address: Address, bytes: u64) -> bool {
    bytes <= LEN_MAX as u64 && address.checked_add(bytes).is_some()
}

/// The longest lease of a lock.
pub const LEASE_MAX: Duration = Duration::from_secs(3600);

/// The identity of an address space. Each client process has one of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SpaceId(pub u64);

/// The identity of a named region, never used again for another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RegionId(pub u64);

/// The access that a space has to a page: reading is bit 0, writing is bit 1.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Permission(u8);

impl Permission {
    /// Reading alone.
    pub const READ: Permission = Permission(1);
    /// Writing alone.
    pub const WRITE: Permission = Permission(2);
    /// Reading and writing, and with that compare-and-swap and fetch-and-add.
    pub const READ_WRITE: Permission = Permission(3);

    /// Returns the permission with these bits, from 1 to 3.
    pub const fn from_bits(bits: u8) -> Option<Permission> {
        match bits {
            1..=3 => Some(Permission(bits)),
            _ => None,
        }
    }

    /// Returns the bits, from 1 to 3.
    pub const fn bits(self) -> u8 {
        self.0
    }

    /// Returns true if everything that `other` allows is allowed.
    pub const fn allows(self, other: Permission) -> bool {
        self.0 & other.0 == other.0
    }
}

impl fmt::Debug for Permission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(["", "Read", "Write", "ReadWrite"][usize::from(self.0)])
    }
}

/// The size of the pages of an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum PageSize {
    /// 4 KiB.
    Small = 0,
    /// 2 MiB.
    Large = 1,
    /// 1 GiB.
    Huge = 2,
}

impl PageSize {
    /// All sizes, the smallest first.
    pub const ALL: [PageSize; 3] = [PageSize::Small, PageSize::Large, PageSize::Huge];

    /// Returns log2 of the number of bytes.
    pub const fn shift(self) -> u32 {
        12 + 9 * self as u32
    }

    /// Returns the number of bytes.
    pub const fn bytes(self) -> u64 {
        1 << self.shift()
    }
}

/// The lock under which a write happens: it is refused unless `token` is that of the present
/// holder, whose lease has not expired.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Guard {
    /// The address of the lock, in the same space.
    pub lock: Address,
    /// The fencing token that [`Operation::Lock`] returned.
    pub token: u64,
}

/// An operation of a client on its own space. It happens as a whole or not at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation<'a> {
    /// Makes the space, unless it exists. → [`Value::None`]
    Open,
    /// Removes the space with its memory, its locks and its regions. → [`Value::None`]
    Close,
    /// Allocates memory that reads as zero. → [`Value::Address`]
    Alloc {
        /// The number of bytes; rounded up to whole pages.
        bytes: u64,
        /// The size of the pages.
        page: PageSize,
        /// The address, a multiple of the page size; `None` lets the node choose one.
        at: Option<Address>,
        /// The access that the space gets.
        permission: Permission,
        /// True for a range of addresses that may be far longer than memory: pages count for the
        /// quota, and take an entry of the page table, when they are first written.
        sparse: bool,
    },
    /// Frees allocated memory, or unmaps a region: whole pages, also a part of an allocation, but a
    /// mapped region only as a whole. → [`Value::None`]
    Free {
        /// The first byte, at the border of a page.
        address: Address,
        /// The number of bytes; rounded up to whole pages.
        bytes: u64,
    },
    /// Reads bytes. → [`Value::Bytes`]
    Read {
        /// The first byte.
        address: Address,
        /// The number of bytes, at most [`LEN_MAX`].
        len: u32,
    },
    /// Writes bytes. → [`Value::None`]
    Write {
        /// The first byte.
        address: Address,
        /// At most [`LEN_MAX`] bytes.
        data: &'a [u8],
        /// The lock under which it happens.
        guard: Option<Guard>,
    },
    /// Stores `new` if the little-endian value is `expected`. → [`Value::Old`]
    CompareAndSwap {
        /// A multiple of 8.
        address: Address,
        /// The value that must be there.
        expected: u64,
        /// The value that is stored.
        new: u64,
        /// The lock under which it happens.
        guard: Option<Guard>,
    },
    /// Adds to the little-endian value, with wrap-around. → [`Value::Old`]
    FetchAdd {
        /// A multiple of 8.
        address: Address,
        /// The number that is added.
        add: u64,
        /// The lock under which it happens.
        guard: Option<Guard>,
    },
    /// Takes the lock of an address, whose bytes stay as they are. → [`Value::Token`]
    Lock {
        /// A multiple of 8. Spaces that share a region share its locks.
        address: Address,
        /// After this time the lock is free again; at most [`LEASE_MAX`].
        lease: Duration,
    },
    /// Gives the lock back. → [`Value::None`]
    Unlock {
        /// The lock's address.
        address: Address,
        /// The token of the holder.
        token: u64,
    },
    /// Completes after all operations before it, which the client sees to. → [`Value::None`]
    Fence,
    /// Names a range of the space's own memory, which from now on cannot be freed. Its pages get
    /// physical memory. → [`Value::Region`]
    Region {
        /// The name, from 1 to [`NAME_MAX`] bytes, unique on the node. A longer one is refused
        /// without asking the node.
        name: &'a [u8],
        /// The first byte, at the border of a page.
        address: Address,
        /// The number of bytes; rounded up to whole pages. All have the same size.
        bytes: u64,
    },
    /// Looks up a region that belongs or is granted to the space. → [`Value::Region`]
    Find {
        /// The name; a longer one than [`NAME_MAX`] is refused as for [`Operation::Region`].
        name: &'a [u8],
    },
    /// Lets another space map a region of this space. A grant with another permission replaces the
    /// first, and unmaps the region. → [`Value::None`]
    Grant {
        /// The region.
        region: RegionId,
        /// The other space.
        to: SpaceId,
        /// The access of the other space, no more than that of this one.
        permission: Permission,
    },
    /// Takes a grant back, and unmaps the region from the other space. → [`Value::None`]
    Revoke {
        /// The region.
        region: RegionId,
        /// The other space.
        from: SpaceId,
    },
    /// Maps a region that is granted to the space, once at a time. What it has mapped is no longer
    /// together than its quota. → [`Value::Address`]
    Map {
        /// The region.
        region: RegionId,
        /// The address, a multiple of the region's page size; `None` lets the node choose one.
        at: Option<Address>,
    },
    /// Ends a region of the space, with all grants and mappings; the memory stays. →
    /// [`Value::None`]
    Retire {
        /// The region.
        region: RegionId,
    },
}

/// The result of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value {
    /// Success without a value.
    None,
    /// The first address of an allocation or a mapping.
    Address(Address),
    /// The number of bytes that were read; they are in the output buffer.
    Bytes(u32),
    /// The value before compare-and-swap, which has stored if it is the expected one, or before
    /// fetch-and-add.
    Old(u64),
    /// The fencing token of a lock: greater than all that the node gave before.
    Token(u64),
    /// A region.
    Region(RegionId),
}

/// The reason why an operation was refused. It then changed nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// There is no such space.
    NoSuchSpace,
    /// The space may not do this with the page at the address.
    Permission {
        /// The first address that is not allowed.
        address: Address,
    },
    /// No memory is allocated at the address.
    Unmapped {
        /// The first such address.
        address: Address,
    },
    /// The range overlaps another allocation or mapping.
    Overlap {
        /// The first address that is taken.
        address: Address,
    },
    /// The space has as much memory, mappings, locks or regions as it may have.
    Quota,
    /// The node has no more memory, or no more room in its page table.
    OutOfMemory,
    /// The address is no multiple of what the operation needs.
    Misaligned {
        /// The alignment that it needs.
        multiple: u64,
    },
    /// The range is empty, too long, or goes beyond the last address.
    Length,
    /// The lease is zero or too long.
    Lease,
    /// Another holder has the lock.
    Locked {
        /// The time after which its lease has expired.
        retry_after: Duration,
    },
    /// The token is not the present holder's: the lease has expired, or the lock was given back.
    StaleToken,
    /// There is no such region, or it is neither the space's own nor granted to it.
    NoSuchRegion,
    /// The name is empty, too long, or another region has it.
    Name,
    /// The memory belongs to a region, or the region is mapped in this space already.
    InUse,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::NoSuchSpace => f.write_str("no such address space: open it first"),
            Error::Permission { address } => {
                write!(
                    f,
                    "no permission at {address:#x}: allocate or grant with it"
                )
            }
            Error::Unmapped { address } => {
                write!(f, "no memory at {address:#x}: allocate it first")
            }
            Error::Overlap { address } => {
                write!(
                    f,
                    "the range is taken at {address:#x}: free it, or use another one"
                )
            }
            Error::Quota => f.write_str("the quota of the space is used up: free something"),
            Error::OutOfMemory => {
                f.write_str("the node has no more memory: free something, or use another node")
            }
            Error::Misaligned { multiple } => {
                write!(f, "the address is not a multiple of {multiple}")
            }
            Error::Length => write!(
                f,
                "the range is empty, too long or beyond the last address: reads and writes have at \
                 most {LEN_MAX} bytes, allocations, frees and regions at most 2^18 pages"
            ),
            Error::Lease => write!(
                f,
                "the lease is zero or longer than {} s",
                LEASE_MAX.as_secs()
            ),
            Error::Locked { retry_after } => {
                write!(f, "locked: try again within {} ms", retry_after.as_millis())
            }
            Error::StaleToken => {
                f.write_str("the token is stale, its lease is over: take the lock again")
            }
            Error::NoSuchRegion => {
                f.write_str("no such region, or it is not granted to this space")
            }
            Error::Name => write!(
                f,
                "the name is empty, longer than {NAME_MAX} bytes, or another region has it"
            ),
            Error::InUse => f.write_str(
                "the memory belongs to a region, or the region is mapped already: retire or unmap \
                 it first",
            ),
        }
    }
}

impl std::error::Error for Error {}
