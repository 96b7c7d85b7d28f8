//! A connection's owner: offers what was received, takes what is queued.

use std::time::Duration;

use tare_cvmnet::server::{Application, Output, Service, Time};
use tare_sim::Instant;

/// A time after the start, in ms; the start is 2023-11-14 22:13:20 UTC.
pub(crate) fn at(ms: u64) -> Time {
    Time {
        now: Instant::from_nanos(5_000_000_000) + Duration::from_millis(ms),
        unix: Duration::from_secs(1_700_000_000) + Duration::from_millis(ms),
    }
}

pub(crate) struct Peer {
    pub(crate) application: Box<dyn Application>,
    out: Output,
    /// The bytes that the application has not taken.
    waiting: Vec<u8>,
    answered: Vec<u8>,
    pub(crate) time: Time,
    pub(crate) queued_max: usize,
}

impl Peer {
    pub(crate) fn new(service: &dyn Service) -> Peer {
        Peer::with_room(service, 64 << 10)
    }

    pub(crate) fn with_room(service: &dyn Service, room: usize) -> Peer {
        Peer {
            application: service.accept(),
            out: Output::new(room),
            waiting: Vec::new(),
            answered: Vec::new(),
            time: at(0),
            queued_max: 0,
        }
    }

    /// Offers more bytes, and lets the application go on until it has nothing to do.
    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.waiting.extend_from_slice(bytes);
        while self.turn(usize::MAX) {}
    }

    /// Receives bytes, and lets the application do nothing yet.
    pub(crate) fn send_unread(&mut self, bytes: &[u8]) {
        self.waiting.extend_from_slice(bytes);
    }

    /// Says that nothing more comes.
    pub(crate) fn end(&mut self) {
        self.application.end(self.time, &mut self.out);
        while self.turn(usize::MAX) {}
    }

    /// Sends bytes and returns the answer.
    pub(crate) fn ask(&mut self, bytes: impl AsRef<[u8]>) -> String {
        self.send(bytes.as_ref());
        String::from_utf8_lossy(&self.take()).into_owned()
    }

    /// One turn, in which at most `most` bytes of the queue are sent. False if it changed nothing.
    pub(crate) fn turn(&mut self, most: usize) -> bool {
        let mut has_changed = false;
        if !self.application.wants_close() {
            let taken = self
                .application
                .receive(&self.waiting, self.time, &mut self.out);
            self.waiting.drain(..taken);
            has_changed |= taken > 0;
        }
        if !self.application.wants_close() && self.out.has_room() {
            self.application.produce(self.time, &mut self.out);
        }
        self.queued_max = self.queued_max.max(self.out.len());
        let pieces = self.out.pieces(most);
        assert!(pieces.iter().all(|piece| !piece.is_empty()));
        let sent: usize = pieces.iter().map(|piece| piece.len()).sum();
        assert!(sent <= most && (sent > 0) == (most > 0 && !self.out.is_empty()));
        for piece in pieces.iter() {
            self.answered.extend_from_slice(piece);
        }
        self.out.consume(sent);
        has_changed || sent > 0
    }

    /// Takes what was sent since the last call.
    pub(crate) fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.answered)
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.application.wants_close() && self.out.is_empty()
    }

    /// The bytes that the application has not taken.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len()
    }
}

/// Asserts that the answer to a script does not depend on where it is cut nor on the room of the
/// queue, and returns it. `make` makes a server with a state of its own.
pub(crate) fn cut_anywhere<S: Service>(make: impl Fn() -> S, script: &[u8]) -> Vec<u8> {
    let mut peer = Peer::new(&make());
    peer.send(script);
    let expected = peer.take();
    let shown = String::from_utf8_lossy(&expected).into_owned();
    for cut in 0..=script.len() {
        let mut peer = Peer::new(&make());
        peer.send(&script[..cut]);
        peer.send(&script[cut..]);
        assert!(peer.take() == expected, "cut at {cut}: {shown}");
    }
    for room in [1, 40, 5000] {
        let mut peer = Peer::with_room(&make(), room);
        for byte in script {
            peer.waiting.push(*byte);
            peer.turn(3);
        }
        while peer.turn(7) {}
        assert!(peer.take() == expected, "room {room}: {shown}");
    }
    expected
}
