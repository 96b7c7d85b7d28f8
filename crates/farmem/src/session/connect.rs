//! Sessions by the address of a node.

use std::net::{SocketAddr, ToSocketAddrs as _};

use super::{Error, Session};
use crate::operation::SpaceId;
use crate::protocol::{Authentication, Capability, Client, ClientConfig};
use crate::transport::{Channel, Faults, Faulty, Remote, UdpLink, Waiting};

/// A channel of any transport.
pub type AnyChannel = Box<dyn Channel + Send>;

/// The settings of a session.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// The address space; a random one if `None`.
    pub space: Option<SpaceId>,
    /// The settings of the client; those of [`ClientConfig::new`] with a random number if `None`.
    pub client: Option<ClientConfig>,
    /// The way to wait for answers.
    pub waiting: Waiting,
    /// Faults of the network that are made in the process, and their seed.
    pub faults: Option<(Faults, u64)>,
}

const EXPECTED: &str = "udp://HOST:PORT";

/// Opens a session with the node at an address, `udp://HOST:PORT`. That the node is there shows
/// with the first operation.
///
/// # Errors
/// [`Error::Address`], also for a host without an address, and [`Error::Io`].
pub fn connect(address: &str, options: &Options) -> Result<Session, Error> {
    open(address, options, None)
}

/// Opens a session as [`connect`] does, with a node that demands encryption, for the space of a
/// capability.
///
/// # Errors
/// Those of [`connect`].
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
    let invalid = || Error::Address {
        address: address.to_string(),
        expected: EXPECTED,
    };
    let (scheme, place) = address.split_once(':').ok_or_else(invalid)?;
    let channel = match scheme {
        "udp" => udp(resolve(place).ok_or_else(invalid)?, options, capability)?,
        _ => return Err(invalid()),
    };
    let space = match options.space {
        Some(space) => space,
        None => SpaceId(random_id()?),
    };
    Ok(Session::new(channel, space))
}

fn resolve(place: &str) -> Option<SocketAddr> {
    let place = place.strip_prefix("//").unwrap_or(place);
    let place = place.strip_suffix('/').unwrap_or(place);
    place.to_socket_addrs().ok()?.next()
}

fn udp(
    node: SocketAddr,
    options: &Options,
    capability: Option<Capability>,
) -> Result<AnyChannel, Error> {
    let mut config = match options.client {
        Some(config) => config,
        None => ClientConfig::new(random_id()?),
    };
    if capability.is_some() {
        config.authentication = Authentication::Aead {
            first_nonce: random_bytes()?,
        };
    }
    let mut client = Client::new(config);
    if let Some(capability) = capability {
        client.authorize(capability);
    }
    let link = UdpLink::connect(node, options.waiting)?;
    Ok(match options.faults {
        None => Box::new(Remote::new(client, link)),
        Some((faults, seed)) => Box::new(Remote::new(client, Faulty::new(link, faults, seed))),
    })
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
