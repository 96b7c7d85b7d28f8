//! The guest's own time per byte, by variant and direction, beside that of `tare-gcm` alone for
//! records of the same size: `cargo run --release -p tare-cvmnet --example cost -- [ROUNDS] [MS]
//! [VARIANT[,VARIANT…]] [receive|send] [one]`.
//!
//! All are measured once in each round, in turn, and the median over the rounds is printed with the
//! lowest and the highest. Host and guest have a thread and, where there are two, a processor each,
//! and take turns: each works until it has nothing left to do. So the guest always finds as much
//! work as a guest that is the bottleneck, whatever the host costs, and what the host has touched
//! is in the other processor's caches. The guest's time is its thread's processor time: other
//! programs on the machine count only by what they do to the caches. With `one` both sides are on
//! one thread, which is for counting instructions. Cycles are those of the time stamp counter.

use std::error::Error;
use std::hint::{self, black_box};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{
    AtomicBool, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};
use std::time::{Duration, Instant as Clock};

use rustix::time::{clock_gettime, ClockId};
use rustls::pki_types::ServerName;
use tare_cvmnet::breakdown::Off;
use tare_cvmnet::guest::Guest;
use tare_cvmnet::host::merge::Limits;
use tare_cvmnet::host::{Device, DeviceSettings, Peer};
use tare_cvmnet::region::Region;
use tare_cvmnet::ring::{Driver, Settings};
use tare_cvmnet::server::bulk::{Sink, Source};
use tare_cvmnet::server::{Application, Service, Time};
use tare_cvmnet::tcp::{Config, Secret};
use tare_cvmnet::tls::{Client, Identity, Options, Server, Suites};
use tare_cvmnet::variant::Variant;
use tare_gcm::{Key, Nonce};
use tare_memory::{timestamp, SharedMemory};
use tare_sim::Instant;

const CONNECTIONS: u16 = 4;
const GUEST: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);
const PEER: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
/// The data of a full record and its content type.
const RECORD: usize = 16_385;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Direction {
    Receive,
    Send,
}

/// The processor time of this thread, in nanoseconds.
fn processor_time() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

#[derive(Default)]
struct Board {
    stop: AtomicBool,
    /// It is the guest's turn.
    is_guest: AtomicBool,
    handshakes: AtomicU64,
    bytes: AtomicU64,
    busy: AtomicU64,
}

struct Side {
    guest: Guest,
    direction: Direction,
    busy: u64,
}

impl Side {
    /// Works until there is nothing left to do.
    fn work(&mut self, board: &Board) {
        let before = processor_time();
        // A turn that neither receives nor sends waits for the host.
        let frames = |guest: &Guest| {
            let counters = guest.driver().counters();
            counters.received + counters.sent
        };
        let mut done = u64::MAX;
        while done != frames(&self.guest) {
            done = frames(&self.guest);
            self.guest.turn(Time::now()).expect("the host is honest");
        }
        self.busy += processor_time() - before;
        let counters = self.guest.counters();
        board.handshakes.store(counters.handshakes, Relaxed);
        let bytes = match self.direction {
            Direction::Receive => counters.bytes_in,
            Direction::Send => counters.bytes_out,
        };
        board.bytes.store(bytes, Relaxed);
        board.busy.store(self.busy, Relaxed);
    }
}

fn services(direction: Direction) -> Vec<(u16, Box<dyn Service>)> {
    let one = |n| -> (u16, Box<dyn Service>) {
        match direction {
            Direction::Receive => (443 + n, Box::new(Sink::new(100))),
            Direction::Send => (443 + n, Box::new(Source::new(u64::MAX, 32 << 10))),
        }
    };
    (0..CONNECTIONS).map(one).collect()
}

/// Measures one variant in one direction; returns the guest's nanoseconds per byte.
fn trial(
    variant: Variant,
    direction: Direction,
    length: Duration,
    is_one: bool,
) -> Result<f64, Box<dyn Error>> {
    let options = Options {
        suites: Suites::Aes128,
        ..Options::default()
    };
    let identity = Identity::self_signed(&["guest.example".into()])?;
    let certificate = identity.certificate().ok_or("no certificate")?.clone();
    let client = Client::new(
        &certificate,
        ServerName::try_from("guest.example")?,
        &options,
    )?;
    let server = Server::new(identity, &options)?;
    let layout = variant.config(1);
    let region = Region::create(&layout)?;
    let fd = region.fd().try_clone_to_owned()?;
    let board = Board::default();

    let mut peer: Peer<Box<dyn Application>> = Peer::new(
        Config::on_link([2, 0, 0, 0, 0, 1], PEER),
        Secret::new(&[2; 16]),
        client,
    )?;
    let other = match direction {
        Direction::Receive => Direction::Send,
        Direction::Send => Direction::Receive,
    };
    for (port, service) in services(other) {
        let to = SocketAddr::from((GUEST, port));
        peer.connect(Instant::now(), to, service.accept())?;
    }
    let settings = DeviceSettings {
        merge: variant.has_large_frames().then(Limits::default),
        ..DeviceSettings::default()
    };
    let mut device = Device::new(&region, 0, settings, peer)?;
    let make = |server| -> Side {
        let region = Region::open(fd, &layout).expect("the same layout");
        let driver = Driver::new(region, 0, Settings::default(), Off).expect("a queue pair");
        let (tcp, secret) = (
            variant.tcp(Config::on_link([2, 0, 0, 0, 0, 2], GUEST)),
            Secret::new(&[1; 16]),
        );
        let guest = Guest::new(driver, tcp, secret, server, services(direction), Off);
        Side {
            guest: guest.expect("the settings are possible"),
            direction,
            busy: 0,
        }
    };
    let mut load = |mut beside: Option<&mut Side>| {
        let mut until = |is_done: &mut dyn FnMut() -> bool| {
            while !is_done() {
                let mut is_moving = true;
                while is_moving {
                    let time = Time::now();
                    device.frames().turn(time);
                    let polled = device.poll(time.now);
                    is_moving = polled.expect("a region of this layout");
                }
                if let Some(side) = &mut beside {
                    side.work(&board);
                    continue;
                }
                board.is_guest.store(true, Release);
                while board.is_guest.load(Acquire) {
                    hint::spin_loop();
                }
            }
        };
        until(&mut || board.handshakes.load(Relaxed) == u64::from(CONNECTIONS));
        let warm = Clock::now() + length / 4;
        until(&mut || Clock::now() >= warm);
        let (bytes, busy) = (board.bytes.load(Relaxed), board.busy.load(Relaxed));
        let end = Clock::now() + length;
        // On a busy machine a side may stand still for all of it.
        until(&mut || Clock::now() >= end && board.bytes.load(Relaxed) > bytes);
        let bytes = board.bytes.load(Relaxed) - bytes;
        let busy = board.busy.load(Relaxed) - busy;
        board.stop.store(true, Relaxed);
        busy as f64 / bytes as f64
    };
    if is_one {
        let mut side = make(server);
        return Ok(load(Some(&mut side)));
    }
    Ok(std::thread::scope(|scope| {
        scope.spawn(|| {
            let _ = tare_daemon::bind_to_cpu(Some(1));
            let mut side = make(server);
            while !board.stop.load(Relaxed) {
                if board.is_guest.load(Acquire) {
                    side.work(&board);
                    board.is_guest.store(false, Release);
                }
                hint::spin_loop();
            }
        });
        let _ = tare_daemon::bind_to_cpu(Some(0));
        load(None)
    }))
}

/// Nanoseconds per byte of sealing and opening full records by `tare-gcm` alone: in the caches, and
/// in shared memory that another thread has just written or read (one buffer after another, as many
/// as the guest has frames of 64 KiB posted).
fn alone(length: Duration) -> Result<[f64; 6], Box<dyn Error>> {
    const BUFFERS: usize = 256;
    const STRIDE: usize = 16_448;
    let key = Key::new(&[7; 16])?;
    let memory = SharedMemory::create("cost", BUFFERS * STRIDE)?;
    let other = memory.try_clone()?;
    let plaintext = vec![0x35; RECORD];
    let mut out = vec![0; RECORD];
    let mut sealed = plaintext.clone();
    let tag = key.seal_in_place(Nonce::from([1; 12]), &[0; 5], &mut sealed)?;
    let mut results = [0.0; 6];
    for (n, result) in results.iter_mut().enumerate() {
        let (is_open, is_twice, is_shared) = (n % 3 != 2, n % 3 == 1, n >= 3);
        let buffers = if is_shared { BUFFERS } else { 1 };
        let view = |n: usize| {
            memory
                .view()
                .range(n * STRIDE, RECORD)
                .expect("it is there")
        };
        let (mut spent, mut bytes) = (0, 0);
        let end = Clock::now() + length / 6;
        // The other thread's part: it writes what is opened, and reads what was sealed.
        let touch = |private: &mut [u8]| {
            for n in 0..buffers {
                let view = other.view().range(n * STRIDE, RECORD).expect("it is there");
                match is_open {
                    true => view.copy_from(&sealed),
                    false => view.copy_to(private),
                }
                .expect("the lengths are equal");
            }
        };
        let mut private = vec![0; RECORD];
        touch(&mut private);
        while Clock::now() < end {
            if is_shared {
                // On another processor, if there is one.
                let _ = tare_daemon::bind_to_cpu(Some(0));
                touch(&mut private);
                let _ = tare_daemon::bind_to_cpu(Some(1));
            }
            let before = processor_time();
            for n in (0..buffers).cycle().take(buffers.max(64)) {
                if is_open {
                    let from = [view(n).into()];
                    let nonce = Nonce::from([1; 12]);
                    if is_twice {
                        key.open_reading_twice(&nonce, &[0; 5], &from, &tag, &mut out, || ())?;
                    } else {
                        key.open_scattered(&nonce, &[0; 5], &from, &tag, &mut [&mut out])?;
                    }
                } else {
                    let nonce = Nonce::from([1; 12]);
                    key.seal_scattered(nonce, &[0; 5], &[&plaintext], &mut [view(n).into()])?;
                }
                black_box(&mut out);
                bytes += RECORD;
            }
            spent += processor_time() - before;
        }
        *result = spent as f64 / bytes as f64;
    }
    Ok(results)
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let mut next = || arguments.next();
    let rounds: usize = next().as_deref().unwrap_or("10").parse()?;
    let length = Duration::from_millis(next().as_deref().unwrap_or("200").parse()?);
    let names = next().unwrap_or_else(|| "baseline,cvm,zc,prpr,bifrost,bifrost-unprotected".into());
    let variants: Option<Vec<_>> = names.split(',').map(Variant::by_name).collect();
    let variants = variants.ok_or("expected names of variants")?;
    let directions = match next().as_deref() {
        Some("receive") => vec![Direction::Receive],
        Some("send") => vec![Direction::Send],
        _ => vec![Direction::Receive, Direction::Send],
    };
    let is_one = next().is_some();
    let hertz = {
        let (cycles, clock) = (timestamp(), Clock::now());
        while clock.elapsed() < Duration::from_millis(50) {}
        (timestamp() - cycles) as f64 / clock.elapsed().as_nanos() as f64
    };
    let mut cells: Vec<(String, Vec<f64>)> = Vec::new();
    let mut add = |n: usize, name: String, value: f64| match cells.get_mut(n) {
        Some(cell) => cell.1.push(value),
        None => cells.push((name, vec![value])),
    };
    for _ in 0..rounds {
        let mut n = 0;
        for (value, name) in alone(length)?.iter().zip([
            "gcm open, in the caches",
            "gcm open twice, in the caches",
            "gcm seal, in the caches",
            "gcm open, shared",
            "gcm open twice, shared",
            "gcm seal, shared",
        ]) {
            add(n, name.into(), *value);
            n += 1;
        }
        for &direction in &directions {
            for &variant in &variants {
                let value = trial(variant, direction, length, is_one)?;
                add(n, format!("{} {direction:?}", variant.name), value);
                n += 1;
            }
        }
    }
    println!("{rounds} rounds of {length:?}; cycles per byte: median (lowest to highest)");
    for (name, values) in &mut cells {
        values.sort_by(f64::total_cmp);
        let of = |n: usize| values[n] * hertz;
        let (low, middle, high) = (of(0), of(values.len() / 2), of(values.len() - 1));
        println!("{name:30} {middle:6.3} ({low:.3} to {high:.3})");
    }
    Ok(())
}
