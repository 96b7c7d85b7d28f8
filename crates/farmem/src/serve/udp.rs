//! Requests over UDP.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::ops::Range;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::time::Duration;

use super::source::{Source, Turn};
use super::FairMutex;
use crate::protocol::{Datagrams, Execute, Node, SEND_BYTES};
use crate::transport::{Peer, UdpSocket, Waiting, DATAGRAM_MAX};
use rustix::net::{bind, socket_with, sockopt, AddressFamily, SocketFlags, SocketType};

/// Most pieces taken in one turn. The more, the less often the node is locked; the fewer, the
/// sooner the first is answered.
const BATCH_MAX: usize = 32;

/// One in so many turns looks whether something is there before it waits, in which case requests
/// come faster than one at a time.
const LOOK_PERIOD: u32 = 8;

/// Bytes of a turn: the last piece always finds room.
const BUFFER: usize = 4 * DATAGRAM_MAX;

/// A UDP socket that receives requests.
///
/// Pieces that come are put one behind the other, so that the small ones of many clients share few
/// cache lines; with `recvmmsg` each would have 64 KiB of its own. Neither that nor `sendmmsg`
/// takes less processor time (`docs/src/journal/datagrams-per-call.md`).
#[derive(Debug)]
pub struct UdpSource {
    socket: UdpSocket,
    buffer: Box<[u8]>,
    arrived: Vec<(Range<usize>, Peer)>,
    replies: Datagrams,
    /// The replies to each piece.
    answers: Vec<Range<usize>>,
    /// Most pieces to take in the next turn. It grows while requests are waiting, and is 1 while
    /// they come one at a time: then looking for a second would be a system call for nothing.
    batch: usize,
    turns: u32,
}

impl UdpSource {
    /// Opens a socket at an address that no other socket has.
    ///
    /// # Errors
    /// Those of the operating system, such as an address that is in use.
    pub fn bind(listen: SocketAddr) -> io::Result<UdpSource> {
        UdpSource::open(listen, false)
    }

    /// Opens `count` sockets at one address that no other socket has; the kernel gives each client
    /// to one of them. All get the port that the first one got.
    ///
    /// # Errors
    /// Those of the operating system, such as an address that is in use.
    pub fn bind_shared(listen: SocketAddr, count: usize) -> io::Result<Vec<UdpSource>> {
        let first = UdpSource::open(listen, false)?;
        if count > 1 {
            // Not before: it could join the sockets of another node there, which would then lack
            // a part of its clients.
            sockopt::set_socket_reuseport(first.socket.as_fd(), true)?;
        }
        let listen = first.local_addr()?;
        let others = (1..count).map(|_| UdpSource::open(listen, true));
        std::iter::once(Ok(first)).chain(others).collect()
    }

    fn open(listen: SocketAddr, joins_others: bool) -> io::Result<UdpSource> {
        let family = match listen {
            SocketAddr::V4(_) => AddressFamily::INET,
            SocketAddr::V6(_) => AddressFamily::INET6,
        };
        let socket = socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
        sockopt::set_socket_reuseport(&socket, joins_others)?;
        bind(socket.as_fd(), &listen)?;
        let mut socket = UdpSocket::new(socket)?;
        if listen.ip().is_unspecified() {
            socket.ask_for_destinations()?;
        }
        Ok(UdpSource {
            socket,
            buffer: vec![0; BUFFER].into(),
            arrived: Vec::with_capacity(BATCH_MAX),
            replies: Datagrams::default(),
            answers: Vec::with_capacity(BATCH_MAX),
            batch: 1,
            turns: 0,
        })
    }

    /// Returns the address of the socket.
    ///
    /// # Errors
    /// Those of the operating system.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// Takes what has come into the buffer; returns the number of bytes.
    fn receive(&mut self, wait: Duration, waiting: Waiting) -> io::Result<usize> {
        self.arrived.clear();
        self.turns = self.turns.wrapping_add(1);
        let looks = self.batch > 1 || wait.is_zero() || self.turns.is_multiple_of(LOOK_PERIOD);
        let mut from = Peer::from(SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)));
        let mut found = match looks {
            true => self.socket.receive(&mut self.buffer, Some(&mut from))?,
            false => None,
        };
        if found.is_some() {
            self.batch = (self.batch * 2).min(BATCH_MAX);
        } else {
            self.batch = 1;
            if wait.is_zero() {
                return Ok(0);
            }
            let buffer = &mut self.buffer;
            found = (self.socket).receive_within(buffer, Some(&mut from), wait, waiting)?;
        }
        let mut end = 0;
        while let Some(len) = found {
            self.arrived.push((end..end + len, from));
            end += len;
            let room = &mut self.buffer[end..];
            if self.arrived.len() >= self.batch || room.len() < DATAGRAM_MAX {
                break;
            }
            found = self.socket.receive(room, Some(&mut from))?;
        }
        Ok(end)
    }
}

impl<S: Execute> Source<S> for UdpSource {
    fn turn(
        &mut self,
        node: &FairMutex<Node<S>>,
        wait: Duration,
        waiting: Waiting,
    ) -> io::Result<Turn> {
        let received_bytes = self.receive(wait, waiting)?;
        if self.arrived.is_empty() {
            return Ok(Turn::default());
        }
        let mut turn = Turn {
            received: self.arrived.len() as u64,
            received_bytes: received_bytes as u64,
            ..Turn::default()
        };
        let mut done = 0;
        while done < self.arrived.len() {
            let from = done;
            self.replies.clear();
            self.answers.clear();
            {
                let mut node = node.lock();
                let now = self.socket.now();
                // Long answers leave before the others are made: the client can read them
                // meanwhile, and they are still in the cache.
                let mut pieces = node.pieces(&mut self.buffer);
                while done < self.arrived.len() && self.replies.bytes() < SEND_BYTES {
                    let first = self.replies.len();
                    let piece = &mut self.arrived[done].0;
                    piece.start +=
                        pieces.receive(now, piece.clone(), &mut self.replies, SEND_BYTES);
                    self.answers.push(first..self.replies.len());
                    if piece.start < piece.end {
                        break;
                    }
                    done += 1;
                }
                if done == self.arrived.len() {
                    pieces.give();
                }
            }
            let mut answers = self.answers.iter().peekable();
            let mut pieces = self.arrived[from..].iter().peekable();
            // What several pieces of one client ask for leaves as one run.
            while let (Some((_, peer)), Some(first)) = (pieces.next(), answers.next()) {
                let mut end = first.end;
                while answers.peek().is_some() && pieces.next_if(|(_, next)| next == peer).is_some()
                {
                    end = answers.next().map_or(end, |more| more.end);
                }
                self.socket
                    .send(&self.replies, first.start..end, Some(peer))?;
            }
            turn.sent += self.replies.len() as u64;
            turn.sent_bytes += self.replies.bytes() as u64;
        }
        Ok(turn)
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.socket.as_fd())
    }
}
