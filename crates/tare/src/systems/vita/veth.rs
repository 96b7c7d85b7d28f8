//! The same set-up with two real daemons and the real load tester, over veth between network
//! namespaces of their own.
//!
//! The roles `left` and `right` run a gateway each, the role `tester` sends. Each role is in a
//! network namespace that begins and ends with it, and the tester joins them by three cables:
//!
//! ```text
//! tester port0 ── private left public ── public right private ── port1 tester
//! ```
//!
//! A veth pair joins namespaces of one kernel, so these roles must be on the same machine, and may
//! know each other's process ids and files.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{anyhow, bail, ensure, Context as _};
use serde_json::{json, Value as Json};
use tare_gateway::config::Device;
use tare_gateway::tools::gentest::Meta;
use tare_lab::driver::{Expected, Invocation, Missing, Role};
use tare_lab::parameters::BitsPerSecond;
use tare_lab::protocol::Ready;
use tare_lab::{figures, parameters};
use tare_packet::pcap;
use tare_sim::LineConfig;

use super::topology::Setup;
use crate::agent::{Agent, TrialError};
use crate::machine::{Feature, Machine};
use crate::systems::gateway::driver::Size;
use crate::systems::namespace::{self, await_link, ip};
use crate::systems::workload::Workload;

/// The longest time until the gateways have keys.
const KEYS_MAX: Duration = Duration::from_secs(15);

/// The usual time until then.
const KEYS_USUAL: Duration = Duration::from_millis(1500);

/// Outer packets are longer than what the tester sends.
const MTU: &str = "2000";

/// The MAC address of both gateways' private interfaces.
const PRIVATE_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];

/// The role that measures.
const TESTER: &str = "tester";

/// The roles that run a gateway.
const GATEWAYS: [&str; 2] = ["left", "right"];

/// This program. The link leads to the file that is running, even when another has taken its
/// place meanwhile.
const PROGRAM: &str = "/proc/self/exe";

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
        /// the time for which each rate is tried
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
        // Rates that fail are tried three times, each of them up to four times where the sending
        // interface dropped packets.
        KEYS_MAX + parameters.duration.mul_f64(120.0)
    }

    fn roles() -> Vec<Role> {
        let names = [TESTER].into_iter().chain(GATEWAYS);
        let role = |name: &str| Role {
            name: name.into(),
            same_host: true,
        };
        names.map(role).collect()
    }

    fn invocation(_: &Role, _: &VethParameters, own_trial: Invocation) -> Invocation {
        namespace::apart(own_trial)
    }

    fn run(parameters: VethParameters, agent: &mut Agent) -> Result<VethFigures, TrialError> {
        let tester = Tester::new(&setup(&parameters))?;
        let roles = agent.ready(Ready::new())?;
        let mut gateways = Vec::new();
        for name in GATEWAYS {
            let data = roles.get(name).with_context(|| format!("no role {name}"))?;
            gateways.push(Gateway::of(name, data)?);
        }
        cable(None, "port0", Some(gateways[0].pid), "private")?;
        cable(None, "port1", Some(gateways[1].pid), "private")?;
        cable(
            Some(gateways[0].pid),
            "public",
            Some(gateways[1].pid),
            "public",
        )?;
        for port in ["port0", "port1"] {
            await_link(port)?;
        }
        await_keys(&gateways, parameters.routes)?;
        agent.start()?;
        let result = tester.find_limit(&parameters)?;
        let bits = no_drop_rate(&result)?;
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

    fn serve(role: &str, parameters: VethParameters, agent: &mut Agent) -> Result<(), TrialError> {
        let place = GATEWAYS.iter().position(|name| *name == role);
        let place = place.with_context(|| format!("no gateway {role}"))?;
        let [left, right] = setup(&parameters).metas()?;
        let meta = if place == 0 { left } else { right };
        let folder = tempfile::tempdir()?;
        let status_socket = folder.path().join("status.sock");
        let data = json!({ "pid": std::process::id(), "status_socket": status_socket });
        agent.ready(data.as_object().cloned().unwrap_or_default())?;
        // A gateway that began before would lose its first negotiation, and wait to repeat it.
        for interface in ["private", "public"] {
            await_link(interface)?;
        }
        let mut daemon = start_gateway(meta, folder.path(), &status_socket)?;
        agent.until_stopped(|| match daemon.0.try_wait()? {
            Some(status) => Err(anyhow!("the gateway ended by itself: {status}")),
            None => Ok(()),
        })?;
        Ok(())
    }
}

fn setup(parameters: &VethParameters) -> Setup {
    Setup {
        size: parameters.size.0,
        routes: parameters.routes,
        line: LineConfig::new(1),
        sa_ttl: None,
    }
}

/// Starts the gateway of a role in this namespace. What it logs is in the log of the role.
fn start_gateway(mut meta: Meta, folder: &Path, status_socket: &Path) -> anyhow::Result<Running> {
    meta.private.device = Device::Name("private".into());
    meta.private.mac = Some(PRIVATE_MAC);
    meta.public.device = Device::Name("public".into());
    // New keys are first used one and a half times this after they were agreed on.
    meta.negotiation_ttl = Duration::from_secs(1);
    let file = folder.join("gateway.conf");
    fs::write(&file, meta.config().text().as_bytes())?;
    let mut command = Command::new(PROGRAM);
    command.args(["gateway", "run", "--status-socket"]);
    command.args([status_socket, &file]);
    command.stdin(Stdio::null()).stdout(Stdio::null());
    Ok(Running(command.spawn()?))
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

/// A gateway, as the tester sees it.
struct Gateway {
    role: &'static str,
    pid: u64,
    status_socket: PathBuf,
}

impl Gateway {
    fn of(role: &'static str, data: &Ready) -> anyhow::Result<Gateway> {
        let pid = data.get("pid").and_then(Json::as_u64);
        let status_socket = data.get("status_socket").and_then(Json::as_str);
        let (Some(pid), Some(status_socket)) = (pid, status_socket) else {
            bail!("{role} is ready with {data:?}, expected its pid and status_socket");
        };
        Ok(Gateway {
            role,
            pid,
            status_socket: status_socket.into(),
        })
    }

    /// The routes that have an outbound SA.
    fn keyed_routes(&self) -> usize {
        let mut command = Command::new(PROGRAM);
        command
            .args(["gateway", "status", "--json"])
            .arg(&self.status_socket);
        let Ok(output) = command.stdin(Stdio::null()).output() else {
            return 0;
        };
        let status: Json = serde_json::from_slice(&output.stdout).unwrap_or_default();
        let routes = status["routes"].as_array().map_or(&[][..], Vec::as_slice);
        let keyed = routes
            .iter()
            .filter(|route| route["outbound"][0].is_object());
        keyed.count()
    }
}

fn await_keys(gateways: &[Gateway], routes: u32) -> anyhow::Result<()> {
    let deadline = Instant::now() + KEYS_MAX;
    for gateway in gateways {
        while gateway.keyed_routes() < routes as usize {
            let role = gateway.role;
            ensure!(
                Instant::now() < deadline,
                "{role} has no keys after {KEYS_MAX:?}"
            );
            std::thread::sleep(Duration::from_millis(50));
        }
    }
    Ok(())
}

/// The load tester with what it sends.
struct Tester {
    folder: tempfile::TempDir,
}

impl Tester {
    fn new(setup: &Setup) -> anyhow::Result<Tester> {
        let tester = Tester {
            folder: tempfile::tempdir()?,
        };
        for (n, meta) in setup.metas()?.into_iter().enumerate() {
            let file = fs::File::create(tester.stream(n + 1))?;
            let mut writer = pcap::Writer::new(file, pcap::Header::default())?;
            for frame in meta.traffic(PRIVATE_MAC).iter() {
                writer.write(0, &frame)?;
            }
        }
        Ok(tester)
    }

    /// The file of the packets that are sent to a node.
    fn stream(&self, node: usize) -> PathBuf {
        self.folder.path().join(format!("node{node}.pcap"))
    }

    fn find_limit(&self, parameters: &VethParameters) -> anyhow::Result<Json> {
        let (top, precision) = (parameters.top.0, parameters.precision.0);
        // The search that has one answer, whatever a busy machine loses.
        let seconds = parameters.duration.as_secs_f64().to_string();
        let mut command = Command::new(PROGRAM);
        command.args([
            "loadtest",
            "find-limit",
            "--json",
            "--algorithm",
            "bisect",
            "-r",
            "2",
            "-D",
            &seconds,
        ]);
        command.args(["-b", &top.to_string(), "-p", &precision.to_string()]);
        for (n, other) in [(1, 2), (2, 1)] {
            command.arg(self.stream(n));
            command.args([
                format!("node{n}"),
                format!("node{other}"),
                format!("port{}", n - 1),
            ]);
        }
        let output = command.stdin(Stdio::null()).output()?;
        serde_json::from_slice(&output.stdout).map_err(|_| {
            let errors = String::from_utf8_lossy(&output.stderr);
            anyhow!("the load tester: {}", errors.trim())
        })
    }
}

/// The no-drop rate in what the load tester printed.
fn no_drop_rate(result: &Json) -> anyhow::Result<f64> {
    if let Some(error) = result["error"].as_str() {
        bail!("the load tester: {error}");
    }
    let bits = result["limit"]["passed_bits_per_second"].as_f64();
    bits.context("the load tester's result has no limit")
}

/// Makes a veth pair between the namespaces of two processes; `None` is this process.
fn cable(one: Option<u64>, name: &str, two: Option<u64>, other: &str) -> anyhow::Result<()> {
    let pid = |pid: Option<u64>| pid.unwrap_or(std::process::id().into()).to_string();
    ip(&[
        "link",
        "add",
        name,
        "mtu",
        MTU,
        "netns",
        &pid(one),
        "type",
        "veth", //
        "peer",
        "name",
        other,
        "mtu",
        MTU,
        "netns",
        &pid(two),
    ])
    .map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_no_drop_rate_is_read_and_an_error_of_the_load_tester_is_passed_on() {
        let found = json!({"algorithm": "bisect", "limit": {"passed_bits_per_second": 95_000_000}});
        assert_eq!(no_drop_rate(&found).unwrap(), 95e6);
        let failed = json!({"trials": [], "error": "the load could not be offered in 4 attempts"});
        let error = no_drop_rate(&failed).unwrap_err().to_string();
        assert_eq!(
            error,
            "the load tester: the load could not be offered in 4 attempts"
        );
        let of_mlr = json!({"algorithm": "mlr", "goals": []});
        assert!(no_drop_rate(&of_mlr).is_err());
    }
}
