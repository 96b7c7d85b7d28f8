//! Sending without packet buffers of the kernel's: frames of memory that is shared with a program
//! go straight to the transmit function that a driver has for XDP.
//!
//! Over a veth pair most of the time of a packet is spent on the kernel's packet buffer
//! (`sk_buff`). The kernel runs an XDP program on made-up frames, in batches, and sends what it
//! redirects (`BPF_F_TEST_XDP_LIVE_FRAMES`, Linux 5.18). Here the program copies the next frame of
//! a lane over the made-up one. It is the same program that receives: one that is attached to no
//! interface would be entered into the kernel's XDP dispatcher for each call, which takes 37 ms.

use std::hash::{BuildHasher, RandomState};
use std::io;
use std::mem;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::program::{bpf, make_map, Attachment, Instruction, Map};
use super::socket::gone;
use crate::interface::features;
use crate::{Burst, Counters, Interface, Port};

/// Sends frames of an interface's queue 0 on a thread of its own, while an [`crate::XdpPort`] that
/// was opened with lanes receives on another. It receives nothing.
///
/// Frames that do not leave, because the interface is down or the other end takes no more, are
/// counted by that port, for all senders together: they are missing from the interface's own count.
/// Frames of more than 2040 bytes are dropped.
pub struct XdpSender {
    attachment: Arc<Attachment>,
    interface: Interface,
    lane: u32,
    counters: Counters,
}

/// The part of the attachment that is there for sending.
#[derive(Debug)]
pub(super) struct Lanes {
    lanes: u32,
    /// Lanes in use. The first is the port's own, also while it does not send so.
    used: Used,
    slots: Mapping,
    /// For each lane the slot that the program takes next.
    next: Mapping,
    /// Tells a made-up frame from a received one: a number that only this process knows.
    secret: u32,
    /// Frames taken by all lanes.
    taken: AtomicU64,
    /// Frames that the interface had sent before.
    sent_before: u64,
}

/// The lanes that are in use.
#[derive(Debug)]
struct Used(Mutex<Vec<bool>>);

impl Used {
    /// Returns a number of lanes of which the first is in use.
    fn new(lanes: u32) -> Used {
        Used(Mutex::new((0..lanes).map(|lane| lane == 0).collect()))
    }

    /// Takes the lowest lane that is free; `None` if none is.
    fn take(&self) -> Option<u32> {
        let mut lanes = self.lanes();
        let lane = lanes.iter().position(|is_used| !is_used)?;
        lanes[lane] = true;
        Some(lane as u32)
    }

    /// Gives a lane back, unless it is the first.
    fn give_back(&self, lane: u32) {
        if lane > 0 {
            self.lanes()[lane as usize] = false;
        }
    }

    fn lanes(&self) -> MutexGuard<'_, Vec<bool>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Slots of a lane, a power of two; as many as one call to the kernel sends.
const SLOTS: u32 = 1 << SLOTS_BITS;
const SLOTS_BITS: i32 = 8;
/// Bytes of a slot: the length of the frame in the first four, the frame from the eighth on.
const STRIDE: u32 = 2048;
const DATA: usize = 8;
/// The longest frame.
const LONGEST: usize = STRIDE as usize - DATA;
/// The shortest frame that a driver takes.
const SHORTEST: i32 = tare_packet::ethernet::HEADER as i32;
/// Bytes of a made-up frame, and of what stands in front of it: the lane and the secret.
const MADE_UP: usize = 60;
const META: usize = 8;
/// Frames that the kernel makes up before it sends them. A veth pair holds 256.
const BATCH: u32 = 64;
/// The most lanes: 512 KiB each.
const LANES_MAX: u32 = 256;

impl Lanes {
    pub(super) fn new(interface: &Interface, lanes: u32) -> io::Result<Lanes> {
        let lanes = lanes.min(LANES_MAX);
        Ok(Lanes {
            lanes,
            used: Used::new(lanes),
            slots: Mapping::new(lanes * SLOTS, STRIDE)?,
            next: Mapping::new(lanes, 8)?,
            secret: RandomState::new().hash_one(()) as u32,
            taken: AtomicU64::new(0),
            sent_before: interface.sent()?,
        })
    }

    /// Frames of all lanes that have not left `interface`, which has sent `others` besides.
    pub(super) fn dropped(&self, interface: &Interface, others: u64) -> u64 {
        let sent = interface.sent().unwrap_or_default();
        let own = sent.saturating_sub(self.sent_before + others);
        self.taken.load(Ordering::Relaxed).saturating_sub(own)
    }

    /// The part of the program that is in front of the receiving one.
    ///
    /// A made-up frame has metadata, lane and secret. The program takes them off, looks up the next
    /// slot of the lane, gives the frame its length and bytes and sends it. All else is received.
    pub(super) fn instructions(&self) -> [Instruction; 57] {
        let i = Instruction;
        let (next, slots) = (self.next.map.as_raw_fd(), self.slots.map.as_raw_fd());
        [
            i(0xbf, 0x16, 0, 0),                     // r6 = r1, the context
            i(0x61, 0x12, 0, 0),                     // r2 = data
            i(0x61, 0x13, 8, 0),                     // r3 = metadata
            i(0xbf, 0x34, 0, 0),                     // r4 = r3
            i(0x07, 0x04, 0, META as i32),           // r4 += META
            i(0x2d, 0x24, 50, 0),                    // if r4 > r2 goto receive
            i(0x61, 0x37, 0, 0),                     // r7 = lane
            i(0x61, 0x34, 4, 0),                     // r4 = secret
            i(0xb4, 0x05, 0, self.secret as i32),    // w5 = the right one
            i(0x5d, 0x54, 46, 0),                    // if r4 != r5 goto receive
            i(0x35, 0x07, 43, self.lanes as i32),    // if r7 >= lanes goto drop
            i(0x63, 0x7a, -4, 0),                    // *(r10 - 4) = r7
            i(0xbf, 0x61, 0, 0),                     // r1 = r6
            i(0xb7, 0x02, 0, META as i32),           // r2 = META
            i(0x85, 0, 0, BPF_FUNC_XDP_ADJUST_META), // call
            i(0x55, 0x00, 38, 0),                    // if r0 != 0 goto drop
            i(0xbf, 0xa2, 0, 0),                     // r2 = r10
            i(0x07, 0x02, 0, -4),                    // r2 -= 4
            i(0x18, 0x11, 0, next),                  // r1 = next
            i(0, 0, 0, 0),                           //
            i(0x85, 0, 0, BPF_FUNC_MAP_LOOKUP_ELEM), // call
            i(0x15, 0x00, 32, 0),                    // if r0 == 0 goto drop
            i(0x61, 0x08, 0, 0),                     // r8 = *r0
            i(0xbf, 0x81, 0, 0),                     // r1 = r8
            i(0x07, 0x01, 0, 1),                     // r1 += 1
            i(0x63, 0x10, 0, 0),                     // *r0 = r1
            i(0x57, 0x08, 0, SLOTS as i32 - 1),      // r8 &= SLOTS - 1
            i(0x67, 0x07, 0, SLOTS_BITS),            // r7 <<= SLOTS_BITS
            i(0x0f, 0x78, 0, 0),                     // r8 += r7
            i(0x63, 0x8a, -4, 0),                    // *(r10 - 4) = r8
            i(0xbf, 0xa2, 0, 0),                     // r2 = r10
            i(0x07, 0x02, 0, -4),                    // r2 -= 4
            i(0x18, 0x11, 0, slots),                 // r1 = slots
            i(0, 0, 0, 0),                           //
            i(0x85, 0, 0, BPF_FUNC_MAP_LOOKUP_ELEM), // call
            i(0x15, 0x00, 18, 0),                    // if r0 == 0 goto drop
            i(0xbf, 0x08, 0, 0),                     // r8 = r0, the slot
            i(0x61, 0x89, 0, 0),                     // r9 = its length
            i(0x25, 0x09, 15, LONGEST as i32),       // if r9 > LONGEST goto drop
            i(0xa5, 0x09, 14, SHORTEST),             // if r9 < SHORTEST goto drop
            i(0xbf, 0x92, 0, 0),                     // r2 = r9
            i(0x07, 0x02, 0, -(MADE_UP as i32)),     // r2 -= MADE_UP
            i(0xbf, 0x61, 0, 0),                     // r1 = r6
            i(0x85, 0, 0, BPF_FUNC_XDP_ADJUST_TAIL), // call
            i(0x55, 0x00, 9, 0),                     // if r0 != 0 goto drop
            i(0xbf, 0x61, 0, 0),                     // r1 = r6
            i(0xb7, 0x02, 0, 0),                     // r2 = 0
            i(0xbf, 0x83, 0, 0),                     // r3 = r8
            i(0x07, 0x03, 0, DATA as i32),           // r3 += DATA
            i(0xbf, 0x94, 0, 0),                     // r4 = r9
            i(0x85, 0, 0, BPF_FUNC_XDP_STORE_BYTES), // call
            i(0x55, 0x00, 2, 0),                     // if r0 != 0 goto drop
            i(0xb7, 0x00, 0, XDP_TX),                // r0 = XDP_TX
            i(0x95, 0, 0, 0),                        // exit
            i(0xb7, 0x00, 0, XDP_DROP),              // drop: r0 = XDP_DROP
            i(0x95, 0, 0, 0),                        // exit
            i(0xbf, 0x61, 0, 0),                     // receive: r1 = r6
        ]
    }
}

impl XdpSender {
    /// Opens a lane of an interface on which a port with lanes is open: the lowest that is free. It
    /// is free again when the sender is dropped.
    ///
    /// # Errors
    /// If there is no such port or no lane left, and where the driver or the other end of the veth
    /// pair cannot.
    pub fn open(interface: &Interface) -> io::Result<XdpSender> {
        let attachment = Attachment::find(interface)?;
        let attachment = attachment
            .ok_or_else(|| io::Error::other("no AF_XDP port with lanes is open on it"))?;
        let (lanes, _) = attachment.lanes.as_ref().ok_or_else(without_lanes)?;
        let lane = lanes.used.take();
        let lane = lane.ok_or_else(|| io::Error::other("all lanes are in use"))?;
        XdpSender::of(interface, &attachment, lane)
    }

    /// Finds out if frames can be sent so now.
    ///
    /// # Errors
    /// The reason why not.
    pub fn is_possible(interface: &Interface) -> io::Result<()> {
        // With other drivers a frame stays on its way until the network card has sent it, and with
        // it the memory that the kernel makes for each call.
        if interface.driver().as_deref() != Some("veth") {
            return Err(io::Error::other("it is no veth"));
        }
        if features(interface)? & NETDEV_XDP_ACT_NDO_XMIT == 0 {
            return Err(io::Error::other(
                "the other end of the veth pair has neither an XDP program nor GRO",
            ));
        }
        Ok(())
    }

    /// Opens a lane that was taken. An error gives it back.
    pub(super) fn of(
        interface: &Interface,
        attachment: &Arc<Attachment>,
        lane: u32,
    ) -> io::Result<XdpSender> {
        let sender = XdpSender {
            attachment: Arc::clone(attachment),
            interface: interface.clone(),
            lane,
            counters: Counters::default(),
        };
        XdpSender::is_possible(interface)?;
        // An empty slot, which the program drops: this only asks if the kernel can.
        sender.put(&sender.lanes()?.0, 0, &[]);
        if sender.run(1)? == 0 {
            return Err(io::Error::other("the kernel does not run the program"));
        }
        Ok(sender)
    }

    fn lanes(&self) -> io::Result<&(Lanes, OwnedFd)> {
        self.attachment.lanes.as_ref().ok_or_else(without_lanes)
    }

    /// Writes a frame into a slot of this lane.
    fn put(&self, lanes: &Lanes, n: u32, frame: &[u8]) {
        // The program drops what is of no length that it sends.
        let length = if frame.len() <= LONGEST {
            frame.len()
        } else {
            0
        };
        let slot = lanes
            .slots
            .at((self.lane * SLOTS + n) as usize * STRIDE as usize);
        // SAFETY: a slot of this lane's, which no other sender has and the kernel reads during
        // `run` only; `length` is at most what is left of it behind `DATA`.
        unsafe {
            slot.cast::<u32>().write(length as u32);
            slot.add(DATA)
                .copy_from_nonoverlapping(NonNull::from(frame).cast(), length);
        }
    }

    /// Has the kernel send the first `frames` slots. Returns how many it took.
    fn run(&self, frames: u32) -> io::Result<u32> {
        let (lanes, program) = self.lanes()?;
        let mut data = [0; META + MADE_UP];
        data[..4].copy_from_slice(&self.lane.to_ne_bytes());
        data[4..META].copy_from_slice(&lanes.secret.to_ne_bytes());
        let context = Context {
            data: META as u32,
            data_end: data.len() as u32,
            interface: self.interface.index(),
            ..Context::default()
        };
        let attr = TestRun {
            program: program.as_raw_fd() as u32,
            data_size_in: data.len() as u32,
            data_in: data.as_ptr() as u64,
            repeat: frames,
            ctx_size_in: mem::size_of::<Context>() as u32,
            ctx_in: (&raw const context) as u64,
            flags: BPF_F_TEST_XDP_LIVE_FRAMES,
            batch_size: BATCH,
            ..TestRun::default()
        };
        let next = lanes.next.at(self.lane as usize * 8).cast::<AtomicU32>();
        // SAFETY: a number of this lane's in a mapping that lasts as long as the attachment; this
        // sender and the program are the only ones that use it, and both atomically.
        let next = unsafe { next.as_ref() };
        next.store(0, Ordering::Relaxed);
        // SAFETY: both pointers are to as many bytes as told, which outlive the call and are only
        // read.
        let ran = unsafe { bpf(BPF_PROG_TEST_RUN, &attr) };
        let taken = next.load(Ordering::Relaxed).min(frames);
        match ran {
            Ok(_) => Ok(taken),
            // A signal came; or there is no memory for now.
            Err(error) if matches!(error.raw_os_error(), Some(libc::EINTR | libc::ENOMEM)) => {
                Ok(taken)
            }
            Err(error) => Err(gone(error)),
        }
    }
}

impl Port for XdpSender {
    fn receive(&mut self, _: &mut Burst, _: usize) -> io::Result<usize> {
        Ok(0)
    }

    fn send(&mut self, burst: &mut Burst) -> io::Result<usize> {
        let (lanes, _) = self.lanes()?;
        let mut n = 0;
        for frame in burst.iter().take(SLOTS as usize) {
            self.put(lanes, n, &frame[..]);
            n += 1;
        }
        if n == 0 {
            return Ok(0);
        }
        let taken = self.run(n)?;
        if let Ok((lanes, _)) = self.lanes() {
            lanes.taken.fetch_add(taken.into(), Ordering::Relaxed);
        }
        for frame in burst.drain(..taken as usize) {
            self.counters.tx_bytes += frame.len() as u64;
        }
        self.counters.tx_packets += u64::from(taken);
        Ok(taken as usize)
    }

    fn counters(&self) -> Counters {
        self.counters
    }

    fn wait_on(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

impl Drop for XdpSender {
    fn drop(&mut self) {
        if let Ok((lanes, _)) = self.lanes() {
            lanes.used.give_back(self.lane);
        }
    }
}

impl std::fmt::Debug for XdpSender {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "XdpSender(lane {})", self.lane)
    }
}

fn without_lanes() -> io::Error {
    io::Error::other("the AF_XDP port on it has no lanes")
}

/// A map and its memory.
#[derive(Debug)]
struct Mapping {
    map: OwnedFd,
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: it is only memory; what is done with it says who may.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn new(values: u32, bytes: u32) -> io::Result<Mapping> {
        let map = make_map(Map::Memory(values, bytes))?;
        let bytes = (values as usize * bytes as usize).next_multiple_of(4096);
        // SAFETY: a new mapping at a place of the kernel's choice.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                map.as_raw_fd(),
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Mapping { map, start, bytes })
    }

    fn at(&self, offset: usize) -> NonNull<u8> {
        assert!(offset < self.bytes);
        // SAFETY: within the mapping.
        unsafe { self.start.add(offset) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `new`, to which no pointer outlives this.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

/// `struct xdp_md` of <linux/bpf.h>.
#[repr(C)]
#[derive(Default)]
struct Context {
    data: u32,
    data_end: u32,
    metadata: u32,
    interface: u32,
    queue: u32,
    egress: u32,
}

/// The member `test` of `union bpf_attr`.
#[repr(C)]
#[derive(Default)]
struct TestRun {
    program: u32,
    returned: u32,
    data_size_in: u32,
    data_size_out: u32,
    data_in: u64,
    data_out: u64,
    repeat: u32,
    duration: u32,
    ctx_size_in: u32,
    ctx_size_out: u32,
    ctx_in: u64,
    ctx_out: u64,
    flags: u32,
    cpu: u32,
    batch_size: u32,
    pad: u32,
}

const BPF_PROG_TEST_RUN: i32 = 10;
const BPF_F_TEST_XDP_LIVE_FRAMES: u32 = 1 << 1;
const BPF_FUNC_MAP_LOOKUP_ELEM: i32 = 1;
const BPF_FUNC_XDP_ADJUST_META: i32 = 54;
const BPF_FUNC_XDP_ADJUST_TAIL: i32 = 65;
const BPF_FUNC_XDP_STORE_BYTES: i32 = 190;
const XDP_DROP: i32 = 1;
const XDP_TX: i32 = 3;
const NETDEV_XDP_ACT_NDO_XMIT: u64 = 1 << 2;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_free_lane_is_taken_and_never_the_ports_own() {
        let used = Used::new(4);
        assert_eq!(
            [(); 4].map(|()| used.take()),
            [Some(1), Some(2), Some(3), None]
        );
        for lane in [0, 3, 2] {
            used.give_back(lane);
        }
        assert_eq!([(); 3].map(|()| used.take()), [Some(2), Some(3), None]);
    }
}
