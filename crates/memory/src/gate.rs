//! Memory that a program can touch at times that it chooses, and not at others.

use std::cell::Cell;
use std::fmt;
use std::ptr::NonNull;

use rustix::mm::{mprotect, MprotectFlags};

use crate::error::Error;

/// The way to keep a program off its own mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Means {
    /// A protection key of the processor (PKU): opening and closing takes tens of cycles, and
    /// counts for the thread that does it.
    Key,
    /// `mprotect`: a system call each time, for tests on processors without keys.
    Pages,
}

/// The access of this program to one mapping: open or closed. While it is closed, a load or store
/// there ends the process (SIGSEGV).
pub(crate) struct Gate {
    start: NonNull<u8>,
    len: usize,
    /// The protection key; `None` for [`Means::Pages`].
    key: Option<u32>,
    is_open: Cell<bool>,
}

impl Gate {
    /// Returns the gate of a mapping, closed.
    ///
    /// # Safety
    /// All of `start..start + len` is one mapping of whole pages, of memory that no reference
    /// points to, and stays mapped as long as the gate exists.
    pub(crate) unsafe fn new(start: NonNull<u8>, len: usize, means: Means) -> Result<Gate, Error> {
        let key = match means {
            Means::Key => Some(key::assign(start, len)?),
            Means::Pages => None,
        };
        let gate = Gate {
            start,
            len,
            key,
            is_open: Cell::new(true),
        };
        gate.set(false);
        Ok(gate)
    }

    /// Opens or closes it; returns true if it was open before.
    #[inline]
    pub(crate) fn set(&self, is_open: bool) -> bool {
        let was_open = self.is_open.replace(is_open);
        if was_open != is_open {
            match self.key {
                Some(key) => key::set(key, is_open),
                None => self.set_pages(is_open),
            }
        }
        was_open
    }

    fn set_pages(&self, is_open: bool) {
        let flags = match is_open {
            true => MprotectFlags::READ | MprotectFlags::WRITE,
            false => MprotectFlags::empty(),
        };
        // SAFETY: the mapping exists, by the contract of `new`, and no reference points into it:
        // views access it by address, and one that is used while it is closed ends the process.
        let set = unsafe { mprotect(self.start.as_ptr().cast(), self.len, flags) };
        set.expect("the access to a mapping of this process can be changed");
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            key::free(key);
        }
    }
}

/// A time in which a mapping is open or closed, until this is dropped: then it is as before.
#[must_use]
pub struct Window<'a>(Option<(&'a Gate, bool)>);

impl<'a> Window<'a> {
    #[inline]
    pub(crate) fn new(gate: Option<&'a Gate>, is_open: bool) -> Window<'a> {
        Window(gate.map(|gate| (gate, gate.set(is_open))))
    }
}

impl Drop for Window<'_> {
    #[inline]
    fn drop(&mut self) {
        if let Some((gate, was_open)) = self.0 {
            gate.set(was_open);
        }
    }
}

impl fmt::Debug for Window<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Window")
    }
}

/// Protection keys: three system calls that rustix does not have, and the register that says which
/// keys a thread may use.
#[cfg(all(target_arch = "x86_64", target_os = "linux", not(miri)))]
mod key {
    use std::arch::asm;
    use std::io;
    use std::ptr::NonNull;

    use crate::error::Error;

    const PKEY_MPROTECT: usize = 329;
    const PKEY_ALLOC: usize = 330;
    const PKEY_FREE: usize = 331;
    const READ_WRITE: usize = 3;

    /// # Safety
    /// As for the system call.
    unsafe fn call(number: usize, [a, b, c, d]: [usize; 4]) -> Result<usize, io::Error> {
        let result: isize;
        // SAFETY: the calling convention of Linux: it changes rax, rcx and r11, and no memory but
        // what the caller vouches for.
        unsafe {
            asm!("syscall", inlateout("rax") number as isize => result,
                in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d,
                lateout("rcx") _, lateout("r11") _, options(nostack));
        }
        match result {
            0.. => Ok(result as usize),
            _ => Err(io::Error::from_raw_os_error(-result as i32)),
        }
    }

    /// Gives a mapping a new key, which this thread may use at first.
    pub(super) fn assign(start: NonNull<u8>, len: usize) -> Result<u32, Error> {
        let os = |doing| move |source| Error::Os { doing, source };
        // SAFETY: it touches no memory. It fails where processor or kernel have no keys.
        let key = unsafe { call(PKEY_ALLOC, [0; 4]) }.map_err(os("pkey_alloc"))?;
        let arguments = [start.addr().get(), len, READ_WRITE, key];
        // SAFETY: the caller's mapping, whose access stays as it is.
        match unsafe { call(PKEY_MPROTECT, arguments) } {
            Ok(_) => Ok(key as u32),
            Err(error) => {
                free(key as u32);
                Err(os("pkey_mprotect")(error))
            }
        }
    }

    pub(super) fn free(key: u32) {
        set(key, true);
        // SAFETY: it touches no memory.
        let _ = unsafe { call(PKEY_FREE, [key as usize, 0, 0, 0]) };
    }

    /// Lets this thread use a key, or not: bit 2 · key forbids all access.
    #[inline]
    pub(super) fn set(key: u32, is_open: bool) {
        let bit = 1_u32 << (2 * key);
        // SAFETY: there is a key, so the processor has the register and the kernel allows both
        // instructions. No load or store is moved over them, since the block may touch memory.
        unsafe {
            let rights: u32;
            asm!("rdpkru", in("ecx") 0, lateout("eax") rights, lateout("edx") _, options(nostack));
            let rights = if is_open { rights & !bit } else { rights | bit };
            asm!("wrpkru", in("eax") rights, in("ecx") 0, in("edx") 0, options(nostack));
        }
    }
}

#[cfg(not(all(target_arch = "x86_64", target_os = "linux", not(miri))))]
mod key {
    use std::io;
    use std::ptr::NonNull;

    use crate::error::Error;

    pub(super) fn assign(_: NonNull<u8>, _: usize) -> Result<u32, Error> {
        Err(Error::Os {
            doing: "pkey_alloc",
            source: io::ErrorKind::Unsupported.into(),
        })
    }

    pub(super) fn free(_: u32) {}

    pub(super) fn set(_: u32, _: bool) {}
}
