//! The measured programs: the kernel's routing with nothing around it, ours, and user-space tunnels
//! of others.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::testbed::{Testbed, GATEWAYS, INNER_MTU};
use crate::shell::{has, step};

/// The time that a tunnel may take to come up.
const UP_SECONDS: u64 = 30;

/// The way between the two networks.
#[derive(Clone)]
pub(super) enum Tunnel {
    /// No tunnel: the kernel routes.
    None,
    /// Ours, the command.
    Tare(PathBuf),
    /// Our ports with nothing between them: the example that passes frames on as they are.
    Ports(PathBuf),
    /// One that carries WireGuard through a TUN device.
    WireGuard {
        /// With its version.
        name: String,
        program: PathBuf,
        /// In front of the name of the device.
        arguments: &'static [&'static str],
    },
}

impl Tunnel {
    pub(super) fn name(&self) -> &str {
        match self {
            Tunnel::None => "routing, no tunnel",
            Tunnel::Tare(_) => "tare gateway",
            Tunnel::Ports(_) => "frames passed on as they are, AF_XDP",
            Tunnel::WireGuard { name, .. } => name,
        }
    }
}

/// boringtun, from its package registry.
pub(super) fn boringtun(folder: &Path) -> Result<Tunnel, String> {
    let program = folder.join("bin/boringtun-cli");
    if !program.is_file() {
        let folder = folder.display().to_string();
        let target = format!("{folder}/build");
        step(
            "boringtun",
            "cargo",
            &[
                "install",
                "boringtun-cli",
                "--locked",
                "--root",
                &folder,
                "--target-dir",
                &target,
            ],
        )?;
    }
    Ok(Tunnel::WireGuard {
        name: said(&program, &["--version"], "boringtun"),
        program,
        arguments: &["--foreground", "--disable-drop-privileges"],
    })
}

/// wireguard-go, through the module proxy.
pub(super) fn wireguard_go(folder: &Path) -> Result<Tunnel, String> {
    let program = folder.join("bin/wireguard");
    if !program.is_file() {
        if !has("go") {
            return Err("wireguard-go: Go is missing: https://go.dev/dl".into());
        }
        std::env::set_var("GOBIN", folder.join("bin"));
        step(
            "wireguard-go",
            "go",
            &["install", "golang.zx2c4.com/wireguard@latest"],
        )?;
    }
    // It says an older version than the module that it was built from.
    let module = said(
        Path::new("go"),
        &["version", "-m", &program.display().to_string()],
        "",
    );
    let version = module
        .lines()
        .find_map(|line| {
            line.trim()
                .strip_prefix("mod\tgolang.zx2c4.com/wireguard\t")
        })
        .and_then(|rest| rest.split_whitespace().next());
    Ok(Tunnel::WireGuard {
        name: format!("wireguard-go {}", version.unwrap_or_default()),
        program,
        arguments: &["--foreground"],
    })
}

/// A program's standard output, or `otherwise` if that is empty.
fn said(program: &Path, arguments: &[&str], otherwise: &str) -> String {
    let output = Command::new(program).args(arguments).output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_string());
    text.ok()
        .filter(|text| !text.is_empty())
        .unwrap_or(otherwise.into())
}

/// A tunnel that runs in a testbed of its own.
pub(super) struct Running {
    pub(super) tunnel: Tunnel,
    pub(super) testbed: Testbed,
    /// Configurations, keys, logs.
    folder: PathBuf,
}

impl Running {
    /// Starts both gateways, and waits until packets pass.
    pub(super) fn start(tunnel: Tunnel, testbed: Testbed) -> Result<Running, String> {
        let name = format!("tare-references-{}-{}", std::process::id(), testbed.number);
        let folder = std::env::temp_dir().join(name);
        fs::create_dir(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        let mut running = Running {
            tunnel,
            testbed,
            folder,
        };
        let name = running.tunnel.name().to_string();
        running.go().map_err(|error| {
            let logs = [0, 1].map(|side| fs::read_to_string(running.log(side)).unwrap_or_default());
            format!("{name}: {error}\n{}", logs.concat())
        })?;
        Ok(running)
    }

    fn go(&mut self) -> Result<(), String> {
        match self.tunnel.clone() {
            Tunnel::None => self.start_routing()?,
            Tunnel::Tare(program) => self.start_tare(&program)?,
            Tunnel::Ports(program) => self.start_ports(&program)?,
            Tunnel::WireGuard {
                program, arguments, ..
            } => self.start_wireguard(&program, arguments)?,
        }
        self.testbed.wait_until_up(UP_SECONDS)
    }

    fn log(&self, side: usize) -> PathBuf {
        self.folder.join(format!("{side}.log"))
    }

    /// Writes a file that only its owner may read.
    fn write(&self, name: &str, text: &str) -> Result<String, String> {
        let path = self.folder.join(name);
        fs::write(&path, text)
            .and_then(|()| fs::set_permissions(&path, fs::Permissions::from_mode(0o600)))
            .map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(path.display().to_string())
    }

    fn start_routing(&self) -> Result<(), String> {
        for (side, place) in GATEWAYS.into_iter().enumerate() {
            self.testbed.let_route(side)?;
            let route = format!(
                "ip route add 172.{}.0.0/16 via 192.0.2.{}",
                17 - side,
                2 - side
            );
            self.testbed.run(place, &route)?;
        }
        Ok(())
    }

    fn start_tare(&mut self, program: &Path) -> Result<(), String> {
        let key = said(program, &["gateway", "keygen"], "");
        for (side, place) in GATEWAYS.into_iter().enumerate() {
            let (net, own, peer) = (16 + side, 1 + side, 2 - side);
            let text = format!(
                "private-interface {{ device private; ip4 172.{net}.0.10; nexthop-ip4 172.{net}.1.2; }}\n\
                 public-interface {{ device public; ip4 192.0.2.{own}; nexthop-ip4 192.0.2.{peer}; }}\n\
                 route {{ id peer; gw-ip4 192.0.2.{peer}; net-cidr4 \"172.{}.0.0/16\"; preshared-key {key}; spi 1001; }}\n",
                17 - side
            );
            let path = self.write(&format!("{side}.conf"), &text)?;
            let socket = self.folder.join(format!("{side}.sock"));
            let mut run = Command::new(program);
            run.args(["gateway", "run", &path, "--status-socket"])
                .arg(socket);
            self.testbed.keep(place, &run, &self.log(side))?;
        }
        Ok(())
    }

    /// Lets client and server take each other for their gateways, and passes frames on.
    fn start_ports(&mut self, program: &Path) -> Result<(), String> {
        self.testbed.join_hosts()?;
        for (side, place) in GATEWAYS.into_iter().enumerate() {
            let mut run = Command::new(program);
            run.args(["private", "public"]);
            self.testbed.keep(place, &run, &self.log(side))?;
        }
        Ok(())
    }

    fn start_wireguard(&mut self, program: &Path, arguments: &[&str]) -> Result<(), String> {
        let keys = [wg_key(None)?, wg_key(None)?];
        for (side, place) in GATEWAYS.into_iter().enumerate() {
            self.testbed.let_route(side)?;
            // Its socket is named after the device, in a folder that all namespaces share.
            let device = format!("t{}x{}{}", std::process::id(), self.testbed.number, place);
            let mut run = Command::new(program);
            run.args(arguments).arg(&device);
            self.testbed.keep(place, &run, &self.log(side))?;
            let socket = PathBuf::from(format!("/var/run/wireguard/{device}.sock"));
            let end = Instant::now() + Duration::from_secs(UP_SECONDS);
            while !socket.exists() && Instant::now() < end {
                sleep(Duration::from_millis(20));
            }
            let path = self.write(&format!("{side}.key"), &keys[side])?;
            let public = wg_key(Some(&keys[1 - side]))?;
            let peer = 2 - side;
            for command in [
                format!(
                    "wg set {device} listen-port 51820 private-key {path} peer {public} \
                     endpoint 192.0.2.{peer}:51820 allowed-ips 0.0.0.0/0"
                ),
                format!("ip link set {device} mtu {INNER_MTU} up"),
                format!("ip route add 172.{}.0.0/16 dev {device}", 17 - side),
            ] {
                self.testbed.run(place, &command)?;
            }
        }
        Ok(())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// A new private key, or the public one of this.
fn wg_key(private: Option<&str>) -> Result<String, String> {
    let word = if private.is_some() {
        "pubkey"
    } else {
        "genkey"
    };
    let mut wg = Command::new("wg")
        .arg(word)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| format!("wg could not be started: {error}"))?;
    if let (Some(private), Some(mut stdin)) = (private, wg.stdin.take()) {
        use std::io::Write as _;
        let written = writeln!(stdin, "{private}");
        written.map_err(|error| format!("wg: {error}"))?;
    }
    let output = wg
        .wait_with_output()
        .map_err(|error| format!("wg: {error}"))?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_string())
}
