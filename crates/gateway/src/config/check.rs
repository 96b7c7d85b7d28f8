//! Checks of what must hold between the parts of a configuration.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::IpAddr;
use std::time::Duration;

use ipnet::IpNet;

use super::error::{self, Mistake, Mistakes, Warning};
use super::interface::InterfaceConfig;
use super::route::{Keys, Route, RouteRead};

/// Tells what two routes share and must not: ids, SPIs, prefixes, SPIs of SAs, keys of SAs.
pub(crate) fn distinct(routes: &[RouteRead], data_plane: bool, mistakes: &mut Mistakes) {
    let ids = routes.iter().flat_map(|route| {
        let id = route.id.as_ref();
        id.map(|id| (route, id.at(), id.value.as_str()))
    });
    unique(ids, "a name of its own", mistakes, |id| error::shown(id));
    if !data_plane {
        let spis = routes.iter().flat_map(|route| {
            let spi = route.spi.as_ref();
            spi.map(|spi| (route, spi.at(), spi.value))
        });
        unique(spis, "a number of its own", mistakes, u32::to_string);
    }
    let prefixes = routes.iter().flat_map(|route| {
        route
            .prefixes
            .iter()
            .map(move |net| (route, net.at(), net.value))
    });
    unique(prefixes, "a prefix of no other", mistakes, IpNet::to_string);
    let inbound = routes.iter().flat_map(|route| {
        route
            .inbound
            .iter()
            .map(move |sa| (route, sa.at(), sa.value.spi))
    });
    unique(
        inbound,
        "an inbound SPI of its own",
        mistakes,
        u32::to_string,
    );
    // What the peer tells its SAs apart by.
    let outbound = routes.iter().flat_map(|route| {
        let gateway = route.gateway.as_ref().map(|gateway| gateway.value);
        let sas = route.outbound.iter();
        sas.filter_map(move |sa| Some((route, sa.at(), (gateway?, sa.value.spi))))
    });
    unique(
        outbound,
        "an SPI of its own at that gateway",
        mistakes,
        |(_, spi): &(IpAddr, u32)| spi.to_string(),
    );
    // RFC 4106, 3.1: "For a given key, the IV MUST NOT repeat." SAs that start at the same time
    // count from the same number.
    let keys = routes.iter().flat_map(|route| {
        let sas = route.inbound.iter().chain(&route.outbound);
        sas.map(move |sa| {
            (
                route,
                (sa.line, "key"),
                (sa.value.key.key(), sa.value.key.salt()),
            )
        })
    });
    unique(
        keys,
        "a key and salt of its own: SAs that share them repeat nonces, which gives the key away",
        mistakes,
        |_| "a key with a salt".into(),
    );
}

/// Tells each value that was there before. With each come its line and leaf.
fn unique<'r, K: Hash + Eq>(
    values: impl Iterator<Item = (&'r RouteRead, (u32, &'static str), K)>,
    expected: &str,
    mistakes: &mut Mistakes,
    show: impl Fn(&K) -> String,
) {
    let mut seen: HashMap<K, (&RouteRead, u32)> = HashMap::new();
    for (route, (at, leaf), key) in values {
        match seen.entry(key) {
            std::collections::hash_map::Entry::Vacant(entry) => {
                entry.insert((route, at));
            }
            std::collections::hash_map::Entry::Occupied(entry) => mistakes.push_with(|| {
                let shown = show(entry.key());
                let (first, line) = entry.get();
                let whose = if std::ptr::eq(*first, route) {
                    "this route".to_string()
                } else {
                    format!("{} too", first.place)
                };
                let has = if whose == "this route" {
                    "already has"
                } else {
                    "has"
                };
                Mistake::at(at)
                    .within(&route.place)
                    .leaf(leaf)
                    .found(format!("{shown}, which {whose} {has} (line {line})"))
                    .expected(expected)
            }),
        }
    }
}

/// Tells which interface lacks an address of a family that a route needs, and whose peer is the
/// gateway itself.
pub(crate) fn families(
    routes: &[RouteRead],
    private: Option<&InterfaceConfig>,
    public: Option<&InterfaceConfig>,
    mistakes: &mut Mistakes,
) {
    let of = |six: bool| if six { "IPv6" } else { "IPv4" };
    for route in routes {
        if let (Some(public), Some(gateway)) = (public, &route.gateway) {
            // The key exchange tells the two ends apart by their addresses.
            if !route.is_manual() && public.address_seen_by(gateway.value) == Some(gateway.value) {
                mistakes.push(
                    Mistake::at(gateway.line)
                        .within(&route.place)
                        .leaf(gateway.leaf)
                        .found(format!(
                            "{}, which is this gateway's own address",
                            gateway.value
                        ))
                        .expected("the peer's"),
                );
            }
            if public.address_towards(gateway.value).is_none() {
                let family = of(gateway.value.is_ipv6());
                mistakes.push(
                    Mistake::at(gateway.line)
                        .within(&route.place)
                        .leaf(gateway.leaf)
                        .found(format!(
                            "{}, while the public interface has no {family} address",
                            gateway.value
                        ))
                        .expected(format!(
                            "an {} address, or one of {family} there",
                            of(!gateway.value.is_ipv6())
                        )),
                );
            }
        }
        let Some(private) = private else { continue };
        for net in &route.prefixes {
            if private.address_towards(net.value.addr()).is_none() {
                let family = of(net.value.addr().is_ipv6());
                mistakes.push(
                    Mistake::at(net.line)
                        .within(&route.place)
                        .leaf(net.leaf)
                        .found(format!(
                            "{}, while the private interface has no {family} address",
                            net.value
                        ))
                        .expected(format!(
                            "an {} prefix, or an address of {family} there",
                            of(!net.value.addr().is_ipv6())
                        )),
                );
            }
        }
    }
}

/// Returns a warning about manual keys where the clock was not set: their IVs start at the time,
/// and would be used again.
pub(crate) fn clock_warning(file: &str, routes: &[Route], since_1970: Duration) -> Option<Warning> {
    /// The start of 2026.
    const CLOCK_MIN: Duration = Duration::from_secs(1_767_225_600);
    let is_manual = |route: &&Route| matches!(route.keys, Keys::Manual { .. });
    let route = routes.iter().find(is_manual)?;
    (since_1970 < CLOCK_MIN).then(|| Warning {
        file: file.into(),
        line: None,
        text: format!(
            "route {} has manual keys, whose IVs start at the time, and the clock is before 2026; \
             set it before the gateway starts, or give new keys",
            route.id
        ),
    })
}

/// Returns warnings about what is allowed and probably a mistake.
pub(crate) fn doubts(
    file: &str,
    private: &InterfaceConfig,
    public: &InterfaceConfig,
    routes: &[(Route, u32)],
) -> Vec<Warning> {
    let mut warnings = Vec::new();
    let mut warn = |line: Option<u32>, text: String| {
        warnings.push(Warning {
            file: file.into(),
            line,
            text,
        });
    };
    // Each kind is told once, with how many there are: a test file may have 10,000.
    let mut tell = |which: Vec<&(Route, u32)>, what: &str| {
        if let Some((first, line)) = which.first() {
            let others = match which.len() {
                1 => String::new(),
                2 => " and one more route".into(),
                n => format!(" and {} more routes", n - 1),
            };
            warn(Some(*line), format!("route {}{others}: {what}", first.id));
        }
    };
    let exchange = |route: &Route| match &route.keys {
        Keys::Exchange { preshared_key, .. } => Some(preshared_key.clone()),
        Keys::Manual { .. } => None,
    };
    let zero = routes
        .iter()
        .filter(|(route, _)| exchange(route).is_some_and(|key| key.is_zero()));
    tell(
        zero.collect(),
        "the preshared key is all zeros, which is for tests only; make one with tare gateway keygen",
    );
    let mut seen = HashMap::new();
    for (route, _) in routes {
        if let Keys::Exchange { preshared_key, .. } = &route.keys {
            *seen.entry(preshared_key.bytes()).or_insert(0u32) += 1;
        }
    }
    let shared = routes.iter().filter(|(route, _)| match &route.keys {
        Keys::Exchange { preshared_key, .. } => {
            !preshared_key.is_zero() && seen.get(preshared_key.bytes()).is_some_and(|&n| n > 1)
        }
        Keys::Manual { .. } => false,
    });
    tell(
        shared.collect(),
        "the preshared key is that of another route too; give each its own",
    );
    let back = routes.iter().filter(|(route, _)| {
        [public.ip4.map(IpAddr::V4), public.ip6.map(IpAddr::V6)].contains(&Some(route.gateway))
    });
    tell(back.collect(), "the gateway is this gateway itself");
    let covered = routes.iter().filter(|(route, _)| {
        let next_hops = [
            private.nexthop_ip4.map(IpAddr::V4),
            private.nexthop_ip6.map(IpAddr::V6),
        ];
        let mut next_hops = next_hops.into_iter().flatten();
        next_hops.any(|hop| {
            route
                .prefixes
                .iter()
                .any(|net| net.prefix_len() > 0 && net.contains(&hop))
        })
    });
    tell(
        covered.collect(),
        "a prefix holds the private interface's own next hop: what is sent to that goes to the peer",
    );
    warnings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{ManualSa, SaKey};

    #[test]
    fn manual_keys_and_a_clock_that_was_not_set_are_warned_of() {
        let sa = |byte: u8| ManualSa {
            spi: 300,
            key: SaKey::aes_128_gcm(&[byte; 16], [0; 4]),
        };
        let manual = Route {
            id: "a".into(),
            gateway: "203.0.113.2".parse().unwrap(),
            prefixes: Vec::new(),
            esn: true,
            window: 64,
            keys: Keys::Manual {
                inbound: vec![sa(1)],
                outbound: sa(2),
            },
        };
        let warning = |routes: &[Route], seconds| {
            clock_warning("f", routes, Duration::from_secs(seconds)).map(|w| w.to_string())
        };
        let routes = [manual];
        let said = warning(&routes, 3600).unwrap();
        assert!(said.starts_with("f: route a has manual keys"), "{said}");
        assert_eq!(warning(&routes, 1_800_000_000), None);
        assert_eq!(warning(&[], 3600), None);
    }
}
