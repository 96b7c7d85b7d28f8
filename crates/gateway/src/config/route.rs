//! Routes and where their keys come from.

use std::net::IpAddr;

use ipnet::IpNet;

use super::error::{Mistake, Mistakes};
use super::leaves::{PRESHARED_KEY, SPI};
use super::secret::{Aead, PresharedKey, SaKey};
use super::section::{Placed, Section};
use super::value::{self, Wrong};
use crate::dataplane::WINDOW_MAX;

/// A peer and what is behind it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// The name, which no other route has.
    pub id: String,
    /// The peer's public address; its family is that of the outer packets.
    pub gateway: IpAddr,
    /// Addresses behind the peer, of either family; at least one prefix, and none that another
    /// route has too.
    pub prefixes: Vec<IpNet>,
    /// The source of the keys.
    pub keys: Keys,
    /// True if sequence numbers have 64 bits.
    pub esn: bool,
    /// Packets that the anti-replay window covers, at least.
    pub window: u32,
}

/// The source of a route's keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Keys {
    /// Both ends agree on them.
    Exchange {
        /// The key that authenticates the peer.
        preshared_key: PresharedKey,
        /// The SPI that tags messages of the exchange; no other route has it.
        spi: u32,
        /// The AEAD that the keys are for.
        aead: Aead,
    },
    /// They are given.
    Manual {
        /// From the peer to us; at least one, and no SPI that stands twice in the file.
        inbound: Vec<ManualSa>,
        /// From us to the peer.
        outbound: ManualSa,
    },
}

/// An SA whose key is given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ManualSa {
    /// The security parameters index, at least 256.
    pub spi: u32,
    /// Key and salt.
    pub key: SaKey,
}

/// The values of routes that do not set their own.
pub(crate) struct Defaults {
    pub(crate) aead: Aead,
    pub(crate) esn: bool,
    pub(crate) window: u32,
    /// True if keys are never negotiated.
    pub(crate) data_plane: bool,
}

/// A route with the lines that its values stand on, before its keys are known to be complete.
pub(crate) struct RouteRead {
    pub(crate) place: String,
    pub(crate) line: u32,
    pub(crate) id: Option<Placed<String>>,
    pub(crate) gateway: Option<Placed<IpAddr>>,
    pub(crate) prefixes: Vec<Placed<IpNet>>,
    pub(crate) preshared_key: Option<Placed<PresharedKey>>,
    pub(crate) spi: Option<Placed<u32>>,
    aead: Option<Placed<Aead>>,
    esn: bool,
    window: u32,
    pub(crate) inbound: Vec<Placed<ManualSa>>,
    pub(crate) outbound: Vec<Placed<ManualSa>>,
    /// The leaves about an exchange, valid or not, and their lines.
    exchange: Vec<(&'static str, u32)>,
    /// The numbers of its inbound and outbound SAs, valid or not, and the line of the first.
    manual: Option<Manual>,
}

#[derive(Default)]
struct Manual {
    line: u32,
    inbound: usize,
    outbound: usize,
}

pub(crate) const ROUTES: [&str; 3] = ["route", "route4", "route6"];
pub(crate) const SAS: [&str; 2] = ["inbound-sa", "outbound-sa"];

impl RouteRead {
    pub(crate) fn read(
        section: &Section<'_>,
        defaults: &Defaults,
        mistakes: &mut Mistakes,
    ) -> RouteRead {
        let prefixes = section.several(
            &["net-cidr4", "net-cidr6", "net"],
            mistakes,
            |leaf, text| match (leaf, section.kind()) {
                ("net-cidr4", _) | ("net", "route4") => value::net4(text),
                ("net-cidr6", _) | ("net", "route6") => value::net6(text),
                _ => value::net(text),
            },
        );
        let prefix_names = ["net", "net-cidr4", "net-cidr6"];
        if !prefix_names.iter().any(|name| section.has(name)) {
            mistakes.push(match section.kind() {
                "route" => section
                    .mistake(section.line)
                    .found("no prefix")
                    .expected("at least one net-cidr4, net-cidr6 or net"),
                _ => section.missing("net"),
            });
        }
        let mut route = RouteRead {
            place: section.place.clone(),
            line: section.line,
            id: section.required("id", mistakes, value::id),
            gateway: read_gateway(section, mistakes),
            prefixes,
            preshared_key: section.optional("preshared-key", mistakes, value::preshared_key),
            spi: section.optional("spi", mistakes, value::spi),
            aead: section.optional("aead", mistakes, value::aead),
            esn: section
                .optional("esn", mistakes, value::boolean)
                .map_or(defaults.esn, |esn| esn.value),
            window: section
                .optional("window", mistakes, window())
                .map_or(defaults.window, |window| window.value),
            inbound: Vec::new(),
            outbound: Vec::new(),
            exchange: ["preshared-key", "spi", "aead"]
                .into_iter()
                .filter_map(|leaf| Some((leaf, section.line_of(leaf)?)))
                .collect(),
            manual: None,
        };
        for sa in section.blocks(&SAS, mistakes) {
            route.add(&sa, mistakes);
        }
        route
    }

    /// Adds the SA that a block describes.
    pub(crate) fn add(&mut self, section: &Section<'_>, mistakes: &mut Mistakes) {
        let manual = self.manual.get_or_insert(Manual {
            line: section.line,
            ..Manual::default()
        });
        let (count, sas) = match section.kind() {
            "inbound-sa" => (&mut manual.inbound, &mut self.inbound),
            _ => (&mut manual.outbound, &mut self.outbound),
        };
        *count += 1;
        sas.extend(read_sa(section, mistakes));
    }

    /// Returns true if it has SAs of its own.
    pub(crate) fn is_manual(&self) -> bool {
        self.manual.is_some()
    }

    /// The route, where everything is there.
    pub(crate) fn complete(
        mut self,
        defaults: &Defaults,
        mistakes: &mut Mistakes,
    ) -> Option<Route> {
        let keys = self.keys(defaults, mistakes);
        Some(Route {
            id: self.id?.value,
            gateway: self.gateway?.value,
            prefixes: self.prefixes.into_iter().map(|net| net.value).collect(),
            keys: keys?,
            esn: self.esn,
            window: self.window,
        })
    }

    fn keys(&mut self, defaults: &Defaults, mistakes: &mut Mistakes) -> Option<Keys> {
        let place = std::mem::take(&mut self.place);
        let mistake = |line| Mistake::at(line).within(&place);
        match &self.manual {
            Some(manual) => {
                let &Manual {
                    line,
                    inbound,
                    outbound,
                } = manual;
                if let Some((leaf, line)) = self.exchange.first().filter(|_| !defaults.data_plane) {
                    mistakes.push(
                        mistake(*line)
                            .found(format!("{leaf} beside SAs of the route's own"))
                            .expected("either, or \"data-plane true;\" in the file"),
                    );
                } else if inbound == 0 || outbound != 1 {
                    mistakes.push(
                        mistake(line)
                            .found(format!("{inbound} inbound and {outbound} outbound SAs"))
                            .expected("at least one inbound and exactly one outbound"),
                    );
                }
                Some(Keys::Manual {
                    inbound: self.inbound.drain(..).map(|sa| sa.value).collect(),
                    outbound: self.outbound.drain(..).next()?.value,
                })
            }
            None if defaults.data_plane => {
                mistakes.push(mistake(self.line).found("no SAs").expected(
                    "an inbound-sa and an outbound-sa, as the file says \"data-plane true;\"",
                ));
                None
            }
            None => {
                for leaf in [&PRESHARED_KEY, &SPI] {
                    if !self.exchange.iter().any(|(given, _)| *given == leaf.name) {
                        mistakes.push(
                            mistake(self.line)
                                .leaf(leaf.name)
                                .found("nothing")
                                .expected(leaf.value),
                        );
                    }
                }
                Some(Keys::Exchange {
                    preshared_key: self.preshared_key.take()?.value,
                    spi: self.spi.take()?.value,
                    aead: self.aead.take().map_or(defaults.aead, |aead| aead.value),
                })
            }
        }
    }
}

/// Reads the numbers of packets that a window may cover.
pub(crate) fn window() -> impl Fn(&str) -> Result<u32, Wrong> {
    // The number that the leaves' descriptions have.
    const { assert!(WINDOW_MAX == 4032) };
    value::number(64..=WINDOW_MAX)
}

fn read_gateway(section: &Section<'_>, mistakes: &mut Mistakes) -> Option<Placed<IpAddr>> {
    let blocks = section.blocks(&["gateway"], mistakes);
    let mut given: Vec<(&'static str, u32)> = Vec::new();
    for name in ["gw-ip4", "gw-ip6"] {
        given.extend(section.line_of(name).map(|line| (name, line)));
    }
    given.extend(blocks.first().map(|block| ("gateway", block.line)));
    match given.as_slice() {
        [] => {
            let expected = match section.kind() {
                "route" => "one of gw-ip4, gw-ip6 and gateway { ip …; }",
                _ => "gateway { ip …; }",
            };
            mistakes.push(
                section
                    .mistake(section.line)
                    .found("no gateway")
                    .expected(expected),
            );
        }
        [_] => {}
        [(first, _), (second, line), ..] => {
            let found = format!("{second} beside {first}");
            mistakes.push(section.mistake(*line).found(found).expected("one gateway"));
        }
    }
    let mut gateway = None;
    for block in &blocks {
        block.optional("queue", mistakes, value::number(1..=1));
        let kind = section.kind();
        gateway = block.required("ip", mistakes, |text| match kind {
            "route4" => value::ip4(text).map(IpAddr::V4),
            "route6" => value::ip6(text).map(IpAddr::V6),
            _ => value::ip(text),
        });
    }
    let address = section.several(&["gw-ip4", "gw-ip6"], mistakes, |leaf, text| match leaf {
        "gw-ip4" => value::ip4(text).map(IpAddr::V4),
        _ => value::ip6(text).map(IpAddr::V6),
    });
    address.into_iter().next().or(gateway)
}

fn read_sa(section: &Section<'_>, mistakes: &mut Mistakes) -> Option<Placed<ManualSa>> {
    section.optional("queue", mistakes, value::number(1..=1));
    let spi = section.required("spi", mistakes, value::spi);
    let aead = section.optional("aead", mistakes, value::aead);
    let aead_wrong = aead.is_none() && section.has("aead");
    let salt = section.required("salt", mistakes, value::digits::<4>);
    let salt = salt.map_or([0; 4], |salt| *salt.value);
    let key = section.required("key", mistakes, |text| {
        let short = || value::digits::<16>(text).map(|key| SaKey::aes_128_gcm(&key, salt));
        let long = || value::digits::<32>(text).map(|key| SaKey::aes_256_gcm(&key, salt));
        let wanted = |digits: u32, name: Aead| {
            move |wrong: Wrong| Wrong {
                expected: Some(format!("{digits} hexadecimal digits for {name}")),
                ..wrong
            }
        };
        match &aead {
            Some(aead) if aead.value == Aead::Aes128Gcm => short().map_err(wanted(32, aead.value)),
            Some(aead) => long().map_err(wanted(64, aead.value)),
            None => short().or_else(|_| long()),
        }
    });
    let (spi, key) = (spi?, key?);
    (!aead_wrong).then_some(Placed {
        value: ManualSa {
            spi: spi.value,
            key: key.value,
        },
        line: spi.line,
        leaf: "spi",
    })
}
