//! The IP addresses of an interface, by rtnetlink(7): ioctls would change the first one.

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::IpAddr;

use crate::syscall::new_socket;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Change {
    Add,
    Remove,
}

/// Bytes of the header of a message, and of the number of an error behind it.
const HEADER: usize = 16;
const ERROR: usize = 4;

/// Adds or removes an address; returns false if nothing had to be changed.
pub(super) fn change(
    interface: u32,
    change: Change,
    address: IpAddr,
    prefix_len: u8,
) -> io::Result<bool> {
    let socket = new_socket(libc::AF_NETLINK, libc::SOCK_RAW, libc::NETLINK_ROUTE)?;
    let mut socket = File::from(socket);
    socket.write_all(&request(interface, change, address, prefix_len))?;
    let mut answer = [0; 1024];
    let len = socket.read(&mut answer)?;
    let number = answer
        .get(HEADER..HEADER + ERROR)
        .filter(|_| len >= HEADER + ERROR);
    let kind = u16::from_ne_bytes([answer[4], answer[5]]);
    let Some([a, b, c, d]) = number.filter(|_| kind == libc::NLMSG_ERROR as u16) else {
        return Err(io::Error::other(
            "the kernel gave another answer than was asked for",
        ));
    };
    match (change, -i32::from_ne_bytes([*a, *b, *c, *d])) {
        (_, 0) => Ok(true),
        (Change::Add, libc::EEXIST) | (Change::Remove, libc::EADDRNOTAVAIL) => Ok(false),
        (_, error) => Err(io::Error::from_raw_os_error(error)),
    }
}

/// The message: header, `ifaddrmsg`, and the address as the own one and that of the prefix.
fn request(interface: u32, change: Change, address: IpAddr, prefix_len: u8) -> Vec<u8> {
    let (family, octets) = match address {
        IpAddr::V4(address) => (libc::AF_INET, address.octets().to_vec()),
        IpAddr::V6(address) => (libc::AF_INET6, address.octets().to_vec()),
    };
    let (kind, flags) = match change {
        Change::Add => (libc::RTM_NEWADDR, libc::NLM_F_CREATE | libc::NLM_F_EXCL),
        Change::Remove => (libc::RTM_DELADDR, 0),
    };
    let flags = flags | libc::NLM_F_REQUEST | libc::NLM_F_ACK;
    let mut body = vec![family as u8, prefix_len, libc::IFA_F_NODAD as u8, 0];
    body.extend_from_slice(&interface.to_ne_bytes());
    for attribute in [libc::IFA_LOCAL, libc::IFA_ADDRESS] {
        body.extend_from_slice(&(4 + octets.len() as u16).to_ne_bytes());
        body.extend_from_slice(&attribute.to_ne_bytes());
        body.extend_from_slice(&octets);
    }
    let mut message = ((HEADER + body.len()) as u32).to_ne_bytes().to_vec();
    message.extend_from_slice(&kind.to_ne_bytes());
    message.extend_from_slice(&(flags as u16).to_ne_bytes());
    // A sequence number, and the kernel's own address.
    message.extend_from_slice(&[0; 8]);
    message.extend_from_slice(&body);
    message
}
