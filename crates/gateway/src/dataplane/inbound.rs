//! From the public side to the private one.

mod claim;
mod in_order;
mod plain;

use std::hint::cold_path;
use std::sync::Arc;

use tare_gcm::{open_keyed, Nonce, RunPacket};
use tare_packet::ethernet::{self, HEADER};
use tare_packet::ipv4::{self, Ipv4};
use tare_packet::ipv6::{self, Ipv6};
use tare_packet::protocol::{ICMP, ICMPV6, UDP};
use tare_port::{Burst, Frame};
use tare_sim::Instant;

use self::claim::{claim, claim_each};
use self::in_order::InOrder;
use super::group::BoundTables;
use super::icmp::{self, ErrorKind, Way};
use super::prefixes::MARTIAN;
use super::sa::InboundSa;
use super::sequence::add;
use super::tables::Tables;
use super::version::{Exception, RouteBy, Version, V4, V6};
use super::window::Refused;
use super::worker::WorkerId;
use super::{
    discard, fragment, link_kind, set_aside, Dataplane, DropReason, Output, OwnAddresses, Station,
    KEYS_AHEAD,
};
use crate::dataplane::ecn;
use crate::dataplane::esp;

/// The packets of a burst between passes.
#[derive(Default)]
pub(super) struct Scratch {
    /// Empty between bursts.
    frames: Vec<Frame>,
    spare: Vec<Frame>,
    /// The state of each frame; as many as there ever were at once. Written in place, as the
    /// other direction does.
    jobs: Vec<Job>,
    /// The outcome of each frame: authentic or not, and then new or not.
    outcomes: Vec<Result<(), DropReason>>,
}

#[derive(Clone, Copy, Default)]
struct Job {
    spi: u32,
    /// Place of the SA.
    sa: u32,
    /// The route of the SA.
    route: u32,
    /// DSCP and ECN of the outer packet.
    tos: u8,
    /// The offset of the ESP header; 0 if the frame is to be dropped.
    front: u8,
    /// Bytes that are encrypted.
    len: u16,
    sequence: u64,
    /// [`Exit::Forward`] but from where another is found to the end of that pass.
    exit: Exit,
}

/// The way out of a packet.
#[derive(Clone, Copy, Default)]
enum Exit {
    /// To the private side, once it has been opened.
    #[default]
    Forward,
    /// Dropped by the first pass.
    Nowhere,
    /// To the control side, by the first pass.
    Control,
    /// To the control side, out of the tunnel.
    Inner,
    /// Back to its sender, as an error.
    NoHopLeft { is_v4: bool },
    /// In fragments, or as an error.
    TooLong { is_v4: bool },
}

/// Passes are functions of their own, so that each has all registers: inlined into one they pass
/// most of what they need through the stack, packet by packet.
pub(super) fn run(worker: &mut Dataplane, now: Instant, input: &mut Burst, output: &mut Output) {
    let mut scratch = std::mem::take(&mut worker.inbound);
    scratch.frames.reserve(input.len());
    if input.len() > scratch.jobs.len() {
        scratch.jobs.resize(input.len(), Job::default());
        scratch
            .outcomes
            .resize(input.len(), Err(DropReason::Forged));
    }
    output.forward.reserve(input.len());
    let tables = Arc::clone(&worker.tables);
    if tables.inbound.are_few() {
        let station = Station::new(worker.public.mac);
        if let Some(in_order) = InOrder::admit(&tables, &worker.own, station, input) {
            in_order::run(worker, &tables, now, in_order, &mut scratch, input, output);
            worker.inbound = scratch;
            return;
        }
        admit_all::<false>(worker, &tables, &mut scratch, input, output);
        open::<false>(&tables, &mut scratch);
    } else {
        admit_all::<true>(worker, &tables, &mut scratch, input, output);
        let first = scratch.frames.len().min(KEYS_AHEAD);
        for job in &scratch.jobs[..first] {
            prefetch_key(&tables, job);
        }
        number_all(worker, &tables, &mut scratch);
        open::<true>(&tables, &mut scratch);
    }
    if tables.inbound.are_few() {
        claim(&worker.id, &tables, &mut scratch);
    } else {
        claim_each(&worker.id, &tables, &mut scratch);
    }
    finish(worker, &tables, now, &mut scratch, output, Left::default());
    worker.inbound = scratch;
}

/// The first pass: outer headers, and the SAs. Frames change hands all at once.
///
/// A step ahead is worth its bookkeeping only where the SAs are so many that they are not in the
/// caches anyway. Where they are few, this does the work of the second pass as well.
#[inline(never)]
fn admit_all<const MANY: bool>(
    worker: &mut Dataplane,
    tables: &BoundTables,
    scratch: &mut Scratch,
    input: &mut Burst,
    output: &mut Output,
) {
    let station = Station::new(worker.public.mac);
    let mut bytes = 0;
    let mut all = true;
    worker.received.received += input.len() as u64;
    std::mem::swap(&mut scratch.frames, input);
    let Scratch { frames, jobs, .. } = scratch;
    let jobs = &mut jobs[..frames.len()];
    let mut run = plain::Run::default();
    for (at, frame) in frames.iter_mut().enumerate() {
        bytes += frame.len() as u64;
        let job = &mut jobs[at];
        let plain = plain::admit::<MANY>(tables, &worker.own, station, &mut run, frame, job);
        let sa = match plain {
            Some(sa) => sa,
            None if !admit_other(worker, tables, station, frame, job) => {
                all = false;
                if MANY {
                    find_ahead(tables, jobs, at);
                }
                continue;
            }
            None if MANY => None,
            None => {
                job.sa = tables.inbound.find(job.spi).unwrap_or(u32::MAX);
                tables.inbound.at(job.sa)
            }
        };
        if MANY {
            tables.inbound.prefetch(job.spi);
            find_ahead(tables, jobs, at);
        } else if let Err(cause) = number(&worker.id, sa, job) {
            all = false;
            job.exit = Exit::Nowhere;
            drop_numbered(worker, tables, job, cause);
        }
    }
    worker.received.received_bytes += bytes;
    if MANY {
        let n = frames.len();
        for at in n..n + AHEAD {
            find_ahead(tables, jobs, at);
        }
    }
    if !all {
        set_aside(frames, &mut scratch.spare, jobs, |frame, job| {
            match std::mem::take(&mut job.exit) {
                Exit::Control => output.control.push(frame),
                Exit::Nowhere => {}
                _ => return Some(frame),
            }
            None
        });
    }
}

/// [`admit`] for frames that are not plain. Returns true if one is to be opened, and counts any
/// other.
#[inline(never)]
fn admit_other(
    worker: &mut Dataplane,
    tables: &Tables,
    station: Station,
    frame: &mut Frame,
    job: &mut Job,
) -> bool {
    let admitted =
        link_kind(frame, station).and_then(|kind| admit(tables, &worker.own, kind, frame, job));
    match admitted {
        Ok(Admitted::Esp) => return true,
        Ok(Admitted::Control) => {
            worker.received.control += 1;
            job.exit = Exit::Control;
        }
        Err(cause) => {
            worker.received.drop(cause);
            job.exit = Exit::Nowhere;
        }
    }
    false
}

enum Admitted {
    /// To be opened; the job is filled in.
    Esp,
    Control,
}

/// Reads the outer headers of a frame into its job.
#[inline]
fn admit(
    tables: &Tables,
    own: &OwnAddresses,
    kind: u16,
    frame: &mut Frame,
    job: &mut Job,
) -> Result<Admitted, DropReason> {
    let (protocol, tos, front, end) = match kind {
        ethernet::IPV4 => {
            let ip = Ipv4::parse(&frame[HEADER..]).map_err(|_| DropReason::Malformed)?;
            if !own.has4(ip.dst) {
                return Err(DropReason::NotForUs);
            }
            // The link's own addresses are martians where packets are forwarded, but tunnels may
            // begin and end on one link. The table is the faster check and comes first.
            let martian = tables.prefixes.is_martian4(ip.src) && !ipv4::is_host(ip.src);
            if martian || own.has4(ip.src) {
                return Err(DropReason::MartianSource);
            }
            if ip.is_fragment() {
                return Err(DropReason::OuterFragment);
            }
            let (front, end) = (HEADER + ip.header_len, HEADER + ip.total_len);
            (ip.protocol, ip.tos, front, end)
        }
        ethernet::IPV6 => {
            let ip = Ipv6::parse(&frame[HEADER..]).map_err(|_| DropReason::Malformed)?;
            if ipv6::is_multicast(ip.dst) && ip.next_header == ICMPV6 {
                return Ok(Admitted::Control);
            }
            if !own.has6(ip.dst) {
                return Err(DropReason::NotForUs);
            }
            if !ipv6::is_host(ip.src) || own.has6(ip.src) {
                return Err(DropReason::MartianSource);
            }
            let (front, end) = (HEADER + ipv6::HEADER, HEADER + ip.total_len);
            (ip.next_header, ip.traffic_class, front, end)
        }
        ethernet::ARP => return Ok(Admitted::Control),
        _ => return Err(DropReason::NotIp),
    };
    match protocol {
        esp::PROTOCOL => {}
        UDP => {
            let port = frame
                .get(front + 2..front + 4)
                .ok_or(DropReason::Malformed)?;
            if u16::from_be_bytes([port[0], port[1]]) == tables.exchange_port {
                return Ok(Admitted::Control);
            }
            return Err(DropReason::UnknownProtocol);
        }
        ICMP | ICMPV6 => return Ok(Admitted::Control),
        _ => return Err(DropReason::UnknownProtocol),
    }
    frame.truncate(end);
    let header = frame[front..]
        .first_chunk::<8>()
        .ok_or(DropReason::Malformed)?;
    if end < front + esp::HEADER + esp::TRAILER + esp::ICV {
        return Err(DropReason::Malformed);
    }
    let spi = u32::from_be_bytes([header[0], header[1], header[2], header[3]]);
    let low = u32::from_be_bytes([header[4], header[5], header[6], header[7]]);
    job.spi = spi;
    job.tos = tos;
    job.front = front as u8;
    job.len = (end - front - esp::HEADER - esp::ICV) as u16;
    job.sequence = u64::from(low);
    Ok(Admitted::Esp)
}

/// The number of packets between prefetching memory and reading it.
const AHEAD: usize = 12;

/// Finds the SA of a packet that was looked at some packets ago. What this reads was asked for
/// then, so nothing waits for memory while there are other packets to look at.
#[inline]
fn find_ahead(tables: &Tables, jobs: &mut [Job], at: usize) {
    if let Some(job) = at.checked_sub(AHEAD).and_then(|at| jobs.get_mut(at)) {
        job.sa = tables.inbound.find(job.spi).unwrap_or(u32::MAX);
        if let Some(sa) = tables.inbound.at(job.sa) {
            sa.prefetch();
        }
    }
}

/// The second pass where there are many SAs: whole sequence numbers, and a check of the windows
/// without their lock. It is no promise, but a replayed packet that it finds is not decrypted (RFC
/// 4303, 3.4.3).
#[inline(never)]
fn number_all(worker: &mut Dataplane, tables: &BoundTables, scratch: &mut Scratch) {
    let mut failed = false;
    for job in &mut scratch.jobs[..scratch.frames.len()] {
        if let Err(cause) = number(&worker.id, tables.inbound.at(job.sa), job) {
            failed = true;
            job.front = 0;
            drop_numbered(worker, tables, job, cause);
        }
    }
    if failed {
        discard(&mut scratch.frames, &mut scratch.jobs, |job| job.front != 0);
    }
}

/// Counts a packet that has no number which its window may take.
#[cold]
fn drop_numbered(worker: &mut Dataplane, tables: &BoundTables, job: &Job, cause: DropReason) {
    worker.received.drop(cause);
    count_drop(&worker.id, tables, job, cause);
}

/// Counts a packet that was dropped as one of its route, if its SA is known.
#[cold]
fn count_drop(worker: &WorkerId, tables: &BoundTables, job: &Job, cause: DropReason) {
    if let Some(sa) = tables.inbound.at(job.sa) {
        tables.drops.inbound(sa.route, cause, worker);
    }
}

/// The whole sequence number of a packet, if the window of its SA may take it.
#[inline(always)]
fn number(worker: &WorkerId, sa: Option<&InboundSa>, job: &mut Job) -> Result<(), DropReason> {
    let sa = sa.ok_or(DropReason::UnknownSpi)?;
    let number = sa.window.number(job.sequence as u32).map_err(cause_of);
    if number.is_err() {
        cold_path();
        add(&sa.replayed, 1, worker);
    }
    job.sequence = number?;
    job.route = sa.route;
    Ok(())
}

fn cause_of(refused: Refused) -> DropReason {
    match refused {
        Refused::Replayed => DropReason::Replayed,
        Refused::TooOld | Refused::Zero => DropReason::TooOld,
    }
}

/// Prefetches the key of a packet.
#[inline]
fn prefetch_key(tables: &Tables, job: &Job) {
    if let Some(sa) = tables.inbound.at(job.sa) {
        sa.key.prefetch(usize::from(job.len));
    }
}

/// The third pass: opens. A packet that cannot be described stays unauthentic, as do those after
/// it.
#[inline(never)]
fn open<const MANY: bool>(tables: &Tables, scratch: &mut Scratch) {
    let Scratch {
        frames,
        jobs,
        outcomes,
        ..
    } = scratch;
    let outcomes = &mut outcomes[..frames.len()];
    outcomes.fill(Ok(()));
    let jobs = &jobs[..frames.len()];
    let mut later = jobs.iter().skip(KEYS_AHEAD);
    let mut last = (u32::MAX, None);
    let packets = frames.iter_mut().zip(jobs).map_while(|(frame, job)| {
        if MANY {
            if let Some(job) = later.next() {
                prefetch_key(tables, job);
            }
        }
        // Where SAs are few, the one of the packet before is as a rule this one's too.
        if MANY || job.sa != last.0 {
            last = (job.sa, tables.inbound.at(job.sa));
        }
        let sa = last.1?;
        let payload = frame.get_mut(usize::from(job.front) + 8..)?;
        let (iv, message) = payload.split_first_chunk_mut::<8>()?;
        let nonce = Nonce::from_parts(sa.salt, u64::from_be_bytes(*iv));
        let aad = esp::aad(job.spi, job.sequence, sa.window.sequence_mode);
        Some((&sa.key, RunPacket::new(nonce, aad, message)?))
    });
    let opened = open_keyed(packets, |number| {
        outcomes[number] = Err(DropReason::Forged);
    });
    outcomes[opened..].fill(Err(DropReason::Forged));
}

/// The first packets of a burst, which are to be forwarded.
#[derive(Default)]
struct Left {
    packets: usize,
    /// Bytes of their frames.
    bytes: u64,
}

/// The last pass: looks at what was inside, but for those that have `left`. Packets stay in their
/// place and leave together, as a rule all of them.
#[inline(never)]
fn finish(
    worker: &mut Dataplane,
    tables: &BoundTables,
    now: Instant,
    scratch: &mut Scratch,
    output: &mut Output,
    left: Left,
) {
    let Scratch {
        frames,
        jobs,
        outcomes,
        ..
    } = scratch;
    let Left {
        packets: mut forwarded,
        mut bytes,
    } = left;
    let link = worker.private.v4;
    let own = &worker.own;
    let plain = link
        .as_ref()
        .map(|link| plain::Exit::new(tables, own, link));
    let known = jobs.iter_mut().zip(&mut *outcomes);
    for (frame, (job, outcome)) in frames.iter_mut().zip(known).skip(forwarded) {
        let left = match &plain {
            Some(plain) if outcome.is_ok() => plain.leave(job.around(), frame),
            _ => None,
        };
        if let Some(len) = left {
            forwarded += 1;
            bytes += len as u64;
        } else if leave_other(worker, tables, job, outcome, frame) {
            forwarded += 1;
            bytes += frame.len() as u64;
        }
    }
    worker.received.forwarded += forwarded as u64;
    worker.received.forwarded_bytes += bytes;
    if forwarded == frames.len() {
        output.forward.append(frames);
    } else {
        part(worker, tables, now, scratch, output);
    }
}

/// [`leave`] for packets that are not plain. Returns true if one is to be forwarded, and notes what
/// becomes of any other.
#[inline(never)]
fn leave_other(
    worker: &Dataplane,
    tables: &Tables,
    job: &mut Job,
    outcome: &mut Result<(), DropReason>,
    frame: &mut Frame,
) -> bool {
    match outcome.and_then(|()| leave(worker, tables, job, frame)) {
        Ok(Exit::Forward) => return true,
        Ok(exit) => job.exit = exit,
        Err(cause) => *outcome = Err(cause),
    }
    false
}

/// Hands on the packets of a burst that are not all forwarded.
#[cold]
fn part(
    worker: &mut Dataplane,
    tables: &BoundTables,
    now: Instant,
    scratch: &mut Scratch,
    output: &mut Output,
) {
    let known = scratch.jobs.iter_mut().zip(&scratch.outcomes);
    for (frame, (job, outcome)) in scratch.frames.drain(..).zip(known) {
        let exit = std::mem::take(&mut job.exit);
        let left = outcome.and_then(|()| match exit {
            Exit::Forward => {
                output.forward.push(frame);
                Ok(())
            }
            Exit::Nowhere | Exit::Control => Ok(()),
            Exit::Inner => {
                worker.received.control += 1;
                output.inner.push(frame);
                Ok(())
            }
            Exit::NoHopLeft { is_v4 } => {
                let (kind, to) = (ErrorKind::TimeExceeded, &mut output.tunnel);
                icmp::report(worker, now, &frame, is_v4, kind, Way::Tunnel, to);
                Err(DropReason::TtlExceeded)
            }
            Exit::TooLong { is_v4 } => fit(worker, tables, now, &frame, is_v4, output),
        });
        if let Err(cause) = left {
            worker.received.drop(cause);
            count_drop(&worker.id, tables, job, cause);
        }
    }
}

/// Takes the packet out of what it came in, and returns where it goes.
#[inline]
fn leave(
    worker: &Dataplane,
    tables: &Tables,
    job: &Job,
    frame: &mut Frame,
) -> Result<Exit, DropReason> {
    let begin = usize::from(job.front) + esp::HEADER;
    let payload = frame.get(begin..begin + usize::from(job.len));
    let (payload, &[pad_len, next_header]) = payload
        .and_then(|payload| payload.split_last_chunk::<{ esp::TRAILER }>())
        .ok_or(DropReason::InnerMalformed)?;
    let len = payload.len().checked_sub(usize::from(pad_len));
    let len = len.ok_or(DropReason::InnerMalformed)?;
    if !esp::is_padding(payload, len) {
        let sa = tables.inbound.at(job.sa);
        let zeros = sa.is_some_and(InboundSa::accepts_zeros_as_padding);
        if !zeros || payload[len..].iter().any(|&byte| byte != 0) {
            return Err(DropReason::Padding);
        }
    }
    match next_header {
        esp::INNER_IPV4 => deliver::<V4>(worker, tables, job, frame, len),
        esp::INNER_IPV6 => deliver::<V6>(worker, tables, job, frame, len),
        esp::DUMMY => dummy(tables, job, frame, len),
        _ => Err(DropReason::InnerMalformed),
    }
}

/// [`leave`] for a packet that is within the first `len` bytes of what was encrypted. What is
/// behind it is padding that hides its length (RFC 4303, 2.7).
#[inline(always)]
fn deliver<V: Version>(
    worker: &Dataplane,
    tables: &Tables,
    job: &Job,
    frame: &mut Frame,
    len: usize,
) -> Result<Exit, DropReason> {
    let begin = usize::from(job.front) + esp::HEADER;
    let payload = &frame[begin..begin + len];
    let inner =
        V::read(tables, &worker.own, payload, RouteBy::Source).ok_or(DropReason::InnerMalformed)?;
    // RFC 4301, 5.2: the packet's header is to match "the selectors" of the SA it came by.
    if inner.route != job.route {
        return Err(match inner.route {
            MARTIAN => DropReason::MartianSource,
            _ => DropReason::InnerSource,
        });
    }
    let tos = ecn::leaving(inner.tos, job.tos).ok_or(DropReason::EcnIllegal)?;
    frame.keep(begin - HEADER, HEADER + inner.len);
    let (link, packet) = frame
        .split_first_chunk_mut()
        .ok_or(DropReason::InnerMalformed)?;
    if tos != inner.tos {
        V::set_tos(packet, tos);
    }
    let header = V::link(&worker.private);
    if let Some(header) = header {
        *link = *header;
    }
    if inner.is_exception {
        cold_path();
        let exception = V::exception(tables, &worker.own, packet, RouteBy::Source);
        return match exception.ok_or(DropReason::InnerMalformed)? {
            Exception { own: true, .. } => Ok(Exit::Inner),
            Exception {
                own_source: true, ..
            } => Err(DropReason::MartianSource),
            _ => Err(DropReason::MartianDestination),
        };
    }
    let is_v4 = V::NEXT_HEADER == V4::NEXT_HEADER;
    if inner.hops <= 1 {
        return Ok(Exit::NoHopLeft { is_v4 });
    }
    header.ok_or(DropReason::NextHopUnknown)?;
    V::decrement_ttl(packet);
    if inner.len > usize::from(tables.private.mtu) {
        return Ok(Exit::TooLong { is_v4 });
    }
    Ok(Exit::Forward)
}

/// Prepares a dummy for the control side, if it is for it, with the number of its route in front.
/// Others are dropped.
#[cold]
fn dummy(tables: &Tables, job: &Job, frame: &mut Frame, len: usize) -> Result<Exit, DropReason> {
    /// The bytes that the control side reads.
    const MESSAGE: usize = 64;
    let begin = usize::from(job.front) + esp::HEADER;
    let sa = tables.inbound.at(job.sa).ok_or(DropReason::UnknownSpi)?;
    if !frame[begin..begin + len].starts_with(&esp::DUMMY_MAGIC) {
        return Err(DropReason::Dummy);
    }
    frame.keep(begin - HEADER, HEADER + len.min(MESSAGE));
    frame[..4].copy_from_slice(&sa.route.to_be_bytes());
    Ok(Exit::Inner)
}

/// Cuts a packet that is longer than the private side takes into fragments, or reports it to its
/// sender.
#[cold]
fn fit(
    worker: &mut Dataplane,
    tables: &Tables,
    now: Instant,
    frame: &Frame,
    is_v4: bool,
    output: &mut Output,
) -> Result<(), DropReason> {
    let mtu = usize::from(tables.private.mtu);
    let whole = Ipv4::parse(&frame[HEADER..]);
    let Some(ip) = whole.ok().filter(|ip| is_v4 && !ip.dont_fragment()) else {
        let (kind, to) = (ErrorKind::TooBig(mtu), &mut output.tunnel);
        icmp::report(worker, now, frame, is_v4, kind, Way::Tunnel, to);
        return Err(DropReason::TooBig);
    };
    let (pool, malformed) = (&worker.pool, DropReason::InnerMalformed);
    let n = fragment::fragment(frame, &ip, mtu, pool, malformed, &mut output.forward)?;
    let made = output.forward.iter().rev().take(n);
    worker.received.forwarded_bytes += made.map(|f| f.len() as u64).sum::<u64>();
    worker.received.forwarded += n as u64;
    worker.received.fragments += n as u64 - 1;
    Ok(())
}
