//! The places of a server: the host, by two ways, and guests. It has the same files and arguments
//! everywhere; a leg ends with its value, and with the network namespace of its process.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use anyhow::{bail, Context as _};
use tare_guest::accelerator::Accelerator;
use tare_guest::initramfs::Initramfs;
use tare_guest::kernel::Kernel;
use tare_guest::{Flavour, Guest, Hardware, Network};
use tare_lab::choices;
use tare_lab::parameters::Choice as _;

use crate::systems::load::driver::{Running, Served, Service};
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
    /// Returns the flavour of the guest, which has the same name; `None` for the host.
    pub(super) fn flavour(self) -> Option<Flavour> {
        self.name().parse().ok()
    }
}

/// The client's address on the bridge and the server's.
const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 88, 0, 1);
const SERVER: Ipv4Addr = Ipv4Addr::new(10, 88, 0, 2);
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
    pub(super) service: Service,
    pub(super) address: SocketAddr,
    /// The address for questions about the server's counts.
    pub(super) counts: SocketAddr,
    server: Option<Running>,
    guest: Option<Guest>,
}

/// Runs `ip` with arguments that have no blanks in them.
fn ip_line(arguments: &str) -> anyhow::Result<String> {
    let arguments: Vec<&str> = arguments.split(' ').collect();
    ip(&arguments)
}

impl Leg {
    /// Starts a server. The process must be in a network namespace of its own, of which this takes
    /// loopback and the bridge.
    ///
    /// # Errors
    /// The place, or the server in it, cannot be started.
    pub(super) fn start(
        place: Place,
        service: Service,
        vcpus: u16,
        accelerator: Accelerator,
    ) -> anyhow::Result<Leg> {
        ip_line("link set lo up")?;
        let (address, counts) = service.addresses(match place {
            Place::Loopback => Ipv4Addr::LOCALHOST,
            _ => SERVER,
        });
        let mut leg = Leg {
            service,
            address,
            counts,
            server: None,
            guest: None,
        };
        if place != Place::Loopback {
            ip_line("link add bridge type bridge forward_delay 0")?;
            ip_line(&format!("address add {CLIENT}/24 dev bridge"))?;
            ip_line("link set bridge up")?;
        }
        match place.flavour() {
            Some(flavour) => leg.start_guest(flavour, vcpus, accelerator)?,
            None => leg.start_here(place)?,
        }
        Served::wait(leg.service.kind, counts, START_MAX, || leg.check())?;
        Ok(leg)
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
        let expected = || format!("{SLOTS_USED}: found {text:?}, expected a number");
        Ok(Some(slots.with_context(expected)?))
    }

    /// Checks that the server's process, or its guest, runs.
    ///
    /// # Errors
    /// It has ended: why.
    pub(super) fn check(&mut self) -> anyhow::Result<()> {
        if let Some(guest) = &mut self.guest {
            return Ok(guest.check()?);
        }
        self.server.as_mut().map_or(Ok(()), Running::check)
    }

    fn start_here(&mut self, place: Place) -> anyhow::Result<()> {
        let is_apart = place == Place::Bridge;
        let server = Running::begin(self.service.clone(), is_apart)?;
        let pid = server.pid().as_raw_nonzero().get();
        self.server = Some(server);
        if is_apart {
            // `unshare` has not made the namespace when it is started.
            let here = fs::read_link("/proc/self/ns/net")?;
            let until = Instant::now() + START_MAX;
            while fs::read_link(format!("/proc/{pid}/ns/net"))? == here {
                if Instant::now() > until {
                    bail!("unshare makes no network namespace");
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            ip_line(&format!(
                "link add near type veth peer name far netns {pid}"
            ))?;
            ip_line("link set near master bridge up")?;
            within(pid as u32, || {
                ip_line(&format!("address add {SERVER}/24 dev far"))?;
                ip_line("link set far up")
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
        ip_line("tuntap add dev near mode tap")?;
        ip_line("link set near master bridge up")?;
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
        let mut guest = Guest::boot(&hardware, &kernel, image.path(), Guest::BOOT_MAX)?;
        let script = format!("ip address add {SERVER}/24 dev eth0 && ip link set eth0 up");
        guest.output(&["sh", "-c", &script], COMMAND_MAX)?;
        let arguments = service.arguments(FOLDER, true);
        let mut command = vec![service.program()];
        command.extend(arguments.iter().map(String::as_str));
        guest.output(&command, COMMAND_MAX)?;
        self.guest = Some(guest);
        Ok(())
    }
}
