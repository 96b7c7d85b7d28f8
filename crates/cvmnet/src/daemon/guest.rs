//! The guest's process.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tare_memory::Means;
use tare_sim::Instant;

use super::link::{asked, greeted, tell, tell_last, tell_notice, Asked, Doorbells, Notice};
use super::threads::run_all;
use super::{Agreement, Error, GuestReport, Place, GUEST_MAC, KEEP_ALIVE, POLL, PULSE};
use crate::breakdown::Off;
use crate::busy::{thread_time, BusyTime};
use crate::guest::Guest;
use crate::region::Region;
use crate::ring::{Driver, Notification, Settings};
use crate::server::{Service, Time};
use crate::tcp::{self, Secret};
use crate::tls::{Identity, Options, Server};

/// The pause after the host was caught cheating: it can stop its guest anyway, but not make it
/// spin.
const PAUSE: Duration = Duration::from_millis(10);

/// Makes the servers, each at its port. Each thread makes its own, and what they share is behind a
/// lock: a store that all connections see.
pub type Services<'a> = dyn Fn() -> Result<Vec<(u16, Box<dyn Service>)>, String> + Sync + 'a;

/// The settings of a guest.
pub struct GuestOptions<'a> {
    /// The settings that the host has been given too.
    pub agreement: Agreement,
    /// Its place in the network.
    pub place: Place,
    /// The files of certificate and key; `None` to make them. They never leave the guest.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// TLS.
    pub tls: Options,
    /// The servers.
    pub services: &'a Services<'a>,
}

/// Runs a guest on the descriptors that come over the socket, until the host closes it or its own
/// direction of it. The counters are told at times, and when the guest ends.
///
/// # Errors
/// It cannot be started.
pub fn run_guest(socket: BorrowedFd<'_>, options: &GuestOptions<'_>) -> Result<(), Error> {
    let (memory, doorbells) =
        greeted(socket, options.agreement.vcpus.into()).map_err(Error::Link)?;
    let identity = match &options.identity {
        Some((chain, key)) => Identity::read(chain, key),
        None => {
            let addresses = options.place.addresses().map(|address| address.to_string());
            let names: Vec<String> = addresses.chain(["localhost".to_owned()]).collect();
            Identity::self_signed(&names)
        }
    };
    // One for all threads: a ticket of one connection resumes the next, on whichever pair it is.
    let server = identity.and_then(|identity| Server::new(identity, &options.tls));
    let server = server.map_err(Error::Tls)?;
    let mut secret = [0; 16];
    rustix::rand::getrandom(&mut secret, rustix::rand::GetRandomFlags::empty())
        .map_err(|error| Error::Link(error.into()))?;
    // One for all threads too, so that the numbers of a connection do not depend on the pair, which
    // the host chooses: initial sequence numbers grow (RFC 6528), and a SYN cookie is valid, even
    // if the host starts again with another choice.
    let secret = Secret::new(&secret);
    let stop = AtomicBool::new(false);
    let reports: Vec<Mutex<GuestReport>> = doorbells.iter().map(|_| Mutex::default()).collect();
    let mut works = Vec::new();
    for (pair, bells) in doorbells.into_iter().enumerate() {
        let memory = memory.try_clone().map_err(Error::Link)?;
        let (tls, secret) = (server.clone(), secret.clone());
        let (stop, reports, server) = (&stop, &reports, &server);
        works.push(move || {
            let mut guest = guest(pair, memory, bells, (tls, secret), options)?;
            serve(&mut guest, |report| {
                *locked(&reports[pair]) = report;
                // The first thread speaks for all.
                if pair == 0 {
                    match asked(socket) {
                        Some(Asked::End) => return false,
                        Some(Asked::Reload) => {
                            tell_notice(socket, Notice::Reloaded(reload(server, options)));
                        }
                        None => {}
                    }
                    if let Some(error) = server.take_key_log_error() {
                        let file = options.tls.key_log.clone().unwrap_or_default();
                        let (file, error) = (file.display().to_string(), error.to_string());
                        tell_notice(socket, Notice::KeyLogEnded { file, error });
                    }
                    for (pair, report) in reports.iter().enumerate() {
                        tell(socket, pair, *locked(report));
                    }
                }
                !stop.load(Ordering::Relaxed)
            });
            Ok(())
        });
    }
    let first = works.remove(0);
    let done = run_all(&stop, first, works);
    // Once more, now that nothing is added: the host may still read it.
    for (pair, report) in reports.iter().enumerate() {
        tell_last(socket, pair, *locked(report));
    }
    done
}

/// Reads certificate and key again, for the handshakes that begin from now on. Returns false if
/// they are no files.
fn reload(server: &Server, options: &GuestOptions<'_>) -> Result<bool, String> {
    let Some((chain, key)) = &options.identity else {
        return Ok(false);
    };
    let read = Identity::read(chain, key).and_then(|identity| server.replace(identity));
    read.map_err(|error| error.to_string()).map(|()| true)
}

fn locked(report: &Mutex<GuestReport>) -> MutexGuard<'_, GuestReport> {
    report.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the guest of a queue pair, for this thread.
fn guest(
    pair: usize,
    memory: OwnedFd,
    (kick, interrupt): Doorbells,
    (server, secret): (Server, Secret),
    options: &GuestOptions<'_>,
) -> Result<Guest, Error> {
    let agreement = options.agreement;
    let mut region =
        Region::open(memory, &agreement.layout(options.place.mtu)).map_err(Error::Region)?;
    let settings = Settings {
        exits: agreement.exits,
        switch_cycles: agreement.switch_cycles,
        notification: match agreement.is_polling {
            true => Notification::Polling,
            false => Notification::Events { kick, interrupt },
        },
    };
    // Where processor and kernel have keys, which are 15 for a process: without, the guest is as
    // safe, but from itself.
    let _ = region.guard(Means::Key);
    let driver = Driver::new(region, pair, settings, Off).map_err(Error::Region)?;
    Guest::new(
        driver,
        agreement.variant.tcp(config(&options.place)),
        secret,
        server,
        (options.services)().map_err(Error::Server)?,
        Off,
    )
    .map_err(Error::Tcp)
}

/// Serves until `look`, which is given the counters at times, says that it is over.
///
/// A host that breaks the rules of this ring stops this pair alone: the others have rings, memory
/// and threads of their own.
fn serve(guest: &mut Guest, mut look: impl FnMut(GuestReport) -> bool) {
    let mut look_at = Instant::ZERO;
    let mut idle_since: Option<Instant> = None;
    let mut spent = BusyTime::start();
    loop {
        let time = Time::now();
        spent.begin_turn(time.now);
        let turned = guest.turn(time).and_then(|is_busy| {
            if is_busy {
                idle_since = None;
            } else if time.now.since(*idle_since.get_or_insert(time.now)) > POLL {
                guest.wait(time.now, PULSE)?;
            } else {
                std::hint::spin_loop();
                spent.turn_was_idle();
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
            if !look(report(guest, spent.idle())) {
                return;
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
        keep_alive: Some(KEEP_ALIVE),
        no_delay: true,
        ..tcp::Config::new(GUEST_MAC)
    }
}

fn report(guest: &Guest, polling: Duration) -> GuestReport {
    let (served, driver) = (guest.counters(), guest.driver().counters());
    let exits = guest.driver().exits();
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
        halts: exits.halts,
        faults: driver.faults,
        cpu_ns: thread_time().as_nanos() as u64,
        polling_ns: polling.as_nanos() as u64,
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::tcp::Network;

    #[test]
    fn clients_that_vanish_are_noticed_by_the_daemons_settings() {
        let place = Place {
            ip4: Network {
                address: Ipv4Addr::new(10, 77, 0, 2),
                prefix_len: 24,
                gateway: None,
            },
            ip6: None,
            mtu: 1500,
        };
        assert_eq!(config(&place).keep_alive, Some(KEEP_ALIVE));
    }
}
