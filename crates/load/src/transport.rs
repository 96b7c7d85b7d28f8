//! Connections that never wait.

use std::io::ErrorKind::{Interrupted, UnexpectedEof, WouldBlock};
use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{self, SocketAddrAny, SocketFlags, SocketType};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, HandshakeKind, StreamOwned};
use tare_sim::Instant;

use crate::protocol::Wire;
use crate::Error;

/// The longest answer to [`ask`], in bytes.
const ANSWER_MAX: usize = 1 << 20;

/// The server that requests go to.
#[derive(Clone, Debug)]
pub struct Target {
    /// The server's address.
    pub address: SocketAddr,
    /// TLS, and the name that the server's certificate has to be for; `None` without TLS.
    pub tls: Option<(Arc<ClientConfig>, ServerName<'static>)>,
}

/// A connection to a target.
pub(crate) enum Transport {
    Plain(TcpStream),
    Datagrams(UdpSocket),
    Tls(Box<StreamOwned<ClientConnection, TcpStream>>),
}

/// Sends some bytes on a connection of its own, and returns what comes back until that is whole.
///
/// # Errors
/// The server cannot be reached, closes the connection, or answers nothing whole within `timeout`
/// or a mebibyte.
pub fn ask(
    target: &Target,
    request: &[u8],
    is_whole: impl Fn(&[u8]) -> bool,
    timeout: Duration,
) -> Result<Vec<u8>, Error> {
    let failed = |error: io::Error| Error::connection(target, &error);
    let mut transport = target.open(Wire::Stream).map_err(failed)?;
    let (mut unsent, mut answer, mut piece) = (request, Vec::new(), [0; 4096]);
    let end = Instant::now() + timeout;
    loop {
        let sent = match unsent {
            [] => transport.flush().map(|_| None),
            _ => transport.write(unsent),
        };
        let received = transport.read(&mut piece).map_err(failed)?;
        match (received, sent) {
            (Some(0), _) => {
                let error = "closed before the answer was whole";
                return Err(failed(io::Error::other(error)));
            }
            (None, Err(error)) => return Err(failed(error)),
            (_, sent) => {
                answer.extend_from_slice(&piece[..received.unwrap_or(0)]);
                unsent = &unsent[sent.ok().flatten().unwrap_or(0)..];
            }
        }
        if is_whole(&answer) {
            return Ok(answer);
        }
        let left = end.since(Instant::now());
        if left.is_zero() || answer.len() > ANSWER_MAX {
            let error = format!("no whole answer within {timeout:?}");
            return Err(failed(io::Error::other(error)));
        }
        if received.is_none() {
            // Short, so that what TLS still has to send is not waited for in vain.
            let wait = left.min(Duration::from_millis(5));
            let wait = Timespec::try_from(wait).unwrap_or_default();
            let socket = transport.socket();
            let _ = poll(&mut [PollFd::new(&socket, PollFlags::IN)], Some(&wait));
        }
    }
}

impl Target {
    /// Begins to connect; the socket can be written when that is done.
    pub(crate) fn open(&self, wire: Wire) -> io::Result<Transport> {
        let family = SocketAddrAny::from(self.address).address_family();
        let kind = match wire {
            Wire::Datagrams => SocketType::DGRAM,
            Wire::Stream | Wire::Handshakes => SocketType::STREAM,
        };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = net::socket_with(family, kind, flags, None)?;
        match net::connect(&socket, &self.address) {
            Ok(()) | Err(Errno::INPROGRESS) => {}
            Err(error) => return Err(error.into()),
        }
        if wire == Wire::Datagrams {
            return Ok(Transport::Datagrams(UdpSocket::from(socket)));
        }
        let stream = TcpStream::from(socket);
        stream.set_nodelay(true)?;
        Ok(match &self.tls {
            None => Transport::Plain(stream),
            Some((config, name)) => {
                let session = ClientConnection::new(Arc::clone(config), name.clone());
                let session = session.map_err(io::Error::other)?;
                Transport::Tls(Box::new(StreamOwned::new(session, stream)))
            }
        })
    }
}

impl Transport {
    pub(crate) fn socket(&self) -> BorrowedFd<'_> {
        match self {
            Transport::Plain(stream) => stream.as_fd(),
            Transport::Datagrams(socket) => socket.as_fd(),
            Transport::Tls(stream) => stream.sock.as_fd(),
        }
    }

    /// Reads what there is; 0 at the end of the connection, `None` if nothing has arrived.
    pub(crate) fn read(&mut self, into: &mut [u8]) -> io::Result<Option<usize>> {
        unless_waiting(match self {
            Transport::Plain(stream) => stream.read(into),
            // An empty datagram is no end.
            Transport::Datagrams(socket) => match socket.recv(into) {
                Ok(0) => Err(WouldBlock.into()),
                other => other,
            },
            // Many servers end a connection without TLS's own goodbye.
            Transport::Tls(stream) => match stream.read(into) {
                Err(error) if error.kind() == UnexpectedEof => Ok(0),
                other => other,
            },
        })
    }

    /// Writes what there is room for; `None` if there is none.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> io::Result<Option<usize>> {
        unless_waiting(match self {
            Transport::Plain(stream) => stream.write(bytes),
            Transport::Datagrams(socket) => socket.send(bytes),
            Transport::Tls(stream) => stream.write(bytes),
        })
    }

    /// Sends what TLS has encrypted and not sent, and returns true if nothing is left.
    pub(crate) fn flush(&mut self) -> io::Result<bool> {
        let Transport::Tls(stream) = self else {
            return Ok(true);
        };
        while stream.conn.wants_write() {
            if unless_waiting(stream.conn.write_tls(&mut stream.sock))?.is_none() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The kind of TLS handshake that was made; `None` before its end and without TLS.
    pub(crate) fn handshake(&self) -> Option<HandshakeKind> {
        let Transport::Tls(stream) = self else {
            return None;
        };
        let kind = stream.conn.handshake_kind();
        kind.filter(|_| !stream.conn.is_handshaking())
    }

    /// True if a TLS handshake has begun and not ended.
    pub(crate) fn is_handshaking(&self) -> bool {
        matches!(self, Transport::Tls(stream) if stream.conn.is_handshaking())
    }

    /// Tells the server that nothing more comes, upon which it closes the connection. So the port
    /// that stays in use for a minute is the server's, whose number does not matter, and the
    /// sessions that it grants after the handshake have arrived.
    pub(crate) fn finish(&mut self) {
        if let Transport::Tls(stream) = self {
            stream.conn.send_close_notify();
        }
    }

    /// True if more may be there to be read although the last read was short: TLS keeps what it
    /// has decrypted, of which the socket knows nothing.
    pub(crate) fn keeps_plaintext(&self) -> bool {
        matches!(self, Transport::Tls(_))
    }
}

/// Returns `None` for what is to be done later, once `epoll` says so.
#[inline]
fn unless_waiting(done: io::Result<usize>) -> io::Result<Option<usize>> {
    match done {
        Err(error) if matches!(error.kind(), WouldBlock | Interrupted) => Ok(None),
        done => done.map(Some),
    }
}
