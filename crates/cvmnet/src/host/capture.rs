//! A capture of the frames that pass between a device and its network.

use std::fs::File;
use std::io::{self, BufWriter};
use std::os::fd::BorrowedFd;
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use tare_packet::pcap::{Header, Writer};

use super::Frames;
use crate::ring::NetHeader;

/// A file of frames, which the networks of all queue pairs write to. Cheap to clone.
#[derive(Clone)]
pub struct Capture(Arc<Mutex<State>>);

struct State {
    /// `None` after a failure.
    file: Option<Writer<BufWriter<File>>>,
    failure: Option<io::Error>,
}

impl Capture {
    /// Makes the file, or opens the FIFO that is there.
    ///
    /// # Errors
    /// It cannot be made, or nothing reads the FIFO.
    pub fn create(path: &Path) -> io::Result<Capture> {
        let is_fifo = std::fs::metadata(path).is_ok_and(|found| found.file_type().is_fifo());
        let file = match is_fifo {
            // Neither is waited for a reader, nor for one that is too slow.
            true => File::options()
                .write(true)
                .custom_flags(rustix::fs::OFlags::NONBLOCK.bits() as i32)
                .open(path)
                .map_err(|error| match rustix::io::Errno::from_io_error(&error) {
                    Some(rustix::io::Errno::NXIO) => io::Error::new(
                        io::ErrorKind::NotConnected,
                        "nothing reads this FIFO; start its reader first",
                    ),
                    _ => error,
                })?,
            false => File::create(path)?,
        };
        let file = Writer::new(BufWriter::new(file), Header::default())?;
        Ok(Capture(Arc::new(Mutex::new(State {
            file: Some(file),
            failure: None,
        }))))
    }

    /// Writes out what is buffered.
    ///
    /// # Errors
    /// The file could not be written, now or since the last call: the capture has ended. Each such
    /// error is returned once.
    pub fn flush(&self) -> io::Result<()> {
        let mut state = self.state();
        if let Some(error) = state.failure.take() {
            return Err(error);
        }
        let flushed = state.file.as_mut().map_or(Ok(()), Writer::flush);
        flushed.inspect_err(|_| state.file = None)
    }

    fn note(&self, frame: &[u8]) {
        let mut state = self.state();
        let Some(file) = &mut state.file else {
            return;
        };
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let time = since.map_or(0, |since| since.as_nanos() as u64);
        if let Err(error) = file.write(time, frame) {
            state.failure = Some(error);
            state.file = None;
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A network whose frames are written to a file, in both directions.
pub struct Captured<F> {
    frames: F,
    capture: Option<Capture>,
}

impl<F> Captured<F> {
    /// Returns the network, with a capture or without.
    pub fn new(frames: F, capture: Option<Capture>) -> Captured<F> {
        Captured { frames, capture }
    }

    /// Returns the network.
    pub fn inner(&self) -> &F {
        &self.frames
    }

    fn note(&self, frame: &[u8]) {
        if let Some(capture) = &self.capture {
            capture.note(frame);
        }
    }
}

impl<F: Frames> Frames for Captured<F> {
    fn receive(&mut self, frame: &mut Vec<u8>) -> Option<NetHeader> {
        let header = self.frames.receive(frame)?;
        self.note(frame);
        Some(header)
    }

    fn send(&mut self, frame: &[u8], header: NetHeader) -> bool {
        let is_taken = self.frames.send(frame, header);
        if is_taken {
            self.note(frame);
        }
        is_taken
    }

    fn wait_on(&self) -> Option<BorrowedFd<'_>> {
        self.frames.wait_on()
    }
}
