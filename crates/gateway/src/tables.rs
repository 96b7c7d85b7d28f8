//! What workers read: routes, SAs and interfaces, as one value that is replaced whole and never changed.

use std::sync::Arc;

use tare_packet::ethernet::Mac;

use crate::prefixes::Prefixes;
use crate::sa::{InboundSa, OutboundSa};

/// One state of the gateway. The control side makes the next one from this; workers go on with theirs until they
/// have time to take it, so a packet sees one state and never half of two.
pub struct Tables {
    /// Which route an inner address belongs to.
    pub prefixes: Arc<Prefixes>,
    /// Routes by their number.
    pub routes: Vec<Route>,
    /// Inbound SAs by their SPI.
    pub inbound: Spis,
    /// Where plaintext comes in and goes out.
    pub private: Side,
    /// Where ESP goes out and comes in.
    pub public: Side,
    /// The UDP port of the key exchange.
    pub exchange_port: u16,
}

/// A route, as a worker sees it.
#[derive(Clone)]
pub struct Route {
    /// What seals its packets; none before keys are agreed on.
    pub outbound: Option<Arc<OutboundSa>>,
    /// Bytes that an outer packet of this route may have.
    pub path_mtu: u16,
}

/// One of the two interfaces.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Side {
    /// Its station address.
    pub mac: Mac,
    /// Its IPv4 address.
    pub ip4: Option<u32>,
    /// Its IPv6 address.
    pub ip6: Option<u128>,
    /// The station that IPv4 packets go to; none while it is not known.
    pub next_hop4: Option<Mac>,
    /// The station that IPv6 packets go to; none while it is not known.
    pub next_hop6: Option<Mac>,
    /// Bytes that a packet may have, without Ethernet header.
    pub mtu: u16,
}

/// Inbound SAs by SPI: a table at most half full, probed in a line.
#[derive(Default)]
pub struct Spis {
    slots: Vec<Option<Arc<InboundSa>>>,
    shift: u32,
}

impl Spis {
    /// The table of these SAs. Where an SPI stands twice the first wins.
    pub fn new(sas: impl IntoIterator<Item = Arc<InboundSa>>) -> Spis {
        let sas: Vec<_> = sas.into_iter().collect();
        let size = (sas.len() * 2 + 1).next_power_of_two().max(2);
        let mut spis = Spis {
            slots: vec![None; size],
            shift: 32 - size.trailing_zeros(),
        };
        for sa in sas {
            let mut at = spis.start(sa.spi);
            while spis.slots[at].as_ref().is_some_and(|s| s.spi != sa.spi) {
                at = (at + 1) & (size - 1);
            }
            spis.slots[at].get_or_insert(sa);
        }
        spis
    }

    fn start(&self, spi: u32) -> usize {
        (spi.wrapping_mul(0x9e37_79b1) >> self.shift) as usize
    }

    /// The place of the SA with this SPI.
    #[inline]
    pub(crate) fn find(&self, spi: u32) -> Option<u32> {
        let mask = self.slots.len().wrapping_sub(1);
        let mut at = self.start(spi);
        loop {
            // The table is at most half full, so this ends; an empty one has no slot at all.
            let sa = self.slots.get(at)?.as_ref()?;
            if sa.spi == spi {
                return Some(at as u32);
            }
            at = (at + 1) & mask;
        }
    }

    /// The SA in a place that `find` gave.
    #[inline]
    pub(crate) fn at(&self, place: u32) -> Option<&InboundSa> {
        self.slots.get(place as usize)?.as_deref()
    }

    /// The SA with this SPI.
    pub fn by_spi(&self, spi: u32) -> Option<&Arc<InboundSa>> {
        self.slots.get(self.find(spi)? as usize)?.as_ref()
    }

    /// All of them, in no order.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<InboundSa>> {
        self.slots.iter().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sa::Counting;
    use proptest::prelude::*;
    use tare_gcm::Key;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(50))]
        #[test]
        fn an_spi_finds_its_own_sa_and_no_other(
            spis in proptest::collection::hash_set(256u32.., 0..100), others in proptest::collection::vec(any::<u32>(), 50),
        ) {
            let sa = |&spi: &u32| {
                let key = Key::new(&[0; 16]).unwrap();
                Arc::new(InboundSa::new(spi, key, [0; 4], Counting::Extended, 64, 0))
            };
            let table = Spis::new(spis.iter().map(sa));
            for spi in others.iter().chain(&spis) {
                prop_assert_eq!(table.by_spi(*spi).map(|sa| sa.spi), spis.get(spi).copied());
            }
        }
    }
}
