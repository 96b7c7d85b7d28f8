//! The places of nginx: the host, by two ways, and guests. All serve one document by one
//! configuration; a leg ends with its value, and with the network namespace of its process.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use anyhow::{bail, Context as _};
use tare_guest::accelerator::Accelerator;
use tare_guest::initramfs::Initramfs;
use tare_guest::kernel::Kernel;
use tare_guest::{Flavour, Guest, Hardware, Limits, Network};
use tare_lab::choices;

use crate::machine::load_program;
use crate::program::leash;
use crate::systems::load::driver::{nginx, Served, Server};
use crate::systems::namespace::{ip, within};

choices! {
    /// The place of the server.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) enum Place {
        /// This network namespace, over loopback, as the guide has it.
        Loopback = "loopback",
        /// Another network namespace of the host, over a bridge and a cable.
        Bridge = "bridge",
        /// A virtual machine, over the same bridge and a TAP device.
        Plain = "plain",
        /// The same with forced bounce buffers.
        Swiotlb = "swiotlb",
        /// A confidential virtual machine of AMD.
        SevSnp = "sev-snp",
        /// A confidential virtual machine of Intel.
        Tdx = "tdx",
    }
}

impl Place {
    /// Returns the flavour of the guest; `None` for the host.
    pub(super) fn flavour(self) -> Option<Flavour> {
        match self {
            Place::Loopback | Place::Bridge => None,
            Place::Plain => Some(Flavour::Plain),
            Place::Swiotlb => Some(Flavour::Swiotlb),
            Place::SevSnp => Some(Flavour::SevSnp),
            Place::Tdx => Some(Flavour::Tdx),
        }
    }
}

/// The client's address on the bridge and the server's.
const CLIENT: &str = "10.88.0.1/24";
const SERVER: Ipv4Addr = Ipv4Addr::new(10, 88, 0, 2);
const SERVER_NET: &str = "10.88.0.2/24";
const PORT: u16 = 8080;
/// The folder of nginx in a guest.
const FOLDER: &str = "/srv";
/// The longest time until a server answers.
const START_MAX: Duration = Duration::from_secs(30);
/// The longest time for a command that sets something up in a guest.
const COMMAND_MAX: Duration = Duration::from_secs(60);

/// A server that runs at a place.
pub(super) struct Leg {
    address: SocketAddr,
    /// For files of the server on the host, and of load generators.
    folder: tempfile::TempDir,
    server: Option<Process>,
    guest: Option<Guest>,
}

/// A process that ends with this value.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Leg {
    /// Starts nginx with a document of this length. The process must be in a network namespace of
    /// its own, of which this takes loopback and the bridge.
    ///
    /// # Errors
    /// The place, or the server in it, cannot be started.
    pub(super) fn start(
        place: Place,
        document: usize,
        vcpus: u16,
        accelerator: Accelerator,
    ) -> anyhow::Result<Leg> {
        let folder = tempfile::Builder::new().prefix("tare-guest-").tempdir()?;
        ip(&["link", "set", "lo", "up"])?;
        let address = match place {
            Place::Loopback => Ipv4Addr::LOCALHOST,
            _ => SERVER,
        };
        let mut leg = Leg {
            address: (address, PORT).into(),
            folder,
            server: None,
            guest: None,
        };
        if place != Place::Loopback {
            ip(&[
                "link",
                "add",
                "bridge",
                "type",
                "bridge",
                "forward_delay",
                "0",
            ])?;
            ip(&["address", "add", CLIENT, "dev", "bridge"])?;
            ip(&["link", "set", "bridge", "up"])?;
        }
        match place.flavour() {
            Some(flavour) => leg.start_guest(flavour, document, vcpus, accelerator)?,
            None => leg.start_here(place, document)?,
        }
        leg.wait()?;
        Ok(leg)
    }

    /// Returns the address of the server.
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns a folder that is there for as long as the server is.
    pub(super) fn folder(&self) -> &std::path::Path {
        self.folder.path()
    }

    /// Returns the guest, if the place is one.
    pub(super) fn guest(&mut self) -> Option<&mut Guest> {
        self.guest.as_mut()
    }

    /// Asks nginx what it has served.
    ///
    /// # Errors
    /// It gives no answer.
    pub(super) fn served(&self) -> anyhow::Result<Served> {
        Served::ask(Server::Nginx, self.address)
    }

    fn start_here(&mut self, place: Place, document: usize) -> anyhow::Result<()> {
        let path = self.folder.path().to_str().context("a path of no text")?;
        fs::write(self.folder.path().join("index.html"), "x".repeat(document))?;
        let config = nginx(path, (Ipv4Addr::UNSPECIFIED, PORT).into(), "off");
        fs::write(self.folder.path().join("nginx.conf"), config)?;
        let log = fs::File::create(self.folder.path().join("log"))?;
        let program = load_program("nginx").context("no nginx")?;
        // The kernel ends it with this process, whatever ends that.
        let mut command = leash();
        if place != Place::Loopback {
            command.args(["unshare", "--net", "--"]);
        }
        command
            .arg(&program)
            .args(["-e", "stderr", "-p", path, "-c", "nginx.conf"])
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        let server = Process(command.spawn().context("nginx")?);
        let pid = server.0.id();
        self.server = Some(server);
        if place == Place::Bridge {
            // `unshare` has not made the namespace when it is started.
            let here = fs::read_link("/proc/self/ns/net")?;
            let until = Instant::now() + START_MAX;
            while fs::read_link(format!("/proc/{pid}/ns/net"))? == here {
                if Instant::now() > until {
                    bail!("unshare makes no network namespace");
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            let number = pid.to_string();
            ip(&[
                "link", "add", "near", "type", "veth", "peer", "name", "far", "netns", &number,
            ])?;
            ip(&["link", "set", "near", "master", "bridge", "up"])?;
            within(pid, || {
                ip(&["address", "add", SERVER_NET, "dev", "far"])?;
                ip(&["link", "set", "far", "up"])
            })?;
        }
        Ok(())
    }

    fn start_guest(
        &mut self,
        flavour: Flavour,
        document: usize,
        vcpus: u16,
        accelerator: Accelerator,
    ) -> anyhow::Result<()> {
        ip(&["tuntap", "add", "dev", "near", "mode", "tap"])?;
        ip(&["link", "set", "near", "master", "bridge", "up"])?;
        let kernel = Kernel::installed()?;
        let mut image = Initramfs::new(&std::env::current_exe()?, &kernel)?;
        image.program("nginx", "nginx-light")?;
        let config = nginx(FOLDER, (Ipv4Addr::UNSPECIFIED, PORT).into(), "on");
        image.file("srv/nginx.conf", 0o644, config.into());
        image.file("srv/index.html", 0o644, vec![b'x'; document]);
        let image = image.in_memory()?;
        let hardware = Hardware {
            vcpus,
            network: Network::Tap("near".into()),
            ..Hardware::new(flavour, accelerator)
        };
        let mut guest = Guest::boot(&hardware, &kernel, image.path(), &Limits::default())?;
        for command in [
            &["ip", "address", "add", SERVER_NET, "dev", "eth0"][..],
            &["ip", "link", "set", "eth0", "up"],
            &["nginx", "-e", "stderr", "-p", FOLDER, "-c", "nginx.conf"],
        ] {
            guest.output(command, COMMAND_MAX)?;
        }
        self.guest = Some(guest);
        Ok(())
    }

    /// Waits until the server answers.
    fn wait(&mut self) -> anyhow::Result<()> {
        let until = Instant::now() + START_MAX;
        loop {
            let error = match self.served() {
                Ok(_) => return Ok(()),
                Err(error) => error,
            };
            let ended = self.server.as_mut().map(|it| it.0.try_wait());
            if Instant::now() > until || matches!(ended, Some(Ok(Some(_)))) {
                let log = fs::read_to_string(self.folder.path().join("log")).unwrap_or_default();
                return Err(error.context(format!("nginx does not answer; {}", log.trim())));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}
