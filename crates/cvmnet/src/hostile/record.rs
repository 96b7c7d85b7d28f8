//! Counting what the guest reads.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::rc::Rc;

use crate::breakdown::{Category, Field, Probe, State, Unmeasured};

const FIELDS: usize = Field::ALL.len();
const STATES: usize = State::ALL.len();

/// Values consumed, by queue, field and state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Consumed([[[u64; STATES]; FIELDS]; 2]);

impl Consumed {
    /// Returns the number of values of a field of a queue (0 receive, 1 transmit) in a state.
    pub fn of(&self, queue: usize, field: Field, state: State) -> u64 {
        self.0[queue][field as usize][state as usize]
    }

    /// Returns the number of all values.
    pub fn total(&self) -> u64 {
        self.0.as_flattened().as_flattened().iter().sum()
    }
}

impl fmt::Display for Consumed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:24}", "")?;
        for state in State::ALL {
            write!(f, " {:>12}", format!("{state:?}"))?;
        }
        writeln!(f)?;
        for (queue, name) in ["receive", "transmit"].into_iter().enumerate() {
            for field in Field::ALL {
                let counts = State::ALL.map(|state| self.of(queue, field, state));
                if counts == [0; STATES] {
                    continue;
                }
                write!(f, "{name:8} {:15}", format!("{field:?}"))?;
                for count in counts {
                    write!(f, " {count:>12}")?;
                }
                writeln!(f)?;
            }
        }
        Ok(())
    }
}

/// A probe that counts hostile values: those that were planted, or all.
#[derive(Clone)]
pub(super) struct Recorder(Rc<Counts>);

#[derive(Clone, Copy)]
enum Counting {
    Planted,
    All,
    Stopped,
}

struct Counts {
    counting: Cell<Counting>,
    planted: [[Cell<Option<u64>>; FIELDS]; 2],
    last: [[Cell<Option<u64>>; FIELDS]; 2],
    consumed: RefCell<Consumed>,
    total: Cell<u64>,
}

impl Recorder {
    /// Counts values that [`Recorder::plant`] has named.
    pub(super) fn planted() -> Recorder {
        Recorder::new(Counting::Planted)
    }

    /// Counts all values.
    pub(super) fn all() -> Recorder {
        Recorder::new(Counting::All)
    }

    fn new(counting: Counting) -> Recorder {
        Recorder(Rc::new(Counts {
            counting: Cell::new(counting),
            planted: Default::default(),
            last: Default::default(),
            consumed: RefCell::default(),
            total: Cell::new(0),
        }))
    }

    /// Names the hostile value that a field has now; `None` for an honest one.
    pub(super) fn plant(&self, queue: usize, field: Field, value: Option<u64>) {
        self.0.planted[queue][field as usize].set(value);
    }

    /// Counts no more: the host is honest from now on.
    pub(super) fn stop(&self) {
        self.0.counting.set(Counting::Stopped);
    }

    pub(super) fn total(&self) -> u64 {
        self.0.total.get()
    }

    pub(super) fn consumed(&self) -> Consumed {
        *self.0.consumed.borrow()
    }
}

impl Probe for Recorder {
    type Span = Unmeasured;

    fn enter(&self, _: Category) -> Unmeasured {
        Unmeasured
    }

    fn consumed(&self, queue: usize, field: Field, state: State, value: u64) {
        let planted = self.0.planted[queue][field as usize].get();
        // A guest that polls reads the same value over and over, which counts once.
        let before = self.0.last[queue][field as usize].replace(Some(value));
        let polled = !matches!(field, Field::UsedId | Field::UsedLength | Field::Header);
        let new = !polled || before != Some(value);
        let counts = match self.0.counting.get() {
            Counting::Planted => new && planted == Some(value),
            Counting::All => new,
            Counting::Stopped => false,
        };
        if counts {
            self.0.consumed.borrow_mut().0[queue][field as usize][state as usize] += 1;
            self.0.total.set(self.0.total.get() + 1);
        }
    }
}
