//! The state that all routes of an exchange share.

use std::collections::{HashMap, HashSet, VecDeque};
use std::hash::{BuildHasher as _, RandomState};
use std::net::IpAddr;
use std::time::Duration;

use tare_sim::Instant;
use zeroize::Zeroizing;

use crate::clock::MonotonicClock;

use tare_histogram::Histogram;

use super::counters::Counters;
use super::handshake::Seed;
use super::limits::{Source, SOURCES};
use super::mark::Number;
use super::message::Nonce;
use super::sightings::Sightings;
use super::{Event, Timers};

/// Fills memory with unpredictable random bytes.
pub type Entropy = Box<dyn FnMut(&mut [u8]) + Send>;

/// Negotiations that may wait for their first answer at a time; the others begin when one of these
/// got it.
pub(crate) const MAX_FRESH: usize = 256;

pub(crate) struct Shared {
    pub(crate) timers: Timers,
    /// Outbound SAs of each route.
    pub(crate) sas: usize,
    pub(crate) counters: Counters,
    /// The durations of negotiations begun by this side, from the first knock to the agreement.
    pub(crate) took: Histogram,
    /// Routes that want to negotiate and wait for their turn, each once.
    pub(crate) waiting: VecDeque<usize>,
    /// Negotiations that have their turn.
    pub(crate) fresh: usize,
    /// Inbound SPIs in use and on offer, and their routes.
    pub(crate) spis: HashMap<u32, usize>,
    pub(crate) reserved: HashSet<u32>,
    pub(crate) entropy: Entropy,
    pub(crate) clock: MonotonicClock,
    hasher: RandomState,
    sources: Box<[Source; SOURCES]>,
    /// Made when they are first needed, and kept: of one size, whatever comes.
    sightings: Option<Sightings>,
    /// The last knocks with numbers, by their hashes, and the times at which they came; likewise.
    knocks: Vec<Option<(u64, Instant)>>,
}

/// Places for knocks.
const KNOCKS: usize = 1 << 13;

impl Shared {
    pub(crate) fn new(
        timers: Timers,
        sas: usize,
        reserved: HashSet<u32>,
        entropy: Entropy,
    ) -> Shared {
        Shared {
            timers,
            sas,
            counters: Counters::default(),
            took: Histogram::new(),
            waiting: VecDeque::new(),
            fresh: 0,
            spis: HashMap::new(),
            reserved,
            entropy,
            clock: MonotonicClock::default(),
            hasher: RandomState::new(),
            sources: Box::new([Source::NEW; SOURCES]),
            sightings: None,
            knocks: Vec::new(),
        }
    }

    /// Returns the limits of a source.
    pub(crate) fn source(&mut self, address: IpAddr) -> &mut Source {
        &mut self.sources[self.hasher.hash_one(address) as usize % SOURCES]
    }

    /// Notes a knock with this number; returns false if it came within the last second before.
    pub(crate) fn is_new_knock(&mut self, now: Instant, route: usize, number: Number) -> bool {
        let name = self.hasher.hash_one((route, number));
        self.knocks.resize(KNOCKS, None);
        let place = &mut self.knocks[name as usize % KNOCKS];
        let is_recent =
            |last: &(u64, Instant)| last.0 == name && now.since(last.1) < Duration::from_secs(1);
        if place.as_ref().is_some_and(is_recent) {
            return false;
        }
        *place = Some((name, now));
        true
    }

    pub(crate) fn sightings(&mut self) -> &mut Sightings {
        self.sightings.get_or_insert_with(Sightings::new)
    }

    /// Returns the name of a challenge; an attacker cannot choose it, because the hash has a key.
    pub(crate) fn name_of(&self, route: usize, nonce: &Nonce) -> u64 {
        self.hasher.hash_one((route, nonce))
    }

    pub(crate) fn seed(&mut self) -> Seed {
        let mut seed = Zeroizing::new([0; 32]);
        (self.entropy)(&mut seed[..]);
        seed
    }

    /// Up to `most`, evenly.
    pub(crate) fn jitter(&mut self, most: Duration) -> Duration {
        let mut random = [0; 4];
        (self.entropy)(&mut random);
        most.mul_f64(f64::from(u32::from_le_bytes(random)) / f64::from(u32::MAX))
    }

    pub(crate) fn is_reserved(&self, spi: u32) -> bool {
        // RFC 4303, 2.1: "The set of SPI values in the range 1 through 255 are reserved"; zero is
        // for local use.
        spi < 256 || self.reserved.contains(&spi)
    }

    /// An SPI that no SA has, for the route.
    pub(crate) fn take_spi(&mut self, route: usize) -> u32 {
        let mut random = [0; 4];
        (self.entropy)(&mut random);
        let mut spi = u32::from_le_bytes(random);
        // Ends: there are 2³² of them, and memory for far fewer in use.
        while self.is_reserved(spi) || self.spis.contains_key(&spi) {
            spi = spi.wrapping_add(1);
        }
        self.spis.insert(spi, route);
        spi
    }

    pub(crate) fn remove_inbound(&mut self, route: usize, spi: u32, events: &mut Vec<Event>) {
        self.spis.remove(&spi);
        events.push(Event::RemoveInbound { route, spi });
    }
}
