//! The tables that workers read: routes, SAs and interfaces, as one value that is replaced whole
//! and never changed.

use std::sync::Arc;

use tare_memory::Shared;
use tare_packet::{ipv4, ipv6};
use tare_port::prefetch;

use crate::interface::InterfaceView;

use super::esp;
use super::prefixes::Prefixes;
use super::sa::{InboundSa, OutboundSa, Outer};

/// One state of the gateway. The control side makes the next one from this; workers go on with
/// theirs until they have time to take it, so a packet sees one state and never half of two.
pub struct Tables {
    /// The map from inner addresses to routes.
    pub prefixes: Arc<Prefixes>,
    /// Routes by their number.
    pub routes: Vec<Route>,
    /// Inbound SAs by their SPI.
    pub inbound: SpiTable,
    /// The interface for plaintext.
    pub private: InterfaceView,
    /// The interface for ESP.
    pub public: InterfaceView,
    /// The UDP port of the key exchange.
    pub exchange_port: u16,
}

/// The most SAs of which the caches hold all that a packet needs.
const FEW: usize = 128;

impl Tables {
    /// Returns true if there are so few routes that the caches hold them and their keys.
    #[inline]
    pub(crate) fn routes_are_few(&self) -> bool {
        self.routes.len() <= FEW
    }

    /// Prefetches a route, which is read some packets later.
    #[inline]
    pub(crate) fn prefetch_route(&self, route: u32) {
        if let Some(route) = self.routes.get(route as usize) {
            prefetch(route);
        }
    }
}

/// A route as a worker sees it.
#[derive(Clone)]
pub struct Route {
    /// The first outbound SA. It stands here, so that a worker that has them all to itself looks
    /// nowhere else.
    first: Option<Shared<OutboundSa>>,
    /// The others.
    more: Box<[Shared<OutboundSa>]>,
    /// The most bytes of an inner packet.
    inner_max: u16,
}

impl Route {
    /// A route whose outer packets may have `path_mtu` bytes, which is no more than the public
    /// interface takes. `outbound` is what seals its packets, between the same addresses; none
    /// before keys are agreed on. Workers take these SAs in turn.
    pub fn new(outbound: impl IntoIterator<Item = Shared<OutboundSa>>, path_mtu: u16) -> Route {
        let mut outbound = outbound.into_iter();
        let first = outbound.next();
        let header = match first.as_ref().map(|sa| sa.outer()) {
            Some(Outer::V6 { .. }) => ipv6::HEADER,
            _ => ipv4::HEADER,
        };
        let inner_max = esp::inner_max(usize::from(path_mtu), header) as u16;
        Route {
            first,
            more: outbound.collect(),
            inner_max,
        }
    }

    /// Limits inner packets to `inner` bytes.
    pub fn at_most(mut self, inner: u16) -> Route {
        self.inner_max = self.inner_max.min(inner);
        self
    }

    /// Returns the SA that seals the packets of the worker with this number; `None` before keys are
    /// agreed on.
    ///
    /// As RFC 9611 has it for IKE, each has its own, so that no counter and no window goes from
    /// core to core. Where there are fewer SAs than workers, some share one.
    #[inline]
    pub fn outbound(&self, worker: usize) -> Option<&Shared<OutboundSa>> {
        if worker == 0 || self.more.is_empty() {
            return self.first.as_ref();
        }
        let sas = self.more.len() + 1;
        // A division takes as long as thirty instructions.
        let at = if worker < sas { worker } else { worker % sas };
        match at {
            0 => self.first.as_ref(),
            at => self.more.get(at - 1),
        }
    }

    /// Returns all its outbound SAs.
    pub fn all_outbound(&self) -> impl Iterator<Item = &Shared<OutboundSa>> {
        self.first.iter().chain(&*self.more)
    }

    /// The most bytes of an inner packet.
    #[inline]
    pub fn inner_max(&self) -> usize {
        usize::from(self.inner_max)
    }
}

/// Inbound SAs by SPI: a table at most half full, probed in a line.
#[derive(Default)]
pub struct SpiTable {
    /// The SPI stands beside its SA, so that looking for it touches nothing else.
    slots: Vec<Option<(u32, Shared<InboundSa>)>>,
    shift: u32,
}

impl SpiTable {
    /// Makes a table of these SAs. Of two with the same SPI the first is kept.
    pub fn new(sas: impl IntoIterator<Item = Shared<InboundSa>>) -> SpiTable {
        let sas: Vec<_> = sas.into_iter().collect();
        let size = (sas.len() * 2 + 1).next_power_of_two().max(2);
        let mut spis = SpiTable {
            slots: vec![None; size],
            shift: 32 - size.trailing_zeros(),
        };
        for sa in sas {
            let mut at = spis.start(sa.spi);
            while spis.slots[at].as_ref().is_some_and(|s| s.0 != sa.spi) {
                at = (at + 1) & (size - 1);
            }
            spis.slots[at].get_or_insert((sa.spi, sa));
        }
        spis
    }

    fn start(&self, spi: u32) -> usize {
        (spi.wrapping_mul(0x9e37_79b1) >> self.shift) as usize
    }

    /// Returns true if there are so few that the caches hold them.
    #[inline]
    pub(crate) fn are_few(&self) -> bool {
        self.slots.len() <= 2 * FEW
    }

    /// Prefetches the slot of the SA with this SPI.
    #[inline]
    pub(crate) fn prefetch(&self, spi: u32) {
        if let Some(slot) = self.slots.get(self.start(spi)) {
            prefetch(slot);
        }
    }

    /// Returns the slot of the SA with this SPI.
    #[inline]
    pub(crate) fn find(&self, spi: u32) -> Option<u32> {
        let mask = self.slots.len().wrapping_sub(1);
        let mut at = self.start(spi);
        loop {
            // The table is at most half full, so this ends; an empty one has no slot at all.
            let (found, _) = self.slots.get(at)?.as_ref()?;
            if *found == spi {
                return Some(at as u32);
            }
            at = (at + 1) & mask;
        }
    }

    /// Returns the SA in a slot that `find` returned.
    #[inline]
    pub(crate) fn at(&self, place: u32) -> Option<&InboundSa> {
        let (_, sa) = self.slots.get(place as usize)?.as_ref()?;
        Some(sa)
    }

    /// Returns the SA with this SPI.
    pub fn by_spi(&self, spi: u32) -> Option<&Shared<InboundSa>> {
        let (_, sa) = self.slots.get(self.find(spi)? as usize)?.as_ref()?;
        Some(sa)
    }

    /// Returns all SAs, in no order.
    pub fn iter(&self) -> impl Iterator<Item = &Shared<InboundSa>> {
        self.slots.iter().flatten().map(|(_, sa)| sa)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataplane::SequenceMode;
    use proptest::prelude::*;
    use tare_gcm::Key;

    #[test]
    fn workers_take_the_sas_of_a_route_in_turn() {
        for sas in 0..6 {
            let outer = Outer::V4 { src: 1, dst: 2 };
            let sa = |n| {
                let key = Key::new(&[0; 16]).unwrap();
                OutboundSa::new(1000 + n, key, [0; 4], SequenceMode::Extended, outer)
            };
            let route = Route::new((0..sas).map(|n| Shared::new(sa(n))), 1500);
            assert_eq!(route.all_outbound().count(), sas as usize);
            for worker in 0..20 {
                let spi = route.outbound(worker).map(|sa| sa.spi());
                let wanted = (worker as u32).checked_rem(sas).map(|n| 1000 + n);
                assert_eq!(spi, wanted, "worker {worker} of a route with {sas} SAs");
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(50))]
        #[test]
        fn an_spi_finds_its_own_sa_and_no_other(
            spis in proptest::collection::hash_set(256u32.., 0..100), others in proptest::collection::vec(any::<u32>(), 50),
        ) {
            let sa = |&spi: &u32| {
                let key = Key::new(&[0; 16]).unwrap();
                Shared::new(InboundSa::new(spi, key, [0; 4], SequenceMode::Extended, 64, 0))
            };
            let table = SpiTable::new(spis.iter().map(sa));
            for spi in others.iter().chain(&spis) {
                prop_assert_eq!(table.by_spi(*spi).map(|sa| sa.spi), spis.get(spi).copied());
            }
        }
    }
}
