//! The identity of a worker, and the group that an SA is bound to.

use std::sync::atomic::{AtomicU64, Ordering};

/// The identity of one worker of a gateway.
///
/// There is exactly one of each, made by [`WorkerGroup::new`](super::WorkerGroup::new):
///
/// ```compile_fail,E0599
/// use tare_gateway::dataplane::WorkerGroup;
/// let (_, mut workers) = WorkerGroup::new(1);
/// let only = workers.remove(0);
/// let second = only.clone();
/// ```
///
/// ```compile_fail,E0382
/// use tare_gateway::dataplane::{Dataplane, WorkerGroup};
/// # fn two(tables: std::sync::Arc<tare_gateway::dataplane::BoundTables>, pool: tare_port::Pool) {
/// let (_, only) = WorkerGroup::sole();
/// let first = Dataplane::new(tables.clone(), pool.clone(), only);
/// let second = Dataplane::new(tables, pool, only);
/// # }
/// ```
///
/// ```compile_fail,E0451
/// use tare_gateway::dataplane::WorkerId;
/// let forged = WorkerId { number: 0, group: 1, sole: true };
/// ```
#[derive(Debug, PartialEq, Eq)]
pub struct WorkerId {
    number: usize,
    group: u64,
    sole: bool,
}

impl WorkerId {
    /// Makes the identities of a new group, in the order of their numbers. To be called once for
    /// each group.
    pub(super) fn mint(group: u64, workers: usize) -> Vec<WorkerId> {
        let worker = |number| WorkerId {
            number,
            group,
            sole: workers == 1,
        };
        (0..workers).map(worker).collect()
    }

    /// The group that it belongs to.
    pub(super) fn group(&self) -> u64 {
        self.group
    }

    /// The worker's number within its group, from 0. A worker uses the outbound SA of a route that
    /// has this number, as far as there are that many.
    pub fn number(&self) -> usize {
        self.number
    }

    /// Returns true if the group has no other worker. SAs bound to the group may then be used
    /// without atomic operations.
    #[inline]
    pub(crate) fn is_sole(&self) -> bool {
        self.sole
    }
}

/// The group that an SA is bound to.
#[derive(Default)]
pub(super) struct Binding(AtomicU64);

impl Binding {
    pub(super) fn bind(&self, group: u64) {
        // Looked at first: that most SAs are bound already spares a locked instruction for each.
        if self.0.load(Ordering::Relaxed) == group {
            return;
        }
        let free = 0;
        let bound = self
            .0
            .compare_exchange(free, group, Ordering::Relaxed, Ordering::Relaxed);
        assert!(
            bound.is_ok() || bound == Err(group),
            "an SA is bound to another group of workers"
        );
    }
}
