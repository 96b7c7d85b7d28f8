//! From the private side to the public one.

use tare_gcm::{seal_each, SealPacket, Tag};
use tare_packet::ethernet::{self, HEADER};
use tare_packet::ipv4::{self, Ipv4};
use tare_packet::ipv6::{self, Ipv6};
use tare_port::{Burst, Frame, Instant};

use super::{address, fragment, icmp, is_multicast6, is_own4, is_own6, Cause, Dataplane, Output};
use crate::esp::{self, Aad};
use crate::prefixes::NONE;
use crate::sa::{OutboundSa, Outer};
use crate::tables::Tables;

/// Hops that an outer packet starts with.
const OUTER_TTL: u8 = 64;

/// IPv4's flag "don't fragment", as [`Ipv4::fragment`] has it. Outer packets are never fragmented: what is too long for
/// the path is reported, and inner packets are fragmented instead.
const DONT_FRAGMENT: u32 = 0x4000;

/// Packets on their way through the passes.
#[derive(Default)]
pub(super) struct Scratch {
    frames: Vec<Frame>,
    jobs: Vec<Job>,
    tags: Vec<Tag>,
}

#[derive(Clone, Copy, Default)]
struct Job {
    route: u32,
    /// DSCP and ECN of the inner packet.
    tos: u8,
    next_header: u8,
    /// Bytes in front of what is encrypted.
    front: u8,
    aad: Aad,
    iv: [u8; 8],
}

pub(super) fn run(worker: &mut Dataplane, now: Instant, input: &mut Burst, output: &mut Output) {
    let mut scratch = std::mem::take(&mut worker.outbound);
    for frame in input.drain(..) {
        worker.sent.received += 1;
        worker.sent.received_bytes += frame.len() as u64;
        match ethernet::kind(&frame) {
            Some(ethernet::IPV4) => admit_v4(worker, now, frame, &mut scratch, output),
            Some(ethernet::IPV6) => admit_v6(worker, now, frame, &mut scratch, output),
            Some(ethernet::ARP) => control(worker, frame, output),
            _ => worker.sent.drop(Cause::NotIp),
        }
    }
    let before = output.forward.len();
    encapsulate(worker, &mut scratch);
    seal(worker, &mut scratch, output);
    for frame in &output.forward[before..] {
        worker.sent.forwarded_bytes += frame.len() as u64;
    }
    worker.outbound = scratch;
}

fn control(worker: &mut Dataplane, frame: Frame, output: &mut Output) {
    worker.sent.control += 1;
    output.control.push(frame);
}

/// What the first pass found out about a packet that is to be sealed.
#[inline]
fn admit_v4(
    worker: &mut Dataplane,
    now: Instant,
    mut frame: Frame,
    scratch: &mut Scratch,
    output: &mut Output,
) {
    let Ok(ip) = Ipv4::parse(&frame[HEADER..]) else {
        return worker.sent.drop(Cause::Malformed);
    };
    let tables = &*worker.tables;
    if is_own4(tables, ip.dst) {
        return control(worker, frame, output);
    }
    let route = tables.prefixes.v4(ip.dst);
    if ip.ttl <= 1 {
        icmp::time_exceeded(worker, now, &frame, &mut output.back);
        return worker.sent.drop(Cause::TtlExceeded);
    }
    if route == NONE {
        icmp::no_route(worker, now, &frame, &mut output.back);
        return worker.sent.drop(Cause::NoRoute);
    }
    let inner_max = match inner_max(tables, route) {
        Ok(inner_max) => inner_max,
        Err(cause) => return worker.sent.drop(cause),
    };
    // Ethernet pads what is short.
    frame.truncate(HEADER + ip.total_len);
    if ip.total_len > inner_max && ip.dont_fragment() {
        icmp::too_big(worker, now, &frame, inner_max, &mut output.back);
        return worker.sent.drop(Cause::TooBig);
    }
    ipv4::decrement_ttl(&mut frame[HEADER..]);
    let job = Job {
        route,
        tos: ip.tos,
        next_header: esp::INNER_IPV4,
        ..Job::default()
    };
    if ip.total_len <= inner_max {
        scratch.frames.push(frame);
        scratch.jobs.push(job);
    } else {
        match fragment::fragment(&frame, &ip, inner_max, &worker.pool, &mut scratch.frames) {
            Some(n) => {
                scratch.jobs.resize(scratch.jobs.len() + n, job);
                worker.sent.fragments += n as u64 - 1;
            }
            None => worker.sent.drop(Cause::NoBuffer),
        }
    }
}

#[inline]
fn admit_v6(
    worker: &mut Dataplane,
    now: Instant,
    mut frame: Frame,
    scratch: &mut Scratch,
    output: &mut Output,
) {
    let Ok(ip) = Ipv6::parse(&frame[HEADER..]) else {
        return worker.sent.drop(Cause::Malformed);
    };
    let tables = &*worker.tables;
    if is_own6(tables, ip.dst) || is_multicast6(ip.dst) {
        return control(worker, frame, output);
    }
    let route = tables.prefixes.v6(ip.dst);
    if ip.hop_limit <= 1 {
        icmp::time_exceeded(worker, now, &frame, &mut output.back);
        return worker.sent.drop(Cause::TtlExceeded);
    }
    if route == NONE {
        icmp::no_route(worker, now, &frame, &mut output.back);
        return worker.sent.drop(Cause::NoRoute);
    }
    let inner_max = match inner_max(tables, route) {
        Ok(inner_max) => inner_max,
        Err(cause) => return worker.sent.drop(cause),
    };
    frame.truncate(HEADER + ip.total_len);
    if ip.total_len > inner_max {
        icmp::too_big(worker, now, &frame, inner_max, &mut output.back);
        return worker.sent.drop(Cause::TooBig);
    }
    ipv6::decrement_hop_limit(&mut frame[HEADER..]);
    scratch.frames.push(frame);
    scratch.jobs.push(Job {
        route,
        tos: ip.traffic_class,
        next_header: esp::INNER_IPV6,
        ..Job::default()
    });
}

/// Bytes that an inner packet of this route may have.
#[inline]
fn inner_max(tables: &Tables, route: u32) -> Result<usize, Cause> {
    let route = tables.routes.get(route as usize).ok_or(Cause::NoRoute)?;
    let sa = route.outbound.as_deref().ok_or(Cause::NoSa)?;
    let header = match sa.outer {
        Outer::V4 { .. } => ipv4::HEADER,
        Outer::V6 { .. } => ipv6::HEADER,
    };
    let mtu = route.path_mtu.min(tables.public.mtu);
    Ok(esp::inner_max(usize::from(mtu), header))
}

/// The second pass: takes sequence numbers, a run of packets of one route at a time, and writes headers and trailer.
fn encapsulate(worker: &mut Dataplane, scratch: &mut Scratch) {
    let tables = &*worker.tables;
    let mut kept = 0;
    let mut at = 0;
    while at < scratch.jobs.len() {
        let route = scratch.jobs[at].route;
        let run = scratch.jobs[at..]
            .iter()
            .take_while(|j| j.route == route)
            .count();
        let frames = &scratch.frames[at..at + run];
        let bytes = frames.iter().map(|f| (f.len() - HEADER) as u64).sum();
        let sa = outbound_sa(tables, route);
        let first = sa.map(|sa| sa.take(run as u64, bytes));
        for i in at..at + run {
            let result = match (sa, first) {
                (Some(sa), Some(Some(first))) => {
                    let sequence = first + (i - at) as u64;
                    let (frame, job) = (&mut scratch.frames[i], &mut scratch.jobs[i]);
                    write_headers(tables, sa, sequence, frame, job)
                }
                (Some(_), _) => Err(Cause::SequenceExhausted),
                _ => Err(Cause::NoSa),
            };
            match result {
                // Packets that stay move up over those that do not.
                Ok(()) => {
                    scratch.frames.swap(kept, i);
                    scratch.jobs.swap(kept, i);
                    kept += 1;
                }
                Err(cause) => worker.sent.drop(cause),
            }
        }
        at += run;
    }
    scratch.frames.truncate(kept);
    scratch.jobs.truncate(kept);
}

#[inline]
fn outbound_sa(tables: &Tables, route: u32) -> Option<&OutboundSa> {
    tables.routes.get(route as usize)?.outbound.as_deref()
}

#[inline]
fn write_headers(
    tables: &Tables,
    sa: &OutboundSa,
    sequence: u64,
    frame: &mut Frame,
    job: &mut Job,
) -> Result<(), Cause> {
    let inner = frame.len() - HEADER;
    let padding = esp::padding(inner);
    let behind = frame
        .append(padding + esp::TRAILER + esp::ICV)
        .ok_or(Cause::NoBuffer)?;
    // RFC 4303, 2.4: "the first padding byte appended to the plaintext is numbered 1, with subsequent padding bytes
    // making up a monotonically increasing sequence".
    let trailer = [1, 2, 3];
    behind[..padding].copy_from_slice(&trailer[..padding]);
    behind[padding] = padding as u8;
    behind[padding + 1] = job.next_header;
    let (outer_len, kind) = match sa.outer {
        Outer::V4 { .. } => (ipv4::HEADER, ethernet::IPV4),
        Outer::V6 { .. } => (ipv6::HEADER, ethernet::IPV6),
    };
    frame
        .prepend(outer_len + esp::HEADER)
        .ok_or(Cause::NoBuffer)?;
    address(frame, &tables.public, kind)?;
    let payload = esp::HEADER + inner + padding + esp::TRAILER + esp::ICV;
    let (outer, rest) = frame[HEADER..].split_at_mut(outer_len);
    match sa.outer {
        Outer::V4 { src, dst } => {
            let total = (ipv4::HEADER + payload) as u16;
            let tos = job.tos;
            outer.copy_from_slice(&ipv4::header(
                src,
                dst,
                esp::PROTOCOL,
                OUTER_TTL,
                tos,
                total,
                DONT_FRAGMENT,
            ));
        }
        Outer::V6 { src, dst } => outer.copy_from_slice(&ipv6::header(
            src,
            dst,
            esp::PROTOCOL,
            OUTER_TTL,
            job.tos,
            payload as u16,
        )),
    }
    job.iv = sequence.to_be_bytes();
    job.aad = Aad::new(sa.spi, sequence, sa.counting);
    job.front = (HEADER + outer_len + esp::HEADER) as u8;
    rest[..4].copy_from_slice(&sa.spi.to_be_bytes());
    rest[4..8].copy_from_slice(&job.iv[4..]);
    rest[8..16].copy_from_slice(&job.iv);
    Ok(())
}

/// The last passes: seals, and writes the tags.
fn seal(worker: &mut Dataplane, scratch: &mut Scratch, output: &mut Output) {
    let tables = &*worker.tables;
    let Scratch { frames, jobs, tags } = scratch;
    tags.clear();
    tags.resize(frames.len(), Tag::from([0; 16]));
    let mut sealed = 0;
    // The first that cannot be described ends the iteration; it is never sent, nor is any behind it.
    let packets = frames.iter_mut().zip(&*jobs).map_while(|(frame, job)| {
        let sa = outbound_sa(tables, job.route)?;
        let end = frame.len() - esp::ICV;
        let data = &mut frame[usize::from(job.front)..end];
        let nonce = esp::nonce(sa.salt, job.iv);
        SealPacket::in_place(&sa.key, nonce, job.aad.as_slice(), data).ok()
    });
    seal_each(packets, |number, tag| {
        tags[number] = tag;
        sealed += 1;
    });
    for _ in sealed..frames.len() {
        worker.sent.drop(Cause::NoSa);
    }
    frames.truncate(sealed);
    jobs.clear();
    for (mut frame, tag) in frames.drain(..).zip(&*tags) {
        let end = frame.len() - esp::ICV;
        frame[end..].copy_from_slice(tag.as_bytes());
        output.forward.push(frame);
    }
    worker.sent.forwarded += sealed as u64;
}
