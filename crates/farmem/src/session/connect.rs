//! Sessions by the address of a node.

use std::fmt;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::path::Path;

use super::{Error, Session};
use crate::operation::SpaceId;
use crate::protocol::{Authentication, Capability, Client, ClientConfig, SubmitError};
use crate::transport::{shm, Channel, Faults, Faulty, Remote, UdpLink, Waiting};

/// A channel of any transport.
pub type AnyChannel = Box<dyn Channel + Send>;

/// The settings of a session.
#[derive(Clone, Default)]
pub struct Options {
    /// The address space, unless there is a capability; a random one if `None`.
    pub space: Option<SpaceId>,
    /// The capability of the session's space, which a node with a secret wants. Over UDP all
    /// messages are then encrypted.
    pub capability: Option<Capability>,
    /// The settings of the client; those of [`ClientConfig::new`] with a random number if `None`.
    /// Over shared memory only the timeout and the most operations have a meaning.
    pub client: Option<ClientConfig>,
    /// The way to wait for answers.
    pub waiting: Waiting,
    /// Faults of the network that are made in the process, and their seed. Over UDP only.
    pub faults: Option<(Faults, u64)>,
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let authorized = self.capability.as_ref().map(Capability::space);
        f.debug_struct("Options")
            .field("space", &self.space)
            .field("capability", &authorized)
            .field("client", &self.client)
            .field("waiting", &self.waiting)
            .field("faults", &self.faults)
            .finish()
    }
}

const EXPECTED: &str = "udp://HOST:PORT, or shm:PATH for a node on this machine";

const EXPECTED_WITH_FAULTS: &str = "udp://HOST:PORT, since there are to be faults of the network";

/// Opens a session with the node at an address: `udp://HOST:PORT`, or `shm:PATH` for one on this
/// machine. That a node is there shows over UDP with the first operation.
///
/// # Errors
/// [`Error::Address`], also for a host without an address; [`Error::Io`]. Over shared memory, if
/// the node does not accept the capability, [`SubmitError::Unauthorized`].
pub fn connect(address: &str, options: &Options) -> Result<Session, Error> {
    let invalid = |expected| Error::Address {
        address: address.to_string(),
        expected,
    };
    let space = match (&options.capability, options.space) {
        (Some(capability), _) => capability.space(),
        (None, Some(space)) => space,
        (None, None) => SpaceId(random_id()?),
    };
    let channel = match address.split_once(':') {
        Some(("udp", place)) => {
            let node = resolve(place).ok_or_else(|| invalid(EXPECTED))?;
            udp(node, options)?
        }
        Some(("shm", _)) if options.faults.is_some() => return Err(invalid(EXPECTED_WITH_FAULTS)),
        Some(("shm", path)) if !path.is_empty() => shm(Path::new(path), options)?,
        _ => return Err(invalid(EXPECTED)),
    };
    Ok(Session::new(channel, space))
}

/// Opens a session as [`connect`] does, for the space of a capability.
///
/// # Errors
/// Those of [`connect`].
pub fn connect_authorized(
    address: &str,
    options: &Options,
    capability: Capability,
) -> Result<Session, Error> {
    let options = Options {
        capability: Some(capability),
        ..options.clone()
    };
    connect(address, &options)
}

fn resolve(place: &str) -> Option<SocketAddr> {
    let place = place.strip_prefix("//").unwrap_or(place);
    let place = place.strip_suffix('/').unwrap_or(place);
    place.to_socket_addrs().ok()?.next()
}

fn udp(node: SocketAddr, options: &Options) -> Result<AnyChannel, Error> {
    let mut config = match options.client {
        Some(config) => config,
        None => ClientConfig::new(random_id()?),
    };
    if options.capability.is_some() {
        let first_nonce = random_bytes()?;
        config.authentication = Authentication::Aead { first_nonce };
    }
    let mut client = Client::new(config);
    if let Some(capability) = &options.capability {
        client.authorize(capability.clone());
    }
    let link = UdpLink::connect(node, options.waiting)?;
    Ok(match options.faults {
        None => Box::new(Remote::new(client, link)),
        Some((faults, seed)) => Box::new(Remote::new(client, Faulty::new(link, faults, seed))),
    })
}

fn shm(path: &Path, options: &Options) -> Result<AnyChannel, Error> {
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
    if let Some(capability) = &options.capability {
        if !client.attach(capability)? {
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
