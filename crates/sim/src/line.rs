//! A wire in virtual time: a rate, a delay, a queue, and faults with a seed.

use std::collections::VecDeque;
use std::time::Duration;

use tare_packet::ethernet;

use crate::time::nanos;
use crate::{Instant, Random};

/// A message on a [`Line`]: a frame, a datagram, or a small descriptor of one, with which a
/// simulation of 10⁹ packets touches little memory.
pub trait Carried: Sized {
    /// Length of the Ethernet frame without its checksum, in bytes; at most 2³⁰.
    fn frame_len(&self) -> usize;

    /// A copy of the same content; `None` if there is no memory for one.
    fn duplicate(&self) -> Option<Self>;
}

/// The bytes of a frame.
impl Carried for Vec<u8> {
    fn frame_len(&self) -> usize {
        self.len()
    }

    fn duplicate(&self) -> Option<Vec<u8>> {
        Some(self.clone())
    }
}

/// The limit of what waits in front of a line, behind the frame that is being sent; the rest is
/// dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queue {
    /// A number of frames.
    Frames(usize),
    /// Frames of this many bytes in all, without checksums and overhead.
    Bytes(usize),
}

/// The properties of a line.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LineConfig {
    /// Rate in bits per second, of which each frame takes
    /// [`OVERHEAD`](tare_packet::ethernet::OVERHEAD) bytes more than its length.
    pub bits_per_second: u64,
    /// From the last bit sent to the last bit received.
    pub delay: Duration,
    /// The most that a frame takes in addition to `delay`. The addition is drawn for each frame and
    /// each copy, from zero to this; where it is longer than the time between two frames, they
    /// overtake each other.
    pub jitter: Duration,
    /// The limit of what waits to be sent.
    pub queue: Queue,
    /// Share of the frames sent that are lost after they have taken their time on the line, 0 to 1.
    pub loss: f64,
    /// Share of the frames sent that arrive twice; without jitter, the copy right behind the
    /// original and at the same moment.
    pub duplication: f64,
    /// Share of the frames sent that are held back until [`LineConfig::overtakers`] later ones have
    /// arrived. A frame has at most one of the three faults loss, duplication and reordering, so
    /// their shares add up to at most 1.
    pub reordering: f64,
    /// The number of later frames that arrive before one that is held back, at least 1. Lost ones,
    /// copies and others that are held back do not count; frames held back keep the order among
    /// themselves. So without jitter each is late by exactly this many.
    pub overtakers: u32,
    /// A frame is held back no longer than this, so that the last of a stream arrive. One that
    /// nothing has overtaken by then is not counted as reordered.
    pub hold: Duration,
    /// The same seed makes the same faults.
    pub seed: u64,
}

impl LineConfig {
    /// A line for where none is wanted: every frame arrives in its order, a nanosecond later.
    pub const IDEAL: LineConfig = LineConfig {
        queue: Queue::Frames(usize::MAX),
        ..LineConfig::new(1 << 62)
    };

    /// A line without fault or delay, and a queue of 1000 frames.
    pub const fn new(bits_per_second: u64) -> LineConfig {
        LineConfig {
            bits_per_second,
            delay: Duration::ZERO,
            jitter: Duration::ZERO,
            queue: Queue::Frames(1000),
            loss: 0.0,
            duplication: 0.0,
            reordering: 0.0,
            overtakers: 3,
            hold: Duration::from_millis(10),
            seed: 0,
        }
    }
}

/// The frames of a line, counted exactly:
/// `offered + duplicated = queue_dropped + lost + delivered +` [`Line::in_flight`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LineCounters {
    /// Frames offered.
    pub offered: u64,
    /// Offered frames that found the queue full.
    pub queue_dropped: u64,
    /// Frames sent that never arrive, those offered while the line was cut included.
    pub lost: u64,
    /// Copies made. None is made, or counted, if [`Carried::duplicate`] returns `None`.
    pub duplicated: u64,
    /// Frames that arrived after later ones: "reordered" as RFC 4737 section 3 has it, copies
    /// aside.
    pub reordered: u64,
    /// Frames that arrived, copies included.
    pub delivered: u64,
}

/// One direction of a wire in virtual time. Frames go in at a moment and come out at another;
/// nothing here looks at a clock.
///
/// Times are exact: a frame's last bit leaves at a fraction of a nanosecond that is carried over to
/// the next frame, so 10⁹ frames take what their bits take; a frame arrives at the first whole
/// nanosecond at or after its last bit. Moments given must not run backwards; an earlier one counts
/// as the latest given.
///
/// Memory is what the queue and the delay hold; nothing is allocated for a frame once that much was
/// in use.
#[derive(Debug)]
pub struct Line<T> {
    rate: u64,
    delay_ns: u64,
    jitter_ns: u64,
    hold_ns: u64,
    queue: Queue,
    overtakers: u64,
    faults: Faults,
    cut: bool,
    now: u64,
    /// The time when the last frame accepted has left: nanoseconds, and this many `rate`ths of
    /// another.
    free_ns: u64,
    free_fraction: u64,
    /// Time that a frame of the latest length takes, in the same two parts. Kept because most
    /// traffic has few lengths in a row, and a 128-bit division is what the rest of `offer` costs.
    length: usize,
    takes: (u64, u64),
    /// Frames that have not begun to leave: when they do, and their length.
    waiting: VecDeque<(u64, u32)>,
    waiting_bytes: usize,
    /// By arrival.
    flight: VecDeque<Flying<T>>,
    /// The latest arrival of all that went into `flight`.
    last_arrival: u64,
    held: VecDeque<Held<T>>,
    /// Frames, neither copies nor held back, that have gone into `flight` and come out of it.
    sent: u64,
    passed: u64,
    /// The arrival of the latest of them.
    latest: u64,
    counters: LineCounters,
}

#[derive(Debug)]
struct Flying<T> {
    arrival: u64,
    kind: Kind,
    item: T,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    InOrder,
    /// One that left later arrives earlier.
    Overtaken,
    Copy,
}

#[derive(Debug)]
struct Held<T> {
    /// `Line::sent` when it would have gone.
    behind: u64,
    /// The time at which it arrives even if nothing overtakes it.
    deadline: u64,
    item: T,
}

impl<T: Carried> Line<T> {
    /// An idle line.
    ///
    /// # Panics
    /// On a rate of 0 or above 2⁶², shares that are not within 0 to 1 or add up to more, and no
    /// overtakers.
    pub fn new(config: &LineConfig) -> Line<T> {
        let mut line = Line {
            rate: 1,
            delay_ns: 0,
            jitter_ns: 0,
            hold_ns: 0,
            queue: config.queue,
            overtakers: 1,
            faults: Faults::new(config, Random::new(config.seed)),
            cut: false,
            now: 0,
            free_ns: 0,
            free_fraction: 0,
            length: usize::MAX,
            takes: (0, 0),
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            flight: VecDeque::new(),
            last_arrival: 0,
            held: VecDeque::new(),
            sent: 0,
            passed: 0,
            latest: 0,
            counters: LineCounters::default(),
        };
        line.set_config(config);
        line
    }

    /// Changes the properties of the line for frames that are offered from now on. Those in flight
    /// arrive as they would have, but that those held back wait for the new number of overtakers;
    /// where the delay has become shorter, later ones overtake them, as on a path that changed its
    /// route. The seed is read by [`Line::new`] only.
    ///
    /// # Panics
    /// As [`Line::new`].
    pub fn set_config(&mut self, config: &LineConfig) {
        let rate = config.bits_per_second;
        assert!((1..=1 << 62).contains(&rate), "the rate of a line");
        assert!(config.overtakers > 0, "overtakers of a frame held back");
        if rate != self.rate {
            // What was left of a nanosecond was counted in parts of the old rate.
            self.free_ns = self.free();
            self.free_fraction = 0;
            self.length = usize::MAX;
        }
        self.rate = rate;
        self.delay_ns = nanos(config.delay);
        self.jitter_ns = nanos(config.jitter);
        self.hold_ns = nanos(config.hold);
        self.queue = config.queue;
        self.overtakers = config.overtakers.into();
        self.faults = Faults::new(config, self.faults.random.clone());
    }

    /// Cuts the line, or joins it again: while it is cut, frames offered are lost. Those in flight
    /// arrive.
    pub fn set_cut(&mut self, cut: bool) {
        self.cut = cut;
    }

    /// True while the line is cut.
    pub fn is_cut(&self) -> bool {
        self.cut
    }

    /// Hands a frame to the sending end, and returns whether the queue had room for it.
    #[inline]
    pub fn offer(&mut self, now: Instant, item: T) -> bool {
        self.advance(now);
        self.counters.offered += 1;
        if self.cut {
            self.counters.lost += 1;
            return true;
        }
        let length = item.frame_len();
        if self.free_ns >= self.now && !self.enqueue(length) {
            self.counters.queue_dropped += 1;
            return false;
        }
        let left = self.transmit(length);
        let arrival = self.arrival(left);
        match self.faults.next() {
            Fate::Arrives => self.fly(arrival, item),
            Fate::Lost => self.counters.lost += 1,
            Fate::Duplicated => {
                let copy = item.duplicate();
                self.fly(arrival, item);
                if let Some(item) = copy {
                    self.counters.duplicated += 1;
                    let arrival = match self.jitter_ns {
                        0 => arrival,
                        _ => self.arrival(left),
                    };
                    self.insert(Flying {
                        arrival,
                        kind: Kind::Copy,
                        item,
                    });
                }
            }
            Fate::HeldBack => self.held.push_back(Held {
                behind: self.sent,
                deadline: arrival.saturating_add(self.hold_ns),
                item,
            }),
        }
        true
    }

    /// The next frame that has arrived by `now`, and when it did. Call until there is none.
    #[inline]
    pub fn pop(&mut self, now: Instant) -> Option<(Instant, T)> {
        self.advance(now);
        let (arrival, from_held) = self.next()?;
        if arrival > self.now {
            return None;
        }
        self.counters.delivered += 1;
        let item = if from_held {
            let held = self.held.pop_front()?;
            self.counters.reordered += u64::from(self.passed > held.behind);
            held.item
        } else {
            let flying = self.flight.pop_front()?;
            self.passed += u64::from(flying.kind != Kind::Copy);
            self.counters.reordered += u64::from(flying.kind == Kind::Overtaken);
            self.latest = arrival;
            flying.item
        };
        Some((Instant::from_nanos(arrival), item))
    }

    /// Adds the frames that have arrived by `now` to `arrived`, in their order, and returns how
    /// many there were.
    pub fn deliver(&mut self, now: Instant, arrived: &mut Vec<T>) -> usize {
        let before = arrived.len();
        while let Some((_, item)) = self.pop(now) {
            arrived.push(item);
        }
        arrived.len() - before
    }

    /// The time of the next arrival, if no other frame is offered.
    #[inline]
    pub fn next_arrival(&self) -> Option<Instant> {
        self.next().map(|(at, _)| Instant::from_nanos(at))
    }

    /// The time when the line has sent all that it accepted, in whole nanoseconds: a frame offered
    /// from then on does not wait.
    pub fn idle_at(&self) -> Instant {
        Instant::from_nanos(self.free())
    }

    /// Frames accepted that are neither delivered nor lost, copies included.
    pub fn in_flight(&self) -> usize {
        self.flight.len() + self.held.len()
    }

    /// The counters since the line was made.
    pub fn counters(&self) -> LineCounters {
        self.counters
    }

    fn advance(&mut self, now: Instant) {
        self.now = self.now.max(now.as_nanos());
    }

    /// The arrival that comes next, and whether it is of a frame held back.
    #[inline]
    fn next(&self) -> Option<(u64, bool)> {
        let flying = self.flight.front().map(|flying| flying.arrival);
        let Some(held) = self.held.front() else {
            return Some((flying?, false));
        };
        if self.passed >= held.behind + self.overtakers {
            return Some((self.latest, true));
        }
        match flying {
            Some(arrival) if arrival <= held.deadline => Some((arrival, false)),
            _ => Some((held.deadline, true)),
        }
    }

    /// Reserves a place in the queue for a frame that may have to wait; false if it is full.
    #[inline]
    fn enqueue(&mut self, length: usize) -> bool {
        while let Some(&(start, bytes)) = self.waiting.front() {
            if start > self.now {
                break;
            }
            self.waiting_bytes -= bytes as usize;
            self.waiting.pop_front();
        }
        let start = self.free();
        if start <= self.now {
            return true;
        }
        let room = match self.queue {
            Queue::Frames(most) => self.waiting.len() < most,
            Queue::Bytes(most) => self.waiting_bytes + length <= most,
        };
        if room {
            self.waiting.push_back((start, length as u32));
            self.waiting_bytes += length;
        }
        room
    }

    /// Sends a frame once the line is free; returns the first whole nanosecond by which it has
    /// left.
    #[inline]
    fn transmit(&mut self, length: usize) -> u64 {
        if length != self.length {
            let bits = ethernet::on_wire(length) as u128 * 8_000_000_000;
            let rate = u128::from(self.rate);
            self.takes = ((bits / rate) as u64, (bits % rate) as u64);
            self.length = length;
        }
        if self.free_ns < self.now {
            self.free_ns = self.now;
            self.free_fraction = 0;
        }
        self.free_ns = self.free_ns.saturating_add(self.takes.0);
        self.free_fraction += self.takes.1;
        if self.free_fraction >= self.rate {
            self.free_fraction -= self.rate;
            self.free_ns = self.free_ns.saturating_add(1);
        }
        self.free()
    }

    /// The first whole nanosecond by which all frames accepted have left.
    #[inline]
    fn free(&self) -> u64 {
        self.free_ns
            .saturating_add(u64::from(self.free_fraction > 0))
    }

    /// The arrival of a frame that has left by `left`.
    #[inline]
    fn arrival(&mut self, left: u64) -> u64 {
        let arrival = left.saturating_add(self.delay_ns);
        match self.jitter_ns {
            0 => arrival,
            _ => self.jittered(arrival),
        }
    }

    // Apart, because in the body of `offer` it cost every line without jitter a fifth of its speed.
    #[cold]
    fn jittered(&mut self, arrival: u64) -> u64 {
        let most = self.jitter_ns.saturating_add(1);
        arrival.saturating_add(self.faults.random.below(most))
    }

    #[inline(always)]
    fn fly(&mut self, arrival: u64, item: T) {
        self.sent += 1;
        self.insert(Flying {
            arrival,
            kind: Kind::InOrder,
            item,
        });
    }

    #[inline(always)]
    fn insert(&mut self, flying: Flying<T>) {
        if flying.arrival < self.last_arrival {
            self.insert_early(flying);
        } else {
            self.last_arrival = flying.arrival;
            self.flight.push_back(flying);
        }
    }

    /// Adds a frame that arrives before one that left earlier, which only jitter, or a delay that
    /// became shorter, brings about. A heap would be faster here, and slower on every line without.
    #[cold]
    fn insert_early(&mut self, flying: Flying<T>) {
        let arrival = flying.arrival;
        let at = self
            .flight
            .partition_point(|other| other.arrival <= arrival);
        if flying.kind != Kind::Copy {
            for other in self.flight.range_mut(at..) {
                if other.kind == Kind::InOrder {
                    other.kind = Kind::Overtaken;
                }
            }
        }
        self.flight.insert(at, flying);
    }
}

enum Fate {
    Arrives,
    Lost,
    Duplicated,
    HeldBack,
}

/// Draws the fault of each frame.
#[derive(Debug)]
struct Faults {
    /// Draws below the first are lost, below the second duplicated, below the third held back.
    below: [u64; 3],
    random: Random,
}

impl Faults {
    fn new(config: &LineConfig, random: Random) -> Faults {
        let mut sum = 0.0;
        let below = [config.loss, config.duplication, config.reordering].map(|share| {
            assert!((0.0..=1.0).contains(&share), "a share of faults on a line");
            sum += share;
            (sum * DRAWS as f64) as u64
        });
        // A few shares such as 0.1 add up to a rounding error more than they should.
        assert!(sum <= 1.0 + 1e-9, "shares of faults on a line in all");
        Faults { below, random }
    }

    #[inline]
    fn next(&mut self) -> Fate {
        // A line without faults draws nothing, which is most of the lines and all of the time.
        if self.below[2] == 0 {
            return Fate::Arrives;
        }
        let draw = self.random.next_u64() >> 1;
        match self.below {
            [loss, ..] if draw < loss => Fate::Lost,
            [_, duplication, _] if draw < duplication => Fate::Duplicated,
            [.., reordering] if draw < reordering => Fate::HeldBack,
            _ => Fate::Arrives,
        }
    }
}

/// The number of different draws.
const DRAWS: u64 = 1 << 63;
