//! The XDP features of a driver, from the kernel's generic netlink family "netdev" (Linux 6.3).

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use super::Interface;
use crate::syscall::{check, new_socket};

/// The flags `NETDEV_XDP_ACT_…` of <linux/netdev.h>.
pub(crate) fn features(interface: &Interface) -> io::Result<u64> {
    let socket = new_socket(libc::AF_NETLINK, libc::SOCK_RAW, libc::NETLINK_GENERIC)?;
    let family = ask(
        &socket,
        (libc::GENL_ID_CTRL as u16, CTRL_CMD_GETFAMILY),
        (CTRL_ATTR_FAMILY_NAME, b"netdev\0"),
        CTRL_ATTR_FAMILY_ID,
    )?;
    let family = family.first_chunk().ok_or_else(unknown)?;
    let index = interface.index().to_ne_bytes();
    let features = ask(
        &socket,
        (u16::from_ne_bytes(*family), NETDEV_CMD_DEV_GET),
        (NETDEV_A_DEV_IFINDEX, &index),
        NETDEV_A_DEV_XDP_FEATURES,
    )?;
    let features = features.first_chunk().ok_or_else(unknown)?;
    Ok(u64::from_ne_bytes(*features))
}

/// Sends a request of a family and a command with one attribute, and returns the wanted attribute
/// of the answer.
fn ask(
    socket: &OwnedFd,
    (family, command): (u16, u8),
    (attribute, value): (u16, &[u8]),
    wanted: u16,
) -> io::Result<Vec<u8>> {
    let mut request = Vec::new();
    let length = HEADERS + 4 + value.len().next_multiple_of(4);
    request.extend((length as u32).to_ne_bytes());
    request.extend(family.to_ne_bytes());
    request.extend((libc::NLM_F_REQUEST as u16).to_ne_bytes());
    request.extend([0; 8]);
    request.extend([command, 1, 0, 0]);
    request.extend((4 + value.len() as u16).to_ne_bytes());
    request.extend(attribute.to_ne_bytes());
    request.extend(value);
    request.resize(length, 0);
    let mut answer = vec![0; 16 << 10];
    // SAFETY: both calls get as many bytes as told; the kernel answers a request of netlink within
    // the call that makes it, so nothing is waited for.
    let received = unsafe {
        check(libc::send(socket.as_raw_fd(), request.as_ptr().cast(), length, 0) as i32)?;
        let flags = libc::MSG_DONTWAIT;
        check(libc::recv(
            socket.as_raw_fd(),
            answer.as_mut_ptr().cast(),
            answer.len(),
            flags,
        ) as i32)?
    };
    answer.truncate(received as usize);
    if answer.get(4..6) != Some(&family.to_ne_bytes()) {
        return Err(unknown());
    }
    let mut rest = answer.get(HEADERS..).unwrap_or_default();
    while let [a, b, c, d, ..] = *rest {
        let length = usize::from(u16::from_ne_bytes([a, b]));
        let value = rest.get(4..length).ok_or_else(unknown)?;
        if u16::from_ne_bytes([c, d]) == wanted {
            return Ok(value.to_vec());
        }
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    Err(unknown())
}

fn unknown() -> io::Error {
    io::Error::other("the kernel does not tell what its driver can do for XDP (Linux 6.3 does)")
}

/// Bytes of `struct nlmsghdr` and `struct genlmsghdr`.
const HEADERS: usize = 16 + 4;

const CTRL_CMD_GETFAMILY: u8 = 3;
const CTRL_ATTR_FAMILY_ID: u16 = 1;
const CTRL_ATTR_FAMILY_NAME: u16 = 2;
const NETDEV_CMD_DEV_GET: u8 = 1;
const NETDEV_A_DEV_IFINDEX: u16 = 1;
const NETDEV_A_DEV_XDP_FEATURES: u16 = 3;
