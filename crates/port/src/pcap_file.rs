//! Ports over captures in files.

use std::fmt;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Write};
use std::path::Path;
use std::time::SystemTime;

use tare_packet::pcap::{self, Header, Resolution, Writer};

use crate::{Burst, Counters, Error, Pool, Port};
use tare_sim::Instant;

/// The most that a capture to replay may need, in bytes of memory: it is kept there.
pub const CAPTURE_BYTES_MAX: usize = 1 << 30;

/// A port whose wire is files: it receives the records of one capture and sends to another.
pub struct PcapPort {
    pool: Pool,
    records: Vec<Box<[u8]>>,
    /// The record that is received next.
    next: usize,
    repeat: bool,
    /// None: what is sent is forgotten.
    sink: Option<Writer<BufWriter<File>>>,
    clock: Box<dyn Fn() -> Instant>,
    counters: Counters,
}

impl PcapPort {
    /// A port that receives nothing and forgets what is sent.
    pub fn new(pool: &Pool) -> PcapPort {
        PcapPort {
            pool: pool.clone(),
            records: Vec::new(),
            next: 0,
            repeat: false,
            sink: None,
            clock: Box::new(since_1970),
            counters: Counters::default(),
        }
    }

    /// Receives the frames of a capture in their order, once or again and again.
    ///
    /// # Errors
    /// If the file cannot be read, or is no capture of whole Ethernet frames.
    pub fn receive_from(mut self, path: &Path, repeat: bool) -> Result<PcapPort, Error> {
        let failed = |source| Error::Capture {
            path: path.to_owned(),
            source,
        };
        let file = File::open(path).map_err(|error| failed(pcap::Error::Io(error)))?;
        let records = pcap::read_frames(BufReader::new(file), CAPTURE_BYTES_MAX);
        self.records = records.map_err(failed)?;
        self.repeat = repeat;
        Ok(self)
    }

    /// Sends to a new capture, with times in nanoseconds. A file of this name is overwritten.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn send_to(mut self, path: &Path) -> Result<PcapPort, Error> {
        let header = Header {
            resolution: Resolution::Nanos,
            ..Header::default()
        };
        let sink = File::create(path).and_then(|file| Writer::new(BufWriter::new(file), header));
        self.sink = Some(sink.map_err(|source| Error::Capture {
            path: path.to_owned(),
            source: pcap::Error::Io(source),
        })?);
        Ok(self)
    }

    /// Takes the times of what is sent from a clock; without this, it is the time since 1970.
    pub fn with_clock(mut self, clock: impl Fn() -> Instant + 'static) -> PcapPort {
        self.clock = Box::new(clock);
        self
    }

    /// Writes what is still in memory to the file. Dropping the port does so as well, but tells of
    /// no error.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn close(self) -> io::Result<()> {
        match self.sink {
            Some(sink) => sink.into_inner().flush(),
            None => Ok(()),
        }
    }
}

impl Port for PcapPort {
    fn receive(&mut self, burst: &mut Burst, max: usize) -> io::Result<usize> {
        let room = self.pool.capacity() - crate::HEADROOM.min(self.pool.capacity());
        let mut n = 0;
        // A capture that is repeated may hold nothing that fits.
        for _ in 0..max {
            if self.next == self.records.len() && self.repeat {
                self.next = 0;
            }
            let Some(record) = self.records.get(self.next) else {
                break;
            };
            if record.len() > room {
                self.counters.rx_dropped += 1;
                self.next += 1;
                continue;
            }
            let Some(frame) = self.pool.copy(record) else {
                break;
            };
            self.counters.rx_bytes += frame.len() as u64;
            burst.push(frame);
            self.next += 1;
            n += 1;
        }
        self.counters.rx_packets += n as u64;
        Ok(n)
    }

    fn send(&mut self, burst: &mut Burst) -> io::Result<usize> {
        let (mut n, mut failed) = (0, None);
        if let Some(sink) = &mut self.sink {
            let now = (self.clock)().as_nanos();
            while n < burst.len() && failed.is_none() {
                failed = sink.write(now, &burst[n]).err();
                n += usize::from(failed.is_none());
            }
        } else {
            n = burst.len();
        }
        for frame in burst.drain(..n) {
            self.counters.tx_bytes += frame.len() as u64;
        }
        self.counters.tx_packets += n as u64;
        failed.map_or(Ok(n), Err)
    }

    fn counters(&self) -> Counters {
        self.counters
    }
}

impl fmt::Debug for PcapPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "PcapPort({} records, {:?})",
            self.records.len(),
            self.counters
        )
    }
}

fn since_1970() -> Instant {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    Instant::ZERO + since.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Layout;

    #[test]
    fn what_is_sent_to_a_capture_is_received_from_it() {
        let (directory, pool) = (
            tempfile::tempdir().unwrap(),
            Pool::new(64, 2048, Layout::Spread).unwrap(),
        );
        let path = directory.path().join("sent.pcap");
        let mut port = PcapPort::new(&pool)
            .send_to(&path)
            .unwrap()
            .with_clock(|| Instant::from_nanos(1_234_567_890));
        let mut burst: Burst = (0..10).map(|n| pool.copy(&[n; 60]).unwrap()).collect();
        assert_eq!(port.send(&mut burst).unwrap(), 10);
        assert_eq!(port.counters().tx_bytes, 600);
        port.close().unwrap();

        let mut reader = pcap::Reader::new(File::open(&path).unwrap()).unwrap();
        assert_eq!(
            reader.next_record().unwrap().unwrap().time_ns,
            1_234_567_890
        );

        for (repeat, received) in [(false, 10), (true, 64)] {
            let mut port = PcapPort::new(&pool).receive_from(&path, repeat).unwrap();
            while port.receive(&mut burst, 7).unwrap() > 0 {}
            assert_eq!(burst.len(), received);
            assert_eq!(port.counters().rx_packets, received as u64);
            let order = burst.drain(..).map(|frame| usize::from(frame[0]));
            assert!(order.eq((0..received).map(|n| n % 10)));
        }
        assert_eq!(pool.available(), pool.slots());
    }

    #[test]
    fn records_that_no_frame_can_hold_are_dropped_and_counted() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("long.pcap");
        let large = Pool::new(4, 9000, Layout::Spread).unwrap();
        let mut port = PcapPort::new(&large).send_to(&path).unwrap();
        let lengths = [60, 2000, 70];
        let mut burst = lengths
            .map(|len| large.copy(&[1; 9000][..len]).unwrap())
            .into();
        port.send(&mut burst).unwrap();
        drop(port);
        let small = Pool::new(4, 2048, Layout::Spread).unwrap();
        let mut port = PcapPort::new(&small).receive_from(&path, false).unwrap();
        assert_eq!(port.receive(&mut burst, 9).unwrap(), 2);
        assert_eq!(port.counters().rx_dropped, 1);
        assert_eq!(burst[1].len(), 70);
    }

    #[test]
    fn a_file_that_is_no_capture_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("missing.pcap");
        let pool = Pool::new(4, 2048, Layout::Spread).unwrap();
        let open = || PcapPort::new(&pool).receive_from(&path, false);
        assert!(open().unwrap_err().to_string().contains("missing.pcap"));
        std::fs::write(&path, "not a capture, but long enough").unwrap();
        assert!(open().unwrap_err().to_string().contains("missing.pcap"));
    }
}
