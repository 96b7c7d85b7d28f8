//! The handshake: rustls, one record at a time.

use rustls::client::{ClientConnectionData, UnbufferedClientConnection};
use rustls::kernel::KernelConnection;
use rustls::server::{ServerConnectionData, UnbufferedServerConnection};
use rustls::unbuffered::{ConnectionState, EncodeError, EncodeTlsData, UnbufferedStatus};
use rustls::{ConnectionTrafficSecrets, ExtractedSecrets, InvalidMessage};
use zeroize::Zeroizing;

use super::{Alert, ContentType};

/// The most bytes of records that may wait for the rest of a handshake message at a client: the
/// longest message that rustls takes, and one record more.
const FROM_SERVER_MAX: usize = (1 << 16) + (1 << 15);
/// The same at a server, which anyone may connect to: a record, and some more. What a client says
/// in a handshake has 2 KB with all extensions of today, keys against quantum computers included.
const FROM_CLIENT_MAX: usize = 20 << 10;

/// A connection before its secrets are known.
pub(super) struct Handshake {
    connection: Connection,
    /// Whole records that rustls has not discarded yet; it decrypts in place.
    incoming: Zeroizing<Vec<u8>>,
    /// Something is sent, so that records may be encrypted.
    has_sent: bool,
}

enum Connection {
    Server(UnbufferedServerConnection),
    Client(UnbufferedClientConnection),
}

/// The part of rustls that outlives the handshake: it derives later secrets, and keeps tickets.
pub(super) enum Kernel {
    Server(KernelConnection<ServerConnectionData>),
    Client(KernelConnection<ClientConnectionData>),
}

/// The outcome of [`Handshake::advance`].
pub(super) enum Progress {
    /// Another record is needed.
    Waiting(Box<Handshake>),
    /// Secrets are agreed on and the peer is authenticated as far as it has to be.
    Done(Box<(ExtractedSecrets, Kernel)>),
}

impl Handshake {
    pub(super) fn server(connection: UnbufferedServerConnection) -> Handshake {
        Handshake {
            connection: Connection::Server(connection),
            incoming: Zeroizing::default(),
            has_sent: false,
        }
    }

    pub(super) fn client(connection: UnbufferedClientConnection) -> Handshake {
        Handshake {
            connection: Connection::Client(connection),
            incoming: Zeroizing::default(),
            has_sent: false,
        }
    }

    /// Takes one whole record, with its header, or none at a client's start; what is to be sent is
    /// added to `outgoing`, also when it fails.
    pub(super) fn advance(
        self: Box<Self>,
        record: &[u8],
        outgoing: &mut Vec<u8>,
    ) -> Result<Progress, rustls::Error> {
        let most = match &self.connection {
            Connection::Server(_) => FROM_CLIENT_MAX,
            Connection::Client(_) => FROM_SERVER_MAX,
        };
        if self.incoming.len() + record.len() > most {
            // The alert of rustls for a message that is too long for it.
            self.refuse(Alert::DECODE_ERROR, outgoing);
            return Err(InvalidMessage::HandshakePayloadTooLarge.into());
        }
        self.take(record, outgoing)
    }

    /// [`Handshake::advance`] without the limit.
    fn take(
        mut self: Box<Self>,
        record: &[u8],
        outgoing: &mut Vec<u8>,
    ) -> Result<Progress, rustls::Error> {
        self.incoming.extend_from_slice(record);
        let before = outgoing.len();
        let done = match &mut self.connection {
            Connection::Server(server) => drive(server, &mut self.incoming, outgoing),
            Connection::Client(client) => drive(client, &mut self.incoming, outgoing),
        };
        let is_silent = outgoing.len() == before && !self.has_sent;
        let done = match done {
            // For a message that announces more than 64 KiB rustls has no alert.
            Err(error @ rustls::Error::InvalidMessage(_)) if is_silent => {
                self.refuse(Alert::DECODE_ERROR, outgoing);
                return Err(error);
            }
            done => done?,
        };
        self.has_sent |= outgoing.len() > before;
        if !done {
            return Ok(Progress::Waiting(self));
        }
        if !self.incoming.is_empty() {
            // Part of a record cannot be left: each one is handed over alone.
            return Err(rustls::PeerMisbehaved::KeyEpochWithPendingFragment.into());
        }
        Ok(match self.connection {
            Connection::Server(server) => {
                let (secrets, kernel) = server.dangerous_into_kernel_connection()?;
                Progress::Done(Box::new((secrets, Kernel::Server(kernel))))
            }
            Connection::Client(client) => {
                let (secrets, kernel) = client.dangerous_into_kernel_connection()?;
                Progress::Done(Box::new((secrets, Kernel::Client(kernel))))
            }
        })
    }
}

impl Handshake {
    /// Adds the alert that ends the handshake to `outgoing`.
    ///
    /// Once something is sent, the alert may have to be encrypted by keys that rustls alone has. It
    /// is given a record then that it answers with `unexpected_message`, whatever `alert` is.
    pub(super) fn refuse(self: Box<Self>, alert: Alert, outgoing: &mut Vec<u8>) {
        if self.has_sent {
            let _ = self.take(&FORBIDDEN, outgoing);
        } else {
            let [high, low] = 2_u16.to_be_bytes();
            let header = [ContentType::Alert as u8, 3, 3, high, low];
            // The level: fatal.
            outgoing.extend_from_slice(&[&header[..], &[2, alert.0]].concat());
        }
    }
}

/// A record whose content RFC 8446 forbids at any time (section 5), and has answered with
/// `unexpected_message`.
const FORBIDDEN: [u8; 6] = [ContentType::ChangeCipherSpec as u8, 3, 3, 0, 1, 0xff];

impl Kernel {
    pub(super) fn next_sealing(
        &mut self,
    ) -> Result<(u64, ConnectionTrafficSecrets), rustls::Error> {
        match self {
            Kernel::Server(kernel) => kernel.update_tx_secret(),
            Kernel::Client(kernel) => kernel.update_tx_secret(),
        }
    }

    pub(super) fn next_opening(
        &mut self,
    ) -> Result<(u64, ConnectionTrafficSecrets), rustls::Error> {
        match self {
            Kernel::Server(kernel) => kernel.update_rx_secret(),
            Kernel::Client(kernel) => kernel.update_rx_secret(),
        }
    }

    /// Keeps a ticket for a later connection. Returns `None` if this side does not get any.
    pub(super) fn ticket(&mut self, payload: &[u8]) -> Option<Result<(), rustls::Error>> {
        match self {
            Kernel::Server(_) => None,
            Kernel::Client(kernel) => Some(kernel.handle_new_session_ticket(payload)),
        }
    }
}

/// Both sides' connections, which have the same method without a common trait.
trait Unbuffered {
    type Data;
    fn process<'c, 'i>(
        &'c mut self,
        incoming: &'i mut [u8],
    ) -> UnbufferedStatus<'c, 'i, Self::Data>;
    /// Returns true if there are records to be sent.
    fn has_outgoing(&self) -> bool;
}

impl Unbuffered for UnbufferedServerConnection {
    type Data = ServerConnectionData;
    fn process<'c, 'i>(
        &'c mut self,
        incoming: &'i mut [u8],
    ) -> UnbufferedStatus<'c, 'i, Self::Data> {
        self.process_tls_records(incoming)
    }
    fn has_outgoing(&self) -> bool {
        self.wants_write()
    }
}

impl Unbuffered for UnbufferedClientConnection {
    type Data = ClientConnectionData;
    fn process<'c, 'i>(
        &'c mut self,
        incoming: &'i mut [u8],
    ) -> UnbufferedStatus<'c, 'i, Self::Data> {
        self.process_tls_records(incoming)
    }
    fn has_outgoing(&self) -> bool {
        self.wants_write()
    }
}

/// Goes on until another record is needed (false) or the handshake is done (true).
fn drive<C: Unbuffered>(
    connection: &mut C,
    incoming: &mut Vec<u8>,
    outgoing: &mut Vec<u8>,
) -> Result<bool, rustls::Error> {
    loop {
        let UnbufferedStatus { discard, state } = connection.process(incoming);
        let step = match state {
            Ok(ConnectionState::EncodeTlsData(mut data)) => {
                encode(&mut data, outgoing).map(|()| None)
            }
            Ok(ConnectionState::TransmitTlsData(data)) => {
                data.done();
                Ok(None)
            }
            Ok(ConnectionState::BlockedHandshake) => Ok(Some(false)),
            Ok(ConnectionState::WriteTraffic(_)) => Ok(Some(true)),
            Ok(_) => Err(rustls::Error::HandshakeNotComplete),
            Err(error) => Err(error),
        };
        incoming.drain(..discard);
        match step {
            Ok(None) => {}
            Ok(Some(done)) => return Ok(done),
            Err(error) => {
                // The alert waits behind the error. rustls knows places in what is left.
                while connection.has_outgoing() {
                    let UnbufferedStatus { discard, state } = connection.process(incoming);
                    let Ok(ConnectionState::EncodeTlsData(mut data)) = state else {
                        break;
                    };
                    encode(&mut data, outgoing)?;
                    incoming.drain(..discard);
                }
                return Err(error);
            }
        }
    }
}

/// Adds a chunk of records to what is to be sent.
fn encode<Data>(
    data: &mut EncodeTlsData<'_, Data>,
    outgoing: &mut Vec<u8>,
) -> Result<(), rustls::Error> {
    let start = outgoing.len();
    if let Err(EncodeError::InsufficientSize(needed)) = data.encode(&mut []) {
        outgoing.resize(start + needed.required_size, 0);
        let room = outgoing.get_mut(start..).unwrap_or_default();
        data.encode(room)
            .map_err(|error| rustls::Error::General(error.to_string()))?;
    }
    Ok(())
}
