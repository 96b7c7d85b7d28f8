//! Errors.

use std::fmt;
use std::io;

use tare_packet::ethernet::HEADER;
use tare_port::HEADROOM;

/// The longest frame that can be sent, in bytes: what a pool of the largest slots holds. It is here
/// because errors state it.
pub(crate) const FRAME_MAX: usize = u16::MAX as usize - HEADROOM - 64;

/// The most streams times threads: a stamp has a byte for both.
pub(crate) const SENDERS_MAX: usize = 256;

/// The reason why the tester cannot start or go on.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// A stream without frames.
    NoFrames {
        /// The stream.
        stream: String,
    },
    /// A frame that is no Ethernet frame or too long to send.
    FrameLength {
        /// The stream.
        stream: String,
        /// The number of the frame, from 1.
        frame: usize,
        /// Its bytes.
        length: usize,
    },
    /// A frame that cannot be made of another size.
    Resize {
        /// The stream.
        stream: String,
        /// The number of the frame, from 1.
        frame: usize,
        /// The bytes wanted.
        length: usize,
        /// The reason.
        why: &'static str,
    },
    /// A frame that is longer than its interface sends.
    OverMtu {
        /// The stream.
        stream: String,
        /// The number of the frame, from 1.
        frame: usize,
        /// Its bytes.
        length: usize,
        /// The interface.
        interface: String,
        /// Its MTU.
        mtu: usize,
    },
    /// Two streams of the same name.
    DuplicateName(String),
    /// A stream that is to be received where no stream is sent.
    UnknownReceiver {
        /// The stream.
        stream: String,
        /// The name under which its frames were to be received.
        rx: String,
    },
    /// No stream, or more than a stamp can tell apart.
    StreamCount(usize),
    /// More streams times threads than a stamp can tell apart.
    ThreadCount {
        /// Streams.
        streams: usize,
        /// Threads that send.
        threads: usize,
    },
    /// A load outside what a trial can do.
    Load(String),
    /// The generator could not offer the load, in any of the attempts.
    NotOffered {
        /// Attempts made.
        attempts: u32,
        /// The reason why the last of them was invalid.
        reason: String,
        /// The remedy, in words.
        advice: &'static str,
    },
    /// A port failed for good.
    Port {
        /// The number of the port, from 0.
        port: usize,
        /// The interface of the port, where that is known.
        interface: Option<String>,
        /// The error of the port.
        error: io::Error,
    },
    /// A sending thread could not be started, or open its ports.
    Thread(io::Error),
    /// No memory for frames.
    Memory(io::Error),
    /// The user asked to stop.
    Interrupted,
}

impl Error {
    /// The error of a port whose interface is not known here.
    pub(crate) fn port(port: usize, error: io::Error) -> Error {
        Error::Port {
            port,
            interface: None,
            error,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::NoFrames { stream } => {
                write!(f, "stream {stream}: found no frames, expected at least one")
            }
            Error::FrameLength { stream, frame, length } => write!(
                f,
                "stream {stream}: frame {frame} has {length} bytes, expected 14 to {}",
                FRAME_MAX
            ),
            Error::Resize { stream, frame, length, why } => write!(
                f,
                "stream {stream}: frame {frame} cannot be made {length} bytes long: {why}"
            ),
            Error::OverMtu { stream, frame, length, interface, mtu } => {
                let (longest, wanted) = (mtu + HEADER, length - HEADER);
                write!(
                    f,
                    "stream {stream}: frame {frame} has {length} bytes (without checksum), but {interface} has an MTU of {mtu} and sends {longest} at most: use shorter frames, or `ip link set {interface} mtu {wanted}`, at its other end too"
                )
            }
            Error::DuplicateName(name) => write!(f, "two streams are named {name}; each needs its own name"),
            Error::UnknownReceiver { stream, rx } => write!(
                f,
                "stream {stream} is to be received by {rx}, which is the name of no stream"
            ),
            Error::StreamCount(count) => write!(f, "found {count} streams, expected 1 to 255"),
            Error::Load(why) => write!(f, "{why}"),
            Error::ThreadCount { streams, threads } => write!(
                f,
                "found {streams} streams on {threads} threads, expected at most {} of both multiplied: use at most {} threads, or fewer streams",
                SENDERS_MAX,
                SENDERS_MAX / streams
            ),
            Error::NotOffered { attempts, reason, advice } => write!(
                f,
                "the load could not be offered in {attempts} attempts: {reason}; {advice}"
            ),
            Error::Port { port, interface, error } => match interface {
                Some(name) => write!(f, "{name}: {error}"),
                None => write!(f, "port {port}: {error}"),
            },
            Error::Thread(error) => write!(f, "a sending thread: {error}"),
            Error::Memory(error) => write!(f, "no memory for frames: {error}"),
            Error::Interrupted => write!(f, "interrupted"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Port { error, .. } | Error::Thread(error) | Error::Memory(error) => Some(error),
            _ => None,
        }
    }
}
