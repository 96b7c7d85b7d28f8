//! The identities of workers, and which SAs they may use.
//!
//! The sequence number of an SA is its nonce, so that no number is ever taken twice is what keeps
//! the key secret. A counter that several workers share must be atomic. A worker that is alone can
//! do without, which saves about a tenth of its time where each packet has a route of its own. That
//! "alone" is true is held by the types here:
//!
//! - [`WorkerGroup::new`] mints all identities of a group at once. [`WorkerId`] cannot be copied,
//!   cloned or made in any other way, and a [`Dataplane`](super::Dataplane) consumes it.
//! - [`WorkerGroup::bind`] binds every SA of a [`Tables`] to the group, for good; an SA that is
//!   bound to another group is refused.
//! - A data plane takes only tables that are bound to the group of its worker.
//!
//! So where a group has one worker, no other can reach its SAs.

use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use super::counters::DropTable;
use super::tables::Tables;
use super::worker::WorkerId;

/// A group of workers that share SAs. It belongs to the owner of the tables.
#[derive(Debug)]
pub struct WorkerGroup {
    id: u64,
    workers: usize,
}

impl WorkerGroup {
    /// Makes a group of `workers` workers, and their identities in the order of their numbers.
    ///
    /// ```
    /// use tare_gateway::dataplane::{Dataplane, WorkerGroup};
    /// # fn one(tables: tare_gateway::dataplane::Tables, pool: tare_port::Pool) {
    /// let (group, mut workers) = WorkerGroup::new(1);
    /// let only = workers.remove(0);
    /// let dataplane = Dataplane::new(group.bind(tables), pool, only);
    /// # }
    /// ```
    pub fn new(workers: usize) -> (WorkerGroup, Vec<WorkerId>) {
        // 0 is the mark of an SA that is not bound yet.
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        (WorkerGroup { id, workers }, WorkerId::mint(id, workers))
    }

    /// Makes a group of one worker.
    pub fn sole() -> (WorkerGroup, WorkerId) {
        let (group, mut workers) = WorkerGroup::new(1);
        (group, workers.remove(0))
    }

    /// The number of workers.
    pub fn workers(&self) -> usize {
        self.workers
    }

    /// Binds the SAs of these tables to this group, so that its workers may use them.
    ///
    /// # Panics
    /// If an SA is bound to another group: its numbers could be taken twice.
    pub fn bind(&self, tables: Tables) -> Arc<BoundTables> {
        self.bind_counting(tables, Arc::default())
    }

    /// As [`WorkerGroup::bind`]; what workers drop is counted by route.
    ///
    /// # Panics
    /// As [`WorkerGroup::bind`].
    pub fn bind_counting(&self, tables: Tables, drops: Arc<DropTable>) -> Arc<BoundTables> {
        for route in &tables.routes {
            route.all_outbound().for_each(|sa| sa.group.bind(self.id));
        }
        tables.inbound.iter().for_each(|sa| sa.group.bind(self.id));
        Arc::new(BoundTables {
            tables,
            drops,
            group: self.id,
        })
    }
}

/// Tables whose SAs are bound to a group of workers; they are not changed any more.
pub struct BoundTables {
    tables: Tables,
    /// The counters of the routes, if they are counted.
    pub(super) drops: Arc<DropTable>,
    group: u64,
}

impl BoundTables {
    /// # Panics
    /// If the tables are bound to another group than the worker's.
    pub(super) fn assert_member(&self, worker: &WorkerId) {
        assert!(
            self.group == worker.group(),
            "these tables are bound to another group of workers"
        );
    }
}

impl Deref for BoundTables {
    type Target = Tables;

    #[inline]
    fn deref(&self) -> &Tables {
        &self.tables
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::time::Duration;

    use super::*;
    use crate::dataplane::{
        Dataplane, InboundSa, InterfaceView, OutboundSa, Outer, Output, Prefixes, Route,
        SequenceMode, SpiTable,
    };
    use tare_gcm::Key;
    use tare_memory::Shared;
    use tare_packet::ethernet::{self, HEADER};
    use tare_packet::ipv4;
    use tare_port::{Burst, Frame, Layout, Pool};
    use tare_sim::Instant;

    fn tables(outbound: &Shared<OutboundSa>, inbound: &[Shared<InboundSa>]) -> Tables {
        let interface = InterfaceView {
            mac: [2; 6],
            next_hop4: Some([2; 6]),
            mtu: 1500,
            ..InterfaceView::default()
        };
        Tables {
            prefixes: Arc::new(Prefixes::new([("10.0.0.0/8".parse().unwrap(), 0)])),
            routes: vec![Route::new([outbound.clone()], 1500)],
            inbound: SpiTable::new(inbound.iter().cloned()),
            private: interface,
            public: interface,
            exchange_port: 303,
        }
    }

    fn outbound() -> Shared<OutboundSa> {
        let outer = Outer::V4 { src: 1, dst: 2 };
        let key = Key::new(&[0; 16]).unwrap();
        let sa = OutboundSa::new(1000, key, [0; 4], SequenceMode::Extended, outer);
        Shared::new(sa)
    }

    fn inbound() -> Shared<InboundSa> {
        let key = Key::new(&[0; 16]).unwrap();
        let sa = InboundSa::new(1000, key, [0; 4], SequenceMode::Extended, 64, 0);
        Shared::new(sa)
    }

    #[test]
    fn two_data_planes_that_share_an_sa_never_use_a_sequence_number_twice() {
        let sa = outbound();
        let (group, workers) = WorkerGroup::new(2);
        let tables = group.bind(tables(&sa, &[]));
        let used: Vec<u64> = std::thread::scope(|scope| {
            let seal = |worker: WorkerId| {
                let tables = Arc::clone(&tables);
                scope.spawn(move || {
                    let pool = Pool::new(64, 512, Layout::Spread).unwrap();
                    let mut dataplane = Dataplane::new(tables, pool.clone(), worker);
                    let mut output = Output::default();
                    let mut used = Vec::new();
                    let (mut gaps, mut last) = (0, 0);
                    let start = std::time::Instant::now();
                    while gaps < 200 && start.elapsed() < Duration::from_secs(2) {
                        let mut burst: Burst =
                            (0..8).map(|_| pool.copy(&packet()).unwrap()).collect();
                        dataplane.outbound(Instant::ZERO, &mut burst, &mut output);
                        let iv = HEADER + ipv4::HEADER + 8;
                        let sealed = output.forward.drain(..);
                        let number = |frame: Frame| *frame[iv..].first_chunk().unwrap();
                        used.extend(sealed.map(number).map(u64::from_be_bytes));
                        gaps += u64::from(used[used.len() - 8] != last + 1);
                        last = used[used.len() - 1];
                    }
                    used
                })
            };
            let threads: Vec<_> = workers.into_iter().map(seal).collect();
            let used = threads.into_iter().map(|thread| thread.join().unwrap());
            used.flatten().collect()
        });
        let different: HashSet<_> = used.iter().collect();
        assert_eq!(different.len(), used.len());
    }

    fn packet() -> Vec<u8> {
        let header = ipv4::Repr {
            src: 0x0b00_0001,
            dst: 0x0a00_0001,
            protocol: 17,
            ttl: 64,
            tos: 0,
            total_len: 46,
            fragment: 0x4000,
        };
        let mut bytes = ethernet::header([2; 6], [4; 6], ethernet::IPV4).to_vec();
        bytes.extend(header.to_bytes());
        bytes.resize(60, 0);
        bytes
    }

    #[test]
    fn only_a_group_of_one_has_a_sole_worker() {
        for workers in 0..5 {
            let (group, ids) = WorkerGroup::new(workers);
            assert_eq!((group.workers(), ids.len()), (workers, workers));
            assert!(ids.iter().enumerate().all(|(n, id)| id.number() == n));
            assert!(ids.iter().all(|id| id.is_sole() == (workers == 1)));
        }
    }

    #[test]
    fn an_sa_stays_with_its_group_whatever_tables_it_is_in() {
        let (first, _) = WorkerGroup::sole();
        let (sa, received) = (outbound(), inbound());
        first.bind(tables(&sa, &[Shared::clone(&received)]));
        first.bind(tables(&sa, &[Shared::clone(&received)]));
        for second in [
            tables(&sa, &[]),
            tables(&outbound(), std::slice::from_ref(&received)),
        ] {
            let (group, _) = WorkerGroup::sole();
            let bind = std::panic::AssertUnwindSafe(|| drop(group.bind(second)));
            assert!(std::panic::catch_unwind(bind).is_err());
        }
    }

    #[test]
    fn a_data_plane_takes_only_tables_of_its_own_group() {
        let pool = Pool::new(64, 512, Layout::Spread).unwrap();
        let ((own, id), (other, _)) = (WorkerGroup::sole(), WorkerGroup::sole());
        let foreign = other.bind(tables(&outbound(), &[]));
        let mut dataplane = Dataplane::new(own.bind(tables(&outbound(), &[])), pool.clone(), id);
        let replaced = std::panic::AssertUnwindSafe(|| dataplane.replace(Arc::clone(&foreign)));
        assert!(std::panic::catch_unwind(replaced).is_err());
        let id = dataplane.into_worker();
        let made = std::panic::AssertUnwindSafe(|| drop(Dataplane::new(foreign, pool, id)));
        assert!(std::panic::catch_unwind(made).is_err());
    }
}
