//! Ports over AF_XDP: the kernel and this process hand chunks of one memory to each other.

mod handover;
mod mode;
mod parts;
mod program;
mod ring;
mod sender;
mod socket;

use std::fmt;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, BorrowedFd};
use std::rc::Rc;
use std::sync::Arc;

use crate::frame::SLOT;
use crate::interface::promiscuous;
use crate::{Burst, Counters, Error, Frame, Handover, Interface, Pool, Port, Refused};
pub use handover::XdpProgram;
pub use mode::XdpMode;
use parts::{Joined, Partial};
use program::Attachment;
use ring::Ring;
pub use sender::XdpSender;
use socket::Socket;
pub(crate) use socket::TAKEN;

/// A queue of an interface, received from and sent to through AF_XDP.
///
/// Frames are received into the pool given when it was opened, and those of that pool are sent
/// without a copy in this process, so two ports over one pool forward in place; frames of other
/// pools are copied. A quarter of the pool waits in each port for what arrives.
///
/// All frames of the queue go to the port and none to the kernel. The interface is promiscuous
/// while the port is open. What is in the transmit ring when the interface goes down leaves when it
/// is up again; what is sent after that is dropped. What a sender on the same machine leaves to a
/// network card is missing, such as checksums over veth: see [`Interface::offloads`].
pub struct XdpPort {
    kernel: ManuallyDrop<Kernel>,
    mode: XdpMode,
    pool: Pool,
    /// Bytes from one slot to the next, a power of two.
    stride: usize,
    /// Bytes of a chunk, as AF_XDP calls what it counts in: a slot, or a page of it.
    chunk: usize,
    /// The holder of each slot, as far as this port is concerned. What the kernel gives back is
    /// checked against it.
    holders: Vec<Holder>,
    /// Slots in the fill and the transmit ring or further on.
    filled: u32,
    sending: u32,
    /// A frame of several chunks of which the last has not been received.
    partial: Partial,
    direct: Direct,
    /// Down when last used.
    down: bool,
    /// Receptions of nothing in a row.
    idle: u32,
    counters: Counters,
}

/// The rings and descriptors shared with the kernel; closed before the slots go back.
struct Kernel {
    rx: Ring<libc::xdp_desc>,
    tx: Ring<libc::xdp_desc>,
    fill: Ring<u64>,
    completion: Ring<u64>,
    socket: Rc<Socket>,
    _promiscuous: std::os::fd::OwnedFd,
    attachment: Arc<Attachment>,
    queue: u32,
}

/// Sending without the transmit ring.
enum Direct {
    Never,
    /// Possible or not: to be found out when the first frames are sent.
    Later(Interface),
    Yes(XdpSender, Interface),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Holder {
    /// The pool, a frame, or another port.
    Elsewhere,
    Filled,
    /// With so many chunks of it.
    Sending(u8),
}

/// Receptions of nothing in a row after which the interface is asked if it is still there.
const IDLE: u32 = 64;

/// The shortest frame that the kernel takes: an Ethernet header. It does not give back a shorter
/// one.
const HEADER: usize = tare_packet::ethernet::HEADER;

/// The longest chunk: the kernel takes none that is longer than a page.
const CHUNK_MAX: usize = 4096;

/// The longest slot. The kernel makes a packet of 17 pages at most.
const STRIDE_MAX: usize = 8 * CHUNK_MAX;

impl XdpPort {
    /// Opens a queue of an interface in the first of `modes` that works, and says why those before
    /// it do not.
    ///
    /// All ports over one pool either copy or do not: the first one opened decides. `pool` must
    /// have [`crate::Layout::PowerOfTwo`], at least 256 slots and a capacity of 2048, 4096, 8192,
    /// 16,384 or 32,768.
    ///
    /// # Errors
    /// If no mode works, the pool does not fit or there is no such queue.
    pub fn open(
        interface: &Interface,
        queue: u32,
        pool: &Pool,
        modes: &[XdpMode],
    ) -> Result<(XdpPort, Vec<Refused>), Error> {
        XdpPort::open_with_lanes(interface, queue, pool, modes, 0)
    }

    /// As [`XdpPort::open`]. With `lanes` above 0, in native mode and slots of up to 4096 bytes
    /// the port of queue 0 sends as an [`XdpSender`] does, if that is possible when it first sends,
    /// and threads can open further senders, one less than `lanes`, on the same interface. All
    /// queues of an interface are opened with the same number.
    ///
    /// # Errors
    /// As [`XdpPort::open`].
    pub fn open_with_lanes(
        interface: &Interface,
        queue: u32,
        pool: &Pool,
        modes: &[XdpMode],
        lanes: u32,
    ) -> Result<(XdpPort, Vec<Refused>), Error> {
        XdpPort::check(interface, queue, pool)?;
        let mut refused = Vec::new();
        let mut patience = socket::PATIENCE;
        for &mode in modes {
            let opened = XdpPort::open_in(interface, queue, pool, mode, lanes, patience);
            match opened.and_then(|port| port.begin().map(|()| port)) {
                Ok(port) => return Ok((port, refused)),
                Err(error) => {
                    if error.raw_os_error() == Some(libc::EBUSY) {
                        // Another socket does have the queue, in every mode.
                        patience = 0;
                    }
                    refused.push(Refused {
                        kind: mode.name(),
                        why: socket::explain(&error, mode, in_parts(pool)),
                    });
                }
            }
        }
        Err(Error::Refused {
            interface: interface.name().to_owned(),
            refused,
        })
    }

    fn check(interface: &Interface, queue: u32, pool: &Pool) -> Result<(), Error> {
        let (_, stride, capacity) = pool.memory();
        let is_fit = pool.slots() >= 256
            && capacity == stride
            && stride.is_power_of_two()
            && (2048..=STRIDE_MAX).contains(&stride);
        if !is_fit {
            return Err(Error::UnfitPool {
                slots: pool.slots(),
                capacity,
            });
        }
        let queues = interface.queues();
        if queue >= queues {
            return Err(Error::NoSuchQueue {
                interface: interface.name().to_owned(),
                queue,
                queues,
            });
        }
        Ok(())
    }

    /// The mode that was chosen.
    pub fn mode(&self) -> XdpMode {
        self.mode
    }

    fn open_in(
        interface: &Interface,
        queue: u32,
        pool: &Pool,
        mode: XdpMode,
        lanes: u32,
        patience: u32,
    ) -> io::Result<XdpPort> {
        let stride = pool.memory().1;
        let in_parts = in_parts(pool);
        let can_send = mode == XdpMode::Native && !in_parts;
        let lanes = if can_send { lanes } else { 0 };
        let attachment = Attachment::new(interface, mode, in_parts, lanes)?;
        let quarter = (pool.slots() / 4 + 1).next_power_of_two() / 2;
        let size = quarter.min(4096) as u32;
        let (socket, ([fill, completion], [rx, tx])) =
            socket::bind(interface, queue, pool, size, mode, patience)?;
        let direct = if lanes > 0 && queue == 0 {
            Direct::Later(interface.clone())
        } else {
            Direct::Never
        };
        let mut port = XdpPort {
            kernel: ManuallyDrop::new(Kernel {
                rx,
                tx,
                fill,
                completion,
                socket,
                _promiscuous: promiscuous(interface)?,
                attachment,
                queue,
            }),
            mode,
            stride,
            chunk: stride.min(CHUNK_MAX),
            holders: vec![Holder::Elsewhere; pool.slots()],
            pool: pool.clone(),
            filled: 0,
            sending: 0,
            partial: Partial::default(),
            direct,
            down: false,
            idle: 0,
            counters: Counters::default(),
        };
        port.refill();
        Ok(port)
    }

    /// Lets frames arrive: not before the fill ring is filled, as they would be lost.
    fn begin(&self) -> io::Result<()> {
        let socket = self.kernel.socket.as_fd();
        self.kernel.attachment.direct(self.kernel.queue, socket)
    }

    /// Fills the fill ring from the pool.
    ///
    /// `filled` counts what was put there and has not come back as a received frame; it is not read
    /// from the ring. The ring's own consumer index says what the kernel has taken, and what it has
    /// taken it may keep (a driver holds buffers of its own receive ring): by that index, the port
    /// would take slot after slot from the pool, until none is left for the ports that share it.
    #[inline]
    fn refill(&mut self) {
        let wanted = self.kernel.fill.size() - self.filled;
        let mut put = 0;
        while put < wanted {
            let Some(slot) = self.pool.take_slot() else {
                break;
            };
            self.holders[slot as usize] = Holder::Filled;
            self.kernel.fill.put((slot as usize * self.stride) as u64);
            put += 1;
        }
        if put > 0 {
            self.kernel.fill.publish();
            self.filled += put;
        }
    }

    /// Takes a slot back from the kernel, if it had it.
    ///
    /// The kernel is trusted with this process's memory anyway; this is about its drivers. A buffer
    /// that is given back twice would be two frames over the same bytes, which safe code must never
    /// see, so one byte for each slot says who has it.
    #[inline]
    fn received(&mut self, address: u64) -> io::Result<u32> {
        let slot = address as usize / self.stride;
        match self.holders.get_mut(slot) {
            Some(holder @ Holder::Filled) => {
                *holder = Holder::Elsewhere;
                Ok(slot as u32)
            }
            _ => Err(not_its_own()),
        }
    }

    /// As [`XdpPort::received`], of a chunk that was sent; `None` if others of its slot are still
    /// with the kernel.
    #[inline]
    fn sent(&mut self, address: u64) -> io::Result<Option<u32>> {
        let slot = address as usize / self.stride;
        match self.holders.get_mut(slot) {
            Some(holder @ Holder::Sending(1)) => {
                *holder = Holder::Elsewhere;
                Ok(Some(slot as u32))
            }
            Some(Holder::Sending(chunks)) => {
                *chunks -= 1;
                Ok(None)
            }
            _ => Err(not_its_own()),
        }
    }

    /// Gives the slots of frames that have left back to the pool.
    #[inline]
    fn reclaim(&mut self) -> io::Result<()> {
        if self.sending == 0 {
            return Ok(());
        }
        let ready = self.kernel.completion.ready()?;
        for _ in 0..ready {
            let address = self.kernel.completion.take();
            let slot = self.sent(address)?;
            self.sending -= 1;
            if let Some(slot) = slot {
                self.pool.give_back(slot);
            }
        }
        if ready > 0 {
            self.kernel.completion.release();
        }
        Ok(())
    }

    /// Puts a frame's slot into the transmit ring, chunk by chunk.
    #[inline]
    fn put(&mut self, slot: u32, mut start: usize, end: usize) {
        let mut chunks = 1;
        let mut descriptor = |start: usize, end: usize, options| {
            self.kernel.tx.put(libc::xdp_desc {
                addr: (slot as usize * self.stride + start) as u64,
                len: (end - start) as u32,
                options,
            });
        };
        while end > parts::boundary(start, self.chunk) {
            let boundary = parts::boundary(start, self.chunk);
            descriptor(start, boundary, XDP_PKT_CONTD);
            start = boundary;
            chunks += 1;
        }
        descriptor(start, end, 0);
        self.holders[slot as usize] = Holder::Sending(chunks);
        self.sending += u32::from(chunks);
    }

    /// The most descriptors that a frame takes, wherever in a slot it lies.
    #[inline]
    fn descriptors(&self, frame: &Frame) -> usize {
        if self.chunk == self.stride {
            1
        } else {
            frame.len() / self.chunk + 2
        }
    }

    /// The sender without the ring, if there is one.
    #[inline]
    fn sender(&mut self) -> Option<&mut XdpSender> {
        if let Direct::Later(interface) = &self.direct {
            let interface = interface.clone();
            self.direct = match XdpSender::of(&interface, &self.kernel.attachment, 0) {
                Ok(sender) => Direct::Yes(sender, interface),
                Err(_) => Direct::Never,
            };
        }
        match &mut self.direct {
            Direct::Yes(sender, _) => Some(sender),
            _ => None,
        }
    }

    /// Lets the kernel send what is in the transmit ring.
    #[inline]
    fn kick(&mut self) -> io::Result<()> {
        if !self.kernel.tx.needs_wakeup() {
            return Ok(());
        }
        let mut before = self.kernel.tx.untaken();
        // Each turn sends, drops or stops.
        loop {
            match self.kernel.socket.wake_transmit() {
                Ok(()) => {
                    self.down = false;
                    return Ok(());
                }
                Err(error) => match error.raw_os_error() {
                    // It sends a bounded number per call.
                    Some(libc::EAGAIN | libc::ENOBUFS) => self.down = false,
                    Some(libc::EBUSY) => {
                        // In copy mode: the driver has dropped one, and the rest is still there.
                        self.down = false;
                        if self.mode != XdpMode::ZeroCopy {
                            self.counters.tx_dropped += 1;
                        }
                    }
                    Some(libc::ENETDOWN) => {
                        self.down = true;
                        return Ok(());
                    }
                    Some(libc::EINTR) => continue,
                    _ => return Err(socket::gone(error)),
                },
            }
            let left = self.kernel.tx.untaken();
            if left == 0 || left == before {
                return Ok(());
            }
            before = left;
        }
    }

    /// Wakes a driver that sleeps, and finds out if the interface is still there. Called when there
    /// is nothing to receive.
    #[cold]
    fn look(&mut self) -> io::Result<()> {
        self.idle = 0;
        self.kernel.socket.wake_receive().map_err(socket::gone)
    }
}

impl Port for XdpPort {
    #[inline]
    fn receive(&mut self, burst: &mut Burst, max: usize) -> io::Result<usize> {
        let mut ready = self.kernel.rx.ready()? as usize;
        if ready == 0 || max == 0 {
            self.idle += 1;
            // What was left over: frames that the kernel had no room for, slots that the pool did
            // not have.
            self.reclaim()?;
            if self.sending > 0 && self.kernel.tx.untaken() > 0 {
                self.kick()?;
            }
            self.refill();
            if self.idle >= IDLE || self.kernel.fill.needs_wakeup() {
                self.look()?;
            }
            return Ok(0);
        }
        self.idle = 0;
        let mut n = 0;
        while ready > 0 && n < max {
            ready -= 1;
            let descriptor = self.kernel.rx.take();
            let slot = self.received(descriptor.addr)?;
            self.filled -= 1;
            let start = descriptor.addr as usize % self.stride;
            let len = descriptor.len as usize;
            if start < SLOT || len > self.stride - start {
                self.pool.give_back(slot);
                return Err(io::Error::other("AF_XDP gave a frame outside its buffer"));
            }
            let frame = self.pool.adopt(slot, start, start + len);
            let more = descriptor.options & XDP_PKT_CONTD != 0;
            let frame = if more || self.partial.is_open() {
                match self.partial.join(frame, more) {
                    Joined::Whole(frame) => frame,
                    Joined::Part => continue,
                    Joined::TooLong => {
                        self.counters.rx_dropped += 1;
                        continue;
                    }
                }
            } else {
                frame
            };
            self.counters.rx_bytes += frame.len() as u64;
            burst.push(frame);
            n += 1;
        }
        self.kernel.rx.release();
        self.counters.rx_packets += n as u64;
        self.refill();
        if self.kernel.fill.needs_wakeup() {
            self.look()?;
        }
        Ok(n)
    }

    #[inline]
    fn send(&mut self, burst: &mut Burst) -> io::Result<usize> {
        if !matches!(self.direct, Direct::Never) {
            if let Some(sender) = self.sender() {
                return sender.send(burst);
            }
        }
        self.reclaim()?;
        if self.down {
            self.kick()?;
        }
        let mut room = (self.kernel.tx.size() - self.sending) as usize;
        let mut copies = self.pool.available();
        let mut n = 0;
        // How many can be taken is decided before the first one is: a frame that has left `burst`
        // cannot go back to its front without moving all others. A frame of another pool needs a
        // slot of this one.
        while n < burst.len() {
            if !self.down {
                let descriptors = self.descriptors(&burst[n]);
                if descriptors > room {
                    break;
                }
                room -= descriptors;
                if !self.pool.owns(&burst[n]) {
                    if copies == 0 {
                        break;
                    }
                    copies -= 1;
                }
            }
            n += 1;
        }
        for frame in burst.drain(..n) {
            self.counters.tx_bytes += frame.len() as u64;
            let sendable = !self.down && frame.len() >= HEADER;
            let frame = match frame {
                _ if !sendable => None,
                frame if self.pool.owns(&frame) => Some(frame),
                frame => self.pool.copy(&frame),
            };
            match frame {
                Some(frame) => {
                    let (slot, start, end) = frame.into_slot();
                    self.put(slot, start, end);
                }
                None => self.counters.tx_dropped += 1,
            }
        }
        self.counters.tx_packets += n as u64;
        if n > 0 {
            self.kernel.tx.publish();
        }
        if self.kernel.tx.untaken() > 0 {
            self.kick()?;
        }
        Ok(n)
    }

    fn counters(&self) -> Counters {
        let mut counters = self.counters;
        if let Ok(statistics) = self.kernel.socket.statistics() {
            counters.rx_dropped += statistics.rx_dropped + statistics.rx_ring_full;
            counters.tx_dropped += statistics.tx_invalid_descs;
        }
        if let (Direct::Yes(sender, interface), Some((lanes, _))) =
            (&self.direct, &self.kernel.attachment.lanes)
        {
            let by_ring = counters.tx_packets - counters.tx_dropped.min(counters.tx_packets);
            let sent = sender.counters();
            counters.tx_packets += sent.tx_packets;
            counters.tx_bytes += sent.tx_bytes;
            counters.tx_dropped += lanes.dropped(interface, by_ring);
        }
        counters
    }

    fn wait_on(&self) -> Option<BorrowedFd<'_>> {
        Some(self.as_fd())
    }

    fn handover(&mut self) -> Option<&mut dyn Handover> {
        Some(self)
    }
}

impl AsFd for XdpPort {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.kernel.socket.as_fd()
    }
}

impl fmt::Debug for XdpPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "XdpPort({}, {:?})", self.mode, self.counters())
    }
}

impl Drop for XdpPort {
    fn drop(&mut self) {
        // A process that was just forked may keep the socket open a moment longer: it must not
        // receive into what others own by then.
        self.kernel.attachment.stop(self.kernel.queue);
        self.direct = Direct::Never;
        // SAFETY: dropped here only, and not used below. The rings hold the socket as well, so it
        // closes once all is gone.
        unsafe { ManuallyDrop::drop(&mut self.kernel) };
        if self.mode == XdpMode::ZeroCopy {
            // The card may write to what it was given for a while after the close. Those slots stay
            // out of the pool.
            return;
        }
        for (slot, holder) in self.holders.iter().enumerate() {
            if *holder != Holder::Elsewhere {
                self.pool.give_back(slot as u32);
            }
        }
    }
}

/// Returns true if frames in the slots of a pool may be longer than a chunk.
pub(crate) fn in_parts(pool: &Pool) -> bool {
    pool.memory().1 > CHUNK_MAX
}

#[cold]
fn not_its_own() -> io::Error {
    io::Error::other("AF_XDP gave back a buffer that it did not have")
}

/// The option of a descriptor whose frame goes on in the next.
const XDP_PKT_CONTD: u32 = 1;
