//! Finds the challenge of a peer that makes no marks among forged ones.
//!
//! A peer answers each knock with the same challenge, about a round trip later. Knocks are sent at
//! random times, and an attacker that reads nothing does not know them: a forged challenge, however
//! often it is repeated, does not come equally long after several knocks in a row. So what counts
//! is the number of knocks after which a challenge came equally late.

use std::time::Duration;

use tare_sim::Instant;

/// Intervals of time after a knock that are told apart.
const BINS: u32 = u64::BITS;

/// Answers to one knock, at most: Vita handles 100 messages per second, so even where an attacker
/// knocks in this gateway's name there are not more. A challenge that comes all the time would
/// match every knock.
const MOST_ANSWERS: u32 = 13;

/// Challenges that are remembered, of all routes: those of 300 ms of a flood of 50,000 per second,
/// in sets that their names choose.
const SETS: usize = 1 << 11;
const WAYS: usize = 8;

/// The state of an initiator's search.
pub(crate) struct Search {
    /// The time of its last knock.
    knock: Instant,
    /// Knocks in a row that an answered challenge must have followed.
    needed: u16,
    /// True if a challenge that was good enough was not answered after that knock, for there were
    /// too many.
    is_crowded: bool,
}

impl Search {
    /// Begins with the first knock.
    pub(crate) fn new(knock: Instant) -> Search {
        Search {
            knock,
            needed: 2,
            is_crowded: false,
        }
    }

    /// Notes another knock.
    pub(crate) fn knocked(&mut self, now: Instant) {
        if !self.is_crowded {
            self.needed = self.needed.saturating_sub(1).max(2);
        }
        (self.knock, self.is_crowded) = (now, false);
    }

    /// Notes that one that followed so many knocks could not be answered: there are too many of
    /// these.
    pub(crate) fn crowded(&mut self, followed: u16) {
        self.needed = self.needed.max(followed.saturating_add(1));
        self.is_crowded = true;
    }
}

/// The time after a knock in which challenges are seen, and at least the time to the next knock.
pub(crate) fn window(negotiation_ttl: Duration) -> Duration {
    negotiation_ttl / 40
}

/// The challenges of all routes that came lately.
pub(crate) struct Sightings(Box<[[Sighting; WAYS]]>);

#[derive(Clone, Copy)]
struct Sighting {
    name: u64,
    /// The last knock after which it came.
    knock: Instant,
    /// The intervals after that knock in which it came.
    now: u64,
    /// The intervals in which it came after each of the knocks before.
    common: u64,
    /// The number of these knocks.
    followed: u16,
    is_answered: bool,
}

impl Sightings {
    pub(crate) fn new() -> Sightings {
        let none = Sighting {
            name: 0,
            knock: Instant::ZERO,
            now: 0,
            common: 0,
            followed: 0,
            is_answered: false,
        };
        Sightings(vec![[none; WAYS]; SETS].into())
    }

    /// Notes a challenge with this name, a keyed hash of route and nonce, and returns how many
    /// knocks in a row it has followed if it is to be answered.
    pub(crate) fn see(
        &mut self,
        now: Instant,
        name: u64,
        search: &Search,
        negotiation_ttl: Duration,
    ) -> Option<u16> {
        let window = window(negotiation_ttl);
        let late = now.since(search.knock);
        if late >= window {
            return None;
        }
        let bin = 1 << (late.as_nanos() * u128::from(BINS) / window.as_nanos().max(1));
        // One lost message is no end of it.
        let oldest = negotiation_ttl * 3 / 20;
        let is_recent = |place: &Sighting| search.knock.since(place.knock) <= oldest;
        let set = &mut self.0[name as usize % SETS];
        let Some(place) = set.iter_mut().find(|place| place.name == name) else {
            let followed = |place: &Sighting| if is_recent(place) { place.followed } else { 0 };
            let least = set
                .iter_mut()
                .min_by_key(|place| (followed(place), place.knock));
            if let Some(place) = least.filter(|place| followed(place) < 2) {
                *place = Sighting {
                    name,
                    knock: search.knock,
                    now: bin,
                    common: u64::MAX,
                    followed: 0,
                    is_answered: false,
                };
            }
            return None;
        };
        let is_recent = is_recent(place);
        if place.knock == search.knock {
            place.now |= bin;
        } else {
            place.end_of_knock(is_recent);
            (place.knock, place.now) = (search.knock, bin);
        }
        let followed = place.followed.saturating_add(1);
        let is_good = place.common & around(bin) != 0 && followed >= search.needed;
        (is_good && !place.is_answered).then_some(followed)
    }

    /// Notes that the challenge was answered, so that it is not again.
    pub(crate) fn answered(&mut self, name: u64) {
        let mut set = self.0[name as usize % SETS].iter_mut();
        if let Some(place) = set.find(|place| place.name == name) {
            place.is_answered = true;
        }
    }
}

impl Sighting {
    fn end_of_knock(&mut self, is_recent: bool) {
        let (now, most) = (around(self.now), self.now.count_ones());
        if most > MOST_ANSWERS || !is_recent {
            (self.common, self.followed) = (u64::MAX, 0);
        } else if self.common & now == 0 {
            (self.common, self.followed) = (now, 1);
        } else {
            self.common &= now;
            self.followed = self.followed.saturating_add(1);
        }
    }
}

/// These intervals and those beside them: times vary.
fn around(bins: u64) -> u64 {
    bins | bins << 1 | bins >> 1
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_secs(5);

    /// Returns the results for a challenge that comes so many milliseconds after each of the
    /// knocks.
    fn followed(late: &[&[u64]]) -> Vec<Option<u16>> {
        let mut sightings = Sightings::new();
        let mut knock = Instant::ZERO + Duration::from_secs(1);
        let mut search = Search::new(knock);
        let mut results = Vec::new();
        for late in late {
            for late in *late {
                let now = knock + Duration::from_millis(*late);
                results.push(sightings.see(now, 7, &search, TTL));
            }
            knock += Duration::from_millis(250);
            search.knocked(knock);
        }
        results
    }

    #[test]
    fn a_challenge_counts_where_it_comes_equally_late() {
        assert_eq!(
            followed(&[&[20], &[21], &[19], &[20]]),
            [None, Some(2), Some(3), Some(4)]
        );
        // The second time is not the first, and the third is the second.
        assert_eq!(followed(&[&[20], &[60], &[60]]), [None, None, Some(2)]);
        // Others in between, as where an attacker knocks too, change nothing.
        assert_eq!(
            followed(&[&[20, 50], &[8, 20], &[20, 90]]),
            [None, None, None, Some(2), Some(3), None]
        );
        // Too late.
        assert_eq!(followed(&[&[130], &[130]]), [None, None]);
    }

    #[test]
    fn a_lost_challenge_is_no_end_and_three_are() {
        assert_eq!(followed(&[&[20], &[], &[20]]), [None, Some(2)]);
        assert_eq!(followed(&[&[20], &[], &[], &[], &[20]]), [None, None]);
    }

    #[test]
    fn a_challenge_that_comes_all_the_time_does_not_count() {
        let always: Vec<u64> = (0..62).map(|n| 2 * n).collect();
        let results = followed(&[&always, &always, &always]);
        let later = results.iter().skip(always.len());
        assert_eq!(later.flatten().count(), 0, "{results:?}");
    }

    #[test]
    fn one_that_was_answered_is_not_again_and_a_crowd_needs_more() {
        let mut sightings = Sightings::new();
        let mut knock = Instant::ZERO + Duration::from_secs(1);
        let mut search = Search::new(knock);
        let mut see = |search: &Search, knock, name, is_answered: bool| {
            let followed = sightings.see(knock, name, search, TTL);
            if is_answered {
                sightings.answered(name);
            }
            followed
        };
        let mut next = |search: &mut Search| {
            knock += Duration::from_millis(250);
            search.knocked(knock);
            knock
        };
        let at = next(&mut search);
        assert_eq!(see(&search, at, 1, false), None);
        assert_eq!(see(&search, at, 2, false), None);
        let at = next(&mut search);
        assert_eq!(see(&search, at, 1, true), Some(2));
        search.crowded(2);
        assert_eq!(see(&search, at, 2, false), None);
        let at = next(&mut search);
        assert_eq!(see(&search, at, 1, false), None);
        assert_eq!(see(&search, at, 2, false), Some(3));
    }

    #[test]
    fn those_that_followed_knocks_are_kept_while_others_of_their_set_come() {
        let mut sightings = Sightings::new();
        let mut knock = Instant::ZERO + Duration::from_secs(1);
        let mut search = Search::new(knock);
        let mut names = (1..).map(|n| n * SETS as u64 + 7);
        let kept: Vec<u64> = names.by_ref().take(WAYS).collect();
        for n in 0..6 {
            // Others come first, and are not seen again.
            let others = if n < 3 { 0 } else { 4 * WAYS };
            for other in names.by_ref().take(others) {
                sightings.see(knock, other, &search, TTL);
            }
            for name in &kept {
                let followed = sightings.see(knock, *name, &search, TTL);
                assert_eq!(followed, (n > 0).then_some(n + 1));
            }
            knock += Duration::from_millis(250);
            search.knocked(knock);
        }
        // These come no more, so there is room.
        knock += TTL;
        search.knocked(knock);
        let name = names.next().unwrap();
        assert_eq!(sightings.see(knock, name, &search, TTL), None);
        knock += Duration::from_millis(250);
        search.knocked(knock);
        assert_eq!(sightings.see(knock, name, &search, TTL), Some(2));
    }
}
