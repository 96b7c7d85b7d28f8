use super::*;

const TASK: i32 = 7;
const RECORDER: i32 = 9;

fn event(time: u64, task: i32, kind: Kind) -> Event {
    Event { time, task, kind }
}

/// Counts one round of events of some processors, and returns what there is.
fn counted(cpus: &[&[Event]]) -> (Vec<Times>, u64) {
    let mut accounts = Accounts::new(cpus.len(), vec![RECORDER]);
    for (cpu, events) in cpus.iter().enumerate() {
        accounts.queue(cpu).extend(events.iter().copied());
    }
    accounts.count(true);
    let unmatched = accounts.unmatched;
    (accounts.times(), unmatched)
}

/// The cycles of the categories that have any.
fn cycles(times: &Times) -> Vec<(Category, u64)> {
    let all = Category::ALL
        .into_iter()
        .map(|it| (it, times.cycles[it as usize]));
    all.filter(|(_, cycles)| *cycles > 0).collect()
}

fn adds_up(times: &Times) {
    let sum: u64 = times.cycles.iter().sum();
    assert_eq!(sum + times.unknown, times.whole, "{times:?}");
}

use Category::{Application, BounceCopy, Idle, PacketIn, PacketOut, Recorder, SlotFind};
use Kind::{Begin, End, Enter, Leave, Lost, Switch};

#[test]
fn the_time_of_a_span_inside_another_is_not_the_outer_ones() {
    let (times, unmatched) = counted(&[&[
        event(100, TASK, Begin),
        event(110, TASK, Enter(PacketOut)),
        event(113, TASK, Enter(SlotFind)),
        event(118, TASK, Enter(BounceCopy)),
        event(150, TASK, Leave(BounceCopy)),
        event(152, TASK, Leave(SlotFind)),
        // An interrupt in the span, with a span of the same category as one around it.
        event(160, TASK, Enter(PacketIn)),
        event(161, TASK, Enter(PacketOut)),
        event(171, TASK, Leave(PacketOut)),
        event(180, TASK, Leave(PacketIn)),
        event(190, TASK, Leave(PacketOut)),
        event(200, TASK, End),
    ]]);
    let expected = [
        (SlotFind, 5 + 2),
        (BounceCopy, 32),
        (PacketIn, 1 + 9),
        (PacketOut, 3 + 8 + 10 + 10),
        (Application, 10 + 10),
    ];
    assert_eq!((cycles(&times[0]), unmatched), (expected.to_vec(), 0));
    assert_eq!(
        (times[0].whole, times[0].spans[PacketOut as usize]),
        (100, 2)
    );
    adds_up(&times[0]);
}

#[test]
fn idle_is_the_idle_task_without_its_interrupts_and_a_task_takes_its_spans_along() {
    let (times, unmatched) = counted(&[
        &[
            event(0, RECORDER, Begin),
            event(10, RECORDER, Switch),
            event(30, 0, Enter(PacketIn)),
            event(45, 0, Leave(PacketIn)),
            event(50, 0, Switch),
            event(60, TASK, Enter(PacketOut)),
            event(64, TASK, Switch),
            event(100, 0, End),
        ],
        &[
            // An idle task of its own, whose spans are not those of the other processor's.
            event(5, 0, Begin),
            event(40, 0, Enter(BounceCopy)),
            event(41, 0, Leave(BounceCopy)),
            event(70, 0, Switch),
            // The task goes on here, inside of its span.
            event(90, TASK, Leave(PacketOut)),
            event(95, TASK, End),
        ],
    ]);
    assert_eq!(unmatched, 0);
    let expected = [
        (PacketIn, 15),
        (PacketOut, 4),
        (Recorder, 10),
        (Application, 10),
        (Idle, 20 + 5 + 36),
    ];
    assert_eq!(cycles(&times[0]), expected);
    let expected = [
        (BounceCopy, 1),
        (PacketOut, 20),
        (Application, 5),
        (Idle, 35 + 29),
    ];
    assert_eq!(cycles(&times[1]), expected);
    times.iter().for_each(adds_up);
}

#[test]
fn what_another_processor_may_still_add_waits_for_the_next_round() {
    let mut accounts = Accounts::new(2, Vec::new());
    // Processor 0 was read before it had the task's entry; processor 1 has the return already.
    accounts.queue(0).push_back(event(0, TASK, Begin));
    accounts.queue(1).extend([
        event(1, 0, Begin),
        event(50, 0, Switch),
        event(60, TASK, Leave(PacketOut)),
    ]);
    accounts.count(false);
    accounts
        .queue(0)
        .extend([event(20, TASK, Enter(PacketOut)), event(40, TASK, Switch)]);
    accounts.count(false);
    accounts.queue(0).push_back(event(100, 0, End));
    accounts.queue(1).push_back(event(100, TASK, End));
    accounts.count(true);
    assert_eq!(accounts.unmatched, 0);
    let times = accounts.times();
    assert_eq!(
        cycles(&times[0]),
        [(PacketOut, 20), (Application, 20), (Idle, 60)]
    );
    assert_eq!(
        cycles(&times[1]),
        [(PacketOut, 10), (Application, 40), (Idle, 49)]
    );
}

#[test]
fn time_with_lost_events_is_in_no_category_and_their_spans_are_unmatched() {
    let (times, unmatched) = counted(&[&[
        event(0, TASK, Begin),
        event(10, TASK, Enter(PacketOut)),
        event(20, TASK, Enter(SlotFind)),
        event(500, 0, Lost(12)),
        event(500, TASK, Enter(BounceCopy)),
        event(510, TASK, Leave(BounceCopy)),
        event(520, TASK, Leave(PacketOut)),
        event(600, TASK, End),
    ]]);
    let expected = [
        (BounceCopy, 10),
        (PacketOut, 10),
        (Application, 10 + 10 + 80),
    ];
    assert_eq!(
        (cycles(&times[0]), times[0].unknown),
        (expected.to_vec(), 480)
    );
    // Two that were open, and a return without an entry.
    assert_eq!(unmatched, 3);
    adds_up(&times[0]);
}

#[test]
fn returns_that_are_missing_end_with_the_span_around_them_and_are_bounded() {
    let mut events = vec![
        event(0, TASK, Begin),
        event(1, TASK, Enter(PacketOut)),
        event(2, TASK, Enter(SlotFind)),
        event(5, TASK, Leave(PacketOut)),
        event(10, TASK, Leave(SlotFind)),
    ];
    let (_, unmatched) = counted(&[&events]);
    assert_eq!(unmatched, 2);
    for n in 0..1000 {
        events.push(event(20 + n, TASK, Enter(SlotFind)));
    }
    events.push(event(2000, TASK, End));
    let (times, unmatched) = counted(&[&events]);
    assert!((970..1002).contains(&unmatched), "{unmatched}");
    assert_eq!(times[0].spans[SlotFind as usize], 1001);
    adds_up(&times[0]);
}

#[test]
fn without_marks_nothing_is_counted_but_entries() {
    let (times, _) = counted(&[&[event(5, 0, Enter(PacketIn)), event(9, 0, Leave(PacketIn))]]);
    assert_eq!((times[0].whole, cycles(&times[0])), (0, vec![]));
    let entries = |times: &Times| [times.spans, times.inside].map(|it| it[PacketIn as usize]);
    assert_eq!(entries(&times[0]), [1, 0]);
    let (times, _) = counted(&[&[event(5, 0, Begin), event(6, 0, Enter(PacketIn))]]);
    assert_eq!(entries(&times[0]), [1, 1]);
    // A clock that steps back takes nothing away.
    let (times, _) = counted(&[&[event(50, 0, Begin), event(40, 0, Switch), event(60, 0, End)]]);
    assert_eq!(cycles(&times[0]), [(Idle, 10)]);
    adds_up(&times[0]);
}
