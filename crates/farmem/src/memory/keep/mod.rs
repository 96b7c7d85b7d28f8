//! A store whose memory outlives the process.
//!
//! Three parts are kept: the page table and the pool as they are, and a log of the changes of
//! spaces and regions, which are on the heap. A process that was killed may have left an operation
//! half done. The record in the log decides whether it happened: what makes something enters it
//! into the page table first, what ends something does the record first, so an entry without an
//! allocation is dropped. Frames, the pages that were written and the counts are derived from the
//! entries.

mod describe;
mod log;
mod record;
mod restore;

use std::fmt;

use tare_memory::{Mapping, OwnedFile};

use super::pool::{self, Pool};
use super::table::{self, Table};
use super::{Bytes, Config, Store};
use crate::operation::{Address, Error, PageSize, SpaceId};
pub use log::WHOLE_WRITE_MAX;

use log::{Log, Opened};
pub(super) use record::Record;

/// The longest memory for a write in parts that is not given back to the system, in bytes.
const GATHERING_MAX: usize = 1 << 20;

/// Tokens that a record sets aside.
const TOKENS: u64 = 1 << 20;

/// The parts that a store keeps, in memory of one kind; also the bytes of each, as `Parts<usize>`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parts<T> {
    /// The log of allocations, regions and grants.
    pub log: T,
    /// The page table.
    pub table: T,
    /// The memory of all spaces.
    pub pool: T,
}

impl Parts<usize> {
    /// Returns the bytes that these settings need.
    pub fn of(config: &Config) -> Parts<usize> {
        let frames = frames(config);
        let pool = frames << PageSize::Small.shift();
        Parts {
            log: log::bytes(pool),
            table: table::bytes(frames),
            pool: pool as usize,
        }
    }
}

fn frames(config: &Config) -> u64 {
    config.bytes.min(pool::BYTES_MAX) >> PageSize::Small.shift()
}

/// The state in which a kept store was found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Restored {
    /// True if there was nothing, and it was made.
    pub is_new: bool,
    /// Entries of the page table that an operation under way had made or not yet removed.
    pub dropped: u64,
    /// True if a write under way was completed.
    pub has_completed_write: bool,
}

/// The reason why a kept store could not be opened.
#[derive(Debug)]
#[non_exhaustive]
pub enum KeepError {
    /// A part is shorter than [`Parts::of`] says, or does not begin at a multiple of 64.
    Memory,
    /// The file is not one of a store.
    NotKept,
    /// It is of another version.
    Version {
        /// Its version.
        found: u32,
        /// The version of this program.
        expected: u32,
    },
    /// The pool has another length.
    Bytes {
        /// Its length.
        found: u64,
        /// That of the settings.
        expected: u64,
    },
    /// The file has another length than the pool needs.
    Length {
        /// Its length.
        found: u64,
        /// The length for the settings.
        expected: u64,
    },
    /// The file contradicts itself.
    Corrupt(&'static str),
    /// The file could not be mapped.
    Mapping(tare_memory::Error),
}

impl fmt::Display for KeepError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let other = "remove the file, or use another one";
        match self {
            KeepError::Memory => f.write_str("found less memory than the store needs, or unaligned"),
            KeepError::NotKept => {
                write!(f, "found a file that is not a kept store: use another one")
            }
            KeepError::Version { found, expected } => {
                write!(f, "found a store of version {found}, expected {expected}: {other}")
            }
            KeepError::Bytes { found, expected } => write!(
                f,
                "found a store of {found} bytes, expected {expected}: ask for {found} bytes, or \
                 use another file"
            ),
            KeepError::Length { found, expected } => write!(
                f,
                "found a file of {found} bytes, expected {expected} for a pool of this size: {other}"
            ),
            KeepError::Corrupt(what) => write!(f, "the kept store is damaged, {what}: {other}"),
            KeepError::Mapping(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for KeepError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            KeepError::Mapping(error) => Some(error),
            _ => None,
        }
    }
}

impl From<tare_memory::Error> for KeepError {
    fn from(error: tare_memory::Error) -> KeepError {
        KeepError::Mapping(error)
    }
}

/// The log, and the last token that it has set aside.
pub(super) struct Kept<M> {
    log: Log<M>,
    token: u64,
    /// Memory for the data of a write that comes in parts.
    gathering: Vec<u8>,
}

impl<M> Kept<M> {
    fn new(log: Log<M>, token: u64) -> Kept<M> {
        Kept {
            log,
            token,
            gathering: Vec::new(),
        }
    }
}

impl Store<Mapping> {
    /// Opens the store that is kept in a file, or makes one in an empty file. It restores, also
    /// after SIGKILL at any moment, spaces, allocations, sparse ranges, permissions, quotas,
    /// regions, grants, mappings, and all bytes that were written. Of an operation under way, it
    /// has all or nothing, but for a write of more than [`WHOLE_WRITE_MAX`] bytes, which may be
    /// there in part, and pages that a write gave memory to before its first byte. Locks are not
    /// restored; tokens are greater than all that were given. Memory that the machine loses, as at
    /// a power loss, is no store any more.
    ///
    /// The key is that of the file; that of the settings is for a new one.
    ///
    /// # Errors
    /// The file is not a store of this version and length, is damaged, or cannot be mapped.
    pub fn open_kept(
        config: &Config,
        mut file: OwnedFile,
    ) -> Result<(Store<Mapping>, Restored), KeepError> {
        let Parts { log, table, pool } = Parts::of(config);
        let expected = [log, table, pool].map(|len| file.rounded(len)).iter().sum();
        if file.is_empty() {
            file.grow(expected)?;
        }
        if file.len() < file.rounded(log) {
            let found = file.len();
            return Err(KeepError::Length { found, expected });
        }
        let log = file.map(log)?;
        // The header knows better than the length of the file how long the pool is.
        if file.len() != expected {
            log::check_header(log.as_ref(), pool as u64)?;
            let found = file.len();
            return Err(KeepError::Length { found, expected });
        }
        let table = file.map(table)?;
        let pool = file.map(pool)?;
        Store::keep(config, Parts { log, table, pool })
    }
}

impl<M: Bytes> Store<M> {
    /// Opens the store that is kept in the caller's memory, or makes one if all bytes of
    /// [`Parts::log`] are 0. As [`Store::open_kept`], which is for files.
    ///
    /// # Errors
    /// As [`Store::open_kept`].
    ///
    /// # Panics
    /// If the preset is not of whole pages.
    pub fn keep(config: &Config, parts: Parts<M>) -> Result<(Store<M>, Restored), KeepError> {
        let Parts { log, table, pool } = parts;
        let needed = Parts::of(config);
        for (part, bytes) in [(&table, needed.table), (&pool, needed.pool)] {
            let part = part.as_ref();
            if part.len() < bytes || part.as_ptr().align_offset(64) != 0 {
                return Err(KeepError::Memory);
            }
        }
        let frames = frames(config);
        match Log::open(log, needed.pool as u64)? {
            Opened::Log(log, key) => {
                let table = Table::existing(table, frames, key);
                let pool = Pool::existing(pool, frames);
                Store::of(config, table, pool).restored(log)
            }
            Opened::Empty(empty) => {
                let log = Log::create(empty, needed.pool as u64, config.key);
                let table = Table::new(table, frames, config.key);
                let mut store = Store::of(config, table, Pool::new(pool));
                let token = config.last_token;
                let mut kept = Kept::new(log, token);
                kept.log.finish();
                store.kept = Some(kept);
                let is_new = true;
                let restored = Restored {
                    is_new,
                    ..Restored::default()
                };
                Ok((store, restored))
            }
        }
    }

    /// Sees to it that there is room for the record of one operation.
    ///
    /// # Errors
    /// There are too many allocations and regions for the log. That is no answer to an operation
    /// that frees.
    pub(super) fn make_room(&mut self, grows: bool) -> Result<(), Error> {
        match &self.kept {
            Some(kept) if !kept.log.has_room(grows) => self.compact(grows),
            _ => Ok(()),
        }
    }

    #[cold]
    fn compact(&mut self, grows: bool) -> Result<(), Error> {
        let Some(mut kept) = self.kept.take() else {
            return Ok(());
        };
        let token = kept.token;
        kept.log.compact(|each| self.each_record(token, each));
        let has_room = kept.log.has_room(grows);
        self.kept = Some(kept);
        match has_room {
            true => Ok(()),
            false => Err(Error::OutOfMemory),
        }
    }

    /// Adds the record of an operation, after [`Store::make_room`].
    pub(super) fn record(&mut self, record: &Record<'_>) {
        if let Some(kept) = &mut self.kept {
            kept.log.append(record);
        }
    }

    /// Sees to it that the next token is set aside.
    pub(super) fn set_tokens_aside(&mut self) -> Result<(), Error> {
        let last = self.locks.last_token();
        if self.kept.as_ref().is_some_and(|kept| kept.token <= last) {
            self.make_room(false)?;
            let (region, token) = (self.last_region, last.saturating_add(TOKENS));
            if let Some(kept) = &mut self.kept {
                kept.log.append(&Record::Last { region, token });
                kept.token = token;
            }
        }
        Ok(())
    }

    /// Changes bytes so that a process that is killed leaves all of them or none.
    #[inline]
    pub(super) fn begin_write(&mut self, space: SpaceId, at: Address, data: &[u8]) {
        if let Some(kept) = &mut self.kept {
            if data.len() <= WHOLE_WRITE_MAX {
                kept.log.begin_write(space, at, data);
            }
        }
    }

    /// Returns empty memory for the data of a write that comes in parts.
    pub(super) fn gathering(&mut self) -> Vec<u8> {
        let kept = self.kept.as_mut();
        kept.map(|kept| std::mem::take(&mut kept.gathering))
            .unwrap_or_default()
    }

    /// Takes it back, for the next one, unless it is long.
    pub(super) fn set_gathering(&mut self, mut data: Vec<u8>) {
        data.clear();
        if let (Some(kept), true) = (&mut self.kept, data.capacity() <= GATHERING_MAX) {
            kept.gathering = data;
        }
    }

    /// Ends what [`Store::begin_write`] began.
    #[inline]
    pub(super) fn end_write(&mut self) {
        if let Some(kept) = &mut self.kept {
            kept.log.end_write();
        }
    }
}
