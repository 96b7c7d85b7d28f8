//! The memory, the lengths and the processors of a trial, which both of its sides must agree on.

use std::time::Duration;

use rustix::thread::{sched_getaffinity, CpuSet};
use rustix::time::{clock_gettime, ClockId};
use tare_farmem::protocol::{Secret, REQUEST_HEADER, RESPONSE_HEADER};
use tare_farmem::transport::Waiting;
use tare_lab::driver::Missing;
use tare_memory::Meminfo;

use super::super::layout::{Direction, Layout};
use super::control::Phase;
use super::misses::Misses;
use super::timing::Average;
use super::{FarmemParameters, Rings, Switch, Transport, Wait};

/// Operations that are at least as long are held against a stream, shorter ones against a round
/// trip. Over the frames of an interface all are held against a round trip.
pub(super) const BULK: u64 = 32 << 10;

/// The first space.
pub(super) const FIRST_SPACE: u64 = 1;

/// The most rings: a node has up to 1024 clients over shared memory.
const RINGS_MAX: u64 = 1000;

/// Memory of the node beyond its pages.
pub(super) const SPARE: u64 = 16 << 20;

/// The first page of each session.
const BASE: u64 = 0x4000_0000;

/// The memory that a thread of a trial works on; that of the others is like it, in spaces of their
/// own.
pub(super) fn layout(parameters: &FarmemParameters) -> Layout {
    let pages = (1u64 << parameters.order) / parameters.sessions;
    Layout {
        first_space: FIRST_SPACE,
        spaces: parameters.sessions,
        pages: pages.max(1).next_power_of_two(),
        base: BASE,
        size: parameters.size.0 as u32,
        direction: parameters.op,
        regions: parameters.regions,
    }
}

/// Returns the bytes of all spaces of all threads.
pub(super) fn memory_bytes(parameters: &FarmemParameters) -> u64 {
    u64::from(parameters.threads) * layout(parameters).total()
}

/// Checks whether the machine has the memory of a trial.
///
/// # Errors
/// What is missing.
pub(super) fn check_memory(parameters: &FarmemParameters) -> Result<(), Missing> {
    // The page table and the clients take a part of it again.
    let mut needed = memory_bytes(parameters) / 8 * 9 + SPARE;
    if parameters.misses == Switch::On {
        needed += Misses::bytes(parameters.order);
    }
    match Meminfo::read().bytes("MemAvailable") {
        Some(available) if available < needed => Err(Missing {
            reason: format!(
                "{} MiB of memory are available, expected {} MiB",
                available >> 20,
                needed >> 20
            ),
            remedy: Some("free some memory, or use a lower order".into()),
        }),
        _ => Ok(()),
    }
}

impl FarmemParameters {
    /// The rings of so many sessions over shared memory; 1 over others.
    pub(super) fn rings(&self, sessions: u64) -> u64 {
        match self.rings {
            Rings::One => 1,
            Rings::Each => sessions.min(RINGS_MAX),
        }
    }

    pub(super) fn waiting(&self) -> Waiting {
        match self.wait {
            Wait::Busy => Waiting::Busy,
            Wait::Blocking => Waiting::Asleep,
        }
    }

    /// The secret of both sides, which are parts of one trial; `None` without encryption.
    pub(super) fn secret(&self) -> Option<Secret> {
        (self.aead == Switch::On).then(|| Secret::new(&[9; 32]))
    }

    /// Returns true if the reference is a stream or a copy.
    pub(super) fn is_bulk(&self) -> bool {
        self.size.0 >= BULK && self.transport != Transport::Xdp
    }

    /// The time per operation that stands for those of groups and turns.
    pub(super) fn average(&self) -> Average {
        match self.loss > 0.0 {
            true => Average::Mean,
            false => Average::Median,
        }
    }

    /// The work of the node's side in the reference.
    pub(super) fn reference(&self) -> Phase {
        if self.is_bulk() {
            Phase::Sink
        } else {
            Phase::Echo
        }
    }

    /// Bytes of a request, and of a response.
    pub(super) fn lengths(&self) -> (usize, usize) {
        let size = self.size.0 as usize;
        let (request, response) = match self.op {
            Direction::Read => (0, size),
            Direction::Write => (size, 0),
        };
        (REQUEST_HEADER + request, RESPONSE_HEADER + response)
    }
}

/// The processors of a trial.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Placement {
    /// Those of the node's workers.
    pub(super) workers: Vec<usize>,
    /// Those of the client's threads.
    pub(super) threads: Vec<usize>,
}

impl Placement {
    /// Finds the processors that this process may use. Both sides call it before they pin a thread.
    ///
    /// # Errors
    /// Those of the system.
    pub(super) fn find(threads: u32) -> anyhow::Result<Placement> {
        let allowed = sched_getaffinity(None)?;
        let cpus: Vec<usize> = (0..CpuSet::MAX_CPU)
            .filter(|&cpu| allowed.is_set(cpu))
            .collect();
        Ok(Placement::of(&cpus, threads as usize))
    }

    /// Gives each thread a processor of its own, and the node those that are left, one at least and
    /// no more than there are threads. Where they are too few, several are one.
    fn of(cpus: &[usize], threads: usize) -> Placement {
        let workers = cpus.len().saturating_sub(threads).clamp(1, threads);
        let mut cpus = cpus.iter().copied().cycle();
        Placement {
            workers: cpus.by_ref().take(workers).collect(),
            threads: cpus.take(threads).collect(),
        }
    }
}

/// This thread's processor time.
pub(super) fn processor_time() -> anyhow::Result<Duration> {
    Ok(Duration::try_from(clock_gettime(ClockId::ThreadCPUTime))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_thread_has_a_processor_and_the_node_what_is_left() {
        for (cpus, threads, expected) in [
            // As one thread always had it.
            (&[3][..], 1, (&[3][..], &[3][..])),
            (&[2, 5], 1, (&[2], &[5])),
            (&[0, 1, 2, 3], 1, (&[0], &[1])),
            (&[0, 1, 2], 2, (&[0], &[1, 2])),
            (&[0, 1, 2, 3, 4, 5], 2, (&[0, 1], &[2, 3])),
            (&[0, 1, 2, 3, 4, 5], 4, (&[0, 1], &[2, 3, 4, 5])),
            // Too few, which no experiment asks for.
            (&[0, 1], 2, (&[0], &[1, 0])),
        ] {
            let found = Placement::of(cpus, threads);
            let found = (&found.workers[..], &found.threads[..]);
            assert_eq!(found, expected, "{cpus:?}, {threads} threads");
        }
    }
}
