//! A guest and a host, with all of the path between them, on two threads and in turns that are
//! drawn: every variant carries the same bytes.

mod stream;
mod turns;

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::ServerName;
use tare_cvmnet::breakdown::Off;
use tare_cvmnet::guest::Guest;
use tare_cvmnet::host::merge::Limits;
use tare_cvmnet::host::{Device, DeviceSettings, Peer};
use tare_cvmnet::region::Region;
use tare_cvmnet::ring::{Driver, Settings};
use tare_cvmnet::server::{Service, Time};
use tare_cvmnet::tcp::{Config, Secret};
use tare_cvmnet::tls::{Client, Identity, Options, Server};
use tare_cvmnet::variant::{Merging, Variant};
use tare_cvmnet::Counters;
use tare_sim::Instant;

use stream::{Stream, Streams};

const GUEST: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 2);
const PEER: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 1);
const PORT: u16 = 443;
/// Bytes of one direction.
const BYTES: u64 = 24 << 20;

/// Waits a moment for the other side. Linux 6.18 runs a thread that yields beside busy ones once in
/// several time slices, and one that has slept soon.
fn pause() {
    std::thread::sleep(Duration::from_micros(20));
}

/// Returns a server of TLS, and a client that knows its certificate.
fn tls() -> (Server, Client) {
    let identity = Identity::self_signed(&["guest.example".into()]).unwrap();
    let certificate = identity.certificate().unwrap().clone();
    let name = ServerName::try_from("guest.example").unwrap();
    let client = Client::new(&certificate, name, &Options::default()).unwrap();
    let server = Server::new(identity, &Options::default()).unwrap();
    (server, client)
}

/// Returns a peer with four connections, which sends so many bytes on each and expects as many as
/// the second number says.
fn peer(client: Client, now: Instant, (to_guest, from_guest): (u64, u64)) -> Peer<Stream> {
    let config = Config::on_link([2, 0, 0, 0, 0, 1], PEER);
    let mut peer = Peer::new(config, Secret::new(&[9; 16]), client).unwrap();
    for _ in 0..4 {
        let stream = Stream {
            to_send: to_guest,
            expected: from_guest,
            ..Stream::default()
        };
        let to = SocketAddr::from((GUEST, PORT));
        peer.connect(now, to, stream).unwrap();
    }
    peer
}

fn settings(variant: Variant) -> DeviceSettings {
    DeviceSettings {
        merge: (variant.merging == Merging::Host).then(Limits::default),
        ..DeviceSettings::default()
    }
}

/// Moves bytes both ways and returns the guest's counters.
fn run(variant: Variant, to_guest: u64, from_guest: u64) -> Counters {
    let (server, client) = tls();

    let layout = variant.config(1);
    let region = Region::create(&layout).unwrap();
    let fd = region.fd().try_clone_to_owned().unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let guest = {
        let stop = stop.clone();
        std::thread::spawn(move || {
            let region = Region::open(fd, &layout).unwrap();
            let driver = Driver::new(region, 0, Settings::default(), Off).unwrap();
            let tcp = variant.tcp(Config::on_link([2, 0, 0, 0, 0, 2], GUEST));
            let streams: Box<dyn Service> = Box::new(Streams(from_guest, to_guest));
            let services = vec![(PORT, streams)];
            let secret = Secret::new(&[7; 16]);
            let mut guest = Guest::new(driver, tcp, secret, server, services, Off).unwrap();
            while !stop.load(Ordering::Relaxed) {
                if !guest.turn(Time::now()).unwrap() {
                    pause();
                }
            }
            guest.counters()
        })
    };
    let peer = peer(client, Instant::now(), (to_guest, from_guest));
    let mut device = Device::new(&region, 0, settings(variant), peer).unwrap();
    let began = Instant::now();
    let mut finished = Vec::new();
    while finished.len() < 4 {
        let now = Instant::now();
        assert!(
            now.since(began) < Duration::from_secs(120),
            "{:?} {:?}",
            device.frames().counters(),
            device.counters()
        );
        let is_busy = device.frames().turn(Time::now()) | device.poll(now).unwrap();
        finished.extend(device.frames().take_finished());
        if !is_busy {
            pause();
        }
    }
    stop.store(true, Ordering::Relaxed);
    let elapsed = Instant::now().since(began).as_secs_f64();
    for (_, stream) in finished {
        assert_eq!((stream.received, stream.wrong), (from_guest, 0));
    }
    let counters = guest.join().unwrap();
    let megabytes = 4e-6 * (to_guest + from_guest) as f64;
    eprintln!(
        "{:20} {:7.1} MB/s {:?}",
        variant.name,
        megabytes / elapsed,
        device.counters()
    );
    counters
}

#[test]
fn every_variant_carries_the_same_bytes_both_ways() {
    for variant in Variant::ALL {
        for (to_guest, from_guest) in [(BYTES, 0), (0, BYTES), (BYTES / 4, BYTES / 4)] {
            let counters = run(variant, to_guest, from_guest);
            assert_eq!(counters.bytes_in, 4 * to_guest, "{}", variant.name);
            assert_eq!(counters.bytes_out, 4 * from_guest, "{}", variant.name);
            assert_eq!((counters.handshakes, counters.tls_failures), (4, 0));
        }
    }
}
