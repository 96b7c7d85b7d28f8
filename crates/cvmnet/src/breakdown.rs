//! Time by category, each moment counted once.

use std::cell::Cell;
use std::fmt::Write as _;
use std::rc::Rc;

use tare_memory::timestamp;

/// The work that time is spent on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Category {
    /// Descriptors, rings and notifications, without the cost of exits.
    Ring,
    /// The simulated cost of world switches.
    Exit,
    /// Copies between private memory and the bounce buffer (`swiotlb_memcpy`).
    BounceCopy,
    /// Finding free slots of the bounce buffer (`swiotlb_find`).
    SlotFind,
    /// Giving slots back (`swiotlb_release`).
    SlotRelease,
    /// Received packets (`netrx`).
    PacketIn,
    /// Packets to send (`tcp_send`).
    PacketOut,
    /// Records of TLS.
    Crypto,
    /// Everything outside of any other category.
    Application,
    /// Waiting for the device.
    Idle,
}

impl Category {
    /// All.
    pub const ALL: [Category; 10] = [
        Category::Ring,
        Category::Exit,
        Category::BounceCopy,
        Category::SlotFind,
        Category::SlotRelease,
        Category::PacketIn,
        Category::PacketOut,
        Category::Crypto,
        Category::Application,
        Category::Idle,
    ];

    /// Returns the name in the breakdown, the published one if there is one.
    pub const fn name(self) -> &'static str {
        match self {
            Category::Ring => "ring",
            Category::Exit => "exit",
            Category::BounceCopy => "swiotlb_memcpy",
            Category::SlotFind => "swiotlb_find",
            Category::SlotRelease => "swiotlb_release",
            Category::PacketIn => "netrx",
            Category::PacketOut => "tcp_send",
            Category::Crypto => "tls",
            Category::Application => "application",
            Category::Idle => "idle",
        }
    }
}

/// A field that the host writes and the guest reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Field {
    /// The index of the used ring.
    UsedIndex,
    /// The id of an element of the used ring.
    UsedId,
    /// The length of an element of the used ring.
    UsedLength,
    /// The flags of the used ring.
    UsedFlags,
    /// `avail_event`, behind the used ring.
    AvailableEvent,
    /// The device's header in front of a frame.
    Header,
    /// The status that the host writes.
    DeviceStatus,
    /// The number of interrupts.
    Interrupts,
}

impl Field {
    /// All.
    pub const ALL: [Field; 8] = [
        Field::UsedIndex,
        Field::UsedId,
        Field::UsedLength,
        Field::UsedFlags,
        Field::AvailableEvent,
        Field::Header,
        Field::DeviceStatus,
        Field::Interrupts,
    ];
}

/// The state of the driver when it reads a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum State {
    /// No buffer is with the device.
    Empty,
    /// Some are.
    Partial,
    /// The queue is full.
    Full,
    /// The device is being reset.
    Resetting,
}

impl State {
    /// All.
    pub const ALL: [State; 4] = [State::Empty, State::Partial, State::Full, State::Resetting];
}

/// An observer of the guest's work: a type parameter, so that one that does nothing costs nothing.
pub trait Probe: Clone {
    /// The time until it is dropped belongs to a category.
    type Span;

    /// Begins to count time for a category; the time of a span inside another one is not counted
    /// for the outer one.
    #[must_use]
    fn enter(&self, category: Category) -> Self::Span;

    /// Notes the value that was read from a field. The queue is 0 for receive, 1 for transmit.
    #[inline(always)]
    fn consumed(&self, queue: usize, field: Field, state: State, value: u64) {
        let _ = (queue, field, state, value);
    }

    /// Begins a turn of a loop that polls.
    #[inline(always)]
    fn begin_turn(&self) {}

    /// Says that there was nothing to do in the turn: all of its time was [`Category::Idle`].
    #[inline(always)]
    fn turn_was_idle(&self) {}

    /// Returns the totals up to now, if there are any.
    fn totals(&self) -> Option<Totals> {
        None
    }
}

/// Measures nothing, in no time.
#[derive(Clone, Copy, Debug, Default)]
pub struct Off;

/// A span that is not measured.
#[derive(Debug)]
pub struct Unmeasured;

impl Probe for Off {
    type Span = Unmeasured;

    #[inline(always)]
    fn enter(&self, _: Category) -> Unmeasured {
        Unmeasured
    }
}

/// Measures time by category, on one thread, with the processor's time stamp counter.
#[derive(Clone, Debug)]
pub struct Breakdown(Rc<Clock>);

#[derive(Debug)]
struct Clock {
    started: u64,
    /// The moment up to which time is accounted for.
    last: Cell<u64>,
    current: Cell<Category>,
    cycles: [Cell<u64>; Category::ALL.len()],
    spans: [Cell<u64>; Category::ALL.len()],
    /// `cycles` and `spans` when the turn began.
    turn: Cell<[[u64; Category::ALL.len()]; 2]>,
}

impl Breakdown {
    /// Starts to count: for [`Category::Application`] until the first span.
    pub fn start() -> Breakdown {
        let now = timestamp();
        Breakdown(Rc::new(Clock {
            started: now,
            last: Cell::new(now),
            current: Cell::new(Category::Application),
            cycles: Default::default(),
            spans: Default::default(),
            turn: Cell::default(),
        }))
    }

    /// Returns the totals up to now.
    pub fn totals(&self) -> Totals {
        let now = self.0.switch(self.0.current.get());
        let [cycles, spans] = self.0.counts();
        Totals {
            whole: now.saturating_sub(self.0.started),
            cycles,
            spans,
        }
    }
}

impl Clock {
    fn counts(&self) -> [[u64; Category::ALL.len()]; 2] {
        [&self.cycles, &self.spans].map(|cells| std::array::from_fn(|n| cells[n].get()))
    }

    /// Accounts for the time until now, and returns it.
    #[inline(always)]
    fn switch(&self, to: Category) -> u64 {
        let now = timestamp();
        let cell = &self.cycles[self.current.replace(to) as usize];
        // A thread that moves between processors may see time step back by a few cycles.
        cell.set(cell.get() + now.saturating_sub(self.last.replace(now)));
        now
    }
}

impl Probe for Breakdown {
    type Span = Span;

    #[inline]
    fn enter(&self, category: Category) -> Span {
        let outer = self.0.current.get();
        self.0.switch(category);
        let spans = &self.0.spans[category as usize];
        spans.set(spans.get() + 1);
        Span {
            clock: Rc::clone(&self.0),
            outer,
        }
    }

    #[inline]
    fn begin_turn(&self) {
        self.0.switch(Category::Application);
        self.0.turn.set(self.0.counts());
    }

    fn turn_was_idle(&self) {
        // What follows until the next turn, this function included, is idle too.
        self.0.switch(Category::Idle);
        let [cycles, spans] = self.0.turn.get();
        let mut idle = 0;
        for (cell, before) in self.0.cycles.iter().zip(cycles) {
            idle += cell.get() - before;
            cell.set(before);
        }
        for (cell, before) in self.0.spans.iter().zip(spans) {
            cell.set(before);
        }
        let place = Category::Idle as usize;
        self.0.cycles[place].set(self.0.cycles[place].get() + idle);
        self.0.spans[place].set(self.0.spans[place].get() + 1);
    }

    fn totals(&self) -> Option<Totals> {
        Some(Breakdown::totals(self))
    }
}

/// The time until it is dropped, for one category.
#[derive(Debug)]
pub struct Span {
    clock: Rc<Clock>,
    outer: Category,
}

impl Drop for Span {
    #[inline]
    fn drop(&mut self) {
        self.clock.switch(self.outer);
    }
}

/// Cycles of the time stamp counter by category.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// All cycles from the start on.
    pub whole: u64,
    /// Cycles of each category, in the order of [`Category::ALL`].
    pub cycles: [u64; Category::ALL.len()],
    /// The number of its spans.
    pub spans: [u64; Category::ALL.len()],
}

impl Totals {
    /// Returns the share of a category in the whole, from 0 to 1; `None` without any time.
    pub fn share(&self, category: Category) -> Option<f64> {
        (self.whole > 0).then(|| self.cycles[category as usize] as f64 / self.whole as f64)
    }

    /// Returns the cycles of some categories.
    pub fn sum(&self, categories: &[Category]) -> u64 {
        categories
            .iter()
            .map(|category| self.cycles[*category as usize])
            .sum()
    }

    /// Returns what came after an earlier moment of the same breakdown.
    #[must_use]
    pub fn since(&self, earlier: &Totals) -> Totals {
        let less =
            |now: &[u64], before: &[u64]| std::array::from_fn(|n| now[n].saturating_sub(before[n]));
        Totals {
            whole: self.whole.saturating_sub(earlier.whole),
            cycles: less(&self.cycles, &earlier.cycles),
            spans: less(&self.spans, &earlier.spans),
        }
    }

    /// Adds those of another processor.
    pub fn add(&mut self, other: &Totals) {
        self.whole += other.whole;
        let add = |to: &mut [u64], more: &[u64]| to.iter_mut().zip(more).for_each(|(a, b)| *a += b);
        add(&mut self.cycles, &other.cycles);
        add(&mut self.spans, &other.spans);
    }

    /// Returns the lines of the published breakdown for a processor of the guest, percentages
    /// rounded down as there.
    pub fn lines(&self, cpu: usize) -> String {
        let mut text = format!("Total {} cycles\n", self.whole);
        for category in Category::ALL {
            let (spans, cycles) = (
                self.spans[category as usize],
                self.cycles[category as usize],
            );
            let percent = self
                .share(category)
                .map_or(0, |share| (100.0 * share) as u64);
            let name = category.name();
            let _ = writeln!(
                text,
                "cpu {cpu} {name} cnt {spans} cycles {cycles} percent {percent}"
            );
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spin(cycles: u64) {
        let start = timestamp();
        while timestamp() - start < cycles {}
    }

    #[test]
    fn categories_add_up_to_the_whole_within_one_percent() {
        let start = timestamp();
        let breakdown = Breakdown::start();
        for n in 0..2_000 {
            let _outer = breakdown.enter(Category::PacketIn);
            spin(500);
            let _inner = breakdown.enter(Category::ALL[n % 10]);
            spin(500);
        }
        let totals = breakdown.totals();
        let whole = timestamp() - start;
        let sum: u64 = totals.cycles.iter().sum();
        assert!(
            sum.abs_diff(totals.whole) * 100 <= totals.whole,
            "{totals:?}"
        );
        assert!(totals.whole <= whole, "{whole} {totals:?}");
    }

    #[test]
    fn time_in_an_inner_span_is_not_counted_for_the_outer_one() {
        let breakdown = Breakdown::start();
        let outer = breakdown.enter(Category::PacketIn);
        {
            let _inner = breakdown.enter(Category::Crypto);
            spin(50_000_000);
        }
        let before = breakdown.totals();
        spin(1_000_000);
        drop(outer);
        spin(1_000_000);
        let totals = breakdown.totals();
        let of = |totals: &Totals, category: Category| totals.cycles[category as usize];
        assert!(of(&totals, Category::Crypto) >= 50_000_000, "{totals:?}");
        assert_eq!(of(&totals, Category::Crypto), of(&before, Category::Crypto));
        assert!(of(&totals, Category::PacketIn) >= 1_000_000, "{totals:?}");
        // Were it counted twice, the categories would add up to twice as much.
        let sum: u64 = before.cycles.iter().sum();
        assert!(
            sum.abs_diff(before.whole) * 100 <= before.whole,
            "{before:?}"
        );
        assert!(
            of(&totals, Category::Application) >= 1_000_000,
            "{totals:?}"
        );
        assert_eq!(totals.spans[Category::PacketIn as usize], 1);
    }

    #[test]
    fn a_turn_without_work_is_idle_whatever_it_looked_at_and_one_with_work_is_not() {
        let breakdown = Breakdown::start();
        let start = breakdown.totals();
        for is_idle in [true, false, true] {
            breakdown.begin_turn();
            spin(1_000_000);
            let _ring = breakdown.enter(Category::Ring);
            spin(2_000_000);
            drop(_ring);
            if is_idle {
                breakdown.turn_was_idle();
                // The loop around the turns.
                spin(4_000_000);
            }
        }
        let totals = breakdown.totals().since(&start);
        let (idle, ring) = (Category::Idle as usize, Category::Ring as usize);
        assert_eq!(
            (totals.spans[idle], totals.spans[ring]),
            (2, 1),
            "{totals:?}"
        );
        assert!(totals.cycles[idle] >= 14_000_000, "{totals:?}");
        assert!(totals.cycles[ring] >= 2_000_000, "{totals:?}");
        let sum = totals.sum(&Category::ALL);
        assert!(
            sum.abs_diff(totals.whole) * 100 <= totals.whole,
            "{totals:?}"
        );
    }

    #[test]
    fn a_probe_that_is_off_has_no_state_and_its_spans_do_nothing_at_their_end() {
        assert_eq!((size_of::<Off>(), size_of::<Unmeasured>()), (0, 0));
        assert!(!std::mem::needs_drop::<Unmeasured>());
        let _span = Off.enter(Category::Ring);
    }

    #[test]
    fn the_published_names_are_printed() {
        let totals = Totals {
            whole: 200,
            cycles: [1, 0, 2, 3, 4, 5, 6, 7, 8, 9],
            ..Totals::default()
        };
        let text = totals.lines(0);
        assert!(text.starts_with("Total 200 cycles\n"), "{text}");
        assert!(
            text.contains("cpu 0 swiotlb_find cnt 0 cycles 3 percent 1\n"),
            "{text}"
        );
        assert_eq!(totals.share(Category::Idle), Some(0.045));
        assert_eq!(Totals::default().share(Category::Idle), None);
    }
}
