//! The claims of one suite, corrected together: when each was decided, and which way.
//!
//! A family is the published claims of one suite, or its targets: what one reader takes as one
//! statement. Holm's correction runs over the p's of each family, once for each of the two
//! questions that are asked of a claim. As every p holds after every round, so does the corrected
//! one. In a family the chance of any false `reproduced`, ever, is at most α, and so is the chance
//! of any false `not-reproduced`.

use super::verdict::{Test, STRONG};
use crate::stats::holm;

/// A side of a claim's thresholds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    /// Where the claim holds.
    Claim,
    /// Where it does not.
    Other,
}

/// What became of a test in its family.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Ruling {
    /// Which way it was decided, and after how many rounds.
    pub(super) decided: Option<(Side, u32)>,
    /// The corrected p of "the claim is false", now.
    pub(super) claim: f64,
    /// The corrected p of "the claim is true", now.
    pub(super) other: f64,
    /// The evidence that would decide it for the claim as the others stand.
    pub(super) claim_target: f64,
    /// The same against the claim.
    pub(super) other_target: f64,
    /// Tests in the correction.
    pub(super) tests: usize,
    /// The family's α.
    pub(super) alpha: f64,
}

/// Rules on the tests of a family of `size` members. A member that has no test yet counts as one
/// with a p of 1, so that the correction does not grow while a run goes on.
///
/// The rounds are gone through one by one, as they came: what was decided stays decided, whatever
/// comes later.
pub(super) fn rule(tests: &[&Test], size: usize, alpha: f64) -> Vec<Ruling> {
    let length = tests.iter().map(|test| test.claim.len()).max().unwrap_or(0);
    let size = size.max(tests.len());
    let corrected = |path: &dyn Fn(&Test) -> f64| {
        let mut p: Vec<f64> = tests.iter().map(|test| path(test)).collect();
        p.resize(size, 1.0);
        holm(&p)
    };
    let mut rulings = vec![
        Ruling {
            decided: None,
            claim: 1.0,
            other: 1.0,
            claim_target: 0.0,
            other_target: 0.0,
            tests: size,
            alpha,
        };
        tests.len()
    ];
    for round in 0..length {
        let claim = corrected(&|test| at(&test.claim, round));
        let other = corrected(&|test| at(&test.other, round));
        for (index, ruling) in rulings.iter_mut().enumerate() {
            (ruling.claim, ruling.other) = (claim[index], other[index]);
            if ruling.decided.is_some() {
                continue;
            }
            let rounds = round as u32 + 1;
            if ruling.claim <= alpha && enough(&tests[index].claim_enough, round) {
                ruling.decided = Some((Side::Claim, rounds));
            } else if ruling.other <= alpha && enough(&tests[index].other_enough, round) {
                ruling.decided = Some((Side::Other, rounds));
            }
        }
    }
    let target = |rejected: usize| (size - rejected).max(1) as f64 / alpha;
    let claim = rulings
        .iter()
        .filter(|ruling| ruling.claim <= alpha)
        .count();
    let other = rulings
        .iter()
        .filter(|ruling| ruling.other <= alpha)
        .count();
    for ruling in &mut rulings {
        ruling.claim_target = target(claim).max(STRONG);
        ruling.other_target = target(other).max(STRONG);
    }
    rulings
}

/// Whether there was enough evidence at a round, or at the end where the experiment ran fewer.
fn enough(path: &[bool], round: usize) -> bool {
    path.get(round).or(path.last()).copied().unwrap_or(false)
}

/// A path at a round; its end where the experiment ran fewer.
fn at(path: &[f64], round: usize) -> f64 {
    path.get(round).or(path.last()).copied().unwrap_or(1.0)
}
