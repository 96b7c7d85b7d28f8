//! ICMP errors about packets that cannot go on (RFC 792, RFC 1191, RFC 4443), at a bounded rate.

use std::time::Duration;

use tare_packet::checksum;
use tare_packet::ethernet::{self, HEADER};
use tare_packet::ipv4::{self, Ipv4};
use tare_packet::ipv6::{self, Ipv6};
use tare_packet::protocol::{ICMP, ICMPV6, TTL_DEFAULT as TTL};
use tare_port::{Burst, Frame};
use tare_sim::{Instant, TokenBucket};

use super::{Dataplane, TrafficCounters};

/// Bytes that an error may have: RFC 1812, 4.3.2.3, and RFC 4443, 2.4 (c).
const ERROR_MAX_V4: usize = ipv4::REASSEMBLED_MIN;
const ERROR_MAX_V6: usize = ipv6::MTU_MIN;

/// Errors and answers that may be sent at once, and the interval after which one more may be sent:
/// what a flood of packets makes a gateway send stays bounded (RFC 1812, 4.3.2.8; RFC 4443, 2.4
/// (f)).
pub const ERROR_BURST: u32 = 50;
/// See [`ERROR_BURST`].
pub const ERROR_INTERVAL: Duration = Duration::from_millis(10);

/// Returns a limit on errors or answers.
pub(crate) const fn error_limit() -> TokenBucket {
    TokenBucket::new(ERROR_INTERVAL, ERROR_BURST)
}

/// Kinds of error, with what their second word says.
#[derive(Clone, Copy)]
pub(super) enum ErrorKind {
    TimeExceeded,
    NoRoute,
    TooBig(usize),
}

/// The way that an error takes to the sender of a packet.
#[derive(Clone, Copy)]
pub(super) enum Way {
    /// By the private interface.
    Private,
    /// Through the tunnel.
    Tunnel,
}

/// The limits on the errors of a worker.
///
/// A host that is not told that its packets are too big sends them for ever, so these errors have
/// limits that no flood of other packets uses up; and what comes through the tunnel uses up none of
/// the limits of the private side.
pub(super) struct ErrorLimits {
    too_big: [TokenBucket; 2],
    other: [TokenBucket; 2],
}

impl Default for ErrorLimits {
    fn default() -> ErrorLimits {
        ErrorLimits {
            too_big: [error_limit(); 2],
            other: [error_limit(); 2],
        }
    }
}

impl ErrorLimits {
    fn take(&mut self, now: Instant, kind: ErrorKind, way: Way) -> bool {
        let limits = match kind {
            ErrorKind::TooBig(_) => &mut self.too_big,
            ErrorKind::TimeExceeded | ErrorKind::NoRoute => &mut self.other,
        };
        limits[way as usize].take(now)
    }
}

/// Adds an error about a packet to `to`, unless the packet must not be answered or too many were
/// sent. The version of the packet is told, as a packet out of a tunnel has no Ethernet header
/// while the next hop is unknown. Off the fast path.
#[cold]
pub(super) fn report(
    worker: &mut Dataplane,
    now: Instant,
    about: &Frame,
    is_v4: bool,
    kind: ErrorKind,
    way: Way,
    to: &mut Burst,
) {
    let inner = about.get(HEADER..).unwrap_or_default();
    let (ethertype, error) = match is_v4 {
        true => (ethernet::IPV4, about_v4(worker, inner, kind)),
        false => (ethernet::IPV6, about_v6(worker, inner, kind)),
    };
    let Some(error) = error else { return };
    let allowed = worker.errors.take(now, kind, way);
    let direction: &mut TrafficCounters = &mut worker.sent;
    if !allowed {
        direction.errors_suppressed += 1;
        return;
    }
    // It goes back to the station that the packet came from.
    let source = about.get(6..12).and_then(|mac| mac.try_into().ok());
    let (Some(mut frame), Some(station)) = (worker.pool.take(), source) else {
        direction.errors_suppressed += 1;
        return;
    };
    let mac = worker.tables.private.mac;
    let header = ethernet::header(station, mac, ethertype);
    let written = frame
        .append(HEADER + error.len())
        .map(|place| {
            let (front, rest) = place.split_at_mut(HEADER);
            front.copy_from_slice(&header);
            rest.copy_from_slice(&error);
        })
        .is_some();
    if written {
        direction.errors_sent += 1;
        to.push(frame);
    } else {
        direction.errors_suppressed += 1;
    }
}

fn about_v4(worker: &Dataplane, packet: &[u8], kind: ErrorKind) -> Option<Vec<u8>> {
    let own = worker.tables.private.ip4?;
    let ip = Ipv4::parse(packet).ok()?;
    // RFC 1812, 4.3.2.7: no error about an ICMP error, about a fragment other than the first, or to
    // an address that is not one host's.
    if !ipv4::is_host(ip.src) || ip.is_later_fragment() || !ipv4::is_host(ip.dst) {
        return None;
    }
    let payload = packet.get(ip.header_len..ip.total_len)?;
    if ip.protocol == ICMP && !payload.first().is_some_and(|&kind| is_query4(kind)) {
        return None;
    }
    let (kind, code, word) = match kind {
        ErrorKind::TimeExceeded => (11, 0, 0),
        ErrorKind::NoRoute => (3, 0, 0),
        // RFC 1191, 4: the lower half of the second word is the MTU of the next hop.
        ErrorKind::TooBig(mtu) => (3, 4, mtu.min(0xffff) as u32),
    };
    let quoted = ip.total_len.min(ERROR_MAX_V4 - ipv4::HEADER - 8);
    let mut message = icmp(kind, code, word, &packet[..quoted]);
    let sum = checksum::finish(checksum::sum(&message));
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    let total = (ipv4::HEADER + message.len()) as u16;
    let header = ipv4::Repr {
        src: own,
        dst: ip.src,
        protocol: ICMP,
        ttl: TTL,
        // RFC 1812, 4.3.2.5: "INTERNETWORK CONTROL".
        tos: 0xc0,
        total_len: total,
        fragment: 0,
    };
    let mut error = header.to_bytes().to_vec();
    error.extend_from_slice(&message);
    Some(error)
}

fn about_v6(worker: &Dataplane, packet: &[u8], kind: ErrorKind) -> Option<Vec<u8>> {
    let own = worker.tables.private.ip6?;
    let ip = Ipv6::parse(packet).ok()?;
    // RFC 4443, 2.4 (e).
    if !ipv6::is_host(ip.src) || ipv6::is_multicast(ip.dst) {
        return None;
    }
    let payload = packet.get(ipv6::HEADER..ip.total_len)?;
    if ip.next_header == ICMPV6 && payload.first().is_none_or(|&kind| kind < 128) {
        return None;
    }
    let (kind, code, word) = match kind {
        ErrorKind::TimeExceeded => (3, 0, 0),
        ErrorKind::NoRoute => (1, 0, 0),
        // RFC 8200, 5: every link takes 1280 bytes.
        ErrorKind::TooBig(mtu) => (2, 0, mtu.max(ERROR_MAX_V6) as u32),
    };
    let quoted = ip.total_len.min(ERROR_MAX_V6 - ipv6::HEADER - 8);
    let mut message = icmp(kind, code, word, &packet[..quoted]);
    let (src, dst) = (own.to_be_bytes(), ip.src.to_be_bytes());
    let pseudo = checksum::pseudo_header(&src, &dst, ICMPV6, message.len());
    let sum = checksum::finish(pseudo + checksum::sum(&message));
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    let header = ipv6::Repr {
        src: own,
        dst: ip.src,
        next_header: ICMPV6,
        hop_limit: TTL,
        traffic_class: 0,
        payload_len: message.len() as u16,
    };
    let mut error = header.to_bytes().to_vec();
    error.extend_from_slice(&message);
    Some(error)
}

/// A message with no checksum yet.
fn icmp(kind: u8, code: u8, word: u32, quoted: &[u8]) -> Vec<u8> {
    let mut message = vec![kind, code, 0, 0];
    message.extend_from_slice(&word.to_be_bytes());
    message.extend_from_slice(quoted);
    message
}

/// Echo, timestamp and their like, which are not errors.
fn is_query4(kind: u8) -> bool {
    matches!(kind, 0 | 8 | 9 | 10 | 13..=18)
}
