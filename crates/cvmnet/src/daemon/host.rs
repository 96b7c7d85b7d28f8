//! The host's process: the region, the device, the network.

use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tare_daemon::{Endpoints, Host, Level, Log, LogOptions, Record, Signals};
use tare_packet::ethernet;
use tare_port::{Interface, VnetTap};
use tare_sim::Instant;

use super::link::{ask_to_reload, dismiss, greet, pair, told, Doorbells, Notice};
use super::threads::run_all;
use super::{
    Agreement, Error, GuestReport, HostReport, PairReport, Place, Report, KIND, POLL, PULSE,
};
use crate::host::merge::Limits;
use crate::host::{Capture, Captured, Device, DeviceSettings, Pairs, Steered, TapFrames};
use crate::region::Region;
use crate::ring::{Doorbell, Notification};
use crate::variant::Merging;

/// The time that a guest has to end by itself.
const FAREWELL: Duration = Duration::from_secs(10);
/// Frames that a TAP device keeps while its host is not on a processor. With the kernel's 1,000,
/// which are less than two connections have in flight, 16 clients that wrote to the guest lost
/// every 17th frame on two busy processors, and now and then waited for a timeout of TCP.
const TAP_QUEUE: u32 = 4096;

/// The settings of a host.
pub struct HostOptions {
    /// The settings that the guest has been given too.
    pub agreement: Agreement,
    /// The name of the TAP device.
    pub tap: String,
    /// The guest's place. Its gateways are the host's own addresses on the device, which is left as
    /// it is without: a port of a bridge, or one that has an address.
    pub place: Place,
    /// A file for the frames of both directions.
    pub capture: Option<PathBuf>,
    /// The endpoints for status.
    pub endpoints: Endpoints,
    /// The log.
    pub log: LogOptions,
    /// Requests to stop.
    pub signals: Signals,
}

/// Returns the status socket of the host whose TAP device has this name.
pub fn socket_of(tap: &str) -> PathBuf {
    tare_daemon::default_socket(KIND, Path::new(&format!("{tap}.conf")))
}

/// Runs a host and its guest until a stop is requested or the guest ends. `launch` starts the
/// guest's process with the socket as its standard input; `ready` is called once the guest serves:
/// it has read all that it was given, and told its counters for the first time.
///
/// # Errors
/// It cannot be started, the network is gone, or the guest has ended.
pub fn run_host(
    options: &HostOptions,
    launch: impl FnOnce(OwnedFd) -> io::Result<Child>,
    ready: impl FnOnce(),
) -> Result<(), Error> {
    let agreement = options.agreement;
    let mut ready = Some(ready);
    let region = Region::create(&agreement.layout(options.place.mtu)).map_err(Error::Region)?;
    let all = 0..agreement.vcpus;
    let bells = all.map(|_| Ok((Doorbell::new()?, Doorbell::new()?)));
    // A guest that polls gets some too, so that there is one message.
    let bells: Vec<Doorbells> = bells.collect::<io::Result<_>>().map_err(Error::Link)?;
    let mut host = Host::without_config(options.log, options.signals.clone(), || {});
    let capture = options.capture.as_deref().map(Capture::create).transpose();
    let capture = capture.map_err(failed_capture(options))?;
    let (taps, _addresses) = network(options, host.log())?;
    let mut devices = devices(options, &region, &bells, &capture, taps)?;

    let (ours, theirs) = pair().map_err(Error::Link)?;
    let mut guest = Running(launch(theirs).map_err(Error::Launch)?);
    greet(&ours, region.fd(), &bells).map_err(Error::Link)?;

    let mut endpoints = options.endpoints.clone();
    endpoints
        .socket
        .get_or_insert_with(|| socket_of(&options.tap));
    let errors = host.serve_at(endpoints);
    if let (Some(error), true) = (
        errors.into_iter().next(),
        options.endpoints != Endpoints::default(),
    ) {
        return Err(Error::Service(error));
    }
    let stop = AtomicBool::new(false);
    let reports: Vec<Mutex<HostReport>> = devices.iter().map(|_| Mutex::default()).collect();
    let mut told_by_guest = vec![None; devices.len()];
    let mut first = devices.remove(0);
    let others = devices.into_iter().zip(reports.iter().skip(1));
    let others = others.map(|(mut device, report)| {
        let stop = &stop;
        move || {
            serve(&mut device, |device| {
                *locked(report) = look_at(device, options)?;
                Ok(!stop.load(Ordering::Relaxed))
            })
        }
    });
    let served = run_all(
        &stop,
        || {
            serve(&mut first, |device| {
                *locked(&reports[0]) = look_at(device, options)?;
                if options.signals.take_reload() {
                    if let Err(error) = ask_to_reload(&ours) {
                        host.reloaded(Err(format!("the guest could not be asked: {error}")));
                    }
                }
                told(&ours, &mut told_by_guest, |event| note(&mut host, event));
                if told_by_guest.iter().all(Option::is_some) {
                    if let Some(ready) = ready.take() {
                        ready();
                        host.log().write(&serving(options));
                    }
                }
                host.answer(|_| {
                    let pairs = reports.iter().zip(&told_by_guest);
                    let pairs = pairs.map(|(report, told)| PairReport {
                        host: *locked(report),
                        guest: *told,
                    });
                    Report {
                        process: host.status(env!("CARGO_PKG_VERSION")),
                        variant: agreement.variant.name.into(),
                        address: addresses(&options.place),
                        exits: agreement.exits.name().into(),
                        switch_cycles: agreement.switch_cycles,
                        ..Report::of_pairs(pairs.collect())
                    }
                });
                if let Some(Err(error)) = capture.as_ref().map(Capture::flush) {
                    let path = options.capture.clone().unwrap_or_default();
                    host.log().write(
                        &Record::new(Level::Warn, "capture_ended")
                            .with("file", path.display().to_string())
                            .with("error", error.to_string()),
                    );
                }
                if let Some(status) = guest.ended() {
                    return Err(Error::GuestEnded(status));
                }
                Ok(!host.is_stopped() && !stop.load(Ordering::Relaxed))
            })
        },
        others.collect(),
    );
    // The guest goes while its devices are no longer served: it is told by the socket alone.
    host.end_service();
    dismiss(&ours);
    guest.end(|| told(&ours, &mut told_by_guest, |event| note(&mut host, event)));
    served?;
    let told = told_by_guest.iter().flatten();
    let sum = |count: fn(&GuestReport) -> u64| told.clone().map(count).sum::<u64>();
    host.log().write(
        &Record::new(Level::Info, "stopped")
            .with("connections", sum(|told| told.opened))
            .with("sent", sum(|told| told.bytes_out))
            .with("received", sum(|told| told.bytes_in)),
    );
    Ok(())
}

/// The device of a queue pair with the network behind it: a queue of the TAP device, and the choice
/// of the pair.
type TapDevice = Device<Steered<Captured<TapFrames>>>;

fn devices(
    options: &HostOptions,
    region: &Region,
    bells: &[Doorbells],
    capture: &Option<Capture>,
    taps: Vec<VnetTap>,
) -> Result<Vec<TapDevice>, Error> {
    let agreement = options.agreement;
    let notifications: Vec<Notification> = bells
        .iter()
        .map(|(kick, interrupt)| match agreement.is_polling {
            true => Notification::Polling,
            false => Notification::Events {
                kick: kick.clone(),
                interrupt: interrupt.clone(),
            },
        })
        .collect();
    let pairs = Pairs::new(&notifications);
    let networks = taps.into_iter().zip(notifications);
    let devices = networks.enumerate().map(|(n, (tap, notification))| {
        let settings = DeviceSettings {
            notification,
            // Of `baseline-gro` it is the device's own merging, by the same code.
            merge: agreement.variant.has_large_frames().then(Limits::default),
            frame_max: Some(ethernet::HEADER + options.place.mtu),
        };
        let network = Captured::new(TapFrames::new(tap), capture.clone());
        Device::new(region, n, settings, pairs.network(n, network)).map_err(Error::Device)
    });
    devices.collect()
}

/// Serves a queue pair until `look`, which is called at times, returns false.
fn serve(
    device: &mut TapDevice,
    mut look: impl FnMut(&mut TapDevice) -> Result<bool, Error>,
) -> Result<(), Error> {
    let mut look_at = Instant::ZERO;
    let mut idle_since: Option<Instant> = None;
    loop {
        let now = Instant::now();
        let is_busy = device.poll(now).map_err(Error::Device)?;
        if now >= look_at {
            look_at = now + PULSE;
            if !look(device)? {
                return Ok(());
            }
        }
        if is_busy {
            idle_since = None;
        } else if now.since(*idle_since.get_or_insert(now)) > POLL {
            let due = device.next_due().map_or(PULSE, |due| due.since(now));
            device.wait(due.min(PULSE)).map_err(Error::Device)?;
        } else {
            std::hint::spin_loop();
        }
    }
}

/// Returns the counters of a device whose network is still there.
fn look_at(device: &mut TapDevice, options: &HostOptions) -> Result<HostReport, Error> {
    let counters = device.counters();
    let steered = device.frames();
    let dropped = steered.dropped();
    match steered.network().inner().error() {
        Some(error) if error.kind() == io::ErrorKind::NotConnected => {
            Err(Error::Gone(options.tap.clone()))
        }
        Some(error) => Err(Error::Network(options.tap.clone(), error.kind().into())),
        None => Ok(HostReport::of(&counters, dropped)),
    }
}

fn locked(report: &Mutex<HostReport>) -> MutexGuard<'_, HostReport> {
    report.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Logs an event of the guest's.
fn note(host: &mut Host<Report>, event: Notice) {
    match event {
        Notice::KeyLogEnded { file, error } => host.log().write(
            &Record::new(Level::Warn, "key_log_ended")
                .with("file", file)
                .with("error", error),
        ),
        Notice::Reloaded(Ok(true)) => {
            host.log().write(&Record::new(Level::Info, "reloaded"));
            host.reloaded(Ok(()));
        }
        Notice::Reloaded(Ok(false)) => host.log().write(
            &Record::new(Level::Info, "nothing_to_reload")
                .with("reason", "neither --cert nor --key is given"),
        ),
        Notice::Reloaded(Err(error)) => host.reloaded(Err(error)),
    }
}

/// Returns the event that the guest serves.
fn serving(options: &HostOptions) -> Record {
    Record::new(Level::Info, "serving")
        .with("guest", addresses(&options.place))
        .with("device", options.tap.clone())
        .with("variant", options.agreement.variant.name)
        .with("vcpus", u64::from(options.agreement.vcpus))
}

/// Returns the guest's addresses for people.
fn addresses(place: &Place) -> String {
    let addresses = place.addresses().map(|address: IpAddr| address.to_string());
    addresses.collect::<Vec<_>>().join(" ")
}

/// The addresses that a device has got, and loses with this value.
struct Addresses {
    interface: Interface,
    added: Vec<(IpAddr, u8)>,
}

impl Drop for Addresses {
    fn drop(&mut self) {
        for (address, prefix_len) in &self.added {
            // It may be gone with its device, or by another's hand.
            let _ = self.interface.remove_address(*address, *prefix_len);
        }
    }
}

/// Opens the TAP device, with a queue for each pair, and gives it the host's addresses beside those
/// that it has. One that is made has the guest's MTU and [`TAP_QUEUE`]; of one that is there,
/// another MTU is logged.
fn network(options: &HostOptions, log: &Log) -> Result<(Vec<VnetTap>, Addresses), Error> {
    let failed = |what: &str, error| Error::Network(format!("{what} of {}", options.tap), error);
    // The plain VM of today leaves merging to its device, and this one to the kernel.
    let receives_large = options.agreement.variant.merging == Merging::Device;
    let queues = usize::from(options.agreement.vcpus);
    let taps = VnetTap::open_queues(&options.tap, receives_large, queues).map_err(Error::Tap)?;
    let (place, interface) = (&options.place, taps[0].interface());
    if taps[0].is_new() {
        let set = interface.set_mtu(place.mtu);
        set.map_err(|error| failed("the MTU", error))?;
        let set = interface.set_transmit_queue(TAP_QUEUE);
        set.map_err(|error| failed("the transmit queue", error))?;
    } else {
        let found = interface.mtu().map_err(|error| failed("the MTU", error))?;
        if found != place.mtu {
            log.write(
                &Record::new(Level::Warn, "mtu")
                    .with("device", options.tap.clone())
                    .with("found", found as u64)
                    .with("expected", place.mtu as u64),
            );
        }
    }
    let mut addresses = Addresses {
        interface: interface.clone(),
        added: Vec::new(),
    };
    let ip4 = place
        .ip4
        .gateway
        .map(|host| (host.into(), place.ip4.prefix_len));
    let ip6 = place
        .ip6
        .and_then(|net| Some((net.gateway?.into(), net.prefix_len)));
    for (address, prefix_len) in ip4.into_iter().chain(ip6) {
        let added = interface.add_address(address, prefix_len);
        if added.map_err(|error| failed(&format!("the address {address}"), error))? {
            addresses.added.push((address, prefix_len));
        }
    }
    Ok((taps, addresses))
}

fn failed_capture(options: &HostOptions) -> impl Fn(io::Error) -> Error {
    let path = options.capture.clone().unwrap_or_default();
    move |error| Error::Capture(path.clone(), error)
}

/// The guest's process, which ends with this value.
struct Running(Child);

impl Running {
    fn ended(&mut self) -> Option<String> {
        match self.0.try_wait() {
            Ok(None) => None,
            Ok(Some(status)) => Some(status.to_string()),
            Err(error) => Some(error.to_string()),
        }
    }

    /// Waits until it has seen that it is to end; `listen` takes what it tells until then.
    fn end(&mut self, mut listen: impl FnMut()) {
        let until = Instant::now() + FAREWELL;
        while self.ended().is_none() && Instant::now() < until {
            listen();
            std::thread::sleep(Duration::from_millis(5));
        }
        listen();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.ended().is_none() {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }
}
