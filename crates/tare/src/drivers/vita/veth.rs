//! The same set-up with two real daemons and the real load tester, over veth between network
//! namespaces of its own.

use std::fs;
use std::io::Read as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{anyhow, bail, ensure, Context as _};
use serde_json::Value as Json;
use tare_gateway::config::Device;
use tare_lab::driver::{Driver, Expected, Invocation, Missing, ParameterKind, Role, Vocabulary};
use tare_lab::sample::OPERATIONS;
use tare_lab::unit::{Dimension, Unit};
use tare_lab::value::Parameters;
use tare_packet::pcap;
use tare_port::LineConfig;

use super::topology::Setup;
use super::{
    count, duration, own_trial, parameter, rate, routes_parameter, size, size_parameter, Workload,
};
use crate::trial::{Speaker, TrialError};

/// How long the gateways may take until they have keys.
const KEYS_MAX: Duration = Duration::from_secs(15);

/// How long they usually take.
const KEYS_USUAL: Duration = Duration::from_millis(1500);

/// How long a namespace lives, whatever happens to this process.
const NAMESPACE_SECONDS: &str = "600";

/// Outer packets are longer than what the tester sends.
const MTU: &str = "2000";

pub(in crate::drivers) struct VitaVeth;

impl Driver for VitaVeth {
    fn vocabulary(&self) -> Vocabulary {
        let rate = || ParameterKind::Quantity(Dimension::DataRate);
        Vocabulary {
            name: "vita-veth".into(),
            about: "A load tester and two gateway daemons over veth, in namespaces of their own"
                .into(),
            parameters: vec![
                size_parameter(),
                routes_parameter(),
                parameter(
                    "top",
                    rate(),
                    Some("100 Mbit/s".into()),
                    "the highest rate tried",
                ),
                parameter(
                    "precision",
                    rate(),
                    Some("5 Mbit/s".into()),
                    "the last step of the search",
                ),
                parameter(
                    "duration",
                    ParameterKind::Quantity(Dimension::Time),
                    Some("1 s".into()),
                    "how long each rate is tried",
                ),
            ],
            references: vec![],
            metrics: vec![("ndr".into(), Dimension::DataRate)],
            counters: [OPERATIONS, "searches", "searches_in_vain"]
                .map(String::from)
                .to_vec(),
            open: false,
            deterministic: false,
        }
    }

    fn check(&self, _: &Parameters) -> Result<(), Missing> {
        if !rustix::process::geteuid().is_root() {
            return Err(Missing {
                reason: "network namespaces and packet sockets need root".into(),
                remedy: Some("sudo tare run vita".into()),
            });
        }
        for program in ["ip", "unshare", "nsenter"] {
            let runs = Command::new(program)
                .arg(if program == "ip" { "-V" } else { "--version" })
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .status();
            if !runs.is_ok_and(|status| status.success()) {
                return Err(Missing {
                    reason: format!("`{program}` does not run"),
                    remedy: Some("apt install iproute2 util-linux".into()),
                });
            }
        }
        Ok(())
    }

    fn invocation(&self, _: &Role, parameters: &Parameters) -> Invocation {
        let expected = duration(parameters, "duration").unwrap_or_default();
        Invocation {
            expected: Some(Expected {
                clock: KEYS_USUAL,
                work: expected.mul_f64(5.0),
            }),
            ..own_trial("vita-veth", parameters, KEYS_MAX + expected.mul_f64(40.0))
        }
    }
}

impl Workload for VitaVeth {
    fn run(&self, parameters: &Parameters, speaker: &mut Speaker) -> Result<(), TrialError> {
        let setup = Setup {
            size: size(parameters)?,
            routes: u32::try_from(count(parameters, "routes")?).map_err(|e| anyhow!(e))?,
            line: LineConfig::new(1),
            sa_ttl: None,
        };
        let bench = Bench::new(&setup)?;
        speaker.start()?;
        let result = bench.find_limit(parameters)?;
        let bits = result["limit"]["passed_bits_per_second"].as_f64();
        let bits = bits.context("the load tester found no rate")?;
        speaker.sample("ndr", bits / 8.0, Unit::BytesPerSecond)?;
        let streams = result["trials"].as_array().into_iter().flatten();
        let sent = streams.flat_map(|trial| trial["streams"].as_array().into_iter().flatten());
        let sent = sent
            .filter_map(|stream| stream["tx_packets"].as_u64())
            .sum();
        speaker.counters(&[
            (OPERATIONS, sent),
            ("searches", 1),
            ("searches_in_vain", u64::from(bits == 0.0)),
        ])?;
        Ok(())
    }
}

/// A process that is ended with this value.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let pid = rustix::process::Pid::from_child(&self.0);
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        let deadline = Instant::now() + Duration::from_secs(3);
        while Instant::now() < deadline {
            if matches!(self.0.try_wait(), Ok(Some(_))) {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A network namespace with no name, which a sleeping process holds. It heeds no SIGTERM, and has
/// nothing to clean up.
struct Namespace(Child);

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Namespace {
    fn new() -> anyhow::Result<Namespace> {
        let mut command = Command::new("unshare");
        command.args([
            "--net",
            "--fork",
            "--kill-child",
            "sleep",
            NAMESPACE_SECONDS,
        ]);
        let child = command.stdin(Stdio::null()).spawn().context("unshare")?;
        let namespace = Namespace(child);
        let own = fs::read_link("/proc/self/ns/net")?;
        let deadline = Instant::now() + Duration::from_secs(5);
        while fs::read_link(format!("/proc/{}/ns/net", namespace.pid()))? == own {
            ensure!(Instant::now() < deadline, "unshare made no namespace");
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(namespace)
    }

    fn pid(&self) -> u32 {
        self.0.id()
    }

    /// A command that runs in it.
    fn command(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["--net", "-t", &self.pid().to_string(), "--", program]);
        command.stdin(Stdio::null());
        command
    }
}

fn run(command: &mut Command) -> anyhow::Result<()> {
    let output = command.output().with_context(|| format!("{command:?}"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("{command:?}: {}", said.trim());
    }
    Ok(())
}

/// Namespaces, cables, daemons. They go in this order.
struct Bench {
    program: PathBuf,
    folder: tempfile::TempDir,
    _gateways: Vec<Running>,
    tester: Namespace,
    _nodes: [Namespace; 2],
}

impl Bench {
    fn new(setup: &Setup) -> anyhow::Result<Bench> {
        let program = std::env::current_exe()?;
        let folder = tempfile::tempdir()?;
        let tester = Namespace::new()?;
        let nodes = [Namespace::new()?, Namespace::new()?];
        cable((&tester, "port0"), (&nodes[0], "private"))?;
        cable((&tester, "port1"), (&nodes[1], "private"))?;
        cable((&nodes[0], "public"), (&nodes[1], "public"))?;
        let mut gateways = Vec::new();
        for (n, mut meta) in setup.metas()?.into_iter().enumerate() {
            meta.private.device = Device::Name("private".into());
            meta.public.device = Device::Name("public".into());
            // New keys are first used one and a half times this after they were agreed on.
            meta.negotiation_ttl = Duration::from_secs(1);
            let file = folder.path().join(format!("node{}.conf", n + 1));
            fs::write(&file, meta.config().text().as_bytes())?;
            let mut writer = pcap::Writer::new(
                fs::File::create(folder.path().join(format!("node{}.pcap", n + 1)))?,
                pcap::Header::default(),
            )?;
            for frame in meta.traffic([2, 0, 0, 0, 0, 1]).iter() {
                writer.write(0, &frame)?;
            }
            let log = fs::File::create(folder.path().join(format!("node{}.log", n + 1)))?;
            let mut command = nodes[n].command(&program.to_string_lossy());
            command.args(["gateway", "run", "--status-socket"]);
            command.arg(folder.path().join(format!("node{}.sock", n + 1)));
            command.arg(&file).stdout(Stdio::null()).stderr(log);
            gateways.push(Running(command.spawn()?));
        }
        let bench = Bench {
            program,
            folder,
            _gateways: gateways,
            tester,
            _nodes: nodes,
        };
        bench.await_keys(setup.routes)?;
        Ok(bench)
    }

    fn await_keys(&self, routes: u32) -> anyhow::Result<()> {
        let deadline = Instant::now() + KEYS_MAX;
        for n in [1, 2] {
            while self.keyed(n) < routes as usize {
                if Instant::now() > deadline {
                    let mut log = String::new();
                    let file = self.folder.path().join(format!("node{n}.log"));
                    let _ = fs::File::open(file)?.take(4000).read_to_string(&mut log);
                    bail!("node{n} has no keys after {KEYS_MAX:?}: {}", log.trim());
                }
                std::thread::sleep(Duration::from_millis(50));
            }
        }
        Ok(())
    }

    /// Routes of a node that have an outbound SA.
    fn keyed(&self, node: usize) -> usize {
        let mut command = Command::new(&self.program);
        command.args(["gateway", "status", "--json"]);
        command.arg(self.folder.path().join(format!("node{node}.sock")));
        let Ok(output) = command.output() else {
            return 0;
        };
        let status: Json = serde_json::from_slice(&output.stdout).unwrap_or_default();
        let routes = status["routes"].as_array().map_or(&[][..], Vec::as_slice);
        routes
            .iter()
            .filter(|route| route["outbound"][0].is_object())
            .count()
    }

    fn find_limit(&self, parameters: &Parameters) -> anyhow::Result<Json> {
        let bits = |name| rate(parameters, name).map(|rate| rate.bits().to_string());
        let seconds = duration(parameters, "duration")?.as_secs_f64().to_string();
        let mut command = self.tester.command(&self.program.to_string_lossy());
        command.args([
            "loadtest",
            "find-limit",
            "--json",
            "-r",
            "2",
            "-D",
            &seconds,
        ]);
        command.args(["-b", &bits("top")?, "-p", &bits("precision")?]);
        for (n, other) in [(1, 2), (2, 1)] {
            command.arg(self.folder.path().join(format!("node{n}.pcap")));
            command.args([
                format!("node{n}"),
                format!("node{other}"),
                format!("port{}", n - 1),
            ]);
        }
        let output = command.output()?;
        serde_json::from_slice(&output.stdout).map_err(|_| {
            anyhow!(
                "the load tester: {}",
                String::from_utf8_lossy(&output.stderr).trim()
            )
        })
    }
}

/// A veth pair, both ends up.
fn cable(one: (&Namespace, &str), two: (&Namespace, &str)) -> anyhow::Result<()> {
    let pids = [one.0.pid().to_string(), two.0.pid().to_string()];
    run(Command::new("ip")
        .args([
            "link", "add", one.1, "mtu", MTU, "netns", &pids[0], "type", "veth",
        ])
        .args(["peer", "name", two.1, "mtu", MTU, "netns", &pids[1]]))?;
    for (namespace, name) in [one, two] {
        run(namespace.command("ip").args(["link", "set", name, "up"]))?;
    }
    Ok(())
}
