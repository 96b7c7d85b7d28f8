//! Many sessions, beside as many sockets of the raw ping-pong as they use.

use std::net::UdpSocket;
use std::time::Duration;

use tare_farmem::operation::SpaceId;
use tare_farmem::protocol::{Client, ClientConfig};
use tare_farmem::session::Session;
use tare_farmem::transport::{Channel, Remote, Shared, UdpLink};

use super::{content, median, quartiles, Bench, ECHO, NODE, PAGE, TURNS};

/// The most sessions with a socket each, and the sockets of more.
const OWN_SOCKETS_MAX: u64 = 1000;
const SHARED_SOCKETS: u64 = 64;

/// The first space of a fleet, beside that of the other comparisons.
const FIRST_SPACE: u64 = 1 << 32;

/// Sessions, each with a page of its own, and raw sockets.
struct Fleet {
    sessions: Vec<(Session<Box<dyn Channel>>, u64)>,
    sockets: Vec<UdpSocket>,
    next: usize,
}

impl Fleet {
    fn new(bench: &Bench, count: u64) -> Fleet {
        bench.play(NODE);
        let link = || UdpLink::connect(bench.address, bench.waiting).expect("a socket");
        let shared: Vec<_> = match count {
            0..=OWN_SOCKETS_MAX => Vec::new(),
            _ => (0..SHARED_SOCKETS).map(|_| Shared::new(link())).collect(),
        };
        let session = |number: u64| {
            let space = SpaceId(FIRST_SPACE + (count << 20) + number);
            let client = Client::new(ClientConfig {
                timeout: Duration::from_secs(2),
                ..ClientConfig::new(number << 32 | 1)
            });
            let channel: Box<dyn Channel> =
                match shared.get(number as usize % SHARED_SOCKETS as usize) {
                    Some(shared) => Box::new(shared.join(space, client).expect("a space")),
                    None => Box::new(Remote::new(client, link())),
                };
            let mut session = Session::new(channel, space);
            session.open().expect("a space");
            let address = session.alloc(PAGE).expect("a page");
            session
                .write(address, &content(number, 1))
                .expect("a write");
            (session, address)
        };
        let sockets = if shared.is_empty() {
            count
        } else {
            SHARED_SOCKETS
        };
        let peer = bench.echo.peer_addr().expect("an address");
        let socket = |_| {
            let socket = UdpSocket::bind(super::ANY).expect("a socket");
            socket.connect(peer).expect("a socket");
            socket
        };
        Fleet {
            sessions: (0..count).map(session).collect(),
            sockets: (0..sockets).map(socket).collect(),
            next: 0,
        }
    }

    /// The median times of a read of 16 bytes by each session in turn, and of the raw ping-pong by
    /// each socket in turn.
    fn turn(&mut self, bench: &mut Bench) -> (f64, f64) {
        bench.play(NODE);
        let mut next = self.next;
        let reads = median(|| {
            next = (next + 1) % self.sessions.len();
            let (session, address) = &mut self.sessions[next];
            let mut bytes = [0; 16];
            session.read(*address, &mut bytes).expect("a read");
            assert_eq!(bytes, content(next as u64, 1));
        });
        self.next = next;
        bench.play(ECHO);
        let mut next = 0;
        let raw = median(|| {
            next = (next + 1) % self.sockets.len();
            bench.round_trip(&self.sockets[next]);
        });
        (reads, raw)
    }
}

/// Compares some sessions with fewer, and both with their sockets alone.
pub(super) fn compare(bench: &mut Bench, few: u64, many: u64) {
    let mut fleets = [Fleet::new(bench, few), Fleet::new(bench, many)];
    // Each session once, so that none of them is new.
    for _ in 0..=many / 20_000 {
        fleets[1].turn(bench);
    }
    let mut samples = Vec::new();
    for _ in 0..TURNS {
        let [few, many] = fleets.each_mut().map(|fleet| fleet.turn(bench));
        samples.push([few.0, few.1, many.0, many.1]);
    }
    let figure = |by: &dyn Fn(&[f64; 4]) -> f64| quartiles(samples.iter().map(by).collect());
    let [_, few_ns, _] = figure(&|s| s[0]);
    let [_, many_ns, _] = figure(&|s| s[2]);
    let [from, all, to] = figure(&|s| s[2] / s[0]);
    let [raw_from, raw, raw_to] = figure(&|s| s[3] / s[1]);
    let [own_from, own, own_to] = figure(&|s| s[2] / s[3] / (s[0] / s[1]));
    println!(
        "  sessions {few} -> {many}: {few_ns:.0} -> {many_ns:.0} ns, {all:.3} [{from:.3}, {to:.3}]"
    );
    println!("    sockets alone {raw:.3} [{raw_from:.3}, {raw_to:.3}], over them {own:.3} [{own_from:.3}, {own_to:.3}]");
}
