//! Clients that take what a guest has for all of its connections, or vanish: TCP and TLS in the
//! test, on a line that it can cut, in virtual time.

use std::cell::Cell;
use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddr};

use rustls::pki_types::ServerName;
use tare_packet::{checksum, ethernet, ipv4};

use super::*;
use crate::endpoint::tests::Line;
use crate::host::{Device, DeviceSettings, Frames};
use crate::region::{Config, Region};
use crate::ring::{NetHeader, Settings};
use crate::server::Output;
use crate::tcp::{Checksum, Frame};
use crate::tls::{Client as TlsClient, Identity, Options, Server};
use crate::variant::{Cipher, ZC};

const GUEST: u8 = 2;
const PORT: u16 = 443;
/// Bytes of an answer.
const ANSWER: usize = 5;

fn address(host: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 9, 0, host)
}

fn config(host: u8) -> tcp::Config {
    tcp::Config {
        no_delay: true,
        ..tcp::Config::on_link([2, 0, 0, 0, 0, host], address(host))
    }
}

/// The guest's part: an answer to each piece of data.
#[derive(Default)]
struct Answers {
    /// Looks in a row at which nothing was sent, and nothing came.
    has_waited: u32,
}

/// Looks after which the server closes.
const PATIENCE: u32 = 1000;

impl Service for Answers {
    fn accept(&self) -> Box<dyn Application> {
        Box::new(Answers::default())
    }
}

impl Application for Answers {
    fn receive(&mut self, bytes: &[u8], _: Time, out: &mut Output) -> usize {
        self.has_waited = 0;
        out.push(&[7; ANSWER]);
        bytes.len()
    }

    fn produce(&mut self, _: Time, _: &mut Output) {}

    fn end(&mut self, _: Time, _: &mut Output) {}

    fn wants_close(&self) -> bool {
        self.has_waited > PATIENCE
    }

    fn expire(&mut self, _: Instant, is_sending: bool) -> bool {
        self.has_waited = if is_sending { 0 } else { self.has_waited + 1 };
        self.wants_close()
    }
}

/// The client's part: a request when it is told.
#[derive(Default)]
struct Asks {
    to_ask: Rc<Cell<usize>>,
    received: Rc<Cell<usize>>,
}

impl Application for Asks {
    fn receive(&mut self, bytes: &[u8], _: Time, _: &mut Output) -> usize {
        self.received.set(self.received.get() + bytes.len());
        bytes.len()
    }

    fn produce(&mut self, _: Time, out: &mut Output) {
        if self.to_ask.get() > 0 {
            self.to_ask.set(self.to_ask.get() - 1);
            out.push(b"one line\r\n");
        }
    }

    fn end(&mut self, _: Time, _: &mut Output) {}

    fn wants_close(&self) -> bool {
        false
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Manner {
    Honest,
    /// No data of the guest's is acknowledged: its segments arrive without their payload.
    Deaf,
    /// The line is cut in both directions.
    Gone,
}

struct Client {
    host: u8,
    stack: Stack<Vec<u8>>,
    endpoint: Option<Endpoint<Asks, Vec<u8>>>,
    id: Id,
    manner: Manner,
    to_ask: Rc<Cell<usize>>,
    received: Rc<Cell<usize>>,
    line: Line,
}

impl Client {
    fn new(now: Instant, host: u8, tls: Option<&TlsClient>) -> Client {
        let mut stack = Stack::new(config(host), tcp::Secret::new(&[host; 16])).unwrap();
        let to = SocketAddr::from((address(GUEST), PORT));
        let id = stack.connect(now, to).unwrap();
        let asks = Asks::default();
        let (to_ask, received) = (asks.to_ask.clone(), asks.received.clone());
        let session = tls.map(|tls| Session::client(tls).unwrap());
        let endpoint = session.map(|session| Endpoint::new(session, asks, Instant::NEVER));
        Client {
            host,
            stack,
            endpoint,
            id,
            manner: Manner::Honest,
            to_ask,
            received,
            line: Line::default(),
        }
    }

    fn turn(&mut self, time: Time) {
        while self.stack.event().is_some() {}
        if let Some(endpoint) = &mut self.endpoint {
            let mut turn = Turn {
                time,
                id: self.id,
                stack: &mut self.stack,
                region: None,
                take: || Some(vec![0; tls::DATA_MAX + tls::OVERHEAD]),
                plaintext: &mut vec![0; tls::BODY_MAX],
                cipher: Cipher::SingleRead,
                probe: &Off,
                counters: &mut Counters::default(),
            };
            let _ = endpoint.serve(&mut turn);
        }
        while self.stack.poll(time.now, &mut self.line) {}
        if self.manner == Manner::Gone {
            self.line.0.clear();
        }
    }

    fn take(&mut self, now: Instant, frame: &[u8]) {
        let mut frame = frame.to_vec();
        match self.manner {
            Manner::Honest => {}
            Manner::Deaf => cut_payload(&mut frame),
            Manner::Gone => return,
        }
        self.stack.receive(
            now,
            Frame {
                range: 0..frame.len(),
                buffer: frame,
                checksum: Checksum::Trusted,
            },
        );
    }
}

/// Cuts the payload of a segment off.
fn cut_payload(frame: &mut Vec<u8>) {
    const TCP: usize = ethernet::HEADER + ipv4::HEADER;
    if ethernet::kind(frame) != Some(ethernet::IPV4) {
        return;
    }
    frame.truncate(TCP + usize::from(frame[TCP + 12] >> 4) * 4);
    let len = (frame.len() - ethernet::HEADER) as u16;
    let header = &mut frame[ethernet::HEADER..TCP];
    header[2..4].copy_from_slice(&len.to_be_bytes());
    header[10..12].fill(0);
    let sum = checksum::finish(checksum::sum(header));
    header[10..12].copy_from_slice(&sum.to_be_bytes());
}

struct Net {
    clients: Vec<Client>,
    now: Instant,
}

impl Frames for Net {
    fn receive(&mut self, frame: &mut Vec<u8>) -> Option<NetHeader> {
        let mut lines = self.clients.iter_mut().map(|client| &mut client.line.0);
        *frame = lines.find_map(VecDeque::pop_front)?;
        Some(NetHeader::default())
    }

    fn send(&mut self, frame: &[u8], _: NetHeader) -> bool {
        for client in &mut self.clients {
            if frame[0] & 1 == 1 || frame[5] == client.host {
                client.take(self.now, frame);
            }
        }
        true
    }
}

/// A guest with clients.
struct Bench {
    guest: Guest<Off>,
    device: Device<Net>,
    tls: TlsClient,
    now: Instant,
}

impl Bench {
    fn new(change: impl FnOnce(&mut Config, &mut tcp::Config)) -> Bench {
        let identity = Identity::self_signed(&["guest.example".into()]).unwrap();
        let certificate = identity.certificate().unwrap().clone();
        let name = ServerName::try_from("guest.example").unwrap();
        let client = TlsClient::new(&certificate, name, &Options::default()).unwrap();
        let server = Server::new(identity, &Options::default()).unwrap();
        let (mut layout, mut tcp) = (ZC.config(1), config(GUEST));
        change(&mut layout, &mut tcp);
        let region = Region::create(&layout).unwrap();
        let driver = Driver::new(region.try_clone().unwrap(), 0, Settings::default(), Off).unwrap();
        let services: Vec<(u16, Box<dyn Service>)> = vec![(PORT, Box::<Answers>::default())];
        let secret = tcp::Secret::new(&[7; 16]);
        let guest = Guest::new(driver, tcp, secret, server, services, Off).unwrap();
        let now = Instant::ZERO + Duration::from_secs(1);
        let clients = Vec::new();
        let net = Net { clients, now };
        let device = Device::new(&region, 0, DeviceSettings::default(), net).unwrap();
        Bench {
            guest,
            device,
            tls: client,
            now,
        }
    }

    /// Connects a client; returns its number.
    fn connect(&mut self) -> usize {
        let tls = self.tls.clone();
        let clients = &mut self.device.frames().clients;
        let host = 10 + clients.len() as u8;
        clients.push(Client::new(self.now, host, Some(&tls)));
        clients.len() - 1
    }

    /// Connects a client that never begins its handshake.
    fn connect_silent(&mut self) {
        let clients = &mut self.device.frames().clients;
        let host = 10 + clients.len() as u8;
        clients.push(Client::new(self.now, host, None));
    }

    fn client(&mut self, n: usize) -> &mut Client {
        &mut self.device.frames().clients[n]
    }

    /// Lets all work, and a time pass.
    fn turn(&mut self, pass: Duration) {
        let unix = Duration::from_secs(1_800_000_000);
        let time = Time {
            now: self.now,
            unix,
        };
        let net = self.device.frames();
        net.now = self.now;
        net.clients.iter_mut().for_each(|client| client.turn(time));
        for _ in 0..3 {
            self.device.poll(self.now).unwrap();
            self.guest.turn(time).unwrap();
        }
        self.now += pass;
    }

    fn turns(&mut self, count: usize) {
        (0..count).for_each(|_| self.turn(Duration::from_millis(1)));
    }

    /// Sends a request and returns whether the answer arrives within so many turns.
    fn is_answered(&mut self, n: usize, turns: usize) -> bool {
        let client = self.client(n);
        let before = client.received.get();
        client.to_ask.set(1);
        for _ in 0..turns {
            self.turn(Duration::from_millis(1));
            if self.client(n).received.get() > before {
                return true;
            }
        }
        false
    }

    /// Connects a client that acknowledges nothing, and sends so many requests, each in a turn of
    /// its own.
    fn connect_deaf(&mut self, requests: usize) -> usize {
        let n = self.connect();
        assert!(self.is_answered(n, 100));
        self.turns(50);
        self.client(n).manner = Manner::Deaf;
        for _ in 0..requests {
            self.client(n).to_ask.set(1);
            self.turn(Duration::from_millis(1));
        }
        n
    }
}

#[test]
fn a_client_that_acknowledges_nothing_leaves_buffers_for_others() {
    let mut bench = Bench::new(|layout, _| layout.record_buffers = 64);
    bench.connect_deaf(100);
    let [_, records, ..] = bench.guest.driver().free();
    assert!(records >= 48, "{records} free buffers for records");
    let other = bench.connect();
    assert!(bench.is_answered(other, 200));
}

#[test]
fn clients_that_acknowledge_nothing_together_leave_buffers_for_others() {
    let mut bench = Bench::new(|layout, _| layout.record_buffers = 64);
    // Five take all but the reserve, and each further one a buffer of that.
    (0..15).for_each(|_| {
        bench.connect_deaf(30);
    });
    let [_, records, ..] = bench.guest.driver().free();
    assert!(records >= 2, "{records} free buffers for records");
    for _ in 0..3 {
        let other = bench.connect();
        assert!(bench.is_answered(other, 200));
    }
}

#[test]
fn a_starved_connection_is_in_the_list_once_whatever_arrives_on_it() {
    let mut bench = Bench::new(|layout, _| layout.record_buffers = 64);
    let n = bench.connect();
    assert!(bench.is_answered(n, 100));
    bench.turns(50);
    let taken: Vec<_> = std::iter::from_fn(|| bench.guest.driver.record()).collect();
    let before = bench.client(n).received.get();
    for _ in 0..100 {
        bench.client(n).to_ask.set(1);
        bench.turn(Duration::from_millis(1));
        assert!(bench.guest.starved.len() <= 1);
    }
    assert_eq!(bench.guest.starved.len(), 1);
    drop(taken);
    bench.turns(100);
    assert_eq!(bench.guest.starved.len(), 0);
    assert_eq!(bench.client(n).received.get(), before + 100 * ANSWER);
}

#[test]
fn a_client_that_vanishes_while_it_is_idle_gives_its_place_back() {
    let mut bench = Bench::new(|_, tcp| tcp.keep_alive = Some(crate::daemon::KEEP_ALIVE));
    let n = bench.connect();
    assert!(bench.is_answered(n, 100));
    bench.turns(50);
    assert_eq!(bench.guest.connections(), 1);
    // An idle one that is there stays.
    let second = Duration::from_secs(1);
    (0..300).for_each(|_| bench.turn(second));
    assert_eq!(bench.guest.connections(), 1);
    assert!(bench.is_answered(n, 100));
    bench.client(n).manner = Manner::Gone;
    (0..180).for_each(|_| bench.turn(second));
    assert_eq!(bench.guest.connections(), 0);
    assert_eq!(bench.guest.stack.connections(), 0);
}

#[test]
fn a_server_that_waits_no_longer_closes_its_connection() {
    let mut bench = Bench::new(|_, _| {});
    let ids = [bench.connect(), bench.connect()];
    assert!(ids.iter().all(|n| bench.is_answered(*n, 100)));
    let second = Duration::from_secs(1);
    (0..PATIENCE - 100).for_each(|_| bench.turn(second));
    assert!(bench.is_answered(ids[0], 100));
    (0..200).for_each(|_| bench.turn(second));
    assert_eq!(bench.guest.connections(), 1, "one of them has asked since");
    assert!(bench.is_answered(ids[0], 100));
    assert_eq!(bench.guest.counters().cut_off, 0);
}

#[test]
fn the_oldest_handshake_makes_room_and_open_connections_stay() {
    const MOST: usize = 3;
    let mut bench = Bench::new(|_, _| {});
    bench.guest.handshakes_max = MOST;
    let first = bench.connect();
    assert!(bench.is_answered(first, 100));
    for n in 0..60 {
        bench.connect_silent();
        bench.turns(3);
        assert!(bench.guest.connections() <= MOST + 1 + n / 20);
        assert!(bench.guest.handshakes.len() <= 2 * MOST);
        if n % 20 == 19 {
            let other = bench.connect();
            assert!(bench.is_answered(other, 100));
        }
    }
    assert!(bench.is_answered(first, 100));
    // The first, three others, and the silent ones before their time is over.
    assert_eq!(bench.guest.connections(), 4 + MOST - 1);
    (0..40).for_each(|_| bench.turn(Duration::from_secs(1)));
    assert_eq!((bench.guest.connections(), bench.guest.handshaking), (4, 0));
    bench.guest.handshakes_max = 1;
    let last = bench.connect();
    assert!(bench.is_answered(last, 100));
}

#[test]
fn a_send_buffer_that_holds_no_record_is_refused() {
    let with = |send_buffer| {
        let region = Region::create(&ZC.config(1)).unwrap();
        let driver = Driver::new(region, 0, Settings::default(), Off).unwrap();
        let identity = Identity::self_signed(&["guest.example".into()]).unwrap();
        let tls = Server::new(identity, &Options::default()).unwrap();
        let tcp = tcp::Config {
            send_buffer,
            ..config(GUEST)
        };
        Guest::new(
            driver,
            tcp,
            tcp::Secret::new(&[7; 16]),
            tls,
            Vec::new(),
            Off,
        )
    };
    let least = tls::DATA_MAX + tls::OVERHEAD;
    assert!(with(least).is_ok());
    let refused = with(least - 1).map(|_| ()).unwrap_err().to_string();
    assert_eq!(refused, "send_buffer: expected at least one record");
}
