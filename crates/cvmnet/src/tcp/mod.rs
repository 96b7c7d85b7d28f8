//! The guest's TCP/IP, without I/O.
//!
//! A [`Stack`] takes frames and a time, and gives packets and a time. Received payloads stay in the
//! [`Buffer`]s that they arrived in, memory that a hostile host may be writing to, until their
//! reader has decrypted them into private memory; what is sent is sealed bytes by reference. The
//! stack reads headers once into private memory and trusts nothing else. Its memory is bounded by
//! [`Config`], whatever arrives.
//!
//! # Why not an existing stack
//! smoltcp 0.14, whose `wire` reads headers here, was tried first. Its device hands out frames as
//! `&[u8]`, which memory that another machine writes to must never be; its TCP socket copies each
//! payload into a ring buffer of the socket's and offers that to the reader, the copy that this
//! path exists to avoid. It does not act on the selective acknowledgments that it receives: of a
//! window that lost several segments it repeats the first, and after the timeout all. There are no
//! SYN cookies and no table of connections. ARCHITECTURE.md has the figures of the trial.
//!
//! # What is not there
//! IP fragments and IPv6 extension headers are dropped. There is no urgent data
//! (RFC 6093), no ECN, no fast open, no pacing, no tail-loss probe (RFC 8985): a lost last segment
//! waits for the timeout.

mod buffer;
mod config;
mod congestion;
mod connection;
mod headers;
mod intervals;
mod link;
mod receive_queue;
mod recovery;
mod rtt;
mod secret;
mod send_queue;
mod stack;
mod table;
mod transmit;

pub use buffer::{Buffer, Checksum, Chunk, Frame};
pub use config::{Config, Invalid, KeepAlive, Network, COPIED_RESERVE};
pub use congestion::Algorithm;
pub use connection::{Failure, Ready, State};
pub use headers::Tuple;
pub(crate) use headers::{Ip, PREFIX};
pub(crate) use link::too_big;
pub use secret::Secret;
pub use send_queue::Pieces;
pub use stack::{ConnectError, Counters, Stack};
pub use table::Id;
pub use transmit::{Offload, Packet, Refused, Segmentation, SendError, Transmit, PIECES_MAX};
