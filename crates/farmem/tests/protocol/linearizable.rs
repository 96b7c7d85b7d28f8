//! Linearizability of histories of one cell (Wing and Gong 1993), with the memoization of Lowe
//! (2017): what is searched is a set of operations and the value that they leave.

use std::collections::HashSet;

/// An operation on a cell of 64 bits, with what it returned; `None` if the client cannot know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Read(Option<u64>),
    Write(u64),
    CompareAndSwap {
        expected: u64,
        new: u64,
        old: Option<u64>,
    },
    FetchAdd {
        add: u64,
        old: Option<u64>,
    },
}

impl Action {
    /// The value that the action leaves; `None` if it cannot have returned what it did.
    fn apply(self, value: u64) -> Option<u64> {
        let matches = |seen: Option<u64>| seen.is_none_or(|seen| seen == value);
        match self {
            Action::Read(seen) => matches(seen).then_some(value),
            Action::Write(new) => Some(new),
            Action::CompareAndSwap { expected, new, old } => {
                matches(old).then_some(if value == expected { new } else { value })
            }
            Action::FetchAdd { add, old } => matches(old).then_some(value.wrapping_add(add)),
        }
    }
}

/// An operation of a history.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Event {
    pub(crate) action: Action,
    /// The moment of its submission.
    pub(crate) start: u64,
    /// The moment of its completion; `None` if its outcome is unknown: it then ran at any time
    /// after its start, or never.
    pub(crate) end: Option<u64>,
    /// The client, whose operations keep their order.
    pub(crate) client: usize,
}

impl Event {
    /// True if this must come before the other: it had ended, or its client submitted it first and
    /// orders the two.
    fn precedes(&self, other: &Event) -> bool {
        let is_read = |event: &Event| matches!(event.action, Action::Read(_));
        self.end.is_some_and(|end| {
            let ordered = self.client == other.client && !(is_read(self) && is_read(other));
            end < other.start || (ordered && self.start < other.start)
        })
    }
}

/// Returns true if there is an order of the operations that explains all that they returned,
/// starting from 0. At most 64 operations.
pub(crate) fn is_linearizable(events: &[Event]) -> bool {
    assert!(events.len() <= 64, "{} operations", events.len());
    let bit = |n: usize| 1u64 << n;
    let mask = |keep: &dyn Fn(&Event) -> bool| -> u64 {
        let kept = events.iter().enumerate().filter(|(_, event)| keep(event));
        kept.map(|(n, _)| bit(n)).sum()
    };
    let before: Vec<u64> = events
        .iter()
        .map(|event| mask(&|other: &Event| other.precedes(event)))
        .collect();
    let required = mask(&|event: &Event| event.end.is_some());
    let mut seen = HashSet::new();
    let mut open = vec![(0u64, 0u64)];
    while let Some((done, value)) = open.pop() {
        if done & required == required {
            return true;
        }
        if !seen.insert((done, value)) {
            continue;
        }
        for (n, event) in events.iter().enumerate() {
            if done & bit(n) == 0 && before[n] & !done == 0 {
                if let Some(next) = event.action.apply(value) {
                    open.push((done | bit(n), next));
                }
            }
        }
    }
    false
}

#[test]
fn histories_that_no_order_explains_are_found() {
    let event = |client, action, start, end| Event {
        action,
        start,
        end,
        client,
    };
    let (read, write) = (|value| Action::Read(Some(value)), Action::Write);
    let add = |old| Action::FetchAdd { add: 1, old };
    let cas = |expected, new, old| Action::CompareAndSwap { expected, new, old };
    for (expected, events, why) in [
        (true, vec![], "nothing happened"),
        (
            false,
            vec![event(0, read(1), 0, Some(1))],
            "a value from nowhere",
        ),
        (
            true,
            vec![
                event(0, write(1), 0, Some(9)),
                event(1, read(0), 1, Some(2)),
                event(1, read(1), 3, Some(4)),
            ],
            "a write takes effect while it runs",
        ),
        (
            false,
            vec![
                event(0, write(1), 0, Some(9)),
                event(1, read(1), 1, Some(2)),
                event(1, read(0), 3, Some(4)),
            ],
            "and only once",
        ),
        (
            true,
            vec![
                event(0, write(1), 0, None),
                event(1, read(0), 1, Some(2)),
                event(1, read(1), 30, Some(31)),
            ],
            "an unknown one takes effect late",
        ),
        (
            false,
            vec![
                event(0, write(1), 0, None),
                event(1, read(1), 1, Some(2)),
                event(1, write(2), 3, Some(4)),
                event(1, read(1), 5, Some(6)),
            ],
            "an unknown one takes effect twice",
        ),
        (
            false,
            vec![
                event(0, add(Some(0)), 0, Some(1)),
                event(1, read(2), 2, Some(3)),
            ],
            "an addition runs twice",
        ),
        (
            true,
            vec![
                event(0, add(None), 0, None),
                event(0, add(Some(1)), 1, Some(2)),
                event(1, read(2), 3, Some(4)),
            ],
            "an unknown addition ran",
        ),
        (
            false,
            vec![
                event(0, write(1), 0, Some(8)),
                event(0, write(2), 1, Some(9)),
                event(1, read(1), 10, Some(11)),
            ],
            "two writes of one client change places",
        ),
        (
            true,
            vec![
                event(0, write(1), 0, Some(8)),
                event(1, write(2), 1, Some(9)),
                event(1, read(1), 10, Some(11)),
            ],
            "those of two clients may",
        ),
        (
            false,
            vec![
                event(0, cas(0, 1, Some(0)), 0, Some(5)),
                event(1, cas(0, 2, Some(0)), 0, Some(5)),
            ],
            "two clients win",
        ),
        (
            true,
            vec![
                event(0, cas(0, 1, Some(0)), 0, Some(5)),
                event(1, cas(0, 2, Some(1)), 0, Some(5)),
                event(1, read(1), 6, Some(7)),
            ],
            "one wins",
        ),
    ] {
        assert_eq!(is_linearizable(&events), expected, "{why}");
    }
}
