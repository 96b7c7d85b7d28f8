//! The places of a server: the host, by two ways, and guests. It has the same files and arguments
//! everywhere; a leg ends with its value, and with the network namespace of its process.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use anyhow::{bail, Context as _};
use rustix::process::{kill_process_group, Pid, Signal};
use tare_guest::accelerator::Accelerator;
use tare_guest::initramfs::Initramfs;
use tare_guest::kernel::Kernel;
use tare_guest::{Flavour, Guest, Hardware, Limits, Network};
use tare_lab::choices;

use super::service::{folder_text, Service};
use crate::machine::load_program;
use crate::program::leash;
use crate::systems::load::driver::Served;
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
/// The folder of the server in a guest.
const FOLDER: &str = "/srv";
/// The longest time until a server answers.
const START_MAX: Duration = Duration::from_secs(30);
/// The longest time for a command that sets something up in a guest.
const COMMAND_MAX: Duration = Duration::from_secs(60);

/// The file that says how many bounce slots are in use.
const SLOTS_USED: &str = "/sys/kernel/debug/swiotlb/io_tlb_used";

/// A server that runs at a place.
pub(super) struct Leg {
    service: Service,
    address: SocketAddr,
    /// The address for questions about the server's counts.
    counts: SocketAddr,
    /// For files of the server on the host.
    folder: tempfile::TempDir,
    server: Option<Process>,
    guest: Option<Guest>,
}

/// A process that ends with this value, and its group with it.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = kill_process_group(Pid::from_child(&self.0), Signal::KILL);
        let _ = self.0.wait();
    }
}

impl Leg {
    /// Starts a server; a number is an nginx with a document of this length. The process must be in
    /// a network namespace of its own, of which this takes loopback and the bridge.
    ///
    /// # Errors
    /// The place, or the server in it, cannot be started.
    pub(super) fn start(
        place: Place,
        service: impl Into<Service>,
        vcpus: u16,
        accelerator: Accelerator,
    ) -> anyhow::Result<Leg> {
        let service = service.into();
        let folder = tempfile::Builder::new().prefix("tare-guest-").tempdir()?;
        ip(&["link", "set", "lo", "up"])?;
        let (address, counts) = service.addresses(match place {
            Place::Loopback => Ipv4Addr::LOCALHOST,
            _ => SERVER,
        });
        let mut leg = Leg {
            service,
            address,
            counts,
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
            Some(flavour) => leg.start_guest(flavour, vcpus, accelerator)?,
            None => leg.start_here(place)?,
        }
        leg.wait()?;
        Ok(leg)
    }

    /// Returns the address of the server.
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the address for questions about the server's counts.
    pub(super) fn counts(&self) -> SocketAddr {
        self.counts
    }

    /// Returns the certificate of its TLS, as PEM.
    pub(super) fn certificate(&self) -> Option<&str> {
        let identity = self.service.identity.as_ref()?;
        Some(&identity.certificate)
    }

    /// Returns the guest, if the place is one.
    pub(super) fn guest(&mut self) -> Option<&mut Guest> {
        self.guest.as_mut()
    }

    /// Returns how many slots of bounce buffers are in use; `None` outside of a guest, or in one
    /// that has none.
    ///
    /// # Errors
    /// The guest does not say.
    pub(super) fn bounce_slots(&mut self) -> anyhow::Result<Option<u64>> {
        let Some(guest) = &mut self.guest else {
            return Ok(None);
        };
        let script = format!("test ! -e {SLOTS_USED} || cat {SLOTS_USED}");
        let text = guest.output(&["sh", "-c", &script], COMMAND_MAX)?;
        if text.is_empty() {
            return Ok(None);
        }
        let slots = text.trim().parse();
        Ok(Some(slots.with_context(|| {
            format!("{SLOTS_USED}: found {text:?}, expected a number")
        })?))
    }

    /// Checks that the server's process, or its guest, runs.
    ///
    /// # Errors
    /// It has ended: why.
    pub(super) fn check(&mut self) -> anyhow::Result<()> {
        if let Some(guest) = &mut self.guest {
            return Ok(guest.check()?);
        }
        match self.server.as_mut().map(|it| it.0.try_wait()) {
            Some(Ok(Some(status))) => {
                bail!(
                    "{} ended by itself: {status}; {}",
                    self.service.program(),
                    self.log()
                )
            }
            _ => Ok(()),
        }
    }

    /// Asks the server what it has served.
    ///
    /// # Errors
    /// It gives no answer.
    pub(super) fn served(&self) -> anyhow::Result<Served> {
        Served::ask(self.service.kind, self.counts)
    }

    fn log(&self) -> String {
        let log = fs::read_to_string(self.folder.path().join("log")).unwrap_or_default();
        log.trim().to_owned()
    }

    fn start_here(&mut self, place: Place) -> anyhow::Result<()> {
        let path = folder_text(self.folder.path())?;
        for (name, bytes) in self.service.files(path, false) {
            fs::write(self.folder.path().join(name), bytes)?;
        }
        let name = self.service.program();
        let log = fs::File::create(self.folder.path().join("log"))?;
        let program = load_program(name).with_context(|| format!("no {name}"))?;
        // The kernel ends it with this process, whatever ends that.
        let mut command = leash();
        if place != Place::Loopback {
            command.args(["unshare", "--net", "--"]);
        }
        command
            .arg(&program)
            .args(self.service.arguments(path, false))
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        let server = Process(command.spawn().context(name)?);
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
        vcpus: u16,
        accelerator: Accelerator,
    ) -> anyhow::Result<()> {
        ip(&["tuntap", "add", "dev", "near", "mode", "tap"])?;
        ip(&["link", "set", "near", "master", "bridge", "up"])?;
        let kernel = Kernel::installed()?;
        let mut image = Initramfs::new(&std::env::current_exe()?, &kernel)?;
        let service = &self.service;
        image.program(service.program(), service.package())?;
        for (name, bytes) in service.files(FOLDER, true) {
            image.file(&format!("{}/{name}", &FOLDER[1..]), 0o644, bytes);
        }
        // For the files of a server that has none of its own.
        image.file(&format!("{}/.keep", &FOLDER[1..]), 0o644, Vec::new());
        let image = image.in_memory()?;
        let plain = Hardware::new(flavour, accelerator);
        let hardware = Hardware {
            vcpus,
            memory_mib: plain.memory_mib + u32::try_from(service.store_mib())?,
            network: Network::Tap("near".into()),
            ..plain
        };
        let mut guest = Guest::boot(&hardware, &kernel, image.path(), &Limits::default())?;
        for command in [
            &["ip", "address", "add", SERVER_NET, "dev", "eth0"][..],
            &["ip", "link", "set", "eth0", "up"],
        ] {
            guest.output(command, COMMAND_MAX)?;
        }
        let arguments = service.arguments(FOLDER, true);
        let words = arguments.iter().map(String::as_str);
        let command: Vec<&str> = [service.program()].into_iter().chain(words).collect();
        guest.output(&command, COMMAND_MAX)?;
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
            self.check()?;
            if Instant::now() > until {
                let name = self.service.program();
                let log = self.log();
                return Err(error.context(format!("{name} does not answer; {log}")));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}
