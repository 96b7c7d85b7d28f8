//! Routes by longest prefix.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv6Net};
use prefix_trie::PrefixMap;
use tare_packet::ipv6;

/// No route.
pub const NONE: u32 = u32::MAX >> 1;

/// No route, and there must be none: an address that no packet is to be forwarded from or to.
pub(super) const MARTIAN: u32 = NONE - 1;

/// IPv4 networks that no packet is forwarded from or to, as their first 16 bits: 0/8, 127/8,
/// 169.254/16, 224/4 and 240/4. See [`tare_packet::ipv4::is_host`].
const MARTIANS_V4: [std::ops::RangeInclusive<usize>; 4] = [
    0x0000..=0x00ff,
    0x7f00..=0x7fff,
    0xa9fe..=0xa9fe,
    0xe000..=0xffff,
];

/// An entry that stands for 256 longer ones.
const DEEPER: u32 = 1 << 31;

/// A map from addresses to routes, by the longest prefix that matches.
///
/// IPv4 is three tables one below the other, of 16, 8 and 8 bits: one load for prefixes up to /16,
/// two to /24, three beyond. IPv6 is a trie.
pub struct Prefixes {
    top: Box<[u32; 1 << 16]>,
    /// Tables of 256 entries, end to end.
    lower: Vec<u32>,
    v6: PrefixMap<Ipv6Net, u32>,
}

impl Prefixes {
    /// The table for these prefixes, each with its route's number, below 2³¹ - 2. Where a prefix
    /// stands twice the later wins. Addresses that no packet may be forwarded from or to have no
    /// route, whatever the prefixes say.
    pub fn new(prefixes: impl IntoIterator<Item = (IpNet, u32)>) -> Prefixes {
        let mut table = Prefixes {
            top: Box::new([NONE; 1 << 16]),
            lower: Vec::new(),
            v6: PrefixMap::new(),
        };
        let mut v4 = Vec::new();
        for (prefix, route) in prefixes {
            match prefix {
                IpNet::V4(net) => v4.push((net, route)),
                IpNet::V6(net) => {
                    table.v6.insert(net.trunc(), route);
                }
            }
        }
        // Shorter first, so that longer ones go over them.
        v4.sort_by_key(|(net, _)| net.prefix_len());
        for (net, route) in v4 {
            table.insert_v4(u32::from(net.network()), net.prefix_len(), route);
        }
        // Here they cost nothing per packet.
        for martians in MARTIANS_V4 {
            table.top[martians].fill(MARTIAN);
        }
        table
    }

    fn insert_v4(&mut self, network: u32, len: u8, route: u32) {
        let at = (network >> 16) as usize;
        if len <= 16 {
            self.top[at..at + (1 << (16 - len))].fill(route);
            return;
        }
        let middle = deepen(&mut self.top[at], &mut self.lower);
        let at = middle + (network >> 8 & 255) as usize;
        if len <= 24 {
            self.lower[at..at + (1 << (24 - len))].fill(route);
            return;
        }
        let mut entry = self.lower[at];
        let bottom = deepen(&mut entry, &mut self.lower);
        self.lower[at] = entry;
        let at = bottom + (network & 255) as usize;
        self.lower[at..at + (1 << (32 - len))].fill(route);
    }

    /// The route of an IPv4 address; [`NONE`], or one less for an address that must not have one.
    #[inline]
    pub fn v4(&self, address: u32) -> u32 {
        let mut entry = self.top[(address >> 16) as usize];
        if entry & DEEPER != 0 {
            entry = self.below(entry, address >> 8);
            if entry & DEEPER != 0 {
                entry = self.below(entry, address);
            }
        }
        entry
    }

    /// Returns true for an IPv4 address that no packet is forwarded from or to.
    #[inline]
    pub(super) fn is_martian4(&self, address: u32) -> bool {
        self.top[(address >> 16) as usize] == MARTIAN
    }

    #[inline]
    fn below(&self, entry: u32, byte: u32) -> u32 {
        let at = ((entry & !DEEPER) << 8 | byte & 255) as usize;
        self.lower.get(at).copied().unwrap_or(NONE)
    }

    /// The route of an IPv6 address; [`NONE`], or one less for an address that must not have one.
    #[inline]
    pub fn v6(&self, address: u128) -> u32 {
        if !ipv6::is_host(address) || ipv6::is_link_local(address) {
            return MARTIAN;
        }
        let host = Ipv6Net::from(Ipv6Addr::from(address));
        self.v6.get_lpm(&host).map_or(NONE, |(_, &route)| route)
    }

    /// The route of an address.
    pub fn route(&self, address: IpAddr) -> Option<usize> {
        let route = match address {
            IpAddr::V4(address) => self.v4(Ipv4Addr::to_bits(address)),
            IpAddr::V6(address) => self.v6(Ipv6Addr::to_bits(address)),
        };
        (route < MARTIAN).then_some(route as usize)
    }
}

/// Makes `entry` stand for a table, which says what the entry said, and gives the place of that
/// table.
fn deepen(entry: &mut u32, lower: &mut Vec<u32>) -> usize {
    if *entry & DEEPER == 0 {
        let table = (lower.len() / 256) as u32;
        lower.resize(lower.len() + 256, *entry);
        *entry = DEEPER | table;
    }
    ((*entry & !DEEPER) as usize) << 8
}

#[cfg(test)]
mod tests {
    use super::*;
    use ipnet::Ipv4Net;
    use proptest::prelude::*;
    use tare_packet::ipv4;

    fn is_forwarded(address: IpAddr) -> bool {
        match address {
            IpAddr::V4(address) => {
                let bits = address.to_bits();
                ipv4::is_host(bits) && !ipv4::is_link_local(bits)
            }
            IpAddr::V6(address) => {
                let bits = address.to_bits();
                ipv6::is_host(bits) && !ipv6::is_link_local(bits)
            }
        }
    }

    /// Every prefix in turn.
    fn plainly(prefixes: &[(IpNet, u32)], address: IpAddr) -> Option<usize> {
        if !is_forwarded(address) {
            return None;
        }
        let covering = prefixes.iter().filter(|(net, _)| net.contains(&address));
        let longest = covering.max_by_key(|(net, _)| net.prefix_len())?;
        Some(longest.1 as usize)
    }

    fn prefix() -> impl Strategy<Value = IpNet> {
        let v4 = (0x0a00_0000u32..0x0a04_0000, 0u8..=32)
            .prop_map(|(bits, len)| IpNet::V4(Ipv4Net::new(bits.into(), len).unwrap().trunc()));
        let v6 = (0u128..1 << 20, 100u8..=128).prop_map(|(bits, len)| {
            let address = Ipv6Addr::from(0x2001_0db8 << 96 | bits);
            IpNet::V6(Ipv6Net::new(address, len).unwrap().trunc())
        });
        prop_oneof![v4, v6]
    }

    #[test]
    fn no_prefix_gives_a_route_to_an_address_that_no_packet_is_forwarded_to() {
        let everything = [
            "0.0.0.0/0",
            "::/0",
            "127.0.0.1/32",
            "169.254.7.0/24",
            "::1/128",
        ];
        let prefixes = everything.map(|net| (net.parse().unwrap(), 7));
        let table = Prefixes::new(prefixes);
        for first in 0..=0xffff_u32 {
            for last in [0, 1, 0xffff] {
                let address = first << 16 | last;
                let wanted = match is_forwarded(IpAddr::V4(address.into())) {
                    true => 7,
                    false => MARTIAN,
                };
                assert_eq!(table.v4(address), wanted, "{address:08x}");
            }
            let address = u128::from(first) << 112 | 1;
            let wanted = match is_forwarded(IpAddr::V6(address.into())) {
                true => 7,
                false => MARTIAN,
            };
            assert_eq!(table.v6(address), wanted, "{address:032x}");
        }
    }

    proptest! {
        #[test]
        fn the_longest_prefix_wins(
            nets in proptest::collection::hash_set(prefix(), 0..60),
            v4 in proptest::collection::vec(0x0a00_0000u32..0x0a04_0000, 50),
            v6 in proptest::collection::vec(0u128..1 << 20, 20),
        ) {
            let prefixes: Vec<_> = nets.into_iter().zip(0..).collect();
            let table = Prefixes::new(prefixes.iter().copied());
            let v4 = v4.into_iter().map(|bits| IpAddr::V4(bits.into()));
            let v6 = v6.into_iter().map(|bits| IpAddr::V6((0x2001_0db8 << 96 | bits).into()));
            let edges = prefixes.iter().flat_map(|(net, _)| [net.network(), net.broadcast()]);
            for address in v4.chain(v6).chain(edges) {
                prop_assert_eq!(table.route(address), plainly(&prefixes, address), "{}", address);
            }
        }
    }
}
