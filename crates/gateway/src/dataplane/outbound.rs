//! From the private side to the public one.

mod one_route;
mod plain;

use std::hint::cold_path;
use std::slice;
use std::sync::Arc;

use tare_gcm::{seal_keyed, Nonce, RunPacket};
use tare_packet::ethernet::{self, HEADER};
use tare_packet::ipv4::{self, Ipv4};
use tare_packet::ipv6;
use tare_port::{Burst, Frame};
use tare_sim::Instant;

use super::group::BoundTables;
use super::icmp::{self, ErrorKind, Way};
use super::prefixes::MARTIAN;
use super::sa::{OutboundSa, Outer, OuterHeader};
use super::tables::Tables;
use super::version::{RouteBy, Version, V4, V6};
use super::worker::WorkerId;
use super::{
    discard, fragment, link_kind, set_aside, Dataplane, DropReason, Origin, Output, Station,
    KEYS_AHEAD,
};
use crate::dataplane::esp;

/// The packets of a burst between passes.
#[derive(Default)]
pub(super) struct Scratch {
    /// Empty between bursts.
    frames: Vec<Frame>,
    spare: Vec<Frame>,
    /// The state of each frame; as many as there ever were at once.
    jobs: Vec<Job>,
    /// The packets that replace them if some are fragmented.
    cut: (Vec<Frame>, Vec<Job>),
}

/// The state of one packet.
///
/// Written field by field and in place. A value that is made elsewhere and moved here is copied by
/// wide loads, and a wide load of bytes that several narrow stores wrote just before cannot be
/// served from the store buffer: it waits until they reach the cache. Not the copy but this wait
/// was what cost most.
#[derive(Clone, Copy, Default)]
struct Job {
    sequence: u64,
    route: u32,
    /// DSCP and ECN of the inner packet.
    tos: u8,
    next_header: u8,
    /// Bytes in front of what is encrypted.
    front: u8,
    /// Bytes that are encrypted.
    len: u16,
    /// [`Fate::Sealed`] but within the first pass.
    fate: Fate,
}

/// The fate of a packet after the first pass.
#[derive(Clone, Copy, Default)]
enum Fate {
    #[default]
    Sealed,
    Control,
    Dropped,
}

impl Scratch {
    /// Makes room for `n` more frames.
    fn reserve(&mut self, n: usize) {
        let n = self.frames.len() + n;
        self.frames.reserve(n);
        if n > self.jobs.len() {
            self.jobs.resize(n, Job::default());
        }
    }
}

pub(super) fn run(
    worker: &mut Dataplane,
    now: Instant,
    origin: Origin,
    input: &mut Burst,
    output: &mut Output,
) {
    // Taken out, so that passes can borrow the worker and its scratch memory separately.
    let mut scratch = std::mem::take(&mut worker.outbound);
    scratch.reserve(input.len());
    let tables = Arc::clone(&worker.tables);
    let passes = if tables.routes_are_few() {
        passes::<false>
    } else {
        passes::<true>
    };
    passes(worker, &tables, now, origin, &mut scratch, input, output);
    worker.outbound = scratch;
}

/// All passes. `MANY` is true if the routes and their keys are so many that the caches do not hold
/// them, and memory has to be asked for some packets ahead.
fn passes<const MANY: bool>(
    worker: &mut Dataplane,
    tables: &BoundTables,
    now: Instant,
    origin: Origin,
    scratch: &mut Scratch,
    input: &mut Burst,
    output: &mut Output,
) {
    if !MANY {
        match one_route::run(worker, tables, scratch, input, output) {
            Ok(()) => return,
            // Counted as they came in.
            Err(bytes) => worker.sent.received_bytes += bytes,
        }
    }
    let mut seen = admit_all::<MANY>(worker, tables, now, origin, scratch, input, output);
    if MANY {
        seen.all_fit = look_up(tables, &worker.id, scratch);
    }
    if !seen.all_fit {
        fit(worker, now, origin, scratch, output);
    }
    if MANY {
        for (frame, job) in scratch.frames.iter().zip(&scratch.jobs).take(KEYS_AHEAD) {
            prefetch_key(tables, worker.id.number(), job.route, frame.len());
        }
    }
    encapsulate::<MANY>(worker, tables, scratch, seen.is_one_run);
    seal::<MANY>(worker, tables, scratch, output);
}

/// The facts about a burst that the first pass finds out on the way; `MANY` is as for [`passes`].
struct Seen {
    /// True if all packets are as short as their routes take them; not looked at if `MANY`.
    all_fit: bool,
    /// True if all packets are of one route; not looked at if `MANY`.
    is_one_run: bool,
}

/// The first pass: headers, and which route. Frames change hands all at once.
#[inline(never)]
fn admit_all<const MANY: bool>(
    worker: &mut Dataplane,
    tables: &BoundTables,
    now: Instant,
    origin: Origin,
    scratch: &mut Scratch,
    input: &mut Burst,
    output: &mut Output,
) -> Seen {
    let station = Station::new(worker.private.mac);
    let mut bytes = 0;
    let mut all = true;
    let mut all_fit = true;
    let mut runs = 0;
    // Wider than a route, so that it is none before the first.
    let mut last = (u64::MAX, 0);
    worker.sent.received += input.len() as u64;
    std::mem::swap(&mut scratch.frames, input);
    for (frame, job) in scratch.frames.iter_mut().zip(&mut scratch.jobs) {
        bytes += frame.len() as u64;
        let inner = plain::admit(tables, &worker.own, station, frame, job).or_else(|| {
            let back = &mut output.back;
            admit_other(worker, tables, now, origin, frame, job, back)
        });
        let Some(inner) = inner else {
            all = false;
            continue;
        };
        if MANY {
            tables.prefetch_route(job.route);
            continue;
        }
        // Where routes are few, the one of the packet before is as a rule this one's too.
        if u64::from(job.route) != last.0 {
            last = (u64::from(job.route), inner_max(tables, job.route));
            runs += 1;
        }
        all_fit &= inner <= last.1;
    }
    worker.sent.received_bytes += bytes;
    if !all {
        let Scratch {
            frames,
            spare,
            jobs,
            ..
        } = scratch;
        set_aside(frames, spare, jobs, |frame, job| {
            match std::mem::take(&mut job.fate) {
                Fate::Sealed => return Some(frame),
                Fate::Control => output.control.push(frame),
                Fate::Dropped => {}
            }
            None
        });
    }
    Seen {
        all_fit,
        is_one_run: runs <= 1,
    }
}

/// [`admit`] for frames that are not plain. Returns the bytes of the inner packet if one is to be
/// sealed; `None`, and counts it, for any other.
#[inline(never)]
fn admit_other(
    worker: &mut Dataplane,
    tables: &BoundTables,
    now: Instant,
    origin: Origin,
    frame: &mut Frame,
    job: &mut Job,
    back: &mut Burst,
) -> Option<usize> {
    let kind = match link_kind(frame, Station::new(worker.private.mac)) {
        Err(_) if origin == Origin::Own => Ok(ethernet::kind(frame).unwrap_or_default()),
        kind => kind,
    };
    let fate = kind.and_then(|kind| match kind {
        ethernet::IPV4 => admit::<V4>(worker, tables, now, origin, frame, job, back),
        ethernet::IPV6 => admit::<V6>(worker, tables, now, origin, frame, job, back),
        ethernet::ARP => Ok(Fate::Control),
        esp::DUMMY_KIND if origin == Origin::Own => Ok(add_dummy(frame, job)),
        _ => Err(DropReason::NotIp),
    });
    if matches!(fate, Ok(Fate::Sealed)) {
        return Some(frame.len() - HEADER);
    }
    job.fate = set_fate(worker, fate);
    None
}

/// Counts a packet that is not to be sealed, and returns its fate.
#[cold]
fn set_fate(worker: &mut Dataplane, fate: Result<Fate, DropReason>) -> Fate {
    match fate {
        Ok(fate) => {
            worker.sent.control += 1;
            fate
        }
        Err(cause) => {
            worker.sent.drop(cause);
            Fate::Dropped
        }
    }
}

/// Reads the headers of a frame into its job.
#[inline]
fn admit<V: Version>(
    worker: &mut Dataplane,
    tables: &BoundTables,
    now: Instant,
    origin: Origin,
    frame: &mut Frame,
    job: &mut Job,
    back: &mut Burst,
) -> Result<Fate, DropReason> {
    let inner = V::read(tables, &worker.own, &frame[HEADER..], RouteBy::Destination);
    let inner = inner.ok_or(DropReason::Malformed)?;
    if inner.is_exception {
        cold_path();
        let (packet, by) = (&frame[HEADER..], RouteBy::Destination);
        if V::exception(tables, &worker.own, packet, by).is_some_and(|exception| exception.own) {
            return Ok(Fate::Control);
        }
        if origin == Origin::Private {
            return Err(DropReason::MartianSource);
        }
    }
    let is_v4 = V::NEXT_HEADER == V4::NEXT_HEADER;
    if inner.hops <= 1 {
        let kind = ErrorKind::TimeExceeded;
        report(worker, now, origin, frame, is_v4, kind, back);
        let drops = &tables.drops;
        drops.outbound(inner.route, DropReason::TtlExceeded, &worker.id);
        return Err(DropReason::TtlExceeded);
    }
    if inner.route >= MARTIAN {
        if inner.route == MARTIAN {
            return Err(DropReason::MartianDestination);
        }
        let kind = ErrorKind::NoRoute;
        report(worker, now, origin, frame, is_v4, kind, back);
        return Err(DropReason::NoRoute);
    }
    // Ethernet pads what is short.
    frame.truncate(HEADER + inner.len);
    job.route = inner.route;
    job.tos = inner.tos;
    job.next_header = V::NEXT_HEADER;
    Ok(Fate::Sealed)
}

/// Reports a packet to its sender; the gateway's own are not reported.
#[cold]
fn report(
    worker: &mut Dataplane,
    now: Instant,
    origin: Origin,
    about: &Frame,
    is_v4: bool,
    kind: ErrorKind,
    to: &mut Burst,
) {
    match origin {
        Origin::Private => icmp::report(worker, now, about, is_v4, kind, Way::Private, to),
        Origin::Own => {}
    }
}

/// Fills the job of a dummy that the control side has made.
#[cold]
fn add_dummy(frame: &Frame, job: &mut Job) -> Fate {
    job.route = u32::from_be_bytes([frame[0], frame[1], frame[2], frame[3]]);
    job.tos = 0;
    job.next_header = esp::DUMMY;
    Fate::Sealed
}

/// Returns the most bytes of an inner packet of a route; there is no limit without a route.
#[inline(always)]
fn inner_max(tables: &Tables, route: u32) -> usize {
    let route = tables.routes.get(route as usize);
    route.map_or(usize::MAX, |route| route.inner_max())
}

/// The second pass where there are many routes: asks for the SAs, and returns true if all packets
/// are as short as their routes take them.
#[inline(never)]
fn look_up(tables: &Tables, worker: &WorkerId, scratch: &Scratch) -> bool {
    let number = worker.number();
    let mut all_fit = true;
    for (frame, job) in scratch.frames.iter().zip(&scratch.jobs) {
        if let Some(sa) = outbound_sa(tables, job.route, number) {
            sa.prefetch();
        }
        all_fit &= frame.len() - HEADER <= inner_max(tables, job.route);
    }
    all_fit
}

/// Cuts packets that are longer than their routes take them into fragments, or reports them to
/// their senders; the gateway's own are not reported.
#[cold]
fn fit(
    worker: &mut Dataplane,
    now: Instant,
    origin: Origin,
    scratch: &mut Scratch,
    output: &mut Output,
) {
    let tables = Arc::clone(&worker.tables);
    let drop = |worker: &mut Dataplane, job: &Job, cause| {
        worker.sent.drop(cause);
        tables.drops.outbound(job.route, cause, &worker.id);
    };
    let (cut, cut_jobs) = &mut scratch.cut;
    cut_jobs.clear();
    for (frame, job) in scratch.frames.drain(..).zip(&scratch.jobs) {
        let inner_max = tables
            .routes
            .get(job.route as usize)
            .map_or(0, |route| route.inner_max());
        // A dummy may be longer, as it may be there to find out what the path takes.
        if frame.len() - HEADER <= inner_max || job.next_header == esp::DUMMY {
            cut.push(frame);
        } else {
            match Ipv4::parse(&frame[HEADER..]) {
                Ok(ip) if job.next_header == esp::INNER_IPV4 && !ip.dont_fragment() => {
                    let (pool, malformed) = (&worker.pool, DropReason::Malformed);
                    match fragment::fragment(&frame, &ip, inner_max, pool, malformed, cut) {
                        Ok(n) => worker.sent.fragments += n as u64 - 1,
                        Err(cause) => drop(worker, job, cause),
                    }
                }
                _ => {
                    let (kind, to) = (ErrorKind::TooBig(inner_max), &mut output.back);
                    let is_v4 = job.next_header == esp::INNER_IPV4;
                    report(worker, now, origin, &frame, is_v4, kind, to);
                    drop(worker, job, DropReason::TooBig);
                }
            }
        }
        cut_jobs.resize(cut.len(), *job);
    }
    std::mem::swap(&mut scratch.frames, cut);
    std::mem::swap(&mut scratch.jobs, cut_jobs);
    scratch.reserve(0);
}

/// The third pass: takes sequence numbers, a run of packets of one route at a time, and writes
/// headers and trailer.
///
/// Numbers are taken only now, when it is certain that a packet fits and where it goes: a number
/// that is taken and not sent is a gap, which the peer cannot tell from a loss. Headers are written
/// before any packet is encrypted, so that the cipher works on several packets at a time.
#[inline(never)]
fn encapsulate<const MANY: bool>(
    worker: &mut Dataplane,
    tables: &BoundTables,
    scratch: &mut Scratch,
    is_one_run: bool,
) {
    let frames = &mut scratch.frames[..];
    let jobs = &mut scratch.jobs[..frames.len()];
    let mut failed = false;
    if MANY {
        for (frame, job) in frames.iter_mut().zip(jobs) {
            let done =
                one_route::encapsulate_one(worker, tables, frame, job).unwrap_or_else(|| {
                    let (frame, job) = (slice::from_mut(frame), slice::from_mut(job));
                    encapsulate_run(worker, tables, frame, job)
                });
            failed |= done.is_err();
        }
    } else if is_one_run {
        failed = encapsulate_run(worker, tables, frames, jobs).is_err();
    } else {
        let mut rest = frames;
        for run in jobs.chunk_by_mut(|a, b| a.route == b.route) {
            let frames = rest.split_off_mut(..run.len()).unwrap_or_default();
            failed |= encapsulate_run(worker, tables, frames, run).is_err();
        }
    }
    if failed {
        discard(&mut scratch.frames, &mut scratch.jobs, |job| job.front != 0);
    }
}

/// [`encapsulate`] for a run of packets of one route. If some cannot be sent, they are counted as
/// dropped for the reason that it returns, and `front` of these is 0.
#[inline(never)]
fn encapsulate_run(
    worker: &mut Dataplane,
    tables: &BoundTables,
    frames: &mut [Frame],
    run: &mut [Job],
) -> Result<(), DropReason> {
    let Some(&Job { route, .. }) = run.first() else {
        return Ok(());
    };
    let sa = outbound_sa(tables, route, worker.id.number()).ok_or(DropReason::NoSa);
    let taken = sa.and_then(|sa| {
        let link = match sa.outer() {
            Outer::V4 { .. } => &worker.public.v4,
            Outer::V6 { .. } => &worker.public.v6,
        };
        let link = link.as_ref().ok_or(DropReason::NextHopUnknown)?;
        let number = sa.take(run.len() as u64, &worker.id);
        Ok((sa, link, number.ok_or(DropReason::SequenceExhausted)?))
    });
    let (sa, link, number) = match taken {
        Ok(taken) => taken,
        Err(cause) => {
            cold_path();
            run.iter_mut().for_each(|job| job.front = 0);
            refuse(worker, tables, run, cause);
            return Err(cause);
        }
    };
    let (bytes, result) = write_all(link, sa, number, frames, run);
    sa.count(bytes, &worker.id);
    if let Err(cause) = result {
        cold_path();
        refuse(worker, tables, run, cause);
    }
    result
}

/// Counts the packets of a run that have no place for headers in front as dropped.
#[cold]
fn refuse(worker: &mut Dataplane, tables: &BoundTables, run: &[Job], cause: DropReason) {
    for job in run.iter().filter(|job| job.front == 0) {
        worker.sent.drop(cause);
        tables.drops.outbound(job.route, cause, &worker.id);
    }
}

#[inline]
fn outbound_sa(tables: &Tables, route: u32, worker: usize) -> Option<&OutboundSa> {
    Some(tables.routes.get(route as usize)?.outbound(worker)?)
}

/// Prefetches the key of a route, for a packet of about `len` bytes.
#[inline]
fn prefetch_key(tables: &Tables, worker: usize, route: u32, len: usize) {
    if let Some(sa) = outbound_sa(tables, route, worker) {
        sa.key.prefetch(len);
    }
}

/// Writes headers and trailers of a run of packets, whose sequence numbers begin with `number`.
/// Returns the bytes that are to be encrypted and, if some packets cannot be sent, why; `front` of
/// these is 0.
#[inline(always)]
fn write_all(
    link: &[u8; HEADER],
    sa: &OutboundSa,
    number: u64,
    frames: &mut [Frame],
    run: &mut [Job],
) -> (u64, Result<(), DropReason>) {
    match sa.outer_header() {
        OuterHeader::V4(header) => write_run::<{ ipv4::HEADER }, { FRONT + ipv4::HEADER }>(
            link,
            sa,
            number,
            frames,
            run,
            |outer, payload, tos| header.write(outer, payload, tos),
        ),
        OuterHeader::V6(header) => write_run::<{ ipv6::HEADER }, { FRONT + ipv6::HEADER }>(
            link,
            sa,
            number,
            frames,
            run,
            |outer, payload, tos| header.write(outer, payload, tos),
        ),
    }
}

/// Bytes that are written in front of an inner packet, without the outer IP header.
const FRONT: usize = HEADER + esp::HEADER;

/// [`write_all`] for outer packets of one version, whose IP header has `OUTER` bytes, `ALL` with
/// [`FRONT`]. `write_outer` writes the outer IP header, given the bytes behind it and the DSCP and
/// ECN.
#[inline(always)]
fn write_run<const OUTER: usize, const ALL: usize>(
    ethernet: &[u8; HEADER],
    sa: &OutboundSa,
    mut number: u64,
    frames: &mut [Frame],
    run: &mut [Job],
    write_outer: impl Fn(&mut [u8; OUTER], usize, u8),
) -> (u64, Result<(), DropReason>) {
    let mut bytes = 0;
    let mut result = Ok(());
    for (frame, job) in frames.iter_mut().zip(run) {
        let encrypted = write::<OUTER, ALL>(ethernet, sa, number, frame, job, &write_outer);
        number += 1;
        bytes += encrypted as u64;
        if job.front == 0 {
            cold_path();
            bytes -= encrypted as u64;
            result = Err(DropReason::NoBuffer);
        }
    }
    (bytes, result)
}

/// Fills the job of a packet with this sequence number and writes everything around it. Returns the
/// bytes that are to be encrypted; `front` of the job is 0 if the frame has no room.
#[inline(always)]
fn write<const OUTER: usize, const ALL: usize>(
    ethernet: &[u8; HEADER],
    sa: &OutboundSa,
    number: u64,
    frame: &mut Frame,
    job: &mut Job,
    write_outer: impl Fn(&mut [u8; OUTER], usize, u8),
) -> usize {
    let inner = frame.len() - HEADER;
    let encrypted = inner + esp::padding(inner) + esp::TRAILER;
    job.sequence = number;
    job.len = encrypted as u16;
    job.front = match write_around::<OUTER, ALL>(ethernet, sa, job, frame, write_outer) {
        Some(()) => ALL as u8,
        None => 0,
    };
    encrypted
}

/// Decrements TTL or hop limit of the inner packet and writes everything around it but the ICV;
/// `None` if the frame has no room.
#[inline(always)]
fn write_around<const OUTER: usize, const ALL: usize>(
    ethernet: &[u8; HEADER],
    sa: &OutboundSa,
    job: &Job,
    frame: &mut Frame,
    write_outer: impl Fn(&mut [u8; OUTER], usize, u8),
) -> Option<()> {
    // Read before the frame is written to: the compiler cannot tell that they are apart.
    let Job {
        sequence: number,
        tos,
        next_header,
        ..
    } = *job;
    let spi_and_number = u64::from(sa.spi) << 32 | number & 0xffff_ffff;
    let iv = sa.iv(number);
    let inner = frame.len() - HEADER;
    let padding = esp::padding(inner);
    let behind = padding + esp::TRAILER + esp::ICV;
    let all = frame.grow(OUTER + esp::HEADER, behind)?;
    let (front, rest) = all.split_first_chunk_mut::<ALL>()?;
    let (link, front) = front.split_first_chunk_mut()?;
    let (outer, front) = front.split_first_chunk_mut()?;
    let (header, _) = front.split_first_chunk_mut::<{ esp::HEADER }>()?;
    *link = *ethernet;
    write_outer(outer, esp::HEADER + inner + behind, tos);
    header[..8].copy_from_slice(&spi_and_number.to_be_bytes());
    header[8..].copy_from_slice(&iv.to_be_bytes());
    match next_header {
        V4::NEXT_HEADER => V4::decrement_ttl(rest),
        V6::NEXT_HEADER => V6::decrement_ttl(rest),
        _ => {}
    }
    esp::write_trailer(rest.get_mut(inner..)?, padding, next_header)
}

/// The last pass: seals.
#[inline(never)]
fn seal<const MANY: bool>(
    worker: &mut Dataplane,
    tables: &BoundTables,
    scratch: &mut Scratch,
    output: &mut Output,
) {
    let Scratch { frames, jobs, .. } = scratch;
    let number = worker.id.number();
    let mut bytes = 0;
    let jobs = &jobs[..frames.len()];
    let mut later = jobs.iter().skip(KEYS_AHEAD);
    let mut last = (u32::MAX, None);
    // The first that cannot be described ends the iteration; it is never sent, nor is any behind
    // it.
    let packets = frames.iter_mut().zip(jobs).map_while(|(frame, job)| {
        if MANY {
            if let Some(job) = later.next() {
                prefetch_key(tables, number, job.route, usize::from(job.len));
            }
        }
        // Where routes are few, the one of the packet before is as a rule this one's too.
        if MANY || job.route != last.0 {
            last = (job.route, outbound_sa(tables, job.route, number));
        }
        let sa = last.1?;
        let len = frame.len() as u64;
        let message = frame.get_mut(usize::from(job.front)..)?;
        // RFC 4106, 4: salt and IV, which no two packets of a key share.
        let nonce = Nonce::from_parts(sa.salt, sa.iv(job.sequence));
        let aad = esp::aad(sa.spi, job.sequence, sa.sequence_mode);
        let packet = RunPacket::new(nonce, aad, message)?;
        bytes += len;
        Some((&sa.key, packet))
    });
    let sealed = seal_keyed(packets);
    for job in &jobs[sealed..] {
        worker.sent.drop(DropReason::NoSa);
        let drops = &tables.drops;
        drops.outbound(job.route, DropReason::NoSa, &worker.id);
    }
    frames.truncate(sealed);
    output.forward.append(frames);
    worker.sent.forwarded += sealed as u64;
    worker.sent.forwarded_bytes += bytes;
}
