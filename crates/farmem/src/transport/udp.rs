//! Datagrams over UDP.

use std::io::{self, IoSlice, IoSliceMut};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::Range;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::time::Duration;

use nix::libc::{in6_pktinfo, in_pktinfo};
use nix::sys::socket::{
    recvmsg, sendmsg, setsockopt, sockopt, ControlMessage, MsgFlags, SockaddrStorage,
};
use rustix::fs::{fcntl_getfl, fcntl_setfl, OFlags};
use rustix::io::Errno;
use rustix::net::{
    getsockname, recv, recvfrom, send, sendto, sockopt as option, RecvFlags, SendFlags,
};
use tare_sim::Instant;

use super::link::{share_processor, Link, Waiting};
use super::peer::{self, Peer};
use crate::protocol::{network_datagram, Datagrams, Run, LOCAL_DATAGRAM, RUN_BYTES};

/// The room that a socket asks for in each direction, in bytes. Linux counts what packets take, not
/// what they carry, and gives at most `net.core.rmem_max` and `wmem_max`.
pub const SOCKET_BYTES: usize = 4 << 20;

/// Most datagrams of a run that every kernel takes.
const RUN_DATAGRAMS: usize = 64;

/// The times that a socket asks again before it looks at the clock.
const SPINS: u32 = 8;

/// Least bytes of a write in a datagram that are sent without a copy. With so many, writes of 64
/// KiB take 0.92 of the time on a Xeon; fewer were not measured.
const GATHERED_MIN: u32 = 4096;

/// Least bytes of a long datagram.
const LONG: usize = 512;

/// Short datagrams in succession after which no run is expected any more.
const SHORT_MAX: u32 = 64;

/// A UDP socket that sends and receives runs of datagrams in one system call each, where the kernel
/// can (UDP_SEGMENT and UDP_GRO, from Linux 4.18 and 5.0 on).
///
/// UDP_SEGMENT goes with each run. As an option of the socket it would cost a single datagram a
/// tenth of a round trip: the kernel then puts its bytes into a page of their own.
#[derive(Debug)]
pub(crate) struct UdpSocket {
    socket: OwnedFd,
    /// False if the kernel or an interface cannot cut runs.
    cuts: bool,
    /// The kernel hands over runs as one piece.
    gathers: bool,
    /// Short datagrams that came since the last long one.
    short: u32,
    /// The room for the address that a datagram was sent to; empty if the kernel does not say it.
    control: Vec<u8>,
    errors: Errors,
    /// The time after which the kernel gives up waiting.
    timeout: Duration,
    /// The clock as it was read a moment before something came.
    seen: Option<Instant>,
}

impl UdpSocket {
    pub(crate) fn new(socket: OwnedFd) -> io::Result<UdpSocket> {
        // As root, beyond the limits of the system. Less room costs speed only, so that errors do
        // not matter.
        let bytes = SOCKET_BYTES;
        let _ = option::set_socket_recv_buffer_size_force(&socket, bytes)
            .or_else(|_| option::set_socket_recv_buffer_size(&socket, bytes));
        let _ = option::set_socket_send_buffer_size_force(&socket, bytes)
            .or_else(|_| option::set_socket_send_buffer_size(&socket, bytes));
        fcntl_setfl(&socket, fcntl_getfl(&socket)? - OFlags::NONBLOCK)?;
        Ok(UdpSocket {
            socket,
            cuts: true,
            gathers: false,
            short: 0,
            control: Vec::new(),
            errors: Errors::default(),
            timeout: Duration::MAX,
            seen: None,
        })
    }

    pub(crate) fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(SocketAddr::try_from(getsockname(&self.socket)?)?)
    }

    /// Has the kernel say which address each datagram was sent to, so that its answer leaves from
    /// there ([`Peer::local`]): for a socket that is bound to all addresses of this machine.
    pub(crate) fn ask_for_destinations(&mut self) -> io::Result<()> {
        match self.local_addr()? {
            SocketAddr::V4(_) => setsockopt(&self.socket, sockopt::Ipv4PacketInfo, &true),
            SocketAddr::V6(_) => setsockopt(&self.socket, sockopt::Ipv6RecvPacketInfo, &true),
        }?;
        // The number is that of UDP_GRO, the size of the datagrams in a run.
        self.control = nix::cmsg_space!(i32, in_pktinfo, in6_pktinfo);
        Ok(())
    }

    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Sends a range of datagrams, to this address or to the one that the socket is connected with.
    /// What cannot be sent now is lost.
    pub(crate) fn send(
        &mut self,
        datagrams: &Datagrams,
        range: Range<usize>,
        to: Option<&Peer>,
    ) -> io::Result<()> {
        if range.len() == 1 {
            return self.send_one(datagrams.part(range), to);
        }
        let run_datagrams = if self.cuts { RUN_DATAGRAMS } else { 1 };
        for (run, size) in datagrams.runs(range, RUN_BYTES, run_datagrams) {
            if run.len() > size && !(self.cuts && self.send_run(&[IoSlice::new(run)], size, to)?) {
                run.chunks(size)
                    .try_for_each(|one| self.send_one(one, to))?;
            } else if run.len() <= size {
                self.send_one(run, to)?;
            }
        }
        Ok(())
    }

    /// Sends segments of a write to the address that the socket is connected with, without a copy
    /// of their data.
    fn send_segments(&mut self, run: &Run<'_>) -> io::Result<()> {
        let parts: Vec<IoSlice<'_>> = run.datagrams().flatten().map(IoSlice::new).collect();
        if self.cuts && parts.len() > 2 && self.send_run(&parts, run.datagram_bytes(), None)? {
            return Ok(());
        }
        parts
            .chunks(2)
            .try_for_each(|one| self.send_parts(one, None, None).or_else(lost))
    }

    /// Sends a run of datagrams; returns false if that does not work, here or to this peer.
    fn send_run(
        &mut self,
        run: &[IoSlice<'_>],
        size: usize,
        to: Option<&Peer>,
    ) -> io::Result<bool> {
        let Ok(size) = u16::try_from(size) else {
            return Ok(false);
        };
        let Err(error) = self.send_parts(run, Some(size), to) else {
            return Ok(true);
        };
        match error {
            // No checksums by the interface, or nothing that could cut.
            Errno::IO | Errno::OPNOTSUPP => {
                self.cuts = false;
                Ok(false)
            }
            // A size beyond that of the path, or a wrong address: of this peer, others' runs are
            // cut as before.
            Errno::INVAL | Errno::MSGSIZE => Ok(false),
            error => lost(error).map(|()| true),
        }
    }

    /// Sends parts, as a run of datagrams of `size` bytes or as one, in one system call.
    fn send_parts(
        &self,
        parts: &[IoSlice<'_>],
        size: Option<u16>,
        to: Option<&Peer>,
    ) -> Result<(), Errno> {
        let source = to.and_then(Peer::source);
        let source = source.as_ref().map(peer::Source::message);
        let size = size.as_ref().map(ControlMessage::UdpGsoSegments);
        let (one, both);
        let control = match (size, source) {
            (Some(size), Some(source)) => {
                both = [size, source];
                &both[..]
            }
            (Some(message), None) | (None, Some(message)) => {
                one = [message];
                &one[..]
            }
            (None, None) => &[],
        };
        let to = to.map(|to| SockaddrStorage::from(to.address));
        loop {
            let socket = self.socket.as_raw_fd();
            match sendmsg(socket, parts, control, MsgFlags::empty(), to.as_ref()) {
                Ok(_) => return Ok(()),
                Err(nix::errno::Errno::EINTR) => {}
                Err(error) => return Err(Errno::from_raw_os_error(error as i32)),
            }
        }
    }

    fn send_one(&self, datagram: &[u8], to: Option<&Peer>) -> io::Result<()> {
        self.send_bytes(datagram, to).or_else(lost)
    }

    fn send_bytes(&self, bytes: &[u8], to: Option<&Peer>) -> Result<(), Errno> {
        let flags = SendFlags::empty();
        loop {
            let sent = match to {
                Some(Peer { local: Some(_), .. }) => {
                    return self.send_parts(&[IoSlice::new(bytes)], None, to);
                }
                Some(to) => sendto(&self.socket, bytes, flags, &to.address),
                None => send(&self.socket, bytes, flags),
            };
            match sent {
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Takes what has come, without waiting; returns the number of bytes, and stores the address
    /// that they are from if it is asked for.
    #[inline]
    pub(crate) fn receive(
        &mut self,
        buffer: &mut [u8],
        from: Option<&mut Peer>,
    ) -> io::Result<Option<usize>> {
        self.receive_with(buffer, from, RecvFlags::DONTWAIT)
    }

    /// Takes what has come; if nothing has it waits for about `wait`, which may be less.
    pub(crate) fn receive_within(
        &mut self,
        buffer: &mut [u8],
        mut from: Option<&mut Peer>,
        wait: Duration,
        waiting: Waiting,
    ) -> io::Result<Option<usize>> {
        let busy = waiting.busy().min(wait);
        self.seen = None;
        if !busy.is_zero() {
            // Here the clock costs nothing, unlike later, when a caller waits.
            let start = Instant::now();
            let mut now = start;
            while now.since(start) < busy {
                for _ in 0..SPINS {
                    let arrived = self.receive(buffer, from.as_deref_mut())?;
                    if arrived.is_some() {
                        self.seen = Some(now);
                        return Ok(arrived);
                    }
                }
                now = Instant::now();
                share_processor(now.since(start));
            }
        }
        let wait = wait - busy;
        if wait.is_zero() {
            return self.receive(buffer, from);
        }
        self.set_timeout(wait)?;
        let arrived = self.receive_with(buffer, from, RecvFlags::empty())?;
        if arrived.is_none() {
            // It may be longer next time: setting it each time would be a system call more.
            self.timeout = Duration::MAX;
        }
        Ok(arrived)
    }

    /// Returns the time, which is that of the last arrival to within a few microseconds.
    #[inline]
    pub(crate) fn now(&mut self) -> Instant {
        self.seen.take().unwrap_or_else(Instant::now)
    }

    /// Sets the time after which the kernel gives up, if the present one is too long.
    fn set_timeout(&mut self, wait: Duration) -> io::Result<()> {
        if self.timeout > wait {
            let timeout = wait.clamp(TIMEOUT_MIN, TIMEOUT_MAX);
            if self.timeout != timeout {
                option::set_socket_timeout(&self.socket, option::Timeout::Recv, Some(timeout))?;
                self.timeout = timeout;
            }
        }
        Ok(())
    }

    /// Lets the kernel hand over runs in one piece while long datagrams come, which runs are made
    /// of. For short ones it would be a thirtieth of a round trip for nothing.
    fn gather(&mut self, len: usize) {
        let is_long = len >= LONG;
        self.short = if is_long { 0 } else { self.short + 1 };
        let gathers = is_long || (self.gathers && self.short < SHORT_MAX);
        if gathers != self.gathers {
            self.gathers = gathers;
            // Without it they come one by one.
            let _ = setsockopt(&self.socket, sockopt::UdpGroSegment, &gathers);
        }
    }

    fn receive_with(
        &mut self,
        buffer: &mut [u8],
        from: Option<&mut Peer>,
        flags: RecvFlags,
    ) -> io::Result<Option<usize>> {
        let received = match from {
            None => recv(&self.socket, buffer, flags).map(|(_, len)| len),
            Some(place) if !self.control.is_empty() => {
                self.receive_with_destination(buffer, place, flags)
            }
            Some(place) => recvfrom(&self.socket, buffer, flags).map(|(_, len, from)| {
                // It comes over IP, so that it has an address.
                if let Some(Ok(from)) = from.map(SocketAddr::try_from) {
                    *place = from.into();
                }
                len
            }),
        };
        match received {
            Ok(len) => {
                if len >= LONG || self.gathers {
                    self.gather(len);
                }
                Ok(Some(len))
            }
            Err(Errno::AGAIN | Errno::INTR) => Ok(None),
            Err(error) => self.receive_error(error, flags).map(|()| None),
        }
    }

    fn receive_with_destination(
        &mut self,
        buffer: &mut [u8],
        from: &mut Peer,
        flags: RecvFlags,
    ) -> Result<usize, Errno> {
        let mut parts = [IoSliceMut::new(buffer)];
        let flags = MsgFlags::from_bits_truncate(flags.bits() as i32);
        let control = Some(&mut self.control[..]);
        let message =
            recvmsg::<SockaddrStorage>(self.socket.as_raw_fd(), &mut parts, control, flags)
                .map_err(|error| Errno::from_raw_os_error(error as i32))?;
        if let Some(address) = message.address.as_ref().and_then(peer::sender) {
            let messages = message.cmsgs().ok();
            let local = messages.and_then(|mut all| all.find_map(|one| peer::destination(&one)));
            *from = Peer { address, local };
        }
        Ok(message.bytes)
    }

    /// Takes note of an error that is no arrival. While many come in a short time it sleeps, if the
    /// caller may wait, so that they take no processor: what comes meanwhile stays in the socket,
    /// and of errors only the last.
    #[cold]
    fn receive_error(&mut self, error: Errno, flags: RecvFlags) -> io::Result<()> {
        // Nothing that anyone sends makes the arguments wrong.
        if error == Errno::INVAL {
            return Err(error.into());
        }
        lost(error)?;
        let is_many = self.errors.add(Instant::now());
        if is_many && !flags.contains(RecvFlags::DONTWAIT) {
            std::thread::sleep(ERROR_PAUSE);
        }
        Ok(())
    }
}

/// Least and longest time that the kernel is told to wait for. It counts in ticks of up to 10 ms.
const TIMEOUT_MIN: Duration = Duration::from_millis(1);
const TIMEOUT_MAX: Duration = Duration::from_secs(1);

/// The errors in so long a time that are many.
const ERRORS_MAX: u32 = 100;
const ERROR_PERIOD: Duration = Duration::from_millis(100);

/// The pause after each further one: at most a thousand of them in a second.
const ERROR_PAUSE: Duration = Duration::from_millis(1);

/// The errors of a socket in the present period.
#[derive(Debug, Default)]
struct Errors {
    end: Instant,
    count: u32,
}

impl Errors {
    /// Counts one; returns true if it is one of many.
    fn add(&mut self, now: Instant) -> bool {
        if now >= self.end {
            (self.end, self.count) = (now + ERROR_PERIOD, 0);
        }
        self.count = self.count.saturating_add(1);
        self.count > ERRORS_MAX
    }
}

/// Takes an error for the loss of a datagram, unless it says that the socket itself cannot be used.
///
/// All others are of one peer or the way to it, or pass: what routes and the filter allow, messages
/// of ICMP about datagrams that were sent (Linux knows a dozen errors for them, and an attacker who
/// guesses an address and a port can make any of them), and memory.
fn lost(error: Errno) -> io::Result<()> {
    match error {
        Errno::BADF
        | Errno::NOTSOCK
        | Errno::FAULT
        | Errno::NOTCONN
        | Errno::DESTADDRREQ
        | Errno::PIPE => Err(error.into()),
        _ => Ok(()),
    }
}

/// A UDP socket that is connected with a node.
#[derive(Debug)]
pub struct UdpLink {
    socket: UdpSocket,
    node: SocketAddr,
    waiting: Waiting,
}

impl UdpLink {
    /// Opens a socket to the node at an address.
    ///
    /// # Errors
    /// Those of the operating system.
    pub fn connect(node: SocketAddr, waiting: Waiting) -> io::Result<UdpLink> {
        let any: SocketAddr = match node {
            SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
            SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
        };
        let socket = std::net::UdpSocket::bind(any)?;
        socket.connect(node)?;
        let socket = UdpSocket::new(socket.into())?;
        Ok(UdpLink {
            socket,
            node,
            waiting,
        })
    }

    /// Returns the address of this end.
    ///
    /// # Errors
    /// Those of the operating system.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// Returns the longest datagram that the path to the node carries, as far as that is certain:
    /// [`LOCAL_DATAGRAM`] to this machine, [`network_datagram`] to any other, since a router may
    /// carry less than the interface.
    pub fn datagram_bytes(&self) -> usize {
        let own = self.local_addr().map(|own| own.ip());
        datagram_bytes(own.ok(), self.node.ip())
    }
}

/// Returns the longest datagram from one address to another.
fn datagram_bytes(own: Option<IpAddr>, node: IpAddr) -> usize {
    match node.is_loopback() || own == Some(node) {
        true => LOCAL_DATAGRAM,
        false => network_datagram(node),
    }
}

impl Link for UdpLink {
    fn send(&mut self, datagrams: &Datagrams) -> io::Result<()> {
        self.socket.send(datagrams, 0..datagrams.len(), None)
    }

    fn gathers(&self) -> Option<u32> {
        Some(GATHERED_MIN)
    }

    fn send_run(&mut self, run: &Run<'_>) -> io::Result<()> {
        self.socket.send_segments(run)
    }

    fn receive(&mut self, buffer: &mut [u8], wait: Duration) -> io::Result<usize> {
        let waiting = self.waiting;
        let len = self.socket.receive_within(buffer, None, wait, waiting)?;
        Ok(len.unwrap_or(0))
    }

    fn now(&mut self) -> Instant {
        self.socket.now()
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.socket.as_fd())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{Config, Store};
    use crate::operation::{Operation, SpaceId};
    use crate::protocol::{Client, ClientConfig, Node, NodeConfig};

    /// A socket without a peer, at an address of this machine.
    fn socket() -> UdpSocket {
        let socket = std::net::UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        UdpSocket::new(socket.into()).unwrap()
    }

    fn datagrams(lengths: &[usize]) -> Datagrams {
        let mut datagrams = Datagrams::default();
        for len in lengths {
            datagrams.push(&vec![7; *len]);
        }
        datagrams
    }

    #[test]
    fn what_cannot_be_sent_to_one_peer_is_lost_and_others_get_theirs() {
        let (mut sender, mut receiver) = (socket(), socket());
        let there = receiver.local_addr().unwrap();
        // Port 0, an address of another family, and one that the socket may not send to: the kernel
        // refuses each, and nothing leaves this machine.
        let others = ["127.0.0.1:0", "[::1]:9", "255.255.255.255:9"];
        let (one, run) = (datagrams(&[600]), datagrams(&[600, 600, 200]));
        for other in others {
            let other: SocketAddr = other.parse().unwrap();
            sender.send(&one, 0..1, Some(&other.into())).unwrap();
            sender.send(&run, 0..3, Some(&other.into())).unwrap();
            assert!(sender.cuts, "{other}: runs to others are still sent whole");
            sender.send(&run, 0..3, Some(&there.into())).unwrap();
            let (mut bytes, mut buffer) = (0, vec![0; 1 << 16]);
            while bytes < 1400 {
                let wait = Duration::from_secs(5);
                let len = receiver.receive_within(&mut buffer, None, wait, Waiting::Asleep);
                bytes += len.unwrap().expect("a datagram");
            }
            assert_eq!(bytes, 1400);
        }
    }

    #[test]
    fn segments_of_a_write_arrive_as_they_are_whether_or_not_the_kernel_cuts_runs() {
        let (mut node, config) = (socket(), ClientConfig::new(1));
        let there = node.local_addr().unwrap();
        let mut link = UdpLink::connect(there, Waiting::Asleep).unwrap();
        let mut client = Client::new(config);
        let data: Vec<u8> = (0..30_000u32).map(|n| (n % 251) as u8).collect();
        let write = Operation::Write {
            address: 0,
            data: &data,
            guard: None,
        };
        client.submit(Instant::ZERO, SpaceId(1), &write).unwrap();
        let mut memory = Node::new(NodeConfig::new(5), Store::new(&Config::new(1 << 20)));
        let (mut hello, mut reply) = (Datagrams::new(), Datagrams::new());
        client.transmit(Instant::ZERO, &mut hello);
        let mut hello = hello.part(0..1).to_vec();
        memory.receive(Instant::ZERO, &mut hello, &mut reply);
        client.receive(Instant::ZERO, &mut reply.part(0..1).to_vec());
        let run = client.transmit_run(Instant::ZERO, 1).unwrap();
        let expected: Vec<u8> = run.datagrams().flatten().flatten().copied().collect();
        assert!(run.datagrams().count() > 2);
        for cuts in [true, false] {
            link.socket.cuts = cuts;
            link.send_run(&run).unwrap();
            let (mut found, mut buffer) = (Vec::new(), vec![0; 1 << 16]);
            while found.len() < expected.len() {
                let wait = Duration::from_secs(5);
                let len = node.receive_within(&mut buffer, None, wait, Waiting::Asleep);
                found.extend_from_slice(&buffer[..len.unwrap().expect("a datagram")]);
            }
            assert!(found == expected, "cut by the kernel: {cuts}");
        }
        let mut other = Other(Datagrams::new());
        other.send_run(&run).unwrap();
        assert_eq!(other.0.len(), run.datagrams().count());
        assert!(other.0.part(0..other.0.len()) == expected);
    }

    /// A link that sends datagrams only, and keeps them.
    struct Other(Datagrams);

    impl Link for Other {
        fn send(&mut self, datagrams: &Datagrams) -> io::Result<()> {
            self.0 = datagrams.clone();
            Ok(())
        }

        fn receive(&mut self, _: &mut [u8], _: Duration) -> io::Result<usize> {
            Ok(0)
        }

        fn descriptor(&self) -> Option<BorrowedFd<'_>> {
            None
        }
    }

    #[test]
    fn errors_of_a_flood_are_slowed_down_and_few_are_not() {
        let mut errors = Errors::default();
        let mut now = Instant::from_nanos(5);
        for _ in 0..1000 {
            assert!(!errors.add(now));
            now += ERROR_PERIOD / ERRORS_MAX;
        }
        now += ERROR_PERIOD;
        let many = (0..2 * ERRORS_MAX).filter(|_| errors.add(now)).count();
        assert_eq!(many, ERRORS_MAX as usize);
        assert!(!errors.add(now + ERROR_PERIOD));
    }

    #[test]
    fn only_an_error_of_the_socket_itself_ends_its_use() {
        for error in [Errno::BADF, Errno::NOTSOCK, Errno::FAULT, Errno::NOTCONN] {
            assert!(lost(error).is_err(), "{error}");
        }
        // Those that Linux makes of messages of ICMP and ICMPv6, and of what a route cannot carry.
        for error in [
            Errno::ACCESS,
            Errno::AFNOSUPPORT,
            Errno::CONNREFUSED,
            Errno::HOSTDOWN,
            Errno::HOSTUNREACH,
            Errno::MSGSIZE,
            Errno::NETDOWN,
            Errno::NETUNREACH,
            Errno::NOBUFS,
            Errno::NODEV,
            Errno::NOMEM,
            Errno::NONET,
            Errno::NOPROTOOPT,
            Errno::OPNOTSUPP,
            Errno::PERM,
            Errno::PROTO,
            Errno::NETRESET,
            Errno::INVAL,
        ] {
            assert!(lost(error).is_ok(), "{error}");
        }
    }

    #[test]
    fn datagrams_are_long_on_this_machine_only() {
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        for (own, node, expected) in [
            (Some("127.0.0.1"), "127.0.0.1", 8264),
            (None, "127.8.0.1", 8264),
            (Some("::1"), "::1", 8264),
            (Some("10.0.0.1"), "10.0.0.1", 8264),
            (Some("10.0.0.1"), "10.0.0.2", 1472),
            (None, "10.0.0.2", 1472),
            (Some("2001:db8::1"), "2001:db8::2", 1452),
        ] {
            assert_eq!(datagram_bytes(own.map(ip), ip(node)), expected, "{node}");
        }
    }
}
