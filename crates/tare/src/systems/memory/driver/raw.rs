//! Transports without a protocol: the references that figures are held against, in the same trial.
//!
//! - UDP: datagrams as long as request and response, answered as soon as they are received, by a
//!   server that asks for the sender's address and answers it, as any server of several clients
//!   must. For long operations a stream in one direction, with UDP_SEGMENT and UDP_GRO.
//! - Frames of an interface: see [`frames`](super::frames).
//! - Shared memory: the *raw line*, two cache lines, one written by each side, without PAUSE. For
//!   long operations a copy from one process to the other, over slots, by the C library's `memcpy`.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use nix::sys::socket::{setsockopt, sockopt};
use tare_farmem::protocol::{Datagrams, NETWORK_DATAGRAM};
use tare_farmem::transport::{share_processor, Link as _, UdpLink, SOCKET_BYTES};
use tare_memory::Mapping;

use super::control::{Control, SLOT, SLOTS};

/// The wait of a sleeping side between two looks: of a client, at how long it has waited, of a
/// server, at whether it should end.
const SLEEP: Duration = Duration::from_millis(5);

/// Looks of a sleeping and of a busy client at an empty socket, 20 ms and about as long, after
/// which a datagram is taken for lost.
const SLEEPS_MAX: u32 = 4;
const LOOKS_MAX: u32 = 100_000;

/// The place of the number of an exchange in its request and, since a server answers in the buffer
/// that it has received into, in its answer: both are longer, as the headers of a node's are.
pub(super) const NUMBER: Range<usize> = 16..24;

/// The longest datagram, or piece that the kernel puts together.
const PIECE_MAX: usize = 1 << 16;

/// Datagrams of the stream that are sent at a time, all that the kernel takes in one call. Their
/// length hardly matters, since it handles the run as one piece.
const RUN: usize = 44;

/// Looks at a line between two at whether to end.
const LOOKS: u32 = 1000;

/// Opens a socket of one side.
///
/// # Errors
/// Those of the system.
pub(super) fn socket(own: IpAddr, is_busy: bool) -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind((own, 0))?;
    socket.set_nonblocking(is_busy)?;
    socket.set_read_timeout(Some(SLEEP))?;
    Ok(socket)
}

/// Lets the kernel hand over runs of datagrams in one piece, and gives it room for some.
pub(super) fn take_runs(socket: &UdpSocket) {
    // Without either, the stream is slower.
    let _ = setsockopt(socket, sockopt::UdpGroSegment, &true);
    let _ = setsockopt(socket, sockopt::RcvBuf, &SOCKET_BYTES);
}

/// A side's wait for the other one, which offers the processor to other threads where `tare-farmem`
/// does: the reference has the same chances on a busy machine.
pub(super) struct Wait {
    looks: u32,
    /// Looks between two at the clock, which takes longer than some of them.
    every: u32,
    since: Option<Instant>,
}

impl Wait {
    /// Looks are calls of the system.
    pub(super) fn for_calls() -> Wait {
        Wait::new(16)
    }

    /// Looks are loads: the first look at the clock comes after the usual round trip.
    fn for_loads() -> Wait {
        Wait::new(2048)
    }

    fn new(every: u32) -> Wait {
        Wait {
            looks: 0,
            every,
            since: None,
        }
    }

    /// There was nothing.
    #[inline]
    pub(super) fn goes_on(&mut self) {
        self.looks += 1;
        if self.looks == self.every {
            self.looks = 0;
            let since = *self.since.get_or_insert_with(Instant::now);
            share_processor(since.elapsed());
        }
    }

    /// Something has come; the next wait begins.
    #[inline]
    pub(super) fn is_over(&mut self) {
        self.looks = 0;
        self.since = None;
    }
}

/// Answers each datagram with one of `answer` bytes until `is_over`; `first` does something with
/// them before.
///
/// # Errors
/// Those of the socket.
pub(super) fn echo(
    socket: &UdpSocket,
    answer: usize,
    mut first: impl FnMut(&mut [u8]),
    mut is_over: impl FnMut() -> bool,
) -> io::Result<()> {
    let mut bytes = vec![0; PIECE_MAX];
    let mut wait = Wait::for_calls();
    while !is_over() {
        match socket.recv_from(&mut bytes) {
            Ok((_, from)) => {
                first(&mut bytes[..answer]);
                socket.send_to(&bytes[..answer], from)?;
                wait.is_over();
            }
            Err(error) if is_nothing(&error) => wait.goes_on(),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Counts the bytes that come until `is_over`.
///
/// # Errors
/// Those of the socket.
pub(super) fn sink(
    socket: &UdpSocket,
    control: &Control,
    mut is_over: impl FnMut() -> bool,
) -> io::Result<()> {
    let mut bytes = vec![0; PIECE_MAX];
    let mut count = control.count().load(Ordering::Relaxed);
    let mut wait = Wait::for_calls();
    while !is_over() {
        match socket.recv(&mut bytes) {
            Ok(len) => {
                count += len as u64;
                control.count().store(count, Ordering::Release);
                wait.is_over();
            }
            Err(error) if is_nothing(&error) => wait.goes_on(),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// The client's side of a UDP ping-pong, over some sockets in turn.
pub(super) struct Ping {
    sockets: Vec<UdpSocket>,
    next: usize,
    patience: u32,
    bytes: Vec<u8>,
    request: usize,
    /// The number of the last exchange, by which the answer to an earlier request is told from its
    /// own.
    number: u64,
}

impl Ping {
    /// A client at an address with so many sockets, and requests of so many bytes.
    ///
    /// # Errors
    /// Those of the sockets.
    pub(super) fn new(
        own: IpAddr,
        server: SocketAddr,
        sockets: u64,
        is_busy: bool,
        request: usize,
    ) -> io::Result<Ping> {
        let connected = |_| {
            let socket = socket(own, is_busy)?;
            socket.connect(server)?;
            io::Result::Ok(socket)
        };
        Ok(Ping {
            sockets: (0..sockets.max(1))
                .map(connected)
                .collect::<Result<_, _>>()?,
            next: 0,
            patience: if is_busy { LOOKS_MAX } else { SLEEPS_MAX },
            bytes: vec![0; PIECE_MAX],
            request,
            number: 0,
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
        self.next = (self.next + 1) % self.sockets.len();
        self.number += 1;
        self.ask()?;
        let mut in_vain = 0;
        let mut wait = Wait::for_calls();
        loop {
            match self.sockets[self.next].recv(&mut self.bytes) {
                Ok(len) => {
                    if self.bytes[..len].get(NUMBER) == Some(&self.number.to_le_bytes()[..]) {
                        return Ok(());
                    }
                }
                Err(error) if !is_nothing(&error) => return Err(error),
                Err(_) => {
                    in_vain += 1;
                    wait.goes_on();
                }
            }
            // One datagram at a time is not lost on loopback; this is for whatever else may happen.
            // Where it was late, both requests are answered, the second time during the next
            // exchanges.
            if in_vain >= self.patience {
                self.ask()?;
                in_vain = 0;
            }
        }
    }

    fn ask(&mut self) -> io::Result<()> {
        self.bytes[NUMBER].copy_from_slice(&self.number.to_le_bytes());
        let request = &self.bytes[..self.request];
        self.sockets[self.next].send(request).map(drop)
    }
}

fn is_nothing(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted
    )
}

/// Sends a stream for so long; returns the bytes that the other side has received per second.
///
/// # Errors
/// Those of the link.
pub(super) fn stream(link: &mut UdpLink, control: &Control, time: Duration) -> io::Result<f64> {
    let mut run = Datagrams::default();
    for _ in 0..RUN {
        run.push(&[7; NETWORK_DATAGRAM]);
    }
    let before = control.count().load(Ordering::Acquire);
    let from = Instant::now();
    while from.elapsed() < time {
        link.send(&run)?;
    }
    let after = control.count().load(Ordering::Acquire);
    Ok((after - before) as f64 / from.elapsed().as_secs_f64())
}

/// Answers on the raw line until `is_over`.
pub(super) fn pong(control: &Control, mut is_over: impl FnMut() -> bool) {
    let (ping, pong) = (control.ping(), control.pong());
    let mut last = pong.load(Ordering::Relaxed);
    let mut wait = Wait::for_loads();
    while !is_over() {
        for _ in 0..LOOKS {
            let now = ping.load(Ordering::Acquire);
            if now != last {
                last = now;
                pong.store(now, Ordering::Release);
                wait.is_over();
            } else {
                wait.goes_on();
            }
        }
    }
}

/// Returns the time of so many round trips on the raw line.
pub(super) fn raw_line(control: &Control, count: usize) -> Duration {
    let (ping, pong) = (control.ping(), control.pong());
    let first = ping.load(Ordering::Relaxed);
    let from = Instant::now();
    for number in 1..=count as u64 {
        ping.store(first + number, Ordering::Release);
        let mut wait = Wait::for_loads();
        while pong.load(Ordering::Acquire) != first + number {
            wait.goes_on();
        }
    }
    from.elapsed()
}

/// Copies what comes in the slots to memory of this process until `is_over`.
///
/// # Errors
/// There is too little memory.
pub(super) fn take_copies(
    control: &Control,
    mut is_over: impl FnMut() -> bool,
) -> anyhow::Result<()> {
    // `memcpy` depends on where a page begins, as a mapping does.
    let mut memory = Mapping::best(SLOTS * SLOT)?;
    let (filled, taken) = (control.ping(), control.pong());
    let mut next = taken.load(Ordering::Relaxed);
    let mut wait = Wait::for_loads();
    while !is_over() {
        for _ in 0..LOOKS {
            if filled.load(Ordering::Acquire) <= next {
                wait.goes_on();
                continue;
            }
            wait.is_over();
            let to = (next % SLOTS as u64) as usize * SLOT;
            let to = &mut memory.as_mut()[to..to + SLOT];
            control.slot(next).memcpy_to(to).context("a slot")?;
            next += 1;
            taken.store(next, Ordering::Release);
        }
    }
    Ok(())
}

/// Copies to the other process for so long; returns the bytes that it has taken per second.
///
/// # Errors
/// There is too little memory.
pub(super) fn give_copies(control: &Control, time: Duration) -> anyhow::Result<f64> {
    let mut memory = Mapping::best(SLOTS * SLOT)?;
    memory.as_mut().fill(7);
    let (filled, taken) = (control.ping(), control.pong());
    let first = filled.load(Ordering::Relaxed);
    let mut next = first;
    let mut wait = Wait::for_loads();
    let from = Instant::now();
    while from.elapsed() < time {
        while next - taken.load(Ordering::Acquire) >= SLOTS as u64 {
            wait.goes_on();
        }
        wait.is_over();
        let at = (next % SLOTS as u64) as usize * SLOT;
        let from = &memory.as_ref()[at..at + SLOT];
        control.slot(next).memcpy_from(from).context("a slot")?;
        next += 1;
        filled.store(next, Ordering::Release);
    }
    while taken.load(Ordering::Acquire) < next {
        wait.goes_on();
    }
    Ok(((next - first) as usize * SLOT) as f64 / from.elapsed().as_secs_f64())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::thread;

    use super::*;

    #[test]
    fn the_second_answer_to_a_request_is_not_taken_for_that_to_the_next_one() {
        let own = IpAddr::from([127, 0, 0, 1]);
        for is_busy in [true, false] {
            let server = socket(own, false).unwrap();
            let address = server.local_addr().unwrap();
            let answered = AtomicBool::new(false);
            thread::scope(|scope| {
                scope.spawn(|| {
                    // Each exchange is answered when its client has asked again, as often as it
                    // was asked.
                    for exchange in 1..=2u64 {
                        let (mut requests, mut bytes) = (0, [0; 72]);
                        while requests < 2 {
                            let Ok((_, from)) = server.recv_from(&mut bytes) else {
                                continue;
                            };
                            requests += u64::from(bytes[NUMBER] == exchange.to_le_bytes());
                            if requests < 2 {
                                continue;
                            }
                            answered.store(exchange == 2, Ordering::Release);
                            for _ in 0..2 {
                                server.send_to(&bytes[..48], from).unwrap();
                            }
                        }
                    }
                });
                let mut ping = Ping::new(own, address, 1, is_busy, 72).unwrap();
                ping.round_trips(1).unwrap();
                assert!(!answered.load(Ordering::Acquire));
                ping.round_trips(1).unwrap();
                let is_answered = answered.load(Ordering::Acquire);
                // The server waits for the request that is sent again.
                if !is_answered {
                    ping.ask().unwrap();
                }
                assert!(is_answered, "taken: the answer to the first request");
            });
        }
    }

    #[test]
    fn the_copy_of_the_reference_brings_every_slot_to_the_other_side() {
        let control = Control::create(1).unwrap();
        let others = control.try_clone().unwrap();
        let is_done = AtomicBool::new(false);
        thread::scope(|scope| {
            let is_over = || is_done.load(Ordering::Relaxed);
            let taker = scope.spawn(move || take_copies(&others, is_over));
            let rate = give_copies(&control, Duration::from_millis(20)).unwrap();
            is_done.store(true, Ordering::Relaxed);
            taker.join().unwrap().unwrap();
            assert!(rate > 0.0);
        });
        let given = control.ping().load(Ordering::Relaxed);
        assert_eq!(control.pong().load(Ordering::Relaxed), given);
        let mut found = vec![0; SLOT];
        for slot in 0..given.min(SLOTS as u64) {
            control.slot(slot).copy_to(&mut found).unwrap();
            assert_eq!(found, [7; SLOT], "slot {slot}");
        }
    }

    #[test]
    fn a_server_answers_with_the_number_of_the_request_whatever_it_does_before() {
        let own = IpAddr::from([127, 0, 0, 1]);
        let server = socket(own, true).unwrap();
        let address = server.local_addr().unwrap();
        let is_done = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                let miss = |bytes: &mut [u8]| bytes[..16].fill(9);
                echo(&server, 48, miss, || is_done.load(Ordering::Relaxed)).unwrap();
            });
            let mut ping = Ping::new(own, address, 2, true, 72).unwrap();
            ping.round_trips(5).unwrap();
            assert_eq!(ping.bytes[NUMBER], 5u64.to_le_bytes());
            assert_eq!(ping.bytes[..16], [9; 16]);
            is_done.store(true, Ordering::Relaxed);
        });
    }
}
