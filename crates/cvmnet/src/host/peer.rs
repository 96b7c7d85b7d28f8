//! A peer of the guest's in the host's own process: TCP and TLS of ours behind the device, so that
//! a guest can be spoken to without a network, without privileges.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::net::SocketAddr;
use std::ops::Range;
use std::time::Duration;

use tare_sim::Instant;

use super::Frames;
use crate::breakdown::Off;
use crate::endpoint::{Counters, Endpoint, Next, Part, RecordBuffer, Turn};
use crate::ring::{self, NetHeader};
use crate::server::{Application, Time};
use crate::tcp::{self, ConnectError, Frame, Id, Packet, Stack, Transmit};
use crate::tls::{self, Room, Session};
use crate::variant::Cipher;

/// Frames on their way to the guest: enough for its queue, few enough to stay in the cache.
const QUEUE: usize = 512;

/// The most bytes of memory for records that are sealed ahead.
pub const AHEAD_MAX: usize = 1 << 30;

/// Clients on one simulated machine.
pub struct Peer<A> {
    stack: Stack<Vec<u8>>,
    tls: tls::Client,
    endpoints: HashMap<Id, Endpoint<A, Vec<u8>>>,
    finished: Vec<(Id, A)>,
    outgoing: Outgoing,
    plaintext: Box<[u8]>,
    time: Time,
    /// Bytes of memory that may still be taken for records that are sealed ahead.
    ahead_left: usize,
    counters: Counters,
}

type Take = fn() -> Option<Vec<u8>>;

/// Returns a buffer for a record.
fn buffer() -> Option<Vec<u8>> {
    Some(vec![0; tls::DATA_MAX + tls::OVERHEAD])
}

/// Frames that the guest has not received yet, and the memory of those that it has.
#[derive(Default)]
struct Outgoing {
    frames: VecDeque<Vec<u8>>,
    spare: Vec<Vec<u8>>,
}

impl<A: Application> Peer<A> {
    /// Returns a peer without connections.
    ///
    /// # Errors
    /// The settings of TCP are not possible together.
    pub fn new(
        tcp: tcp::Config,
        secret: tcp::Secret,
        tls: tls::Client,
    ) -> Result<Peer<A>, tcp::Invalid> {
        Ok(Peer {
            stack: Stack::new(tcp, secret)?,
            tls,
            endpoints: HashMap::new(),
            finished: Vec::new(),
            outgoing: Outgoing::default(),
            plaintext: vec![0; tls::BODY_MAX].into(),
            time: Time {
                now: Instant::ZERO,
                unix: Duration::ZERO,
            },
            ahead_left: AHEAD_MAX,
            counters: Counters::default(),
        })
    }

    /// Opens a connection.
    ///
    /// # Errors
    /// TCP has no way there, or TLS no configuration.
    pub fn connect(
        &mut self,
        now: Instant,
        to: SocketAddr,
        application: A,
    ) -> Result<Id, ConnectFailure> {
        self.connect_from(now, to, application, |_| true)
    }

    /// Opens a connection from a local address and port that suit: those of a flow that the host
    /// brings to a certain queue pair.
    ///
    /// # Errors
    /// As [`Peer::connect`].
    pub fn connect_from(
        &mut self,
        now: Instant,
        to: SocketAddr,
        application: A,
        suits: impl Fn(SocketAddr) -> bool,
    ) -> Result<Id, ConnectFailure> {
        let session = Session::client(&self.tls).map_err(ConnectFailure::Tls)?;
        let id = self.stack.connect_from(now, to, suits);
        let id = id.map_err(ConnectFailure::Tcp)?;
        self.counters.opened += 1;
        let endpoint = Endpoint::new(session, application, Instant::NEVER);
        self.endpoints.insert(id, endpoint);
        Ok(id)
    }

    /// Does what can be done now. Returns true if anything was.
    pub fn turn(&mut self, time: Time) -> bool {
        self.time = time;
        let mut is_busy = false;
        while let Some((id, _)) = self.stack.event() {
            is_busy = true;
            self.serve(id);
        }
        is_busy | self.stack.poll(time.now, &mut self.outgoing)
    }

    /// Seals what the clients have to send in equal parts of `most` bytes of memory, so that
    /// nothing is left to be sealed when it is sent. Returns the bytes of data. All calls together
    /// take at most [`AHEAD_MAX`].
    pub fn seal_ahead(&mut self, time: Time, most: usize) -> u64 {
        self.time = time;
        let most = most.min(self.ahead_left);
        self.ahead_left -= most;
        let each = most / self.endpoints.len().max(1);
        let ids: Vec<Id> = self.endpoints.keys().copied().collect();
        let seal = |id| self.with(id, |endpoint, turn| endpoint.seal_ahead(turn, each));
        ids.into_iter().filter_map(seal).sum()
    }

    /// Returns true if all connections still have records that were sealed ahead.
    pub fn is_ahead(&self) -> bool {
        self.endpoints.values().all(Endpoint::is_ahead)
    }

    fn serve(&mut self, id: Id) {
        let next = self.with(id, |endpoint, turn| endpoint.serve(turn));
        if next != Some(Next::Over) {
            return;
        }
        if let Some(endpoint) = self.endpoints.remove(&id) {
            self.finished.push((id, endpoint.into_application()));
        }
        self.stack.close(self.time.now, id);
    }

    /// Calls `act` with a connection and what it needs for its turn.
    fn with<R>(
        &mut self,
        id: Id,
        act: impl FnOnce(&mut Endpoint<A, Vec<u8>>, &mut Turn<'_, Vec<u8>, Off, Take>) -> R,
    ) -> Option<R> {
        let endpoint = self.endpoints.get_mut(&id)?;
        let mut turn = Turn {
            time: self.time,
            id,
            stack: &mut self.stack,
            region: None,
            take: buffer as Take,
            plaintext: &mut self.plaintext,
            cipher: Cipher::SingleRead,
            probe: &Off,
            counters: &mut self.counters,
        };
        Some(act(endpoint, &mut turn))
    }

    /// Takes the connections that are over.
    pub fn take_finished(&mut self) -> Vec<(Id, A)> {
        std::mem::take(&mut self.finished)
    }

    /// Returns the number of connections that are not over.
    pub fn connections(&self) -> usize {
        self.endpoints.len()
    }

    /// Returns the counts of all connections.
    pub fn counters(&self) -> Counters {
        self.counters
    }
}

/// The reason why a connection was not opened.
#[derive(Debug)]
pub enum ConnectFailure {
    /// TCP.
    Tcp(ConnectError),
    /// TLS.
    Tls(tls::Error),
}

impl fmt::Display for ConnectFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConnectFailure::Tcp(error) => error.fmt(f),
            ConnectFailure::Tls(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for ConnectFailure {}

impl<A: Application> Frames for Peer<A> {
    fn receive(&mut self, frame: &mut Vec<u8>) -> Option<NetHeader> {
        let next = self.outgoing.frames.pop_front()?;
        let done = std::mem::replace(frame, next);
        self.outgoing.spare.push(done);
        // As from a network card without offloads.
        Some(NetHeader::default())
    }

    fn send(&mut self, frame: &[u8], header: NetHeader) -> bool {
        let frame = Frame {
            range: 0..frame.len(),
            buffer: frame.to_vec(),
            checksum: match header.checksum {
                ring::Checksum::Unverified => tcp::Checksum::Unverified,
                _ => tcp::Checksum::Trusted,
            },
        };
        self.stack.receive(self.time.now, frame);
        true
    }
}

impl Transmit<Vec<u8>> for Outgoing {
    fn room(&mut self) -> usize {
        QUEUE.saturating_sub(self.frames.len())
    }

    fn send(&mut self, packet: Packet<'_, Vec<u8>>) {
        let mut frame = self.spare.pop().unwrap_or_default();
        frame.clear();
        frame.extend_from_slice(packet.headers);
        for (buffer, range) in packet.payload {
            frame.extend_from_slice(buffer.get(range).unwrap_or_default());
        }
        self.frames.push_back(frame);
    }
}

impl RecordBuffer for Vec<u8> {
    fn fill(&mut self, bytes: &[u8]) -> Option<()> {
        self.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(())
    }

    fn seal<R>(&mut self, seal: impl FnOnce(Room<'_>) -> R) -> Option<R> {
        Some(seal(Room::Private(self)))
    }

    fn part(&self, range: Range<usize>) -> Option<Part<'_>> {
        self.get(range).map(Part::Private)
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use rustls::pki_types::ServerName;

    use super::*;
    use crate::server::bulk::Sink;
    use crate::server::Service as _;
    use crate::tls::{Client, Identity, Options};

    #[test]
    fn all_calls_together_seal_no_more_ahead_than_the_bound() {
        let identity = Identity::self_signed(&["guest.example".into()]).unwrap();
        let name = ServerName::try_from("guest.example").unwrap();
        let client = Client::new(identity.certificate().unwrap(), name, &Options::default());
        let config = tcp::Config::on_link([2; 6], Ipv4Addr::new(10, 9, 0, 1));
        let secret = tcp::Secret::new(&[1; 16]);
        let mut peer = Peer::new(config, secret, client.unwrap()).unwrap();
        let to = SocketAddr::from((Ipv4Addr::new(10, 9, 0, 2), 443));
        peer.connect(Instant::ZERO, to, Sink::new(0).accept())
            .unwrap();
        for (most, left) in [
            (1 << 20, AHEAD_MAX - (1 << 20)),
            (AHEAD_MAX - (2 << 20), 1 << 20),
            (usize::MAX, 0),
            (usize::MAX, 0),
        ] {
            // Nothing is sealed during the handshake, and the memory counts as taken.
            assert_eq!(peer.seal_ahead(Time::now(), most), 0);
            assert_eq!(peer.ahead_left, left);
        }
    }
}
