//! Packet sockets that another process has opened.

use std::io;
use std::mem;
use std::os::fd::{AsRawFd, OwnedFd};

use super::group::Group;
use super::PacketPort;
use crate::syscall::check;
use crate::{Descriptors, Error, Handover, Interface, Pool};

impl PacketPort {
    /// Takes over the socket of a port that another process has opened with
    /// [`PacketPort::open_share`] on this interface, with the frames that wait in it.
    ///
    /// # Errors
    /// It is no packet socket, or not one of this interface.
    pub fn take_over(
        interface: &Interface,
        pool: &Pool,
        socket: OwnedFd,
    ) -> Result<PacketPort, Error> {
        let take = || {
            let at = bound_to(&socket)?;
            if at != interface.index() {
                let error = format!("it is bound to interface {at}, not {}", interface.index());
                return Err(io::Error::other(error));
            }
            let group = Group::of_inherited(&socket, interface)?;
            PacketPort::of(socket, interface, pool, group)
        };
        take().map_err(|error| {
            let doing = format!("taking over the packet socket of {}", interface.name());
            Error::os(doing, error)
        })
    }
}

/// Returns the number of the interface that a packet socket is bound to.
fn bound_to(socket: &OwnedFd) -> io::Result<u32> {
    let mut address = super::address(0);
    let mut size = mem::size_of_val(&address) as libc::socklen_t;
    // SAFETY: the kernel writes at most as many bytes as it is told, and any bytes are an address.
    check(unsafe {
        libc::getsockname(
            socket.as_raw_fd(),
            (&mut address as *mut libc::sockaddr_ll).cast(),
            &mut size,
        )
    })?;
    if i32::from(address.sll_family) != libc::AF_PACKET {
        return Err(io::Error::other("it is no packet socket"));
    }
    Ok(address.sll_ifindex as u32)
}

impl Handover for PacketPort {
    fn descriptors(&self) -> io::Result<Descriptors> {
        Ok(Descriptors::Packet(self.socket.try_clone()?))
    }

    fn pause(&mut self) -> io::Result<bool> {
        Ok(false)
    }

    fn has_sent_all(&mut self) -> io::Result<bool> {
        Ok(true)
    }

    fn resume(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn leave(&mut self) {}

    fn duplicates(&self) -> io::Result<Vec<OwnedFd>> {
        Ok(vec![
            self.socket.try_clone()?,
            self._promiscuous.try_clone()?,
        ])
    }
}
