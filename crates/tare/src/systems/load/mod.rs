//! `tare load`: requests to a server, and the latencies of its responses.

mod report;
mod tls;
mod url;

use std::net::{SocketAddr, ToSocketAddrs as _};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure, Context as _};
use clap::{Args, Subcommand, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};
use signal_hook::consts::{SIGINT, SIGTERM};
use tare_load::protocol::{
    Http, MemcachedBinary, MemcachedMeta, MemcachedText, Protocol, Resp, RespVersion,
};
use tare_load::{run as run_trial, KeyPattern, Options, Pace, Record, Target, ValueLen, Workload};

use crate::{systems, terminal};
use tls::TlsArgs;
use url::Url;

/// The exit status of a trial whose latencies are not those of the server.
const INVALID: u8 = 1;
/// The conventional exit status of a program that SIGINT ended.
const INTERRUPTED: u8 = 130;

/// A bar for less than this would only flicker.
const BAR_AFTER: Duration = Duration::from_secs(2);

/// Requests in flight per connection while keys are written before a trial.
const FILL_PIPELINE: usize = 16;

/// The subcommands of `tare load`.
#[derive(Subcommand)]
pub(crate) enum Command {
    /// Ask an HTTP server for resources
    Http(Box<HttpArgs>),
    /// Read and write keys of a memcached server
    Memcached(Box<MemcachedArgs>),
    /// Read and write keys of a server that speaks RESP, such as Redis
    Resp(Box<RespArgs>),
}

/// The arguments of `tare load http`.
#[derive(Args)]
#[command(after_help = "Examples:\n  \
    tare load http http://127.0.0.1:8080/ -c 64 -d 10\n  \
    tare load http https://localhost/a https://localhost/b --rate 5000 --poisson --insecure\n\n\
    Without --rate the loop is closed: a request follows a response. With --rate, latency counts from the \
    time at which a request was to be sent.\n\n\
    Exit status: 0 done; 1 the generator fell behind, so the latencies are not the server's; 2 wrong usage \
    or it could not run; 130 interrupted.")]
pub(crate) struct HttpArgs {
    /// Resources to ask for, in turn: URLs of one server
    #[arg(required = true, value_name = "URL")]
    urls: Vec<Url>,
    /// A header field to send, such as 'Accept: text/html'
    #[arg(short = 'H', long = "header", value_name = "FIELD", value_parser = field)]
    headers: Vec<(String, String)>,
    #[command(flatten)]
    tls: TlsArgs,
    #[command(flatten)]
    trial: TrialArgs,
}

/// The arguments of `tare load memcached`.
#[derive(Args)]
#[command(after_help = "Examples:\n  \
    tare load memcached 127.0.0.1 --fill --keys 100k --value-len 100\n  \
    tare load memcached 127.0.0.1:11211 --protocol meta --ratio 1:10 --pattern zipf:0.99 --rate 20000")]
pub(crate) struct MemcachedArgs {
    /// The server: a host and, if it is not 11211, a port
    #[arg(value_name = "HOST[:PORT]")]
    server: String,
    /// The protocol
    #[arg(long, value_name = "NAME", default_value = "text")]
    protocol: MemcachedProtocol,
    #[command(flatten)]
    keys: KeyArgs,
    #[command(flatten)]
    tls: TlsArgs,
    #[command(flatten)]
    trial: TrialArgs,
}

/// The arguments of `tare load resp`.
#[derive(Args)]
#[command(after_help = "Examples:\n  \
    tare load resp 127.0.0.1 --fill --keys 100k --value-len 32-1024\n  \
    tare load resp 127.0.0.1:6379 -P 16 --ratio 1:1 --pattern uniform")]
pub(crate) struct RespArgs {
    /// The server: a host and, if it is not 6379, a port
    #[arg(value_name = "HOST[:PORT]")]
    server: String,
    /// The version of the protocol
    #[arg(long, value_name = "VERSION", default_value_t = 2, value_parser = clap::value_parser!(u8).range(2..=3))]
    resp: u8,
    #[command(flatten)]
    keys: KeyArgs,
    #[command(flatten)]
    tls: TlsArgs,
    #[command(flatten)]
    trial: TrialArgs,
}

/// A protocol of memcached.
#[derive(Clone, Copy, ValueEnum)]
enum MemcachedProtocol {
    /// get and set
    Text,
    /// mg and ms
    Meta,
    /// The binary protocol
    Binary,
}

/// Options of every trial.
#[derive(Args)]
struct TrialArgs {
    /// Connections
    #[arg(short, long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    connections: u32,
    /// Threads, which share the connections
    #[arg(short, long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    threads: u32,
    /// Processors to pin the threads to, in turn
    #[arg(long, value_name = "CPUS", value_delimiter = ',')]
    cpu: Vec<usize>,
    /// Seconds that are measured
    #[arg(short, long, value_name = "SECONDS", default_value = "10", value_parser = seconds)]
    duration: Duration,
    /// Seconds before, which are not
    #[arg(short, long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    warm_up: Duration,
    /// Requests per second, sent when they are due [default: a closed loop]
    #[arg(short, long, value_name = "RATE", value_parser = rate)]
    rate: Option<f64>,
    /// Exponential gaps between requests, not equal ones
    #[arg(long, requires = "rate")]
    poisson: bool,
    /// Requests in flight per connection
    #[arg(short = 'P', long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pipeline: u32,
    /// Seconds that a response may take
    #[arg(long, value_name = "SECONDS", default_value = "5", value_parser = seconds)]
    timeout: Duration,
    /// Seed of what is drawn at random [default: a new one]
    #[arg(long, value_name = "SEED")]
    seed: Option<u64>,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// Options of key-value stores.
#[derive(Args)]
struct KeyArgs {
    /// Writes and reads
    #[arg(long, value_name = "SET:GET", default_value = "0:1", value_parser = ratio)]
    ratio: f64,
    /// Keys in use
    #[arg(long, value_name = "N", default_value = "10k", value_parser = count)]
    keys: u64,
    /// Use of the keys: sequential, uniform, zipf, or zipf:EXPONENT
    #[arg(long, value_name = "PATTERN", default_value = "uniform", value_parser = pattern)]
    pattern: KeyPattern,
    /// Bytes of a value: 32, a range 32-1024, or lengths with weights 32:9,1024:1
    #[arg(long, value_name = "BYTES", default_value = "32")]
    value_len: ValueLen,
    /// Share of the reads that ask for keys in use; the others miss
    #[arg(long, value_name = "SHARE", default_value_t = 1.0, value_parser = share)]
    hits: f64,
    /// Write every key before the trial
    #[arg(long)]
    fill: bool,
}

/// Runs the command.
///
/// # Errors
/// The reason why it could not be done, in words.
pub(crate) fn run(command: &Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Http(args) => {
            let first = &args.urls[0];
            for url in &args.urls {
                ensure!(
                    url.server() == first.server(),
                    "found {url} beside {first}, expected URLs of one server"
                );
            }
            let paths: Vec<String> = args.urls.iter().map(|url| url.path.clone()).collect();
            let http = Http::new(&first.authority, &paths, &args.headers)?;
            let target = target(
                &first.host,
                first.port,
                first.is_tls || args.tls.tls,
                &args.tls,
            )?;
            let workload = Workload {
                keys: paths.len() as u64,
                ..Workload::default()
            };
            drive(&target, &http, &args.trial, workload, false)
        }
        Command::Memcached(args) => {
            let (host, port) = host_and_port(&args.server, 11211)?;
            let target = target(host, port, args.tls.tls, &args.tls)?;
            let (trial, keys) = (&args.trial, &args.keys);
            match args.protocol {
                MemcachedProtocol::Text => keys.drive(&target, &MemcachedText::default(), trial),
                MemcachedProtocol::Meta => keys.drive(&target, &MemcachedMeta::default(), trial),
                MemcachedProtocol::Binary => {
                    keys.drive(&target, &MemcachedBinary::default(), trial)
                }
            }
        }
        Command::Resp(args) => {
            let (host, port) = host_and_port(&args.server, 6379)?;
            let target = target(host, port, args.tls.tls, &args.tls)?;
            let version = match args.resp {
                2 => RespVersion::Two,
                _ => RespVersion::Three,
            };
            args.keys.drive(&target, &Resp::new(version), &args.trial)
        }
    }
}

impl KeyArgs {
    fn drive<P: Protocol + Clone + Sync>(
        &self,
        target: &Target,
        protocol: &P,
        trial: &TrialArgs,
    ) -> anyhow::Result<ExitCode> {
        let workload = Workload {
            set_share: self.ratio,
            keys: self.keys,
            pattern: self.pattern,
            value_len: self.value_len.clone(),
            hit_share: self.hits,
        };
        drive(target, protocol, trial, workload, self.fill)
    }
}

/// Writes the keys if asked, runs the trial and reports it.
fn drive<P: Protocol + Clone + Sync>(
    target: &Target,
    protocol: &P,
    args: &TrialArgs,
    workload: Workload,
    fill: bool,
) -> anyhow::Result<ExitCode> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        // A second signal ends the program as it would without this.
        signal_hook::flag::register_conditional_default(signal, Arc::clone(&stop))
            .context("signals")?;
        signal_hook::flag::register(signal, Arc::clone(&stop)).context("signals")?;
    }
    ensure!(
        args.connections >= args.threads,
        "--connections: found {} for {} threads, expected at least one for each",
        args.connections,
        args.threads
    );
    let options = Options {
        connections: args.connections as usize,
        threads: args.threads as usize,
        cpus: args.cpu.clone(),
        pipeline: args.pipeline as usize,
        pace: match (args.rate, args.poisson) {
            (None, _) => Pace::Closed,
            (Some(rate), false) => Pace::Constant(rate),
            (Some(rate), true) => Pace::Poisson(rate),
        },
        workload,
        warm_up: args.warm_up,
        duration: args.duration,
        requests: None,
        timeout: args.timeout,
        seed: args.seed.map_or_else(systems::system_random, Ok)?,
    };
    if fill {
        write_keys(target, protocol, &options, &stop)?;
    }
    let expected = options.warm_up + options.duration;
    let record = with_bar(expected, || run_trial(target, protocol, &options, &stop))?;
    let invalid = record.is_invalid();
    terminal::print(&match args.json {
        true => report::json(target, &options, &record)?,
        false => report::text(target, &options, &record),
    })?;
    if stop.load(Ordering::Relaxed) {
        return Ok(ExitCode::from(INTERRUPTED));
    }
    if let Some(reason) = invalid {
        terminal::say(&format!("tare: invalid: {reason}"));
        return Ok(ExitCode::from(INVALID));
    }
    Ok(ExitCode::SUCCESS)
}

/// Writes every key once.
fn write_keys<P: Protocol + Clone + Sync>(
    target: &Target,
    protocol: &P,
    options: &Options,
    stop: &AtomicBool,
) -> anyhow::Result<()> {
    let fill = Options {
        pace: Pace::Closed,
        pipeline: FILL_PIPELINE,
        workload: Workload {
            set_share: 1.0,
            pattern: KeyPattern::Sequential,
            ..options.workload.clone()
        },
        warm_up: Duration::ZERO,
        duration: Duration::from_secs(3600),
        requests: Some(options.workload.keys),
        ..options.clone()
    };
    let Record {
        served,
        first_error,
        ..
    } = run_trial(target, protocol, &fill, stop)?;
    let keys = options.workload.keys;
    if served < keys && !stop.load(Ordering::Relaxed) {
        let error = first_error.unwrap_or_else(|| "no response".into());
        bail!("--fill: found {served} of {keys} keys written: {error}");
    }
    Ok(())
}

/// Does work that takes about `expected`, with a bar if that is long enough.
fn with_bar<R>(expected: Duration, work: impl FnOnce() -> R) -> R {
    if expected < BAR_AFTER || !terminal::is_drawable() {
        return work();
    }
    let bar = ProgressBar::new(expected.as_millis() as u64);
    if let Ok(style) =
        ProgressStyle::with_template("{elapsed_precise} [{wide_bar:.cyan/blue}] {percent}%")
    {
        bar.set_style(style.progress_chars("━╸─"));
    }
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let began = Instant::now();
            while !is_done.load(Ordering::Relaxed) {
                bar.set_position(began.elapsed().min(expected).as_millis() as u64);
                std::thread::park_timeout(Duration::from_millis(200));
            }
        });
        let result = work();
        is_done.store(true, Ordering::Relaxed);
        bar.finish_and_clear();
        result
    })
}

fn target(host: &str, port: u16, is_tls: bool, tls: &TlsArgs) -> anyhow::Result<Target> {
    let addresses = (host, port).to_socket_addrs();
    let mut addresses = addresses.with_context(|| format!("the address of {host}"))?;
    let address: SocketAddr = addresses
        .next()
        .with_context(|| format!("found no address of {host}"))?;
    let tls = if is_tls { Some(tls.of(host)?) } else { None };
    Ok(Target { address, tls })
}

/// The parts of `HOST`, `HOST:PORT`, `[ADDRESS]` or `[ADDRESS]:PORT`.
fn host_and_port(text: &str, default: u16) -> anyhow::Result<(&str, u16)> {
    let expected = || format!("found {text:?}, expected HOST or HOST:PORT");
    let (host, rest) = match text.strip_prefix('[') {
        Some(rest) => rest.split_once(']').with_context(expected)?,
        None => text.split_at(text.rfind(':').unwrap_or(text.len())),
    };
    let port = match rest.strip_prefix(':') {
        Some(port) => port
            .parse()
            .ok()
            .filter(|&port| port > 0)
            .with_context(expected)?,
        None => default,
    };
    let is_whole = rest.is_empty() || rest.starts_with(':');
    ensure!(is_whole && !host.is_empty(), expected());
    Ok((host, port))
}

fn field(text: &str) -> Result<(String, String), String> {
    let (name, value) = text
        .split_once(':')
        .ok_or_else(|| format!("found {text:?}, expected NAME: VALUE"))?;
    Ok((name.trim().into(), value.trim().into()))
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok();
    let seconds = seconds.filter(|seconds: &f64| (0.0..=86_400.0).contains(seconds));
    let expected = || format!("found {text:?}, expected seconds from 0 to 86400");
    seconds.map(Duration::from_secs_f64).ok_or_else(expected)
}

/// A number with k, M or G behind it, or none.
fn scaled(text: &str) -> Option<f64> {
    let (number, scale) = match text.char_indices().last()? {
        (at, 'k' | 'K') => (&text[..at], 1e3),
        (at, 'M') => (&text[..at], 1e6),
        (at, 'G') => (&text[..at], 1e9),
        _ => (text, 1.0),
    };
    Some(number.parse::<f64>().ok()? * scale)
}

fn rate(text: &str) -> Result<f64, String> {
    let rate = scaled(text).filter(|rate| (1e-3..=1e9).contains(rate));
    rate.ok_or_else(|| format!("found {text:?}, expected requests per second from 0.001 to 1e9"))
}

fn count(text: &str) -> Result<u64, String> {
    let count = scaled(text).filter(|count| (1.0..=1e12).contains(count) && count.fract() == 0.0);
    let expected = || format!("found {text:?}, expected a number from 1 to 1e12, such as 100k");
    count.map(|count| count as u64).ok_or_else(expected)
}

fn share(text: &str) -> Result<f64, String> {
    let share = text
        .parse()
        .ok()
        .filter(|share| (0.0..=1.0).contains(share));
    share.ok_or_else(|| format!("found {text:?}, expected a share from 0 to 1"))
}

/// The share of writes.
fn ratio(text: &str) -> Result<f64, String> {
    let parts = text.split_once(':').and_then(|(set, get)| {
        let (set, get): (u32, u32) = (set.parse().ok()?, get.parse().ok()?);
        let total = f64::from(set) + f64::from(get);
        (total > 0.0).then(|| f64::from(set) / total)
    });
    parts.ok_or_else(|| format!("found {text:?}, expected writes and reads, such as 1:10"))
}

fn pattern(text: &str) -> Result<KeyPattern, String> {
    let zipf = |text: &str| {
        let exponent = text.parse().ok();
        exponent.filter(|exponent: &f64| *exponent > 0.0 && *exponent <= 10.0)
    };
    match text {
        "sequential" => Some(KeyPattern::Sequential),
        "uniform" => Some(KeyPattern::Uniform),
        "zipf" => Some(KeyPattern::Zipf(0.99)),
        _ => text
            .strip_prefix("zipf:")
            .and_then(zipf)
            .map(KeyPattern::Zipf),
    }
    .ok_or_else(|| {
        format!(
            "found {text:?}, expected sequential, uniform, zipf, or zipf:EXPONENT with an exponent \
             above 0 up to 10"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_have_a_host_and_a_port() {
        for (text, host, port) in [
            ("a", "a", 7),
            ("a:1", "a", 1),
            ("127.0.0.1:80", "127.0.0.1", 80),
            ("[::1]", "::1", 7),
            ("[::1]:8", "::1", 8),
        ] {
            assert_eq!(host_and_port(text, 7).unwrap(), (host, port));
        }
        for wrong in ["", ":1", "a:", "a:x", "a:0", "a:65536", "[::1", "[::1]8"] {
            let error = host_and_port(wrong, 7).unwrap_err().to_string();
            assert!(
                error.contains("expected HOST or HOST:PORT"),
                "{wrong}: {error}"
            );
        }
    }

    #[test]
    fn numbers_are_read_with_their_scale_and_refused_in_one_line() {
        assert_eq!(count("100k"), Ok(100_000));
        assert_eq!(rate("2.5M"), Ok(2_500_000.0));
        assert_eq!(ratio("1:3"), Ok(0.25));
        assert_eq!(share("0.5"), Ok(0.5));
        assert_eq!(pattern("zipf:1.2"), Ok(KeyPattern::Zipf(1.2)));
        assert_eq!(field("A: b:c "), Ok(("A".into(), "b:c".into())));
        assert!(count("0").is_err() && count("1.5").is_err() && count("").is_err());
        assert!(rate("0").is_err() && rate("nan").is_err() && rate("1é").is_err());
        assert!(ratio("0:0").is_err() && ratio("1").is_err() && ratio("-1:2").is_err());
        assert!(share("1.1").is_err() && seconds("-1").is_err() && seconds("inf").is_err());
        assert!(pattern("zipf:0").is_err() && pattern("x").is_err() && field("x").is_err());
    }
}
