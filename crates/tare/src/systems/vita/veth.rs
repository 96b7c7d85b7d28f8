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
use tare_lab::driver::{Expected, Missing};
use tare_lab::parameters::BitsPerSecond;
use tare_lab::{figures, parameters};
use tare_packet::pcap;
use tare_sim::LineConfig;

use super::topology::Setup;
use crate::machine::{Feature, Machine};
use crate::systems::gateway::driver::Size;
use crate::systems::workload::Workload;
use crate::trial::{ProtocolWriter, TrialError};

/// How long the gateways may take until they have keys.
const KEYS_MAX: Duration = Duration::from_secs(15);

/// How long they usually take.
const KEYS_USUAL: Duration = Duration::from_millis(1500);

/// How long a namespace lives, whatever happens to this process.
const NAMESPACE_SECONDS: &str = "600";

/// Outer packets are longer than what the tester sends.
const MTU: &str = "2000";

parameters! {
    /// The parameters of the driver `vita-veth`.
    pub(crate) struct VethParameters {
        /// bytes of a packet with its Ethernet header, or IMIX
        size: Size = "60",
        /// routes between the gateways, which packets take in turn
        routes: u32 [1..=10_000] = 1,
        /// the highest rate tried
        top: BitsPerSecond = "100 Mbit/s",
        /// the last step of the search
        precision: BitsPerSecond = "5 Mbit/s",
        /// how long each rate is tried
        duration: Duration = "1 s",
    }
}

figures! {
    /// The figures of a trial of `vita-veth`.
    pub(crate) struct VethFigures {
        metrics {
            /// the no-drop rate
            ndr: f64 [BitsPerSecond],
        }
        counters {
            /// packets sent
            operations,
            /// searches for the no-drop rate
            searches,
            /// searches that found none
            searches_in_vain,
        }
    }
}

/// The driver `vita-veth`.
pub(crate) struct VitaVeth;

impl Workload for VitaVeth {
    const NAME: &'static str = "vita-veth";
    const ABOUT: &'static str =
        "a load tester and two gateway daemons over veth, in namespaces of their own";
    type Parameters = VethParameters;
    type Figures = VethFigures;

    fn check(_: &VethParameters, machine: &Machine) -> Result<(), Missing> {
        machine.need(Feature::Root)?;
        for tool in Feature::network_tools() {
            machine.need(tool)?;
        }
        Ok(())
    }

    fn expected(parameters: &VethParameters) -> Option<Expected> {
        Some(Expected {
            clock: KEYS_USUAL,
            work: parameters.duration.mul_f64(5.0),
        })
    }

    fn longest(parameters: &VethParameters) -> Duration {
        KEYS_MAX + parameters.duration.mul_f64(40.0)
    }

    fn run(
        parameters: VethParameters,
        writer: &mut ProtocolWriter,
    ) -> Result<VethFigures, TrialError> {
        let setup = Setup {
            size: parameters.size.0,
            routes: parameters.routes,
            line: LineConfig::new(1),
            sa_ttl: None,
        };
        let bench = Bench::new(&setup)?;
        writer.start()?;
        let result = bench.find_limit(&parameters)?;
        let bits = result["limit"]["passed_bits_per_second"].as_f64();
        let bits = bits.context("the load tester found no rate")?;
        let streams = result["trials"].as_array().into_iter().flatten();
        let sent = streams.flat_map(|trial| trial["streams"].as_array().into_iter().flatten());
        let sent = sent.filter_map(|stream| stream["tx_packets"].as_u64());
        Ok(VethFigures {
            ndr: bits,
            operations: sent.sum(),
            searches: 1,
            searches_in_vain: u64::from(bits == 0.0),
        })
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

    fn find_limit(&self, parameters: &VethParameters) -> anyhow::Result<Json> {
        let (top, precision) = (parameters.top.0, parameters.precision.0);
        let seconds = parameters.duration.as_secs_f64().to_string();
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
        command.args(["-b", &top.to_string(), "-p", &precision.to_string()]);
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
