//! The short way for packets that nothing is special about: IPv4 without options, to be sealed. See
//! the module of the same name of the other direction.

use std::ops::RangeInclusive;

use tare_packet::ethernet::HEADER;
use tare_packet::ipv4::{self, Ipv4};
use tare_port::Frame;

use super::{Job, MARTIAN};
use crate::dataplane::esp;
use crate::dataplane::prefixes::Prefixes;
use crate::dataplane::tables::Tables;
use crate::dataplane::{is_ipv4_to, OwnAddresses, Station};

/// The header of a packet that is to be sealed.
pub(super) struct Inside {
    pub(super) route: u32,
    tos: u8,
    /// Bytes of the packet.
    pub(super) total_len: usize,
}

/// Returns the bytes that the packet of a frame may have.
#[inline(always)]
pub(super) fn lengths(frame: &Frame) -> RangeInclusive<usize> {
    ipv4::HEADER..=frame.len().saturating_sub(HEADER)
}

/// Reads the headers of a frame for this station, with a packet whose bytes are within `lengths`;
/// `None` if they are not plain.
#[inline(always)]
pub(super) fn read(
    prefixes: &Prefixes,
    own: &OwnAddresses,
    station: Station,
    frame: &Frame,
    lengths: RangeInclusive<usize>,
) -> Option<Inside> {
    let front = frame.first_chunk::<{ HEADER + ipv4::HEADER }>()?;
    let (link, rest) = front.split_first_chunk::<HEADER>()?;
    let header = rest.first_chunk()?;
    let ip = Ipv4::without_options(header, lengths)?;
    let route = prefixes.v4(ip.dst);
    let is_plain = is_ipv4_to(link, station)
        && route < MARTIAN
        && !own.has_either4(header)
        && !prefixes.is_martian4(ip.src)
        && ip.ttl > 1;
    is_plain.then_some(Inside {
        route,
        tos: ip.tos,
        total_len: ip.total_len,
    })
}

/// Cuts off what is behind the packet of a frame, as Ethernet pads what is short. Returns how many
/// bytes that were.
#[inline(always)]
pub(super) fn cut(frame: &mut Frame, total_len: usize) -> usize {
    let (len, end) = (frame.len(), HEADER + total_len);
    if end != len {
        frame.truncate(end);
    }
    len - end
}

/// Reads the headers of a frame into its job; see [`super::admit`]. Returns the bytes of the inner
/// packet; `None`, and leaves the frame as it is, if they are not plain.
#[inline(always)]
pub(super) fn admit(
    tables: &Tables,
    own: &OwnAddresses,
    station: Station,
    frame: &mut Frame,
    job: &mut Job,
) -> Option<usize> {
    let inside = read(&tables.prefixes, own, station, frame, lengths(frame))?;
    job.route = inside.route;
    job.tos = inside.tos;
    job.next_header = esp::INNER_IPV4;
    cut(frame, inside.total_len);
    Some(inside.total_len)
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use proptest::prelude::*;
    use tare_port::Burst;
    use tare_sim::Instant;

    use super::super::admit_other;
    use super::*;
    use crate::dataplane::fixture::{dataplane, private_frame, PRIVATE};
    use crate::dataplane::Origin;

    #[test]
    fn what_is_plain_is_sealed_by_the_full_checks_and_gives_the_same_job() {
        let (dataplane, tables, pool) = dataplane();
        let dataplane = RefCell::new(dataplane);
        let plain = Cell::new(0);
        let config = ProptestConfig::with_cases(10_000);
        proptest!(config, |(bytes in private_frame())| {
            let (mut short, mut job) = (pool.copy(&bytes).unwrap(), Job::default());
            let station = Station::new(PRIVATE);
            let mut dataplane = dataplane.borrow_mut();
            let inner = admit(&tables, &dataplane.own, station, &mut short, &mut job);
            for origin in [Origin::Private, Origin::Own] {
                let (mut full, mut full_job) = (pool.copy(&bytes).unwrap(), Job::default());
                let mut back = Burst::new();
                let full_inner = admit_other(
                    &mut dataplane,
                    &tables,
                    Instant::ZERO,
                    origin,
                    &mut full,
                    &mut full_job,
                    &mut back,
                );
                if inner.is_none() {
                    prop_assert_eq!(&short[..], &bytes[..]);
                    continue;
                }
                plain.set(plain.get() + 1);
                prop_assert_eq!(inner, full_inner);
                prop_assert_eq!(&short[..], &full[..]);
                let fields = |job: &Job| (job.route, job.tos, job.next_header);
                prop_assert_eq!(fields(&job), fields(&full_job));
            }
        });
        assert!(plain.get() > 2000, "{}", plain.get());
    }
}
