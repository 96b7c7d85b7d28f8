//! The driver `cvmnet`: data over TLS between a guest and clients in the host's process.

use std::time::Duration;

use tare_cvmnet::tls::Suites;
use tare_cvmnet::variant::{Exits, Variant};
use tare_lab::driver::{Expected, Missing};
use tare_lab::parameters::{Bytes, Choice};
use tare_lab::{choices, figures, parameters};

use super::session::{self, Outcome, Setup, Work, HANDSHAKES, STANDSTILL, WARM_UP};
use crate::agent::{Agent, TrialError};
use crate::machine::Machine;
use crate::systems::gcm::KeyBits;
use crate::systems::workload::{by_the_clock, Workload};

/// The data of a full record, in bytes.
const RECORD: f64 = 16384.0;

/// A variant of the path.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Path(pub(super) Variant);

impl Choice for Path {
    fn all() -> Vec<Path> {
        Variant::ALL.map(Path).to_vec()
    }

    fn name(&self) -> &'static str {
        self.0.name
    }
}

choices! {
    /// The kind of exits.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) enum ExitKind {
        /// Each notification is one.
        Each = "each",
        /// One in 16 completions of sent packets interrupts (reduced interrupt frequency).
        Rif = "rif",
        /// Interrupts cause none (posted interrupts).
        Posted = "posted",
    }
}

impl ExitKind {
    pub(super) fn exits(self) -> Exits {
        match self {
            ExitKind::Each => Exits::Each,
            ExitKind::Rif => Exits::Rif,
            ExitKind::Posted => Exits::Posted,
        }
    }
}

choices! {
    /// The way in which the guest learns of the host's work.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) enum Wait {
        /// It looks all the time.
        Polling = "polling",
        /// It sleeps, and is interrupted.
        Interrupts = "interrupts",
    }
}

parameters! {
    /// The parameters of the driver `cvmnet`.
    pub(crate) struct CvmnetParameters {
        /// the variant of the path
        variant: Path = "bifrost",
        /// the work of the guest: bulk data that it receives or sends, or a server
        work: Work = "receive",
        /// bytes of a file or value
        size: Bytes = "256 KiB",
        /// connections; with bulk data each has a port of its own
        connections: u64 [1..=64] = 4,
        /// bytes that a source of bulk data writes at a time
        buffer: Bytes = "32 KiB",
        /// bits of the key of AES-GCM
        key: KeyBits = 128,
        /// the processors of the guest
        vcpus: u64 [1..=64] = 1,
        /// how the guest learns of the host's work
        wait: Wait = "polling",
        /// the kind of exits of the machine that is simulated
        exits: ExitKind = "each",
        /// the simulated cost of a world switch, in cycles of the time stamp counter
        switch_cycles: u64 [0..=1_000_000] = 0,
        /// the measured part of a trial
        duration: Duration = "400 ms",
    }
}

impl CvmnetParameters {
    pub(super) fn setup(&self) -> Setup {
        Setup {
            variant: self.variant.0,
            work: self.work,
            size: self.size.0 as usize,
            connections: self.connections,
            buffer: usize::try_from(self.buffer.0).unwrap_or(usize::MAX),
            suites: match self.key.bytes() {
                16 => Suites::Aes128,
                _ => Suites::Aes256,
            },
            exits: self.exits.exits(),
            switch_cycles: self.switch_cycles,
            has_interrupts: self.wait == Wait::Interrupts,
            duration: self.duration,
            has_breakdown: false,
        }
    }
}

/// Bytes of the largest file or value, of which a store of the guest holds some.
const SIZE_MAX: u64 = 512 << 10;

/// Checks the size of a file or value.
pub(super) fn examine_size(size: Bytes) -> Result<(), tare_lab::driver::Mistake> {
    if size.0 <= SIZE_MAX {
        return Ok(());
    }
    let found = format!("{} B", size.0);
    Err(crate::systems::workload::mistake(
        "size",
        found.as_str(),
        "at most 512 KiB",
    ))
}

/// Says that a guest of several processors is missing.
fn one_vcpu(vcpus: u64) -> Result<(), Missing> {
    if vcpus == 1 {
        return Ok(());
    }
    Err(Missing {
        reason: format!(
            "found {vcpus} processors of the guest; the path has one queue pair, for one"
        ),
        remedy: None,
    })
}

figures! {
    /// The figures of a trial of `cvmnet`.
    pub(crate) struct CvmnetFigures {
        metrics {
            /// bytes of data per second of the clock
            throughput: f64 [BytesPerSecond],
            /// bytes of data per second of the guest's time, without the turns of its loop in which
            /// there was nothing to do
            guest_rate: f64 [BytesPerSecond],
            /// the guest's time per 16 KiB of data, without the turns of its loop in which there
            /// was nothing to do
            guest_time: f64 [Seconds],
            /// the part of the clock that these are: the guest is the bottleneck at 0.95
            guest_busy: f64 [Ratio],
            /// bytes of data per frame that the guest has received
            frame: Option<f64> [Bytes],
            /// requests that were answered, per second of the clock
            request_rate: Option<f64> [RequestsPerSecond],
            /// exits per MiB of data: notifications of the host, interrupts, waits
            exits: f64 [Count],
        }
        counters {
            /// records of bulk data, requests over HTTPS, or turns of a set and ten gets
            operations,
            /// bytes of data in them
            bytes,
            /// requests that were answered
            requests,
            /// bytes that the receiver compared with what was sent
            verified,
            /// connections with a byte that was not sent
            wrong,
            /// bytes that the guest copied through the bounce buffer
            bounced,
            /// faults of the ring, resets and errors of TLS
            faults,
        }
    }
}

impl CvmnetFigures {
    pub(super) fn of(outcome: &Outcome, work: Work) -> CvmnetFigures {
        let data = outcome.data as f64;
        let has_requests = !matches!(work, Work::Receive | Work::Send);
        let exits = outcome.exits;
        let exits = exits.kicks + exits.interrupts + exits.halts;
        let has_frames = work != Work::Send && outcome.frames > 0;
        CvmnetFigures {
            throughput: data / outcome.clock,
            guest_rate: data / outcome.busy,
            guest_time: outcome.busy / (data / RECORD),
            guest_busy: (outcome.busy / outcome.clock).min(1.0),
            frame: has_frames.then(|| outcome.frame_bytes as f64 / outcome.frames as f64),
            request_rate: has_requests.then(|| outcome.requests as f64 / outcome.clock),
            exits: exits as f64 / (data / f64::from(1 << 20)),
            operations: outcome.operations,
            bytes: outcome.bytes,
            requests: outcome.requests,
            verified: outcome.verified,
            wrong: outcome.wrong,
            bounced: outcome.bounced,
            faults: outcome.faults,
        }
    }
}

/// The longest time of a measurement.
pub(super) fn longest(duration: Duration) -> Duration {
    duration.mul_f64(1.0 + WARM_UP) + HANDSHAKES + STANDSTILL
}

/// The driver `cvmnet`.
pub(crate) struct Cvmnet;

impl Workload for Cvmnet {
    const NAME: &'static str = "cvmnet";
    const ABOUT: &'static str =
        "TLS between a confidential VM's guest, with its own TCP, and its host, by variant";
    type Parameters = CvmnetParameters;
    type Figures = CvmnetFigures;

    fn examine(parameters: &CvmnetParameters) -> Result<(), tare_lab::driver::Mistake> {
        examine_size(parameters.size)
    }

    fn check(parameters: &CvmnetParameters, _: &Machine) -> Result<(), Missing> {
        one_vcpu(parameters.vcpus)
    }

    fn expected(parameters: &CvmnetParameters) -> Option<Expected> {
        Some(by_the_clock(parameters.duration.mul_f64(1.0 + WARM_UP)))
    }

    fn longest(parameters: &CvmnetParameters) -> Duration {
        longest(parameters.duration)
    }

    fn run(parameters: CvmnetParameters, agent: &mut Agent) -> Result<CvmnetFigures, TrialError> {
        let outcome = session::run(&parameters.setup(), || agent.start())?;
        Ok(CvmnetFigures::of(&outcome, parameters.work))
    }
}
