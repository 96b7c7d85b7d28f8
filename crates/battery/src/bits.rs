//! Counting one-bits fast without special instructions: the Harley–Seal carry-save adder tree
//! (Muła, Kurz and Lemire, "Faster population counts using AVX2 instructions", 2018).

/// Words in one step of [`CarrySave::add`].
pub(crate) const GROUP: usize = 16;

/// Several words side by side, so that the compiler can use vector registers.
pub(crate) type Lanes<const N: usize> = [u64; N];

/// A running sum of one-bits for each bit position, in bit-sliced form: weights 1, 2, 4 and 8.
#[derive(Clone)]
pub(crate) struct CarrySave<const N: usize> {
    ones: Lanes<N>,
    twos: Lanes<N>,
    fours: Lanes<N>,
    eights: Lanes<N>,
}

impl<const N: usize> CarrySave<N> {
    pub(crate) fn new() -> Self {
        let zero = [0; N];
        CarrySave {
            ones: zero,
            twos: zero,
            fours: zero,
            eights: zero,
        }
    }

    /// Adds sixteen words per lane and returns the carry, whose bits weigh 16.
    #[inline(always)]
    pub(crate) fn add(&mut self, words: &[Lanes<N>; GROUP]) -> Lanes<N> {
        let mut eights = [[0; N]; 2];
        for (half, eight) in eights.iter_mut().enumerate() {
            let w = &words[8 * half..8 * half + 8];
            let twos_a = carry_save(&mut self.ones, w[0], w[1]);
            let twos_b = carry_save(&mut self.ones, w[2], w[3]);
            let fours_a = carry_save(&mut self.twos, twos_a, twos_b);
            let twos_a = carry_save(&mut self.ones, w[4], w[5]);
            let twos_b = carry_save(&mut self.ones, w[6], w[7]);
            let fours_b = carry_save(&mut self.twos, twos_a, twos_b);
            *eight = carry_save(&mut self.fours, fours_a, fours_b);
        }
        carry_save(&mut self.eights, eights[0], eights[1])
    }

    /// Returns the counts still in the tree, as (weight, words).
    pub(crate) fn rest(&self) -> [(u64, Lanes<N>); 4] {
        [
            (1, self.ones),
            (2, self.twos),
            (4, self.fours),
            (8, self.eights),
        ]
    }
}

/// `sum` becomes the sum bit of the three words; returns their carry.
#[inline(always)]
fn carry_save<const N: usize>(sum: &mut Lanes<N>, b: Lanes<N>, c: Lanes<N>) -> Lanes<N> {
    let mut carry = [0; N];
    for i in 0..N {
        let either = sum[i] ^ b[i];
        carry[i] = (sum[i] & b[i]) | (either & c[i]);
        sum[i] = either ^ c[i];
    }
    carry
}

/// The number of one-bits among `count` words, each made by `word`.
#[inline(always)]
pub(crate) fn count_ones(count: usize, word: impl Fn(usize) -> u64) -> u64 {
    const LANES: usize = 4;
    const STEP: usize = LANES * GROUP;
    let mut tree = CarrySave::<LANES>::new();
    let mut sixteens = 0;
    let whole = count - count % STEP;
    for start in (0..whole).step_by(STEP) {
        let mut words = [[0; LANES]; GROUP];
        for (i, lanes) in words.iter_mut().enumerate() {
            for (j, lane) in lanes.iter_mut().enumerate() {
                *lane = word(start + LANES * i + j);
            }
        }
        sixteens += ones(&tree.add(&words));
    }
    let in_tree: u64 = tree
        .rest()
        .iter()
        .map(|(weight, words)| weight * ones(words))
        .sum();
    let tail: u64 = (whole..count)
        .map(|i| u64::from(word(i).count_ones()))
        .sum();
    16 * sixteens + in_tree + tail
}

fn ones(words: &[u64]) -> u64 {
    words.iter().map(|word| u64::from(word.count_ones())).sum()
}

#[cfg(test)]
mod tests {

    use super::*;

    #[test]
    fn the_tree_counts_what_counting_one_by_one_does() {
        let words: Vec<u64> = (0..1000u64)
            .map(|i| i.wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(7))
            .collect();
        for count in [0, 1, 63, 64, 65, 127, 128, 1000] {
            assert_eq!(
                count_ones(count, |i| words[i]),
                ones(&words[..count]),
                "{count} words"
            );
        }
    }
}
