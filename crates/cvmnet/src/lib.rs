//! The network path of a confidential VM: a guest that has one region of memory in common with a
//! host that it does not trust. Two parts of it are there: **the ring**, and **the guest's TCP/IP,
//! without I/O**. TLS, the servers in the guest and the two processes are not there yet.
//!
//! # The ring
//! A [`Region`](region::Region) is a sealed memfd with the virtqueues and buffers of a virtio
//! network device. The guest's [`Driver`](ring::Driver) reads each field that the host writes once,
//! believes none that it has written itself, and gives the device up at the first thing that no
//! device does. The host's [`Device`](host::Device) is on the virtqueues of the rust-vmm project,
//! and can merge segments before the ring ([`host::merge`]). Frames arrive where they are
//! decrypted, or are [bounced](bounce): [`variant`] has all that differs. [`breakdown`] says what
//! time is spent on, and [`hostile`] is a host that lies.
//!
//! # TCP/IP
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
//! Of the ring: frames in several buffers (`VIRTIO_NET_F_MRG_RXBUF`), indirect descriptors, packed
//! queues, a control queue and the negotiation of features: both sides are given the same
//! [`region::Config`]. The TAP device with the virtio header, and the choice of a queue pair by
//! flow, are not there: behind the host's device is a port without offloads, or what its caller
//! gives it. There are no protection keys around the region.
//!
//! Of TCP/IP: IP fragments and IPv6 extension headers are dropped. There is no urgent data
//! (RFC 6093), no ECN, no fast open, no pacing, no tail-loss probe (RFC 8985): a lost last segment
//! waits for the timeout.
#![forbid(unsafe_code)]

pub mod bounce;
pub mod breakdown;
mod buffer;
mod config;
mod congestion;
mod connection;
mod headers;
pub mod host;
pub mod hostile;
mod intervals;
mod link;
pub mod pool;
mod receive_queue;
mod recovery;
pub mod region;
pub mod ring;
mod rtt;
mod secret;
mod send_queue;
mod stack;
mod table;
mod transmit;
pub mod variant;

pub use buffer::{Buffer, Checksum, Chunk, Frame};
pub use config::{Config, Invalid, KeepAlive, Network};
pub use congestion::Algorithm;
pub use connection::{Failure, Ready, State};
pub use headers::Tuple;
pub use secret::Secret;
pub use send_queue::Pieces;
pub use stack::{ConnectError, Counters, Stack};
pub use table::Id;
pub use transmit::{Offload, Packet, Refused, Segmentation, SendError, Transmit, PIECES_MAX};
