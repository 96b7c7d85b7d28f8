use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use rustls::pki_types::ServerName;

use super::*;
use crate::breakdown::Off;
use crate::tcp::{Checksum, Config, Frame, Packet, Secret, Transmit};
use crate::tls::{Client, Identity, Options, Server};

const PORT: u16 = 443;
/// Bytes that TCP takes before they are acknowledged.
const SEND_BUFFER: usize = 256 << 10;

/// Sends so many bytes at once, and counts what it receives.
struct Counter {
    to_send: usize,
    received: usize,
}

impl Application for Counter {
    fn receive(&mut self, bytes: &[u8], _: Time, _: &mut Output) -> usize {
        self.received += bytes.len();
        bytes.len()
    }

    fn produce(&mut self, _: Time, out: &mut Output) {
        out.push(&vec![7; std::mem::take(&mut self.to_send)]);
    }

    fn end(&mut self, _: Time, _: &mut Output) {}

    fn wants_close(&self) -> bool {
        false
    }
}

#[derive(Default)]
struct Line(Vec<Vec<u8>>);

impl Transmit<Vec<u8>> for Line {
    fn room(&mut self) -> usize {
        1000
    }

    fn send(&mut self, packet: Packet<'_, Vec<u8>>) {
        let mut frame = packet.headers.to_vec();
        for (buffer, range) in packet.payload {
            frame.extend_from_slice(&buffer[range]);
        }
        self.0.push(frame);
    }
}

/// A stack and its only connection.
struct Side {
    stack: Stack<Vec<u8>>,
    endpoint: Endpoint<Counter, Vec<u8>>,
    id: Option<Id>,
    line: Line,
}

impl Side {
    fn new(host: u8, session: Session, to_send: usize) -> Side {
        let config = Config {
            send_buffer: SEND_BUFFER,
            ..Config::on_link([2, 0, 0, 0, 0, host], Ipv4Addr::new(10, 9, 0, host))
        };
        let counter = Counter {
            to_send,
            received: 0,
        };
        Side {
            stack: Stack::new(config, Secret::new(&[host; 16])).unwrap(),
            endpoint: Endpoint::new(session, counter, Instant::NEVER),
            id: None,
            line: Line::default(),
        }
    }

    /// Lets the connection work until nothing happens to it any more.
    fn serve(&mut self, now: Instant) {
        self.id = self.id.or_else(|| self.stack.accept(PORT));
        while let Some((id, _)) = self.stack.event() {
            self.act(now, id);
        }
        self.transmit(now);
    }

    fn act(&mut self, now: Instant, id: Id) {
        let unix = Duration::from_secs(1);
        let mut turn = Turn {
            time: Time { now, unix },
            id,
            stack: &mut self.stack,
            region: None,
            take: || Some(vec![0; tls::DATA_MAX + tls::OVERHEAD]),
            plaintext: &mut vec![0; tls::BODY_MAX],
            cipher: Cipher::SingleRead,
            probe: &Off,
            counters: &mut Counters::default(),
        };
        assert_eq!(self.endpoint.serve(&mut turn), Next::Waiting);
    }

    fn transmit(&mut self, now: Instant) {
        while self.stack.poll(now, &mut self.line) {}
    }

    /// Takes the frames of the other side, and lets TCP answer.
    fn receive(&mut self, now: Instant, from: &mut Line) {
        for buffer in from.0.drain(..) {
            let range = 0..buffer.len();
            let checksum = Checksum::Trusted;
            self.stack.receive(
                now,
                Frame {
                    buffer,
                    range,
                    checksum,
                },
            );
        }
        self.transmit(now);
    }
}

#[test]
fn what_arrived_while_the_output_was_full_is_read_when_all_of_it_is_sent() {
    let identity = Identity::self_signed(&["guest.example".into()]).unwrap();
    let certificate = identity.certificate().unwrap().clone();
    let name = ServerName::try_from("guest.example").unwrap();
    let options = Options::default();
    let session = Session::client(&Client::new(&certificate, name, &options).unwrap()).unwrap();
    let mut client = Side::new(1, session, 0);
    let session = Session::server(&Server::new(identity, &options).unwrap()).unwrap();
    // More than TCP takes, by more than a connection queues before it stops reading.
    let all = SEND_BUFFER + 2 * OUTPUT;
    let mut server = Side::new(2, session, all);
    server.stack.listen(PORT);
    let mut now = Instant::ZERO + Duration::from_secs(1);
    let to = SocketAddr::from((Ipv4Addr::new(10, 9, 0, 2), PORT));
    let to_server = client.stack.connect(now, to).unwrap();
    client.id = Some(to_server);
    while !server.endpoint.session.is_open() || server.endpoint.output.is_empty() {
        now += Duration::from_millis(1);
        client.serve(now);
        server.receive(now, &mut client.line);
        server.serve(now);
        client.receive(now, &mut server.line);
    }
    assert!(!server.endpoint.output.has_room());

    // A record of the client's arrives while the server can neither send nor queue.
    client.endpoint.application.to_send = 1000;
    client.act(now, to_server);
    client.transmit(now);
    server.receive(now, &mut client.line);
    server.serve(now);
    assert_eq!(server.endpoint.application.received, 0);

    // Then all that TCP has is acknowledged before the server's turn comes.
    for _ in 0..200 {
        now += Duration::from_millis(1);
        client.receive(now, &mut server.line);
        client.serve(now);
        server.receive(now, &mut client.line);
    }
    server.serve(now);
    assert_eq!(server.endpoint.application.received, 1000);
}
