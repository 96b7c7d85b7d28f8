//! The host's process: the region, the device, the network.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::Duration;

use tare_daemon::{Endpoints, Host, Level, LogOptions, Record, Signals};
use tare_port::VnetTap;
use tare_sim::Instant;

use super::link::{greet, pair, told};
use super::{Agreement, Error, GuestReport, HostReport, Place, Report, KIND, POLL, PULSE};
use crate::host::merge::Limits;
use crate::host::{Captured, Device, DeviceSettings, TapFrames};
use crate::region::Region;
use crate::ring::{Doorbell, Notification};
use crate::variant::Merging;

/// The time that a guest has to end by itself.
const FAREWELL: Duration = Duration::from_secs(2);

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
/// guest's process with the socket as its standard input.
///
/// # Errors
/// It cannot be started, the network is gone, or the guest has ended.
pub fn run_host(
    options: &HostOptions,
    launch: impl FnOnce(OwnedFd) -> io::Result<Child>,
) -> Result<(), Error> {
    let agreement = options.agreement;
    let layout = agreement.variant.config(1);
    let region = Region::create(&layout).map_err(Error::Region)?;
    let notification = match agreement.is_polling {
        true => Notification::Polling,
        false => Notification::Events {
            kick: Doorbell::new().map_err(Error::Link)?,
            interrupt: Doorbell::new().map_err(Error::Link)?,
        },
    };
    let mut host = Host::without_config(options.log, options.signals.clone(), || {});
    let capture = options.capture.as_deref();
    let network = Captured::new(network(options)?, capture).map_err(failed_capture(options))?;
    let settings = DeviceSettings {
        notification: notification.clone(),
        // Of `baseline-gro` it is the device's own merging, by the same code.
        merge: agreement.variant.has_large_frames().then(Limits::default),
    };
    let mut device = Device::new(&region, 0, settings, network).map_err(Error::Device)?;

    let (ours, theirs) = pair().map_err(Error::Link)?;
    let mut guest = Running(launch(theirs).map_err(Error::Launch)?);
    let (kick, interrupt) = doorbells(&notification).map_err(Error::Link)?;
    greet(&ours, [region.fd(), kick.as_fd(), interrupt.as_fd()]).map_err(Error::Link)?;

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
    host.log().write(
        &Record::new(Level::Info, "serving")
            .with("guest", addresses(&options.place))
            .with("device", options.tap.clone())
            .with("variant", agreement.variant.name),
    );
    let mut latest: Option<GuestReport> = None;
    let mut look_at = Instant::ZERO;
    let mut idle_since: Option<Instant> = None;
    while !host.is_stopped() {
        let now = Instant::now();
        let is_busy = device.poll(now).map_err(Error::Device)?;
        if now >= look_at {
            look_at = now + PULSE;
            latest = told(&ours).or(latest);
            let counters = HostReport::of(&device.counters());
            host.answer(|| Report {
                process: host.status(env!("CARGO_PKG_VERSION")),
                variant: agreement.variant.name.into(),
                address: addresses(&options.place),
                host: counters,
                guest: latest,
            });
            let flushed = device.frames().flush();
            flushed.map_err(failed_capture(options))?;
            if let Some(error) = device.frames().inner().error() {
                return Err(Error::Network(options.tap.clone(), error.kind().into()));
            }
            if let Some(status) = guest.ended() {
                return Err(Error::GuestEnded(status));
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
    host.end_service();
    drop(ours);
    guest.end();
    let served = latest.unwrap_or_default();
    host.log().write(
        &Record::new(Level::Info, "stopped")
            .with("connections", served.opened)
            .with("sent", served.bytes_out)
            .with("received", served.bytes_in),
    );
    Ok(())
}

/// Returns the guest's addresses for people.
fn addresses(place: &Place) -> String {
    let addresses = place.addresses().map(|address: IpAddr| address.to_string());
    addresses.collect::<Vec<_>>().join(" ")
}

/// Opens the TAP device.
fn network(options: &HostOptions) -> Result<TapFrames, Error> {
    let failed = |what: &str, error| Error::Network(format!("{what} of {}", options.tap), error);
    // The plain VM of today leaves merging to its device, and this one to the kernel.
    let receives_large = options.agreement.variant.merging == Merging::Device;
    let tap = VnetTap::open(&options.tap, receives_large).map_err(Error::Tap)?;
    let (place, interface) = (&options.place, tap.interface());
    if let Some(address) = place.ip4.gateway {
        let set = interface.set_ip4(address, place.ip4.prefix_len);
        set.map_err(|error| failed("the address", error))?;
    }
    if let Some((address, net)) = place.ip6.and_then(|net| Some((net.gateway?, net))) {
        let set = interface.set_ip6(address, net.prefix_len);
        set.map_err(|error| failed("the IPv6 address", error))?;
    }
    Ok(TapFrames::new(tap))
}

fn failed_capture(options: &HostOptions) -> impl Fn(io::Error) -> Error {
    let path = options.capture.clone().unwrap_or_default();
    move |error| Error::Capture(path.clone(), error)
}

/// Returns both eventfds; a guest that polls gets some too, so that there is one message.
fn doorbells(notification: &Notification) -> io::Result<(Doorbell, Doorbell)> {
    match notification {
        Notification::Events { kick, interrupt } => Ok((kick.clone(), interrupt.clone())),
        Notification::Polling => Ok((Doorbell::new()?, Doorbell::new()?)),
    }
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

    /// Waits until it has seen that the socket is closed.
    fn end(&mut self) {
        let until = Instant::now() + FAREWELL;
        while self.ended().is_none() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
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
