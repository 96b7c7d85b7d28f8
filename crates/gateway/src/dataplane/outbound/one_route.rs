//! The shortest way: a burst of plain packets of one route, into a tunnel over IPv4.
//!
//! SA, addresses and sequence numbers are looked at once, so that a packet needs no job. A burst
//! that is not such a one as a whole goes the way of all others from its start.

use std::hint::cold_path;
use std::slice;

use tare_gcm::{seal_run, Nonce, RunPacket};
use tare_packet::ethernet::HEADER;
use tare_packet::ipv4;
use tare_port::{Burst, Frame};

use super::{discard, outbound_sa, plain, refuse, seal, BoundTables, Dataplane, DropReason, Job};
use super::{OutboundSa, OuterHeader, Output, Scratch, Station, FRONT};
use crate::dataplane::sa::OuterHeader4;
use crate::dataplane::{esp, SequenceMode};

/// Bytes in front of what is encrypted.
const ALL: usize = FRONT + ipv4::HEADER;

/// All passes. Returns an error if the burst is not of this kind: the bytes that were cut off the
/// ends of its frames, behind the packets. Nothing else was changed then.
pub(super) fn run(
    worker: &mut Dataplane,
    tables: &BoundTables,
    scratch: &mut Scratch,
    input: &mut Burst,
    output: &mut Output,
) -> Result<(), u64> {
    let n = input.len();
    let station = Station::new(worker.private.mac);
    let first = input.first().ok_or(0_u64)?;
    let lengths = plain::lengths(first);
    let inside = plain::read(&tables.prefixes, &worker.own, station, first, lengths);
    let route = inside.ok_or(0_u64)?.route;
    let entry = tables.routes.get(route as usize).ok_or(0_u64)?;
    let sa = entry.outbound(worker.id.number()).ok_or(0_u64)?;
    let (OuterHeader::V4(_), Some(link)) = (sa.outer_header(), worker.public.v4) else {
        return Err(0);
    };
    let received = admit(worker, tables, station, (route, entry.inner_max()), input)?;
    let first = sa.take(n as u64, &worker.id).ok_or(received.cut)?;
    worker.sent.received += n as u64;
    worker.sent.received_bytes += received.bytes;
    std::mem::swap(&mut scratch.frames, input);
    let jobs = &mut scratch.jobs[..n];
    let (bytes, all) = write_all(&link, sa, first, &mut scratch.frames, jobs);
    sa.count(bytes, &worker.id);
    if !all {
        cold_path();
        add_jobs(route, first, &scratch.frames, jobs);
        refuse(worker, tables, jobs, DropReason::NoBuffer);
        discard(&mut scratch.frames, jobs, |job| job.front != 0);
        seal::<false>(worker, tables, scratch, output);
        return Ok(());
    }
    let sealed = seal_all(sa, first, &mut scratch.frames);
    let mut bytes = bytes + (n * (ALL + esp::ICV)) as u64;
    for frame in scratch.frames.drain(sealed..) {
        bytes -= frame.len() as u64;
        worker.sent.drop(DropReason::NoSa);
        tables.drops.outbound(route, DropReason::NoSa, &worker.id);
    }
    output.forward.append(&mut scratch.frames);
    worker.sent.forwarded += sealed as u64;
    worker.sent.forwarded_bytes += bytes;
    Ok(())
}

/// Bytes of the frames of a burst.
#[derive(Default)]
struct Received {
    /// As they came in.
    bytes: u64,
    /// Behind the packets.
    cut: u64,
}

/// The first pass: headers. Returns an error, as [`run`], at the first packet that is not plain, of
/// another route or too long for it.
#[inline(never)]
fn admit(
    worker: &Dataplane,
    tables: &BoundTables,
    station: Station,
    (route, inner_max): (u32, usize),
    frames: &mut [Frame],
) -> Result<Received, u64> {
    let mut received = Received::default();
    let prefixes = &*tables.prefixes;
    for frame in frames {
        received.bytes += frame.len() as u64;
        // As a rule there is nothing behind the packet.
        let len = frame.len().wrapping_sub(HEADER);
        let mut inside = plain::read(prefixes, &worker.own, station, frame, len..=len);
        if inside.is_none() {
            inside = read_padded(worker, tables, station, frame);
        }
        let inside = inside.filter(|inside| inside.route == route && inside.total_len <= inner_max);
        let inside = inside.ok_or(received.cut)?;
        if inside.total_len != len {
            received.cut += plain::cut(frame, inside.total_len) as u64;
        }
    }
    Ok(received)
}

/// Reads the headers of a frame that Ethernet has padded.
#[inline(never)]
fn read_padded(
    worker: &Dataplane,
    tables: &BoundTables,
    station: Station,
    frame: &Frame,
) -> Option<plain::Inside> {
    let lengths = plain::lengths(frame);
    plain::read(&tables.prefixes, &worker.own, station, frame, lengths)
}

/// Fills the jobs of packets that were written, for the way of all others. `front` has its value:
/// see [`write_all`].
#[cold]
fn add_jobs(route: u32, first: u64, frames: &[Frame], jobs: &mut [Job]) {
    for ((frame, job), number) in frames.iter().zip(jobs).zip(first..) {
        job.route = route;
        job.sequence = number;
        job.len = frame.len().saturating_sub(ALL + esp::ICV) as u16;
    }
}

/// Decrements the TTL of each packet and writes everything around it but the ICV. Returns the bytes
/// that are to be encrypted, and false if frames have no room: then `front` of their jobs is 0, and
/// that of the others not.
#[inline(never)]
fn write_all(
    link: &[u8; HEADER],
    sa: &OutboundSa,
    first: u64,
    frames: &mut [Frame],
    jobs: &mut [Job],
) -> (u64, bool) {
    let (mut bytes, mut all) = (0, true);
    let OuterHeader::V4(header) = sa.outer_header() else {
        return (0, true);
    };
    // Read once: the compiler cannot tell that they are apart from frames.
    let (spi, ivs) = (u64::from(sa.spi) << 32, sa.iv(0));
    for (at, frame) in frames.iter_mut().enumerate() {
        let number = first + at as u64;
        let spi_and_number = spi | number & 0xffff_ffff;
        let iv = ivs.wrapping_add(number);
        match write(frame, link, spi_and_number, iv, &header) {
            Some(encrypted) => bytes += encrypted as u64,
            None => {
                cold_path();
                if std::mem::take(&mut all) {
                    jobs.iter_mut().for_each(|job| job.front = ALL as u8);
                }
                jobs[at].front = 0;
            }
        }
    }
    (bytes, all)
}

/// [`write_all`] for a packet. Returns the bytes that are to be encrypted; `None`, and leaves it as
/// it is, if there is no room.
#[inline(always)]
fn write(
    frame: &mut Frame,
    link: &[u8; HEADER],
    spi_and_number: u64,
    iv: u64,
    header: &OuterHeader4,
) -> Option<usize> {
    /// The offset of DSCP and ECN.
    const TOS: usize = HEADER + 1;
    let tos = frame.first_chunk::<{ HEADER + ipv4::HEADER }>()?[TOS];
    let inner = frame.len() - HEADER;
    let padding = esp::padding(inner);
    let behind = padding + esp::TRAILER + esp::ICV;
    let all = frame.grow(ipv4::HEADER + esp::HEADER, behind)?;
    let (front, rest) = all.split_first_chunk_mut::<ALL>()?;
    let (before, front) = front.split_first_chunk_mut::<HEADER>()?;
    let (outer, numbers) = front.split_first_chunk_mut()?;
    *before = *link;
    header.write(outer, esp::HEADER + inner + behind, tos);
    numbers[..8].copy_from_slice(&spi_and_number.to_be_bytes());
    numbers[8..].copy_from_slice(&iv.to_be_bytes());
    ipv4::decrement_ttl(rest);
    esp::write_trailer4(rest.get_mut(inner..)?, padding)?;
    Some(inner + padding + esp::TRAILER)
}

/// [`super::encapsulate_run`] for one packet, over IPv4 inside and outside: where there are many
/// routes, it is as a rule the only one of its route. `None`, and changes nothing, if it is another
/// or there is no SA with a number for it.
#[inline(always)]
pub(super) fn encapsulate_one(
    worker: &mut Dataplane,
    tables: &BoundTables,
    frame: &mut Frame,
    job: &mut Job,
) -> Option<Result<(), DropReason>> {
    if job.next_header != esp::INNER_IPV4 {
        return None;
    }
    let sa = outbound_sa(tables, job.route, worker.id.number())?;
    let OuterHeader::V4(header) = sa.outer_header() else {
        return None;
    };
    let link = worker.public.v4.as_ref()?;
    let number = sa.take(1, &worker.id)?;
    let numbers = u64::from(sa.spi) << 32 | number & 0xffff_ffff;
    let written = write(frame, link, numbers, sa.iv(number), &header);
    job.sequence = number;
    job.len = written.unwrap_or_default() as u16;
    job.front = ALL as u8;
    sa.count(u64::from(job.len), &worker.id);
    if written.is_none() {
        cold_path();
        job.front = 0;
        let cause = DropReason::NoBuffer;
        refuse(worker, tables, slice::from_ref(job), cause);
        return Some(Err(cause));
    }
    Some(Ok(()))
}

/// Seals the packets, whose numbers begin with `first`, and returns how many: one that cannot be
/// described ends it.
#[inline(never)]
fn seal_all(sa: &OutboundSa, first: u64, frames: &mut [Frame]) -> usize {
    match sa.sequence_mode {
        SequenceMode::Extended => seal_as::<true>(sa, first, frames),
        SequenceMode::Plain => seal_as::<false>(sa, first, frames),
    }
}

/// [`seal_all`] for one width of sequence numbers, as a type: the compiler inlines what has one
/// caller.
#[inline(always)]
fn seal_as<const EXTENDED: bool>(sa: &OutboundSa, first: u64, frames: &mut [Frame]) -> usize {
    let (salt, spi, ivs) = (sa.salt, sa.spi, sa.iv(0));
    let packets = frames.iter_mut().zip(first..).map_while(|(frame, number)| {
        // RFC 4106, 4: salt and IV, which no two packets of a key share.
        let nonce = Nonce::from_parts(salt, ivs.wrapping_add(number));
        let aad = esp::aad(spi, number, SequenceMode::of(EXTENDED));
        RunPacket::new(nonce, aad, frame.get_mut(ALL..)?)
    });
    seal_run(&sa.key, packets)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tare_port::{Layout, Pool};
    use tare_sim::Instant;

    use super::*;
    use crate::dataplane::fixture::{
        arp, dataplane_with, plain_frame, private_frame, MANY, PRIVATE,
    };

    /// The frames that leave and those that go back, counters of the data plane and of the SA.
    type Sent = (Vec<Vec<u8>>, Vec<Vec<u8>>, String, [u64; 2]);

    /// Seals bursts and returns what left the data plane, its counters without those of frames for
    /// the control side that come before each burst if `is_mixed`, and those of its SA; and how
    /// many bursts went the shortest way. There are `more` routes.
    fn sent(
        bursts: &[Vec<Vec<u8>>],
        (mode, iv_base, last): (SequenceMode, Option<u64>, u64),
        is_mixed: bool,
        more: u32,
    ) -> (Sent, usize) {
        let (mut dataplane, tables, _) = dataplane_with(mode, iv_base, last, more);
        let mut short = 0;
        // The longest frames have no room behind.
        let pool = Pool::new(64, 470, Layout::Spread).unwrap();
        let mut output = Output::default();
        for burst in bursts {
            let other = Some(arp(PRIVATE)).filter(|_| is_mixed);
            let frames = other.iter().chain(burst);
            let mut input: Burst = frames.map(|bytes| pool.copy(bytes).unwrap()).collect();
            dataplane.outbound.jobs.clear();
            let before = output.forward.len();
            dataplane.outbound(Instant::ZERO, &mut input, &mut output);
            // The first pass of any other way writes what protocol is inside.
            let jobs = &dataplane.outbound.jobs;
            let is_short = jobs.iter().all(|job| job.next_header == 0);
            short += usize::from(is_short && output.forward.len() > before);
            output.control.clear();
        }
        let taken = |burst: &mut Burst| burst.drain(..).map(|frame| frame.to_vec()).collect();
        let mut counters = *dataplane.sent();
        assert!(counters.adds_up());
        if is_mixed {
            let n = bursts.len() as u64;
            counters.received -= n;
            counters.received_bytes -= n * arp(PRIVATE).len() as u64;
            counters.control -= n;
        }
        let sa = tables.routes[0].outbound(0).unwrap();
        let sent = (
            taken(&mut output.forward),
            taken(&mut output.back),
            format!("{counters:?}"),
            [sa.packets(), sa.bytes()],
        );
        (sent, short)
    }

    #[test]
    fn a_burst_of_one_route_is_sealed_as_one_of_any_kind() {
        let short_bursts = std::cell::Cell::new(0);
        let frame = prop_oneof![5 => plain_frame(), 1 => private_frame()];
        let bursts = proptest::collection::vec(proptest::collection::vec(frame, 1..9), 1..6);
        let sa = (
            prop_oneof![Just(SequenceMode::Plain), Just(SequenceMode::Extended)],
            proptest::option::of(Just(1 << 40)),
            prop_oneof![Just(0), Just((1 << 32) - 8)],
        );
        proptest!(ProptestConfig::with_cases(3000), |(bursts in bursts, sa in sa)| {
            let (one, short) = sent(&bursts, sa, false, 0);
            short_bursts.set(short_bursts.get() + short);
            // One by one, packets take the last numbers of an SA too, of which a run takes all or
            // none.
            let has_end = sa.0 == SequenceMode::Plain && sa.2 > 0;
            let ways = [(true, 0), (false, MANY), (true, MANY)];
            for &(is_mixed, more) in &ways[..if has_end { 1 } else { 3 }] {
                let (other, short) = sent(&bursts, sa, is_mixed, more);
                prop_assert_eq!(&one, &other, "mixed: {}, {} more routes", is_mixed, more);
                prop_assert_eq!(short, 0);
            }
        });
        assert!(short_bursts.get() > 1000, "{}", short_bursts.get());
    }
}
