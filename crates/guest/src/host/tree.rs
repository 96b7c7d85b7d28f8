//! Files below a root folder, none of which is trusted: nothing blocks, and reads are bounded.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};
use std::path::Path;

use rustix::fs::OFlags;

/// The most bytes of a file that are read.
const TEXT_MAX: u64 = 64 << 10;
/// The most bytes of a kernel's log that are read.
const LOG_MAX: usize = 16 << 20;
/// The most reads of it: a flood may overwrite each record before it is read.
const READS_MAX: usize = 1 << 17;
/// The longest record of a kernel's log.
const RECORD_MAX: usize = 8192;
/// The most characters of a value that are shown.
const SHOWN_MAX: usize = 40;

/// The root folder of a machine, or of a recorded tree.
pub(crate) struct Tree<'a>(pub(crate) &'a Path);

impl Tree<'_> {
    /// Returns true if there is something of this name.
    pub(crate) fn has(&self, path: &str) -> bool {
        self.0.join(path).exists()
    }

    /// Opens a device for reading and writing, as QEMU does.
    pub(crate) fn device(&self, path: &str) -> io::Result<()> {
        open(&self.0.join(path), true).map(drop)
    }

    /// Returns the text of a file, or the beginning of it; `None` if it cannot be read.
    pub(crate) fn text(&self, path: &str) -> Option<String> {
        let mut bytes = Vec::new();
        let file = open(&self.0.join(path), false).ok()?;
        file.take(TEXT_MAX).read_to_end(&mut bytes).ok()?;
        Some(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Returns the number that a file consists of.
    pub(crate) fn number(&self, path: &str) -> Option<u64> {
        self.text(path)?.trim().parse().ok()
    }

    /// Returns the rest of a file's first line that begins so.
    pub(crate) fn after(&self, path: &str, start: &str) -> Option<String> {
        let text = self.text(path)?;
        let rest = text.lines().find_map(|line| line.strip_prefix(start));
        rest.map(str::to_owned)
    }
}

/// Returns the records of the kernel's log so far, of a device such as `/dev/kmsg`; empty if it
/// cannot be read.
pub(crate) fn kernel_log(path: &Path) -> String {
    let Ok(mut file) = open(path, false) else {
        return String::new();
    };
    let (mut log, mut record) = (Vec::new(), vec![0; RECORD_MAX]);
    for _ in 0..READS_MAX {
        match file.read(&mut record) {
            Ok(len @ 1..) if log.len() < LOG_MAX => log.extend_from_slice(&record[..len]),
            // A record was overwritten before it was read.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
            _ => break,
        }
    }
    String::from_utf8_lossy(&log).into_owned()
}

/// Opens a file or a device without blocking. A FIFO has no end that could be waited for.
fn open(path: &Path, is_written: bool) -> io::Result<File> {
    let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits() as i32;
    let mut options = OpenOptions::new();
    options.read(true).write(is_written).custom_flags(flags);
    let file = options.open(path)?;
    let kind = file.metadata()?.file_type();
    match kind.is_file() || kind.is_char_device() {
        true => Ok(file),
        false => Err(io::Error::other("found neither a file nor a device")),
    }
}

/// Returns the beginning of a value without what could drive a terminal.
pub(crate) fn shown(text: &str) -> String {
    let safe = text.chars().take(SHOWN_MAX).flat_map(char::escape_debug);
    safe.collect()
}
