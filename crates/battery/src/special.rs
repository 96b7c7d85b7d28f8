//! Tail probabilities of the distributions that the tests refer to.
//!
//! Each function returns the *tail itself*, never one minus its complement, so that a p-value of
//! 1e-12 keeps its digits. `erfc` and `lgamma` come from `libm`; the two incomplete functions are
//! the textbook pair of a series and a continued fraction (Abramowitz and Stegun 6.5.29, 6.5.31
//! and 26.5.8), evaluated with the modified Lentz method.

use std::f64::consts::{FRAC_1_SQRT_2, PI};

/// Relative change at which a series or continued fraction has converged.
const CONVERGED: f64 = 1e-15;
/// Stands for zero in a denominator of the Lentz method.
const TINY: f64 = 1e-300;
/// Terms allowed. A series near `x = a` needs a few times √a of them.
const TERMS_MAX: u32 = 2_000_000;

/// P(|Z| ≥ |z|) of the standard normal distribution.
pub fn normal_two_sided(z: f64) -> f64 {
    libm::erfc(z.abs() * FRAC_1_SQRT_2)
}

/// P(Z ≥ z) of the standard normal distribution.
pub fn normal_upper(z: f64) -> f64 {
    0.5 * libm::erfc(z * FRAC_1_SQRT_2)
}

/// Twice the smaller tail of the chi-square distribution: a histogram may also be *too* even, as
/// that of a counter is.
pub fn chi_square_two_sided(x: f64, degrees: f64) -> f64 {
    let (a, half) = (degrees / 2.0, x / 2.0);
    two_sided(gamma_lower(a, half), gamma_upper(a, half))
}

/// P(N ≥ `count`) of the Poisson distribution.
pub fn poisson_upper(count: u64, mean: f64) -> f64 {
    match count {
        0 => 1.0,
        n => gamma_lower(n as f64, mean),
    }
}

/// Twice the smaller tail of the Poisson distribution, at most 1.
pub fn poisson_two_sided(count: u64, mean: f64) -> f64 {
    let lower = gamma_upper(count as f64 + 1.0, mean);
    two_sided(lower, poisson_upper(count, mean))
}

/// P(N ≥ `count`) of `trials` trials that succeed with probability `p`.
pub fn binomial_upper(count: u64, trials: u64, p: f64) -> f64 {
    if count == 0 {
        return 1.0;
    }
    if count > trials {
        return 0.0;
    }
    beta_regularized(count as f64, (trials - count) as f64 + 1.0, p)
}

/// Twice the smaller tail of the binomial distribution, at most 1.
pub fn binomial_two_sided(count: u64, trials: u64, p: f64) -> f64 {
    // P(N ≤ count) is P(trials − N ≥ trials − count).
    let lower = binomial_upper(trials - count, trials, 1.0 - p);
    two_sided(lower, binomial_upper(count, trials, p))
}

/// P(at least one of `trials` independent events of probability `p`), without losing a small `p`.
pub fn at_least_once(p: f64, trials: f64) -> f64 {
    -libm::expm1(trials * libm::log1p(-p.min(1.0)))
}

/// P(max |S_k| / √n ≥ `z`) of a random walk of n steps, n large, by the reflection principle.
pub fn walk_extreme(z: f64) -> f64 {
    if z < 0.2 {
        return 1.0; // the first omitted digit is the 1e-13th
    }
    let mut sum = 0.0;
    for k in 0..100 {
        let term = 4.0 * normal_upper(f64::from(2 * k + 1) * z);
        sum += if k % 2 == 0 { term } else { -term };
        if term < CONVERGED * sum {
            break;
        }
    }
    sum.clamp(0.0, 1.0)
}

fn two_sided(lower: f64, upper: f64) -> f64 {
    (2.0 * lower.min(upper)).min(1.0)
}

/// The regularised lower incomplete gamma function P(a, x).
fn gamma_lower(a: f64, x: f64) -> f64 {
    if x <= 0.0 {
        0.0
    } else if x < a + 1.0 {
        gamma_series(a, x)
    } else {
        1.0 - gamma_fraction(a, x)
    }
}

/// The regularised upper incomplete gamma function Q(a, x).
fn gamma_upper(a: f64, x: f64) -> f64 {
    if x <= 0.0 {
        1.0
    } else if x < a + 1.0 {
        1.0 - gamma_series(a, x)
    } else {
        gamma_fraction(a, x)
    }
}

/// x^a e^−x / Γ(a + 1). For large `a` the logarithms of x^a and Γ(a + 1) agree in all the digits
/// that count, so Stirling's formula is subtracted before the exponential is taken.
fn gamma_prefactor(a: f64, x: f64) -> f64 {
    if a < 100.0 {
        return (a * x.ln() - x - libm::lgamma(a + 1.0)).exp();
    }
    let distance = (x - a) / a;
    let exponent = a * (libm::log1p(distance) - distance) - stirling_rest(a);
    exponent.exp() / (2.0 * PI * a).sqrt()
}

/// ln Γ(a + 1) less Stirling's formula, for `a` ≥ 100.
fn stirling_rest(a: f64) -> f64 {
    (1.0 / 12.0 - 1.0 / (360.0 * a * a)) / a
}

/// P(a, x) by its power series, for x < a + 1.
fn gamma_series(a: f64, x: f64) -> f64 {
    let (mut term, mut sum, mut n) = (1.0, 1.0, a);
    for _ in 0..TERMS_MAX {
        n += 1.0;
        term *= x / n;
        sum += term;
        if term < sum * CONVERGED {
            break;
        }
    }
    (sum * gamma_prefactor(a, x)).min(1.0)
}

/// Q(a, x) by its continued fraction, for x ≥ a + 1.
fn gamma_fraction(a: f64, x: f64) -> f64 {
    let mut b = x + 1.0 - a;
    let mut c = 1.0 / TINY;
    let mut d = 1.0 / b;
    let mut h = d;
    for i in 1..TERMS_MAX {
        let an = -f64::from(i) * (f64::from(i) - a);
        b += 2.0;
        d = 1.0 / away_from_zero(an * d + b);
        c = away_from_zero(b + an / c);
        let delta = d * c;
        h *= delta;
        if (delta - 1.0).abs() < CONVERGED {
            break;
        }
    }
    (h * a * gamma_prefactor(a, x)).min(1.0)
}

/// The regularised incomplete beta function I_x(a, b).
fn beta_regularized(a: f64, b: f64, x: f64) -> f64 {
    if x <= 0.0 {
        return 0.0;
    }
    if x >= 1.0 {
        return 1.0;
    }
    let log_front =
        libm::lgamma(a + b) - libm::lgamma(a) - libm::lgamma(b) + a * x.ln() + b * libm::log1p(-x);
    let front = log_front.exp();
    if x < (a + 1.0) / (a + b + 2.0) {
        (front * beta_fraction(a, b, x) / a).min(1.0)
    } else {
        (1.0 - front * beta_fraction(b, a, 1.0 - x) / b).max(0.0)
    }
}

fn beta_fraction(a: f64, b: f64, x: f64) -> f64 {
    let mut c = 1.0;
    let mut d = 1.0 / away_from_zero(1.0 - (a + b) * x / (a + 1.0));
    let mut h = d;
    for i in 1..TERMS_MAX {
        let m = f64::from(i);
        let even = m * (b - m) * x / ((a + 2.0 * m - 1.0) * (a + 2.0 * m));
        d = 1.0 / away_from_zero(1.0 + even * d);
        c = away_from_zero(1.0 + even / c);
        h *= d * c;
        let odd = -(a + m) * (a + b + m) * x / ((a + 2.0 * m) * (a + 2.0 * m + 1.0));
        d = 1.0 / away_from_zero(1.0 + odd * d);
        c = away_from_zero(1.0 + odd / c);
        let delta = d * c;
        h *= delta;
        if (delta - 1.0).abs() < CONVERGED {
            break;
        }
    }
    h
}

fn away_from_zero(v: f64) -> f64 {
    if v.abs() < TINY {
        TINY
    } else {
        v
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chi_square_upper(x: f64, degrees: f64) -> f64 {
        gamma_upper(degrees / 2.0, x / 2.0)
    }

    /// Values by mpmath at 40 digits, from the defining integrals and sums.
    #[test]
    fn tails_agree_with_reference_values() {
        let n = 1_000_000_000;
        let cases = [
            (normal_two_sided(0.1), 0.920344325445942),
            (normal_two_sided(-1.0), 0.317310507862914),
            (normal_two_sided(5.6), 2.14351805166219e-08),
            (normal_two_sided(20.0), 5.50724823721247e-89),
            (chi_square_upper(1.5, 2.0), 0.472366552741015),
            (chi_square_upper(20.0, 5.0), 0.00124973056303138),
            (chi_square_upper(64.0, 64.0), 0.476488305476259),
            (chi_square_upper(150.0, 64.0), 7.32767485280375e-09),
            (chi_square_upper(255.0, 255.0), 0.488222521770406),
            (chi_square_upper(400.0, 255.0), 1.66000252441245e-08),
            (chi_square_upper(65_535.0, 65_535.0), 0.499265372417094),
            (chi_square_upper(67_600.0, 65_535.0), 8.17028259863039e-09),
            (chi_square_upper(2_008_000.0, 2e6), 3.23454473134777e-05),
            (poisson_upper(1, 1e-9), 9.999999995e-10),
            (poisson_upper(3, 0.5), 0.0143876779669707),
            (poisson_upper(100, 64.0), 1.89657738226031e-05),
            (poisson_upper(70_000, 68_500.0), 5.674921702504e-09),
            (binomial_upper(1, 10, 0.25), 0.943686485290527),
            (binomial_upper(18, 512, 1.0 / 256.0), 4.87126786600655e-12),
            (binomial_upper(60, 256, 0.1336), 8.66365565913137e-06),
            (
                binomial_upper(4496, 1 << 20, 1.0 / 256.0),
                3.646406464635401e-10,
            ),
            (
                binomial_upper(3_917_250, n, 1.0 / 256.0),
                1.2466560570670735e-8,
            ),
            (walk_extreme(0.5), 0.990843009710239),
            (walk_extreme(1.0), 0.629222570200476),
            (walk_extreme(2.0), 0.0910005238463663),
            (walk_extreme(6.0), 3.94635058015079e-09),
            (at_least_once(1e-18, 1e6), 1e-12),
        ];
        for (i, (computed, reference)) in cases.into_iter().enumerate() {
            // The binomial tails: lgamma(1e9) is 2e10, so sixteen digits of it leave six.
            let tolerance = if (20..22).contains(&i) { 1e-5 } else { 1e-10 };
            let error = (computed / reference - 1.0).abs();
            assert!(
                error < tolerance,
                "case {i}: {computed:e} for {reference:e}"
            );
        }
    }

    #[test]
    fn the_two_tails_add_up_to_one() {
        for a in [0.5, 1.0, 7.5, 99.0, 101.0, 32_767.5, 1e6] {
            for factor in [0.5, 0.99, 1.0, 1.01, 2.0] {
                let x = a * factor;
                let sum = gamma_lower(a, x) + gamma_upper(a, x);
                assert!((sum - 1.0).abs() < 1e-12, "a {a}, x {x}: {sum}");
            }
        }
    }

    #[test]
    fn what_cannot_happen_has_probability_zero_and_what_must_has_one() {
        assert_eq!(binomial_upper(0, 100, 0.5), 1.0);
        assert_eq!(binomial_upper(101, 100, 0.5), 0.0);
        assert_eq!(poisson_upper(0, 5.0), 1.0);
        assert_eq!(poisson_upper(1, 0.0), 0.0);
        assert_eq!(chi_square_upper(0.0, 5.0), 1.0);
        assert_eq!(chi_square_two_sided(0.0, 255.0), 0.0);
        assert_eq!(walk_extreme(0.0), 1.0);
        assert!(poisson_two_sided(4, 4.0) <= 1.0);
        assert!(binomial_two_sided(50, 100, 0.5) <= 1.0);
    }
}
