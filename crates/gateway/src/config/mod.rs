//! The gateway's configuration: Vita's files of leaves and blocks, read into values that need no
//! further check.
//!
//! ```text
//! private-interface { pci 23:00.0; ip4 172.16.0.10; nexthop-ip4 172.16.0.1; }
//! public-interface { device eth1; ip4 203.0.113.10; nexthop-ip4 203.0.113.1; }
//! route {
//!   id site2;
//!   gw-ip4 198.51.100.2;
//!   net-cidr4 "172.17.1.0/24";
//!   net-cidr6 "2001:db8:1::/48";
//!   preshared-key 91440DA06376A668AC4959A840A125D75FB544E8AA25A08B813E49F0A4B2E270;
//!   spi 1001;
//! }
//! ```
//!
//! Every block and leaf is in [`GATEWAY_FILE`], in words in [`reference()`]. Besides what Vita
//! reads, in its older and its newer spelling, there are interfaces by name, several prefixes a
//! route, IPv6 in every combination, sequence numbers of 32 bits, 256-bit keys, windows, and SAs
//! with given keys for some routes beside the exchange for others.
//!
//! Errors have the line, the leaf, what was found and what was expected; what could be a key
//! is never quoted.

mod check;
mod error;
mod interface;
mod leaves;
mod permissions;
mod reference;
mod route;
mod secret;
pub(crate) mod section;
pub(crate) mod syntax;
mod text;
pub(crate) mod value;

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use tare_daemon::FileContent;

pub use error::{Error, Mistake, Mistakes, Warning};
pub use interface::InterfaceConfig;
pub use leaves::{Block, Leaf, GATEWAY_FILE, GENTEST_FILE};
pub use permissions::permissions_warning;
pub use reference::reference;
pub use route::{Keys, ManualSa, Route};
pub use secret::{Aead, PresharedKey, SaKey};
pub use value::{Device, NoPciAddress, PciAddress};

use route::{Defaults, RouteRead, ROUTES, SAS};
use section::Section;

use crate::dataplane::WINDOW_DEFAULT;

/// The longest file that is read, in bytes: some 300,000 routes.
pub const BYTES_MAX: usize = 64 << 20;

/// The configuration of a gateway, complete and consistent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The interface for plaintext.
    pub private: InterfaceConfig,
    /// The interface for encrypted packets.
    pub public: InterfaceConfig,
    /// The peers, in the order of the file. The public interface has an address of the family of
    /// every gateway, the private one of every prefix.
    pub routes: Vec<Route>,
    /// Bytes that a packet from the private interface may have, without Ethernet header; `None` if
    /// the public interface decides.
    pub mtu: Option<u16>,
    /// The timeout of a key exchange.
    pub negotiation_ttl: Duration,
    /// The lifetime of a key.
    pub sa_ttl: Duration,
    /// The UDP port of the key exchange.
    pub protocol_port: u16,
    /// The address of the Prometheus endpoint.
    pub metrics: Option<SocketAddr>,
    /// True if metrics have the counters of each SA.
    pub metrics_per_sa: bool,
    /// The socket that answers `tare gateway status`.
    pub status_socket: Option<PathBuf>,
}

impl Config {
    /// Seconds that a key exchange may take, by default.
    pub const NEGOTIATION_TTL: Duration = Duration::from_secs(5);
    /// Seconds that a key is used, by default.
    pub const SA_TTL: Duration = Duration::from_secs(600);
    /// The port of the key exchange, by default.
    pub const PROTOCOL_PORT: u16 = tare_packet::udp::KEY_EXCHANGE;
    /// Packets that an anti-replay window covers, by default.
    pub const WINDOW: u32 = WINDOW_DEFAULT;

    /// A gateway of these interfaces and routes, with everything else as by default.
    pub fn new(private: InterfaceConfig, public: InterfaceConfig, routes: Vec<Route>) -> Config {
        Config {
            private,
            public,
            routes,
            mtu: None,
            negotiation_ttl: Config::NEGOTIATION_TTL,
            sa_ttl: Config::SA_TTL,
            protocol_port: Config::PROTOCOL_PORT,
            metrics: None,
            metrics_per_sa: false,
            status_socket: None,
        }
    }

    /// Reads a file. Interfaces that this machine has are compared by what they are, and not by
    /// their names alone.
    ///
    /// # Errors
    /// It cannot be read, or what is wrong with it, line by line.
    pub fn load(path: &Path) -> Result<(Config, Vec<Warning>), Error> {
        Config::of(path, read_file(path))
    }

    /// As [`Config::load`], of a file that has been read.
    ///
    /// # Errors
    /// As [`Config::load`].
    pub fn of(path: &Path, read: io::Result<FileContent>) -> Result<(Config, Vec<Warning>), Error> {
        let content = content(path, read)?;
        let file = path.display().to_string();
        let (config, mut warnings) = parse(&file, &content.bytes, &interface::are_same_here)?;
        warnings.extend(permissions_warning(path, &content.metadata));
        let since_1970 = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
        warnings.extend(check::clock_warning(&file, &config.routes, since_1970));
        Ok((config, warnings))
    }

    /// Reads what stands in a file that errors call `file`.
    ///
    /// # Errors
    /// All errors, with their lines.
    pub fn parse(file: &str, bytes: &[u8]) -> Result<(Config, Vec<Warning>), Error> {
        parse(file, bytes, &|one, other| one == other)
    }
}

/// Reads what stands in a file; `are_same` compares the devices of its interfaces.
fn parse(
    file: &str,
    bytes: &[u8],
    are_same: &dyn Fn(&Device, &Device) -> bool,
) -> Result<(Config, Vec<Warning>), Error> {
    let (mut mistakes, statements) = statements(file, bytes)?;
    let section = Section::file(&GATEWAY_FILE, &statements, &mut mistakes);
    interface::check_distinct(&section, are_same, &mut mistakes);
    let config = read(file, &section, &mut mistakes);
    mistakes.or(config)
}

/// Reads the content of a file.
pub(crate) fn read_file(path: &Path) -> io::Result<FileContent> {
    tare_daemon::read_file(path, BYTES_MAX)
}

/// Returns the content that was read, or the error with the path.
pub(crate) fn content(path: &Path, read: io::Result<FileContent>) -> Result<FileContent, Error> {
    read.map_err(|source| Error::Read {
        path: path.into(),
        source,
    })
}

/// Reads the statements of a file, and returns the list for its errors.
pub(crate) fn statements<'t>(
    file: &str,
    bytes: &'t [u8],
) -> Result<(Mistakes, Vec<syntax::Statement<'t>>), Error> {
    if bytes.len() > BYTES_MAX {
        return Err(Error::TooLong { file: file.into() });
    }
    let mut mistakes = Mistakes::of(file);
    let parsed = match std::str::from_utf8(bytes) {
        Ok(text) => syntax::parse(text),
        Err(error) => {
            let before = bytes.get(..error.valid_up_to()).unwrap_or_default();
            let line = 1 + before.iter().filter(|&&byte| byte == b'\n').count();
            Err(Mistake::at(line as u32)
                .found("bytes that are not UTF-8")
                .expected("text"))
        }
    };
    match parsed {
        Ok(statements) => Ok((mistakes, statements)),
        Err(mistake) => {
            mistakes.push(mistake);
            Err(Error::Invalid(mistakes))
        }
    }
}

/// The interfaces that a file describes.
pub(crate) fn interfaces(
    file: &Section<'_>,
    mistakes: &mut Mistakes,
) -> (Option<InterfaceConfig>, Option<InterfaceConfig>) {
    (
        interface::read(file, interface::PRIVATE, mistakes),
        interface::read(file, interface::PUBLIC, mistakes),
    )
}

/// The times that a file gives or leaves at their defaults: of a negotiation and of an SA.
pub(crate) fn ttls(file: &Section<'_>, mistakes: &mut Mistakes) -> (Duration, Duration) {
    let mut ttl = |name| {
        let seconds = file.optional(name, mistakes, value::number(1..=u32::MAX))?;
        Some((Duration::from_secs(seconds.value.into()), seconds.line))
    };
    let (negotiation, sa) = (ttl("negotiation-ttl"), ttl("sa-ttl"));
    let negotiation_ttl = negotiation.map_or(Config::NEGOTIATION_TTL, |(ttl, _)| ttl);
    let sa_ttl = sa.map_or(Config::SA_TTL, |(ttl, _)| ttl);
    // New keys are asked for from half the life of the old ones on, and used one and a half
    // negotiations later.
    let least = negotiation_ttl * 4;
    if sa_ttl < least {
        let at = |line, leaf, found: Duration| {
            let found = found.as_secs().to_string();
            file.mistake(line).leaf(leaf).found(found)
        };
        mistakes.push(match (sa, negotiation) {
            (Some((ttl, line)), _) => at(line, "sa-ttl", ttl).expected(format!(
                "at least {}, four times negotiation-ttl",
                least.as_secs()
            )),
            (None, given) => {
                let line = given.map_or(file.line, |(_, line)| line);
                at(line, "negotiation-ttl", negotiation_ttl).expected(format!(
                    "at most {}, a quarter of sa-ttl",
                    sa_ttl.as_secs() / 4
                ))
            }
        });
    }
    (negotiation_ttl, sa_ttl)
}

fn read(name: &str, file: &Section<'_>, mistakes: &mut Mistakes) -> Option<(Config, Vec<Warning>)> {
    let (private, public) = interfaces(file, mistakes);
    let (negotiation_ttl, sa_ttl) = ttls(file, mistakes);
    let mtu = file.optional("mtu", mistakes, value::number16(68..=8923));
    let port = file.optional("protocol-port", mistakes, value::number16(1..=u16::MAX));
    let metrics = file.optional("metrics", mistakes, value::socket_address);
    let metrics_per_sa = file.optional("metrics-per-sa", mistakes, value::boolean);
    let status_socket = file.optional("status-socket", mistakes, value::socket_path);
    file.optional("tfc", mistakes, |text| match text {
        "false" => Ok(()),
        _ => Err(value::Wrong::default()),
    });
    let aead = file.optional("aead", mistakes, value::aead);
    let esn = file.optional("esn", mistakes, value::boolean);
    let window = file.optional("window", mistakes, route::window());
    let data_plane = file.optional("data-plane", mistakes, value::boolean);
    let defaults = Defaults {
        aead: aead.map_or(Aead::default(), |aead| aead.value),
        esn: esn.is_none_or(|esn| esn.value),
        window: window.map_or(Config::WINDOW, |window| window.value),
        data_plane: data_plane.is_some_and(|data_plane| data_plane.value),
    };
    let routes = read_routes(file, &defaults, mistakes);
    check::distinct(&routes, defaults.data_plane, mistakes);
    // An address that is wrong is not one that is missing.
    if mistakes.is_empty() {
        check::families(&routes, private.as_ref(), public.as_ref(), mistakes);
    }
    let mut prefixes = routes.iter().flat_map(|route| &route.prefixes);
    if let Some(mtu) = &mtu {
        // RFC 8200, section 5: "every link in the Internet have an MTU of 1280 octets or greater".
        if usize::from(mtu.value) < tare_packet::ipv6::MTU_MIN
            && prefixes.any(|net| net.value.addr().is_ipv6())
        {
            mistakes.push(
                file.mistake(mtu.line)
                    .leaf("mtu")
                    .found(mtu.value.to_string())
                    .expected("at least 1280, as there are IPv6 prefixes"),
            );
        }
    }
    let routes: Vec<(Route, u32)> = routes
        .into_iter()
        .filter_map(|route| {
            let line = route.line;
            Some((route.complete(&defaults, mistakes)?, line))
        })
        .collect();
    let (private, public) = (private?, public?);
    let mut warnings = check::doubts(name, &private, &public, &routes);
    if let Some(metrics) = metrics.as_ref().filter(|at| !at.value.ip().is_loopback()) {
        warnings.push(Warning {
            file: name.into(),
            line: Some(metrics.line),
            text: format!(
                "metrics at {} can be read from outside of this machine",
                metrics.value
            ),
        });
    }
    let routes = routes.into_iter().map(|(route, _)| route).collect();
    let config = Config {
        mtu: mtu.map(|mtu| mtu.value),
        negotiation_ttl,
        sa_ttl,
        protocol_port: port.map_or(Config::PROTOCOL_PORT, |port| port.value),
        metrics: metrics.map(|metrics| metrics.value),
        metrics_per_sa: metrics_per_sa.is_some_and(|per_sa| per_sa.value),
        status_socket: status_socket.map(|path| path.value),
        ..Config::new(private, public, routes)
    };
    Some((config, warnings))
}

/// The routes, with the SAs that stand beside them.
fn read_routes(file: &Section<'_>, defaults: &Defaults, mistakes: &mut Mistakes) -> Vec<RouteRead> {
    let mut routes: Vec<RouteRead> = file
        .blocks(&ROUTES, mistakes)
        .iter()
        .map(|section| RouteRead::read(section, defaults, mistakes))
        .collect();
    let sas = file.blocks(&SAS, mistakes);
    if sas.is_empty() {
        return routes;
    }
    let ids: HashMap<String, usize> = routes
        .iter()
        .enumerate()
        .filter_map(|(i, route)| Some((route.id.as_ref()?.value.clone(), i)))
        .collect();
    // As many as an error looks at.
    let known: Vec<&str> = ids.keys().take(1000).map(String::as_str).collect();
    for sa in &sas {
        let Some(id) = sa.required("route", mistakes, value::id) else {
            continue;
        };
        match ids.get(&id.value).and_then(|&route| routes.get_mut(route)) {
            Some(route) => route.add(sa, mistakes),
            None => mistakes.push_with(|| {
                let mut mistake = sa
                    .mistake(id.line)
                    .leaf("route")
                    .found(error::shown(&id.value))
                    .expected("the id of a route");
                mistake.suggestion = section::nearest(&id.value, &known).map(Box::from);
                mistake
            }),
        }
    }
    routes
}
