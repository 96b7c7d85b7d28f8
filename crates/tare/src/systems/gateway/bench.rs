//! `tare gateway bench`: packets through two gateways in this process, as fast as possible.

use std::process::ExitCode;
use std::sync::Barrier;
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

use anyhow::{anyhow, bail, Context as _};
use indicatif::{HumanCount, ProgressBar, ProgressDrawTarget, ProgressStyle};
use rustix::time::{clock_gettime, ClockId};
use serde_json::json;
use tare_gateway::dataplane::SequenceMode;
use tare_gateway::tools::bench::{Bench, Done, Setup, Subject, ROUTES_MAX};
use tare_packet::imix::PacketSize;

use crate::terminal;

/// Arguments of `tare gateway bench`.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  tare gateway bench IMIX 10e6 1                ten million packets of the Internet mix (IMIX)
  tare gateway bench 60 10e6 1 1,2              60-byte packets, workers on CPUs 1 and 2
  tare gateway bench 60 10e6 10000              10,000 routes, each with its own keys
  tare gateway bench 60 10e6 1 --only cipher    the cipher alone, for comparison
  tare gateway bench IMIX 10e6 1 --through port also through complete workers

Exit status: 0 every packet arrived unchanged; 1 some were lost or changed; 2 usage error, or
the benchmark could not run.")]
pub(crate) struct Args {
    /// Packet size in bytes, including the Ethernet header, or IMIX
    #[arg(value_name = "SIZE", value_parser = |s: &str| s.parse::<PacketSize>())]
    size: PacketSize,
    /// Number of packets, such as 10e6
    #[arg(value_name = "PACKETS", value_parser = packets)]
    packets: u64,
    /// Number of routes, used by the packets in turn
    #[arg(value_name = "ROUTES", default_value = "1", value_parser = clap::value_parser!(u32).range(1..=ROUTES_MAX as i64))]
    routes: u32,
    /// CPUs to bind to, comma-separated, one worker each; without them, there is one unpinned
    /// worker
    #[arg(value_name = "CPUS", value_delimiter = ',')]
    cpus: Vec<usize>,
    /// AES key size in bits
    #[arg(long, default_value = "128", value_parser = ["128", "256"])]
    key_bits: String,
    /// Use 32-bit sequence numbers instead of 64-bit ones
    #[arg(long)]
    no_esn: bool,
    /// Measure only one part: `cipher` seals and opens packets, without headers, routes and
    /// windows; `tester` generates and compares packets, without a gateway in between
    #[arg(long, value_name = "PART", value_parser = part)]
    only: Option<Subject>,
    /// Also send the packets through complete gateways, alternating with the data plane alone, and
    /// print the difference; all times are processor time. `port` adds the loop of the worker with
    /// ports in memory, its clock, negotiated keys and resolved next hops
    #[arg(long, value_name = "PARTS", value_parser = ["port"], conflicts_with = "only")]
    through: Option<String>,
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
        .filter(|subject| matches!(subject, Subject::Cipher | Subject::Tester))
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
    if args.through.is_some() && workers > 1 {
        bail!("--through port: found {workers} CPUs, expected one at most");
    }
    let bench = Bench::new(&setup).map_err(|e| anyhow!(e))?;
    let total = if args.through.is_some() { 2 } else { 1 };
    let counter = bar(total * args.packets);
    let outcome = match &args.through {
        None => run_workers(&bench, args, workers, &counter).map(|outcome| (outcome, None)),
        Some(_) => run_both(&bench, args, &counter),
    };
    counter.finish_and_clear();
    let (outcome, through) = outcome?;
    let report = Report {
        outcome,
        through,
        workers,
        args,
    };
    if args.json {
        terminal::print(&format!("{}\n", report.json()))?;
    } else {
        terminal::print(&report.text())?;
    }
    let done = through.map_or(0, |through| through.done.packets) + outcome.done.packets;
    let wrong = total * args.packets - done;
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

impl Outcome {
    /// Adds work, and the processor time that it takes.
    fn add(&mut self, work: impl FnOnce() -> anyhow::Result<Done>) -> anyhow::Result<()> {
        let start = clock_gettime(ClockId::ThreadCPUTime);
        let done = work()?;
        let elapsed = clock_gettime(ClockId::ThreadCPUTime) - start;
        self.elapsed += Duration::try_from(elapsed).context("the thread's clock")?;
        self.done.packets += done.packets;
        self.done.bytes += done.bytes;
        Ok(())
    }

    fn seconds(&self) -> f64 {
        self.elapsed.max(Duration::from_nanos(1)).as_secs_f64()
    }

    fn mpps(&self) -> f64 {
        self.done.packets as f64 / self.seconds() / 1e6
    }

    fn gbps(&self) -> f64 {
        self.done.bytes as f64 * 8e-9 / self.seconds()
    }

    /// Nanoseconds per packet; `None` if none came through.
    fn ns(&self) -> Option<f64> {
        let packets = self.done.packets;
        (packets > 0).then(|| self.seconds() * 1e9 / packets as f64)
    }
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

/// Runs the data plane alone and whole gateways in turn, and measures both in processor time of
/// this thread: the difference is to be that of their work, whatever else the machine does.
fn run_both(
    bench: &Bench,
    args: &Args,
    counter: &ProgressBar,
) -> anyhow::Result<(Outcome, Option<Outcome>)> {
    args.cpus.first().map_or(Ok(()), |&cpu| bind(cpu))?;
    let mut alone = bench.worker().map_err(|e| anyhow!(e))?;
    let mut through = bench.through().map_err(|e| anyhow!(e))?;
    let mut outcomes = [Outcome::default(); 2];
    let mut left = args.packets;
    while left > 0 {
        let n = left.min(STEP);
        outcomes[0].add(|| Ok(alone.run(n)))?;
        outcomes[1].add(|| through.run(n).map_err(|e| anyhow!(e)))?;
        left -= n;
        counter.inc(2 * n);
    }
    Ok((outcomes[0], Some(outcomes[1])))
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
        .map_err(|e| anyhow!("cannot bind to CPU {cpu}: {e}; `nproc` prints their number"))
}

struct Report<'a> {
    outcome: Outcome,
    /// The same packets through whole gateways.
    through: Option<Outcome>,
    workers: usize,
    args: &'a Args,
}

impl Report<'_> {
    /// Returns what whole gateways take longer than the data plane alone, in nanoseconds per
    /// packet.
    fn difference_ns(&self) -> Option<f64> {
        Some(self.through?.ns()? - self.outcome.ns()?)
    }

    fn text(&self) -> String {
        let o = &self.outcome.done;
        let what = match self.args.subject() {
            Subject::Gateway | Subject::Worker => "Processed",
            Subject::Cipher => "Sealed and opened",
            Subject::Tester => "Made and compared",
        };
        let through = self.through.map_or(String::new(), |through| {
            let difference = self.difference_ns().map_or(String::new(), |ns| {
                let rate = through.mpps() / self.outcome.mpps();
                format!("Difference:\t{ns:+.1} ns per packet; {rate:.3} of the rate\n")
            });
            format!(
                "Through ports (Mpps):\t{:.3}\n{difference}Times are processor time. {} packets verified through ports, {} wrong\n",
                through.mpps(),
                HumanCount(through.done.packets),
                self.args.packets - through.done.packets,
            )
        });
        format!(
            "{what} {:.1} million packets in {:.2} seconds ({} bytes; {:.2} Gbps)\n\
             Rate(Mpps):\t{:.3}\n\
             {} packets verified, {} wrong; {} worker(s), {} route(s), AES-{}-GCM, {}\n{through}",
            o.packets as f64 / 1e6,
            self.outcome.seconds(),
            o.bytes,
            self.outcome.gbps(),
            self.outcome.mpps(),
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
        let figures = |outcome: &Outcome| {
            json!({
                "packets": outcome.done.packets,
                "bytes": outcome.done.bytes,
                "wrong": self.args.packets - outcome.done.packets,
                "seconds": outcome.seconds(),
                "mpps": outcome.mpps(),
                "gbps": outcome.gbps(),
            })
        };
        let mut json = json!({
            "schema": 1,
            "size": self.args.size.to_string(),
            "routes": self.args.routes,
            "workers": self.workers,
            "key_bits": self.args.key_bits.parse::<u32>().ok(),
            "esn": !self.args.no_esn,
            "subject": self.args.subject().name(),
        });
        if let (Some(json), serde_json::Value::Object(mut figures)) =
            (json.as_object_mut(), figures(&self.outcome))
        {
            json.append(&mut figures);
        }
        if let Some(through) = &self.through {
            json["through_port"] = figures(through);
            json["difference_ns"] = json!(self.difference_ns());
            json["time"] = json!("processor");
        }
        json
    }
}
