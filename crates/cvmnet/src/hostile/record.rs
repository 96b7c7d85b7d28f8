//! Counting what the guest reads.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fmt;
use std::rc::Rc;

use super::attacker::Attacker;
use super::frames::FrameField;
use crate::breakdown::{Category, Field, Probe, State, Unmeasured};

const FIELDS: usize = Field::ALL.len();
const STATES: usize = State::ALL.len();
const FRAME_FIELDS: usize = FrameField::ALL.len();

/// The longest queue of an attack.
const SLOTS: usize = 256;

/// Hostile values consumed: fields of the ring by queue, and fields of frames, each by the state of
/// the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Consumed {
    ring: [[[u64; STATES]; FIELDS]; 2],
    frames: [[u64; STATES]; FRAME_FIELDS],
}

impl Default for Consumed {
    fn default() -> Consumed {
        Consumed {
            ring: Default::default(),
            frames: [[0; STATES]; FRAME_FIELDS],
        }
    }
}

impl Consumed {
    /// Returns the number of values of a field of a queue (0 receive, 1 transmit) in a state.
    pub fn of(&self, queue: usize, field: Field, state: State) -> u64 {
        self.ring[queue][field as usize][state as usize]
    }

    /// Returns the number of values of a field of frames in a state.
    pub fn of_frames(&self, field: FrameField, state: State) -> u64 {
        self.frames[field as usize][state as usize]
    }

    /// Returns the number of all values.
    pub fn total(&self) -> u64 {
        let ring = self.ring.as_flattened().as_flattened();
        ring.iter().chain(self.frames.as_flattened()).sum()
    }

    /// Adds the counts of another attack.
    pub fn add(&mut self, other: &Consumed) {
        let ring = self.ring.as_flattened_mut().as_flattened_mut().iter_mut();
        let theirs = other.ring.as_flattened().as_flattened();
        let frames = self.frames.as_flattened_mut().iter_mut();
        let others = theirs.iter().chain(other.frames.as_flattened());
        ring.chain(frames).zip(others).for_each(|(to, n)| *to += n);
    }

    /// Returns the fields that were consumed in none of the states in which the driver reads them.
    pub fn missing(&self) -> Vec<String> {
        let rows = self.rows().into_iter();
        let cells = rows.flat_map(|(name, cells)| {
            let states = State::ALL.into_iter().zip(cells);
            let empty = states.filter(|(_, cell)| *cell == Some(0));
            empty
                .map(|(state, _)| format!("{name} {state:?}"))
                .collect::<Vec<_>>()
        });
        cells.collect()
    }

    /// Returns each row of the table; `None` where the driver does not read the field in the state.
    fn rows(&self) -> Vec<(String, [Option<u64>; STATES])> {
        let mut rows = Vec::new();
        for (queue, name) in ["receive", "transmit"].into_iter().enumerate() {
            for field in Field::ALL {
                let cell =
                    |state| is_read(queue, field, state).then(|| self.of(queue, field, state));
                rows.push((format!("{name:8} {field:?}"), State::ALL.map(cell)));
            }
        }
        for field in FrameField::ALL {
            // A frame is looked at after it was taken off the ring, which is not full then.
            let is_read = |state| matches!(state, State::Empty | State::Partial);
            let cell = |state| is_read(state).then(|| self.of_frames(field, state));
            rows.push((format!("frame    {field:?}"), State::ALL.map(cell)));
        }
        rows.retain(|(_, cells)| cells.iter().any(Option::is_some));
        rows
    }
}

/// Returns true if the driver reads a field of a queue in a state.
///
/// An element is there only if a chain was with the device. Notifications are looked at after
/// chains were added, a header after its chain was taken.
fn is_read(queue: usize, field: Field, state: State) -> bool {
    use State::{Empty, Full, Partial, Resetting};
    match field {
        Field::UsedIndex => state != Resetting,
        Field::UsedId | Field::UsedLength | Field::UsedFlags | Field::AvailableEvent => {
            matches!(state, Partial | Full)
        }
        Field::Header => queue == 0 && matches!(state, Empty | Partial),
        Field::DeviceStatus => queue == 0 && state == Resetting,
        Field::Interrupts => queue == 0,
    }
}

impl fmt::Display for Consumed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:31}", "")?;
        for state in State::ALL {
            write!(f, " {:>10}", format!("{state:?}"))?;
        }
        writeln!(f)?;
        for (name, cells) in self.rows() {
            write!(f, "{name:31}")?;
            for cell in cells {
                let cell = cell.map_or("-".into(), |count| count.to_string());
                write!(f, " {cell:>10}")?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

/// A probe that counts hostile values: those that were planted, or all. It can let an attacker
/// strike between two reads of the guest.
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
    planted: RefCell<Planted>,
    last: [[Cell<Option<u64>>; FIELDS]; 2],
    /// Elements of the used rings that the guest has taken since the device was started.
    taken: [Cell<u16>; 2],
    /// The id of the last received one.
    head: Cell<u16>,
    /// Frames on the ring, with the field that was changed.
    frames: RefCell<VecDeque<Option<FrameField>>>,
    consumed: RefCell<Consumed>,
    total: Cell<u64>,
    /// Reads and spans of the guest.
    events: Cell<u64>,
    attacker: RefCell<Option<Attacker>>,
}

/// The hostile values that are where the guest may read them, each counted once.
struct Planted {
    fields: [[Option<u64>; FIELDS]; 2],
    /// Ids and lengths, by the number of elements before them, modulo the longest queue.
    elements: [[[Option<u64>; 2]; SLOTS]; 2],
    /// By the first descriptor of the chain.
    headers: [Option<u64>; SLOTS],
}

impl Planted {
    const NONE: Planted = Planted {
        fields: [[None; FIELDS]; 2],
        elements: [[[None; 2]; SLOTS]; 2],
        headers: [None; SLOTS],
    };
}

impl Recorder {
    /// Counts values that were planted.
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
            planted: RefCell::new(Planted::NONE),
            last: Default::default(),
            taken: Default::default(),
            head: Cell::new(0),
            frames: RefCell::default(),
            consumed: RefCell::default(),
            total: Cell::new(0),
            events: Cell::new(0),
            attacker: RefCell::new(None),
        }))
    }

    /// Names the hostile value that a field has now; `None` for an honest one.
    pub(super) fn plant(&self, queue: usize, field: Field, value: Option<u64>) {
        self.0.planted.borrow_mut().fields[queue][field as usize] = value;
    }

    /// Names the hostile id and length of an element of a used ring, by the number of elements
    /// before it; `None` for honest ones.
    pub(super) fn plant_element(&self, queue: usize, number: u16, element: [Option<u64>; 2]) {
        let slot = usize::from(number) % SLOTS;
        self.0.planted.borrow_mut().elements[queue][slot] = element;
    }

    /// Names the hostile header of a received frame, by the first descriptor of its chain.
    pub(super) fn plant_header(&self, head: u16, value: Option<u64>) {
        if let Some(header) = self.0.planted.borrow_mut().headers.get_mut(head as usize) {
            *header = value;
        }
    }

    /// Forgets what was planted.
    pub(super) fn forget(&self) {
        *self.0.planted.borrow_mut() = Planted::NONE;
    }

    /// Returns the number of elements of a used ring that the guest has taken.
    pub(super) fn taken(&self, queue: usize) -> u16 {
        self.0.taken[queue].get()
    }

    /// Notes a frame that goes to the ring behind all others, and what was changed in it.
    pub(super) fn deliver(&self, field: Option<FrameField>) {
        self.0.frames.borrow_mut().push_back(field);
    }

    /// Lets an attacker strike between the reads of the guest, or none.
    pub(super) fn set_attacker(&self, attacker: Option<Attacker>) {
        *self.0.attacker.borrow_mut() = attacker;
    }

    /// Counts no more: the host is honest from now on.
    pub(super) fn stop(&self) {
        self.0.counting.set(Counting::Stopped);
        self.set_attacker(None);
        self.0.frames.borrow_mut().clear();
    }

    pub(super) fn total(&self) -> u64 {
        self.0.total.get()
    }

    pub(super) fn consumed(&self) -> Consumed {
        *self.0.consumed.borrow()
    }

    /// Returns the number of reads and spans of the guest since the last time.
    pub(super) fn take_events(&self) -> u64 {
        self.0.events.take()
    }

    /// The guest is between two reads.
    fn strike(&self) {
        self.0.events.set(self.0.events.get() + 1);
        // An attacker that maps memory or drops a buffer causes no event of the guest's.
        if let Ok(mut attacker) = self.0.attacker.try_borrow_mut() {
            if let Some(attacker) = &mut *attacker {
                attacker.strike();
            }
        }
    }

    fn note(&self, queue: usize, field: Field, state: State, value: u64) {
        let counts = &*self.0;
        let planted = &mut *counts.planted.borrow_mut();
        let slot = |taken: u16| usize::from(taken) % SLOTS;
        let place = match field {
            Field::UsedId => {
                let taken = counts.taken[queue].get();
                counts.taken[queue].set(taken.wrapping_add(1));
                if queue == 0 {
                    counts.head.set(value as u16);
                }
                &mut planted.elements[queue][slot(taken)][0]
            }
            Field::UsedLength => {
                let taken = counts.taken[queue].get().wrapping_sub(1);
                &mut planted.elements[queue][slot(taken)][1]
            }
            Field::Header => match planted.headers.get_mut(usize::from(counts.head.get())) {
                Some(header) => header,
                None => return,
            },
            _ => &mut planted.fields[queue][field as usize],
        };
        let is_planted = *place == Some(value);
        if is_planted {
            *place = None;
        }
        // A guest that polls reads the same value over and over, which counts once.
        let before = counts.last[queue][field as usize].replace(Some(value));
        let polled = !matches!(field, Field::UsedId | Field::UsedLength | Field::Header);
        let is_hostile = match counts.counting.get() {
            Counting::Planted => is_planted,
            Counting::All => !polled || before != Some(value),
            Counting::Stopped => false,
        };
        if is_hostile {
            counts.consumed.borrow_mut().ring[queue][field as usize][state as usize] += 1;
            counts.total.set(counts.total.get() + 1);
        }
        if (field, state) == (Field::Interrupts, State::Resetting) {
            // The driver has written empty rings.
            *planted = Planted::NONE;
            counts.taken.iter().for_each(|taken| taken.set(0));
        }
        if field == Field::Header {
            if let Some(Some(changed)) = counts.frames.borrow_mut().pop_front() {
                counts.consumed.borrow_mut().frames[changed as usize][state as usize] += 1;
                counts.total.set(counts.total.get() + 1);
            }
        }
    }
}

impl Probe for Recorder {
    type Span = Unmeasured;

    fn enter(&self, _: Category) -> Unmeasured {
        self.strike();
        Unmeasured
    }

    fn consumed(&self, queue: usize, field: Field, state: State, value: u64) {
        self.note(queue, field, state, value);
        self.strike();
    }
}
