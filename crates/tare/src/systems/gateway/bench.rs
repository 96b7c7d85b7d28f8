//! `tare gateway bench`: packets through two gateways in this process, as fast as possible.

use std::process::ExitCode;
use std::sync::Barrier;
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

use anyhow::{anyhow, bail};
use indicatif::{HumanCount, ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::json;
use tare_gateway::dataplane::SequenceMode;
use tare_gateway::tools::bench::{Bench, Done, Setup, Subject};
use tare_packet::imix::PacketSize;

use crate::terminal;

/// Arguments of `tare gateway bench`.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  tare gateway bench IMIX 10e6 1                ten million packets of the Internet mix, one route
  tare gateway bench 60 10e6 1 1,2              short packets, by workers on CPUs 1 and 2
  tare gateway bench 60 10e6 10000              10,000 routes, each with keys of its own
  tare gateway bench 60 10e6 1 --only cipher    the cipher alone, for comparison")]
pub(crate) struct Args {
    /// Bytes of a packet with its Ethernet header, or IMIX
    #[arg(value_name = "SIZE", value_parser = |s: &str| s.parse::<PacketSize>())]
    size: PacketSize,
    /// Number of packets, such as 10e6
    #[arg(value_name = "PACKETS", value_parser = packets)]
    packets: u64,
    /// Number of routes, which the packets take in turn
    #[arg(value_name = "ROUTES", default_value = "1", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    routes: u32,
    /// CPUs to bind to, one worker each; without them there is one unpinned worker
    #[arg(value_name = "CPUS", value_delimiter = ',')]
    cpus: Vec<usize>,
    /// Bits of the AES key
    #[arg(long, default_value = "128", value_parser = ["128", "256"])]
    key_bits: String,
    /// Sequence numbers of 32 bits instead of 64
    #[arg(long)]
    no_esn: bool,
    /// Do only a part: `cipher` seals and opens, with no headers, routes and windows; `tester`
    /// makes and compares packets, with no gateway between
    #[arg(long, value_name = "PART", value_parser = part)]
    only: Option<Subject>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Args {
    fn subject(&self) -> Subject {
        self.only.unwrap_or(Subject::Gateway)
    }
}

/// A bar on standard error, where that is a terminal.
fn bar(packets: u64) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(packets), ProgressDrawTarget::stderr_with_hz(10));
    if let Ok(style) = ProgressStyle::with_template(
        "{elapsed_precise} [{wide_bar:.cyan/blue}] {human_pos} of {human_len} packets, {eta} left",
    ) {
        bar.set_style(style.progress_chars("━╸─"));
    }
    bar
}

fn part(text: &str) -> Result<Subject, String> {
    Subject::by_name(text)
        .filter(|&subject| subject != Subject::Gateway)
        .ok_or_else(|| "expected cipher or tester".into())
}

fn packets(text: &str) -> Result<u64, String> {
    let number: f64 = text.parse().map_err(|_| "expected a number such as 10e6")?;
    if number.fract() != 0.0 || !(1.0..=1e12).contains(&number) {
        return Err("expected a whole number from 1 to 1e12".into());
    }
    Ok(number as u64)
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let workers = args.cpus.len().max(1);
    let setup = Setup {
        sizes: args.size.period().to_vec(),
        routes: args.routes as usize,
        key_bytes: if args.key_bits == "256" { 32 } else { 16 },
        sequence_mode: if args.no_esn {
            SequenceMode::Plain
        } else {
            SequenceMode::Extended
        },
        workers,
    };
    let bench = Bench::new(&setup).map_err(|e| anyhow!(e))?;
    let counter = bar(args.packets);
    let outcome = run_workers(&bench, args, workers, &counter);
    counter.finish_and_clear();
    let outcome = outcome?;
    let report = Report {
        outcome,
        workers,
        args,
    };
    if args.json {
        terminal::print(&format!("{}\n", report.json()))?;
    } else {
        terminal::print(&report.text())?;
    }
    let wrong = args.packets - outcome.done.packets;
    if wrong > 0 {
        terminal::say(&format!("tare: {wrong} packets were lost or changed"));
        return Ok(ExitCode::from(1));
    }
    Ok(ExitCode::SUCCESS)
}

/// The work of all workers, from the moment at which all were ready, and the time of the slowest.
#[derive(Clone, Copy, Default)]
struct Outcome {
    done: Done,
    elapsed: Duration,
}

/// Packets between two updates of the bar.
const STEP: u64 = 1 << 16;

fn run_workers(
    bench: &Bench,
    args: &Args,
    workers: usize,
    counter: &ProgressBar,
) -> anyhow::Result<Outcome> {
    let ready = &Barrier::new(workers);
    let work = |worker: usize| -> anyhow::Result<Outcome> {
        let bound = args.cpus.get(worker).map_or(Ok(()), |&cpu| bind(cpu));
        let step = bench.step(args.subject());
        // Also after an error, because the others wait at the barrier.
        ready.wait();
        bound?;
        let mut step = step.map_err(|e| anyhow!(e))?;
        let extra = u64::from((worker as u64) < args.packets % workers as u64);
        let mut left = args.packets / workers as u64 + extra;
        let mut outcome = Outcome::default();
        let start = Instant::now();
        while left > 0 {
            let n = left.min(STEP);
            let done = step(n).map_err(|e| anyhow!(e))?;
            outcome.done.packets += done.packets;
            outcome.done.bytes += done.bytes;
            left -= n;
            counter.inc(n);
        }
        outcome.elapsed = start.elapsed();
        Ok(outcome)
    };
    let work = &work;
    let outcomes: Vec<anyhow::Result<Outcome>> = std::thread::scope(|scope| {
        let spawn = |worker| scope.spawn(move || work(worker));
        let threads: Vec<_> = (0..workers).map(spawn).collect();
        let join = |thread: ScopedJoinHandle<'_, _>| {
            thread
                .join()
                .unwrap_or_else(|_| Err(anyhow!("a worker panicked")))
        };
        threads.into_iter().map(join).collect()
    });
    let mut all = Outcome::default();
    for outcome in outcomes {
        let outcome = outcome?;
        all.done.packets += outcome.done.packets;
        all.done.bytes += outcome.done.bytes;
        all.elapsed = all.elapsed.max(outcome.elapsed);
    }
    Ok(all)
}

fn bind(cpu: usize) -> anyhow::Result<()> {
    let mut set = rustix::thread::CpuSet::new();
    if cpu >= rustix::thread::CpuSet::MAX_CPU {
        bail!(
            "found CPU {cpu}, expected one below {}",
            rustix::thread::CpuSet::MAX_CPU
        );
    }
    set.set(cpu);
    rustix::thread::sched_setaffinity(None, &set)
        .map_err(|e| anyhow!("cannot bind to CPU {cpu}: {e}; `nproc` says how many there are"))
}

struct Report<'a> {
    outcome: Outcome,
    workers: usize,
    args: &'a Args,
}

impl Report<'_> {
    fn seconds(&self) -> f64 {
        self.outcome
            .elapsed
            .max(Duration::from_nanos(1))
            .as_secs_f64()
    }

    fn mpps(&self) -> f64 {
        self.outcome.done.packets as f64 / self.seconds() / 1e6
    }

    fn gbps(&self) -> f64 {
        self.outcome.done.bytes as f64 * 8e-9 / self.seconds()
    }

    fn text(&self) -> String {
        let o = &self.outcome.done;
        let what = match self.args.subject() {
            Subject::Gateway => "Processed",
            Subject::Cipher => "Sealed and opened",
            Subject::Tester => "Made and compared",
        };
        format!(
            "{what} {:.1} million packets in {:.2} seconds ({} bytes; {:.2} Gbps)\n\
             Rate(Mpps):\t{:.3}\n\
             {} packets verified, {} wrong; {} worker(s), {} route(s), AES-{}-GCM, {}\n",
            o.packets as f64 / 1e6,
            self.seconds(),
            o.bytes,
            self.gbps(),
            self.mpps(),
            HumanCount(o.packets),
            self.args.packets - o.packets,
            self.workers,
            self.args.routes,
            self.args.key_bits,
            if self.args.no_esn {
                "32-bit sequence numbers"
            } else {
                "ESN"
            },
        )
    }

    fn json(&self) -> serde_json::Value {
        let o = &self.outcome.done;
        json!({
            "schema": 1,
            "size": self.args.size.to_string(),
            "routes": self.args.routes,
            "workers": self.workers,
            "key_bits": self.args.key_bits.parse::<u32>().ok(),
            "esn": !self.args.no_esn,
            "subject": self.args.subject().name(),
            "packets": o.packets,
            "bytes": o.bytes,
            "wrong": self.args.packets - o.packets,
            "seconds": self.seconds(),
            "mpps": self.mpps(),
            "gbps": self.gbps(),
        })
    }
}
