//! Connections that never wait.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;

use rustix::io::Errno;
use rustix::net::{self, AddressFamily, SocketFlags, SocketType};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, StreamOwned};

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
    Tls(Box<StreamOwned<ClientConnection, TcpStream>>),
}

impl Target {
    /// Begins to connect; the socket can be written when that is done.
    pub(crate) fn open(&self) -> io::Result<Transport> {
        let family = match self.address {
            SocketAddr::V4(_) => AddressFamily::INET,
            SocketAddr::V6(_) => AddressFamily::INET6,
        };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = net::socket_with(family, SocketType::STREAM, flags, None)?;
        match net::connect(&socket, &self.address) {
            Ok(()) | Err(Errno::INPROGRESS) => {}
            Err(error) => return Err(error.into()),
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
    pub(crate) fn socket(&self) -> &TcpStream {
        match self {
            Transport::Plain(stream) => stream,
            Transport::Tls(stream) => &stream.sock,
        }
    }

    /// Reads what there is; 0 at the end of the connection.
    pub(crate) fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Transport::Plain(stream) => stream.read(into),
            // Many servers end a connection without TLS's own goodbye.
            Transport::Tls(stream) => match stream.read(into) {
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(0),
                other => other,
            },
        }
    }

    /// Writes what there is room for.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Transport::Plain(stream) => stream.write(bytes),
            Transport::Tls(stream) => stream.write(bytes),
        }
    }

    /// Sends what TLS has encrypted and not sent, and returns true if nothing is left.
    pub(crate) fn flush(&mut self) -> io::Result<bool> {
        let Transport::Tls(stream) = self else {
            return Ok(true);
        };
        while stream.conn.wants_write() {
            match stream.conn.write_tls(&mut stream.sock) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// True if more may be there to be read although the last read was short: TLS keeps what it
    /// has decrypted, of which the socket knows nothing.
    pub(crate) fn keeps_plaintext(&self) -> bool {
        matches!(self, Transport::Tls(_))
    }
}
