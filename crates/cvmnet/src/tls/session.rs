//! A connection, from its first record to its last.

use std::mem;

use super::handshake::{Handshake, Kernel, Progress};
use super::messages::{key_update, Message, Messages};
use super::records::{Opener, Piece, Reading, Room, Sealer};
use super::{Alert, Client, ContentType, Error, Header, Server};

/// The records without data that may come one after another: with more, a peer has its records
/// opened and gives none.
const WITHOUT_DATA_MAX: u32 = 32;

/// The content of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// Data: its bytes, at the front of the buffer.
    Data(usize),
    /// A message about the connection, which is done with.
    Message,
    /// The peer sends nothing more. What it sends after this is ignored.
    Closed,
}

/// One side of a TLS 1.3 connection, without I/O.
///
/// All that it queues in [`Session::take_outgoing`] is to be sent before anything that is sealed
/// afterwards; [`Session::seal`] refuses as long as something is queued.
pub struct Session {
    state: State,
    outgoing: Vec<u8>,
    records_per_key: Option<u64>,
}

enum State {
    Handshaking(Box<Handshake>),
    Open(Box<Open>),
    Over,
}

struct Open {
    opener: Opener,
    sealer: Sealer,
    kernel: Kernel,
    messages: Messages,
    /// Records without data since the last one with some.
    without_data: u32,
    /// An announcement of our next key is among what is queued.
    is_update_queued: bool,
    is_closed_by_peer: bool,
    is_closed: bool,
}

impl Session {
    /// Returns the server's side of a new connection.
    ///
    /// # Errors
    /// [`Error::Handshake`] if the configuration does not fit.
    pub fn server(config: &Server) -> Result<Session, Error> {
        let connection = config.connection().map_err(Error::Handshake)?;
        Ok(Session::new(Handshake::server(connection)))
    }

    /// Returns the client's side of a new connection; its first message is queued.
    ///
    /// # Errors
    /// [`Error::Handshake`] if the configuration does not fit.
    pub fn client(config: &Client) -> Result<Session, Error> {
        let connection = config.connection().map_err(Error::Handshake)?;
        let mut session = Session::new(Handshake::client(connection));
        session.handshake(&[])?;
        Ok(session)
    }

    fn new(handshake: Handshake) -> Session {
        Session {
            state: State::Handshaking(Box::new(handshake)),
            outgoing: Vec::new(),
            records_per_key: None,
        }
    }

    /// Replaces the key for sealing after `records` records instead of 2^23.
    #[must_use]
    pub fn with_records_per_key(mut self, records: u64) -> Session {
        self.records_per_key = Some(records.max(1));
        self
    }

    /// Returns true until the handshake is done: records go to [`Session::handshake`].
    pub fn is_handshaking(&self) -> bool {
        matches!(self.state, State::Handshaking(_))
    }

    /// Returns true if data can be sealed.
    pub fn is_open(&self) -> bool {
        matches!(&self.state, State::Open(open) if !open.is_closed)
    }

    /// Returns true if the peer said that it sends nothing more. If its stream of bytes ends
    /// without, data may be missing.
    pub fn is_closed_by_peer(&self) -> bool {
        matches!(&self.state, State::Open(open) if open.is_closed_by_peer)
    }

    /// Returns true if something is queued.
    pub fn has_outgoing(&self) -> bool {
        !self.outgoing.is_empty()
    }

    /// Takes what is to be sent now, in this order; empty if there is nothing.
    pub fn take_outgoing(&mut self) -> Vec<u8> {
        if let State::Open(open) = &mut self.state {
            open.is_update_queued = false;
        }
        mem::take(&mut self.outgoing)
    }

    /// Takes a whole record with its header, in private memory, during the handshake.
    ///
    /// # Errors
    /// [`Error::Handshake`], after which the session is over; [`Error::Usage`] if the handshake is
    /// done.
    pub fn handshake(&mut self, record: &[u8]) -> Result<(), Error> {
        let handshake = match mem::replace(&mut self.state, State::Over) {
            State::Handshaking(handshake) => handshake,
            State::Over => return Err(Error::Over),
            open @ State::Open(_) => {
                self.state = open;
                return Err(Error::Usage("the handshake is done"));
            }
        };
        match handshake.advance(record, &mut self.outgoing) {
            Err(error) => Err(Error::Handshake(error)),
            Ok(Progress::Waiting(handshake)) => {
                self.state = State::Handshaking(handshake);
                Ok(())
            }
            Ok(Progress::Done(done)) => {
                let (secrets, kernel) = *done;
                let sealer = self.sealer(secrets.tx)?;
                self.state = State::Open(Box::new(Open {
                    opener: Opener::new(secrets.rx)?,
                    sealer,
                    kernel,
                    messages: Messages::default(),
                    without_data: 0,
                    is_update_queued: false,
                    is_closed_by_peer: false,
                    is_closed: false,
                }));
                Ok(())
            }
        }
    }

    fn sealer(&self, secrets: (u64, rustls::ConnectionTrafficSecrets)) -> Result<Sealer, Error> {
        match self.records_per_key {
            None => Sealer::new(secrets),
            Some(records) => Sealer::with_records(secrets, records),
        }
    }

    /// Opens the next record of the peer: `pieces` are its [`Header::body_len`] bytes after the
    /// header, where they lie. `out` is private and has at least so many bytes.
    ///
    /// # Errors
    /// [`Error::Peer`] and [`Error::Alerted`], after which the session is over; [`Error::Usage`] for
    /// buffers of a wrong size or during the handshake, which changes nothing.
    pub fn open(
        &mut self,
        header: Header,
        pieces: &[Piece<'_>],
        out: &mut [u8],
    ) -> Result<Content, Error> {
        self.open_by(Reading::Once, header, pieces, out)
    }

    /// [`Session::open`], with the way to read the record.
    ///
    /// # Errors
    /// As [`Session::open`].
    pub fn open_by(
        &mut self,
        reading: Reading<'_>,
        header: Header,
        pieces: &[Piece<'_>],
        out: &mut [u8],
    ) -> Result<Content, Error> {
        let opened = match &mut self.state {
            State::Handshaking(_) => return Err(Error::Usage("the handshake is not done")),
            State::Over => return Err(Error::Over),
            State::Open(open) if open.is_closed_by_peer => return Ok(Content::Closed),
            State::Open(open) => open.take(reading, header, pieces, out),
        };
        let (content, is_answer_wanted) = match opened {
            Ok(opened) => opened,
            Err(Error::Usage(reason)) => return Err(Error::Usage(reason)),
            Err(error) => {
                self.fail(&error);
                return Err(error);
            }
        };
        if is_answer_wanted {
            self.update_keys()?;
        }
        Ok(content)
    }

    /// Seals up to 16 KiB of data, given in pieces, as one record at the front of `room`, which
    /// needs [`OVERHEAD`](super::OVERHEAD) bytes more than the data. Returns the record's length.
    ///
    /// A record that is sealed is to be sent, and before what is queued after it.
    ///
    /// # Errors
    /// [`Error::Usage`] during the handshake, with something queued, or for wrong sizes;
    /// [`Error::Over`] after [`Session::close`] or an error.
    pub fn seal(&mut self, data: &[&[u8]], room: Room<'_>) -> Result<usize, Error> {
        if self.has_outgoing() {
            return Err(Error::Usage("what is queued is to be sent first"));
        }
        let open = match &mut self.state {
            State::Handshaking(_) => return Err(Error::Usage("the handshake is not done")),
            State::Open(open) if !open.is_closed => open,
            State::Open(_) | State::Over => return Err(Error::Over),
        };
        let len = open.sealer.seal(data, room)?;
        if open.sealer.is_due() {
            self.update_keys()?;
        }
        Ok(len)
    }

    /// Queues the announcement of our next key, and seals with that from now on. One that is queued
    /// already serves: an answer is due once, however often the peer asked for it meanwhile.
    ///
    /// # Errors
    /// [`Error::Usage`] during the handshake; [`Error::Over`].
    pub fn update_keys(&mut self) -> Result<(), Error> {
        let State::Open(open) = &mut self.state else {
            return Err(if self.is_handshaking() {
                Error::Usage("the handshake is not done")
            } else {
                Error::Over
            });
        };
        if open.is_update_queued || open.is_closed {
            return Ok(());
        }
        open.sealer.seal_message(
            ContentType::Handshake,
            &key_update(false),
            &mut self.outgoing,
        )?;
        open.is_update_queued = true;
        let secrets = open.kernel.next_sealing().map_err(Error::Handshake)?;
        let sealer = self.sealer(secrets)?;
        if let State::Open(open) = &mut self.state {
            open.sealer = sealer;
        }
        Ok(())
    }

    /// Queues the notice that nothing more will be sent; data can still come. Does nothing the
    /// second time, or if the session is over.
    pub fn close(&mut self) {
        match &mut self.state {
            State::Open(open) => open.alert(Alert::CLOSE_NOTIFY, &mut self.outgoing),
            State::Handshaking(_) => self.state = State::Over,
            State::Over => {}
        }
    }

    /// Ends the session as the peer broke the protocol outside of a record, with its header say:
    /// queues the alert that tells so. Does nothing if the session is over.
    pub fn refuse(&mut self, alert: Alert) {
        match mem::replace(&mut self.state, State::Over) {
            State::Handshaking(handshake) => handshake.refuse(alert, &mut self.outgoing),
            State::Open(mut open) => open.alert(alert, &mut self.outgoing),
            State::Over => {}
        }
    }

    /// Ends the session, with an alert if the peer has not ended it itself.
    fn fail(&mut self, error: &Error) {
        if let (State::Open(open), Error::Peer(alert)) = (&mut self.state, error) {
            open.alert(*alert, &mut self.outgoing);
        }
        self.state = State::Over;
    }
}

impl Open {
    /// Opens a record; true if our key is to be replaced, because the peer asked for it.
    fn take(
        &mut self,
        reading: Reading<'_>,
        header: Header,
        pieces: &[Piece<'_>],
        out: &mut [u8],
    ) -> Result<(Content, bool), Error> {
        if header.content() != ContentType::ApplicationData {
            return Err(Error::Peer(Alert::UNEXPECTED_MESSAGE));
        }
        let (content, len) = self.opener.open(reading, header, pieces, out)?;
        let bytes = out.get(..len).unwrap_or_default();
        if content != ContentType::Handshake && self.messages.is_partial() {
            return Err(Error::Peer(Alert::UNEXPECTED_MESSAGE));
        }
        if content == ContentType::ApplicationData && len > 0 {
            self.without_data = 0;
            return Ok((Content::Data(len), false));
        }
        self.without_data += 1;
        if self.without_data > WITHOUT_DATA_MAX {
            return Err(Error::Peer(Alert::UNEXPECTED_MESSAGE));
        }
        match content {
            ContentType::Alert => self.alerted(bytes).map(|content| (content, false)),
            ContentType::Handshake => {
                self.messages.add(bytes)?;
                Ok((Content::Message, self.messages()?))
            }
            _ => Ok((Content::Message, false)),
        }
    }

    /// Handles an alert of the peer's.
    fn alerted(&mut self, content: &[u8]) -> Result<Content, Error> {
        let [_, description] = content else {
            return Err(Error::Peer(Alert::DECODE_ERROR));
        };
        match Alert(*description) {
            Alert::CLOSE_NOTIFY => {
                self.is_closed_by_peer = true;
                Ok(Content::Closed)
            }
            // The notice follows.
            Alert::USER_CANCELED => Ok(Content::Message),
            alert => Err(Error::Alerted(alert)),
        }
    }

    /// Handles the messages that are whole; true if our key is to be replaced.
    fn messages(&mut self) -> Result<bool, Error> {
        let mut is_update_owed = false;
        while let Some(message) = self.messages.next()? {
            match message {
                Message::KeyUpdate { is_answer_wanted } => {
                    let secrets = self.kernel.next_opening().map_err(Error::Handshake)?;
                    self.opener = Opener::new(secrets)?;
                    is_update_owed |= is_answer_wanted;
                }
                Message::Ticket(payload) => match self.kernel.ticket(&payload) {
                    None => return Err(Error::Peer(Alert::UNEXPECTED_MESSAGE)),
                    Some(kept) => kept.map_err(|_| Error::Peer(Alert::DECODE_ERROR))?,
                },
            }
        }
        Ok(is_update_owed)
    }

    /// Queues an alert, after which nothing is sealed.
    fn alert(&mut self, alert: Alert, outgoing: &mut Vec<u8>) {
        if self.is_closed {
            return;
        }
        self.is_closed = true;
        // The level of an alert has no meaning in TLS 1.3: 1 for a notice, 2 for the rest.
        let level = if alert == Alert::CLOSE_NOTIFY { 1 } else { 2 };
        // It only fails when no nonce is left, and then nothing can be sent.
        let _ = self
            .sealer
            .seal_message(ContentType::Alert, &[level, alert.0], outgoing);
    }
}
