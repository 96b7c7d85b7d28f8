//! Words that hardware and programs return by mistake: all zeros, all ones, and counters.

use crate::block::Block;
use crate::report::Outcome;
use crate::special::{binomial_two_sided, binomial_upper, poisson_upper};
use crate::Test;

/// Counts 64-bit words that are all zeros or all ones: what a failed RDRAND leaves in its
/// destination, and what broken processors return as success.
pub(crate) struct BlankWords {
    words: u64,
    zeros: u64,
    ones: u64,
}

impl BlankWords {
    const BYTES_MIN: u64 = 4096;

    pub(crate) fn new() -> Self {
        BlankWords {
            words: 0,
            zeros: 0,
            ones: 0,
        }
    }
}

impl Test for BlankWords {
    fn absorb(&mut self, block: &Block<'_>) {
        let count = |blank| {
            block
                .words()
                .iter()
                .map(|&word| u64::from(word == blank))
                .sum::<u64>()
        };
        self.words += block.words().len() as u64;
        self.zeros += count(0);
        self.ones += count(u64::MAX);
    }

    fn outcomes(&self, bytes: u64, out: &mut Vec<Outcome>) {
        let blank = self.zeros + self.ones;
        let mean = 2.0 * self.words as f64 / 64f64.exp2();
        let note = format!(
            "{} zero and {} all-one of {} words",
            self.zeros, self.ones, self.words
        );
        out.push(
            Outcome::measured(
                "blank words",
                "count",
                blank as f64,
                poisson_upper(blank, mean),
                note,
            )
            .with_minimum(Self::BYTES_MIN, bytes),
        );
    }
}

/// Counts zero second differences: `w[i] − 2 w[i−1] + w[i−2] = 0` means that three words in a row
/// have a constant stride. For independent uniform words the differences are independent and
/// uniform, so the count is binomial.
pub(crate) struct Stride {
    counts: [Count; 7],
}

#[derive(Clone, Copy, Default)]
struct Count {
    triples: u64,
    constant: u64,
}

impl Count {
    /// Adds the triples of a slice of words: its length less two.
    fn add(&mut self, words: usize, constant: u64) {
        self.triples += words.saturating_sub(2) as u64;
        self.constant += constant;
    }
}

impl Stride {
    const BYTES_MIN: u64 = 16 * 1024;
    const NAMES: [(&'static str, i32); 7] = [
        ("8 bit", 8),
        ("16 bit LE", 16),
        ("16 bit BE", 16),
        ("32 bit LE", 32),
        ("32 bit BE", 32),
        ("64 bit LE", 64),
        ("64 bit BE", 64),
    ];

    pub(crate) fn new() -> Self {
        Stride {
            counts: [Count::default(); 7],
        }
    }
}

/// Counts constant strides in a slice whose elements `$word` turns into `$int`s. A partial sum
/// holds no more than its type can, so that a vector register holds as many as it can.
macro_rules! constant_strides {
    ($elements:expr, $int:ty, $word:expr) => {{
        const PARTIAL: usize = 255;
        let elements = $elements;
        let count = elements.len().saturating_sub(2);
        let mut total = 0u64;
        for start in (0..count).step_by(PARTIAL) {
            let n = PARTIAL.min(count - start);
            let (a, b, c) = (
                &elements[start..][..n],
                &elements[start + 1..][..n],
                &elements[start + 2..][..n],
            );
            let mut partial: $int = 0;
            for i in 0..n {
                let (a, b, c) = ($word(a[i]), $word(b[i]), $word(c[i]));
                partial += <$int>::from(a.wrapping_add(c) == b.wrapping_add(b));
            }
            total += u64::from(partial);
        }
        total
    }};
}

impl Test for Stride {
    fn absorb(&mut self, block: &Block<'_>) {
        let [c8, le16, be16, le32, be32, le64, be64] = &mut self.counts;
        let bytes = block.bytes_from(2);
        c8.add(bytes.len(), constant_strides!(bytes, u8, |byte: u8| byte));

        let (pairs, _) = block.bytes_from(4).as_chunks::<2>();
        le16.add(
            pairs.len(),
            constant_strides!(pairs, u16, u16::from_le_bytes),
        );
        be16.add(
            pairs.len(),
            constant_strides!(pairs, u16, u16::from_be_bytes),
        );

        let (quads, _) = block.bytes_from(8).as_chunks::<4>();
        le32.add(
            quads.len(),
            constant_strides!(quads, u32, u32::from_le_bytes),
        );
        be32.add(
            quads.len(),
            constant_strides!(quads, u32, u32::from_be_bytes),
        );

        let words = block.words_from(2);
        le64.add(words.len(), constant_strides!(words, u64, |word: u64| word));
        be64.add(words.len(), constant_strides!(words, u64, u64::swap_bytes));
    }

    fn outcomes(&self, bytes: u64, out: &mut Vec<Outcome>) {
        for ((name, width), count) in Self::NAMES.into_iter().zip(&self.counts) {
            let chance = f64::from(-width).exp2();
            let expected = count.triples as f64 * chance;
            // A lack of them is evidence only where some are expected.
            let p = if width == 8 {
                binomial_two_sided(count.constant, count.triples, chance)
            } else {
                binomial_upper(count.constant, count.triples, chance)
            };
            let name = format!("constant stride, {name}");
            let note = format!("{expected:.3e} expected of {} triples", count.triples);
            out.push(
                Outcome::measured(name, "count", count.constant as f64, p, note)
                    .with_minimum(Self::BYTES_MIN, bytes),
            );
        }
    }
}
