//! The counters of SAs, for another process.

use std::sync::atomic::Ordering;

use super::{InboundSa, OutboundSa};
use crate::dataplane::window::Received;

/// The counters of an outbound SA.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sent {
    /// The last sequence number that may have been used.
    pub(crate) last: u64,
    pub(crate) packets: u64,
    pub(crate) bytes: u64,
    /// The IV of a packet less its sequence number; 0 of negotiated keys.
    pub(crate) iv_base: u64,
}

impl Sent {
    /// Returns the numbers that another SA with the same key goes on behind.
    pub(crate) fn highest(&self) -> Highest {
        Highest {
            number: self.last,
            iv_base: self.iv_base,
        }
    }
}

/// The numbers that another SA with the same key goes on behind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Highest {
    /// The highest sequence number.
    pub(crate) number: u64,
    /// The IV of a packet less its sequence number; 0 of an inbound SA.
    pub(crate) iv_base: u64,
}

impl Highest {
    /// Returns numbers that are behind neither.
    pub(crate) fn and(self, other: Highest) -> Highest {
        Highest {
            number: self.number.max(other.number),
            iv_base: self.iv_base.max(other.iv_base),
        }
    }
}

/// The counters of an inbound SA, and what its window has received.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Opened {
    pub(crate) packets: u64,
    pub(crate) bytes: u64,
    pub(crate) replayed: u64,
    pub(crate) forged: u64,
    pub(crate) received: Received,
}

impl OutboundSa {
    /// Returns the counters.
    pub(crate) fn sent(&self) -> Sent {
        Sent {
            last: self.last_number(),
            packets: self.packets(),
            bytes: self.bytes(),
            iv_base: self.iv_base,
        }
    }

    /// Goes on with the counters and the IVs of the same SA in another process, which may use up to
    /// `reserved` numbers beyond the last one that it told of.
    pub(crate) fn go_on(&mut self, sent: &Sent, reserved: u64) {
        let last = sent.last.saturating_add(reserved);
        self.sequence.skip_to(last);
        self.skipped = last.saturating_sub(sent.packets);
        *self.bytes.get_mut() = sent.bytes;
        self.iv_base = sent.iv_base;
    }
}

impl InboundSa {
    /// Returns the counters. No worker may use the SA meanwhile.
    pub(crate) fn opened(&self) -> Opened {
        Opened {
            packets: self.packets(),
            bytes: self.bytes(),
            replayed: self.replayed(),
            forged: self.forged(),
            received: self.window.received(),
        }
    }

    /// Accepts no number up to `top`.
    pub(crate) fn refuse_up_to(&mut self, top: u64) {
        self.window.restore(&Received::up_to(top));
    }

    /// Goes on with the counters of the same SA in another process.
    pub(crate) fn go_on(&mut self, opened: &Opened) {
        self.packets.store(opened.packets, Ordering::Relaxed);
        self.bytes.store(opened.bytes, Ordering::Relaxed);
        self.replayed.store(opened.replayed, Ordering::Relaxed);
        self.forged.store(opened.forged, Ordering::Relaxed);
        self.window.restore(&opened.received);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataplane::{Outer, SequenceMode, WorkerGroup};
    use tare_gcm::Key;

    #[test]
    fn an_sa_that_goes_on_in_another_process_skips_what_is_reserved_and_counts_on() {
        let sa = || {
            let outer = Outer::V4 { src: 1, dst: 2 };
            let key = Key::new(&[1; 16]).unwrap();
            OutboundSa::new(300, key, [0; 4], SequenceMode::Plain, outer)
        };
        let (_, worker) = WorkerGroup::sole();
        let first = sa().with_iv_base(1000);
        assert_eq!(first.take(5, &worker), Some(1));
        first.count(500, &worker);
        let mut second = sa().with_iv_base(10);
        second.go_on(&first.sent(), 100);
        assert_eq!(second.iv(1), first.iv(1));
        assert_eq!(second.take(2, &worker), Some(106));
        assert_eq!((second.packets(), second.bytes()), (7, 500));
        let mut third = sa();
        third.go_on(&second.sent(), 100);
        assert_eq!(third.take(1, &worker), Some(208));
        assert_eq!(third.packets(), 8);
        // Of one that has few numbers left, none is used again.
        let all = Sent {
            last: u64::from(u32::MAX) - 50,
            ..Sent::default()
        };
        let mut last = sa();
        last.go_on(&all, 100);
        assert_eq!(last.take(1, &worker), None);
    }
}
