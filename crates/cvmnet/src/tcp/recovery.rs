//! Loss recovery: the scoreboard of selective acknowledgments (RFC 2018), fast recovery from it
//! (RFC 6675), and the retransmissions after a timeout (RFC 6298).

use crate::tcp::intervals::Intervals;

/// Ranges that a scoreboard remembers: more holes than this are not repaired at once.
const RANGES_MAX: usize = 1024;
/// Duplicate acknowledgments, or segments above a hole, after which the hole counts as lost
/// (RFC 6675, section 2: DupThresh).
const DUP_THRESHOLD: u64 = 3;

/// The state of loss recovery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// No segment is known to be lost.
    Open,
    /// Fast recovery (RFC 6675).
    Fast,
    /// After a timeout: all that was on its way and is not selectively acknowledged counts as lost.
    Timeout,
}

/// The data in flight of one connection. Positions are those of the stream.
#[derive(Clone, Debug)]
pub(crate) struct Recovery {
    pub(crate) phase: Phase,
    /// Recovery ends when all below this is acknowledged.
    point: u64,
    sacked: Intervals,
    /// All below this that is not selectively acknowledged was sent again in this phase (RFC 6675:
    /// HighRxt).
    repaired: u64,
    /// The one retransmission of fast recovery that is made though nothing says it is needed.
    is_rescued: bool,
    /// The first retransmission of a phase does not wait for room in the window.
    pub(crate) is_forced: bool,
    duplicates: u64,
}

impl Recovery {
    pub(crate) fn new() -> Recovery {
        Recovery {
            phase: Phase::Open,
            point: 0,
            sacked: Intervals::new(RANGES_MAX),
            repaired: 0,
            is_rescued: false,
            is_forced: false,
            duplicates: 0,
        }
    }

    /// Takes a selectively acknowledged range between `una` and `next`, and returns whether it was
    /// news. Anything else is ignored: duplicates reported by RFC 2883, and lies.
    pub(crate) fn sack(&mut self, start: u64, end: u64, una: u64, next: u64) -> bool {
        start > una && end <= next && self.sacked.insert(start, end) > 0
    }

    /// Counts a duplicate acknowledgment.
    pub(crate) fn duplicate(&mut self) {
        self.duplicates += 1;
    }

    /// Imagines the scoreboard of a peer without SACK: each duplicate acknowledgment stands for a
    /// segment above the one that is missing (RFC 6582).
    pub(crate) fn imagine(&mut self, una: u64, next: u64, mss: u64) {
        let start = self.sacked.end().unwrap_or(0).max(una + mss);
        self.sacked.insert(start, (start + mss).min(next));
    }

    /// All below `una` is acknowledged. Returns true if that ends a recovery. A peer without SACK
    /// says by an acknowledgment below the recovery point that the segment there is missing too.
    pub(crate) fn advance(&mut self, una: u64, has_sack: bool, mss: u64) -> bool {
        self.duplicates = 0;
        self.is_forced = false;
        self.sacked
            .remove_below(if has_sack { una } else { una + mss });
        self.repaired = self.repaired.max(una);
        if self.phase != Phase::Open && una >= self.point {
            self.phase = Phase::Open;
            return true;
        }
        false
    }

    /// Returns true if the first segment counts as lost, which begins a recovery.
    pub(crate) fn must_begin(&self, una: u64, mss: u64) -> bool {
        self.phase == Phase::Open
            && (self.duplicates >= DUP_THRESHOLD || self.sacked_edge(mss) > una)
    }

    /// Begins fast recovery of what is below `next`.
    pub(crate) fn begin(&mut self, una: u64, next: u64) {
        self.phase = Phase::Fast;
        self.point = next;
        self.repaired = una;
        self.is_rescued = false;
        self.is_forced = true;
    }

    /// Begins to send everything again. Selective acknowledgments are kept unless they contradict
    /// the cumulative one, which says that the peer dropped what it had (RFC 2018, section 8).
    /// Returns true if this is the first timeout of a series.
    pub(crate) fn time_out(&mut self, una: u64, next: u64) -> bool {
        if self.sacked.containing(una).is_some() {
            self.sacked.clear();
        }
        let is_first = self.phase != Phase::Timeout;
        self.phase = Phase::Timeout;
        self.point = next;
        self.repaired = una;
        self.is_forced = true;
        self.duplicates = 0;
        is_first
    }

    /// Returns the position below which all that is not acknowledged counts as lost (RFC 6675,
    /// IsLost), by the selective acknowledgments alone.
    fn sacked_edge(&self, mss: u64) -> u64 {
        let (mut ranges, mut bytes) = (0, 0);
        for (start, end) in self.sacked.iter().rev() {
            ranges += 1;
            bytes += end - start;
            if ranges >= DUP_THRESHOLD || bytes > (DUP_THRESHOLD - 1) * mss {
                return start;
            }
        }
        0
    }

    /// Returns the position below which all that is not acknowledged counts as lost.
    fn lost_edge(&self, una: u64, mss: u64) -> u64 {
        match self.phase {
            Phase::Open => 0,
            // The first segment is lost, or there would be no recovery.
            Phase::Fast => self.sacked_edge(mss).max((una + mss).min(self.point)),
            Phase::Timeout => self.sacked_edge(mss).max(self.point),
        }
    }

    /// Returns the bytes that are on their way (RFC 6675, SetPipe).
    pub(crate) fn pipe(&self, una: u64, next: u64, mss: u64) -> u64 {
        let edge = self.lost_edge(una, mss);
        let repaired = if self.phase == Phase::Open {
            0
        } else {
            self.repaired
        };
        self.sacked
            .holes(una, next)
            .map(|(start, end)| {
                let not_lost = end.saturating_sub(start.max(edge));
                not_lost + end.min(repaired).saturating_sub(start)
            })
            .sum()
    }

    /// Returns the next range to send again (RFC 6675, NextSeg, rule 1).
    pub(crate) fn next_lost(&self, una: u64, mss: u64) -> Option<(u64, u64)> {
        let edge = self.lost_edge(una, mss);
        self.sacked.holes(una.max(self.repaired), edge).next()
    }

    /// Returns what may be sent again though it is not known to be lost, when there is nothing new
    /// to send (RFC 6675, NextSeg, rules 3 and 4).
    pub(crate) fn next_doubtful(&mut self, una: u64, next: u64, mss: u64) -> Option<(u64, u64)> {
        if self.phase != Phase::Fast {
            return None;
        }
        let sacked = self.sacked.end().unwrap_or(0);
        let hole = self.sacked.holes(una.max(self.repaired), sacked).next();
        if hole.is_some() || self.is_rescued {
            return hole;
        }
        self.is_rescued = true;
        let start = next.saturating_sub(mss).max(sacked).max(una);
        (start < next).then_some((start, next))
    }

    /// All up to `end` was sent again. The rescue at the end of the window is not such a
    /// retransmission.
    pub(crate) fn sent_again(&mut self, end: u64, is_rescue: bool) {
        self.is_forced = false;
        if !is_rescue {
            self.repaired = self.repaired.max(end);
        }
    }

    /// Returns true if the position is above all selective acknowledgments, so that sending from
    /// there on again is a rescue.
    pub(crate) fn is_rescue(&self, start: u64) -> bool {
        self.phase == Phase::Fast && start >= self.sacked.end().unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MSS: u64 = 1000;

    fn with(sacked: &[(u64, u64)]) -> Recovery {
        let mut recovery = Recovery::new();
        for &(start, end) in sacked {
            assert!(recovery.sack(start, end, 1, 100_001));
        }
        recovery
    }

    #[test]
    fn three_ranges_or_more_than_two_segments_above_a_hole_mean_that_it_is_lost() {
        for (sacked, lost) in [
            (&[(2001, 4001)][..], false),
            (&[(2001, 4002)], true),
            (&[(2001, 2002), (3001, 3002)], false),
            (&[(2001, 2002), (3001, 3002), (4001, 4002)], true),
        ] {
            assert_eq!(with(sacked).must_begin(1, MSS), lost, "{sacked:?}");
        }
        let mut recovery = with(&[]);
        (0..3).for_each(|_| recovery.duplicate());
        assert!(recovery.must_begin(1, MSS));
    }

    #[test]
    fn lies_about_what_arrived_are_ignored() {
        let mut recovery = Recovery::new();
        assert!(!recovery.sack(1, 500, 1, 1000));
        assert!(!recovery.sack(500, 1001, 1, 1000));
        assert!(!recovery.sack(700, 600, 1, 1000));
        assert!(recovery.sack(500, 1000, 1, 1000));
        assert!(!recovery.sack(600, 900, 1, 1000));
    }

    #[test]
    fn holes_are_repaired_in_order_and_the_pipe_counts_what_is_on_its_way() {
        let mut recovery = with(&[(2001, 5001), (6001, 9001)]);
        assert_eq!(recovery.pipe(1, 10_001, MSS), 4000);
        recovery.begin(1, 10_001);
        // Lost: 1 to 2001 and 5001 to 6001. In flight: 9001 to 10001.
        assert_eq!(recovery.pipe(1, 10_001, MSS), 1000);
        assert_eq!(recovery.next_lost(1, MSS), Some((1, 2001)));
        recovery.sent_again(1001, false);
        assert_eq!(recovery.next_lost(1, MSS), Some((1001, 2001)));
        recovery.sent_again(2001, false);
        assert_eq!(recovery.pipe(1, 10_001, MSS), 3000);
        assert_eq!(recovery.next_lost(1, MSS), Some((5001, 6001)));
        recovery.sent_again(6001, false);
        assert_eq!(recovery.next_lost(1, MSS), None);
        assert_eq!(recovery.next_doubtful(1, 10_001, MSS), Some((9001, 10_001)));
        assert!(recovery.is_rescue(9001) && !recovery.is_rescue(5001));
        assert_eq!(recovery.next_doubtful(1, 10_001, MSS), None);
        assert!(!recovery.advance(5001, true, MSS));
        assert!(recovery.advance(10_001, true, MSS));
        assert_eq!(recovery.phase, Phase::Open);
    }

    #[test]
    fn a_timeout_sends_again_what_is_not_selectively_acknowledged() {
        let mut recovery = with(&[(2001, 3001)]);
        assert!(recovery.time_out(1, 5001));
        assert_eq!(recovery.pipe(1, 5001, MSS), 0);
        assert_eq!(recovery.next_lost(1, MSS), Some((1, 2001)));
        recovery.sent_again(2001, false);
        assert_eq!(recovery.next_lost(1, MSS), Some((3001, 5001)));
        assert!(!recovery.time_out(1, 5001));
    }

    #[test]
    fn a_peer_that_drops_what_it_acknowledged_selectively_gets_it_again() {
        let mut recovery = with(&[(2001, 3001)]);
        recovery.advance(2001, true, MSS);
        recovery.time_out(2001, 5001);
        assert_eq!(recovery.next_lost(2001, MSS), Some((2001, 5001)));
    }

    #[test]
    fn a_peer_without_sack_is_repaired_segment_by_segment() {
        let mut recovery = Recovery::new();
        for _ in 0..3 {
            recovery.duplicate();
            recovery.imagine(1, 6001, MSS);
        }
        recovery.begin(1, 6001);
        assert_eq!(recovery.pipe(1, 6001, MSS), 2000);
        assert_eq!(recovery.next_lost(1, MSS), Some((1, 1001)));
        recovery.sent_again(1001, false);
        // A partial acknowledgment: the segment there is missing too.
        recovery.advance(2001, false, MSS);
        assert_eq!(recovery.next_lost(2001, MSS), Some((2001, 3001)));
        assert!(recovery.advance(6001, false, MSS));
    }
}
