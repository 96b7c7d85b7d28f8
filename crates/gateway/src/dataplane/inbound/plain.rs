//! The short way for packets that nothing is special about: IPv4 without options, inside and
//! outside, to be forwarded.
//!
//! A packet that a function here refuses is left as it is, for the full checks, which are the only
//! ones to know why it cannot be forwarded or what else is to be done with it. What is accepted
//! here is accepted there too, and comes out the same. One way for both would be shorter, but it
//! would carry the rare cases in registers: it took 1,531 instructions per packet of 60 bytes and
//! its way back, where the two ways take 1,164.

use tare_packet::ethernet::HEADER;
use tare_packet::ipv4::{self, Ipv4};

use super::{InboundSa, Job, OwnAddresses, Station, Tables};
use crate::dataplane::esp;
use crate::dataplane::{ecn, is_ipv4_to};
use tare_port::Frame;

/// Bytes of the outer Ethernet and IP headers.
const OUTER: usize = HEADER + ipv4::HEADER;

/// The fewest bytes of an outer packet.
const OUTER_MIN: usize = ipv4::HEADER + esp::HEADER + esp::TRAILER + esp::ICV;

/// The common part of packets that came one behind the other from one peer by one SA: their
/// addresses are checked and their SA is looked up once.
#[derive(Default)]
pub(super) struct Run<'a> {
    /// Source and destination, SPI.
    addresses: [u8; 8],
    spi: u32,
    /// Place of the SA.
    place: u32,
    /// `None` before the first packet, and if no SA has the SPI.
    sa: Option<&'a InboundSa>,
}

/// Reads the outer headers of a frame into its job; see [`super::admit`]. Returns its SA, if there
/// are not many and one has the SPI; `None`, and leaves the frame as it is, if they are not plain.
#[inline(always)]
pub(super) fn admit<'a, const MANY: bool>(
    tables: &'a Tables,
    own: &OwnAddresses,
    station: Station,
    run: &mut Run<'a>,
    frame: &mut Frame,
    job: &mut Job,
) -> Option<Option<&'a InboundSa>> {
    let len = frame.len();
    let front = frame.first_chunk::<{ OUTER + 8 }>()?;
    let (link, rest) = front.split_first_chunk::<HEADER>()?;
    let (header, numbers) = rest.split_first_chunk()?;
    let ip = Ipv4::without_options(header, OUTER_MIN..=len - HEADER)?;
    let is_plain = is_ipv4_to(link, station) && ip.protocol == esp::PROTOCOL && !ip.is_fragment();
    if !is_plain {
        return None;
    }
    let numbers = u64::from_be_bytes(*numbers.first_chunk()?);
    let spi = (numbers >> 32) as u32;
    let addresses = *header.last_chunk()?;
    if MANY || run.sa.is_none() || run.addresses != addresses || run.spi != spi {
        let is_peer = own.has4(ip.dst) && !own.has4(ip.src) && !tables.prefixes.is_martian4(ip.src);
        if !is_peer {
            return None;
        }
        if !MANY {
            let place = tables.inbound.find(spi).unwrap_or(u32::MAX);
            let sa = tables.inbound.at(place);
            *run = Run {
                addresses,
                spi,
                place,
                sa,
            };
        }
    }
    job.spi = spi;
    job.sa = run.place;
    job.sequence = numbers & 0xffff_ffff;
    job.tos = ip.tos;
    job.front = OUTER as u8;
    job.len = (ip.total_len - (ipv4::HEADER + esp::HEADER + esp::ICV)) as u16;
    let end = HEADER + ip.total_len;
    if end != len {
        frame.truncate(end);
    }
    Some(run.sa)
}

/// The private side, as far as plain packets are concerned.
pub(super) struct Exit<'a> {
    pub(super) tables: &'a Tables,
    pub(super) own: &'a OwnAddresses,
    /// The Ethernet header of IPv4 packets.
    pub(super) link: &'a [u8; HEADER],
}

impl Exit<'_> {
    /// Takes an opened packet out of what it came in; see [`super::leave`]. Returns the bytes of
    /// the frame, which is to be forwarded; `None` if it is not plain.
    #[inline(always)]
    pub(super) fn leave(&self, job: &Job, frame: &mut Frame) -> Option<usize> {
        let begin = usize::from(job.front) + esp::HEADER;
        let (before, payload) = frame.split_at_mut_checked(begin)?;
        let payload = payload.get_mut(..usize::from(job.len))?;
        let len = esp::len_before_trailer(payload, esp::INNER_IPV4)?;
        let header = payload.first_chunk_mut()?;
        let ip = Ipv4::without_options(header, ipv4::HEADER..=len)?;
        // RFC 4301, 5.2, as in `deliver`.
        let is_plain = self.tables.prefixes.v4(ip.src) == job.route
            && !self.own.has4(ip.dst)
            && !self.own.has4(ip.src)
            && !self.tables.prefixes.is_martian4(ip.dst)
            && ip.ttl > 1
            && ip.total_len <= usize::from(self.tables.private.mtu)
            && ecn::leaving(ip.tos, job.tos) == Some(ip.tos);
        if !is_plain {
            return None;
        }
        *before.last_chunk_mut()? = *self.link;
        ipv4::decrement_ttl(header);
        let len = HEADER + ip.total_len;
        frame.keep(begin - HEADER, len);
        Some(len)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use proptest::prelude::*;

    use super::super::{admit as admit_fully, leave as leave_fully, number, Admitted, Exit as Way};
    use super::*;
    use crate::dataplane::fixture::{dataplane, opened, public_frame, PUBLIC};
    use crate::dataplane::link_kind;

    /// The fields of a job that the first pass writes.
    fn fields(job: &Job) -> (u32, u8, u8, u16, u64) {
        (job.spi, job.tos, job.front, job.len, job.sequence)
    }

    /// Runs a property over many frames and returns how many of them were plain.
    fn count(cases: u32, property: impl Fn(&Cell<usize>, ProptestConfig)) -> usize {
        let plain = Cell::new(0);
        property(&plain, ProptestConfig::with_cases(cases));
        plain.get()
    }

    #[test]
    fn what_is_plain_outside_is_admitted_by_the_full_checks_and_gives_the_same_job() {
        let (dataplane, tables, pool) = dataplane();
        let (own, station) = (&dataplane.own, Station::new(PUBLIC));
        let plain = count(4000, |plain, config| {
            proptest!(config, |(bursts in proptest::collection::vec(public_frame(), 1..6))| {
                // One run for all, as within a burst: what it remembers must not let anything in.
                let mut run = Run::default();
                for bytes in &bursts {
                    let (mut full, mut full_job) = (pool.copy(bytes).unwrap(), Job::default());
                    let kind = link_kind(&full, station);
                    let admitted = kind.and_then(|kind| {
                        admit_fully(&tables, own, kind, &mut full, &mut full_job)
                    });
                    let is_esp = matches!(admitted, Ok(Admitted::Esp));
                    let (mut short, mut job) = (pool.copy(bytes).unwrap(), Job::default());
                    let found = admit::<false>(&tables, own, station, &mut run, &mut short, &mut job);
                    let Some(sa) = found else {
                        prop_assert_eq!(&short[..], &bytes[..]);
                        continue;
                    };
                    plain.set(plain.get() + 1);
                    prop_assert!(is_esp);
                    prop_assert_eq!(&short[..], &full[..]);
                    prop_assert_eq!(fields(&job), fields(&full_job));
                    let place = tables.inbound.find(job.spi);
                    prop_assert_eq!(job.sa, place.unwrap_or(u32::MAX));
                    prop_assert_eq!(sa.map(InboundSa::spi), place.map(|_| job.spi));
                    let numbered = number(&dataplane.id, sa, &mut job);
                    prop_assert_eq!(numbered.is_ok(), sa.is_some() && job.sequence > 0);
                    let (mut many, mut job) = (pool.copy(bytes).unwrap(), Job::default());
                    let mut none = Run::default();
                    let found = admit::<true>(&tables, own, station, &mut none, &mut many, &mut job);
                    prop_assert!(found.is_some() && many[..] == full[..]);
                    prop_assert_eq!(fields(&job), fields(&full_job));
                }
            });
        });
        assert!(plain > 1000, "{plain}");
    }

    #[test]
    fn what_is_plain_inside_is_forwarded_by_the_full_checks_and_comes_out_the_same() {
        let (dataplane, tables, pool) = dataplane();
        let own = &dataplane.own;
        let link = dataplane.private.v4.as_ref().unwrap();
        let exit = Exit {
            tables: &tables,
            own,
            link,
        };
        let plain = count(20_000, |plain, config| {
            let outer_tos = prop_oneof![Just(0), any::<u8>()];
            proptest!(config, |(payload in opened(), tos in outer_tos)| {
                let mut bytes = vec![0xaa; OUTER + esp::HEADER];
                bytes.extend(&payload);
                bytes.extend([0xbb; esp::ICV]);
                let job = Job {
                    tos,
                    front: OUTER as u8,
                    len: payload.len() as u16,
                    ..Job::default()
                };
                let (mut short, mut full) = (pool.copy(&bytes).unwrap(), pool.copy(&bytes).unwrap());
                let left = leave_fully(&dataplane, &tables, &job, &mut full);
                match exit.leave(&job, &mut short) {
                    None => prop_assert_eq!(&short[..], &bytes[..]),
                    Some(len) => {
                        plain.set(plain.get() + 1);
                        prop_assert!(matches!(left, Ok(Way::Forward)));
                        prop_assert_eq!(&short[..], &full[..]);
                        prop_assert_eq!(len, full.len());
                    }
                }
            });
        });
        assert!(plain > 2000, "{plain}");
    }
}
