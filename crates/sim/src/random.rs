//! Random numbers that a seed makes again.

use std::time::Duration;

/// SplitMix64 (Steele, Lea, Flood 2014): the same seed gives the same numbers on every machine and
/// in every version. For faults and test data; never for keys.
///
/// It was chosen over larger generators because any 64-bit number is a good seed, 0 and 1 included:
/// scenarios are numbered from 0, and each has to be as different from the next as from any other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Random {
    state: u64,
}

impl Random {
    /// The generator of a seed.
    pub const fn new(seed: u64) -> Random {
        Random { state: seed }
    }

    /// The next 64 bits.
    #[inline]
    pub fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.state ^ (self.state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `n`, by Lemire's multiplication: its bias is below `n` / 2⁶⁴.
    ///
    /// # Panics
    /// If `n` is 0.
    #[inline]
    pub fn below(&mut self, n: u64) -> u64 {
        assert!(n > 0, "a number below 0");
        ((u128::from(self.next_u64()) * u128::from(n)) >> 64) as u64
    }

    /// True with this probability, from 0 (never) to 1 (always).
    pub fn chance(&mut self, probability: f64) -> bool {
        // 53 bits: all that a double tells apart.
        ((self.next_u64() >> 11) as f64) < probability * (1u64 << 53) as f64
    }

    /// A time from `least` to `most`, both included.
    pub fn duration(&mut self, least: Duration, most: Duration) -> Duration {
        let range = crate::time::nanos(most.saturating_sub(least));
        least + Duration::from_nanos(self.below(range.saturating_add(1)))
    }

    /// Fills `bytes`.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            chunk.copy_from_slice(&self.next_u64().to_le_bytes()[..chunk.len()]);
        }
    }

    /// A generator of its own for a part of a scenario, so that what that part draws changes
    /// nothing for the others.
    pub fn fork(&mut self) -> Random {
        Random::new(self.next_u64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sequence_is_that_of_the_reference_implementation() {
        // Published with the generator: the first five numbers of seed 1234567.
        let mut random = Random::new(1_234_567);
        let expected = [
            6_457_827_717_110_365_317,
            3_203_168_211_198_807_973,
            9_817_491_932_198_370_423,
            4_593_380_528_125_082_431,
            16_408_922_859_458_223_821,
        ];
        assert_eq!([(); 5].map(|()| random.next_u64()), expected);
    }

    #[test]
    fn numbers_stay_within_their_bounds_and_reach_them() {
        let mut random = Random::new(0);
        let mut seen = [0; 3];
        for _ in 0..3000 {
            seen[random.below(3) as usize] += 1;
        }
        assert!(seen.iter().all(|n| (900..1100).contains(n)), "{seen:?}");
        assert!(!(0..1000).any(|_| random.chance(0.0)));
        assert!((0..1000).all(|_| random.chance(1.0)));
        let hits = (0..10_000).filter(|_| random.chance(0.3)).count();
        assert!((2800..3200).contains(&hits), "{hits}");
        let (least, most) = (Duration::from_nanos(5), Duration::from_nanos(7));
        let mut drawn: Vec<_> = (0..100).map(|_| random.duration(least, most)).collect();
        drawn.sort();
        drawn.dedup();
        assert_eq!(drawn.len(), 3);
        assert_eq!((drawn[0], drawn[2]), (least, most));
        assert_eq!(random.duration(most, least), most);
    }

    #[test]
    fn bytes_are_filled_to_the_last() {
        let mut bytes = [0; 23];
        Random::new(1).fill(&mut bytes);
        assert!(bytes.chunks(8).all(|chunk| chunk.iter().any(|&b| b != 0)));
        let mut again = [0; 23];
        Random::new(1).fill(&mut again);
        assert_eq!(bytes, again);
    }

    #[test]
    fn a_fork_draws_other_numbers_and_leaves_its_parent_alone() {
        let (mut one, mut other) = (Random::new(3), Random::new(3));
        let mut fork = one.fork();
        other.next_u64();
        assert_ne!(fork.next_u64(), one.clone().next_u64());
        assert_eq!(one, other);
    }
}
