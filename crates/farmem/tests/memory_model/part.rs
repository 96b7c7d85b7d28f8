//! Memory of a store that outlives it, as that of a process that was killed.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::panic::{self, AssertUnwindSafe};
use std::rc::Rc;

use tare_farmem::memory::{Config, KeepError, Parts, Restored, Store};

/// The parts that are left when their store is gone, and when the process is killed.
#[derive(Clone, Default)]
pub(crate) struct Machine {
    left: Rc<RefCell<HashMap<usize, Vec<u8>>>>,
    /// Kill the process before it has changed memory so many times more.
    fuse: Rc<Cell<Option<u64>>>,
}

/// Memory that ends the process at a certain change, by a panic.
pub(crate) struct Part {
    bytes: Vec<u8>,
    start: usize,
    number: usize,
    machine: Machine,
}

struct Killed;

impl Machine {
    pub(crate) fn part(&self, number: usize, len: usize) -> Part {
        let left = self.left.borrow_mut().remove(&number);
        // A store without anything kept gets memory that was used before.
        let bytes = left.unwrap_or_else(|| vec![0; len + 64]);
        let start = bytes.as_ptr().align_offset(64);
        Part {
            bytes,
            start,
            number,
            machine: self.clone(),
        }
    }

    pub(crate) fn open(&self, config: &Config) -> Result<(Store<Part>, Restored), KeepError> {
        let Parts { log, table, pool } = Parts::of(config);
        let (log, table) = (self.part(0, log), self.part(1, table));
        let pool = self.part(2, pool);
        Store::keep(config, Parts { log, table, pool })
    }

    /// Runs something that is killed before so many changes of memory; `None` if it was.
    pub(crate) fn kill_before<T>(&self, mut changes: u64, run: impl FnOnce() -> T) -> Option<T> {
        self.kill_within(&mut changes, run)
    }

    /// Runs something that is killed before so many changes of memory, and takes those that there
    /// were off them; `None` if it was killed.
    pub(crate) fn kill_within<T>(&self, changes: &mut u64, run: impl FnOnce() -> T) -> Option<T> {
        self.fuse.set(Some(*changes));
        let result = panic::catch_unwind(AssertUnwindSafe(run));
        *changes = self.fuse.take().unwrap_or(0);
        match result {
            Ok(value) => Some(value),
            Err(reason) if reason.is::<Killed>() => None,
            Err(reason) => panic::resume_unwind(reason),
        }
    }

    /// Changes what is left of a part.
    pub(crate) fn edit(&self, number: usize, edit: impl FnOnce(&mut [u8])) {
        let mut left = self.left.borrow_mut();
        let bytes = left.get_mut(&number).unwrap();
        let start = bytes.as_ptr().align_offset(64);
        edit(&mut bytes[start..]);
    }

    /// Returns a machine with the same memory.
    pub(crate) fn copy(&self) -> Machine {
        let machine = Machine::default();
        for (&number, bytes) in &*self.left.borrow() {
            let start = bytes.as_ptr().align_offset(64);
            let mut copy = vec![0; bytes.len()];
            let to = copy.as_ptr().align_offset(64);
            let len = bytes.len() - 64;
            copy[to..to + len].copy_from_slice(&bytes[start..start + len]);
            machine.left.borrow_mut().insert(number, copy);
        }
        machine
    }
}

impl AsRef<[u8]> for Part {
    fn as_ref(&self) -> &[u8] {
        &self.bytes[self.start..self.start + self.bytes.len() - 64]
    }
}

impl AsMut<[u8]> for Part {
    fn as_mut(&mut self) -> &mut [u8] {
        match self.machine.fuse.get() {
            Some(0) => panic::resume_unwind(Box::new(Killed)),
            left => self.machine.fuse.set(left.map(|left| left - 1)),
        }
        let len = self.bytes.len() - 64;
        &mut self.bytes[self.start..self.start + len]
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        let bytes = std::mem::take(&mut self.bytes);
        self.machine.left.borrow_mut().insert(self.number, bytes);
    }
}
