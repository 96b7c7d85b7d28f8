//! The program that hands an interface's frames to the sockets of its queues.

use std::collections::HashMap;
use std::io;
use std::mem;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError, Weak};

use super::mode::XdpMode;
use super::sender::Lanes;
use crate::handover::info;
use crate::syscall::check;
use crate::Interface;

/// The program on an interface, and its map from queues to sockets. It leaves the interface with
/// the last port that holds this, also when the process dies: the kernel keeps it only as long as
/// the descriptor is open.
#[derive(Debug)]
pub(super) struct Attachment {
    generic: bool,
    in_parts: bool,
    map: OwnedFd,
    link: OwnedFd,
    /// False while the program is another process's, too.
    is_own: AtomicBool,
    /// The lanes, and the program with them, if it can send as well.
    pub(super) lanes: Option<(Lanes, OwnedFd)>,
}

/// By network namespace and interface: one program serves all queues, whichever threads they are
/// on.
static ATTACHED: LazyLock<Mutex<Attached>> = LazyLock::new(Mutex::default);

type Attached = HashMap<(u64, u32), Weak<Attachment>>;

impl Attachment {
    /// Returns the attachment of an interface, if it has one.
    pub(super) fn find(interface: &Interface) -> io::Result<Option<Arc<Attachment>>> {
        let attached = ATTACHED.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(attached.get(&interface.key()?).and_then(Weak::upgrade))
    }

    /// Attaches the program, or finds it attached. It receives frames `in_parts`, longer than a
    /// chunk, or drops those; with `lanes` above 0 it can send as well.
    pub(super) fn new(
        interface: &Interface,
        mode: XdpMode,
        in_parts: bool,
        lanes: u32,
    ) -> io::Result<Arc<Attachment>> {
        Attachment::find_or(interface, mode, in_parts, |generic| {
            Attachment::attach(interface, generic, in_parts, lanes)
        })
    }

    /// Makes one of the map and the link that another process made, or finds the program attached.
    /// It does not send, because the lanes stay with the other process.
    pub(super) fn take_over(
        interface: &Interface,
        mode: XdpMode,
        in_parts: bool,
        [map, link]: [OwnedFd; 2],
    ) -> io::Result<Arc<Attachment>> {
        let xskmap = BPF_MAP_TYPE_XSKMAP.to_string();
        if info(&map, "map_type") != Some(xskmap) {
            return Err(io::Error::other("it has no map of AF_XDP sockets"));
        }
        let at = interface.index().to_string();
        if info(&link, "link_type").as_deref() != Some("xdp") || info(&link, "ifindex") != Some(at)
        {
            return Err(io::Error::other("it has no link to this interface"));
        }
        Attachment::find_or(interface, mode, in_parts, |generic| {
            Ok(Attachment {
                generic,
                in_parts,
                map,
                link,
                is_own: AtomicBool::new(false),
                lanes: None,
            })
        })
    }

    fn find_or(
        interface: &Interface,
        mode: XdpMode,
        in_parts: bool,
        make: impl FnOnce(bool) -> io::Result<Attachment>,
    ) -> io::Result<Arc<Attachment>> {
        let generic = mode == XdpMode::Generic;
        let key = interface.key()?;
        let mut attached = ATTACHED.lock().unwrap_or_else(PoisonError::into_inner);
        attached.retain(|_, attachment| attachment.strong_count() > 0);
        if let Some(attachment) = attached.get(&key).and_then(Weak::upgrade) {
            if attachment.in_parts != in_parts {
                return Err(io::Error::other(
                    "another queue of the interface is open with slots of another length, and all must fit in a page, or none",
                ));
            }
            if attachment.generic != generic {
                let (is, _) = names(attachment.generic);
                return Err(io::Error::other(format!(
                    "another queue of the interface is open in {is} mode, and all must be in the same"
                )));
            }
            return Ok(attachment);
        }
        let attachment = Arc::new(make(generic)?);
        attached.insert(key, Arc::downgrade(&attachment));
        Ok(attachment)
    }

    fn attach(
        interface: &Interface,
        generic: bool,
        in_parts: bool,
        lanes: u32,
    ) -> io::Result<Attachment> {
        let queues = interface.queues().max(64);
        let map = make_map(Map::Sockets(queues))?;
        let lanes = (lanes > 0)
            .then(|| Lanes::new(interface, lanes))
            .transpose()?;
        let mut instructions = Vec::new();
        if let Some(lanes) = &lanes {
            instructions.extend(lanes.instructions());
        }
        instructions.extend(redirect(&map));
        let program = load(&instructions, in_parts)?;
        let link = attach(&program, interface.index(), generic).map_err(|error| {
            match error.raw_os_error() {
                Some(libc::EBUSY | libc::EEXIST) => io::Error::new(
                    io::ErrorKind::ResourceBusy,
                    format!(
                        "an XDP program of another process is on it; see `ip -details link show {0}`, and `ip link set {0} xdp off`",
                        interface.name()
                    ),
                ),
                _ => error,
            }
        })?;
        Ok(Attachment {
            generic,
            in_parts,
            map,
            link,
            is_own: AtomicBool::new(true),
            lanes: lanes.map(|lanes| (lanes, program)),
        })
    }

    /// Returns true if the program receives frames longer than a chunk.
    pub(super) fn in_parts(&self) -> bool {
        self.in_parts
    }

    /// Returns duplicates of the map and the link.
    pub(super) fn descriptors(&self) -> io::Result<[OwnedFd; 2]> {
        Ok([self.map.try_clone()?, self.link.try_clone()?])
    }

    /// Leaves the program to another process.
    pub(super) fn leave(&self) {
        self.is_own.store(false, Ordering::Relaxed);
    }

    /// Sends the frames of a queue to no socket any more, and waits until none is being passed to
    /// one: some milliseconds.
    pub(super) fn stop(&self, queue: u32) {
        self.remove(queue);
        // What found the socket in the map did so in a critical section of RCU, and this waits for
        // all of them.
        // SAFETY: takes numbers only.
        unsafe { libc::syscall(libc::SYS_membarrier, libc::MEMBARRIER_CMD_GLOBAL, 0, 0) };
    }

    /// Sends the frames of a queue to no socket any more. A frame that is being passed to one may
    /// still arrive there.
    pub(super) fn remove(&self, queue: u32) {
        let attr = Element {
            map_fd: self.map.as_raw_fd() as u32,
            pad: 0,
            key: (&queue as *const u32) as u64,
            value: 0,
            flags: 0,
        };
        // SAFETY: the key is of the four bytes that the map was made with, and lives until the call
        // returns. That there is no such entry any more is as good.
        let _ = unsafe { bpf(BPF_MAP_DELETE_ELEM, &attr) };
    }

    /// Sends the frames of a queue to a socket from now on, until the socket is closed.
    pub(super) fn direct(&self, queue: u32, socket: BorrowedFd<'_>) -> io::Result<()> {
        let fd = socket.as_raw_fd() as u32;
        let attr = Element {
            map_fd: self.map.as_raw_fd() as u32,
            pad: 0,
            key: (&queue as *const u32) as u64,
            value: (&fd as *const u32) as u64,
            flags: 0,
        };
        // SAFETY: key and value are of the four bytes that the map was made with, and live until
        // the call returns.
        unsafe { bpf(BPF_MAP_UPDATE_ELEM, &attr) }?;
        self.is_own.store(true, Ordering::Relaxed);
        Ok(())
    }
}

impl Drop for Attachment {
    fn drop(&mut self) {
        if !*self.is_own.get_mut() {
            return;
        }
        // Closing the descriptor does the same, unless a process that was just forked has a copy
        // until it executes something else.
        let attr = self.link.as_raw_fd() as u32;
        // SAFETY: holds no pointer.
        let _ = unsafe { bpf(BPF_LINK_DETACH, &attr) };
    }
}

const fn names(generic: bool) -> (&'static str, u32) {
    if generic {
        ("generic", XDP_FLAGS_SKB_MODE)
    } else {
        ("native", XDP_FLAGS_DRV_MODE)
    }
}

/// The maps that are made here.
#[derive(Clone, Copy)]
pub(super) enum Map {
    /// From queues, so many, to sockets.
    Sockets(u32),
    /// Memory that this process can map: so many values of so many bytes.
    Memory(u32, u32),
}

pub(super) fn make_map(map: Map) -> io::Result<OwnedFd> {
    let (map_type, max_entries, value_size, flags) = match map {
        Map::Sockets(queues) => (BPF_MAP_TYPE_XSKMAP, queues, 4, 0),
        Map::Memory(values, bytes) => (BPF_MAP_TYPE_ARRAY, values, bytes, BPF_F_MMAPABLE),
    };
    let attr = MapCreate {
        map_type,
        key_size: 4,
        value_size,
        max_entries,
        flags,
    };
    // SAFETY: holds no pointer.
    let fd = unsafe { bpf(BPF_MAP_CREATE, &attr) }?;
    // SAFETY: just opened, and not known elsewhere.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// `return bpf_redirect_map(&map, context->rx_queue_index, XDP_PASS)`: what is of no socket's queue
/// goes on to the kernel.
fn redirect(map: &OwnedFd) -> [Instruction; 6] {
    [
        Instruction(0x61, 0x12, 16, 0),              // r2 = *(u32 *)(r1 + 16)
        Instruction(0x18, 0x11, 0, map.as_raw_fd()), // r1 = map
        Instruction(0, 0, 0, 0),                     //
        Instruction(0xb7, 0x03, 0, XDP_PASS),        // r3 = XDP_PASS
        Instruction(0x85, 0, 0, BPF_FUNC_redirect_map), // call
        Instruction(0x95, 0, 0, 0),                  // exit
    ]
}

fn load(program: &[Instruction], in_parts: bool) -> io::Result<OwnedFd> {
    // It calls only what is free to use for all.
    let license = c"Dual MIT/GPL";
    let attr = ProgramLoad {
        program_type: BPF_PROG_TYPE_XDP,
        instructions: program.len() as u32,
        program: program.as_ptr() as u64,
        license: license.as_ptr() as u64,
        log: [0; 4],
        version: 0,
        flags: if in_parts { BPF_F_XDP_HAS_FRAGS } else { 0 },
        name: *b"tare_port\0\0\0\0\0\0\0",
    };
    // SAFETY: points to as many instructions as it says and to a string with a zero at its end,
    // both of which outlive the call.
    let fd = unsafe { bpf(BPF_PROG_LOAD, &attr) }?;
    // SAFETY: just opened, and not known elsewhere.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn attach(program: &OwnedFd, interface: u32, generic: bool) -> io::Result<OwnedFd> {
    let attr = LinkCreate {
        program: program.as_raw_fd() as u32,
        interface,
        attach_type: BPF_XDP,
        flags: names(generic).1,
    };
    // SAFETY: holds no pointer.
    let fd = unsafe { bpf(BPF_LINK_CREATE, &attr) }?;
    // SAFETY: just opened, and not known elsewhere.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// # Safety
/// Pointers in `attr` are as the command wants them.
pub(super) unsafe fn bpf<T>(command: libc::c_int, attr: &T) -> io::Result<libc::c_int> {
    // SAFETY: the kernel reads at most as many bytes as it is told, which are those of `attr`; the
    // caller answers for what it points to.
    let answer = unsafe { libc::syscall(libc::SYS_bpf, command, attr, mem::size_of::<T>()) };
    check(answer as libc::c_int)
}

// What follows is `union bpf_attr` of <linux/bpf.h>, one member a command; each may end early.

#[repr(C)]
struct MapCreate {
    map_type: u32,
    key_size: u32,
    value_size: u32,
    max_entries: u32,
    flags: u32,
}

#[repr(C)]
struct Element {
    map_fd: u32,
    pad: u32,
    key: u64,
    value: u64,
    flags: u64,
}

#[repr(C)]
struct ProgramLoad {
    program_type: u32,
    instructions: u32,
    program: u64,
    license: u64,
    /// Level, size and place of the verifier's log: none.
    log: [u32; 4],
    version: u32,
    flags: u32,
    name: [u8; 16],
}

#[repr(C)]
struct LinkCreate {
    program: u32,
    interface: u32,
    attach_type: u32,
    flags: u32,
}

/// Code, registers (source in the upper half, destination in the lower), offset, immediate.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Instruction(pub(super) u8, pub(super) u8, pub(super) i16, pub(super) i32);

const BPF_MAP_CREATE: i32 = 0;
const BPF_MAP_UPDATE_ELEM: i32 = 2;
const BPF_MAP_DELETE_ELEM: i32 = 3;
const BPF_PROG_LOAD: i32 = 5;
const BPF_LINK_CREATE: i32 = 28;
const BPF_LINK_DETACH: i32 = 34;
const BPF_MAP_TYPE_ARRAY: u32 = 2;
const BPF_MAP_TYPE_XSKMAP: u32 = 17;
const BPF_F_MMAPABLE: u32 = 1 << 10;
const BPF_F_XDP_HAS_FRAGS: u32 = 1 << 5;
const BPF_PROG_TYPE_XDP: u32 = 6;
const BPF_XDP: u32 = 37;
#[allow(non_upper_case_globals)] // As the kernel writes it.
const BPF_FUNC_redirect_map: i32 = 51;
const XDP_PASS: i32 = 2;
const XDP_FLAGS_SKB_MODE: u32 = 1 << 1;
const XDP_FLAGS_DRV_MODE: u32 = 1 << 2;
