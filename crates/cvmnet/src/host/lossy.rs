//! A network that loses, duplicates and reorders frames in both directions, by a seed.

use std::os::fd::BorrowedFd;

use tare_sim::{Carried, Instant, Line, LineConfig, LineCounters};

use super::Frames;
use crate::ring::NetHeader;

/// Frames that are taken from the network behind before the next one is delivered.
const BURST: usize = 64;

/// A frame with its header, on a line.
struct Framed(Vec<u8>, NetHeader);

impl Carried for Framed {
    fn frame_len(&self) -> usize {
        self.0.len()
    }

    fn duplicate(&self) -> Option<Framed> {
        Some(Framed(self.0.clone(), self.1))
    }
}

/// A network behind two lines with faults, one per direction, in real time.
///
/// A frame that is held back arrives in a later pass, for which there is no event: the device must
/// be polled, not waited for.
pub struct Lossy<F> {
    frames: F,
    to_guest: Line<Framed>,
    from_guest: Line<Framed>,
    /// The frame of the guest that the network behind had no room for.
    waiting: Option<Framed>,
}

impl<F: Frames> Lossy<F> {
    /// Returns the network behind lines with these properties.
    ///
    /// # Panics
    /// As [`Line::new`].
    pub fn new(frames: F, to_guest: &LineConfig, from_guest: &LineConfig) -> Lossy<F> {
        Lossy {
            frames,
            to_guest: Line::new(to_guest),
            from_guest: Line::new(from_guest),
            waiting: None,
        }
    }

    /// Returns the network behind the lines.
    pub fn inner(&self) -> &F {
        &self.frames
    }

    /// Returns the counters of the line to the guest and of the one from it.
    pub fn counters(&self) -> [LineCounters; 2] {
        [self.to_guest.counters(), self.from_guest.counters()]
    }

    /// Hands on frames of the guest that have arrived; returns false if there is no room for more.
    fn forward(&mut self, now: Instant) -> bool {
        loop {
            let next = self.waiting.take();
            let next = next.or_else(|| self.from_guest.pop(now).map(|(_, framed)| framed));
            let Some(framed) = next else {
                return true;
            };
            if !self.frames.send(&framed.0, framed.1) {
                self.waiting = Some(framed);
                return false;
            }
        }
    }
}

impl<F: Frames> Frames for Lossy<F> {
    fn receive(&mut self, frame: &mut Vec<u8>) -> Option<NetHeader> {
        let now = Instant::now();
        self.forward(now);
        for _ in 0..BURST {
            let mut bytes = Vec::new();
            let Some(header) = self.frames.receive(&mut bytes) else {
                break;
            };
            self.to_guest.offer(now, Framed(bytes, header));
        }
        let (_, Framed(bytes, header)) = self.to_guest.pop(now)?;
        frame.extend_from_slice(&bytes);
        Some(header)
    }

    fn send(&mut self, frame: &[u8], header: NetHeader) -> bool {
        let now = Instant::now();
        if !self.forward(now) {
            return false;
        }
        self.from_guest.offer(now, Framed(frame.to_vec(), header));
        self.forward(now);
        true
    }

    fn wait_on(&self) -> Option<BorrowedFd<'_>> {
        self.frames.wait_on()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::time::Duration;

    use super::super::Memory;
    use super::*;

    /// A network in memory that takes one frame at a time.
    struct Narrow(Memory);

    impl Frames for Narrow {
        fn receive(&mut self, frame: &mut Vec<u8>) -> Option<NetHeader> {
            self.0.receive(frame)
        }

        fn send(&mut self, frame: &[u8], header: NetHeader) -> bool {
            self.0.from_guest.is_empty() && self.0.send(frame, header)
        }
    }

    fn frames(count: u16) -> impl Iterator<Item = (Vec<u8>, NetHeader)> {
        (0..count).map(|n| (n.to_be_bytes().repeat(40), NetHeader::default()))
    }

    #[test]
    fn faults_are_those_of_the_lines_and_every_other_frame_passes_once() {
        let faulty = LineConfig {
            loss: 0.1,
            duplication: 0.1,
            reordering: 0.1,
            hold: Duration::from_millis(1),
            seed: 7,
            ..LineConfig::IDEAL
        };
        let memory = Memory {
            to_guest: frames(1000).collect::<VecDeque<_>>(),
            ..Memory::default()
        };
        let mut lossy = Lossy::new(memory, &faulty, &LineConfig { seed: 8, ..faulty });
        for (frame, header) in frames(1000) {
            assert!(lossy.send(&frame, header));
        }
        let mut received = Vec::new();
        let until = Instant::now() + Duration::from_secs(60);
        while Instant::now() < until {
            let mut frame = Vec::new();
            if lossy.receive(&mut frame).is_some() {
                received.push(frame);
            } else if lossy.counters().iter().all(is_done) {
                break;
            }
        }
        let [to, from] = lossy.counters();
        for (counters, passed) in [(to, received.len()), (from, lossy.inner().from_guest.len())] {
            assert_eq!(counters.offered, 1000);
            assert_eq!(passed as u64, counters.delivered);
            for count in [counters.lost, counters.duplicated, counters.reordered] {
                assert!((50..200).contains(&count), "{counters:?}");
            }
        }
        assert_ne!(to, from);
        let mut once: Vec<&Vec<u8>> = received.iter().collect();
        once.sort();
        once.dedup();
        assert_eq!(once.len() as u64, 1000 - to.lost);
        assert!(once.iter().all(|frame| frame.len() == 80));
    }

    fn is_done(counters: &LineCounters) -> bool {
        counters.offered + counters.duplicated == counters.lost + counters.delivered
    }

    #[test]
    fn a_frame_waits_for_room_and_the_ones_behind_it_too() {
        let network = Narrow(Memory::default());
        let mut lossy = Lossy::new(network, &LineConfig::IDEAL, &LineConfig::IDEAL);
        let mut passed = Vec::new();
        for (frame, header) in frames(20) {
            // Without a fault, and with room, a frame is on its way in at most two passes.
            for _ in 0..1000 {
                if lossy.send(&frame, header) {
                    break;
                }
                assert!(lossy.waiting.is_some());
                passed.append(&mut lossy.frames.0.from_guest);
            }
        }
        for _ in 0..1000 {
            passed.append(&mut lossy.frames.0.from_guest);
            lossy.receive(&mut Vec::new());
        }
        let sent: Vec<_> = frames(20).collect();
        assert_eq!(passed, sent);
    }
}
