//! The driver `cvmnet-wrk`: wrk over HTTPS against a guest behind a TAP device, or against
//! [nginx](super::nginx) in its place, in network namespaces that end with the trial.

use std::fs;
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use anyhow::{anyhow, bail, ensure, Context as _};
use rustix::process::Pid;
use rustix::thread::{sched_setaffinity, CpuSet};
use tare_cvmnet::daemon::Report;
use tare_cvmnet::variant::Variant;
use tare_import::{Format, Statistic};
use tare_lab::driver::{Expected, Invocation, Missing, Mistake, Role};
use tare_lab::parameters::{Bytes, Choice};
use tare_lab::{figures, parameters};

use super::driver::ExitKind;
use super::nginx::Nginx;
use crate::agent::{Agent, TrialError};
use crate::machine::{load_program, Feature, Machine};
use crate::program::leash;
use crate::systems::load::driver::{pin, processors};
use crate::systems::namespace::{self, ip};
use crate::systems::workload::{mistake, Workload};

pub(super) const SERVER: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);
pub(super) const SERVER_NET: &str = "10.77.0.2/24";
pub(super) const CLIENT_NET: &str = "10.77.0.1/24";
pub(super) const PORT: u16 = 443;
/// The name of the file that is asked for.
const FILE: &str = "file";
/// The usual time until a server answers, and for its counts.
const START: Duration = Duration::from_millis(800);
/// The longest time until a server answers.
pub(super) const START_MAX: Duration = Duration::from_secs(20);
/// The time after which a guest has told its counters: it does so ten times a second.
const TOLD: Duration = Duration::from_millis(250);

/// The server: a guest by its variant, or nginx.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Subject(Option<Variant>);

impl Choice for Subject {
    fn all() -> Vec<Subject> {
        let guests = Variant::ALL.into_iter().map(Some);
        guests.chain([None]).map(Subject).collect()
    }

    fn name(&self) -> &'static str {
        self.0.map_or("nginx", |variant| variant.name)
    }
}

parameters! {
    /// The parameters of the driver `cvmnet-wrk`.
    pub(crate) struct WrkParameters {
        /// the server behind a TAP device: a guest by its variant, or nginx on the kernel's stack
        server: Subject = "bifrost",
        /// bytes of the file
        size: Bytes = "256 KiB",
        /// connections
        connections: u64 [1..=1024] = 16,
        /// the kind of exits of the machine that is simulated
        exits: ExitKind = "each",
        /// the trial, in whole seconds
        duration: Duration = "1 s",
    }
}

figures! {
    /// The figures of a trial of `cvmnet-wrk`.
    pub(crate) struct WrkFigures {
        metrics {
            /// bytes of files per second of the server's processor time, without that in which a
            /// guest looked for work in vain; nginx's is all time for which its processor was busy,
            /// with the kernel's, to a hundredth of a second
            cpu_server_rate: f64 [BytesPerSecond],
            /// bytes of files per second of the clock
            throughput: f64 [BytesPerSecond],
            /// that processor time over the clock: the server is the bottleneck at 0.95
            server_busy: f64 [Ratio],
            /// requests per second
            request_rate: f64 [OperationsPerSecond],
            /// median latency
            latency_p50: Option<f64> [Seconds],
            /// 99th percentile of the latency
            latency_p99: Option<f64> [Seconds],
        }
        counters {
            /// requests that wrk has responses to
            operations,
            /// bytes of the files in them
            bytes,
            /// bytes that the guest copied through the bounce buffer
            bounced,
            /// faults of the ring and errors of TLS
            faults,
        }
    }
}

/// The driver `cvmnet-wrk`.
pub(crate) struct CvmnetWrk;

impl Workload for CvmnetWrk {
    const NAME: &'static str = "cvmnet-wrk";
    const ABOUT: &'static str =
        "wrk over HTTPS against a confidential VM's guest behind a TAP device, or nginx there";
    type Parameters = WrkParameters;
    type Figures = WrkFigures;

    fn examine(parameters: &WrkParameters) -> Result<(), Mistake> {
        let (duration, size) = (parameters.duration, parameters.size);
        if duration.subsec_nanos() > 0 || duration.is_zero() {
            let found = format!("{} s", duration.as_secs_f64());
            return Err(mistake("duration", found.as_str(), "whole seconds for wrk"));
        }
        if size.0 == 0 || size.0 > 16 << 20 {
            let found = format!("{} B", size.0);
            return Err(mistake("size", found.as_str(), "\"1 B\" to \"16 MiB\""));
        }
        Ok(())
    }

    fn check(parameters: &WrkParameters, machine: &Machine) -> Result<(), Missing> {
        machine.need(Feature::Root)?;
        for tool in Feature::network_tools() {
            machine.need(tool)?;
        }
        machine.need(Feature::Load("wrk"))?;
        if parameters.server.0.is_none() {
            machine.need(Feature::Load("nginx"))?;
        }
        match Path::new("/dev/net/tun").exists() {
            true => Ok(()),
            false => Err(Missing {
                reason: "/dev/net/tun is not there".into(),
                remedy: Some("modprobe tun".into()),
            }),
        }
    }

    fn expected(parameters: &WrkParameters) -> Option<Expected> {
        Some(Expected {
            clock: parameters.duration + START,
            work: Duration::ZERO,
        })
    }

    fn longest(parameters: &WrkParameters) -> Duration {
        parameters.duration * 4 + 2 * START_MAX
    }

    fn invocation(_: &Role, _: &WrkParameters, own_trial: Invocation) -> Invocation {
        namespace::apart(own_trial)
    }

    fn run(parameters: WrkParameters, agent: &mut Agent) -> Result<WrkFigures, TrialError> {
        let (server_cpu, other_cpu) = processors()?;
        pin(other_cpu)?;
        ip(&["link", "set", "lo", "up"])?;
        let folder = tempfile::Builder::new().prefix("tare-cvm-").tempdir()?;
        let file = folder.path().join(FILE);
        fs::write(file, vec![b'x'; parameters.size.0 as usize])?;
        let server = match parameters.server.0 {
            Some(variant) => guest(variant, &parameters, folder.path(), server_cpu)?,
            None => Running::Nginx(Nginx::start(folder.path(), server_cpu, other_cpu)?),
        };
        agent.start()?;
        let before = server.counts()?;
        let load = wrk(&parameters)?;
        let after = server.counts()?;
        let bytes = load.responses * parameters.size.0;
        let work = after.work.saturating_sub(before.work).as_secs_f64();
        if work == 0.0 {
            return Err(anyhow!("the server has used no processor time").into());
        }
        Ok(WrkFigures {
            cpu_server_rate: bytes as f64 / work,
            throughput: bytes as f64 / load.seconds,
            server_busy: (work / load.seconds).min(1.0),
            request_rate: load.responses as f64 / load.seconds,
            latency_p50: load.p50,
            latency_p99: load.p99,
            operations: load.responses,
            bytes,
            bounced: after.bounced - before.bounced,
            faults: after.faults,
        })
    }
}

/// A process that ends with this value. The guest of a host that ends does so too.
pub(super) struct Process(pub(super) Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A server that answers.
enum Running {
    /// A guest: the process of its host, and the socket where its counters are.
    Guest(
        #[allow(dead_code, reason = "held until it is dropped")] Process,
        std::path::PathBuf,
    ),
    Nginx(Nginx),
}

/// The counts of a server.
struct Counts {
    /// Processor time, without that in which it looked for work in vain.
    work: Duration,
    bounced: u64,
    faults: u64,
}

impl Running {
    fn counts(&self) -> anyhow::Result<Counts> {
        match self {
            Running::Guest(_, socket) => {
                std::thread::sleep(TOLD);
                let guest = report(socket)?
                    .guest
                    .context("the guest has sent no message")?;
                let work = guest.cpu_ns.saturating_sub(guest.polling_ns);
                Ok(Counts {
                    work: Duration::from_nanos(work),
                    bounced: guest.bounced,
                    faults: guest.faults + guest.tls_failures,
                })
            }
            Running::Nginx(nginx) => Ok(Counts {
                work: nginx.processor_time()?,
                bounced: 0,
                faults: 0,
            }),
        }
    }
}

fn report(socket: &Path) -> anyhow::Result<Report> {
    let answer = tare_daemon::ask(socket).context("the host does not answer")?;
    serde_json::from_str(&answer).context("the host's answer")
}

/// Starts a guest and its host, and binds the guest to a processor. Both end with this thread.
fn guest(
    variant: Variant,
    parameters: &WrkParameters,
    folder: &Path,
    cpu: usize,
) -> anyhow::Result<Running> {
    let (socket, log) = (folder.join("status.sock"), folder.join("log"));
    let command = leash()
        .arg(std::env::current_exe()?)
        .args(["cvm", "serve", "http", "--dir"])
        .arg(folder)
        .args([
            "--variant",
            variant.name,
            "--exits",
            parameters.exits.name(),
        ])
        .arg("--status-socket")
        .arg(&socket)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(fs::File::create(&log)?)
        .spawn();
    let mut host = Process(command.context("tare cvm serve")?);
    let until = Instant::now() + START_MAX;
    while !report(&socket).is_ok_and(|report| report.guest.is_some()) {
        if Instant::now() > until || host.0.try_wait()?.is_some() {
            let log = fs::read_to_string(&log).unwrap_or_default();
            bail!("tare cvm serve: {}", log.trim());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    for task in fs::read_dir(format!("/proc/{}/task", host.0.id()))? {
        let children = fs::read_to_string(task?.path().join("children"))?;
        for child in children.split_whitespace() {
            let pid = child.parse().ok().and_then(Pid::from_raw);
            let mut set = CpuSet::new();
            set.set(cpu);
            sched_setaffinity(pid, &set)?;
        }
    }
    Ok(Running::Guest(host, socket))
}

/// The result of wrk.
struct Load {
    responses: u64,
    seconds: f64,
    p50: Option<f64>,
    p99: Option<f64>,
}

/// Runs wrk on this thread's processor.
fn wrk(parameters: &WrkParameters) -> anyhow::Result<Load> {
    let output = leash()
        .arg(load_program("wrk").context("no wrk")?)
        .args([
            "-t",
            "1",
            "--latency",
            "-c",
            &parameters.connections.to_string(),
        ])
        .args(["-d", &format!("{}s", parameters.duration.as_secs())])
        .arg(format!("https://{SERVER}/{FILE}"))
        .stdin(Stdio::null())
        .output()
        .context("wrk")?;
    let (printed, errors) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    ensure!(output.status.success(), "wrk: {printed}{errors}");
    read(&printed).with_context(|| format!("wrk printed {printed:?}"))
}

/// Reads wrk's report.
fn read(printed: &str) -> anyhow::Result<Load> {
    let format = Format::named("wrk").context("no format of the importer")?;
    let input = tare_import::read("wrk", Some(format), printed.as_bytes())?;
    if let Some(refusal) = input.refused.first() {
        bail!("{refusal}");
    }
    let run = input.runs.last().context("no report")?;
    for record in &run.records {
        let is_error = record.figure.ends_with("_errors") && record.value != 0.0;
        ensure!(!is_error, "{} {}", record.value, record.figure);
    }
    let find = |figure: &str, statistic| Some(run.find(figure, statistic)?.base());
    let seconds = find("time", Statistic::Total).context("no time")?;
    let (_, responses) = run.work().context("no number of responses")?;
    ensure!(responses > 0 && seconds > 0.0, "no response");
    Ok(Load {
        responses,
        seconds,
        p50: find("latency", Statistic::Percentile(50.0)),
        p99: find("latency", Statistic::Percentile(99.0)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPORT: &str = "Running 1s test @ https://10.77.0.2/file\n  \
        1 threads and 16 connections\n  \
        Thread Stats   Avg      Stdev     Max   +/- Stdev\n    \
        Latency     2.00ms  188.25us  19.33ms   90.85%\n    \
        Req/Sec     4.06k   150.80     5.47k    80.88%\n  \
        Latency Distribution\n     50%    1.50ms\n     75%    2.00ms\n     90%    3.00ms\n     \
        99%    9.00ms\n  \
        4800 requests in 1.20s, 1.17GB read\n\
        Requests/sec:   4000.00\nTransfer/sec:      0.98GB\n";

    #[test]
    fn a_report_of_wrk_is_read_and_one_with_errors_is_refused() {
        let load = read(REPORT).unwrap();
        assert_eq!((load.responses, load.seconds), (4800, 1.2));
        let microseconds = |time: Option<f64>| time.map(|seconds| (seconds * 1e6).round());
        assert_eq!(microseconds(load.p50), Some(1500.0));
        assert_eq!(microseconds(load.p99), Some(9000.0));
        let errors = REPORT.replace(
            "Requests/sec",
            "  Non-2xx or 3xx responses: 4800\nRequests/sec",
        );
        assert!(read(&errors).is_err());
        assert!(read("").is_err());
    }

    #[test]
    fn servers_are_the_variants_and_nginx() {
        let names: Vec<_> = Subject::all().iter().map(Choice::name).collect();
        assert_eq!(names.len(), 8);
        assert!(names.contains(&"nginx") && names.contains(&"bifrost"));
    }
}
