//! Cut-offs of the health tests, computed from the formulas of SP 800-90B and not copied
//! from a table, so that a changed assumption changes the number.
//!
//! The assumption is far below what the processor claims: half a bit of min-entropy per bit
//! for whole values, 5 bits per byte. The permitted rate of false alarms is `α = 2⁻⁴⁰` per
//! test *for a source that is only that good*. A source that is as good as claimed raises far
//! fewer alarms, and it has to: at 27 million draws per second a true rate of 2⁻⁴⁰ would stop
//! a sound machine twice a day.
//!
//! | symbol | H | RCT cut-off | α at H | false alarm of a sound source |
//! |---|---|---|---|---|
//! | 64-bit value | 32 | 3 | 2⁻⁴⁰ | 2⁻¹²⁸ per value |
//! | 32-bit value | 16 | 4 | 2⁻⁴⁰ | 2⁻⁹⁶ per value |
//! | 16-bit value | 8 | 6 | 2⁻⁴⁰ | 2⁻⁸⁰ per value |
//!
//! | symbol | H | window | APT cut-off | α at H | false alarm of a sound source |
//! |---|---|---|---|---|---|
//! | byte | 5 | 512 bytes | 51 | 2⁻⁴⁰ | below 2⁻¹⁷⁴ per window |
//!
//! Five bits per byte is the lowest assumption that finds one stuck byte lane of eight, which is 64
//! bytes of a window: with four the cut-off would be 78.

/// α = 2⁻⁴⁰: the exponent.
pub const ALPHA_EXPONENT: u32 = 40;

/// Bytes in one window of the adaptive proportion test (SP 800-90B, 4.4.2: 512 for symbols
/// of more than one bit).
pub const WINDOW: u32 = 512;

/// Assessed min-entropy of one byte, in bits, for the adaptive proportion test.
pub const BYTE_ENTROPY_BITS: u32 = 5;

/// Assessed min-entropy of a whole value, in bits per byte, for the repetition count test.
pub const VALUE_ENTROPY_BITS_PER_BYTE: u32 = 4;

/// Cut-off of the adaptive proportion test over bytes.
pub const PROPORTION: u32 = proportion(WINDOW, BYTE_ENTROPY_BITS, ALPHA_EXPONENT);

/// Cut-off of the repetition count test for a value of `bytes` bytes.
#[must_use]
pub const fn repetition_of_width(bytes: u32) -> u32 {
    repetition(bytes * VALUE_ENTROPY_BITS_PER_BYTE, ALPHA_EXPONENT)
}

/// The cut-off of SP 800-90B, 4.4.1: `C = 1 + ⌈−log₂ α / H⌉`, for `α = 2^-alpha_exponent`.
#[must_use]
pub const fn repetition(entropy_bits: u32, alpha_exponent: u32) -> u32 {
    1 + alpha_exponent.div_ceil(entropy_bits)
}

/// The cut-off of SP 800-90B, 4.4.2: the smallest `C` with `P[X ≥ C] ≤ α` for `X ~ Bin(window,
/// 2^-H)`, which is `1 + CRITBINOM(window, 2^-H, 1 − α)`. `window` is at most 1024.
#[must_use]
pub const fn proportion(window: u32, entropy_bits: u32, alpha_exponent: u32) -> u32 {
    if entropy_bits == 0 {
        return window + 1;
    }
    let p = negative_power_of_two(entropy_bits);
    let alpha = negative_power_of_two(alpha_exponent);
    let n = if window > 1024 { 1024 } else { window } as usize;

    // P[X = k] by its recurrence from P[X = 0] = (1 − p)ⁿ.
    let mut mass = [0.0_f64; 1025];
    mass[0] = 1.0;
    let mut i = 0;
    while i < n {
        mass[0] *= 1.0 - p;
        i += 1;
    }
    let mut k = 0;
    while k < n {
        mass[k + 1] = mass[k] * ((n - k) as f64) / ((k + 1) as f64) * p / (1.0 - p);
        k += 1;
    }

    // The tail is summed from its small end, so that nothing is lost to rounding.
    let mut tail = 0.0;
    let mut c = n + 1;
    while c > 0 {
        tail += mass[c - 1];
        if tail > alpha {
            return c as u32;
        }
        c -= 1;
    }
    0
}

const fn negative_power_of_two(exponent: u32) -> f64 {
    let mut value = 1.0;
    let mut i = 0;
    while i < exponent {
        value /= 2.0;
        i += 1;
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repetition_cut_offs_follow_the_formula() {
        // The worked example of SP 800-90B, 4.4.1: H = 2.0, α = 2⁻³⁰ gives 16.
        assert_eq!(repetition(2, 30), 16);
        assert_eq!([8, 4, 2].map(repetition_of_width), [3, 4, 6]);
    }

    #[test]
    fn proportion_cut_offs_equal_the_exact_binomial_tail() {
        // Computed with exact rational arithmetic (Python's fractions) from the definition.
        let exact = [
            (30, 1, 325),
            (30, 2, 190),
            (30, 4, 71),
            (30, 8, 16),
            (40, 1, 336),
            (40, 2, 201),
            (40, 4, 78),
            (40, 5, 51),
            (40, 8, 19),
        ];
        for (alpha, entropy, cut_off) in exact {
            assert_eq!(
                proportion(512, entropy, alpha),
                cut_off,
                "H = {entropy}, α = 2^-{alpha}"
            );
        }
        assert_eq!(PROPORTION, 51);
    }

    #[test]
    fn a_source_that_may_always_repeat_has_no_cut_off_within_the_window() {
        assert_eq!(proportion(512, 0, 40), 513);
    }
}
