//! Two ports in memory, back to back.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::rc::Rc;

use crate::{Burst, Counters, Frame, Port};

type Queue = Rc<RefCell<VecDeque<Frame>>>;

/// One end of a cable in memory; made by [`memory`]. What it sends, the other end receives. Stays
/// on one thread, as its frames do.
#[derive(Debug)]
pub struct Memory {
    rx: Queue,
    tx: Queue,
    room: usize,
    counters: Counters,
}

/// Two ports joined by a cable that holds up to `room` frames in each direction.
pub fn memory(room: usize) -> (Memory, Memory) {
    let queues: [Queue; 2] = Default::default();
    let end = |rx: &Queue, tx: &Queue| Memory {
        rx: Rc::clone(rx),
        tx: Rc::clone(tx),
        room,
        counters: Counters::default(),
    };
    (end(&queues[0], &queues[1]), end(&queues[1], &queues[0]))
}

impl Port for Memory {
    fn receive(&mut self, burst: &mut Burst, max: usize) -> io::Result<usize> {
        let mut rx = self.rx.borrow_mut();
        let n = max.min(rx.len());
        for frame in rx.drain(..n) {
            self.counters.rx_bytes += frame.len() as u64;
            burst.push(frame);
        }
        self.counters.rx_packets += n as u64;
        Ok(n)
    }

    fn send(&mut self, burst: &mut Burst) -> io::Result<usize> {
        let mut tx = self.tx.borrow_mut();
        let n = burst.len().min(self.room - tx.len().min(self.room));
        for frame in burst.drain(..n) {
            self.counters.tx_bytes += frame.len() as u64;
            tx.push_back(frame);
        }
        self.counters.tx_packets += n as u64;
        Ok(n)
    }

    fn counters(&self) -> Counters {
        self.counters
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Layout, Pool};

    #[test]
    fn a_full_cable_leaves_the_rest_with_the_sender() {
        let pool = Pool::new(8, 512, Layout::Spread).unwrap();
        let (mut a, mut b) = memory(3);
        let mut burst: Burst = (0..5u8).map(|n| pool.copy(&[n]).unwrap()).collect();
        assert_eq!(a.send(&mut burst).unwrap(), 3);
        assert_eq!(burst.len(), 2);
        let mut received = Burst::new();
        assert_eq!(b.receive(&mut received, 2).unwrap(), 2);
        assert_eq!(a.send(&mut burst).unwrap(), 2);
        assert_eq!(b.receive(&mut received, 9).unwrap(), 3);
        let order: Vec<u8> = received.iter().map(|frame| frame[0]).collect();
        assert_eq!(order, [0, 1, 2, 3, 4]);
        assert_eq!(a.counters().tx_packets, 5);
        assert_eq!(b.counters().rx_bytes, 5);
    }
}
