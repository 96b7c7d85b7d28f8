//! The socket of a client: messages of a sequenced-packet Unix socket, which also notify a side
//! that is asleep, and whose end is the end of the client or the node.

use std::fmt;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    self, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};
use zeroize::Zeroizing;

use super::{Refusal, Violation};
use crate::operation::SpaceId;

const MAGIC: [u8; 8] = *b"tare-shm";
const MESSAGE_MAX: usize = 64;

const HELLO: u8 = 1;
const WELCOME: u8 = 2;
const NOTIFY: u8 = 3;
const ATTACH: u8 = 4;
const ATTACHED: u8 = 5;
const END: u8 = 6;

/// A capability in a message. It is wiped on drop, and not printed.
pub(super) struct Shown(Zeroizing<[u8; 32]>);

impl Shown {
    pub(super) fn new(capability: &[u8; 32]) -> Shown {
        let mut shown = Shown(Zeroizing::default());
        shown.0.copy_from_slice(capability);
        shown
    }

    pub(super) fn bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Debug for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Shown")
    }
}

/// A message. Integers are little-endian; unused bytes are 0.
#[derive(Debug)]
pub(super) enum Message {
    /// The client's first: version, entries, bytes of data.
    Hello { version: u32, layout: (u32, u32) },
    /// The node's answer, with the region if it is not a refusal.
    Welcome {
        version: u32,
        layout: (u32, u32),
        epoch: u64,
        refusal: Option<Refusal>,
    },
    /// Wakes the other side.
    Notify,
    /// Shows the capability of a space.
    Attach { space: SpaceId, capability: Shown },
    /// The answer: whether the space may be used.
    Attached { allowed: bool },
    /// The node's last, if the client broke the protocol.
    End { violation: Violation },
}

impl Message {
    fn encode(&self) -> (Zeroizing<[u8; MESSAGE_MAX]>, usize) {
        let mut bytes = Zeroizing::new([0; MESSAGE_MAX]);
        let len = match *self {
            Message::Hello { version, layout } => {
                bytes[8..16].copy_from_slice(&MAGIC);
                put(&mut bytes[..], 16, version);
                put(&mut bytes[..], 20, layout.0);
                put(&mut bytes[..], 24, layout.1);
                bytes[0] = HELLO;
                32
            }
            Message::Welcome {
                version,
                layout,
                epoch,
                refusal,
            } => {
                bytes[..2].copy_from_slice(&[WELCOME, refusal.map_or(0, |r| r as u8)]);
                bytes[8..16].copy_from_slice(&MAGIC);
                put(&mut bytes[..], 16, version);
                put(&mut bytes[..], 20, layout.0);
                put(&mut bytes[..], 24, layout.1);
                bytes[32..40].copy_from_slice(&epoch.to_le_bytes());
                40
            }
            Message::Notify => {
                bytes[0] = NOTIFY;
                1
            }
            Message::Attach {
                space,
                ref capability,
            } => {
                bytes[0] = ATTACH;
                bytes[8..16].copy_from_slice(&space.0.to_le_bytes());
                bytes[16..48].copy_from_slice(capability.bytes());
                48
            }
            Message::Attached { allowed } => {
                bytes[..2].copy_from_slice(&[ATTACHED, allowed.into()]);
                2
            }
            Message::End { violation } => {
                bytes[..2].copy_from_slice(&[END, violation as u8]);
                2
            }
        };
        (bytes, len)
    }

    fn decode(bytes: &[u8]) -> Option<Message> {
        let magic = || bytes.get(8..16) == Some(&MAGIC);
        Some(match (*bytes.first()?, bytes.len()) {
            (HELLO, 32) if magic() => Message::Hello {
                version: read_u32(bytes, 16)?,
                layout: (read_u32(bytes, 20)?, read_u32(bytes, 24)?),
            },
            (WELCOME, 40) if magic() => Message::Welcome {
                version: read_u32(bytes, 16)?,
                layout: (read_u32(bytes, 20)?, read_u32(bytes, 24)?),
                epoch: read_u64(bytes, 32)?,
                refusal: match *bytes.get(1)? {
                    0 => None,
                    other => Some(Refusal::from_byte(other)?),
                },
            },
            (NOTIFY, 1) => Message::Notify,
            (ATTACH, 48) => Message::Attach {
                space: SpaceId(read_u64(bytes, 8)?),
                capability: Shown::new(bytes.get(16..)?.first_chunk()?),
            },
            (ATTACHED, 2) => Message::Attached {
                allowed: *bytes.get(1)? != 0,
            },
            (END, 2) => Message::End {
                violation: Violation::from_byte(*bytes.get(1)?)?,
            },
            _ => return None,
        })
    }
}

fn put(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
}

fn read_u32(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn read_u64(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// Sends a message, without waiting. One for which there is no room is dropped: then the other side
/// has messages to read, and is awake or will be.
pub(super) fn send(socket: impl AsFd, message: &Message) -> io::Result<()> {
    let (bytes, len) = message.encode();
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    match net::send(socket, &bytes[..len], flags) {
        Ok(_) | Err(Errno::AGAIN) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// Sends a message with a file.
pub(super) fn send_with(
    socket: impl AsFd,
    message: &Message,
    file: BorrowedFd<'_>,
) -> io::Result<()> {
    let (bytes, len) = message.encode();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let files = [file];
    control.push(SendAncillaryMessage::ScmRights(&files));
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    net::sendmsg(socket, &[IoSlice::new(&bytes[..len])], &mut control, flags)?;
    Ok(())
}

// Where the other side has closed the socket without reading everything, the first attempt fails
// with ECONNRESET, and the next one takes the last message that it sent: often the reason.

/// The result of looking for a message.
#[derive(Debug)]
pub(super) enum Received {
    Message(Message),
    /// There is none at present.
    Nothing,
    /// The other side is gone.
    End,
    /// The bytes are no message.
    Malformed,
}

/// Takes a message if there is one. Files that come with it are closed by the kernel.
pub(super) fn receive(socket: impl AsFd) -> Received {
    // One byte more than any message, so that a longer one is seen.
    let mut bytes = Zeroizing::new([0; MESSAGE_MAX + 1]);
    let mut take = || net::recv(&socket, &mut bytes[..], RecvFlags::DONTWAIT);
    let taken = match take() {
        Err(Errno::CONNRESET) => take(),
        other => other,
    };
    match taken {
        Ok((0, _)) => Received::End,
        Ok((len, _)) => match Message::decode(&bytes[..len]) {
            Some(message) => Received::Message(message),
            None => Received::Malformed,
        },
        Err(Errno::AGAIN | Errno::INTR) => Received::Nothing,
        Err(_) => Received::End,
    }
}

/// Waits for a message that may come with a file.
pub(super) fn receive_with(socket: impl AsFd) -> io::Result<(Option<Message>, Option<OwnedFd>)> {
    let mut bytes = [0; MESSAGE_MAX + 1];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC;
    let mut parts = [IoSliceMut::new(&mut bytes)];
    let mut take = || net::recvmsg(&socket, &mut parts, &mut control, flags);
    let received = match take() {
        Err(Errno::CONNRESET) => take(),
        other => other,
    }?;
    let mut file = None;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(files) = message {
            file = files.into_iter().next().or(file);
        }
    }
    Ok((Message::decode(&bytes[..received.bytes]), file))
}
