//! A whole guest that serves while its host attacks: driver, TCP, TLS and a server, with clients
//! behind an honest device whose frames and memory the host changes.

use std::cell::Cell;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::rc::Rc;
use std::time::Duration;

use rustls::pki_types::ServerName;
use tare_packet::{frame, protocol};
use tare_sim::{Instant, Random};

use super::attacker::{Attacker, Role};
use super::frames::{change, FrameField};
use super::guest::{doorbell, name};
use super::record::Recorder;
use super::{create, map, search, Broken, Report, CANARY};
use crate::daemon::KEEP_ALIVE;
use crate::guest::Guest;
use crate::host::merge::Limits;
use crate::host::{Device, DeviceSettings, Frames, Peer};
use crate::region::{Config, Region};
use crate::ring::{Checksum, Driver, NetHeader, Notification, Settings};
use crate::server::{Application, Output, Service, Time};
use crate::tcp::{self, KeepAlive, Network, Secret};
use crate::tls::{Client, Identity, Options, Server};

const GUEST: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 2);
const PEER: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 1);
/// The clients after the attack: what is left of it at the others' address does not disturb them.
const AFTERWARDS: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 3);
/// A client that does not exist.
const FORGED: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 9);
const PORT: u16 = 443;
/// Connections at a time.
const CONNECTIONS: usize = 3;
/// The most bytes of a direction of a connection.
const BYTES: u64 = 20_000;
/// The reads and spans that one turn of the guest may have: it takes at most 64 frames off the ring
/// and sends at most what the ring has room for, whatever the host does.
const EVENTS_MAX: u64 = 10_000;
/// Virtual time between two turns, and between two in which nothing happens.
const TURN: Duration = Duration::from_micros(20);
const PAUSE: Duration = Duration::from_millis(5);
/// One in so many turns begins a time in which the device takes no packet, and one ends it.
const STUCK: [u64; 2] = [5000, 500];
/// Turns without anything after which the guest resets its device.
const WATCHDOG: u32 = 2000;

/// The keys and certificates of both sides of TLS: made once, as it takes long.
#[derive(Clone)]
pub struct Keys {
    client: Client,
    server: Server,
}

impl Keys {
    /// Makes a key pair and a certificate.
    ///
    /// # Errors
    /// They cannot be made.
    pub fn new() -> Result<Keys, Broken> {
        let failed = |error: crate::tls::ConfigError| Broken(error.to_string());
        let identity = Identity::self_signed(&["guest.example".into()]).map_err(failed)?;
        let certificate = identity.certificate().expect("there is one").clone();
        let name = ServerName::try_from("guest.example").expect("it is one");
        Ok(Keys {
            client: Client::new(&certificate, name, &Options::default()).map_err(failed)?,
            server: Server::new(identity, &Options::default()).map_err(failed)?,
        })
    }
}

/// The attacks on a guest that serves.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Attack {
    /// The part of the frames for the guest that the host changes, drops, repeats or holds back.
    pub(super) frames: f64,
    /// The probability that it writes to the region between two reads of the guest.
    pub(super) memory: f64,
}

/// Returns the plaintext at a place of a stream: private bytes at the start of each 512.
fn byte(at: u64) -> u8 {
    match CANARY.get((at % 512) as usize) {
        Some(byte) => *byte,
        None => ((at ^ at >> 8).wrapping_mul(0x9e37_79b9) >> 11) as u8,
    }
}

/// Bytes that were delivered, and those that were wrong.
#[derive(Clone, Copy, Default)]
struct Delivered {
    right: u64,
    wrong: u64,
}

/// Sends so many bytes, and checks those of the other side.
struct Stream {
    to_send: u64,
    expected: u64,
    sent: u64,
    received: u64,
    /// The guest's: it ends the connection.
    is_server: bool,
    delivered: Rc<Cell<Delivered>>,
}

impl Application for Stream {
    fn receive(&mut self, bytes: &[u8], _: Time, _: &mut Output) -> usize {
        let mut delivered = self.delivered.get();
        for found in bytes {
            let is_right = *found == byte(self.received) && self.received < self.expected;
            delivered.right += u64::from(is_right);
            delivered.wrong += u64::from(!is_right);
            self.received += 1;
        }
        self.delivered.set(delivered);
        bytes.len()
    }

    fn produce(&mut self, _: Time, out: &mut Output) {
        while out.has_room() && self.sent < self.to_send {
            let len = (self.to_send - self.sent).min(16 << 10);
            out.push_own((self.sent..self.sent + len).map(byte).collect());
            self.sent += len;
        }
    }

    fn end(&mut self, _: Time, _: &mut Output) {}

    fn wants_close(&self) -> bool {
        self.is_server && self.sent == self.to_send && self.received >= self.expected
    }
}

struct Streams {
    bytes: [u64; 2],
    delivered: Rc<Cell<Delivered>>,
}

impl Streams {
    fn stream(&self, [to_send, expected]: [u64; 2], is_server: bool) -> Stream {
        Stream {
            to_send,
            expected,
            sent: 0,
            received: 0,
            is_server,
            delivered: self.delivered.clone(),
        }
    }
}

impl Service for Streams {
    fn accept(&self) -> Box<dyn Application> {
        let [to_guest, from_guest] = self.bytes;
        Box::new(self.stream([from_guest, to_guest], true))
    }
}

/// The network behind the device: clients, and frames that change on their way to the guest.
struct Line {
    peer: Peer<Stream>,
    random: Random,
    recorder: Recorder,
    /// The part of the frames that is not as it should be.
    hostile: f64,
    /// Frames that come later than they should, or again.
    held: Vec<Vec<u8>>,
    /// The device takes no packet of the guest, and opens connections that it resets at once.
    is_stuck: bool,
    /// The segments of those that were made.
    forged: u32,
    /// The order on the ring is this one, so that each frame is known when it is read.
    is_counted: bool,
}

impl Line {
    fn deliver(&mut self, changed: Option<FrameField>) {
        if self.is_counted {
            self.recorder.deliver(changed);
        }
    }
}

impl Frames for Line {
    fn receive(&mut self, frame: &mut Vec<u8>) -> Option<NetHeader> {
        if self.is_stuck && self.random.chance(0.9) {
            forge(frame, self.forged);
            self.forged = self.forged.wrapping_add(1);
            self.deliver(None);
            let (checksum, segments) = (Checksum::Verified, None);
            return Some(NetHeader { checksum, segments });
        }
        if !self.held.is_empty() && self.random.chance(0.1) {
            let which = self.random.below(self.held.len() as u64) as usize;
            *frame = self.held.swap_remove(which);
            self.deliver(Some(FrameField::Replayed));
            return Some(NetHeader::default());
        }
        loop {
            let header = self.peer.receive(frame)?;
            if !self.random.chance(self.hostile) {
                self.deliver(None);
                return Some(header);
            }
            match self.random.below(10) {
                // Dropped, or held back.
                0 => frame.clear(),
                1 if self.held.len() < 64 => self.held.push(std::mem::take(frame)),
                2 if self.held.len() < 64 => {
                    self.held.push(frame.clone());
                    self.deliver(None);
                    return Some(header);
                }
                _ => {
                    let (changed, header) = match change(frame, &mut self.random) {
                        Some((field, header)) => (Some(field), header),
                        None => (None, header),
                    };
                    self.deliver(changed);
                    return Some(header);
                }
            }
        }
    }

    fn send(&mut self, frame: &[u8], header: NetHeader) -> bool {
        !self.is_stuck && self.peer.send(frame, header)
    }
}

pub(super) struct Scene {
    region: Region,
    keys: Keys,
    recorder: Recorder,
    device: Device<Line>,
    guest: Guest<Recorder>,
    delivered: Rc<Cell<Delivered>>,
    bytes: [u64; 2],
    now: Instant,
    /// Turns without anything.
    idle: u32,
    /// Free buffers before anything was received or sent.
    fresh: [usize; 4],
    random: Random,
    report: Report,
}

impl Scene {
    pub(super) fn new(
        config: &Config,
        merges: bool,
        seed: u64,
        attack: Attack,
        keys: &Keys,
    ) -> Result<Scene, Broken> {
        let mut random = Random::new(seed);
        let (region, recorder) = (create(config)?, Recorder::planted());
        let delivered = Rc::new(Cell::new(Delivered::default()));
        let bytes = [random.below(BYTES), random.below(BYTES)];
        let settings = Settings {
            notification: Notification::Events {
                kick: doorbell()?,
                interrupt: doorbell()?,
            },
            ..Settings::default()
        };
        let driver = Driver::new(map(&region)?, 0, settings, recorder.clone());
        let driver = driver.map_err(|error| error.to_string())?;
        let fresh = driver.free();
        let services: Box<dyn Service> = Box::new(Streams {
            bytes,
            delivered: delivered.clone(),
        });
        let guest = Guest::new(
            driver,
            // Where the host merges, the guest leaves cutting to it.
            tcp::Config {
                checksum_offload: merges,
                segmentation_offload: merges,
                ..network(2, GUEST)
            },
            Secret::new(&[7; 16]),
            keys.server.clone(),
            vec![(PORT, services)],
            recorder.clone(),
        );
        let line = Line {
            peer: peer(keys, PEER)?,
            random: random.fork(),
            recorder: recorder.clone(),
            hostile: attack.frames,
            held: Vec::new(),
            is_stuck: false,
            forged: 0,
            is_counted: attack.memory == 0.0 && !merges,
        };
        let settings = DeviceSettings {
            merge: merges.then(Limits::default),
            ..DeviceSettings::default()
        };
        let device = Device::new(&region, 0, settings, line).map_err(|error| error.to_string())?;
        if attack.memory > 0.0 {
            let role = Role::Beside(attack.memory);
            let attacker = Attacker::new(map(&region)?, recorder.clone(), random.fork(), role);
            recorder.set_attacker(Some(attacker));
        }
        Ok(Scene {
            guest: guest.map_err(|error| error.to_string())?,
            device,
            region,
            keys: keys.clone(),
            recorder,
            delivered,
            bytes,
            now: Instant::ZERO + Duration::from_secs(1),
            idle: 0,
            fresh,
            random,
            report: Report::default(),
        })
    }

    /// Serves until this number of hostile values was consumed or this number of turns has passed.
    pub(super) fn attack(&mut self, values: u64, turns: u64) -> Result<(), Broken> {
        for turn in 0..turns {
            if self.recorder.total() >= values {
                break;
            }
            self.connect()?;
            self.turn()?;
            if turn % 5000 == 0 {
                self.report.searched += search(&self.region)?;
            }
        }
        self.report.searched += search(&self.region)?;
        Ok(())
    }

    fn connect(&mut self) -> Result<(), Broken> {
        let line = self.device.frames();
        let finished = line.peer.take_finished();
        self.report.connections += finished.len() as u64;
        while line.peer.connections() < CONNECTIONS {
            let streams = Streams {
                bytes: self.bytes,
                delivered: self.delivered.clone(),
            };
            let stream = streams.stream(self.bytes, false);
            let to = SocketAddr::from((GUEST, PORT));
            let connected = line.peer.connect(self.now, to, stream);
            connected.map_err(|error| error.to_string())?;
        }
        Ok(())
    }

    /// One turn of the host and of the guest.
    fn turn(&mut self) -> Result<(), Broken> {
        let time = Time {
            now: self.now,
            unix: Duration::from_secs(1_700_000_000),
        };
        // Starved: the device does nothing for a while.
        let is_starved = self.device.frames().hostile > 0.0 && self.random.below(16) == 0;
        let line = self.device.frames();
        let [begins, ends] = STUCK;
        let one_in = if line.is_stuck { ends } else { begins };
        if line.hostile > 0.0 && self.random.below(one_in) == 0 {
            line.is_stuck = !line.is_stuck;
        }
        let mut is_busy = line.peer.turn(time);
        if !is_starved {
            match self.device.poll(self.now) {
                Ok(moved) => is_busy |= moved,
                // The host has made the rings unusable for its own device.
                Err(_) => self.reset("unusable"),
            }
        }
        self.recorder.take_events();
        match self.guest.turn(time) {
            Ok(worked) => is_busy |= worked,
            Err(fault) => {
                is_busy = true;
                self.reset(name(fault));
            }
        }
        if self.random.below(8) == 0 {
            let _ = self.guest.wait(self.now, Duration::ZERO);
        }
        let events = self.recorder.take_events();
        self.report.events_max = self.report.events_max.max(events);
        if events > EVENTS_MAX {
            return Err(format!("{events} reads and spans in one turn of the guest").into());
        }
        self.idle = if is_busy { 0 } else { self.idle + 1 };
        if self.idle > WATCHDOG {
            self.reset("silent");
        }
        self.now += if is_busy { TURN } else { PAUSE };
        self.check()
    }

    fn reset(&mut self, why: &'static str) {
        *self.report.faults.entry(why).or_default() += 1;
        self.report.resets += 1;
        self.idle = 0;
        self.guest.reset();
    }

    /// No connection delivers a wrong byte, and memory is bounded.
    fn check(&self) -> Result<(), Broken> {
        let Delivered { right, wrong } = self.delivered.get();
        if wrong > 0 {
            return Err(
                format!("{wrong} wrong bytes of plaintext after {right} right ones").into(),
            );
        }
        let driver = self.guest.driver();
        let [frames, ..] = driver.free();
        if frames + driver.in_flight()[0] > self.fresh[0] {
            return Err(format!("{frames} free buffers of {}", self.fresh[0]).into());
        }
        if self.guest.connections() > connections_max() {
            return Err(format!("{} connections", self.guest.connections()).into());
        }
        let waiting = self.guest.waiting();
        if waiting > 2 * connections_max() + 16 {
            return Err(format!("{waiting} entries in a list of connections").into());
        }
        Ok(())
    }

    /// The host becomes honest: other clients are served, what is left of the attack ends by
    /// itself, and no buffer is missing.
    pub(super) fn resume(mut self) -> Result<Report, Broken> {
        self.recorder.stop();
        self.report.consumed = self.recorder.consumed();
        let before = self.guest.counters();
        self.report.tls_failures = before.tls_failures;
        let line = self.device.frames();
        (line.hostile, line.is_counted) = (0.0, false);
        line.is_stuck = false;
        line.held.clear();
        line.peer = peer(&self.keys, AFTERWARDS)?;
        let right = self.delivered.get().right;
        self.report.delivered = right;
        self.guest.reset();
        self.connect()?;
        let (clients, mut finished) = (CONNECTIONS, 0);
        let until = self.now + Duration::from_secs(600);
        while finished < clients {
            self.turn()?;
            finished += self.device.frames().peer.take_finished().len();
            if self.now > until {
                let counters = self.device.frames().peer.counters();
                return Err(format!("{finished} of {clients} were served: {counters:?}").into());
            }
        }
        let expected = clients as u64 * (self.bytes[0] + self.bytes[1]);
        let delivered = self.delivered.get().right - right;
        // What was left of the attack may have been delivered meanwhile, too.
        if delivered < expected {
            let counters = self.device.frames().peer.counters();
            let (guest, faults) = (self.guest.counters(), &self.report.faults);
            return Err(format!(
                "{delivered} of {expected} bytes delivered: clients {counters:?}, guest {before:?} \
                 before and {guest:?} after, {faults:?}"
            )
            .into());
        }
        let until = self.now + Duration::from_secs(1200);
        while self.guest.connections() > 0 || !self.is_fresh() {
            self.turn()?;
            if self.now > until {
                let left = self.guest.connections();
                let free = self.guest.driver().free();
                return Err(
                    format!("{left} connections left, {free:?} of {:?}", self.fresh).into(),
                );
            }
        }
        let counters = self.guest.driver().counters();
        self.report.frames = [counters.received, counters.sent];
        Ok(self.report)
    }

    fn is_fresh(&self) -> bool {
        let driver = self.guest.driver();
        let ([frames, records, headers, _], [receive, transmit]) =
            (driver.free(), driver.in_flight());
        transmit == 0 && frames + receive == self.fresh[0] && [records, headers] == self.fresh[1..3]
    }

    /// Returns a second mapping of the region, for another thread.
    pub(super) fn region(&self) -> Result<Region, Broken> {
        map(&self.region)
    }
}

fn connections_max() -> usize {
    network(0, GUEST).connections_max
}

/// Writes the segments of a peer that opens connections and resets each at once: this one of them.
fn forge(frame: &mut Vec<u8>, number: u32) {
    const SYN: u8 = 2;
    const RST: u8 = 4;
    let is_reset = number % 2 == 1;
    let mut tcp = [0; 20];
    tcp[..2].copy_from_slice(&(1024 + (number / 2 % 16_384) as u16).to_be_bytes());
    tcp[2..4].copy_from_slice(&PORT.to_be_bytes());
    tcp[4..8].copy_from_slice(&u32::from(is_reset).to_be_bytes());
    (tcp[12], tcp[13]) = (5 << 4, if is_reset { RST } else { SYN });
    let macs = ([2, 0, 0, 0, 0, 2], [2, 0, 0, 0, 0, 9]);
    *frame = frame::ipv4(macs.0, macs.1, FORGED, GUEST, protocol::TCP, &tcp);
}

/// Returns settings whose limits are reached, and whose times are those of the daemon.
fn network(last: u8, address: Ipv4Addr) -> tcp::Config {
    tcp::Config {
        ip4: Some(Network {
            address,
            prefix_len: 24,
            gateway: None,
        }),
        ip6: Some(Network {
            address: Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, last.into()),
            prefix_len: 64,
            gateway: None,
        }),
        connections_max: 200,
        time_wait_max: 50,
        pinned_max: 64 << 10,
        pool_max: 128 << 10,
        copied_max: 1 << 20,
        keep_alive: Some(KEEP_ALIVE),
        ..tcp::Config::new([2, 0, 0, 0, 0, last])
    }
}

fn peer(keys: &Keys, address: Ipv4Addr) -> Result<Peer<Stream>, Broken> {
    let [.., last] = address.octets();
    let network = tcp::Config {
        // The clients give up early, so that others come.
        stall_max: Duration::from_secs(60),
        keep_alive: Some(KeepAlive {
            idle: Duration::from_secs(8),
            interval: Duration::from_secs(5),
            probes: 3,
        }),
        ..network(last, address)
    };
    let secret = Secret::new(&[9; 16]);
    let peer = Peer::new(network, secret, keys.client.clone());
    peer.map_err(|error| Broken(error.to_string()))
}
