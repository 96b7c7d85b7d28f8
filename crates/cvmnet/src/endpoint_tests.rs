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

/// Bytes of a piece of a response in parts.
const PIECE: usize = 16 << 10;

/// Sends so many bytes at once, and counts what it receives.
struct Counter {
    to_send: usize,
    /// Pieces of a response in parts that are left; before it is finished nothing is received.
    pieces: usize,
    received: usize,
    /// Bytes of the answer to what is received, after which the connection is closed; 0 for none.
    refusal: usize,
    has_refused: bool,
    /// At the last look at it, data that it has sent was not acknowledged.
    is_sending: bool,
}

impl Application for Counter {
    fn receive(&mut self, bytes: &[u8], _: Time, out: &mut Output) -> usize {
        if self.refusal > 0 {
            out.push(&vec![9; std::mem::take(&mut self.refusal)]);
            self.has_refused = true;
        }
        if self.has_refused {
            return 0;
        }
        let may_take = out.has_room() && self.pieces == 0;
        let taken = if may_take { bytes.len() } else { 0 };
        self.received += taken;
        taken
    }

    fn produce(&mut self, _: Time, out: &mut Output) {
        out.push(&vec![7; std::mem::take(&mut self.to_send)]);
        while self.pieces > 0 && out.has_room() {
            out.push(&[8; PIECE]);
            self.pieces -= 1;
        }
    }

    fn end(&mut self, _: Time, _: &mut Output) {}

    fn wants_close(&self) -> bool {
        self.has_refused
    }

    fn expire(&mut self, _: Instant, is_sending: bool) -> bool {
        self.is_sending = is_sending;
        false
    }
}

/// The frames that were sent and have not arrived.
#[derive(Default)]
pub(crate) struct Line(pub(crate) VecDeque<Vec<u8>>);

impl Transmit<Vec<u8>> for Line {
    fn room(&mut self) -> usize {
        1000
    }

    fn send(&mut self, packet: Packet<'_, Vec<u8>>) {
        let mut frame = packet.headers.to_vec();
        for (buffer, range) in packet.payload {
            frame.extend_from_slice(&buffer[range]);
        }
        self.0.push_back(frame);
    }
}

/// A stack and its only connection.
struct Side {
    stack: Stack<Vec<u8>>,
    endpoint: Endpoint<Counter, Vec<u8>>,
    id: Option<Id>,
    line: Line,
    counters: Counters,
}

impl Side {
    fn new(host: u8, session: Session, to_send: usize) -> Side {
        let config = Config {
            send_buffer: SEND_BUFFER,
            ..Config::on_link([2, 0, 0, 0, 0, host], Ipv4Addr::new(10, 9, 0, host))
        };
        let counter = Counter {
            to_send,
            pieces: 0,
            received: 0,
            refusal: 0,
            has_refused: false,
            is_sending: false,
        };
        Side {
            stack: Stack::new(config, Secret::new(&[host; 16])).unwrap(),
            endpoint: Endpoint::new(session, counter, Instant::NEVER),
            id: None,
            line: Line::default(),
            counters: Counters::default(),
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
        let next = self.with(now, id, |endpoint, turn| endpoint.serve(turn));
        assert_eq!(next, Next::Waiting);
    }

    /// Lets a connection work that may be over then, as the loop of a guest does.
    fn act_at_last(&mut self, now: Instant) -> Next {
        let id = self.id.expect("a connection");
        while self.stack.event().is_some() {}
        let next = self.with(now, id, |endpoint, turn| endpoint.serve(turn));
        if next == Next::Over {
            self.stack.close(now, id);
        }
        self.transmit(now);
        next
    }

    fn with<R>(
        &mut self,
        now: Instant,
        id: Id,
        act: impl FnOnce(
            &mut Endpoint<Counter, Vec<u8>>,
            &mut Turn<'_, Vec<u8>, Off, fn() -> Option<Vec<u8>>>,
        ) -> R,
    ) -> R {
        let unix = Duration::from_secs(1);
        let mut turn = Turn {
            time: Time { now, unix },
            id,
            stack: &mut self.stack,
            region: None,
            take: (|| Some(vec![0; tls::DATA_MAX + tls::OVERHEAD])) as fn() -> Option<Vec<u8>>,
            plaintext: &mut vec![0; tls::BODY_MAX],
            cipher: Cipher::SingleRead,
            probe: &Off,
            counters: &mut self.counters,
        };
        act(&mut self.endpoint, &mut turn)
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

/// Returns a client and a server, which sends so many bytes at once.
fn sides(to_send: usize) -> (Side, Side) {
    let identity = Identity::self_signed(&["guest.example".into()]).unwrap();
    let certificate = identity.certificate().unwrap().clone();
    let name = ServerName::try_from("guest.example").unwrap();
    let options = Options::default();
    let session = Session::client(&Client::new(&certificate, name, &options).unwrap()).unwrap();
    let client = Side::new(1, session, 0);
    let session = Session::server(&Server::new(identity, &options).unwrap()).unwrap();
    let mut server = Side::new(2, session, to_send);
    server.stack.listen(PORT);
    (client, server)
}

#[test]
fn what_arrived_while_the_output_was_full_is_read_when_all_of_it_is_sent() {
    // More than TCP takes, by more than a connection queues before it stops reading.
    let all = SEND_BUFFER + 2 * OUTPUT;
    let (mut client, mut server) = sides(all);
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

#[test]
fn records_sealed_ahead_are_bounded_opened_in_their_order_and_followed_by_live_ones() {
    const RECORD: usize = tls::DATA_MAX + tls::OVERHEAD;
    let (mut client, mut server) = sides(0);
    let mut now = Instant::ZERO + Duration::from_secs(1);
    let to = SocketAddr::from((Ipv4Addr::new(10, 9, 0, 2), PORT));
    let id = client.stack.connect(now, to).unwrap();
    client.id = Some(id);
    let seal = |client: &mut Side, now, most| {
        client.with(now, id, |endpoint, turn| endpoint.seal_ahead(turn, most))
    };
    assert_eq!(
        seal(&mut client, now, usize::MAX),
        0,
        "before the handshake"
    );
    let step = |client: &mut Side, server: &mut Side, now: &mut Instant| {
        *now += Duration::from_millis(1);
        client.serve(*now);
        server.receive(*now, &mut client.line);
        server.serve(*now);
        client.receive(*now, &mut server.line);
    };
    while !client.endpoint.session.is_open() || client.endpoint.session.has_outgoing() {
        step(&mut client, &mut server, &mut now);
    }
    step(&mut client, &mut server, &mut now);
    assert!(!client.endpoint.is_ahead());
    // Room for 100 records, and a bit.
    let all = 200 * tls::DATA_MAX;
    client.endpoint.application.to_send = all;
    let sealed = seal(&mut client, now, 100 * RECORD + 7);
    assert_eq!(sealed, 100 * tls::DATA_MAX as u64);
    assert_eq!(client.endpoint.sealed.len(), 100);
    let records = client.counters.records_out;
    while client.endpoint.is_ahead() {
        assert_eq!(client.counters.records_out, records, "sealed live");
        client.act(now, id);
        step(&mut client, &mut server, &mut now);
    }
    while server.endpoint.application.received < all {
        client.act(now, id);
        step(&mut client, &mut server, &mut now);
    }
    assert_eq!(server.counters.records_in, client.counters.records_out);
    assert_eq!(server.counters.tls_failures, 0);
    // Nothing is left.
    assert_eq!(seal(&mut client, now, usize::MAX), 0);
}

/// Returns a client and a server that are connected, in a handshake or behind it, the time, and the
/// client's connection.
fn connected(is_open: bool) -> (Side, Side, Instant, Id) {
    let (mut client, mut server) = sides(0);
    let mut now = Instant::ZERO + Duration::from_secs(1);
    let to = SocketAddr::from((Ipv4Addr::new(10, 9, 0, 2), PORT));
    let id = client.stack.connect(now, to).unwrap();
    client.id = is_open.then_some(id);
    for _ in 0..20 {
        now += Duration::from_millis(1);
        if is_open {
            client.serve(now);
        } else {
            client.transmit(now);
        }
        server.receive(now, &mut client.line);
        server.serve(now);
        client.receive(now, &mut server.line);
    }
    assert_eq!(server.endpoint.session.is_open(), is_open);
    (client, server, now, id)
}

/// Sends bytes that are no record, and more than the server reads of them, to a server that is in a
/// handshake or behind it. Returns what arrives in answer, and whether the connection was reset.
fn answer_to(bytes: &[u8], is_open: bool) -> (Vec<u8>, bool) {
    let (mut client, mut server, now, id) = connected(is_open);
    let len = bytes.len();
    client.stack.set_no_delay(now, id, true);
    let sent = client.stack.send(now, id, bytes.to_vec(), 0..len);
    assert!(sent.is_ok());
    // All that is sent arrives in a few windows.
    for _ in 0..10 {
        client.transmit(now);
        server.receive(now, &mut client.line);
        assert_eq!(server.act_at_last(now), Next::Waiting);
        client.receive(now, &mut server.line);
    }
    assert_eq!(server.counters.tls_failures, 1);
    let mut answer = vec![0; client.stack.readable_len(id)];
    assert!(copy(client.stack.readable(id), &mut answer));
    (answer, client.stack.failure(id).is_some())
}

#[test]
fn what_is_no_record_is_answered_with_the_alert_that_tells_why() {
    let mut long = vec![0; 40];
    long[..5].copy_from_slice(&[22, 3, 1, 0xff, 0xff]);
    let text = b"GET / HTTP/1.1\r\nHost: guest\r\n\r\n";
    for (bytes, alert) in [
        (&text[..], tls::Alert::UNEXPECTED_MESSAGE),
        (&long, tls::Alert::RECORD_OVERFLOW),
    ] {
        let (answer, is_reset) = answer_to(bytes, false);
        assert_eq!(answer, [21, 3, 3, 0, 2, 2, alert.0], "{alert}");
        assert!(!is_reset, "{alert}");
        // Sealed: two bytes, the type, and the tag.
        let (answer, is_reset) = answer_to(bytes, true);
        assert_eq!(answer.len(), Header::LEN + 2 + 1 + 16, "{alert}");
        assert!(!is_reset, "{alert}");
    }
}

#[test]
fn a_handshake_message_that_is_too_long_is_answered_before_its_end() {
    let mut record = vec![0; Header::LEN + tls::DATA_MAX];
    record[..9].copy_from_slice(&[22, 3, 1, 0x40, 0, 1, 0, 0xff, 0xff]);
    let (answer, is_reset) = answer_to(&record.repeat(4), false);
    assert_eq!(answer, [21, 3, 3, 0, 2, 2, tls::Alert::DECODE_ERROR.0]);
    assert!(!is_reset);
}

/// Returns a client that sends more than TCP takes to a server that refuses the first of it with
/// 100 bytes, after the server's answer.
fn refused() -> (Side, Side, Instant, Id) {
    let (mut client, mut server, now, id) = connected(true);
    server.endpoint.application.refusal = 100;
    client.endpoint.application.to_send = 10 * OUTPUT;
    client.act(now, id);
    for _ in 0..3 {
        client.transmit(now);
        server.receive(now, &mut client.line);
        assert_eq!(server.act_at_last(now), Next::Waiting);
        client.receive(now, &mut server.line);
    }
    (client, server, now, id)
}

#[test]
fn a_client_that_still_sends_can_read_why_its_connection_is_closed() {
    let (mut client, mut server, mut now, id) = refused();
    let (mut ours, mut theirs) = (Next::Waiting, Next::Waiting);
    for _ in 0..1000 {
        now += Duration::from_millis(1);
        client.receive(now, &mut server.line);
        assert_eq!(client.stack.failure(id), None);
        if theirs == Next::Waiting {
            theirs = client.act_at_last(now);
        }
        server.receive(now, &mut client.line);
        if ours == Next::Waiting {
            ours = server.act_at_last(now);
        }
    }
    assert_eq!((ours, theirs), (Next::Over, Next::Over));
    assert_eq!(client.endpoint.application.received, 100);
    assert_eq!(server.counters.cut_off, 0);
}

#[test]
fn a_client_that_never_ends_is_given_up_soon_after_its_server() {
    let (_client, mut server, now, _) = refused();
    assert!(!server.endpoint.expire(now + LINGER, 1));
    let late = now + LINGER + Duration::from_millis(1);
    assert!(server.endpoint.expire(late, 1));
    assert_eq!(server.act_at_last(late), Next::Over);
}

#[test]
fn a_connection_whose_bytes_end_within_a_record_ends_and_leaves_nothing() {
    for (bytes, is_open) in [
        (&[23, 3, 3, 0, 100, 0][..], true),
        (&[23, 3, 3], true),
        (&[22, 3, 1, 0, 100, 1], false),
        (&[22], false),
    ] {
        let (mut client, mut server, mut now, id) = connected(is_open);
        client.stack.set_no_delay(now, id, true);
        let sent = client.stack.send(now, id, bytes.to_vec(), 0..bytes.len());
        assert!(sent.is_ok());
        client.stack.shutdown(now, id);
        client.transmit(now);
        server.receive(now, &mut client.line);
        assert_eq!(server.act_at_last(now), Next::Over);
        let counters = server.counters;
        assert_eq!((counters.cut_off, counters.tls_failures), (1, 0));
        for _ in 0..10 {
            now += Duration::from_millis(1);
            client.receive(now, &mut server.line);
            server.receive(now, &mut client.line);
        }
        assert_eq!(server.stack.connections(), 0, "{bytes:?}");
        // It was closed, not reset: what the server had to say has arrived.
        assert!(client.stack.is_finished(id) || client.stack.readable_len(id) > 0);
        assert_eq!(client.stack.failure(id), None, "{bytes:?}");
    }
}

#[test]
fn what_arrived_during_a_response_in_parts_is_read_when_all_of_it_is_sent() {
    let (mut client, mut server, mut now, id) = connected(true);
    let server_id = server.id.expect("a connection");
    // More than TCP takes at once, less than it takes twice.
    let pieces = (SEND_BUFFER + SEND_BUFFER / 2) / PIECE;
    server.endpoint.application.pieces = pieces;
    server.act(now, server_id);
    assert!(server.endpoint.application.pieces > 0);
    // The next request arrives.
    client.stack.set_no_delay(now, id, true);
    client.endpoint.application.to_send = 1000;
    client.act(now, id);
    client.transmit(now);
    server.receive(now, &mut client.line);
    server.serve(now);
    assert_eq!(server.endpoint.pending.0.len(), 1000);
    assert!(server.endpoint.application.pieces > 0);
    // All that TCP has is acknowledged before the server's turn comes, and nothing arrives then.
    for _ in 0..200 {
        now += Duration::from_millis(1);
        client.receive(now, &mut server.line);
        client.serve(now);
        server.receive(now, &mut client.line);
    }
    for _ in 0..200 {
        server.serve(now);
        client.receive(now, &mut server.line);
        client.serve(now);
        server.receive(now, &mut client.line);
        now += Duration::from_millis(1);
    }
    assert_eq!(client.endpoint.application.received, pieces * PIECE);
    assert_eq!(server.endpoint.application.received, 1000);
}

/// Otherwise a client that asks for new keys, and does not acknowledge them for a while, could wait
/// with its request for ever.
#[test]
fn records_of_the_session_itself_are_no_response_that_its_client_still_reads() {
    let (mut client, mut server, mut now, _) = connected(true);
    let id = server.id.expect("a connection");
    let is_sending = |server: &mut Side, now| {
        let references = server.stack.references(id);
        assert!(!server.endpoint.expire(now, references));
        (references, server.endpoint.application.is_sending)
    };
    let update = |server: &mut Side, now| {
        let updated = server.endpoint.session.update_keys();
        assert!(updated.is_ok());
        server.act(now, id);
        server.stack.set_no_delay(now, id, true);
        server.transmit(now);
    };
    // All that the handshake has left arrives.
    let mut exchange = |server: &mut Side, now: &mut Instant| {
        for _ in 0..100 {
            *now += Duration::from_millis(10);
            client.receive(*now, &mut server.line);
            client.serve(*now);
            server.receive(*now, &mut client.line);
            server.serve(*now);
        }
    };
    exchange(&mut server, &mut now);
    assert_eq!(is_sending(&mut server, now), (0, false));
    update(&mut server, now);
    assert_eq!(is_sending(&mut server, now), (1, false));
    server.endpoint.application.to_send = 1000;
    server.act(now, id);
    update(&mut server, now);
    assert_eq!(is_sending(&mut server, now), (3, true));
    exchange(&mut server, &mut now);
    update(&mut server, now);
    assert_eq!(is_sending(&mut server, now), (1, false));
}
