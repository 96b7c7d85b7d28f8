//! Messages to the service manager (sd_notify(3)).

use std::env;
use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Tells the service manager that another process is the main one of the service from now on.
/// Without a service manager that listens, it does nothing.
///
/// # Errors
/// It listens, and cannot be reached.
pub fn notify_main_pid(pid: i32) -> io::Result<()> {
    let Some(path) = env::var_os("NOTIFY_SOCKET") else {
        return Ok(());
    };
    let address = match path.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        _ => SocketAddr::from_pathname(&path)?,
    };
    let message = format!("MAINPID={pid}");
    let socket = UnixDatagram::unbound()?;
    socket.send_to_addr(message.as_bytes(), &address).map(drop)
}
