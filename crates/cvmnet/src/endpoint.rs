//! A connection, from TCP's bytes to TLS's records to the application and back: the same for the
//! guest and for the peer that the host has in its own process.

use std::cell::Ref;
use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

use tare_memory::{View, Window};
use tare_sim::Instant;
use zeroize::Zeroize as _;

use crate::breakdown::{Category, Probe};
use crate::region::Region;
use crate::server::{Application, Output, Time};
use crate::tcp::{Buffer, Chunk, Id, Refused, SendError, Stack, State};
use crate::tls::{self, Content, Header, Piece, Reading, Room, Session};
use crate::variant::Cipher;

/// The pieces of a record that are opened where they lie. A record in more is copied first: its
/// segments were shorter than 400 bytes.
const PIECES: usize = 44;
/// The bytes of data of a connection that wait to be sealed before its application stops.
const OUTPUT: usize = 64 << 10;
/// The time that a peer which still sends has for reading why its connection is closed.
const LINGER: Duration = Duration::from_secs(5);

/// Counts of all connections of one side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Connections that were opened.
    pub opened: u64,
    /// Handshakes of TLS that were done.
    pub handshakes: u64,
    /// Connections that ended with an error of TLS.
    pub tls_failures: u64,
    /// Connections that ended without the peer's notice, or with an error of TCP.
    pub cut_off: u64,
    /// Records opened.
    pub records_in: u64,
    /// Records sealed.
    pub records_out: u64,
    /// Bytes of data opened.
    pub bytes_in: u64,
    /// Bytes of data sealed.
    pub bytes_out: u64,
}

/// Memory that records are sealed into and opened from.
pub(crate) trait RecordBuffer: Buffer {
    /// Copies bytes to the front; `None` if there is no room.
    fn fill(&mut self, bytes: &[u8]) -> Option<()>;

    /// Calls `seal` with the room for a record.
    fn seal<R>(&mut self, seal: impl FnOnce(Room<'_>) -> R) -> Option<R>;

    /// Returns bytes where they are; `None` if there are not as many.
    fn part(&self, range: Range<usize>) -> Option<Part<'_>>;
}

/// Bytes of a buffer.
pub(crate) enum Part<'a> {
    /// The host may change them.
    Shared(View<'a>),
    /// Of a private pool.
    Guarded(Ref<'a, [u8]>),
    /// Private.
    Private(&'a [u8]),
}

/// The parts of its side that a connection needs in its turn.
pub(crate) struct Turn<'a, B, P, T> {
    pub(crate) time: Time,
    pub(crate) id: Id,
    pub(crate) stack: &'a mut Stack<B>,
    /// The guest's region, open; closed while code runs that has no business there.
    pub(crate) region: Option<&'a Region>,
    /// Returns a buffer to seal into, if one is free.
    pub(crate) take: T,
    pub(crate) plaintext: &'a mut [u8],
    /// For records in shared memory.
    pub(crate) cipher: Cipher,
    pub(crate) probe: &'a P,
    pub(crate) counters: &'a mut Counters,
}

impl<'a, B, P, T> Turn<'a, B, P, T> {
    /// Closes the region until the window is dropped.
    #[inline]
    fn closed_window(&self) -> Option<Window<'a>> {
        self.region.map(Region::closed_window)
    }
}

/// The state of a connection after its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// It waits for an event of TCP's.
    Waiting,
    /// There was no buffer to seal into: it is to be served again, without an event.
    Starved,
    /// It is over for the guest; TCP delivers what it has.
    Over,
}

/// A connection.
pub(crate) struct Endpoint<A, B> {
    session: Session,
    application: A,
    output: Output,
    /// Data that the application did not take yet, and where it goes on.
    pending: (Vec<u8>, usize),
    /// The header of the record whose rest has not arrived; its bytes are consumed.
    header: Option<Header>,
    /// Sealed records that TCP did not take yet, in the order of their sequence numbers: one, or
    /// those that were sealed ahead.
    sealed: VecDeque<(B, Range<usize>)>,
    /// The session's own records to be sent, and the bytes of them that were.
    control: (Vec<u8>, usize),
    /// Buffers with such records that were filled after the last one with data.
    control_behind: usize,
    handshake_until: Instant,
    /// The end of the time in which what the peer still sends is dropped.
    lingers_until: Option<Instant>,
    is_ended: bool,
    is_failed: bool,
    /// Its owner has it in the list of those that wait for a buffer.
    pub(crate) is_starved: bool,
}

impl<A: Application, B: RecordBuffer> Endpoint<A, B> {
    pub(crate) fn new(
        session: Session,
        application: A,
        handshake_until: Instant,
    ) -> Endpoint<A, B> {
        Endpoint {
            session,
            application,
            output: Output::new(OUTPUT),
            pending: (Vec::new(), 0),
            header: None,
            sealed: VecDeque::new(),
            control: (Vec::new(), 0),
            control_behind: 0,
            handshake_until,
            lingers_until: None,
            is_ended: false,
            is_failed: false,
            is_starved: false,
        }
    }

    /// Returns the application, for what it knows after the end.
    pub(crate) fn into_application(self) -> A {
        self.application
    }

    /// Returns true if its application is to be served because it does not wait for its peer any
    /// longer; `references` are the buffers of TCP that are not acknowledged.
    pub(crate) fn expire(&mut self, now: Instant, references: usize) -> bool {
        if let Some(until) = self.lingers_until {
            return now > until;
        }
        // The session's own records do not count: a peer can ask for them at any time, and
        // acknowledge them late.
        let has_data = references + self.sealed.len() > self.control_behind;
        let is_sending = has_data || !self.output.is_empty();
        !self.is_handshaking() && self.application.expire(now, is_sending)
    }

    /// Returns the number of sealed records that TCP did not take yet.
    pub(crate) fn references(&self) -> usize {
        self.sealed.len()
    }

    /// Returns true until the handshake is done.
    pub(crate) fn is_handshaking(&self) -> bool {
        self.session.is_handshaking()
    }

    /// Returns true if the handshake has taken too long.
    pub(crate) fn is_late(&self, now: Instant) -> bool {
        self.session.is_handshaking() && now > self.handshake_until
    }

    /// Does what can be done.
    pub(crate) fn serve<P: Probe, T: Fn() -> Option<B>>(
        &mut self,
        turn: &mut Turn<'_, B, P, T>,
    ) -> Next {
        if matches!(turn.stack.state(turn.id), None | Some(State::Closed)) {
            let is_known = self.lingers_until.is_some() || self.session.is_closed_by_peer();
            turn.counters.cut_off += u64::from(!is_known);
            return Next::Over;
        }
        loop {
            let has_read = !self.is_failed && self.read(turn);
            let records = turn.counters.records_out;
            match self.write(turn) {
                Written::All if self.is_over() => return self.linger(turn),
                // There may be room for answers again.
                Written::All if has_read && !self.is_ended => {}
                // What the application did not take it may take now that more of what it sends is
                // sealed, or a response in parts is finished; no event of TCP's tells so.
                Written::All if self.is_pending() && turn.counters.records_out > records => {}
                Written::All | Written::Full => return Next::Waiting,
                Written::Starved => return Next::Starved,
            }
        }
    }

    /// Returns true if there is data that the application did not take.
    fn is_pending(&self) -> bool {
        !self.is_ended && !self.pending.0.is_empty()
    }

    /// Returns true if both directions are done with.
    fn is_over(&self) -> bool {
        self.is_failed || (self.is_ended && !self.session.is_open())
    }

    /// Opens the records that are there, as long as the application takes their data. Returns true
    /// if it took any, or the stream has ended.
    ///
    /// That much waits to be sent is no reason not to read: two ends that each send without regard
    /// to the other would wait for each other for ever. What answers takes nothing then.
    fn read<P: Probe, T>(&mut self, turn: &mut Turn<'_, B, P, T>) -> bool {
        let mut has_read = self.offer(turn);
        while !self.is_ended && self.pending.0.is_empty() {
            match self.read_record(turn) {
                Ok(true) => has_read = true,
                Ok(false) => break,
                Err(_) => {
                    turn.counters.tls_failures += 1;
                    self.is_failed = true;
                    return true;
                }
            }
        }
        let is_all_read = !self.is_ended && self.pending.0.is_empty();
        if is_all_read && turn.stack.is_at_end(turn.id) {
            // The bytes ended without a notice, perhaps within a record: what was understood is
            // answered, and no more.
            turn.counters.cut_off += 1;
            self.discard(turn);
            self.end(turn);
            has_read = true;
        }
        has_read
    }

    /// Offers what was not taken again. Returns true if some of it is now.
    fn offer<P: Probe, T>(&mut self, turn: &mut Turn<'_, B, P, T>) -> bool {
        let (bytes, at) = &mut self.pending;
        if bytes.is_empty() {
            return false;
        }
        let _application = turn.probe.enter(Category::Application);
        let _closed = turn.closed_window();
        let rest = bytes.get(*at..).unwrap_or_default();
        let taken = self.application.receive(rest, turn.time, &mut self.output);
        *at += taken;
        if *at >= bytes.len() || self.application.wants_close() {
            bytes.zeroize();
            *at = 0;
        }
        taken > 0
    }

    fn end<P, T>(&mut self, turn: &Turn<'_, B, P, T>) {
        let _closed = turn.closed_window();
        self.is_ended = true;
        self.application.end(turn.time, &mut self.output);
    }

    /// Sends the FIN, and drops what the peer sends until it has read the alert or the error that
    /// is before it, and ends too (RFC 9112, section 9.6): a connection that is closed while bytes
    /// arrive is reset, and the peer may lose what it has not read.
    fn linger<P, T>(&mut self, turn: &mut Turn<'_, B, P, T>) -> Next {
        self.discard(turn);
        let now = turn.time.now;
        let until = *self.lingers_until.get_or_insert(now + LINGER);
        if self.session.is_closed_by_peer() || turn.stack.is_at_end(turn.id) || now > until {
            return Next::Over;
        }
        turn.stack.shutdown(now, turn.id);
        Next::Waiting
    }

    /// Drops what has arrived: a connection with bytes that were not read is reset, and the alert
    /// that tells why might not arrive (RFC 9293, 3.10.4).
    fn discard<P, T>(&mut self, turn: &mut Turn<'_, B, P, T>) {
        let len = turn.stack.readable_len(turn.id);
        turn.stack.consume(turn.time.now, turn.id, len);
    }

    /// Opens the next record; false if it is not there.
    fn read_record<P: Probe, T>(
        &mut self,
        turn: &mut Turn<'_, B, P, T>,
    ) -> Result<bool, tls::Error> {
        let header = match self.header {
            Some(header) => header,
            None => {
                let mut bytes = [0; Header::LEN];
                if !copy(turn.stack.readable(turn.id), &mut bytes) {
                    return Ok(false);
                }
                // From here on only the copy counts.
                turn.stack.consume(turn.time.now, turn.id, bytes.len());
                let header = Header::parse(bytes).inspect_err(|error| {
                    if let tls::Error::Peer(alert) = error {
                        let _closed = turn.closed_window();
                        self.session.refuse(*alert);
                    }
                })?;
                *self.header.insert(header)
            }
        };
        let body = header.body_len();
        if turn.stack.readable_len(turn.id) < body {
            return Ok(false);
        }
        self.header = None;
        let _crypto = turn.probe.enter(Category::Crypto);
        if self.session.is_handshaking() {
            let mut record = vec![0; Header::LEN + body];
            let (first, rest) = record.split_at_mut(Header::LEN);
            first.copy_from_slice(header.as_bytes());
            copy(turn.stack.readable(turn.id), rest);
            turn.stack.consume(turn.time.now, turn.id, body);
            let _closed = turn.closed_window();
            self.session.handshake(&record)?;
            turn.counters.handshakes += u64::from(!self.session.is_handshaking());
            return Ok(true);
        }
        let chunks = turn.stack.readable(turn.id);
        // The second reading is a span of its own.
        let between = || drop(turn.probe.enter(Category::Crypto));
        let reading = match turn.cipher {
            Cipher::SingleRead => Reading::Once,
            Cipher::Ordinary => Reading::Twice(&between),
        };
        let content = match open(&mut self.session, header, chunks, reading, turn.plaintext)? {
            Some(content) => content,
            None => {
                let mut record = vec![0; body];
                copy(turn.stack.readable(turn.id), &mut record);
                let record = [Piece::Private(&record)];
                self.session.open(header, &record, turn.plaintext)?
            }
        };
        turn.stack.consume(turn.time.now, turn.id, body);
        turn.counters.records_in += 1;
        match content {
            Content::Data(len) => {
                turn.counters.bytes_in += len as u64;
                let data = turn.plaintext.get(..len).unwrap_or_default();
                let _application = turn.probe.enter(Category::Application);
                let _closed = turn.closed_window();
                let taken = self.application.receive(data, turn.time, &mut self.output);
                if let Some(rest) = data.get(taken..).filter(|rest| !rest.is_empty()) {
                    self.pending.0.extend_from_slice(rest);
                }
            }
            Content::Message => {}
            Content::Closed => self.end(turn),
        }
        Ok(true)
    }

    /// Sends what there is to send, and asks the application for more.
    fn write<P: Probe, T: Fn() -> Option<B>>(&mut self, turn: &mut Turn<'_, B, P, T>) -> Written {
        loop {
            while let Some((buffer, range)) = self.sealed.pop_front() {
                match turn.stack.send(turn.time.now, turn.id, buffer, range) {
                    Ok(()) => {}
                    Err(Refused {
                        reason: SendError::Full,
                        buffer,
                        range,
                    }) => {
                        self.sealed.push_front((buffer, range));
                        return Written::Full;
                    }
                    Err(_) => {
                        self.is_failed = true;
                        return Written::All;
                    }
                }
            }
            let (control, at) = &mut self.control;
            if *at == control.len() {
                (*control, *at) = (self.session.take_outgoing(), 0);
            }
            if let Some(rest) = control.get(*at..).filter(|rest| !rest.is_empty()) {
                let Some(mut buffer) = (turn.take)() else {
                    return Written::Starved;
                };
                let len = rest.len().min(buffer.capacity());
                if buffer.fill(rest.get(..len).unwrap_or_default()).is_none() {
                    return Written::Starved;
                }
                *at += len;
                self.control_behind += 1;
                self.sealed.push_back((buffer, 0..len));
                continue;
            }
            if !self.session.is_open() || self.is_failed {
                return Written::All;
            }
            if self.output.has_room() {
                let _application = turn.probe.enter(Category::Application);
                let _closed = turn.closed_window();
                self.application.produce(turn.time, &mut self.output);
            }
            if self.output.is_empty() {
                if !self.application.wants_close() && !self.is_ended {
                    return Written::All;
                }
                // Behind the notice; what the peer still sends is not read.
                self.session.close();
                self.is_ended = true;
                continue;
            }
            let Some(mut buffer) = (turn.take)() else {
                return Written::Starved;
            };
            match self.seal(turn, &mut buffer) {
                Ok(len) => self.sealed.push_back((buffer, 0..len)),
                Err(_) => self.is_failed = true,
            }
        }
    }

    /// Seals what the application has to send into buffers of at most `most` bytes in all, to be
    /// sent before anything else. Returns the bytes of data in them.
    ///
    /// A record has its sequence number, so that each can be sent once and only in this order. What
    /// the session has queued is sent first: then nothing is sealed.
    pub(crate) fn seal_ahead<P: Probe, T: Fn() -> Option<B>>(
        &mut self,
        turn: &mut Turn<'_, B, P, T>,
        most: usize,
    ) -> u64 {
        let before = turn.counters.bytes_out;
        let mut left = most;
        while self.session.is_open()
            && !self.session.has_outgoing()
            && self.control.1 == self.control.0.len()
            && !self.is_failed
        {
            if self.output.has_room() {
                self.application.produce(turn.time, &mut self.output);
            }
            if self.output.is_empty() {
                break;
            }
            let buffer = (turn.take)().filter(|buffer| buffer.capacity() <= left);
            let Some(mut buffer) = buffer else {
                break;
            };
            left -= buffer.capacity();
            match self.seal(turn, &mut buffer) {
                Ok(len) => self.sealed.push_back((buffer, 0..len)),
                Err(_) => self.is_failed = true,
            }
        }
        turn.counters.bytes_out - before
    }

    /// Returns true if there are records that were sealed ahead.
    pub(crate) fn is_ahead(&self) -> bool {
        self.sealed.len() > 1
    }

    /// Seals a record of what is queued.
    fn seal<P: Probe, T>(
        &mut self,
        turn: &mut Turn<'_, B, P, T>,
        buffer: &mut B,
    ) -> Result<usize, tls::Error> {
        let _crypto = turn.probe.enter(Category::Crypto);
        let most = buffer.capacity().saturating_sub(tls::OVERHEAD);
        let pieces = self.output.pieces(tls::DATA_MAX.min(most));
        let data: usize = pieces.iter().map(|piece| piece.len()).sum();
        let sealed = buffer.seal(|room| self.session.seal(&pieces, room));
        let len = sealed.unwrap_or(Err(tls::Error::Usage("a buffer has room")))?;
        self.output.consume(data);
        self.control_behind = 0;
        turn.counters.records_out += 1;
        turn.counters.bytes_out += data as u64;
        Ok(len)
    }
}

/// The outcome of writing.
enum Written {
    /// All was handed to TCP.
    All,
    /// TCP takes no more now, and tells when it does.
    Full,
    /// No buffer is free.
    Starved,
}

/// Copies the first bytes that have arrived; false if there are not as many.
fn copy<'a, B: Buffer + 'a>(chunks: impl Iterator<Item = Chunk<'a, B>>, mut to: &mut [u8]) -> bool {
    for chunk in chunks {
        let len = chunk.len().min(to.len());
        let (part, rest) = std::mem::take(&mut to).split_at_mut(len);
        match chunk {
            Chunk::Shared(buffer, range) => buffer.read(range.start, part),
            Chunk::Private(bytes) => part.copy_from_slice(bytes.get(..len).unwrap_or_default()),
        }
        to = rest;
        if to.is_empty() {
            return true;
        }
    }
    to.is_empty()
}

/// Opens the record at the front of what has arrived, where it lies; `None` if it has too many
/// pieces, and nothing was done.
fn open<'a, B: RecordBuffer + 'a>(
    session: &mut Session,
    header: Header,
    mut chunks: impl Iterator<Item = Chunk<'a, B>>,
    reading: Reading<'_>,
    out: &mut [u8],
) -> Result<Option<Content>, tls::Error> {
    let mut parts: [Option<Part<'a>>; PIECES] = [const { None }; PIECES];
    let (mut count, mut left) = (0, header.body_len());
    while left > 0 {
        let Some(chunk) = chunks.next() else { break };
        let len = chunk.len().min(left);
        left -= len;
        let part = match chunk {
            Chunk::Private(bytes) => bytes.get(..len).map(Part::Private),
            Chunk::Shared(buffer, range) => buffer.part(range.start..range.start + len),
        };
        let Some(place) = parts.get_mut(count) else {
            return Ok(None);
        };
        *place = part;
        count += 1;
    }
    let mut pieces = [Piece::Private(&[]); PIECES];
    for (piece, part) in pieces.iter_mut().zip(&parts) {
        match part {
            Some(Part::Shared(found)) => *piece = Piece::Shared(*found),
            Some(Part::Guarded(found)) => *piece = Piece::Private(found),
            Some(Part::Private(found)) => *piece = Piece::Private(found),
            None => break,
        }
    }
    let pieces = pieces.get(..count).unwrap_or_default();
    // In private memory it makes no difference, and the faster one is taken.
    let is_shared = pieces.iter().any(|it| matches!(it, Piece::Shared(_)));
    let reading = if is_shared { reading } else { Reading::Once };
    session.open_by(reading, header, pieces, out).map(Some)
}

#[cfg(test)]
#[path = "endpoint_tests.rs"]
pub(crate) mod tests;
