//! TAP devices, as ports and as the network of a virtual machine: what the kernel sends on the
//! interface is received here, and what is sent here the kernel receives.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;

use crate::syscall::check;
use crate::{Burst, Counters, Error, Frame, Interface, Pool, Port};

/// The process's side of a TAP device. The device goes away with the port, unless it was there
/// before.
///
/// The kernel computes checksums and cuts packets before they come here. What waits to be received
/// is up to the device's transmit queue (`ip link set NAME txqueuelen N`).
pub struct TapPort {
    device: File,
    interface: Interface,
    pool: Pool,
    /// Grown over all its room, for the frame that comes next.
    spare: Option<Frame>,
    counters: Counters,
    /// Frames that the device had dropped before.
    dropped_before: u64,
}

impl TapPort {
    /// Makes a TAP device of this name, or opens the one that there is, and takes it up.
    ///
    /// # Errors
    /// Without CAP_NET_ADMIN, where something else has the name, or where the kernel has no TAP
    /// devices.
    pub fn open(name: &str, pool: &Pool) -> Result<TapPort, Error> {
        let (device, interface, _) = open(name, 0)?;
        let mut port = TapPort {
            device,
            interface,
            pool: pool.clone(),
            spare: None,
            counters: Counters::default(),
            dropped_before: 0,
        };
        port.dropped_before = port.dropped();
        Ok(port)
    }

    /// The kernel's side.
    pub fn interface(&self) -> &Interface {
        &self.interface
    }

    /// Frames that the device's queue had no room for, since it was made.
    fn dropped(&self) -> u64 {
        fs::read_to_string("/proc/thread-self/net/dev")
            .ok()
            .and_then(|table| dropped_in(&table, self.interface.name()))
            .unwrap_or(self.dropped_before)
    }
}

/// Bytes of the header of a [`VnetTap`]'s frames.
pub const VNET_HEADER: usize = 10;

/// The process's side of a TAP device whose frames have a virtio-net header (virtio 1.2, 5.1.6,
/// without `num_buffers`), by which checksums and the cutting of large packets can be left to the
/// kernel: the network of a virtual machine. The device goes away with it, unless it was there
/// before.
pub struct VnetTap {
    device: File,
    interface: Interface,
    is_new: bool,
    dropped: u64,
}

impl VnetTap {
    /// Makes a TAP device of this name, or opens the one that there is, and takes it up. With
    /// `receives_large` the kernel leaves checksums and cutting to this side: packets of TCP have
    /// up to 64 KiB and a partial checksum. Without, it sends frames of the MTU.
    ///
    /// # Errors
    /// As [`TapPort::open`].
    pub fn open(name: &str, receives_large: bool) -> Result<VnetTap, Error> {
        VnetTap::queue(name, receives_large, 0)
    }

    /// Opens so many queues of a TAP device, as [`VnetTap::open`] does one. The kernel chooses the
    /// queue of a frame that it sends, by flow, and takes frames from all of them.
    ///
    /// # Errors
    /// As [`VnetTap::open`]; and for more than one queue, if the device was there before and was
    /// made with one.
    pub fn open_queues(
        name: &str,
        receives_large: bool,
        queues: usize,
    ) -> Result<Vec<VnetTap>, Error> {
        let flags = match queues {
            0 | 1 => 0,
            _ => libc::IFF_MULTI_QUEUE,
        };
        let all = 0..queues.max(1);
        all.map(|_| VnetTap::queue(name, receives_large, flags))
            .collect()
    }

    fn queue(name: &str, receives_large: bool, flags: libc::c_int) -> Result<VnetTap, Error> {
        let (device, interface, is_new) = open(name, libc::IFF_VNET_HDR | flags)?;
        let offloads = match receives_large {
            true => libc::TUN_F_CSUM | libc::TUN_F_TSO4 | libc::TUN_F_TSO6,
            false => 0,
        };
        // SAFETY: this request takes a number.
        let set = unsafe {
            libc::ioctl(
                device.as_raw_fd(),
                libc::TUNSETOFFLOAD,
                libc::c_ulong::from(offloads),
            )
        };
        check(set)
            .map_err(|error| Error::os(format!("setting the offloads of \"{name}\""), error))?;
        Ok(VnetTap {
            device,
            interface,
            is_new,
            dropped: 0,
        })
    }

    /// The kernel's side.
    pub fn interface(&self) -> &Interface {
        &self.interface
    }

    /// True if the device was made with this queue, and not there before.
    pub fn is_new(&self) -> bool {
        self.is_new
    }

    /// The number of frames that were dropped: those that the kernel did not take and those that
    /// filled all the room for one that is received.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Receives the next frame and returns its length; `None` if there is none now. A frame that
    /// fills `frame` may have been cut, and is dropped.
    ///
    /// # Errors
    /// The interface is gone.
    pub fn receive(
        &mut self,
        header: &mut [u8; VNET_HEADER],
        frame: &mut [u8],
    ) -> io::Result<Option<usize>> {
        loop {
            let room = frame.len();
            let parts = &mut [IoSliceMut::new(header), IoSliceMut::new(frame)];
            match self.device.read_vectored(parts) {
                Ok(len) if (VNET_HEADER..VNET_HEADER + room).contains(&len) => {
                    return Ok(Some(len - VNET_HEADER));
                }
                Ok(_) => self.dropped += 1,
                Err(error) => match error.raw_os_error() {
                    Some(libc::EAGAIN) => return Ok(None),
                    Some(libc::EINTR) => {}
                    _ => return Err(gone(error)),
                },
            }
        }
    }

    /// Sends a frame; returns false if the device has no room for it now. One that the kernel
    /// refuses, by its header or as the interface is down, is dropped.
    ///
    /// # Errors
    /// The interface is gone.
    pub fn send(&mut self, header: &[u8; VNET_HEADER], frame: &[u8]) -> io::Result<bool> {
        let parts = [IoSlice::new(header), IoSlice::new(frame)];
        match self.device.write_vectored(&parts) {
            // The kernel takes a frame whole or not at all.
            Ok(len) => {
                self.dropped += u64::from(len != VNET_HEADER + frame.len());
                Ok(true)
            }
            Err(error) => match error.raw_os_error() {
                Some(libc::EAGAIN | libc::EINTR) => Ok(false),
                Some(libc::EIO | libc::EINVAL | libc::ENOMEM) => {
                    self.dropped += 1;
                    Ok(true)
                }
                _ => Err(gone(error)),
            },
        }
    }
}

impl AsFd for VnetTap {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.device.as_fd()
    }
}

impl fmt::Debug for VnetTap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.interface.name();
        write!(f, "VnetTap({name}, {} dropped)", self.dropped)
    }
}

/// Makes or opens the TAP device of this name, with further flags of `TUNSETIFF`, and takes it up.
/// The last part of the result is true if it was made.
fn open(name: &str, flags: libc::c_int) -> Result<(File, Interface, bool), Error> {
    let failed = |error: io::Error| {
        let error = match reason(name, flags, &error) {
            Some(reason) => io::Error::new(error.kind(), reason),
            None => error,
        };
        Error::os(format!("opening the TAP device \"{name}\""), error)
    };
    check_name(name).map_err(failed)?;
    let was_there = Interface::by_name(name).is_ok();
    let device = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NONBLOCK)
        .open("/dev/net/tun")
        .map_err(|error| Error::os("opening /dev/net/tun", error))?;
    attach(&device, name, flags).map_err(failed)?;
    let interface = Interface::by_name(name)?;
    interface.set_up(true).map_err(failed)?;
    Ok((device, interface, !was_there))
}

/// Checks the name of a device before the kernel does, which only says that something is invalid.
fn check_name(name: &str) -> io::Result<()> {
    let most = libc::IFNAMSIZ - 1;
    let found = match name.len() {
        0 => "found an empty name".to_owned(),
        len if len > most => format!("found a name of {len} bytes"),
        _ => match name.chars().find(|c| !is_of_name(*c)) {
            Some(found) => format!("found {found:?} in the name"),
            None if name == "." || name == ".." => format!("found \"{name}\""),
            None => return Ok(()),
        },
    };
    let error = format!("{found}, expected 1 to {most} bytes without spaces and any of /:%");
    Err(io::Error::new(io::ErrorKind::InvalidInput, error))
}

/// Returns true for a character that the kernel takes in a name which it is to use as it is.
fn is_of_name(c: char) -> bool {
    !c.is_whitespace() && !c.is_control() && !matches!(c, '/' | ':' | '%')
}

/// Returns the meaning of an error of the device of this name that was opened with these flags of
/// `TUNSETIFF`; `None` if the error says it itself.
fn reason(name: &str, flags: libc::c_int, error: &io::Error) -> Option<String> {
    let code = error.raw_os_error()?;
    if code == libc::EBUSY {
        return Some("it is in use by another process, or with other queues".to_owned());
    }
    let interface = Interface::by_name(name)
        .ok()
        .filter(|_| code == libc::EINVAL)?;
    let (driver, bus) = (interface.driver(), interface.bus());
    let found = match (driver.as_deref(), bus.as_deref()) {
        (Some("tun"), Some("tap")) if flags & libc::IFF_MULTI_QUEUE != 0 => {
            "found one with a single queue, expected one that was made with \"multi_queue\""
        }
        (Some("tun"), Some("tap")) => {
            "found one that was made with \"multi_queue\", expected one with a single queue"
        }
        (Some("tun"), _) => "found a TUN device, expected a TAP device",
        _ => "found another interface of this name, expected a TAP device or none",
    };
    Some(found.to_owned())
}

/// The transmit drops of an interface in `/proc/net/dev`: name, eight numbers of receiving, and of
/// sending bytes, packets, errors, drops.
fn dropped_in(table: &str, name: &str) -> Option<u64> {
    let mut numbers = table.lines().find_map(|line| {
        let (of, numbers) = line.split_once(':')?;
        (of.trim() == name).then(|| numbers.split_whitespace())
    })?;
    numbers.nth(8 + 3)?.parse().ok()
}

fn attach(device: &File, name: &str, flags: libc::c_int) -> io::Result<()> {
    // SAFETY: plain numbers and pointers, for which zero is a value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    // The name was checked to leave room for the zero behind it.
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_TAP | libc::IFF_NO_PI | flags) as i16;
    // SAFETY: this request reads and writes an `ifreq`.
    check(unsafe { libc::ioctl(device.as_raw_fd(), libc::TUNSETIFF, &mut request) })?;
    Ok(())
}

impl Port for TapPort {
    fn receive(&mut self, burst: &mut Burst, max: usize) -> io::Result<usize> {
        let before = burst.len();
        while burst.len() - before < max {
            let spare = self.spare.take().or_else(|| {
                let mut frame = self.pool.take()?;
                frame.append(frame.tailroom())?;
                Some(frame)
            });
            let Some(mut frame) = spare else {
                break;
            };
            let room = frame.len();
            match self.device.read(&mut frame) {
                // The kernel cuts what has no room, and does not tell.
                Ok(len) if len == room => {
                    self.counters.rx_dropped += 1;
                    self.spare = Some(frame);
                }
                Ok(len) => {
                    frame.truncate(len);
                    self.counters.rx_bytes += len as u64;
                    burst.push(frame);
                }
                Err(error) => {
                    self.spare = Some(frame);
                    match error.raw_os_error() {
                        Some(libc::EAGAIN) => break,
                        Some(libc::EINTR) => {}
                        _ => return Err(gone(error)),
                    }
                }
            }
        }
        let n = burst.len() - before;
        self.counters.rx_packets += n as u64;
        Ok(n)
    }

    fn send(&mut self, burst: &mut Burst) -> io::Result<usize> {
        let (mut taken, mut failed) = (0, None);
        for frame in burst.iter() {
            match self.device.write(frame) {
                Ok(_) => {}
                Err(error) => match error.raw_os_error() {
                    Some(libc::EAGAIN | libc::EINTR) => break,
                    // Down; or no Ethernet header.
                    Some(libc::EIO | libc::EINVAL | libc::ENOMEM) => self.counters.tx_dropped += 1,
                    _ => {
                        failed = Some(gone(error));
                        break;
                    }
                },
            }
            self.counters.tx_bytes += frame.len() as u64;
            taken += 1;
        }
        burst.drain(..taken);
        self.counters.tx_packets += taken as u64;
        failed.map_or(Ok(taken), Err)
    }

    fn counters(&self) -> Counters {
        Counters {
            rx_dropped: self.counters.rx_dropped + (self.dropped() - self.dropped_before),
            ..self.counters
        }
    }

    fn wait_on(&self) -> Option<BorrowedFd<'_>> {
        Some(self.as_fd())
    }
}

impl AsFd for TapPort {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.device.as_fd()
    }
}

impl fmt::Debug for TapPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TapPort({}, {:?})", self.interface.name(), self.counters)
    }
}

#[cold]
fn gone(error: io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(libc::EBADFD | libc::EFAULT) => {
            io::Error::new(io::ErrorKind::NotConnected, "the interface is gone")
        }
        _ => error,
    }
}

#[cfg(test)]
mod tests {
    use super::dropped_in;

    #[test]
    fn drops_are_read_from_the_kernels_table() {
        let table = "Inter-|   Receive                    |  Transmit\n face |bytes ...\n  \
                     tap1: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16\ntap10:1 2 3 4 5 6 7 8 9 10 11 77 13 14 15 16\n";
        for (name, dropped) in [("tap1", Some(12)), ("tap10", Some(77)), ("tap", None)] {
            assert_eq!(dropped_in(table, name), dropped, "{name}");
        }
        assert_eq!(dropped_in("tap: 1 2", "tap"), None);
    }
}
