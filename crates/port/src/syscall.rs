//! System calls that answer with a result.

use std::io;
use std::mem;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// An answer of −1 is the error of the last call.
pub(crate) fn check(answer: libc::c_int) -> io::Result<libc::c_int> {
    if answer < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(answer)
    }
}

pub(crate) fn new_socket(family: i32, kind: i32, protocol: i32) -> io::Result<OwnedFd> {
    // SAFETY: takes numbers only.
    let fd = check(unsafe { libc::socket(family, kind | libc::SOCK_CLOEXEC, protocol) })?;
    // SAFETY: just opened, and not known elsewhere.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Sets a socket's option. `T` is what the option wants: a kernel's structure, or a number.
pub(crate) fn set_option<T: Copy>(
    socket: &impl AsRawFd,
    level: i32,
    option: i32,
    value: &T,
) -> io::Result<()> {
    // SAFETY: the kernel reads at most as many bytes as it is told, which are those of `value`.
    check(unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            option,
            (value as *const T).cast(),
            mem::size_of::<T>() as libc::socklen_t,
        )
    })?;
    Ok(())
}

/// Asks for a socket's option; an answer shorter than `value` leaves the rest of it as it was.
///
/// # Safety
/// Any bytes are a `T`.
pub(crate) unsafe fn option<T: Copy>(
    socket: &impl AsRawFd,
    level: i32,
    option: i32,
    mut value: T,
) -> io::Result<T> {
    let mut size = mem::size_of::<T>() as libc::socklen_t;
    // SAFETY: the kernel writes at most as many bytes as it is told, which are those of `value`;
    // the caller says that they make a `T`.
    check(unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            level,
            option,
            (&mut value as *mut T).cast(),
            &mut size,
        )
    })?;
    Ok(value)
}
