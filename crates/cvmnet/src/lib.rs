//! The network path of a confidential VM: a guest that has one region of memory in common with a
//! host that it does not trust.
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
//! # Above it
//! [`tcp`] is the guest's TCP/IP and [`tls`] its TLS 1.3, both without I/O: payloads stay where the
//! host has put them until a record is opened into private memory, and records are sealed from
//! private memory to where the host fetches them. [`server`] has what is served. [`guest`] runs all
//! of it on one core, with a queue pair of its own, and [`daemon`] runs guest and host as two
//! processes, with a thread for each pair; [`host::Pairs`] chooses the pair of a flow.
//! [`host::Peer`] is a client in the host's own process.
//!
//! # What is not there
//! Frames in several buffers (`VIRTIO_NET_F_MRG_RXBUF`), indirect descriptors, packed
//! queues, a control queue and the negotiation of features: both sides are given the same
//! [`region::Config`].
#![forbid(unsafe_code)]

pub mod bounce;
pub mod breakdown;
pub mod busy;
pub mod daemon;
mod endpoint;
pub mod guest;
pub mod host;
pub mod hostile;
pub mod pool;
pub mod region;
pub mod ring;
pub mod server;
pub mod tcp;
pub mod tls;
pub mod variant;

pub use endpoint::Counters;
