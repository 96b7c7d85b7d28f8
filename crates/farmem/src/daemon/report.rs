//! The status of a running node, as JSON and for Prometheus.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use serde::{Deserialize, Serialize};
use tare_daemon::{Asked, Metrics, ProcessStatus};
use tare_memory::Mapping;

use super::Listen;
use crate::memory::{Counts, SpaceUse, Store};
use crate::operation::{PageSize, SpaceId};
use crate::protocol::NodeCounters;
use crate::serve::{Service, ShmWork, WorkCounters};

/// The status of a running node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// The process.
    #[serde(flatten)]
    pub process: ProcessStatus,
    /// The address for UDP, with the interface if it is served by its frames.
    pub listen: String,
    /// The node's epoch: when it was started, in nanoseconds since 1970.
    pub epoch: u64,
    /// Its memory.
    pub memory: MemoryReport,
    /// Its requests.
    pub node: NodeReport,
    /// The clients over shared memory, if it is served over that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shm: Option<ShmReport>,
    /// The threads that answer them.
    pub workers: Vec<WorkerReport>,
}

/// The most spaces that a report lists.
pub const SPACES_MAX: usize = 1024;

/// Spaces that are looked at in one go, while requests wait: about 0.2 ms.
const SPACES_AT_ONCE: usize = 1024;

/// The memory of a node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MemoryReport {
    /// Bytes for pages.
    pub bytes: u64,
    /// Bytes of these that are free.
    pub bytes_free: u64,
    /// Spaces.
    pub spaces: u64,
    /// Those that use most, at most [`SPACES_MAX`]. They are not among the metrics, which others
    /// than the operator may read.
    #[serde(default)]
    pub largest: Vec<SpaceReport>,
    /// Named regions.
    pub regions: u64,
    /// Locks that are held.
    pub locks: u64,
    /// Bytes of metadata: what the node knows of all these.
    #[serde(default)]
    pub metadata_bytes: u64,
    /// Entries of the page table, by the size of the page: 4 KiB, 2 MiB and 1 GiB.
    pub entries: [u64; 3],
    /// Entries that are not in their home bucket.
    pub displaced: u64,
    /// Allocations that found no room in the page table at an address, and tried another one.
    pub retries: u64,
    /// Frames of 4 KiB that had to be zeroed when they were taken.
    pub zeroed_late: u64,
}

/// The memory that a space uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SpaceReport {
    /// Bytes that count for its quota.
    pub bytes: u64,
    /// Its number.
    pub space: u64,
    /// Its quota, in bytes.
    pub quota: u64,
}

/// The clients over shared memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShmReport {
    /// Clients at present.
    pub clients: u64,
    /// The work for all that there were.
    #[serde(flatten)]
    pub work: ShmWorkReport,
}

tare_daemon::counters! {
    /// The work for clients over shared memory.
    pub struct ShmWorkReport {
        connected => "shm_connected_total": "Clients over shared memory that were accepted",
        refused => "shm_refused_total": "Clients over shared memory that were refused",
        gone => "shm_gone_total": "Clients over shared memory that have gone",
        cut_off => "shm_cut_off_total": "Clients over shared memory that were cut off, as they broke the rules",
        requests => "shm_requests_total": "Requests over shared memory",
        read_bytes => "shm_read_bytes_total": "Bytes that were asked for over shared memory",
        written_bytes => "shm_written_bytes_total": "Bytes that were to be written over shared memory",
        evicted => "shm_evicted_total": "Writes over shared memory that were incomplete, and gave way to others",
        notifications => "shm_notifications_total": "Messages that woke clients over shared memory",
        wakeups => "shm_wakeups_total": "Clients over shared memory that were not polled, and woke the node",
    }
}

tare_daemon::counters! {
    /// Requests of a node.
    pub struct NodeReport {
        requests => "requests_total": "Requests read",
        executed => "operations_total": "Operations run, reads apart",
        repeated => "repeated_total": "Requests for operations that had been run",
        stale => "stale_total": "Requests of another epoch",
        expired => "expired_total": "Requests that were too old",
        busy => "busy_total": "Requests that found no room for a record or a segmented write",
        abandoned => "abandoned_total": "Segmented writes that were given up",
        malformed => "malformed_total": "Messages that could not be read",
        unauthenticated => "unauthenticated_total": "Messages that were not sealed with the key of their space",
    }
}

tare_daemon::counters! {
    /// The work of a thread.
    pub struct WorkerReport {
        received => "received_total": "Datagrams received, those that the kernel put together as one",
        received_bytes => "received_bytes_total": "Bytes received",
        sent => "sent_total": "Datagrams sent",
        sent_bytes => "sent_bytes_total": "Bytes sent",
        refused => "frames_refused_total": "Frames of an interface that were not for the node, or malformed",
        turns => "turns_total": "Turns of the loop",
        idle_turns => "idle_turns_total": "Turns in which nothing came",
        cpu_ns => "cpu_seconds_total": "Processor time, idle turns included",
    }
}

/// Describes a service: to the metrics without the spaces that use most, which they do not have.
pub(super) fn of(
    process: ProcessStatus,
    service: &Service<Store<Mapping>>,
    (listen, shm): (&Listen, Option<&ShmWork>),
    asked: Asked,
) -> Report {
    let (epoch, bytes, counts, counters) = service.with_node(|node| {
        let store = node.store();
        (node.epoch(), store.bytes(), store.counts(), node.counters())
    });
    let mut memory = MemoryReport::of(bytes, &counts);
    if asked == Asked::Status {
        memory.largest =
            largest(|after, max| service.with_node(|node| node.store().spaces_after(after, max)));
    }
    let workers = service.work();
    Report {
        process,
        listen: listen.to_string(),
        epoch,
        memory,
        node: NodeReport::of(&counters),
        shm: shm.map(ShmReport::of),
        workers: workers.iter().map(WorkerReport::of).collect(),
    }
}

/// Returns the spaces that use most, with those first that use more, of all that
/// [`Store::spaces_after`] returns. There may be a million: each call is for [`SPACES_AT_ONCE`] at
/// most, and the workers that wait for the node have it between two calls.
fn largest(
    mut spaces_after: impl FnMut(Option<SpaceId>, usize) -> Vec<SpaceUse>,
) -> Vec<SpaceReport> {
    let (mut least_first, mut after) = (BinaryHeap::new(), None);
    loop {
        let spaces = spaces_after(after, SPACES_AT_ONCE);
        for used in &spaces {
            least_first.push(Reverse(SpaceReport::of(used)));
            if least_first.len() > SPACES_MAX {
                least_first.pop();
            }
        }
        match spaces.last() {
            Some(last) if spaces.len() == SPACES_AT_ONCE => after = Some(last.space),
            _ => break,
        }
    }
    let sorted = least_first.into_sorted_vec();
    sorted.into_iter().map(|Reverse(space)| space).collect()
}

impl SpaceReport {
    fn of(used: &SpaceUse) -> SpaceReport {
        SpaceReport {
            bytes: used.bytes,
            space: used.space.0,
            quota: used.quota,
        }
    }
}

impl ShmReport {
    fn of(work: &ShmWork) -> ShmReport {
        let (clients, counters) = work.get();
        ShmReport {
            clients: clients as u64,
            work: ShmWorkReport {
                connected: counters.connected,
                refused: counters.refused,
                gone: counters.gone,
                cut_off: counters.cut_off,
                requests: counters.entries,
                read_bytes: counters.read_bytes,
                written_bytes: counters.written_bytes,
                evicted: counters.evicted,
                notifications: counters.notifications,
                wakeups: counters.wakeups,
            },
        }
    }
}

impl MemoryReport {
    fn of(bytes: u64, counts: &Counts) -> MemoryReport {
        MemoryReport {
            bytes,
            bytes_free: counts.bytes_free,
            spaces: counts.spaces as u64,
            largest: Vec::new(),
            regions: counts.regions as u64,
            locks: counts.locks as u64,
            metadata_bytes: counts.metadata_bytes,
            entries: counts.entries,
            displaced: counts.displaced,
            retries: counts.retries,
            zeroed_late: counts.zeroed_late,
        }
    }

    fn metrics(&self, page: &mut Metrics) {
        let gauges = [
            ("memory_bytes", "Memory for pages", self.bytes),
            ("memory_free_bytes", "Memory that is free", self.bytes_free),
            ("spaces", "Address spaces", self.spaces),
            ("regions", "Named regions", self.regions),
            ("locks", "Locks that are held", self.locks),
            (
                "metadata_bytes",
                "Memory for spaces, allocations, locks, regions and grants",
                self.metadata_bytes,
            ),
            (
                "page_table_displaced",
                "Entries that are not in their home bucket",
                self.displaced,
            ),
        ];
        for (name, help, value) in gauges {
            page.single(name, "gauge", help, value);
        }
        page.family(
            "page_table_entries",
            "gauge",
            "Entries, by the size of the page",
        );
        for (size, entries) in PageSize::ALL.iter().zip(self.entries) {
            let bytes = size.bytes().to_string();
            page.sample("page_table_entries", &[("page_bytes", &bytes)], entries);
        }
        let counters = [
            (
                "allocation_retries_total",
                "Allocations that found no room at an address, and tried another one",
                self.retries,
            ),
            (
                "frames_zeroed_late_total",
                "Frames that had to be zeroed when they were taken",
                self.zeroed_late,
            ),
        ];
        for (name, help, value) in counters {
            page.single(name, "counter", help, value);
        }
    }
}

impl NodeReport {
    fn of(counters: &NodeCounters) -> NodeReport {
        NodeReport {
            requests: counters.requests,
            executed: counters.executed,
            repeated: counters.repeated,
            stale: counters.stale,
            expired: counters.expired,
            busy: counters.busy,
            abandoned: counters.abandoned,
            malformed: counters.malformed,
            unauthenticated: counters.unauthenticated,
        }
    }
}

impl WorkerReport {
    fn of(work: &WorkCounters) -> WorkerReport {
        WorkerReport {
            received: work.traffic.received,
            received_bytes: work.traffic.received_bytes,
            sent: work.traffic.sent,
            sent_bytes: work.traffic.sent_bytes,
            refused: work.traffic.refused,
            turns: work.turns,
            idle_turns: work.idle_turns,
            cpu_ns: work.cpu.as_nanos() as u64,
        }
    }
}

impl tare_daemon::Report for Report {
    fn prometheus(&self) -> String {
        let mut page = Metrics::new("tare_memory");
        self.process.metrics(&mut page);
        self.memory.metrics(&mut page);
        page.counters(NodeReport::INFO, &[(&[], self.node.values())]);
        if let Some(shm) = &self.shm {
            page.single(
                "shm_clients",
                "gauge",
                "Clients over shared memory",
                shm.clients,
            );
            page.counters(ShmWorkReport::INFO, &[(&[], shm.work.values())]);
        }
        let numbers: Vec<String> = (0..self.workers.len()).map(|n| n.to_string()).collect();
        let labels: Vec<_> = numbers.iter().map(|n| [("worker", n.as_str())]).collect();
        let instances: Vec<_> = labels
            .iter()
            .zip(&self.workers)
            .map(|(labels, worker)| (&labels[..], worker.values()))
            .collect();
        page.counters(WorkerReport::INFO, &instances);
        page.into_text()
    }
}

#[cfg(test)]
mod tests {
    use tare_sim::Instant;

    use super::*;
    use crate::memory::Config;
    use crate::operation::Operation;
    use crate::protocol::{Node, NodeConfig};
    use crate::transport::Waiting;

    #[test]
    fn the_spaces_that_use_most_are_found_in_bounded_parts() {
        let spaces = 3 * SPACES_AT_ONCE as u64 + 5;
        // As in a hash, and each has its own bytes.
        let bytes = |space: u64| space * 7919 % spaces;
        let (mut calls, mut looked_at) = (0, 0);
        let found = largest(|after, max| {
            assert!(max <= SPACES_AT_ONCE);
            let first = after.map_or(0, |after| after.0 + 1);
            let part = (first..spaces).take(max).map(|space| SpaceUse {
                space: SpaceId(space),
                bytes: bytes(space),
                quota: spaces,
            });
            let part: Vec<_> = part.collect();
            (calls, looked_at) = (calls + 1, looked_at + part.len() as u64);
            part
        });
        assert_eq!((calls, looked_at), (4, spaces));
        let found: Vec<_> = found.iter().map(|space| space.bytes).collect();
        let most = (0..spaces).rev().take(SPACES_MAX);
        assert_eq!(found, most.collect::<Vec<_>>());
    }

    #[test]
    fn spaces_are_walked_for_the_status_and_not_for_the_metrics() {
        let store = Store::in_memory(&Config::new(1 << 20), Mapping::best).unwrap();
        let mut node = Node::new(NodeConfig::new(1), store);
        for space in 1..=3 {
            let opened = node.store_mut().execute(
                Instant::ZERO,
                SpaceId(space),
                &Operation::Open,
                &mut Vec::new(),
            );
            opened.unwrap();
        }
        let service = Service::with_sources(node, Vec::new(), Waiting::Asleep).unwrap();
        let listen = "127.0.0.1:7311".parse().unwrap();
        let report = |asked| of(ProcessStatus::default(), &service, (&listen, None), asked).memory;
        let (status, metrics) = (report(Asked::Status), report(Asked::Metrics));
        assert_eq!((status.spaces, status.largest.len()), (3, 3));
        assert_eq!((metrics.spaces, metrics.largest.len()), (3, 0));
    }
}
