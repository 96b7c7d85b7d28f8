//! Keys: the authenticated exchange that Vita speaks (vita-ske, version 5), and the life of the SAs
//! that it makes.
//!
//! For each route one side knocks, the other challenges with a nonce, the first proposes and the
//! second agrees (Noise_NNpsk0_25519_AESGCM_BLAKE2s), and both have a pair of SAs. It is sans-I/O:
//! messages and the time go in, [`Event`]s come out. Messages travel as UDP payload, from and to
//! [`PORT`], with a checksum: Vita drops those without.
//!
//! As in Vita are: formats, lifetimes, when new keys are negotiated and when they are first used.
//! Added, in a way that Vita does not notice:
//! - Messages carry marks in bytes that are reserved, so that a flood of forged ones takes nothing
//!   from those of the peer; and more than one challenge is answered.
//! - An SA that is the only one of its side is used at once, with a dummy packet that proves it to
//!   the peer ([`Event::Prove`]).
//! - Knocks and proposals are repeated within the time of a negotiation, and a proposal seen before
//!   gets its agreement again, so that a lost message costs a fraction of a second and not a
//!   negotiation.
//! - An outbound SA that a peer may not have, because the agreement may be lost, is not used while
//!   the peer seems to be trying still, and is used at once when the data plane says that the peer
//!   has it ([`Exchange::used`]).
//! - Negotiations of many routes take turns, and those with a peer that is gone become rare.
//! - A route may use two outbound SAs at a time, one for each of two workers (the idea of RFC
//!   9611): it negotiates until it has them, and each is replaced at its own half life. A peer that
//!   uses one goes on to the newest and accepts the others. Where a peer seems to have restarted,
//!   the newest takes the place of all.

mod candidates;
mod counters;
mod gate;
pub(crate) mod handover;
mod handshake;
pub(crate) mod hmac;
mod limits;
mod mark;
mod message;
mod route;
pub(crate) mod sas;
mod shared;
mod sightings;
mod status;
mod suite;

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use tare_histogram::Histogram;
use tare_sim::{EventQueue, Instant};

use crate::config::{Aead, PresharedKey, SaKey};
pub use counters::{Counters, DropReason};
pub(crate) use message::is_challenge;
use message::Message;
use route::Route;
pub use shared::Entropy;
use shared::{Shared, MAX_FRESH};
pub use status::{Negotiation, RouteStatus, SaStatus};

/// The UDP port that messages come from and go to.
pub use tare_packet::udp::KEY_EXCHANGE as PORT;

/// Outbound SAs that a route uses at a time, at most. Vita, and a gateway with one worker, accepts
/// the SAs of the last four negotiations and no more: two in use, and one that each side has just
/// begun.
pub const OUTBOUND_MAX: usize = 2;

/// The most routes that one [`Exchange::tick`] handles.
const TICK: usize = 256;

/// A route as the exchange needs to know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteKeys {
    /// The caller's number for it, the same in every configuration that has this route.
    pub route: usize,
    /// The SPI that both sides know the route by, 256 or more.
    pub spi: u32,
    /// The key that both sides know.
    pub psk: PresharedKey,
    /// The AEAD of its SAs. Both sides must name the same; Vita knows AES-128-GCM alone.
    pub aead: Aead,
    /// This gateway's address as the peer sees it, behind a NAT the outer one.
    pub local: IpAddr,
    /// The peer's address.
    pub remote: IpAddr,
}

/// The timers of an exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timers {
    /// The life of an SA. After half of it and up to an eighth more, new keys are negotiated.
    pub sa_ttl: Duration,
    /// The timeout of a negotiation. After one and a half times that, a new outbound SA replaces
    /// an older one.
    pub negotiation_ttl: Duration,
}

impl Default for Timers {
    /// Vita's: ten minutes, five seconds.
    fn default() -> Timers {
        Timers {
            sa_ttl: Duration::from_secs(600),
            negotiation_ttl: Duration::from_secs(5),
        }
    }
}

impl Timers {
    fn activation(&self) -> Duration {
        self.negotiation_ttl * 3 / 2
    }
}

/// The settings of an exchange.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// The routes.
    pub routes: Vec<RouteKeys>,
    /// The timers of an exchange.
    pub timers: Timers,
    /// Outbound SAs that each route is to use at a time, one for each worker; from 1 to
    /// [`OUTBOUND_MAX`], others are brought into these bounds. There are up to four times as many
    /// inbound ones.
    pub outbound_sas: usize,
    /// SPIs of inbound SAs with manual keys.
    pub reserved: HashSet<u32>,
}

/// SPI and keys of one SA.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SaKeys {
    /// Chosen by the receiving side.
    pub spi: u32,
    /// AEAD, key and salt.
    pub key: SaKey,
}

/// An action for the caller, in this order.
#[derive(Debug, PartialEq, Eq)]
pub enum Event {
    /// Send a message.
    Send {
        /// About this route.
        route: usize,
        /// From this gateway.
        from: IpAddr,
        /// To the peer.
        to: IpAddr,
        /// The UDP payload.
        message: Vec<u8>,
    },
    /// Accept packets under this SA too.
    InstallInbound {
        /// Of this route.
        route: usize,
        /// Its SPI, which no other inbound SA has, and keys.
        keys: SaKeys,
        /// The time at which an [`Event::RemoveInbound`] follows at the latest, unless other
        /// settings change it.
        expires: Instant,
    },
    /// Accept packets under this SA no longer.
    RemoveInbound {
        /// Of this route.
        route: usize,
        /// Its SPI.
        spi: u32,
    },
    /// Send packets of the route under this SA.
    InstallOutbound {
        /// Of this route.
        route: usize,
        /// Its SPI and keys.
        keys: SaKeys,
        /// The SPI of the outbound SA whose place it takes, where it is not one more.
        replaces: Option<u32>,
        /// The time at which an [`Event::RemoveOutbound`] follows at the latest, unless another
        /// takes its place.
        expires: Instant,
    },
    /// Send packets of the route under this SA no longer.
    RemoveOutbound {
        /// The route.
        route: usize,
        /// Its SPI.
        spi: u32,
    },
    /// Send a dummy packet (RFC 4303, 2.6) on the route, so that the peer knows that its outbound
    /// SA is in use.
    Prove {
        /// The route.
        route: usize,
    },
    /// Report which inbound SAs of the route are used ([`Exchange::used`]), as long as it is
    /// [`Exchange::unconfirmed`].
    Watch {
        /// The route.
        route: usize,
    },
    /// For the log: a negotiation ran out of time. Another follows.
    Unanswered {
        /// The route.
        route: usize,
        /// The number of consecutive ones.
        failures: u32,
    },
}

/// The reason why settings are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// Two routes have one number.
    SameRoute(usize),
    /// Two routes have one SPI.
    SameSpi(u32),
    /// A route's SPI is below 256.
    LowSpi(u32),
    /// One of the addresses is IPv4, the other IPv6.
    Families(IpAddr, IpAddr),
    /// A route leads to this gateway itself.
    Itself(IpAddr),
    /// The life of an SA is less than four times that of a negotiation, or that is zero.
    Timers(Timers),
    /// The system gives no random numbers.
    Entropy,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::SameRoute(route) => write!(f, "two routes have the number {route}"),
            Error::SameSpi(spi) => write!(f, "two routes have the SPI {spi}; each needs its own"),
            Error::LowSpi(spi) => write!(f, "the SPI {spi} is reserved; a route needs 256 or more"),
            Error::Families(local, remote) => {
                write!(f, "{local} and {remote} are not of one address family")
            }
            Error::Itself(address) => write!(f, "a route leads from {address} to itself"),
            Error::Timers(timers) => write!(
                f,
                "SAs live for {:?} and negotiations for {:?}; the first must be at least four times the second",
                timers.sa_ttl, timers.negotiation_ttl
            ),
            Error::Entropy => f.write_str("the system gives no random numbers"),
        }
    }
}

impl std::error::Error for Error {}

/// Returns a source of random bytes of the operating system.
///
/// # Errors
/// It has none.
pub fn system_entropy() -> Result<Entropy, Error> {
    getrandom::fill(&mut [0; 32]).map_err(|_| Error::Entropy)?;
    Ok(Box::new(|bytes| {
        getrandom::fill(bytes).expect("the system gave random numbers before");
    }))
}

/// The key exchange of all routes of a gateway.
pub struct Exchange {
    routes: HashMap<usize, Route>,
    /// Routes by their SPI.
    spis: HashMap<u32, usize>,
    timer_queue: EventQueue<usize>,
    shared: Shared,
}

impl Exchange {
    /// Creates an exchange, which begins with the first [`Exchange::tick`].
    ///
    /// # Errors
    /// The settings contradict themselves.
    pub fn new(settings: Settings, entropy: Entropy) -> Result<Exchange, Error> {
        check(&settings)?;
        let Settings {
            routes,
            timers,
            outbound_sas,
            reserved,
        } = settings;
        let sas = outbound_sas.clamp(1, OUTBOUND_MAX);
        let mut exchange = Exchange {
            routes: HashMap::with_capacity(routes.len()),
            spis: HashMap::with_capacity(routes.len()),
            timer_queue: EventQueue::new(),
            shared: Shared::new(timers, sas, reserved, entropy),
        };
        for keys in routes {
            exchange.insert(keys);
        }
        Ok(exchange)
    }

    /// Takes a message, the UDP payload that came from an address, and adds what is to be done to
    /// `events`.
    ///
    /// Every message is counted, dropped ones under their [`DropReason`]. What an attacker can
    /// cause that sends with the peer's address but reads nothing is limited: per second and route
    /// answers to 50 knocks, and while it negotiates 50 proposals and the check of 100 agreements;
    /// per second and source 1,000 answers, 1,000 handshakes, and 62,500 first looks at proposals.
    /// Messages of a gateway like this one carry a mark that such an attacker cannot make, and have
    /// limits of their own; while its packets arrive, 1,000 unmarked proposals of its route get a
    /// first look per second. Nothing that is not authentic changes anything but a negotiation that
    /// is running, and that goes on with the peer.
    pub fn receive(&mut self, now: Instant, from: IpAddr, message: &[u8], events: &mut Vec<Event>) {
        let now = self.shared.clock.inside(now);
        self.shared.counters.received += 1;
        if let Err(cause) = self.handle(now, from, message, events) {
            self.shared.counters.drop_for(cause);
        }
        self.take_turns(now, events);
    }

    fn handle(
        &mut self,
        now: Instant,
        from: IpAddr,
        message: &[u8],
        events: &mut Vec<Event>,
    ) -> Result<(), DropReason> {
        let Message { spi, body } = Message::parse(message)?;
        let id = self.spis.get(&spi).ok_or(DropReason::Route)?;
        let route = self.routes.get_mut(id).ok_or(DropReason::Route)?;
        if route.keys.remote != from {
            return Err(DropReason::Address);
        }
        route.receive(now, message, body, &mut self.shared, events)?;
        route.tick(now, &mut self.shared, events);
        schedule(route, &mut self.timer_queue);
        Ok(())
    }

    /// Does what is due, or a part of it: then [`Exchange::next_deadline`] is not later than `now`.
    ///
    /// Only a part, because thousands of routes may be due together, as after a start, and ARP and
    /// status requests would wait for all of them.
    pub fn tick(&mut self, now: Instant, events: &mut Vec<Event>) {
        let now = self.shared.clock.inside(now);
        for _ in 0..TICK {
            let Some((at, id)) = self.timer_queue.pop(now) else {
                break;
            };
            let Some(route) = self.routes.get_mut(&id) else {
                continue;
            };
            // A route that was scheduled again, earlier, has left this entry behind: entries cannot
            // be removed from within the queue.
            if route.scheduled == at {
                route.scheduled = Instant::NEVER;
                route.tick(now, &mut self.shared, events);
                schedule(route, &mut self.timer_queue);
            }
        }
        self.take_turns(now, events);
        if self.timer_queue.len() > 64 + 2 * self.routes.len() {
            let routes = &self.routes;
            self.timer_queue
                .retain(|at, id| routes.get(id).is_some_and(|route| route.scheduled == at));
        }
    }

    /// Returns the time of the next [`Exchange::tick`]; calling it earlier does no harm. A clock
    /// that steps back is noticed at the next call of anything that takes the time, so let there be
    /// one every few seconds.
    pub fn next_deadline(&self) -> Instant {
        self.shared.clock.outside(self.timer_queue.next_at())
    }

    /// The data plane has received authentic packets on this inbound SA. Tell it, of the routes
    /// that [`Exchange::unconfirmed`] names at least, about once a second; then a change of keys
    /// waits for proof, and a peer that lost its SAs is followed to the new ones at once.
    pub fn used(&mut self, now: Instant, spi: u32, events: &mut Vec<Event>) {
        let now = self.shared.clock.inside(now);
        let Some(route) = self
            .shared
            .spis
            .get(&spi)
            .and_then(|id| self.routes.get_mut(id))
        else {
            return;
        };
        route.used(now, spi, &self.shared);
        route.tick(now, &mut self.shared, events);
        schedule(route, &mut self.timer_queue);
        self.take_turns(now, events);
    }

    /// Returns true if the route waits for packets of its peer: as the proof that the peer has an
    /// SA, or that it is there although negotiations fail or forged proposals arrive.
    pub fn unconfirmed(&self, route: usize) -> bool {
        let now = self.shared.clock.last();
        let route = self.routes.get(&route);
        route.is_some_and(|route| route.is_watched(now))
    }

    /// Negotiates new keys for the route early: its sequence numbers are running out, or
    /// the caller asks for it. While keys that were negotiated wait to be used, nothing happens:
    /// until they are, a caller that looks at sequence numbers goes on asking.
    pub fn renew(&mut self, now: Instant, route: usize, events: &mut Vec<Event>) {
        let now = self.shared.clock.inside(now);
        if let Some(route) = self.routes.get_mut(&route) {
            route.sas.renew |= route.sas.queue.is_empty();
            route.tick(now, &mut self.shared, events);
            schedule(route, &mut self.timer_queue);
        }
        self.take_turns(now, events);
    }

    /// Peers can be reached again, as far as the interface goes: what waits because they did not
    /// answer is due in the next [`Exchange::tick`].
    pub fn retry(&mut self, now: Instant) {
        let now = self.shared.clock.inside(now);
        let mut ids: Vec<usize> = self.routes.keys().copied().collect();
        ids.sort_unstable();
        for id in ids {
            if let Some(route) = self.routes.get_mut(&id) {
                route.retry(now);
                schedule(route, &mut self.timer_queue);
            }
        }
    }

    /// Takes over other settings. A route with the same number, SPI, pre-shared key and AEAD
    /// keeps its SAs, and with the same addresses its negotiation; the SAs of all others are
    /// removed. Another life of SAs is that of the present ones too.
    ///
    /// # Errors
    /// The settings contradict themselves; then nothing changes.
    pub fn reconfigure(
        &mut self,
        now: Instant,
        settings: Settings,
        events: &mut Vec<Event>,
    ) -> Result<(), Error> {
        check(&settings)?;
        let now = self.shared.clock.inside(now);
        let Settings {
            routes,
            timers,
            outbound_sas,
            reserved,
        } = settings;
        let before = std::mem::replace(&mut self.shared.timers, timers).sa_ttl;
        self.shared.sas = outbound_sas.clamp(1, OUTBOUND_MAX);
        self.shared.reserved = reserved;
        let new: HashMap<usize, &RouteKeys> =
            routes.iter().map(|keys| (keys.route, keys)).collect();
        let mut gone: Vec<usize> = self
            .routes
            .values()
            .filter(|old| {
                !new.get(&old.keys.route)
                    .is_some_and(|new| old.keys.keeps_sas(new))
            })
            .map(|old| old.keys.route)
            .collect();
        gone.sort_unstable();
        for id in gone {
            if let Some(route) = self.routes.remove(&id) {
                self.spis.remove(&route.keys.spi);
                self.shared.waiting.retain(|waiting| *waiting != id);
                route.remove(&mut self.shared, events);
            }
        }
        for keys in routes {
            if let Some(route) = self.routes.get_mut(&keys.route) {
                route.sas.wanted = self.shared.sas;
                route.evict(&mut self.shared, events);
                if before != timers.sa_ttl {
                    route.sas.set_life(now, before, &mut self.shared);
                }
                if route.keys != keys {
                    route.move_to(keys, &mut self.shared);
                }
                route.tick(now, &mut self.shared, events);
                schedule(route, &mut self.timer_queue);
            } else {
                self.insert(keys);
            }
        }
        self.take_turns(now, events);
        Ok(())
    }

    /// Returns the counters.
    pub fn counters(&self) -> Counters {
        self.shared.counters
    }

    /// Returns how long negotiations begun by this side took, from the first knock to the
    /// agreement.
    pub fn negotiation_latency(&self) -> &Histogram {
        &self.shared.took
    }

    /// Returns the state of a route.
    pub fn status(&self, route: usize) -> Option<RouteStatus> {
        let route = self.routes.get(&route)?;
        Some(RouteStatus::of(route, self.shared.clock.last()))
    }

    fn insert(&mut self, keys: RouteKeys) {
        let (id, spi) = (keys.route, keys.spi);
        let mut route = Route::new(keys, &mut self.shared);
        schedule(&mut route, &mut self.timer_queue);
        self.spis.insert(spi, id);
        self.routes.insert(id, route);
    }

    /// Begins as many of the waiting negotiations as may run at a time.
    fn take_turns(&mut self, now: Instant, events: &mut Vec<Event>) {
        while self.shared.fresh < MAX_FRESH {
            let Some(id) = self.shared.waiting.pop_front() else {
                break;
            };
            if let Some(route) = self.routes.get_mut(&id) {
                route.begin(now, &mut self.shared, events);
                schedule(route, &mut self.timer_queue);
            }
        }
    }
}

impl fmt::Debug for Exchange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Exchange({} routes)", self.routes.len())
    }
}

impl RouteKeys {
    /// Returns true if SAs that were negotiated with these keys are valid for `other` too.
    fn keeps_sas(&self, other: &RouteKeys) -> bool {
        (self.route, self.spi, self.aead) == (other.route, other.spi, other.aead)
            && self.psk == other.psk
    }
}

fn schedule(route: &mut Route, timer_queue: &mut EventQueue<usize>) {
    let due = route.due();
    if due < route.scheduled {
        route.scheduled = due;
        timer_queue.push(due, route.keys.route);
    }
}

fn check(settings: &Settings) -> Result<(), Error> {
    let timers = settings.timers;
    if timers.negotiation_ttl.is_zero() || timers.sa_ttl < timers.negotiation_ttl.saturating_mul(4)
    {
        return Err(Error::Timers(timers));
    }
    let (mut routes, mut spis) = (HashSet::new(), HashSet::new());
    for keys in &settings.routes {
        if keys.spi < 256 {
            return Err(Error::LowSpi(keys.spi));
        }
        if keys.local.is_ipv4() != keys.remote.is_ipv4() {
            return Err(Error::Families(keys.local, keys.remote));
        }
        if keys.local == keys.remote {
            return Err(Error::Itself(keys.local));
        }
        if !routes.insert(keys.route) {
            return Err(Error::SameRoute(keys.route));
        }
        if !spis.insert(keys.spi) {
            return Err(Error::SameSpi(keys.spi));
        }
    }
    Ok(())
}
