//! The messages of a packet socket: many a call, each a header, a frame, and what the kernel says
//! beside.

use std::io;
use std::mem;
use std::os::fd::{AsRawFd, OwnedFd};

use tare_packet::checksum;

use crate::syscall::check;
use crate::{Frame, Pool, BURST};

/// Room for [`BURST`] messages, which point to each other and to the frames that the next reception
/// fills.
pub(super) struct Messages {
    /// Frames grown over all their room, for what arrives next.
    spare: Vec<Frame>,
    headers: Box<[libc::mmsghdr]>,
    parts: Box<[[libc::iovec; 2]]>,
    offloads: Box<[Offload]>,
    controls: Box<[Control]>,
    none: Box<Offload>,
}

/// A message that was received.
pub(super) enum Received {
    Frame(Frame),
    /// Longer than a frame of the wire, or than a frame of the pool has room for.
    Unfit,
}

/// `struct virtio_net_hdr`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Offload {
    flags: u8,
    gso_type: u8,
    header_len: u16,
    gso_size: u16,
    checksum_start: u16,
    checksum_offset: u16,
}

const NEEDS_CHECKSUM: u8 = 1;

/// Room for one control message: `struct cmsghdr` and `struct tpacket_auxdata`.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
struct Control([u8; 40]);

impl Messages {
    pub(super) fn new() -> Messages {
        // SAFETY: numbers and pointers, for which zero is a value.
        let (header, part) = unsafe { (mem::zeroed(), mem::zeroed()) };
        Messages {
            spare: Vec::with_capacity(BURST),
            headers: (0..BURST).map(|_| header).collect(),
            parts: vec![[part; 2]; BURST].into(),
            offloads: vec![Offload::default(); BURST].into(),
            controls: vec![Control([0; 40]); BURST].into(),
            none: Box::default(),
        }
    }

    /// Takes frames for what arrives next from the pool; returns how many can be received, up to
    /// `max`.
    pub(super) fn refill(&mut self, pool: &Pool, max: usize) -> usize {
        let wanted = max.min(BURST);
        while self.spare.len() < wanted {
            let Some(mut frame) = pool.take() else {
                break;
            };
            let room = frame.tailroom();
            if frame.append(room).is_none_or(|room| room.is_empty()) {
                break;
            }
            self.spare.push(frame);
        }
        wanted.min(self.spare.len())
    }

    /// Receives up to `n` messages into as many spare frames, the last one first.
    pub(super) fn receive(&mut self, socket: &OwnedFd, n: usize) -> io::Result<usize> {
        let messages = self.headers[..n]
            .iter_mut()
            .zip(&mut self.parts)
            .zip(&mut self.offloads)
            .zip(&mut self.controls)
            .zip(self.spare.iter_mut().rev());
        for ((((message, parts), offload), control), frame) in messages {
            parts[0] = part((offload as *mut Offload).cast(), mem::size_of::<Offload>());
            parts[1] = part(frame.as_mut_ptr(), frame.len());
            message.msg_hdr.msg_iov = parts.as_mut_ptr();
            message.msg_hdr.msg_iovlen = 2;
            message.msg_hdr.msg_control = control.0.as_mut_ptr().cast();
            message.msg_hdr.msg_controllen = control.0.len();
        }
        // SAFETY: `n` messages, set up above to point to memory of `self` of the sizes told, which
        // nothing else uses during the call.
        let received = check(unsafe {
            libc::recvmmsg(
                socket.as_raw_fd(),
                self.headers.as_mut_ptr(),
                n as libc::c_uint,
                libc::MSG_DONTWAIT,
                std::ptr::null_mut(),
            )
        })?;
        Ok((received as usize).min(n))
    }

    /// Hands over what the last reception of `n` brought.
    pub(super) fn take(&mut self, n: usize, mut each: impl FnMut(Received)) {
        for n in 0..n {
            let Some(mut frame) = self.spare.pop() else {
                return;
            };
            let message = &self.headers[n];
            let len = (message.msg_len as usize).checked_sub(mem::size_of::<Offload>());
            let whole = message.msg_hdr.msg_flags & libc::MSG_TRUNC == 0;
            let fits = |len: &usize| whole && *len <= frame.len() && self.offloads[n].gso_type == 0;
            let Some(len) = len.filter(fits) else {
                each(Received::Unfit);
                continue;
            };
            frame.truncate(len);
            self.offloads[n].finish(&mut frame);
            let tagged = match self.tag(n) {
                Some(tag) => insert(&mut frame, tag),
                None => Some(()),
            };
            each(match tagged {
                Some(()) => Received::Frame(frame),
                None => Received::Unfit,
            });
        }
    }

    /// Sends up to [`BURST`] frames; returns how many, at least one.
    pub(super) fn send(&mut self, socket: &OwnedFd, frames: &[Frame]) -> io::Result<usize> {
        let messages = self.headers.iter_mut().zip(&mut self.parts).zip(frames);
        let mut n = 0;
        for ((message, parts), frame) in messages {
            let none: *mut Offload = &mut *self.none;
            parts[0] = part(none.cast(), mem::size_of::<Offload>());
            parts[1] = part(frame.as_ptr().cast_mut(), frame.len());
            message.msg_hdr.msg_iov = parts.as_mut_ptr();
            message.msg_hdr.msg_iovlen = 2;
            message.msg_hdr.msg_control = std::ptr::null_mut();
            message.msg_hdr.msg_controllen = 0;
            n += 1;
        }
        // SAFETY: `n` messages, set up above to point to memory of `self` and of the frames, which
        // the kernel only reads here.
        let sent = check(unsafe {
            libc::sendmmsg(
                socket.as_raw_fd(),
                self.headers.as_mut_ptr(),
                n,
                libc::MSG_DONTWAIT,
            )
        })?;
        Ok((sent as usize).min(frames.len()))
    }

    /// The VLAN tag that the kernel took out of the frame, where it did: protocol and control
    /// information.
    fn tag(&self, n: usize) -> Option<[u8; 4]> {
        let said = self.headers[n].msg_hdr.msg_controllen;
        let control = self.controls[n].0.get(..said)?;
        // `struct cmsghdr`: length (8), level (4), type (4).
        let level = i32::from_ne_bytes(control.get(8..12)?.try_into().ok()?);
        if level != libc::SOL_PACKET {
            return None;
        }
        // `struct tpacket_auxdata`.
        let half = |at: usize| {
            Some(u16::from_ne_bytes(
                control.get(at..at + 2)?.try_into().ok()?,
            ))
        };
        let status = u32::from_ne_bytes(control.get(16..20)?.try_into().ok()?);
        if status & libc::TP_STATUS_VLAN_VALID == 0 {
            return None;
        }
        let (information, mut protocol) = (half(32)?, half(34)?);
        if status & libc::TP_STATUS_VLAN_TPID_VALID == 0 {
            protocol = libc::ETH_P_8021Q as u16;
        }
        let (protocol, information) = (protocol.to_be_bytes(), information.to_be_bytes());
        Some([protocol[0], protocol[1], information[0], information[1]])
    }
}

impl Offload {
    /// Writes the checksum that was left to the network card: the field holds the pseudo-header's
    /// sum.
    fn finish(&self, frame: &mut [u8]) {
        if self.flags & NEEDS_CHECKSUM == 0 {
            return;
        }
        let start = usize::from(self.checksum_start);
        let Some(covered) = frame.get_mut(start..) else {
            return;
        };
        let checksum = match checksum::finish(checksum::sum(covered)) {
            // UDP's zero means none; the other is the same number.
            0 => 0xffff,
            checksum => checksum,
        };
        let field = usize::from(self.checksum_offset);
        if let Some(field) = covered.get_mut(field..field + 2) {
            field.copy_from_slice(&u16::to_be_bytes(checksum));
        }
    }
}

/// Puts a VLAN tag behind the two addresses.
fn insert(frame: &mut Frame, tag: [u8; 4]) -> Option<()> {
    if frame.len() < 12 || frame.headroom() < 4 {
        return None;
    }
    frame.prepend(4)?;
    frame.copy_within(4..16, 0);
    frame[12..16].copy_from_slice(&tag);
    Some(())
}

fn part(base: *mut u8, len: usize) -> libc::iovec {
    libc::iovec {
        iov_base: base.cast(),
        iov_len: len,
    }
}
