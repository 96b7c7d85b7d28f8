//! A host that flips bits of received frames while the guest reads them, at full speed.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant as Clock};

use rustls::pki_types::ServerName;
use tare_sim::Instant;

use super::Broken;
use crate::breakdown::Off;
use crate::guest::Guest;
use crate::host::merge::Limits;
use crate::host::{Device, DeviceSettings, Flipper, Peer};
use crate::region::Region;
use crate::ring::{Driver, Settings};
use crate::server::bulk::{BulkCounters, Sink, Source};
use crate::server::{Application, Service, Time};
use crate::tcp::{Config, Secret};
use crate::tls::{Client, Identity, Options, Server};
use crate::variant::Variant;

const GUEST: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 2);
const PEER: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 1);
const PORT: u16 = 443;
const NAME: &str = "guest.example";
/// Connections that send at the same time.
const CONNECTIONS: usize = 4;
/// The bytes of a frame that are left alone: headers, and those of the first record.
const SKIP: usize = 200;
/// The time for which bits are flipped between two turns of the device: the guest acknowledges
/// meanwhile, so that the next frames are large.
const PAUSE: Duration = Duration::from_micros(50);

/// The extent of an attack. It ends at the first wrong byte that the guest delivers.
#[derive(Clone, Copy, Debug)]
pub struct FlipPlan {
    /// It goes on for this time at least.
    pub at_least: Duration,
    /// After that time it ends when the guest has refused so many records.
    pub refused: u64,
    /// It ends after this time.
    pub at_most: Duration,
}

/// The counts of an attack.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Flipped {
    /// Bits that were flipped, and soon flipped back.
    pub flips: u64,
    /// Connections that were opened: a new one for each that ended.
    pub connections: u64,
    /// Records that were refused: their connections ended.
    pub refused: u64,
    /// Bytes that the guest delivered and that were compared with what was sent: all of them.
    pub verified: u64,
    /// Connections on which a byte was delivered that was not sent.
    pub wrong: u64,
    /// The time from the first flip to the end.
    pub time: Duration,
}

/// Lets a guest receive bulk data over TLS, with all of it compared, while its host flips bits of
/// the frames that it reads.
///
/// # Errors
/// The guest gave its device up, which this host does not give a reason for, or panicked; or what
/// either side needs cannot be made.
pub fn flip_bits(variant: Variant, plan: &FlipPlan) -> Result<Flipped, Broken> {
    let region = Region::create(&variant.config(1)).map_err(text)?;
    let fd = region.fd().try_clone_to_owned().map_err(text)?;
    let identity = Identity::self_signed(&[NAME.into()]).map_err(text)?;
    let certificate = identity.certificate().cloned();
    let certificate = certificate.ok_or(Broken("the identity has no certificate".into()))?;
    let name = ServerName::try_from(NAME).map_err(text)?;
    let client = Client::new(&certificate, name, &Options::default()).map_err(text)?;
    let server = Server::new(identity, &Options::default()).map_err(text)?;

    let mut flipper = Flipper::new(&region, 0).ok_or(Broken("the region has no pair".into()))?;
    let config = Config::on_link([2, 0, 0, 0, 0, 1], PEER);
    let peer = Peer::new(config, Secret::new(&[9; 16]), client);
    let mut peer: Peer<Box<dyn Application>> = peer.map_err(text)?;
    let source = Source::new(u64::MAX, 32 << 10);
    for _ in 0..CONNECTIONS {
        connect(&mut peer, &source)?;
    }
    let settings = DeviceSettings {
        merge: variant.has_large_frames().then(Limits::default),
        ..DeviceSettings::default()
    };
    let mut device = Device::new(&region, 0, settings, peer).map_err(text)?;
    let seen = Seen::default();
    std::thread::scope(|scope| {
        let guest = scope.spawn(|| {
            let served = serve(variant, fd, server, &seen);
            seen.stop.store(true, Relaxed);
            served
        });
        let began = Clock::now();
        let attacked = loop {
            let elapsed = began.elapsed();
            let is_met = elapsed >= plan.at_least && seen.refused.load(Relaxed) >= plan.refused;
            let is_lost = seen.wrong.load(Relaxed) > 0 || seen.stop.load(Relaxed);
            if elapsed >= plan.at_most || is_met || is_lost {
                break Ok(elapsed);
            }
            if let Err(error) = attack(&mut device, &mut flipper, &source) {
                break Err(error);
            }
        };
        seen.stop.store(true, Relaxed);
        let ended = guest
            .join()
            .map_err(|_| Broken("the guest panicked".into()))?;
        let (flips, time) = (flipper.flips(), attacked?);
        let (connections, refused, sink) = ended?;
        Ok(Flipped {
            flips,
            connections,
            refused,
            verified: sink.verified,
            wrong: sink.wrong,
            time,
        })
    })
}

/// The counters that both threads see.
#[derive(Default)]
struct Seen {
    stop: AtomicBool,
    wrong: AtomicU64,
    refused: AtomicU64,
}

/// Runs the guest until it is stopped; returns the connections that it opened, the records that it
/// refused, and the counters of its sink.
fn serve(
    variant: Variant,
    fd: std::os::fd::OwnedFd,
    server: Server,
    seen: &Seen,
) -> Result<(u64, u64, BulkCounters), Broken> {
    let region = Region::open(fd, &variant.config(1)).map_err(text)?;
    let driver = Driver::new(region, 0, Settings::default(), Off).map_err(text)?;
    let sink = Sink::new(1);
    let services: Vec<(u16, Box<dyn Service>)> = vec![(PORT, Box::new(sink.clone()))];
    let config = variant.tcp(Config::on_link([2, 0, 0, 0, 0, 2], GUEST));
    let guest = Guest::new(driver, config, Secret::new(&[7; 16]), server, services, Off);
    let mut guest = guest.map_err(text)?;
    while !seen.stop.load(Relaxed) {
        if !guest.turn(Time::now()).map_err(text)? {
            std::thread::yield_now();
        }
        seen.wrong.store(sink.counters().wrong, Relaxed);
        seen.refused.store(guest.counters().tls_failures, Relaxed);
    }
    let counters = guest.counters();
    Ok((counters.opened, counters.tls_failures, sink.counters()))
}

/// Sends some frames, and flips bits of them while the guest reads.
fn attack(
    device: &mut Device<Peer<Box<dyn Application>>>,
    flipper: &mut Flipper<'_>,
    source: &Source,
) -> Result<(), Broken> {
    let time = Time::now();
    flipper.note();
    // More than one segment at a time: payloads of small frames may be copied before they are
    // opened, and what the host changes in those is lost on the guest.
    for _ in 0..8 {
        device.frames().turn(time);
    }
    device.poll(time.now).map_err(text)?;
    flipper.follow();
    let next = Clock::now() + PAUSE;
    while Clock::now() < next {
        flipper.flip(SKIP);
    }
    for _ in device.frames().take_finished() {
        connect(device.frames(), source)?;
    }
    Ok(())
}

fn connect(peer: &mut Peer<Box<dyn Application>>, source: &Source) -> Result<(), Broken> {
    let to = SocketAddr::from((GUEST, PORT));
    let id = peer.connect(Instant::now(), to, source.accept());
    id.map(drop).map_err(text)
}

fn text(error: impl std::fmt::Display) -> Broken {
    Broken(error.to_string())
}
