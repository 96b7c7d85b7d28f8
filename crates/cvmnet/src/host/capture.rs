//! A capture of the frames that pass between a device and its network.

use std::fs::File;
use std::io::{self, BufWriter};
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::time::SystemTime;

use tare_packet::pcap::{Header, Writer};

use super::Frames;
use crate::ring::NetHeader;

/// A network whose frames are written to a file, in both directions.
pub struct Captured<F> {
    frames: F,
    file: Option<Writer<BufWriter<File>>>,
    failure: Option<io::Error>,
}

impl<F> Captured<F> {
    /// Returns the network, with a capture if a path is given.
    ///
    /// # Errors
    /// The file cannot be made.
    pub fn new(frames: F, path: Option<&Path>) -> io::Result<Captured<F>> {
        let make = |path| Writer::new(BufWriter::new(File::create(path)?), Header::default());
        Ok(Captured {
            frames,
            file: path.map(make).transpose()?,
            failure: None,
        })
    }

    /// Returns the network.
    pub fn inner(&self) -> &F {
        &self.frames
    }

    /// Writes out what is buffered.
    ///
    /// # Errors
    /// The file could not be written, now or before: what came after that is not in it.
    pub fn flush(&mut self) -> io::Result<()> {
        match self.failure.take() {
            Some(error) => Err(error),
            None => self.file.as_mut().map_or(Ok(()), Writer::flush),
        }
    }

    fn note(&mut self, frame: &[u8]) {
        let Some(file) = &mut self.file else {
            return;
        };
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let time = since.map_or(0, |since| since.as_nanos() as u64);
        if let Err(error) = file.write(time, frame) {
            self.failure = Some(error);
            self.file = None;
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
