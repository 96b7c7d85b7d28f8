//! Guest and host as two processes that share the region and two eventfds, and nothing else.
//!
//! The host makes the region and the TAP device, starts the guest with one end of a socket as its
//! standard input, and sends it the descriptors there. Each queue pair has a thread of the guest
//! and one of the host. They share with those of other pairs no more than they must: the host its
//! rule which pair a frame is for, the guest what is served. The layout of the region follows from
//! the variant, the number of pairs and the MTU, which the guest has from its own command line.
//! Over the socket the guest tells its counters and what is to be logged, and the host asks it to
//! read its certificate again; when either end closes, the other process ends. The host closes its
//! direction first, and reads the guest's last counters by the other.

mod guest;
mod host;
mod link;
mod report;
mod threads;

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;
use std::time::Duration;

pub use guest::{run_guest, GuestOptions, Services};
pub use host::{run_host, socket_of, HostOptions};
pub use report::{GuestReport, HostReport, PairReport, Report};

use crate::host::DeviceError;
use crate::region;
use crate::tcp::{self, KeepAlive, Network};
use crate::tls;
use crate::variant::{Exits, Variant};

/// The name of this kind of daemon, in the names of its sockets.
pub const KIND: &str = "cvm";

/// The station address of a guest.
pub const GUEST_MAC: [u8; 6] = [0x02, 0x74, 0x61, 0x72, 0x65, 0x02];

/// The longest time between two looks at what is not on the path.
const PULSE: Duration = Duration::from_millis(100);

/// The time for which either side looks again and again before it sleeps.
const POLL: Duration = Duration::from_micros(50);

/// The probes of connections on which nothing arrives: a client that has vanished keeps its place
/// for two minutes.
pub(crate) const KEEP_ALIVE: KeepAlive = KeepAlive {
    idle: Duration::from_secs(60),
    interval: Duration::from_secs(10),
    probes: 6,
};

/// The settings that guest and host have to agree on. Both have them from their command lines:
/// neither believes the other.
#[derive(Clone, Copy, Debug)]
pub struct Agreement {
    /// The variant of the path.
    pub variant: Variant,
    /// The kind of exits.
    pub exits: Exits,
    /// The simulated cost of a world switch, in cycles of the time stamp counter.
    pub switch_cycles: u64,
    /// Both sides look for work all the time, instead of notifying each other.
    pub is_polling: bool,
    /// The processors of the guest: each has a thread and a queue pair, and so has the host for it.
    pub vcpus: u16,
}

impl Agreement {
    /// Returns the layout of the region for a guest with this MTU.
    fn layout(&self, mtu: usize) -> region::Config {
        self.variant.config_of_mtu(self.vcpus, mtu)
    }
}

/// The guest's place in the network: the gateways are the host's own addresses, if it has some.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// IPv4.
    pub ip4: Network<Ipv4Addr>,
    /// IPv6, if there is any.
    pub ip6: Option<Network<Ipv6Addr>>,
    /// Bytes of the longest IP packet.
    pub mtu: usize,
}

impl Place {
    /// Returns the guest's addresses.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        let ip6 = self.ip6.map(|net| net.address.into());
        std::iter::once(self.ip4.address.into()).chain(ip6)
    }
}

/// The reason why a guest or its host could not run, or ended.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The region.
    Region(region::Error),
    /// The device.
    Device(DeviceError),
    /// The TAP device.
    Tap(tare_port::Error),
    /// The network behind the device.
    Network(String, io::Error),
    /// The TAP device of this name was deleted.
    Gone(String),
    /// The guest's process could not be started.
    Launch(io::Error),
    /// The guest's process ended; its standard error says why.
    GuestEnded(String),
    /// The other side of the socket did not send what is expected.
    Link(io::Error),
    /// A server of the guest's could not be made.
    Server(String),
    /// A setting of TCP.
    Tcp(tcp::Invalid),
    /// A setting of TLS.
    Tls(tls::ConfigError),
    /// The capture of frames.
    Capture(PathBuf, io::Error),
    /// The endpoints for status.
    Service(String),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Region(error) => error.fmt(f),
            Error::Device(error) => error.fmt(f),
            Error::Tap(tare_port::Error::Os { doing, source })
                if source.kind() == io::ErrorKind::PermissionDenied =>
            {
                let hint = "the guest's network is a TAP device, which needs root (CAP_NET_ADMIN)";
                write!(f, "{doing}: {source}; {hint}")
            }
            Error::Tap(tare_port::Error::Os { doing, source })
                if source.kind() == io::ErrorKind::ResourceBusy =>
            {
                let hint = "end that process, such as another `tare cvm serve`, or name another \
                            device with --tap";
                write!(f, "{doing}: {source}; {hint}")
            }
            Error::Tap(error) => error.fmt(f),
            Error::Network(what, error) => write!(f, "{what}: {error}"),
            Error::Gone(tap) => write!(f, "the TAP device \"{tap}\" is gone: it was deleted"),
            Error::Launch(error) => write!(f, "the guest could not be started: {error}"),
            Error::GuestEnded(status) => write!(f, "the guest ended: {status}"),
            Error::Link(error) => write!(f, "between guest and host: {error}"),
            Error::Tcp(error) => error.fmt(f),
            Error::Tls(error) => error.fmt(f),
            Error::Capture(path, error) => write!(f, "{}: {error}", path.display()),
            Error::Server(error) | Error::Service(error) => f.write_str(error),
        }
    }
}

impl std::error::Error for Error {}
