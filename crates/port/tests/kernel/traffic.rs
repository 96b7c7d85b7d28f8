//! Numbered frames of every length, and a receiver that checks each byte.

use std::alloc::{GlobalAlloc, Layout as Memory, System};
use std::cell::Cell;
use std::fs;
use std::time::{Duration, Instant};

use tare_port::{Burst, Frame, Pool, Port};

/// Counts what a thread allocates.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: leaves everything to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Memory) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: as the caller says.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Memory) {
        // SAFETY: as the caller says.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Allocations of this thread.
pub(crate) fn allocations() -> u64 {
    ALLOCATIONS.with(Cell::get)
}

pub(crate) const SHORTEST: usize = 60;
pub(crate) const LONGEST: usize = 1514;

/// Length of the frame of a number: each from the shortest to the longest in turn, neighbours far
/// apart.
fn length(number: u32) -> usize {
    let lengths = LONGEST - SHORTEST + 1;
    SHORTEST + (number as usize * 577) % lengths
}

fn byte(number: u32, at: usize) -> u8 {
    (number as usize ^ (at * 151)) as u8
}

/// The frame of this number.
pub(crate) fn numbered(pool: &Pool, number: u32) -> Frame {
    let mut frame = pool.take().expect("a slot");
    let bytes = frame.append(length(number)).unwrap();
    bytes[..6].fill(0xff);
    bytes[6..12].copy_from_slice(&[2, 0, 0, 0, 0, 1]);
    // An experimental protocol, which the kernel ignores.
    bytes[12..14].copy_from_slice(&[0x88, 0xb5]);
    bytes[14..18].copy_from_slice(&number.to_be_bytes());
    for (at, value) in bytes.iter_mut().enumerate().skip(18) {
        *value = byte(number, at);
    }
    frame
}

/// The number of a frame, all of whose bytes are as they were sent.
pub(crate) fn number(frame: &Frame) -> u32 {
    let number = u32::from_be_bytes(frame[14..18].try_into().unwrap());
    assert_eq!(frame.len(), length(number), "length of frame {number}");
    let intact = frame
        .iter()
        .enumerate()
        .skip(18)
        .all(|(at, &value)| value == byte(number, at));
    assert!(intact, "bytes of frame {number}");
    number
}

/// Receives until there are as many as asked for, or nothing has come for a while: where fewer are
/// expected than are asked for.
pub(crate) fn receive(port: &mut dyn Port, burst: &mut Burst, wanted: usize) {
    receive_within(port, burst, wanted, Duration::from_millis(300));
}

/// Receives as many as are expected. On a busy machine the kernel may take seconds for them.
pub(crate) fn receive_all(port: &mut dyn Port, burst: &mut Burst, expected: usize) {
    receive_within(port, burst, expected, Duration::from_secs(10));
}

/// Receives until there are as many as asked for, or nothing has come for so long.
fn receive_within(port: &mut dyn Port, burst: &mut Burst, wanted: usize, longest: Duration) {
    let mut last = Instant::now();
    while burst.len() < wanted {
        // Looked at before the port is, as this thread may not run for a while in between.
        let is_over = last.elapsed() > longest;
        if port.receive(burst, wanted - burst.len()).unwrap() > 0 {
            last = Instant::now();
        } else if is_over {
            return;
        }
    }
}

/// Waits until something is so, for as long as the kernel may take on a busy machine; returns false
/// if it is not so then.
pub(crate) fn becomes(mut is_so: impl FnMut() -> bool) -> bool {
    let begin = Instant::now();
    loop {
        let is_over = begin.elapsed() > Duration::from_secs(10);
        if is_so() {
            return true;
        }
        if is_over {
            return false;
        }
    }
}

/// Sends all of a burst.
pub(crate) fn send(port: &mut dyn Port, burst: &mut Burst) {
    let begin = Instant::now();
    while !burst.is_empty() {
        port.send(burst).unwrap();
        assert!(
            begin.elapsed() < Duration::from_secs(30),
            "it takes nothing"
        );
    }
}

/// The kernel's counts of the interfaces and the packet sockets of the namespace.
fn kernel_counts() -> String {
    ["dev", "packet", "ptype", "softnet_stat"]
        .map(|file| fs::read_to_string(format!("/proc/thread-self/net/{file}")).unwrap_or_default())
        .join("\n")
}

/// Sends numbered frames, receives them, and sees that all arrive once, in order and intact.
pub(crate) fn carries(from: &mut dyn Port, to: &mut dyn Port, pool: &Pool, frames: u32) {
    let before = (from.counters(), to.counters());
    let (mut burst, mut bytes) = (Burst::new(), 0);
    for first in (0..frames).step_by(64) {
        let numbers = first..(first + 64).min(frames);
        burst.extend(numbers.clone().map(|n| numbered(pool, n)));
        bytes += burst.iter().map(|frame| frame.len() as u64).sum::<u64>();
        send(from, &mut burst);
        receive_all(to, &mut burst, numbers.len());
        let received: Vec<u32> = burst.drain(..).map(|frame| number(&frame)).collect();
        assert_eq!(
            received,
            numbers.collect::<Vec<_>>(),
            "sender {:?} (before: {:?}), receiver {:?} (before: {:?}), interfaces:\n{}",
            from.counters(),
            before.0,
            to.counters(),
            before.1,
            kernel_counts()
        );
    }
    let after = (from.counters(), to.counters());
    assert_eq!(after.0.tx_packets - before.0.tx_packets, u64::from(frames));
    assert_eq!(after.0.tx_bytes - before.0.tx_bytes, bytes);
    assert_eq!(after.0.tx_dropped, before.0.tx_dropped);
    assert_eq!(after.1.rx_packets - before.1.rx_packets, u64::from(frames));
    assert_eq!(after.1.rx_bytes - before.1.rx_bytes, bytes);
    assert_eq!(after.1.rx_dropped, before.1.rx_dropped);
}
