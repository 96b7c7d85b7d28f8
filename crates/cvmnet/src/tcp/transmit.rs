//! Packets on their way to the device.

use std::ops::Range;

use crate::tcp::send_queue::Pieces;

/// The most pieces of shared memory in one packet: a frame of 64 KiB in records of 4 KiB.
pub const PIECES_MAX: usize = 16;

/// Cutting of a large packet into segments by the device (virtio 1.2, 5.1.6.2: `gso_type`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Segmentation {
    /// The packet is one segment.
    #[default]
    None,
    /// TCP over IPv4 (`VIRTIO_NET_HDR_GSO_TCPV4`).
    Tcp4,
    /// TCP over IPv6 (`VIRTIO_NET_HDR_GSO_TCPV6`).
    Tcp6,
}

/// The work that is left to the device, as the fields of the virtio-net header have it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offload {
    /// The checksum at `checksum_start + checksum_offset` holds the sum of the pseudo-header, and
    /// that of all bytes from `checksum_start` on is to be added (`VIRTIO_NET_HDR_F_NEEDS_CSUM`).
    pub needs_checksum: bool,
    /// The first byte that the checksum covers, from the start of the frame (`csum_start`).
    pub checksum_start: u16,
    /// The place of the checksum behind that (`csum_offset`).
    pub checksum_offset: u16,
    /// The way to cut the packet.
    pub segmentation: Segmentation,
    /// Payload of each segment but the last, in bytes (`gso_size`).
    pub segment_bytes: u16,
    /// Bytes of all headers (`hdr_len`).
    pub header_bytes: u16,
}

/// A packet to send: headers in private memory, payload by reference.
pub struct Packet<'a, B> {
    /// The Ethernet, IP and TCP headers; for answers to ARP, ICMP and the like, the whole frame.
    pub headers: &'a [u8],
    /// The bytes behind them, as at most [`PIECES_MAX`] pieces. A device that still reads a piece
    /// after [`Transmit::send`] has returned must keep the buffer alive itself: the stack drops it
    /// as soon as the peer has acknowledged it, which a lying host can arrange at any time.
    pub payload: Pieces<'a, B>,
    /// Bytes of payload.
    pub payload_len: usize,
    /// The work left to the device.
    pub offload: Offload,
}

/// The way to the device.
pub trait Transmit<B> {
    /// Returns the number of packets that can be sent now.
    fn room(&mut self) -> usize;

    /// Sends a packet; called only while there is room.
    fn send(&mut self, packet: Packet<'_, B>);
}

/// A reference to sealed bytes, given back by a connection that cannot take them now.
#[derive(Debug)]
pub struct Refused<B> {
    /// The buffer.
    pub buffer: B,
    /// The bytes of it.
    pub range: Range<usize>,
    /// The reason.
    pub reason: SendError,
}

/// The reason why a connection takes no bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendError {
    /// The send queue is full; the connection becomes writable when bytes are acknowledged.
    Full,
    /// The connection is not open for sending: closed, being closed, or unknown.
    Closed,
}
