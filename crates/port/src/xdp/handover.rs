//! AF_XDP ports that another process takes over; see [`Handover`].

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::program::Attachment;
use super::{in_parts, XdpMode, XdpPort};
use crate::{Descriptors, Error, Handover, Interface, Pool};

/// The program of AF_XDP on an interface, as another process has attached it. While this exists,
/// [`XdpPort`]s on the interface use the program instead of attaching one.
#[derive(Debug)]
pub struct XdpProgram {
    _attachment: Arc<Attachment>,
}

impl XdpProgram {
    /// Takes over the map and the link of a program, for ports over pools like this one, which
    /// [`Descriptors::fit`]. It stays with the other process, too, until a port is opened with it;
    /// only then does it leave the interface with the last port.
    ///
    /// # Errors
    /// They are not a map and a link of AF_XDP on this interface, or a port of this process has
    /// attached a program in another mode.
    pub fn take_over(
        interface: &Interface,
        pool: &Pool,
        mode: XdpMode,
        fds: [OwnedFd; 2],
    ) -> Result<XdpProgram, Error> {
        let taken = Attachment::take_over(interface, mode, in_parts(pool), fds);
        let _attachment = taken.map_err(|error| {
            let doing = format!("taking over the XDP program of {}", interface.name());
            Error::os(doing, error)
        })?;
        Ok(XdpProgram { _attachment })
    }
}

impl XdpPort {
    /// Opens a queue that another process is about to close: as [`XdpPort::open`], but paused, and
    /// `None` while the kernel has not let go of the queue. To bind a socket may take a tenth of a
    /// second; a caller with several ports resumes them when it has them all, lest the ring of the
    /// first overflow.
    ///
    /// # Errors
    /// As [`XdpPort::open`], in this mode.
    pub fn open_after(
        interface: &Interface,
        queue: u32,
        pool: &Pool,
        mode: XdpMode,
    ) -> Result<Option<XdpPort>, Error> {
        XdpPort::check(interface, queue, pool)?;
        match XdpPort::open_in(interface, queue, pool, mode, 0, 0) {
            Ok(port) => Ok(Some(port)),
            // The queue, or the interface, on which a program is that was not taken over.
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => Ok(None),
            Err(error) => Err(Error::os(format!("{mode} on {}", interface.name()), error)),
        }
    }
}

impl Handover for XdpPort {
    fn descriptors(&self) -> io::Result<Descriptors> {
        let attachment = &self.kernel.attachment;
        Ok(Descriptors::Xdp {
            mode: self.mode,
            in_parts: attachment.in_parts(),
            fds: attachment.descriptors()?,
        })
    }

    fn pause(&mut self) -> io::Result<bool> {
        self.kernel.attachment.remove(self.kernel.queue);
        Ok(true)
    }

    fn has_sent_all(&mut self) -> io::Result<bool> {
        self.reclaim()?;
        if self.kernel.tx.untaken() > 0 {
            self.kick()?;
        }
        Ok(self.sending == 0 || self.down)
    }

    fn resume(&mut self) -> io::Result<()> {
        self.begin()
    }

    fn leave(&mut self) {
        self.kernel.attachment.leave();
    }
}
