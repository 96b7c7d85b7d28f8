//! The socket between host and guest: descriptors one way, counters the other.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::sockopt::socket_type;
use rustix::net::{
    recv, recvmsg, send, sendmsg, shutdown, AddressFamily, RecvAncillaryBuffer,
    RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    Shutdown, SocketFlags, SocketType,
};
use serde::{Deserialize, Serialize};

use super::GuestReport;
use crate::region::PAIRS_MAX;
use crate::ring::Doorbell;

/// The message that the descriptors come with.
const HELLO: &[u8] = b"tare-cvm 3";
/// The error of a guest that was started otherwise than by its host.
const BY_HAND: &str = "found a standard input that is not the socket of a host; this command is \
                       started by `tare cvm serve`: run that instead";
/// The region, and the guest's doorbell and the host's of each queue pair.
const DESCRIPTORS_MAX: usize = 1 + 2 * PAIRS_MAX;
/// Bytes of the longest message of the guest's.
const MESSAGE_MAX: usize = 4096;
/// The longest time for which a guest waits for room for what it tells once.
const LAST_WORDS: Duration = Duration::from_millis(500);
/// The time in which a host must have sent its descriptors.
const GREETING: Duration = Duration::from_secs(10);

/// Returns both ends.
pub(super) fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let kind = SocketType::SEQPACKET;
    let pair = rustix::net::socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)?;
    Ok(pair)
}

/// The doorbells of a queue pair: the guest's and the host's.
pub(super) type Doorbells = (Doorbell, Doorbell);

/// Sends the descriptors to the guest.
pub(super) fn greet(
    socket: impl AsFd,
    region: BorrowedFd<'_>,
    doorbells: &[Doorbells],
) -> io::Result<()> {
    let pairs = doorbells.iter();
    let bells = pairs.flat_map(|(kick, interrupt)| [kick.as_fd(), interrupt.as_fd()]);
    let files: Vec<BorrowedFd<'_>> = std::iter::once(region).chain(bells).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(&files));
    let parts = [IoSlice::new(HELLO)];
    sendmsg(socket, &parts, &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Receives the descriptors from the host: the region, and the doorbells of so many queue pairs.
pub(super) fn greeted(socket: impl AsFd, pairs: usize) -> io::Result<(OwnedFd, Vec<Doorbells>)> {
    let wrong = |reason| io::Error::new(io::ErrorKind::InvalidData, reason);
    if socket_type(&socket).ok() != Some(SocketType::SEQPACKET) {
        return Err(wrong(BY_HAND));
    }
    let mut fds = [PollFd::new(&socket, PollFlags::IN)];
    let timeout = Timespec::try_from(GREETING).ok();
    if poll(&mut fds, timeout.as_ref())? == 0 {
        return Err(wrong("the host has sent no descriptors"));
    }
    let mut bytes = [0; HELLO.len() + 1];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
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
        return Err(wrong(BY_HAND));
    }
    if files.len() != 1 + 2 * pairs {
        return Err(wrong(
            "the host has not sent the region and two eventfds for each queue pair",
        ));
    }
    let mut files = files.into_iter();
    let region = files.next().ok_or_else(|| wrong("no region"))?;
    let mut bell = || files.next().map(Doorbell::from_fd);
    let doorbells = std::iter::from_fn(|| Some((bell()?, bell()?)));
    Ok((region, doorbells.collect()))
}

/// A message of the guest's.
#[derive(Serialize, Deserialize)]
enum Message {
    /// The counters of a queue pair.
    Counters(usize, GuestReport),
    Notice(Notice),
}

/// An event of the guest's that is to be logged.
#[derive(Serialize, Deserialize)]
pub(super) enum Notice {
    /// Certificate and key were to be read again: whether there are files of them, or the reason
    /// why those that were there before stay.
    Reloaded(Result<bool, String>),
    /// The key log has ended, with an error.
    KeyLogEnded {
        /// The file.
        file: String,
        /// The error.
        error: String,
    },
}

/// Sends the counters of a queue pair, if there is room. That the host is gone, [`asked`] tells.
pub(super) fn tell(socket: impl AsFd, pair: usize, counters: GuestReport) {
    send_message(socket, &Message::Counters(pair, counters));
}

/// The same for the last time: waits a while for room.
pub(super) fn tell_last(socket: impl AsFd, pair: usize, counters: GuestReport) {
    wait_for_room(&socket);
    tell(&socket, pair, counters);
}

/// Sends an event, and waits a while for room.
pub(super) fn tell_notice(socket: impl AsFd, notice: Notice) {
    wait_for_room(&socket);
    send_message(&socket, &Message::Notice(notice));
}

fn wait_for_room(socket: impl AsFd) {
    let mut fds = [PollFd::new(&socket, PollFlags::OUT)];
    let timeout = Timespec::try_from(LAST_WORDS).ok();
    let _ = poll(&mut fds, timeout.as_ref());
}

fn send_message(socket: impl AsFd, message: &Message) {
    let Ok(text) = serde_json::to_vec(message) else {
        return;
    };
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    let _ = send(socket, &text, flags);
}

/// A request of the host's.
#[derive(Debug, PartialEq)]
pub(super) enum Asked {
    /// Read certificate and key again.
    Reload,
    /// End, or the host has ended itself.
    End,
}

/// Takes the next request of the host's.
pub(super) fn asked(socket: impl AsFd) -> Option<Asked> {
    match recv(socket, &mut [0; 1][..], RecvFlags::DONTWAIT) {
        Ok((0, _)) => Some(Asked::End),
        Ok(_) => Some(Asked::Reload),
        Err(Errno::AGAIN | Errno::INTR) => None,
        Err(_) => Some(Asked::End),
    }
}

/// Asks the guest to read certificate and key again; [`Notice::Reloaded`] answers.
pub(super) fn ask_to_reload(socket: impl AsFd) -> io::Result<()> {
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    send(socket, b"r", flags)?;
    Ok(())
}

/// Asks the guest to end; what it tells can still be read.
pub(super) fn dismiss(socket: impl AsFd) {
    let _ = shutdown(socket, Shutdown::Write);
}

/// Takes the newest counters of each of the guest's queue pairs, if there are new ones, and calls
/// `notice` with its events.
pub(super) fn told(
    socket: impl AsFd,
    pairs: &mut [Option<GuestReport>],
    mut notice: impl FnMut(Notice),
) {
    let mut bytes = [0; MESSAGE_MAX];
    // Bounded: a guest may send faster than this reads.
    for _ in 0..64 * pairs.len() {
        let Ok((len, _)) = recv(&socket, &mut bytes[..], RecvFlags::DONTWAIT) else {
            break;
        };
        if len == 0 {
            break;
        }
        match serde_json::from_slice(bytes.get(..len).unwrap_or_default()) {
            Ok(Message::Counters(pair, counters)) => {
                if let Some(place) = pairs.get_mut(pair) {
                    *place = Some(counters);
                }
            }
            Ok(Message::Notice(event)) => notice(event),
            Err(_) => {}
        }
    }
}
