//! The first process: file systems, modules, the port of the host.

use std::convert::Infallible;
use std::ffi::CStr;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::mount::{mount, MountFlags};
use rustix::system::{init_module, reboot, RebootCommand};

use super::serve::serve;
use crate::arguments::PORT;
use crate::initramfs::ORDER;

/// The longest time until the port is there.
const PORT_LIMIT: Duration = Duration::from_secs(60);

/// Serves the host until it ends the guest. This process is the first of a guest.
///
/// # Errors
/// It is not, or the guest is not as the host makes it. The kernel panics when its first process
/// ends, which the host is told of.
pub fn run() -> io::Result<Infallible> {
    if std::process::id() != 1 {
        let expected = "the first process of a guest, which `tare guest boot` starts";
        return Err(io::Error::other(format!("the agent is {expected}")));
    }
    for (kind, folder) in [
        (c"devtmpfs", "/dev"),
        (c"proc", "/proc"),
        (c"sysfs", "/sys"),
        (c"tmpfs", "/tmp"),
        (c"tmpfs", "/run"),
        (c"debugfs", "/sys/kernel/debug"),
    ] {
        if let Err(error) = mount(kind, folder, kind, MountFlags::empty(), None::<&CStr>) {
            eprintln!("agent: mounting {kind:?} at {folder}: {error}");
        }
    }
    let order = fs::read_to_string(format!("/{ORDER}"))?;
    for name in order.lines() {
        let bytes = fs::read(format!("/modules/{name}"))?;
        if let Err(error) = init_module(&bytes, c"") {
            eprintln!("agent: module {name}: {error}");
        }
    }
    let port = open_port()?;
    if let Err(error) = serve(&port) {
        eprintln!("agent: {error}");
    }
    // The host is gone, or wants this.
    reboot(RebootCommand::PowerOff)?;
    Err(io::Error::other("the guest cannot be powered off"))
}

/// Opens the port that has the agent's name.
fn open_port() -> io::Result<File> {
    let until = Instant::now() + PORT_LIMIT;
    while Instant::now() < until {
        let ports = fs::read_dir("/sys/class/virtio-ports")
            .into_iter()
            .flatten();
        for entry in ports.flatten() {
            let name = fs::read_to_string(entry.path().join("name")).unwrap_or_default();
            if name.trim() == PORT {
                let path = PathBuf::from("/dev").join(entry.file_name());
                return OpenOptions::new().read(true).write(true).open(path);
            }
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Err(io::Error::other(format!("found no port {PORT}")))
}
