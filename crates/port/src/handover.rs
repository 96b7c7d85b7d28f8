//! Ports that another process takes over.
//!
//! A packet socket goes to the other process as it is, with the frames that wait in it: none is
//! lost or seen twice.
//!
//! Of AF_XDP, the program and its map go to the other process, and the socket and its memory do
//! not. [`Handover::pause`] takes the socket out of the map; from then on the program passes frames
//! to the kernel, where a packet socket that the other process has opened before keeps them. It
//! forwards with that until it has an AF_XDP socket of its own, which the kernel grants once this
//! one is closed, and puts that into the map ([`crate::XdpPort::open_after`]). The program never
//! leaves the interface, so the driver is not reset.
//!
//! Handing over the memory as well would need pools in a memfd. Memory of a file has no huge pages
//! unless the administrator allows them (`/sys/kernel/mm/transparent_hugepage/shmem_enabled`), so
//! every packet would pay for it, and two versions of a program would have to agree on the layout
//! of slots and rings.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use crate::{xdp, Pool, XdpMode};

/// The operations of a port that another process can take over.
pub trait Handover {
    /// Returns duplicates of the descriptors that the other process needs.
    ///
    /// # Errors
    /// This process has no descriptor left.
    fn descriptors(&self) -> io::Result<Descriptors>;

    /// Stops the arrival of frames. Returns true if frames that have arrived can be received by
    /// this process only, and are to be received until there are no more; if false, no frame may be
    /// received any more, because those that wait are the other process's.
    ///
    /// # Errors
    /// The interface is gone.
    fn pause(&mut self) -> io::Result<bool>;

    /// Returns true once every frame that was sent has left.
    ///
    /// # Errors
    /// The interface is gone.
    fn has_sent_all(&mut self) -> io::Result<bool>;

    /// Lets frames arrive again, because no process took the port over.
    ///
    /// # Errors
    /// The interface is gone.
    fn resume(&mut self) -> io::Result<()>;

    /// Leaves to the other process what [`Handover::descriptors`] returned: dropping the port does
    /// not undo it.
    fn leave(&mut self);

    /// Returns duplicates of all descriptors whose closing takes long, to be closed by another
    /// thread after the port was dropped.
    ///
    /// # Errors
    /// This process has no descriptor left.
    fn duplicates(&self) -> io::Result<Vec<OwnedFd>> {
        Ok(Vec::new())
    }
}

/// The descriptors of a port, for another process.
#[derive(Debug)]
pub enum Descriptors {
    /// A packet socket.
    Packet(OwnedFd),
    /// The map of AF_XDP from queues to sockets, and the link of its program to the interface.
    Xdp {
        /// The mode of the program.
        mode: XdpMode,
        /// True if the program receives frames longer than a page.
        in_parts: bool,
        /// The map and the link.
        fds: [OwnedFd; 2],
    },
}

impl Descriptors {
    /// Returns the name of the kind, by which the other process knows what the descriptors are.
    pub fn name(&self) -> String {
        match self {
            Descriptors::Packet(_) => PACKET.into(),
            Descriptors::Xdp { mode, in_parts, .. } => {
                let parts = if *in_parts { IN_PARTS } else { "" };
                format!("{mode}{parts}")
            }
        }
    }

    /// Makes descriptors of a kind, in the order of [`Descriptors::into_fds`]; `None` if there is
    /// no such kind, or it has another number of descriptors.
    pub fn new(name: &str, fds: Vec<OwnedFd>) -> Option<Descriptors> {
        let modes = [XdpMode::Generic, XdpMode::Native, XdpMode::ZeroCopy];
        let stem = name.strip_suffix(IN_PARTS);
        let named = stem.unwrap_or(name);
        match modes.into_iter().find(|mode| mode.name() == named) {
            Some(mode) => Some(Descriptors::Xdp {
                mode,
                in_parts: stem.is_some(),
                fds: fds.try_into().ok()?,
            }),
            None if name == PACKET => {
                let [socket] = <[OwnedFd; 1]>::try_from(fds).ok()?;
                Some(Descriptors::Packet(socket))
            }
            None => None,
        }
    }

    /// Returns the descriptors, to be sent.
    pub fn into_fds(self) -> Vec<OwnedFd> {
        match self {
            Descriptors::Packet(socket) => vec![socket],
            Descriptors::Xdp { fds, .. } => fds.into(),
        }
    }

    /// Returns true if a port over this pool can receive with them.
    pub fn fit(&self, pool: &Pool) -> bool {
        match self {
            Descriptors::Packet(_) => true,
            Descriptors::Xdp { in_parts, .. } => *in_parts == xdp::in_parts(pool),
        }
    }

    /// Duplicates the descriptors.
    ///
    /// # Errors
    /// This process has no descriptor left.
    pub fn try_clone(&self) -> io::Result<Descriptors> {
        Ok(match self {
            Descriptors::Packet(socket) => Descriptors::Packet(socket.try_clone()?),
            Descriptors::Xdp {
                mode,
                in_parts,
                fds: [map, link],
            } => Descriptors::Xdp {
                mode: *mode,
                in_parts: *in_parts,
                fds: [map.try_clone()?, link.try_clone()?],
            },
        })
    }
}

const PACKET: &str = "packet socket";
const IN_PARTS: &str = ", frames in parts";

/// Reads a field of `/proc/self/fdinfo` of a descriptor; `None` if it has none, as one of another
/// type.
pub(crate) fn info(fd: &OwnedFd, field: &str) -> Option<String> {
    let path = format!("/proc/self/fdinfo/{}", fd.as_raw_fd());
    let text = std::fs::read_to_string(path).ok()?;
    let mut lines = text.lines().filter_map(|line| line.split_once(':'));
    let (_, value) = lines.find(|(name, _)| *name == field)?;
    Some(value.trim().to_owned())
}
