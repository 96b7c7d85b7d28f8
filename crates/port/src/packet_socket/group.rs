//! Groups of packet sockets that share what arrives on an interface (`PACKET_FANOUT`).

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, LazyLock, Mutex, PoisonError, Weak};

use crate::syscall::{option, set_option};
use crate::Interface;

/// The kernel's number of a group, held by each port in it.
///
/// The number is not used again after the last port of a group is closed: a process that was just
/// forked may keep a closed socket open a moment longer, and would be given a share of the frames.
#[derive(Debug)]
pub(super) struct Group(u32);

/// The groups in use, by network namespace and interface.
static GROUPS: LazyLock<Mutex<Groups>> = LazyLock::new(Mutex::default);

type Groups = HashMap<(u64, u32), Weak<Group>>;

impl Group {
    /// Puts a bound socket into the group of its interface, or into a new one if there is none.
    pub(super) fn join(socket: &OwnedFd, interface: &Interface) -> io::Result<Arc<Group>> {
        let key = interface.key()?;
        let mut groups = GROUPS.lock().unwrap_or_else(PoisonError::into_inner);
        groups.retain(|_, group| group.strong_count() > 0);
        let known = groups.get(&key).and_then(Weak::upgrade);
        let number = known
            .as_ref()
            // The kernel chooses the number of a new one.
            .map_or(libc::PACKET_FANOUT_FLAG_UNIQUEID << 16, |group| group.0);
        let how = libc::PACKET_FANOUT_HASH | libc::PACKET_FANOUT_FLAG_IGNORE_OUTGOING;
        let value = number | how << 16;
        set_option(socket, libc::SOL_PACKET, libc::PACKET_FANOUT, &value)?;
        if let Some(group) = known {
            return Ok(group);
        }
        let group = Arc::new(Group(fanout(socket)? & NUMBER));
        groups.insert(key, Arc::downgrade(&group));
        Ok(group)
    }

    /// Returns the group of a socket that another process has opened; `None` if it is in none. A
    /// socket that is opened later on this interface joins it: in another one it would receive
    /// every frame once more.
    pub(super) fn of_inherited(
        socket: &OwnedFd,
        interface: &Interface,
    ) -> io::Result<Option<Arc<Group>>> {
        let fanout = fanout(socket)?;
        if fanout == 0 {
            return Ok(None);
        }
        let number = fanout & NUMBER;
        let key = interface.key()?;
        let mut groups = GROUPS.lock().unwrap_or_else(PoisonError::into_inner);
        let known = groups.get(&key).and_then(Weak::upgrade);
        let group = known
            .filter(|group| group.0 == number)
            .unwrap_or_else(|| Arc::new(Group(number)));
        groups.insert(key, Arc::downgrade(&group));
        Ok(Some(group))
    }
}

/// The bits of the number in the kernel's answer; the kind of sharing and flags are above.
const NUMBER: u32 = 0xffff;

/// Returns the number of a socket's group, its kind and its flags; 0 if it is in none.
fn fanout(socket: &OwnedFd) -> io::Result<u32> {
    // SAFETY: a number, for which any bytes are a value.
    unsafe { option(socket, libc::SOL_PACKET, libc::PACKET_FANOUT, 0) }
}
