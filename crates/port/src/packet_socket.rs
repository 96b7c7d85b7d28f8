//! Ports over packet sockets (AF_PACKET), which work wherever there is an interface.

mod group;
mod handover;
mod messages;

use std::cell::Cell;
use std::fmt;
use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use crate::interface::promiscuous;
use crate::syscall::{check, new_socket, option, set_option};
use crate::{Burst, Counters, Error, Handover, Interface, Pool, Port, BURST};
use group::Group;
use messages::{Messages, Received};

/// An interface, received from and sent to through a packet socket, in bursts and straight into and
/// out of frames.
///
/// The kernel sees what is received, too. The interface is promiscuous while the port is open. What
/// this machine sends by itself on the interface is not received. Packets whose checksum a sender
/// on the same machine left to the network card get it; packets joined into longer ones (by
/// segmentation or receive offload), and those that no frame has room for, are dropped and counted.
/// A port keeps up to [`BURST`] slots of its pool for what arrives next.
pub struct PacketPort {
    socket: OwnedFd,
    /// The group of sockets that share the frames, if it is in one.
    _group: Option<Arc<Group>>,
    _promiscuous: OwnedFd,
    pool: Pool,
    messages: Messages,
    /// Receptions of nothing in a row.
    idle: u32,
    counters: Counters,
    /// The kernel forgets its count of drops when it tells.
    overrun: Cell<u64>,
}

/// The part of what arrives on an interface that a port receives.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Receives {
    All,
    Share,
    Nothing,
}

/// After so many receptions of nothing the interface is asked whether it is still there.
const IDLE: u32 = 64;

/// The size of the socket's buffer for what is not received yet, in bytes of the kernel's own
/// packet buffers.
const BUFFER: libc::c_int = 32 << 20;

impl PacketPort {
    /// Opens an interface, and receives all that arrives on it.
    ///
    /// # Errors
    /// Without CAP_NET_RAW, and where the interface is gone.
    pub fn open(interface: &Interface, pool: &Pool) -> Result<PacketPort, Error> {
        PacketPort::new(interface, pool, Receives::All).map_err(|error| told(interface, error))
    }

    /// Opens an interface, and receives a share of what arrives on it: each flow goes to one of the
    /// ports that this process has opened so on the interface.
    ///
    /// # Errors
    /// As [`PacketPort::open`].
    pub fn open_share(interface: &Interface, pool: &Pool) -> Result<PacketPort, Error> {
        PacketPort::new(interface, pool, Receives::Share).map_err(|error| told(interface, error))
    }

    /// Opens an interface, and receives nothing.
    ///
    /// # Errors
    /// As [`PacketPort::open`].
    pub fn open_to_send(interface: &Interface, pool: &Pool) -> Result<PacketPort, Error> {
        PacketPort::new(interface, pool, Receives::Nothing).map_err(|error| told(interface, error))
    }

    fn new(interface: &Interface, pool: &Pool, receives: Receives) -> io::Result<PacketPort> {
        // Of no protocol until it is bound, so that nothing of other interfaces is in it.
        let socket = new_socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_NONBLOCK, 0)?;
        let on: libc::c_int = 1;
        for option in [
            libc::PACKET_IGNORE_OUTGOING,
            PACKET_VNET_HDR,
            PACKET_AUXDATA,
            libc::PACKET_QDISC_BYPASS,
        ] {
            set_option(&socket, libc::SOL_PACKET, option, &on)?;
        }
        // More than the machine's limit, where that is allowed.
        if set_option(&socket, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, &BUFFER).is_err() {
            set_option(&socket, libc::SOL_SOCKET, libc::SO_RCVBUF, &BUFFER)?;
        }
        let mut address = address(interface.index());
        if receives == Receives::Nothing {
            address.sll_protocol = 0;
        }
        // SAFETY: the address is of the family and of the size told.
        check(unsafe {
            libc::bind(
                socket.as_raw_fd(),
                (&address as *const libc::sockaddr_ll).cast(),
                mem::size_of_val(&address) as libc::socklen_t,
            )
        })?;
        let group = if receives == Receives::Share {
            Some(Group::join(&socket, interface)?)
        } else {
            None
        };
        PacketPort::of(socket, interface, pool, group)
    }

    fn of(
        socket: OwnedFd,
        interface: &Interface,
        pool: &Pool,
        group: Option<Arc<Group>>,
    ) -> io::Result<PacketPort> {
        Ok(PacketPort {
            socket,
            _group: group,
            _promiscuous: promiscuous(interface)?,
            pool: pool.clone(),
            messages: Messages::new(),
            idle: 0,
            counters: Counters::default(),
            overrun: Cell::new(0),
        })
    }

    /// The error of a socket whose interface was removed; none when it is only down.
    #[cold]
    fn gone(&self) -> Option<io::Error> {
        let mut address = address(0);
        let mut size = mem::size_of_val(&address) as libc::socklen_t;
        // SAFETY: the kernel writes at most as many bytes as it is told.
        let told = unsafe {
            libc::getsockname(
                self.socket.as_raw_fd(),
                (&mut address as *mut libc::sockaddr_ll).cast(),
                &mut size,
            )
        };
        (check(told).is_err() || address.sll_ifindex <= 0)
            .then(|| io::Error::new(io::ErrorKind::NotConnected, "the interface is gone"))
    }
}

impl Port for PacketPort {
    fn receive(&mut self, burst: &mut Burst, max: usize) -> io::Result<usize> {
        let asked = self.messages.refill(&self.pool, max);
        if asked == 0 {
            return Ok(0);
        }
        let arrived = match self.messages.receive(&self.socket, asked) {
            Ok(arrived) => arrived,
            Err(error) => match error.raw_os_error() {
                Some(libc::EAGAIN | libc::EINTR) => 0,
                Some(libc::ENETDOWN) => return self.gone().map_or(Ok(0), Err),
                // A packet that the kernel could not describe, and has dropped.
                Some(libc::EINVAL) => {
                    self.counters.rx_dropped += 1;
                    return Ok(0);
                }
                _ => return Err(error),
            },
        };
        if arrived == 0 {
            self.idle += 1;
            if self.idle >= IDLE {
                self.idle = 0;
                return self.gone().map_or(Ok(0), Err);
            }
            return Ok(0);
        }
        self.idle = 0;
        let before = burst.len();
        let Counters {
            rx_bytes,
            rx_dropped,
            ..
        } = &mut self.counters;
        self.messages.take(arrived, |received| match received {
            Received::Frame(frame) => {
                *rx_bytes += frame.len() as u64;
                burst.push(frame);
            }
            Received::Unfit => *rx_dropped += 1,
        });
        let n = burst.len() - before;
        self.counters.rx_packets += n as u64;
        Ok(n)
    }

    fn send(&mut self, burst: &mut Burst) -> io::Result<usize> {
        let (mut taken, mut dropped) = (0, 0);
        let gone = loop {
            let rest = &burst[taken..];
            if rest.is_empty() {
                break None;
            }
            match self
                .messages
                .send(&self.socket, &rest[..rest.len().min(BURST)])
            {
                Ok(sent) => taken += sent,
                // About the first of them.
                Err(error) => match error.raw_os_error() {
                    Some(libc::EINTR) => {}
                    Some(libc::EAGAIN) => break None,
                    Some(libc::ENETDOWN) => {
                        dropped += rest.len() as u64;
                        taken = burst.len();
                    }
                    // No cable, too long, or shorter than its header.
                    Some(libc::ENOBUFS | libc::EMSGSIZE | libc::EINVAL) => {
                        dropped += 1;
                        taken += 1;
                    }
                    Some(libc::ENXIO | libc::ENODEV) => {
                        break Some(self.gone().unwrap_or(error));
                    }
                    _ => break Some(error),
                },
            }
        };
        for frame in burst.drain(..taken) {
            self.counters.tx_bytes += frame.len() as u64;
        }
        self.counters.tx_packets += taken as u64;
        self.counters.tx_dropped += dropped;
        gone.map_or(Ok(taken), Err)
    }

    fn counters(&self) -> Counters {
        let none = libc::tpacket_stats {
            tp_packets: 0,
            tp_drops: 0,
        };
        // SAFETY: two numbers, for which any bytes are values.
        let since = unsafe { option(&self.socket, libc::SOL_PACKET, PACKET_STATISTICS, none) };
        if let Ok(since) = since {
            self.overrun
                .set(self.overrun.get() + u64::from(since.tp_drops));
        }
        Counters {
            rx_dropped: self.counters.rx_dropped + self.overrun.get(),
            ..self.counters
        }
    }

    fn wait_on(&self) -> Option<BorrowedFd<'_>> {
        Some(self.as_fd())
    }

    fn handover(&mut self) -> Option<&mut dyn Handover> {
        Some(self)
    }
}

impl AsFd for PacketPort {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl fmt::Debug for PacketPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PacketPort({:?})", self.counters())
    }
}

fn told(interface: &Interface, error: io::Error) -> Error {
    Error::os(
        format!("opening {} with a packet socket", interface.name()),
        error,
    )
}

/// All protocols of an interface.
fn address(interface: u32) -> libc::sockaddr_ll {
    libc::sockaddr_ll {
        sll_family: libc::AF_PACKET as u16,
        sll_protocol: (libc::ETH_P_ALL as u16).to_be(),
        sll_ifindex: interface as i32,
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 0,
        sll_addr: [0; 8],
    }
}

const PACKET_STATISTICS: libc::c_int = 6;
const PACKET_AUXDATA: libc::c_int = 8;
const PACKET_VNET_HDR: libc::c_int = 15;
