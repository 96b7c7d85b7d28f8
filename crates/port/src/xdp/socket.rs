//! An AF_XDP socket: made, registered with a pool's memory and bound to a queue.

use std::any::Any;
use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::rc::{Rc, Weak};
use std::thread;
use std::time::Duration;

use super::mode::XdpMode;
use super::ring::{Ring, Which};
use super::CHUNK_MAX;
use crate::syscall::{check, new_socket, option, set_option};
use crate::{Interface, Pool};

/// A bound socket. The pool keeps a weak count of those over its memory, so that further ones share
/// it.
#[derive(Debug)]
pub(crate) struct Socket {
    fd: OwnedFd,
    zero_copy: bool,
    /// The interface's number and the queue's.
    at: (u32, u32),
}

/// The fill and the completion ring, and the receive and the transmit ring.
pub(super) type Rings = ([Ring<u64>; 2], [Ring<libc::xdp_desc>; 2]);

/// Binds a new socket with rings of `size` entries to a queue, over the memory of `pool`.
pub(super) fn bind(
    interface: &Interface,
    queue: u32,
    pool: &Pool,
    size: u32,
    mode: XdpMode,
    patience: u32,
) -> io::Result<(Rc<Socket>, Rings)> {
    let zero_copy = mode == XdpMode::ZeroCopy;
    let mut sockets = pool.registrations().borrow_mut();
    sockets.retain(|socket| socket.strong_count() > 0);
    let at = (interface.index(), queue);
    let mut bound = None;
    let known = sockets.iter().filter_map(Weak::upgrade);
    for first in known.filter_map(|known| known.downcast::<Socket>().ok()) {
        if first.at == at {
            return Err(io::Error::other(
                "this pool has a port on this queue already",
            ));
        }
        if first.zero_copy != zero_copy {
            let does = if zero_copy { "copies" } else { "does not copy" };
            return Err(io::Error::other(format!(
                "another port over the same pool {does}, and all must do alike"
            )));
        }
        match bind_patiently(
            interface,
            queue,
            pool,
            size,
            Share::With(first.as_fd()),
            patience,
        ) {
            // The interface of that one is gone.
            Err(error) if error.raw_os_error() == Some(libc::EBADF) => continue,
            answer => {
                bound = Some(answer?);
                break;
            }
        }
    }
    let (fd, rings) = match bound {
        Some(bound) => bound,
        None => {
            let share = Share::First { zero_copy };
            bind_patiently(interface, queue, pool, size, share, patience)?
        }
    };
    // SAFETY: a number, for which any bytes are a value.
    let options = unsafe {
        let none = libc::xdp_options { flags: 0 };
        option(&fd, libc::SOL_XDP, libc::XDP_OPTIONS, none)?
    };
    if (options.flags & libc::XDP_OPTIONS_ZEROCOPY != 0) != zero_copy {
        return Err(io::Error::other("the kernel chose another mode"));
    }
    let socket = Rc::new(Socket { fd, zero_copy, at });
    let known: Rc<dyn Any> = socket.clone();
    sockets.push(Rc::downgrade(&known));
    Ok((socket, rings))
}

#[derive(Clone, Copy)]
enum Share<'a> {
    /// Registers the memory.
    First { zero_copy: bool },
    /// Shares what this socket has registered, and copies or not as it does.
    With(BorrowedFd<'a>),
}

/// The number of attempts to bind a socket to a queue that another one has, 10 ms apart: the kernel
/// releases a queue by a work item after its last socket is closed, which took more than 500 ms on
/// a machine of load 13.
pub(super) const PATIENCE: u32 = 500;

fn bind_patiently(
    interface: &Interface,
    queue: u32,
    pool: &Pool,
    size: u32,
    share: Share<'_>,
    mut patience: u32,
) -> io::Result<(OwnedFd, Rings)> {
    loop {
        match bind_once(interface, queue, pool, size, share) {
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) && patience > 0 => {
                patience -= 1;
                thread::sleep(Duration::from_millis(10));
            }
            answer => return answer,
        }
    }
}

fn bind_once(
    interface: &Interface,
    queue: u32,
    pool: &Pool,
    size: u32,
    share: Share<'_>,
) -> io::Result<(OwnedFd, Rings)> {
    let socket = new_socket(libc::AF_XDP, libc::SOCK_RAW, 0)?;
    let mut address = libc::sockaddr_xdp {
        sxdp_family: libc::AF_XDP as u16,
        sxdp_flags: 0,
        sxdp_ifindex: interface.index(),
        sxdp_queue_id: queue,
        sxdp_shared_umem_fd: 0,
    };
    match share {
        Share::First { zero_copy } => {
            register(&socket, pool)?;
            address.sxdp_flags = libc::XDP_USE_NEED_WAKEUP
                | if zero_copy {
                    libc::XDP_ZEROCOPY
                } else {
                    libc::XDP_COPY
                };
            // Sockets that share the memory do as the first.
            if super::in_parts(pool) {
                address.sxdp_flags |= XDP_USE_SG;
            }
        }
        Share::With(first) => {
            address.sxdp_flags = libc::XDP_SHARED_UMEM;
            address.sxdp_shared_umem_fd = first.as_raw_fd() as u32;
        }
    }
    let chunks = [
        Ring::new(&socket, Which::Fill, size)?,
        Ring::new(&socket, Which::Completion, size)?,
    ];
    let frames = [
        Ring::new(&socket, Which::Receive, size)?,
        Ring::new(&socket, Which::Transmit, size)?,
    ];
    // Frames sent per call in copy mode; 32 where the kernel (before 6.17) does not let it
    // be set.
    let _ = set_option(
        &socket,
        libc::SOL_XDP,
        XDP_MAX_TX_SKB_BUDGET,
        &size.min(256),
    );
    // SAFETY: the address is of the family and of the size told.
    check(unsafe {
        libc::bind(
            socket.as_raw_fd(),
            (&address as *const libc::sockaddr_xdp).cast(),
            mem::size_of_val(&address) as libc::socklen_t,
        )
    })?;
    Ok((socket, (chunks, frames)))
}

/// Registers a pool's memory with a socket. The kernel may write to it from then on, but does so
/// only to chunks in a fill ring, which no frame is in; it keeps the pages for as long as it needs
/// them.
fn register(socket: &OwnedFd, pool: &Pool) -> io::Result<()> {
    let (base, stride, _) = pool.memory();
    let memory = libc::xdp_umem_reg {
        addr: base.as_ptr() as u64,
        len: (stride * pool.slots()) as u64,
        chunk_size: stride.min(CHUNK_MAX) as u32,
        headroom: 0,
        flags: 0,
        tx_metadata_len: 0,
    };
    set_option(socket, libc::SOL_XDP, libc::XDP_UMEM_REG, &memory)
}

impl Socket {
    /// Has the kernel send what is in the transmit ring.
    #[inline]
    pub(super) fn wake_transmit(&self) -> io::Result<()> {
        // SAFETY: sends no bytes from nowhere.
        let sent = unsafe {
            libc::sendto(
                self.fd.as_raw_fd(),
                std::ptr::null(),
                0,
                libc::MSG_DONTWAIT,
                std::ptr::null(),
                0,
            )
        };
        check(sent as libc::c_int).map(drop)
    }

    /// Has the kernel look at the fill ring. That the interface is down is no error.
    pub(super) fn wake_receive(&self) -> io::Result<()> {
        // SAFETY: receives no bytes to nowhere.
        let received = unsafe {
            libc::recvfrom(
                self.fd.as_raw_fd(),
                std::ptr::null_mut(),
                0,
                libc::MSG_DONTWAIT,
                std::ptr::null_mut(),
                std::ptr::null_mut(),
            )
        };
        match check(received as libc::c_int) {
            Err(error) => match error.raw_os_error() {
                Some(libc::EAGAIN | libc::EBUSY | libc::ENETDOWN | libc::ENOBUFS | libc::EINTR) => {
                    Ok(())
                }
                _ => Err(error),
            },
            Ok(_) => Ok(()),
        }
    }

    pub(super) fn statistics(&self) -> io::Result<libc::xdp_statistics> {
        // SAFETY: plain numbers, for which any bytes are values. A kernel before 5.9 fills in the
        // first three.
        unsafe { option(&self.fd, libc::SOL_XDP, libc::XDP_STATISTICS, mem::zeroed()) }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// The error of a port whose interface was removed.
#[cold]
pub(super) fn gone(error: io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(libc::ENXIO | libc::ENODEV) => {
            io::Error::new(io::ErrorKind::NotConnected, "the interface is gone")
        }
        _ => error,
    }
}

/// An error of opening in words, for frames that may be longer than a chunk or not.
pub(super) fn explain(error: &io::Error, mode: XdpMode, in_parts: bool) -> String {
    let hint = match (error.raw_os_error(), mode) {
        (Some(libc::EINVAL), _) if in_parts => {
            "; frames longer than a page need Linux 6.6 and a driver with multi-buffer XDP"
        }
        (Some(libc::ERANGE), _) => "; the MTU, this one or the peer's, is too large for its driver",
        (Some(libc::EPERM | libc::EACCES), _) => {
            "; run as root, or with CAP_NET_RAW, CAP_NET_ADMIN and CAP_BPF"
        }
        (Some(libc::EOPNOTSUPP | libc::EINVAL), XdpMode::ZeroCopy | XdpMode::Native) => {
            "; its driver cannot"
        }
        (Some(libc::EBUSY), _) => TAKEN,
        (Some(libc::ENOBUFS | libc::ENOMEM), _) => "; raise the limit of locked memory (ulimit -l)",
        (Some(libc::EAFNOSUPPORT), _) => "; the kernel was built without XDP_SOCKETS",
        _ => "",
    };
    format!("{error}{hint}")
}

/// The end of what is said where another socket receives what arrives.
pub(crate) const TAKEN: &str = "; another socket has this queue";

const XDP_USE_SG: u16 = 1 << 4;
const XDP_MAX_TX_SKB_BUDGET: libc::c_int = 9;
