//! Limits on what messages can cause before they are known to be authentic.

use std::time::Duration;

use tare_sim::{Instant, TokenBucket};

use super::counters::DropReason;

/// The limits of a route on messages of one kind: those with a mark, or those without.
pub(crate) struct Limits {
    /// Knocks and repeated proposals that are answered.
    pub(crate) answers: TokenBucket,
    /// Challenges that are answered.
    pub(crate) challenges: TokenBucket,
    /// Handshakes of a responder.
    pub(crate) proposals: TokenBucket,
    /// Handshakes of an initiator.
    pub(crate) agreements: TokenBucket,
}

impl Limits {
    pub(crate) const MARKED: Limits = Limits {
        answers: TokenBucket::new(Duration::from_millis(10), 50),
        challenges: TokenBucket::new(Duration::from_millis(20), 8),
        proposals: TokenBucket::new(Duration::from_millis(1), 100),
        agreements: TokenBucket::new(Duration::from_millis(10), 20),
    };

    /// Vita handles 100 messages per second, and the answers to forged knocks go to it.
    pub(crate) const UNMARKED: Limits = Limits {
        answers: TokenBucket::new(Duration::from_millis(20), 20),
        ..Limits::MARKED
    };
}

/// Limits of sources; addresses that share one cannot be chosen, because their hash has a key.
pub(crate) const SOURCES: usize = 256;

/// The limits on unmarked messages of one source, over all its routes.
#[derive(Clone, Copy)]
pub(crate) struct Source {
    /// Knocks that are answered.
    pub(crate) answers: TokenBucket,
    /// First looks at proposals.
    pub(crate) looks: TokenBucket,
    /// Challenges that are answered, and handshakes of an initiator.
    pub(crate) handshakes: TokenBucket,
}

impl Source {
    pub(crate) const NEW: Source = Source {
        answers: TokenBucket::new(Duration::from_millis(1), 1000),
        looks: TokenBucket::new(Duration::from_micros(16), 4000),
        handshakes: TokenBucket::new(Duration::from_millis(1), 1000),
    };
}

/// Takes a token.
pub(crate) fn within(limit: &mut TokenBucket, now: Instant) -> Result<(), DropReason> {
    limit.take(now).then_some(()).ok_or(DropReason::Rate)
}
