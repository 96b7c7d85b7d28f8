//! A link that loses, duplicates and reorders, after a seed.

use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use tare_sim::{Instant, Random};

use super::link::Link;
use crate::protocol::{peek, Datagrams};

/// The faults of a [`Faulty`] link, as shares of datagrams in each direction.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Faults {
    /// The share that is lost.
    pub loss: f64,
    /// The share that arrives twice.
    pub duplication: f64,
    /// The share that arrives after later ones.
    pub reordering: f64,
}

/// A link with faults: the kernel of a test machine may not be able to make any.
///
/// Faults are per datagram when sending. When receiving they are per message, because the kernel
/// may have put datagrams together.
#[derive(Debug)]
pub struct Faulty<L> {
    link: L,
    faults: Faults,
    random: Random,
    /// Datagrams to be sent later, with the number of calls that they wait for.
    late: VecDeque<Vec<u8>>,
    /// Messages that arrive later, and when.
    arriving: VecDeque<(Instant, Vec<u8>)>,
    out: Datagrams,
    counts: FaultCounts,
}

/// The faults that happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultCounts {
    /// Datagrams and messages lost.
    pub lost: u64,
    /// Those that arrived twice.
    pub duplicated: u64,
    /// Those that were delayed.
    pub reordered: u64,
}

/// The delay of a message that is to arrive after others.
const DELAY: Duration = Duration::from_micros(200);

impl<L: Link> Faulty<L> {
    /// A link with faults that follow from the seed and the datagrams.
    pub fn new(link: L, faults: Faults, seed: u64) -> Faulty<L> {
        Faulty {
            link,
            faults,
            random: Random::new(seed),
            late: VecDeque::new(),
            arriving: VecDeque::new(),
            out: Datagrams::default(),
            counts: FaultCounts::default(),
        }
    }

    /// Returns the faults that happened.
    pub fn counts(&self) -> FaultCounts {
        self.counts
    }

    /// Returns the number of copies that arrive, and whether they arrive late.
    fn fate(&mut self) -> (usize, bool) {
        let Faults {
            loss,
            duplication,
            reordering,
        } = self.faults;
        let copies = match self.random.chance(loss) {
            true => 0,
            false => 1 + usize::from(self.random.chance(duplication)),
        };
        let is_late = copies > 0 && self.random.chance(reordering);
        self.counts.lost += u64::from(copies == 0);
        self.counts.duplicated += u64::from(copies == 2);
        self.counts.reordered += u64::from(is_late);
        (copies, is_late)
    }
}

impl<L: Link> Link for Faulty<L> {
    fn send(&mut self, datagrams: &Datagrams) -> io::Result<()> {
        let mut late: Vec<Vec<u8>> = self.late.drain(..).collect();
        for datagram in datagrams.iter() {
            let (copies, is_late) = self.fate();
            for _ in 0..copies {
                match is_late {
                    true => self.late.push_back(datagram.to_vec()),
                    false => self.out.push(datagram),
                }
            }
        }
        late.iter().for_each(|datagram| self.out.push(datagram));
        late.clear();
        self.link.send(&self.out)?;
        self.out.clear();
        Ok(())
    }

    fn receive(&mut self, buffer: &mut [u8], wait: Duration) -> io::Result<usize> {
        let wait = match self.arriving.is_empty() {
            true => wait,
            false => wait.min(DELAY),
        };
        let len = self.link.receive(buffer, wait)?;
        let mut taken = 0;
        let mut kept = Vec::new();
        while let Some((_, message)) = peek(&buffer[taken..len]) {
            let message = taken..taken + message;
            taken = message.end;
            let (copies, is_late) = self.fate();
            let bytes = &buffer[message];
            match (copies, is_late) {
                (0, _) => {}
                (1, false) => kept.extend_from_slice(bytes),
                _ => {
                    if !is_late {
                        kept.extend_from_slice(bytes);
                    }
                    let late = (Instant::now() + DELAY, bytes.to_vec());
                    self.arriving.push_back(late);
                }
            }
        }
        if let Some((at, _)) = self.arriving.front() {
            if *at <= Instant::now() {
                if let Some((_, message)) = self.arriving.pop_front() {
                    if kept.len() + message.len() <= buffer.len() {
                        kept.extend_from_slice(&message);
                    }
                }
            }
        }
        buffer[..kept.len()].copy_from_slice(&kept);
        Ok(kept.len())
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.link.descriptor()
    }
}
