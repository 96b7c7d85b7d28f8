//! Other load generators in a trial: their command lines, and the figures of their reports, which
//! the importer reads.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{bail, ensure, Context as _};
use tare_import::{Format, Run, Statistic};
use tare_lab::choices;
use tare_lab::driver::Mistake;
use tare_lab::parameters::Choice as _;
use wait4::Wait4 as _;

use super::own::FIRST_KEY;
use super::server::{Running, Server};
use super::LoadParameters;
use crate::machine::load_program;
use crate::program::leash;
use crate::systems::workload::mistake;

/// Requests that no server answers within a millisecond.
const REQUESTS_ENOUGH: u64 = 1_000_000;

choices! {
    /// The generator of a trial.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) enum Generator {
        /// Tare's own.
        Load = "load",
        /// wrk, of nginx.
        Wrk = "wrk",
        /// memtier_benchmark, of memcached and Redis.
        Memtier = "memtier_benchmark",
        /// redis-benchmark, of Redis.
        RedisBenchmark = "redis-benchmark",
        /// memaslap of libmemcached, of memcached.
        Memaslap = "memaslap",
        /// memcslap of libmemcached, of memcached: a thread per connection.
        Memcslap = "memcslap",
    }
}

/// The figures of a trial that its generator gives.
#[derive(Debug, Default, PartialEq)]
pub(in crate::systems) struct Report {
    /// Requests per second.
    pub(in crate::systems) rate: f64,
    /// Seconds; `None` where it prints none.
    pub(in crate::systems) p50: Option<f64>,
    pub(in crate::systems) p99: Option<f64>,
    pub(in crate::systems) p999: Option<f64>,
    /// Bytes per response; `None` if it does not count them.
    pub(in crate::systems) bytes_per_response: Option<f64>,
    /// Responses; `None` if it does not count them.
    pub(in crate::systems) responses: Option<u64>,
}

/// The line of the script below with wrk's 99.9th percentile, which wrk does not print.
const WRK_P999: &str = "tare-p99.9-us ";

impl Generator {
    /// The servers whose protocol it speaks.
    pub(in crate::systems) fn servers(self) -> &'static [Server] {
        match self {
            Generator::Load => &[Server::Nginx, Server::Memcached, Server::Redis],
            Generator::Wrk => &[Server::Nginx],
            Generator::Memtier => &[Server::Memcached, Server::Redis],
            Generator::RedisBenchmark => &[Server::Redis],
            Generator::Memaslap | Generator::Memcslap => &[Server::Memcached],
        }
    }

    /// Checks that a trial can last so long: of some generators whole seconds.
    ///
    /// # Errors
    /// It cannot.
    pub(in crate::systems) fn examine_duration(self, duration: Duration) -> Result<(), Mistake> {
        let takes_whole_seconds = matches!(self, Generator::Wrk | Generator::Memaslap);
        if takes_whole_seconds && (duration.subsec_nanos() > 0 || duration.is_zero()) {
            let found = format!("{} s", duration.as_secs_f64());
            let expected = format!("whole seconds for {}", self.name());
            return Err(mistake("duration", found.as_str(), &expected));
        }
        Ok(())
    }

    /// Returns true if it can mix writes and reads.
    pub(super) fn mixes(self) -> bool {
        !matches!(self, Generator::RedisBenchmark | Generator::Memcslap)
    }

    /// Returns true if it can have several requests in flight per connection.
    pub(super) fn pipelines(self) -> bool {
        matches!(
            self,
            Generator::Load | Generator::Memtier | Generator::RedisBenchmark
        )
    }

    /// Prepares a server for it, beyond what Tare's own generator needs.
    ///
    /// # Errors
    /// The server does not write a key.
    pub(super) fn prepare(
        self,
        server: &Running,
        parameters: &LoadParameters,
    ) -> anyhow::Result<()> {
        match self {
            Generator::RedisBenchmark => write_keys(server.address(), parameters),
            _ => Ok(()),
        }
    }

    /// Runs it against a server, with a folder for its files, for about the duration of the
    /// parameters; `rate` is what the server does in a closed loop, for generators that take a
    /// number of requests. Returns its report and its processor time from start to exit.
    ///
    /// # Errors
    /// It fails, or its report lacks a figure or counts errors.
    pub(in crate::systems) fn run(
        self,
        address: SocketAddr,
        folder: &Path,
        parameters: &LoadParameters,
        rate: f64,
    ) -> anyhow::Result<(Report, Duration)> {
        let requests = (rate * parameters.duration.as_secs_f64()).ceil() as u64;
        let mut requests = requests.max(parameters.connections as u64);
        let (printed, time) = loop {
            let done = self.print(address, folder, parameters, requests)?;
            if requests >= REQUESTS_ENOUGH || !self.had_no_time(&done.0) {
                break done;
            }
            requests *= 10;
        };
        Ok((self.read(&printed)?, time))
    }

    /// Returns true if the program's clock, which counts milliseconds, saw none pass: where the
    /// warm-up was disturbed, a rate that is too low leaves few requests.
    fn had_no_time(self, printed: &str) -> bool {
        self == Generator::RedisBenchmark && printed.contains(r#","inf","#)
    }

    /// Runs the program, and returns what it printed and its processor time.
    fn print(
        self,
        address: SocketAddr,
        folder: &Path,
        parameters: &LoadParameters,
        requests: u64,
    ) -> anyhow::Result<(String, Duration)> {
        let name = self.name();
        let mut command = leash();
        command.arg(load_program(name).context("no program")?);
        self.arguments(&mut command, address, folder, parameters, requests)?;
        let errors = folder.join("errors");
        command
            .current_dir(folder)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(fs::File::create(&errors)?);
        let mut child = command.spawn().with_context(|| name.to_owned())?;
        let mut printed = String::new();
        let stdout = child.stdout.as_mut().context("no output")?;
        stdout.read_to_string(&mut printed)?;
        let done = child.wait4()?;
        if !done.status.success() {
            let errors = fs::read_to_string(&errors).unwrap_or_default();
            bail!(
                "{name}: {}: {}{}",
                done.status,
                errors.trim(),
                printed.trim()
            );
        }
        Ok((printed, done.rusage.utime + done.rusage.stime))
    }

    fn arguments(
        self,
        command: &mut Command,
        address: SocketAddr,
        folder: &Path,
        parameters: &LoadParameters,
        requests: u64,
    ) -> anyhow::Result<()> {
        let LoadParameters {
            connections,
            pipeline,
            value,
            sets,
            keys,
            ..
        } = parameters;
        let (ip, port) = (address.ip(), address.port());
        let seconds = parameters.duration.as_secs();
        let mut add = |arguments: &str| {
            command.args(arguments.split(' '));
        };
        match self {
            Generator::Load => bail!("the own generator is no other program"),
            Generator::Wrk => {
                let script = format!(
                    "done = function(summary, latency, requests)\n  \
                     io.write(string.format(\"{WRK_P999}%d\\n\", latency:percentile(99.9)))\nend\n"
                );
                fs::write(folder.join("done.lua"), script)?;
                // Beyond its time for a response wrk counts an error. By itself it takes 2 s, for
                // which a busy machine may keep a server from its processor.
                add(&format!(
                    "-t 1 -c {connections} -d {seconds}s --timeout 20s --latency -s done.lua \
                     http://{address}{}",
                    super::DOCUMENT
                ));
            }
            Generator::Memtier => {
                let protocol = match parameters.server {
                    Server::Redis => "redis",
                    _ => "memcache_text",
                };
                let (writes, reads) = ((sets * 100.0).round(), ((1.0 - sets) * 100.0).round());
                let last = FIRST_KEY + keys - 1;
                // By a number of requests: with --test-time=1 or 2 the rates in its table are
                // 0.7 to 3,000 times those that it counts in its progress line.
                let each = requests / *connections as u64;
                add(&format!(
                    "-s {ip} -p {port} -P {protocol} -t 1 -c {connections} --pipeline={pipeline} \
                     -d {} --ratio={writes}:{reads} --key-prefix=tare: --key-minimum={FIRST_KEY} \
                     --key-maximum={last} --requests={each} --hide-histogram \
                     --print-percentiles=50,99,99.9",
                    value.0
                ));
            }
            Generator::RedisBenchmark => {
                let test = if *sets > 0.0 { "set" } else { "get" };
                add(&format!(
                    "-h {ip} -p {port} -c {connections} -n {requests} -d {} -r {keys} \
                     -P {pipeline} -t {test} --csv",
                    value.0
                ));
            }
            Generator::Memaslap => {
                let reads = 1.0 - sets;
                let (len, config) = (value.0, folder.join("memaslap.conf"));
                let mix = format!("key\n16 16 1\nvalue\n{len} {len} 1\ncmd\n0 {sets}\n1 {reads}\n");
                fs::write(config, mix)?;
                add(&format!(
                    "-s {address} -T 1 -c {connections} -t {seconds}s -F memaslap.conf -w 1k"
                ));
            }
            Generator::Memcslap => {
                let test = if *sets > 0.0 { "set" } else { "get" };
                let each = requests / *connections as u64;
                add(&format!(
                    "--servers={address} --concurrency={connections} --execute-number={each} \
                     --test={test}"
                ));
            }
        }
        Ok(())
    }

    /// Reads a report.
    ///
    /// # Errors
    /// It lacks a figure, or counts errors.
    fn read(self, printed: &str) -> anyhow::Result<Report> {
        let name = self.name();
        let format = match self {
            Generator::Memtier => "memtier",
            _ => name,
        };
        let format = Format::named(format).context("no format of the importer")?;
        let input = tare_import::read(name, Some(format), printed.as_bytes())?;
        if let Some(refusal) = input.refused.first() {
            bail!("{refusal}");
        }
        let run = input.runs.last().context("no report")?;
        for record in &run.records {
            let is_error = record.figure.ends_with("_errors") || record.figure == "misses";
            ensure!(
                !is_error || record.value == 0.0,
                "{name}: {} {}",
                record.value,
                record.figure
            );
        }
        let figure = |figure: &str, statistic| {
            let found = run.find(figure, statistic);
            found.map(tare_import::Record::base)
        };
        let total = |name: &str| figure(name, Statistic::Total);
        let rate = total("request_rate").or_else(|| total("operation_rate"));
        // On a busy machine memcslap may read its clock when its threads have ended.
        let time = total("time");
        ensure!(
            time != Some(0.0),
            "{name}: found a time of 0 s, expected more"
        );
        let rate = rate.or_else(|| Some(total("operations")? / time?));
        let latency = |level| figure("latency", Statistic::Percentile(level));
        let own_line = printed.lines().find_map(|line| line.strip_prefix(WRK_P999));
        Ok(Report {
            rate: rate.with_context(|| format!("{name} reports no rate"))?,
            p50: latency(50.0),
            p99: latency(99.0),
            p999: latency(99.9).or_else(|| Some(own_line?.parse::<f64>().ok()? / 1e6)),
            bytes_per_response: bytes_per_response(run),
            responses: run.work().map(|(_, responses)| responses),
        })
    }
}

fn bytes_per_response(run: &Run) -> Option<f64> {
    let (bytes, responses) = run.work()?;
    (responses > 0).then(|| bytes as f64 / responses as f64)
}

/// Writes the keys that redis-benchmark reads, as its own test of GET does not.
fn write_keys(address: SocketAddr, parameters: &LoadParameters) -> anyhow::Result<()> {
    const BATCH: u64 = 1000;
    let LoadParameters { keys, value, .. } = *parameters;
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(super::FILL_MAX))?;
    let value = "x".repeat(value.0 as usize);
    let mut first = 0;
    while first < keys {
        let next = keys.min(first + BATCH);
        let set = |key: u64| format!("SET key:{key:012} {value}\r\n");
        stream.write_all((first..next).map(set).collect::<String>().as_bytes())?;
        let mut replies = vec![0; 5 * (next - first) as usize];
        stream.read_exact(&mut replies)?;
        ensure!(
            replies.chunks(5).all(|reply| reply == b"+OK\r\n"),
            "redis-server does not write a key"
        );
        first = next;
    }
    Ok(())
}
