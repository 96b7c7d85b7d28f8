//! `tare guest breakdown`: the breakdown for people and programs.

use std::fmt::Write as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::{bail, Context as _};
use serde_json::{json, Value as Json};
use tare_guest::accelerator::try_kvm;
use tare_guest::initramfs::Initramfs;
use tare_guest::kernel::Kernel;
use tare_guest::probes::exits::SWITCH_CYCLES;
use tare_guest::probes::Category;
use tare_guest::Flavour;
use tare_lab::parameters::{Bytes, Choice as _};
use tare_lab::stats::median;

use super::{start, GuestBreakdown, Round, PARTS};
use crate::machine::Machine;
use crate::size::parse_bytes;
use crate::systems::guest::boot::bar;
use crate::systems::guest::driver::GuestParameters;
use crate::systems::guest::legs::Place;
use crate::systems::load::driver::{Generator, Server};
use crate::systems::namespace::ip;
use crate::systems::workload::Workload as _;
use crate::terminal;

#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    tare guest breakdown                            a plain guest, and one with bounce buffers\n  \
    tare guest breakdown --flavour swiotlb --vcpus 2 --rounds 3\n  \
    tare guest breakdown --server memcached --tls --size 262144\n  \
    tare guest breakdown --lines                    lines of the published breakdown\n  \
    tare guest breakdown --json | jq '.[].parts.swiotlb'\n\n\
    The server runs in the guest; this machine generates the load, first without probes and then \
    with them; root is required. A store gets one write for every ten reads, a tenth of which hit, \
    as published. Shares are relative to the time in which the guest had work. In an emulated \
    guest, counts are correct, but cycles are meaningless.")]
pub(crate) struct Args {
    /// Guests to measure, comma-separated: plain, swiotlb, sev-snp, tdx [default: plain,swiotlb]
    #[arg(long, hide_default_value = true, value_name = "NAMES", value_delimiter = ',', default_values = ["plain", "swiotlb"])]
    flavour: Vec<Flavour>,
    /// Number of measurements of each guest, with probes and without
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: u16,
    /// Number of virtual processors
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    vcpus: u16,
    /// Number of connections
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=4096))]
    connections: u16,
    /// Server to measure: nginx, memcached, redis-server
    #[arg(long, value_name = "NAME", default_value = "nginx", value_parser = server)]
    server: Server,
    /// Use TLS 1.3 between client and server
    #[arg(long)]
    tls: bool,
    /// Size of nginx's document, or of a value, in bytes
    #[arg(long, value_name = "BYTES", default_value = "615", value_parser = parse_bytes)]
    size: u64,
    /// Duration of each load, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 500, value_parser = clap::value_parser!(u64).range(10..=60_000))]
    duration: u64,
    /// Print lines in the format of the published breakdown instead of a table
    #[arg(long, conflicts_with = "json")]
    lines: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// The process is in a network namespace of its own
    #[arg(long, hide = true)]
    apart: bool,
}

/// The published mix of a store: the part of writes, and of reads that hit.
const STORE_MIX: (f64, f64) = (1.0 / 11.0, 0.1);
/// Keys of a store, so that an emulated guest has written them in seconds.
const KEYS: u64 = 100;

fn server(text: &str) -> Result<Server, String> {
    let found = Server::all().into_iter().find(|one| one.name() == text);
    found.ok_or_else(|| format!("found \"{text}\", expected nginx, memcached or redis-server"))
}

/// The rounds of one guest.
struct Measured {
    parameters: GuestParameters,
    rounds: Vec<Round>,
}

/// Runs `tare guest breakdown`.
///
/// # Errors
/// Something is missing, or a guest or its server fails.
pub(in crate::systems::guest) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let (sets, hits) = match args.server {
        Server::Nginx => (0.0, 1.0),
        _ => STORE_MIX,
    };
    let place = |flavour: &Flavour| {
        let mut places = Place::all().into_iter();
        places.find(|place| place.flavour() == Some(*flavour))
    };
    let guests = args
        .flavour
        .iter()
        .filter_map(place)
        .map(|place| GuestParameters {
            place,
            server: args.server,
            tls: args.tls,
            generator: Generator::Load,
            timed: false,
            vcpus: args.vcpus.into(),
            connections: args.connections.into(),
            size: Bytes(args.size),
            keys: KEYS,
            sets,
            hits,
            requests: 0,
            duration: Duration::from_millis(args.duration),
        });
    let guests: Vec<GuestParameters> = guests.collect();
    for parameters in &guests {
        GuestBreakdown::examine(parameters).map_err(|it| anyhow::anyhow!("{it}"))?;
        if let Err(missing) = GuestBreakdown::check(parameters, &Machine::This) {
            let remedy = missing.remedy.map_or(String::new(), |it| format!(": {it}"));
            bail!("{}{remedy}", missing.reason);
        }
    }
    let own = std::env::current_exe().context("the path of this program")?;
    if !args.apart {
        let mut again = Command::new("unshare");
        again.args(["--net", "--"]).arg(own);
        again.args(std::env::args_os().skip(1)).arg("--apart");
        return Err(again.exec()).context("unshare");
    }
    let progress = bar();
    progress.set_message("checking whether KVM boots a guest");
    let kernel = Kernel::installed()?;
    let image = Initramfs::new(&own, &kernel)?.in_memory()?;
    let reason = try_kvm(&kernel, image.path()).err();
    let mut found = Vec::new();
    for mut parameters in guests {
        parameters.timed = reason.is_none();
        let name = parameters.place.name();
        progress.set_message(format!("{name}: booting a guest"));
        let mut leg = start(&parameters).with_context(|| name)?;
        let mut rounds = Vec::new();
        for n in 1..=args.rounds {
            progress.set_message(format!("{name}: round {n} of {}", args.rounds));
            rounds.push(Round::of(&mut leg, &parameters).with_context(|| name)?);
        }
        found.push(Measured { parameters, rounds });
        // The next guest has the same bridge.
        drop(leg);
        ip(&["link", "delete", "bridge"])?;
        let _ = ip(&["link", "delete", "near"]);
    }
    progress.finish_and_clear();
    let text = if args.json {
        let all: Vec<Json> = found.iter().map(|it| it.json(reason.as_deref())).collect();
        format!("{:#}\n", Json::Array(all))
    } else if args.lines {
        found.iter().map(Measured::published_lines).collect()
    } else {
        found.iter().map(Measured::table).collect()
    };
    terminal::print(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// The characters of a bar of all time with work.
const BAR: f64 = 60.0;

impl Measured {
    /// Returns the median of a figure over the rounds with its least and greatest; `None` if a
    /// round does not have it.
    fn over(&self, figure: impl Fn(&Round) -> Option<f64>) -> Option<[f64; 3]> {
        let values: Option<Vec<f64>> = self.rounds.iter().map(figure).collect();
        let mut values = values?;
        values.sort_by(f64::total_cmp);
        Some([median(&values)?, *values.first()?, *values.last()?])
    }

    fn share(&self, categories: &[Category]) -> Option<[f64; 3]> {
        self.over(|it| it.share(categories))
    }

    fn heading(&self) -> String {
        let it = &self.parameters;
        let (place, server, rounds) = (it.place.name(), it.server.name(), self.rounds.len());
        let (vcpus, connections) = (it.vcpus, it.connections);
        let emulated = "; emulated: counts are right, cycles mean nothing";
        let emulated = if it.timed { "" } else { emulated };
        let tls = if it.tls { " over TLS" } else { "" };
        format!(
            "{place}: {server}{tls}, vCPUs {vcpus}, connections {connections}, rounds \
             {rounds}{emulated}"
        )
    }

    fn table(&self) -> String {
        const MARKS: [char; PARTS.len()] = ['=', '#', '.', '+'];
        let (mut bar, mut rows, mut all) = (String::new(), Vec::new(), Vec::new());
        for ((part, categories), mark) in PARTS.into_iter().zip(MARKS) {
            let share = self.share(categories);
            let len = share.map_or(0.0, |[median, ..]| median * BAR);
            bar.extend(std::iter::repeat_n(mark, len.round() as usize));
            rows.push((format!("{mark} {part}"), share, None));
            all.extend_from_slice(categories);
            for category in categories.iter().filter(|_| categories.len() > 1) {
                let calls = |it: &Round| Some(it.recording.calls(*category)? as f64);
                let calls = self.over(|it| Some(calls(it)? / it.requests as f64));
                let name = format!("    {}", category.name());
                rows.push((name, self.share(&[*category]), calls));
            }
        }
        rows.push(("  sum".into(), self.share(&all), None));
        let (heading, titles) = (self.heading(), "share: median, range     calls per request");
        let mut text = format!("{heading}\n  {bar}\n{:<23}{titles}\n", "");
        for (name, share, calls) in rows {
            let shown = share.map_or("not measured".into(), percent);
            let calls = calls.map_or(String::new(), |[median, ..]| format!("{median:.2}"));
            let row = format!("  {name:<20} {shown:<24} {calls}");
            let _ = writeln!(text, "{}", row.trim_end());
        }
        if let Some(share) = self.over(Round::exit_share) {
            let _ = writeln!(text, "  exits, inside of these parts: {}", percent(share));
        }
        let probes = self.rounds[0].recording.probes.iter();
        let probes = probes.filter_map(|it| Some((it.function.as_str(), it.reason.as_ref()?)));
        let exits = self.rounds.iter().find_map(|it| it.all_exits().err());
        for (what, reason) in probes.chain(exits.iter().map(|reason| ("exits", reason))) {
            let _ = writeln!(text, "  not measured: {what}: {reason}");
        }
        let shown = |figure: Option<[f64; 3]>| figure.map_or("–".into(), percent);
        let idle = shown(self.over(|it| Some(it.idle())));
        let recorder = shown(self.over(|it| Some(it.of_whole(&[Category::Recorder]))));
        let accounted = shown(self.over(|it| Some(it.accounted())));
        let overhead = shown(self.over(|it| Some(it.overhead - 1.0)));
        let sum = |figure: fn(&Round) -> u64| self.rounds.iter().map(figure).sum::<u64>();
        let lost = sum(Round::lost);
        let missed = sum(|it| it.recording.missed);
        text += &format!(
            "  of all time: idle {idle}; the recorder {recorder}; accounted for {accounted}\n  \
             probes add to a request's time: {overhead}\n  \
             lost events: {lost}; calls without a time of their own: {missed}\n\n"
        );
        text
    }

    /// Writes the lines of the published breakdown, percentages rounded down as there. Cycles of
    /// exits have a modelled world switch, as there: `cycle` that of a VM, `cycle1` that of a
    /// confidential one.
    fn published_lines(&self) -> String {
        let mut text = format!("# {}\n", self.heading());
        for (n, round) in self.rounds.iter().enumerate() {
            let cpus = &round.recording.cpus;
            let whole = cpus.iter().map(|cpu| cpu.whole).max().unwrap_or(0).max(1);
            let percent = |cycles: u64| u128::from(cycles) * 100 / u128::from(whole);
            let _ = writeln!(text, "# round {}", n + 1);
            let exits = round.all_exits();
            if let Err(reason) = &exits {
                let _ = writeln!(text, "# vcpu: not available: {reason}");
            }
            let vcpus = exits.iter().flat_map(|exits| &exits.vcpus);
            for (vcpu, reasons) in vcpus {
                for (reason, exit) in reasons {
                    let number = exit.number.map(|it| format!("{it:#x}"));
                    let shown = number.unwrap_or(reason.replace(' ', "_"));
                    let [low, high] = SWITCH_CYCLES.map(|cost| exit.cycles + exit.count * cost);
                    let [of_low, of_high] = [low, high].map(percent);
                    let head = format!("vcpu {vcpu} reason {shown} cnt {}", exit.count);
                    let low = format!("cycle {low} percent {of_low}");
                    let _ = writeln!(text, "{head} {low}, cycle1 {high}, percent {of_high}");
                }
            }
            let _ = writeln!(text, "Total {whole} cycles");
            for (cpu, times) in cpus.iter().enumerate() {
                let known = Category::ALL.into_iter().filter(|it| round.is_known(*it));
                for category in known {
                    let hits = round.recording.by_cpu(category);
                    let count = hits.map_or(String::new(), |hits| format!(" cnt {}", hits[cpu]));
                    let (name, cycles) = (category.name(), times.cycles[category as usize]);
                    let head = format!("cpu {cpu} {name}{count} cycles {cycles}");
                    let _ = writeln!(text, "{head} percent {}", percent(cycles));
                }
            }
        }
        text
    }

    fn json(&self, reason: Option<&str>) -> Json {
        let figure = |figure: Option<[f64; 3]>| {
            figure.map(|[median, least, most]| json!({"median": median, "min": least, "max": most}))
        };
        let parts = PARTS.map(|(name, all)| (name.to_owned(), json!(figure(self.share(all)))));
        let rounds = self.rounds.iter().map(|round| {
            let exits = round.exits.as_ref().map(|exits| json!(exits));
            json!({
                "requests": round.requests,
                "busy_cycles": round.recording.busy(),
                "accounted": round.accounted(),
                "overhead": round.overhead,
                "miscounted": round.miscounted(),
                "recording": round.recording,
                "exits": exits.unwrap_or_else(|reason| json!({"not_available": reason})),
            })
        });
        json!({
            "place": self.parameters.place.name(),
            "vcpus": self.parameters.vcpus,
            "connections": self.parameters.connections,
            "server": self.parameters.server.name(),
            "tls": self.parameters.tls,
            "size_bytes": self.parameters.size.0,
            "emulated": !self.parameters.timed,
            "reason": reason,
            "parts": serde_json::Map::from_iter(parts),
            "exits": figure(self.over(Round::exit_share)),
            "idle": figure(self.over(|it| Some(it.idle()))),
            "overhead": figure(self.over(|it| Some(it.overhead))),
            "rounds": rounds.collect::<Vec<Json>>(),
        })
    }
}

fn percent(shares: [f64; 3]) -> String {
    let [median, least, most] = shares.map(|share| 100.0 * share);
    format!("{median:.1} % [{least:.1}, {most:.1}]")
}
