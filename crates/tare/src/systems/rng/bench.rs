//! `tare rng bench`: the speed of a method on this machine, beside the bare instruction.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use serde_json::{json, Value};
use tare_lab::unit::Unit;

use super::method::Method;
use super::progress::Bar;
use super::retry::Retry;
use super::workload::{self, Work, Workload};
use crate::terminal;

/// Bytes of a number: a quadword, as in librdrand.
const NUMBER_BYTES: u64 = 8;
/// The part of the duration that warms up before it.
const WARM_UP: f64 = 0.1;
const WARM_UP_MAX: Duration = Duration::from_millis(300);
/// The limit: no method gets numbers out of RDRAND faster.
const LIMIT: Method = Method::Bare64;

#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    tare rng bench                     2 threads, 3 s, 2 repeats, 2048 numbers per call, as librdrand\n  \
    tare rng bench -m reseed_skip -t 1\n  \
    tare rng bench -c 1 -r 5 -d 0.5    one number per call\n\n\
    Threads run independently, without a barrier between calls, which would be measured too. Each \
    repeat measures the method and the bare instruction loop in turn. Wall is the throughput that \
    a program gets; CPU is bytes per second of processor time, which excludes the time that other \
    programs on the machine take.")]
pub(crate) struct Args {
    /// Method to measure
    #[arg(short, long, default_value = "get_bytes", value_parser = super::any_method())]
    method: Method,
    /// Number of threads, each with its own generator
    #[arg(short, long, visible_alias = "thread", value_name = "COUNT", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: u16,
    /// 64-bit numbers per call
    #[arg(short, long, value_name = "COUNT", default_value_t = 2048, value_parser = clap::value_parser!(u32).range(1..=1 << 24))]
    chunk_size: u32,
    /// Seconds per repeat, more than 0
    #[arg(short, long, value_name = "SECONDS", default_value = "3", value_parser = seconds)]
    duration: Duration,
    /// Number of repeats; the median is shown
    #[arg(short, long, visible_alias = "repetition", value_name = "COUNT", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..))]
    repeats: u16,
    /// Instead of a duration: 64-bit numbers per repeat, for all threads together, rounded up to
    /// whole calls
    #[arg(short, long, value_name = "COUNT", conflicts_with = "duration", value_parser = clap::value_parser!(u64).range(1..))]
    numbers: Option<u64>,
    #[command(flatten)]
    retry: Retry,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

fn seconds(text: &str) -> Result<Duration, String> {
    super::seconds(text, 86_400.0)
}

impl Args {
    fn workload(&self, method: Method) -> Workload {
        let threads = u64::from(self.threads);
        let a_round = u64::from(self.chunk_size) * threads;
        // With a count, the time depends on the method.
        let (duration, calls_max) = match self.numbers {
            Some(numbers) => (Duration::MAX, Some(numbers.div_ceil(a_round))),
            None => (self.duration, None),
        };
        Workload {
            method,
            retry: self.retry,
            chunk: self.chunk_size as usize * NUMBER_BYTES as usize,
            offset: 0,
            threads: self.threads.into(),
            duration,
            calls_max,
            warm_up: self.duration.mul_f64(WARM_UP).min(WARM_UP_MAX),
            in_step: false,
        }
    }
}

/// One method's repeats.
struct Series {
    method: Method,
    repeats: Vec<Work>,
}

impl Series {
    fn median(&self, figure: impl Fn(&Work) -> f64) -> f64 {
        median(self.repeats.iter().map(figure).collect())
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => values[middle],
        _ => (values[middle - 1] + values[middle]) / 2.0,
    }
}

/// Measures and prints.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    terminal::need_output()?;
    let mut methods = vec![args.method];
    if args.method != LIMIT {
        methods.push(LIMIT);
    }
    let mut all: Vec<Series> = methods
        .into_iter()
        .map(|method| Series {
            method,
            repeats: Vec::new(),
        })
        .collect();
    measure(args, &mut all)?;
    if args.json {
        terminal::print(&terminal::json_pretty(&as_json(args, &all))?)?;
    } else {
        terminal::print(&terminal::fitted(&as_text(args, &all, terminal::width())))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Fills the series, one repeat of each in turn, so that a change of the machine's speed affects
/// all of them.
fn measure(args: &Args, all: &mut [Series]) -> anyhow::Result<()> {
    // With a count the time is unknown before the first repeat is over.
    let one = args.workload(LIMIT);
    let known = args.numbers.is_none().then(|| one.warm_up + one.duration);
    let mut expected = vec![known.unwrap_or_default(); all.len()];
    let repeats = u32::from(args.repeats);
    let total = |expected: &[Duration]| expected.iter().sum::<Duration>() * repeats;
    let mut bar = Bar::of_time(known.map(|_| total(&expected)));
    let mut done = Duration::ZERO;
    for repeat in 1..=repeats {
        for (series, expected) in all.iter_mut().zip(&mut expected) {
            bar.message(&format!("{}, {repeat} of {repeats}", series.method.name()));
            let workload = args.workload(series.method);
            let from = Instant::now();
            let work = bar.during(done, *expected, || workload::run(&workload, || Ok(())));
            if known.is_none() {
                *expected = from.elapsed();
            }
            done += *expected;
            series.repeats.push(work.inspect_err(|_| bar.finish())?);
        }
        if repeat == 1 && known.is_none() {
            bar.finish();
            bar = Bar::of_time(Some(total(&expected)));
        }
    }
    bar.finish();
    Ok(())
}

fn as_json(args: &Args, all: &[Series]) -> Value {
    let work = |work: &Work| {
        json!({
            "bytes": work.bytes,
            "calls": work.operations,
            "draws": work.draws,
            "underflows": work.underflows,
            "wall_ns": work.wall.as_nanos() as u64,
            "cpu_ns": work.cpu.as_nanos() as u64,
            "throughput": work.throughput(),
            "cpu_throughput": work.cpu_throughput(),
        })
    };
    let series = |series: &Series| {
        json!({
            "method": series.method.name(),
            "median": {
                "throughput": series.median(Work::throughput),
                "cpu_throughput": series.median(Work::cpu_throughput),
            },
            "repeats": series.repeats.iter().map(work).collect::<Vec<_>>(),
        })
    };
    json!({
        "schema": 1,
        "threads": args.threads,
        "chunk_bytes": u64::from(args.chunk_size) * NUMBER_BYTES,
        "unit": Unit::BytesPerSecond.spelling(),
        "better": "higher",
        "cpu_of_bare": of_bare(all),
        "series": all.iter().map(series).collect::<Vec<_>>(),
    })
}

/// The method's share of the limit in processor time: the median of the repeats' own ratios.
fn of_bare(all: &[Series]) -> Option<f64> {
    let [method, bare] = all else { return None };
    let pairs = method.repeats.iter().zip(&bare.repeats);
    Some(median(
        pairs
            .map(|(a, b)| a.cpu_throughput() / b.cpu_throughput())
            .collect(),
    ))
}

/// The table in at most `width` columns, if that is 59 or more, and lines below it.
fn as_text(args: &Args, all: &[Series], width: usize) -> String {
    let threads = match args.threads {
        1 => "1 thread".into(),
        threads => format!("{threads} threads"),
    };
    let each = match args.numbers {
        Some(numbers) => format!("{numbers} numbers"),
        None => format!("{} s", args.duration.as_secs_f64()),
    };
    let mut text = format!(
        "{threads}, {} numbers of 64 bits per call, {each} per repeat\n\n",
        args.chunk_size
    );
    let [names, repeats, rates, counts] = match width {
        84.. => [18, 7, 14, 12],
        _ => [17, 6, 11, 10],
    };
    // The same rate in the other unit is the least of the columns.
    let has_both_units = width >= 71;
    let mut line = |name: &str, repeat: &str, wall: [&str; 2], cpu: &str, underflows: &str| {
        text.push_str(&format!(
            "{name:names$} {repeat:repeats$} {:>rates$}",
            wall[0]
        ));
        if has_both_units {
            text.push_str(&format!(" {:>rates$}", wall[1]));
        }
        text.push_str(&format!(" {cpu:>rates$} {underflows:>counts$}\n"));
    };
    line("method", "repeat", ["wall"; 2], "CPU", "underflows");
    let rate = |unit: Unit, bytes_per_second: f64| unit.show(bytes_per_second / unit.scale());
    let mut row = |name: &str, repeat: &str, wall: f64, cpu: f64, underflows: &str| {
        let [binary, decimal] = [Unit::MebibytesPerSecond, Unit::MegabytesPerSecond];
        let wall = [binary, decimal].map(|unit| rate(unit, wall));
        let cpu = rate(binary, cpu);
        line(name, repeat, [&wall[0], &wall[1]], &cpu, underflows);
    };
    for series in all {
        let name = series.method.name();
        for (i, work) in series.repeats.iter().enumerate() {
            // Of a method that does not count its draws, the underflows are unknown, not 0.
            let underflows = if work.draws > 0 {
                work.underflows.to_string()
            } else {
                "-".into()
            };
            let repeat = (i + 1).to_string();
            row(
                name,
                &repeat,
                work.throughput(),
                work.cpu_throughput(),
                &underflows,
            );
        }
        row(
            name,
            "median",
            series.median(Work::throughput),
            series.median(Work::cpu_throughput),
            "",
        );
    }
    text.push_str("\nwall: bytes per second of wall time; CPU: per second of processor time, summed over the threads\n");
    if let (Some(share), Some(series)) = (of_bare(all), all.first()) {
        let name = series.method.name();
        text.push_str(&format!("{name} reaches {share:.4} of the throughput of the bare instruction loop, in processor time\n"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_an_even_number_lies_between_the_middle_two() {
        assert_eq!(median(vec![3.0, 1.0]), 2.0);
        assert_eq!(median(vec![3.0, 1.0, 10.0]), 3.0);
        assert!(median(Vec::new()).is_nan());
    }
}
