//! Test configurations and the traffic that goes with them, from a few lines: which interfaces, how
//! many routes, how long the packets.
//!
//! ```text
//! private-interface { pci 23:00.0; ip4 172.16.0.10; nexthop-ip4 172.16.0.1; nexthop-mac 02:00:00:00:00:00; }
//! public-interface { pci 22:00.1; ip4 172.16.0.10; nexthop-ip4 172.17.0.10; }
//! route-prefix "172.17";
//! nroutes 40;
//! packet-size IMIX;
//! ```
//!
//! The peer is the public interface's next hop. Route `n` is called `test<n>`, has the SPI
//! `1000 + n`, the key `n - 1`, and the `n`th part of the route prefix: `172.17.<n>.0/24` for up to
//! 255 routes, and finer parts for more. The first 256th of the prefix is no route's: the gateways'
//! own addresses are there. Packets come from the same part of the source prefix as the part of the
//! route prefix that they go to, because that is what the peer lets in on that route.

mod traffic;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;
use std::time::Duration;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use tare_packet::imix::PacketSize;

use crate::config::section::{Placed, Section};
use crate::config::value::{self, Wrong};
use crate::config::{
    self, Aead, Config, Error, InterfaceConfig, Keys, PresharedKey, Route, GENTEST_FILE,
};
use crate::dataplane::WINDOW_DEFAULT;

pub use traffic::Traffic;

/// The most routes of a test.
pub const ROUTES_MAX: u32 = 10_000;

/// The contents of a test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Meta {
    /// The private interface.
    pub private: InterfaceConfig,
    /// The public interface.
    pub public: InterfaceConfig,
    /// The peer's public address.
    pub gateway: IpAddr,
    /// The prefix that contains all routes.
    pub route_prefix: TestPrefix,
    /// The prefix of all sources: the peer's `route_prefix`.
    pub source_prefix: TestPrefix,
    /// Routes, from 1 to [`ROUTES_MAX`].
    pub routes: u32,
    /// The lengths of frames.
    pub packet_size: PacketSize,
    /// The timeout of a key exchange.
    pub negotiation_ttl: Duration,
    /// The lifetime of a key.
    pub sa_ttl: Duration,
}

impl Meta {
    /// Reads a file.
    ///
    /// # Errors
    /// It cannot be read, or what is wrong with it, line by line.
    pub fn load(path: &Path) -> Result<Meta, Error> {
        let content = config::content(path, config::read_file(path))?;
        Meta::parse(&path.display().to_string(), &content.bytes)
    }

    /// Reads what stands in a file that errors call `file`.
    ///
    /// # Errors
    /// All errors, with their lines.
    pub fn parse(file: &str, bytes: &[u8]) -> Result<Meta, Error> {
        let (mut mistakes, statements) = config::statements(file, bytes)?;
        let section = Section::file(&GENTEST_FILE, &statements, &mut mistakes);
        let meta = read(&section, &mut mistakes);
        mistakes.or(meta)
    }

    /// The gateway's configuration.
    pub fn config(&self) -> Config {
        let routes = (1..=self.routes).map(|n| self.route(n)).collect();
        Config {
            negotiation_ttl: self.negotiation_ttl,
            sa_ttl: self.sa_ttl,
            ..Config::new(self.private.clone(), self.public.clone(), routes)
        }
    }

    fn route(&self, n: u32) -> Route {
        let mut key = [0; 32];
        if let Some(end) = key.last_chunk_mut() {
            *end = (n - 1).to_be_bytes();
        }
        Route {
            id: format!("test{n}"),
            gateway: self.gateway,
            prefixes: vec![self.route_prefix.part(n, self.routes)],
            keys: Keys::Exchange {
                preshared_key: PresharedKey::new(key),
                spi: 1000 + n,
                aead: Aead::default(),
            },
            esn: true,
            window: WINDOW_DEFAULT,
        }
    }

    /// The frames that a load tester sends to the private interface, which has this station
    /// address.
    pub fn traffic(&self, destination: [u8; 6]) -> Traffic {
        Traffic::new(self, destination)
    }
}

/// The beginning that all addresses of a test share: two bytes of IPv4, or one to three groups of
/// IPv6.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TestPrefix(IpNet);

impl TestPrefix {
    /// Reads `172.17`, `ac11` or `2001:db8:1`; `None` if `text` is not such a beginning of
    /// addresses of single stations.
    pub fn read(text: &str) -> Option<TestPrefix> {
        let prefix = if text.contains('.') {
            let (a, b) = text.split_once('.')?;
            let byte = |digits: &str| -> Option<u8> {
                let plain = digits.bytes().all(|byte| byte.is_ascii_digit());
                plain.then(|| digits.parse().ok()).flatten()
            };
            TestPrefix::over(Ipv4Addr::new(byte(a)?, byte(b)?, 0, 0).into(), 16)?
        } else {
            let mut groups = [0; 8];
            let mut count = 0u8;
            for (to, group) in groups.iter_mut().zip(text.split(':')) {
                let digits = group.bytes().all(|byte| byte.is_ascii_hexdigit());
                let length = (1..=4).contains(&group.len());
                *to = u16::from_str_radix(group, 16)
                    .ok()
                    .filter(|_| digits && length)?;
                count += 1;
            }
            if text.split(':').count() > 3 {
                return None;
            }
            TestPrefix::over(Ipv6Addr::from(groups).into(), 16 * count)?
        };
        let unusable = match prefix.0.addr() {
            IpAddr::V4(address) => matches!(address.octets(), [0 | 127 | 224.., ..]),
            IpAddr::V6(address) => matches!(address.octets(), [0 | 0xff, ..]),
        };
        (!unusable).then_some(prefix)
    }

    /// The first `len` bits of an address.
    fn over(address: IpAddr, len: u8) -> Option<TestPrefix> {
        IpNet::new(address, len)
            .ok()
            .map(|net| TestPrefix(net.trunc()))
    }

    /// The whole prefix.
    pub fn net(&self) -> IpNet {
        self.0
    }

    /// The part of route `n`, from 1, where there are `routes` in all.
    pub fn part(&self, n: u32, routes: u32) -> IpNet {
        // The first 256th of the parts is left out.
        let parts = |bits: u8| (1u32 << bits) - (1 << (bits - 8));
        let bits = (8..14).find(|&bits| parts(bits) >= routes).unwrap_or(14);
        let index = (1u32 << (bits - 8)) - 1 + n.min(parts(bits));
        let len = self.0.prefix_len() + bits;
        let net = match self.0.addr() {
            IpAddr::V4(address) => {
                let address = address.to_bits() | index << (32 - len);
                Ipv4Net::new(address.into(), len).map(IpNet::V4)
            }
            IpAddr::V6(address) => {
                let address = address.to_bits() | u128::from(index) << (128 - len);
                Ipv6Net::new(address.into(), len).map(IpNet::V6)
            }
        };
        // At most 48 + 14 bits long.
        net.unwrap_or(self.0)
    }
}

fn read(file: &Section<'_>, mistakes: &mut config::Mistakes) -> Option<Meta> {
    let (private, public) = config::interfaces(file, mistakes);
    let (negotiation_ttl, sa_ttl) = config::ttls(file, mistakes);
    let prefix = |text: &str| TestPrefix::read(text).ok_or_else(Wrong::default);
    let route_prefix = file.required("route-prefix", mistakes, prefix);
    let source_prefix = file.optional("source-prefix", mistakes, prefix);
    let routes = file.optional("nroutes", mistakes, value::number(1..=ROUTES_MAX));
    let packet_size = file.optional("packet-size", mistakes, |text| {
        text.parse().map_err(|_| Wrong::default())
    });
    let (private, public, route_prefix) = (private?, public?, route_prefix?);
    let source_prefix = match source_prefix {
        Some(source)
            if source.value.0.addr().is_ipv4() != route_prefix.value.0.addr().is_ipv4() =>
        {
            mistakes.push(
                file.mistake(source.line)
                    .leaf("source-prefix")
                    .found("another family than that of the route prefix")
                    .expected("the same"),
            );
            return None;
        }
        Some(source) => source.value,
        None => own_prefix(&private, &route_prefix, file, mistakes)?,
    };
    let same = match route_prefix.value.0.addr() {
        IpAddr::V4(_) => public.nexthop_ip4.map(IpAddr::V4),
        IpAddr::V6(_) => public.nexthop_ip6.map(IpAddr::V6),
    };
    let other = public.nexthop_ip4.map(IpAddr::V4);
    let other = other.or(public.nexthop_ip6.map(IpAddr::V6));
    let Some(gateway) = same.or(other) else {
        mistakes.push(
            file.mistake(file.line)
                .within("public-interface")
                .found("neither nexthop-ip4 nor nexthop-ip6")
                .expected("the peer's public address as one of them"),
        );
        return None;
    };
    Some(Meta {
        private,
        public,
        gateway,
        route_prefix: route_prefix.value,
        source_prefix,
        routes: routes.map_or(1, |routes| routes.value),
        packet_size: packet_size.map_or(PacketSize::IMIX, |size| size.value),
        negotiation_ttl,
        sa_ttl,
    })
}

/// As much of the private interface's own address as the route prefix has of the peer's addresses.
fn own_prefix(
    private: &InterfaceConfig,
    route_prefix: &Placed<TestPrefix>,
    file: &Section<'_>,
    mistakes: &mut config::Mistakes,
) -> Option<TestPrefix> {
    let net = route_prefix.value.0;
    match private.address_towards(net.addr()) {
        Some(own) => TestPrefix::over(own, net.prefix_len()),
        None => {
            let family = if net.addr().is_ipv4() { "IPv4" } else { "IPv6" };
            mistakes.push(
                file.mistake(route_prefix.line)
                    .leaf("route-prefix")
                    .found(format!(
                        "one of {family}, while the private interface has no {family} address"
                    ))
                    .expected("one of the other family, or an address there"),
            );
            None
        }
    }
}
