//! The status of a running node, as JSON and for Prometheus.

use serde::{Deserialize, Serialize};
use tare_daemon::{Metrics, ProcessStatus};
use tare_memory::Mapping;

use super::Listen;
use crate::memory::{Counts, Store};
use crate::operation::PageSize;
use crate::protocol::NodeCounters;
use crate::serve::{Service, WorkCounters};

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
    /// The threads that answer them.
    pub workers: Vec<WorkerReport>,
}

/// The memory of a node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MemoryReport {
    /// Bytes for pages.
    pub bytes: u64,
    /// Bytes of these that are free.
    pub bytes_free: u64,
    /// Spaces.
    pub spaces: u64,
    /// Named regions.
    pub regions: u64,
    /// Locks that are held.
    pub locks: u64,
    /// Entries of the page table, by the size of the page: 4 KiB, 2 MiB and 1 GiB.
    pub entries: [u64; 3],
    /// Entries that are not in their home bucket.
    pub displaced: u64,
    /// Allocations that found no room in the page table at an address, and tried another one.
    pub retries: u64,
    /// Frames of 4 KiB that had to be zeroed when they were taken.
    pub zeroed_late: u64,
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

/// Describes a service.
pub(super) fn of(
    process: ProcessStatus,
    service: &Service<Store<Mapping>>,
    listen: &Listen,
) -> Report {
    let (epoch, bytes, counts, counters) = service.with_node(|node| {
        let store = node.store();
        (node.epoch(), store.bytes(), store.counts(), node.counters())
    });
    let workers = service.work();
    Report {
        process,
        listen: listen.to_string(),
        epoch,
        memory: MemoryReport::of(bytes, &counts),
        node: NodeReport::of(&counters),
        workers: workers.iter().map(WorkerReport::of).collect(),
    }
}

impl MemoryReport {
    fn of(bytes: u64, counts: &Counts) -> MemoryReport {
        MemoryReport {
            bytes,
            bytes_free: counts.bytes_free,
            spaces: counts.spaces as u64,
            regions: counts.regions as u64,
            locks: counts.locks as u64,
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
