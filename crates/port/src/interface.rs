//! Network interfaces: found by name or by PCI address.

mod address;
mod features;

use std::ffi::{CStr, CString};
use std::fs;
use std::io;
use std::mem;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::linux::fs::MetadataExt;
use std::path::Path;

use crate::syscall::{check, new_socket, set_option};
use crate::Error;
pub(crate) use features::features;

/// A network interface of the network namespace that the calling thread is in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    name: String,
    index: u32,
}

impl Interface {
    /// The interface of this name, or at this PCI address, such as `23:00.0` or `0000:23:00.0`.
    ///
    /// # Errors
    /// If there is none; the error lists what there is.
    pub fn find(what: &str) -> Result<Interface, Error> {
        match Address::parse(what) {
            Some(address) => Interface::by_pci_under(Path::new("/sys/bus/pci/devices"), &address),
            None => Interface::by_name(what),
        }
    }

    /// The interface of this name.
    ///
    /// # Errors
    /// If there is none; the error lists those that there are.
    pub fn by_name(name: &str) -> Result<Interface, Error> {
        let index = CString::new(name).map_or(0, |name| {
            // SAFETY: a string that ends with a zero byte, and is only read.
            unsafe { libc::if_nametoindex(name.as_ptr()) }
        });
        // A longer name would not fit where the other calls here want it, and no interface has one.
        if index == 0 || name.len() >= libc::IFNAMSIZ {
            return Err(Error::NoSuchInterface {
                name: name.to_owned(),
                present: Interface::names().unwrap_or_default(),
            });
        }
        Ok(Interface {
            name: name.to_owned(),
            index,
        })
    }

    /// The network namespace of the calling thread, in which the interface is, and its number
    /// there.
    pub(crate) fn key(&self) -> io::Result<(u64, u32)> {
        let namespace = fs::metadata("/proc/thread-self/ns/net")?.st_ino();
        Ok((namespace, self.index))
    }

    /// The names of all interfaces.
    ///
    /// # Errors
    /// If the kernel does not tell.
    pub fn names() -> io::Result<Vec<String>> {
        // SAFETY: takes nothing; the answer is checked below.
        let list = unsafe { libc::if_nameindex() };
        if list.is_null() {
            return Err(io::Error::last_os_error());
        }
        let mut names = Vec::new();
        let mut at = list;
        // SAFETY: the list ends with an entry of index zero, which is as far as this goes; each
        // name before is a string.
        unsafe {
            while (*at).if_index != 0 {
                names.push(CStr::from_ptr((*at).if_name).to_string_lossy().into_owned());
                at = at.add(1);
            }
            libc::if_freenameindex(list);
        }
        Ok(names)
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its number in this network namespace.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// Its hardware address.
    ///
    /// # Errors
    /// If the interface is gone.
    pub fn mac(&self) -> io::Result<[u8; 6]> {
        let request = self.ask(libc::SIOCGIFHWADDR as _)?;
        // SAFETY: the kernel filled in this member.
        let address = unsafe { request.ifr_ifru.ifru_hwaddr.sa_data };
        Ok(std::array::from_fn(|n| address[n] as u8))
    }

    /// The largest payload of a frame: its length less the 14 bytes of the Ethernet header.
    ///
    /// # Errors
    /// If the interface is gone.
    pub fn mtu(&self) -> io::Result<usize> {
        let request = self.ask(libc::SIOCGIFMTU as _)?;
        // SAFETY: the kernel filled in this member.
        Ok(unsafe { request.ifr_ifru.ifru_mtu } as usize)
    }

    /// Sets [`Interface::mtu`], in bytes. Needs CAP_NET_ADMIN.
    ///
    /// # Errors
    /// Without the right to, for a number that its driver does not allow, and where the interface
    /// is gone.
    pub fn set_mtu(&self, mtu: usize) -> io::Result<()> {
        let mut request = self.request();
        request.ifr_ifru.ifru_mtu = libc::c_int::try_from(mtu).unwrap_or(libc::c_int::MAX);
        control(libc::SIOCSIFMTU as _, &mut request)
    }

    /// Sets the number of frames that wait to be sent, at most. Needs CAP_NET_ADMIN.
    ///
    /// # Errors
    /// As [`Interface::set_mtu`].
    pub fn set_transmit_queue(&self, frames: u32) -> io::Result<()> {
        let mut request = self.request();
        // `ifr_qlen`, which is this number of the union too.
        request.ifr_ifru.ifru_metric = libc::c_int::try_from(frames).unwrap_or(libc::c_int::MAX);
        control(libc::SIOCSIFTXQLEN as _, &mut request)
    }

    /// True if it is up and its cable is plugged in.
    ///
    /// # Errors
    /// If the interface is gone.
    pub fn is_up(&self) -> io::Result<bool> {
        let both = (libc::IFF_UP | libc::IFF_RUNNING) as i16;
        Ok(self.flags()? & both == both)
    }

    /// True if it is administratively up, with or without a carrier.
    ///
    /// # Errors
    /// If the interface is gone.
    pub fn is_taken_up(&self) -> io::Result<bool> {
        Ok(self.flags()? & libc::IFF_UP as i16 != 0)
    }

    /// Takes it up or down. Needs CAP_NET_ADMIN.
    ///
    /// # Errors
    /// Without the right to, and where the interface is gone.
    pub fn set_up(&self, up: bool) -> io::Result<()> {
        let flags = self.flags()? & !(libc::IFF_UP as i16);
        let mut request = self.request();
        request.ifr_ifru.ifru_flags = flags | if up { libc::IFF_UP as i16 } else { 0 };
        control(libc::SIOCSIFFLAGS as _, &mut request)
    }

    /// Gives it an IP address beside those that it has, with a route to the others of its prefix,
    /// without asking the link whether another host has it (RFC 4862, 5.4). Returns false if it has
    /// that address with that prefix already. Needs CAP_NET_ADMIN.
    ///
    /// # Errors
    /// Without the right to, for an address that no interface may have, where the interface is
    /// gone, and where the kernel does not have that version of IP.
    pub fn add_address(&self, address: IpAddr, prefix_len: u8) -> io::Result<bool> {
        address::change(self.index, address::Change::Add, address, prefix_len)
    }

    /// Takes an IP address with this prefix from it. Returns false if it does not have it. Needs
    /// CAP_NET_ADMIN.
    ///
    /// # Errors
    /// As [`Interface::add_address`].
    pub fn remove_address(&self, address: IpAddr, prefix_len: u8) -> io::Result<bool> {
        address::change(self.index, address::Change::Remove, address, prefix_len)
    }

    /// The number of its pairs of queues, at least one.
    pub fn queues(&self) -> u32 {
        let mut channels = Channels {
            command: ETHTOOL_GCHANNELS,
            ..Channels::default()
        };
        match self.ethtool(&mut channels) {
            Ok(()) => (channels.combined + channels.rx.min(channels.tx)).max(1),
            Err(_) => 1,
        }
    }

    /// The name of its driver, such as `veth`, where it has one that tells.
    pub fn driver(&self) -> Option<String> {
        let mut driver = Driver::default();
        self.ethtool(&mut driver).ok()?;
        text(&driver.name)
    }

    /// The name of the bus that its driver says it is on: `tap` or `tun` for a TAP or TUN device.
    pub(crate) fn bus(&self) -> Option<String> {
        let mut driver = Driver::default();
        self.ethtool(&mut driver).ok()?;
        text(&driver.bus)
    }

    /// The offloads in use that make it hand over frames longer than the wire's, or
    /// without their checksum.
    ///
    /// Those of the *sender* matter where both ends of a cable are on one machine, as with veth:
    /// there the kernel passes on what a network card would have cut into frames and given a
    /// checksum.
    pub fn offloads(&self) -> Vec<Offload> {
        let on = |offload: &Offload| {
            let mut value = [offload.commands().0, 0];
            self.ethtool(&mut value).is_ok() && value[1] != 0
        };
        Offload::ALL.into_iter().filter(on).collect()
    }

    /// Switches all [`Interface::offloads`] off. Needs CAP_NET_ADMIN.
    ///
    /// # Errors
    /// Without the right to, and where the interface is gone.
    pub fn switch_offloads_off(&self) -> io::Result<()> {
        for offload in self.offloads() {
            self.ethtool(&mut [offload.commands().1, 0])?;
        }
        Ok(())
    }

    /// The frames that it has sent since it was made, by whichever program.
    ///
    /// # Errors
    /// If the interface is gone.
    pub fn sent(&self) -> io::Result<u64> {
        // Not from /sys, which shows the network namespace that it was mounted in.
        let devices = fs::read_to_string("/proc/thread-self/net/dev")?;
        let line = devices.lines().find_map(|line| {
            let (name, counters) = line.split_once(':')?;
            (name.trim_start() == self.name).then_some(counters)
        });
        // Eight numbers of what was received, then bytes and packets sent.
        line.and_then(|counters| counters.split_ascii_whitespace().nth(9)?.parse().ok())
            .ok_or_else(|| io::Error::from_raw_os_error(libc::ENODEV))
    }

    fn by_pci_under(devices: &Path, address: &Address) -> Result<Interface, Error> {
        let address = &address.0;
        let device = devices.join(address);
        if !device.exists() {
            return Err(Error::NoSuchDevice {
                address: address.clone(),
                present: with_interface(devices),
            });
        }
        match interface_of(&device) {
            Some(name) => Interface::by_name(&name),
            None => Err(Error::NoInterfaceOfDevice {
                address: address.clone(),
                driver: fs::read_link(device.join("driver"))
                    .ok()
                    .and_then(|path| Some(path.file_name()?.to_str()?.to_owned())),
            }),
        }
    }

    fn flags(&self) -> io::Result<i16> {
        let request = self.ask(libc::SIOCGIFFLAGS as _)?;
        // SAFETY: the kernel filled in this member.
        Ok(unsafe { request.ifr_ifru.ifru_flags })
    }

    fn request(&self) -> libc::ifreq {
        // SAFETY: plain numbers and pointers, for which zero is a value.
        let mut request: libc::ifreq = unsafe { mem::zeroed() };
        // `by_name` checked that the name leaves room for the zero behind it.
        for (to, from) in request.ifr_name.iter_mut().zip(self.name.bytes()) {
            *to = from as libc::c_char;
        }
        request
    }

    fn ask(&self, what: libc::Ioctl) -> io::Result<libc::ifreq> {
        let mut request = self.request();
        control(what, &mut request)?;
        Ok(request)
    }

    fn ethtool<T: Ethtool>(&self, answer: &mut T) -> io::Result<()> {
        let mut request = self.request();
        request.ifr_ifru.ifru_data = (answer as *mut T).cast();
        control(SIOCETHTOOL, &mut request)
    }
}

/// Something that the kernel does to frames before they are handed over or after they are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offload {
    /// Checksums of what is sent are left to the network card.
    TransmitChecksum,
    /// TCP segments of what is sent are cut by the network card.
    TcpSegmentation,
    /// Packets are cut just before they are sent.
    GenericSegmentation,
    /// Packets received are joined.
    GenericReceive,
}

impl Offload {
    /// In the order in which they can be switched off: some depend on others.
    const ALL: [Offload; 4] = [
        Offload::TcpSegmentation,
        Offload::GenericSegmentation,
        Offload::GenericReceive,
        Offload::TransmitChecksum,
    ];

    /// `ethtool` numbers to ask for it and to set it.
    const fn commands(self) -> (u32, u32) {
        match self {
            Offload::TransmitChecksum => (0x16, 0x17),
            Offload::TcpSegmentation => (0x1e, 0x1f),
            Offload::GenericSegmentation => (0x23, 0x24),
            Offload::GenericReceive => (0x2b, 0x2c),
        }
    }
}

/// A PCI address with its domain, as the kernel writes it.
#[derive(Debug, PartialEq, Eq)]
struct Address(String);

impl Address {
    /// From `[DDDD:]BB:DD.F`, or nothing where it is not one. No interface can have such a name:
    /// the kernel allows no colon.
    fn parse(text: &str) -> Option<Address> {
        let hex = |part: &str, digits, below: u32| {
            let all = part.len() == digits && part.bytes().all(|digit| digit.is_ascii_hexdigit());
            let number = u32::from_str_radix(part, 16).ok()?;
            (all && number < below).then_some(number)
        };
        let (rest, function) = text.rsplit_once('.')?;
        let (rest, device) = rest.rsplit_once(':')?;
        let (domain, bus) = rest.split_once(':').unwrap_or(("0000", rest));
        Some(Address(format!(
            "{:04x}:{:02x}:{:02x}.{:x}",
            hex(domain, 4, 1 << 16)?,
            hex(bus, 2, 1 << 8)?,
            hex(device, 2, 1 << 5)?,
            hex(function, 1, 1 << 3)?,
        )))
    }
}

/// The network interface of a device in sysfs. That of a virtio device is one level deeper.
fn interface_of(device: &Path) -> Option<String> {
    let first = |path: &Path| Some(fs::read_dir(path).ok()?.next()?.ok()?.file_name());
    let name = first(&device.join("net")).or_else(|| {
        let mut inner = fs::read_dir(device).ok()?.filter_map(Result::ok);
        inner.find_map(|entry| {
            let virtio = entry.file_name().to_str()?.starts_with("virtio");
            virtio.then(|| first(&entry.path().join("net"))).flatten()
        })
    })?;
    name.into_string().ok()
}

/// All PCI devices with a network interface.
fn with_interface(devices: &Path) -> Vec<(String, String)> {
    let mut found: Vec<_> = fs::read_dir(devices)
        .into_iter()
        .flatten()
        .filter_map(Result::ok)
        .filter_map(|entry| {
            Some((
                entry.file_name().into_string().ok()?,
                interface_of(&entry.path())?,
            ))
        })
        .collect();
    found.sort();
    found
}

/// Has an interface receive what is addressed to others, too, for as long as the answer is held.
pub(crate) fn promiscuous(interface: &Interface) -> io::Result<OwnedFd> {
    // Of no protocol, so it receives nothing.
    let socket = new_socket(libc::AF_PACKET, libc::SOCK_RAW, 0)?;
    let membership = libc::packet_mreq {
        mr_ifindex: interface.index as i32,
        mr_type: libc::PACKET_MR_PROMISC as u16,
        mr_alen: 0,
        mr_address: [0; 8],
    };
    set_option(
        &socket,
        libc::SOL_PACKET,
        libc::PACKET_ADD_MEMBERSHIP,
        &membership,
    )?;
    Ok(socket)
}

/// A text of the kernel's up to its first zero byte, unless it is empty.
fn text(bytes: &[u8]) -> Option<String> {
    let text = bytes.split(|&byte| byte == 0).next()?;
    Some(String::from_utf8_lossy(text).into_owned()).filter(|text| !text.is_empty())
}

fn control(what: libc::Ioctl, request: &mut libc::ifreq) -> io::Result<()> {
    let socket: OwnedFd = new_socket(libc::AF_INET, libc::SOCK_DGRAM, 0)?;
    // SAFETY: all requests made here read and write an `ifreq`, and where it points to further
    // data, that is an `Ethtool`, whose size the kernel knows from its command.
    check(unsafe { libc::ioctl(socket.as_raw_fd(), what, request as *mut libc::ifreq) })?;
    Ok(())
}

const SIOCETHTOOL: libc::Ioctl = 0x8946;
const ETHTOOL_GDRVINFO: u32 = 0x03;
const ETHTOOL_GCHANNELS: u32 = 0x3c;

/// Question and answer of SIOCETHTOOL.
///
/// # Safety
/// Begins with a command that makes the kernel read and write no more than the type's size.
unsafe trait Ethtool {}

/// A command and a value.
// SAFETY: `struct ethtool_value`; only commands of that structure are used with it.
unsafe impl Ethtool for [u32; 2] {}

/// `struct ethtool_channels`.
#[repr(C)]
#[derive(Default)]
struct Channels {
    command: u32,
    /// The most of each, in the order of those that follow.
    most: [u32; 4],
    rx: u32,
    tx: u32,
    other: u32,
    combined: u32,
}

// SAFETY: of the size of the kernel's structure, and used with ETHTOOL_GCHANNELS only.
unsafe impl Ethtool for Channels {}

/// `struct ethtool_drvinfo`.
#[repr(C)]
struct Driver {
    command: u32,
    name: [u8; 32],
    /// Versions of driver and firmware.
    versions: [u8; 64],
    bus: [u8; 32],
    rest: [u8; 64],
}

impl Default for Driver {
    fn default() -> Driver {
        Driver {
            command: ETHTOOL_GDRVINFO,
            name: [0; 32],
            versions: [0; 64],
            bus: [0; 32],
            rest: [0; 64],
        }
    }
}

// SAFETY: of the size of the kernel's structure, and used with ETHTOOL_GDRVINFO only.
unsafe impl Ethtool for Driver {}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn a_pci_address_is_understood_with_and_without_its_domain() {
        for (text, address) in [
            ("23:00.0", Some("0000:23:00.0")),
            ("0000:23:00.0", Some("0000:23:00.0")),
            ("0001:Af:1f.7", Some("0001:af:1f.7")),
            ("eth0", None),
            ("eth0.100", None),
            ("23:00", None),
            ("23:20.0", None),
            ("23:00.8", None),
            ("23:+0.0", None),
            ("123:00.0", None),
            ("10000:23:00.0", None),
            ("", None),
        ] {
            let parsed = Address::parse(text).map(|address| address.0);
            assert_eq!(parsed.as_deref(), address, "{text}");
        }
    }

    #[test]
    fn an_interface_is_found_by_its_pci_address() {
        let devices = tempfile::tempdir().unwrap();
        let at = |path: &str| devices.path().join(path);
        fs::create_dir_all(at("0000:23:00.0/net/lo")).unwrap();
        fs::create_dir_all(at("0000:24:00.0/virtio7/net/lo")).unwrap();
        fs::create_dir_all(at("0000:25:00.0")).unwrap();
        symlink(
            "../../../bus/pci/drivers/vfio-pci",
            at("0000:25:00.0/driver"),
        )
        .unwrap();
        let find = |text| Interface::by_pci_under(devices.path(), &Address::parse(text).unwrap());
        assert_eq!(find("23:00.0").unwrap().name(), "lo");
        assert_eq!(find("24:00.0").unwrap().name(), "lo");
        let said = find("25:00.0").unwrap_err().to_string();
        assert!(
            said.contains("0000:25:00.0") && said.contains("vfio-pci"),
            "{said}"
        );
        let said = find("26:00.0").unwrap_err().to_string();
        assert!(
            said.contains("0000:26:00.0") && said.contains("0000:23:00.0 (lo), 0000:24:00.0 (lo)"),
            "{said}"
        );
    }

    #[test]
    fn an_interface_that_is_not_there_is_answered_with_those_that_are() {
        for name in ["nothing", "a-name-that-is-far-too-long", "", "zero\0byte"] {
            let said = Interface::find(name).unwrap_err().to_string();
            assert!(said.contains("there are") && said.contains("lo"), "{said}");
        }
    }

    #[test]
    fn loopback_is_found_and_described() {
        let lo = Interface::find("lo").unwrap();
        assert_eq!(lo.name(), "lo");
        assert_eq!(lo.mac().unwrap(), [0; 6]);
        assert!(lo.mtu().unwrap() >= 1500);
        assert_eq!(lo.queues(), 1);
    }
}
