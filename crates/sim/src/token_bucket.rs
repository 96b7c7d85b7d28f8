//! A limit on how often something happens.

use std::time::Duration;

use crate::Instant;

/// A token bucket: `burst` tokens at once, and one more per `interval` on average.
///
/// In any time *t*, at most `burst` + *t* / `interval` tokens are taken, rounded up. A new bucket
/// is full.
///
/// It is kept as the generic cell rate algorithm keeps it (ITU-T I.371): one moment, instead of a
/// level and the moment at which that was computed. So nothing is rounded, and a bucket that is not
/// used costs nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenBucket {
    interval_ns: u64,
    burst: u32,
    /// The time when the bucket is full again, in nanoseconds.
    full_ns: u64,
}

impl TokenBucket {
    /// A full bucket.
    pub const fn new(interval: Duration, burst: u32) -> TokenBucket {
        TokenBucket {
            interval_ns: crate::time::nanos(interval),
            burst,
            full_ns: 0,
        }
    }

    /// Takes a token, and returns whether there was one.
    #[inline]
    pub fn take(&mut self, now: Instant) -> bool {
        let now = now.as_nanos();
        let to_fill = self.interval_ns.saturating_mul(u64::from(self.burst));
        // More than one token in debt is a state that no `take` leaves behind: the clock was set
        // back. The bucket is empty then; it must not stay so until the old time is reached again.
        if self.full_ns.saturating_sub(now) > to_fill.saturating_add(self.interval_ns) {
            self.full_ns = now.saturating_add(to_fill);
        }
        let full = self.full_ns.max(now);
        let has_token = full - now < to_fill;
        if has_token {
            self.full_ns = full.saturating_add(self.interval_ns);
        }
        has_token
    }

    /// Undoes the last successful [`TokenBucket::take`]: what it was taken for did not happen.
    pub fn give_back(&mut self) {
        self.full_ns = self.full_ns.saturating_sub(self.interval_ns);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const INTERVAL: Duration = Duration::from_millis(10);

    fn ms(ms: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(ms)
    }

    #[test]
    fn a_burst_passes_and_then_the_rate() {
        let mut bucket = TokenBucket::new(INTERVAL, 5);
        assert_eq!((0..1000).filter(|&at| bucket.take(ms(at))).count(), 105);
    }

    #[test]
    fn a_token_that_is_given_back_can_be_taken_again() {
        let mut bucket = TokenBucket::new(INTERVAL, 2);
        assert!(bucket.take(ms(7)) && bucket.take(ms(7)) && !bucket.take(ms(7)));
        bucket.give_back();
        assert!(bucket.take(ms(7)) && !bucket.take(ms(7)));
    }

    #[test]
    fn a_clock_that_is_set_back_empties_the_bucket_and_does_not_lock_it() {
        let mut bucket = TokenBucket::new(INTERVAL, 5);
        assert_eq!((0..6).filter(|_| bucket.take(ms(3_600_000))).count(), 5);
        assert!(!bucket.take(ms(1000)));
        let later = (1001..2001).filter(|&at| bucket.take(ms(at))).count();
        assert_eq!(later, 100);
    }

    #[test]
    fn extremes_neither_overflow_nor_let_more_through() {
        let mut bucket = TokenBucket::new(Duration::MAX, 1);
        assert!(bucket.take(Instant::ZERO));
        assert!(!bucket.take(Instant::ZERO));
        let mut none = TokenBucket::new(INTERVAL, 0);
        assert!(!none.take(ms(0)) && !none.take(ms(1000)));
    }

    proptest! {
        /// The promise, over every window that begins and ends with a token.
        #[test]
        fn no_window_holds_more_than_the_burst_and_the_rate(
            steps in proptest::collection::vec(0u64..30_000_000, 1..200), burst in 1u32..8,
        ) {
            let mut bucket = TokenBucket::new(INTERVAL, burst);
            let mut now = 0;
            let mut taken = Vec::new();
            for step in steps {
                now += step;
                if bucket.take(Instant::from_nanos(now)) {
                    taken.push(now);
                }
            }
            for (n, &first) in taken.iter().enumerate() {
                for (m, &last) in taken.iter().enumerate().skip(n) {
                    let most = u64::from(burst) + (last - first).div_ceil(10_000_000);
                    prop_assert!((m - n + 1) as u64 <= most.max(1));
                }
            }
        }
    }
}
