//! From the private side to the public one.

use tare_gcm::{seal_each, Nonce, SealPacket, Tag};
use tare_packet::ethernet::{self, HEADER};
use tare_packet::ipv4::{self, Ipv4};
use tare_packet::ipv6::{self, Ipv6};
use tare_port::{Burst, Frame, Instant, BURST};

use super::{
    address, fragment, icmp, is_multicast6, is_own4, is_own6, Cause, Dataplane, Headers, Output,
};
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
    /// What is known of each frame; as many as there ever were at once.
    jobs: Vec<Job>,
    tags: Vec<Tag>,
}

/// Written field by field and in place: a value made elsewhere would be copied by wide loads, which wait for the narrow stores
/// that made it.
#[derive(Clone, Copy, Default)]
struct Job {
    sequence: u64,
    route: u32,
    /// DSCP and ECN of the inner packet.
    tos: u8,
    next_header: u8,
    /// Bytes in front of what is encrypted.
    front: u8,
    aad: Aad,
}

impl Scratch {
    /// Makes room for `n` frames on top.
    fn reserve(&mut self, n: usize) {
        let n = self.frames.len() + n;
        self.frames.reserve(n);
        if n > self.jobs.len() {
            self.jobs.resize(n, Job::default());
            self.tags.resize(n, Tag::from([0; 16]));
        }
    }
}

pub(super) fn run(worker: &mut Dataplane, now: Instant, input: &mut Burst, output: &mut Output) {
    let mut scratch = std::mem::take(&mut worker.outbound);
    scratch.reserve(input.len());
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
    encapsulate(worker, &mut scratch);
    seal(worker, &mut scratch, output);
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
    let Some(inner_max) = look_up(tables, route, worker.number) else {
        return worker.sent.drop(Cause::NoRoute);
    };
    // Ethernet pads what is short.
    frame.truncate(HEADER + ip.total_len);
    if ip.total_len > inner_max && ip.dont_fragment() {
        icmp::too_big(worker, now, &frame, inner_max, &mut output.back);
        return worker.sent.drop(Cause::TooBig);
    }
    ipv4::decrement_ttl(&mut frame[HEADER..]);
    if ip.total_len <= inner_max {
        let job = &mut scratch.jobs[scratch.frames.len()];
        job.route = route;
        job.tos = ip.tos;
        job.next_header = esp::INNER_IPV4;
        scratch.frames.push(frame);
        return;
    }
    let first = scratch.frames.len();
    match fragment::fragment(&frame, &ip, inner_max, &worker.pool, &mut scratch.frames) {
        Some(n) => {
            worker.sent.fragments += n as u64 - 1;
            scratch.reserve(BURST);
            for job in &mut scratch.jobs[first..first + n] {
                job.route = route;
                job.tos = ip.tos;
                job.next_header = esp::INNER_IPV4;
            }
        }
        None => worker.sent.drop(Cause::NoBuffer),
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
    let Some(inner_max) = look_up(tables, route, worker.number) else {
        return worker.sent.drop(Cause::NoRoute);
    };
    frame.truncate(HEADER + ip.total_len);
    if ip.total_len > inner_max {
        icmp::too_big(worker, now, &frame, inner_max, &mut output.back);
        return worker.sent.drop(Cause::TooBig);
    }
    ipv6::decrement_hop_limit(&mut frame[HEADER..]);
    let job = &mut scratch.jobs[scratch.frames.len()];
    job.route = route;
    job.tos = ip.traffic_class;
    job.next_header = esp::INNER_IPV6;
    scratch.frames.push(frame);
}

/// How long an inner packet of this route may be. Asks for the SA, which the next pass reads.
#[inline]
fn look_up(tables: &Tables, route: u32, worker: usize) -> Option<usize> {
    let route = tables.routes.get(route as usize)?;
    if let Some(sa) = route.outbound(worker) {
        sa.prefetch();
    }
    Some(route.inner_max())
}

/// The second pass: takes sequence numbers, a run of packets of one route at a time, and writes headers and trailer.
fn encapsulate(worker: &mut Dataplane, scratch: &mut Scratch) {
    let tables = &*worker.tables;
    let Scratch { frames, jobs, .. } = scratch;
    let mut kept = 0;
    let mut at = 0;
    while at < frames.len() {
        let route = jobs[at].route;
        let end = at
            + jobs[at..frames.len()]
                .iter()
                .take_while(|j| j.route == route)
                .count();
        let bytes = frames[at..end]
            .iter()
            .map(|f| (f.len() - HEADER) as u64)
            .sum();
        let numbers = outbound_sa(tables, route, worker.number)
            .ok_or(Cause::NoSa)
            .and_then(|sa| {
                let first = sa.take((end - at) as u64).ok_or(Cause::SequenceExhausted)?;
                sa.count(bytes, worker.alone);
                // The next pass reads it; of thousands of routes it is not in the caches.
                sa.key.prefetch(frames[at].len());
                Ok((sa, first))
            });
        for i in at..end {
            let written = numbers.and_then(|(sa, first)| {
                jobs[i].sequence = first + (i - at) as u64;
                write_headers(&worker.public, sa, &mut frames[i], &mut jobs[i])
            });
            if let Err(cause) = written {
                worker.sent.drop(cause);
                continue;
            }
            // Packets that stay move up over those that do not.
            if kept != i {
                frames.swap(kept, i);
                jobs.swap(kept, i);
            }
            kept += 1;
        }
        at = end;
    }
    frames.truncate(kept);
}

#[inline]
fn outbound_sa(tables: &Tables, route: u32, worker: usize) -> Option<&OutboundSa> {
    Some(tables.routes.get(route as usize)?.outbound(worker)?)
}

#[inline]
fn write_headers(
    headers: &Headers,
    sa: &OutboundSa,
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
    for (i, byte) in behind[..padding].iter_mut().enumerate() {
        *byte = i as u8 + 1;
    }
    behind[padding] = padding as u8;
    behind[padding + 1] = job.next_header;
    let payload = esp::HEADER + inner + padding + esp::TRAILER + esp::ICV;
    let esp_header = match sa.outer {
        Outer::V4 { src, dst } => {
            let front = open_front(frame, ipv4::HEADER, &headers.v4)?;
            job.front = (HEADER + ipv4::HEADER + esp::HEADER) as u8;
            let (outer, rest) = front.split_first_chunk_mut().ok_or(Cause::NoBuffer)?;
            let header = ipv4::Repr {
                src,
                dst,
                protocol: esp::PROTOCOL,
                ttl: OUTER_TTL,
                tos: job.tos,
                total_len: (ipv4::HEADER + payload) as u16,
                fragment: DONT_FRAGMENT,
            };
            header.write(outer);
            rest
        }
        Outer::V6 { src, dst } => {
            let front = open_front(frame, ipv6::HEADER, &headers.v6)?;
            job.front = (HEADER + ipv6::HEADER + esp::HEADER) as u8;
            let (outer, rest) = front.split_first_chunk_mut().ok_or(Cause::NoBuffer)?;
            let header = ipv6::Repr {
                src: u128::from_be_bytes(src),
                dst: u128::from_be_bytes(dst),
                next_header: esp::PROTOCOL,
                hop_limit: OUTER_TTL,
                traffic_class: job.tos,
                payload_len: payload as u16,
            };
            header.write(outer);
            rest
        }
    };
    job.aad.set(sa.spi, job.sequence, sa.counting);
    let esp_header = esp_header
        .first_chunk_mut::<{ esp::HEADER }>()
        .ok_or(Cause::NoBuffer)?;
    esp_header[..4].copy_from_slice(&sa.spi.to_be_bytes());
    esp_header[4..8].copy_from_slice(&(job.sequence as u32).to_be_bytes());
    esp_header[8..].copy_from_slice(&job.sequence.to_be_bytes());
    Ok(())
}

/// Makes room for outer headers, writes the Ethernet header, and gives what is behind that.
#[inline]
fn open_front<'a>(
    frame: &'a mut Frame,
    outer: usize,
    header: &Option<[u8; HEADER]>,
) -> Result<&'a mut [u8], Cause> {
    frame.prepend(outer + esp::HEADER).ok_or(Cause::NoBuffer)?;
    address(frame, header)?;
    Ok(&mut frame[HEADER..])
}

/// The last passes: seals, and writes the tags.
fn seal(worker: &mut Dataplane, scratch: &mut Scratch, output: &mut Output) {
    let tables = &*worker.tables;
    let Scratch { frames, jobs, tags } = scratch;
    let number = worker.number;
    let mut sealed = 0;
    // The first that cannot be described ends the iteration; it is never sent, nor is any behind it.
    let packets = frames.iter_mut().zip(&*jobs).map_while(|(frame, job)| {
        let sa = outbound_sa(tables, job.route, number)?;
        let end = frame.len() - esp::ICV;
        let data = &mut frame[usize::from(job.front)..end];
        // RFC 4106, 4: salt and IV. The IV is the whole sequence number, which no two packets of a key share.
        let nonce = Nonce::from_parts(sa.salt, job.sequence);
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
    for (frame, tag) in frames.iter_mut().zip(&*tags) {
        worker.sent.forwarded_bytes += frame.len() as u64;
        if let Some(icv) = frame.last_chunk_mut() {
            *icv = *tag.as_bytes();
        }
    }
    output.forward.append(frames);
    worker.sent.forwarded += sealed as u64;
}
