//! The short way for packets that nothing is special about: IPv4 without options, inside and
//! outside, to be forwarded.
//!
//! A packet that a function here refuses is left as it is, for the full checks, which are the only
//! ones to know why it cannot be forwarded or what else is to be done with it. What is accepted
//! here is accepted there too, and comes out the same. One way for both would be shorter, but it
//! would carry the rare cases in registers: it took 1,531 instructions per packet of 60 bytes and
//! its way back, where the two ways took 1,164.

use tare_packet::ethernet::HEADER;
use tare_packet::ipv4::{self, Ipv4};

use super::{InboundSa, Job, OwnAddresses, Station, Tables};
use crate::dataplane::esp;
use crate::dataplane::prefixes::Prefixes;
use crate::dataplane::{ecn, is_ipv4_to};
use tare_port::Frame;

/// Bytes of the outer Ethernet and IP headers.
pub(super) const OUTER: usize = HEADER + ipv4::HEADER;

/// The fewest bytes of an outer packet.
const OUTER_MIN: usize = ipv4::HEADER + esp::HEADER + esp::TRAILER + esp::ICV;

/// The common part of packets that came one behind the other from one peer by one SA: their
/// addresses are checked and their SA is looked up once.
#[derive(Default)]
pub(super) struct Run<'a> {
    /// Source and destination, SPI.
    addresses: u64,
    spi: u32,
    /// Place of the SA.
    place: u32,
    /// `None` before the first packet, and if no SA has the SPI.
    sa: Option<&'a InboundSa>,
}

/// The outer headers of a packet, and the start of its ESP header.
pub(super) struct Outside {
    /// Source and destination, as they stand.
    pub(super) addresses: u64,
    /// SPI and the lower half of the sequence number.
    pub(super) numbers: u64,
    src: u32,
    dst: u32,
    tos: u8,
    /// Bytes of the outer packet.
    pub(super) total_len: usize,
}

impl Outside {
    /// Returns true if the packet goes from a peer to this gateway, as far as addresses tell.
    #[inline(always)]
    pub(super) fn is_from_peer(&self, tables: &Tables, own: &OwnAddresses) -> bool {
        own.has4(self.dst) && !own.has4(self.src) && !tables.prefixes.is_martian4(self.src)
    }
}

/// Reads the outer headers of a frame for this station; `None` if they are not plain.
#[inline(always)]
pub(super) fn read(station: Station, frame: &Frame) -> Option<Outside> {
    let front = frame.first_chunk::<{ OUTER + 8 }>()?;
    let (link, rest) = front.split_first_chunk::<HEADER>()?;
    let (header, numbers) = rest.split_first_chunk()?;
    let ip = Ipv4::without_options(header, OUTER_MIN..=frame.len() - HEADER)?;
    let is_plain = is_ipv4_to(link, station) && ip.protocol == esp::PROTOCOL && !ip.is_fragment();
    if !is_plain {
        return None;
    }
    Some(Outside {
        addresses: u64::from_ne_bytes(*header.last_chunk()?),
        numbers: u64::from_be_bytes(*numbers.first_chunk()?),
        src: ip.src,
        dst: ip.dst,
        tos: ip.tos,
        total_len: ip.total_len,
    })
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
    let outside = read(station, frame)?;
    let (addresses, spi) = (outside.addresses, (outside.numbers >> 32) as u32);
    if MANY || run.sa.is_none() || run.addresses != addresses || run.spi != spi {
        if !outside.is_from_peer(tables, own) {
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
    job.sequence = outside.numbers & 0xffff_ffff;
    job.tos = outside.tos;
    job.front = OUTER as u8;
    job.len = (outside.total_len - (ipv4::HEADER + esp::HEADER + esp::ICV)) as u16;
    let end = HEADER + outside.total_len;
    if end != len {
        frame.truncate(end);
    }
    Some(run.sa)
}

/// The surroundings of an inner packet, and the route that it must come from.
#[derive(Clone, Copy)]
pub(super) struct Around {
    /// The offset of the ESP header.
    pub(super) front: usize,
    /// Bytes that were encrypted.
    pub(super) len: usize,
    /// DSCP and ECN of the outer packet.
    pub(super) tos: u8,
    /// The route of the SA.
    pub(super) route: u32,
}

impl Job {
    #[inline(always)]
    pub(super) fn around(&self) -> Around {
        Around {
            front: usize::from(self.front),
            len: usize::from(self.len),
            tos: self.tos,
            route: self.route,
        }
    }
}

/// The private side, as far as plain packets are concerned.
pub(super) struct Exit<'a> {
    prefixes: &'a Prefixes,
    own: &'a OwnAddresses,
    mtu: usize,
    /// The Ethernet header of IPv4 packets.
    link: &'a [u8; HEADER],
}

impl<'a> Exit<'a> {
    pub(super) fn new(
        tables: &'a Tables,
        own: &'a OwnAddresses,
        link: &'a [u8; HEADER],
    ) -> Exit<'a> {
        Exit {
            prefixes: &tables.prefixes,
            own,
            mtu: usize::from(tables.private.mtu),
            link,
        }
    }

    /// Takes an opened packet out of what it came in; see [`super::leave`]. Returns the bytes of
    /// the frame, which is to be forwarded; `None`, and leaves the frame as it is, if it is not
    /// plain.
    #[inline(always)]
    pub(super) fn leave(&self, around: Around, frame: &mut Frame) -> Option<usize> {
        let begin = around.front + esp::HEADER;
        let payload = frame.get(begin..)?.get(..around.len)?;
        if payload.len() < PAYLOAD_MIN {
            return None;
        }
        let header = payload.first_chunk()?;
        let ip = Ipv4::without_options(header, 0..=usize::MAX)?;
        // RFC 4301, 5.2, as in `deliver`. The trailer begins where the packet ends, which is
        // therefore neither beyond the payload nor within the header.
        let is_plain = esp::is_trailer4(payload, ip.total_len)
            && self.prefixes.v4(ip.src) == around.route
            && !self.own.has_either4(header)
            && !self.prefixes.is_martian4(ip.dst)
            && ip.ttl > 1
            && ip.total_len <= self.mtu
            && ecn::leaves(ip.tos, around.tos);
        if !is_plain {
            return None;
        }
        let len = HEADER + ip.total_len;
        let (link, packet) = frame.keep(begin - HEADER, len).split_first_chunk_mut()?;
        *link = *self.link;
        ipv4::decrement_ttl(packet);
        Some(len)
    }
}

/// The fewest bytes of a payload, so that what is in front of a trailer of at most five is no
/// shorter than a header.
const PAYLOAD_MIN: usize = ipv4::HEADER + esp::TRAILER + 3;

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
    fn a_packet_whose_trailer_is_within_its_header_is_not_plain() {
        let (dataplane, tables, pool) = dataplane();
        let link = dataplane.private.v4.unwrap();
        let exit = Exit::new(&tables, &dataplane.own, &link);
        // The last bytes of the destination are a trailer.
        let header = ipv4::Repr {
            src: 0x0a02_0001,
            dst: 0x0a00_0004,
            protocol: 17,
            ttl: 64,
            tos: 0,
            total_len: (ipv4::HEADER - esp::TRAILER) as u16,
            fragment: ipv4::DONT_FRAGMENT,
        };
        let mut bytes = vec![0; OUTER + esp::HEADER];
        bytes.extend(header.to_bytes());
        let around = Around {
            front: OUTER,
            len: ipv4::HEADER,
            tos: 0,
            route: 0,
        };
        assert!(esp::is_trailer4(&header.to_bytes(), 18));
        let mut frame = pool.copy(&bytes).unwrap();
        assert_eq!(exit.leave(around, &mut frame), None);
    }

    #[test]
    fn what_is_plain_inside_is_forwarded_by_the_full_checks_and_comes_out_the_same() {
        let (dataplane, tables, pool) = dataplane();
        let own = &dataplane.own;
        let link = dataplane.private.v4.as_ref().unwrap();
        let exit = Exit::new(&tables, own, link);
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
                match exit.leave(job.around(), &mut short) {
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
