//! The guest's process.

use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::time::Duration;

use rustix::time::{clock_gettime, ClockId};
use tare_memory::Means;
use tare_sim::Instant;

use super::link::{greeted, tell};
use super::{Agreement, Error, GuestReport, Place, GUEST_MAC, POLL, PULSE};
use crate::breakdown::Off;
use crate::guest::Guest;
use crate::region::Region;
use crate::ring::{Doorbell, Driver, Notification, Settings};
use crate::server::{Service, Time};
use crate::tcp::{self, Secret};
use crate::tls::{Identity, Options, Server};

/// The pause after the host was caught cheating: it can stop its guest anyway, but not make it
/// spin.
const PAUSE: Duration = Duration::from_millis(10);

/// The longest time of a turn without work that was not interrupted.
const TURN_MAX: Duration = Duration::from_micros(20);

/// The settings of a guest.
pub struct GuestOptions {
    /// The settings that the host has been given too.
    pub agreement: Agreement,
    /// Its place in the network.
    pub place: Place,
    /// The files of certificate and key; `None` to make them. They never leave the guest.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// TLS.
    pub tls: Options,
    /// The servers, each at its port.
    pub services: Vec<(u16, Box<dyn Service>)>,
}

/// Runs a guest on the descriptors that come over the socket, until the host closes it.
///
/// # Errors
/// It cannot be started.
pub fn run_guest(socket: BorrowedFd<'_>, options: GuestOptions) -> Result<(), Error> {
    let agreement = options.agreement;
    let [memory, kick, interrupt] = greeted(socket).map_err(Error::Link)?;
    let mut region = Region::open(memory, &agreement.variant.config(1)).map_err(Error::Region)?;
    let settings = Settings {
        exits: agreement.exits,
        switch_cycles: agreement.switch_cycles,
        notification: match agreement.is_polling {
            true => Notification::Polling,
            false => Notification::Events {
                kick: Doorbell::from_fd(kick),
                interrupt: Doorbell::from_fd(interrupt),
            },
        },
    };
    let identity = match &options.identity {
        Some((chain, key)) => Identity::read(chain, key),
        None => {
            let addresses = options.place.addresses().map(|address| address.to_string());
            let names: Vec<String> = addresses.chain(["localhost".to_owned()]).collect();
            Identity::self_signed(&names)
        }
    };
    let server = identity.and_then(|identity| Server::new(identity, &options.tls));
    let server = server.map_err(Error::Tls)?;
    let mut secret = [0; 16];
    rustix::rand::getrandom(&mut secret, rustix::rand::GetRandomFlags::empty())
        .map_err(|error| Error::Link(error.into()))?;
    // Where processor and kernel have keys: without, the guest is as safe, but from itself.
    let _ = region.guard(Means::Key);
    let driver = Driver::new(region, 0, settings, Off).map_err(Error::Region)?;
    let mut guest = Guest::new(
        driver,
        agreement.variant.tcp(config(&options.place)),
        Secret::new(&secret),
        server,
        options.services,
        Off,
    )
    .map_err(Error::Tcp)?;
    let mut look_at = Instant::ZERO;
    let mut idle_since: Option<Instant> = None;
    let (mut polling, mut polled_at) = (Duration::ZERO, None::<Instant>);
    loop {
        let time = Time::now();
        let turn = polled_at.take().map(|at| time.now.since(at));
        // The other ones were interrupted, and the time was another program's.
        polling += turn.filter(|turn| *turn < TURN_MAX).unwrap_or_default();
        let turned = guest.turn(time).and_then(|is_busy| {
            if is_busy {
                idle_since = None;
            } else if time.now.since(*idle_since.get_or_insert(time.now)) > POLL {
                guest.wait(time.now, PULSE)?;
            } else {
                std::hint::spin_loop();
                polled_at = Some(time.now);
            }
            Ok(())
        });
        if let Err(fault) = turned {
            eprintln!("the host broke the rules of the ring, the device is reset: {fault}");
            std::thread::sleep(PAUSE);
            guest.reset();
        }
        if time.now >= look_at {
            look_at = time.now + PULSE;
            if !tell(socket, &report(&guest, polling)) {
                return Ok(());
            }
        }
    }
}

/// Returns the settings of TCP.
fn config(place: &Place) -> tcp::Config {
    tcp::Config {
        ip4: Some(place.ip4),
        ip6: place.ip6,
        mtu: place.mtu,
        no_delay: true,
        ..tcp::Config::new(GUEST_MAC)
    }
}

fn report(guest: &Guest, polling: Duration) -> GuestReport {
    let (served, driver) = (guest.counters(), guest.driver().counters());
    let exits = guest.driver().exits();
    let cpu = clock_gettime(ClockId::ThreadCPUTime);
    GuestReport {
        opened: served.opened,
        closed: served.opened - guest.connections() as u64,
        handshakes: served.handshakes,
        tls_failures: served.tls_failures,
        cut_off: served.cut_off,
        records_in: served.records_in,
        records_out: served.records_out,
        bytes_in: served.bytes_in,
        bytes_out: served.bytes_out,
        frames_in: driver.received,
        frames_malformed: driver.malformed,
        bounced: driver.bounced,
        kicks: exits.kicks,
        interrupts: exits.interrupts,
        faults: driver.faults,
        cpu_ns: cpu.tv_sec as u64 * 1_000_000_000 + cpu.tv_nsec as u64,
        polling_ns: polling.as_nanos() as u64,
    }
}
