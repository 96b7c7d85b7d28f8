//! Pages of the kernel's trace buffer, as `trace_pipe_raw` has them ("ring buffer" in the kernel's
//! documentation, `events/header_page` and `events/header_event` in tracefs).

use std::collections::{HashMap, VecDeque};

use super::spans::{Event, Kind};
use super::Category;

/// The bytes of a page.
pub(super) const PAGE: usize = 4096;
/// The bytes before its events: the time of the first one, and their length with two flags.
const HEADER: usize = 16;
/// Events before this page were overwritten; their number is behind its own events.
const MISSED: u64 = 1 << 31;
const MISSED_STORED: u64 = 1 << 30;
/// The length without the flags.
const LENGTH: u64 = (1 << 27) - 1;

/// The types of entries that are not events.
const PADDING: u32 = 29;
const TIME_EXTEND: u32 = 30;
const TIME_STAMP: u32 = 31;
/// The bits of a time in an entry's first word, and of a time stamp.
const DELTA_BITS: u32 = 27;
const STAMP_BITS: u32 = 59;

/// The meaning of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Meaning {
    Enter(Category),
    Leave(Category),
    Switch,
    /// A text that was written to `trace_marker`, at this place of the event.
    Mark(usize),
}

/// The text of the marks.
pub(super) const BEGIN: &str = "tare begins";
pub(super) const END: &str = "tare ends";

/// Adds the events of a page that have a meaning, by their type's number, to `to`.
///
/// # Errors
/// The page is not as it should be; events before that place are added.
pub(super) fn parse(
    page: &[u8],
    meanings: &HashMap<u16, Meaning>,
    to: &mut VecDeque<Event>,
) -> Result<(), String> {
    let word = |at: usize| {
        let bytes = page.get(at..at.checked_add(4)?)?;
        Some(u32::from_le_bytes(bytes.try_into().ok()?))
    };
    let long = |at: usize| Some(u64::from(word(at)?) | u64::from(word(at + 4)?) << 32);
    let len = page.len();
    let cut = |at: usize| format!("a page of the trace is cut off at byte {at} of {len}");
    let started = long(0).ok_or_else(|| cut(0))?;
    let commit = long(8).ok_or_else(|| cut(8))?;
    let end = HEADER + (commit & LENGTH) as usize;
    if end > len {
        return Err(cut(end));
    }
    if commit & MISSED != 0 {
        let stored = (commit & MISSED_STORED != 0).then(|| long(end)).flatten();
        to.push_back(Event {
            time: started,
            task: 0,
            kind: Kind::Lost(stored.unwrap_or(1)),
        });
    }
    let (mut time, mut at) = (started, HEADER);
    while at < end {
        let head = word(at).ok_or_else(|| cut(at))?;
        let (kind, delta) = (head & 0x1f, u64::from(head >> 5));
        // The length of a long event, of padding, or the high bits of a time.
        let second = || word(at + 4).ok_or_else(|| cut(at + 4));
        let (data, next) = match kind {
            // The rest of the page is empty.
            PADDING if delta == 0 => break,
            PADDING => (None, at + 4 + second()? as usize),
            TIME_EXTEND => {
                time += u64::from(second()?) << DELTA_BITS;
                (None, at + 8)
            }
            TIME_STAMP => {
                let stamp = u64::from(second()?) << DELTA_BITS;
                // The highest bits are those of the page's time.
                time = (started >> STAMP_BITS << STAMP_BITS) | stamp;
                (None, at + 8)
            }
            0 => (Some(at + 8), at + 4 + second()? as usize),
            words => (Some(at + 4), at + 4 + 4 * words as usize),
        };
        time += delta;
        if next <= at + 4 || next > end || data.is_some_and(|data| data > next) {
            return Err(cut(next));
        }
        if let Some(event) = data.and_then(|data| read(&page[data..next], time, meanings)) {
            to.push_back(event);
        }
        at = next;
    }
    Ok(())
}

/// Reads an event: the number of its type, flags, the task, then what is its own.
fn read(data: &[u8], time: u64, meanings: &HashMap<u16, Meaning>) -> Option<Event> {
    let number = u16::from_le_bytes(data.get(..2)?.try_into().ok()?);
    let task = i32::from_le_bytes(data.get(4..8)?.try_into().ok()?);
    let kind = match *meanings.get(&number)? {
        Meaning::Enter(category) => Kind::Enter(category),
        Meaning::Leave(category) => Kind::Leave(category),
        Meaning::Switch => Kind::Switch,
        Meaning::Mark(at) if data.get(at..)?.starts_with(BEGIN.as_bytes()) => Kind::Begin,
        Meaning::Mark(at) if data.get(at..)?.starts_with(END.as_bytes()) => Kind::End,
        Meaning::Mark(_) => return None,
    };
    Some(Event { time, task, kind })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meanings() -> HashMap<u16, Meaning> {
        HashMap::from([
            (5, Meaning::Mark(16)),
            (314, Meaning::Switch),
            (1392, Meaning::Enter(Category::SlotFind)),
            (1393, Meaning::Leave(Category::SlotFind)),
        ])
    }

    /// An event of a probe, with its words of data behind the first two.
    fn event(delta: u32, number: u16, task: i32, words: usize) -> Vec<u8> {
        let mut bytes = (delta << 5 | (2 + words as u32)).to_le_bytes().to_vec();
        bytes.extend(u32::from(number).to_le_bytes());
        bytes.extend(task.to_le_bytes());
        bytes.extend(vec![0xff; 4 * words]);
        bytes
    }

    fn page(time: u64, flags: u64, events: &[Vec<u8>]) -> Vec<u8> {
        let events = events.concat();
        let mut bytes = time.to_le_bytes().to_vec();
        bytes.extend((flags | events.len() as u64).to_le_bytes());
        bytes.extend(events);
        bytes
    }

    type Found = Vec<(u64, i32, Kind)>;

    fn parsed(page: &[u8]) -> (Found, Result<(), String>) {
        let mut events = VecDeque::new();
        let result = parse(page, &meanings(), &mut events);
        let events = events.into_iter().map(|it| (it.time, it.task, it.kind));
        (events.collect(), result)
    }

    #[test]
    fn a_page_of_linux_6_1_is_read() {
        // One text, "hello", as `trace_pipe_raw` had it: the page's first 52 bytes.
        let mut bytes = vec![
            0x9b, 0xe4, 0xe6, 0xd3, 7, 0, 0, 0, 0x20, 0, 0, 0, 0, 0, 0, 0,
        ];
        bytes.extend([
            7, 0, 0, 0, 5, 0, 0, 0, 0x5a, 0, 0, 0, 0x8d, 0x34, 0x1b, 0x93,
        ]);
        bytes.extend([0xff, 0xff, 0xff, 0xff]);
        let head = bytes.clone();
        bytes.extend(b"hello\n\0\0\0\0\0\0");
        assert_eq!(parsed(&bytes), (vec![], Ok(())));
        bytes.truncate(head.len());
        bytes.extend(b"tare begins\n");
        assert_eq!(parsed(&bytes).0, [(33_619_895_451, 90, Kind::Begin)]);
    }

    #[test]
    fn times_add_up_over_events_of_every_form() {
        let (enter, leave) = (
            Kind::Enter(Category::SlotFind),
            Kind::Leave(Category::SlotFind),
        );
        let mut long = (7u32 << 5).to_le_bytes().to_vec();
        long.extend(20u32.to_le_bytes());
        long.extend(1393u32.to_le_bytes());
        long.extend(12i32.to_le_bytes());
        long.extend([0; 8]);
        let padding = [(1u32 << 5 | 29).to_le_bytes(), 8u32.to_le_bytes(), [0; 4]].concat();
        let extend = [(5u32 << 5 | 30).to_le_bytes(), 3u32.to_le_bytes()].concat();
        let stamp = [(9u32 << 5 | 31).to_le_bytes(), 40u32.to_le_bytes()].concat();
        let bytes = page(
            1000,
            0,
            &[
                event(0, 1392, 11, 2),
                event(10, 77, 11, 9),
                long,
                padding,
                extend,
                event(2, 314, 11, 14),
                stamp,
                event(1, 1392, 0, 2),
                [29, 0, 0, 0].to_vec(),
                event(2, 1392, 0, 2),
            ],
        );
        let extended = 1018 + (3 << 27) + 7;
        let stamped = (40 << 27) + 10;
        let expected = vec![
            (1000, 11, enter),
            (1017, 12, leave),
            (extended, 11, Kind::Switch),
            (stamped, 0, enter),
        ];
        assert_eq!(parsed(&bytes), (expected, Ok(())));
    }

    #[test]
    fn lost_events_are_counted_and_a_cut_page_is_an_error_after_what_it_has() {
        let events = [event(0, 1392, 1, 2), event(4, 1393, 1, 4)];
        let mut bytes = page(50, MISSED | MISSED_STORED, &events);
        bytes.extend(1234u64.to_le_bytes());
        let (found, result) = parsed(&bytes);
        assert_eq!(
            (found[0].2, found.len(), result),
            (Kind::Lost(1234), 3, Ok(()))
        );
        let unknown = page(50, MISSED, &events);
        assert_eq!(parsed(&unknown).0[0].2, Kind::Lost(1));
        let whole = page(50, 0, &events);
        for len in 0..whole.len() {
            assert!(parsed(&whole[..len]).1.is_err(), "{len}");
        }
        // An event that says that it is longer than the page's events.
        let mut wrong = whole.clone();
        wrong[HEADER] = 28;
        assert!(parsed(&wrong).1.unwrap_err().contains("cut off"));
        wrong[HEADER] = 29 | 1 << 5;
        wrong[HEADER + 4..HEADER + 8].fill(0);
        assert!(parsed(&wrong).1.is_err(), "an entry of no length");
        // The length of a long event counts its own word.
        for len in 0..4 {
            wrong[HEADER..HEADER + 8].copy_from_slice(&[0, 0, 0, 0, len, 0, 0, 0]);
            assert!(parsed(&wrong).1.is_err(), "a long event of {len} bytes");
        }
    }
}
