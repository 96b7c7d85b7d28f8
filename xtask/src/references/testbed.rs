//! The topology: client, two gateways and server in namespaces of their own, over veth.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// The position of each namespace in the row.
pub(super) const CLIENT: &str = "client";
pub(super) const SERVER: &str = "server";
pub(super) const GATEWAYS: [&str; 2] = ["a", "b"];

/// Bytes of an inner packet, and of a packet between the gateways: room for any of the tunnels
/// around it.
pub(super) const INNER_MTU: u32 = 1500;
const OUTER_MTU: u32 = 1600;

/// The beginning of names; the number of this process follows.
const PREFIX: &str = "tare-references-";

/// The frames that the wires carry.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Wires {
    /// Frames of the wire's size with their checksum, as between machines: no offload at any end.
    Frames,
    /// Whatever the kernel likes, as veth is made: segments of up to 64 KiB that are never split
    /// and checksums that are never computed.
    Offloaded,
}

impl Wires {
    pub(super) fn name(self) -> &'static str {
        match self {
            Wires::Frames => "frames",
            Wires::Offloaded => "offloads",
        }
    }
}

/// The namespaces of one running, and what runs in them. Dropped, all of it ends.
pub(super) struct Testbed {
    /// Differs between beds of one run; part of names.
    pub(super) number: usize,
    pub(super) wires: Wires,
    programs: Vec<Child>,
}

impl Testbed {
    /// Makes namespaces and links. Hosts have addresses, gateways none.
    pub(super) fn new(number: usize, wires: Wires) -> Result<Testbed, String> {
        let mut testbed = Testbed {
            number,
            wires,
            programs: Vec::new(),
        };
        let [a, b] = GATEWAYS;
        for place in [CLIENT, a, b, SERVER] {
            ip(&format!("netns add {}", testbed.space(place)))?;
            ip(&format!("-n {} link set lo up", testbed.space(place)))?;
            // No unsolicited traffic on the wires.
            testbed.sysctl(place, "net.ipv6.conf.all.disable_ipv6=1")?;
            testbed.sysctl(place, "net.ipv6.conf.default.disable_ipv6=1")?;
        }
        for (at, own, peer, its) in [
            (CLIENT, "lan", a, "private"),
            (a, "public", b, "public"),
            (SERVER, "lan", b, "private"),
        ] {
            let (at, peer) = (testbed.space(at), testbed.space(peer));
            ip(&format!(
                "link add {own} netns {at} type veth peer name {its} netns {peer}"
            ))?;
        }
        for (side, host) in [CLIENT, SERVER].into_iter().enumerate() {
            let gateway = GATEWAYS[side];
            let (net, there) = (16 + side, testbed.space(gateway));
            ip(&format!("-n {there} link set private mtu {INNER_MTU} up"))?;
            ip(&format!("-n {there} link set public mtu {OUTER_MTU} up"))?;
            let there = testbed.space(host);
            ip(&format!("-n {there} addr add 172.{net}.1.2/16 dev lan"))?;
            ip(&format!("-n {there} link set lan mtu {INNER_MTU} up"))?;
            ip(&format!("-n {there} route add default via 172.{net}.0.10"))?;
            if wires == Wires::Frames {
                for (place, link) in [(host, "lan"), (gateway, "private"), (gateway, "public")] {
                    let off = "tx off tso off gso off gro off";
                    testbed.run(place, &format!("ethtool -K {link} {off}"))?;
                }
            }
        }
        let server = testbed.start(
            SERVER,
            Command::new("iperf3").arg("-s"),
            Path::new("/dev/null"),
        )?;
        testbed.programs.push(server);
        Ok(testbed)
    }

    pub(super) fn space(&self, place: &str) -> String {
        format!("{PREFIX}{}-{}-{place}", std::process::id(), self.number)
    }

    /// Lets a gateway's kernel route, with these addresses.
    pub(super) fn let_route(&self, side: usize) -> Result<(), String> {
        let there = self.space(GATEWAYS[side]);
        ip(&format!(
            "-n {there} addr add 172.{}.0.10/16 dev private",
            16 + side
        ))?;
        ip(&format!(
            "-n {there} addr add 192.0.2.{}/24 dev public",
            1 + side
        ))?;
        self.sysctl(GATEWAYS[side], "net.ipv4.ip_forward=1")
    }

    /// Gives client and server each other's MAC address for that of their gateway.
    pub(super) fn join_hosts(&self) -> Result<(), String> {
        for (side, (host, other)) in [(CLIENT, SERVER), (SERVER, CLIENT)].into_iter().enumerate() {
            let address = self.answer(other, "cat /sys/class/net/lan/address")?;
            let net = 16 + side;
            let entry = format!(
                "ip neigh add 172.{net}.0.10 lladdr {} dev lan",
                address.trim()
            );
            self.run(host, &entry)?;
        }
        Ok(())
    }

    fn sysctl(&self, place: &str, setting: &str) -> Result<(), String> {
        self.run(place, &format!("sysctl -qw {setting}"))
    }

    /// Runs a command in a namespace to its end.
    pub(super) fn run(&self, place: &str, command: &str) -> Result<(), String> {
        self.answer(place, command).map(drop)
    }

    /// The same; returns what it wrote to its standard output.
    fn answer(&self, place: &str, command: &str) -> Result<String, String> {
        ip(&format!("netns exec {} {command}", self.space(place)))
    }

    fn start(&self, place: &str, program: &Command, log: &Path) -> Result<Child, String> {
        let log = fs::File::options().create(true).append(true).open(log);
        let log = log.map_err(|error| format!("log: {error}"))?;
        let errors = log.try_clone().map_err(|error| format!("log: {error}"))?;
        Command::new("ip")
            .args(["netns", "exec", &self.space(place)])
            .arg(program.get_program())
            .args(program.get_args())
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(errors)
            .spawn()
            .map_err(|error| format!("ip could not be started: {error}"))
    }

    /// Starts a program that runs until the testbed is dropped.
    pub(super) fn keep(
        &mut self,
        place: &str,
        program: &Command,
        log: &Path,
    ) -> Result<(), String> {
        let child = self.start(place, program, log)?;
        self.programs.push(child);
        Ok(())
    }

    /// Waits until the client reaches the server.
    pub(super) fn wait_until_up(&mut self, seconds: u64) -> Result<(), String> {
        let end = Instant::now() + Duration::from_secs(seconds);
        while Instant::now() < end {
            for program in &mut self.programs {
                if let Ok(Some(status)) = program.try_wait() {
                    return Err(format!("a program ended: {status}"));
                }
            }
            if self.run(CLIENT, "ping -c 1 -W 1 172.17.1.2").is_ok() {
                return Ok(());
            }
            sleep(Duration::from_millis(200));
        }
        Err(format!(
            "client and server are not connected after {seconds} s"
        ))
    }

    /// The rate of one TCP stream from client to server.
    pub(super) fn tcp_megabits(&self, seconds: u32) -> Result<f64, String> {
        let output = Command::new("ip")
            .args(["netns", "exec", &self.space(CLIENT)])
            .args(["iperf3", "-J", "-O", "1", "-c", "172.17.1.2"])
            .args(["-t", &seconds.to_string()])
            .output()
            .map_err(|error| format!("ip could not be started: {error}"))?;
        let text = String::from_utf8_lossy(&output.stdout);
        // Of the report only one number counts, the server's.
        let number = text
            .split_once("\"sum_received\"")
            .and_then(|(_, sum)| sum.split_once("\"bits_per_second\":"))
            .and_then(|(_, rest)| rest.split([',', '}']).next())
            .and_then(|number| number.trim().parse::<f64>().ok());
        match number {
            Some(bits) if output.status.success() && bits > 0.0 => Ok(bits / 1e6),
            _ => Err(format!("iperf3 failed: {text}")),
        }
    }
}

impl Drop for Testbed {
    fn drop(&mut self) {
        for program in &mut self.programs {
            let _ = program.kill();
            let _ = program.wait();
        }
        for place in [CLIENT, SERVER, GATEWAYS[0], GATEWAYS[1]] {
            let _ = ip(&format!("netns delete {}", self.space(place)));
        }
    }
}

/// Deletes the namespaces of a run that was killed.
pub(super) fn remove_leftovers() {
    let spaces = fs::read_dir("/run/netns").into_iter().flatten().flatten();
    for space in spaces {
        let name = space.file_name().to_string_lossy().into_owned();
        let owner = name
            .strip_prefix(PREFIX)
            .and_then(|rest| rest.split('-').next());
        if owner.is_some_and(|owner| !Path::new("/proc").join(owner).exists()) {
            let _ = ip(&format!("netns delete {name}"));
        }
    }
}

/// Runs `ip`, or what it runs, and returns its output; its failure is an error with what it said.
fn ip(words: &str) -> Result<String, String> {
    let output = Command::new("ip")
        .args(words.split(' '))
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("ip could not be started: {error}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let errors = String::from_utf8_lossy(&output.stderr);
    Err(format!("ip {words}: {}", errors.trim()))
}
