//! Frames that wait until the tables that they are about are published.

use crate::interface::InterfaceId;

/// Frames that may wait.
const MAX: usize = 4096;

/// Frames with their interfaces, in the order in which they are to be sent.
///
/// Where there are thousands of routes, tables are published seldom. Every knock that is answered
/// makes a challenge, forged ones too, so challenges have half of the room: messages that this side
/// begins, and agreements, find some beside any flood.
#[derive(Debug, Default)]
pub(super) struct Held {
    frames: Vec<(InterfaceId, Vec<u8>)>,
    challenges: usize,
}

impl Held {
    /// Keeps a frame; returns false if too many wait.
    pub(super) fn keep(&mut self, to: InterfaceId, frame: Vec<u8>, is_challenge: bool) -> bool {
        if self.frames.len() >= MAX || (is_challenge && self.challenges >= MAX / 2) {
            return false;
        }
        self.challenges += usize::from(is_challenge);
        self.frames.push((to, frame));
        true
    }

    pub(super) fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Moves all frames to `out`; returns how many there were.
    pub(super) fn release(&mut self, out: &mut Vec<(InterfaceId, Vec<u8>)>) -> u64 {
        let count = self.frames.len() as u64;
        out.append(&mut self.frames);
        self.challenges = 0;
        count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn challenges_leave_half_of_the_room_to_other_messages() {
        let (mut held, mut out) = (Held::default(), Vec::new());
        let keep = |held: &mut Held, is_challenge, count: usize| {
            let keep = |n: &usize| held.keep(InterfaceId::Public, vec![*n as u8], is_challenge);
            (0..count).filter(keep).count()
        };
        for _ in 0..2 {
            assert_eq!(keep(&mut held, true, 3 * MAX), MAX / 2);
            assert_eq!(keep(&mut held, false, 3 * MAX), MAX / 2);
            assert_eq!(keep(&mut held, true, 1), 0);
            assert_eq!(held.release(&mut out), MAX as u64);
            assert!(held.is_empty());
        }
        assert_eq!(out.len(), 2 * MAX);
    }
}
