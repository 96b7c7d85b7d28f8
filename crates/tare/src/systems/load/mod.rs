//! `tare load`: requests to a server, and the latencies of its responses.

mod compare;
mod counts;
mod drive;
pub(super) mod driver;
mod find_max;
mod report;
mod tls;
mod url;
mod value;

use std::net::{SocketAddr, ToSocketAddrs as _};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{ensure, Context as _};
use clap::{Args, Subcommand, ValueEnum};
use tare_load::protocol::{
    Handshake, Http, MemcachedBinary, MemcachedMeta, MemcachedText, Protocol, Resp, RespVersion,
    Udp, Wire,
};
use tare_load::{KeyPattern, Target, TraceKind, ValueLen, Workload, DATAGRAM_VALUE_MAX};

use counts::Counter;
use drive::Load;
use find_max::Objective;
use tls::TlsArgs;
use url::Url;
use value::{count, field, host_and_port, pattern, rate, ratio, seconds, share, value_len};

/// The exit status of a trial whose latencies are not those of the server.
const INVALID: u8 = 1;
/// The conventional exit status of a program that SIGINT ended.
const INTERRUPTED: u8 = 130;

/// The subcommands of `tare load`.
#[derive(Subcommand)]
pub(crate) enum Command {
    /// Request resources from an HTTP server
    Http(Box<HttpArgs>),
    /// Read and write keys on a memcached server
    Memcached(Box<MemcachedArgs>),
    /// Read and write keys on a server that speaks RESP, such as Redis
    Resp(Box<RespArgs>),
    /// Make TLS handshakes with a server, or fetch a file over TLS
    Tls(Box<TlsLoadArgs>),
    /// Compare the results of two trials
    Compare(compare::Args),
}

/// The arguments of `tare load http`.
#[derive(Args)]
#[command(after_help = "Examples:\n  \
    tare load http http://127.0.0.1:8080/ -c 64 -d 10\n  \
    tare load http https://localhost/a https://localhost/b --rate 5000 --poisson --insecure\n  \
    tare load http http://127.0.0.1:8080/ --find-max 'p99 < 2 ms' -d 2\n  \
    tare load http http://127.0.0.1:8080/ --server-counts http://127.0.0.1:8080/status\n  \
    tare load http http://127.0.0.1:8080/ --trace requests.txt --hlog latencies.hlog\n\n\
    Without --rate, the loop is closed: each request follows a response. With --rate, latency is \
    measured from the time at which the request was due.\n\n\
    Exit status: 0 completed; 1 the generator fell behind, so that the latencies are not those of \
    the server, or the server counted different requests than were sent, or no rate meets the \
    objective; 2 usage error, or the load could not run; 130 interrupted.")]
pub(crate) struct HttpArgs {
    /// URLs to request in turn, all of one server
    #[arg(required = true, value_name = "URL")]
    urls: Vec<Url>,
    /// Header field to send, such as 'Accept: text/html'
    #[arg(short = 'H', long = "header", value_name = "FIELD", value_parser = field)]
    headers: Vec<(String, String)>,
    /// Also count the requests on the server: a URL of nginx's stub_status, or the path of an
    /// access log
    #[arg(long, value_name = "URL_OR_FILE")]
    server_counts: Option<String>,
    /// Use TLS, as with https URLs
    #[arg(long = "tls")]
    is_tls: bool,
    #[command(flatten)]
    tls: TlsArgs,
    #[command(flatten)]
    trial: TrialArgs,
}

/// The arguments of `tare load memcached`.
#[derive(Args)]
#[command(after_help = "Examples:\n  \
    tare load memcached 127.0.0.1 --fill --keys 100k --value-len 100\n  \
    tare load memcached 127.0.0.1:11211 --protocol meta --ratio 1:10 --pattern zipf:0.99 --rate 20000\n  \
    tare load memcached 127.0.0.1 --udp -c 16 --timeout 0.1 --server-counts\n\n\
    Exit status: 0 completed; 1 the generator fell behind, so that the latencies are not those of \
    the server, or the server counted different requests than were sent, or no rate meets the \
    objective; 2 usage error, or the load could not run; 130 interrupted.")]
pub(crate) struct MemcachedArgs {
    /// Server: a host, and a port if it is not 11211
    #[arg(value_name = "HOST[:PORT]")]
    server: String,
    /// Protocol variant
    #[arg(long, value_name = "NAME", default_value = "text")]
    protocol: MemcachedProtocol,
    /// Use UDP: one datagram per request, one request in flight per connection
    #[arg(long, conflicts_with_all = ["is_tls", "pipeline"])]
    udp: bool,
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
    tare load resp 127.0.0.1:6379 -P 16 --ratio 1:1 --pattern uniform --server-counts\n  \
    tare load resp 127.0.0.1 --trace requests.txt      lines: GET KEY, or SET KEY BYTES\n\n\
    Exit status: 0 completed; 1 the generator fell behind, so that the latencies are not those of \
    the server, or the server counted different requests than were sent, or no rate meets the \
    objective; 2 usage error, or the load could not run; 130 interrupted.")]
pub(crate) struct RespArgs {
    /// Server: a host, and a port if it is not 6379
    #[arg(value_name = "HOST[:PORT]")]
    server: String,
    /// Protocol version
    #[arg(long, value_name = "VERSION", default_value_t = 2, value_parser = clap::value_parser!(u8).range(2..=3))]
    resp: u8,
    #[command(flatten)]
    keys: KeyArgs,
    #[command(flatten)]
    tls: TlsArgs,
    #[command(flatten)]
    trial: TrialArgs,
}

/// The arguments of `tare load tls`.
#[derive(Args)]
#[command(after_help = "Examples:\n  \
    tare load tls localhost:8443 --insecure                     handshakes that resume sessions\n  \
    tare load tls localhost:8443 --insecure --no-resumption     full handshakes\n  \
    tare load tls localhost:8443 --insecure --www /big.bin      bytes per second\n\n\
    Handshakes work with any TLS server: each request is a connection that is closed after the \
    handshake. With --www, the server must answer HTTP GET, as web servers and openssl s_server \
    -WWW do, and connections stay open until the server closes them.\n\n\
    Exit status: 0 completed; 1 the generator fell behind, so that the latencies are not those of \
    the server, or no rate meets the objective; 2 usage error, or the load could not run; 130 \
    interrupted.")]
pub(crate) struct TlsLoadArgs {
    /// Server: a host, and a port if it is not 443
    #[arg(value_name = "HOST[:PORT]")]
    server: String,
    /// Fetch this path over HTTP repeatedly
    #[arg(long, value_name = "PATH")]
    www: Option<String>,
    #[command(flatten)]
    tls: TlsArgs,
    #[command(flatten)]
    trial: TrialArgs,
}

/// A protocol of memcached.
#[derive(Clone, Copy, ValueEnum)]
enum MemcachedProtocol {
    /// Text protocol: get and set
    Text,
    /// Meta commands: mg and ms
    Meta,
    /// Binary protocol
    Binary,
}

/// Options of every trial.
#[derive(Args)]
struct TrialArgs {
    /// Number of connections
    #[arg(short, long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    connections: u32,
    /// Number of threads, which share the connections
    #[arg(short, long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    threads: u32,
    /// CPUs to pin the threads to, in turn, comma-separated
    #[arg(long, value_name = "CPUS", value_delimiter = ',')]
    cpu: Vec<usize>,
    /// Duration of the measurement, in seconds [default: 10; with a trace, all of it]
    #[arg(short, long, value_name = "SECONDS", value_parser = seconds)]
    duration: Option<Duration>,
    /// Warm-up before the measurement, in seconds, not counted [default: 1; with a trace, 0]
    #[arg(short, long, value_name = "SECONDS", value_parser = seconds)]
    warm_up: Option<Duration>,
    /// Requests per second, each sent when it is due [default: a closed loop, or the times of the
    /// trace]
    #[arg(short, long, value_name = "RATE", value_parser = rate)]
    rate: Option<f64>,
    /// Exponentially distributed gaps between requests instead of equal ones
    #[arg(long)]
    poisson: bool,
    /// Requests in flight per connection
    #[arg(short = 'P', long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pipeline: u32,
    /// Response timeout, in seconds
    #[arg(long, value_name = "SECONDS", default_value = "5", value_parser = seconds)]
    timeout: Duration,
    /// Seed of random values [default: a new one]
    #[arg(long, value_name = "SEED")]
    seed: Option<u64>,
    /// Send the requests of this file once, one per line: GET /PATH, GET KEY or SET KEY BYTES, each
    /// optionally preceded by a time in seconds
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Search for the highest rate that meets an objective, such as 'p99 < 2 ms', in trials of
    /// --duration; --rate is the highest rate to try [default: 1.5 times that of a closed loop]
    #[arg(long, value_name = "OBJECTIVE", conflicts_with_all = ["trace", "hlog"])]
    find_max: Option<Objective>,
    /// Write the latencies of each second to this file, in HdrHistogram log format
    #[arg(long, value_name = "FILE")]
    hlog: Option<PathBuf>,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// Options of key-value stores.
#[derive(Args)]
struct KeyArgs {
    /// Ratio of writes to reads
    #[arg(long, value_name = "SET:GET", default_value = "0:1", conflicts_with = "trace", value_parser = ratio)]
    ratio: f64,
    /// Number of keys in use
    #[arg(long, value_name = "N", default_value = "10k", conflicts_with = "trace", value_parser = count)]
    keys: u64,
    /// Access pattern of the keys: sequential, uniform, zipf, or zipf:EXPONENT
    #[arg(long, value_name = "PATTERN", default_value = "uniform", conflicts_with = "trace", value_parser = pattern)]
    pattern: KeyPattern,
    /// Value length in bytes: 32, a range 32-1024, or lengths with weights 32:9,1024:1
    #[arg(long, value_name = "BYTES", default_value = "32", conflicts_with = "trace", value_parser = value_len)]
    value_len: ValueLen,
    /// Fraction of the reads that request keys in use; the others miss
    #[arg(long, value_name = "SHARE", default_value_t = 1.0, conflicts_with = "trace", value_parser = share)]
    hits: f64,
    /// Write every key before the trial
    #[arg(long, conflicts_with = "trace")]
    fill: bool,
    /// Also count the requests on the server, from its own statistics; other clients must not use
    /// the server
    #[arg(long)]
    server_counts: bool,
    /// Use TLS
    #[arg(long = "tls")]
    is_tls: bool,
}

/// Runs the command.
///
/// # Errors
/// The reason why it could not be done, in words.
pub(crate) fn run(command: &Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Http(args) => http(args),
        Command::Memcached(args) => {
            let text = MemcachedText::default();
            match args.protocol {
                MemcachedProtocol::Text => args.load(text),
                MemcachedProtocol::Meta => args.load(MemcachedMeta::default()),
                MemcachedProtocol::Binary => args.load(MemcachedBinary::default()),
            }
        }
        Command::Resp(args) => {
            let (host, port) = host_and_port(&args.server, 6379)?;
            let target = target(host, port, args.keys.is_tls, &args.tls)?;
            let version = match args.resp {
                2 => RespVersion::Two,
                _ => RespVersion::Three,
            };
            let protocol = &Resp::new(version);
            args.keys
                .load(&target, protocol, &args.trial, Counter::Resp)
        }
        Command::Tls(args) => tls_load(args),
        Command::Compare(args) => compare::run(args),
    }
}

fn http(args: &HttpArgs) -> anyhow::Result<ExitCode> {
    let first = &args.urls[0];
    for url in &args.urls {
        ensure!(
            url.server() == first.server(),
            "found {url} beside {first}, expected URLs of one server"
        );
    }
    let paths: Vec<String> = args.urls.iter().map(|url| url.path.clone()).collect();
    let http = Http::new(&first.authority, &paths, &args.headers)?;
    let is_tls = first.is_tls || args.is_tls;
    let counter = match &args.server_counts {
        None => None,
        Some(source) if source.contains("://") => {
            let url: Url = source.parse().map_err(anyhow::Error::msg)?;
            let target = target(&url.host, url.port, url.is_tls, &args.tls)?;
            let status = Http::new(&url.authority, std::slice::from_ref(&url.path), &[])?;
            Some(Counter::Status(Box::new((target, status))))
        }
        Some(path) => Some(Counter::Log(path.into())),
    };
    let load = Load {
        target: &target(&first.host, first.port, is_tls, &args.tls)?,
        protocol: &http,
        trial: &args.trial,
        trace: Some(TraceKind::Http),
        counter,
        fill: false,
    };
    let keys = paths.len() as u64;
    load.run(Workload {
        keys,
        ..Workload::default()
    })
}

fn tls_load(args: &TlsLoadArgs) -> anyhow::Result<ExitCode> {
    let (host, port) = host_and_port(&args.server, 443)?;
    let target = &target(host, port, true, &args.tls)?;
    let trial = &args.trial;
    let Some(path) = &args.www else {
        ensure!(
            trial.trace.is_none() && trial.pipeline == 1,
            "found --trace or --pipeline, expected them with --www only: a handshake is no request"
        );
        let load = Load {
            target,
            protocol: &Handshake,
            trial,
            trace: None,
            counter: None,
            fill: false,
        };
        return load.run(Workload::default());
    };
    let load = Load {
        target,
        protocol: &Http::new(&args.server, std::slice::from_ref(path), &[])?,
        trial,
        trace: Some(TraceKind::Http),
        counter: None,
        fill: false,
    };
    load.run(Workload::default())
}

impl MemcachedArgs {
    fn load<P: Protocol + Clone + Sync>(&self, protocol: P) -> anyhow::Result<ExitCode> {
        let (host, port) = host_and_port(&self.server, 11211)?;
        let target = &target(host, port, self.keys.is_tls, &self.tls)?;
        let (trial, counter) = (&self.trial, Counter::Memcached);
        if !self.udp {
            return self.keys.load(target, &protocol, trial, counter);
        }
        let longest = self.keys.value_len.longest();
        ensure!(
            longest <= DATAGRAM_VALUE_MAX,
            "--value-len: found {longest}, expected at most {DATAGRAM_VALUE_MAX} with --udp: a \
             request is one datagram"
        );
        self.keys.load(target, &Udp::new(protocol), trial, counter)
    }
}

impl KeyArgs {
    fn load<P: Protocol + Clone + Sync>(
        &self,
        target: &Target,
        protocol: &P,
        trial: &TrialArgs,
        counter: Counter,
    ) -> anyhow::Result<ExitCode> {
        let load = Load {
            target,
            protocol,
            trial,
            trace: Some(match P::wire() {
                Wire::Datagrams => TraceKind::Datagrams,
                Wire::Stream | Wire::Handshakes => TraceKind::KeyValue,
            }),
            counter: self.server_counts.then_some(counter),
            fill: self.fill,
        };
        load.run(Workload {
            set_share: self.ratio,
            keys: self.keys,
            pattern: self.pattern,
            value_len: self.value_len.clone(),
            hit_share: self.hits,
        })
    }
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
