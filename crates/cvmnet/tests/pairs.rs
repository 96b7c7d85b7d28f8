//! A guest with four queue pairs, a thread each, behind a host that chooses the pair of a flow.

use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use rustls::pki_types::ServerName;
use tare_cvmnet::breakdown::Off;
use tare_cvmnet::guest::Guest;
use tare_cvmnet::host::merge::Limits;
use tare_cvmnet::host::{Device, DeviceSettings, Frames, Pairs, Peer, Target};
use tare_cvmnet::region::{Config as Layout, Region};
use tare_cvmnet::ring::{Driver, NetHeader, Notification, Settings};
use tare_cvmnet::server::bulk::{pattern, Source};
use tare_cvmnet::server::{Application, Memcached, Output, Service, Store, Time};
use tare_cvmnet::tcp::{Config, Secret};
use tare_cvmnet::tls::{Client, Identity, Options, Server};
use tare_cvmnet::variant::{self, Variant};
use tare_cvmnet::Counters;
use tare_packet::{frame, ipv4, protocol};
use tare_sim::{Instant, Random};

const PAIRS: usize = 4;
const GUEST: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 2);
const PEER: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 1);
/// A source of bytes, and a store.
const PORTS: [u16; 2] = [443, 11211];
/// Bytes of a connection.
const BYTES: u64 = 2 << 20;
/// The longest that a test may take on a busy machine, where what a broken pair lost is sent again
/// after up to a minute.
const PATIENCE: Duration = Duration::from_secs(300);

/// Waits a moment for other threads. Linux 6.18 runs a thread that yields beside busy ones once in
/// several time slices, and one that has slept soon.
fn pause() {
    thread::sleep(Duration::from_micros(20));
}

fn polling(pairs: usize) -> Pairs {
    Pairs::new(&vec![Notification::Polling; pairs])
}

/// A segment without data.
fn segment(from: (IpAddr, u16), to: (IpAddr, u16)) -> Vec<u8> {
    let mut tcp = [0; 20];
    tcp[..2].copy_from_slice(&from.1.to_be_bytes());
    tcp[2..4].copy_from_slice(&to.1.to_be_bytes());
    tcp[12] = 5 << 4;
    packet(from.0, to.0, protocol::TCP, &tcp)
}

fn packet(from: IpAddr, to: IpAddr, protocol: u8, payload: &[u8]) -> Vec<u8> {
    let (ours, theirs) = ([2; 6], [4; 6]);
    match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            frame::ipv4(ours, theirs, from, to, protocol, payload)
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            frame::ipv6(ours, theirs, from, to, (protocol, 64), payload)
        }
        _ => panic!("of one version"),
    }
}

/// Addresses and ports of both ends.
fn flow(random: &mut Random) -> [(IpAddr, u16); 2] {
    let is_ip4 = random.below(2) == 0;
    [(); 2].map(|()| {
        let host = random.below(250) as u8 + 1;
        let address = match is_ip4 {
            true => Ipv4Addr::new(10, 9, 1, host).into(),
            false => Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, host.into()).into(),
        };
        (address, random.below(65_535) as u16 + 1)
    })
}

#[test]
fn a_flow_has_one_pair_in_both_directions_and_flows_are_spread_by_a_key() {
    let (pairs, others) = (polling(PAIRS), polling(PAIRS));
    let mut random = Random::new(3);
    let (mut counts, mut same) = ([0; PAIRS], 0);
    for _ in 0..4000 {
        let [one, other] = flow(&mut random);
        let there = pairs.target(&segment(one, other));
        assert_eq!(there, pairs.target(&segment(other, one)));
        let Target::Pair(pair) = there else {
            panic!("{there:?}")
        };
        assert_eq!(pair, pairs.of_flow(one, other));
        counts[pair] += 1;
        same += u32::from(others.target(&segment(one, other)) == there);
        // An error about a segment that the guest has sent comes from any router.
        if let (IpAddr::V4(_), IpAddr::V4(_)) = (one.0, other.0) {
            let mut error = vec![3, 4, 0, 0, 0, 0, 5, 0];
            error.extend_from_slice(&segment(one, other)[14..]);
            let router = Ipv4Addr::new(192, 0, 2, 1).into();
            let error = packet(router, one.0, protocol::ICMP, &error);
            assert_eq!(pairs.target(&error), there);
        }
    }
    assert!(counts.iter().all(|n| (800..1200).contains(n)), "{counts:?}");
    assert!((800..1200).contains(&same), "{same} alike by another key");
}

#[test]
fn what_is_no_segment_is_for_the_first_pair_and_one_pair_answers_for_the_guest() {
    let pairs = polling(PAIRS);
    let (one, other) = ((PEER.into(), 5000), (GUEST.into(), 443));
    let targets: HashSet<usize> = (0..200)
        .map(|port| pairs.of_flow((one.0, port), other))
        .collect();
    assert_eq!(targets.len(), PAIRS);
    let port = (1..).find(|port| pairs.of_flow((one.0, *port), other) != 0);
    let whole = segment((one.0, port.unwrap()), other);
    assert_ne!(pairs.target(&whole), Target::Pair(0));
    // Fragments have no ports, or only the first has.
    for fragment in [0x2000_u16, 0x0001] {
        let mut part = whole.clone();
        part[20..22].copy_from_slice(&fragment.to_be_bytes());
        part[24..26].fill(0);
        let sum =
            tare_packet::checksum::finish(tare_packet::checksum::sum(&part[14..14 + ipv4::HEADER]));
        part[24..26].copy_from_slice(&sum.to_be_bytes());
        assert_eq!(pairs.target(&part), Target::Pair(0), "{fragment:x}");
    }
    for (protocol, payload) in [
        (protocol::UDP, vec![1; 20]),
        (protocol::ICMP, vec![8; 20]),
        (protocol::ICMP, vec![3, 4]),
        (protocol::TCP, vec![1; 3]),
    ] {
        let other = packet(one.0, other.0, protocol, &payload);
        assert_eq!(pairs.target(&other), Target::Pair(0), "{protocol}");
    }
    let mut arp = vec![0xff; 42];
    arp[12..14].copy_from_slice(&[8, 6]);
    for (operation, target) in [(1, Target::Arrival), (2, Target::All)] {
        arp[20..22].copy_from_slice(&[0, operation]);
        assert_eq!(pairs.target(&arp), target);
    }
    let hosts = [1, 2].map(|host| IpAddr::from(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, host)));
    for (kind, target) in [(135, Target::Arrival), (136, Target::All)] {
        let discovery = packet(hosts[0], hosts[1], protocol::ICMPV6, &[kind; 24]);
        assert_eq!(pairs.target(&discovery), target);
    }
    for len in 0..40 {
        assert!(matches!(
            pairs.target(&whole[..len]),
            Target::Pair(0) | Target::Arrival
        ));
    }
}

#[test]
fn a_frame_reaches_its_pair_by_whichever_network_it_came_and_an_inbox_is_bounded() {
    let pairs = polling(2);
    let other = (GUEST.into(), 443);
    let of = |pair| {
        let port = (1..).find(|port| pairs.of_flow((PEER.into(), *port), other) == pair);
        segment((PEER.into(), port.unwrap()), other)
    };
    let memory = || tare_cvmnet::host::Memory::default();
    let mut networks = [pairs.network(0, memory()), pairs.network(1, memory())];
    let mut frame = Vec::new();
    for _ in 0..3000 {
        let arriving = (of(1), NetHeader::default());
        networks[0].network().to_guest.push_back(arriving);
    }
    while networks[0].receive(&mut frame).is_some() || !networks[0].network().to_guest.is_empty() {
        assert!(frame.is_empty(), "it is not for this pair");
    }
    let mut received = 0;
    while networks[1].receive(&mut frame).is_some() {
        assert_eq!(frame, of(1));
        frame.clear();
        received += 1;
    }
    assert_eq!((received, networks[1].dropped()), (1024, 3000 - 1024));
    // What it sends leaves by its own network.
    assert!(networks[1].send(&of(0), NetHeader::default()));
    assert_eq!(networks[1].network().from_guest.len(), 1);
}

/// The client of a connection: all bytes of the source, or a value that is set and read back.
struct Reader {
    received: u64,
    wrong: u64,
    /// The request that is sent once, and its answer; none for the source.
    ask: Option<(Vec<u8>, Vec<u8>)>,
    answer: Vec<u8>,
}

impl Application for Reader {
    fn receive(&mut self, bytes: &[u8], _: Time, _: &mut Output) -> usize {
        if self.ask.is_some() {
            self.answer.extend_from_slice(bytes);
        } else {
            self.wrong += u64::from(bytes != pattern(self.received, bytes.len()));
        }
        self.received += bytes.len() as u64;
        bytes.len()
    }

    fn produce(&mut self, _: Time, out: &mut Output) {
        if let Some((request, _)) = &mut self.ask {
            out.push(&std::mem::take(request));
        }
    }

    fn end(&mut self, _: Time, _: &mut Output) {}

    fn wants_close(&self) -> bool {
        match &self.ask {
            Some((_, expected)) => self.answer.len() >= expected.len(),
            None => false,
        }
    }
}

/// One machine with all clients, which any thread of the host may reach: a TAP device whose kernel
/// has its own choice of the queue.
#[derive(Clone)]
struct Hub(Arc<Mutex<Peer<Reader>>>);

impl Frames for Hub {
    fn receive(&mut self, frame: &mut Vec<u8>) -> Option<NetHeader> {
        self.0.lock().unwrap().receive(frame)
    }

    fn send(&mut self, frame: &[u8], header: NetHeader) -> bool {
        self.0.lock().unwrap().send(frame, header)
    }
}

/// A guest's thread, as the daemon has it: after a fault it resets its own device.
fn guest(pair: usize, fd: OwnedFd, layout: Layout, scene: &Scene) -> (Counters, u64) {
    let region = Region::open(fd, &layout).unwrap();
    let driver = Driver::new(region, pair, Settings::default(), Off).unwrap();
    let tcp = scene.variant.tcp(Config {
        handshake_max: PATIENCE,
        ..Config::on_link([2, 0, 0, 0, 0, 2], GUEST)
    });
    let services: Vec<(u16, Box<dyn Service>)> = vec![
        (PORTS[0], Box::new(Source::new(BYTES, 32 << 10))),
        (PORTS[1], Box::new(Memcached::new(scene.store.clone()))),
    ];
    let secret = Secret::new(&[7; 16]);
    let mut guest = Guest::new(driver, tcp, secret, scene.server.clone(), services, Off).unwrap();
    while !scene.stop.load(Ordering::Relaxed) {
        match guest.turn(Time::now()) {
            Ok(true) => {}
            Ok(false) => pause(),
            Err(_) => {
                scene.faults[pair].fetch_add(1, Ordering::Relaxed);
                thread::sleep(Duration::from_millis(1));
                guest.reset();
            }
        }
    }
    (guest.counters(), guest.driver().counters().faults)
}

struct Scene {
    variant: Variant,
    server: Server,
    store: Arc<Mutex<Store>>,
    stop: AtomicBool,
    faults: Vec<AtomicU64>,
}

/// Opens `each` connections of each pair to the source, or to the store; calls `look` with those
/// that have finished and the region, again and again, until it returns true. Returns the counters
/// of each pair.
fn run(
    variant: Variant,
    each: usize,
    port: u16,
    mut look: impl FnMut(&[(usize, Reader)], &Scene, &Region) -> bool,
) -> Vec<(Counters, u64)> {
    let identity = Identity::self_signed(&["guest.example".into()]).unwrap();
    let certificate = identity.certificate().unwrap().clone();
    let name = ServerName::try_from("guest.example").unwrap();
    let client = Client::new(&certificate, name, &Options::default()).unwrap();
    let scene = Scene {
        variant,
        server: Server::new(identity, &Options::default()).unwrap(),
        store: Arc::new(Mutex::new(Store::new(8 << 20))),
        stop: AtomicBool::new(false),
        faults: (0..PAIRS).map(|_| AtomicU64::new(0)).collect(),
    };
    let layout = variant.config(PAIRS as u16);
    let region = Region::create(&layout).unwrap();
    let pairs = polling(PAIRS);
    let config = Config {
        handshake_max: PATIENCE,
        ..Config::on_link([2, 0, 0, 0, 0, 1], PEER)
    };
    let mut peer = Peer::new(config, Secret::new(&[9; 16]), client).unwrap();
    let mut ids = Vec::new();
    for n in 0..PAIRS * each {
        let pair = n % PAIRS;
        // Half of them set what the other half, on other pairs, has set too.
        let request = format!("set k{n} 0 0 {PAIRS}\r\nabcd\r\nget k{n} none\r\n");
        let answer = format!("STORED\r\nVALUE k{n} 0 {PAIRS}\r\nabcd\r\nEND\r\n");
        let reader = Reader {
            received: 0,
            wrong: 0,
            ask: (port != PORTS[0]).then(|| (request.into_bytes(), answer.into_bytes())),
            answer: Vec::new(),
        };
        let to = SocketAddr::from((GUEST, port));
        let suits =
            |own: SocketAddr| pairs.of_flow((own.ip(), own.port()), (to.ip(), to.port())) == pair;
        let id = peer.connect_from(Instant::now(), to, reader, suits);
        ids.push((id.unwrap(), pair));
    }
    let hub = Hub(Arc::new(Mutex::new(peer)));
    thread::scope(|scope| {
        let scene = &scene;
        // A failure of the test ends the threads too.
        let _stop = Stop(&scene.stop);
        let guests: Vec<_> = (0..PAIRS)
            .map(|pair| {
                let fd = region.fd().try_clone_to_owned().unwrap();
                scope.spawn(move || guest(pair, fd, layout, scene))
            })
            .collect();
        for pair in 0..PAIRS {
            let settings = DeviceSettings {
                merge: variant.has_large_frames().then(Limits::default),
                ..DeviceSettings::default()
            };
            let network = pairs.network(pair, hub.clone());
            let mut device = Device::new(&region, pair, settings, network).unwrap();
            scope.spawn(move || {
                while !scene.stop.load(Ordering::Relaxed) {
                    if !device.poll(Instant::now()).unwrap() {
                        pause();
                    }
                }
            });
        }
        let (began, mut finished) = (Instant::now(), Vec::new());
        while !look(&finished, scene, &region) {
            let counters = hub.0.lock().unwrap().counters();
            let elapsed = Instant::now().since(began);
            assert!(elapsed < PATIENCE, "{} {counters:?}", finished.len());
            let more = {
                let mut peer = hub.0.lock().unwrap();
                if !peer.turn(Time::now()) {
                    pause();
                }
                peer.take_finished()
            };
            for (id, reader) in more {
                let pair = ids.iter().find(|(of, _)| *of == id).unwrap().1;
                finished.push((pair, reader));
            }
        }
        drop(_stop);
        guests.into_iter().map(|it| it.join().unwrap()).collect()
    })
}

struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn four_pairs_serve_at_the_same_time_and_every_byte_is_right() {
    for variant in [variant::CVM, variant::BIFROST] {
        let counters = run(variant, 2, PORTS[0], |finished, _, _| {
            finished.len() == 2 * PAIRS
                && finished
                    .iter()
                    .all(|(_, it)| (it.received, it.wrong) == (BYTES, 0))
        });
        for (served, faults) in counters {
            // All segments of a connection came by one pair: another one would have reset it.
            assert_eq!((served.opened, served.handshakes), (2, 2), "{served:?}");
            assert_eq!((served.tls_failures, served.cut_off, faults), (0, 0, 0));
            assert_eq!(served.bytes_out, 2 * BYTES);
        }
    }
}

#[test]
fn all_pairs_serve_one_store() {
    let counters = run(variant::BIFROST, 4, PORTS[1], |finished, scene, _| {
        for (_, reader) in finished {
            let expected = &reader.ask.as_ref().unwrap().1;
            assert_eq!(reader.answer, *expected);
        }
        let now = Instant::now();
        finished.len() == 4 * PAIRS && scene.store.lock().unwrap().len(now) == 4 * PAIRS
    });
    assert!(counters.iter().all(|(served, _)| served.handshakes == 4));
}

/// While the host writes wrong indices into the ring of one pair, its guest gives the device up
/// again and again, and the other pairs serve on; afterwards this one goes on as well.
#[test]
fn a_host_that_breaks_the_rules_of_one_ring_stops_that_pair_alone() {
    const BROKEN: usize = 1;
    let mut have_others_finished = false;
    let counters = run(variant::BIFROST, 2, PORTS[0], |finished, scene, region| {
        let of_others = finished.iter().filter(|(pair, _)| *pair != BROKEN).count();
        let faults = scene.faults[BROKEN].load(Ordering::Relaxed);
        have_others_finished |= of_others == 2 * (PAIRS - 1) && faults > 2;
        if !have_others_finished {
            assert_eq!(finished.len(), of_others, "the broken pair has served");
            let used = region.layout().pair(BROKEN).unwrap().receive.used;
            let index = region.view().atomic::<u16>(used + 2).unwrap();
            let wrong = index.load(Ordering::Relaxed).wrapping_add(0x4000);
            index.store(wrong, Ordering::Relaxed);
        }
        finished.len() == 2 * PAIRS
            && finished
                .iter()
                .all(|(_, it)| (it.received, it.wrong) == (BYTES, 0))
    });
    for (pair, (served, faults)) in counters.into_iter().enumerate() {
        assert_eq!(faults > 0, pair == BROKEN, "pair {pair}: {faults} faults");
        assert_eq!((served.handshakes, served.tls_failures), (2, 0));
    }
}
