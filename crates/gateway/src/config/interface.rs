//! The two interfaces.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use tare_packet::ethernet::Mac;
use tare_port::Interface;

use super::error::{Mistake, Mistakes};
use super::section::{Placed, Section};
use super::value::{self, Device, Wrong};

/// An interface of the gateway and where packets leaving it go.
///
/// At least one of `ip4` and `ip6` is there; beside each there is its next hop or `nexthop_mac`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InterfaceConfig {
    /// The interface.
    pub device: Device,
    /// The first hardware queue to use, where not the first there is.
    pub device_queue: Option<u16>,
    /// The station address to use, where not that of the interface.
    pub mac: Option<Mac>,
    /// Our IPv4 address.
    pub ip4: Option<Ipv4Addr>,
    /// Our IPv6 address.
    pub ip6: Option<Ipv6Addr>,
    /// The address that peers see instead of `ip4`.
    pub nat_ip4: Option<Ipv4Addr>,
    /// The address that peers see instead of `ip6`.
    pub nat_ip6: Option<Ipv6Addr>,
    /// The router for IPv4.
    pub nexthop_ip4: Option<Ipv4Addr>,
    /// The router for IPv6.
    pub nexthop_ip6: Option<Ipv6Addr>,
    /// The router's station address, where it is not to be asked for.
    pub nexthop_mac: Option<Mac>,
}

impl InterfaceConfig {
    /// Our own address of the family that `peer` is of.
    pub fn address_towards(&self, peer: IpAddr) -> Option<IpAddr> {
        match peer {
            IpAddr::V4(_) => self.ip4.map(IpAddr::V4),
            IpAddr::V6(_) => self.ip6.map(IpAddr::V6),
        }
    }

    /// Our address of the family that `peer` is of as `peer` sees it: the translated one where
    /// there is one.
    pub fn address_seen_by(&self, peer: IpAddr) -> Option<IpAddr> {
        match peer {
            IpAddr::V4(_) => self.nat_ip4.or(self.ip4).map(IpAddr::V4),
            IpAddr::V6(_) => self.nat_ip6.or(self.ip6).map(IpAddr::V6),
        }
    }
}

/// The names of the blocks of an interface: for both families, for IPv4, for IPv6.
pub(crate) const PRIVATE: [&str; 3] = [
    "private-interface",
    "private-interface4",
    "private-interface6",
];
pub(crate) const PUBLIC: [&str; 3] = ["public-interface", "public-interface4", "public-interface6"];

/// Reads the interface that the blocks `name`, `name`4 and `name`6 describe together.
pub(crate) fn read(
    file: &Section<'_>,
    [name, name4, name6]: [&'static str; 3],
    mistakes: &mut Mistakes,
) -> Option<InterfaceConfig> {
    let blocks = file.blocks(&[name, name4, name6], mistakes);
    if blocks.is_empty() {
        let expected = format!("a block {name} {{ … }}");
        mistakes.push(
            file.mistake(file.line)
                .found(format!("no {name}"))
                .expected(expected),
        );
        return None;
    }
    let mut whole: Option<InterfaceConfig> = None;
    let dual = blocks.iter().any(|block| block.kind() == name);
    for section in &blocks {
        let Some(part) = read_block(section, mistakes) else {
            continue;
        };
        match &mut whole {
            None => whole = Some(part),
            // The dual spelling says all by itself.
            Some(_) if dual => {
                let found = format!(
                    "{} beside another block for the same interface",
                    section.kind()
                );
                let expected = format!("{name} alone, or {name4} and {name6}");
                mistakes.push(
                    section
                        .mistake(section.line)
                        .found(found)
                        .expected(expected),
                );
            }
            Some(whole) => join(whole, part, section, mistakes),
        }
    }
    whole
}

/// Tells that both sides name one device: what leaves by one would come in by the other.
pub(crate) fn check_distinct(
    file: &Section<'_>,
    are_same: &dyn Fn(&Device, &Device) -> bool,
    mistakes: &mut Mistakes,
) {
    // Other errors in these blocks are told when they are read.
    let mut ignored = Mistakes::of("");
    let mut first = |names: &[&str]| {
        let blocks = file.blocks(names, &mut ignored);
        let mut blocks = blocks.into_iter();
        blocks.find_map(|block| {
            Some((
                devices(&block, &mut ignored).into_iter().next()?,
                block.place,
            ))
        })
    };
    let (Some((one, private)), Some((other, public))) = (first(&PRIVATE), first(&PUBLIC)) else {
        return;
    };
    if are_same(&one.value, &other.value) {
        mistakes.push(
            Mistake::at(other.line)
                .within(&public)
                .leaf(other.leaf)
                .found(match one.value == other.value {
                    true => format!("{}, which {private} has too (line {})", one.value, one.line),
                    false => format!(
                        "{}, which is {} of {private} (line {})",
                        other.value, one.value, one.line
                    ),
                })
                .expected("another interface"),
        );
    }
}

/// Returns true if two devices are one interface of this machine, such as a name and an alternative
/// name, or a name and a PCI address.
pub(crate) fn are_same_here(one: &Device, other: &Device) -> bool {
    let index = |device: &Device| Some(Interface::find(&device.to_string()).ok()?.index());
    one == other || index(one).is_some_and(|one| index(other) == Some(one))
}

fn read_block(section: &Section<'_>, mistakes: &mut Mistakes) -> Option<InterfaceConfig> {
    let device = read_device(section, mistakes);
    // `ip` is of the family that the block is of.
    let (names4, names6) = match section.kind().as_bytes().last() {
        Some(b'4') => (Some(SHORT), None),
        Some(b'6') => (None, Some(SHORT)),
        _ => (
            Some(["ip4", "nat-ip4", "nexthop-ip4"]),
            Some(["ip6", "nat-ip6", "nexthop-ip6"]),
        ),
    };
    let four = Family::read(section, names4, value::ip4, mistakes);
    let six = Family::read(section, names6, value::ip6, mistakes);
    if !four.given && !six.given {
        mistakes.push(match (names4, names6) {
            (Some(_), Some(_)) => section
                .mistake(section.line)
                .found("neither ip4 nor ip6")
                .expected("at least one of them"),
            _ => section.missing("ip"),
        });
    }
    let mac = section.optional("mac", mistakes, value::mac);
    let nexthop_mac = section.optional("nexthop-mac", mistakes, value::mac);
    let queue = value::number16(0..=u16::MAX);
    let device_queue = section.optional("device-queue", mistakes, queue);
    section.optional("queue", mistakes, value::number(1..=1));
    Some(InterfaceConfig {
        device: device?,
        device_queue: device_queue.map(|leaf| leaf.value),
        mac: mac.map(|leaf| leaf.value),
        ip4: four.ip,
        ip6: six.ip,
        nat_ip4: four.nat,
        nat_ip6: six.nat,
        nexthop_ip4: four.nexthop,
        nexthop_ip6: six.nexthop,
        nexthop_mac: nexthop_mac.map(|leaf| leaf.value),
    })
}

const SHORT: [&str; 3] = ["ip", "nat-ip", "nexthop-ip"];

/// The leaves of one address family.
struct Family<T> {
    ip: Option<T>,
    nat: Option<T>,
    nexthop: Option<T>,
    /// True if there is any leaf, valid or not.
    given: bool,
}

impl<T> Family<T> {
    /// Reads the leaves of these names and tells which is missing beside the others.
    fn read(
        section: &Section<'_>,
        names: Option<[&'static str; 3]>,
        read: fn(&str) -> Result<T, Wrong>,
        mistakes: &mut Mistakes,
    ) -> Family<T> {
        let Some(names) = names else {
            return Family {
                ip: None,
                nat: None,
                nexthop: None,
                given: false,
            };
        };
        let [ip, nat, nexthop] = names;
        if section.has(ip) && !section.has(nexthop) && !section.has("nexthop-mac") {
            let missing = section.missing(nexthop);
            let expected = format!("{}, or nexthop-mac", missing.expected);
            mistakes.push(missing.expected(expected));
        }
        if let Some(other) = [nat, nexthop].iter().find(|name| section.has(name)) {
            if !section.has(ip) {
                let missing = section.missing(ip);
                let expected = format!("{} beside {other}", missing.expected);
                mistakes.push(missing.expected(expected));
            }
        }
        let mut address = |name| Some(section.optional(name, mistakes, read)?.value);
        Family {
            ip: address(ip),
            nat: address(nat),
            nexthop: address(nexthop),
            given: names.iter().any(|name| section.has(name)),
        }
    }
}

fn read_device(section: &Section<'_>, mistakes: &mut Mistakes) -> Option<Device> {
    let mut given: Vec<(&str, u32)> = Vec::new();
    for name in DEVICE {
        given.extend(section.line_of(name).map(|line| (name, line)));
    }
    match given.as_slice() {
        [] => {
            let expected = "one of pci, device and ifname";
            mistakes.push(
                section
                    .mistake(section.line)
                    .found("no interface")
                    .expected(expected),
            );
        }
        [_] => {}
        [(first, _), (second, line), ..] => {
            let found = format!("{second} beside {first}");
            mistakes.push(section.mistake(*line).found(found).expected("one of them"));
        }
    }
    let device = devices(section, mistakes).into_iter().next();
    device.map(|device| device.value)
}

const DEVICE: [&str; 3] = ["pci", "device", "ifname"];

fn devices(section: &Section<'_>, mistakes: &mut Mistakes) -> Vec<Placed<Device>> {
    section.several(&DEVICE, mistakes, |name, text| match name {
        "pci" => value::pci(text),
        _ => value::device(text),
    })
}

/// Adds what the block of one family says to what that of the other said.
fn join(
    whole: &mut InterfaceConfig,
    part: InterfaceConfig,
    section: &Section<'_>,
    mistakes: &mut Mistakes,
) {
    let mut differs = |leaf: &str, expected: &str| {
        mistakes.push(
            section
                .mistake(section.line)
                .found(format!("another {leaf} than in the other family's block"))
                .expected(expected),
        );
    };
    if part.device != whole.device {
        differs(
            "interface",
            "the same: there is one private and one public interface",
        );
    }
    if !agree(&mut whole.mac, part.mac) {
        differs("mac", "the same");
    }
    if !agree(&mut whole.nexthop_mac, part.nexthop_mac) {
        differs("nexthop-mac", "the same");
    }
    if !agree(&mut whole.device_queue, part.device_queue) {
        differs("device-queue", "the same");
    }
    whole.ip4 = whole.ip4.or(part.ip4);
    whole.ip6 = whole.ip6.or(part.ip6);
    whole.nat_ip4 = whole.nat_ip4.or(part.nat_ip4);
    whole.nat_ip6 = whole.nat_ip6.or(part.nat_ip6);
    whole.nexthop_ip4 = whole.nexthop_ip4.or(part.nexthop_ip4);
    whole.nexthop_ip6 = whole.nexthop_ip6.or(part.nexthop_ip6);
}

/// Takes over what only the other has; false where both have something else.
fn agree<T: PartialEq>(ours: &mut Option<T>, theirs: Option<T>) -> bool {
    match (&ours, theirs) {
        (Some(ours), Some(theirs)) => *ours == theirs,
        (None, theirs) => {
            *ours = theirs;
            true
        }
        (Some(_), None) => true,
    }
}
