//! The time of a guest's processors by what they spend it on, from probes in its kernel, and the
//! exits of its virtual processors, from those of its host.
//!
//! Each function of interest has a probe at its entry and one at its return. The kernel stamps what
//! they see with the time stamp counter and keeps it by processor; [`record`], inside the guest,
//! reads that while the guest works, and adds up the time of each category without the time of
//! spans inside of its own. Hits are counted apart, by a histogram of the kernel.

pub mod exits;
mod pages;
mod recorder;
mod spans;
mod tracefs;

use serde::{Deserialize, Serialize};

pub use recorder::record;
pub use spans::Times;

/// The work that time is spent on. Names are the published ones where there are some.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Category {
    /// Finding free slots of the bounce buffer (`swiotlb_find`).
    SlotFind,
    /// Copies between private memory and the bounce buffer (`swiotlb_memcpy`).
    BounceCopy,
    /// Giving slots back (`swiotlb_release`).
    SlotRelease,
    /// Received packets (`netrx`).
    PacketIn,
    /// Packets to send (`tcp_send`).
    PacketOut,
    /// Records of TLS, where the kernel has it.
    Tls,
    /// The measurement itself: the recorder and the agent.
    Recorder,
    /// Everything outside of any other category: programs, and the rest of the kernel.
    Application,
    /// The kernel's idle task.
    Idle,
}

impl Category {
    /// All.
    pub const ALL: [Category; 9] = [
        Category::SlotFind,
        Category::BounceCopy,
        Category::SlotRelease,
        Category::PacketIn,
        Category::PacketOut,
        Category::Tls,
        Category::Recorder,
        Category::Application,
        Category::Idle,
    ];

    /// Returns the name in the breakdown.
    pub const fn name(self) -> &'static str {
        const NAMES: [&str; Category::ALL.len()] = [
            "swiotlb_find",
            "swiotlb_memcpy",
            "swiotlb_release",
            "netrx",
            "tcp_send",
            "tls",
            "recorder",
            "application",
            "idle",
        ];
        NAMES[self as usize]
    }
}

/// The functions with probes: for each the names that kernels have for it, of which the first that
/// there is gets one. `swiotlb_tbl_unmap_single` is inlined since Linux 6.11.
const FUNCTIONS: [(Category, &[&str]); 7] = [
    (Category::SlotFind, &["swiotlb_tbl_map_single"]),
    (Category::BounceCopy, &["swiotlb_bounce"]),
    (
        Category::SlotRelease,
        &["swiotlb_tbl_unmap_single", "__swiotlb_tbl_unmap_single"],
    ),
    (Category::PacketIn, &["net_rx_action"]),
    (Category::PacketOut, &["tcp_sendmsg_locked"]),
    (Category::Tls, &["tls_sw_sendmsg"]),
    (Category::Tls, &["tls_sw_recvmsg"]),
];

/// A function with probes, or one that has none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Probe {
    /// The category's name.
    pub category: String,
    /// The function; the names that were looked for if there is none.
    pub function: String,
    /// Calls by processor, which the kernel counted; `None` if they could not be.
    pub hits: Option<Vec<u64>>,
    /// Calls besides, on any processor, that the kernel kept from the probes: an interrupt made
    /// them in the middle of another probe.
    pub missed: u64,
    /// The reason why they could not be.
    pub reason: Option<String>,
}

/// A recording.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recording {
    /// The times by processor.
    pub cpus: Vec<Times>,
    /// The functions.
    pub probes: Vec<Probe>,
    /// Events that the kernel had no room for.
    pub lost: u64,
    /// Returns that no probe saw: those of the calls that are missed, and others.
    pub missed: u64,
    /// Entries and returns without the other one.
    pub unmatched: u64,
}

impl Recording {
    fn probes(&self, category: Category) -> impl Iterator<Item = &Probe> {
        let name = category.name();
        self.probes.iter().filter(move |it| it.category == name)
    }

    /// Returns the calls of a category, as the kernel counted them; `None` if none of its functions
    /// has a probe.
    pub fn calls(&self, category: Category) -> Option<u64> {
        let missed: u64 = self.probes(category).map(|it| it.missed).sum();
        Some(self.hits(category)? + missed)
    }

    /// Returns those of them that a probe saw.
    pub fn hits(&self, category: Category) -> Option<u64> {
        self.by_cpu(category).map(|hits| hits.iter().sum())
    }

    /// The same by processor.
    pub fn by_cpu(&self, category: Category) -> Option<Vec<u64>> {
        let all = self.probes(category).filter_map(|it| it.hits.clone());
        all.reduce(|a, b| a.iter().zip(&b).map(|(a, b)| a + b).collect())
    }

    /// Returns true if the calls of a category that the kernel counted are in its trace: it counts
    /// from a moment before the first mark to one after the last, and the trace is longer still.
    pub fn is_counted(&self, category: Category) -> bool {
        let at = category as usize;
        let inside: u64 = self.cpus.iter().map(|cpu| cpu.inside[at]).sum();
        let spans: u64 = self.cpus.iter().map(|cpu| cpu.spans[at]).sum();
        let hits = self.hits(category);
        hits.is_none_or(|hits| (inside..=spans).contains(&hits))
    }

    /// Returns the cycles of some categories on all processors.
    pub fn cycles(&self, categories: &[Category]) -> u64 {
        let of =
            |cpu: &Times| -> u64 { categories.iter().map(|it| cpu.cycles[*it as usize]).sum() };
        self.cpus.iter().map(of).sum()
    }

    /// Returns all cycles of the processors from the first mark to the last, measured apart.
    pub fn whole(&self) -> u64 {
        self.cpus.iter().map(|cpu| cpu.whole).sum()
    }

    /// Returns the cycles in which there was work: neither idle nor the measurement itself.
    pub fn busy(&self) -> u64 {
        self.cycles(&Category::ALL) - self.cycles(&[Category::Idle, Category::Recorder])
    }
}
