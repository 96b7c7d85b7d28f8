//! The driver `cvmnet`: data over TLS between a guest and clients in the host's process.

use std::time::Duration;

use tare_cvmnet::host::AHEAD_MAX;
use tare_cvmnet::tls::Suites;
use tare_cvmnet::variant::{Exits, Row, Variant};
use tare_lab::driver::{Expected, Missing, Mistake};
use tare_lab::parameters::{Bytes, Choice};
use tare_lab::{choices, figures, parameters};

use super::session::{self, Outcome, Setup, Work, HANDSHAKES, SEALING, STANDSTILL, WARM_UP};
use crate::agent::{Agent, TrialError};
use crate::machine::Machine;
use crate::systems::gcm::KeyBits;
use crate::systems::workload::{by_the_clock, mistake, Workload};

/// The part of the clock from which on the guest is the bottleneck.
const BOTTLENECK: f64 = 0.95;
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

/// A row of the published tables, or none.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Published(Option<Row>);

impl Choice for Published {
    fn all() -> Vec<Published> {
        let rows = Row::ALL.into_iter().map(Some);
        std::iter::once(None).chain(rows).map(Published).collect()
    }

    fn name(&self) -> &'static str {
        self.0.map_or("none", |row| row.name)
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

choices! {
    /// The time at which the clients seal the bulk data that the guest receives.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) enum Sealing {
        /// Before the clock starts.
        Ahead = "ahead",
        /// While it runs.
        Live = "live",
    }
}

choices! {
    /// The end of a trial.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) enum Until {
        /// The clock ends it.
        Duration = "duration",
        /// All bytes have been moved.
        Amount = "amount",
    }
}

parameters! {
    /// The parameters of the drivers `cvmnet` and `cvmnet-breakdown`.
    pub(crate) struct CvmnetParameters {
        /// a row of the published tables, whose variant and exits are taken in the place of those
        /// below
        row: Published = "none",
        /// the variant of the path
        variant: Path = "bifrost",
        /// the work of the guest: bulk data that it receives or sends, a server, or the cipher of
        /// what it receives alone
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
        /// when the clients seal the bulk data that the guest receives: before the clock starts,
        /// and the measured part ends when that is used up, or while it runs
        sealing: Sealing = "ahead",
        /// bytes of memory for records that are sealed ahead, at most 1 GiB
        ahead: Bytes = "1 GiB",
        /// what ends a trial: the clock, or an amount of bulk data, without a warm-up
        until: Until = "duration",
        /// bytes of bulk data that all connections together move until a trial ends by them
        amount: Bytes = "64 MiB",
        /// one in so many pieces of bulk data is compared with what was sent
        verify: u64 [1..=1000] = 100,
        /// the measured part of a trial
        duration: Duration = "400 ms",
    }
}

impl CvmnetParameters {
    /// Returns the measurement that they ask for.
    pub(super) fn setup(&self, has_breakdown: bool) -> Setup {
        let row = self.row.0;
        Setup {
            variant: row.map_or(self.variant.0, |row| row.variant),
            work: self.work,
            size: self.size.0 as usize,
            connections: self.connections,
            buffer: usize::try_from(self.buffer.0).unwrap_or(usize::MAX),
            suites: match self.key.bytes() {
                16 => Suites::Aes128,
                _ => Suites::Aes256,
            },
            exits: row.map_or(self.exits.exits(), |row| row.exits),
            switch_cycles: self.switch_cycles,
            has_interrupts: self.wait == Wait::Interrupts,
            duration: self.duration,
            has_breakdown,
            vcpus: self.vcpus as usize,
            ahead: match self.sealing {
                Sealing::Ahead if self.until == Until::Duration => self.ahead.0 as usize,
                _ => 0,
            },
            amount: self.amount(),
            verify: self.verify,
        }
    }

    /// Returns the bytes that a trial moves, the same for each connection; 0 if the clock ends it.
    fn amount(&self) -> u64 {
        match self.until {
            Until::Duration => 0,
            Until::Amount => self.amount.0 / self.connections * self.connections,
        }
    }

    /// Checks them for the driver that measures breakdowns, or for the other one.
    pub(super) fn examine(&self, is_breakdown: bool) -> Result<(), Mistake> {
        examine_size(self.size)?;
        if self.duration.is_zero() {
            return Err(mistake("duration", "0 s", "more than 0 s"));
        }
        if self.work == Work::Open && (is_breakdown || self.vcpus > 1) {
            let expected = "another work: the cipher alone has one processor and no breakdown";
            return Err(mistake("work", self.work.name(), expected));
        }
        let is_bulk = matches!(self.work, Work::Receive | Work::Send);
        if self.until == Until::Amount && !is_bulk {
            let expected = "\"duration\", as the work is not bulk data";
            return Err(mistake("until", self.until.name(), expected));
        }
        if self.until == Until::Amount && self.amount() == 0 {
            let found = format!("{} B", self.amount.0);
            return Err(mistake(
                "amount",
                found.as_str(),
                "a byte per connection or more",
            ));
        }
        examine_vcpus(self.vcpus, self.connections)?;
        if self.switch_cycles > 0 && self.wait == Wait::Polling {
            let expected = "0 unless wait = \"interrupts\": who polls switches nothing";
            let found = self.switch_cycles as i64;
            return Err(mistake("switch_cycles", found, expected));
        }
        if !(1..=64 << 10).contains(&self.buffer.0) {
            let found = format!("{} B", self.buffer.0);
            return Err(mistake("buffer", found.as_str(), "1 B to 64 KiB"));
        }
        if self.ahead.0 > AHEAD_MAX as u64 {
            let found = format!("{} B", self.ahead.0);
            return Err(mistake("ahead", found.as_str(), "at most 1 GiB"));
        }
        match self.row.0 {
            Some(row) if row.is_breakdown() != is_breakdown => {
                let expected = match is_breakdown {
                    true => "a row of the breakdowns, whose mode ends in \"bd\"",
                    false => "a row that is not of the breakdowns, whose mode ends in \"bd\"",
                };
                Err(mistake("row", row.name, expected))
            }
            _ => Ok(()),
        }
    }

    /// Returns true if the clients seal records before the clock starts.
    fn is_ahead(&self) -> bool {
        let is_timed = self.until == Until::Duration;
        self.work == Work::Receive && self.sealing == Sealing::Ahead && is_timed
    }

    /// Checks whether the path can be measured with them.
    pub(super) fn check(&self, machine: &Machine) -> Result<(), Missing> {
        check_vcpus(self.vcpus as usize, machine)?;
        if self.work == Work::Https {
            machine.need_temporary_folder()?;
        }
        match self.is_ahead() {
            true => machine.need_memory(self.ahead.0, "records that are sealed ahead may need"),
            false => Ok(()),
        }
    }
}

/// Checks that there is a processor for each thread of a guest that has several, and for each of
/// its host: they look for work all the time.
pub(super) fn check_vcpus(vcpus: usize, machine: &Machine) -> Result<(), Missing> {
    match vcpus {
        1 => Ok(()),
        _ => {
            let what =
                format!("a guest with {vcpus} processors and as many threads of its host need");
            machine.need_cpus(2 * vcpus, &what)
        }
    }
}

/// Checks that each processor of the guest has a connection.
pub(super) fn examine_vcpus(vcpus: u64, connections: u64) -> Result<(), Mistake> {
    match vcpus <= connections {
        true => Ok(()),
        false => Err(mistake(
            "vcpus",
            vcpus as i64,
            "at most as many as connections",
        )),
    }
}

/// Bytes of the largest file or value, of which a store of the guest holds some.
const SIZE_MAX: u64 = 512 << 10;

/// Checks the size of a file or value.
pub(super) fn examine_size(size: Bytes) -> Result<(), Mistake> {
    if (1..=SIZE_MAX).contains(&size.0) {
        return Ok(());
    }
    let found = format!("{} B", size.0);
    Err(mistake("size", found.as_str(), "1 B to 512 KiB"))
}

figures! {
    /// The figures of a trial of `cvmnet`.
    pub(crate) struct CvmnetFigures {
        metrics {
            /// bytes of data per second of the clock
            throughput: f64 [BytesPerSecond],
            /// bytes of data per second of processor time of the guest's threads, times their
            /// number, without the turns of a polling guest in which there was nothing to do
            cpu_guest_rate: f64 [BytesPerSecond],
            /// this processor time per 16 KiB of data
            cpu_guest_time: f64 [Seconds],
            /// this processor time over the clock's, by thread: the guest is the bottleneck at 0.95
            guest_busy: f64 [Ratio],
            /// bytes of data per frame that the guest has received
            frame: Option<f64> [Bytes],
            /// packets of the network per frame that the guest has received
            packets_per_frame: Option<f64> [Count],
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
            /// bytes of data that the clients sealed before the clock started
            sealed_ahead,
            /// trials in which the guest worked for less than 0.95 of the clock, as it had nothing
            /// to do or others had its processor: its own time is to be compared
            guest_waited,
            /// bytes more or fewer than `amount`, and those that were not compared although all
            /// were to be
            unequal,
        }
    }
}

impl CvmnetFigures {
    pub(super) fn of(outcome: &Outcome, setup: &Setup) -> CvmnetFigures {
        let work = setup.work;
        let data = outcome.data as f64;
        let has_requests = !matches!(work, Work::Receive | Work::Send | Work::Open);
        let busy = (outcome.busy / (outcome.clock * outcome.vcpus as f64)).min(1.0);
        let uncompared = match setup.verify {
            1 => setup.amount.saturating_sub(outcome.verified),
            _ => 0,
        };
        let unequal = match setup.amount {
            0 => 0,
            amount => amount.abs_diff(outcome.bytes) + uncompared,
        };
        let exits = outcome.exits();
        let exits = exits.kicks + exits.interrupts + exits.halts;
        let per = |frames: u64, amount: u64| (frames > 0).then(|| amount as f64 / frames as f64);
        CvmnetFigures {
            throughput: data / outcome.clock,
            cpu_guest_rate: data / outcome.busy * outcome.vcpus as f64,
            cpu_guest_time: outcome.busy / (data / RECORD),
            guest_busy: busy,
            frame: per(outcome.frames, outcome.frame_bytes).filter(|_| work != Work::Send),
            packets_per_frame: per(outcome.given, outcome.packets),
            request_rate: has_requests.then(|| outcome.requests as f64 / outcome.clock),
            exits: exits as f64 / (data / f64::from(1 << 20)),
            operations: outcome.operations,
            bytes: outcome.bytes,
            requests: outcome.requests,
            verified: outcome.verified,
            wrong: outcome.wrong,
            bounced: outcome.bounced,
            faults: outcome.faults,
            sealed_ahead: outcome.sealed_ahead,
            guest_waited: u64::from(busy < BOTTLENECK),
            unequal,
        }
    }
}

/// Bytes per second of a trial that ends by an amount: about what two processors of today do, and
/// fewer than any does that is not stuck.
const AMOUNT_RATE: f64 = 1e9;
const AMOUNT_RATE_MIN: f64 = 5e7;

/// The expected time of a measurement: to seal ahead takes about as long as to open.
pub(super) fn expected(parameters: &CvmnetParameters) -> Duration {
    if parameters.until == Until::Amount {
        return Duration::from_secs_f64(parameters.amount() as f64 / AMOUNT_RATE);
    }
    let sealing = if parameters.is_ahead() { 1.0 } else { 0.0 };
    parameters.duration.mul_f64(1.0 + WARM_UP + sealing)
}

/// The longest time of a measurement.
pub(super) fn longest(parameters: &CvmnetParameters) -> Duration {
    let measured = match parameters.until {
        Until::Duration => parameters.duration,
        Until::Amount => Duration::from_secs_f64(parameters.amount() as f64 / AMOUNT_RATE_MIN),
    };
    measured.mul_f64(1.0 + WARM_UP) + HANDSHAKES + SEALING + STANDSTILL
}

/// The driver `cvmnet`.
pub(crate) struct Cvmnet;

impl Workload for Cvmnet {
    const NAME: &'static str = "cvmnet";
    const ABOUT: &'static str =
        "TLS between a confidential VM's guest, with its own TCP, and its host, by variant";
    type Parameters = CvmnetParameters;
    type Figures = CvmnetFigures;

    fn examine(parameters: &CvmnetParameters) -> Result<(), Mistake> {
        parameters.examine(false)
    }

    fn check(parameters: &CvmnetParameters, machine: &Machine) -> Result<(), Missing> {
        parameters.check(machine)
    }

    fn expected(parameters: &CvmnetParameters) -> Option<Expected> {
        Some(by_the_clock(expected(parameters)))
    }

    fn longest(parameters: &CvmnetParameters) -> Duration {
        longest(parameters)
    }

    fn run(parameters: CvmnetParameters, agent: &mut Agent) -> Result<CvmnetFigures, TrialError> {
        let setup = parameters.setup(false);
        let outcome = session::run(&setup, || agent.start())?;
        Ok(CvmnetFigures::of(&outcome, &setup))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tare_lab::parameters::ParameterSet as _;
    use tare_lab::value::Parameters;

    fn with_row(row: &str) -> CvmnetParameters {
        let given = Parameters::from([("row".into(), row.into())]);
        CvmnetParameters::read(&given).unwrap()
    }

    #[test]
    fn every_row_of_the_published_tables_is_measured_by_an_experiment_of_its_figure() {
        let file = include_str!("../../../../../experiments/bifrost.toml");
        let experiments: Vec<&str> = file.split("[[experiment]]").skip(1).collect();
        for row in Row::ALL {
            let named = format!("  \"{}\",\n", row.name);
            let of = experiments.iter().filter(|text| text.contains(&named));
            let figures: Vec<_> = of.filter(|text| text.contains("Figure ")).collect();
            assert!(!figures.is_empty(), "{}", row.name);
            let driver = match row.is_breakdown() {
                true => "driver = \"cvmnet-breakdown\"",
                false => "driver = \"cvmnet\"",
            };
            assert!(figures.iter().all(|it| it.contains(driver)), "{}", row.name);
        }
        for figure in [2, 3, 6, 7, 8, 9, 10, 11, 12] {
            let title = format!("title  = \"Figure {figure}: ");
            assert_eq!(file.matches(&title).count(), 1, "{figure}");
        }
    }

    #[test]
    fn a_row_stands_for_its_variant_and_exits_and_is_of_one_driver() {
        for row in Row::ALL {
            let parameters = with_row(row.name);
            let setup = parameters.setup(row.is_breakdown());
            assert_eq!((setup.variant, setup.exits), (row.variant, row.exits));
            assert!(parameters.examine(row.is_breakdown()).is_ok());
            let mistake = parameters.examine(!row.is_breakdown()).unwrap_err();
            assert_eq!(mistake.parameter, "row", "{}", row.name);
        }
        let given = Parameters::from([
            ("variant".into(), "prpr".into()),
            ("exits".into(), "rif".into()),
        ]);
        let setup = CvmnetParameters::read(&given).unwrap().setup(false);
        assert_eq!(setup.variant, tare_cvmnet::variant::PRPR);
        assert_eq!(setup.exits, Exits::Rif);
    }
    #[test]
    fn a_trial_by_amount_has_time_for_all_of_it() {
        let by_amount = |amount: &str| {
            let given = Parameters::from([
                ("until".into(), "amount".into()),
                ("amount".into(), amount.into()),
            ]);
            let parameters = CvmnetParameters::read(&given).unwrap();
            (expected(&parameters), longest(&parameters))
        };
        let (expected, longest) = by_amount("32 GiB");
        assert!((20..60).contains(&expected.as_secs()), "{expected:?}");
        assert!(longest > 10 * expected, "{longest:?}");
        assert!(by_amount("64 MiB").1 < Duration::from_secs(60));
    }
}
