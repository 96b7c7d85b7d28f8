//! The guest's TCP, over ring and device, against Linux's on a TAP device, with frames lost,
//! duplicated and reordered between them. Needs root.
//!
//! `TARE_LINUX_BYTES` is the number of bytes of each direction; 200 MB without it.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use tare_cvmnet::breakdown::Off;
use tare_cvmnet::host::merge::Limits;
use tare_cvmnet::host::{Device, DeviceSettings, Frames, Lossy, PortFrames, TapFrames};
use tare_cvmnet::pool::GuestBuffer;
use tare_cvmnet::region::Region;
use tare_cvmnet::ring::{Driver, Settings};
use tare_cvmnet::tcp::{Chunk, Config, Id, Secret, Stack};
use tare_cvmnet::variant::{self, Merging, Variant};
use tare_port::namespaces::Namespaces;
use tare_port::{Layout, Pool, TapPort, VnetTap, HEADROOM};
use tare_sim::{Instant, LineConfig, Random};

const TAP: &str = "cvm0";
const GUEST: Ipv4Addr = Ipv4Addr::new(10, 78, 0, 2);
const PORT: u16 = 4433;

/// The longest time in which not a byte arrives.
const STALL: Duration = Duration::from_secs(60);

/// Bytes of one direction: a prime number of random ones, again and again, each time changed.
struct Stream(Vec<u8>);

impl Stream {
    fn new(seed: u64) -> Stream {
        let mut bytes = vec![0; 1_000_003];
        Random::new(seed).fill(&mut bytes);
        Stream(bytes)
    }

    /// Writes the bytes that begin at `at`.
    fn fill(&self, at: u64, to: &mut [u8]) {
        let mut at = at as usize;
        let mut rest = to;
        while !rest.is_empty() {
            let (turn, from) = (at / self.0.len(), at % self.0.len());
            let len = rest.len().min(self.0.len() - from);
            let (now, later) = rest.split_at_mut(len);
            now.copy_from_slice(&self.0[from..from + len]);
            now.iter_mut().for_each(|byte| *byte ^= turn as u8);
            (rest, at) = (later, at + len);
        }
    }

    /// Asserts that bytes are those that begin at `at`.
    fn check(&self, at: u64, bytes: &[u8], expected: &mut Vec<u8>) {
        expected.resize(bytes.len(), 0);
        self.fill(at, expected);
        assert!(
            bytes == *expected,
            "{} bytes at {at} are wrong",
            bytes.len()
        );
    }
}

/// The guest: sends one stream and receives the other, both at once.
struct Guest {
    stack: Stack<GuestBuffer>,
    driver: Driver<Off>,
    connection: Option<Id>,
    is_closed: bool,
    incoming: Stream,
    outgoing: Stream,
    received: u64,
    sent: u64,
    amount: u64,
    bytes: Vec<u8>,
    expected: Vec<u8>,
}

impl Guest {
    fn step(&mut self, now: Instant) {
        let mut frames = Vec::new();
        self.driver.receive(&mut frames, 64).unwrap();
        for received in frames {
            self.stack.receive(now, received.into());
        }
        self.connection = self.connection.or_else(|| self.stack.accept(PORT));
        if let (Some(id), false) = (self.connection, self.is_closed) {
            self.receive(now, id);
            self.send(now, id);
        }
        while self.stack.poll(now, &mut self.driver) {}
        self.driver.flush().unwrap();
    }

    fn receive(&mut self, now: Instant, id: Id) {
        self.bytes.clear();
        for chunk in self.stack.readable(id) {
            let at = self.bytes.len();
            match chunk {
                Chunk::Shared(buffer, range) => {
                    self.bytes.resize(at + range.len(), 0);
                    buffer.read(range.start, &mut self.bytes[at..]).unwrap();
                }
                Chunk::Private(private) => self.bytes.extend_from_slice(private),
            }
        }
        self.incoming
            .check(self.received, &self.bytes, &mut self.expected);
        self.received += self.bytes.len() as u64;
        let consumed = self.stack.consume(now, id, self.bytes.len());
        assert_eq!(consumed, self.bytes.len());
        let is_ended = self.stack.is_finished(id) && self.sent == self.amount;
        if is_ended && !self.is_closed {
            assert_eq!(self.received, self.amount, "{:?}", self.stack.failure(id));
            self.stack.close(now, id);
            self.is_closed = true;
        }
    }

    fn send(&mut self, now: Instant, id: Id) {
        while self.sent < self.amount {
            let Some(record) = self.driver.record() else {
                return;
            };
            let len = (self.amount - self.sent).min(record.capacity() as u64);
            self.bytes.resize(len as usize, 0);
            self.outgoing.fill(self.sent, &mut self.bytes);
            record.write(0, &self.bytes).unwrap();
            if self.stack.send(now, id, record, 0..len as usize).is_err() {
                return;
            }
            self.sent += len;
            if self.sent == self.amount {
                self.stack.shutdown(now, id);
            }
        }
    }

    /// Returns true when both directions have ended and the peer knows it.
    fn is_done(&self) -> bool {
        self.is_closed && self.stack.connections() == 0
    }
}

/// Linux's end, on this thread and another.
fn linux(amount: u64) {
    let to = SocketAddr::from((GUEST, PORT));
    let stream = TcpStream::connect_timeout(&to, STALL).unwrap();
    stream.set_read_timeout(Some(STALL)).unwrap();
    stream.set_write_timeout(Some(STALL)).unwrap();
    let mut writer = stream.try_clone().unwrap();
    thread::scope(|scope| {
        scope.spawn(move || {
            let (outgoing, mut bytes) = (Stream::new(1), vec![0; 1 << 18]);
            let mut at = 0;
            while at < amount {
                let len = (amount - at).min(bytes.len() as u64);
                let part = &mut bytes[..len as usize];
                outgoing.fill(at, part);
                writer.write_all(part).unwrap();
                at += len;
            }
            writer.shutdown(Shutdown::Write).unwrap();
        });
        let (incoming, mut bytes) = (Stream::new(2), vec![0; 1 << 18]);
        let (mut at, mut expected) = (0, Vec::new());
        loop {
            let len = (&stream).read(&mut bytes).unwrap();
            if len == 0 {
                break;
            }
            incoming.check(at, &bytes[..len], &mut expected);
            at += len as u64;
        }
        assert_eq!(at, amount, "bytes from the guest");
    });
}

fn exchange(variant: Variant, amount: u64, seed: u64) {
    let Some(spaces) = Namespaces::of_test("cvmnet", &["host"]) else {
        return;
    };
    spaces.within("host", || exchange_within(&spaces, variant, amount, seed));
}

fn exchange_within(spaces: &Namespaces, variant: Variant, amount: u64, seed: u64) {
    // Large frames are few.
    let line = |seed, scale: f64| LineConfig {
        loss: 0.002 * scale,
        duplication: 0.002 * scale,
        reordering: 0.005 * scale,
        hold: Duration::from_millis(1),
        seed,
        ..LineConfig::IDEAL
    };
    let address = Ipv4Addr::new(10, 78, 0, 1);
    // The kernel does what the guest leaves to its device, or there is a port without offloads.
    let network: Box<dyn Frames> = if variant.has_large_frames() {
        let tap = VnetTap::open(TAP, variant.merging == Merging::Device).unwrap();
        tap.interface().add_address(address.into(), 24).unwrap();
        Box::new(TapFrames::new(tap))
    } else {
        let pool = Pool::new(1024, HEADROOM + 64 + 14 + 1500, Layout::Spread).unwrap();
        let port = TapPort::open(TAP, &pool).unwrap();
        port.interface().add_address(address.into(), 24).unwrap();
        Box::new(PortFrames::new(port, pool))
    };
    let region = Region::create(&variant.config(1)).unwrap();
    let settings = DeviceSettings {
        merge: (variant.merging == Merging::Host).then(Limits::default),
        ..DeviceSettings::default()
    };
    let scale = |is_large| if is_large { 8.0 } else { 1.0 };
    let to_guest = line(seed, scale(variant.merging == Merging::Device));
    let from_guest = line(seed + 1, scale(variant.has_large_frames()));
    let network = Lossy::new(network, &to_guest, &from_guest);
    let mut device = Device::new(&region, 0, settings, network).unwrap();
    let config = variant.tcp(Config {
        headers: variant.headers,
        // The end of the test waits for it.
        time_wait: Duration::from_secs(1),
        ..Config::on_link([2, 0, 0, 0, 0, 2], GUEST)
    });
    let mut guest = Guest {
        stack: Stack::new(config, Secret::new(&[2; 16])).unwrap(),
        driver: Driver::new(region, 0, Settings::default(), Off).unwrap(),
        connection: None,
        is_closed: false,
        incoming: Stream::new(1),
        outgoing: Stream::new(2),
        received: 0,
        sent: 0,
        amount,
        bytes: Vec::new(),
        expected: Vec::new(),
    };
    guest.stack.listen(PORT);
    device.poll(Instant::now()).unwrap();
    assert!(guest.driver.start().unwrap());
    let fresh = guest.driver.free();
    let started = Instant::now();
    let has_failed = AtomicBool::new(false);
    thread::scope(|scope| {
        let peer = scope.spawn(|| {
            let ended = Ended(&has_failed);
            spaces.within("host", || linux(amount));
            std::mem::forget(ended);
        });
        let (mut progress, mut moved) = (Instant::now(), 0);
        while !guest.is_done() {
            let now = Instant::now();
            device.poll(now).unwrap();
            guest.step(now);
            if guest.received + guest.sent != moved {
                (progress, moved) = (now, guest.received + guest.sent);
            }
            let is_stuck = now.since(progress) > STALL * 2 || has_failed.load(Ordering::Relaxed);
            assert!(
                !is_stuck,
                "stopped at {} and {}",
                guest.received, guest.sent
            );
        }
        peer.join().unwrap();
    });
    let [to, from] = device.frames().counters();
    let took = Instant::now().since(started);
    println!(
        "{}: {amount} bytes each way in {took:?}: {to:?} {from:?}",
        variant.name
    );
    for counters in [to, from] {
        let faults = [counters.lost, counters.duplicated, counters.reordered];
        assert!(faults.iter().all(|count| *count > 5), "{counters:?}");
    }
    // The sizes of frames that crossed the ring: Linux cuts and merges in the place of the guest.
    let counters = guest.driver.counters();
    let (sent, received) = (amount / counters.sent, amount / counters.received);
    assert_eq!(sent > 3000, variant.has_large_frames(), "{sent} B a frame");
    if variant.merging != Merging::Host {
        assert_eq!(
            received > 3000,
            variant.has_large_frames(),
            "{received} B a frame"
        );
    }
    assert_eq!(guest.stack.connections(), 0);
    for _ in 0..10 {
        device.poll(Instant::now()).unwrap();
        guest.step(Instant::now());
    }
    assert_eq!(guest.driver.free(), fresh, "buffers are lost");
}

/// Notes that a thread has panicked.
struct Ended<'a>(&'a AtomicBool);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn amount() -> u64 {
    let text = std::env::var("TARE_LINUX_BYTES");
    text.map_or(200_000_000, |text| {
        text.parse().expect("TARE_LINUX_BYTES is a number")
    })
}

#[test]
fn bytes_to_and_from_linux_are_equal_with_loss_duplication_and_reordering() {
    exchange(variant::BIFROST, amount(), 11);
}

#[test]
fn bytes_to_and_from_linux_are_equal_without_merging() {
    exchange(variant::CVM, amount() / 4, 23);
}

#[test]
fn bytes_to_and_from_linux_are_equal_when_linux_leaves_cutting_and_merging_to_the_device() {
    exchange(variant::BASELINE_GRO, amount() / 4, 37);
}
