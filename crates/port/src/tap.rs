//! Ports over TAP devices: what the kernel sends on the interface is received here, and what is
//! sent here the kernel receives.

use std::ffi::CString;
use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
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
        let failed = |error| Error::os(format!("opening the TAP device \"{name}\""), error);
        let device = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_NONBLOCK)
            .open("/dev/net/tun")
            .map_err(|error| Error::os("opening /dev/net/tun", error))?;
        attach(&device, name).map_err(failed)?;
        let interface = Interface::by_name(name)?;
        interface.set_up(true).map_err(failed)?;
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

/// The transmit drops of an interface in `/proc/net/dev`: name, eight numbers of receiving, and of
/// sending bytes, packets, errors, drops.
fn dropped_in(table: &str, name: &str) -> Option<u64> {
    let mut numbers = table.lines().find_map(|line| {
        let (of, numbers) = line.split_once(':')?;
        (of.trim() == name).then(|| numbers.split_whitespace())
    })?;
    numbers.nth(8 + 3)?.parse().ok()
}

fn attach(device: &File, name: &str) -> io::Result<()> {
    let invalid = || io::Error::from_raw_os_error(libc::EINVAL);
    let text = CString::new(name).map_err(|_| invalid())?;
    if name.is_empty() || name.len() >= libc::IFNAMSIZ || name.contains('%') {
        return Err(invalid());
    }
    // SAFETY: plain numbers and pointers, for which zero is a value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(text.as_bytes()) {
        *to = *from as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_TAP | libc::IFF_NO_PI) as i16;
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
