//! Pages that are allocated, touched for the first time and freed, beside what is measured.
//!
//! The client is another one, on the thread of the one that measures, and gets its turn in front of
//! each measured operation: its own operation is then at the node, or on its way. With a thread of
//! its own there would be three busy ones, and on two processors their share of time the result.

use std::time::Duration;

use anyhow::Context as _;
use tare_farmem::operation::{Operation, PageSize, Permission, SpaceId};
use tare_farmem::transport::Channel as _;

use super::super::fleet::Fleet;

/// Pages of an allocation.
const PAGES: u64 = 64;

/// The address of the allocation.
const ADDRESS: u64 = 0x1000_0000;

/// Operations of a cycle: the allocation, a write to each page, and the free.
const CYCLE: u64 = PAGES + 2;

/// One operation after the other, without an end.
pub(super) struct Storm {
    fleet: Fleet,
    space: SpaceId,
    operations: u64,
}

impl Storm {
    /// Opens a space for it, which no other session has.
    ///
    /// # Errors
    /// The node refuses it, or does not answer.
    pub(super) fn new(mut fleet: Fleet, space: SpaceId) -> anyhow::Result<Storm> {
        fleet.submit(space, &Operation::Open)?;
        let mut storm = Storm {
            fleet,
            space,
            operations: 0,
        };
        while storm.fleet.outstanding() > 0 {
            storm.take(Duration::from_millis(20))?;
        }
        Ok(storm)
    }

    /// Takes the end of the last operation, if it is there, and sends the next one then.
    ///
    /// # Errors
    /// An operation failed.
    pub(super) fn step(&mut self) -> anyhow::Result<()> {
        self.take(Duration::ZERO)?;
        if self.fleet.outstanding() > 0 {
            return Ok(());
        }
        let page = PageSize::Small.bytes();
        let operation = match self.operations % CYCLE {
            0 => Operation::Alloc {
                bytes: PAGES * page,
                page: PageSize::Small,
                at: Some(ADDRESS),
                permission: Permission::READ_WRITE,
                sparse: false,
            },
            n if n <= PAGES => Operation::Write {
                address: ADDRESS + (n - 1) * page,
                data: b"touched!",
                guard: None,
            },
            _ => Operation::Free {
                address: ADDRESS,
                bytes: PAGES * page,
            },
        };
        self.operations += 1;
        self.fleet.submit(self.space, &operation)?;
        Ok(self.fleet.progress(Duration::ZERO)?)
    }

    /// Returns the number of operations so far.
    pub(super) fn operations(&self) -> u64 {
        self.operations
    }

    fn take(&mut self, wait: Duration) -> anyhow::Result<()> {
        self.fleet.progress(wait)?;
        while let Some(completion) = self.fleet.poll() {
            completion.outcome.context("beside what is measured")?;
            self.fleet.recycle(completion.data);
        }
        Ok(())
    }
}
