//! The settings of a stack, and its bounds.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use tare_packet::ethernet::{self, Mac};
use tare_packet::{ipv4, ipv6};

use crate::tcp::congestion::Algorithm;
use crate::tcp::headers::TCP;
use crate::variant::Headers;

/// An address of the guest and the network around it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network<A> {
    /// The guest's address.
    pub address: A,
    /// Bits of the address that all hosts on the link share.
    pub prefix_len: u8,
    /// The router to all others.
    pub gateway: Option<A>,
}

/// Probes of connections on which nothing has arrived for a time (RFC 9293, 3.8.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeepAlive {
    /// The time without a segment after which the first probe is sent.
    pub idle: Duration,
    /// The time between probes.
    pub interval: Duration,
    /// Probes without an answer after which the connection is aborted.
    pub probes: u32,
}

/// The bytes that a connection may always copy of what is expected next, whatever others have: the
/// longest record of TLS, without its header and with what its pieces take beside. Of a segment
/// that exceeds it the front is taken. So a connection whose owner reads each record when it is
/// whole goes on, however many others there are that are not read.
pub const COPIED_RESERVE: usize = 17 << 10;

/// The settings of a stack. Every queue and table has a bound here or a constant one.
#[derive(Clone, Debug)]
pub struct Config {
    /// The guest's station address.
    pub mac: Mac,
    /// IPv4, if there is any.
    pub ip4: Option<Network<Ipv4Addr>>,
    /// IPv6, if there is any.
    pub ip6: Option<Network<Ipv6Addr>>,
    /// Bytes of the largest IP packet on the link, 1280 to 65535.
    pub mtu: usize,
    /// True if the device fills in transport checksums.
    pub checksum_offload: bool,
    /// True if the device cuts TCP packets of up to 64 KiB into segments; needs
    /// [`Config::checksum_offload`].
    pub segmentation_offload: bool,
    /// Bytes that a connection receives ahead of its owner: the largest window, at most 1 GiB.
    pub receive_buffer: usize,
    /// Bytes that a connection takes for sending before they are acknowledged.
    pub send_buffer: usize,
    /// References that a connection takes for sending.
    pub send_references: usize,
    /// Bytes of the pool that one connection may keep; what is above is copied to private memory.
    pub pinned_max: usize,
    /// Bytes of the pool that all connections together may keep.
    pub pool_max: usize,
    /// Bytes of private memory that copied payloads of all connections together may take; what is
    /// above is dropped, and has to be sent again. [`COPIED_RESERVE`] of each connection is beside
    /// it.
    pub copied_max: usize,
    /// A payload is copied if it is shorter than its buffer divided by this, and a quarter of
    /// `pool_max` is kept by others.
    pub copy_divisor: usize,
    /// Connections, those in TIME-WAIT included.
    pub connections_max: usize,
    /// For each listening port, connections that are being opened, and those that wait to be
    /// accepted. Above the former, SYN cookies are sent.
    pub backlog: usize,
    /// Connections in TIME-WAIT; the oldest goes first.
    pub time_wait_max: usize,
    /// The time in TIME-WAIT: twice the longest life of a segment.
    pub time_wait: Duration,
    /// The longest time for which an acknowledgment is delayed (RFC 9293, 3.8.6.3: below 500 ms).
    pub ack_delay: Duration,
    /// The shortest retransmission timeout.
    pub timeout_min: Duration,
    /// The time to open a connection.
    pub handshake_max: Duration,
    /// The time for which bytes may wait without progress, lost or before a closed window, until
    /// the connection is aborted; and for which a closed connection waits for the peer's FIN.
    pub stall_max: Duration,
    /// Keep-alive probes; none if `None`.
    pub keep_alive: Option<KeepAlive>,
    /// True if short segments do not wait for acknowledgments of earlier ones: no Nagle algorithm.
    pub no_delay: bool,
    /// Selective acknowledgments (RFC 2018).
    pub sack: bool,
    /// Timestamps (RFC 7323).
    pub timestamps: bool,
    /// Congestion control.
    pub congestion: Algorithm,
    /// The way in which headers of received frames are read.
    pub headers: Headers,
}

impl Config {
    /// Returns the defaults with this IPv4 address, of a network of 24 bits without a gateway: one
    /// of two hosts on a link of their own.
    pub fn on_link(mac: Mac, address: Ipv4Addr) -> Config {
        Config {
            ip4: Some(Network {
                address,
                prefix_len: 24,
                gateway: None,
            }),
            ..Config::new(mac)
        }
    }

    /// Returns the defaults, without addresses.
    pub fn new(mac: Mac) -> Config {
        Config {
            mac,
            ip4: None,
            ip6: None,
            mtu: 1500,
            checksum_offload: false,
            segmentation_offload: false,
            receive_buffer: 1 << 20,
            send_buffer: 1 << 20,
            send_references: 1024,
            pinned_max: 2 << 20,
            pool_max: 64 << 20,
            copied_max: 64 << 20,
            copy_divisor: 4,
            connections_max: 65_536,
            backlog: 256,
            time_wait_max: 16_384,
            time_wait: Duration::from_secs(60),
            ack_delay: Duration::from_millis(40),
            timeout_min: Duration::from_millis(200),
            handshake_max: Duration::from_secs(30),
            stall_max: Duration::from_secs(180),
            keep_alive: None,
            no_delay: false,
            sack: true,
            timestamps: true,
            congestion: Algorithm::Cubic,
            headers: Headers::CopiedFirst,
        }
    }

    /// Checks that the settings are possible together.
    ///
    /// # Errors
    /// The first that is not.
    pub(crate) fn check(&self) -> Result<(), Invalid> {
        let prefix = |len: u8, max: u8| (1..=max).contains(&len);
        let is_prefix = self.ip4.is_none_or(|net| prefix(net.prefix_len, 32))
            && self.ip6.is_none_or(|net| prefix(net.prefix_len, 128));
        for (is_right, what, expected) in [
            (
                self.ip4.is_some() || self.ip6.is_some(),
                "ip4 and ip6",
                "at least one address",
            ),
            (is_prefix, "prefix_len", "1 to 32 (IPv4) or 128 (IPv6)"),
            ((1280..=65_535).contains(&self.mtu), "mtu", "1280 to 65535"),
            (
                self.checksum_offload || !self.segmentation_offload,
                "segmentation_offload",
                "checksum_offload with it",
            ),
            (
                (1..=1 << 30).contains(&self.receive_buffer),
                "receive_buffer",
                "1 to 2^30 bytes",
            ),
            (
                (1..=1 << 30).contains(&self.send_buffer),
                "send_buffer",
                "1 to 2^30 bytes",
            ),
            (self.send_references > 0, "send_references", "at least 1"),
            (self.connections_max > 0, "connections_max", "at least 1"),
            (self.backlog > 0, "backlog", "at least 1"),
            (
                self.ack_delay < Duration::from_millis(500),
                "ack_delay",
                "less than 500 ms",
            ),
        ] {
            if !is_right {
                return Err(Invalid { what, expected });
            }
        }
        Ok(())
    }

    /// Checks that a piece of so many bytes can be sent.
    ///
    /// # Errors
    /// The send buffer is shorter.
    pub(crate) fn check_piece(&self, bytes: usize) -> Result<(), Invalid> {
        match self.send_buffer >= bytes {
            true => Ok(()),
            false => Err(Invalid {
                what: "send_buffer",
                expected: "at least one record",
            }),
        }
    }

    /// Returns the largest segment that this end takes or sends over a path with this MTU, without
    /// options (RFC 9293, 3.7.1).
    pub(crate) fn mss(&self, address: IpAddr, mtu: usize) -> usize {
        let ip = if address.is_ipv4() {
            ipv4::HEADER
        } else {
            ipv6::HEADER
        };
        mtu.min(self.mtu) - ip - TCP
    }

    /// Returns the shift of the windows that this end advertises.
    pub(crate) fn window_scale(&self) -> u8 {
        let fits = |scale: &u8| self.receive_buffer >> scale <= usize::from(u16::MAX);
        (0..14).find(fits).unwrap_or(14)
    }

    /// Returns this end's address of the family of `remote`.
    pub(crate) fn local(&self, remote: IpAddr) -> Option<IpAddr> {
        match remote {
            IpAddr::V4(_) => self.ip4.map(|net| net.address.into()),
            IpAddr::V6(_) => self.ip6.map(|net| net.address.into()),
        }
    }

    /// Returns true if packets to the address are for this guest.
    pub(crate) fn is_local(&self, address: IpAddr) -> bool {
        self.local(address) == Some(address)
    }

    /// Returns the station that packets to an address go to: itself on the link, or the router.
    pub(crate) fn next_hop(&self, remote: IpAddr) -> Option<IpAddr> {
        match remote {
            IpAddr::V4(address) => {
                let net = self.ip4?;
                let differing = u64::from(address.to_bits() ^ net.address.to_bits());
                if differing >> (32 - u32::from(net.prefix_len)) == 0 {
                    return Some(remote);
                }
                net.gateway.map(IpAddr::V4)
            }
            IpAddr::V6(address) => {
                let net = self.ip6?;
                let differing = address.to_bits() ^ net.address.to_bits();
                let shift = 128 - u32::from(net.prefix_len);
                let is_link_local = ipv6::is_link_local(address.to_bits());
                if is_link_local || differing.checked_shr(shift).unwrap_or(0) == 0 {
                    return Some(remote);
                }
                net.gateway.map(IpAddr::V6)
            }
        }
    }

    /// Returns the bytes of the longest frame that fits the MTU.
    pub(crate) fn frame_max(&self) -> usize {
        self.mtu + ethernet::HEADER
    }
}

/// A setting that is not possible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Invalid {
    what: &'static str,
    expected: &'static str,
}

impl fmt::Display for Invalid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: expected {}", self.what, self.expected)
    }
}

impl std::error::Error for Invalid {}
