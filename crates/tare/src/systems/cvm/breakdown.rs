//! The driver `cvmnet-breakdown` and `tare cvm breakdown`: the cycles of a guest by category.

use std::fmt::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{anyhow, Context as _};
use serde_json::{json, Value as Json};
use tare_cvmnet::breakdown::{Category, Totals};
use tare_cvmnet::host::AHEAD_MAX;
use tare_cvmnet::region::PAIRS_MAX;
use tare_cvmnet::ring::ExitCounts;
use tare_cvmnet::tls::Suites;
use tare_cvmnet::variant::{self, Exits, Variant};
use tare_lab::driver::{Expected, Missing, Mistake};
use tare_lab::figures;
use tare_lab::parameters::{Bytes, Choice as _};

use super::driver::{
    check_vcpus, examine_size, examine_vcpus, expected, longest, CvmnetParameters, ExitKind,
};
use super::session::{self, Outcome, Setup, Work};
use crate::agent::{Agent, TrialError};
use crate::completion;
use crate::machine::Machine;
use crate::size::parse_bytes;
use crate::systems::workload::{by_the_clock, Workload};
use crate::terminal;

/// The published names of the parts of a bar, and their categories.
const PARTS: [(&str, &[Category]); 5] = [
    ("exit", &[Category::Exit]),
    (
        "swiotlb",
        &[
            Category::BounceCopy,
            Category::SlotFind,
            Category::SlotRelease,
        ],
    ),
    (
        "packet",
        &[Category::PacketIn, Category::PacketOut, Category::Ring],
    ),
    ("tls", &[Category::Crypto]),
    ("application", &[Category::Application]),
];

figures! {
    /// The figures of a trial of `cvmnet-breakdown`.
    pub(crate) struct BreakdownFigures {
        metrics {
            /// cycles per byte of data, idle ones not counted
            cycles_per_byte: f64 [Count],
            /// cycles per byte of packet processing: packets in and out, the ring
            packet_cycles: f64 [Count],
            /// cycles per byte of the bounce buffer: copies, finding slots and giving them back
            swiotlb_cycles: f64 [Count],
            /// cycles per byte of TLS
            tls_cycles: f64 [Count],
            /// cycles per byte outside of all other categories
            application_cycles: f64 [Count],
            /// the share of simulated world switches in the cycles that are not idle
            exit_share: f64 [Ratio],
            /// the share of the bounce buffer
            swiotlb_share: f64 [Ratio],
            /// the share of packet processing
            packet_share: f64 [Ratio],
            /// the share of TLS and the application
            application_share: f64 [Ratio],
            /// the sum of the categories over the whole
            accounted: f64 [Ratio],
            /// the guest's processor time per byte with the counting over that without, measured
            /// one after the other
            overhead: f64 [Ratio],
            /// the part of the clock in which the guest was not idle
            guest_busy: f64 [Ratio],
        }
        counters {
            /// records of bulk data, requests over HTTPS, or turns of a set and ten gets
            operations,
            /// bytes of data in them
            bytes,
            /// bytes that the receiver compared with what was sent
            verified,
            /// connections with a byte that was not sent
            wrong,
            /// bytes that the guest copied through the bounce buffer
            bounced,
            /// exits to notify the host
            kicks,
            /// interrupts by the host
            interrupts,
            /// exits to wait for an interrupt
            halts,
        }
    }
}

/// A breakdown, and the same work without it.
struct Measured {
    totals: Totals,
    counted: Outcome,
    /// The guest's processor time per byte with the counting over that without.
    overhead: f64,
}

impl Measured {
    fn of(setup: &Setup, agent: Option<&mut Agent>) -> anyhow::Result<Measured> {
        let plain = Setup {
            has_breakdown: false,
            ..*setup
        };
        let plain = session::run(&plain, || Ok(()))?;
        let counted = session::run(setup, || agent.map_or(Ok(()), |agent| agent.start()))?;
        let totals = counted.breakdown().context("a breakdown")?;
        if busy(&totals) == 0 {
            return Err(anyhow!("the guest had nothing to do"));
        }
        let per_byte = |outcome: &Outcome| outcome.busy / outcome.data as f64;
        Ok(Measured {
            totals,
            overhead: per_byte(&counted) / per_byte(&plain),
            counted,
        })
    }

    fn share(&self, categories: &[Category]) -> f64 {
        self.totals.sum(categories) as f64 / busy(&self.totals) as f64
    }

    fn per_byte(&self, categories: &[Category]) -> f64 {
        self.totals.sum(categories) as f64 / self.counted.data as f64
    }

    fn accounted(&self) -> f64 {
        self.totals.sum(&Category::ALL) as f64 / self.totals.whole as f64
    }

    fn figures(&self) -> BreakdownFigures {
        let [exit, swiotlb, packet, tls, application] = PARTS.map(|(_, categories)| categories);
        let exits = self.counted.exits();
        let (outcome, busy) = (&self.counted, busy(&self.totals) as f64);
        BreakdownFigures {
            cycles_per_byte: busy / outcome.data as f64,
            packet_cycles: self.per_byte(packet),
            swiotlb_cycles: self.per_byte(swiotlb),
            tls_cycles: self.per_byte(tls),
            application_cycles: self.per_byte(application),
            exit_share: self.share(exit),
            swiotlb_share: self.share(swiotlb),
            packet_share: self.share(packet),
            application_share: self.share(tls) + self.share(application),
            accounted: self.accounted(),
            overhead: self.overhead,
            guest_busy: busy / self.totals.whole as f64,
            operations: outcome.operations,
            bytes: outcome.bytes,
            verified: outcome.verified,
            wrong: outcome.wrong,
            bounced: outcome.bounced,
            kicks: exits.kicks,
            interrupts: exits.interrupts,
            halts: exits.halts,
        }
    }

    /// Writes the lines of the published breakdown, for each processor of the guest. An exit has no
    /// cycles of its own here: they are those of the published costs alone.
    fn published_lines(&self) -> String {
        let mut lines = String::new();
        for (n, of) in self.counted.by_vcpu.iter().enumerate() {
            let totals = of.breakdown.unwrap_or_default();
            let whole = totals.whole.max(1);
            for (reason, _, count) in by_reason(&of.exits) {
                let (low, high) = (
                    count * variant::SWITCH_CYCLES[1],
                    count * variant::SWITCH_CYCLES[2],
                );
                let percent = |cycles: u64| cycles.saturating_mul(100) / whole;
                let _ = writeln!(
                    lines,
                    "vcpu {n} reason {reason} cnt {count} cycle {low} percent {}, cycle1 {high}, \
                     percent {}",
                    percent(low),
                    percent(high)
                );
            }
            lines += &totals.lines(n);
        }
        lines
    }

    fn json(&self, setup: &Setup) -> Json {
        let categories = Category::ALL.iter().map(|category| {
            let at = *category as usize;
            let (spans, cycles) = (self.totals.spans[at], self.totals.cycles[at]);
            let value = json!({
                "spans": spans,
                "cycles": cycles,
                "share_of_whole": self.totals.share(*category),
            });
            (category.name().to_owned(), value)
        });
        let parts = PARTS.map(|(name, categories)| {
            let value = json!({
                "share": self.share(categories),
                "cycles_per_byte": self.per_byte(categories),
            });
            (name.to_owned(), value)
        });
        let exits = by_reason(&self.counted.exits()).map(
            |(reason, about, count)| json!({"reason": reason, "about": about, "count": count}),
        );
        json!({
            "variant": setup.variant.name,
            "label": setup.variant.label,
            "work": setup.work.name(),
            "total_cycles": self.totals.whole,
            "busy_cycles": busy(&self.totals),
            "bytes": self.counted.data,
            "accounted": self.accounted(),
            "overhead": self.overhead,
            "switch_cycles": setup.switch_cycles,
            "parts": serde_json::Map::from_iter(parts),
            "categories": serde_json::Map::from_iter(categories),
            "exits": exits,
        })
    }
}

/// Returns the exits by their published reason.
fn by_reason(exits: &ExitCounts) -> [(&'static str, &'static str, u64); 3] {
    [
        ("0x60", "interrupt", exits.interrupts),
        ("0x78", "HLT", exits.halts),
        ("0x7b", "I/O port: a notification of the host", exits.kicks),
    ]
}

/// Returns the cycles that are not idle.
fn busy(totals: &Totals) -> u64 {
    totals.sum(&Category::ALL) - totals.sum(&[Category::Idle])
}

/// The driver `cvmnet-breakdown`.
pub(crate) struct CvmnetBreakdown;

impl Workload for CvmnetBreakdown {
    const NAME: &'static str = "cvmnet-breakdown";
    const ABOUT: &'static str =
        "the cycles of a confidential VM's guest by what they are spent on, by variant";
    type Parameters = CvmnetParameters;
    type Figures = BreakdownFigures;

    fn examine(parameters: &CvmnetParameters) -> Result<(), Mistake> {
        parameters.examine(true)
    }

    fn check(parameters: &CvmnetParameters, machine: &Machine) -> Result<(), Missing> {
        parameters.check(machine)
    }

    fn expected(parameters: &CvmnetParameters) -> Option<Expected> {
        Some(by_the_clock(expected(parameters) * 2))
    }

    fn longest(parameters: &CvmnetParameters) -> Duration {
        longest(parameters) * 2
    }

    fn run(
        parameters: CvmnetParameters,
        agent: &mut Agent,
    ) -> Result<BreakdownFigures, TrialError> {
        Ok(Measured::of(&parameters.setup(true), Some(agent))?.figures())
    }
}

#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    tare cvm breakdown                              memcached's protocol, five variants\n  \
    tare cvm breakdown --work receive --variant cvm,bifrost\n  \
    tare cvm breakdown --exits rif --switch-cycles 9500\n  \
    tare cvm breakdown --json | jq '.[].parts.packet'\n\n\
    The guest and its clients are two threads of this process; root is not required. Shares are \
    relative to the cycles in which the guest had work. World switches are modelled: this is not a \
    virtual machine. Every exit is counted, by reason; the category `exit` has fewer spans, \
    because simultaneous interrupts share one span and exits without cost have none.")]
pub(crate) struct Args {
    /// Variants to measure, comma-separated [default: baseline,cvm,zc,prpr,bifrost]
    #[arg(long, hide_default_value = true, value_name = "NAMES", value_delimiter = ',', value_parser = super::serve::variant,
        add = completion::one_of(&super::serve::VARIANTS),
          default_values = ["baseline", "cvm", "zc", "prpr", "bifrost"])]
    variant: Vec<Variant>,
    /// Workload of the guest: receive, send, https, memcached, redis
    #[arg(long, value_name = "WORK", default_value = "memcached", value_parser = work,
        add = completion::one_of(&WORKS))]
    work: Work,
    /// Size of a file or value, in bytes
    #[arg(long, value_name = "BYTES", default_value = "256Ki", value_parser = parse_bytes)]
    size: u64,
    /// Number of connections
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u64).range(1..=64))]
    connections: u64,
    /// Number of virtual processors of the guest; each uses two processors of this machine, one of
    /// them for its host
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=PAIRS_MAX as i64))]
    vcpus: u16,
    /// Type of exits of the simulated machine: each, rif, posted
    #[arg(long, value_name = "KIND", default_value = "each", value_parser = exits,
        add = completion::one_of(&super::serve::EXITS))]
    exits: ExitKind,
    /// Simulated cost of an exit, in cycles of the time stamp counter
    #[arg(long, value_name = "CYCLES", default_value_t = 0, value_parser = clap::value_parser!(u64).range(..=1_000_000))]
    switch_cycles: u64,
    /// Let the guest poll for work instead of waiting for interrupts
    #[arg(long)]
    busy: bool,
    /// Duration of the cycle count, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 400, value_parser = clap::value_parser!(u64).range(10..=60_000))]
    duration: u64,
    /// Print lines in the format of the published breakdown instead of bars
    #[arg(long, conflicts_with = "json")]
    lines: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The works that have a breakdown.
const WORKS: [&str; 5] = ["receive", "send", "https", "memcached", "redis"];

fn work(text: &str) -> Result<Work, String> {
    match WORKS.contains(&text) {
        true => choice(text),
        false => Err(format!(
            "found \"{text}\", expected one of {}",
            WORKS.join(", ")
        )),
    }
}

pub(super) fn exits(text: &str) -> Result<ExitKind, String> {
    choice(text)
}

fn choice<T: tare_lab::parameters::Choice>(text: &str) -> Result<T, String> {
    let names: Vec<&str> = T::all().iter().map(|one| one.name()).collect();
    let found = T::all().into_iter().find(|one| one.name() == text);
    found.ok_or_else(|| format!("found \"{text}\", expected one of {}", names.join(", ")))
}

/// Runs `tare cvm breakdown`.
///
/// # Errors
/// Something broke.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    for (n, variant) in args.variant.iter().enumerate() {
        if args.variant[..n].contains(variant) {
            let name = variant.name;
            return Err(anyhow!(
                "--variant: found {name} more than once, expected each variant once"
            ));
        }
    }
    examine_size(Bytes(args.size)).map_err(|mistake| anyhow!("{mistake}"))?;
    let vcpus = u64::from(args.vcpus);
    examine_vcpus(vcpus, args.connections).map_err(|mistake| anyhow!("{mistake}"))?;
    if let Err(missing) = check_vcpus(args.vcpus.into(), &Machine::This) {
        return Err(anyhow!("{}", missing.reason));
    }
    let mut found = Vec::new();
    for variant in &args.variant {
        let setup = Setup {
            variant: *variant,
            work: args.work,
            size: args.size as usize,
            connections: args.connections,
            buffer: 32 << 10,
            suites: Suites::Aes128,
            exits: args.exits.exits(),
            switch_cycles: args.switch_cycles,
            has_interrupts: !args.busy,
            duration: Duration::from_millis(args.duration),
            has_breakdown: true,
            vcpus: args.vcpus.into(),
            ahead: AHEAD_MAX,
            amount: 0,
            verify: 100,
        };
        let measured =
            Measured::of(&setup, None).with_context(|| format!("variant {}", variant.name))?;
        if args.lines {
            terminal::print(&format!("{}\n", heading(&setup)))?;
            terminal::print(&measured.published_lines())?;
        }
        found.push((setup, measured));
    }
    if args.json {
        let all: Vec<Json> = found
            .iter()
            .map(|(setup, measured)| measured.json(setup))
            .collect();
        terminal::print(&format!("{:#}\n", Json::Array(all)))?;
    } else if !args.lines {
        terminal::print(&bars(&found))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the variant with its published label, the exits and their cost, and the work.
fn heading(setup: &Setup) -> String {
    let label = match (setup.variant.label, setup.exits) {
        (Some("CVM"), Exits::Rif) => "CVM+RIF",
        (Some("CVM"), Exits::Posted) => "CVM+PI",
        (label, _) => label.unwrap_or("a control"),
    };
    let exits = match setup.exits {
        Exits::Each => "exits each",
        Exits::Rif => "exits by RIF",
        Exits::Posted => "posted interrupts",
    };
    format!(
        "{} ({label}), {}, {exits}, {} cycles a world switch",
        setup.variant.name,
        setup.work.name(),
        setup.switch_cycles
    )
}

/// The characters of a bar that stands for the longest time.
const BAR: f64 = 60.0;

/// Draws the parts of each variant as one bar; its length is its cycles per byte.
fn bars(found: &[(Setup, Measured)]) -> String {
    const MARKS: [char; PARTS.len()] = ['x', '=', '#', '.', '+'];
    let all = |measured: &Measured| busy(&measured.totals) as f64 / measured.counted.data as f64;
    let longest = found
        .iter()
        .map(|(_, measured)| all(measured))
        .fold(0.0, f64::max);
    let mut text = String::new();
    for (setup, measured) in found {
        let _ = writeln!(text, "{}", heading(setup));
        let _ = writeln!(
            text,
            "  {:.3} cycles per byte · busy {:.0} % · counting takes {:+.1} %",
            all(measured),
            100.0 * busy(&measured.totals) as f64 / measured.totals.whole as f64,
            100.0 * (measured.overhead - 1.0)
        );
        let (mut bar, mut shares) = (String::new(), Vec::new());
        let mut end = 0.0;
        for ((part, categories), mark) in PARTS.into_iter().zip(MARKS) {
            end += measured.per_byte(categories) / longest * BAR;
            let len = bar.chars().count();
            bar.extend(std::iter::repeat_n(
                mark,
                (end.round() as usize).saturating_sub(len),
            ));
            let share = 100.0 * measured.share(categories);
            shares.push(format!("{mark} {part} {share:.1} %"));
        }
        let _ = writeln!(text, "  {bar}");
        let _ = writeln!(text, "  {}", shares.join("  "));
        let exits = by_reason(&measured.counted.exits())
            .map(|(reason, about, count)| format!("{count} {reason} ({about})"));
        let _ = writeln!(text, "  exits: {}", exits.join(", "));
    }
    text.push_str(
        "Shares are of the cycles with work, and add up to 100 %. Exits cost what --switch-cycles \
         says: nothing unless given.\n",
    );
    text
}
