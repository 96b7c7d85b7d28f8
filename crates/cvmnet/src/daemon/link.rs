//! The socket between host and guest: descriptors one way, counters the other.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{
    recv, recvmsg, send, sendmsg, AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage,
    RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};

use super::GuestReport;

/// The message that the descriptors come with.
const HELLO: &[u8] = b"tare-cvm 1";
/// The region, the guest's doorbell and the host's.
const DESCRIPTORS: usize = 3;
/// Bytes of the longest message of counters.
const MESSAGE_MAX: usize = 4096;
/// The time in which a host must have sent its descriptors.
const GREETING: Duration = Duration::from_secs(10);

/// Returns both ends.
pub(super) fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let kind = SocketType::SEQPACKET;
    let pair = rustix::net::socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)?;
    Ok(pair)
}

/// Sends the descriptors to the guest.
pub(super) fn greet(socket: impl AsFd, files: [BorrowedFd<'_>; DESCRIPTORS]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(&files));
    let parts = [IoSlice::new(HELLO)];
    sendmsg(socket, &parts, &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Receives the descriptors from the host.
pub(super) fn greeted(socket: impl AsFd) -> io::Result<[OwnedFd; DESCRIPTORS]> {
    let wrong = |reason| io::Error::new(io::ErrorKind::InvalidData, reason);
    let mut fds = [PollFd::new(&socket, PollFlags::IN)];
    let timeout = Timespec::try_from(GREETING).ok();
    if poll(&mut fds, timeout.as_ref())? == 0 {
        return Err(wrong("the host has sent no descriptors"));
    }
    let mut bytes = [0; HELLO.len() + 1];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(&mut bytes)];
    let received = recvmsg(socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let mut files = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(some) = message {
            files.extend(some);
        }
    }
    if bytes.get(..received.bytes) != Some(HELLO) {
        return Err(wrong("standard input is not the socket of a host"));
    }
    files
        .try_into()
        .map_err(|_| wrong("the host has not sent the region and two eventfds"))
}

/// Sends the guest's counters, if there is room; false if the host is gone.
pub(super) fn tell(socket: impl AsFd, report: &GuestReport) -> bool {
    let Ok(text) = serde_json::to_vec(report) else {
        return true;
    };
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    match send(socket, &text, flags) {
        Ok(_) | Err(Errno::AGAIN | Errno::INTR | Errno::NOBUFS) => true,
        Err(_) => false,
    }
}

/// Returns the newest counters of the guest, if there are new ones.
pub(super) fn told(socket: impl AsFd) -> Option<GuestReport> {
    let mut newest = None;
    let mut bytes = [0; MESSAGE_MAX];
    // Bounded: a guest may send faster than this reads.
    for _ in 0..64 {
        let Ok((len, _)) = recv(&socket, &mut bytes[..], RecvFlags::DONTWAIT) else {
            break;
        };
        if len == 0 {
            break;
        }
        let text = bytes.get(..len).unwrap_or_default();
        newest = serde_json::from_slice(text).ok().or(newest);
    }
    newest
}
