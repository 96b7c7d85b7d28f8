//! The shortest way: a burst of plain packets of one SA with one sequence number after the other,
//! as a peer sends them and a link carries them.
//!
//! What is common to such packets is looked at once: addresses, SA, the upper half of the numbers
//! and the window. A packet needs no job, and no line of the tables but those of its inner
//! addresses. A burst that is not such a one as a whole, up to the first packet that differs, goes
//! the way of all others from its start.

use std::hint::cold_path;

use tare_gcm::{open_run, Nonce, RunPacket};
use tare_packet::ethernet::HEADER;
use tare_packet::ipv4;
use tare_port::{Burst, Frame};
use tare_sim::Instant;

use super::plain::{self, OUTER};
use super::{add, claim, finish, Job, Left, Scratch};
use super::{BoundTables, Dataplane, DropReason, InboundSa, Output, OwnAddresses};
use super::{Station, Tables, WorkerId};
use crate::dataplane::{esp, SequenceMode};

/// The farthest that the first number may be beyond the highest one received: from somewhere on a
/// number with another upper half is meant.
const REACH: u64 = 1 << 16;

/// The common part of the packets of such a burst.
#[derive(Clone, Copy)]
pub(super) struct InOrder<'a> {
    sa: &'a InboundSa,
    /// Place of the SA.
    place: u32,
    /// The whole number of the first packet.
    first: u64,
    /// Bytes of all frames.
    bytes: u64,
}

/// Bytes of a frame that are not encrypted.
const AROUND: usize = OUTER + esp::HEADER + esp::ICV;

impl<'a> InOrder<'a> {
    /// Looks at the outer headers of a burst; see [`super::admit_all`], which these packets pass as
    /// well. Changes nothing.
    #[inline(never)]
    pub(super) fn admit(
        tables: &'a Tables,
        own: &OwnAddresses,
        station: Station,
        frames: &[Frame],
    ) -> Option<InOrder<'a>> {
        let outside = plain::read(station, frames.first()?)?;
        if !outside.is_from_peer(tables, own) {
            return None;
        }
        let place = tables.inbound.find((outside.numbers >> 32) as u32)?;
        let sa = tables.inbound.at(place)?;
        // Each number from the first one on is beyond the window, so that what holds for the first
        // holds for all.
        let first = sa.window.number(outside.numbers as u32).ok()?;
        let ahead = first.wrapping_sub(sa.window.top());
        if !(1..=REACH).contains(&ahead) || frames.len() as u64 > REACH {
            return None;
        }
        // A carry out of the lower half would be compared with the SPI of another SA.
        (outside.numbers as u32).checked_add(frames.len() as u32 - 1)?;
        let addresses = outside.addresses;
        let (mut numbers, mut bytes) = (outside.numbers, 0);
        for frame in frames {
            let outside = plain::read(station, frame)?;
            let follows = outside.addresses == addresses && outside.numbers == numbers;
            // Without what Ethernet pads, which short packets alone have.
            if !follows || outside.total_len != frame.len() - HEADER {
                return None;
            }
            numbers = numbers.wrapping_add(1);
            bytes += frame.len() as u64;
        }
        Some(InOrder {
            sa,
            place,
            first,
            bytes,
        })
    }

    /// Opens the packets, and calls `forged` with the number of each that is not authentic. Returns
    /// how many were looked at: one that cannot be described ends it.
    #[inline(never)]
    pub(super) fn open(&self, frames: &mut [Frame], forged: impl FnMut(usize)) -> usize {
        match self.sa.window.sequence_mode {
            SequenceMode::Extended => self.open_as::<true>(frames, forged),
            SequenceMode::Plain => self.open_as::<false>(frames, forged),
        }
    }

    /// [`InOrder::open`] for one width of sequence numbers, as a type: the compiler inlines what has
    /// one caller.
    #[inline(always)]
    fn open_as<const EXTENDED: bool>(
        &self,
        frames: &mut [Frame],
        forged: impl FnMut(usize),
    ) -> usize {
        let InOrder { sa, first, .. } = *self;
        let (salt, spi) = (sa.salt, sa.spi);
        let packets = frames.iter_mut().zip(first..).map_while(|(frame, number)| {
            let behind = frame.get_mut(OUTER + 8..)?;
            let (iv, message) = behind.split_first_chunk_mut::<8>()?;
            let nonce = Nonce::from_parts(salt, u64::from_be_bytes(*iv));
            let aad = esp::aad(spi, number, SequenceMode::of(EXTENDED));
            RunPacket::new(nonce, aad, message)
        });
        open_run(&sa.key, packets, forged)
    }

    /// Claims the numbers of the packets, all authentic, and counts them; returns false, and does
    /// neither, if another worker has been faster.
    pub(super) fn claim(&self, worker: &WorkerId, packets: usize) -> bool {
        let n = packets as u64;
        let claimed = self.sa.window.lock(worker).claim_run(self.first, n);
        if claimed {
            add(&self.sa.packets, n, worker);
            add(&self.sa.bytes, self.bytes - n * AROUND as u64, worker);
        }
        claimed
    }

    /// Fills the jobs of all packets but the first `done`, for the way of all others.
    #[cold]
    fn add_jobs(&self, scratch: &mut Scratch, done: usize) {
        let jobs = scratch.frames.iter().zip(&mut scratch.jobs);
        for ((frame, job), sequence) in jobs.zip(self.first..).skip(done) {
            *job = Job {
                spi: self.sa.spi,
                sa: self.place,
                route: self.sa.route,
                tos: frame[HEADER + 1],
                front: OUTER as u8,
                len: frame.len().saturating_sub(AROUND) as u16,
                sequence,
                ..Job::default()
            };
        }
    }
}

/// All passes behind the first.
pub(super) fn run(
    worker: &mut Dataplane,
    tables: &BoundTables,
    now: Instant,
    in_order: InOrder<'_>,
    scratch: &mut Scratch,
    input: &mut Burst,
    output: &mut Output,
) {
    let n = input.len();
    worker.received.received += n as u64;
    worker.received.received_bytes += in_order.bytes;
    std::mem::swap(&mut scratch.frames, input);
    let outcomes = &mut scratch.outcomes[..n];
    let mut forged = false;
    let opened = in_order.open(&mut scratch.frames, |number| {
        if !std::mem::replace(&mut forged, true) {
            outcomes.fill(Ok(()));
        }
        outcomes[number] = Err(DropReason::Forged);
    });
    let is_claimed = !forged && opened == n && in_order.claim(&worker.id, n);
    let mut left = Left::default();
    if is_claimed {
        left = leave_all(worker, tables, &in_order, &mut scratch.frames);
        if left.packets == n {
            worker.received.forwarded += n as u64;
            worker.received.forwarded_bytes += left.bytes;
            output.forward.append(&mut scratch.frames);
            return;
        }
    }
    cold_path();
    if !forged {
        outcomes.fill(Ok(()));
    }
    outcomes[opened..].fill(Err(DropReason::Forged));
    in_order.add_jobs(scratch, left.packets);
    if !is_claimed {
        claim(&worker.id, tables, scratch);
    }
    finish(worker, tables, now, scratch, output, left);
}

/// The last pass for packets that are all authentic and new, up to the first that is not plain
/// inside.
#[inline(never)]
fn leave_all(
    worker: &Dataplane,
    tables: &Tables,
    in_order: &InOrder<'_>,
    frames: &mut [Frame],
) -> Left {
    let mut left = Left::default();
    let Some(link) = worker.private.v4 else {
        return left;
    };
    let plain = plain::Exit::new(tables, &worker.own, &link);
    let route = in_order.sa.route;
    for frame in frames {
        let Some(front) = frame.first_chunk::<AROUND>() else {
            break;
        };
        let around = plain::Around {
            front: OUTER,
            len: frame.len() - AROUND,
            tos: front[HEADER + 1],
            route,
        };
        let Some(len) = plain.leave(around, frame) else {
            break;
        };
        left.packets += 1;
        left.bytes += len as u64;
    }
    left
}

const _: () = assert!(OUTER == HEADER + ipv4::HEADER);

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::dataplane::fixture::{self, odd_or, opened, public_frame, MANY, PEER, PUBLIC, SPI};
    use crate::dataplane::TrafficCounters;

    /// One of the packets of a burst: its payload, how far its number is behind the one before, its
    /// source and SPI, the outer DSCP and ECN, and what is wrong with it.
    type Sent = (Vec<u8>, u64, (u32, u32), u8, Fault);

    #[derive(Clone, Debug)]
    enum Fault {
        None,
        /// A bit, counted from the end.
        Forged(usize),
        /// Bytes behind the packet.
        Padded(usize),
        /// Another frame in its place.
        Other(Vec<u8>),
    }

    fn sent() -> impl Strategy<Value = Sent> {
        let step = prop_oneof![40 => Just(1), 1 => 0..4u64, 1 => Just(1 << 17), 1 => Just(1 << 32)];
        let spi = prop_oneof![40 => Just(SPI), 1 => Just(SPI + 1), 1 => Just(SPI + 2)];
        let src = prop_oneof![40 => Just(PEER), 1 => odd_or(PEER)];
        let tos = prop_oneof![Just(0), any::<u8>()];
        let fault = prop_oneof![
            60 => Just(Fault::None),
            1 => (0..300usize).prop_map(Fault::Forged),
            1 => (1..4usize).prop_map(Fault::Padded),
            1 => public_frame().prop_map(Fault::Other),
        ];
        (opened(), step, (src, spi), tos, fault)
    }

    /// All that a data plane did with some bursts: what left it, its counters without those of
    /// `more` frames for the control side, and the counters of its SAs.
    #[derive(Debug, Default, PartialEq)]
    struct Done {
        forward: Vec<Vec<u8>>,
        inner: Vec<Vec<u8>>,
        tunnel: Vec<Vec<u8>>,
        received: String,
        sas: Vec<[u64; 5]>,
    }

    struct Side {
        dataplane: Dataplane,
        tables: std::sync::Arc<BoundTables>,
        pool: tare_port::Pool,
        output: Output,
        /// A frame for the control side comes before and behind each burst.
        is_mixed: bool,
        bursts: u64,
    }

    impl Side {
        fn new(mode: SequenceMode, is_mixed: bool, more: u32) -> Side {
            let (dataplane, tables, pool) = fixture::dataplane_with(mode, None, 0, more);
            Side {
                dataplane,
                tables,
                pool,
                output: Output::default(),
                is_mixed,
                bursts: 0,
            }
        }

        /// Returns true if the burst goes the shortest way.
        fn receive(&mut self, frames: &[Vec<u8>]) -> bool {
            let other = Some(fixture::arp(PUBLIC)).filter(|_| self.is_mixed);
            let frames = other.iter().chain(frames).chain(&other);
            let mut burst: Burst = frames.map(|bytes| self.pool.copy(bytes).unwrap()).collect();
            self.bursts += 1;
            let (own, station) = (&self.dataplane.own, Station::new(PUBLIC));
            let is_in_order = InOrder::admit(&self.tables, own, station, &burst).is_some();
            self.dataplane
                .inbound(Instant::ZERO, &mut burst, &mut self.output);
            is_in_order
        }

        fn done(&mut self) -> Done {
            let taken = |burst: &mut Burst| burst.drain(..).map(|frame| frame.to_vec()).collect();
            let mut received: TrafficCounters = *self.dataplane.received();
            if self.is_mixed {
                let n = 2 * self.bursts;
                received.received -= n;
                received.received_bytes -= n * fixture::arp(PUBLIC).len() as u64;
                received.control -= n;
            }
            self.output.control.clear();
            let sas = [SPI, SPI + 1].map(|spi| {
                let sa = self.tables.inbound.by_spi(spi).unwrap();
                [
                    sa.packets(),
                    sa.bytes(),
                    sa.replayed(),
                    sa.forged(),
                    sa.top(),
                ]
            });
            Done {
                forward: taken(&mut self.output.forward),
                inner: taken(&mut self.output.inner),
                tunnel: taken(&mut self.output.tunnel),
                received: format!("{received:?}"),
                sas: sas.to_vec(),
            }
        }
    }

    fn frames(burst: &[Sent], number: &mut u64, mode: SequenceMode) -> Vec<Vec<u8>> {
        let frame = |(payload, step, (src, spi), tos, fault): &Sent| {
            *number += step;
            let mut frame = fixture::sealed(payload, (*src, *spi, *number), mode, *tos);
            match fault {
                Fault::None => {}
                Fault::Forged(bit) => {
                    let at = frame.len() - 1 - bit / 8;
                    frame[at] ^= 1 << (bit % 8);
                }
                Fault::Padded(n) => frame.resize(frame.len() + n, 0),
                Fault::Other(other) => frame.clone_from(other),
            }
            frame
        };
        burst.iter().map(frame).collect()
    }

    #[test]
    fn a_burst_in_order_comes_out_as_one_of_any_kind() {
        let short = std::cell::Cell::new(0);
        let bursts = proptest::collection::vec(proptest::collection::vec(sent(), 1..24), 1..6);
        let start = prop_oneof![0..100u64, Just((1 << 32) - 20)];
        proptest!(ProptestConfig::with_cases(1500), |(bursts in bursts, start in start, is_plain: bool)| {
            let mode = if is_plain { SequenceMode::Plain } else { SequenceMode::Extended };
            let mut one = Side::new(mode, false, 0);
            let mut others = [(true, 0), (false, MANY), (true, MANY)]
                .map(|(is_mixed, more)| Side::new(mode, is_mixed, more));
            let mut number = start;
            for burst in &bursts {
                let frames = frames(burst, &mut number, mode);
                short.set(short.get() + u32::from(one.receive(&frames)));
                let done = one.done();
                prop_assert!(one.dataplane.received().adds_up());
                for other in &mut others {
                    other.receive(&frames);
                    prop_assert_eq!(&done, &other.done());
                }
            }
        });
        assert!(short.get() > 500, "{}", short.get());
    }

    #[test]
    fn a_burst_whose_lower_halves_end_does_not_take_in_a_packet_of_the_next_spi() {
        let mut side = Side::new(SequenceMode::Extended, false, 0);
        let (mode, payload) = (SequenceMode::Extended, [0; 40]);
        let last = u64::from(u32::MAX);
        let sealed = |spi, number| fixture::sealed(&payload, (PEER, spi, number), mode, 0);
        // So that both SAs expect what follows.
        for before in [1 << 31, last - 1] {
            side.receive(&[sealed(SPI, before), sealed(SPI + 1, before)]);
        }
        side.receive(&[sealed(SPI + 1, last)]);
        assert!(!side.receive(&[sealed(SPI, last), sealed(SPI + 1, last + 1)]));
        let counts = |spi| {
            let sa = side.tables.inbound.by_spi(spi).unwrap();
            [sa.packets(), sa.forged(), sa.replayed(), sa.top()]
        };
        assert_eq!(counts(SPI), [3, 0, 0, last]);
        assert_eq!(counts(SPI + 1), [4, 0, 0, last + 1]);
    }

    #[test]
    fn a_burst_that_another_worker_has_received_is_refused_as_a_whole() {
        let mut side = Side::new(SequenceMode::Extended, false, 0);
        let payload = [0; 40];
        let mode = SequenceMode::Extended;
        let frame = |number| fixture::sealed(&payload, (PEER, SPI, number), mode, 0);
        let frames: Vec<_> = (1..6).map(frame).collect();
        let mut burst: Burst = frames.iter().map(|f| side.pool.copy(f).unwrap()).collect();
        let (own, tables) = (&side.dataplane.own, side.tables.clone());
        let in_order = InOrder::admit(&tables, own, Station::new(PUBLIC), &burst).unwrap();
        let sa = tables.inbound.by_spi(SPI).unwrap();
        assert!(in_order.claim(&side.dataplane.id, 3));
        assert!(!in_order.claim(&side.dataplane.id, 3));
        assert_eq!((sa.packets(), sa.top()), (3, 3));
        // Between the first pass and this one the other worker has claimed three of five.
        let mut scratch = Scratch::default();
        scratch.jobs.resize(5, Job::default());
        scratch.outcomes.resize(5, Ok(()));
        let (worker, output) = (&mut side.dataplane, &mut side.output);
        let now = Instant::ZERO;
        run(
            worker,
            &tables,
            now,
            in_order,
            &mut scratch,
            &mut burst,
            output,
        );
        assert_eq!((sa.packets(), sa.top(), sa.replayed()), (5, 5, 3));
        assert_eq!(worker.received().received, 5);
        assert!(worker.received().adds_up());
    }
}
