//! Sessions by the address of a node.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::path::Path;

use super::{Error, Session};
use crate::operation::SpaceId;
use crate::protocol::{
    Authentication, Capability, Client, ClientConfig, SubmitError, NETWORK_DATAGRAM,
};
use crate::transport::xdp::{XdpAddress, XdpLink};
use crate::transport::{shm, Channel, Faults, Faulty, Link, Remote, UdpLink, Waiting};

/// A channel of any transport.
pub type AnyChannel = Box<dyn Channel + Send>;

/// The settings of a session.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// The address space; a random one if `None`.
    pub space: Option<SpaceId>,
    /// The settings of the client; those of [`ClientConfig::new`] with a random number if `None`.
    /// Over shared memory only the timeout and the most operations have a meaning.
    pub client: Option<ClientConfig>,
    /// The way to wait for answers.
    pub waiting: Waiting,
    /// Faults of the network that are made in the process, and their seed. Not over shared memory.
    pub faults: Option<(Faults, u64)>,
}

const EXPECTED: &str = "udp://HOST:PORT, shm:PATH for a node on this machine, or \
                        xdp:IFACE,OWN-ADDRESS,NODE-ADDRESS:PORT for the frames of an interface";

const EXPECTED_WITH_FAULTS: &str = "udp://HOST:PORT, since there are to be faults of the network";

/// Opens a session with the node at an address: `udp://HOST:PORT`, `shm:PATH` for one on this
/// machine, or `xdp:IFACE,OWN-ADDRESS,NODE-ADDRESS:PORT` for one on the link of an interface, whose
/// frames this process receives from then on instead of the kernel. That a node is there shows with
/// the first operation, but for shared memory.
///
/// # Errors
/// [`Error::Address`], [`Error::Host`] for a host without an address, and [`Error::Io`].
pub fn connect(address: &str, options: &Options) -> Result<Session, Error> {
    open(address, options, None)
}

/// Opens a session as [`connect`] does, with a node that demands capabilities, for the space of
/// this one. Over UDP all messages are encrypted; over shared memory it is shown to the node.
///
/// # Errors
/// Those of [`connect`]; over shared memory [`SubmitError::Unauthorized`] if the node does not
/// accept the capability.
pub fn connect_authorized(
    address: &str,
    options: &Options,
    capability: Capability,
) -> Result<Session, Error> {
    let options = Options {
        space: Some(capability.space()),
        ..*options
    };
    open(address, &options, Some(capability))
}

fn open(
    address: &str,
    options: &Options,
    capability: Option<Capability>,
) -> Result<Session, Error> {
    let invalid = |expected| Error::Address {
        address: address.to_string(),
        expected,
    };
    let channel = match address.split_once(':') {
        Some(("udp", place)) => {
            let nodes = resolve(place).ok_or_else(|| invalid(EXPECTED))??;
            let node = nodes[0];
            let link = UdpLink::connect(node, options.waiting)?;
            let datagram_bytes = link.datagram_bytes();
            over(link, (datagram_bytes, usize::MAX), options, capability)?
        }
        Some(("xdp", place)) => {
            let place = XdpAddress::with_node(place);
            let (own, node) = place.map_err(|_| invalid(EXPECTED))?;
            let link = XdpLink::connect(own, node, options.waiting)?;
            let most = link.station().datagram_max();
            over(link, (NETWORK_DATAGRAM, most), options, capability)?
        }
        Some(("shm", _)) if options.faults.is_some() => return Err(invalid(EXPECTED_WITH_FAULTS)),
        Some(("shm", path)) if !path.is_empty() => shm(Path::new(path), options, capability)?,
        _ => return Err(invalid(EXPECTED)),
    };
    let space = match options.space {
        Some(space) => space,
        None => SpaceId(random_id()?),
    };
    Ok(Session::new(channel, space))
}

/// Returns the addresses of the node at `udp://HOST:PORT`, one at least.
///
/// # Errors
/// [`Error::Address`] if it is written otherwise, and [`Error::Host`].
pub fn addresses(address: &str) -> Result<Vec<SocketAddr>, Error> {
    let place = address.strip_prefix("udp:").and_then(resolve);
    place.unwrap_or_else(|| {
        Err(Error::Address {
            address: address.to_owned(),
            expected: "udp://HOST:PORT",
        })
    })
}

/// Returns the addresses of a host and port, one at least; `None` if they are written otherwise.
fn resolve(place: &str) -> Option<Result<Vec<SocketAddr>, Error>> {
    let place = place.strip_prefix("//").unwrap_or(place);
    let place = place.strip_suffix('/').unwrap_or(place);
    let (host, port) = place.rsplit_once(':')?;
    port.parse::<u16>().ok().filter(|_| !host.is_empty())?;
    let none = |error| Error::Host {
        host: host.to_owned(),
        error,
    };
    Some(match place.to_socket_addrs() {
        Ok(found) => match found.collect::<Vec<_>>() {
            list if list.is_empty() => Err(none(io::ErrorKind::NotFound.into())),
            list => Ok(list),
        },
        Err(error) => Err(none(error)),
    })
}

/// Opens a channel over a link, with datagrams of this length unless settings say otherwise, and at
/// most of the second one.
fn over(
    link: impl Link + Send + 'static,
    (datagram_bytes, datagram_max): (usize, usize),
    options: &Options,
    capability: Option<Capability>,
) -> Result<AnyChannel, Error> {
    let mut config = match options.client {
        Some(config) => config,
        None => ClientConfig::new(random_id()?),
    };
    let datagram_bytes = config.datagram_bytes.unwrap_or(datagram_bytes);
    config.datagram_bytes = Some(datagram_bytes.min(datagram_max));
    if capability.is_some() {
        config.authentication = Authentication::Aead {
            first_nonce: random_bytes()?,
        };
    }
    let mut client = Client::new(config);
    if let Some(capability) = capability {
        client.authorize(capability);
    }
    Ok(match options.faults {
        None => Box::new(Remote::new(client, link)),
        Some((faults, seed)) => Box::new(Remote::new(client, Faulty::new(link, faults, seed))),
    })
}

fn shm(
    path: &Path,
    options: &Options,
    capability: Option<Capability>,
) -> Result<AnyChannel, Error> {
    let mut config = match options.waiting {
        Waiting::Busy => shm::ClientConfig::busy(),
        Waiting::Asleep => shm::ClientConfig::blocking(),
        Waiting::Adaptive(busy) => shm::ClientConfig {
            busy,
            ..shm::ClientConfig::blocking()
        },
    };
    if let Some(client) = options.client {
        config.timeout = client.timeout;
        config.operations_max = client.operations_max;
    }
    let mut client = shm::Client::connect(path, &config).map_err(io::Error::from)?;
    if let Some(capability) = capability {
        if !client.attach(&capability)? {
            return Err(SubmitError::Unauthorized.into());
        }
    }
    Ok(Box::new(client))
}

/// Returns a random number other than 0, for spaces and for [`ClientConfig::first_id`].
///
/// # Errors
/// [`Error::Io`] if the system has no random numbers.
pub fn random_id() -> Result<u64, Error> {
    Ok(u64::from_le_bytes(random_bytes()?).max(1))
}

/// Returns random bytes, few enough that the system gives them at once.
fn random_bytes<const N: usize>() -> Result<[u8; N], Error> {
    let mut bytes = [0; N];
    let flags = rustix::rand::GetRandomFlags::empty();
    let len = rustix::rand::getrandom(&mut bytes, flags).map_err(std::io::Error::from)?;
    debug_assert_eq!(len, bytes.len());
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_without_an_address_is_no_wrong_syntax() {
        let local = SocketAddr::from(([127, 0, 0, 1], 7311));
        for right in ["udp://127.0.0.1:7311", "udp:127.0.0.1:7311/"] {
            assert_eq!(addresses(right).unwrap(), [local]);
        }
        for wrong in [
            "127.0.0.1:7311",
            "udp://127.0.0.1",
            "udp://:7311",
            "udp://a:x",
            "udp://a:70000",
            "shm:a:1",
        ] {
            let error = addresses(wrong).unwrap_err();
            assert!(matches!(error, Error::Address { .. }), "{wrong}: {error}");
            let text = error.to_string();
            assert!(text.ends_with("expected udp://HOST:PORT"), "{text}");
        }
        // No resolver is asked for a name with a space.
        let address = "udp://no such host:7311";
        let connected = connect(address, &Options::default()).err();
        for error in [addresses(address).unwrap_err(), connected.unwrap()] {
            let text = error.to_string();
            assert!(text.starts_with("no such host has no address: "), "{text}");
        }
    }
}
