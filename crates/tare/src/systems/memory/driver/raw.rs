//! What a transport does without a protocol: the references that every figure is held against, in
//! the same trial.
//!
//! - `udp`: datagrams as long as request and response, answered as soon as they are received, by a
//!   server that asks for the sender's address and answers it, as any server of several clients
//!   must.
//! - The *raw line* of shared memory: two cache lines, one written by each side, without PAUSE.

use std::io::{self, ErrorKind};
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tare_memory::View;

/// The time after which a sleeping client takes a datagram for lost, and the wait of a server between
/// two looks at whether it should end.
const LOST: Duration = Duration::from_millis(50);

/// Looks of a busy client at an empty socket, some 20 ms, after which a datagram is taken for lost.
const LOOKS_MAX: u32 = 100_000;

/// The longest datagram of a ping-pong.
const DATAGRAM_MAX: usize = 65_507;

/// The places of the raw line in the shared page. Processors fetch lines in pairs, so each has a
/// pair of its own.
const PING: usize = 1024;
const PONG: usize = 2048;

/// Answers each datagram with one of `answer` bytes until `is_over`.
///
/// # Errors
/// Those of the socket.
pub(super) fn echo(
    socket: &UdpSocket,
    is_busy: bool,
    answer: usize,
    mut is_over: impl FnMut() -> bool,
) -> io::Result<()> {
    socket.set_nonblocking(is_busy)?;
    socket.set_read_timeout(Some(LOST))?;
    let mut bytes = vec![0; DATAGRAM_MAX];
    loop {
        match socket.recv_from(&mut bytes) {
            Ok((_, from)) => {
                socket.send_to(&bytes[..answer], from)?;
            }
            Err(error) if is_nothing(&error) => {
                if is_over() {
                    return Ok(());
                }
            }
            Err(error) => return Err(error),
        }
    }
}

/// The client of a UDP ping-pong.
pub(super) struct Ping {
    socket: UdpSocket,
    is_busy: bool,
    bytes: Vec<u8>,
    request: usize,
    lost: u64,
}

impl Ping {
    /// A client with requests of so many bytes.
    ///
    /// # Errors
    /// Those of the socket.
    pub(super) fn new(server: SocketAddr, is_busy: bool, request: usize) -> io::Result<Ping> {
        let any = match server {
            SocketAddr::V4(_) => "0.0.0.0:0",
            SocketAddr::V6(_) => "[::]:0",
        };
        let socket = UdpSocket::bind(any)?;
        socket.connect(server)?;
        socket.set_nonblocking(is_busy)?;
        socket.set_read_timeout(Some(LOST))?;
        Ok(Ping {
            socket,
            is_busy,
            bytes: vec![0; DATAGRAM_MAX],
            request,
            lost: 0,
        })
    }

    /// Returns the time of so many round trips, one after the other.
    ///
    /// # Errors
    /// Those of the socket.
    pub(super) fn round_trips(&mut self, count: usize) -> io::Result<Duration> {
        let from = Instant::now();
        for _ in 0..count {
            self.round_trip()?;
        }
        Ok(from.elapsed())
    }

    fn round_trip(&mut self) -> io::Result<()> {
        self.socket.send(&self.bytes[..self.request])?;
        let mut in_vain = 0;
        loop {
            match self.socket.recv(&mut self.bytes) {
                Ok(_) => return Ok(()),
                Err(error) if !is_nothing(&error) => return Err(error),
                Err(_) => in_vain += 1,
            }
            // On loopback a datagram is lost only if a buffer is full, which one cannot fill; on a
            // link that is about to come up, it may be.
            if in_vain >= if self.is_busy { LOOKS_MAX } else { 1 } {
                self.socket.send(&self.bytes[..self.request])?;
                self.lost += 1;
                in_vain = 0;
            }
        }
    }

    /// Returns the number of datagrams that had to be sent again.
    pub(super) fn lost(&self) -> u64 {
        self.lost
    }
}

fn is_nothing(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted
    )
}

/// Answers on the raw line until `is_over`, which is asked once in a thousand looks.
pub(super) fn pong(page: View<'_>, mut is_over: impl FnMut() -> bool) -> Option<()> {
    let (ping, pong) = (page.atomic::<u64>(PING)?, page.atomic::<u64>(PONG)?);
    let mut last = ping.load(Ordering::Acquire);
    pong.store(last, Ordering::Release);
    loop {
        for _ in 0..1000 {
            let now = ping.load(Ordering::Acquire);
            if now != last {
                last = now;
                pong.store(now, Ordering::Release);
            }
        }
        if is_over() {
            return Some(());
        }
    }
}

/// Returns the time of so many round trips on the raw line; `None` if the page is too short.
pub(super) fn raw_line(page: View<'_>, count: usize) -> Option<Duration> {
    let (ping, pong) = (page.atomic::<u64>(PING)?, page.atomic::<u64>(PONG)?);
    let first = ping.load(Ordering::Relaxed);
    let from = Instant::now();
    for number in 1..=count as u64 {
        ping.store(first + number, Ordering::Release);
        while pong.load(Ordering::Acquire) != first + number {}
    }
    Some(from.elapsed())
}
