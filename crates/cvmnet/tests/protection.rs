//! The guest keeps itself off the shared region: code that has no business there and reads a byte
//! of it ends the process.
//!
//! Protection keys are used where processor and kernel have them, and `mprotect` everywhere.

use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::time::Duration;

use rustls::pki_types::ServerName;
use tare_cvmnet::breakdown::Off;
use tare_cvmnet::guest::Guest;
use tare_cvmnet::host::merge::Limits;
use tare_cvmnet::host::{Device, DeviceSettings, Peer};
use tare_cvmnet::pool::GuestBuffer;
use tare_cvmnet::region::Region;
use tare_cvmnet::ring::{Driver, Settings};
use tare_cvmnet::server::{Application, Output, Service, Time};
use tare_cvmnet::tcp::{Config, Secret};
use tare_cvmnet::tls::{Client, Identity, Options, Server};
use tare_cvmnet::variant::{Variant, BIFROST};
use tare_memory::{Means, SharedMemory};
use tare_sim::Instant;

const GUEST: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 2);
const PEER: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 1);
const PORT: u16 = 443;
/// Bytes of each direction.
const BYTES: usize = 200_000;
/// The variable that tells a child what to do.
const TASK: &str = "TARE_TEST_STRAY";

/// Sends and receives bytes, and may read a byte of the shared region on the way.
struct Exchange {
    received: usize,
    has_sent: bool,
    is_server: bool,
    stray: Option<GuestBuffer>,
}

impl Application for Exchange {
    fn receive(&mut self, bytes: &[u8], _: Time, _: &mut Output) -> usize {
        if let Some(stray) = &self.stray {
            stray.read(0, &mut [0]).unwrap();
        }
        self.received += bytes.len();
        bytes.len()
    }

    fn produce(&mut self, _: Time, out: &mut Output) {
        if !std::mem::replace(&mut self.has_sent, true) {
            out.push_own(vec![7; BYTES]);
        }
    }

    fn end(&mut self, _: Time, _: &mut Output) {}

    fn wants_close(&self) -> bool {
        self.is_server && self.has_sent && self.received == BYTES
    }
}

struct Exchanges(Option<GuestBuffer>);

impl Service for Exchanges {
    fn accept(&self) -> Box<dyn Application> {
        Box::new(Exchange {
            received: 0,
            has_sent: false,
            is_server: true,
            stray: self.0.clone(),
        })
    }
}

/// Moves bytes both ways with a guarded guest; returns those that its peer has received.
fn exchange(variant: Variant, means: Option<Means>, has_stray: bool) -> usize {
    let identity = Identity::self_signed(&["guest.example".into()]).unwrap();
    let certificate = identity.certificate().unwrap().clone();
    let name = ServerName::try_from("guest.example").unwrap();
    let client = Client::new(&certificate, name, &Options::default()).unwrap();
    let server = Server::new(identity, &Options::default()).unwrap();
    let layout = variant.config(1);
    let host = Region::create(&layout).unwrap();
    let mut region = Region::open(host.fd().try_clone_to_owned().unwrap(), &layout).unwrap();
    if let Some(means) = means {
        region.guard(means).unwrap();
    }
    let driver = Driver::new(region, 0, Settings::default(), Off).unwrap();
    let stray = has_stray.then(|| driver.record().unwrap());
    let services: Vec<(u16, Box<dyn Service>)> = vec![(PORT, Box::new(Exchanges(stray)))];
    let (tcp, secret) = (
        variant.tcp(Config::on_link([2, 0, 0, 0, 0, 2], GUEST)),
        Secret::new(&[7; 16]),
    );
    let mut guest = Guest::new(driver, tcp, secret, server, services, Off).unwrap();
    let mut peer = Peer::new(
        Config::on_link([2, 0, 0, 0, 0, 1], PEER),
        Secret::new(&[9; 16]),
        client,
    )
    .unwrap();
    let exchange = Exchange {
        received: 0,
        has_sent: false,
        is_server: false,
        stray: None,
    };
    peer.connect(Instant::now(), SocketAddr::from((GUEST, PORT)), exchange)
        .unwrap();
    let settings = DeviceSettings {
        merge: variant.has_large_frames().then(Limits::default),
        ..DeviceSettings::default()
    };
    let mut device = Device::new(&host, 0, settings, peer).unwrap();
    let began = Instant::now();
    loop {
        let time = Time::now();
        assert!(time.now.since(began) < Duration::from_secs(60));
        device.frames().turn(time);
        device.poll(time.now).unwrap();
        guest.turn(time).unwrap();
        guest.wait(time.now, Duration::ZERO).unwrap();
        if let Some((_, exchange)) = device.frames().take_finished().pop() {
            return exchange.received;
        }
    }
}

/// The means that this machine has.
fn means() -> Vec<Means> {
    let mut memory = SharedMemory::create("test", 4096).unwrap();
    let mut means = vec![Means::Pages];
    match memory.guard(Means::Key) {
        Ok(()) => means.push(Means::Key),
        Err(error) => eprintln!("NOT TESTED: protection keys, which are not there ({error})"),
    }
    means
}

#[test]
fn a_guarded_guest_carries_all_bytes_in_every_variant() {
    for means in means() {
        for variant in Variant::ALL {
            let received = exchange(variant, Some(means), false);
            assert_eq!(received, BYTES, "{} by {means:?}", variant.name);
        }
    }
}

/// The tasks of a child, and the signal that ends it.
const TASKS: [(&str, Option<i32>); 6] = [
    ("application", Some(SIGSEGV)),
    ("application, without a guard", None),
    ("outside of windows", Some(SIGSEGV)),
    ("write outside of windows", Some(SIGSEGV)),
    ("within a closed window", Some(SIGSEGV)),
    ("within an open window", None),
];
const SIGSEGV: i32 = 11;

#[test]
fn a_stray_access_ends_the_process() {
    for means in means() {
        for (task, expected) in TASKS {
            let child = Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "child", "--ignored"])
                .env(TASK, format!("{means:?}: {task}"))
                .output()
                .unwrap();
            let found = child.status;
            assert_eq!(found.signal(), expected, "{means:?}, {task}: {found}");
            assert!(expected.is_some() || found.success(), "{task}: {found}");
        }
    }
}

#[test]
#[ignore = "run by a_stray_access_ends_the_process in a process of its own"]
fn child() {
    let task = std::env::var(TASK).unwrap_or_default();
    let Some((means, task)) = task.split_once(": ") else {
        return;
    };
    let means = match means {
        "Key" => Means::Key,
        _ => Means::Pages,
    };
    let mut memory = SharedMemory::create("test", 5000).unwrap();
    memory.guard(means).unwrap();
    let byte = || memory.view().range(4500, 1).unwrap();
    match task {
        "application" => drop(exchange(BIFROST, Some(means), true)),
        "application, without a guard" => drop(exchange(BIFROST, None, true)),
        "outside of windows" => byte().copy_to(&mut [0]).unwrap(),
        "write outside of windows" => byte().copy_from(&[1]).unwrap(),
        "within a closed window" => {
            let _open = memory.open_window();
            byte().copy_to(&mut [0]).unwrap();
            let _closed = memory.closed_window();
            byte().copy_to(&mut [0]).unwrap();
        }
        "within an open window" => {
            let _open = memory.open_window();
            drop(memory.closed_window());
            byte().copy_to(&mut [0]).unwrap();
        }
        _ => unreachable!("{task}"),
    }
}
