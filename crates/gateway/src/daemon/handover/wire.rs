//! Messages between the process that runs a gateway and the one that takes over: a type, a length,
//! the content, and descriptors.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::net::{
    recvmsg, sendmsg, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};
use zeroize::Zeroizing;

/// Descriptors of one message, at most.
const FDS_MAX: usize = 4;
/// The longest message but for a state.
pub(super) const SHORT: u64 = 1 << 16;
/// The longest state: 100,000 routes take about 300 MB.
pub(super) const LONG: u64 = 1 << 30;

const HEADER: usize = 9;

/// The type of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Kind {
    /// The versions, from each side.
    Hello = 1,
    /// A port and its descriptors, from the old process.
    Port = 2,
    /// The new process is ready.
    Ready = 3,
    /// The state, from the old process, whose workers hold.
    State = 4,
    /// The new process has taken over.
    Taken = 5,
    /// The reason why there will be no handover, from either side.
    Refused = 6,
}

const KINDS: [Kind; 6] = [
    Kind::Hello,
    Kind::Port,
    Kind::Ready,
    Kind::State,
    Kind::Taken,
    Kind::Refused,
];

/// A message that was received. Its content may be keys: it is wiped.
pub(super) struct Message {
    pub(super) kind: Kind,
    pub(super) content: Zeroizing<Vec<u8>>,
    pub(super) fds: Vec<OwnedFd>,
}

/// A connection between the two processes.
#[derive(Debug)]
pub(in crate::daemon) struct Wire(UnixStream);

impl Wire {
    /// Speaks over a stream whose other end belongs to root or to the user of this process.
    ///
    /// # Errors
    /// It belongs to another user.
    pub(super) fn new(stream: UnixStream) -> io::Result<Wire> {
        let peer = rustix::net::sockopt::socket_peercred(&stream)?;
        let own = rustix::process::geteuid();
        if !may_speak(peer.uid.as_raw(), own.as_raw()) {
            let error = format!(
                "the process at the other end is of user {}",
                peer.uid.as_raw()
            );
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, error));
        }
        stream.set_nonblocking(false)?;
        Ok(Wire(stream))
    }

    /// Returns the ID of the process at the other end.
    pub(in crate::daemon) fn pid(&self) -> io::Result<i32> {
        let peer = rustix::net::sockopt::socket_peercred(&self.0)?;
        Ok(peer.pid.as_raw_nonzero().get())
    }

    /// Limits the time of each step.
    pub(super) fn set_timeout(&self, timeout: Duration) -> io::Result<()> {
        self.0.set_read_timeout(Some(timeout))?;
        self.0.set_write_timeout(Some(timeout))
    }

    /// Sends a message. Without content, it is sent as a whole or not at all.
    pub(super) fn send(
        &self,
        kind: Kind,
        content: &[u8],
        fds: &[BorrowedFd<'_>],
    ) -> io::Result<()> {
        let mut header = [kind as u8; HEADER];
        header[1..].copy_from_slice(&(content.len() as u64).to_be_bytes());
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
            return Err(io::Error::other("too many descriptors"));
        }
        self.write(&header, &mut control)?;
        self.write(content, &mut SendAncillaryBuffer::default())
    }

    fn write(
        &self,
        mut bytes: &[u8],
        control: &mut SendAncillaryBuffer<'_, '_, '_>,
    ) -> io::Result<()> {
        while !bytes.is_empty() {
            let sent = sendmsg(
                &self.0,
                &[IoSlice::new(bytes)],
                control,
                SendFlags::NOSIGNAL,
            );
            match sent {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(sent) => {
                    bytes = bytes.get(sent..).unwrap_or_default();
                    control.clear();
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Receives a message whose content has at most `longest` bytes.
    pub(super) fn receive(&self, longest: u64) -> io::Result<Message> {
        let mut header = [0; HEADER];
        let fds = self.read(&mut header)?;
        let wrong = |what| io::Error::new(io::ErrorKind::InvalidData, what);
        let [kind, length @ ..] = header;
        let mut kinds = KINDS.into_iter();
        let kind = kinds.find(|known| *known as u8 == kind);
        let kind = kind.ok_or_else(|| wrong("a message of an unknown type"))?;
        let length = u64::from_be_bytes(length);
        let limit = if kind == Kind::State { longest } else { SHORT };
        if length > limit {
            return Err(wrong("a message that is too long"));
        }
        let mut content = Zeroizing::new(vec![0; length as usize]);
        if !self.read(&mut content)?.is_empty() {
            return Err(wrong("a descriptor in the middle of a message"));
        }
        Ok(Message { kind, content, fds })
    }

    /// Fills `bytes`, and returns the descriptors that came with them.
    fn read(&self, mut bytes: &mut [u8]) -> io::Result<Vec<OwnedFd>> {
        let mut fds = Vec::new();
        while !bytes.is_empty() {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let received = recvmsg(
                &self.0,
                &mut [IoSliceMut::new(bytes)],
                &mut control,
                RecvFlags::CMSG_CLOEXEC,
            );
            match received {
                Ok(message) if message.bytes == 0 => {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                Ok(message) => bytes = &mut bytes[message.bytes..],
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            for message in control.drain() {
                if let RecvAncillaryMessage::ScmRights(more) = message {
                    fds.extend(more);
                }
            }
        }
        Ok(fds)
    }

    /// Receives no more: what the other process sends from now on fails there. What it has sent
    /// before can still be received.
    pub(super) fn close_reception(&self) {
        let _ = self.0.shutdown(Shutdown::Read);
    }

    /// Waits until the other process has closed the connection, or the time is over.
    pub(super) fn wait_until_closed(&self, timeout: Duration) {
        let _ = self.set_timeout(timeout);
        let _ = rustix::io::read(self.0.as_fd(), &mut [0]);
    }
}

fn may_speak(peer: u32, own: u32) -> bool {
    peer == 0 || peer == own
}

/// Returns the reason why the other process broke off, in words.
pub(super) fn explain(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::UnexpectedEof | io::ErrorKind::BrokenPipe => {
            "the other process has closed the connection".into()
        }
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            "the other process did not answer in time".into()
        }
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(crate) fn pair() -> [Wire; 2] {
        let (a, b) = UnixStream::pair().unwrap();
        [a, b].map(|stream| {
            let wire = Wire::new(stream).unwrap();
            wire.set_timeout(Duration::from_secs(60)).unwrap();
            wire
        })
    }

    #[test]
    fn messages_arrive_with_their_descriptors_and_in_any_length() {
        let [a, b] = pair();
        let content: Vec<u8> = (0..1 << 20).map(|n| n as u8).collect();
        let file = std::fs::File::open("/dev/null").unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                a.send(Kind::Port, b"x", &[file.as_fd(), file.as_fd()])
                    .unwrap();
                a.send(Kind::State, &content, &[]).unwrap();
                a.send(Kind::Ready, &[], &[]).unwrap();
            });
            let port = b.receive(SHORT).unwrap();
            assert_eq!((port.kind, port.fds.len()), (Kind::Port, 2));
            assert_eq!(&port.content[..], b"x");
            let state = b.receive(LONG).unwrap();
            assert_eq!(state.kind, Kind::State);
            assert!(state.content[..] == content);
            assert_eq!(b.receive(SHORT).unwrap().kind, Kind::Ready);
        });
        b.set_timeout(Duration::from_millis(200)).unwrap();
        let error = b.receive(SHORT).err().unwrap();
        assert_eq!(explain(&error), "the other process did not answer in time");
        drop(a);
        let error = b.receive(SHORT).err().unwrap();
        assert_eq!(
            explain(&error),
            "the other process has closed the connection"
        );
    }

    #[test]
    fn what_is_no_message_is_refused() {
        for bytes in [
            [9, 0, 0, 0, 0, 0, 0, 0, 0],
            [1, 0, 0, 0, 0, 0, 1, 0, 1],
            [4, 255, 0, 0, 0, 0, 0, 0, 0],
        ] {
            let [a, b] = pair();
            a.write(&bytes, &mut SendAncillaryBuffer::default())
                .unwrap();
            let error = b.receive(LONG).err().unwrap();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{bytes:?}");
        }
    }

    #[test]
    fn only_root_and_the_own_user_may_speak() {
        assert!(may_speak(0, 1000) && may_speak(1000, 1000) && may_speak(0, 0));
        assert!(!may_speak(1001, 1000) && !may_speak(1000, 0));
    }
}
