//! A host that changes what the guest is reading: protected variants deliver what was sent or end
//! the connection, and the unprotected one is seen to fail.

use std::cell::{Cell, RefCell};
use std::net::{Ipv4Addr, SocketAddr};
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Duration;

use rustls::pki_types::ServerName;
use tare_cvmnet::breakdown::{Category, Probe};
use tare_cvmnet::guest::Guest;
use tare_cvmnet::host::merge::Limits;
use tare_cvmnet::host::{Device, DeviceSettings, Peer};
use tare_cvmnet::hostile::{flip_bits, FlipPlan, Flipped};
use tare_cvmnet::region::Region;
use tare_cvmnet::ring::{Driver, Settings};
use tare_cvmnet::server::bulk::{BulkCounters, Sink, Source};
use tare_cvmnet::server::{Application, Service, Time};
use tare_cvmnet::tcp::{Buffer, Checksum, Config, Frame, Secret, Stack};
use tare_cvmnet::tls::{Client, Identity, Options, Server};
use tare_cvmnet::variant::{Cipher, Headers, Variant};
use tare_cvmnet::variant::{BIFROST, BIFROST_UNPROTECTED, CVM, ZC};
use tare_packet::{checksum, frame, protocol};
use tare_sim::Instant;

const GUEST: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 2);
const PEER: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 1);
const PORT: u16 = 443;
const NAME: &str = "guest.example";

/// A guest with a sink that looks at every byte.
fn guest<P: Probe>(fd: OwnedFd, variant: Variant, server: Server, probe: P) -> (Guest<P>, Sink) {
    let region = Region::open(fd, &variant.config(1)).unwrap();
    let driver = Driver::new(region, 0, Settings::default(), probe.clone()).unwrap();
    let sink = Sink::new(1);
    let services: Vec<(u16, Box<dyn Service>)> = vec![(PORT, Box::new(sink.clone()))];
    let (tcp, secret) = (
        variant.tcp(Config::on_link([2, 0, 0, 0, 0, 2], GUEST)),
        Secret::new(&[7; 16]),
    );
    let guest = Guest::new(driver, tcp, secret, server, services, probe).unwrap();
    (guest, sink)
}

/// The host's part: a region, its device, and the configuration of a server in the guest.
struct Host {
    region: Region,
    server: Server,
    client: Client,
    settings: DeviceSettings,
}

fn host(variant: Variant) -> Host {
    let identity = Identity::self_signed(&[NAME.into()]).unwrap();
    let certificate = identity.certificate().unwrap().clone();
    let name = ServerName::try_from(NAME).unwrap();
    Host {
        region: Region::create(&variant.config(1)).unwrap(),
        client: Client::new(&certificate, name, &Options::default()).unwrap(),
        server: Server::new(identity, &Options::default()).unwrap(),
        settings: DeviceSettings {
            merge: variant.has_large_frames().then(Limits::default),
            ..DeviceSettings::default()
        },
    }
}

type Client4 = Peer<Box<dyn Application>>;

fn connect(peer: &mut Client4, source: &Source) {
    let to = SocketAddr::from((GUEST, PORT));
    peer.connect(Instant::now(), to, source.accept()).unwrap();
}

/// Has the peer send more than one segment at a time: payloads of small frames may be copied before
/// they are opened, and what the host changes in those is lost on the guest.
fn produce(peer: &mut Client4, time: Time) {
    for _ in 0..8 {
        peer.turn(time);
    }
}

/// Changes a byte of every received frame while a record is open to it: from the moment when a
/// second reading begins until the record is done with.
#[derive(Clone)]
struct Between(Rc<State>);

struct State {
    region: Region,
    frames: Vec<usize>,
    depth: Cell<u32>,
    is_changed: Cell<bool>,
    changes: Cell<u64>,
}

/// The place of the byte in its frame: within the first record of a large one.
const AT: usize = 900;

impl State {
    fn change(&self) {
        for &frame in &self.frames {
            let byte = self.region.view().range(frame + AT, 1).unwrap();
            let mut found = [0];
            byte.copy_to(&mut found).unwrap();
            byte.copy_from(&[found[0] ^ 0x55]).unwrap();
        }
        self.is_changed.set(!self.is_changed.get());
    }
}

struct Span(Rc<State>, Category);

impl Probe for Between {
    type Span = Span;

    fn enter(&self, category: Category) -> Span {
        let state = &self.0;
        if category == Category::Crypto {
            state.depth.set(state.depth.get() + 1);
            if state.depth.get() == 2 {
                state.change();
                state.changes.set(state.changes.get() + 1);
            }
        }
        Span(Rc::clone(state), category)
    }
}

impl Drop for Span {
    fn drop(&mut self) {
        let state = &self.0;
        if self.1 == Category::Crypto {
            state.depth.set(state.depth.get() - 1);
            if state.depth.get() == 0 && state.is_changed.get() {
                state.change();
            }
        }
    }
}

/// Sends 4 MiB to the guest; returns its sink's counters, and how often a second reading was met.
fn changed_between_readings(variant: Variant) -> (BulkCounters, u64) {
    let host = host(variant);
    let frames = host.region.layout().pair(0).unwrap().frames;
    let state = State {
        region: host.region.try_clone().unwrap(),
        frames: match variant.config(1).bounced {
            true => Vec::new(),
            false => (0..frames.count)
                .map(|n| frames.start + n * frames.stride)
                .collect(),
        },
        depth: Cell::new(0),
        is_changed: Cell::new(false),
        changes: Cell::new(0),
    };
    let state = Rc::new(state);
    let fd = host.region.fd().try_clone_to_owned().unwrap();
    let between = Between(Rc::clone(&state));
    let (mut guest, sink) = guest(fd, variant, host.server, between);
    let mut peer: Client4 = Peer::new(
        Config::on_link([2, 0, 0, 0, 0, 1], PEER),
        Secret::new(&[9; 16]),
        host.client,
    )
    .unwrap();
    connect(&mut peer, &Source::new(4 << 20, 32 << 10));
    let mut device = Device::new(&host.region, 0, host.settings, peer).unwrap();
    let began = Instant::now();
    while sink.counters().finished + sink.counters().wrong == 0 {
        let time = Time::now();
        assert!(time.now.since(began) < Duration::from_secs(60));
        produce(device.frames(), time);
        device.poll(time.now).unwrap();
        guest.turn(time).unwrap();
    }
    assert_eq!(guest.counters().tls_failures, 0);
    (sink.counters(), state.changes.get())
}

#[test]
fn a_change_between_two_readings_of_a_record_is_accepted_by_the_unprotected_variant_alone() {
    for variant in [BIFROST, ZC, CVM] {
        let (counters, changes) = changed_between_readings(variant);
        assert_eq!((counters.wrong, changes), (0, 0), "{}", variant.name);
        assert_eq!(counters.verified, 4 << 20, "{}", variant.name);
    }
    let (counters, changes) = changed_between_readings(BIFROST_UNPROTECTED);
    assert!(changes > 0);
    assert_eq!(counters.wrong, 1, "the change was not seen: {counters:?}");
}

#[test]
fn protected_variants_read_once_and_copy_headers() {
    for variant in Variant::ALL {
        let config = variant.config(1);
        let is_safe = config.headers == Headers::CopiedFirst && config.cipher == Cipher::SingleRead;
        if variant == BIFROST || variant == ZC {
            assert!(is_safe, "{}", variant.name);
        }
        if variant == BIFROST_UNPROTECTED {
            assert_eq!(config.headers, Headers::InPlace);
            assert_eq!(config.cipher, Cipher::Ordinary);
        }
    }
}

/// Lets the host flip bits until the guest has delivered a wrong byte; if that is not expected,
/// until it has refused some records in no less than two seconds. At most for a minute.
fn race(variant: Variant, is_lost: bool) -> Flipped {
    flip_bits(
        variant,
        &FlipPlan {
            at_least: Duration::from_secs(if is_lost { 60 } else { 2 }),
            refused: 5,
            at_most: Duration::from_secs(60),
        },
    )
    .unwrap()
}

#[test]
fn a_host_that_flips_bits_gets_wrong_bytes_past_the_unprotected_variant_alone() {
    let processors = std::thread::available_parallelism().map_or(1, |n| n.get());
    // In `zc` the checksums of short frames are verified by the guest, which drops most of those
    // that were changed.
    for variant in [BIFROST, ZC] {
        let raced = race(variant, false);
        eprintln!("{}: {raced:?}", variant.name);
        assert_eq!(raced.wrong, 0, "{}", variant.name);
        assert!(raced.flips > 0 && raced.verified > 0, "{}", variant.name);
        // The attack has reached records, and only their connections ended.
        let is_met = raced.refused > 0 && raced.connections > 4;
        assert!(is_met || processors < 2 || variant == ZC, "{raced:?}");
    }
    if processors < 2 {
        eprintln!("NOT TESTED: bifrost-unprotected in a real race, which needs two processors");
        return;
    }
    let raced = race(BIFROST_UNPROTECTED, true);
    eprintln!("bifrost-unprotected: {raced:?}");
    assert!(raced.wrong > 0, "the race went unnoticed: {raced:?}");
}

/// A frame of which the host has a second version: from the third reading of a byte on.
struct TwoVersions {
    first: Vec<u8>,
    second: Vec<u8>,
    readings: Rc<RefCell<Vec<u32>>>,
}

impl TwoVersions {
    fn byte(&self, at: usize) -> u8 {
        let readings = &mut self.readings.borrow_mut()[at];
        *readings += 1;
        match *readings {
            ..=2 => self.first[at],
            _ => self.second[at],
        }
    }
}

impl Buffer for TwoVersions {
    fn capacity(&self) -> usize {
        self.first.len()
    }

    fn read(&self, at: usize, to: &mut [u8]) {
        for (n, to) in to.iter_mut().enumerate() {
            *to = self.byte(at + n);
        }
    }

    fn sum(&self, range: Range<usize>) -> u64 {
        checksum::sum(&range.map(|at| self.byte(at)).collect::<Vec<_>>())
    }
}

/// A SYN from this port, with a right checksum.
fn syn(from: u16) -> Vec<u8> {
    let mut tcp = [0; 20];
    tcp[..2].copy_from_slice(&from.to_be_bytes());
    tcp[2..4].copy_from_slice(&PORT.to_be_bytes());
    tcp[12..14].copy_from_slice(&[5 << 4, 2]);
    let (source, target) = (PEER.octets(), GUEST.octets());
    let pseudo = checksum::pseudo_header(&source, &target, protocol::TCP, tcp.len());
    let sum = checksum::finish(pseudo + checksum::sum(&tcp));
    tcp[16..18].copy_from_slice(&sum.to_be_bytes());
    let (to, from) = ([2, 0, 0, 0, 0, 2], [2, 0, 0, 0, 0, 1]);
    frame::ipv4(to, from, PEER, GUEST, protocol::TCP, &tcp)
}

#[test]
fn headers_that_are_copied_first_are_read_once_and_those_in_place_may_change() {
    for headers in [Headers::CopiedFirst, Headers::InPlace] {
        let config = Config {
            headers,
            ..Config::on_link([2, 0, 0, 0, 0, 2], GUEST)
        };
        let mut stack = Stack::new(config, Secret::new(&[7; 16])).unwrap();
        stack.listen(PORT);
        // The fields of one segment, with the checksum of another.
        let (mut first, second) = (syn(4000), syn(4001));
        let ports = 14 + 20;
        first[ports..ports + 2].copy_from_slice(&second[ports..ports + 2]);
        first[ports + 1] ^= 8;
        let len = 14 + 40;
        let readings = Rc::new(RefCell::new(vec![0; first.len()]));
        let buffer = TwoVersions {
            first,
            second,
            readings: Rc::clone(&readings),
        };
        let frame = Frame {
            buffer,
            range: 0..len,
            checksum: Checksum::Unverified,
        };
        stack.receive(Instant::now(), frame);
        let most = *readings.borrow().iter().max().unwrap();
        let taken = (stack.counters().checksum, stack.connections());
        match headers {
            Headers::CopiedFirst => assert_eq!((most, taken), (1, (1, 0))),
            Headers::InPlace => assert_eq!((most, taken), (3, (0, 1))),
        }
    }
}
