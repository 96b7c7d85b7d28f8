//! Captures in the classic pcap format: a header of 24 bytes, then records of a time, two lengths
//! and a frame.
//!
//! Read and written as a stream, in either byte order, with time stamps in microseconds or
//! nanoseconds. Source: draft-ietf-opsawg-pcap, sections 4 and 5.

use std::fmt;
use std::io::{self, Read, Write};

/// The longest frame that is read or written; the largest snapshot length of the usual capture
/// programs.
pub const FRAME_BYTES_MAX: u32 = 256 * 1024;

const FILE_HEADER: usize = 24;
const RECORD_HEADER: usize = 16;
const MAGIC_MICROS: u32 = 0xa1b2_c3d4;
const MAGIC_NANOS: u32 = 0xa1b2_3c4d;
const LINK_ETHERNET: u32 = 1;

/// The order of the bytes of every number in the headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ByteOrder {
    /// Least significant byte first.
    Little,
    /// Most significant byte first.
    Big,
}

/// The unit of the second part of a time stamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resolution {
    /// Microseconds, which every program reads.
    Micros,
    /// Nanoseconds.
    Nanos,
}

/// The header of a capture. The link type is always Ethernet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The order of the bytes.
    pub order: ByteOrder,
    /// The resolution of the time stamps.
    pub resolution: Resolution,
    /// The snapshot length: no record holds more bytes than this. Zero in a file that is read means
    /// no such limit.
    pub snaplen: u32,
}

impl Default for Header {
    /// Little-endian, microseconds, frames up to [`FRAME_BYTES_MAX`].
    fn default() -> Header {
        Header {
            order: ByteOrder::Little,
            resolution: Resolution::Micros,
            snaplen: FRAME_BYTES_MAX,
        }
    }
}

impl Header {
    fn magic(self) -> u32 {
        match self.resolution {
            Resolution::Micros => MAGIC_MICROS,
            Resolution::Nanos => MAGIC_NANOS,
        }
    }

    fn frame_bytes_max(self) -> u32 {
        match self.snaplen {
            0 => FRAME_BYTES_MAX,
            snaplen => snaplen.min(FRAME_BYTES_MAX),
        }
    }

    fn nanos_per_unit(self) -> u64 {
        match self.resolution {
            Resolution::Micros => 1000,
            Resolution::Nanos => 1,
        }
    }
}

impl ByteOrder {
    fn read(self, bytes: [u8; 4]) -> u32 {
        match self {
            ByteOrder::Little => u32::from_le_bytes(bytes),
            ByteOrder::Big => u32::from_be_bytes(bytes),
        }
    }

    fn write(self, number: u32) -> [u8; 4] {
        match self {
            ByteOrder::Little => number.to_le_bytes(),
            ByteOrder::Big => number.to_be_bytes(),
        }
    }
}

/// One captured frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// The time of capture: nanoseconds since 1970, or since a moment of the writer's choice.
    pub time_ns: u64,
    /// The captured bytes of the frame, without the Ethernet checksum.
    pub frame: &'a [u8],
    /// Bytes that the frame had on the line; more than were captured if it was cut.
    pub line_bytes: u32,
}

/// Reads a capture record by record. Small reads: give it a [`BufReader`](std::io::BufReader)
/// around a file.
#[derive(Debug)]
pub struct Reader<R> {
    source: R,
    header: Header,
    /// Records read.
    records: u64,
    /// Bytes read: where the next record begins.
    offset: u64,
    frame: Vec<u8>,
}

impl<R: Read> Reader<R> {
    /// Reads the file's header.
    ///
    /// # Errors
    /// This is no classic pcap file of Ethernet frames, or it cannot be read.
    pub fn new(mut source: R) -> Result<Reader<R>, Error> {
        let mut bytes = [0; FILE_HEADER];
        let read = fill(&mut source, &mut bytes)?;
        let [magic, version, _, _, snaplen, link] = words(&bytes);
        let header = |order, resolution| Header {
            order,
            resolution,
            snaplen: ByteOrder::read(order, snaplen),
        };
        let header = match (u32::from_le_bytes(magic), u32::from_be_bytes(magic)) {
            _ if read < 4 => return Err(Error::ShortHeader { bytes: read }),
            (MAGIC_MICROS, _) => header(ByteOrder::Little, Resolution::Micros),
            (MAGIC_NANOS, _) => header(ByteOrder::Little, Resolution::Nanos),
            (_, MAGIC_MICROS) => header(ByteOrder::Big, Resolution::Micros),
            (_, MAGIC_NANOS) => header(ByteOrder::Big, Resolution::Nanos),
            _ => return Err(Error::Magic { found: magic }),
        };
        if read < FILE_HEADER {
            return Err(Error::ShortHeader { bytes: read });
        }
        // Two numbers of 16 bits: the byte order decides which is the upper half of the word.
        let version = header.order.read(version);
        let (major, minor) = match header.order {
            ByteOrder::Little => (version & 0xffff, version >> 16),
            ByteOrder::Big => (version >> 16, version & 0xffff),
        };
        if (major, minor) != (2, 4) {
            return Err(Error::Version { major, minor });
        }
        // The upper bits would say that the frames end in their checksum.
        let link = header.order.read(link);
        if link != LINK_ETHERNET {
            return Err(Error::LinkType { found: link });
        }
        Ok(Reader {
            source,
            header,
            records: 0,
            offset: FILE_HEADER as u64,
            frame: Vec::new(),
        })
    }

    /// The file's header.
    pub fn header(&self) -> Header {
        self.header
    }

    /// The next record; none at the end of the file.
    ///
    /// # Errors
    /// The file ends within the record, the record's lengths contradict each other or the file's
    /// header, or it cannot be read. After an error the rest of the file has no meaning.
    pub fn next_record(&mut self) -> Result<Option<Record<'_>>, Error> {
        let mut bytes = [0; RECORD_HEADER];
        let read = fill(&mut self.source, &mut bytes)?;
        if read == 0 {
            return Ok(None);
        }
        let (number, offset) = (self.records + 1, self.offset);
        let wrong = |fault| Error::Record {
            number,
            offset,
            fault,
        };
        if read < RECORD_HEADER {
            return Err(wrong(RecordFault::ShortHeader { bytes: read }));
        }
        let [seconds, fraction, captured, line_bytes] =
            words(&bytes).map(|word| self.header.order.read(word));
        let max = self.header.frame_bytes_max();
        if captured > max {
            return Err(wrong(RecordFault::TooLong { captured, max }));
        }
        if captured > line_bytes {
            return Err(wrong(RecordFault::LongerThanFrame {
                captured,
                line_bytes,
            }));
        }
        self.frame.resize(captured as usize, 0);
        let read = fill(&mut self.source, &mut self.frame)?;
        if read < self.frame.len() {
            return Err(wrong(RecordFault::ShortFrame {
                bytes: read,
                captured,
            }));
        }
        self.records = number;
        self.offset += RECORD_HEADER as u64 + u64::from(captured);
        Ok(Some(Record {
            // Below 2^64 for every pair of numbers of 32 bits.
            time_ns: u64::from(seconds) * 1_000_000_000
                + u64::from(fraction) * self.header.nanos_per_unit(),
            frame: &self.frame,
            line_bytes,
        }))
    }
}

/// Bytes of memory that a frame needs beside its own: what its owner and the allocator know of it.
pub const RECORD_COST: usize = 128;

/// All frames of a capture, to be sent.
///
/// # Errors
/// As [`Reader`]; also where there is no record, a frame is shorter than an Ethernet header or was
/// cut by the capture, or the frames need more than `bytes_max` bytes of memory to be replayed, of
/// which each needs as many as it has on the wire and [`RECORD_COST`].
pub fn read_frames(source: impl Read, bytes_max: usize) -> Result<Vec<Box<[u8]>>, Error> {
    let mut reader = Reader::new(source)?;
    let mut frames: Vec<Box<[u8]>> = Vec::new();
    let mut bytes = 0;
    loop {
        let (number, offset) = (reader.records + 1, reader.offset);
        let Some(record) = reader.next_record()? else {
            break;
        };
        let captured = record.frame.len();
        bytes += captured.max(crate::ethernet::MIN) + RECORD_COST;
        let fault = if bytes > bytes_max {
            RecordFault::FileTooLong { bytes_max }
        } else if captured < record.line_bytes as usize {
            RecordFault::Cut {
                captured,
                line_bytes: record.line_bytes,
            }
        } else if captured < crate::ethernet::HEADER {
            RecordFault::NoEthernet { bytes: captured }
        } else {
            frames.push(record.frame.into());
            continue;
        };
        return Err(Error::Record {
            number,
            offset,
            fault,
        });
    }
    if frames.is_empty() {
        return Err(Error::Empty);
    }
    Ok(frames)
}

/// Writes a capture record by record. Small writes: give it a [`BufWriter`](std::io::BufWriter)
/// around a file, and flush that.
#[derive(Debug)]
pub struct Writer<W> {
    sink: W,
    header: Header,
}

impl<W: Write> Writer<W> {
    /// Writes the file's header.
    ///
    /// # Errors
    /// The error of the sink.
    pub fn new(mut sink: W, header: Header) -> io::Result<Writer<W>> {
        let order = header.order;
        let word = |number| ByteOrder::write(order, number);
        let version = match order {
            ByteOrder::Little => word(4 << 16 | 2),
            ByteOrder::Big => word(2 << 16 | 4),
        };
        let words = [
            word(header.magic()),
            version,
            word(0),
            word(0),
            word(header.snaplen),
            word(LINK_ETHERNET),
        ];
        sink.write_all(words.as_flattened())?;
        Ok(Writer { sink, header })
    }

    /// Writes a frame, without its Ethernet checksum, captured at `time_ns` nanoseconds since 1970
    /// or whatever the caller chose. What exceeds the snapshot length is cut; the record says how
    /// long the frame was.
    ///
    /// # Errors
    /// The error of the sink.
    pub fn write(&mut self, time_ns: u64, frame: &[u8]) -> io::Result<()> {
        let line_bytes = u32::try_from(frame.len()).unwrap_or(u32::MAX);
        let captured = line_bytes.min(self.header.frame_bytes_max());
        // A time after 2106 is the last that the format has.
        let seconds = u32::try_from(time_ns / 1_000_000_000).unwrap_or(u32::MAX);
        let fraction = (time_ns % 1_000_000_000) / self.header.nanos_per_unit();
        let words = [seconds, fraction as u32, captured, line_bytes]
            .map(|number| self.header.order.write(number));
        self.sink.write_all(words.as_flattened())?;
        self.sink.write_all(&frame[..captured as usize])
    }

    /// Flushes the sink.
    ///
    /// # Errors
    /// The error of the sink.
    pub fn flush(&mut self) -> io::Result<()> {
        self.sink.flush()
    }

    /// The sink, with everything written to it.
    pub fn into_inner(self) -> W {
        self.sink
    }
}

/// The reason that a capture could not be read. Records are counted from 1, bytes from the start of
/// the file.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The error of the system.
    Io(io::Error),
    /// The file is shorter than its header.
    ShortHeader {
        /// Bytes that there are.
        bytes: usize,
    },
    /// Another kind of file.
    Magic {
        /// Its first four bytes.
        found: [u8; 4],
    },
    /// A version other than 2.4.
    Version {
        /// Before the point.
        major: u32,
        /// After the point.
        minor: u32,
    },
    /// Not Ethernet, or Ethernet frames with their checksum.
    LinkType {
        /// The link type in the header.
        found: u32,
    },
    /// There is no record.
    Empty,
    /// A record is wrong.
    Record {
        /// Its number, from 1.
        number: u64,
        /// The offset of its first byte.
        offset: u64,
        /// The fault.
        fault: RecordFault,
    },
}

/// The fault of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RecordFault {
    /// The file ends within the record's header.
    ShortHeader {
        /// Bytes that there are of its 16.
        bytes: usize,
    },
    /// The file ends within the frame.
    ShortFrame {
        /// Bytes that there are.
        bytes: usize,
        /// Bytes that the record's header promised.
        captured: u32,
    },
    /// The record is longer than the file's snapshot length or [`FRAME_BYTES_MAX`].
    TooLong {
        /// Bytes that the record's header promised.
        captured: u32,
        /// The limit.
        max: u32,
    },
    /// More was captured than the frame had.
    LongerThanFrame {
        /// Bytes captured.
        captured: u32,
        /// Bytes on the line.
        line_bytes: u32,
    },
    /// Only the beginning of the frame was captured.
    Cut {
        /// Bytes captured.
        captured: usize,
        /// Bytes on the line.
        line_bytes: u32,
    },
    /// The frame is shorter than an Ethernet header.
    NoEthernet {
        /// Bytes that it has.
        bytes: usize,
    },
    /// With this record the frames need more memory than the reader may use.
    FileTooLong {
        /// The room.
        bytes_max: usize,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Io(error) => error.fmt(f),
            Error::ShortHeader { bytes } => write!(
                f,
                "the file ends after {bytes} bytes, expected a pcap header of {FILE_HEADER}"
            ),
            Error::Magic { found } => {
                let hint = match found {
                    [0x0a, 0x0d, 0x0d, 0x0a] => {
                        " (pcapng; convert it: editcap -F pcap IN.pcapng OUT.pcap)"
                    }
                    [0x1f, 0x8b, ..] => " (gzip; decompress it first)",
                    [0x28, 0xb5, 0x2f, 0xfd] => " (zstd; decompress it first)",
                    _ => "",
                };
                write!(f, "the file begins with ")?;
                for byte in found {
                    write!(f, "{byte:02x}")?;
                }
                write!(f, "{hint}, expected a pcap file: a1b2c3d4 or a1b23c4d in either byte order")
            }
            Error::Version { major, minor } => {
                write!(f, "pcap version {major}.{minor}, expected 2.4")
            }
            Error::LinkType { found } => match found & 0xffff {
                LINK_ETHERNET => write!(
                    f,
                    "link type {found:#x}: Ethernet frames with their checksum or other extras, expected plain Ethernet (1)"
                ),
                _ => write!(f, "link type {found}, expected Ethernet (1)"),
            },
            Error::Empty => f.write_str("the capture has no record, expected at least one"),
            Error::Record {
                number,
                offset,
                fault,
            } => write!(f, "record {number} at byte {offset}: {fault}"),
        }
    }
}

impl fmt::Display for RecordFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            RecordFault::ShortHeader { bytes } => write!(
                f,
                "the file ends after {bytes} bytes of the record's header of {RECORD_HEADER}"
            ),
            RecordFault::ShortFrame { bytes, captured } => write!(
                f,
                "the file ends after {bytes} bytes of the record's frame of {captured}"
            ),
            RecordFault::TooLong { captured, max } => {
                write!(f, "a frame of {captured} bytes, expected at most {max}")
            }
            RecordFault::LongerThanFrame {
                captured,
                line_bytes,
            } => write!(
                f,
                "{captured} bytes captured of a frame of {line_bytes}, expected no more than it has"
            ),
            RecordFault::Cut {
                captured,
                line_bytes,
            } => write!(
                f,
                "{captured} bytes captured of a frame of {line_bytes}, expected all of it (capture without a snapshot length)"
            ),
            RecordFault::NoEthernet { bytes } => write!(
                f,
                "a frame of {bytes} bytes, expected at least an Ethernet header of {}",
                crate::ethernet::HEADER
            ),
            RecordFault::FileTooLong { bytes_max } => {
                write!(f, "more than {bytes_max} bytes of memory for its frames")
            }
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        // `Io` displays as its cause, which therefore is none.
        match self {
            Error::Io(error) => error.source(),
            _ => None,
        }
    }
}

/// Reads until `bytes` is full or the source ends; returns the number read.
fn fill(source: &mut impl Read, bytes: &mut [u8]) -> Result<usize, Error> {
    let mut read = 0;
    while let Some(rest) = bytes.get_mut(read..).filter(|rest| !rest.is_empty()) {
        match source.read(rest) {
            Ok(0) => break,
            Ok(n) => read += n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(Error::Io(error)),
        }
    }
    Ok(read)
}

/// `bytes` in words of four.
fn words<const BYTES: usize, const WORDS: usize>(bytes: &[u8; BYTES]) -> [[u8; 4]; WORDS] {
    const { assert!(BYTES == 4 * WORDS) };
    let mut words = [[0; 4]; WORDS];
    words.as_flattened_mut().copy_from_slice(bytes);
    words
}

#[cfg(test)]
mod tests;
